package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/pgstore"
	"github.com/tollgate-gateway/tollgate/internal/archive"
	"github.com/tollgate-gateway/tollgate/internal/money"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/internal/wholefile"
)

// ArchiveOptions say what of the ledger goes to files.
type ArchiveOptions struct {
	Before time.Time // months that end by then, in UTC
	Dir    string    // of the files; made where it is missing
	DryRun bool      // read and verify everything, write and drop nothing
	// Progress hears what is done now.
	Progress func(text string)
}

// ArchiveReport is what was archived, the oldest month first.
type ArchiveReport struct {
	Before string          `json:"before"` // day
	DryRun bool            `json:"dry_run"`
	Months []ArchivedMonth `json:"months"`
}

// ArchivedMonth is a month whose rows a file has.
type ArchivedMonth struct {
	Month     string       `json:"month"`
	Rows      int64        `json:"rows"`
	CostUSD   string       `json:"cost_usd"`
	Blocks    int64        `json:"blocks"`
	Block     int64        `json:"block"` // the last one; 0: there is none
	BlockHash archive.Hash `json:"block_hash"`
	File      string       `json:"file"`
	SHA256    archive.Hash `json:"sha256"`      // of the file without its last line
	Found     bool         `json:"found"`       // the file was there already, from a run that was cut off
	Freed     int64        `json:"freed_bytes"` // of the database, rows and indexes
	Dropped   bool         `json:"dropped"`
}

const (
	// dropPatience is how long a month waits for sessions that read the ledger, and dropPause how long between two attempts.
	dropPatience = time.Minute
	dropPause    = 250 * time.Millisecond
	// progressRows is how many rows go by between two signs of progress.
	progressRows = 10_000
	monthForm    = "2006-01"
)

// Archive writes the months of the ledger that ended before a day to files, and drops each as soon as its file is complete. A
// run that is cut off, however that comes, is finished by the next one. With an error the report has the months before it.
func Archive(ctx context.Context, dsn secret.String, o ArchiveOptions) (report ArchiveReport, err error) {
	pool, err := pgstore.Open(ctx, pgstore.Options{DSN: dsn, MaxConns: 2})
	if err != nil {
		return report, err
	}
	defer pool.Close()
	a := archiver{pgstore.NewArchive(pool), o}
	before, err := a.before(ctx)
	if err != nil {
		return report, asOwner(err)
	}
	report = ArchiveReport{Before: before.Format(time.DateOnly), DryRun: o.DryRun, Months: []ArchivedMonth{}}
	if !o.DryRun {
		unlock, err := archive.Lock(o.Dir)
		if err != nil {
			return report, err
		}
		defer func() { err = errors.Join(err, unlock()) }()
	}
	err = a.store.FollowChain(ctx, func(done, all int64) {
		o.Progress(fmt.Sprintf("following the chain of seals: %d of %d blocks", done, all))
	})
	if err != nil {
		return report, refused(err)
	}
	months, err := a.store.Months(ctx, before)
	if err != nil {
		return report, err
	}
	for i := range months {
		done, err := a.month(ctx, &months[i])
		if done != nil {
			report.Months = append(report.Months, *done)
		}
		if err != nil {
			return report, fmt.Errorf("archive %s: %w", months[i].Month.Format(monthForm), refused(err))
		}
	}
	return report, nil
}

var errDropped = errors.New("somebody else, such as the retention, has dropped it meanwhile")

// refused adds to a broken seal what to do.
func refused(err error) error {
	if !errors.Is(err, archive.ErrSeal) && !errors.Is(err, pgstore.ErrChain) && !errors.Is(err, pgstore.ErrNotAsSealed) {
		return err
	}
	return fmt.Errorf("%w\nHint: nothing more was dropped; `tollgate ledger check` names what differs, keep the database as it is", err)
}

type archiver struct {
	store   *pgstore.Archive
	options ArchiveOptions
}

// before is the first day that stays, if all months before it are closed.
func (a *archiver) before(ctx context.Context) (time.Time, error) {
	open, young, err := a.store.Horizon(ctx)
	if err != nil {
		return time.Time{}, err
	}
	given := a.options.Before
	before := time.Date(given.Year(), given.Month(), 1, 0, 0, 0, 0, time.UTC)
	if given.After(open) {
		return before, fmt.Errorf("--before %s: %s is still open; the latest is %s", given.Format(time.DateOnly), open.Format(monthForm), young.Format(time.DateOnly))
	}
	if before.After(young) {
		return before, fmt.Errorf("--before %s: %s is not over for %d days, for which its rows stay; the latest is %s", given.Format(time.DateOnly),
			before.AddDate(0, -1, 0).Format(monthForm), pgstore.KeptDays, young.Format(time.DateOnly))
	}
	return before, nil
}

// month archives one month. It is returned with an error, too, if its file is complete.
func (a *archiver) month(ctx context.Context, m *pgstore.ArchiveMonth) (*ArchivedMonth, error) {
	name := m.Month.Format(monthForm)
	obstacles, err := a.store.Obstacles(ctx, m.Month)
	if err != nil {
		return nil, err
	}
	if obstacles != "" {
		return nil, fmt.Errorf("it is not closed yet: %s", obstacles)
	}
	path := filepath.Join(a.options.Dir, name+".jsonl")
	t, found, err := a.file(ctx, path, m)
	if errors.Is(err, archive.ErrSeal) {
		if gone, fault := a.store.Dropped(ctx, m.Month); gone || fault != nil {
			return nil, errors.Join(errDropped, fault) // rows that are gone are not those that were sealed
		}
	}
	if err != nil {
		return nil, err
	}
	done := &ArchivedMonth{
		Month: name, Rows: t.Rows, CostUSD: money.Nano(t.Cost).String(), Blocks: t.Blocks, Block: t.Block, BlockHash: t.BlockHash,
		File: path, SHA256: t.SHA256, Found: found, Freed: m.Bytes,
	}
	if a.options.DryRun {
		return done, nil
	}
	if err := a.drop(ctx, m.Month, t); err != nil {
		return done, err
	}
	done.Dropped = true
	return done, nil
}

// file makes sure that a month's file is complete and is, byte for byte, what the ledger has. Whatever else is there stays as it is.
func (a *archiver) file(ctx context.Context, path string, m *pgstore.ArchiveMonth) (t archive.Trailer, found bool, err error) {
	_, err = os.Stat(path)
	switch {
	case err == nil:
		found = true
		a.options.Progress(filepath.Base(path) + " is there already: reading it")
		if t, err = archive.CheckFile(path); err != nil {
			return t, found, fmt.Errorf("%s is there already: %w\nHint: move it away and run this again", path, err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return t, found, err
	case a.options.DryRun:
		t, err = a.write(ctx, io.Discard, m)
	default:
		err = wholefile.Write(path, func(w io.Writer) (err error) {
			if t, err = a.write(ctx, w, m); err == nil {
				err = same(t, m)
			}
			return err
		})
	}
	if err != nil {
		return t, found, err
	}
	if err := same(t, m); err != nil {
		return t, found, fmt.Errorf("%s: %w\nHint: if it is of another database, or of before these rows were there, move it away and run this again", path, err)
	}
	if found { // what makes a digest takes PostgreSQL, so a file alone does not show that a row of it was changed
		now, err := a.write(ctx, io.Discard, m)
		if err != nil {
			return t, found, err
		}
		if !bytes.Equal(now.SHA256, t.SHA256) {
			return t, found, fmt.Errorf("%s: its rows are not those of the ledger\nHint: it was changed, or attributions were erased since; move it away and run this again", path)
		}
	}
	return t, found, nil
}

// same compares what a file has with what was sealed.
func same(t archive.Trailer, m *pgstore.ArchiveMonth) error {
	if t.Month == m.Month.Format(monthForm) && t.Rows == m.Rows && t.Cost == m.Cost && t.Block == m.Block && bytes.Equal(t.BlockHash, m.BlockHash) {
		return nil
	}
	return fmt.Errorf("it has %d rows of %s up to block %d, and the ledger has %d up to block %d", t.Rows, t.Month, t.Block, m.Rows, m.Block)
}

// write writes the rows of a month, and follows their seals as it does.
func (a *archiver) write(ctx context.Context, to io.Writer, m *pgstore.ArchiveMonth) (archive.Trailer, error) {
	name := m.Month.Format(monthForm)
	header := archive.Header{Format: archive.Format, Month: name}
	for u := range governance.UnitCount {
		header.Units = append(header.Units, u.String())
	}
	w, err := archive.NewWriter(to, header)
	if err != nil {
		return archive.Trailer{}, err
	}
	rows := int64(0)
	block := func(b pgstore.ArchiveBlock) error {
		sealed := archive.Block{Number: b.Number, Epoch: b.Epoch, FromXID: b.FromXID, UntilXID: b.UntilXID, Previous: b.Previous, Hash: b.Hash}
		for _, p := range b.Parts {
			sealed.Parts = append(sealed.Parts, archive.Part{Month: p.Month.Format(monthForm), Rows: p.Rows, Cost: p.Cost, Hash: p.Hash})
		}
		return w.Block(sealed)
	}
	row := func(r pgstore.ArchiveRow) error {
		if rows++; rows%progressRows == 0 {
			a.options.Progress(fmt.Sprintf("%s: %d of %d rows", name, rows, m.Rows))
		}
		return w.Row(archive.Row{Row: r.Row, Attribution: r.Attribution, Digest: r.Digest})
	}
	a.options.Progress(fmt.Sprintf("%s: %d rows", name, m.Rows))
	if err := a.store.Read(ctx, m.Month, block, row); err != nil {
		return archive.Trailer{}, err
	}
	return w.Close()
}

// drop drops a month, as soon as no session is in the way any more.
func (a *archiver) drop(ctx context.Context, month time.Time, t archive.Trailer) error {
	wait, cancel := context.WithTimeout(ctx, dropPatience)
	defer cancel()
	pause := time.NewTicker(dropPause)
	defer pause.Stop()
	for {
		progress, err := a.store.Drop(ctx, month, t.Rows, t.Cost)
		if err != nil || progress == pgstore.DropDone {
			return err
		}
		if progress == pgstore.DropReads {
			a.options.Progress(t.Month + ": complete; adding up what stays")
			continue
		}
		a.options.Progress(t.Month + ": complete; waiting for sessions that read the ledger")
		select {
		case <-pause.C:
		case <-wait.Done():
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("its file is complete, but for %s other sessions that read the ledger kept it from being dropped\nHint: run this again; the file is not written anew", dropPatience)
		}
	}
}

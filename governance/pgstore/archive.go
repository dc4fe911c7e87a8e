package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// KeptDays is how long a month of the ledger stays after its end, whatever is asked for.
	KeptDays = 92
	// archiveRows and archiveBlocks bound what one statement of an archive reads: blocks that come after each other, of so many
	// rows together, or a single one that has more.
	archiveRows   = 2048
	archiveBlocks = 256
	// chainBlocks is how many blocks one statement follows the chain through.
	chainBlocks = 10_000
)

// ErrChain says that the blocks are not an unbroken chain.
var ErrChain = errors.New("the chain of seals is broken")

// Archive takes months out of the ledger that are closed.
type Archive struct{ pool *pgxpool.Pool }

// NewArchive works through pool, whose role must own the schema.
func NewArchive(pool *pgxpool.Pool) *Archive { return &Archive{pool: pool} }

// ArchiveMonth is a month that has a partition of its own.
type ArchiveMonth struct {
	Month time.Time `db:"month"` // its first day, UTC
	Rows  int64     `db:"rows"`  // that are sealed
	Cost  int64     `db:"cost"`  // of these, nano-dollars
	Bytes int64     `db:"bytes"` // of rows and indexes
	// Block is the last block that has rows of it; 0: there is none.
	Block     int64  `db:"block"`
	BlockHash []byte `db:"block_hash"`
}

// ArchiveBlock is a block that has rows of a month.
type ArchiveBlock struct {
	Number            int64
	Epoch             int
	FromXID, UntilXID string // exclusive
	Previous, Hash    []byte
	Parts             []ArchivePart // of all months, in their order
}

// ArchivePart is the rows of a block whose attempts are of one month.
type ArchivePart struct {
	Month time.Time
	Rows  int64
	Cost  int64 // nano-dollars
	Hash  []byte
}

// ArchiveRow is a row as JSON, every column by its name, and the digest that was sealed.
type ArchiveRow struct {
	Row         []byte
	Attribution []byte // JSON; nil: there is none
	Digest      []byte
}

// Horizon returns the first day of the month that is open, and that of the first month which is too young to be dropped.
// ErrNotOwner, ErrNoSchema: the pool's role must own the schema.
func (a *Archive) Horizon(ctx context.Context) (open, young time.Time, err error) {
	type horizon struct {
		Open  time.Time `db:"open"`
		Young time.Time `db:"young"`
	}
	h, err := read(ctx, a.pool, func(ctx context.Context, q querier) (horizon, error) {
		if err := requireOwner(ctx, q); err != nil {
			return horizon{}, err
		}
		return one[horizon](ctx, q, "archive_horizon", args{"days": KeptDays})
	})
	return h.Open, h.Young, err
}

// Months are those before a day that are still in the ledger, the oldest first.
func (a *Archive) Months(ctx context.Context, before time.Time) (months []ArchiveMonth, err error) {
	err = atLeisure(ctx, a.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(ctx context.Context, tx pgx.Tx) (err error) {
		months, err = many[ArchiveMonth](ctx, tx, "archive_months", args{"before": before})
		return err
	})
	return months, err
}

// Dropped reports whether somebody has dropped a month.
func (a *Archive) Dropped(ctx context.Context, month time.Time) (bool, error) {
	found, err := read(ctx, a.pool, func(ctx context.Context, q querier) ([]droppedMonth, error) {
		return many[droppedMonth](ctx, q, "archive_dropped", args{"month": month})
	})
	return len(found) > 0, err
}

// FollowChain makes sure that all blocks are an unbroken chain of hashes, from the first to the one that the seals' mark names,
// without reading their rows. progress hears how many of all are done. ErrChain.
func (a *Archive) FollowChain(ctx context.Context, progress func(done, all int64)) error {
	type end struct {
		Number int64 `db:"number"`
		Marked bool  `db:"marked"`
	}
	last, err := read(ctx, a.pool, func(ctx context.Context, q querier) (end, error) {
		return one[end](ctx, q, "archive_last_block", nil)
	})
	if err != nil {
		return err
	}
	if !last.Marked {
		return fmt.Errorf("the mark names block %d, which is not the last one or has another hash: %w", last.Number, ErrChain)
	}
	for first := int64(1); first <= last.Number; first += chainBlocks {
		progress(first-1, last.Number)
		err := atLeisure(ctx, a.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(ctx context.Context, tx pgx.Tx) error {
			broken, err := collect(ctx, tx, "archive_broken_block", args{"first": first, "last": min(first+chainBlocks-1, last.Number)}, pgx.RowTo[int64])
			if len(broken) > 0 {
				return fmt.Errorf("block %d: %w", broken[0], ErrChain)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Obstacles says in words what keeps a month from being closed; empty: nothing does.
func (a *Archive) Obstacles(ctx context.Context, month time.Time) (string, error) {
	type counts struct {
		Unsealed    int64 `db:"unsealed"`
		InFlight    int64 `db:"in_flight"`
		Provisional int64 `db:"provisional"`
		Stray       int64 `db:"stray"`
	}
	var n counts
	err := atLeisure(ctx, a.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(ctx context.Context, tx pgx.Tx) (err error) {
		n, err = one[counts](ctx, tx, "archive_obstacles", monthArgs(month))
		return err
	})
	if err != nil {
		return "", err
	}
	var said []string
	for _, o := range []struct {
		count int64
		what  string
	}{
		{n.Unsealed, "rows that are not sealed"},
		{n.InFlight, "calls in flight"},
		{n.Provisional, "provisional rows"},
		{n.Stray, "rows that are in no month's partition"},
	} {
		if o.count > 0 {
			said = append(said, fmt.Sprintf("%d %s", o.count, o.what))
		}
	}
	return strings.Join(said, ", "), nil
}

// Read hands over all sealed rows of a month: each block, then its rows, in the order in which they were hashed. No transaction
// outlives a run of blocks.
func (a *Archive) Read(ctx context.Context, month time.Time, block func(ArchiveBlock) error, row func(ArchiveRow) error) error {
	after := int64(0)
	for {
		next := monthArgs(month)
		next["after"], next["count"] = after, archiveBlocks
		blocks, err := read(ctx, a.pool, func(ctx context.Context, q querier) ([]archiveBlockColumns, error) {
			return many[archiveBlockColumns](ctx, q, "archive_blocks", next)
		})
		if err != nil || len(blocks) == 0 {
			return err
		}
		after = blocks[len(blocks)-1].Number
		for len(blocks) > 0 {
			n := 1
			for rows := blocks[0].OwnRows; n < len(blocks) && rows+blocks[n].OwnRows <= archiveRows; n++ {
				rows += blocks[n].OwnRows
			}
			if err := a.readRun(ctx, month, blocks[:n], block, row); err != nil {
				return err
			}
			blocks = blocks[n:]
		}
	}
}

// readRun hands over a run of blocks.
func (a *Archive) readRun(ctx context.Context, month time.Time, blocks []archiveBlockColumns, block func(ArchiveBlock) error, row func(ArchiveRow) error) error {
	low, high := blocks[0].FirstSeq, blocks[0].LastSeq
	for i := range blocks {
		low, high = min(low, blocks[i].FirstSeq), max(high, blocks[i].LastSeq)
	}
	of := monthArgs(month)
	of["first"], of["last"], of["first_seq"], of["last_seq"] = blocks[0].Number, blocks[len(blocks)-1].Number, low, high
	return atLeisure(ctx, a.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := exec(ctx, tx, "spend_plans", nil); err != nil {
			return err
		}
		text, named := prepare("archive_rows", of)
		rows, err := tx.Query(ctx, text, named)
		if err != nil {
			return fmt.Errorf("run archive_rows: %w", err)
		}
		next := 0
		// begin hands over the blocks up to a number, also one of which there is no row, as there has to be.
		begin := func(number int64) error {
			for ; next < len(blocks) && blocks[next].Number <= number; next++ {
				if err := block(blocks[next].block()); err != nil {
					return err
				}
			}
			return nil
		}
		var number int64
		var r ArchiveRow
		_, err = pgx.ForEachRow(rows, []any{&number, &r.Digest, &r.Row, &r.Attribution}, func() error {
			if err := begin(number); err != nil {
				return err
			}
			return row(r)
		})
		if err != nil {
			return fmt.Errorf("hand over rows: %w", err)
		}
		return begin(blocks[len(blocks)-1].Number)
	})
}

// DropProgress is how far a drop has come.
type DropProgress int

// A drop goes on as long as it has read; it waits while another session is in the way, or a month before it is there.
const (
	DropWaits DropProgress = iota
	DropReads
	DropDone
)

// Drop does the next step towards dropping a month of which so many rows at this cost were archived, behind openings. If the
// month has anything else than what was archived, or than what was sealed (ErrNotAsSealed), it stays.
func (a *Archive) Drop(ctx context.Context, month time.Time, rows, cost int64) (DropProgress, error) {
	progress := DropWaits
	err := atLeisure(ctx, a.pool, pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		found, err := many[droppedMonth](ctx, tx, "archive_dropped", args{"month": month})
		if err == nil && len(found) == 0 { // nobody has dropped it yet
			if progress, err = dropStepOf(ctx, tx, month); progress == DropDone {
				found, err = many[droppedMonth](ctx, tx, "archive_dropped", args{"month": month})
			}
		}
		if err != nil || len(found) == 0 {
			return err
		}
		if found[0].Rows != rows || found[0].Cost != cost {
			return fmt.Errorf("%s had %d rows, and %d were archived", month.Format(monthForm), found[0].Rows, rows)
		}
		progress = DropDone
		return nil
	})
	return progress, err
}

// dropStepOf does the next step towards the end of the oldest month, which has to be this one.
func dropStepOf(ctx context.Context, tx pgx.Tx, month time.Time) (DropProgress, error) {
	steps, err := many[dropStep](ctx, tx, "upkeep_drop_month", args{"days": KeptDays, "count": blockRows})
	if err != nil || len(steps) == 0 {
		return DropWaits, err
	}
	switch of := steps[0].Month; {
	case steps[0].Outcome == "differs":
		return DropWaits, fmt.Errorf("drop %s: %w", of.Format(monthForm), ErrNotAsSealed)
	case !of.Equal(month):
		return DropWaits, fmt.Errorf("%s stands before %s", of.Format(monthForm), month.Format(monthForm))
	case steps[0].Outcome == "read":
		return DropReads, nil
	}
	return DropDone, nil
}

const monthForm = "2006-01"

// monthArgs are a month and the ids of its attempts.
func monthArgs(month time.Time) args {
	return args{"month": month, "from_id": leastID(month), "to_id": leastID(month.AddDate(0, 1, 0))}
}

type droppedMonth struct {
	Rows int64 `db:"rows"`
	Cost int64 `db:"cost"`
}

type archiveBlockColumns struct {
	Number   int64       `db:"number"`
	Epoch    int         `db:"epoch"`
	FromXID  string      `db:"from_xid"`
	UntilXID string      `db:"until_xid"`
	FirstSeq int64       `db:"first_seq"`
	LastSeq  int64       `db:"last_seq"`
	Hash     []byte      `db:"hash"`
	Previous []byte      `db:"previous"`
	OwnRows  int64       `db:"own_rows"`
	Months   []time.Time `db:"months"`
	Rows     []int64     `db:"rows"`
	Costs    []int64     `db:"costs"`
	Hashes   [][]byte    `db:"hashes"`
}

func (c *archiveBlockColumns) block() ArchiveBlock {
	b := ArchiveBlock{
		Number: c.Number, Epoch: c.Epoch, FromXID: c.FromXID, UntilXID: c.UntilXID, Previous: c.Previous, Hash: c.Hash,
		Parts: make([]ArchivePart, 0, len(c.Months)),
	}
	for i, month := range c.Months {
		b.Parts = append(b.Parts, ArchivePart{Month: month, Rows: c.Rows[i], Cost: c.Costs[i], Hash: c.Hashes[i]})
	}
	return b
}

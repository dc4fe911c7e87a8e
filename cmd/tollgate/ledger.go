package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/app"
	"github.com/tollgate-gateway/tollgate/internal/archive"
	"github.com/tollgate-gateway/tollgate/internal/cli"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

type ledgerCommand struct {
	cli.LedgerCommands

	Archive ledgerArchive `cmd:"" help:"Write closed months to files and drop them from the database."`
	Verify  ledgerVerify  `cmd:"" help:"Follow the hashes of archived months, without a database."`
}

type ledgerArchive struct {
	migrationDatabase

	Before day    `required:"" help:"Archive the months that end by this day: 2026-01-01, or 2026-01." placeholder:"DAY"`
	Dir    string `required:"" help:"Directory of the files, one for each month." placeholder:"DIR"`
	DryRun bool   `help:"Read and verify everything, write and drop nothing."`
	Output string `enum:"table,json" default:"table" help:"Form of the report: ${enum}."`
}

// Help is shown by --help.
func (ledgerArchive) Help() string {
	return strings.TrimSpace(`
Needs the DSN of the schema's owner. First the chain of seals is followed; a month whose rows are not those that were sealed is
not archived, nor is any after it. Its rows go to DIR/2026-01.jsonl, every column and the hashes of the blocks, under another name
until all of it is on the disk. Only then the month is dropped, behind openings, so that budgets, sums and checks are what they
were. A run that was cut off is finished by the next one. A month has to be over for 92 days, and closed: everything sealed,
nothing in flight or provisional.

Examples:
  tollgate ledger archive --before 2026-01-01 --dir /srv/ledger --dry-run
  tollgate ledger archive --before 2026-01-01 --dir /srv/ledger`)
}

// day is a date, or the first one of a month.
type day struct{ time.Time }

// UnmarshalText reads the day.
func (d *day) UnmarshalText(text []byte) (err error) {
	for _, form := range []string{time.DateOnly, "2006-01"} {
		if d.Time, err = time.Parse(form, string(text)); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%q is no day such as 2026-01-01, and no month such as 2026-01", text)
}

func (c *ledgerArchive) Run(ctx context.Context, s streams) error {
	dsn, err := c.dsn()
	if err != nil {
		return err
	}
	line := newProgress(s.err)
	report, err := app.Archive(ctx, dsn, app.ArchiveOptions{Before: c.Before.Time, Dir: c.Dir, DryRun: c.DryRun, Progress: seldom(line)})
	line.end()
	if report.Before == "" { // it has not begun
		return err
	}
	if c.Output == "json" {
		return errors.Join(err, json.NewEncoder(s.out).Encode(report))
	}
	if err == nil && len(report.Months) == 0 {
		_, err = fmt.Fprintf(s.out, "nothing to archive: no month before %s is left in the ledger\n", report.Before)
		return err
	}
	return errors.Join(err, writeArchiveReport(s.out, report))
}

func writeArchiveReport(w io.Writer, r app.ArchiveReport) error {
	if len(r.Months) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "MONTH\tROWS\tUSD\tBLOCKS\tLAST BLOCK\tFILE\tRESULT")
	for _, m := range r.Months {
		result := "archived"
		switch {
		case r.DryRun:
			result = "would be archived"
		case !m.Dropped:
			result = "written, not dropped"
		case m.Found:
			result = "archived, with the file that was there"
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%d\t%d %.6x…\t%s\t%s\n", m.Month, m.Rows, m.CostUSD, m.Blocks, m.Block, []byte(m.BlockHash), m.File, result)
	}
	return t.Flush()
}

type ledgerVerify struct {
	Files  []string `arg:"" type:"existingfile" help:"Files that ledger archive has written."`
	Output string   `enum:"table,json" default:"table" help:"Form of the result: ${enum}."`
}

// Help is shown by --help.
func (ledgerVerify) Help() string {
	return strings.TrimSpace(`
Follows digests, hashes and chain in each file, and adds up its costs. Exits with 1 if one is not complete, or its digests are not
those that were sealed. That each row is what its digest was made of takes a database; docs/finance.md has the query.

Example:
  tollgate ledger verify /srv/ledger/2026-*.jsonl`)
}

func (c *ledgerVerify) Run(s streams) error {
	trailers := make([]archive.Trailer, 0, len(c.Files))
	for _, path := range c.Files {
		t, err := archive.CheckFile(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		trailers = append(trailers, t)
	}
	if c.Output == "json" {
		return json.NewEncoder(s.out).Encode(trailers)
	}
	t := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "MONTH\tROWS\tUSD\tBLOCKS\tLAST BLOCK")
	for _, m := range trailers {
		fmt.Fprintf(t, "%s\t%d\t%s\t%d\t%d %x\n", m.Month, m.Rows, money.Nano(m.Cost), m.Blocks, m.Block, []byte(m.BlockHash))
	}
	return t.Flush()
}

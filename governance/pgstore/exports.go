package pgstore

import (
	"context"
	"fmt"
	"maps"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/governance"
)

const (
	// exportRows is how many rows are read at once. It bounds an export's memory and the age of its snapshots.
	exportRows = 2048
	// exportBlocks is of how many blocks they are at most, since each row is looked for in each of them.
	exportBlocks = 64
)

// Exports reads whole periods of the ledger.
type Exports struct{ pool *pgxpool.Pool }

var _ governance.SpendExporter = (*Exports)(nil)

// NewExports reads through pool, which should be one of their own: exports take minutes, and lists should not wait for them.
func NewExports(pool *pgxpool.Pool) *Exports { return &Exports{pool: pool} }

// exportBlock is a block that may have rows of an export.
type exportBlock struct {
	Number   int64  `db:"number"`
	Rows     int64  `db:"rows"`
	Hash     []byte `db:"hash"`
	FirstSeq int64  `db:"first_seq"`
	LastSeq  int64  `db:"last_seq"`
	Dropped  int64  `db:"dropped"`
}

// Export hands over the sealed rows of a filter. No transaction outlives a page, however slow each is.
func (e *Exports) Export(ctx context.Context, f governance.SpendFilter, each func([]governance.SpendRow) error) (governance.Exported, error) {
	var done governance.Exported
	n, err := read(ctx, e.pool, func(ctx context.Context, q querier) (narrowing, error) { return narrow(ctx, q, f) })
	if err != nil {
		return done, err
	}
	a := n.args()
	for {
		a["after"], a["count"], a["most"] = done.Block.Number, exportRows, exportBlocks
		blocks, err := read(ctx, e.pool, func(ctx context.Context, q querier) ([]exportBlock, error) {
			return many[exportBlock](ctx, q, "export_blocks", a)
		})
		if err != nil {
			return done, err
		}
		if len(blocks) == 0 {
			break
		}
		if err := e.blocks(ctx, a, blocks, &done, each); err != nil {
			return done, err
		}
		last := blocks[len(blocks)-1]
		done.Block = governance.Block{Number: last.Number, Rows: last.Rows, Hash: last.Hash}
	}
	err = within(ctx, e.pool, oneSnapshot, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := exec(ctx, tx, "spend_plans", nil); err != nil {
			return err
		}
		done.Unsealed, err = scalar[int64](ctx, tx, "export_unsealed", a)
		return err
	})
	return done, err
}

// blocks hands over the rows of some blocks.
func (e *Exports) blocks(ctx context.Context, a args, blocks []exportBlock, done *governance.Exported, each func([]governance.SpendRow) error) error {
	first, last := blocks[0], blocks[len(blocks)-1]
	low, high := first.FirstSeq, first.LastSeq
	var rows, dropped int64
	for _, b := range blocks {
		low, high = min(low, b.FirstSeq), max(high, b.LastSeq)
		rows, dropped = rows+b.Rows, dropped+b.Dropped
	}
	done.Dropped += dropped
	if dropped == rows {
		return nil
	}
	step := int64(exportRows)
	if rows <= exportRows {
		step = high - low + 1 // one page has them all
	}
	a = maps.Clone(a)
	a["first"], a["last"] = first.Number, last.Number
	for ; low <= high; low += step {
		a["low"], a["high"] = low, low+step
		page, err := e.page(ctx, a)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			continue
		}
		for i := range page {
			done.Rows++
			done.Cost += page[i].Cost
		}
		if err := each(page); err != nil {
			return fmt.Errorf("hand over blocks %d to %d: %w", first.Number, last.Number, err)
		}
	}
	return nil
}

// page reads the rows of a range.
func (e *Exports) page(ctx context.Context, a args) (rows []governance.SpendRow, err error) {
	err = within(ctx, e.pool, oneSnapshot, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := exec(ctx, tx, "spend_plans", nil); err != nil {
			return err
		}
		keys, err := many[spendKey](ctx, tx, "export_page", a)
		if err != nil {
			return err
		}
		rows, err = spendRows(ctx, tx, keys)
		return err
	})
	return rows, err
}

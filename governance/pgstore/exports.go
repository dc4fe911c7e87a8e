package pgstore

import (
	"context"
	"fmt"
	"maps"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/governance"
)

// exportRows is how many rows of a block are read at once. It bounds an export's memory and the age of its snapshots.
const exportRows = 2048

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
		a["after"] = done.Block.Number
		blocks, err := read(ctx, e.pool, func(ctx context.Context, q querier) ([]exportBlock, error) {
			return many[exportBlock](ctx, q, "export_block", a)
		})
		if err != nil {
			return done, err
		}
		if len(blocks) == 0 {
			break
		}
		b := blocks[0]
		if done.Dropped += b.Dropped; b.Dropped < b.Rows {
			if err := e.block(ctx, a, &b, &done, each); err != nil {
				return done, err
			}
		}
		done.Block = governance.Block{Number: b.Number, Rows: b.Rows, Hash: b.Hash}
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

// block hands over the rows of a block.
func (e *Exports) block(ctx context.Context, a args, b *exportBlock, done *governance.Exported, each func([]governance.SpendRow) error) error {
	for low := b.FirstSeq; low <= b.LastSeq; low += exportRows {
		rows, err := e.page(ctx, a, b.Number, low)
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			continue
		}
		for i := range rows {
			done.Rows++
			done.Cost += rows[i].Cost
		}
		if err := each(rows); err != nil {
			return fmt.Errorf("hand over block %d: %w", b.Number, err)
		}
	}
	return nil
}

// page reads the rows of a block from a number on.
func (e *Exports) page(ctx context.Context, a args, block, low int64) (rows []governance.SpendRow, err error) {
	of := maps.Clone(a)
	of["block"], of["low"], of["high"] = block, low, low+exportRows
	err = within(ctx, e.pool, oneSnapshot, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := exec(ctx, tx, "spend_plans", nil); err != nil {
			return err
		}
		keys, err := many[spendKey](ctx, tx, "export_page", of)
		if err != nil {
			return err
		}
		rows, err = spendRows(ctx, tx, keys)
		return err
	})
	return rows, err
}

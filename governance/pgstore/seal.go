package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tollgate-gateway/tollgate/governance"
)

// blockRows is how many rows a block has at most, one transaction's apart.
const blockRows = 100_000

// Seal seals what can be sealed, adds it to the roll-ups, and returns the blocks that it made. Rows of transactions that
// still run, and of all that began after the oldest of these, wait for a later call, as does what comes meanwhile. Run it a
// few times a minute: lists and sums read every row that is not sealed.
func (u *Upkeep) Seal(ctx context.Context) ([]governance.Block, error) {
	var made []governance.Block
	for full := true; full; {
		err := atLeisure(ctx, u.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(ctx context.Context, tx pgx.Tx) error {
			blocks, err := many[blockColumns](ctx, tx, "upkeep_seal", args{"count": blockRows})
			full = false
			for i := range blocks {
				made = append(made, blocks[i].block())
				// Under load there are always a few rows more, which are no reason to go on. A block that leaves rows behind lacks
				// a part of one transaction at most.
				full = blocks[i].Rows >= blockRows/2
			}
			return err
		})
		if err != nil {
			return made, err
		}
	}
	_, err := read(ctx, u.pool, func(ctx context.Context, q querier) (int, error) {
		return scalar[int](ctx, q, "upkeep_places", nil)
	})
	return made, err
}

// ErrNotAsSealed says that the rows of a month are not those that were sealed. A check of the ledger tells which.
var ErrNotAsSealed = errors.New("rows of a month are not those that were sealed: run a ledger check")

// DropMonths drops the months of the ledger that ended at least keep ago, the oldest first, and returns them. Each leaves what
// it had booked on windows as openings, its blocks' hashes and its roll-ups. A month that is not wholly sealed and settled
// stays, with all that follow, as does what is younger than 92 days; so does one with ErrNotAsSealed. A month is read in steps:
// one whose reading ctx ends is read on by the next call.
func (u *Upkeep) DropMonths(ctx context.Context, keep time.Duration) ([]time.Time, error) {
	var dropped []time.Time
	a := args{"days": int(keep / (24 * time.Hour)), "count": blockRows}
	for {
		var steps []dropStep
		err := atLeisure(ctx, u.pool, pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) (err error) {
			steps, err = many[dropStep](ctx, tx, "upkeep_drop_month", a)
			return err
		})
		if err != nil || len(steps) == 0 {
			return dropped, err
		}
		switch month := steps[0].Month; steps[0].Outcome {
		case "dropped":
			dropped = append(dropped, month)
		case "differs":
			return dropped, fmt.Errorf("drop month %s: %w", month.Format("2006-01"), ErrNotAsSealed)
		}
	}
}

// dropStep is what one step towards the end of a month did.
type dropStep struct {
	Month   time.Time `db:"month"`
	Outcome string    `db:"outcome"`
}

type blockColumns struct {
	Number int64  `db:"number"`
	Rows   int64  `db:"rows"`
	Hash   []byte `db:"hash"`
}

func (c *blockColumns) block() governance.Block {
	return governance.Block{Number: c.Number, Rows: c.Rows, Hash: c.Hash}
}

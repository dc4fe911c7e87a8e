package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// seedBatch is how many rows one transaction of a seed adds.
const seedBatch = 100_000

// ErrForeignRows says that a database has ledger rows which no seed has made.
var ErrForeignRows = errors.New("the database has ledger rows that are not seeded ones")

// Seed fills a development database with rows of settled calls of the last span, their windows and, as it goes, their blocks
// and roll-ups: books that every check finds right. It makes tenants of its own, once. progress hears how many rows are there
// after each of its transactions. ErrNotOwner, ErrNoSchema: the pool's role must own the schema. ErrForeignRows: real tenants
// are at work here. In all three cases nothing was done.
func Seed(ctx context.Context, pool *pgxpool.Pool, rows int64, span time.Duration, progress func(done int64)) error {
	var since time.Time
	err := atLeisure(ctx, pool, pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		if err := requireOwner(ctx, tx); err != nil {
			return err
		}
		foreign, err := scalar[bool](ctx, tx, "seed_foreign", nil)
		if err != nil {
			return err
		}
		if foreign {
			return ErrForeignRows
		}
		there, err := scalar[bool](ctx, tx, "seed_exists", nil)
		if err == nil && !there {
			_, err = exec(ctx, tx, "seed_accounts", nil)
		}
		if err != nil {
			return err
		}
		since, err = scalar[time.Time](ctx, tx, "seed_since", args{"span": span})
		if err != nil {
			return err
		}
		_, err = scalar[int](ctx, tx, "seed_months", args{"since": since})
		return err
	})
	if err != nil {
		return fmt.Errorf("prepare seed: %w", err)
	}
	up := NewUpkeep(pool)
	for done := int64(0); done < rows; {
		next := min(done+seedBatch, rows)
		err := atLeisure(ctx, pool, pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := exec(ctx, tx, "seed_asynchronous", nil); err != nil {
				return err
			}
			_, err := exec(ctx, tx, "seed_rows", args{"first": done + 1, "last": next, "total": rows, "since": since})
			return err
		})
		if err != nil {
			return fmt.Errorf("seed rows: %w", err)
		}
		if _, err := up.Seal(ctx); err != nil {
			return fmt.Errorf("seal seeded rows: %w", err)
		}
		done = next
		progress(done)
	}
	return nil
}

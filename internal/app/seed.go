package app

import (
	"context"
	"time"

	"github.com/tollgate-gateway/tollgate/governance/pgstore"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// Seed fills the ledger of a development database with made-up rows of the last span. progress hears how many are there.
// pgstore.ErrForeignRows: the database has others.
func Seed(ctx context.Context, dsn secret.String, rows int64, span time.Duration, progress func(done int64)) error {
	pool, err := pgstore.Open(ctx, pgstore.Options{DSN: dsn, MaxConns: 2})
	if err != nil {
		return err
	}
	defer pool.Close()
	return pgstore.Seed(ctx, pool, rows, span, progress)
}

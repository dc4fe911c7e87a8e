package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tollgate-gateway/tollgate/governance/pgstore"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// Seed fills the ledger of a development database with made-up rows of the last span. progress hears how many are there.
// Where it refuses, the error says what to do.
func Seed(ctx context.Context, dsn secret.String, rows int64, span time.Duration, progress func(done int64)) error {
	pool, err := pgstore.Open(ctx, pgstore.Options{DSN: dsn, MaxConns: 2})
	if err != nil {
		return err
	}
	defer pool.Close()
	err = pgstore.Seed(ctx, pool, rows, span, progress)
	if errors.Is(err, pgstore.ErrForeignRows) {
		return fmt.Errorf("%w\nHint: made-up rows do not go beside real ones; seed a database of its own, such as that of `tollgate dev --data-dir DIR` before its first call", err)
	}
	return asOwner(err)
}

// asOwner adds to an error of what only the schema's owner may do where the owner's DSN is.
func asOwner(err error) error {
	if !errors.Is(err, pgstore.ErrNotOwner) {
		return err
	}
	return fmt.Errorf("%w\nHint: give the owner's DSN by --database-direct-url or TOLLGATE_DATABASE_DIRECT_URL; `tollgate dev` keeps it in secrets.env of its data directory", err)
}

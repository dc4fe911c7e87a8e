package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Why what only the owner of the schema may do cannot be done.
var (
	ErrNotOwner = errors.New("does not own the schema")
	ErrNoSchema = errors.New("the database has no ledger: run `tollgate migrate up`")
)

// Server is what a database server says about itself.
type Server struct {
	Version string `db:"version"`
	Major   int    `db:"major"`
	// Durable reports whether what it has acknowledged outlives a crash (fsync, full_page_writes,
	// synchronous_commit).
	Durable bool `db:"durable"`
	// Connections is how many sessions ordinary roles may have at once.
	Connections int `db:"connections"`
	// Backend is the process that answered.
	Backend int64 `db:"backend"`
	// Pooled reports whether sessions are not the server's own: a pooler stands between.
	Pooled bool `db:"-"`
}

// ReadServer asks the server of a pool what it is.
func ReadServer(ctx context.Context, pool *pgxpool.Pool) (Server, error) {
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	conn, err := acquire(ctx, pool)
	if err != nil {
		return Server{}, err
	}
	defer conn.Release()
	s, err := one[Server](ctx, conn, "server", nil)
	// Poolers tell their clients process numbers of their own.
	s.Pooled = s.Backend != int64(conn.Conn().PgConn().PID())
	return s, err
}

// requireOwner finds out whether a session may do what the schema's owner may. ErrNotOwner, ErrNoSchema.
func requireOwner(ctx context.Context, q querier) error {
	type asking struct {
		Role string `db:"role"`
		Owns bool   `db:"owns"`
	}
	found, err := many[asking](ctx, q, "server_owner", nil)
	switch {
	case err != nil:
		return err
	case len(found) == 0:
		return ErrNoSchema
	case !found[0].Owns:
		return fmt.Errorf("role %q %w", found[0].Role, ErrNotOwner)
	}
	return nil
}

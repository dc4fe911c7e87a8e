package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Server is what a database server says about itself.
type Server struct {
	Version string `db:"version"`
	Major   int    `db:"major"`
	// Durable reports whether what it has acknowledged outlives a crash (fsync, full_page_writes).
	Durable bool `db:"durable"`
}

// ReadServer asks the server of a pool what it is.
func ReadServer(ctx context.Context, pool *pgxpool.Pool) (Server, error) {
	return read(ctx, pool, func(ctx context.Context, q querier) (Server, error) {
		return one[Server](ctx, q, "server", nil)
	})
}

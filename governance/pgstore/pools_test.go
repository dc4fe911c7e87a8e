package pgstore

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/pgtest"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// as opens a pool as production does, with the privileges of a role.
func as(t *testing.T, admin *pgxpool.Pool, role string) *pgxpool.Pool {
	t.Helper()
	return openPool(t, Options{DSN: secret.New(pgtest.RoleDSN(t, admin, role)), MaxConns: 4, TimeoutsOnRole: true})
}

func openPool(t *testing.T, o Options) *pgxpool.Pool {
	t.Helper()
	pool, err := Open(context.WithoutCancel(t.Context()), o)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

package ledger_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/pgstore/ledger"
)

// All connections end at once, the idle ones too, as by a restart of the database or of what stands before it. The lane's
// one repeat must not meet the next dead one.
func TestF205_ReserveOutlivesACutOfAllConnections(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	config, err := pgxpool.ParseConfig(db.Config().ConnString())
	require.NoError(t, err)
	config.MaxConns = 4
	config.ConnConfig.RuntimeParams["application_name"] = "cut"
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(t.Context()), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	l := start(t, ledger.Options{Pool: pool})
	purse := db.limit(t, governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricTokens, Amount: 1000})
	_, err = l.Reserve(t.Context(), request(l, hold(purse, 1, 1)))
	require.NoError(t, err)
	const cuts = 5
	for range cuts {
		var idle []*pgxpool.Conn
		for range 4 {
			conn, err := pool.Acquire(t.Context())
			require.NoError(t, err)
			idle = append(idle, conn)
		}
		for _, conn := range idle {
			conn.Release()
		}
		db.exec(t, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'cut' AND datname = current_database()")
		_, err := l.Reserve(t.Context(), request(l, hold(purse, 1, 1)))
		require.NoError(t, err)
	}
	require.Equal(t, int64(1+cuts), db.count(t, "SELECT held FROM ledger.meters"))
}

package ledger_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/pgstore/ledger"
)

func TestReserveAndSettle(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	l := start(t, ledger.Options{Pool: db.Pool})
	rate := db.limit(t, governance.Limit{Kind: governance.KindRate, Metric: governance.MetricRequests, Amount: 60})
	tokens := db.limit(t, governance.Limit{Kind: governance.KindRate, Metric: governance.MetricTokens, Amount: 1000})
	budget := db.limit(t, governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricCost, Amount: 1_000_000, CarryDebt: true})
	slots := db.limit(t, governance.Limit{Kind: governance.KindConcurrency, Metric: governance.MetricRequests, Amount: 1})

	r := request(l, hold(rate, 1, 1), hold(tokens, 1, 300), hold(budget, 1, 400_000), hold(slots, 1, 1))
	got, err := l.Reserve(t.Context(), r)
	require.NoError(t, err)
	require.Len(t, got.Levels, 4)
	require.Equal(t, int64(59), got.Levels[0].Remaining)
	require.Equal(t, int64(700), got.Levels[1].Remaining)
	require.Equal(t, int64(400_000), got.Levels[2].Held)
	require.Equal(t, int64(600_000), got.Levels[2].Remaining)
	require.Equal(t, int64(0), got.Levels[3].Remaining)

	_, err = l.Reserve(t.Context(), request(l, hold(slots, 1, 1)))
	var denial *governance.Denial
	require.ErrorAs(t, err, &denial)
	require.Equal(t, governance.RefusedConcurrency, denial.Refusals[0].Reason)

	require.NoError(t, l.Settle(t.Context(), used(r.ID, 10, 20, 150_000)))
	require.ErrorIs(t, l.Settle(t.Context(), used(r.ID, 10, 20, 150_000)), governance.ErrAlreadyClosed)
	require.Equal(t, int64(150_000), db.count(t, "SELECT cost FROM ledger.rows WHERE attempt_id = $1", r.ID))
	require.Equal(t, int64(150_000), db.count(t, "SELECT spent FROM ledger.meters WHERE limit_id = $1", budget.Num))
	require.Equal(t, int64(0), db.count(t, "SELECT held FROM ledger.meters WHERE limit_id = $1", budget.Num))
	require.Equal(t, int64(0), db.count(t, "SELECT count(*) FROM ledger.reservations"))
}

// The time before a change of the rate counts at the old rate: raising it repays no debt.
func TestRateChange_ForgivesNothing(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	l := start(t, ledger.Options{Pool: db.Pool})
	bucket := db.limit(t, governance.Limit{Kind: governance.KindRate, Metric: governance.MetricTokens, Amount: 2400, Per: 24 * time.Hour})
	r := request(l, hold(bucket, 1, 2400))
	_, err := l.Reserve(t.Context(), r)
	require.NoError(t, err)
	require.NoError(t, l.Settle(t.Context(), used(r.ID, 2600, 0, 0)))
	db.exec(t, "UPDATE ledger.meters SET refilled_at = refilled_at - interval '1 hour'")
	db.exec(t, "UPDATE tollgate.limits SET amount = 86400000, burst = 86400000 WHERE id = $1", bucket.Num)
	// One hour at 2,400 a day repaid 100 of the 200 that are owed; at the new rate it would have repaid all.
	owed := db.count(t, "SELECT -level / ledger.ticks('tokens', 86400) FROM ledger.meters")
	require.InDelta(t, 100, owed, 1)
	db.exec(t, "UPDATE tollgate.limits SET amount = 10, burst = 10 WHERE id = $1", bucket.Num)
	require.Zero(t, db.count(t, "SELECT count(*) FROM ledger.meters WHERE refilled_at > clock_timestamp()"))
}

// A transaction pooler hands each transaction to another server connection, which has not seen the statement that was
// prepared, or has it from somebody else. Nothing is decided twice, and nobody notices.
func TestPreparedStatement_IsNotNeeded(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	bucket := db.limit(t, governance.Limit{Kind: governance.KindRate, Metric: governance.MetricRequests, Amount: 10})
	onOne := func(prepare func(context.Context, *pgx.Conn) error) (*pgxpool.Pool, *ledger.Ledger) {
		config := db.Config()
		config.MaxConns, config.AfterConnect = 1, prepare
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		return pool, start(t, ledger.Options{Pool: pool})
	}
	reserve := func(l *ledger.Ledger) int64 {
		r, err := l.Reserve(t.Context(), request(l, hold(bucket, 1, 1)))
		require.NoError(t, err)
		return r.Levels[0].Remaining
	}
	pool, l := onOne(nil)
	reserve(l)
	var name string
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT name FROM pg_prepared_statements").Scan(&name))
	_, err := pool.Exec(t.Context(), "DEALLOCATE ALL")
	require.NoError(t, err)
	require.Equal(t, int64(8), reserve(l))

	_, l = onOne(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "PREPARE "+name+" AS SELECT 1")
		return err
	})
	require.Equal(t, int64(7), reserve(l))
	require.Equal(t, int64(3), db.count(t, "SELECT count(*) FROM ledger.reservations"))
}

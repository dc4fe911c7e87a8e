package ledger_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/pgstore/ledger"
)

// TestAnswers_AreDurable looks how far the log had been written when an admission, and its settlement, wrote its row, and
// whether all of that has been flushed by the time of the answer. Other sessions flush, too, hence the repeats.
func TestAnswers_AreDurable(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	config := db.Config().Copy()
	config.ConnConfig.RuntimeParams["synchronous_commit"] = "on" // scratch servers are faster without
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(t.Context()), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	l := start(t, ledger.Options{Pool: pool})
	purse := db.limit(t, governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricTokens, Amount: 1 << 40})
	db.exec(t, "CREATE TABLE ledger.written (at pg_lsn NOT NULL)")
	db.exec(t, `CREATE FUNCTION ledger.note_written() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO ledger.written VALUES (pg_current_wal_insert_lsn());
			RETURN NULL;
		END $$`)
	for _, table := range []string{"reservations", "rows"} {
		db.exec(t, "CREATE TRIGGER note_written AFTER INSERT ON ledger."+table+" FOR EACH ROW EXECUTE FUNCTION ledger.note_written()")
	}
	conn, err := db.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	flushed := func(what string) {
		var is bool
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT pg_current_wal_flush_lsn() >= max(at) FROM ledger.written").Scan(&is))
		require.True(t, is, "%s was answered before it was flushed", what)
	}
	for range 50 {
		r := request(l, hold(purse, 1, 1))
		_, err := l.Reserve(t.Context(), r)
		require.NoError(t, err)
		flushed("an admission")
		require.NoError(t, l.Settle(t.Context(), used(r.ID, 1, 0, 0)))
		flushed("a settlement")
	}
	require.Equal(t, int64(100), db.count(t, "SELECT count(*) FROM ledger.written"))
}

// TestOutage_KeepsTheSettlementsOfAFailedBatch cuts the network under a batch that settles: it is settled once the network
// is back, though nobody waits for it any more.
func TestOutage_KeepsTheSettlementsOfAFailedBatch(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	pool, wire := wired(t, db)
	var failures atomic.Int64
	l := start(t, ledger.Options{Pool: pool, Observer: ledger.Observer{Failure: func(error) { failures.Add(1) }}})
	r := request(l)
	_, err := l.Reserve(t.Context(), r)
	require.NoError(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	wire.cut()
	require.ErrorIs(t, l.Settle(ended, used(r.ID, 7, 0, 0)), governance.ErrLimitStoreUnavailable)
	eventually(t, "the batch fails", func() bool { return failures.Load() > 0 })
	wire.mend()
	eventually(t, "it is settled", func() bool { return db.count(t, "SELECT count(*) FROM ledger.rows") == 1 })
}

// TestBatch_ReadsTheClockAfterItsLocks makes a batch wait for a meter within its transaction: who waited is refilled for
// that time.
func TestBatch_ReadsTheClockAfterItsLocks(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.exec(t, "ALTER FUNCTION ledger.batch SET lock_timeout = '10s'") // or it would come again instead
	l := start(t, ledger.Options{Pool: db.Pool})
	bucket := db.limit(t, governance.Limit{Kind: governance.KindRate, Metric: governance.MetricRequests, Amount: 600})
	_, err := l.Reserve(t.Context(), request(l, hold(bucket, 1, 600)))
	require.NoError(t, err)
	unlock := lock(t, db, lockMeter, bucket.Num, 1)
	defer unlock()
	admitted := make(chan error, 1)
	go func() {
		_, err := l.Reserve(t.Context(), request(l, hold(bucket, 1, 8))) // ten a second come back
		admitted <- err
	}()
	eventually(t, "the batch waits", func() bool {
		return db.count(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") > 0
	})
	time.AfterFunc(time.Second, unlock)
	require.NoError(t, <-admitted)
}

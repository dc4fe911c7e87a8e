package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/pgstore/ledger"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// wire is the network between a pool and the database, which tests cut.
type wire struct {
	away      atomic.Bool                   // nothing gets through, and what was open breaks
	loseReply atomic.Bool                   // the next batch is executed, but its reply is lost
	onLoss    func()                        // called before anybody learns of it; may be nil
	held      atomic.Pointer[chan struct{}] // replies to batches wait until it is closed
	mu        sync.Mutex
	open      map[net.Conn]bool
	lost      atomic.Int64
}

var errCut = errors.New("wire is cut")

func (w *wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if w.away.Load() {
		return nil, errCut
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[c] = true
	return &cuttable{Conn: c, wire: w}, nil
}

func (w *wire) cut() {
	w.away.Store(true)
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.open {
		_ = c.Close()
		delete(w.open, c)
	}
}

func (w *wire) mend() { w.away.Store(false) }

type cuttable struct {
	net.Conn
	wire  *wire
	batch bool // what was written last is one
}

func (c *cuttable) Write(b []byte) (int, error) {
	c.batch = bytes.HasPrefix(b, []byte("B")) && bytes.Contains(b, []byte("\x00tollgate_batch_")) // the message Bind
	return c.Conn.Write(b)
}

func (c *cuttable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if until := c.wire.held.Load(); until != nil && c.batch {
		<-*until
	}
	if err == nil && c.batch && c.wire.loseReply.CompareAndSwap(true, false) {
		c.wire.lost.Add(1)
		if c.wire.onLoss != nil {
			c.wire.onLoss()
		}
		_ = c.Conn.Close()
		return 0, errCut
	}
	return n, err
}

func (c *cuttable) Close() error {
	c.wire.mu.Lock()
	delete(c.wire.open, c.Conn)
	c.wire.mu.Unlock()
	return c.Conn.Close()
}

// wired opens a pool on db whose network the test holds.
func wired(t *testing.T, db database) (*pgxpool.Pool, *wire) {
	t.Helper()
	w := &wire{open: make(map[net.Conn]bool)}
	config, err := pgxpool.ParseConfig(db.Config().ConnString())
	require.NoError(t, err)
	config.ConnConfig.DialFunc = w.dial
	config.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(t.Context()), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool, w
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, 20*time.Second, 5*time.Millisecond, what)
}

func TestReserve_LostReplyIsNoLoss(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	pool, wire := wired(t, db)
	l := start(t, ledger.Options{Pool: pool})
	purse := db.limit(t, governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricTokens, Amount: 1000})
	_, err := l.Reserve(t.Context(), request(l, hold(purse, 1, 1)))
	require.NoError(t, err)
	for range 5 {
		wire.loseReply.Store(true)
		r := request(l, hold(purse, 1, 10))
		got, err := l.Reserve(t.Context(), r)
		require.NoError(t, err, "the same attempt is found open")
		require.Equal(t, r.ID, got.ID)
		wire.loseReply.Store(true)
		require.NoError(t, l.Settle(t.Context(), used(r.ID, 4, 0, 0)))
	}
	require.Equal(t, int64(10), wire.lost.Load())
	require.Equal(t, int64(20), db.count(t, "SELECT spent FROM ledger.meters"))
	require.Equal(t, int64(1), db.count(t, "SELECT held FROM ledger.meters"))
	require.Equal(t, int64(5), db.count(t, "SELECT count(*) FROM ledger.rows"))
}

func TestOutage_FailsClosedAndLosesNoSettlement(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	pool, wire := wired(t, db)
	l := start(t, ledger.Options{Pool: pool})
	purse := db.limit(t, governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricTokens, Amount: 1_000_000})
	var open []ids.ID
	for range 300 {
		r := request(l, hold(purse, 1, 10))
		_, err := l.Reserve(t.Context(), r)
		require.NoError(t, err)
		open = append(open, r.ID)
	}
	wire.cut()
	begun := time.Now()
	for range 32 {
		_, err := l.Reserve(t.Context(), request(l, hold(purse, 1, 10)))
		require.ErrorIs(t, err, governance.ErrLimitStoreUnavailable)
	}
	require.Less(t, time.Since(begun), 9*time.Second)
	eventually(t, "breaker opens", func() bool { return l.Stats().Broken })
	begun = time.Now()
	_, err := l.Reserve(t.Context(), request(l, hold(purse, 1, 10)))
	require.ErrorIs(t, err, governance.ErrLimitStoreUnavailable)
	require.Less(t, time.Since(begun), time.Second, "an open breaker asks nobody: to ask takes two")

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, id := range open {
		require.ErrorIs(t, l.Settle(ended, used(id, 7, 0, 0)), governance.ErrLimitStoreUnavailable)
	}
	require.GreaterOrEqual(t, l.Stats().Outbox, 300)
	wire.mend()
	eventually(t, "outbox drains", func() bool { return l.Stats().Outbox == 0 && !l.Stats().Broken })
	eventually(t, "everything is settled", func() bool {
		return db.count(t, "SELECT count(*) FROM ledger.rows") == 300
	})
	require.Equal(t, int64(2100), db.count(t, "SELECT spent FROM ledger.meters"))
	require.Zero(t, db.count(t, "SELECT held FROM ledger.meters"), "what was asked for during the outage holds nothing")
	_, err = l.Reserve(t.Context(), request(l, hold(purse, 1, 10)))
	require.NoError(t, err)
}

func TestOutage_OutboxIsBounded(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	pool, wire := wired(t, db)
	var dropped atomic.Int64
	l := start(t, ledger.Options{Pool: pool, OutboxLimit: 10, Observer: ledger.Observer{Dropped: func() { dropped.Add(1) }}})
	wire.cut()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 30 {
		require.ErrorIs(t, l.Settle(ended, used(ids.New(time.Now()), 1, 0, 0)), governance.ErrLimitStoreUnavailable)
	}
	require.Positive(t, dropped.Load())
	require.LessOrEqual(t, l.Stats().Outbox, 10+256)
	wire.mend()
	eventually(t, "outbox drains", func() bool { return l.Stats().Outbox == 0 })
}

func TestClose_FlushesTheOutbox(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	l := ledger.New(ledger.Options{Pool: db.Pool, Node: "n"})
	ran := make(chan error, 1)
	go func() { ran <- l.Run(t.Context()) }()
	var group sync.WaitGroup
	for range 500 {
		r := request(l)
		_, err := l.Reserve(t.Context(), r)
		require.NoError(t, err)
		group.Go(func() { _ = l.Settle(context.Background(), used(r.ID, 1, 0, 0)) })
	}
	require.NoError(t, l.Close(t.Context()))
	require.NoError(t, <-ran)
	group.Wait()
	_, err := l.Reserve(t.Context(), request(l))
	require.ErrorIs(t, err, governance.ErrLimitStoreUnavailable)
	require.Zero(t, l.Stats().Outbox)
	require.Equal(t, int64(1), db.count(t, "SELECT count(*) FROM ledger.processes WHERE stopped_at IS NOT NULL"))
}

func TestReserve_GivenUpLeavesNothingHeld(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	l := start(t, ledger.Options{Pool: db.Pool})
	purse := db.limit(t, governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricTokens, Amount: 1000})
	var group sync.WaitGroup
	for i := range 200 {
		group.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*50*time.Microsecond)
			defer cancel()
			r := request(l, hold(purse, 1, 1))
			if _, err := l.Reserve(ctx, r); err == nil {
				_ = l.Settle(t.Context(), used(r.ID, 0, 0, 0))
			}
		})
	}
	group.Wait()
	// Closing waits for the batch in flight, whose admissions nobody waits for any more, and for what gives them back.
	require.NoError(t, l.Close(t.Context()))
	require.Zero(t, db.count(t, "SELECT count(*) FROM ledger.reservations WHERE state = 'open'"))
	require.Zero(t, db.count(t, "SELECT coalesce(max(held), 0) FROM ledger.meters"))
}

// lock holds a row in a session of its own until the function that it returns is called.
func lock(t *testing.T, db database, sql string, args ...any) (unlock func()) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db.Config().ConnString())
	require.NoError(t, err)
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
	return sync.OnceFunc(func() {
		require.NoError(t, tx.Rollback(context.WithoutCancel(t.Context())))
		require.NoError(t, conn.Close(context.WithoutCancel(t.Context())))
	})
}

const lockMeter = "SELECT FROM ledger.meters WHERE limit_id = $1 AND subject = $2 FOR UPDATE"

func TestA06_LockedMeterRefusesAsUndecided(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	l := start(t, ledger.Options{Pool: db.Pool})
	shared := db.limit(t, governance.Limit{Kind: governance.KindRate, Metric: governance.MetricRequests, Amount: 100_000})
	own := db.limit(t, governance.Limit{Kind: governance.KindRate, Metric: governance.MetricRequests, Amount: 100_000})
	r := request(l, hold(shared, 1, 1), hold(own, 1, 1))
	_, err := l.Reserve(t.Context(), r)
	require.NoError(t, err)
	_, err = l.Reserve(t.Context(), request(l, hold(shared, 1, 1), hold(own, 2, 1)))
	require.NoError(t, err)
	unlock := lock(t, db, lockMeter, own.Num, 1)
	defer unlock()

	begun := time.Now()
	stuck := make(chan error, 1)
	go func() {
		_, err := l.Reserve(context.WithoutCancel(t.Context()), request(l, hold(shared, 1, 1), hold(own, 1, 1)))
		stuck <- err
	}()
	// The others go on meanwhile, though they share a meter with who is stuck.
	var others int
	for len(stuck) == 0 {
		_, err := l.Reserve(t.Context(), request(l, hold(shared, 1, 1), hold(own, 2, 1)))
		require.NoError(t, err)
		others++
	}
	require.ErrorIs(t, <-stuck, governance.ErrLimitStoreUnavailable)
	require.Greater(t, others, 10)
	took := time.Since(begun)
	require.True(t, took > 1500*time.Millisecond && took < 8*time.Second, took)
	unlock()
	_, err = l.Reserve(t.Context(), request(l, hold(shared, 1, 1), hold(own, 1, 1)))
	require.NoError(t, err)
	require.NoError(t, l.Settle(t.Context(), used(r.ID, 0, 0, 0)))
}

// A batch was committed, its reply was lost, and the repeat finds the meter locked: who gives up then has been admitted
// without knowing it.
func TestReserve_GivenUpBehindALockAfterALostReplyIsReleased(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	pool, wire := wired(t, db)
	l := start(t, ledger.Options{Pool: pool})
	purse := db.limit(t, governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricTokens, Amount: 1000})
	_, err := l.Reserve(t.Context(), request(l, hold(purse, 1, 0)))
	require.NoError(t, err)
	unlock := func() {}
	defer func() { unlock() }()
	wire.onLoss = func() { unlock = lock(t, db, lockMeter, purse.Num, 1) }
	wire.loseReply.Store(true)
	r := request(l, hold(purse, 1, 10))
	_, err = l.Reserve(t.Context(), r)
	require.ErrorIs(t, err, governance.ErrLimitStoreUnavailable)
	require.Equal(t, int64(1), db.count(t, "SELECT count(*) FROM ledger.reservations WHERE attempt_id = $1 AND state = 'open'", r.ID))
	unlock()
	eventually(t, "what it held is given back", func() bool {
		return db.count(t, "SELECT held FROM ledger.meters WHERE limit_id = $1", purse.Num) == 0
	})
	require.Zero(t, db.count(t, "SELECT count(*) FROM ledger.rows"))
}

// A batch was committed, its reply was lost, and before the repeat came, the process had been silent for its lease: the attempt
// has expired as fully used. Whoever is refused for that must not pay.
func TestReserve_ExpiredAfterALostReplyIsPaidBack(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	pool, wire := wired(t, db)
	l := start(t, ledger.Options{Pool: pool})
	purse := db.limit(t, governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricTokens, Amount: 1000})
	_, err := l.Reserve(t.Context(), request(l, hold(purse, 1, 0)))
	require.NoError(t, err)
	var expired int64
	r := request(l, hold(purse, 1, 10))
	wire.onLoss = func() {
		db.exec(t, "UPDATE ledger.reservations SET expires_at = now() WHERE attempt_id = $1", r.ID)
		eventually(t, "it expires", func() bool { // another test's sweep may be at work
			expired += db.count(t, "SELECT ledger.expire(10, 0)")
			return expired > 0
		})
	}
	wire.loseReply.Store(true)
	_, err = l.Reserve(t.Context(), r)
	require.ErrorIs(t, err, governance.ErrAlreadyClosed)
	require.Equal(t, int64(1), expired)
	eventually(t, "what expired is paid back", func() bool {
		return db.count(t, "SELECT count(*) FROM ledger.rows WHERE attempt_id = $1 AND kind = 'late_adjustment'", r.ID) == 1
	})
	require.Zero(t, db.count(t, "SELECT spent FROM ledger.meters WHERE limit_id = $1", purse.Num))
}

// A look at locked meters that took long, as in a process that was suspended meanwhile, must not put off the next one.
func TestLockedMeters_AreLookedAtSoonAfterALongLook(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	pool, wire := wired(t, db)
	l := start(t, ledger.Options{Pool: pool})
	purse := db.limit(t, governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricTokens, Amount: 1000})
	r := request(l, hold(purse, 1, 10))
	_, err := l.Reserve(t.Context(), r)
	require.NoError(t, err)
	unlock := lock(t, db, lockMeter, purse.Num, 1)
	defer unlock()
	settled := make(chan error, 1)
	go func() { settled <- l.Settle(context.WithoutCancel(t.Context()), used(r.ID, 5, 0, 0)) }()
	eventually(t, "the settlement waits for the lock", func() bool { return l.Stats().Locked == 1 })
	until := make(chan struct{})
	wire.held.Store(&until)
	time.AfterFunc(1500*time.Millisecond, func() {
		wire.held.Store(nil)
		close(until)
	})
	<-until
	unlock()
	_, err = l.Reserve(t.Context(), request(l, hold(purse, 1, 10)))
	require.NoError(t, err)
	require.NoError(t, <-settled)
}

func TestA15_WaitersAreRefilledForTheirWait(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	l := start(t, ledger.Options{Pool: db.Pool})
	bucket := db.limit(t, governance.Limit{Kind: governance.KindRate, Metric: governance.MetricRequests, Amount: 600})
	_, err := l.Reserve(t.Context(), request(l, hold(bucket, 1, 600)))
	require.NoError(t, err)
	unlock := lock(t, db, lockMeter, bucket.Num, 1)
	time.AfterFunc(1500*time.Millisecond, unlock)
	_, err = l.Reserve(t.Context(), request(l, hold(bucket, 1, 10)))
	require.NoError(t, err, "10 a second have come back while it waited")
}

func TestSettle_OnLockedMeterWaits(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	l := start(t, ledger.Options{Pool: db.Pool})
	purse := db.limit(t, governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricTokens, Amount: 1000})
	mine, others := request(l, hold(purse, 1, 10)), request(l, hold(purse, 2, 10))
	for _, r := range []governance.ReserveRequest{mine, others} {
		_, err := l.Reserve(t.Context(), r)
		require.NoError(t, err)
	}
	unlock := lock(t, db, lockMeter, purse.Num, 1)
	defer unlock()
	settled := make(chan error, 1)
	go func() { settled <- l.Settle(context.WithoutCancel(t.Context()), used(mine.ID, 5, 0, 0)) }()
	require.NoError(t, l.Settle(t.Context(), used(others.ID, 5, 0, 0)))
	require.Empty(t, settled)
	unlock()
	require.NoError(t, <-settled)
	require.Equal(t, int64(10), db.count(t, "SELECT sum(spent) FROM ledger.meters"))
}

func TestBatch_OneBadItemSparesTheOthers(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	l := start(t, ledger.Options{Pool: db.Pool})
	var group sync.WaitGroup
	var bad, good atomic.Int64
	for i := range 100 {
		group.Go(func() {
			r := request(l)
			if i == 50 {
				r.Origin.Model = "a\x00b" // PostgreSQL has no such text
			}
			if _, err := l.Reserve(t.Context(), r); err != nil {
				bad.Add(1)
			} else {
				good.Add(1)
			}
		})
	}
	group.Wait()
	require.Equal(t, int64(1), bad.Load())
	require.Equal(t, int64(99), good.Load())
	require.False(t, l.Stats().Broken)
}

func TestNewWindow_WaitsForALockedPredecessorAlone(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	l := start(t, ledger.Options{Pool: db.Pool})
	purse := db.limit(t, governance.Limit{
		Kind: governance.KindBudget, Metric: governance.MetricTokens, Amount: 1_000_000, CarryDebt: true,
		Window: governance.Window{Type: governance.WindowFixed, Duration: time.Hour},
	})
	// Subject 1 was busy in the window before the present one, and somebody looks at that for long.
	db.exec(t, `INSERT INTO ledger.meters (limit_id, subject, window_start, spent)
		SELECT id, 1, ledger.window_start('fixed', NULL, NULL, 3600, created_at, clock_timestamp()) - interval '1 hour', 1000005
		FROM tollgate.limits WHERE id = $1`, purse.Num)
	unlock := lock(t, db, lockMeter, purse.Num, 1)
	defer unlock()
	held := make(chan governance.Reservation, 1)
	go func() {
		r, err := l.Reserve(context.WithoutCancel(t.Context()), request(l, hold(purse, 1, 1)))
		if err != nil {
			t.Error(err)
		}
		held <- r
	}()
	for subject := range int64(20) {
		_, err := l.Reserve(t.Context(), request(l, hold(purse, 2+subject, 1)))
		require.NoError(t, err)
	}
	require.Empty(t, held)
	require.False(t, l.Stats().Broken)
	unlock()
	require.Equal(t, int64(5), (<-held).Levels[0].Debt)
}

// A settlement that overspends a window which has ended, and an admission to the present one, come in the same batch.
func TestNewWindow_OwesWhatItsOwnBatchOverspends(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	l := start(t, ledger.Options{Pool: db.Pool})
	var ends time.Time
	require.NoError(t, db.QueryRow(t.Context(), "SELECT date_trunc('second', clock_timestamp()) + interval '4 seconds'").Scan(&ends))
	purse := db.limit(t, governance.Limit{
		Kind: governance.KindBudget, Metric: governance.MetricTokens, Amount: 15, CarryDebt: true,
		Window: governance.Window{Type: governance.WindowFixed, Duration: time.Hour, Anchor: ends.Add(-time.Hour)},
	})
	before := request(l, hold(purse, 1, 1))
	_, err := l.Reserve(t.Context(), before)
	require.NoError(t, err)
	require.Equal(t, int64(1), db.count(t, "SELECT count(*) FROM ledger.reservations WHERE leg_windows[1] < $1", ends))
	eventually(t, "the next window begins", func() bool {
		return db.count(t, "SELECT count(*) FROM (SELECT clock_timestamp() AS now) AS c WHERE now >= $1", ends) == 1
	})
	after := request(l, hold(purse, 1, 15))
	late := used(before.ID, 16, 0, 0)
	after.Closes = &late
	_, err = l.Reserve(t.Context(), after)
	var denial *governance.Denial
	require.ErrorAs(t, err, &denial)
	require.Equal(t, int64(14), denial.Refusals[0].Remaining)
	_, err = l.Reserve(t.Context(), request(l, hold(purse, 1, 14)))
	require.NoError(t, err)
}

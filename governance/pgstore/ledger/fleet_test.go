package ledger_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/meter"
	"github.com/tollgate-gateway/tollgate/governance/pgstore/ledger"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/pgtest"
)

func TestF172_FleetHoldsAtTheConfiguredLimit(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	purse := db.limit(t, governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricCost, Amount: 300})
	bucket := db.limit(t, governance.Limit{Kind: governance.KindRate, Metric: governance.MetricRequests, Amount: 100, Per: 24 * time.Hour})
	fleet := []*ledger.Ledger{start(t, ledger.Options{Pool: db.Pool}), start(t, ledger.Options{Pool: db.Pool}), start(t, ledger.Options{Pool: db.Pool})}
	var paid, counted, failed atomic.Int64
	var group sync.WaitGroup
	try := func(l *ledger.Ledger, admitted *atomic.Int64, h governance.Hold) {
		_, err := l.Reserve(t.Context(), request(l, h))
		var d *governance.Denial
		switch {
		case err == nil:
			admitted.Add(1)
		case !errors.As(err, &d):
			failed.Add(1)
		}
	}
	for i := range 300 {
		group.Go(func() {
			try(fleet[i%3], &paid, hold(purse, 1, 10))
			try(fleet[i%3], &counted, hold(bucket, 1, 1))
		})
	}
	group.Wait()
	require.Zero(t, failed.Load())
	require.Equal(t, int64(30), paid.Load())
	require.Equal(t, int64(100), counted.Load())
}

func TestF002_SpentBudgetRefusesAfterARestart(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	purse := db.limit(t, governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricCost, Amount: 10_000_000})
	first := start(t, ledger.Options{Pool: db.Pool})
	r := request(first, hold(purse, 1, 10_000_000))
	_, err := first.Reserve(t.Context(), r)
	require.NoError(t, err)
	require.NoError(t, first.Settle(t.Context(), used(r.ID, 1, 1, 20_000_000)))
	require.NoError(t, first.Close(t.Context()))
	second := start(t, ledger.Options{Pool: db.Pool})
	_, err = second.Reserve(t.Context(), request(second, hold(purse, 1, 1)))
	var d *governance.Denial
	require.ErrorAs(t, err, &d)
	require.Equal(t, governance.RefusedBudgetExceeded, d.Refusals[0].Reason)
}

func TestSettle_FromTwoProcessesClosesOnce(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	fleet := []*ledger.Ledger{start(t, ledger.Options{Pool: db.Pool}), start(t, ledger.Options{Pool: db.Pool})}
	purse := db.limit(t, governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricTokens, Amount: 1 << 40})
	for range 30 {
		var group sync.WaitGroup
		var done atomic.Int64
		for i := range 10 {
			r := request(fleet[0])
			if i%2 == 0 {
				r.Holds = []governance.Hold{hold(purse, 1, 10)}
			}
			_, err := fleet[0].Reserve(t.Context(), r)
			require.NoError(t, err)
			for _, l := range fleet {
				group.Go(func() {
					switch err := l.Settle(t.Context(), used(r.ID, 1, 0, 0)); {
					case err == nil:
						done.Add(1)
					case !errors.Is(err, governance.ErrAlreadyClosed):
						t.Error(err)
					}
				})
			}
		}
		group.Wait()
		require.Equal(t, int64(10), done.Load())
	}
	require.Equal(t, int64(150), db.count(t, "SELECT spent FROM ledger.meters WHERE held = 0"))
}

func TestExpire_ClosesWhatADeadProcessLeft(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	purse := db.limit(t, governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricTokens, Amount: 1000})
	places := db.limit(t, governance.Limit{Kind: governance.KindConcurrency, Metric: governance.MetricRequests, Amount: 10})
	options := ledger.Options{Pool: db.Pool, Grace: time.Nanosecond}
	dead, living := start(t, options), start(t, options)
	var mine ids.ID
	for i := range 20 {
		l := dead
		if i%2 == 0 {
			l = living
		}
		r := request(l, hold(purse, 1, 10), hold(places, int64(i), 1))
		r.Estimate.Cost = 3
		_, err := l.Reserve(t.Context(), r)
		require.NoError(t, err)
		if l == dead {
			mine = r.ID
		}
	}
	expire := func(limit int) int {
		closed, err := living.Expire(t.Context(), limit)
		require.NoError(t, err)
		return closed
	}
	require.Zero(t, expire(100), "both live")
	db.exec(t, "UPDATE ledger.processes SET beat_at = beat_at - interval '46 seconds' WHERE id = $1", dead.Stats().Process)
	require.Equal(t, 4, expire(4))

	// Twenty sweepers expire the rest once.
	var closed atomic.Int64
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			for db.count(t, "SELECT count(*) FROM ledger.reservations WHERE process_id = $1", dead.Stats().Process) > 0 {
				db.exec(t, "UPDATE ledger.processes SET beat_at = beat_at - interval '46 seconds' WHERE id = $1", dead.Stats().Process)
				n, err := living.Expire(t.Context(), 3)
				if err != nil {
					t.Error(err)
				}
				closed.Add(int64(n))
			}
		})
	}
	group.Wait()
	require.Equal(t, int64(6), closed.Load())
	require.Equal(t, int64(10), db.count(t, "SELECT count(*) FROM ledger.rows WHERE kind = 'expiry' AND usage_source = 'reservation' AND outcome = 'expired' AND cost = 3"))
	require.Equal(t, int64(100), db.count(t, "SELECT spent FROM ledger.meters WHERE limit_id = $1", purse.Num))
	require.Equal(t, int64(100), db.count(t, "SELECT held FROM ledger.meters WHERE limit_id = $1", purse.Num))
	require.Equal(t, int64(10), db.count(t, "SELECT sum(held) FROM ledger.meters WHERE limit_id = $1", places.Num))

	// The owner was only slow: what it says late is written as the difference, once.
	require.NoError(t, dead.Settle(t.Context(), used(mine, 4, 0, 2)))
	require.ErrorIs(t, dead.Settle(t.Context(), used(mine, 4, 0, 2)), governance.ErrAlreadyClosed)
	require.Equal(t, int64(-1), db.count(t, "SELECT cost FROM ledger.rows WHERE attempt_id = $1 AND kind = 'late_adjustment'", mine))
	require.Equal(t, int64(94), db.count(t, "SELECT spent FROM ledger.meters WHERE limit_id = $1", purse.Num))
}

func TestExpire_ClosesAsManyAsAsked(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	l := start(t, ledger.Options{Pool: db.Pool, Grace: time.Nanosecond})
	var group sync.WaitGroup
	for range 600 {
		group.Go(func() {
			r := request(l)
			r.HardExpiry = time.Millisecond
			if _, err := l.Reserve(t.Context(), r); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	eventually(t, "hard expiry passes", func() bool {
		return db.count(t, "SELECT count(*) FROM ledger.reservations WHERE expires_at < clock_timestamp()") == 600
	})
	for _, want := range []int{500, 100, 0} {
		closed, err := l.Expire(t.Context(), 500)
		require.NoError(t, err)
		require.Equal(t, want, closed)
	}
}

func TestExpire_KeepsItsGrace(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	l := start(t, ledger.Options{Pool: db.Pool, Grace: time.Hour})
	r := request(l)
	r.HardExpiry = time.Millisecond
	_, err := l.Reserve(t.Context(), r)
	require.NoError(t, err)
	eventually(t, "hard expiry passes", func() bool {
		return db.count(t, "SELECT count(*) FROM ledger.reservations WHERE expires_at < clock_timestamp()") == 1
	})
	closed, err := l.Expire(t.Context(), 10)
	require.NoError(t, err)
	require.Zero(t, closed)
	require.Zero(t, db.count(t, "SELECT ledger.expire(10, 100000000)"), "the database started not long ago")
	require.Equal(t, int64(1), db.count(t, "SELECT ledger.expire(10, 0)"))
}

// A standby that takes over has been running for long. Whoever lost its predecessor waits for the others to come back.
func TestExpire_KeepsItsGraceAfterLostContact(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	pool, wire := wired(t, db)
	const grace = 2 * time.Second
	var failures atomic.Int64
	sweeper := start(t, ledger.Options{Pool: pool, Lease: 3 * time.Second, Grace: grace, Observer: ledger.Observer{
		Failure: func(error) { failures.Add(1) },
	}})
	owner := start(t, ledger.Options{Pool: db.Pool})
	leave := func() {
		r := request(owner)
		r.HardExpiry = time.Millisecond
		_, err := owner.Reserve(t.Context(), r)
		require.NoError(t, err)
	}
	sweeps := func() bool {
		closed, err := sweeper.Expire(t.Context(), 10)
		return err == nil && closed == 1
	}
	leave()
	eventually(t, "the first grace ends", sweeps)
	leave()
	wire.cut()
	eventually(t, "a heartbeat fails", func() bool { return failures.Load() > 0 })
	back := time.Now()
	wire.mend()
	eventually(t, "it sweeps again", sweeps)
	require.GreaterOrEqual(t, time.Since(back), grace)
}

func TestRegister_ComesBackAfterRemoval(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	l := start(t, ledger.Options{Pool: db.Pool, Lease: 2 * time.Second, Version: "v", Node: "n"})
	eventually(t, "registers", func() bool { return l.Stats().Process != 0 })
	before := l.Stats().Process
	db.exec(t, "DELETE FROM ledger.processes")
	eventually(t, "registers again", func() bool {
		now := l.Stats().Process
		return now != 0 && now != before
	})
	require.Equal(t, int64(1), db.count(t, "SELECT count(*) FROM ledger.processes WHERE node = 'n' AND version = 'v' AND lease_seconds = 2"))
}

func TestRegister_OnAnotherServerBeginsAnEpoch(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	epoch := func(l *ledger.Ledger) int64 {
		r := request(l)
		_, err := l.Reserve(t.Context(), r)
		require.NoError(t, err)
		require.NoError(t, l.Settle(t.Context(), used(r.ID, 1, 0, 0)))
		return db.count(t, "SELECT epoch FROM ledger.rows WHERE attempt_id = $1", r.ID)
	}
	require.Equal(t, int64(1), epoch(start(t, ledger.Options{Pool: db.Pool})))
	db.exec(t, "UPDATE ledger.state SET system_identifier = 1") // as after a dump and restore
	second := start(t, ledger.Options{Pool: db.Pool})
	require.Equal(t, int64(2), epoch(second))
	require.Equal(t, int64(2), epoch(second))
}

func TestClockSetBack_ResetsTheInstant(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	var resets atomic.Int64
	l := start(t, ledger.Options{Pool: db.Pool, Observer: ledger.Observer{Reset: func(n int) { resets.Add(int64(n)) }}})
	bucket := db.limit(t, governance.Limit{Kind: governance.KindRate, Metric: governance.MetricRequests, Amount: 600})
	_, err := l.Reserve(t.Context(), request(l, hold(bucket, 1, 600)))
	require.NoError(t, err)
	db.exec(t, "UPDATE ledger.meters SET refilled_at = refilled_at + interval '4 minutes'")
	_, err = l.Reserve(t.Context(), request(l, hold(bucket, 1, 1)))
	require.Error(t, err, "elapsed time is never negative, and the instant never moves back")
	require.Zero(t, resets.Load())
	db.exec(t, "UPDATE ledger.meters SET refilled_at = refilled_at + interval '4 minutes', level = 60000000")
	_, err = l.Reserve(t.Context(), request(l, hold(bucket, 1, 1)))
	require.NoError(t, err)
	require.Equal(t, int64(1), resets.Load())
	require.Equal(t, int64(1), db.count(t, "SELECT count(*) FROM ledger.meters WHERE refilled_at < clock_timestamp()"))
}

func TestF059_EachMeterIsChargedItsOwn(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	l := start(t, ledger.Options{Pool: db.Pool})
	var purses []*governance.Limit
	for range 9 {
		purses = append(purses, db.limit(t, governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricTokens, Amount: 1 << 40}))
	}
	random := rand.New(rand.NewPCG(1, 2)) // a test
	type meterID struct{ limit, subject int64 }
	want := map[meterID]int64{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for range 200 {
		var holds []governance.Hold
		for _, n := range random.Perm(len(purses))[:3] {
			holds = append(holds, hold(purses[n], 1+random.Int64N(3), 1+random.Int64N(100)))
		}
		tokens := random.Int64N(200)
		group.Go(func() {
			r := request(l, holds...)
			if _, err := l.Reserve(t.Context(), r); err != nil {
				t.Error(err)
				return
			}
			if err := l.Settle(t.Context(), used(r.ID, tokens, 0, 0)); err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for _, h := range holds {
				want[meterID{h.Limit.Num, h.Subject}] += tokens
			}
		})
	}
	group.Wait()
	for m, spent := range want {
		require.Equal(t, spent, db.count(t, "SELECT spent FROM ledger.meters WHERE limit_id = $1 AND subject = $2 AND held = 0", m.limit, m.subject))
	}
}

func TestRoles_CannotTouchMoney(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	gateway := database{pgtest.Role(t, db.Pool, "tollgate_gateway")}
	l := start(t, ledger.Options{Pool: gateway.Pool, Grace: time.Nanosecond})
	purse := db.limit(t, governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricTokens, Amount: 1000})
	r := request(l, hold(purse, 1, 10))
	_, err := l.Reserve(t.Context(), r)
	require.NoError(t, err)
	require.NoError(t, l.Settle(t.Context(), used(r.ID, 5, 0, 0)))
	_, err = l.Expire(t.Context(), 10)
	require.NoError(t, err)
	require.Zero(t, gateway.count(t, "SELECT ledger.ensure_partitions()"))
	for _, role := range []string{"tollgate_gateway", "tollgate_control"} {
		pool := pgtest.Role(t, db.Pool, role)
		for _, sql := range []string{
			"UPDATE ledger.rows SET cost = 0", "DELETE FROM ledger.rows", "TRUNCATE ledger.rows", "DELETE FROM ledger.rows_default",
			"INSERT INTO ledger.meters (limit_id, subject) VALUES (1, 1)", "UPDATE ledger.meters SET spent = 0",
			"DELETE FROM ledger.reservations", "UPDATE ledger.state SET epoch = 9",
		} {
			_, err := pool.Exec(t.Context(), sql)
			require.Error(t, err, "%s: %s", role, sql)
		}
	}
	for _, sql := range []string{"UPDATE ledger.rows SET cost = 0", "DELETE FROM ledger.rows", "TRUNCATE ledger.rows", "TRUNCATE ledger.rows_default"} {
		_, err := db.Exec(t.Context(), sql)
		require.ErrorContains(t, err, "never changed", "not even the owner: %s", sql)
	}
}

func TestPartitions_HoldTheRowsOfTheirMonth(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	l := start(t, ledger.Options{Pool: db.Pool})
	r := request(l)
	_, err := l.Reserve(t.Context(), r)
	require.NoError(t, err)
	require.NoError(t, l.Settle(t.Context(), used(r.ID, 1, 0, 0)))
	require.Zero(t, db.count(t, "SELECT count(*) FROM ledger.rows_default"))
	require.Equal(t, int64(1), db.count(t, "SELECT count(*) FROM ledger.rows WHERE tableoid::regclass::text = 'ledger.rows_' || to_char(settled_at AT TIME ZONE 'UTC', 'YYYYMM')"))
}

// TestPlans_StayOnTheirIndexes makes the tables large after the function has planned its statements on empty ones, and looks
// whether the statements still touch a few pages only.
func TestPlans_StayOnTheirIndexes(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	l := start(t, ledger.Options{Pool: db.Pool})
	bucket := db.limit(t, governance.Limit{Kind: governance.KindRate, Metric: governance.MetricRequests, Amount: 1_000_000})
	pair := func() {
		r := request(l, hold(bucket, 1, 1))
		_, err := l.Reserve(t.Context(), r)
		require.NoError(t, err)
		require.NoError(t, l.Settle(t.Context(), used(r.ID, 1, 0, 0)))
	}
	for range 10 {
		pair()
	}
	_, err := l.Reserve(t.Context(), request(l, hold(bucket, 1, 1)))
	require.NoError(t, err)
	db.exec(t, "INSERT INTO ledger.meters (limit_id, subject) SELECT $1, s FROM generate_series(2, 50000) AS s", bucket.Num)
	db.exec(t, `INSERT INTO ledger.reservations SELECT (r).* FROM (
		SELECT jsonb_populate_record(x, jsonb_build_object('attempt_id', gen_random_uuid())) AS r
		FROM (SELECT x FROM ledger.reservations AS x LIMIT 1) AS x, generate_series(1, 20000)) AS q`)
	db.exec(t, "ANALYZE ledger.meters, ledger.reservations, ledger.rows")
	// A session of its own, since one that has filled the tables still counts its own scans.
	conn, err := pgx.ConnectConfig(t.Context(), db.Config().ConnConfig)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) }()
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(context.WithoutCancel(t.Context()))) }()
	for range 8 { // beyond the number of custom plans
		_, err := tx.Exec(t.Context(), `SELECT (ledger.batch(0, true, false, false, ARRAY[$1::uuid], '{f}', '{f}', '{complete}', '{zero}', '{}', '{}', '{0}',
			array_fill(0::bigint, ARRAY[10]), '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}',
			'{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{1}', '{}', '{}', '{}', '{}', '{}', '{}')).verdict`, ids.New(l.Clock()))
		require.NoError(t, err)
	}
	// The single rows of state and configuration have no index worth the name.
	rows, err := tx.Query(t.Context(), `SELECT c.relname::text FROM pg_class AS c
		WHERE c.relnamespace IN ('ledger'::regnamespace, 'tollgate'::regnamespace) AND c.relkind = 'r'
		  AND c.relname NOT IN ('state', 'config_state') AND pg_stat_get_xact_numscans(c.oid) > 0`)
	require.NoError(t, err)
	scanned, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Empty(t, scanned, "sequential scans")
}

// TestInvariants_AfterChaos runs fallbacks, overruns, releases, expiries, repeats and give-ups through four ledgers, whose
// processes die now and then, and then recomputes everything from the rows.
func TestInvariants_AfterChaos(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	limits := []*governance.Limit{
		db.limit(t, governance.Limit{Kind: governance.KindRate, Metric: governance.MetricRequests, Amount: 300, Burst: 40, Per: time.Second}),
		db.limit(t, governance.Limit{Kind: governance.KindRate, Metric: governance.MetricTokens, Amount: 3000, Burst: 900, Per: time.Second}),
		db.limit(t, governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricCost, Amount: 40_000, CarryDebt: true}),
		db.limit(t, governance.Limit{
			Kind: governance.KindBudget, Metric: governance.MetricTokens, Amount: 3_000, CarryDebt: true,
			Window: governance.Window{Type: governance.WindowFixed, Duration: time.Second},
		}),
		db.limit(t, governance.Limit{Kind: governance.KindConcurrency, Metric: governance.MetricRequests, Amount: 12}),
	}
	options := ledger.Options{Pool: db.Pool, Grace: time.Nanosecond, Observer: ledger.Observer{Mismatch: func() { t.Error("mismatch") }}}
	fleet := []*ledger.Ledger{start(t, options), start(t, options), start(t, options), start(t, options)}
	var admitted, refused, adjusted, expired atomic.Int64
	var group sync.WaitGroup
	stop := make(chan struct{})
	group.Go(func() { // the sweeper, and death
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
			if i%8 == 0 {
				db.exec(t, "UPDATE ledger.processes SET beat_at = beat_at - interval '1 minute' WHERE id = $1", fleet[i/8%4].Stats().Process)
			}
			n, err := fleet[0].Expire(t.Context(), 100)
			if err != nil {
				t.Error(err)
			}
			expired.Add(int64(n))
		}
	})
	var workers sync.WaitGroup
	for w := range 32 {
		workers.Go(func() {
			random := rand.New(rand.NewPCG(7, uint64(w))) // a test
			l := fleet[w%4]
			for range 60 {
				var holds []governance.Hold
				for _, limit := range limits {
					amount := int64(1)
					if limit.Metric != governance.MetricRequests {
						amount = 1 + random.Int64N(200)
					}
					if random.IntN(4) > 0 {
						holds = append(holds, hold(limit, 1+random.Int64N(2), amount))
					}
				}
				r := request(l, holds...)
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+random.IntN(100))*time.Millisecond)
				_, err := l.Reserve(ctx, r)
				cancel()
				if err != nil {
					var d *governance.Denial
					if errors.As(err, &d) {
						refused.Add(1)
					}
					continue
				}
				admitted.Add(1)
				if random.IntN(10) == 0 {
					time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond) // a slow upstream
				}
				s := used(r.ID, random.Int64N(300), 0, random.Int64N(300))
				switch random.IntN(6) {
				case 0:
					s = release(r.ID)
				case 1:
					s.Rate = governance.BasisHold
				case 2:
					continue // it dies
				}
				for range 1 + random.IntN(2) {
					if err := l.Settle(t.Context(), s); err != nil && !errors.Is(err, governance.ErrAlreadyClosed) {
						t.Error(err)
					}
				}
			}
		})
	}
	workers.Wait()
	eventually(t, "nothing stays open", func() bool {
		db.exec(t, "UPDATE ledger.processes SET beat_at = beat_at - interval '1 minute'")
		return db.count(t, "SELECT count(*) FROM ledger.reservations WHERE state = 'open'") == 0
	})
	close(stop)
	group.Wait()
	adjusted.Store(db.count(t, "SELECT count(*) FROM ledger.rows WHERE kind = 'late_adjustment'"))
	t.Logf("admitted %d, refused %d, expired %d, adjusted %d", admitted.Load(), refused.Load(), expired.Load(), adjusted.Load())
	require.Greater(t, admitted.Load(), int64(100))
	require.Positive(t, refused.Load())
	require.Positive(t, expired.Load())

	require.Zero(t, db.count(t, `
		SELECT count(*) FROM ledger.meters AS m JOIN tollgate.limits AS l ON l.id = m.limit_id
		LEFT JOIN (SELECT g.limit_id, g.subject, g.window_start, sum(g.actual) AS actual FROM ledger.rows AS r,
			unnest(r.leg_limits, r.leg_subjects, r.leg_windows, r.leg_actual) AS g (limit_id, subject, window_start, actual) GROUP BY 1, 2, 3) AS s
			USING (limit_id, subject, window_start)
		WHERE l.kind = 'budget' AND m.spent <> coalesce(s.actual, 0)`), "I01")
	require.Zero(t, db.count(t, "SELECT count(*) FROM ledger.meters WHERE held <> 0"), "I02")
	require.Zero(t, db.count(t, `SELECT count(*) FROM (SELECT attempt_id FROM ledger.rows WHERE kind IN ('usage', 'expiry')
		GROUP BY 1 HAVING count(*) > 1) AS q`), "I06")
	require.Zero(t, db.count(t, "SELECT count(*) FROM ledger.rows WHERE kind IN ('usage', 'expiry') AND (cost < 0 OR 0 > ANY (leg_actual))"), "I15")
	for _, limit := range limits[:2] {
		for subject := int64(1); subject <= 2; subject++ {
			replay(t, db, limit, subject)
		}
	}
}

func release(id ids.ID) governance.Settlement {
	return governance.Settlement{
		ID: id, Outcome: governance.OutcomeUpstreamError, Source: governance.UsageZero,
		Requests: governance.BasisZero, Rate: governance.BasisZero, Budget: governance.BasisZero, Release: true,
	}
}

// replay runs a bucket's whole history from full (I12) and looks whether anybody was admitted without room.
func replay(t *testing.T, db database, limit *governance.Limit, subject int64) {
	t.Helper()
	rows, err := db.Query(t.Context(), `
		SELECT q.at, q.admission, q.reserved, q.actual FROM (
			SELECT r.admitted_at AS at, true AS admission, g.reserved, 0::bigint AS actual, g.limit_id, g.subject
			FROM ledger.rows AS r, unnest(r.leg_limits, r.leg_subjects, r.leg_reserved) AS g (limit_id, subject, reserved)
			WHERE r.kind IN ('usage', 'expiry')
			UNION ALL
			SELECT r.settled_at, false, CASE WHEN r.kind = 'late_adjustment' THEN 0 ELSE g.reserved END, g.actual, g.limit_id, g.subject
			FROM ledger.rows AS r, unnest(r.leg_limits, r.leg_subjects, r.leg_reserved, r.leg_actual) AS g (limit_id, subject, reserved, actual)
			UNION ALL
			SELECT r.admitted_at, true, g.reserved, 0, g.limit_id, g.subject
			FROM ledger.reservations AS r, unnest(r.leg_limits, r.leg_subjects, r.leg_reserved) AS g (limit_id, subject, reserved)
			UNION ALL
			SELECT r.closed_at, false, g.reserved, 0, g.limit_id, g.subject
			FROM ledger.reservations AS r, unnest(r.leg_limits, r.leg_subjects, r.leg_reserved) AS g (limit_id, subject, reserved)
		) AS q WHERE q.limit_id = $1 AND q.subject = $2
		ORDER BY q.at, q.admission, q.reserved - q.actual`, limit.Num, subject)
	require.NoError(t, err)
	type event struct {
		At               time.Time
		Admission        bool
		Reserved, Actual int64
	}
	events, err := pgx.CollectRows(rows, pgx.RowToStructByPos[event])
	require.NoError(t, err)
	require.NotEmpty(t, events)
	m := meter.Meter{Rule: meter.RuleOf(limit), State: meter.State{Refilled: meter.Never}}
	for _, e := range events {
		switch {
		case e.Admission:
			m.Advance(e.At)
			require.True(t, m.Room(e.Reserved), "nobody is admitted in debt")
			m.Take(e.Reserved)
		case e.Reserved != e.Actual:
			m.Advance(e.At)
			m.Settle(e.Reserved, e.Actual)
		}
	}
	stored := meter.Meter{Rule: m.Rule}
	var at time.Time
	require.NoError(t, db.QueryRow(t.Context(), "SELECT level, refilled_at FROM ledger.meters WHERE limit_id = $1 AND subject = $2", limit.Num, subject).
		Scan(&stored.Level, &at))
	stored.Refilled = at.UnixMicro()
	require.Equal(t, m.State, stored.State, "replay gives the stored level to the last unit, %d events", len(events))
}

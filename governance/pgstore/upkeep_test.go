package pgstore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/tasks"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/pgtest"
)

var _ tasks.Claims = (*Claims)(nil)

func TestClaim_GoesToOneOfManyReplicas(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	c := NewClaims(pgtest.Role(t, pool, "tollgate_gateway"))
	claim := func() (won int) {
		var mine [8]bool
		var next [8]time.Duration
		var all errgroup.Group
		for i := range mine {
			all.Go(func() (err error) {
				mine[i], next[i], err = c.Claim(t.Context(), "seal", time.Hour)
				return err
			})
		}
		require.NoError(t, all.Wait())
		for i := range mine {
			require.LessOrEqual(t, next[i], time.Hour)
			if mine[i] {
				won++
			}
		}
		return won
	}
	require.Equal(t, 1, claim(), "the first claim makes the row")
	require.Equal(t, 0, claim())
	due := func(ahead string) {
		_, err := pool.Exec(t.Context(), "UPDATE tollgate.tasks SET due_at = clock_timestamp() + $1::text::interval", ahead)
		require.NoError(t, err)
	}
	due("-1 second")
	require.Equal(t, 1, claim())
	due("65 minutes 10 seconds")
	require.Equal(t, 1, claim(), "the trace of a clock that was set back")
	due("1 hour")
	require.Equal(t, 0, claim())
}

func TestClaims_KeepHowARunEnded(t *testing.T) {
	t.Parallel()
	c := NewClaims(pgtest.New(t))
	_, _, err := c.Claim(t.Context(), "seal", time.Minute)
	require.NoError(t, err)
	list, err := c.List(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.True(t, list[0].FinishedAt.IsZero())
	require.Equal(t, int64(1), list[0].Runs)
	require.NoError(t, c.Finished(t.Context(), "seal", "lost\x00 \xff"+string(make([]byte, 10_000))))
	list, err = c.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, "lost ", list[0].Failure)
	require.False(t, list[0].FinishedAt.IsZero())
}

func TestResolveProvisional_WaitsADayForPeople(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	u := NewUpkeep(pgtest.Role(t, b.pool, "tollgate_gateway"))
	budget := b.limit("kind, metric, amount, window_type", "'budget', 'cost', 1000000000, 'total'")
	key := b.accounts[0].key.Num
	q, p := tokens(100, 1000)
	provisional := func(age time.Duration) line {
		return b.add(line{
			kind: governance.RowExpiry, source: governance.UsageReservation, q: q, p: p, admitted: b.now.Add(-age),
			legs: []governance.Leg{leg(budget, key, time.Time{}, 615_000, 615_000)},
		})
	}
	old, young := provisional(25*time.Hour), provisional(23*time.Hour)
	b.meter(budget, key, time.Time{}, 2*615_000, 0, 0)
	var all errgroup.Group
	for range 4 {
		all.Go(func() error { return u.ResolveProvisional(t.Context(), governance.ResolveEstimate) })
	}
	require.NoError(t, all.Wait())
	b.clean()
	r, err := b.Receipt(t.Context(), 0, old.request)
	require.NoError(t, err)
	require.Len(t, r.Rows, 2)
	require.Equal(t, "system", r.Rows[1].Actor)
	require.Equal(t, governance.UsageEstimate, r.Rows[1].Source)
	r, err = b.Receipt(t.Context(), 0, young.request)
	require.NoError(t, err)
	require.Len(t, r.Rows, 1)
}

func TestMeasureOutputs_ReadsTheNewestCompleteAnswers(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	u := NewUpkeep(pgtest.Role(t, b.pool, "tollgate_gateway"))
	var provider, target, idle int64
	b.scan("INSERT INTO tollgate.providers (public_id, name, kind, base_url) VALUES ($1, 'p', 'openai', 'http://x') RETURNING id", &provider, ids.NewPublic(ids.Provider))
	b.scan("INSERT INTO tollgate.targets (public_id, provider_id, upstream_model) VALUES ($1, $2, 'm') RETURNING id", &target, ids.NewPublic(ids.Target), provider)
	b.scan("INSERT INTO tollgate.targets (public_id, provider_id, upstream_model) VALUES ($1, $2, 'n') RETURNING id", &idle, ids.NewPublic(ids.Target), provider)
	for i := range 200 {
		q, p := tokens(1, int64(i+1))
		b.add(line{q: q, p: p, target: target, settled: b.now.Add(2 * time.Second)})
	}
	q, p := tokens(1, 100_000)
	b.add(line{q: q, p: p, target: target, source: governance.UsageEstimate})
	b.add(line{q: q, p: p, target: target, outcome: governance.OutcomeCut})
	b.add(line{q: q, p: p, target: target, admitted: b.now.Add(-8 * 24 * time.Hour)})
	for range 2 {
		require.NoError(t, u.MeasureOutputs(t.Context()))
		var p99, rate, targets int64
		b.scan("SELECT p99_output FROM tollgate.output_statistics WHERE target_id = $1", &p99, target)
		b.scan("SELECT p95_rate FROM tollgate.output_statistics WHERE target_id = $1", &rate, target)
		b.scan("SELECT count(*) FROM tollgate.output_statistics", &targets)
		require.Equal(t, int64(198), p99)
		require.Equal(t, int64(95), rate) // 191 of the 185 answers that are long enough, in 2 s
		require.Equal(t, int64(1), targets)
	}
}

func TestOpenWindows_MakesTheNextOnesThatCannotOwe(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	u := NewUpkeep(pgtest.Role(t, b.pool, "tollgate_gateway"))
	key := b.accounts[0].key.Num
	// Windows of five minutes: the next one is always within the next ten.
	forgiving := b.limit("kind, metric, amount, window_type, window_seconds, window_anchor, carry_debt", "'budget', 'tokens', 100, 'fixed', 300, '2026-01-01Z', false")
	carrying := b.limit("kind, metric, amount, window_type, window_seconds, window_anchor", "'budget', 'tokens', 100, 'fixed', 301, '2026-01-01Z'")
	for _, l := range []*governance.Limit{forgiving, carrying} {
		b.exec(`INSERT INTO ledger.meters (limit_id, subject, window_start)
			SELECT id, $2, ledger.window_start(window_type, window_period, window_zone, window_seconds, window_anchor, now())
			FROM tollgate.limits WHERE id = $1`, l.Num, key)
	}
	for range 2 {
		require.NoError(t, u.OpenWindows(t.Context()))
		var made, carried int
		b.scan("SELECT count(*) FROM ledger.meters WHERE limit_id = $1 AND window_start > now()", &made, forgiving.Num)
		b.scan("SELECT count(*) FROM ledger.meters WHERE limit_id = $1 AND window_start > now()", &carried, carrying.Num)
		require.Equal(t, 1, made)
		require.Zero(t, carried)
	}
	b.clean()
}

func TestPrune_RemovesOnlyWhatIsOver(t *testing.T) {
	t.Parallel()
	b := openSound(t)
	u := NewUpkeep(pgtest.Role(t, b.pool, "tollgate_gateway"))
	b.exec(`INSERT INTO tollgate.idempotency_keys (key_id, idempotency_key, body_hash, request_id, claimed_until, expires_at)
		SELECT $1, n::text, decode(repeat('00', 32), 'hex'), gen_random_uuid(), now(), now() + CASE WHEN n <= 2500 THEN -1 ELSE 1 END * interval '1 minute'
		FROM generate_series(1, 2600) AS n`, b.accounts[0].key.Num)
	require.NoError(t, u.Prune(t.Context()))
	var left int
	b.scan("SELECT count(*) FROM tollgate.idempotency_keys", &left)
	require.Equal(t, 100, left)
	b.clean()
	require.NoError(t, u.EnsurePartitions(t.Context()))
}

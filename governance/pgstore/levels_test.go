package pgstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/meter"
)

// level reads one meter of the first account's key.
func (b *book) level(l *governance.Limit) governance.Level {
	b.t.Helper()
	levels, err := b.Levels(b.t.Context(), []governance.LevelQuery{{Limit: l, Subject: b.accounts[0].key.Num}})
	require.NoError(b.t, err)
	require.Len(b.t, levels, 1)
	return levels[0]
}

func TestLevels_OfMetersThatWereNeverUsedAreWhole(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	key := b.accounts[0].key.Num
	bucket := b.limit("kind, metric, amount, burst, per_seconds", "'rate', 'tokens', 60, 100, 60")
	budget := b.limit("kind, metric, amount, window_type, window_period", "'budget', 'cost', 500, 'calendar', 'month'")
	slots := b.limit("kind, metric, amount", "'concurrency', 'requests', 4")
	free := b.limit("kind, metric, window_type", "'budget', 'tokens', 'total'")
	levels, err := b.Levels(t.Context(), []governance.LevelQuery{
		{Limit: slots, Subject: key}, {Limit: bucket, Subject: key}, {Limit: free, Subject: key}, {Limit: budget, Subject: key}, {Limit: slots, Subject: 77},
	})
	require.NoError(t, err)
	var remaining []int64
	for _, l := range levels {
		remaining = append(remaining, l.Remaining)
		require.Zero(t, l.Debt+l.Spent+l.Held)
	}
	require.Equal(t, []int64{4, 100, 0, 500, 4}, remaining)
	require.True(t, levels[2].Unlimited)
	require.Same(t, bucket, levels[1].Limit)
	require.True(t, levels[3].ResetsAt.After(b.now))
	_, err = b.Levels(t.Context(), []governance.LevelQuery{{Limit: &governance.Limit{Meta: governance.Meta{Num: 1 << 40}}}})
	require.ErrorIs(t, err, governance.ErrNotFound)
	levels, err = b.Levels(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, levels)
}

func TestLevels_BucketsAreRefilledByNow(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	bucket := b.limit("kind, metric, amount, burst, per_seconds", "'rate', 'tokens', 36000, 50000, 3600")
	key := b.accounts[0].key.Num
	// Ten tokens a second; 100 in debt an hour ago would be 35,900 now, 2,000 in debt ten seconds ago still 1,900.
	b.exec(`INSERT INTO ledger.meters (limit_id, subject, level, refilled_at)
		VALUES ($1, $2, -100 * 3600000::bigint, date_trunc('second', now() - interval '1 hour'))`, bucket.Num, key)
	got := b.level(bucket)
	require.InDelta(t, 35_900, got.Remaining, 300)
	require.Zero(t, got.Debt)
	require.Equal(t, int64(50_000), got.Amount)
	b.exec("UPDATE ledger.meters SET level = -2000 * 3600000::bigint, refilled_at = date_trunc('second', now() - interval '10 seconds')")
	got = b.level(bucket)
	require.InDelta(t, 1_900, got.Debt, 100)
	require.Zero(t, got.Remaining)
	require.Positive(t, got.ResetsAfter)
	b.exec("UPDATE ledger.meters SET refilled_at = now() - interval '30 days'")
	require.Equal(t, int64(50_000), b.level(bucket).Remaining, "never above its capacity")
	b.exec("UPDATE tollgate.limits SET burst = 70000 WHERE id = $1", bucket.Num)
	got = b.level(bucket)
	require.Equal(t, int64(70_000), got.Amount, "the store's numbers count, not the caller's")
	require.InDelta(t, 50_000, got.Remaining, 300, "a larger bucket fills up from what was in the smaller one")
}

// Ruling 3: a window begins with what its predecessor overspent, less one amount for each empty window between.
func TestLevels_WindowOfNowCarriesDebt(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	key := b.accounts[0].key.Num
	for name, c := range map[string]struct {
		columns, values string
		back            int // windows back from the present one
		spent, carried  int64
		debt, spentNow  int64
	}{
		"present window":   {"window_type, window_period", "'calendar', 'day'", 0, 70, 20, 20, 70},
		"yesterday's debt": {"window_type, window_period", "'calendar', 'day'", 1, 250, 0, 150, 0},
		"one empty day":    {"window_type, window_period", "'calendar', 'day'", 2, 250, 0, 50, 0},
		"repaid":           {"window_type, window_period", "'calendar', 'day'", 3, 250, 0, 0, 0},
		"months":           {"window_type, window_period", "'calendar', 'month'", 2, 300, 20, 120, 0},
		"fixed":            {"window_type, window_seconds", "'fixed', 3600", 2, 150, 80, 30, 0},
		"no carrying":      {"window_type, window_period, carry_debt", "'calendar', 'day', false", 1, 250, 0, 0, 0},
		"in Tokyo":         {"window_type, window_period, window_zone", "'calendar', 'day', 'Asia/Tokyo'", 1, 250, 0, 150, 0},
	} {
		l := b.limit("kind, metric, amount, thresholds, "+c.columns, fmt.Sprintf("'budget', 'tokens', 100, '{%d}', %s", c.back, c.values))
		b.exec("UPDATE tollgate.limits SET models = ARRAY[$2::text] WHERE id = $1", l.Num, name) // an identity of its own
		start, _, err := meter.Window(l, b.now)
		require.NoError(t, err)
		for range c.back {
			start, _, err = meter.Window(l, start.Add(-time.Second))
			require.NoError(t, err)
		}
		b.meter(l, key, start, c.spent, 5, c.carried)
		got := b.level(l)
		require.Equal(t, c.debt, got.Debt, name)
		require.Equal(t, c.spentNow, got.Spent, name)
		if c.back > 0 {
			require.Zero(t, got.Held, "%s: what is held belongs to the window that admitted it", name)
		}
		require.Equal(t, max(0, 100-got.Debt-got.Spent-got.Held), got.Remaining, name)
	}
}

// F023: a day of Tokyo ends at Tokyo's midnight, and what the ledger wrote into it is seen there.
func TestF023_WindowsEndAtLocalMidnight(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	l := b.limit("kind, metric, amount, window_type, window_period, window_zone", "'budget', 'tokens', 100, 'calendar', 'day', 'Asia/Tokyo'")
	key := b.accounts[0].key.Num
	b.exec(`INSERT INTO ledger.meters (limit_id, subject, window_start, spent)
		SELECT id, $2, ledger.window_start(window_type, window_period, window_zone, window_seconds, created_at, now()), 42
		FROM tollgate.limits WHERE id = $1`, l.Num, key)
	got := b.level(l)
	require.Equal(t, int64(42), got.Spent)
	tokyo, err := time.LoadLocation("Asia/Tokyo")
	require.NoError(t, err)
	require.Equal(t, "00:00:00", got.ResetsAt.In(tokyo).Format(time.TimeOnly))
	require.InDelta(t, time.Until(got.ResetsAt).Seconds(), got.ResetsAfter.Seconds(), 60)
	require.LessOrEqual(t, got.ResetsAfter, 24*time.Hour)
}

func TestMembers_FullestFirst(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	key, other := b.accounts[0].key, b.accounts[1].key
	budget := b.limit("kind, metric, amount, window_type", "'budget', 'tokens', 100, 'total'")
	b.meter(budget, key.Num, time.Time{}, 10, 0, 0)
	b.meter(budget, other.Num, time.Time{}, 5, 50, 0)
	members, err := b.Members(t.Context(), budget.Num, governance.Page{Limit: 10})
	require.NoError(t, err)
	require.Len(t, members, 2)
	require.Equal(t, []governance.Ref{other, key}, []governance.Ref{members[0].Member, members[1].Member})
	require.Equal(t, int64(45), members[0].Remaining)

	bucket := b.limit("kind, metric, amount, burst, per_seconds", "'rate', 'tokens', 60, 1000, 60")
	// One token a second: 10 left a while ago are more than 100 left now.
	b.exec("INSERT INTO ledger.meters (limit_id, subject, level, refilled_at) VALUES ($1, $2, 10 * 60000000::bigint, now() - interval '10 minutes')", bucket.Num, key.Num)
	b.exec("INSERT INTO ledger.meters (limit_id, subject, level, refilled_at) VALUES ($1, $2, 100 * 60000000::bigint, now())", bucket.Num, other.Num)
	members, err = b.Members(t.Context(), bucket.Num, governance.Page{Limit: 1})
	require.NoError(t, err)
	require.Len(t, members, 1)
	require.Equal(t, other, members[0].Member)
	_, err = b.Members(t.Context(), 1<<40, governance.Page{Limit: 1})
	require.ErrorIs(t, err, governance.ErrNotFound)
}

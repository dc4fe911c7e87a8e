package meter_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/meter"
)

var (
	metrics = []governance.Metric{
		governance.MetricRequests, governance.MetricTokens, governance.MetricInputTokens, governance.MetricOutputTokens, governance.MetricCost,
	}
	periods = []time.Duration{time.Second, time.Minute, time.Hour, 24 * time.Hour}
)

// drawRule draws a bucket whose numbers fit, the extreme ones included.
func drawRule(t *rapid.T) meter.Rule {
	r := meter.Rule{Kind: governance.KindRate, Metric: rapid.SampledFrom(metrics).Draw(t, "metric"), Per: rapid.SampledFrom(periods).Draw(t, "per")}
	most := meter.MaxLevel/r.Ticks() - 1
	bound := rapid.SampledFrom([]int64{10, 1000, most}).Draw(t, "bound")
	r.Amount = rapid.Int64Range(0, min(bound, most)).Draw(t, "amount")
	r.Burst = rapid.Int64Range(0, min(bound, most)).Draw(t, "burst")
	return r
}

// TestBucket_EqualsExactArithmetic runs a bucket beside one that is computed with whole numbers of any size.
func TestBucket_EqualsExactArithmetic(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := meter.Meter{Rule: drawRule(t), State: meter.State{Refilled: meter.Never}}
		require.True(t, m.Fits())
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		m.Advance(now)
		ticks := big.NewInt(m.Ticks())
		full := new(big.Int).Mul(big.NewInt(m.Burst), ticks)
		floor := big.NewInt(-meter.MaxLevel)
		level := new(big.Int).Set(full)
		clamp := func() {
			if level.Cmp(full) > 0 {
				level.Set(full)
			}
			if level.Cmp(floor) < 0 {
				level.Set(floor)
			}
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				elapsed := rapid.Int64Range(0, rapid.SampledFrom([]int64{1, 10_000, 100_000_000, 3_000_000_000_000_000}).Draw(t, "scale")).Draw(t, "µs")
				before := m.Refilled
				now = now.Add(time.Duration(elapsed) * time.Microsecond)
				require.False(t, m.Advance(now))
				gained := new(big.Int).Mul(big.NewInt(m.Amount), big.NewInt((m.Refilled-before)/m.Tick().Microseconds()))
				level.Add(level, gained)
				clamp()
				require.LessOrEqual(t, m.Refilled, now.UnixMicro())
				require.Less(t, now.UnixMicro()-m.Refilled, m.Tick().Microseconds())
			case 1:
				amount := rapid.Int64Range(0, rapid.SampledFrom([]int64{10, 1 << 40, meter.MaxAmount}).Draw(t, "bound")).Draw(t, "amount")
				want := new(big.Int).Mul(big.NewInt(amount), ticks)
				fits := want.Cmp(level) <= 0
				require.Equal(t, fits && amount > 0 || amount == 0 && level.Sign() >= 0, m.Room(amount))
				if m.Room(amount) {
					m.Take(amount)
					level.Sub(level, want)
				}
			case 2:
				reserved := rapid.Int64Range(0, 1000).Draw(t, "reserved")
				actual := rapid.Int64Range(0, rapid.SampledFrom([]int64{1000, meter.MaxAmount}).Draw(t, "bound")).Draw(t, "actual")
				m.Settle(reserved, actual)
				delta := new(big.Int).Mul(big.NewInt(reserved-actual), ticks)
				if most := big.NewInt(meter.MaxLevel); delta.CmpAbs(most) > 0 { // more than any bucket can owe
					delta.Neg(most)
				}
				level.Add(level, delta)
				clamp()
			}
			require.Equal(t, level.Int64(), m.Level)
		}
	})
}

// TestF067_BucketAdmitsNoMoreThanItsBoundOverAnyInterval checks I11: in any interval capacity + refill at most.
func TestF067_BucketAdmitsNoMoreThanItsBoundOverAnyInterval(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		per := rapid.SampledFrom(periods).Draw(t, "per")
		m := meter.Meter{
			Rule: meter.Rule{
				Kind: governance.KindRate, Metric: governance.MetricRequests, Per: per,
				Amount: rapid.Int64Range(1, 100).Draw(t, "amount"), Burst: rapid.Int64Range(1, 100).Draw(t, "burst"),
			},
			State: meter.State{Refilled: meter.Never},
		}
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		type taken struct {
			at     time.Time
			amount int64
		}
		var log []taken
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(per)/10).Draw(t, "pause")))
			m.Advance(now)
			if amount := rapid.Int64Range(1, 20).Draw(t, "amount"); m.Room(amount) {
				m.Take(amount)
				log = append(log, taken{now, amount})
			}
		}
		for i := range log {
			var sum int64
			for _, x := range log[i:] {
				sum += x.amount
				elapsed := x.at.Sub(log[i].at) + m.Tick()
				bound := new(big.Int).Mul(big.NewInt(m.Amount), big.NewInt(int64(elapsed)))
				bound.Add(bound, new(big.Int).Mul(big.NewInt(m.Burst), big.NewInt(int64(per))))
				require.LessOrEqual(t, new(big.Int).Mul(big.NewInt(sum), big.NewInt(int64(per))).Cmp(bound), 0)
			}
		}
	})
}

// TestRefuse_RetryIsExact checks that after RetryAfter the same amount fits, and a tick earlier it does not.
func TestRefuse_RetryIsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := meter.Meter{
			Rule: meter.Rule{
				Kind: governance.KindRate, Metric: rapid.SampledFrom(metrics).Draw(t, "metric"), Per: rapid.SampledFrom(periods[:3]).Draw(t, "per"),
				Amount: rapid.Int64Range(1, 5000).Draw(t, "amount"), Burst: rapid.Int64Range(1, 5000).Draw(t, "burst"),
			},
			State: meter.State{Refilled: meter.Never},
		}
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		m.Advance(now)
		m.Settle(0, rapid.Int64Range(0, 20_000).Draw(t, "used"))
		amount := rapid.Int64Range(1, m.Burst).Draw(t, "want")
		if m.Room(amount) {
			return
		}
		reason, retry, forever := m.Refuse(amount, now, time.Time{})
		require.Equal(t, governance.RefusedRate, reason)
		require.False(t, forever)
		early, then := m, m
		early.Advance(now.Add(retry - m.Tick()))
		require.False(t, early.Room(amount))
		then.Advance(now.Add(retry))
		require.True(t, then.Room(amount))
	})
}

func TestAdvance_InstantNeverMovesBack(t *testing.T) {
	t.Parallel()
	m := meter.Meter{Rule: meter.Rule{Kind: governance.KindRate, Metric: governance.MetricRequests, Per: time.Minute, Amount: 60, Burst: 60}}
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	m.Refilled = at.UnixMicro()
	require.False(t, m.Advance(at.Add(-4*time.Minute)))
	require.Equal(t, at.UnixMicro(), m.Refilled)
	require.Zero(t, m.Level)
	require.True(t, m.Advance(at.Add(-6*time.Minute)), "the clock was set back")
	require.Equal(t, at.Add(-6*time.Minute).UnixMicro(), m.Refilled)
	require.Zero(t, m.Level)
	m.Advance(at.Add(-6*time.Minute + time.Second))
	require.Equal(t, m.Ticks(), m.Level)
}

func TestFits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule meter.Rule
		fits bool
	}{
		{meter.Rule{Kind: governance.KindRate, Metric: governance.MetricTokens, Per: time.Minute, Amount: 1e10, Burst: 1e10}, true},
		{meter.Rule{Kind: governance.KindRate, Metric: governance.MetricTokens, Per: time.Minute, Amount: 1e11, Burst: 1e11}, false},
		{meter.Rule{Kind: governance.KindRate, Metric: governance.MetricTokens, Per: 24 * time.Hour, Amount: 5e10, Burst: 5e10}, true},
		{meter.Rule{Kind: governance.KindRate, Metric: governance.MetricCost, Per: time.Hour, Amount: 1000e9, Burst: 1000e9}, true},
		{meter.Rule{Kind: governance.KindRate, Metric: governance.MetricCost, Per: time.Hour, Amount: 2000e9, Burst: 2000e9}, false},
		{meter.Rule{Kind: governance.KindBudget, Metric: governance.MetricCost, Amount: meter.MaxLevel}, true},
		{meter.Rule{Kind: governance.KindBudget, Metric: governance.MetricCost, Amount: meter.MaxLevel + 1}, false},
		{meter.Rule{Kind: governance.KindBudget, Metric: governance.MetricCost, Amount: -1}, false},
		{meter.Rule{Kind: governance.KindRate, Metric: governance.MetricTokens, Per: time.Minute, Unlimited: true}, true},
	} {
		require.Equal(t, c.fits, c.rule.Fits(), "%+v", c.rule)
	}
}

func TestWindow_AcrossChangesOfTheClocks(t *testing.T) {
	t.Parallel()
	at := func(s string) time.Time {
		when, err := time.Parse(time.RFC3339, s)
		require.NoError(t, err)
		return when
	}
	for _, c := range []struct{ zone, period, at, start, end string }{
		{"", "day", "2026-03-29T12:00:00Z", "2026-03-29T00:00:00Z", "2026-03-30T00:00:00Z"},
		{"Europe/Paris", "day", "2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"}, // 23 hours
		{"Europe/Paris", "day", "2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"}, // 25 hours
		{"Europe/Paris", "month", "2026-03-31T22:30:00Z", "2026-03-31T22:00:00Z", "2026-04-30T22:00:00Z"},
		{"America/New_York", "week", "2026-03-08T12:00:00Z", "2026-03-02T05:00:00Z", "2026-03-09T04:00:00Z"}, // from Monday
		{"UTC", "quarter", "2026-05-17T00:00:00Z", "2026-04-01T00:00:00Z", "2026-07-01T00:00:00Z"},
		{"UTC", "year", "2024-02-29T23:59:59Z", "2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z"},
		{"UTC", "month", "2024-02-29T23:59:59Z", "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z"},
		{"America/Sao_Paulo", "day", "2018-11-04T12:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"}, // no midnight
		{"America/Havana", "day", "2026-11-01T04:30:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"},    // two of them
		{"America/Havana", "day", "2026-11-01T05:30:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"},
		{"Pacific/Apia", "day", "2011-12-30T10:30:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"}, // the day before is missing
	} {
		l := &governance.Limit{Window: governance.Window{Type: governance.WindowCalendar, Period: c.period, TimeZone: c.zone}}
		start, end, err := meter.Window(l, at(c.at))
		require.NoError(t, err)
		require.Equal(t, c.start, start.Format(time.RFC3339), "%+v", c)
		require.Equal(t, c.end, end.Format(time.RFC3339), "%+v", c)
	}
	_, _, err := meter.Window(&governance.Limit{Window: governance.Window{Type: governance.WindowCalendar, Period: "day", TimeZone: "Nowhere"}}, time.Now())
	require.Error(t, err)
	start, end, err := meter.Window(&governance.Limit{Window: governance.Window{Type: governance.WindowTotal}}, time.Now())
	require.NoError(t, err)
	require.True(t, start.IsZero() && end.IsZero())
}

func TestCarriedInto(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ carried, spent, amount, empty, want int64 }{
		{0, 90, 100, 0, 0},
		{0, 130, 100, 0, 30},
		{20, 90, 100, 0, 10},
		{0, 350, 100, 0, 250},
		{0, 350, 100, 1, 150},
		{0, 350, 100, 2, 50},
		{0, 350, 100, 3, 0},
		{0, 350, 100, 1 << 60, 0},
		{0, 5, 0, 1000, 5}, // nothing is ever repaid from an amount of nothing
	} {
		m := meter.Meter{Rule: meter.Rule{Kind: governance.KindBudget, Amount: c.amount}, State: meter.State{Carried: c.carried, Spent: c.spent}}
		require.Equal(t, c.want, m.CarriedInto(c.empty), "%+v", c)
	}
}

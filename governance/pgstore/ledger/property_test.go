package ledger_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/meter"
	"github.com/tollgate-gateway/tollgate/governance/pgstore/ledger"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// TestBatch_EqualsMeter runs random admissions and settlements through the database and through governance/meter, which
// must agree on every answer and every level. Stored instants are moved back now and then, so that buckets refill.
func TestBatch_EqualsMeter(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	l := start(t, ledger.Options{Pool: db.Pool, Observer: ledger.Observer{
		Mismatch: func() { t.Error("the database refused what must be admitted") },
	}})
	metrics := []governance.Metric{
		governance.MetricRequests, governance.MetricTokens, governance.MetricInputTokens, governance.MetricOutputTokens, governance.MetricCost,
	}
	var limits []*governance.Limit
	for _, mode := range []governance.Mode{governance.ModeEnforce, governance.ModeLog} {
		for _, per := range []time.Duration{time.Second, time.Minute, time.Hour, 24 * time.Hour} {
			for _, m := range metrics {
				limits = append(limits, db.limit(t, governance.Limit{Kind: governance.KindRate, Metric: m, Per: per, Amount: 7, Burst: 20, Mode: mode}))
			}
		}
		for _, m := range metrics[1:] {
			limits = append(limits, db.limit(t, governance.Limit{Kind: governance.KindBudget, Metric: m, Amount: 60, Mode: mode, CarryDebt: true}))
		}
		limits = append(limits, db.limit(t, governance.Limit{Kind: governance.KindConcurrency, Metric: governance.MetricRequests, Amount: 2, Mode: mode}))
	}
	subject := int64(0)
	rapid.Check(t, func(rt *rapid.T) {
		subject++ // fresh meters each time
		chosen := rapid.SliceOfNDistinct(rapid.SampledFrom(limits), 1, 4, func(l *governance.Limit) int64 { return l.Num }).Draw(rt, "limits")
		meters := make([]meter.Meter, len(chosen))
		for i, c := range chosen {
			meters[i] = meter.Meter{Rule: meter.RuleOf(c), State: meter.State{Refilled: meter.Never}}
		}
		type attempt struct {
			id    ids.ID
			holds []governance.Hold
			taken []meter.Taken
		}
		var open []attempt
		steps := rapid.IntRange(1, 12).Draw(rt, "steps")
		for range steps {
			switch rapid.IntRange(0, 4).Draw(rt, "step") {
			case 0: // time passes
				back := rapid.Int64Range(0, 100_000_000).Draw(rt, "microseconds")
				for i := range chosen {
					tick := meters[i].Tick().Microseconds()
					moved := back - back%tick
					if chosen[i].Kind != governance.KindRate || meters[i].Refilled == meter.Never {
						continue
					}
					meters[i].Refilled -= moved
					db.exec(t, "UPDATE ledger.meters SET refilled_at = refilled_at - $3 * interval '1 microsecond' WHERE limit_id = $1 AND subject = $2",
						chosen[i].Num, subject, moved)
				}
			case 1: // an attempt ends
				if len(open) == 0 {
					continue
				}
				n := rapid.IntRange(0, len(open)-1).Draw(rt, "which")
				a := open[n]
				open = append(open[:n], open[n+1:]...)
				s := used(a.id, rapid.Int64Range(0, 40).Draw(rt, "input"), rapid.Int64Range(0, 40).Draw(rt, "output"), rapid.Int64Range(0, 60).Draw(rt, "cost"))
				basis := rapid.SampledFrom([]governance.Basis{governance.BasisActual, governance.BasisHold, governance.BasisZero})
				s.Requests, s.Rate, s.Budget = basis.Draw(rt, "requests"), basis.Draw(rt, "rate"), basis.Draw(rt, "budget")
				s.Release = rapid.Bool().Draw(rt, "release")
				require.NoError(rt, l.Settle(t.Context(), s))
				at := settledAt(t, db, a.id)
				for i := range chosen {
					if !a.taken[i].Leg() {
						continue
					}
					actual := meter.Actual(chosen[i].Kind, chosen[i].Metric, a.holds[i].Amount, &s)
					if chosen[i].Kind == governance.KindRate && actual == a.holds[i].Amount {
						continue // the database does not touch it
					}
					meters[i].Advance(at)
					meters[i].Settle(a.holds[i].Amount, actual)
				}
			default: // an attempt begins
				holds := make([]governance.Hold, len(chosen))
				wants := make([]meter.Want, len(chosen))
				taken := make([]meter.Taken, len(chosen))
				for i, c := range chosen {
					most := int64(25)
					if c.Kind == governance.KindConcurrency || c.Metric == governance.MetricRequests {
						most = 1
					}
					holds[i] = hold(c, subject, rapid.Int64Range(1, most).Draw(rt, "amount"))
					wants[i] = meter.Want{Meter: i, Amount: holds[i].Amount}
				}
				r := request(l, holds...)
				got, err := l.Reserve(t.Context(), r)
				at := got.AdmittedAt
				if err != nil {
					var d *governance.Denial
					require.ErrorAs(rt, err, &d)
					require.NotEmpty(rt, d.Refusals)
					continue
				}
				for i := range meters {
					meters[i].Advance(at)
				}
				require.True(rt, meter.Admit(meters, wants, taken), "the database admitted what must be refused")
				for i := range meters {
					require.Equal(rt, taken[i].Refused(), got.Levels[i].WouldRefuse)
				}
				open = append(open, attempt{r.ID, holds, taken})
			}
			for i, c := range chosen {
				var m meter.State
				var at *time.Time
				err := db.QueryRow(t.Context(), `SELECT level, nullif(refilled_at, '-infinity'), spent, held FROM ledger.meters
					WHERE limit_id = $1 AND subject = $2`, c.Num, subject).Scan(&m.Level, &at, &m.Spent, &m.Held)
				if err != nil {
					continue // not made yet
				}
				if c.Kind == governance.KindRate && at != nil {
					// What is stored was written at the last change; carried to the same moment both must be the same.
					stored := meter.Meter{Rule: meters[i].Rule, State: meter.State{Level: m.Level, Refilled: at.UnixMicro()}}
					mine := meters[i]
					moment := time.UnixMicro(max(mine.Refilled, stored.Refilled))
					stored.Advance(moment)
					mine.Advance(moment)
					require.Equal(rt, mine.Level, stored.Level, "level of limit %d, %s per %s", c.Num, c.Metric, c.Per)
				}
				if c.Kind != governance.KindRate {
					require.Equal(rt, meters[i].Spent, m.Spent)
					require.Equal(rt, meters[i].Held, m.Held)
				}
			}
		}
	})
}

func settledAt(t *testing.T, db database, id ids.ID) time.Time {
	t.Helper()
	var at time.Time
	require.NoError(t, db.QueryRow(t.Context(), `
		SELECT settled_at FROM ledger.rows WHERE attempt_id = $1
		UNION ALL SELECT closed_at FROM ledger.reservations WHERE attempt_id = $1`, id).Scan(&at))
	return at
}

// TestWindowStart_EqualsMeter compares the windows of calendars across changes of the clocks.
func TestWindowStart_EqualsMeter(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	zones := []string{
		"UTC", "Europe/Paris", "America/New_York", "America/Sao_Paulo", "America/Havana", "Asia/Beirut", "Africa/Cairo",
		"Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu", "America/Asuncion", "Atlantic/Azores",
	}
	periods := []string{"day", "week", "month", "quarter", "year"}
	check := func(tb require.TestingT, zone, period string, at time.Time) {
		l := &governance.Limit{Window: governance.Window{Type: governance.WindowCalendar, Period: period, TimeZone: zone}}
		start, end, err := meter.Window(l, at)
		require.NoError(tb, err)
		var inSQL time.Time
		require.NoError(tb, db.QueryRow(t.Context(), "SELECT ledger.window_start('calendar', $1, $2, NULL, NULL, $3)", period, zone, at).Scan(&inSQL))
		require.True(tb, start.Equal(inSQL), "%s %s at %s: %s, in SQL %s", period, zone, at, start, inSQL)
		require.False(tb, at.Before(start), "%s %s at %s starts %s", period, zone, at, start)
		require.True(tb, at.Before(end), "%s %s at %s ends %s", period, zone, at, end)
		next, _, err := meter.Window(l, end)
		require.NoError(tb, err)
		require.True(tb, next.Equal(end), "windows follow each other without a gap: %s %s at %s", period, zone, at)
		var between int64
		require.NoError(tb, db.QueryRow(t.Context(), "SELECT ledger.windows_between('calendar', $1, $2, NULL, $3, $4)", period, zone, start, end).Scan(&between))
		require.Zero(tb, between)
		require.Zero(tb, meter.Between(l, start, end))
	}
	for _, zone := range zones {
		where, err := time.LoadLocation(zone)
		require.NoError(t, err)
		at := time.Date(2015, 1, 1, 0, 0, 0, 0, time.UTC)
		for range 12 { // around each change of the clocks
			_, change := at.In(where).ZoneBounds()
			if change.IsZero() {
				break
			}
			for _, off := range []time.Duration{-time.Hour - time.Second, -time.Second, 0, time.Second, time.Hour - time.Second, time.Hour, 25 * time.Hour} {
				check(t, zone, "day", change.Add(off))
			}
			at = change
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		check(rt, rapid.SampledFrom(zones).Draw(rt, "zone"), rapid.SampledFrom(periods).Draw(rt, "period"),
			time.Unix(rapid.Int64Range(1_000_000_000, 4_000_000_000).Draw(rt, "second"), 0).UTC())
	})
	rapid.Check(t, func(rt *rapid.T) {
		anchor := time.UnixMicro(rapid.Int64Range(1_600_000_000_000_000, 1_900_000_000_000_000).Draw(rt, "anchor")).UTC()
		at := time.UnixMicro(rapid.Int64Range(1_600_000_000_000_000, 1_900_000_000_000_000).Draw(rt, "at")).UTC()
		seconds := rapid.Int64Range(1, 10_000_000).Draw(rt, "seconds")
		l := &governance.Limit{Window: governance.Window{Type: governance.WindowFixed, Duration: time.Duration(seconds) * time.Second, Anchor: anchor}}
		start, _, err := meter.Window(l, at)
		require.NoError(rt, err)
		var inSQL time.Time
		require.NoError(rt, db.QueryRow(t.Context(), "SELECT ledger.window_start('fixed', NULL, NULL, $1, $2, $3)", seconds, anchor, at).Scan(&inSQL))
		require.True(rt, start.Equal(inSQL), fmt.Sprint(start, inSQL))
	})
}

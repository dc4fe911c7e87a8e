// Package storetest holds the conformance suites of the domain's stores. An implementation runs the suite in its own tests.
package storetest

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

// Ledger is an implementation of governance.Ledger and what the suite does behind its back.
type Ledger struct {
	governance.Ledger
	// Clock tells the time that attempts' ids are made from.
	Clock func() time.Time
	// Add makes a limit of scope key that counts exactly and enforces unless it says otherwise, and returns it with its
	// number, id and time of creation.
	Add func(tb testing.TB, l governance.Limit) *governance.Limit
	// Change makes the limit of the same number be what is given.
	Change func(tb testing.TB, l *governance.Limit)
	// Remove deletes a limit.
	Remove func(tb testing.TB, l *governance.Limit)
	// Rounds is how often the race for one place is run; 0: 20 times.
	Rounds int
}

// TestLedger checks the rules that every ledger keeps. open gives a fresh one, without a grace before expiry, whose end is
// the test's.
func TestLedger(t *testing.T, open func(tb testing.TB) Ledger) {
	for name, test := range map[string]func(*testing.T, Ledger){
		"A05_RefusalTakesNothing":          refusalTakesNothing,
		"A04_RaceForOnePlace":              raceForOnePlace,
		"A16_DebtAndRefund":                debtAndRefund,
		"ReasonsOfBudgets":                 reasonsOfBudgets,
		"ReasonsOfBuckets":                 reasonsOfBuckets,
		"WindowsCarryDebt":                 windowsCarryDebt,
		"Bases":                            bases,
		"Idempotent":                       idempotent,
		"LateSettleAdjustsOnce":            lateSettleAdjustsOnce,
		"LateReleaseGivesBack":             lateReleaseGivesBack,
		"ProvisionalIsResolved":            provisionalIsResolved,
		"ReleaseOvertakesReserve":          releaseOvertakesReserve,
		"CarriedToTheNextAttempt":          carriedToTheNextAttempt,
		"CarriedIsFreeIfRefused":           carriedIsFreeIfRefused,
		"ChangingAnAmountForgivesNothing":  changingForgivesNothing,
		"UnlimitedStillCounts":             unlimitedStillCounts,
		"LimitOutsideItsTimeTakesNothing":  outsideItsTime,
		"UnknownLimitIsStale":              unknownLimitIsStale,
		"ZeroAmountLooks":                  zeroAmountLooks,
		"IdsOfThePresentOnly":              idsOfThePresentOnly,
		"F001_FirstUseOfASubject":          f001FirstUse,
		"F007_HoldsOfCutStreams":           f007CutStreams,
		"F032_ParallelCallsOnABalance":     f032Balance,
		"F035_FailedJobsLeaveNoDrift":      f035NoDrift,
		"F038_RotatedKeyKeepsItsBudget":    f038Rotation,
		"F046_RequestsPerMinute":           f046RequestsPerMinute,
		"F047_TokensPerMinute":             f047TokensPerMinute,
		"F050_SlotsAreFreeAgain":           f050Slots,
		"F056_MissingUsageKeepsTheReserve": f056MissingUsage,
		"F058_OverrunIsDebt":               f058Overrun,
		"F064_SettledOnce":                 f064SettledOnce,
		"F068_LogMode":                     f068LogMode,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

func (l *Ledger) request(holds ...governance.Hold) governance.ReserveRequest {
	return governance.ReserveRequest{
		ID: ids.New(l.Clock()),
		Origin: governance.Origin{
			RequestID: ids.New(l.Clock()), Attempt: 1,
			Organization: governance.Ref{Num: 1, ID: "org_1", Name: "Org"},
			Key:          governance.Ref{Num: 1, ID: "key_1", Name: "Key"},
			Route:        "chat.completions", Model: "m", ModelNum: 1, Provider: "p", UpstreamModel: "u", TargetNum: 1,
		},
		Holds: holds, HardExpiry: time.Hour,
	}
}

// take reserves and wants to be admitted.
func (l *Ledger) take(tb testing.TB, holds ...governance.Hold) governance.Reservation {
	tb.Helper()
	r, err := l.Reserve(tb.Context(), l.request(holds...))
	require.NoError(tb, err)
	return r
}

// refused reserves and wants to be refused.
func (l *Ledger) refused(tb testing.TB, holds ...governance.Hold) []governance.Refusal {
	tb.Helper()
	_, err := l.Reserve(tb.Context(), l.request(holds...))
	var d *governance.Denial
	require.ErrorAs(tb, err, &d)
	require.NotEmpty(tb, d.Refusals)
	return d.Refusals
}

// look tells the state of one meter without changing it.
func (l *Ledger) look(tb testing.TB, limit *governance.Limit) governance.Level {
	tb.Helper()
	r := l.take(tb, hold(limit, 0))
	require.NoError(tb, l.Settle(tb.Context(), released(r.ID)))
	return r.Levels[0]
}

func hold(l *governance.Limit, amount int64) governance.Hold {
	return governance.Hold{Limit: l, Subject: 1, Amount: amount}
}

func bucketOf(m governance.Metric, amount int64) governance.Limit {
	// A day's refill is too slow to disturb a test.
	return governance.Limit{Kind: governance.KindRate, Metric: m, Amount: amount, Burst: amount, Per: 24 * time.Hour}
}

func purseOf(m governance.Metric, amount int64) governance.Limit {
	return governance.Limit{
		Kind: governance.KindBudget, Metric: m, Amount: amount, CarryDebt: true,
		Window: governance.Window{Type: governance.WindowTotal},
	}
}

func slots(amount int64) governance.Limit {
	return governance.Limit{Kind: governance.KindConcurrency, Metric: governance.MetricRequests, Amount: amount}
}

// reported settles to what the provider reported.
func reported(id ids.ID, tokens, cost int64) governance.Settlement {
	s := governance.Settlement{
		ID: id, Outcome: governance.OutcomeComplete, Source: governance.UsageProvider, Cost: money.Nano(cost),
		Requests: governance.BasisHold, Rate: governance.BasisActual, Budget: governance.BasisActual,
	}
	s.Quantities[governance.UnitInput] = tokens
	s.Quantities[governance.UnitRequest] = 1
	return s
}

// reserved settles to what was held.
func reserved(id ids.ID) governance.Settlement {
	return governance.Settlement{
		ID: id, Outcome: governance.OutcomeUpstreamTimeout, Source: governance.UsageReservation,
		Requests: governance.BasisHold, Rate: governance.BasisHold, Budget: governance.BasisHold,
	}
}

// nothing settles an upstream error: the request counts, nothing else does.
func nothing(id ids.ID) governance.Settlement {
	return governance.Settlement{
		ID: id, Outcome: governance.OutcomeUpstreamError, Source: governance.UsageZero,
		Requests: governance.BasisHold, Rate: governance.BasisZero, Budget: governance.BasisZero,
	}
}

func released(id ids.ID) governance.Settlement {
	s := nothing(id)
	s.Requests, s.Release = governance.BasisZero, true
	return s
}

func refusalTakesNothing(t *testing.T, l Ledger) {
	wide := l.Add(t, bucketOf(governance.MetricRequests, 100))
	purse := l.Add(t, purseOf(governance.MetricTokens, 100))
	narrow := l.Add(t, bucketOf(governance.MetricRequests, 1))
	l.take(t, hold(wide, 1), hold(purse, 1), hold(narrow, 1))
	for range 50 {
		r := l.refused(t, hold(wide, 1), hold(purse, 1), hold(narrow, 1))
		require.Len(t, r, 1)
		require.Same(t, narrow, r[0].Limit)
	}
	require.Equal(t, int64(99), l.look(t, wide).Remaining)
	require.Equal(t, int64(99), l.look(t, purse).Remaining)
}

func raceForOnePlace(t *testing.T, l Ledger) {
	rounds := l.Rounds
	if rounds == 0 {
		rounds = 20
	}
	shared := l.Add(t, bucketOf(governance.MetricRequests, 1_000))
	for range rounds {
		one := l.Add(t, purseOf(governance.MetricTokens, 10))
		var admitted, failed atomic.Int64
		var group sync.WaitGroup
		for range 64 {
			group.Go(func() {
				_, err := l.Reserve(t.Context(), l.request(hold(shared, 1), hold(one, 10)))
				var d *governance.Denial
				switch {
				case err == nil:
					admitted.Add(1)
				case !errors.As(err, &d):
					failed.Add(1)
				}
			})
		}
		group.Wait()
		require.Equal(t, int64(1), admitted.Load())
		require.Zero(t, failed.Load())
	}
	require.Equal(t, int64(1_000-rounds), l.look(t, shared).Remaining)
}

func debtAndRefund(t *testing.T, l Ledger) {
	owed := l.Add(t, governance.Limit{Kind: governance.KindRate, Metric: governance.MetricTokens, Amount: 1, Burst: 1, Per: time.Minute})
	r := l.take(t, hold(owed, 1))
	require.NoError(t, l.Settle(t.Context(), reported(r.ID, 6, 0)))
	state := l.look(t, owed)
	require.Equal(t, int64(5), state.Debt)
	require.Zero(t, state.Remaining)
	refusal := l.refused(t, hold(owed, 1))[0]
	require.Equal(t, governance.RefusedRate, refusal.Reason)
	require.GreaterOrEqual(t, refusal.RetryAfter, 290*time.Second)

	full := l.Add(t, bucketOf(governance.MetricTokens, 100))
	r = l.take(t, hold(full, 10))
	require.Equal(t, int64(90), r.Levels[0].Remaining)
	require.NoError(t, l.Settle(t.Context(), reported(r.ID, 0, 0)))
	require.Equal(t, int64(100), l.look(t, full).Remaining)
}

func reasonsOfBudgets(t *testing.T, l Ledger) {
	day := purseOf(governance.MetricTokens, 100)
	day.Window = governance.Window{Type: governance.WindowCalendar, Period: "day"}
	purse := l.Add(t, day)
	r := l.take(t, hold(purse, 60))
	require.Equal(t, int64(60), r.Levels[0].Held)
	require.False(t, r.Levels[0].ResetsAt.IsZero())

	f := l.refused(t, hold(purse, 50))[0]
	require.Equal(t, governance.RefusedBudgetHeld, f.Reason)
	require.True(t, f.RetryAfter >= time.Second && f.RetryAfter <= 5*time.Second)

	require.NoError(t, l.Settle(t.Context(), reported(r.ID, 60, 0)))
	f = l.refused(t, hold(purse, 50))[0]
	require.Equal(t, governance.RefusedReservationTooLarge, f.Reason)
	require.Equal(t, int64(40), f.Remaining)
	require.Positive(t, f.RetryAfter)
	require.Equal(t, governance.RefusedReservationTooLarge, l.refused(t, hold(purse, 500))[0].Reason)

	r = l.take(t, hold(purse, 40))
	require.NoError(t, l.Settle(t.Context(), reported(r.ID, 45, 0)))
	f = l.refused(t, hold(purse, 1))[0]
	require.Equal(t, governance.RefusedBudgetExceeded, f.Reason)
	require.Equal(t, int64(105), f.Spent)
	require.Equal(t, int64(5), f.Debt, "what the present window overspent is owed already")
	require.Zero(t, f.Remaining)
	require.False(t, f.Forever)
	require.Positive(t, f.RetryAfter)

	total := l.Add(t, purseOf(governance.MetricTokens, 0))
	f = l.refused(t, hold(total, 1))[0]
	require.Equal(t, governance.RefusedBudgetExceeded, f.Reason)
	require.True(t, f.Forever)
}

func reasonsOfBuckets(t *testing.T, l Ledger) {
	bucket := l.Add(t, bucketOf(governance.MetricTokens, 100))
	require.Equal(t, governance.RefusedExceedsLimit, l.refused(t, hold(bucket, 101))[0].Reason)
	none := l.Add(t, bucketOf(governance.MetricTokens, 0))
	f := l.refused(t, hold(none, 1))[0]
	require.Equal(t, governance.RefusedRate, f.Reason)
	require.True(t, f.Forever)
	l.take(t, hold(bucket, 100))
	f = l.refused(t, hold(bucket, 1))[0]
	require.Equal(t, governance.RefusedRate, f.Reason)
	require.InDelta(t, (24 * time.Hour / 100).Seconds(), f.RetryAfter.Seconds(), 30)
}

func windowsCarryDebt(t *testing.T, l Ledger) {
	fixed := purseOf(governance.MetricTokens, 10)
	fixed.Window = governance.Window{Type: governance.WindowFixed, Duration: time.Second}
	purse := l.Add(t, fixed)
	r := l.take(t, hold(purse, 10))
	first := r.Levels[0].ResetsAt
	require.NoError(t, l.Settle(t.Context(), reported(r.ID, 1_000_010, 0))) // owes far more than passes in this test
	var debt int64
	require.Eventually(t, func() bool {
		state := l.look(t, purse)
		debt = state.Debt
		return state.ResetsAt.After(first)
	}, 10*time.Second, 10*time.Millisecond)
	require.Positive(t, debt)
	require.LessOrEqual(t, debt, int64(1_000_000))
	require.Equal(t, int64(0), 1_000_000%10-debt%10, "each empty window repays one amount")
	require.Equal(t, governance.RefusedBudgetExceeded, l.refused(t, hold(purse, 1))[0].Reason)

	// What was admitted in a window that has ended settles there; what it overspends is owed by the present one.
	late := l.Add(t, fixed)
	r = l.take(t, hold(late, 5))
	first = r.Levels[0].ResetsAt
	require.Eventually(t, func() bool { return l.look(t, late).ResetsAt.After(first) }, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, l.Settle(t.Context(), reported(r.ID, 1_000_010, 0)))
	require.Positive(t, l.look(t, late).Debt)

	forgiving := fixed
	forgiving.CarryDebt = false
	free := l.Add(t, forgiving)
	r = l.take(t, hold(free, 10))
	first = r.Levels[0].ResetsAt
	require.NoError(t, l.Settle(t.Context(), reported(r.ID, 1_000, 0)))
	require.Eventually(t, func() bool { return l.look(t, free).ResetsAt.After(first) }, 10*time.Second, 10*time.Millisecond)
	require.Zero(t, l.look(t, free).Debt)
}

func bases(t *testing.T, l Ledger) {
	limits := []*governance.Limit{
		l.Add(t, bucketOf(governance.MetricRequests, 100)),
		l.Add(t, bucketOf(governance.MetricTokens, 9000)),
		l.Add(t, bucketOf(governance.MetricInputTokens, 9000)),
		l.Add(t, bucketOf(governance.MetricOutputTokens, 9000)),
		l.Add(t, purseOf(governance.MetricTokens, 9000)),
		l.Add(t, purseOf(governance.MetricInputTokens, 9000)),
		l.Add(t, purseOf(governance.MetricOutputTokens, 9000)),
		l.Add(t, purseOf(governance.MetricCost, 9000)),
		l.Add(t, slots(10)),
	}
	amounts := []int64{1, 100, 100, 100, 100, 100, 100, 100, 1}
	used := []int64{1, 30, 10, 20, 30, 10, 20, 7, 0}
	capacity := []int64{100, 9000, 9000, 9000, 9000, 9000, 9000, 9000, 10}
	basis := func(i int, s *governance.Settlement) governance.Basis {
		switch {
		case i == 0:
			return s.Requests
		case i <= 3:
			return s.Rate
		case i <= 7:
			return s.Budget
		default:
			return governance.BasisZero
		}
	}
	charged := make([]int64, len(limits))
	for requests := range governance.BasisZero + 1 {
		for buckets := range governance.BasisZero + 1 {
			for budgets := range governance.BasisZero + 1 {
				holds := make([]governance.Hold, len(limits))
				for i := range limits {
					holds[i] = hold(limits[i], amounts[i])
				}
				r := l.take(t, holds...)
				s := governance.Settlement{
					ID: r.ID, Outcome: governance.OutcomeComplete, Source: governance.UsageProvider, Cost: 7,
					Requests: requests, Rate: buckets, Budget: budgets,
				}
				s.Quantities[governance.UnitCacheRead] = 10
				s.Quantities[governance.UnitReasoning] = 20
				require.NoError(t, l.Settle(t.Context(), s))
				for i := range limits {
					switch basis(i, &s) {
					case governance.BasisActual:
						charged[i] += used[i]
					case governance.BasisHold:
						charged[i] += amounts[i]
					}
					require.Equal(t, capacity[i]-charged[i], l.look(t, limits[i]).Remaining, "limit %d, bases %d %d %d", i, requests, buckets, budgets)
				}
			}
		}
	}
}

func idempotent(t *testing.T, l Ledger) {
	purse := l.Add(t, purseOf(governance.MetricTokens, 100))
	q := l.request(hold(purse, 10))
	for range 3 {
		r, err := l.Reserve(t.Context(), q)
		require.NoError(t, err)
		require.Equal(t, int64(10), r.Levels[0].Held)
	}
	require.NoError(t, l.Settle(t.Context(), reported(q.ID, 5, 0)))
	require.ErrorIs(t, l.Settle(t.Context(), reported(q.ID, 50, 0)), governance.ErrAlreadyClosed)
	require.ErrorIs(t, l.Settle(t.Context(), released(q.ID)), governance.ErrAlreadyClosed)
	_, err := l.Reserve(t.Context(), q)
	require.ErrorIs(t, err, governance.ErrAlreadyClosed)
	state := l.look(t, purse)
	require.Equal(t, int64(5), state.Spent)
	require.Zero(t, state.Held)
	require.Error(t, l.Settle(t.Context(), reported(ids.New(l.Clock()), 1, 1)), "never admitted")
}

// expired reserves and lets the reservation expire.
func (l *Ledger) expired(t *testing.T, holds ...governance.Hold) ids.ID {
	t.Helper()
	q := l.request(holds...)
	q.HardExpiry = time.Millisecond
	q.Estimate.Cost = 9
	_, err := l.Reserve(t.Context(), q)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		closed, err := l.Expire(t.Context(), 100)
		require.NoError(t, err)
		return closed == 1
	}, 10*time.Second, 5*time.Millisecond)
	closed, err := l.Expire(t.Context(), 100)
	require.NoError(t, err)
	require.Zero(t, closed)
	return q.ID
}

func lateSettleAdjustsOnce(t *testing.T, l Ledger) {
	purse := l.Add(t, purseOf(governance.MetricTokens, 100))
	places := l.Add(t, slots(1))
	id := l.expired(t, hold(purse, 10), hold(places, 1))
	state := l.look(t, purse)
	require.Equal(t, int64(10), state.Spent, "booked as fully used")
	require.Zero(t, state.Held)
	require.Equal(t, int64(1), l.look(t, places).Remaining)
	require.NoError(t, l.Settle(t.Context(), reported(id, 4, 3)))
	require.Equal(t, int64(4), l.look(t, purse).Spent)
	require.ErrorIs(t, l.Settle(t.Context(), reported(id, 8, 3)), governance.ErrAlreadyClosed)
	require.Equal(t, int64(4), l.look(t, purse).Spent)
	require.Equal(t, int64(1), l.look(t, places).Remaining)
}

func lateReleaseGivesBack(t *testing.T, l Ledger) {
	purse := l.Add(t, purseOf(governance.MetricTokens, 100))
	id := l.expired(t, hold(purse, 10))
	require.NoError(t, l.Settle(t.Context(), released(id)))
	require.Zero(t, l.look(t, purse).Spent)
	require.ErrorIs(t, l.Settle(t.Context(), released(id)), governance.ErrAlreadyClosed)
}

func provisionalIsResolved(t *testing.T, l Ledger) {
	purse := l.Add(t, purseOf(governance.MetricTokens, 100))
	r := l.take(t, hold(purse, 10))
	require.NoError(t, l.Settle(t.Context(), reserved(r.ID)))
	require.ErrorIs(t, l.Settle(t.Context(), reserved(r.ID)), governance.ErrAlreadyClosed)
	require.Equal(t, int64(10), l.look(t, purse).Spent)
	require.NoError(t, l.Settle(t.Context(), reported(r.ID, 3, 0)))
	require.Equal(t, int64(3), l.look(t, purse).Spent)
	require.ErrorIs(t, l.Settle(t.Context(), reported(r.ID, 4, 0)), governance.ErrAlreadyClosed)
}

func releaseOvertakesReserve(t *testing.T, l Ledger) {
	purse := l.Add(t, purseOf(governance.MetricTokens, 100))
	q := l.request(hold(purse, 10))
	require.NoError(t, l.Settle(t.Context(), released(q.ID)))
	_, err := l.Reserve(t.Context(), q)
	require.ErrorIs(t, err, governance.ErrAlreadyClosed)
	require.Zero(t, l.look(t, purse).Held)
}

func carriedToTheNextAttempt(t *testing.T, l Ledger) {
	places := l.Add(t, slots(1))
	requests := l.Add(t, bucketOf(governance.MetricRequests, 10))
	target := l.Add(t, bucketOf(governance.MetricRequests, 10))
	purse := l.Add(t, purseOf(governance.MetricTokens, 100))
	q := l.request(hold(places, 1), hold(requests, 1), hold(target, 1), hold(purse, 20))
	_, err := l.Reserve(t.Context(), q)
	require.NoError(t, err)
	for attempt, closes := range []governance.Settlement{nothing(q.ID), released(q.ID), nothing(q.ID)} {
		closes.ID, closes.Carry = q.ID, true
		next := l.request(
			governance.Hold{Limit: places, Subject: 1, Amount: 1, Carried: true},
			governance.Hold{Limit: requests, Subject: 1, Amount: 1, Carried: true},
			hold(target, 1), hold(purse, 20))
		next.Origin.Attempt = attempt + 2
		next.Closes = &closes
		r, err := l.Reserve(t.Context(), next)
		require.NoError(t, err)
		require.Equal(t, int64(1), r.Levels[0].Held)
		require.Equal(t, int64(9), r.Levels[1].Remaining, "once for each call of a client, attempt %d", attempt+2)
		require.Equal(t, int64(20), r.Levels[3].Held)
		q = next
	}
	require.Equal(t, governance.RefusedConcurrency, l.refused(t, hold(places, 1))[0].Reason)
	require.NoError(t, l.Settle(t.Context(), reported(q.ID, 5, 0)))
	require.Equal(t, int64(1), l.look(t, places).Remaining)
	require.Equal(t, int64(9), l.look(t, requests).Remaining)
	require.Equal(t, int64(7), l.look(t, target).Remaining, "each attempt that was sent")
	require.Equal(t, int64(5), l.look(t, purse).Spent)
}

func carriedIsFreeIfRefused(t *testing.T, l Ledger) {
	places := l.Add(t, slots(1))
	empty := l.Add(t, purseOf(governance.MetricTokens, 0))
	first := l.take(t, hold(places, 1))
	closes := nothing(first.ID)
	closes.Carry = true
	next := l.request(governance.Hold{Limit: places, Subject: 1, Amount: 1, Carried: true}, hold(empty, 1))
	next.Closes = &closes
	_, err := l.Reserve(t.Context(), next)
	var d *governance.Denial
	require.ErrorAs(t, err, &d)
	require.Equal(t, int64(1), l.look(t, places).Remaining)
	require.ErrorIs(t, l.Settle(t.Context(), nothing(first.ID)), governance.ErrAlreadyClosed)
}

func changingForgivesNothing(t *testing.T, l Ledger) {
	bucket := l.Add(t, bucketOf(governance.MetricTokens, 100))
	purse := l.Add(t, purseOf(governance.MetricTokens, 100))
	r := l.take(t, hold(bucket, 10), hold(purse, 10))
	require.NoError(t, l.Settle(t.Context(), reported(r.ID, 150, 0)))
	require.Equal(t, int64(50), l.look(t, bucket).Debt)

	changed := *bucket
	changed.Amount, changed.Burst = 1000, 1000
	l.Change(t, &changed)
	require.InDelta(t, 50, l.look(t, &changed).Debt, 1)
	changed.Amount, changed.Burst = 10, 10
	l.Change(t, &changed)
	require.InDelta(t, 50, l.look(t, &changed).Debt, 1)

	raised := *purse
	raised.Amount = 160
	l.Change(t, &raised)
	require.Equal(t, int64(10), l.look(t, purse).Remaining, "in force at the next admission, whatever the caller knows")
	raised.Amount = 20
	l.Change(t, &raised)
	require.Zero(t, l.look(t, &raised).Remaining)
	require.Equal(t, int64(150), l.look(t, &raised).Spent)
}

func unlimitedStillCounts(t *testing.T, l Ledger) {
	free := purseOf(governance.MetricTokens, 0)
	free.Unlimited = true
	purse := l.Add(t, free)
	bucket := governance.Limit{Kind: governance.KindRate, Metric: governance.MetricRequests, Per: time.Minute, Unlimited: true}
	endless := l.Add(t, bucket)
	r := l.take(t, hold(purse, 1000), hold(endless, 1))
	require.True(t, r.Levels[0].Unlimited)
	require.True(t, r.Levels[1].Unlimited)
	require.NoError(t, l.Settle(t.Context(), reported(r.ID, 900, 0)))
	require.Equal(t, int64(900), l.look(t, purse).Spent)
}

func outsideItsTime(t *testing.T, l Ledger) {
	over := purseOf(governance.MetricTokens, 10)
	over.ExpiresAt = l.Clock().Add(-time.Second)
	early := purseOf(governance.MetricTokens, 10)
	early.StartsAt = l.Clock().Add(time.Hour)
	past, future := l.Add(t, over), l.Add(t, early)
	live := l.Add(t, purseOf(governance.MetricTokens, 100))
	r := l.take(t, hold(past, 50), hold(future, 50), hold(live, 50))
	require.NoError(t, l.Settle(t.Context(), reported(r.ID, 50, 0)))
	for _, ended := range []*governance.Limit{past, future} {
		now := *ended
		now.StartsAt, now.ExpiresAt = time.Time{}, time.Time{}
		l.Change(t, &now)
		require.Zero(t, l.look(t, &now).Spent)
	}
	require.Equal(t, int64(50), l.look(t, live).Spent)
}

func unknownLimitIsStale(t *testing.T, l Ledger) {
	live := l.Add(t, purseOf(governance.MetricTokens, 100))
	gone := l.Add(t, purseOf(governance.MetricTokens, 100))
	held := l.take(t, hold(gone, 10))
	l.Remove(t, gone)
	_, err := l.Reserve(t.Context(), l.request(hold(live, 10), hold(gone, 10)))
	require.ErrorIs(t, err, governance.ErrStaleChain)
	require.Zero(t, l.look(t, live).Held)
	unknown := *live
	unknown.Num = 1 << 40
	_, err = l.Reserve(t.Context(), l.request(hold(live, 10), hold(&unknown, 10)))
	require.ErrorIs(t, err, governance.ErrStaleChain)
	require.NoError(t, l.Settle(t.Context(), reported(held.ID, 5, 0)), "open holds still settle")

	soft := *live
	soft.Enforcement = governance.EnforceAdvisory
	l.Change(t, &soft)
	_, err = l.Reserve(t.Context(), l.request(hold(live, 101)))
	var d *governance.Denial
	require.ErrorAs(t, err, &d, "decided exactly, whatever its enforcement")
	l.take(t, hold(live, 100))
}

func zeroAmountLooks(t *testing.T, l Ledger) {
	bucket := l.Add(t, bucketOf(governance.MetricTokens, 10))
	r := l.take(t, hold(bucket, 10))
	require.NoError(t, l.Settle(t.Context(), reported(r.ID, 30, 0)))
	r = l.take(t, hold(bucket, 0))
	require.Equal(t, int64(20), r.Levels[0].Debt, "a zero amount makes no leg, and even a meter in debt does not refuse it")
}

func idsOfThePresentOnly(t *testing.T, l Ledger) {
	for _, off := range []time.Duration{2 * time.Minute, -2 * time.Hour} {
		q := l.request()
		q.ID = ids.New(l.Clock().Add(off))
		_, err := l.Reserve(t.Context(), q)
		require.Error(t, err)
	}
	l.take(t)
}

func f001FirstUse(t *testing.T, l Ledger) {
	tiny := l.Add(t, purseOf(governance.MetricCost, 1000))
	var admitted atomic.Int64
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			q := l.request(governance.Hold{Limit: tiny, Subject: 77, Amount: 1001})
			if _, err := l.Reserve(t.Context(), q); err == nil {
				admitted.Add(1)
			}
		})
	}
	group.Wait()
	require.Zero(t, admitted.Load())
}

func f007CutStreams(t *testing.T, l Ledger) {
	purse := l.Add(t, purseOf(governance.MetricCost, 10_000))
	for range 50 {
		r := l.take(t, hold(purse, 1_000))
		s := reported(r.ID, 1, 10)
		s.Outcome, s.Source = governance.OutcomeClientLeft, governance.UsageEstimate
		require.NoError(t, l.Settle(t.Context(), s))
	}
	state := l.look(t, purse)
	require.Zero(t, state.Held)
	require.Equal(t, int64(500), state.Spent)
}

func f032Balance(t *testing.T, l Ledger) {
	purse := l.Add(t, purseOf(governance.MetricCost, 350))
	var admitted atomic.Int64
	var group sync.WaitGroup
	for range 100 {
		group.Go(func() {
			if _, err := l.Reserve(t.Context(), l.request(hold(purse, 100))); err == nil {
				admitted.Add(1)
			}
		})
	}
	group.Wait()
	require.Equal(t, int64(3), admitted.Load())
}

func f035NoDrift(t *testing.T, l Ledger) {
	purse := l.Add(t, purseOf(governance.MetricCost, 1000))
	for i := range 10 {
		r := l.take(t, hold(purse, 100))
		require.Equal(t, int64(1000), r.Levels[0].Remaining+r.Levels[0].Spent+r.Levels[0].Held)
		s := nothing(r.ID)
		if i%2 == 0 {
			s = released(r.ID)
		}
		require.NoError(t, l.Settle(t.Context(), s))
		require.Equal(t, int64(1000), l.look(t, purse).Remaining)
	}
}

func f038Rotation(t *testing.T, l Ledger) {
	purse := l.Add(t, purseOf(governance.MetricCost, 100))
	r := l.take(t, hold(purse, 100))
	require.NoError(t, l.Settle(t.Context(), reported(r.ID, 1, 100)))
	q := l.request(hold(purse, 1))
	q.Origin.Key.ID, q.Origin.Key.Name = "key_rotated", "Renamed" // the number stays
	_, err := l.Reserve(t.Context(), q)
	var d *governance.Denial
	require.ErrorAs(t, err, &d)
}

func f046RequestsPerMinute(t *testing.T, l Ledger) {
	five := l.Add(t, governance.Limit{Kind: governance.KindRate, Metric: governance.MetricRequests, Amount: 5, Burst: 5, Per: time.Minute})
	var admitted atomic.Int64
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			if _, err := l.Reserve(t.Context(), l.request(hold(five, 1))); err == nil {
				admitted.Add(1)
			}
		})
	}
	group.Wait()
	require.Equal(t, int64(5), admitted.Load())
}

func f047TokensPerMinute(t *testing.T, l Ledger) {
	tokens := l.Add(t, governance.Limit{Kind: governance.KindRate, Metric: governance.MetricTokens, Amount: 16, Burst: 16, Per: time.Minute})
	for range 2 {
		r := l.take(t, hold(tokens, 8))
		require.NoError(t, l.Settle(t.Context(), reported(r.ID, 8, 0)))
	}
	require.Equal(t, governance.RefusedRate, l.refused(t, hold(tokens, 8))[0].Reason)
}

func f050Slots(t *testing.T, l Ledger) {
	one := l.Add(t, slots(1))
	for _, end := range []func(ids.ID) governance.Settlement{nothing, released, reserved, func(id ids.ID) governance.Settlement { return reported(id, 1, 1) }} {
		r := l.take(t, hold(one, 1))
		f := l.refused(t, hold(one, 1))[0]
		require.Equal(t, governance.RefusedConcurrency, f.Reason)
		require.Equal(t, time.Second, f.RetryAfter)
		require.NoError(t, l.Settle(t.Context(), end(r.ID)))
	}
	l.expired(t, hold(one, 1))
	l.take(t, hold(one, 1))
}

func f056MissingUsage(t *testing.T, l Ledger) {
	tokens := l.Add(t, bucketOf(governance.MetricTokens, 100))
	r := l.take(t, hold(tokens, 30))
	s := reported(r.ID, 0, 0)
	s.Source, s.Rate = governance.UsageEstimate, governance.BasisHold
	require.NoError(t, l.Settle(t.Context(), s))
	require.Equal(t, int64(70), l.look(t, tokens).Remaining)
}

func f058Overrun(t *testing.T, l Ledger) {
	tokens := l.Add(t, governance.Limit{Kind: governance.KindRate, Metric: governance.MetricTokens, Amount: 1000, Burst: 1000, Per: time.Hour})
	r := l.take(t, hold(tokens, 1000))
	require.NoError(t, l.Settle(t.Context(), reported(r.ID, 1200, 0)))
	require.Equal(t, int64(200), l.look(t, tokens).Debt)
	require.Equal(t, governance.RefusedRate, l.refused(t, hold(tokens, 1))[0].Reason)
}

func f064SettledOnce(t *testing.T, l Ledger) {
	purse := l.Add(t, purseOf(governance.MetricTokens, 1000))
	r := l.take(t, hold(purse, 100))
	var done, repeated atomic.Int64
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			switch err := l.Settle(t.Context(), reported(r.ID, 40, 0)); {
			case err == nil:
				done.Add(1)
			case errors.Is(err, governance.ErrAlreadyClosed):
				repeated.Add(1)
			}
		})
	}
	group.Wait()
	require.Equal(t, int64(1), done.Load())
	require.Equal(t, int64(15), repeated.Load())
	require.Equal(t, int64(40), l.look(t, purse).Spent)
}

func f068LogMode(t *testing.T, l Ledger) {
	trial := bucketOf(governance.MetricRequests, 5)
	trial.Mode = governance.ModeLog
	bucket := l.Add(t, trial)
	watched := purseOf(governance.MetricTokens, 5)
	watched.Mode = governance.ModeLog
	purse := l.Add(t, watched)
	place := slots(2)
	place.Mode = governance.ModeLog
	places := l.Add(t, place)
	var buckets, purses, seats int
	for range 20 {
		r := l.take(t, hold(bucket, 1), hold(purse, 1), hold(places, 1))
		for i, n := range []*int{&buckets, &purses, &seats} {
			if r.Levels[i].WouldRefuse {
				*n++
			}
		}
	}
	require.Equal(t, []int{15, 15, 18}, []int{buckets, purses, seats})
	require.Zero(t, l.look(t, bucket).Debt, "what it would have refused is not charged to a bucket")
	require.Equal(t, int64(20), l.look(t, purse).Held, "a budget counts every row")

	now := *bucket
	now.Mode = governance.ModeEnforce
	l.Change(t, &now)
	require.Equal(t, governance.RefusedRate, l.refused(t, hold(bucket, 1))[0].Reason)
}

// Package meter is the arithmetic of limits: buckets that refill, windows that count, and slots that are held. It does no
// I/O and reads no clock. The functions of the ledger's schema must give the same answers, and tests hold them to it.
package meter

import (
	"math"
	"math/bits"
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
)

const (
	// MaxLevel bounds what a bucket can hold, and minus MaxLevel what it can owe, in units × ticks.
	MaxLevel = 1 << 62
	// MaxAmount bounds one leg, in the metric's unit.
	MaxAmount = governance.MaxAmount
	// maxAhead is how far a stored instant may lie ahead of the clock before it is taken for the trace of a clock that was
	// set back (ruling 15).
	maxAhead = 5 * time.Minute
)

// Rule is what decides about a meter: the members of its limit that may change, as the store knows them, and those that
// say what its numbers mean.
type Rule struct {
	Kind      governance.Kind
	Metric    governance.Metric
	Per       time.Duration // rate only
	Unlimited bool
	Amount    int64
	Burst     int64 // rate only
	Log       bool  // counts, and refuses nothing
}

// RuleOf returns the rule of a limit.
func RuleOf(l *governance.Limit) Rule {
	return Rule{
		Kind: l.Kind, Metric: l.Metric, Per: l.Per,
		Unlimited: l.Unlimited, Amount: l.Amount, Burst: l.Burst, Log: l.Mode == governance.ModeLog,
	}
}

// Tick is the resolution of a bucket's clock: 1 µs, and 1 ms where amounts of money or long periods would pass 63 bits.
// It depends on members of the limit's identity alone, so that changing amount or burst never changes what a stored level
// means.
func (r *Rule) Tick() time.Duration {
	if r.Metric == governance.MetricCost || r.Per >= time.Hour {
		return time.Millisecond
	}
	return time.Microsecond
}

// Ticks is the number of ticks in the period: what one unit is worth in a bucket's level.
func (r *Rule) Ticks() int64 { return int64(r.Per / r.Tick()) }

// Fits reports whether the numbers of the rule fit the arithmetic. A limit that does not is refused when it is made.
func (r *Rule) Fits() bool {
	if r.Unlimited {
		return true
	}
	if r.Kind != governance.KindRate {
		return r.Amount >= 0 && r.Amount <= MaxLevel
	}
	return r.Amount >= 0 && r.Burst >= 0 && r.Burst < MaxLevel/r.Ticks() && r.Amount < MaxLevel/r.Ticks()
}

// capacity of a bucket in units × ticks.
func (r *Rule) capacity() int64 { return r.Burst * r.Ticks() }

// Never is the refill instant of a bucket that was never used: it is full.
const Never = math.MinInt64

// State is the counted state of one limit for one subject. What is used of it follows from the rule's kind.
type State struct {
	Level    int64 // rate: what the bucket holds, in units × ticks, as of Refilled; below zero it is debt
	Refilled int64 // rate: microseconds since 1970, a whole tick; or Never
	Spent    int64 // budget: settled use
	Held     int64 // budget and concurrency: what open reservations have taken
	Carried  int64 // budget: what earlier windows overspent
}

// Meter is a state and the rule that decides about it.
type Meter struct {
	Rule
	State
}

// counts reports whether takes change the meter: a bucket without a capacity has nothing to count.
func (m *Meter) counts() bool { return m.Kind != governance.KindRate || !m.Unlimited }

// Advance refills a bucket up to now. Elapsed time is never negative and the stored instant never moves back, unless it
// lies so far ahead that the clock must have been set back; reset then tells so.
func (m *Meter) Advance(now time.Time) (reset bool) {
	if !m.counts() || m.Kind != governance.KindRate {
		return false
	}
	full := m.capacity()
	tick := m.Tick().Microseconds()
	at := now.UnixMicro()
	at -= at % tick
	switch {
	case m.Refilled == Never:
		m.Level, m.Refilled = full, at
		return false
	case m.Refilled > at+maxAhead.Microseconds():
		m.Refilled, reset = at, true
	}
	if elapsed := (at - m.Refilled) / tick; elapsed > 0 {
		if missing := full - m.Level; missing > 0 && m.Amount > 0 {
			if elapsed > (missing-1)/m.Amount {
				m.Level = full
			} else {
				m.Level += m.Amount * elapsed
			}
		}
		m.Refilled = at
	}
	m.Level = min(m.Level, full) // the capacity may have been lowered
	return reset
}

// Room reports whether the meter has room for amount, whatever its mode.
func (m *Meter) Room(amount int64) bool {
	if m.Unlimited {
		return true
	}
	switch m.Kind {
	case governance.KindRate:
		return m.scaled(amount) <= m.Level
	case governance.KindBudget:
		return amount <= m.Amount-m.Carried-m.Spent-m.Held
	default:
		return amount <= m.Amount-m.Held
	}
}

// Take takes amount, with or without room.
func (m *Meter) Take(amount int64) {
	switch {
	case !m.counts():
	case m.Kind == governance.KindRate:
		m.add(-m.scaled(amount))
	default:
		m.Held += amount
	}
}

// Settle replaces what an attempt has reserved by what it used.
func (m *Meter) Settle(reserved, actual int64) {
	switch {
	case !m.counts():
	case m.Kind == governance.KindRate && actual > reserved:
		m.add(-m.scaled(actual - reserved))
	case m.Kind == governance.KindRate:
		m.add(m.scaled(reserved - actual))
	case m.Kind == governance.KindBudget:
		m.Held -= reserved
		m.Spent += actual
	default:
		m.Held -= reserved
	}
}

// Excess is what a window has overspent; the next one begins with it.
func (m *Meter) Excess() int64 {
	if m.Unlimited {
		return 0
	}
	return max(0, m.Carried+m.Spent-m.Amount)
}

// CarriedInto is what a window that begins after this one owes, with empty windows between them, each of which repays one
// amount.
func (m *Meter) CarriedInto(empty int64) int64 {
	excess := m.Excess()
	if excess == 0 || m.Amount > 0 && empty >= (excess-1)/m.Amount+1 {
		return 0
	}
	return excess - empty*m.Amount
}

// add changes a level within its bounds.
func (m *Meter) add(delta int64) {
	level := m.Level + delta // both within ± 2^62
	m.Level = max(min(level, m.capacity()), -MaxLevel)
}

// scaled is amount ≥ 0 in units × ticks, at most MaxLevel.
func (m *Meter) scaled(amount int64) int64 {
	hi, lo := bits.Mul64(uint64(max(amount, 0)), uint64(m.Ticks())) // neither is negative
	if hi != 0 || lo > MaxLevel {
		return MaxLevel
	}
	return int64(lo)
}

// Actual is what a leg settles to, by the bases of the settlement.
func Actual(kind governance.Kind, metric governance.Metric, reserved int64, s *governance.Settlement) int64 {
	basis := s.Rate
	switch {
	case kind == governance.KindConcurrency || s.Release:
		return 0
	case kind == governance.KindBudget:
		basis = s.Budget
	case metric == governance.MetricRequests:
		if basis = s.Requests; basis == governance.BasisActual {
			basis = governance.BasisHold // a request is one request
		}
	}
	switch basis {
	case governance.BasisHold:
		return reserved
	case governance.BasisZero:
		return 0
	}
	return Used(metric, &s.Quantities, int64(s.Cost))
}

// Used is how much of a metric quantities and a cost amount to.
func Used(metric governance.Metric, q *governance.Quantities, cost int64) int64 {
	switch metric {
	case governance.MetricTokens:
		return q.Tokens()
	case governance.MetricInputTokens:
		return q.InputTokens()
	case governance.MetricOutputTokens:
		return q.OutputTokens()
	case governance.MetricCost:
		return cost
	default:
		return q[governance.UnitRequest]
	}
}

package meter

import (
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
)

// Want is what an attempt asks of one meter.
type Want struct {
	Meter  int // index into the meters
	Amount int64
	// Carried takes without asking for room: an earlier attempt of the same client request has just given it back.
	Carried bool
}

// Taken says what became of a want.
type Taken uint8

// What can become of a want.
const (
	TookNothing  Taken = iota // refused, or a bucket that has no capacity to count against
	Took                      // taken
	WouldRefuse               // log mode: not taken, since enforcement would have refused
	TookInExcess              // log mode of a budget: taken although enforcement would have refused
)

// Leg reports whether the reservation has a leg of it.
func (t Taken) Leg() bool { return t == Took || t == TookInExcess }

// Refused reports whether enforcement would have refused it.
func (t Taken) Refused() bool { return t == WouldRefuse || t == TookInExcess }

// Admit decides one attempt: it takes every want or none. No two wants may be of one meter. Where it admits, taken, which
// is as long as wants, says what became of each.
func Admit(meters []Meter, wants []Want, taken []Taken) bool {
	for i := range wants {
		if w := &wants[i]; !w.Carried && !meters[w.Meter].Log && !meters[w.Meter].Room(w.Amount) {
			return false
		}
	}
	for i := range wants {
		w := &wants[i]
		m := &meters[w.Meter]
		short := m.Log && !w.Carried && !m.Room(w.Amount)
		switch {
		case !m.counts():
			taken[i] = TookNothing
			continue
		case short && m.Kind != governance.KindBudget:
			taken[i] = WouldRefuse // so that what it says equals what enforcement would give (ruling 23)
			continue
		case short:
			taken[i] = TookInExcess // a budget counts every row
		default:
			taken[i] = Took
		}
		m.Take(w.Amount)
	}
	return true
}

const (
	heldRetry = 2 * time.Second // budget_held: when an open hold may have been settled (ruling 24: 1 to 5 s)
	slotRetry = time.Second     // concurrency (ruling 25)
)

// Refuse explains why m has no room for amount; windowEnd is zero for all but calendar and fixed budgets.
func (m *Meter) Refuse(amount int64, now, windowEnd time.Time) (reason governance.RefusalReason, retry time.Duration, forever bool) {
	switch m.Kind {
	case governance.KindRate:
		switch {
		case m.Amount == 0:
			return governance.RefusedRate, 0, true
		case amount > m.Burst:
			return governance.RefusedExceedsLimit, 0, true
		}
		return governance.RefusedRate, m.refillTime(m.scaled(amount) - m.Level), false
	case governance.KindConcurrency:
		if m.Amount == 0 {
			return governance.RefusedConcurrency, 0, true
		}
		return governance.RefusedConcurrency, slotRetry, false
	}
	gone := m.Carried + m.Spent
	if gone+amount <= m.Amount {
		return governance.RefusedBudgetHeld, heldRetry, false
	}
	reason = governance.RefusedBudgetExceeded
	if gone < m.Amount {
		reason = governance.RefusedReservationTooLarge
	}
	switch {
	case windowEnd.IsZero() || amount > m.Amount:
		return reason, 0, true
	case m.Excess()+amount <= m.Amount:
		return reason, windowEnd.Sub(now), false
	default:
		return reason, 0, false // debt reaches beyond the next window
	}
}

// refillTime is how long a bucket takes to gain missing units × ticks; 0 where it never does.
func (m *Meter) refillTime(missing int64) time.Duration {
	if missing <= 0 || m.Amount == 0 {
		return 0
	}
	ticks := (missing-1)/m.Amount + 1
	if ticks > int64(1<<62/m.Tick()) {
		return 0
	}
	return time.Duration(ticks) * m.Tick()
}

// Describe returns the meter's present state in the terms of users. For budgets debt is what earlier windows overspent, or
// all that the next window would begin with, if that is more: wherever any remains, remaining = amount − spent − held − debt.
func (m *Meter) Describe(l *governance.Limit, subject int64, now, windowEnd time.Time) governance.Level {
	d := governance.Level{Limit: l, Subject: subject, Amount: m.Amount, Unlimited: m.Unlimited}
	switch m.Kind {
	case governance.KindRate:
		if m.Unlimited {
			return d
		}
		d.Amount = m.Burst
		if m.Level < 0 {
			d.Debt = (-m.Level-1)/m.Ticks() + 1
		} else {
			d.Remaining = m.Level / m.Ticks()
		}
		d.ResetsAfter = m.refillTime(m.capacity() - m.Level)
		return d
	case governance.KindBudget:
		d.Spent, d.Debt = m.Spent, max(m.Carried, m.Excess())
		if !windowEnd.IsZero() {
			d.ResetsAt, d.ResetsAfter = windowEnd, windowEnd.Sub(now)
		}
	}
	d.Held = m.Held
	if !m.Unlimited {
		d.Remaining = max(0, m.Amount-m.Carried-m.Spent-m.Held)
	}
	return d
}

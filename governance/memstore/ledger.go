// Package memstore keeps meters in the memory of one process, for demonstrations: N replicas admit N times what a limit
// says, and a restart forgets. The arithmetic is that of governance/meter. Rows of spend still go to the ledger that stands
// behind it (ruling 28).
package memstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/meter"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// Options are what a Ledger needs.
type Options struct {
	// Rows keeps the attempts, without any hold, and their rows. Nil: nothing is kept.
	Rows governance.Ledger
	// Limits returns a limit as it is now, or nil where there is none any more.
	Limits func(num int64) *governance.Limit
	// Clock tells the time; nil: time.Now.
	Clock func() time.Time
}

// Ledger implements governance.Ledger in memory.
type Ledger struct {
	rows   governance.Ledger
	limits func(int64) *governance.Limit
	clock  func() time.Time

	mu       sync.Mutex
	meters   map[meterKey]*meter.State
	latest   map[subjectKey]time.Time // start of the newest window of each budget
	attempts map[ids.ID]*attempt
}

var _ governance.Ledger = (*Ledger)(nil)

type subjectKey struct{ limit, subject int64 }

type meterKey struct {
	subjectKey
	window int64 // start in microseconds since 1970; 0: there are no windows
}

// attempt is what is known of one attempt. It is remembered for a day.
type attempt struct {
	state   state
	legs    []leg
	expires time.Time
}

type state uint8

const (
	open state = iota
	ended
	provisional // expired, or settled to what was held
)

type leg struct {
	meterKey
	kind   governance.Kind
	metric governance.Metric
	amount int64 // held while open, then what was charged
}

const (
	remembered = 24 * time.Hour
	maxAhead   = time.Minute
	maxBehind  = time.Hour
)

var errInvalidTime = errors.New("attempt id is not of the present time")

// New makes a Ledger.
func New(o Options) *Ledger {
	l := &Ledger{
		rows: o.Rows, limits: o.Limits, clock: o.Clock,
		meters: make(map[meterKey]*meter.State), latest: make(map[subjectKey]time.Time), attempts: make(map[ids.ID]*attempt),
	}
	if l.clock == nil {
		l.clock = time.Now
	}
	return l
}

// Reserve takes every hold of r or none.
func (l *Ledger) Reserve(ctx context.Context, r governance.ReserveRequest) (governance.Reservation, error) {
	got, fresh, err := l.reserve(&r)
	if err != nil {
		if r.Closes != nil && l.rows != nil {
			if cerr := l.rows.Settle(ctx, *r.Closes); cerr != nil && !errors.Is(cerr, governance.ErrAlreadyClosed) {
				err = errors.Join(err, cerr)
			}
		}
		return governance.Reservation{}, err
	}
	if l.rows == nil {
		return got, nil
	}
	bare := r
	bare.Holds = nil
	kept, err := l.rows.Reserve(ctx, bare)
	if err != nil {
		if fresh {
			_ = l.settle(&governance.Settlement{ID: r.ID, Release: true}) // gives back what was just taken: it cannot be closed yet
		}
		return governance.Reservation{}, fmt.Errorf("keep attempt: %w", err)
	}
	got.ConfigVersion = kept.ConfigVersion
	return got, nil
}

// reserve decides in memory. fresh: the attempt was not open before.
func (l *Ledger) reserve(r *governance.ReserveRequest) (got governance.Reservation, fresh bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock().Truncate(time.Microsecond).UTC()
	returned := false
	var before []leg
	if r.Closes != nil {
		if a := l.attempts[r.Closes.ID]; a != nil {
			before = a.legs
		}
		returned = l.settleLocked(r.Closes, now) == nil
	}
	if at := ids.Time(r.ID); at.After(now.Add(maxAhead)) || at.Before(now.Add(-maxBehind)) {
		return got, false, fmt.Errorf("reserve attempt %s: %w", r.ID, errInvalidTime)
	}
	known, repeat := l.attempts[r.ID]
	if repeat && known.state != open {
		return got, false, fmt.Errorf("reserve attempt %s: %w", r.ID, governance.ErrAlreadyClosed)
	}
	meters := make([]meter.Meter, len(r.Holds))
	keys := make([]meterKey, len(r.Holds))
	ends := make([]time.Time, len(r.Holds))
	wants := make([]meter.Want, len(r.Holds))
	taken := make([]meter.Taken, len(r.Holds))
	for i := range r.Holds {
		h := &r.Holds[i]
		limit := l.limits(h.Limit.Num)
		if limit == nil {
			return got, false, fmt.Errorf("reserve attempt %s: %w", r.ID, governance.ErrStaleChain)
		}
		meters[i], keys[i], ends[i] = l.meter(limit, h.Subject, now)
		if !inForce(limit, now) {
			meters[i].Unlimited = true
		}
		wants[i] = meter.Want{Meter: i, Amount: h.Amount, Carried: h.Carried && returned}
		if h.Carried && h.Limit.Kind == governance.KindRate && !(returnsRequest(r.Closes) && has(before, keys[i])) {
			wants[i].Amount = 0 // an earlier attempt keeps the request
		}
		if wants[i].Amount == 0 {
			wants[i].Carried = true
		}
	}
	if !repeat {
		if !meter.Admit(meters, wants, taken) {
			return got, false, denial(r, meters, wants, now, ends)
		}
		a := &attempt{expires: now.Add(r.HardExpiry)}
		for i := range r.Holds {
			h := &r.Holds[i]
			if !inForce(l.limits(h.Limit.Num), now) {
				continue
			}
			*l.meters[keys[i]] = meters[i].State
			if taken[i].Leg() && wants[i].Amount > 0 {
				a.legs = append(a.legs, leg{keys[i], h.Limit.Kind, h.Limit.Metric, wants[i].Amount})
			}
		}
		l.attempts[r.ID] = a
	}
	got = governance.Reservation{ID: r.ID, AdmittedAt: now, Levels: make([]governance.Level, len(r.Holds))}
	for i := range r.Holds {
		got.Levels[i] = meters[i].Describe(r.Holds[i].Limit, r.Holds[i].Subject, now, ends[i])
		got.Levels[i].WouldRefuse = taken[i].Refused()
	}
	return got, !repeat, nil
}

func denial(r *governance.ReserveRequest, meters []meter.Meter, wants []meter.Want, now time.Time, ends []time.Time) *governance.Denial {
	d := &governance.Denial{}
	for i := range wants {
		m := &meters[i]
		if wants[i].Carried || m.Log || m.Room(wants[i].Amount) {
			continue
		}
		f := governance.Refusal{Level: m.Describe(r.Holds[i].Limit, r.Holds[i].Subject, now, ends[i]), Wanted: wants[i].Amount}
		f.Reason, f.RetryAfter, f.Forever = m.Refuse(wants[i].Amount, now, ends[i])
		d.Refusals = append(d.Refusals, f)
	}
	return d
}

// inForce reports whether a limit applies at now.
func inForce(l *governance.Limit, now time.Time) bool {
	return (l.StartsAt.IsZero() || !l.StartsAt.After(now)) && (l.ExpiresAt.IsZero() || l.ExpiresAt.After(now))
}

func has(legs []leg, k meterKey) bool {
	for i := range legs {
		if legs[i].meterKey == k {
			return true
		}
	}
	return false
}

// returnsRequest reports whether a settlement gives the request of its attempt back, if it took one.
func returnsRequest(s *governance.Settlement) bool {
	return s != nil && (s.Release || s.Requests == governance.BasisZero)
}

// meter returns a copy of a limit's present meter, refilled up to now; a new window begins with what its predecessor
// overspent.
func (l *Ledger) meter(limit *governance.Limit, subject int64, now time.Time) (meter.Meter, meterKey, time.Time) {
	k := meterKey{subjectKey: subjectKey{limit.Num, subject}}
	var start, end time.Time
	if limit.Kind == governance.KindBudget {
		start, end, _ = meter.Window(limit, now) // in an unknown zone all is one window
		if !start.IsZero() {
			k.window = start.UnixMicro()
		}
	}
	s, ok := l.meters[k]
	if !ok {
		s = &meter.State{Refilled: meter.Never}
		if before, had := l.latest[k.subjectKey]; had && limit.CarryDebt && !start.IsZero() {
			previous := meter.Meter{Rule: meter.RuleOf(limit), State: *l.meters[meterKey{k.subjectKey, before.UnixMicro()}]}
			s.Carried = previous.CarriedInto(meter.Between(limit, before, start))
		}
		if !start.IsZero() {
			l.latest[k.subjectKey] = start
		}
		l.meters[k] = s
	}
	m := meter.Meter{Rule: meter.RuleOf(limit), State: *s}
	m.Advance(now)
	return m, k, end
}

// Settle replaces what an attempt held by what it used.
func (l *Ledger) Settle(ctx context.Context, s governance.Settlement) error {
	err := l.settle(&s)
	if l.rows != nil {
		err = l.rows.Settle(ctx, s)
	}
	if err != nil {
		return fmt.Errorf("settle attempt %s: %w", s.ID, err)
	}
	return nil
}

func (l *Ledger) settle(s *governance.Settlement) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.settleLocked(s, l.clock().Truncate(time.Microsecond).UTC())
}

func (l *Ledger) settleLocked(s *governance.Settlement, now time.Time) error {
	a, ok := l.attempts[s.ID]
	switch {
	case !ok && s.Release: // it has overtaken its reserve, which must not open any more
		l.attempts[s.ID] = &attempt{state: ended, expires: now}
		return nil
	case !ok:
		return governance.ErrNotFound
	case a.state == ended, a.state == provisional && s.Source == governance.UsageReservation && !s.Release:
		return governance.ErrAlreadyClosed
	}
	for i := range a.legs {
		g := &a.legs[i]
		held := g.amount
		if a.state == provisional {
			held = 0
		}
		actual := meter.Actual(g.kind, g.metric, g.amount, s)
		l.charge(g, held, actual, now)
		g.amount = actual
	}
	wasOpen := a.state == open
	a.state, a.expires = ended, now
	if wasOpen && s.Source == governance.UsageReservation && !s.Release {
		a.state = provisional
	}
	return nil
}

// charge settles one leg: held is what it holds still, and its amount what it was charged last.
func (l *Ledger) charge(g *leg, held, actual int64, now time.Time) {
	s := l.meters[g.meterKey]
	limit := l.limits(g.limit)
	if limit == nil {
		limit = &governance.Limit{Kind: g.kind, Metric: g.metric, Unlimited: true}
	}
	m := meter.Meter{Rule: meter.RuleOf(limit), State: *s}
	m.Advance(now)
	before := m.Excess()
	switch {
	case g.kind == governance.KindRate:
		m.Settle(g.amount, actual)
	case held == 0:
		m.Settle(0, actual-g.amount)
	default:
		m.Settle(held, actual)
	}
	*s = m.State
	if growth := m.Excess() - before; g.window != 0 && growth != 0 && limit.CarryDebt {
		present := l.latest[g.subjectKey]
		if start, _, _ := meter.Window(limit, now); present.UnixMicro() != g.window && start.Equal(present) {
			next := l.meters[meterKey{g.subjectKey, present.UnixMicro()}]
			next.Carried = max(0, next.Carried+growth)
		}
	}
}

// Expire closes up to limit reservations whose hard expiry has passed, as fully used, and forgets attempts after a day. In
// memory no process can die and leave anything.
func (l *Ledger) Expire(ctx context.Context, limit int) (int, error) {
	closed := l.expire(limit)
	if l.rows == nil {
		return closed, nil
	}
	n, err := l.rows.Expire(ctx, limit)
	if err != nil {
		return n, fmt.Errorf("expire attempts: %w", err)
	}
	return n, nil
}

func (l *Ledger) expire(limit int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock().Truncate(time.Microsecond).UTC()
	closed := 0
	for id, a := range l.attempts {
		switch {
		case a.state != open && now.Sub(a.expires) > remembered:
			delete(l.attempts, id)
		case a.state == open && a.expires.Before(now) && closed < limit:
			for i := range a.legs {
				g := &a.legs[i]
				actual := g.amount
				if g.kind == governance.KindConcurrency {
					actual = 0
				}
				l.charge(g, g.amount, actual, now)
				g.amount = actual
			}
			a.state, a.expires = provisional, now
			closed++
		}
	}
	return closed
}

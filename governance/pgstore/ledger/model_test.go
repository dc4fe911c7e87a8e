package ledger_test

import (
	"bytes"
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/meter"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// book is what the ledger must be: governance/meter and a list of attempts, on which requests act one after the other.
// What it holds is never changed in place, so that a copy of its maps is a copy of it.
type book struct {
	now      time.Time
	limits   map[int64]*governance.Limit // as they are now
	deleted  map[int64]bool
	dead     map[string]bool // processes
	meters   map[place]meter.State
	attempts map[ids.ID]attempt
}

// place is where a meter is kept; window is its start in microseconds since 1970, or never.
type place struct {
	limit, subject, window int64
}

const never = meter.Never

// attempt is what the book knows of one attempt.
type attempt struct {
	state   attemptState
	owner   string // process
	lapsed  bool   // its row was written by expiry
	expires time.Time
	legs    []leg
	// wants are remembered by the lane that admitted it, until it has settled it.
	wants map[place]int64
}

type attemptState uint8

const (
	unheardOf   attemptState = iota
	open                     // it holds its legs
	released                 // it left no row
	booked                   // it has a row that stands
	provisional              // it has a row that a later settlement adjusts
	adjusted                 // it has that row and an adjustment
)

// leg is what an attempt has taken of one meter: what it reserved while it is open, and then what it was charged.
type leg struct {
	place
	amount int64
}

func newBook(now time.Time, limits []*governance.Limit) *book {
	b := &book{
		now: now, limits: make(map[int64]*governance.Limit), deleted: make(map[int64]bool), dead: make(map[string]bool),
		meters: make(map[place]meter.State), attempts: make(map[ids.ID]attempt),
	}
	for _, l := range limits {
		b.limits[l.Num] = l
	}
	return b
}

func (b *book) clone() *book {
	return &book{
		now: b.now, limits: maps.Clone(b.limits), deleted: maps.Clone(b.deleted), dead: maps.Clone(b.dead),
		meters: maps.Clone(b.meters), attempts: maps.Clone(b.attempts),
	}
}

// verdict is an answer of the ledger without its details.
type verdict string

const (
	fine          verdict = "fine"
	denied        verdict = "denied"
	alreadyClosed verdict = "already closed"
	staleChain    verdict = "stale chain"
	notFound      verdict = "not found"
	wrongTime     verdict = "id of another time"
)

// verdictOf sorts an answer of the ledger.
func verdictOf(err error) verdict {
	var d *governance.Denial
	switch {
	case err == nil:
		return fine
	case errors.As(err, &d):
		return denied
	case errors.Is(err, governance.ErrAlreadyClosed):
		return alreadyClosed
	case errors.Is(err, governance.ErrStaleChain):
		return staleChain
	case errors.Is(err, governance.ErrNotFound):
		return notFound
	case strings.Contains(err.Error(), "not of the present time"):
		return wrongTime
	default:
		return verdict(err.Error())
	}
}

// window returns the start and end of the present window of a limit; never and zero where it has none.
func (b *book) window(l *governance.Limit) (start int64, end time.Time) {
	if l.Kind != governance.KindBudget || l.Window.Type == governance.WindowTotal {
		return never, time.Time{}
	}
	from, to, err := meter.Window(l, b.now)
	if err != nil {
		panic(err) // the test has made the zone up
	}
	return from.UnixMicro(), to
}

func (b *book) inForce(l *governance.Limit) bool {
	return (l.StartsAt.IsZero() || !l.StartsAt.After(b.now)) && (l.ExpiresAt.IsZero() || l.ExpiresAt.After(b.now))
}

// at returns a meter under the present rule of its limit, refilled up to now.
func (b *book) at(p place) meter.Meter {
	m := meter.Meter{Rule: meter.RuleOf(b.limits[p.limit]), State: b.meters[p]}
	m.Advance(b.now)
	return m
}

// make makes the meters that requests miss. A new window owes what the one before it overspent.
func (b *book) make(requests ...*governance.ReserveRequest) {
	for _, r := range requests {
		for i := range r.Holds {
			l, known := b.limits[r.Holds[i].Limit.Num]
			if !known {
				continue
			}
			start, _ := b.window(l)
			p := place{l.Num, r.Holds[i].Subject, start}
			if _, made := b.meters[p]; made {
				continue
			}
			s := meter.State{Refilled: meter.Never}
			if before := b.newest(p); before != nil && l.CarryDebt {
				m := b.at(*before)
				s.Carried = m.CarriedInto(meter.Between(l, time.UnixMicro(before.window), time.UnixMicro(start)))
			}
			b.meters[p] = s
		}
	}
}

// newest returns the last window before p that has a meter.
func (b *book) newest(p place) *place {
	var found *place
	for q := range b.meters {
		if q.limit == p.limit && q.subject == p.subject && q.window < p.window && (found == nil || q.window > found.window) {
			found = &q
		}
	}
	return found
}

// settle settles together: what all of them give back and take is summed up before a meter changes.
func (b *book) settle(lane string, settlements ...*governance.Settlement) []verdict {
	type change struct{ held, spent, back int64 }
	changes := make(map[place]change)
	verdicts := make([]verdict, len(settlements))
	for i, s := range settlements {
		a := b.attempts[s.ID]
		if a.owner == lane {
			a.wants = nil
			if a.state != unheardOf {
				b.attempts[s.ID] = a
			}
		}
		verdicts[i] = fine
		switch {
		case a.state == unheardOf && s.Release:
			b.attempts[s.ID] = attempt{state: released}
			continue
		case a.state == unheardOf:
			verdicts[i] = notFound
			continue
		case a.state == open, a.state == provisional && s.Source != governance.UsageReservation, a.state == provisional && a.lapsed:
		default:
			verdicts[i] = alreadyClosed
			continue
		}
		legs := slices.Clone(a.legs)
		for j, g := range a.legs {
			rule := meter.RuleOf(b.limits[g.limit])
			actual := meter.Actual(rule.Kind, rule.Metric, g.amount, s)
			c := changes[g.place]
			switch {
			case rule.Kind == governance.KindRate:
				c.back += g.amount - actual
			case a.state == open:
				c.held += g.amount
				if rule.Kind == governance.KindBudget {
					c.spent += actual
				}
			case rule.Kind == governance.KindBudget:
				c.spent += actual - g.amount
			}
			changes[g.place] = c
			legs[j].amount = actual
		}
		a.legs = legs
		switch {
		case a.state == provisional:
			a.state = adjusted
		case s.Release:
			a.state = released
		case s.Source == governance.UsageReservation:
			a.state = provisional
		default:
			a.state = booked
		}
		b.attempts[s.ID] = a
	}
	for p, c := range changes {
		m := b.at(p)
		before := m.Excess()
		switch m.Kind {
		case governance.KindRate:
			if c.back == 0 {
				continue
			}
			m.Settle(max(c.back, 0), max(-c.back, 0))
		default:
			m.Held -= c.held
			m.Spent += c.spent
		}
		b.meters[p] = m.State
		b.owe(p, m.Excess()-before)
	}
	return verdicts
}

// owe makes the windows after one that has ended owe what it overspends: the newest that was made, from which those to come
// take over.
func (b *book) owe(p place, growth int64) {
	newest := b.newest(place{p.limit, p.subject, math.MaxInt64})
	if p.window == never || newest.window <= p.window || !b.limits[p.limit].CarryDebt {
		return
	}
	s := b.meters[*newest]
	s.Carried = max(0, s.Carried+growth)
	b.meters[*newest] = s
}

// expirable lists the attempts that expiry would close, in the order in which it would.
func (b *book) expirable() []ids.ID {
	var gone []ids.ID
	for id, a := range b.attempts {
		if a.state == open && (a.expires.Before(b.now) || b.dead[a.owner]) {
			gone = append(gone, id)
		}
	}
	slices.SortFunc(gone, func(x, y ids.ID) int { return bytes.Compare(x[:], y[:]) })
	return gone
}

// expire closes attempts as fully used.
func (b *book) expire(gone ...ids.ID) {
	var all []*governance.Settlement
	for _, id := range gone {
		all = append(all, &governance.Settlement{
			ID: id, Source: governance.UsageReservation,
			Requests: governance.BasisHold, Rate: governance.BasisHold, Budget: governance.BasisHold,
		})
	}
	b.settle("", all...)
	for _, id := range gone {
		a := b.attempts[id]
		a.lapsed = true // even "what was held" is news then
		b.attempts[id] = a
	}
}

// reserved is an answer to Reserve.
type reserved struct {
	verdict verdict
	// repeat: the attempt has a reservation. Nothing is taken a second time, but if there is no room for it, or a limit is
	// gone, the ledger may say that instead.
	repeat   bool
	levels   []governance.Level
	refusals []governance.Refusal
}

// reserve decides together, as one batch does: settlements, then admissions, those first that close an attempt. lane
// is the process that all of them come through.
func (b *book) reserve(lane string, settlements []*governance.Settlement, requests []*governance.ReserveRequest) ([]verdict, []reserved) {
	before := make([]map[place]int64, len(requests))
	closed := make([]bool, len(requests))
	all := slices.Clone(settlements)
	closing := make([]int, len(requests))
	for i, r := range requests {
		closing[i] = -1
		if r.Closes == nil {
			continue
		}
		if a := b.attempts[r.Closes.ID]; a.owner == lane {
			before[i] = a.wants
		}
		closed[i] = b.attempts[r.Closes.ID].state == open
		closing[i] = len(all)
		all = append(all, r.Closes)
	}
	b.make(requests...)
	verdicts := b.settle(lane, all...)
	order := make([]int, len(requests))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int {
		return boolean(requests[x].Closes == nil) - boolean(requests[y].Closes == nil)
	})
	answers := make([]reserved, len(requests))
	for _, i := range order {
		answers[i] = b.admit(lane, requests[i], before[i], closed[i])
	}
	return verdicts[:len(settlements)], answers
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

// agrees reports whether an answer may be given where want is expected.
func (want *reserved) agrees(got verdict) bool {
	return got == want.verdict || want.repeat && (got == denied || got == staleChain)
}

// admit decides one admission. before are the wants of the attempt that it has closed, if closed is true.
func (b *book) admit(lane string, r *governance.ReserveRequest, before map[place]int64, closed bool) reserved {
	at := ids.Time(r.ID)
	if at.Before(b.now.Add(-time.Hour).Truncate(time.Millisecond)) || !at.Before(b.now.Add(time.Minute).Truncate(time.Millisecond)) {
		return reserved{verdict: wrongTime}
	}
	known := b.attempts[r.ID]
	if known.state != unheardOf && known.state != open {
		return reserved{verdict: alreadyClosed, repeat: known.state == released}
	}
	meters := make([]meter.Meter, len(r.Holds))
	places := make([]place, len(r.Holds))
	ends := make([]time.Time, len(r.Holds))
	wants := make([]meter.Want, len(r.Holds))
	taken := make([]meter.Taken, len(r.Holds))
	a := attempt{state: open, owner: lane, expires: b.now.Add(r.HardExpiry), wants: make(map[place]int64)}
	for i := range r.Holds {
		h := &r.Holds[i]
		l, live := b.limits[h.Limit.Num]
		if (!live || b.deleted[h.Limit.Num]) && known.state != open {
			return reserved{verdict: staleChain}
		}
		start, end := b.window(l)
		places[i], ends[i] = place{l.Num, h.Subject, start}, end
		meters[i] = b.at(places[i])
		if !b.inForce(l) {
			meters[i].Unlimited = true
		}
		// What is carried from an attempt that was closed before needs room, if anything does.
		wants[i] = meter.Want{Meter: i, Amount: h.Amount, Carried: h.Carried && (closed || l.Mode == governance.ModeLog)}
		key := place{l.Num, h.Subject, 0}
		if h.Carried && l.Kind == governance.KindRate && !(returnsRequest(r.Closes) && before[key] > 0) {
			wants[i].Amount = 0 // an earlier attempt keeps the request
		}
		if wants[i].Amount == 0 {
			wants[i].Carried = true
		}
		a.wants[key] = wants[i].Amount
	}
	if known.state != open {
		if !meter.Admit(meters, wants, taken) {
			return reserved{verdict: denied, refusals: b.refusals(r, meters, wants, ends)}
		}
		for i := range wants {
			if !b.inForce(b.limits[places[i].limit]) {
				continue
			}
			if taken[i].Leg() && wants[i].Amount > 0 {
				b.meters[places[i]] = meters[i].State
			}
			if taken[i].Leg() {
				a.legs = append(a.legs, leg{places[i], wants[i].Amount})
			}
		}
		b.attempts[r.ID] = a
	}
	got := reserved{verdict: fine, repeat: known.state == open, levels: make([]governance.Level, len(r.Holds))}
	for i := range r.Holds {
		got.levels[i] = meters[i].Describe(r.Holds[i].Limit, r.Holds[i].Subject, b.now, ends[i])
		got.levels[i].WouldRefuse = taken[i].Refused()
	}
	return got
}

func (b *book) refusals(r *governance.ReserveRequest, meters []meter.Meter, wants []meter.Want, ends []time.Time) []governance.Refusal {
	var all []governance.Refusal
	for i := range wants {
		m := &meters[i]
		if wants[i].Carried || m.Log || m.Room(wants[i].Amount) {
			continue
		}
		f := governance.Refusal{Level: m.Describe(r.Holds[i].Limit, r.Holds[i].Subject, b.now, ends[i]), Wanted: wants[i].Amount}
		f.Reason, f.RetryAfter, f.Forever = m.Refuse(wants[i].Amount, b.now, ends[i])
		all = append(all, f)
	}
	return all
}

func returnsRequest(s *governance.Settlement) bool {
	return s != nil && (s.Release || s.Requests == governance.BasisZero)
}

// change gives a limit other members. Its buckets are first brought up to date at the old rate, where time has passed.
func (b *book) change(l *governance.Limit) {
	if old := b.limits[l.Num]; l.Kind == governance.KindRate && (old.Amount != l.Amount || old.Burst != l.Burst) {
		for p, s := range b.meters {
			if m := b.at(p); p.limit == l.Num && s.Refilled != meter.Never && s.Refilled < m.Refilled {
				b.meters[p] = m.State
			}
		}
	}
	b.limits[l.Num] = l
}

// check compares all that the database holds with the book.
func (b *book) check(tb require.TestingT, t *testing.T, db database) {
	limits := slices.Sorted(maps.Keys(b.limits))
	rows, err := db.Query(t.Context(), `SELECT limit_id, subject, window_start = '-infinity', nullif(window_start, '-infinity'), level,
		nullif(refilled_at, '-infinity'), spent, held, carried FROM ledger.meters WHERE limit_id = ANY ($1)`, limits)
	require.NoError(tb, err)
	got := make(map[place]meter.State)
	for rows.Next() {
		var p place
		var s meter.State
		var whole bool
		var start, refilled *time.Time
		require.NoError(tb, rows.Scan(&p.limit, &p.subject, &whole, &start, &s.Level, &refilled, &s.Spent, &s.Held, &s.Carried))
		p.window, s.Refilled = never, meter.Never
		if !whole {
			p.window = start.UnixMicro()
		}
		if refilled != nil {
			s.Refilled = refilled.UnixMicro()
		}
		got[p] = s
	}
	require.NoError(tb, rows.Err())
	want := make(map[place]meter.State)
	for p, s := range b.meters { // what was only looked at may be written at any later moment: compare it as it is now
		want[p] = b.at(p).State
		if found, ok := got[p]; ok {
			m := meter.Meter{Rule: meter.RuleOf(b.limits[p.limit]), State: found}
			m.Advance(b.now)
			got[p] = m.State
			if s.Refilled == meter.Never && b.limits[p.limit].Kind != governance.KindRate {
				got[p] = meter.State{Refilled: meter.Never, Spent: found.Spent, Held: found.Held, Carried: found.Carried}
			}
		}
	}
	require.Equal(tb, want, got, "meters at %s", b.now)
}

// checkAttempts compares reservations and rows with the book.
func (b *book) checkAttempts(tb require.TestingT, t *testing.T, db database) {
	for id, a := range b.attempts {
		var isOpen, isReleased, isBooked, isAdjusted bool
		err := db.QueryRow(t.Context(), `SELECT
			EXISTS (SELECT FROM ledger.reservations WHERE attempt_id = $1 AND state = 'open'),
			EXISTS (SELECT FROM ledger.reservations WHERE attempt_id = $1 AND state = 'released'),
			EXISTS (SELECT FROM ledger.rows WHERE attempt_id = $1 AND kind IN ('usage', 'expiry')),
			EXISTS (SELECT FROM ledger.rows WHERE attempt_id = $1 AND kind = 'late_adjustment')`, id).
			Scan(&isOpen, &isReleased, &isBooked, &isAdjusted)
		require.NoError(tb, err)
		require.Equal(tb, a.state == open, isOpen, "attempt %s is open", id)
		require.Equal(tb, a.state == released, isReleased, "attempt %s was released", id)
		require.Equal(tb, a.state >= booked, isBooked, "attempt %s has a row", id)
		require.Equal(tb, a.state == adjusted, isAdjusted, "attempt %s was adjusted", id)
	}
}

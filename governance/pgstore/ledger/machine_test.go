package ledger_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/pgstore/ledger"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

// machine drives ledgers and a book with the same requests.
type machine struct {
	t        *testing.T
	db       database
	setClock func(time.Time)
	gate     *gate
	lanes    map[string]*ledger.Ledger

	// Of one case.
	rt       *rapid.T
	book     *book
	limits   []*governance.Limit
	requests []governance.ReserveRequest // that were made, whatever became of them
	// void: the machine was so busy that the ledger gave up waiting, or said something twice. That is for other tests.
	void        bool
	connections int64 // that were made so far
}

// gate stops a lane between two batches.
type gate struct {
	mu      sync.Mutex
	reached chan struct{} // nil: the gate is open
	open    chan struct{}
}

func (g *gate) pass() {
	g.mu.Lock()
	reached, open := g.reached, g.open
	g.reached, g.open = nil, nil
	g.mu.Unlock()
	if reached != nil {
		close(reached)
		<-open
	}
}

// shut stops the lane after its next batch: reached is closed then, and open lets it go on.
func (g *gate) shut() (reached <-chan struct{}, open func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reached, g.open = make(chan struct{}), make(chan struct{})
	release := g.open
	return g.reached, func() { close(release) }
}

var allMetrics = []governance.Metric{
	governance.MetricTokens, governance.MetricInputTokens, governance.MetricOutputTokens, governance.MetricCost, governance.MetricRequests,
}

// instants are shortly before something happens to the calendar.
var instants = []string{
	"2027-03-28T00:59:58Z", "2027-10-31T00:59:58Z", "2028-02-28T23:59:58Z", "2028-02-29T23:59:58Z", "2027-12-31T23:59:58Z",
	"2028-11-05T03:59:58Z", "2027-04-04T13:59:58Z", "2027-09-05T03:59:58Z", "2029-09-30T17:14:58Z",
}

// begin makes fresh limits at some instant.
func (m *machine) begin(rt *rapid.T) {
	m.rt = rt
	at, err := time.Parse(time.RFC3339, rapid.SampledFrom(instants).Draw(rt, "instant"))
	require.NoError(rt, err)
	at = at.Add(time.Duration(rapid.Int64Range(0, 999_999).Draw(rt, "microseconds")) * time.Microsecond)
	m.limits, m.requests, m.void, m.connections = nil, nil, false, m.db.Stat().NewConnsCount()
	for range rapid.IntRange(1, 5).Draw(rt, "limits") {
		l := m.db.limit(m.t, m.drawLimit(at))
		rt.Logf("limit %d: %s of %s, %d (%d) per %s, %s, unlimited %t, carries %t, %+v", l.Num, l.Kind, l.Metric, l.Amount, l.Burst, l.Per, l.Mode, l.Unlimited, l.CarryDebt, l.Window)
		m.limits = append(m.limits, l)
	}
	m.book = newBook(at, m.limits)
	m.setClock(at)
	m.db.exec(m.t, "DELETE FROM ledger.reservations")
	m.db.exec(m.t, "UPDATE ledger.state SET low_water = '00000000-0000-0000-0000-000000000000'")
	m.db.exec(m.t, "UPDATE ledger.processes SET stopped_at = NULL")
}

func (m *machine) drawLimit(at time.Time) governance.Limit {
	rt := m.rt
	l := governance.Limit{
		Kind: rapid.SampledFrom([]governance.Kind{governance.KindRate, governance.KindRate, governance.KindBudget, governance.KindBudget, governance.KindConcurrency}).Draw(rt, "kind"),
		Mode: rapid.SampledFrom([]governance.Mode{governance.ModeEnforce, governance.ModeEnforce, governance.ModeLog}).Draw(rt, "mode"),
	}
	switch l.Kind {
	case governance.KindRate:
		l.Metric = rapid.SampledFrom(allMetrics).Draw(rt, "metric")
		l.Per = rapid.SampledFrom([]time.Duration{time.Second, time.Minute, time.Hour, 24 * time.Hour}).Draw(rt, "per")
		l.Amount = rapid.Int64Range(0, 40).Draw(rt, "amount")
		l.Burst = rapid.Int64Range(1, 40).Draw(rt, "burst")
	case governance.KindBudget:
		l.Metric = rapid.SampledFrom(allMetrics[:4]).Draw(rt, "metric")
		l.Amount = rapid.Int64Range(0, 80).Draw(rt, "amount")
		if l.Unlimited = rapid.IntRange(0, 9).Draw(rt, "unlimited") == 0; l.Unlimited {
			l.Amount = 0
		}
		l.CarryDebt = rapid.Bool().Draw(rt, "carries")
		l.Window.Type = rapid.SampledFrom([]governance.WindowType{governance.WindowTotal, governance.WindowFixed, governance.WindowCalendar}).Draw(rt, "window")
		l.Window.Duration = time.Duration(rapid.Int64Range(1, 5).Draw(rt, "seconds")) * time.Second
		l.Window.Anchor = at.Add(time.Duration(rapid.Int64Range(-10_000_000, 10_000_000).Draw(rt, "anchor")) * time.Microsecond)
		l.Window.Period = rapid.SampledFrom([]string{"day", "week", "month", "quarter", "year"}).Draw(rt, "period")
		l.Window.TimeZone = rapid.SampledFrom([]string{"", "Europe/Paris", "America/Havana", "Australia/Lord_Howe", "Asia/Kathmandu", "America/Santiago"}).Draw(rt, "zone")
	default:
		l.Metric, l.Amount = governance.MetricRequests, rapid.Int64Range(0, 3).Draw(rt, "slots")
	}
	return l
}

// slow is how long a call may take before a time-out may have made the ledger say something twice; brief is the same for
// waits of locks.
const (
	slow  = 2 * time.Second
	brief = 90 * time.Millisecond
)

// voids reports whether a call that began so long ago says nothing about the ledger: it took so long that something may have
// been repeated, or a connection was lost and made again meanwhile.
func (m *machine) voids(begun time.Time, err error) bool {
	connections := m.db.Stat().NewConnsCount()
	m.void = m.void || time.Since(begun) > brief || busy(begun, err) || connections != m.connections
	m.connections = connections
	return m.void
}

func busy(begun time.Time, err error) bool {
	return time.Since(begun) > slow || errors.Is(err, governance.ErrOverloaded) || errors.Is(err, governance.ErrLimitStoreUnavailable)
}

// step does one operation, and compares.
func (m *machine) step() {
	switch rapid.IntRange(0, 15).Draw(m.rt, "step") {
	case 0, 1:
		m.passTime()
	case 2:
		m.changeLimit()
	case 3:
		m.expire()
	case 4:
		m.die()
	case 5, 6:
		m.burst()
	case 7, 8, 9:
		m.settle()
	case 10:
		m.repeat()
	case 11, 12:
		m.next()
	default:
		m.reserve(m.lane(), m.request())
	}
	if !m.void {
		m.book.check(m.rt, m.t, m.db)
	}
}

// limit draws a limit as it is now.
func (m *machine) limit() *governance.Limit {
	return m.book.limits[m.limits[rapid.IntRange(0, len(m.limits)-1).Draw(m.rt, "limit")].Num]
}

func (m *machine) lane() string {
	return rapid.SampledFrom([]string{"first", "second"}).Draw(m.rt, "lane")
}

// passTime moves the clock on, or to the edge of a window.
func (m *machine) passTime() {
	to := m.book.now.Add(time.Duration(rapid.Int64Range(0, rapid.SampledFrom([]int64{10, 10_000, 3_000_000, 100_000_000, 4_000_000_000, 40 * 86400_000_000}).Draw(m.rt, "scale")).Draw(m.rt, "microseconds")) * time.Microsecond)
	if rapid.Bool().Draw(m.rt, "to an edge") {
		if _, end := m.book.window(m.limit()); !end.IsZero() {
			to = end.Add(time.Duration(rapid.Int64Range(-1, 1).Draw(m.rt, "beside")) * time.Microsecond)
		}
	}
	if to.Before(m.book.now) {
		return
	}
	m.book.now = to
	m.setClock(to)
}

// changeLimit changes what may change.
func (m *machine) changeLimit() {
	l := *m.limit()
	switch rapid.IntRange(0, 9).Draw(m.rt, "member") {
	case 0:
		l.Mode = rapid.SampledFrom([]governance.Mode{governance.ModeEnforce, governance.ModeLog}).Draw(m.rt, "mode")
	case 1:
		l.ExpiresAt = time.Time{}
		if rapid.Bool().Draw(m.rt, "expires") {
			l.ExpiresAt = m.book.now.Add(time.Duration(rapid.Int64Range(-1_000_000, 1_000_000).Draw(m.rt, "expiry")) * time.Microsecond)
		}
	case 2:
		l.StartsAt = time.Time{}
		if rapid.Bool().Draw(m.rt, "starts") {
			l.StartsAt = m.book.now.Add(time.Duration(rapid.Int64Range(-1_000_000, 1_000_000).Draw(m.rt, "start")) * time.Microsecond)
		}
	case 3:
		if l.Kind != governance.KindRate {
			l.Unlimited, l.Amount = !l.Unlimited, 0
		}
	case 4:
		if rapid.IntRange(0, 4).Draw(m.rt, "deletes") == 0 {
			m.db.exec(m.t, "UPDATE tollgate.limits SET deleted_at = clock_timestamp() WHERE id = $1", l.Num)
			m.book.deleted[l.Num] = true
		}
	default:
		if l.Unlimited {
			return
		}
		l.Amount = rapid.Int64Range(0, 80).Draw(m.rt, "amount")
		if l.Kind == governance.KindRate {
			l.Burst = rapid.Int64Range(0, 80).Draw(m.rt, "burst")
		}
	}
	m.rt.Logf("%s: limit %d becomes %d (%d), %s", m.book.now, l.Num, l.Amount, l.Burst, l.Mode)
	m.db.change(m.t, &l)
	m.book.change(&l)
}

// expire sweeps.
func (m *machine) expire() {
	m.db.exec(m.t, "UPDATE ledger.processes SET beat_at = ledger.stopped_clock()") // who is dead has stopped
	most := rapid.IntRange(1, 10).Draw(m.rt, "at most")
	gone := m.book.expirable()
	gone = gone[:min(most, len(gone))]
	m.rt.Logf("%s: expire %d: %v", m.book.now, most, gone)
	m.book.expire(gone...)
	lane, begun := m.lanes[m.lane()], time.Now()
	closed, err := lane.Expire(m.t.Context(), most)
	if m.voids(begun, err) {
		return
	}
	require.NoError(m.rt, err)
	require.Equal(m.rt, len(gone), closed, "expired")
}

// die ends the second process; what it still says is late.
func (m *machine) die() {
	if rapid.IntRange(0, 2).Draw(m.rt, "dies") > 0 {
		return
	}
	m.book.dead["second"] = true
	m.db.exec(m.t, "UPDATE ledger.processes SET stopped_at = ledger.stopped_clock() WHERE id = $1", m.lanes["second"].Stats().Process)
}

// request asks for something new.
func (m *machine) request() *governance.ReserveRequest {
	at := m.book.now
	if rapid.IntRange(0, 30).Draw(m.rt, "time") == 0 {
		at = at.Add(rapid.SampledFrom([]time.Duration{-time.Hour - time.Millisecond, -time.Hour, time.Minute - time.Millisecond, time.Minute}).Draw(m.rt, "off"))
	}
	r := request(m.lanes["first"])
	r.ID = ids.New(at)
	r.HardExpiry = time.Duration(rapid.Int64Range(0, 20_000).Draw(m.rt, "expiry")) * time.Millisecond
	for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(0, len(m.limits)-1), 0, len(m.limits), rapid.ID).Draw(m.rt, "holds") {
		l := m.limits[n]
		most := int64(30)
		if l.Metric == governance.MetricRequests {
			most = 1
		}
		amount := rapid.Int64Range(0, most).Draw(m.rt, "amount")
		r.Holds = append(r.Holds, hold(l, rapid.Int64Range(1, 2).Draw(m.rt, "subject"), amount))
	}
	m.requests = append(m.requests, r)
	return &r
}

// known returns a request that was made before; nil where there is none.
func (m *machine) known() *governance.ReserveRequest {
	if len(m.requests) == 0 {
		return nil
	}
	r := m.requests[rapid.IntRange(0, len(m.requests)-1).Draw(m.rt, "earlier")]
	return &r
}

// settlement says how an attempt ended.
func (m *machine) settlement(id ids.ID) *governance.Settlement {
	rt := m.rt
	if rapid.IntRange(0, 4).Draw(rt, "released") == 0 {
		s := release(id)
		return &s
	}
	s := used(id, rapid.Int64Range(0, 40).Draw(rt, "input"), rapid.Int64Range(0, 40).Draw(rt, "output"), 0)
	s.Cost = money.Nano(rapid.Int64Range(0, 60).Draw(rt, "cost"))
	basis := rapid.SampledFrom([]governance.Basis{governance.BasisActual, governance.BasisActual, governance.BasisHold, governance.BasisZero})
	s.Requests, s.Rate, s.Budget = basis.Draw(rt, "requests"), basis.Draw(rt, "rate"), basis.Draw(rt, "budget")
	if rapid.IntRange(0, 4).Draw(rt, "provisional") == 0 {
		s.Source = governance.UsageReservation
		s.Requests, s.Rate, s.Budget = governance.BasisHold, governance.BasisHold, governance.BasisHold
	}
	return &s
}

// settle ends an attempt, once more than once, or one that never was.
func (m *machine) settle() {
	r := m.known()
	if r == nil {
		return
	}
	id := r.ID
	if rapid.IntRange(0, 9).Draw(m.rt, "another") == 0 {
		unheard := m.request() // its reserve may come later
		id = unheard.ID
	}
	lane := m.lane()
	s := m.settlement(id)
	want, _ := m.book.reserve(lane, []*governance.Settlement{s}, nil)
	m.rt.Logf("%s: settle %s: %s", m.book.now, describeSettlement(s), want[0])
	begun := time.Now()
	err := m.lanes[lane].Settle(m.t.Context(), *s)
	if m.voids(begun, err) {
		return
	}
	require.Equal(m.rt, want[0], verdictOf(err))
}

// repeat sends a request again.
func (m *machine) repeat() {
	if r := m.known(); r != nil {
		r.Closes = nil
		for i := range r.Holds {
			r.Holds[i].Carried = false
		}
		m.reserve(m.lane(), r)
	}
}

// next closes an attempt and makes the one that follows it.
func (m *machine) next() {
	if r := m.successor(); r != nil {
		m.reserve(m.lane(), r)
	}
}

func (m *machine) successor() *governance.ReserveRequest {
	before := m.known()
	if before == nil {
		return nil
	}
	r := *before
	r.ID = ids.New(m.book.now)
	r.Closes = m.settlement(before.ID)
	r.Closes.Carry = true
	r.Holds = nil
	for _, h := range before.Holds {
		h.Carried = h.Limit.Metric == governance.MetricRequests && rapid.IntRange(0, 3).Draw(m.rt, "carried") > 0
		r.Holds = append(r.Holds, h)
	}
	m.requests = append(m.requests, r)
	return &r
}

func (m *machine) reserve(lane string, r *governance.ReserveRequest) {
	_, want := m.book.reserve(lane, nil, []*governance.ReserveRequest{r})
	begun := time.Now()
	got, err := m.lanes[lane].Reserve(m.t.Context(), *r)
	if m.voids(begun, err) {
		return
	}
	m.compare(r, want[0], got, err)
}

func (m *machine) compare(r *governance.ReserveRequest, want reserved, got governance.Reservation, err error) {
	m.rt.Logf("%s: reserve %s: %s", m.book.now, describe(r), want.verdict)
	carries := false
	for i := range r.Holds {
		carries = carries || r.Holds[i].Carried
	}
	require.True(m.rt, want.agrees(verdictOf(err)), "the ledger says %s: %v", verdictOf(err), err)
	var d *governance.Denial
	switch {
	case err == nil:
		require.True(m.rt, got.AdmittedAt.Equal(m.book.now), "admitted at %s, not %s", got.AdmittedAt, m.book.now)
		for i := range r.Holds {
			if !m.book.inForce(m.book.limits[r.Holds[i].Limit.Num]) {
				got.Levels[i].Held, got.Levels[i].Amount = want.levels[i].Held, want.levels[i].Amount // nobody looks at them
			}
		}
		require.Equal(m.rt, want.levels, got.Levels)
	case !want.repeat && want.verdict == denied && !carries: // who closes an attempt that is closed already is told more
		require.ErrorAs(m.rt, err, &d)
		require.Equal(m.rt, want.refusals, d.Refusals)
	}
}

// burst sends several requests in one batch.
func (m *machine) burst() {
	l := m.lanes["first"]
	used := make(map[ids.ID]bool)
	var settlements []*governance.Settlement
	var requests []*governance.ReserveRequest
	for range rapid.IntRange(0, 4).Draw(m.rt, "settlements") {
		if r := m.known(); r != nil && !used[r.ID] {
			used[r.ID] = true
			settlements = append(settlements, m.settlement(r.ID))
		}
	}
	for range rapid.IntRange(1, 6).Draw(m.rt, "admissions") {
		if before := m.known(); before != nil && !used[before.ID] && rapid.IntRange(0, 3).Draw(m.rt, "follows") == 0 {
			continue
		}
		requests = append(requests, m.request())
	}
	begun := time.Now()
	reached, open := m.gate.shut()
	var group sync.WaitGroup
	group.Go(func() { // takes nothing, and keeps the lane busy
		r := request(l)
		r.ID = ids.New(m.book.now)
		if _, err := l.Reserve(m.t.Context(), r); err != nil {
			m.t.Error(err)
		}
		if err := l.Settle(m.t.Context(), release(r.ID)); err != nil {
			m.t.Error(err)
		}
	})
	<-reached
	settled := make([]error, len(settlements))
	got := make([]governance.Reservation, len(requests))
	errs := make([]error, len(requests))
	for i, s := range settlements {
		ended := make(chan struct{})
		group.Go(func() { settled[i] = l.Settle(m.t.Context(), *s); close(ended) })
		await(ended, func() bool { return l.Stats().Outbox > i })
	}
	for i, r := range requests {
		ended := make(chan struct{})
		group.Go(func() { got[i], errs[i] = l.Reserve(m.t.Context(), *r); close(ended) })
		await(ended, func() bool { return l.Stats().Queued > i })
	}
	open()
	group.Wait()
	if m.voids(begun, errors.Join(errors.Join(errs...), errors.Join(settled...))) {
		return
	}
	want, answers := m.book.reserve("first", settlements, requests)
	for i, s := range settlements {
		m.rt.Logf("together: settle %s: %s", describeSettlement(s), want[i])
		require.Equal(m.rt, want[i], verdictOf(settled[i]))
	}
	for i, r := range requests {
		m.compare(r, answers[i], got[i], errs[i])
	}
}

// await waits for what another goroutine is about to do, unless it has ended already.
func await(ended <-chan struct{}, condition func() bool) {
	for !condition() {
		select {
		case <-ended:
			return
		default:
			runtime.Gosched()
		}
	}
}

// describe writes a request in short.
func describe(r *governance.ReserveRequest) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s for %s", r.ID, r.HardExpiry)
	for _, h := range r.Holds {
		fmt.Fprintf(&b, ", %d of limit %d (%s of %s) for %d", h.Amount, h.Limit.Num, h.Limit.Kind, h.Limit.Metric, h.Subject)
		if h.Carried {
			b.WriteString(" carried")
		}
	}
	if s := r.Closes; s != nil {
		fmt.Fprintf(&b, ", closing %s", describeSettlement(s))
	}
	return b.String()
}

func describeSettlement(s *governance.Settlement) string {
	return fmt.Sprintf("%s by bases %d %d %d to %d tokens of input, %d of output, %d, released %t, from %s", s.ID, s.Requests, s.Rate, s.Budget,
		s.Quantities.InputTokens(), s.Quantities.OutputTokens(), s.Cost, s.Release, s.Source)
}

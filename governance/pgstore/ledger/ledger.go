// Package ledger admits attempts and accounts for them in PostgreSQL, exactly and fast: one goroutine, the lane, puts
// everybody who waits into one transaction, which decides each of them as if it had come alone. The rules are in the
// functions of the schema ledger; governance/meter explains their answers.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/meter"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// Bounds of ledger.md, section 4; the queue's wait is docs/decisions/0013.
const (
	maxBatch       = 256
	maxQueue       = 4 * maxBatch
	maxExpire      = 1000 // reservations in one sweep, whatever was asked for
	maxQueueWait   = 900 * time.Millisecond
	maxLockWait    = 2 * time.Second
	operationWait  = 8500 * time.Millisecond // so that the answer itself is out within 9 s
	acquireWait    = 3 * time.Second
	statementWait  = 3 * time.Second
	batchWait      = 8 * time.Second // with its repeats; below operationWait
	breakAfter     = 3               // failures in a row
	probeJitter    = 200 * time.Millisecond
	probeEvery     = time.Second
	lockProbeEvery = 25 * time.Millisecond
	maxLockProbe   = 500 * time.Millisecond
	busyBatch      = 8 // from this size on the lane pauses before the next batch,
	contended      = 4 // where a batch has spent at least this part of its time waiting for the locks of others
	maxPause       = 6 * time.Millisecond
	flushWait      = 5 * time.Second // of the outbox when Run's context ends
	defaultLease   = 45 * time.Second
	defaultGrace   = 30 * time.Second
	defaultOutbox  = 100_000
	beatEvery      = 5 * time.Second
	openKeptFor    = time.Hour // how long the lane remembers the meters of an attempt beyond its hard expiry
)

// Options are what a Ledger needs. Zero values mean the defaults.
type Options struct {
	Pool    *pgxpool.Pool // role tollgate_gateway or stronger; a transaction pooler may stand between
	Node    string        // host or pod, for people
	Version string        // of this binary
	// Lease is how long a process may be silent before others expire its reservations; whole seconds, at least 2,
	// default 45.
	Lease time.Duration
	// Grace is how long nobody expires anything after the database started, and this process not after its first contact
	// with it, or its first after an outage; default 30 s.
	Grace time.Duration
	// OutboxLimit bounds the settlements that wait while the database is away; default 100,000 (about 60 MB). What does not
	// fit is left to expiry.
	OutboxLimit int
	Observer    Observer
}

// Observer is told what the lane does, for metrics. Nil members are skipped. They are called by the lane and must not block.
type Observer struct {
	Batch     func(settlements, admissions int, took time.Duration) // a committed batch and its round trip
	QueueWait func(time.Duration)                                   // of one admission, until its batch started
	Refused   func(*governance.Denial)
	Failure   func(error) // a batch or a heartbeat that the database did not answer
	Dropped   func()      // a settlement that did not fit the outbox and is left to expiry
	Mismatch  func()      // the database refused what governance/meter would have admitted, or the reverse
	Reset     func(n int) // meters whose stored instant lay far ahead of the clock
}

// Stats is the lane's state at one moment.
type Stats struct {
	Queued   int  // admissions that wait
	Outbox   int  // settlements that wait
	Locked   int  // both, waiting for a meter that another session has locked
	Broken   bool // the breaker is open: admissions are refused at once
	Process  int64
	LastDone time.Time // of this process's clock; zero: never
}

// Ledger implements governance.Ledger. Run must be running for its verbs to be answered.
type Ledger struct {
	pool     *pgxpool.Pool
	node     string
	version  string
	boot     ids.ID
	lease    time.Duration
	grace    time.Duration
	limit    int
	observer Observer

	wake    chan struct{} // of the lane; holds one token
	closing chan struct{} // closed by Close
	done    chan struct{} // closed when Run has ended
	clock   atomic.Pointer[clockReading]
	process atomic.Int64
	config  atomic.Int64
	// statement names the prepared batch of a connection. Other versions of it have other names, since behind a pooler a
	// connection may have been somebody else's before.
	statement string
	pooled    atomic.Bool // prepared statements do not last: a pooler stands between

	mu        sync.Mutex
	queue     []*admission
	outbox    []*settlement
	locked    int // of both, in the lane's hands
	closed    bool
	running   bool
	failures  int // in a row
	broken    bool
	inFlight  time.Time // start of the batch in flight; zero: none
	lastDone  time.Time
	contacted time.Time // first contact, or the first after an outage; zero: none
}

var _ governance.Ledger = (*Ledger)(nil)

// clockReading is the database's clock and this process's at the same moment.
type clockReading struct{ database, local time.Time }

// New makes a Ledger. It opens no connection.
func New(o Options) *Ledger {
	l := &Ledger{
		pool: o.Pool, node: o.Node, version: o.Version, boot: ids.New(time.Now()),
		lease: o.Lease, grace: o.Grace, limit: o.OutboxLimit, observer: o.Observer,
		wake: make(chan struct{}, 1), closing: make(chan struct{}), done: make(chan struct{}),
		statement: fmt.Sprintf("tollgate_batch_%08x", crc32.ChecksumIEEE([]byte(batchSQL))),
	}
	if l.lease == 0 {
		l.lease = defaultLease
	}
	if l.grace == 0 {
		l.grace = defaultGrace
	}
	if l.limit == 0 {
		l.limit = defaultOutbox
	}
	return l
}

// Clock is the database's clock as it was last told, carried on by this process's; before any contact it is this process's
// own. Attempts' ids are made from it.
func (l *Ledger) Clock() time.Time {
	c := l.clock.Load()
	if c == nil {
		return time.Now()
	}
	return c.database.Add(time.Since(c.local))
}

// ConfigVersion is the configuration version that the last batch or heartbeat told; 0 before any.
func (l *Ledger) ConfigVersion() int64 { return l.config.Load() }

// Stats tells the lane's state.
func (l *Ledger) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Stats{
		Queued: len(l.queue), Outbox: len(l.outbox), Locked: l.locked, Broken: l.broken,
		Process: l.process.Load(), LastDone: l.lastDone,
	}
}

// Errors of requests that no repeat would help.
var (
	errInvalidHold = errors.New("hold of no limit, of a negative amount, or a second one of the same meter")
	errInvalidTime = errors.New("attempt id is not of the present time")
	errAbsurd      = errors.New("negative or absurd amount")
	errTooMuch     = &governance.Error{Code: governance.CodeInvalidRequest, Public: "The request asks for more than can be counted."}
	errUnknown     = fmt.Errorf("attempt was never admitted: %w", governance.ErrNotFound)
)

// Reserve takes every hold of r or none; see governance.Ledger. It returns within 9 s.
func (l *Ledger) Reserve(ctx context.Context, r governance.ReserveRequest) (governance.Reservation, error) {
	a, err := newAdmission(&r)
	if err != nil {
		return governance.Reservation{}, fmt.Errorf("reserve attempt %s: %w", r.ID, err)
	}
	ctx, cancel := context.WithTimeout(ctx, operationWait)
	defer cancel()
	if err := l.enqueue(a); err != nil {
		l.closeLater(a)
		return governance.Reservation{}, fmt.Errorf("reserve attempt %s: %w", r.ID, err)
	}
	select {
	case <-a.done:
	case <-ctx.Done():
		if !l.abandon(a) {
			<-a.done // it was decided at this very moment
			break
		}
		return governance.Reservation{}, fmt.Errorf("reserve attempt %s: %w: %w", r.ID, governance.ErrLimitStoreUnavailable, ctx.Err())
	}
	if a.err != nil {
		return governance.Reservation{}, a.err
	}
	return a.reservation, nil
}

// Settle writes the attempt's row and replaces its holds; see governance.Ledger. If ctx ends first the settlement stays in
// the outbox and Settle returns ErrLimitStoreUnavailable.
func (l *Ledger) Settle(ctx context.Context, s governance.Settlement) error {
	if err := checkSettlement(&s); err != nil {
		return fmt.Errorf("settle attempt %s: %w", s.ID, err)
	}
	item := &settlement{Settlement: s, queued: time.Now(), done: make(chan error, 1)}
	if err := l.post(item); err != nil {
		return fmt.Errorf("settle attempt %s: %w", s.ID, err)
	}
	select {
	case err := <-item.done:
		if err != nil {
			return fmt.Errorf("settle attempt %s: %w", s.ID, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("settle attempt %s: %w: %w", s.ID, governance.ErrLimitStoreUnavailable, ctx.Err())
	}
}

// enqueue puts an admission into the queue, or says why it is full.
func (l *Ledger) enqueue(a *admission) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	switch {
	case l.closed || l.broken:
		return governance.ErrLimitStoreUnavailable
	case len(l.queue) >= maxQueue, len(l.queue) > 0 && now.Sub(l.queue[0].queued) > maxQueueWait:
		// Full while batches commit is one thing, full while they do not another.
		if l.failures > 0 || !l.inFlight.IsZero() && now.Sub(l.inFlight) > maxQueueWait {
			return governance.ErrLimitStoreUnavailable
		}
		return governance.ErrOverloaded
	}
	a.queued = now
	l.queue = append(l.queue, a)
	l.signal()
	return nil
}

// abandon gives up waiting. It reports false where a was decided already. What is in a batch in flight is released by the
// lane once that is known.
func (l *Ledger) abandon(a *admission) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.finished {
		return false
	}
	a.abandoned = true
	for i, q := range l.queue {
		if q == a {
			l.queue = append(l.queue[:i], l.queue[i+1:]...)
			a.finished = true
			l.postLocked(a.closes)
			break
		}
	}
	return true
}

// closeLater keeps the settlement that travelled with an admission which was turned away.
func (l *Ledger) closeLater(a *admission) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.postLocked(a.closes)
}

// post puts a settlement into the outbox.
func (l *Ledger) post(s *settlement) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed && !l.running {
		return governance.ErrLimitStoreUnavailable
	}
	if !l.postLocked(s) {
		return governance.ErrLimitStoreUnavailable
	}
	return nil
}

func (l *Ledger) postLocked(s *settlement) bool {
	if s == nil {
		return true
	}
	if len(l.outbox) >= l.limit {
		if l.observer.Dropped != nil {
			l.observer.Dropped()
		}
		return false
	}
	l.outbox = append(l.outbox, s)
	l.signal()
	return true
}

// signal wakes the lane.
func (l *Ledger) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// admission is one Reserve on its way through the lane.
type admission struct {
	request     *governance.ReserveRequest
	wants       []want // one for each hold
	closes      *settlement
	queued      time.Time
	done        chan struct{}
	reservation governance.Reservation
	err         error
	lost        bool // of the lane: it may have been admitted without our learning of it

	// Under Ledger.mu.
	finished  bool
	abandoned bool
}

// want is what a hold asks of its meter.
type want struct {
	key
	amount  int64
	carried bool
}

// key names a meter; which window of it is the database's to say.
type key struct{ limit, subject int64 }

// settlement is one settlement on its way through the lane.
type settlement struct {
	governance.Settlement
	queued time.Time
	done   chan error // holds one; nil: nobody waits
	lost   bool       // of the lane: it may have been committed without our learning of it
}

func (s *settlement) finish(err error) {
	if s.done != nil {
		s.done <- err
	}
}

func newAdmission(r *governance.ReserveRequest) (*admission, error) {
	a := &admission{request: r, wants: make([]want, len(r.Holds)), done: make(chan struct{})}
	if r.Estimate.Cost < 0 || r.Estimate.Cost > meter.MaxAmount || !plausible(&r.Estimate.Quantities) || !priced(&r.Estimate.Prices) {
		return nil, errTooMuch
	}
	for i := range r.Holds {
		h := &r.Holds[i]
		if h.Limit == nil || h.Amount < 0 {
			return nil, errInvalidHold
		}
		if h.Amount > meter.MaxAmount {
			return nil, errTooMuch
		}
		w := want{key: key{h.Limit.Num, h.Subject}, amount: h.Amount, carried: h.Carried}
		for _, other := range a.wants[:i] {
			if other.key == w.key {
				return nil, errInvalidHold
			}
		}
		if w.amount == 0 {
			w.carried = true // a look at the meter, which even one in debt allows
		}
		a.wants[i] = w
	}
	if r.Closes != nil {
		if err := checkSettlement(r.Closes); err != nil {
			return nil, err
		}
		a.closes = &settlement{Settlement: *r.Closes, queued: time.Now()}
	}
	return a, nil
}

// keepRequests makes looks of the carried requests that an earlier attempt of the same client request keeps: all but those
// that the attempt before this one, which asked for wants, took and now gives back.
func (a *admission) keepRequests(before []want) {
	for i := range a.wants {
		w := &a.wants[i]
		if h := &a.request.Holds[i]; !h.Carried || h.Limit.Kind != governance.KindRate {
			continue
		}
		given := false
		for _, b := range before {
			given = given || b.key == w.key && b.amount > 0 && returnsRequest(a.request.Closes)
		}
		if !given {
			w.amount = 0
		}
	}
}

// returnsRequest reports whether a settlement gives the request of its attempt back, if it took one.
func returnsRequest(s *governance.Settlement) bool {
	return s != nil && (s.Release || s.Requests == governance.BasisZero)
}

func checkSettlement(s *governance.Settlement) error {
	if s.Cost < 0 || s.Cost > meter.MaxAmount || !plausible(&s.Quantities) || !priced(&s.Prices) {
		return errAbsurd
	}
	return nil
}

// plausible bounds quantities so that every sum of them fits.
func plausible(q *governance.Quantities) bool {
	for _, n := range q {
		if n < 0 || n > meter.MaxAmount {
			return false
		}
	}
	return true
}

func priced(p *governance.UnitPrices) bool {
	for _, n := range p {
		if n < 0 {
			return false
		}
	}
	return true
}

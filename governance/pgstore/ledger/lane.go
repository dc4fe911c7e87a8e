package ledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// lane is what only the lane's goroutine touches.
type lane struct {
	*Ledger
	// open remembers the meters of attempts in flight, so that a settlement on a locked meter need not join a batch to find
	// out.
	open  map[ids.ID]openAttempt
	prune time.Time
	// What waits for a meter that another session has locked, and the meters it may be.
	waiting  waiting
	suspects map[key]bool
	every    time.Duration // between two attempts to get them
	waited   time.Duration // of the last batch, for its locks
	probed   time.Time     // the last one, or the last look whether the database is back
}

type openAttempt struct {
	wants     []want
	forgotten time.Time
}

type waiting struct {
	settlements []*settlement
	admissions  []*admission
}

func (w *waiting) size() int { return len(w.settlements) + len(w.admissions) }

// Run works until Close is called or ctx ends, whichever is first; then it flushes the outbox, after Close until ctx ends, and
// otherwise for at most 5 s, and gives up the process's lease. It is called once.
func (l *Ledger) Run(ctx context.Context) error {
	l.mu.Lock()
	l.running = true
	l.mu.Unlock()
	defer close(l.done)
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, groupCtx := errgroup.WithContext(work)
	group.Go(func() error {
		defer stop()
		n := &lane{Ledger: l, open: make(map[ids.ID]openAttempt), suspects: make(map[key]bool)}
		n.run(groupCtx, ctx.Done())
		return nil
	})
	group.Go(func() error {
		l.heartbeat(groupCtx)
		return nil
	})
	err := group.Wait()
	l.mu.Lock()
	l.closed, l.running = true, false
	queue, outbox := l.queue, l.outbox
	l.queue, l.outbox = nil, nil
	for _, a := range queue {
		a.finished = true
		a.err = fmt.Errorf("reserve attempt %s: %w", a.request.ID, governance.ErrLimitStoreUnavailable)
	}
	l.mu.Unlock()
	for _, a := range queue {
		close(a.done)
	}
	for _, s := range outbox {
		s.finish(governance.ErrLimitStoreUnavailable)
	}
	l.deregister(context.WithoutCancel(ctx))
	if err != nil {
		return fmt.Errorf("run ledger: %w", err)
	}
	return nil
}

// Close refuses new admissions, lets Run flush the outbox, and returns when Run has ended or ctx has.
func (l *Ledger) Close(ctx context.Context) error {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.closing)
	}
	running := l.running
	l.mu.Unlock()
	if !running {
		return nil
	}
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close ledger: %w", ctx.Err())
	}
}

// run is the lane. It returns when it was told to end and nothing is left to do, or ctx ends.
func (n *lane) run(ctx context.Context, ended <-chan struct{}) {
	closing := n.closing
	timer := time.NewTimer(0)
	defer timer.Stop()
	var deadline <-chan time.Time
	leaving := false
	for {
		wait := n.turn(ctx)
		if leaving && n.idle() {
			return
		}
		timer.Reset(wait) // where there is more to do it fires at once
		select {
		case <-n.wake:
		case <-timer.C:
		case <-closing:
			leaving, closing = true, nil
		case <-ended:
			if leaving {
				return // Close had its time already
			}
			leaving, ended = true, nil
			n.refuseNew()
			deadline = time.After(flushWait)
		case <-deadline:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (n *lane) refuseNew() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed {
		n.closed = true
		close(n.closing)
	}
}

func (n *lane) idle() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.queue)+len(n.outbox)+n.waiting.size() == 0
}

const rest = time.Hour // until somebody wakes the lane

// turn does the next piece of work and returns how long the lane may sleep before the next one.
func (n *lane) turn(ctx context.Context) time.Duration {
	if n.isBroken() {
		return n.probe(ctx)
	}
	n.giveUp()
	if n.waiting.size() > 0 && time.Since(n.probed) >= n.every {
		start := time.Now()
		settlements, admissions := n.waiting.next()
		b := newBatch(settlements, admissions)
		b.skipLocked = true
		n.process(ctx, b)
		n.probed = time.Now()
		// The others must not suffer for who waits; but what took long may have been a suspension of this process.
		n.every = min(max(lockProbeEvery, 4*n.probed.Sub(start)), maxLockProbe)
	}
	settlements, admissions := n.take()
	if len(settlements)+len(admissions) == 0 {
		if n.waiting.size() > 0 {
			return lockProbeEvery
		}
		return rest
	}
	start := time.Now()
	n.waited = 0
	n.process(ctx, newBatch(settlements, admissions))
	n.forget()
	took := time.Since(start)
	size := len(settlements) + len(admissions)
	if size < busyBatch || size >= maxBatch || n.waited < took/contended || n.isBroken() {
		return 0
	}
	// Where lanes wait for each other, fewer and larger batches hand over fewer locks.
	pause := min(2*took, maxPause)
	select {
	case <-time.After(pause):
	case <-ctx.Done():
	}
	return 0
}

// next takes a batch out of what waits, the oldest first: admissions with what they close, and other settlements, each
// attempt once.
func (w *waiting) next() ([]*settlement, []*admission) {
	admissions := w.admissions[:min(len(w.admissions), maxBatch)]
	w.admissions = w.admissions[len(admissions):]
	closes := make(map[*settlement]bool)
	for _, a := range admissions {
		closes[a.closes] = true
	}
	for _, a := range w.admissions {
		closes[a.closes] = false // goes with its admission, later
	}
	seen := make(map[ids.ID]bool)
	var settlements, later []*settlement
	for _, s := range w.settlements {
		mine, bound := closes[s]
		if bound && !mine || seen[s.ID] || !mine && len(settlements) >= maxBatch {
			later = append(later, s)
			continue
		}
		seen[s.ID] = true
		settlements = append(settlements, s)
	}
	w.settlements = later
	return settlements, admissions
}

func (n *lane) isBroken() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.broken
}

// take takes the next batch out of outbox and queue: settlements first, the oldest first. What asks for a meter that seems
// to be locked is set aside.
func (n *lane) take() ([]*settlement, []*admission) {
	n.mu.Lock()
	defer n.mu.Unlock()
	room := maxBatch
	if len(n.queue) > 0 {
		room = maxBatch * 3 / 4 // after an outage settlements alone could fill every batch
	}
	var (
		settlements []*settlement
		admissions  []*admission
		taken       = make(map[ids.ID]bool)
		left        []*settlement
		crowded     []*admission // too many wait for locked meters already
	)
	used := 0
	for _, s := range n.outbox {
		if len(settlements) == room {
			break
		}
		used++
		switch {
		case taken[s.ID]: // one after the other
			left = append(left, s)
		case n.suspect(n.open[s.ID].wants):
			n.waiting.settlements = append(n.waiting.settlements, s)
		default:
			taken[s.ID] = true
			settlements = append(settlements, s)
		}
	}
	n.outbox = append(left, n.outbox[used:]...)
	used = 0
	now := time.Now()
	for _, a := range n.queue {
		size := len(settlements) + len(admissions) + 1
		if a.closes != nil {
			size++
		}
		if size > maxBatch || a.closes != nil && taken[a.closes.ID] || taken[a.request.ID] {
			break
		}
		used++
		if a.closes != nil {
			a.keepRequests(n.open[a.closes.ID].wants)
		} else {
			a.keepRequests(nil)
		}
		if n.observer.QueueWait != nil {
			n.observer.QueueWait(now.Sub(a.queued))
		}
		if n.suspect(a.wants) || a.closes != nil && n.suspect(n.open[a.closes.ID].wants) {
			if len(n.waiting.admissions) >= maxQueue {
				crowded = append(crowded, a)
				continue
			}
			n.waiting.admissions = append(n.waiting.admissions, a)
			if a.closes != nil {
				n.waiting.settlements = append(n.waiting.settlements, a.closes)
			}
			continue
		}
		taken[a.request.ID] = true
		admissions = append(admissions, a)
		if a.closes != nil {
			taken[a.closes.ID] = true
			settlements = append(settlements, a.closes)
		}
	}
	n.queue = append(n.queue[:0:0], n.queue[used:]...)
	n.locked = n.waiting.size()
	for _, a := range crowded {
		a.finished = true
		a.err = errLocked(a)
		n.postLocked(a.closes)
		close(a.done)
	}
	return settlements, admissions
}

func (n *lane) suspect(wants []want) bool {
	if len(n.suspects) == 0 {
		return false
	}
	for _, w := range wants {
		if n.suspects[w.key] {
			return true
		}
	}
	return false
}

// process sends a batch and tells everybody in it what became of him.
func (n *lane) process(ctx context.Context, b *batch) {
	n.mu.Lock()
	n.inFlight = time.Now()
	n.mu.Unlock()
	d, err := n.decide(ctx, b)
	n.mu.Lock()
	n.inFlight = time.Time{}
	n.mu.Unlock()
	var mismatch bool
	if err == nil {
		mismatch, err = b.explain(d)
	}
	switch {
	case err == nil:
		n.succeeded()
		n.waited = d.waited
		if mismatch && n.observer.Mismatch != nil {
			n.observer.Mismatch()
		}
		if d.resets > 0 && n.observer.Reset != nil {
			n.observer.Reset(int(d.resets))
		}
		n.finish(b, d)
	case unavailable(err):
		n.failed(err)
		n.postpone(b, err)
	case len(b.settlements)+len(b.admissions) > 1:
		// Something in it is refused for what it is. The others must not suffer.
		for _, half := range b.split() {
			n.process(ctx, half)
		}
	default:
		for _, s := range b.settlements {
			s.finish(err)
		}
		n.refuse(b.admissions, err)
	}
}

// split halves a batch. A settlement that an admission closes goes first, on its own.
func (b *batch) split() [2]*batch {
	if len(b.settlements) > 0 && len(b.admissions) > 0 {
		return [2]*batch{newBatch(b.settlements, nil), newBatch(nil, b.admissions)}
	}
	s, a := len(b.settlements)/2, len(b.admissions)/2
	return [2]*batch{newBatch(b.settlements[:s], b.admissions[:a]), newBatch(b.settlements[s:], b.admissions[a:])}
}

func (n *lane) succeeded() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lastDone = time.Now()
	if n.failures > 0 || n.contacted.IsZero() {
		n.contacted = n.lastDone
	}
	n.failures, n.broken = 0, false
}

func (l *Ledger) failed(err error) {
	if l.observer.Failure != nil {
		l.observer.Failure(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures++
	l.broken = l.failures >= breakAfter
}

// finish answers a decided batch.
func (n *lane) finish(b *batch, d *decision) {
	for i, s := range b.settlements {
		status := int64(settled)
		if d.settlements != nil {
			status = d.settlements[i]
		}
		switch status {
		case settled, adjusted:
			s.finish(nil)
		case closedBefore:
			if b.lost || s.lost {
				s.finish(nil)
			} else {
				s.finish(governance.ErrAlreadyClosed)
			}
		case neverAdmitted:
			if s.Release {
				s.finish(nil) // its tombstone is set
			} else {
				s.finish(errUnknown)
			}
		case locked:
			s.lost = s.lost || b.lost
			n.waiting.settlements = append(n.waiting.settlements, s)
			n.suspectAll(n.open[s.ID].wants)
			continue
		}
		n.clear(n.open[s.ID].wants)
		delete(n.open, s.ID)
	}
	var answered []*admission
	for j, a := range b.admissions {
		if d.admissions != nil && d.admissions[j] == locked {
			a.lost = a.lost || b.lost
			n.waiting.admissions = append(n.waiting.admissions, a)
			n.suspectAll(a.wants)
			continue
		}
		n.clear(a.wants)
		if a.err == nil {
			n.open[a.request.ID] = openAttempt{a.wants, time.Now().Add(a.request.HardExpiry + openKeptFor)}
		} else if denial := (*governance.Denial)(nil); n.observer.Refused != nil && errors.As(a.err, &denial) {
			n.observer.Refused(denial)
		}
		answered = append(answered, a)
	}
	if n.waiting.size() == 0 {
		clear(n.suspects)
	} else if b.skipLocked {
		// What somebody else in this batch could use is not what is locked.
		for _, a := range answered {
			n.clear(a.wants)
		}
	}
	n.mu.Lock()
	n.locked = n.waiting.size()
	for _, a := range answered {
		a.finished = true
		switch {
		case a.abandoned && a.err == nil:
			delete(n.open, a.request.ID)
			n.postLocked(&settlement{Settlement: release(a.request.ID), queued: time.Now()})
		case errors.Is(a.err, governance.ErrAlreadyClosed):
			// Admitted by a call whose answer was lost, it has expired before the repeat: nobody forwards it, nobody shall pay.
			a.lost = a.lost || b.lost
			n.releaseLost(a)
		}
	}
	n.mu.Unlock()
	for _, a := range answered {
		close(a.done)
	}
}

// release gives back all that an attempt took, because nobody will forward it.
func release(id ids.ID) governance.Settlement {
	return governance.Settlement{
		ID: id, Outcome: governance.OutcomeUpstreamError, Source: governance.UsageZero,
		Requests: governance.BasisZero, Rate: governance.BasisZero, Budget: governance.BasisZero, Release: true,
	}
}

func (n *lane) suspectAll(wants []want) {
	for _, w := range wants {
		n.suspects[w.key] = true
	}
}

func (n *lane) clear(wants []want) {
	if len(n.suspects) == 0 {
		return
	}
	for _, w := range wants {
		delete(n.suspects, w.key)
	}
}

// postpone keeps the settlements of a batch that found no answer, and refuses its admissions; whether they were admitted is
// not known, so each is released.
func (n *lane) postpone(b *batch, err error) {
	for _, s := range b.settlements {
		s.lost = true
	}
	n.mu.Lock()
	n.outbox = append(b.settlements, n.outbox...)
	n.mu.Unlock()
	n.refuse(b.admissions, fmt.Errorf("%w: %w", governance.ErrLimitStoreUnavailable, err))
}

// refuse answers admissions that were not decided.
func (n *lane) refuse(admissions []*admission, err error) {
	n.mu.Lock()
	for _, a := range admissions {
		a.finished = true
		a.err = fmt.Errorf("reserve attempt %s: %w", a.request.ID, err)
		n.postLocked(&settlement{Settlement: release(a.request.ID), queued: time.Now()})
	}
	n.mu.Unlock()
	for _, a := range admissions {
		close(a.done)
	}
}

// giveUp refuses admissions that have waited too long for a locked meter. They are not in any batch, so nothing was taken,
// unless they were in one whose answer was lost.
func (n *lane) giveUp() {
	var still []*admission
	var gone []*admission
	for _, a := range n.waiting.admissions {
		if time.Since(a.queued) > maxLockWait {
			gone = append(gone, a)
		} else {
			still = append(still, a)
		}
	}
	if len(gone) == 0 {
		return
	}
	n.waiting.admissions = still
	n.mu.Lock()
	n.locked = n.waiting.size()
	for _, a := range gone {
		a.finished = true
		a.err = errLocked(a)
		n.releaseLost(a)
	}
	n.mu.Unlock()
	for _, a := range gone {
		close(a.done)
	}
}

// releaseLost gives back what an admission may have taken without our learning of it.
func (n *lane) releaseLost(a *admission) {
	if a.lost {
		n.postLocked(&settlement{Settlement: release(a.request.ID), queued: time.Now()})
	}
}

func errLocked(a *admission) error {
	return fmt.Errorf("reserve attempt %s: a meter is locked: %w", a.request.ID, governance.ErrLimitStoreUnavailable)
}

// probe asks the database, each second, whether it is back, and answers who is still waiting at once.
func (n *lane) probe(ctx context.Context) time.Duration {
	n.mu.Lock()
	queue := append(n.queue, n.waiting.admissions...)
	n.queue = nil
	n.outbox = append(n.waiting.settlements, n.outbox...)
	n.waiting = waiting{}
	n.locked = 0
	for _, a := range queue {
		a.finished = true
		a.err = fmt.Errorf("reserve attempt %s: %w", a.request.ID, governance.ErrLimitStoreUnavailable)
		if a.closes != nil && !contains(n.outbox, a.closes) {
			n.postLocked(a.closes)
		}
		n.releaseLost(a)
	}
	n.mu.Unlock()
	for _, a := range queue {
		close(a.done)
	}
	clear(n.suspects)
	if wait := probeEvery - time.Since(n.probed); wait > 0 {
		return wait + rand.N(probeJitter) //nolint:gosec // spreads the many processes that found out at the same moment
	}
	n.probed = time.Now()
	if err := n.beat(ctx); err != nil {
		n.failed(err)
		return probeEvery
	}
	n.succeeded()
	return 0
}

func contains(all []*settlement, s *settlement) bool {
	for _, x := range all {
		if x == s {
			return true
		}
	}
	return false
}

// forget drops attempts that nobody settled, from time to time.
func (n *lane) forget() {
	now := time.Now()
	if now.Sub(n.prune) < time.Minute {
		return
	}
	n.prune = now
	for id, o := range n.open {
		if now.After(o.forgotten) {
			delete(n.open, id)
		}
	}
}

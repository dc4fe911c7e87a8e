package loadtest

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// load is what a sample sends.
type load struct {
	targets  []*target
	requests [][][]byte // of each target: the text of each caller's call
	stream   bool
	timeout  time.Duration // of a call; an open loop waits as long for answers after its last call
	// caller says whose the n-th call is.
	caller func(n int) int
	// observed is told of each call that ended, from any goroutine.
	observed func()
}

// job is one call that is due.
type job struct {
	o *observation
	n int
}

// lane is the connections to one target. The connection that was used last is used next: few of them carry a light load.
type lane struct {
	target  *target
	timeout time.Duration
	mu      sync.Mutex
	idle    []*worker
	waiting []job // calls that found no connection, first come first served
	workers int
	most    int
}

type worker struct {
	conn *conn
	wake chan job // of capacity 1; closed at the end
}

// open offers n calls, rate a second, to the targets in turn, whether or not earlier ones were answered, over at most so
// many connections. It returns what it observed, one entry for each call in the order in which they were due.
func (l *load) open(ctx context.Context, rate float64, n, connections int) []observation {
	observed := make([]observation, n)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lanes := make([]lane, len(l.targets))
	for i := range lanes {
		lanes[i].target, lanes[i].timeout, lanes[i].most = l.targets[i], l.timeout, max(1, connections/len(lanes))
	}
	var workers, calls sync.WaitGroup
	start := time.Now()
	run := func(w *worker, lane *lane, j job) {
		for {
			l.one(ctx, w.conn, j, start)
			var ok bool
			j, ok = lane.next(w)
			calls.Done() // only now, because the end of all calls is the end of the workers that are idle by then
			if ok {
				continue
			}
			if j, ok = <-w.wake; !ok {
				w.conn.close()
				return
			}
		}
	}
	dispatch(ctx, start, rate, n, func(i int, due time.Duration) {
		o := &observed[i]
		o.due, o.dispatched = due, time.Since(start)
		calls.Add(1)
		lane := &lanes[i%len(lanes)]
		if w, fresh := lane.take(job{o, i}); fresh {
			workers.Go(func() { run(w, lane, job{o, i}) })
		}
	})
	answered := make(chan struct{})
	go func() {
		calls.Wait()
		close(answered)
	}()
	timer := time.NewTimer(l.timeout)
	defer timer.Stop()
	select {
	case <-answered:
	case <-timer.C: // what has not ended stays without an observation
		cancel()
		for i := range lanes {
			calls.Add(-lanes[i].forget())
		}
		<-answered
	}
	for i := range lanes {
		lanes[i].end()
	}
	workers.Wait()
	return observed
}

// take gives a call to an idle connection, or to a fresh one that the caller has to run, or keeps it.
func (l *lane) take(j job) (w *worker, fresh bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last := len(l.idle) - 1; last >= 0 {
		l.idle[last].wake <- j
		l.idle = l.idle[:last]
		return nil, false
	}
	if l.workers < l.most {
		l.workers++
		return &worker{newConn(l.target, l.timeout), make(chan job, 1)}, true
	}
	l.waiting = append(l.waiting, j)
	return nil, false
}

// next is the call that waits longest; without one the worker is idle.
func (l *lane) next(w *worker) (job, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) > 0 {
		j := l.waiting[0]
		l.waiting = l.waiting[1:]
		return j, true
	}
	l.idle = append(l.idle, w)
	return job{}, false
}

// forget drops the calls that wait and returns how many they were.
func (l *lane) forget() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.waiting)
	l.waiting = nil
	return n
}

// end ends the workers, which are all idle.
func (l *lane) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.idle {
		close(w.wake)
	}
}

// closed keeps so many connections busy for a time, each with its next call as soon as it has the answer before.
func (l *load) closed(ctx context.Context, connections int, duration time.Duration) []observation {
	each := make([][]observation, connections)
	var all sync.WaitGroup
	start := time.Now()
	for i := range connections {
		all.Go(func() {
			c := newConn(l.targets[i%len(l.targets)], l.timeout)
			defer c.close()
			for n := i; ctx.Err() == nil; n += connections {
				at := time.Since(start)
				if at >= duration {
					return
				}
				o := observation{due: at, dispatched: at}
				l.oneAt(ctx, c, i%len(l.targets), n, &o, start)
				each[i] = append(each[i], o)
			}
		})
	}
	all.Wait()
	var observed []observation
	for _, some := range each {
		observed = append(observed, some...)
	}
	return observed
}

func (l *load) one(ctx context.Context, c *conn, j job, start time.Time) {
	l.oneAt(ctx, c, j.n%len(l.targets), j.n, j.o, start)
}

// oneAt makes the n-th call at a target.
func (l *load) oneAt(ctx context.Context, c *conn, target, n int, o *observation, start time.Time) {
	o.caller = l.caller(n)
	o.sent = time.Since(start)
	answer, err := c.do(ctx, l.requests[target][o.caller], l.stream)
	o.done = time.Since(start)
	o.status, o.err, o.limiter = answer.status, err, answer.limiter
	if err == nil {
		o.firstByte = answer.firstByte.Sub(start)
	}
	o.ended = ctx.Err() == nil
	if l.observed != nil {
		l.observed()
	}
}

// dispatch calls do for each of n moments, rate a second, as they come; late ones at once. It has a thread of its own,
// because a timer of the runtime is up to a millisecond late.
func dispatch(ctx context.Context, start time.Time, rate float64, n int, do func(i int, due time.Duration)) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i := range n {
		due := time.Duration(float64(i) / rate * float64(time.Second))
		sleepUntil(start.Add(due))
		if ctx.Err() != nil {
			return
		}
		do(i, due)
	}
}

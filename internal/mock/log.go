package mock

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Request is what the upstream saw of one request, and what became of it. A frame that a WebSocket client sent is one too.
type Request struct {
	ID         int64       `json:"id"` // from 1, in the order of arrival
	Method     string      `json:"method"`
	Path       string      `json:"path"` // with its query
	Header     http.Header `json:"header"`
	Body       []byte      `json:"body"` // raw; base64 in JSON
	BodySHA256 string      `json:"body_sha256"`
	Socket     string      `json:"socket"`   // the client's end of the connection: equal for requests that shared it
	Parallel   int         `json:"parallel"` // requests in flight when it arrived, itself included
	Script     string      `json:"script"`

	ArrivedAt time.Time  `json:"arrived_at"`
	AbortedAt *time.Time `json:"aborted_at"` // when the client left before the answer's end; null: it stayed
	EndedAt   *time.Time `json:"ended_at"`   // null: in flight
	Status    int        `json:"status"`     // 0: no status line was sent
	Frames    int        `json:"frames"`     // frames handed to the connection; 1 for a whole unary answer

	permits  int  // steps that a waiting answer may still take
	complete bool // the last frame is on its way: a client that leaves now has what it wanted
}

// Log is what the upstream has seen since the last reset.
type Log struct {
	Counts
	Dropped  int64     `json:"dropped"` // older requests that the bounds of the log have pushed out
	Requests []Request `json:"requests"`
}

// Counts sums up the log; it stays exact where the log itself is cut.
type Counts struct {
	Count       int64 `json:"count"` // requests that arrived
	InFlight    int   `json:"in_flight"`
	InFlightMax int   `json:"in_flight_max"`
	Aborted     int64 `json:"aborted"`
	Ended       int64 `json:"ended"`
}

// recorder is the log. Requests of an earlier time, before a reset, end in no counter.
type recorder struct {
	maxRequests int
	maxBytes    int

	mu       sync.Mutex
	counts   Counts
	nextID   int64
	requests []*Request // oldest first; a prefix of nil makes room
	bytes    int
	dropped  int64
	changed  chan struct{} // nil unless somebody waits
}

// requestOverhead is added to the size of a body, for headers and the record itself.
const requestOverhead = 1 << 10

// add registers the arrival of q and fills in its id and parallelism.
func (l *recorder) add(q *Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nextID++
	l.counts.Count++
	l.counts.InFlight++
	l.counts.InFlightMax = max(l.counts.InFlightMax, l.counts.InFlight)
	q.ID, q.Parallel = l.nextID, l.counts.InFlight
	l.requests = append(l.requests, q)
	l.bytes += len(q.Body) + requestOverhead
	for len(l.requests) > 1 && (len(l.requests) > l.maxRequests || l.bytes > l.maxBytes) {
		l.bytes -= len(l.requests[0].Body) + requestOverhead
		l.requests[0] = nil // append copies the rest away from time to time; until then the record must not be kept
		l.requests = l.requests[1:]
		l.dropped++
	}
	l.wake()
}

// update changes q under the lock.
func (l *recorder) update(q *Request, change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

// abort notes that the client left.
func (l *recorder) abort(q *Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q.AbortedAt != nil || q.EndedAt != nil || q.complete {
		return
	}
	now := time.Now()
	q.AbortedAt = &now
	if l.current(q) {
		l.counts.Aborted++
		l.wake()
	}
}

// end notes that the answer is over.
func (l *recorder) end(q *Request, status, frames int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	q.EndedAt, q.Status, q.Frames = &now, status, frames
	if l.current(q) {
		l.counts.InFlight--
		l.counts.Ended++
		l.wake()
	}
}

// current reports whether q arrived after the last reset.
func (l *recorder) current(q *Request) bool { return q.ID > l.nextID-l.counts.Count }

func (l *recorder) wake() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

func (l *recorder) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts, l.requests, l.bytes, l.dropped = Counts{}, nil, 0, 0
	l.wake()
}

// since returns the log of requests whose id is above after.
func (l *recorder) since(after int64) Log {
	l.mu.Lock()
	defer l.mu.Unlock()
	log := Log{Counts: l.counts, Dropped: l.dropped, Requests: make([]Request, 0, len(l.requests))}
	for _, q := range l.requests {
		if q.ID > after {
			log.Requests = append(log.Requests, *q)
		}
	}
	return log
}

func (l *recorder) now() Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts
}

// wait blocks until reached, which runs under the lock, or the end of ctx.
func (l *recorder) wait(ctx context.Context, reached func() bool) error {
	for {
		l.mu.Lock()
		if reached() {
			l.mu.Unlock()
			return nil
		}
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// step blocks until q has a permit, and takes it.
func (l *recorder) step(ctx context.Context, q *Request) error {
	return l.wait(ctx, func() bool {
		if q.permits == 0 {
			return false
		}
		q.permits--
		return true
	})
}

// release gives permits to one request in flight, or with id 0 to each, and returns how many requests that were.
func (l *recorder) release(id int64, steps int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	released := 0
	for _, q := range l.requests {
		if q.EndedAt == nil && (id == 0 || q.ID == id) {
			q.permits += steps
			released++
		}
	}
	l.wake()
	return released
}

// rules are the scripts set from outside, newest first.
type rules struct {
	mu   sync.Mutex
	list []*rule
}

// Rule chooses a script for the requests that fit it.
type Rule struct {
	Script string            `json:"script"`
	Times  int               `json:"times,omitempty"` // left; 0: until further notice
	Path   string            `json:"path,omitempty"`  // end of the path, without its query
	Match  map[string]string `json:"match,omitempty"` // members of the body and their strings
}

type rule struct {
	Rule
	script *Script
}

func (r *rules) add(n *rule) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = slices.Insert(r.list, 0, n)
}

func (r *rules) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = nil
}

func (r *rules) all() []Rule {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]Rule, len(r.list))
	for i, n := range r.list {
		list[i] = n.Rule
	}
	return list
}

// take returns the script of the newest rule that fits, and uses it up; nil: none.
func (r *rules) take(fits func(*Rule) bool) *Script {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := slices.IndexFunc(r.list, func(n *rule) bool { return fits(&n.Rule) })
	if at < 0 {
		return nil
	}
	n := r.list[at]
	if n.Times == 1 {
		r.list = slices.Delete(r.list, at, at+1)
	} else if n.Times > 1 {
		n.Times--
	}
	return n.script
}

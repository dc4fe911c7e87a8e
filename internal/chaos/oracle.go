package chaos

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/mock"
)

// plan is what the driver has decided about one request before it is sent.
type plan struct {
	tag    string // the end user of the request, which only this one has; the ledger books it by this
	key    *key
	burst  int // number of the burst that it belongs to; 0: none
	stream bool
	output int    // output tokens that it asks for at most
	script string // of the upstream
	// What the upstream reports. faulty: it refuses or breaks off, and reports nothing.
	inputUsed, outputUsed int
	faulty                bool
	leaveAfter            time.Duration // when the client gives up; 0: never
}

// seen is what a client saw of its request.
type seen struct {
	plan       *plan
	status     int    // 0: no answer
	code       string // of an error
	whole      bool   // the answer came to its end
	left       bool   // the client gave up
	sent, done time.Time
}

// arrival is what the upstream saw of one forward.
type arrival struct {
	tag         string
	began, over time.Time
}

// oracle is what really happened: the logs of the clients and of the upstream, which no gateway has a hand in.
type oracle struct {
	mock  *mock.Server
	plans sync.Map // *plan by tag

	forwarded atomic.Int64
	ok        atomic.Int64
	refused   atomic.Int64 // 429
	undecided atomic.Int64 // 503
	broken    atomic.Int64 // no answer, or only a part of one

	mu       sync.Mutex
	seen     []seen
	arrivals []arrival
	unknown  int // forwards of no request that was sent
}

func newOracle() (*oracle, error) {
	m, err := mock.New(mock.Options{LogRequests: 1})
	if err != nil {
		return nil, fmt.Errorf("make the upstream: %w", err)
	}
	return &oracle{mock: m}, nil
}

// ServeHTTP is the upstream: it notes who came and answers as the plan says.
func (o *oracle) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the gateway died while it sent: nothing that could be answered, and nothing that costs
	}
	var request struct {
		User string `json:"user"`
	}
	_ = json.Unmarshal(body, &request) // whoever sends anything else is unknown
	p, ok := o.plans.Load(request.User)
	if !ok {
		o.mu.Lock()
		o.unknown++
		o.mu.Unlock()
		return
	}
	o.forwarded.Add(1)
	o.mu.Lock()
	at := len(o.arrivals)
	o.arrivals = append(o.arrivals, arrival{tag: request.User, began: began})
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		o.arrivals[at].over = time.Now()
		o.mu.Unlock()
	}()
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.Header.Set("X-Mock-Script", p.(*plan).script)
	o.mock.ServeHTTP(w, r)
}

// saw notes what a client saw.
func (o *oracle) saw(s seen) {
	switch {
	case s.status == http.StatusOK && s.whole:
		o.ok.Add(1)
	case s.status == http.StatusTooManyRequests:
		o.refused.Add(1)
	case s.status == http.StatusServiceUnavailable:
		o.undecided.Add(1)
	case !s.left:
		o.broken.Add(1)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen = append(o.seen, s)
}

package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/plugins"
	"github.com/tollgate-gateway/tollgate/providers"
)

// Options is all that a Gateway is made of. Only Idempotency, Batches and DialControl may be nil.
type Options struct {
	Config      Config
	Chain       []Link // in the configuration's order
	Providers   []providers.Provider
	Translators []providers.Translator // one for an ordered pair of dialects; of several that fit a target the first is taken
	Ledger      governance.Ledger
	Catalogs    governance.Catalogs
	EndUsers    governance.EndUsers
	Spend       governance.SpendStore
	Idempotency governance.IdempotencyStore // nil: Idempotency-Key is refused
	// Responses remembers where stored responses are. Nil: ids of responses go to whatever target serves the call.
	Responses governance.StoredResponses
	Batches   governance.BatchStore // nil: files and batches are not served
	// Now is the database's clock as it is known here: ids of requests and attempts carry it.
	Now     func() time.Time
	Log     zerolog.Logger
	Metrics plugins.Registry
	// DialControl may refuse a resolved address before it is connected to; it guards against providers that a tenant points
	// at the inside of the network.
	DialControl func(ctx context.Context, network, address string, c syscall.RawConn) error
}

// Gateway is the data plane of one process. It starts no goroutine by itself: see Run.
type Gateway struct {
	cfg       Config
	chain     *chain
	providers map[string]providers.Provider
	lanes     lanes
	upstreams upstreams
	breakers  *breakers
	ledger    governance.Ledger
	catalogs  governance.Catalogs
	endUsers  governance.EndUsers
	spend     governance.SpendStore
	idem      governance.IdempotencyStore
	responses governance.StoredResponses
	batches   governance.BatchStore
	now       func() time.Time
	log       zerolog.Logger
	metrics   metrics
	handler   *echo.Echo

	bodies  byteBudget
	drains  chan struct{} // one token for each answer that is read on without its client
	records chan plugins.Record
	life    lifetime
	loaded  atomic.Bool // the configuration was read once
}

// New builds a gateway or reports every fault of its configuration.
func New(o Options) (*Gateway, error) {
	if err := o.Config.Validate(); err != nil {
		return nil, fmt.Errorf("check gateway settings: %w", err)
	}
	ch, err := newChain(o.Chain, o.Log, o.Metrics)
	if err != nil {
		return nil, fmt.Errorf("build the chain: %w", err)
	}
	ways, err := newLanes(o.Translators)
	if err != nil {
		return nil, err
	}
	cut, cutNow := context.WithCancelCause(context.Background())
	g := &Gateway{
		cfg: o.Config, chain: ch, providers: make(map[string]providers.Provider, len(o.Providers)),
		lanes:     ways,
		upstreams: newUpstreams(o.Config, o.DialControl),
		ledger:    o.Ledger, catalogs: o.Catalogs, endUsers: o.EndUsers, spend: o.Spend, idem: o.Idempotency, responses: o.Responses, batches: o.Batches,
		now: o.Now, log: o.Log, metrics: newMetrics(o.Metrics),
		drains:  make(chan struct{}, o.Config.Drains),
		records: make(chan plugins.Record, o.Config.RecordQueue),
		life:    lifetime{cut: cut, cutNow: cutNow},
	}
	g.breakers = newBreakers(o.Config, time.Now, o.Log, g.metrics.breaker)
	for _, p := range o.Providers {
		g.providers[p.Kind()] = p
	}
	g.bodies.left.Store(o.Config.MaxBodiesInFlight)
	g.handler = g.mount()
	return g, nil
}

// Handler serves the traffic listener. Its server must have no WriteTimeout: streams have deadlines event by event.
func (g *Gateway) Handler() http.Handler { return http.HandlerFunc(g.enter) }

// PrintChain writes the chain in the order in which it runs, a line for each plugin's part in a stage.
func (g *Gateway) PrintChain(w io.Writer) error { return g.chain.print(w) }

// Run hands finished calls to the recorders until ctx ends and the queue is empty. The application runs it once, and ends
// it after Shutdown.
func (g *Gateway) Run(ctx context.Context) error {
	for {
		select {
		case r := <-g.records:
			g.chain.record(ctx, r)
		case <-ctx.Done():
			g.recordRest(context.WithoutCancel(ctx))
			return nil
		}
	}
}

func (g *Gateway) recordRest(ctx context.Context) {
	for {
		select {
		case r := <-g.records:
			g.chain.record(ctx, r)
		default:
			return
		}
	}
}

// Drain makes the gateway unready and changes nothing else: load balancers see it and send new calls elsewhere.
func (g *Gateway) Drain() { g.life.drain() }

// Shutdown refuses new calls and waits for those in flight. When ctx ends it cuts what is left: streams end with an error
// event, and everything is settled before Shutdown returns. The error says how many calls were cut.
func (g *Gateway) Shutdown(ctx context.Context) error {
	g.life.drain()
	idle := g.life.close()
	var err error
	select {
	case <-idle:
	case <-ctx.Done():
		if cut := g.life.count(); cut > 0 {
			err = fmt.Errorf("cut %d calls: %w", cut, ctx.Err())
		}
		g.life.cutNow(errCut)
		timer := time.NewTimer(g.cfg.Settle + g.cfg.ClientWrite)
		defer timer.Stop()
		select {
		case <-idle:
		case <-timer.C:
			err = errors.Join(err, fmt.Errorf("%d calls did not end", g.life.count()))
		}
	}
	g.life.cutNow(errCut)
	g.upstreams.close()
	return err
}

// InFlight is the number of calls that are being served.
func (g *Gateway) InFlight() int { return g.life.count() }

// Why an attempt's context ended, when it did not end by itself.
var (
	errCut        = errors.New("cut by shutdown")
	errSilent     = errors.New("upstream silent for too long")
	errClientLeft = errors.New("client left")
	errOver       = errors.New("attempt is over")
)

// lifetime counts the calls of a gateway and knows whether it takes new ones.
type lifetime struct {
	mu       sync.Mutex
	draining bool
	closed   bool
	calls    int
	idle     chan struct{} // closed once there is no call left after close
	cut      context.Context
	cutNow   context.CancelCauseFunc
}

func (l *lifetime) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.calls++
	return true
}

func (l *lifetime) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls--
	if l.closed && l.calls == 0 {
		close(l.idle)
	}
}

func (l *lifetime) drain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draining = true
}

func (l *lifetime) isDraining() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.draining
}

func (l *lifetime) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

// close takes no new calls and returns what is closed when the last one has left.
func (l *lifetime) close() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		l.idle = make(chan struct{})
		if l.calls == 0 {
			close(l.idle)
		}
	}
	return l.idle
}

// metrics are what only the gateway can tell; the telemetry plugin tells the rest from the records. Labels come from the
// route table, the code table and configured ids.
type metrics struct {
	requests     func(values ...string)
	noUsage      func(values ...string)
	unsettled    func(values ...string)
	dropped      func(values ...string)
	tierUnpriced func(values ...string)
	breaker      func(values ...string)
	wouldRefuse  func(values ...string)
	admission    func(value float64, values ...string)
	settlement   func(value float64, values ...string)
}

func newMetrics(r plugins.Registry) metrics {
	buckets := []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	return metrics{
		requests:     r.Counter("tollgate_gateway_requests_total", "Everything that was asked of the listener, by route, status and error code.", "route", "status", "code"),
		noUsage:      r.Counter("tollgate_gateway_usage_missing_total", "Whole answers without valid usage, by provider.", "provider"),
		unsettled:    r.Counter("tollgate_gateway_settlements_late_total", "Settlements that had not committed when the answer ended."),
		wouldRefuse:  r.Counter("tollgate_gateway_would_refuse_total", "Attempts that a limit in log mode let pass and would have refused, by limit.", "limit"),
		breaker:      r.Counter("tollgate_gateway_breaker_changes_total", "Changes of the breakers of targets, by target and the state that they came into.", "target", "state"),
		tierUnpriced: r.Counter("tollgate_gateway_service_tier_unpriced_total", "Attempts that a provider served in a tier without a price of its own, by provider.", "provider"),
		dropped:      r.Counter("tollgate_gateway_records_dropped_total", "Finished calls that the recorders' queue had no room for."),
		admission:    r.Histogram("tollgate_gateway_admission_seconds", "Time of a reservation in the ledger.", buckets, "result"),
		settlement:   r.Histogram("tollgate_gateway_settlement_seconds", "Time of a settlement in the ledger.", buckets),
	}
}

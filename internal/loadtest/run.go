package loadtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/devdb"
	"github.com/tollgate-gateway/tollgate/internal/fleet"
	"github.com/tollgate-gateway/tollgate/internal/money"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// Options of a load run.
type Options struct {
	// Rates are what is offered, in calls per second, a sample each.
	Rates []float64
	// Connections, if not 0, are kept busy instead: closed loop, one sample, as many calls as they come to.
	Connections int
	// InFlight is how many connections an open loop has at most.
	InFlight int
	// Duration is for how long a sample sends.
	Duration time.Duration
	// Stream asks for streams of events.
	Stream bool
	// Words is how long the answers are: so many output tokens, and about so many frames of a stream.
	Words int
	// PromptBytes is the length of the prompt.
	PromptBytes int
	// CallTimeout is the longest time that a call may take; 0: three times the duration, 10 s at least and 60 s at most.
	CallTimeout time.Duration
	// Progress, if not nil, is told what goes on, about once a second.
	Progress func(text string)
}

// OwnOptions are those of a run against gateways of its own.
type OwnOptions struct {
	Options

	// Replicas are numbers of gateways; each is met with each rate.
	Replicas []int
	// Admit is the share of the offered calls, in per cent, for which the tight limits have room; 100 and more: no limit
	// is tight. A closed loop has no tight limits.
	Admit int
	// Script adds directives to what the mock does for each call.
	Script string
	// Binary is the program to run; default this process's own.
	Binary string
	// Database are options of the private PostgreSQL.
	Database devdb.Options
}

const (
	closeTimeout = time.Minute // until nothing is open after a sample, and the ledger is checked
	warmUp       = time.Second
	warmWorkers  = 8
	modelName    = "load"
	// everyBudget is which calls are made by the caller with the budget.
	everyBudget = 10
	// ample is an amount that no run uses up.
	ample = "1000000000"
)

// The callers of a sample.
const (
	bucketCaller = iota
	budgetCaller
)

// Run starts a database, a mock and gateways, and takes one sample for each number of replicas and each rate. A sample
// that does not pass is no error. With an error the report, if there is one, has the samples before it.
func Run(ctx context.Context, o OwnOptions) (report *Report, err error) {
	f, err := fleet.Start(ctx, fleet.Options{Binary: o.Binary, Database: o.Database})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	provider, err := f.AddProvider(ctx)
	if err != nil {
		return nil, err
	}
	r := &ownRun{o: o, fleet: f}
	if _, err := f.AddModel(ctx, provider, modelName, r.upstreamModel()); err != nil {
		return nil, err
	}
	machine := f.Machine()
	report = &Report{Machine: &machine}
	for _, replicas := range o.Replicas {
		for _, rate := range o.rates() {
			s, err := r.sample(ctx, replicas, rate)
			if err != nil {
				if len(report.Samples) == 0 {
					report = nil
				}
				return report, fmt.Errorf("sample of %s: %w", title(replicas, rate, o.Connections), err)
			}
			report.Samples = append(report.Samples, Judged{*s, Judge(s)})
		}
	}
	report.Pass = pass(report.Samples)
	return report, nil
}

// rates are those of the samples; 0 is the closed loop.
func (o *Options) rates() []float64 {
	if o.Connections > 0 {
		return []float64{0}
	}
	return o.Rates
}

const (
	leastCallTimeout = 10 * time.Second
	mostCallTimeout  = time.Minute
)

func (o *Options) callTimeout() time.Duration {
	if o.CallTimeout > 0 {
		return o.CallTimeout
	}
	return min(max(3*o.Duration, leastCallTimeout), mostCallTimeout)
}

func title(replicas int, rate float64, connections int) string {
	gateways := fmt.Sprintf("%d gateways", replicas)
	if replicas == 1 {
		gateways = "1 gateway"
	}
	if rate == 0 {
		return fmt.Sprintf("%s, %d connections", gateways, connections)
	}
	return fmt.Sprintf("%s, %g calls a second", gateways, rate)
}

// ownRun is a run against a fleet of its own.
type ownRun struct {
	o     OwnOptions
	fleet *fleet.Fleet
	n     int // samples so far
}

// mockWords is what the mock answers without a script.
const mockWords = 9

// upstreamModel tells the mock by its name what to do.
func (r *ownRun) upstreamModel() string {
	script := r.script()
	if script == "" {
		return modelName
	}
	return "mock-" + script
}

func (r *ownRun) script() string {
	var parts []string
	if r.o.Words != mockWords {
		parts = append(parts, fmt.Sprintf("words(%d)", r.o.Words))
	}
	if r.o.Script != "" {
		parts = append(parts, r.o.Script)
	}
	return strings.Join(parts, ",")
}

// body is the call that is made again and again.
func (o *Options) body(model string) ([]byte, error) {
	call := map[string]any{
		"model": model, "max_tokens": o.Words,
		"messages": []map[string]string{{"role": "user", "content": strings.Repeat("hello ", (o.PromptBytes+5)/6)[:o.PromptBytes]}},
	}
	if o.Stream {
		call["stream"] = true
		call["stream_options"] = map[string]bool{"include_usage": true}
	}
	body, err := json.Marshal(call)
	if err != nil {
		return nil, fmt.Errorf("write call: %w", err)
	}
	return body, nil
}

func (o *Options) tell(format string, args ...any) {
	if o.Progress != nil {
		o.Progress(fmt.Sprintf(format, args...))
	}
}

func (r *ownRun) sample(ctx context.Context, replicas int, rate float64) (s *Sample, err error) {
	r.n++
	name := title(replicas, rate, r.o.Connections)
	r.o.tell("%s: starting", name)
	gateways, err := r.start(ctx, replicas)
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, g := range gateways {
			err = errors.Join(err, g.Kill())
		}
	}()
	limits, keys, err := r.setUp(ctx, gateways, rate)
	if err != nil {
		return nil, err
	}
	l, err := r.o.load(urlsOf(gateways), keys, modelName)
	if err != nil {
		return nil, err
	}
	s = &Sample{Replicas: replicas, Script: r.script()}
	locks, err := watchLocks(ctx, r.fleet.DSN(devdb.Superuser))
	if err != nil {
		return nil, err
	}
	before, beforeErr := readUsage(r.fleet, gateways)
	observed := r.o.send(ctx, s, l, rate, name)
	after, afterErr := readUsage(r.fleet, gateways)
	waiters, err := locks.end()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err == nil {
		s.LockWaiters = &waiters
	}
	s.samplingError(errors.Join(beforeErr, afterErr), err)
	s.Limits = met(limits, observed)
	s.Resources = r.resources(s, before, after, gateways)

	r.o.tell("%s: checking the ledger", name)
	r.check(ctx, s)
	return s, ctx.Err()
}

// start starts gateways on addresses of their own. Those that an error keeps from use end with the fleet.
func (r *ownRun) start(ctx context.Context, replicas int) ([]*fleet.Process, error) {
	gateways := make([]*fleet.Process, replicas)
	for i := range gateways {
		var err error
		if gateways[i], err = r.fleet.Start(ctx, fleet.Spec{Host: fmt.Sprintf("127.0.0.%d", i+1)}); err != nil {
			return nil, err
		}
	}
	return gateways, nil
}

func urlsOf(gateways []*fleet.Process) []string {
	urls := make([]string, len(gateways))
	for i, g := range gateways {
		urls[i] = g.BaseURL
	}
	return urls
}

// check waits until nothing is open and has the ledger checked. A check that does not come about is a sampling error.
func (r *ownRun) check(ctx context.Context, s *Sample) {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	err := r.fleet.Admin.AwaitClosed(ctx)
	if err == nil {
		err = r.fleet.Admin.CheckLedger(ctx)
	}
	clean := err == nil
	switch {
	case errors.Is(err, fleet.ErrUnclean):
		s.Ledger = err.Error()
	case err != nil:
		s.samplingError(err)
		return
	}
	s.LedgerClean = &clean
}

func (r *ownRun) resources(s *Sample, before, after usage, gateways []*fleet.Process) *Resources {
	used := resources(before, after, runtime.NumCPU(), s.Observations)
	for _, g := range gateways {
		size, err := peakResident(g.Pid())
		s.samplingError(err)
		used.GatewayRSS = max(used.GatewayRSS, size)
	}
	return &used
}

func (s *Sample) samplingError(faults ...error) {
	for _, err := range faults {
		if err != nil {
			s.SamplingErrors++
			s.note(err.Error())
		}
	}
}

// setUp makes an organization and its callers, warms the gateways up, and returns the limits that the callers meet, in
// the order of the callers.
func (r *ownRun) setUp(ctx context.Context, gateways []*fleet.Process, rate float64) ([]Limit, []secret.String, error) {
	organization, err := r.fleet.Admin.Create(ctx, "organizations", fleet.Object{"name": fmt.Sprintf("Load %d", r.n)})
	if err != nil {
		return nil, nil, err
	}
	id := fleet.Text(organization, "id")
	// Two limits of the organization are hot, however many callers it has.
	for _, rule := range []fleet.Object{bucket("tokens", ample, ample), total("cost", ample)} {
		rule["scope"] = fleet.Object{"type": "organization", "id": id}
		rule["organization_id"] = id
		if _, err := r.fleet.Admin.Create(ctx, "limits", rule); err != nil {
			return nil, nil, err
		}
	}
	cost, err := r.warm(ctx, gateways, id)
	if err != nil {
		return nil, nil, err
	}
	limits, rules := r.limits(rate, cost)
	var keys []secret.String
	for i, rule := range rules {
		key, _, err := r.fleet.Issue(ctx, id, fmt.Sprintf("caller %d", i), rule, bucket("tokens", ample, ample))
		if err != nil {
			return nil, nil, err
		}
		keys = append(keys, key)
	}
	return limits, keys, nil
}

func bucket(metric, amount, burst string) fleet.Object {
	return fleet.Object{"kind": "rate", "metric": metric, "amount": amount, "per": "1m", "burst": burst}
}

func total(metric, amount string) fleet.Object {
	return fleet.Object{"kind": "budget", "metric": metric, "amount": amount, "window": fleet.Object{"type": "total"}}
}

// limits are what the callers meet, as the sample records it and as the admin API takes it.
func (r *ownRun) limits(rate float64, cost money.Nano) (limits []Limit, rules []fleet.Object) {
	perMinute, burst, calls := int64(1_000_000_000), int64(1_000_000_000), int64(1_000_000_000)
	if rate > 0 && r.o.Admit < 100 {
		offered := rate * float64(r.o.Admit) / 100
		perMinute = max(1, int64(offered*60*(everyBudget-1)/everyBudget))
		burst = max(2, perMinute/240) // a quarter of a second; one alone would lose what refills between two calls
		calls = max(1, int64(offered*r.o.Duration.Seconds()/everyBudget))
	}
	// Half a call more, because a call that is admitted holds somewhat more than it costs in the end.
	amount := money.Nano(int64(cost)*calls + int64(cost)/2)
	limits = []Limit{
		{Name: "rate limit", Capacity: float64(burst), Refill: float64(perMinute) / 60},
		{Name: "budget", Capacity: float64(calls) + 0.5},
	}
	rules = []fleet.Object{
		bucket("requests", strconv.FormatInt(perMinute, 10), strconv.FormatInt(burst, 10)),
		total("cost", amount.String()),
	}
	return limits, rules
}

// warm sends calls for a moment, as a caller of its own, and returns what each of them cost. That some of them fail on a
// busy machine does not matter.
func (r *ownRun) warm(ctx context.Context, gateways []*fleet.Process, organization string) (money.Nano, error) {
	key, id, err := r.fleet.Issue(ctx, organization, "warm-up", total("cost", ample))
	if err != nil {
		return 0, err
	}
	l, err := r.o.load(urlsOf(gateways), []secret.String{key}, modelName)
	if err != nil {
		return 0, err
	}
	var warmed Sample
	warmed.summarize(l.closed(ctx, warmWorkers, warmUp))
	if warmed.Admitted == 0 {
		return 0, fmt.Errorf("warm up: no call came through, %d 5xx, %d others, %v; a gateway's log:\n%s",
			warmed.ServerErrors, warmed.Unexpected, warmed.Errors, gateways[0].Log())
	}
	page, err := r.fleet.Admin.Get(ctx, "spend?limit=1&key_id="+id)
	if err != nil {
		return 0, err
	}
	rows := fleet.Items(page, "items")
	if len(rows) == 0 {
		return 0, errors.New("warm up: the calls left no rows")
	}
	cost, err := money.Parse(fleet.Text(rows[0], "cost_usd"))
	if err != nil {
		return 0, fmt.Errorf("warm up: read cost of a call: %w", err)
	}
	return cost, nil
}

// load is what callers send to base URLs.
func (o *Options) load(urls []string, keys []secret.String, model string) (*load, error) {
	body, err := o.body(model)
	if err != nil {
		return nil, err
	}
	l := &load{stream: o.Stream, timeout: o.callTimeout(), caller: func(n int) int {
		if n%everyBudget == everyBudget-1 {
			return min(budgetCaller, len(keys)-1)
		}
		return bucketCaller
	}}
	for _, base := range urls {
		t, err := parseTarget(base)
		if err != nil {
			return nil, err
		}
		l.targets = append(l.targets, t)
		var requests [][]byte
		for _, key := range keys {
			requests = append(requests, t.request(key, body))
		}
		l.requests = append(l.requests, requests)
	}
	return l, nil
}

// progressInterval is how often a sample tells how far it is.
const progressInterval = time.Second

// send makes the sample's calls, tells how far it is, and counts what came of them into the sample.
func (o *Options) send(ctx context.Context, s *Sample, l *load, rate float64, name string) []observation {
	var answered atomic.Int64
	l.observed = func() { answered.Add(1) }
	began := time.Now()
	ticker := time.NewTicker(progressInterval)
	end := make(chan struct{})
	told := make(chan struct{})
	go func() {
		defer close(told)
		for {
			select {
			case <-ticker.C:
				o.tell("%s: %.0f of %.0f s, %d answered", name, time.Since(began).Seconds(), o.Duration.Seconds(), answered.Load())
			case <-end:
				return
			}
		}
	}()
	s.Stream, s.Offered, s.CallTimeout = o.Stream, rate, o.callTimeout().Seconds()
	var observed []observation
	if rate == 0 {
		s.Connections = o.Connections
		observed = l.closed(ctx, o.Connections, o.Duration)
	} else {
		s.Connections = o.InFlight
		observed = l.open(ctx, rate, max(1, int(rate*o.Duration.Seconds())), o.InFlight)
	}
	close(end)
	<-told
	ticker.Stop()
	s.summarize(observed)
	return observed
}

// met completes the limits of the callers with what was observed.
func met(limits []Limit, observed []observation) []Limit {
	for caller := range limits {
		l := &limits[caller]
		var own []observation
		for i := range observed {
			o := &observed[i]
			if !o.ended || o.caller != caller {
				continue
			}
			own = append(own, *o)
			l.Elapsed = max(l.Elapsed, o.done.Seconds())
			l.Sending = max(l.Sending, o.sent.Seconds())
			switch {
			case o.status >= 200 && o.status <= 299:
				l.Admitted++
				l.Offered++
			case o.status == http.StatusTooManyRequests:
				l.Offered++
			default:
				l.Undecided++
			}
		}
		l.InFlight = peakInFlight(own)
	}
	return limits
}

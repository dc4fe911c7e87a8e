// Package telemetry counts finished calls for Prometheus. Labels come from configured names and fixed words alone: what a
// client makes up counts as "other", so that no client can grow the number of series.
package telemetry

import (
	"context"
	"fmt"
	"strconv"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/plugins"
)

// ID is the plugin's name in configuration, logs and metrics.
const ID = "telemetry"

const (
	other = "other" // a name that no configuration knows
	none  = "none"  // there was none
)

// Module is what the application's list of plugins names. The plugin has no settings.
func Module() plugins.Module {
	return plugins.Module{ID: ID, New: func(env plugins.Env, cfg plugins.Config) (plugins.Plugin, error) {
		if err := cfg.Decode(&struct{}{}); err != nil {
			return nil, fmt.Errorf("decode settings of telemetry: %w", err)
		}
		return newRecorder(env.Metrics), nil
	}}
}

type recorder struct {
	requests  func(values ...string)
	duration  func(value float64, values ...string)
	firstByte func(value float64, values ...string)
	overhead  func(value float64, values ...string)
	attempts  func(values ...string)
	unpriced  func(values ...string)
	tokens    func(value float64, values ...string)
	cost      func(value float64, values ...string)
}

var _ plugins.Recorder = (*recorder)(nil)

func newRecorder(r plugins.Registry) *recorder {
	seconds := []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
	ours := []float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5}
	tokens := []float64{1, 10, 100, 1_000, 10_000, 100_000, 1_000_000}
	dollars := []float64{0.00001, 0.0001, 0.001, 0.01, 0.1, 1, 10}
	return &recorder{
		requests:  r.Counter("tollgate_requests_total", "Finished requests.", "route", "model", "provider", "status", "code"),
		duration:  r.Histogram("tollgate_request_duration_seconds", "From the request's arrival to the end of its answer.", seconds, "route", "model"),
		firstByte: r.Histogram("tollgate_first_byte_seconds", "From the request's arrival to the first byte of its answer.", seconds, "route", "model"),
		overhead:  r.Histogram("tollgate_overhead_seconds", "Tollgate's own share of a request.", ours, "route"),
		attempts:  r.Counter("tollgate_attempts_total", "Forwarded attempts by how they ended and where their usage comes from.", "model", "provider", "outcome", "usage_source"),
		unpriced:  r.Counter("tollgate_unpriced_requests_total", "Forwarded attempts at targets without a price.", "model", "provider"),
		tokens:    r.Histogram("tollgate_tokens", "Tokens of a settled attempt; the sum is their total.", tokens, "model", "provider", "direction"),
		cost:      r.Histogram("tollgate_cost_usd", "Cost of a settled attempt in US dollars, for dashboards: the ledger is exact.", dollars, "model", "provider"),
	}
}

// ID implements plugins.Plugin.
func (*recorder) ID() string { return ID }

// Record implements plugins.Recorder.
func (t *recorder) Record(_ context.Context, r plugins.Record) {
	route, model := or(r.Call.Route, none), modelOf(r.Call)
	provider := none
	for i := range r.Attempts {
		provider = providerOf(r.Attempts[i].Target)
		t.attempt(r.Call, &r.Attempts[i], model, provider)
	}
	code := none
	if r.Err != nil {
		code = string(governance.CodeOf(r.Err))
	}
	t.requests(route, model, provider, class(r.Status), code)
	t.duration(r.Total.Seconds(), route, model)
	t.overhead(r.Overhead.Seconds(), route)
	if r.FirstByte > 0 {
		t.firstByte(r.FirstByte.Seconds(), route, model)
	}
}

func (t *recorder) attempt(c *plugins.Call, a *plugins.Attempt, model, provider string) {
	s := &a.Settlement
	if s.Release {
		return
	}
	t.attempts(model, provider, or(string(s.Outcome), none), or(string(s.Source), none))
	if a.Target != nil && c.Demand.Unpriced(a.Target) {
		t.unpriced(model, provider)
	}
	if s.Source == governance.UsageZero {
		return
	}
	t.tokens(float64(s.Quantities.InputTokens()), model, provider, "input")
	t.tokens(float64(s.Quantities.OutputTokens()), model, provider, "output")
	t.cost(float64(s.Cost)/1e9, model, provider)
}

// modelOf returns the public name once it is known to be configured.
func modelOf(c *plugins.Call) string {
	switch {
	case c.Resolved.Model != nil:
		return c.Resolved.Model.Name
	case c.Model != "":
		return other
	default:
		return none
	}
}

func providerOf(t *governance.Target) string {
	if t == nil {
		return none
	}
	return or(t.Provider.Name, other)
}

// class returns the class of a status: "2xx".
func class(status int) string {
	if status < 100 || status > 599 {
		return none
	}
	return strconv.Itoa(status/100) + "xx"
}

func or(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}

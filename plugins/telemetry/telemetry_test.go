package telemetry_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/plugins"
	"github.com/tollgate-gateway/tollgate/plugins/plugintest"
	"github.com/tollgate-gateway/tollgate/plugins/telemetry"
)

func recorder(t *testing.T) (plugins.Recorder, *plugintest.Metrics) {
	t.Helper()
	env := plugintest.NewEnv()
	p, err := telemetry.Module().New(env.Plugins(t), plugintest.Config(""))
	require.NoError(t, err)
	return p.(plugins.Recorder), env.Metrics
}

func settled(c *plugins.Call, source governance.UsageSource) plugins.Attempt {
	s := governance.Settlement{Outcome: governance.OutcomeComplete, Source: source, Cost: 1_500_000_000}
	s.Quantities[governance.UnitInput] = 70
	s.Quantities[governance.UnitCacheRead] = 30
	s.Quantities[governance.UnitOutput] = 8
	return plugins.Attempt{Target: c.Target, Settlement: s}
}

func TestRecord(t *testing.T) {
	t.Parallel()
	r, m := recorder(t)
	c := plugintest.Call()
	released := settled(c, governance.UsageZero)
	released.Settlement.Release = true
	r.Record(t.Context(), plugins.Record{
		Call: c, Status: 200, Total: 2 * time.Second, FirstByte: 500 * time.Millisecond, Overhead: time.Millisecond,
		Attempts: []plugins.Attempt{released, settled(c, governance.UsageProvider)},
	})
	const name, provider = "gpt-4o", "openai"
	require.InDelta(t, 1, m.Value("tollgate_requests_total", "chat.completions", name, provider, "2xx", "none"), 0)
	require.InDelta(t, 1, m.Value("tollgate_attempts_total", name, provider, "complete", "provider"), 0)
	require.InDelta(t, 100, m.Value("tollgate_tokens", name, provider, "input"), 0)
	require.InDelta(t, 8, m.Value("tollgate_tokens", name, provider, "output"), 0)
	require.InDelta(t, 1.5, m.Value("tollgate_cost_usd", name, provider), 1e-12)
	require.InDelta(t, 2, m.Value("tollgate_request_duration_seconds", "chat.completions", name), 1e-9)
	require.InDelta(t, 0.5, m.Value("tollgate_first_byte_seconds", "chat.completions", name), 1e-9)
	require.InDelta(t, 0.001, m.Value("tollgate_overhead_seconds", "chat.completions"), 1e-9)
	require.Zero(t, m.Value("tollgate_unpriced_requests_total", name, provider))
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	r, m := recorder(t)
	c := plugintest.Call()
	r.Record(t.Context(), plugins.Record{Call: c, Status: 429, Err: fmt.Errorf("serve: %w", &governance.Error{Code: governance.CodeBudgetExceeded})})
	require.InDelta(t, 1, m.Value("tollgate_requests_total", "chat.completions", "gpt-4o", "none", "4xx", "budget_exceeded"), 0)
	r.Record(t.Context(), plugins.Record{Call: &plugins.Call{}})
	require.InDelta(t, 1, m.Value("tollgate_requests_total", "none", "none", "none", "none", "none"), 0)
}

func TestF040_UnpricedAttemptsAreCounted(t *testing.T) {
	t.Parallel()
	r, m := recorder(t)
	c := plugintest.Call()
	unpriced := *c.Target
	unpriced.Price = nil
	a := settled(c, governance.UsageProvider)
	a.Target = &unpriced
	r.Record(t.Context(), plugins.Record{Call: c, Status: 200, Attempts: []plugins.Attempt{a}})
	require.InDelta(t, 1, m.Value("tollgate_unpriced_requests_total", "gpt-4o", "openai"), 0)
}

func TestF056_MissingUsageIsCounted(t *testing.T) {
	t.Parallel()
	r, m := recorder(t)
	c := plugintest.Call()
	r.Record(t.Context(), plugins.Record{Call: c, Status: 200, Attempts: []plugins.Attempt{settled(c, governance.UsageEstimate)}})
	require.InDelta(t, 1, m.Value("tollgate_attempts_total", "gpt-4o", "openai", "complete", "estimate"), 0)
}

func TestF206_ClientsCannotGrowTheSeries(t *testing.T) {
	t.Parallel()
	r, m := recorder(t)
	for i := range 20_000 {
		r.Record(t.Context(), plugins.Record{
			Call: &plugins.Call{Model: fmt.Sprint("typo-", i)}, Status: 404,
			Err: &governance.Error{Code: governance.CodeModelNotFound},
		})
	}
	require.Less(t, m.Series(), 5)
	require.InDelta(t, 20_000, m.Value("tollgate_requests_total", "none", "other", "none", "4xx", "model_not_found"), 0)
}

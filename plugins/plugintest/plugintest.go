// Package plugintest checks what every plugin must hold to, whatever it does, and stands in for what surrounds it.
package plugintest

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/apikey"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/plugins"
)

const (
	patience = 10 * time.Second
	workers  = 8
	rounds   = 50
)

// Run checks a module against the contract of package plugins. section is a valid configuration. The test's TestMain should
// check for leaked goroutines.
func Run(t *testing.T, m plugins.Module, section Config) {
	t.Helper()
	t.Run("settings", func(t *testing.T) {
		t.Parallel()
		p, err := m.New(NewEnv().Plugins(t), section)
		require.NoError(t, err)
		require.NotEmpty(t, m.ID)
		require.Equal(t, m.ID, p.ID())
		_, err = m.New(NewEnv().Plugins(t), Config("no_such_setting: 1"))
		require.Error(t, err, "unknown members are refused")
		require.True(t, actsSomewhere(p), "a plugin without a stage does nothing")
	})
	t.Run("calls", func(t *testing.T) {
		t.Parallel()
		calls(t, m, section)
	})
	t.Run("background life", func(t *testing.T) {
		t.Parallel()
		life(t, m, section)
	})
}

func actsSomewhere(p plugins.Plugin) bool {
	switch p.(type) {
	case plugins.Authenticator, plugins.Resolver, plugins.Guard, plugins.Charger,
		plugins.StreamObserver, plugins.AnswerGuard, plugins.AnswerCache, plugins.Recorder:
		return true
	}
	return false
}

// calls lets many goroutines take the plugin through whole calls and through calls that ended early. Run it with -race.
func calls(t *testing.T, m plugins.Module, section Config) {
	t.Helper()
	p, err := m.New(NewEnv().Plugins(t), section)
	require.NoError(t, err)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for range rounds {
				call(t, p, Call(), true)
				call(t, p, &plugins.Call{ID: ids.New(time.Now()), Received: Received()}, false)
			}
		})
	}
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("the plugin makes its caller wait")
	}
}

// call takes a plugin through the stages that it has. whole says that the call got as far as a target.
func call(t *testing.T, p plugins.Plugin, c *plugins.Call, whole bool) {
	before := *c
	before.Tags, before.Header = maps.Clone(c.Tags), c.Header.Clone()
	ctx := t.Context()
	if a, ok := p.(plugins.Authenticator); ok {
		_, err := a.Authenticate(ctx, c)
		acceptable(t, err)
	}
	if r, ok := p.(plugins.Resolver); ok && whole {
		_, err := r.Resolve(ctx, c)
		acceptable(t, err)
	}
	if g, ok := p.(plugins.Guard); ok && whole {
		_, err := g.Guard(ctx, c)
		acceptable(t, err)
	}
	if ch, ok := p.(plugins.Charger); ok && whole {
		one, err := ch.Charge(c)
		acceptable(t, err)
		two, _ := ch.Charge(c)
		if !reflect.DeepEqual(one, two) {
			t.Errorf("charging the same call twice gives %v and %v", one, two)
		}
		for _, h := range one {
			if h.Amount <= 0 || h.Limit == nil || h.Subject == 0 {
				t.Errorf("hold without a limit, a subject or an amount: %+v", h)
			}
		}
	}
	ev := sse.Event{Raw: []byte("data: {}\n\n"), Data: []byte("{}")}
	if o, ok := p.(plugins.StreamObserver); ok && whole {
		o.Observe(c, ev)
	}
	if g, ok := p.(plugins.AnswerGuard); ok && whole {
		if judge := g.GuardAnswer(c); judge != nil {
			_, err := judge.Event(ctx, ev)
			acceptable(t, err)
			_, err = judge.End(ctx)
			acceptable(t, err)
		}
	}
	if k, ok := p.(plugins.AnswerCache); ok && whole {
		_, slot, err := k.Lookup(ctx, c)
		acceptable(t, err)
		if slot.Room > 0 {
			slot.Keep(plugins.Answer{Body: make([]byte, slot.Room), At: time.Now()})
		}
	}
	if r, ok := p.(plugins.Recorder); ok {
		r.Record(ctx, record(c, whole))
	}
	if f, ok := p.(plugins.Finisher); ok {
		f.Finish(c, nil)
		f.Finish(c, errors.New("told twice"))
	}
	if !reflect.DeepEqual(before, *c) {
		t.Error("only the chain writes to a call")
	}
}

// acceptable refuses errors that a chain cannot tell from a failure of the plugin.
func acceptable(t *testing.T, err error) {
	if err == nil || errors.Is(err, plugins.ErrNotMine) {
		return
	}
	if e, ok := errors.AsType[*governance.Error](err); !ok || e.Code == "" || e.Public == "" {
		t.Errorf("a decision needs a code and a text for the client: %v", err)
	}
}

// life checks that Run ends with its context, and that a plugin whose Run is not running neither blocks nor fails.
func life(t *testing.T, m plugins.Module, section Config) {
	t.Helper()
	p, err := m.New(NewEnv().Plugins(t), section)
	require.NoError(t, err)
	r, ok := p.(plugins.Runner)
	if !ok {
		return
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	call(t, p, Call(), true)
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			require.ErrorIs(t, err, context.Canceled)
		}
	case <-time.After(patience):
		t.Fatal("Run goes on after its context has ended")
	}
	call(t, p, Call(), true)
}

// Call returns a call that has been through the resolve stage and is about to be charged: a chat of organization 1, team 2,
// key 3, user 4 and end user 5 to model 6 at target 7, which costs 3 $ a million input tokens and 15 $ output tokens. Its
// key has a limit of each kind.
func Call() *plugins.Call {
	body, err := jsonedit.Parse([]byte(`{"model":"gpt-4o","messages":[{"role":"user","content":"Say it."}],"max_tokens":100}`))
	if err != nil {
		panic(err)
	}
	demand, err := governance.DemandOf(governance.RouteChat, body)
	if err != nil {
		panic(err)
	}
	var prices governance.UnitPrices
	prices[governance.UnitInput] = 3_000_000_000
	prices[governance.UnitOutput] = 15_000_000_000
	target := &governance.Target{
		Meta: governance.Meta{Num: 7, ID: "tgt_000000000007"}, Provider: governance.Ref{Num: 8, Name: "openai"},
		ProviderKind: "openai", UpstreamModel: "gpt-4o",
		Price: &governance.PriceVersion{Num: 9, Tiers: []governance.PriceTier{{Prices: prices}}},
	}
	model := &governance.Model{
		Meta: governance.Meta{Num: 6, ID: "model_000000000006"}, Name: "gpt-4o",
		Targets: []governance.ModelTarget{{Target: governance.Ref{Num: 7}, Weight: 1}},
	}
	var limits []*governance.Limit
	for i, kind := range []governance.Kind{governance.KindRate, governance.KindBudget, governance.KindConcurrency} {
		l := &governance.Limit{
			Meta: governance.Meta{Num: int64(20 + i)}, Kind: kind, Metric: governance.MetricRequests, Amount: 10,
			Scope: governance.Scope{Type: governance.ScopeKey, Subject: governance.Ref{Num: 3}},
		}
		if kind == governance.KindBudget {
			l.Metric = governance.MetricCost
		}
		limits = append(limits, l)
	}
	return &plugins.Call{
		ID: ids.New(Received()), Route: governance.RouteChat, Received: Received(), RemoteIP: "192.0.2.1",
		Credential: unknownKey(), Body: body, Model: "gpt-4o", EndUser: "eve", EndUserNum: 5,
		Tags: map[string]string{"project": "x"}, Demand: demand,
		Principal: governance.Principal{
			Organization: governance.Ref{Num: 1, ID: "org_000000000001"}, Team: governance.Ref{Num: 2, ID: "team_000000000002"},
			Key: governance.Ref{Num: 3, ID: "key_000000000003"}, User: governance.Ref{Num: 4, ID: "user_000000000004"},
		},
		Catalog:  governance.NewCatalog(1, Received(), []*governance.Model{model}, []*governance.Target{target}, limits),
		Resolved: governance.Route{Model: model, Targets: []*governance.Target{target}},
		Target:   target, Attempt: 1,
	}
}

// WithLimits gives the call a picture that has the given limits besides its model and target.
func WithLimits(c *plugins.Call, limits ...*governance.Limit) *plugins.Call {
	c.Catalog = governance.NewCatalog(2, Received(), []*governance.Model{c.Resolved.Model}, c.Resolved.Targets, limits)
	return c
}

func unknownKey() secret.String {
	key, _ := apikey.New()
	return key
}

func record(c *plugins.Call, whole bool) plugins.Record {
	r := plugins.Record{Call: c, Status: 401, Err: &governance.Error{Code: governance.CodeInvalidAPIKey, Public: "No."}, Total: time.Millisecond}
	if whole {
		r.Status, r.Err, r.FirstByte = 200, nil, time.Millisecond
		r.Attempts = []plugins.Attempt{{
			ID: ids.New(Received()), Target: c.Target, RawUsage: []byte(`{"prompt_tokens":1}`),
			Settlement: governance.Settlement{Outcome: governance.OutcomeComplete, Source: governance.UsageProvider},
		}}
	}
	return r
}

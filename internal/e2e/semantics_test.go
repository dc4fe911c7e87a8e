package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/mock"
)

// free offers a model that costs nothing, explicitly.
func (f *fleet) free(name string) {
	f.t.Helper()
	f.create("prices", object{"provider": "mock", "upstream_model": name, "free": true, "effective_from": "2026-01-01T00:00:00Z"})
	f.create("models", object{"name": name, "targets": []object{{"provider_id": f.provider, "upstream_model": name}}})
}

// details returns what an error says about the limit that refused.
func details(t *testing.T, a answer) object {
	t.Helper()
	e, _ := a.json(t)["error"].(object)
	d, _ := e["details"].(object)
	require.NotNil(t, d, "%s", a.body)
	return d
}

// scopesOf lists the scopes of all limits that refused, the one that speaks first.
func scopesOf(t *testing.T, a answer) []string {
	t.Helper()
	d := details(t, a)
	var scopes []string
	for _, l := range append([]object{d}, items(d["others"])...) {
		scope, _ := l["scope"].(object)
		scopes = append(scopes, text(scope["type"]))
	}
	return scopes
}

// What a budget means, seen from outside: where money limits end and what they leave alone.
func TestBudgetsMean(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	g := f.gateways[0]
	f.free("free")
	f.create("models", object{"name": "alias-of-free", "targets": []object{{"provider_id": f.provider, "upstream_model": "free"}}})
	f.addModel("paid", "paid")
	f.create("prices", object{"provider": "mock", "upstream_model": "fails", "free": true, "effective_from": "2026-01-01T00:00:00Z"})
	f.create("models", object{"name": "free-then-paid", "targets": []object{
		{"provider_id": f.provider, "upstream_model": "fails", "priority": 0}, {"provider_id": f.provider, "upstream_model": "paid", "priority": 1},
	}})
	f.create("models", object{"name": "unpriced", "targets": []object{{"provider_id": f.provider, "upstream_model": "of-no-book"}}})
	exhausted, _ := f.issue(forever("cost", "0"))
	f.awaitModels(exhausted, "free", "alias-of-free", "free-then-paid", "unpriced", "paid")
	call := func(t *testing.T, key, body string) answer {
		t.Helper()
		return must(t)(g.call(t.Context(), key, "/v1/chat/completions", body))
	}

	// A free model is tried, fails, and its paid fallback is a request of its own for the budget.
	t.Run("F011_PaidFallbackOfAFreeModel", func(t *testing.T) {
		f.script("fails", "status(500)")
		before := f.forwarded()
		a := call(t, exhausted, named("free-then-paid"))
		require.Equal(t, http.StatusTooManyRequests, a.status, "%s", a.body)
		require.Equal(t, "budget_exceeded", a.code())
		require.Equal(t, before+1, f.forwarded(), "the paid target was called")
		require.Zero(t, f.seen("paid"))
		rich, id := f.issue(forever("cost", "1"))
		a = call(t, rich, named("free-then-paid"))
		require.Equal(t, http.StatusOK, a.status, "%s", a.body)
		require.Equal(t, 1, f.seen("paid"))
		rows := f.rowsOf("key_id", id)
		require.Len(t, rows, 2)
		require.ElementsMatch(t, []any{"upstream_error 0", "complete 0.000094"}, []any{
			text(rows[0]["outcome"]) + " " + text(rows[0]["cost_usd"]), text(rows[1]["outcome"]) + " " + text(rows[1]["cost_usd"]),
		})
	})

	// No budget is no budget, and none at all is nothing.
	t.Run("F016_NullAndZero", func(t *testing.T) {
		unlimited := forever("cost", "")
		unlimited["amount"] = nil
		key, id := f.issue(unlimited)
		require.Equal(t, http.StatusOK, call(t, key, helloChat).status)
		require.Equal(t, "0.000094", text(f.state(f.limitsOf(id)[0])["spent"]), "what is unlimited is counted")
		before := f.forwarded()
		zero, zeroID := f.issue(forever("cost", "0"))
		a := call(t, zero, helloChat)
		require.Equal(t, http.StatusTooManyRequests, a.status)
		require.Equal(t, "budget_exceeded", a.code())
		require.Equal(t, before, f.forwarded())
		d := details(t, a)
		require.Equal(t, object{"type": "key", "id": zeroID}, d["scope"])
		require.Equal(t, []any{f.limitsOf(zeroID)[0], "cost", "0", "0"}, []any{d["limit"], d["metric"], d["amount"], d["spent"]})
	})

	// Money is no limit for what costs none, by whatever name; tokens still are.
	t.Run("F017_FreeModels", func(t *testing.T) {
		for _, model := range []string{"free", "alias-of-free"} {
			a := call(t, exhausted, named(model))
			require.Equal(t, http.StatusOK, a.status, "%s", a.body)
			rows := f.rowsOf("request_id", a.header.Get("x-request-id"))
			require.Len(t, rows, 1)
			require.Equal(t, []any{"complete", "0"}, []any{rows[0]["outcome"], rows[0]["cost_usd"]})
		}
		tokens, _ := f.issue(forever("tokens", "0"))
		a := call(t, tokens, named("free"))
		require.Equal(t, http.StatusTooManyRequests, a.status, "%s", a.body)
		require.Equal(t, "budget_exceeded", a.code())
	})

	// What has no price is refused to who has a budget, and never booked as free in silence.
	t.Run("F040_UnpricedModels", func(t *testing.T) {
		before := f.forwarded()
		rich, _ := f.issue(forever("cost", "1000"))
		for _, key := range []string{rich, exhausted} {
			a := call(t, key, named("unpriced"))
			require.Equal(t, http.StatusUnprocessableEntity, a.status, "%s", a.body)
			require.Equal(t, "model_unpriced", a.code())
		}
		require.Equal(t, before, f.forwarded())
		unbudgeted, _ := f.issue()
		a := call(t, unbudgeted, named("unpriced"))
		require.Equal(t, http.StatusOK, a.status, "%s", a.body)
		require.Empty(t, a.header.Get("x-tollgate-cost-usd"))
		rows := f.rowsOf("request_id", a.header.Get("x-request-id"))
		require.Len(t, rows, 1)
		require.Equal(t, []any{"0", nil}, []any{rows[0]["cost_usd"], rows[0]["price_version"]})
	})
	f.requireBooksBalance()
	f.requireOneRowPerForward()
}

// Every limit of the chain binds, and each one that refuses is named: all sixteen ways in which organization, team, key and
// user can have used up their budgets.
func TestF026_EveryScopeOfTheChainBinds(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	scopes := []string{"organization", "team", "key", "user"}
	type combination struct {
		key  string
		gone []string
		last string // limit
	}
	var all []combination
	for bits := range 1 << len(scopes) {
		org := text(f.create("organizations", object{"name": fmt.Sprintf("Org %d", bits)})["id"])
		team := text(f.create("teams", object{"organization_id": org, "name": "Team"})["id"])
		user := text(f.create("users", object{"organization_id": org, "name": "User", "email": fmt.Sprintf("user%d@example.com", bits)})["id"])
		key := f.create("keys", object{"team_id": team, "user_id": user, "name": "Key"})
		subjects := map[string]string{"organization": org, "team": team, "key": text(key["id"]), "user": user}
		c := combination{key: text(key["key"])}
		for i, scope := range scopes {
			amount := "1"
			if bits>>i&1 == 1 {
				amount, c.gone = "0", append(c.gone, scope)
			}
			c.last = f.limit(object{"type": scope, "id": subjects[scope]}, forever("cost", amount))
		}
		all = append(all, c)
	}
	last := all[len(all)-1]
	f.awaitLimit(last.key, "plain", last.last)
	for _, c := range all {
		before := f.forwarded()
		a := must(t)(f.gateways[0].call(t.Context(), c.key, "/v1/chat/completions", helloChat))
		if len(c.gone) == 0 {
			require.Equal(t, http.StatusOK, a.status, "%s", a.body)
			continue
		}
		require.Equal(t, http.StatusTooManyRequests, a.status, "%v: %s", c.gone, a.body)
		require.Equal(t, "budget_exceeded", a.code())
		named := scopesOf(t, a)
		require.ElementsMatch(t, c.gone, named, "%s", a.body)
		require.True(t, slices.IsSortedFunc(named, func(a, b string) int { return slices.Index(scopes, a) - slices.Index(scopes, b) }),
			"of equals the first of the chain speaks: %v", named)
		require.Equal(t, before, f.forwarded())
	}
	f.requireBooksBalance()
	f.requireOneRowPerForward()
}

// A bucket of tokens moves by what a call really used, once, however the usage is told: in one answer, in a stream, in each
// frame of it, or not at all.
func TestTokensAreCountedAsUsed(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	g := f.gateways[0]
	const bucket = 100_000 // a day: it refills by one in 0.9 s, which the tests allow for
	for _, c := range []struct {
		name, script string
		stream       bool
		tokens       int64 // -1: an estimate
		source       string
	}{
		{"F062_Unary", "usage(200,300)", false, 500, "provider"},
		{"F062_Stream", "usage(200,300)", true, 500, "provider"},
		{"F064_EachFrameAndAtTheEnd", "usage_each_frame_cumulative", true, 11, "provider"},
		{"F092_ManyCumulativeFrames", "usage_each_frame_cumulative,words(40)", true, 42, "provider"},
		{"F056_NoUsageUnary", "ok_no_usage", false, -1, "estimate"},
		{"F056_NoUsageStream", "ok_no_usage", true, -1, "estimate"},
		{"ExplicitZero", "usage(0,0)", false, 0, "zero"},
	} {
		t.Run(c.name, func(t *testing.T) {
			model := strings.ToLower(c.name)
			f.addModel(model, model)
			f.script(model, c.script)
			key, id := f.issue(perDay("tokens", fmt.Sprint(bucket)))
			f.awaitModels(key, model)
			body := named(model)
			if c.stream {
				body = streaming(body)
			}
			a := must(t)(g.call(t.Context(), key, "/v1/chat/completions", body))
			require.Equal(t, http.StatusOK, a.status, "%s", a.body)
			rows := f.rowsOf("key_id", id)
			require.Len(t, rows, 1)
			require.Equal(t, c.source, rows[0]["usage_source"])
			quantities, _ := rows[0]["quantities"].(object)
			booked := max(number(quantities["input"]), 0) + max(number(quantities["output"]), 0)
			taken := bucket - number(f.state(f.limitsOf(id)[0])["remaining"])
			if c.tokens >= 0 {
				require.Equal(t, c.tokens, booked)
				require.InDelta(t, c.tokens, taken, 5)
				return
			}
			require.Positive(t, booked)
			require.GreaterOrEqual(t, taken+5, booked, "a bucket keeps the reservation where nothing is known")
			require.Positive(t, f.metric("tollgate_gateway_usage_missing_total", "mock"))
		})
	}
	f.requireBooksBalance()
	f.requireOneRowPerForward()
}

// What an answer used beyond its reservation is owed: nobody passes before that has been repaid (F058), and raising the
// limit does not forgive it.
func TestF058_DebtIsRepaidFirst(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{gateways: 2})
	f.addModel("talks", "talks")
	require.NoError(t, f.mock.SetScript(mock.Rule{Script: "usage(100,1100)", Times: 1, Match: map[string]string{"model": "talks"}}))
	key, id := f.issue(perDay("tokens", "1000"))
	f.awaitModels(key, "talks")
	limit := f.limitsOf(id)[0]
	short := strings.Replace(named("talks"), "{", `{"max_tokens":10,`, 1)
	require.Equal(t, map[string]int{"200": 1}, tally(f.closedLoop(1, 1, chat(key, short))))
	indebted := time.Now()
	state := f.state(limit)
	require.InDelta(t, 200, number(state["debt"]), 2, "%v", state)
	require.Equal(t, "0", text(state["remaining"]))
	for _, o := range f.closedLoop(2, 6, chat(key, short)) {
		require.Equal(t, http.StatusTooManyRequests, o.status, "%s", o.body)
		require.Equal(t, "token_limit_exceeded", o.code(), "the error names the limit that refused")
		require.Empty(t, o.header.Get("Retry-After"), "a wait above 60 s is not asked for")
		require.NotEmpty(t, details(t, o.answer)["resets_at"])
	}
	require.EqualValues(t, 1, f.forwarded())
	f.patch("limits/"+limit, object{"amount": "2000"})
	require.InDelta(t, 200, number(f.state(limit)["debt"]), 3, "a larger bucket forgives nothing")
	require.Equal(t, map[string]int{"429 token_limit_exceeded": 2}, tally(f.closedLoop(1, 2, chat(key, short))))
	f.patch("limits/"+limit, object{"amount": "17280000"}) // 200 a second
	f.eventually(10*time.Second, "the debt is repaid", func() bool {
		a, err := f.gateways[1].call(t.Context(), key, "/v1/chat/completions", short)
		return err == nil && a.status == http.StatusOK
	})
	require.Greater(t, time.Since(indebted), time.Second, "the debt was not repaid first")
	f.requireBooksBalance()
	f.requireOneRowPerForward()
}

// Slots and requests are counted over the fleet: four slots hold four calls, wherever they run (F049), and five requests a
// minute are five of twenty that come at once (F046). Each refusal names its limit (F052).
func TestF046_F049_F052_CountsAreTheFleets(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{gateways: 2})
	slots, slotsID := f.issue(object{"kind": "concurrency", "amount": "4"})
	f.script("plain", "hold")
	var refused atomic.Int64
	done := make(chan map[string]int, 1)
	go func() {
		done <- tally(f.atOnce(20, func(ctx context.Context, g *process, i int) (answer, error) {
			a, err := chat(slots, helloChat)(ctx, g, i)
			if err == nil && a.status != http.StatusOK {
				refused.Add(1)
			}
			return a, err
		}))
	}()
	f.eventually(20*time.Second, "sixteen are refused", func() bool { return refused.Load() == 16 })
	f.eventually(10*time.Second, "four are upstream", func() bool { return f.mock.Counts().InFlight == 4 })
	f.mock.Release(0, 1)
	require.Equal(t, map[string]int{"200": 4, "429 concurrency_exceeded": 16}, <-done)
	require.Equal(t, 4, f.mock.Counts().InFlightMax)
	f.eventually(20*time.Second, "the slots are free", func() bool { return text(f.state(f.limitsOf(slotsID)[0])["held"]) == "0" })

	f.mock.ClearScripts()
	requests, _ := f.issue(perMinute("5"))
	require.Equal(t, map[string]int{"200": 5, "429 rate_limit_exceeded": 15}, tally(f.atOnce(20, chat(requests, helloChat))))
	f.requireBooksBalance()
	f.requireOneRowPerForward()
}

// A limit of tokens counts tokens, from the first call on (F047): what two calls use is what two calls get, and the third one
// waits.
func TestF047_TokensAreCountedAtAdmission(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	const body = `{"model":"plain","max_tokens":1,"messages":[{"role":"user","content":"seven tokens of a prompt, or so"}]}`
	g := f.gateways[0]
	free, _ := f.issue()
	probe := must(t)(g.call(t.Context(), free, "/v1/chat/completions", body, "X-Tollgate-Dry-Run", "true"))
	require.Equal(t, http.StatusOK, probe.status, "%s", probe.body)
	estimate, _ := probe.json(t)["estimate"].(object)
	input, _ := estimate["input_tokens"].(float64)
	require.Greater(t, input, 1.0)
	each := int(input) + 1
	f.script("plain", fmt.Sprintf("usage(%d,1)", each-1))
	key, _ := f.issue(object{"kind": "rate", "metric": "tokens", "amount": strconv.Itoa(2 * each), "per": "24h"})
	for _, want := range []int{http.StatusOK, http.StatusOK, http.StatusTooManyRequests} {
		a := must(t)(g.call(t.Context(), key, "/v1/chat/completions", body))
		require.Equal(t, want, a.status, "%s", a.body)
		if want != http.StatusOK {
			require.Equal(t, "token_limit_exceeded", a.code())
		}
	}
	require.Equal(t, int64(2), f.mock.Counts().Count)
	f.requireBooksBalance()
}

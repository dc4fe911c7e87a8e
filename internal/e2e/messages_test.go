package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/mock"
)

// claudes are the models at the upstream that speaks Anthropic's dialect, by the scripts that it follows.
var claudes = map[string]string{
	"claude":            "ok",
	"claude-tools":      "thinking,parallel_tools_in_one_frame",
	"claude-thinks":     "thinking",
	"claude-cached":     "usage(1000,50,600),cache_writes(300,100)",
	"claude-bad":        "status(400)",
	"claude-overloaded": "status(529)",
	"claude-throttled":  "status(429),retry_after(1)",
	"claude-auth":       "status(401)",
	"claude-reset":      "reset_before_bytes",
	"claude-error":      "mid_stream_error(object,5)",
	"claude-cut":        "reset_after(5)",
	"claude-ends-early": "clean_close_without_done(7)",
	"claude-dribbles":   "byte_dribble(3)",
	"claude-refuses":    "refusal",
}

// cachePrices are what the models of the Anthropic upstream cost besides input and output, in USD per million tokens.
var cachePrices = map[string]string{"cache_read": "0.2", "cache_write_5m": "2.5", "cache_write_1h": "4"}

// dialectFleet is a fleet whose models are at upstreams of both dialects, and the libraries of both.
type dialectFleet struct {
	*fleet
	claudes, openAIs []sdk
}

func startDialectFleet(t *testing.T) *dialectFleet {
	t.Helper()
	f := &dialectFleet{startFleet(t, fleetOptions{}), anthropicSDKs(t), sdks(t)}
	provider := f.create("providers", object{
		"name": "claude", "kind": "anthropic", "base_url": f.upstream, "credential": "sk-upstream-marker", "price_provider": "mock",
	})["id"]
	for name, script := range claudes {
		upstream := "mock-" + script
		prices := map[string]string{"input": inputPrice, "output": outputPrice}
		if name == "claude-cached" {
			for unit, price := range cachePrices {
				prices[unit] = price
			}
		}
		for unit, price := range prices {
			f.create("prices", object{
				"provider": "mock", "upstream_model": upstream, "unit": unit, "usd_per_million": price, "effective_from": "2026-01-01T00:00:00Z",
			})
		}
		f.create("models", object{"name": name, "targets": []object{{"provider_id": provider, "upstream_model": upstream, "weight": 1, "priority": 0}}})
	}
	for _, name := range []string{"tools", "bad-request", "throttled", "down", "error-frame", "cut", "ends-early", "dribble", "no-usage", "interleaved"} {
		f.addModel(name, "mock-"+upstreams[name])
	}
	f.addModelWithoutStreamOptions(withoutUsage)
	key, _ := f.issue()
	f.awaitModels(key, withoutUsage)
	return f
}

// ask makes a task of a library for the first gateway. Anthropic's libraries add the version to the base URL themselves.
func (f *dialectFleet) ask(op, model, key string) task {
	k := task{Op: op, BaseURL: f.gateways[0].baseURL, Key: key, Model: model, Text: "hello"}
	if op == opChat || op == opStream || op == opStreamHelper || op == opTools {
		k.BaseURL += "/v1"
	}
	return k
}

func each(t *testing.T, libraries []sdk, test func(*testing.T, sdk)) {
	t.Helper()
	for _, lib := range libraries {
		t.Run(lib.name, func(t *testing.T) {
			t.Parallel()
			test(t, lib)
		})
	}
}

// done does a task that must succeed.
func done(t *testing.T, lib sdk, k task) report {
	t.Helper()
	r := lib.do(t.Context(), k)
	require.Nil(t, r.Error, "%s of %s: %+v", k.Op, k.Model, r.Error)
	return r
}

var (
	saidWords = []string{mock.DefaultText}
	chatTools = []toolCall{{"call_mock_0", "weather", `{"city":"Paris"}`}, {"call_mock_1", "weather", `{"city":"Rome"}`}}
	toolTurns = []toolCall{{"toolu_mock_0", "weather", `{"city":"Paris"}`}, {"toolu_mock_1", "weather", `{"city":"Rome"}`}}
)

// Anthropic's libraries get from the gateway what they get from Anthropic itself, and from upstreams of OpenAI's dialect the
// same in their own; OpenAI's get theirs from Anthropic.
func TestDialects(t *testing.T) {
	t.Parallel()
	f := startDialectFleet(t)
	t.Run("Calls", f.testCalls)
	f.requireBooksBalance()
}

func (f *dialectFleet) testCalls(t *testing.T) {
	t.Run("Frameworks", f.testFrameworks)
	key, _ := f.issue(object{"kind": "budget", "metric": "cost", "amount": "100", "window": object{"type": "total"}})
	broke, _ := f.issue(object{"kind": "budget", "metric": "cost", "amount": "0", "window": object{"type": "total"}})

	t.Run("Messages", func(t *testing.T) {
		t.Parallel()
		each(t, f.claudes, func(t *testing.T, lib sdk) {
			for _, bearer := range []bool{false, true} {
				k := f.ask(opMessages, "claude", key)
				k.Bearer = bearer
				r := done(t, lib, k)
				require.Equal(t, saidWords, r.Texts)
				require.Equal(t, []string{"end_turn"}, r.Finish)
				require.Equal(t, helloUsage(1), r.Usage)
				require.Equal(t, 1, r.Requests)
				receipt := must(t)(f.gateways[0].get(t.Context(), key, "/v1/receipts/"+r.RequestID))
				require.Equal(t, http.StatusOK, receipt.status, "%s", receipt.body)
			}
			for _, base := range []string{"", "/anthropic"} {
				for _, op := range []string{opMessagesStream, opMessagesHelper} {
					k := f.ask(op, "claude", key)
					k.BaseURL += base
					r := done(t, lib, k)
					require.Equal(t, saidWords, r.Texts)
					require.Equal(t, []string{"end_turn"}, r.Finish)
					require.Equal(t, helloUsage(1), r.Usage)
				}
			}
			short := f.ask(opMessagesStream, "claude", key)
			short.MaxTokens = 4
			r := done(t, lib, short)
			require.Equal(t, []string{"The quick brown fox "}, r.Texts)
			require.Equal(t, []string{"max_tokens"}, r.Finish)
			require.Equal(t, "Grüße aus 漢字 🙂 dazu.", done(t, lib, f.ask(opMessagesHelper, "claude-dribbles", key)).Texts[0])
			require.Equal(t, []string{"refusal"}, done(t, lib, f.ask(opMessagesHelper, "claude-refuses", key)).Finish)
		})
	})

	// Thinking comes with its signature, byte for byte, and goes back with the results of the tools (F121, F122).
	t.Run("F121_F122_Tools", func(t *testing.T) {
		t.Parallel()
		each(t, f.claudes, func(t *testing.T, lib sdk) {
			for _, op := range []string{opMessages, opMessagesHelper} {
				r := done(t, lib, f.ask(op, "claude-thinks", key))
				require.Equal(t, mock.Thinking, r.Thinking)
				require.Equal(t, mock.Signature, r.Signature)
			}
			k := f.ask(opMessagesHelper, "claude-tools", key)
			k.Tools = true
			r := done(t, lib, k)
			require.Equal(t, toolTurns, r.Tools)
			require.Equal(t, []string{"tool_use"}, r.Finish)

			k = f.ask(opMessagesTools, "claude-tools", key)
			k.SecondModel, k.Text = "claude", "turns of "+lib.name
			r = done(t, lib, k)
			require.Equal(t, toolTurns, r.Tools)
			require.Equal(t, saidWords, r.Texts)
			second := f.lastOf(t, k.Text)
			require.Contains(t, second, mock.Signature)
		})
	})

	t.Run("CountTokens", func(t *testing.T) {
		t.Parallel()
		each(t, f.claudes, func(t *testing.T, lib sdk) {
			require.Equal(t, &usage{Input: 2}, done(t, lib, f.ask(opCountTokens, "claude", broke)).Usage, "it costs nothing, so no budget refuses it")
			r := lib.do(t.Context(), f.ask(opCountTokens, "plain", key))
			require.NotNil(t, r.Error)
			require.Equal(t, http.StatusNotFound, r.Error.Status, "%+v", r.Error)
			require.Equal(t, "not_found_error", r.Error.Type, "clients then count by themselves (F128)")
		})
	})

	// Ruling 41: with Anthropic's header the list of models is Anthropic's, with the models of all dialects in it.
	t.Run("F142_Models", func(t *testing.T) {
		t.Parallel()
		each(t, f.claudes, func(t *testing.T, lib sdk) {
			for _, base := range []string{"", "/anthropic"} {
				k := f.ask(opModels, "", key)
				k.BaseURL += base
				listed := done(t, lib, k).Models
				require.Contains(t, listed, "claude")
				require.Contains(t, listed, "plain")
				k = f.ask(opModel, "claude", key)
				k.BaseURL += base
				require.Equal(t, []string{"claude"}, done(t, lib, k).Models)
			}
		})
	})

	// F019, F034: what was read from and written to a cache is booked at its own price, to the nano-dollar.
	t.Run("F019_F034_Cost", func(t *testing.T) {
		t.Parallel()
		const body = `{"model":"claude-cached","max_tokens":100,"messages":[{"role":"user","content":"hello"}]}`
		a := must(t)(f.gateways[0].call(t.Context(), key, "/v1/messages", body, "Anthropic-Version", "2023-06-01"))
		require.Equal(t, http.StatusOK, a.status, "%s", a.body)
		require.Equal(t, "0.00257", a.header.Get("X-Tollgate-Cost-Usd"))
		receipt := must(t)(f.gateways[0].get(t.Context(), key, "/v1/receipts/"+a.header.Get("Request-Id"))).json(t)
		require.Equal(t, "0.00257", receipt["cost_usd"], "%v", receipt)
		rows, _ := receipt["rows"].([]any)
		require.Len(t, rows, 1)
		row, _ := rows[0].(object)
		require.Equal(t, object{
			"input": 400., "cache_read": 600., "cache_write_5m": 300., "cache_write_1h": 100., "output": 50., "request": 1.,
		}, row["quantities"])
		require.Equal(t, "provider", row["usage_source"])
	})

	t.Run("Errors", func(t *testing.T) {
		t.Parallel()
		narrow := text(f.create("keys", object{"organization_id": f.org, "name": "narrow", "models": []string{"plain"}})["key"])
		for _, c := range []struct {
			name, key, model string
			status           int
			kind, code       string
			requests         int
		}{
			{"BadKey", "sk-tg-not-a-key", "claude", 401, "authentication_error", "invalid_api_key", 1},
			{"UnknownModel", key, "no-such-model", 404, "not_found_error", "model_not_found", 1},
			{"ForbiddenModel", narrow, "claude", 403, "permission_error", "model_not_allowed", 1},
			{"F215_Budget", broke, "claude", 429, "billing_error", "budget_exceeded", 1},
			{"F215_BudgetTranslated", broke, "plain", 429, "billing_error", "budget_exceeded", 1},
			{"UpstreamRefuses", key, "claude-bad", 400, "invalid_request_error", "", 1},
			{"UpstreamOverloaded", key, "claude-overloaded", 529, "overloaded_error", "", 3},
			{"F055_UpstreamThrottles", key, "claude-throttled", 429, "rate_limit_error", "", 3},
			{"UpstreamRefusesUs", key, "claude-auth", 502, "api_error", "upstream_auth_failed", 3},
			{"F215_WrittenAndLost", key, "claude-reset", 502, "api_error", "upstream_unreachable", 1},
			{"TranslatedRefusal", key, "bad-request", 400, "invalid_request_error", "", 1},
			{"TranslatedThrottling", key, "throttled", 429, "rate_limit_error", "rate_limit_exceeded", 3},
			{"TranslatedOutage", key, "down", 503, "overloaded_error", "", 3},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				for i, lib := range f.claudes {
					ops := []string{opMessages, opMessagesStream}
					if c.requests > 1 { // each with its waits: one of the two will do
						ops = ops[i : i+1]
					}
					for _, op := range ops {
						r := lib.do(t.Context(), f.ask(op, c.model, c.key))
						who := fmt.Sprintf("%s of %s: %+v", op, lib.name, r.Error)
						require.NotNil(t, r.Error, who)
						require.True(t, r.Error.API, who)
						require.Equal(t, c.status, r.Error.Status, who)
						require.Equal(t, c.kind, r.Error.Type, who)
						require.Equal(t, c.code, r.Error.Code, who)
						require.NotEmpty(t, r.Error.Message, who)
						require.NotEmpty(t, r.Error.RequestID, who)
						require.Equal(t, c.requests, r.Requests, who)
					}
				}
			})
		}
	})

	// F085: an error in the middle of a stream is thrown, and nothing is repeated behind the first byte.
	t.Run("F083_F085_ErrorsWithinStreams", func(t *testing.T) {
		t.Parallel()
		each(t, f.claudes, func(t *testing.T, lib sdk) {
			for _, model := range []string{"claude-error", "claude-cut", "claude-ends-early", "error-frame", "cut", "ends-early"} {
				for _, op := range []string{opMessagesStream, opMessagesHelper} {
					r := lib.do(t.Context(), f.ask(op, model, key))
					require.NotNil(t, r.Error, "%s of %s: %+v", op, model, r)
					require.True(t, r.Error.API, "%s of %s: %+v", op, model, r.Error)
					require.Equal(t, "api_error", r.Error.Type, "%s of %s: %+v", op, model, r.Error)
					require.NotEmpty(t, r.Error.Message)
					require.Equal(t, 1, r.Requests)
				}
			}
		})
	})

	t.Run("F053_Rate", func(t *testing.T) {
		t.Parallel()
		each(t, f.claudes, func(t *testing.T, lib sdk) {
			limited, _ := f.issue(object{"kind": "rate", "metric": "requests", "amount": "60", "per": "1m", "burst": "1"})
			done(t, lib, f.ask(opMessages, "claude", limited))
			r := done(t, lib, f.ask(opMessages, "claude", limited))
			require.Equal(t, 2, r.Requests, "it waited as long as it was told")
		})
	})

	// F124, F125, F127: Anthropic's libraries call models that speak OpenAI's dialect.
	t.Run("F124_F125_F127_MessagesToChat", func(t *testing.T) {
		t.Parallel()
		each(t, f.claudes, func(t *testing.T, lib sdk) {
			for _, op := range []string{opMessages, opMessagesStream, opMessagesHelper} {
				r := done(t, lib, f.ask(op, "plain", key))
				require.Equal(t, saidWords, r.Texts, op)
				require.Equal(t, []string{"end_turn"}, r.Finish, op)
				require.EqualValues(t, 9, r.Usage.Output, op)
				if op != opMessagesStream { // whose usage of the prompt is known at its end alone
					require.EqualValues(t, 2, r.Usage.Input, op)
				}
				short := f.ask(op, "plain", key)
				short.MaxTokens = 4
				r = done(t, lib, short)
				require.Equal(t, []string{"The quick brown fox "}, r.Texts, op)
				require.Equal(t, []string{"max_tokens"}, r.Finish, op)
			}
			k := f.ask(opMessagesHelper, "tools", key)
			k.Tools = true
			r := done(t, lib, k)
			require.Equal(t, chatTools, r.Tools)
			require.Equal(t, []string{"tool_use"}, r.Finish)
			k = f.ask(opMessagesTools, "tools", key)
			k.SecondModel, k.Text = "plain", "translated turns of "+lib.name
			r = done(t, lib, k)
			require.Equal(t, chatTools, r.Tools)
			require.Equal(t, saidWords, r.Texts)
			second := f.lastOf(t, k.Text)
			for _, call := range chatTools {
				require.Contains(t, second, `"tool_call_id":"`+call.ID+`"`)
			}
			require.Equal(t, "Grüße aus 漢字 🙂 dazu.", done(t, lib, f.ask(opMessagesHelper, "dribble", key)).Texts[0])
			for _, model := range []string{withoutUsage, "no-usage"} { // F115
				r := done(t, lib, f.ask(opMessagesHelper, model, key))
				require.Equal(t, saidWords, r.Texts)
				if model == withoutUsage {
					require.Positive(t, r.Usage.Output, "estimated")
				}
			}
		})
	})

	// OpenAI's libraries call Anthropic's models.
	t.Run("F124_F127_ChatToMessages", func(t *testing.T) {
		t.Parallel()
		each(t, f.openAIs, func(t *testing.T, lib sdk) {
			ops := []string{opChat, opStream, opStreamHelper}
			if !lib.stainless {
				ops = ops[:2]
			}
			for _, op := range ops {
				k := f.ask(op, "claude", key)
				k.IncludeUsage = pointer(true)
				if op == opChat {
					k.IncludeUsage = nil
				}
				r := done(t, lib, k)
				require.Equal(t, saidWords, r.Texts, op)
				require.Equal(t, []string{"stop"}, r.Finish, op)
				require.Equal(t, helloUsage(1), r.Usage, op)
				k.IncludeUsage, k.MaxTokens = nil, 4
				r = done(t, lib, k)
				require.Equal(t, []string{"The quick brown fox "}, r.Texts, op)
				require.Equal(t, []string{"length"}, r.Finish, op)
				require.Equal(t, op != opChat, r.Usage == nil || *r.Usage == usage{}, "usage comes in a stream where it was asked for: %s %+v", op, r.Usage)
			}
			if lib.stainless {
				k := f.ask(opStreamHelper, "claude-tools", key)
				k.Tools = true
				r := done(t, lib, k)
				require.Equal(t, toolTurns, r.Tools)
				require.Equal(t, []string{"tool_calls"}, r.Finish)
			}
			k := f.ask(opTools, "claude-tools", key)
			k.SecondModel, k.Text = "claude", "translated turns of "+lib.name
			r := done(t, lib, k)
			require.Equal(t, toolTurns, r.Tools)
			require.Equal(t, saidWords, r.Texts)
			second := f.lastOf(t, k.Text)
			for _, call := range toolTurns {
				require.Contains(t, second, `"tool_use_id":"`+call.ID+`"`)
			}
		})
	})

	t.Run("F130_F134_ChatToMessagesErrors", func(t *testing.T) {
		t.Parallel()
		each(t, f.openAIs, func(t *testing.T, lib sdk) {
			for model, status := range map[string]int{"claude-bad": 400, "claude-overloaded": 529} {
				r := lib.do(t.Context(), f.ask(opChat, model, key))
				require.NotNil(t, r.Error)
				require.True(t, r.Error.API, "%+v", r.Error)
				require.Equal(t, status, r.Error.Status, "%+v", r.Error)
				require.Contains(t, r.Error.Message, "The mock was told to answer")
			}
			for _, model := range []string{"claude-error", "claude-cut", "claude-ends-early"} {
				r := lib.do(t.Context(), f.ask(opStream, model, key))
				require.NotNil(t, r.Error, "%s: %+v", model, r)
				require.True(t, r.Error.API, "%s: %+v", model, r.Error)
				require.NotEmpty(t, r.Error.Message)
			}
		})
	})
}

// lastOf returns the body of the newest request of the upstream that has a text in it.
func (f *fleet) lastOf(t *testing.T, text string) string {
	t.Helper()
	requests := f.mock.Log().Requests
	for i := len(requests) - 1; i >= 0; i-- {
		if body := string(requests[i].Body); strings.Contains(body, text) {
			return body
		}
	}
	require.Fail(t, "no request has the text", text)
	return ""
}

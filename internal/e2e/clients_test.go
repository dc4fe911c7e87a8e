package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/mock"
)

// upstreams are the models of a client's fleet besides "plain", by the scripts that their upstream follows.
var upstreams = map[string]string{
	"tools":           "parallel_tools_in_one_frame",
	"interleaved":     "n2_interleaved",
	"bad-request":     "status(400)",
	"long-context":    "status(400,context_length)",
	"throttled":       "status(429),retry_after(1)",
	"down":            "status(503)",
	"our-fault":       "status(401)",
	"reset":           "reset_before_bytes",
	"error-frame":     "mid_stream_error(object,3)",
	"cut":             "reset_after(3)",
	"ends-early":      "clean_close_without_done(3)",
	"responses-error": "mid_stream_error(object,5)",
	"responses-cut":   "reset_after(5)",
	"choices-empty":   "choices_shape(empty)",
	"choices-null":    "choices_shape(null)",
	"choices-object":  "choices_shape(object)",
	"choices-absent":  "choices_shape(absent)",
	"data-null":       "data_null",
	"role-only":       "role_only",
	"refusal":         "refusal",
	"annotations":     "annotations",
	"logprobs":        "logprobs",
	"combined":        "combined_terminal_frame",
	"two-ends":        "two_terminal_events",
	"cumulative":      "usage_each_frame_cumulative",
	"blank-lines":     "blank_lines(5000)",
	"comments":        "comments(5000)",
	"dribble":         "byte_dribble(3)",
	"gzip":            "gzip",
	"deflate":         "deflate",
	"no-usage":        "ok_no_usage",
}

// namesOfAnyForm are models whose names need care in a path (F109).
var namesOfAnyForm = []string{"a/b", "hf.co/x/y:Q4_K_M", "模型/β"}

// moderator is a model whose name go-openai does not refuse by itself.
const moderator = "text-moderation-latest"

// withoutUsage is a model whose upstream cannot be asked for the usage of a stream.
const withoutUsage = "without-usage"

// bigIntegers are the arguments of a tool call that no number of JavaScript can hold.
const bigIntegers = `{"id": 9223372036854775807, "seed":9007199254740993}`

// clientFleet is a fleet with the models above and the libraries that call it.
type clientFleet struct {
	*fleet
	libraries []sdk
}

func startClientFleet(t *testing.T, env ...string) *clientFleet {
	t.Helper()
	f := &clientFleet{startFleet(t, fleetOptions{env: env}), sdks(t)}
	for name, script := range upstreams {
		f.addModel(name, "mock-"+script)
	}
	for _, name := range append(namesOfAnyForm, moderator) {
		f.addModel(name, name)
	}
	f.serveCanned(canned{"big-integers": {"application/json", []byte(`{"id":"c1","object":"chat.completion","created":1750000000,"model":"m",` +
		`"choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"weather","arguments":` +
		strconv.Quote(bigIntegers) + `}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":12,"completion_tokens":34,"total_tokens":46}}`), 0}})
	for unit, price := range map[string]string{"input": inputPrice, "output": outputPrice} {
		f.create("prices", object{
			"provider": "canned big-integers", "upstream_model": "big-integers", "unit": unit, "usd_per_million": price,
			"effective_from": "2026-01-01T00:00:00Z",
		})
	}
	f.addModelWithoutStreamOptions(withoutUsage)
	key, _ := f.issue()
	f.awaitModels(key, withoutUsage)
	return f
}

// each runs a test with every library, side by side.
func (f *clientFleet) each(t *testing.T, test func(*testing.T, sdk)) {
	t.Helper()
	for _, lib := range f.libraries {
		t.Run(lib.name, func(t *testing.T) {
			t.Parallel()
			test(t, lib)
		})
	}
}

// ask makes a task for the first gateway.
func (f *clientFleet) ask(op, model, key string) task {
	return task{Op: op, BaseURL: f.gateways[0].baseURL + "/v1", Key: key, Model: model, Text: "hello"}
}

// seen counts the upstream's requests for one of its models.
func (f *fleet) seen(upstreamModel string) int {
	n := 0
	for _, r := range f.mock.Log().Requests {
		var said struct {
			Model string `json:"model"`
		}
		if json.Unmarshal(r.Body, &said) == nil && said.Model == upstreamModel {
			n++
		}
	}
	return n
}

func pointer[T any](v T) *T { return &v }

// helloUsage is what the mock reports of "hello": 5 bytes in, 9 words out.
func helloUsage(choices int64) *usage { return &usage{Input: 2, Output: 9 * choices} }

// Each library gets from the gateway what it gets from the provider itself, on every route that it has.
func TestClients(t *testing.T) {
	t.Parallel()
	f := startClientFleet(t)
	key, _ := f.issue(object{"kind": "budget", "metric": "cost", "amount": "100", "window": object{"type": "total"}})
	ok := func(t *testing.T, lib sdk, k task) report {
		t.Helper()
		r := lib.do(t.Context(), k)
		require.Nil(t, r.Error, "%s of %s: %+v", k.Op, k.Model, r.Error)
		return r
	}
	said := []string{mock.DefaultText}

	t.Run("Chat", func(t *testing.T) {
		t.Parallel()
		f.each(t, func(t *testing.T, lib sdk) {
			r := ok(t, lib, f.ask(opChat, "plain", key))
			require.Equal(t, said, r.Texts)
			require.Equal(t, []string{"stop"}, r.Finish)
			require.Equal(t, helloUsage(1), r.Usage)
			require.Equal(t, 1, r.Requests)
			receipt := must(t)(f.gateways[0].get(t.Context(), key, "/v1/receipts/"+r.RequestID))
			require.Equal(t, http.StatusOK, receipt.status, "the id that the library shows is the receipt's: %s", receipt.body)

			short := f.ask(opChat, "plain", key)
			short.MaxTokens = 4
			r = ok(t, lib, short)
			require.Equal(t, []string{"The quick brown fox "}, r.Texts)
			require.Equal(t, []string{"length"}, r.Finish)
		})
	})

	// F115: usage comes in a stream exactly where the client asked for it, however it put the question.
	t.Run("F115_UsageOfStreams", func(t *testing.T) {
		t.Parallel()
		f.each(t, func(t *testing.T, lib sdk) {
			for _, asked := range []*bool{nil, pointer(false), pointer(true)} {
				k := f.ask(opStream, "plain", key)
				k.IncludeUsage = asked
				r := ok(t, lib, k)
				require.Equal(t, said, r.Texts)
				require.Equal(t, []string{"stop"}, r.Finish)
				frames := len("TqbfjotLd") + 2 // a word each, the role and the finish
				if asked != nil && *asked {
					require.Equal(t, helloUsage(1), r.Usage)
					require.Equal(t, 1, r.UsageFrames)
					frames++
				} else {
					require.Nil(t, r.Usage)
				}
				require.Equal(t, frames, r.Frames)
			}
		})
	})

	// F094, F115: the usage frame that Tollgate makes for an upstream that cannot send one is one that clients accept.
	t.Run("F094_MadeUsageFrame", func(t *testing.T) {
		t.Parallel()
		f.each(t, func(t *testing.T, lib sdk) {
			k := f.ask(opStream, withoutUsage, key)
			k.IncludeUsage = pointer(true)
			r := ok(t, lib, k)
			require.Equal(t, said, r.Texts)
			require.Equal(t, 1, r.UsageFrames)
			require.Positive(t, r.Usage.Input)
			require.Positive(t, r.Usage.Output)
			if lib.stainless {
				k.Op = opStreamHelper
				require.Equal(t, r.Usage, ok(t, lib, k).Usage)
			}
		})
	})

	// F113: the choices of one stream stay apart.
	t.Run("F113_SeveralChoices", func(t *testing.T) {
		t.Parallel()
		f.each(t, func(t *testing.T, lib sdk) {
			for _, model := range []string{"plain", "interleaved"} {
				k := f.ask(opStream, model, key)
				k.N, k.IncludeUsage = 2, pointer(true)
				r := ok(t, lib, k)
				require.Equal(t, []string{mock.DefaultText, mock.DefaultText}, r.Texts)
				require.Equal(t, []string{"stop", "stop"}, r.Finish)
				require.Equal(t, helloUsage(2), r.Usage)
			}
		})
	})

	t.Run("Tools", func(t *testing.T) {
		t.Parallel()
		want := []toolCall{{"call_mock_0", "weather", `{"city":"Paris"}`}, {"call_mock_1", "weather", `{"city":"Rome"}`}}
		f.each(t, func(t *testing.T, lib sdk) {
			k := f.ask(opTools, "tools", key)
			k.SecondModel = "plain"
			r := ok(t, lib, k)
			require.Equal(t, want, r.Tools)
			require.Equal(t, said, r.Texts, "the turn after the tools' results")
			if lib.stainless {
				k = f.ask(opStreamHelper, "tools", key)
				k.Tools = true
				r = ok(t, lib, k)
				require.Equal(t, want, r.Tools)
				require.Equal(t, []string{"tool_calls"}, r.Finish)
			}
		})
	})

	// F104: integers above 2^53 keep their digits on the way to the client, and on the way back in the next turn.
	t.Run("F104_BigIntegers", func(t *testing.T) {
		t.Parallel()
		f.each(t, func(t *testing.T, lib sdk) {
			k := f.ask(opTools, "big-integers", key)
			k.Text, k.SecondModel = "turns of "+lib.name, "plain"
			r := ok(t, lib, k)
			require.Equal(t, []toolCall{{"call_1", "weather", bigIntegers}}, r.Tools)
			require.Equal(t, said, r.Texts)
			turn := slices.IndexFunc(f.mock.Log().Requests, func(q mock.Request) bool { return bytes.Contains(q.Body, []byte(k.Text)) })
			require.GreaterOrEqual(t, turn, 0)
			require.Contains(t, string(f.mock.Log().Requests[turn].Body), strconv.Quote(bigIntegers))
		})
	})

	// Users write the base URL with and without the version, and under the name of the API.
	t.Run("BaseURLs", func(t *testing.T) {
		t.Parallel()
		f.each(t, func(t *testing.T, lib sdk) {
			for _, base := range []string{"", "/v1", "/openai/v1"} {
				for _, op := range []string{opChat, opStream, opEmbeddings, opResponses, opModels, opModel} {
					k := f.ask(op, namesOfAnyForm[0], key)
					k.BaseURL = f.gateways[0].baseURL + base
					ok(t, lib, k)
				}
			}
		})
	})

	t.Run("Embeddings", func(t *testing.T) {
		t.Parallel()
		f.each(t, func(t *testing.T, lib sdk) {
			for _, format := range []string{"float", "base64"} {
				k := f.ask(opEmbeddings, "plain", key)
				k.Format = format
				r := ok(t, lib, k)
				require.InDeltaSlice(t, []float64{1, 1. / 2, 1. / 3, 1. / 4, 1. / 5, 1. / 6, 1. / 7, 1. / 8}, r.Vector, 1e-7)
				require.Equal(t, &usage{Input: 2}, r.Usage)
			}
		})
	})

	t.Run("Responses", func(t *testing.T) {
		t.Parallel()
		f.each(t, func(t *testing.T, lib sdk) {
			for _, op := range []string{opResponses, opResponsesStream} {
				r := ok(t, lib, f.ask(op, "plain", key))
				require.Equal(t, said, r.Texts)
				require.Equal(t, []string{"completed"}, r.Finish)
				require.Equal(t, helloUsage(1), r.Usage)
			}
		})
	})

	t.Run("Moderations", func(t *testing.T) {
		t.Parallel()
		f.each(t, func(t *testing.T, lib sdk) {
			require.Equal(t, pointer(false), ok(t, lib, f.ask(opModerations, moderator, key)).Flagged)
		})
	})

	// F109: names with slashes, colons and letters of any script can be listed, looked up and called.
	t.Run("F109_ModelNamesOfAnyForm", func(t *testing.T) {
		t.Parallel()
		f.each(t, func(t *testing.T, lib sdk) {
			listed := ok(t, lib, f.ask(opModels, "", key)).Models
			for _, name := range namesOfAnyForm {
				require.Contains(t, listed, name)
				require.Equal(t, []string{name}, ok(t, lib, f.ask(opModel, name, key)).Models)
				require.Equal(t, said, ok(t, lib, f.ask(opChat, name, key)).Texts)
			}
		})
	})

	// F091: odd frames of an upstream neither break the gateway nor a client that reads with care.
	t.Run("F091_OddFrames", func(t *testing.T) {
		t.Parallel()
		f.each(t, func(t *testing.T, lib sdk) {
			for _, model := range []string{"choices-empty", "choices-null", "choices-absent", "choices-object", "data-null", "role-only"} {
				if model == "choices-object" && !lib.stainless {
					continue // go-openai cannot decode it, whoever sends it
				}
				for _, asked := range []*bool{nil, pointer(true)} {
					k := f.ask(opStream, model, key)
					k.IncludeUsage = asked
					r := ok(t, lib, k)
					require.Equal(t, said, r.Texts, model)
					require.Equal(t, asked != nil, r.Usage != nil, model)
				}
			}
		})
	})

	// F070, F071, F073, F080, F092, F095: whatever else an upstream does, the libraries' own accumulators get a whole answer.
	t.Run("F070_F071_F073_F080_F092_F095_Upstreams", func(t *testing.T) {
		t.Parallel()
		f.each(t, func(t *testing.T, lib sdk) {
			for model, text := range map[string]string{
				"refusal": "", "annotations": mock.DefaultText, "logprobs": mock.DefaultText, "combined": mock.DefaultText,
				"two-ends": mock.DefaultText, "cumulative": mock.DefaultText, "blank-lines": mock.DefaultText, "comments": mock.DefaultText,
				"dribble": "Grüße aus 漢字 🙂 dazu.", "gzip": mock.DefaultText, "deflate": mock.DefaultText, "no-usage": mock.DefaultText,
			} {
				ops := []string{opChat, opStream, opStreamHelper}
				if !lib.stainless {
					ops = ops[:2]
				}
				for _, op := range ops {
					if op == opStream && !lib.stainless && (model == "blank-lines" || model == "comments") {
						continue // go-openai gives up after 300 lines, whoever sends them
					}
					r := ok(t, lib, f.ask(op, model, key))
					require.Equal(t, []string{text}, r.Texts, "%s of %s", op, model)
					require.Equal(t, []string{"stop"}, r.Finish, "%s of %s", op, model)
				}
			}
		})
	})

	t.Run("SideBySide", func(t *testing.T) {
		t.Parallel()
		f.each(t, func(t *testing.T, lib sdk) {
			const calls = 64
			reports := make([]report, calls)
			var all sync.WaitGroup
			for i := range calls {
				all.Go(func() {
					reports[i] = lib.do(t.Context(), f.ask([]string{opChat, opStream}[i%2], "plain", key))
				})
			}
			all.Wait()
			for _, r := range reports {
				require.Nil(t, r.Error, "%+v", r.Error)
				require.Equal(t, said, r.Texts)
			}
		})
	})
}

// Every refusal reaches the users of a library as its error for the API, with status, code and type, and is repeated only
// where that can help.
func TestClientErrors(t *testing.T) {
	t.Parallel()
	f := startClientFleet(t)
	f.create("models", object{"name": "unreachable", "targets": []object{{
		"provider_id":    f.create("providers", object{"name": "nobody", "kind": "openai", "base_url": "http://127.0.0.1:1/v1", "credential": "sk-nobody"})["id"],
		"upstream_model": "m", "weight": 1, "priority": 0,
	}}})
	f.addModel("budgeted", "budgeted")
	key, _ := f.issue()
	f.awaitModels(key, "budgeted")
	narrow := text(f.create("keys", object{"organization_id": f.org, "name": "narrow", "models": []string{"plain"}})["key"])
	gone, goneID := f.issue()
	status, o := f.admin(http.MethodPost, "keys/"+goneID+"/revoke", object{})
	require.Equal(t, http.StatusOK, status, "%v", o)
	f.eventually(20*time.Second, "the key is revoked", func() bool {
		return must(t)(f.gateways[0].call(t.Context(), gone, "/v1/chat/completions", helloChat)).status == http.StatusUnauthorized
	})
	total := object{"type": "total"}
	broke, _ := f.issue(object{"kind": "budget", "metric": "cost", "amount": "0", "window": total})
	poor, _ := f.issue(object{"kind": "budget", "metric": "cost", "amount": "0.00001", "window": total})
	const typo = "sk-tg-not-a-key"

	for _, c := range []struct {
		name        string
		key, model  string
		status      int
		code, kind  string
		class       string // of openai-node
		param       string
		requests    int    // of the libraries that repeat
		upstream    string // the upstream's model, whose requests are counted
		upstreamPer int    // upstream requests for each request of the client
		retryAfter  string
	}{
		{name: "BadKey", key: typo, model: "plain", status: 401, code: "invalid_api_key", kind: "authentication_error", class: "AuthenticationError", requests: 1},
		{name: "RevokedKey", key: gone, model: "plain", status: 401, code: "key_revoked", kind: "authentication_error", class: "AuthenticationError", requests: 1},
		{name: "UnknownModel", key: key, model: "no-such-model", status: 404, code: "model_not_found", kind: "invalid_request_error", class: "NotFoundError", param: "model", requests: 1},
		{name: "ForbiddenModel", key: narrow, model: "tools", status: 403, code: "model_not_allowed", kind: "permission_error", class: "PermissionDeniedError", param: "model", requests: 1},
		{name: "BadRequest", key: key, model: "", status: 400, code: "invalid_request", kind: "invalid_request_error", class: "BadRequestError", param: "model", requests: 1},
		{name: "UpstreamBadRequest", key: key, model: "bad-request", status: 400, kind: "invalid_request_error", class: "BadRequestError", requests: 1, upstream: "mock-status(400)", upstreamPer: 1},
		{name: "F130_UpstreamContextLength", key: key, model: "long-context", status: 400, code: "context_length_exceeded", kind: "invalid_request_error", class: "BadRequestError", requests: 1, upstream: "mock-status(400,context_length)", upstreamPer: 1},
		{name: "F055_UpstreamThrottles", key: key, model: "throttled", status: 429, code: "rate_limit_exceeded", kind: "requests", class: "RateLimitError", requests: 3, upstream: "mock-status(429),retry_after(1)", upstreamPer: 1, retryAfter: "1"},
		{name: "UpstreamDown", key: key, model: "down", status: 503, kind: "server_error", class: "InternalServerError", requests: 3, upstream: "mock-status(503)", upstreamPer: 1},
		{name: "UpstreamRefusesUs", key: key, model: "our-fault", status: 502, code: "upstream_auth_failed", kind: "server_error", class: "InternalServerError", requests: 3, upstream: "mock-status(401)", upstreamPer: 1},
		{name: "NeverWritten", key: key, model: "unreachable", status: 502, code: "upstream_unreachable", kind: "server_error", class: "InternalServerError", requests: 3},
		// The provider may have done the work: neither library nor gateway buys it twice.
		{name: "F215_WrittenAndLost", key: key, model: "reset", status: 502, code: "upstream_unreachable", kind: "server_error", class: "InternalServerError", requests: 1, upstream: "mock-reset_before_bytes", upstreamPer: 1},
		{name: "F215_BudgetExhausted", key: broke, model: "budgeted", status: 429, code: "budget_exceeded", kind: "insufficient_quota", class: "RateLimitError", requests: 1, upstream: "budgeted"},
		{name: "F215_ReservationTooLarge", key: poor, model: "budgeted", status: 429, code: "reservation_too_large", kind: "insufficient_quota", class: "RateLimitError", requests: 1, upstream: "budgeted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var sent int
			for _, lib := range f.libraries {
				for _, op := range []string{opChat, opStream} {
					r := lib.do(t.Context(), f.ask(op, c.model, c.key))
					who := fmt.Sprintf("%s of %s: %+v", op, lib.name, r.Error)
					require.NotNil(t, r.Error, who)
					require.True(t, r.Error.API, who)
					require.Equal(t, c.status, r.Error.Status, who)
					require.Equal(t, c.code, r.Error.Code, who)
					require.Equal(t, c.kind, r.Error.Type, who)
					require.Equal(t, c.param, r.Error.Param, who)
					require.NotEmpty(t, r.Error.Message, who)
					require.NotContains(t, r.Error.Message, typo, who)
					if lib.name == "openai-node" {
						require.Equal(t, c.class, r.Error.Class, who)
					}
					want := 1
					if lib.stainless {
						want = c.requests
						require.NotEmpty(t, r.Error.RequestID, who)
						require.Equal(t, c.retryAfter, r.Error.RetryAfter, who)
					}
					require.Equal(t, want, r.Requests, who)
					sent += r.Requests
				}
			}
			if c.upstream != "" && c.upstreamPer > 0 {
				require.Equal(t, sent*c.upstreamPer, f.seen(c.upstream))
			}
		})
	}
	t.Cleanup(func() { require.Zero(t, f.seen("budgeted"), "what no budget pays for is not forwarded") })

	a := must(t)(f.gateways[0].call(t.Context(), broke, "/v1/chat/completions", helloChat))
	require.Equal(t, http.StatusTooManyRequests, a.status)
	require.Equal(t, "false", a.header.Get("X-Should-Retry"))
	require.Empty(t, a.header.Get("Retry-After"))
}

// A library that is told to wait for a rate limit waits just so long, and then gets its answer.
func TestF053_ClientsWaitForRates(t *testing.T) {
	t.Parallel()
	f := startClientFleet(t)
	keys, slowKeys := map[string]string{}, map[string]string{}
	for _, lib := range f.libraries {
		keys[lib.name], _ = f.issue(object{"kind": "rate", "metric": "requests", "amount": "60", "per": "1m", "burst": "1"})
		slowKeys[lib.name], _ = f.issue(object{"kind": "rate", "metric": "requests", "amount": "1", "per": "1h", "burst": "1"})
	}
	f.each(t, func(t *testing.T, lib sdk) {
		key, slow := keys[lib.name], slowKeys[lib.name]
		require.Nil(t, lib.do(t.Context(), f.ask(opChat, "plain", key)).Error)
		r := lib.do(t.Context(), f.ask(opChat, "plain", key))
		if !lib.stainless {
			require.NotNil(t, r.Error)
			require.Equal(t, http.StatusTooManyRequests, r.Error.Status)
			require.Equal(t, "rate_limit_exceeded", r.Error.Code)
			require.Equal(t, "rate_limit_error", r.Error.Type)
			return
		}
		require.Nil(t, r.Error, "%+v", r.Error)
		require.Equal(t, []string{mock.DefaultText}, r.Texts)
		require.Equal(t, 2, r.Requests)
		require.Less(t, r.WaitedMS, 10_000.)

		// A wait above a minute is not asked for: libraries would ignore it or sleep through it.
		require.Nil(t, lib.do(t.Context(), f.ask(opChat, "plain", slow)).Error)
		r = lib.do(t.Context(), f.ask(opChat, "plain", slow))
		require.NotNil(t, r.Error)
		require.Equal(t, "rate_limit_exceeded", r.Error.Code)
		require.Empty(t, r.Error.RetryAfter)
		require.Equal(t, 1, r.Requests)
	})
}

// A body above the limit is a refusal that every library shows, whatever it had sent until then (F106).
func TestF106_ClientsSeeThatABodyIsTooLarge(t *testing.T) {
	t.Parallel()
	f := startClientFleet(t)
	key, _ := f.issue()
	for _, lib := range f.libraries {
		k := f.ask(opChat, "plain", key)
		k.Text = strings.Repeat("x", 35<<20)
		r := lib.do(t.Context(), k)
		require.NotNil(t, r.Error, lib.name)
		require.Equal(t, http.StatusRequestEntityTooLarge, r.Error.Status, "%s: %+v", lib.name, r.Error)
		require.Equal(t, "payload_too_large", r.Error.Code, lib.name)
		require.Equal(t, 1, r.Requests, lib.name)
	}
	require.Zero(t, f.mock.Counts().Count)
}

// A slot that is taken is a refusal that waiting helps with; it is free when the answer that held it is over.
func TestClientsGetTheSlotThatBecomesFree(t *testing.T) {
	t.Parallel()
	f := startClientFleet(t)
	f.addModel("held", "mock-hold")
	everything, _ := f.issue()
	f.awaitModels(everything, "held")
	for _, lib := range f.libraries {
		key, _ := f.issue(object{"kind": "concurrency", "metric": "requests", "amount": "1"})
		before := f.mock.Counts().Count
		first := make(chan report)
		go func() { first <- lib.do(t.Context(), f.ask(opStream, "held", key)) }()
		require.NoError(t, f.mock.Wait(t.Context(), func(c mock.Counts) bool { return c.Count > before }))

		k := f.ask(opChat, "plain", key)
		k.MaxRetries = pointer(0)
		r := lib.do(t.Context(), k)
		require.NotNil(t, r.Error, lib.name)
		require.Equal(t, "concurrency_exceeded", r.Error.Code, "%s: %+v", lib.name, r.Error)
		require.Equal(t, http.StatusTooManyRequests, r.Error.Status, lib.name)
		if lib.stainless {
			require.Equal(t, "1", r.Error.RetryAfter, lib.name)
		}

		require.Equal(t, 1, f.mock.Release(0, 1))
		require.Nil(t, (<-first).Error, lib.name)
		require.Nil(t, lib.do(t.Context(), k).Error, lib.name)
	}
}

// An error in the middle of a stream is an exception with its code, not a short text (F083, F085, F089), and every frame that
// Tollgate makes itself is one that strict clients accept (F094).
func TestF085_F094_ErrorsWithinStreamsAreThrown(t *testing.T) {
	t.Parallel()
	f := startClientFleet(t)
	key, _ := f.issue()
	f.each(t, func(t *testing.T, lib sdk) {
		chat := []string{opStream}
		if lib.stainless {
			chat = append(chat, opStreamHelper)
		}
		for _, c := range []struct {
			model, code, kind string
			ops               []string
		}{
			{"error-frame", "", "server_error", chat}, // the upstream's own, whose code is null
			{"cut", "upstream_aborted", "server_error", chat},
			{"ends-early", "upstream_aborted", "server_error", chat},
			{"responses-error", "server_error", "", []string{opResponsesStream}},
			{"responses-cut", "upstream_aborted", "", []string{opResponsesStream}},
		} {
			for _, op := range c.ops {
				r := lib.do(t.Context(), f.ask(op, c.model, key))
				who := fmt.Sprintf("%s of %s: %+v", op, c.model, r)
				require.NotNil(t, r.Error, who)
				require.True(t, r.Error.API, who)
				require.Equal(t, c.code, r.Error.Code, who)
				if c.kind != "" {
					require.Equal(t, c.kind, r.Error.Type, who)
				}
				require.NotEmpty(t, r.Error.Message, who)
				require.Equal(t, 1, r.Requests, "nothing is repeated after the first byte: "+who)
				if op == opStream {
					require.Equal(t, []string{"The quick "}, r.Texts, who)
				}
			}
		}
	})
}

// The keep-alives of a silent stream are frames that every client takes for part of it, and that add nothing to it (F094,
// F097). What goes wrong behind them is thrown.
func TestF094_F097_ClientsAcceptKeepAlives(t *testing.T) {
	t.Parallel()
	f := startClientFleet(t, "TOLLGATE_STREAM_KEEPALIVE=20ms")
	key, _ := f.issue()
	f.addModel("held", "mock-hold")
	f.addModel("paced", "mock-confirm") // silent behind its first frame
	f.addModel("held-error", "mock-hold,status(429,quota)")
	f.addModel("held-refusal", "mock-hold,status(400,context_length)")
	f.awaitModels(key, "held-refusal")
	for _, lib := range f.libraries {
		ops := []string{opStream}
		if lib.stainless {
			ops = append(ops, opStreamHelper)
		}
		for _, op := range ops {
			for _, c := range []struct{ model, code string }{
				{"held", ""}, {"paced", ""}, {"held-error", "upstream_quota_exhausted"}, {"held-refusal", "context_length_exceeded"},
			} {
				before := f.mock.Counts().Count
				got := make(chan report)
				go func() { got <- lib.do(t.Context(), f.ask(op, c.model, key)) }()
				require.NoError(t, f.mock.Wait(t.Context(), func(n mock.Counts) bool { return n.Count > before }))
				f.awaitKeepalives(t, key)
				f.mock.Release(0, 100)
				r := <-got
				who := fmt.Sprintf("%s of %s by %s: %+v", op, c.model, lib.name, r)
				if c.code != "" {
					require.NotNil(t, r.Error, who)
					require.Equal(t, c.code, r.Error.Code, who)
					continue
				}
				require.Nil(t, r.Error, who)
				require.Equal(t, []string{mock.DefaultText}, r.Texts, who)
				require.Equal(t, []string{"stop"}, r.Finish, who)
				if op == opStream {
					require.Greater(t, r.Frames, len("TqbfjotLd")+2, "keep-alives are frames: "+who)
				}
			}
		}
	}
}

// awaitKeepalives waits until a stream that begins now has had two keep-alives, and so each one before it at least one.
func (f *clientFleet) awaitKeepalives(t *testing.T, key string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.gateways[0].baseURL+"/v1/chat/completions",
		strings.NewReader(`{"model":"held","stream":true,"messages":[{"role":"user","content":"hello"}]}`))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+key)
	r, err := client.Do(req)
	require.NoError(t, err)
	defer func() { _ = r.Body.Close() }()
	require.Equal(t, "text/event-stream", r.Header.Get("Content-Type"))
	lines := bufio.NewReader(r.Body)
	for range 2 {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		require.Contains(t, line, `"choices":[{"index":0,"delta":{},"finish_reason":null}]`)
		_, err = lines.ReadString('\n')
		require.NoError(t, err)
	}
}

// F142: what a key may list is what it may call.
func TestF142_ListedModelsAreTheCallableOnes(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	configured := []string{"plain", "gpt-big", "gpt-small", "hf.co/x/y:Q4_K_M", "other"}
	for _, name := range configured[1:] {
		f.addModel(name, name)
	}
	team := text(f.create("teams", object{"organization_id": f.org, "name": "narrow", "models": []string{"gpt-*"}})["id"])
	everything, _ := f.issue()
	f.awaitModels(everything, configured...)
	libraries := sdks(t)
	for _, c := range []struct {
		name  string
		key   object
		lists []string
	}{
		{"Unrestricted", object{"organization_id": f.org}, configured},
		{"Patterns", object{"organization_id": f.org, "models": []string{"gpt-*", "hf.co/*"}}, []string{"gpt-big", "gpt-small", "hf.co/x/y:Q4_K_M"}},
		{"None", object{"organization_id": f.org, "models": []string{}}, nil},
		{"OfTeam", object{"team_id": team}, []string{"gpt-big", "gpt-small"}},
		{"NarrowerThanTeam", object{"team_id": team, "models": []string{"gpt-big"}}, []string{"gpt-big"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.key["name"] = c.name
			key := text(f.create("keys", c.key)["key"])
			for _, lib := range libraries {
				ask := func(op, model string) report {
					return lib.do(t.Context(), task{Op: op, BaseURL: f.gateways[0].baseURL + "/v1", Key: key, Model: model, Text: "hello"})
				}
				list := ask(opModels, "")
				require.Nil(t, list.Error, "%+v", list.Error)
				require.ElementsMatch(t, c.lists, list.Models, lib.name)
				for _, model := range configured {
					called, got := ask(opChat, model), ask(opModel, model)
					if slices.Contains(c.lists, model) {
						require.Nil(t, called.Error, "%s %s: %+v", lib.name, model, called.Error)
						require.Nil(t, got.Error, "%s %s: %+v", lib.name, model, got.Error)
						continue
					}
					for _, r := range []report{called, got} {
						require.NotNil(t, r.Error, "%s %s", lib.name, model)
						require.Contains(t, []int{http.StatusForbidden, http.StatusNotFound}, r.Error.Status, "%s %s", lib.name, model)
					}
				}
			}
		})
	}
}

// While the limits cannot be checked nothing is forwarded, every library shows why, and one that repeats gets its answer once
// the store is back.
func TestClientsOutliveAnOutageOfTheStore(t *testing.T) {
	t.Parallel()
	f := startClientFleet(t)
	key, _ := f.issue(object{"kind": "budget", "metric": "cost", "amount": "100", "window": object{"type": "total"}})
	for _, lib := range f.libraries {
		require.Nil(t, lib.do(t.Context(), f.ask(opChat, "plain", key)).Error) // caches are warm
	}
	before := f.mock.Counts().Count

	f.closeDatabase()
	for _, lib := range f.libraries {
		k := f.ask(opChat, "plain", key)
		k.MaxRetries = pointer(0)
		r := lib.do(t.Context(), k)
		require.NotNil(t, r.Error, lib.name)
		require.Equal(t, http.StatusServiceUnavailable, r.Error.Status, "%s: %+v", lib.name, r.Error)
		require.Contains(t, []string{"limit_store_unavailable", "data_store_unavailable"}, r.Error.Code, lib.name)
		require.Equal(t, "server_error", r.Error.Type, lib.name)
		if lib.stainless {
			require.Regexp(t, "^([2-9]|10)$", r.Error.RetryAfter, lib.name)
		}
	}
	require.Equal(t, before, f.mock.Counts().Count, "nothing is forwarded")

	reports := make(chan report, len(f.libraries))
	for _, lib := range f.libraries {
		if lib.stainless {
			go func() { reports <- lib.do(t.Context(), f.ask(opChat, "plain", key)) }()
		}
	}
	f.openDatabase()
	for _, lib := range f.libraries {
		if lib.stainless {
			r := <-reports
			require.Nil(t, r.Error, "%+v", r.Error)
			require.Equal(t, []string{mock.DefaultText}, r.Texts)
		}
	}
	f.requireBooksBalance()
}

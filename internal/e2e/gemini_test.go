package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// geminis are the models at the upstream that speaks Gemini's dialect, by the scripts that it follows.
var geminis = map[string]string{
	"gemini":            "ok",
	"gemini-tools":      "parallel_tools_in_one_frame",
	"gemini-thinks":     "usage(1000,50,600,20)",
	"gemini-throttled":  "status(429),retry_after(1)",
	"gemini-auth":       "status(401)",
	"gemini-ends-early": "clean_close_without_done",
}

// Clients of both dialects call Gemini's models, and what these used is booked as Gemini reports it.
func TestGemini(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	provider := f.create("providers", object{
		"name": "google", "kind": "gemini", "base_url": f.upstream + "/v1beta", "credential": "sk-upstream-marker", "price_provider": "mock",
	})["id"]
	for name, script := range geminis {
		for unit, price := range map[string]string{"input": inputPrice, "output": outputPrice, "cache_read": "0.2"} {
			f.create("prices", object{
				"provider": "mock", "upstream_model": "mock-" + script, "unit": unit, "usd_per_million": price, "effective_from": "2026-01-01T00:00:00Z",
			})
		}
		f.create("models", object{"name": name, "targets": []object{{"provider_id": provider, "upstream_model": "mock-" + script, "weight": 1, "priority": 0}}})
	}
	key, _ := f.issue(object{"kind": "budget", "metric": "cost", "amount": "100", "window": object{"type": "total"}})
	for name := range geminis {
		f.awaitModels(key, name)
	}
	openAI, claude := sdk{name: "go-openai", do: goOpenAI}, sdk{name: "anthropic-sdk-go", do: anthropicGo}
	ask := func(op, model string) task {
		k := task{Op: op, BaseURL: f.gateways[0].baseURL, Key: key, Model: model, Text: "hello", MaxRetries: pointer(0)}
		if strings.HasPrefix(op, "messages") {
			return k
		}
		k.BaseURL += "/v1"
		return k
	}

	// One call after the other: the rows of the last part are found by their models.
	r := done(t, openAI, ask(opChat, "gemini"))
	require.Equal(t, saidWords, r.Texts)
	require.Equal(t, []string{"stop"}, r.Finish)
	require.Equal(t, helloUsage(1), r.Usage)
	streamed := ask(opStream, "gemini")
	streamed.IncludeUsage = pointer(true)
	r = done(t, openAI, streamed)
	require.Equal(t, saidWords, r.Texts)
	require.Equal(t, []string{"stop"}, r.Finish)
	require.Equal(t, helloUsage(1), r.Usage)

	for _, k := range []task{ask(opMessages, "gemini"), ask(opMessagesHelper, "gemini")} {
		r = done(t, claude, k)
		require.Equal(t, saidWords, r.Texts)
		require.Equal(t, []string{"end_turn"}, r.Finish)
		require.Equal(t, helloUsage(1), r.Usage)
	}
	official := sdk{name: "openai-go", do: openAIGo}
	for _, op := range []string{opResponses, opResponsesStream} {
		r = done(t, official, ask(op, "gemini"))
		require.Equal(t, saidWords, r.Texts)
		require.Equal(t, helloUsage(1), r.Usage)
	}
	for lib, op := range map[*sdk]string{&openAI: opTools, &claude: opMessagesTools} {
		k := ask(op, "gemini-tools")
		k.SecondModel = "gemini"
		r = done(t, *lib, k)
		require.Len(t, r.Tools, 2)
		for i, city := range []string{"Paris", "Rome"} {
			require.Equal(t, "weather", r.Tools[i].Name)
			require.JSONEq(t, `{"city":"`+city+`"}`, r.Tools[i].Arguments)
		}
		require.Equal(t, saidWords, r.Texts, "of the turn with the results")
	}

	// Our credential goes in a header alone, and what is wrong with it is not the client's to know (F140).
	for _, seen := range f.mock.Log().Requests {
		require.NotContains(t, seen.Path, "marker")
		require.Equal(t, []string{"sk-upstream-marker"}, seen.Header["X-Goog-Api-Key"])
		require.NotContains(t, seen.Header, "Authorization")
	}
	for model, want := range map[string]int{"gemini-throttled": http.StatusTooManyRequests, "gemini-auth": http.StatusBadGateway} {
		r = claude.do(t.Context(), ask(opMessages, model))
		require.NotNil(t, r.Error)
		require.Equal(t, want, r.Error.Status, "%+v", r.Error)
		require.NotContains(t, r.Error.Message, "marker")
	}
	// A stream that ends without a finish reason was cut, which the client learns.
	require.NotNil(t, claude.do(t.Context(), ask(opMessagesHelper, "gemini-ends-early")).Error)

	// F019, F020: 400 in, 600 read from a cache, 30 out and 20 of thoughts: 800 + 120 + 500 millionths of a dollar.
	for _, op := range []string{opChat, opStream} {
		require.Equal(t, saidWords, done(t, openAI, ask(op, "gemini-thinks")).Texts)
	}
	var booked []object
	f.eventually(20*time.Second, "both calls are booked", func() bool {
		booked = nil
		for _, row := range f.rows() {
			if row["upstream_model"] == "mock-"+geminis["gemini-thinks"] {
				booked = append(booked, row)
			}
		}
		return len(booked) == 2
	})
	for _, row := range booked {
		require.Equal(t, "0.00142", row["cost_usd"], "%v", row)
		require.Equal(t, object{"input": 400., "cache_read": 600., "output": 30., "reasoning": 20., "request": 1.}, row["quantities"])
	}
	f.requireBooksBalance()
}

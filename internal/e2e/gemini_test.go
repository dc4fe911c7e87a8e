package e2e

import (
	"testing"

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
	google := f.foreign(object{"name": "google", "kind": "gemini", "base_url": f.upstream + "/v1beta", "credential": "sk-upstream-marker"}, geminis)
	google.converse(t, "gemini", "gemini-tools")
	official := sdk{name: "openai-go", do: openAIGo}
	for _, op := range []string{opResponses, opResponsesStream} {
		r := done(t, official, google.ask(op, "gemini"))
		require.Equal(t, saidWords, r.Texts)
		require.Equal(t, helloUsage(1), r.Usage)
	}

	// Our credential goes in a header alone.
	for _, seen := range f.mock.Log().Requests {
		require.NotContains(t, seen.Path, "marker")
		require.Equal(t, []string{"sk-upstream-marker"}, seen.Header["X-Goog-Api-Key"])
		require.NotContains(t, seen.Header, "Authorization")
	}
	google.refuse(t, "gemini-throttled", "gemini-auth", "marker")
	// A stream that ends without a finish reason was cut, which the client learns.
	require.NotNil(t, google.claude.do(t.Context(), google.ask(opMessagesHelper, "gemini-ends-early")).Error)

	// F019, F020: 400 in, 600 read from a cache, 30 out and 20 of thoughts: 800 + 120 + 500 millionths of a dollar.
	google.book(t, "gemini-thinks", "0.00142", object{"input": 400., "cache_read": 600., "output": 30., "reasoning": 20., "request": 1.})
	f.requireBooksBalance()
}

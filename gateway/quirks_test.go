package gateway_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/providers/openai"
	"github.com/tollgate-gateway/tollgate/providers/translate"
)

// TestF101_WhatATargetRefusesIsDroppedOnEveryRoute: a list of the target's, alike on native and translated lanes, and the client
// is told. What the target does not refuse arrives as it came, known to Tollgate or not.
func TestF101_WhatATargetRefusesIsDroppedOnEveryRoute(t *testing.T) {
	t.Parallel()
	const rest = `"temperature":0.5,"unheard_of":{"a":1.0}`
	for _, c := range []struct{ path, body, want string }{
		{
			"/v1/chat/completions", `{"model":"m",` + rest + `,"messages":[{"role":"user","content":"hi"}]}`,
			`{"model":"mock-small","unheard_of":{"a":1.0},"messages":[{"role":"user","content":"hi"}]}`,
		},
		{"/v1/responses", `{` + rest + `,"model":"m","input":"hi"}`, `{"unheard_of":{"a":1.0},"model":"mock-small","input":"hi"}`},
		{
			"/v1/messages", `{"model":"m","max_tokens":5,"temperature":0.5,"messages":[{"role":"user","content":"hi"}]}`,
			`{"model":"mock-small","messages":[{"role":"user","content":"hi"}],"max_tokens":5}`,
		},
	} {
		t.Run(c.path, func(t *testing.T) {
			t.Parallel()
			b := start(t, func(s *setup) {
				s.translators = translate.All(time.Now)
				s.model("m", "small")[0].Drop = []string{"temperature", "seed"}
			})
			a := b.post(c.path, c.body, "Anthropic-Version", "2023-06-01")
			require.Equal(t, http.StatusOK, a.StatusCode, a.text())
			require.Equal(t, c.want, string(b.sent()[0].Body))
			require.Contains(t, a.Header.Get("X-Tollgate-Warnings"), "temperature: dropped")
			require.NotContains(t, a.Header.Get("X-Tollgate-Warnings"), "seed", "was not given")
		})
	}
}

// An upstream that knows the limit of output by one name alone gets it by that name, on native and on translated lanes; all
// other bytes stay.
func TestQuirks_LimitsGoByTheNameThatIsKnown(t *testing.T) {
	t.Parallel()
	const chat, messages = "/v1/chat/completions", `"messages":[{"role":"user","content":"Hi."}]`
	for _, tc := range []struct{ kind, route, sent, want string }{
		{openai.Kind, chat, `{"model":"m","max_completion_tokens":50,` + messages + `}`, `{"model":"gpt-5","max_completion_tokens":50,` + messages + `}`},
		{maxTokens, chat, `{"model":"m","max_completion_tokens":50,` + messages + `}`, `{"max_tokens":50,"model":"gpt-5",` + messages + `}`},
		{maxTokens, chat, `{"model":"m","max_tokens":50,` + messages + `}`, `{"model":"gpt-5","max_tokens":50,` + messages + `}`},
		{maxTokens, chat, `{"model":"m","max_tokens":40,"max_completion_tokens":50,` + messages + `}`, `{"model":"gpt-5","max_tokens":40,` + messages + `}`},
		{maxTokens, chat, `{"model":"m",` + messages + `}`, `{"model":"gpt-5",` + messages + `}`},
		{maxCompletion, chat, `{"model":"m","max_tokens":50,` + messages + `}`, `{"max_completion_tokens":50,"model":"gpt-5",` + messages + `}`},
		{maxTokens, "/v1/responses", `{"model":"m","max_output_tokens":50,"input":"Hi."}`, `{"max_tokens":50,"model":"gpt-5",` + messages + `}`},
		{maxTokens, messagesPath, `{"model":"m","max_tokens":50,` + messages + `}`, `{"max_tokens":50,"model":"gpt-5",` + messages + `}`},
	} {
		b := laneBench(t, tc.kind, "ok")
		a := b.post(tc.route, tc.sent, "Anthropic-Version", "2023-06-01")
		require.NoError(t, a.err)
		require.Equal(t, http.StatusOK, a.StatusCode, a.text())
		require.Equal(t, tc.want, string(b.sent()[0].Body), "%s to %s: %s", tc.route, tc.kind, tc.sent)
	}
}

package gateway_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
)

func TestServe_Unary(t *testing.T) {
	t.Parallel()
	b := start(t)
	a := b.chat()
	require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	require.Contains(t, a.text(), `"object":"chat.completion"`)

	s := b.settled(1)
	require.Len(t, s, 1)
	require.Equal(t, governance.OutcomeComplete, s[0].Outcome)
	require.Equal(t, governance.UsageProvider, s[0].Source)
	require.Positive(t, s[0].Cost)
	require.Zero(t, b.ledger.held())
	require.Equal(t, s[0].Cost, dollars(t, a.Header.Get("X-Tollgate-Cost-Usd")))
	require.NotEmpty(t, a.Header.Get("X-Request-Id"))
	require.Equal(t, a.Header.Get("X-Request-Id"), a.Header.Get("Request-Id"))
	require.Equal(t, "1", a.Header.Get("X-Tollgate-Attempts"))
	require.Equal(t, "provider-1", a.Header.Get("X-Tollgate-Provider"))
	require.Equal(t, "mock-small", a.Header.Get("X-Tollgate-Model"))
	require.NotEmpty(t, a.Header.Get("X-Tollgate-Overhead-Ms"))
	require.NotEmpty(t, a.Header.Get("X-Tollgate-Limiter-Ms"))

	r := b.ledger.admitted()[0]
	require.Equal(t, a.Header.Get("X-Request-Id"), r.Origin.RequestID.String())
	require.Equal(t, int64(7), r.Origin.PriceNum)
	require.Equal(t, "chat.completions", r.Origin.Route)
}

func TestServe_StreamByteForByte(t *testing.T) {
	t.Parallel()
	b := start(t)
	a := b.stream()
	require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	require.NoError(t, a.err)
	require.Equal(t, "text/event-stream", a.Header.Get("Content-Type"))
	require.True(t, strings.HasSuffix(a.text(), "data: [DONE]\n\n"), a.text())
	require.NotContains(t, a.text(), `"choices":[]`, "the usage frame was not asked for")
	require.Empty(t, a.Header.Get("X-Tollgate-Cost-Usd"))
	s := b.settled(1)
	require.Equal(t, governance.UsageProvider, s[0].Source)
	require.Contains(t, string(b.sent()[0].Body), `"stream_options":{"include_usage":true}`)

	asked := b.post("/v1/chat/completions", `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"Say hello."}]}`)
	require.Contains(t, asked.text(), `"choices":[]`)
}

func TestServe_EveryModelRoute(t *testing.T) {
	t.Parallel()
	b := start(t)
	for path, body := range map[string]string{
		"/v1/chat/completions":           chatBody,
		"/openai/v1/chat/completions":    chatBody,
		"/anthropic/v1/chat/completions": chatBody,
		"/v1/completions":                `{"model":"m","prompt":"Say hello."}`,
		"/v1/embeddings":                 `{"model":"m","input":["a","b"]}`,
		"/v1/responses":                  `{"model":"m","input":"Say hello."}`,
		"/v1/moderations":                `{"model":"m","input":"Say hello."}`,
	} {
		a := b.post(path, body)
		require.Equal(t, http.StatusOK, a.StatusCode, path+": "+a.text())
	}
	require.Zero(t, b.ledger.held())
	for _, s := range b.settled(7) {
		require.Equal(t, governance.OutcomeComplete, s.Outcome)
	}
}

// TestX01_NoRouteReachesAProviderWithoutGovernance calls every route of the table with a key that has nothing left. Counting
// tokens costs nothing and is admitted all the same (ruling 29).
func TestX01_NoRouteReachesAProviderWithoutGovernance(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.model("m", "small")
		s.claude("claude", "small")
		s.limit(governance.KindBudget, governance.MetricCost, 0)
	})
	for _, rt := range b.gw.Routes() {
		path := strings.NewReplacer("*", "m", ":id", "018f0000-0000-7000-8000-000000000000").Replace(rt.Path)
		body := ""
		if rt.Method == http.MethodPost {
			body = `{"model":"m","messages":[{"role":"user","content":"x"}],"prompt":"x","input":"x"}`
		}
		if strings.HasPrefix(path, "/v1/messages") {
			body = strings.Replace(body, `"m"`, `"claude"`, 1)
		}
		headers := []string{"Anthropic-Version", "2023-06-01"}
		if slices.Contains([]string{governance.RouteImageVariations, governance.RouteTranscriptions, governance.RouteTranslations}, rt.Name) {
			body = form("model", "m", "file=a.wav", "RIFF")
			headers = append(headers, "Content-Type", formType)
		}
		a := b.do(b.request(rt.Method, path, body, headers...))
		switch {
		case rt.Name == governance.RouteCountTokens:
			require.Equal(t, http.StatusOK, a.StatusCode, path+a.text())
			require.Len(t, b.ledger.admitted(), 1)
			require.Equal(t, rt.Name, b.ledger.admitted()[0].Origin.Route)
			b.mock.Reset()
		case rt.Metered:
			require.Equal(t, http.StatusTooManyRequests, a.StatusCode, path+a.text())
			require.Equal(t, "budget_exceeded", a.failure(t).Code)
			require.Equal(t, "false", a.Header.Get("X-Should-Retry"))
			require.Empty(t, a.Header.Get("Retry-After"))
		}
	}
	require.Zero(t, b.mock.Counts().Count)
}

func TestF103_F104_F116_F118_F119_BodiesKeepTheirBytes(t *testing.T) {
	t.Parallel()
	body := "{ \"temperature\":0,\"top_p\":0,  \"seed\":9007199254740993, \"n\":1,\"presence_penalty\":0,\"max_tokens\":0,\"stream\":false,\"logprobs\":false," +
		"\"stop\":null,\"model\" :\"m\",\"x\":0.123000000000000005123,\"y\":1E+2,\"metadata\":{\"id\":9223372036854775807},\"parallel_tool_calls\":false," +
		"\"messages\":[{\"role\":\"assistant\",\"content\":\"<b>&\u2028\",\"reasoning_content\":\"r\",\"reasoning_details\":[{\"z\":1,\"a\":2}]},{\"role\":\"user\",\"content\":\"hi\"}], \"zz\":1.0}"
	b := start(t)
	want := strings.Replace(body, `"m"`, `"mock-small"`, 1)
	for range 2 {
		a := b.post("/v1/chat/completions", body)
		require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	}
	require.Equal(t, want, string(b.sent()[0].Body))
	require.Equal(t, b.sent()[0].BodySHA256, b.sent()[1].BodySHA256)
}

func TestF143_T04_T18_OnlyTheAllowListReachesTheProvider(t *testing.T) {
	t.Parallel()
	b := start(t)
	body := `{"model":"m","api_base":"http://127.0.0.1:1","base_url":"http://127.0.0.1:1","api_key":"sk-x","extra_body":{"api_base":"http://127.0.0.1:1"},` +
		`"messages":[{"role":"user","content":"x"}]}`
	a := b.post("/v1/chat/completions?api_base=http://127.0.0.1:1", body,
		"X-Portkey-Custom-Host", "http://127.0.0.1:1", "X-Api-Base", "http://127.0.0.1:1", "Openai-Organization", "org-x", "Cookie", "a=b",
		"X-Forwarded-For", "10.0.0.1", "X_Underscore", "1", "X-Tollgate-End-User", "u", "X-Tollgate-Tags", "a=b", "Idempotency-Key", "k1",
		"X-Request-Id", "mine", "Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	seen := b.sent()[0]
	require.Equal(t, "/v1/chat/completions", seen.Path)
	for name := range seen.Header {
		require.Contains(t, []string{"Accept-Encoding", "Authorization", "Content-Length", "Content-Type", "Traceparent", "User-Agent"}, name)
	}
	require.Equal(t, "Bearer "+upstreamID, seen.Header.Get("Authorization"))
	require.Equal(t, "identity", seen.Header.Get("Accept-Encoding"))
	require.Contains(t, string(seen.Body), `"api_base":"http://127.0.0.1:1"`, "members of bodies are plain payload")
	require.NotEqual(t, "mine", a.Header.Get("X-Request-Id"))
	require.Contains(t, b.log.String(), `"client_request_id":"mine"`)
	require.Contains(t, b.log.String(), `"trace_id":"0af7651916cd43dd8448eb211c80319c"`)
}

// TestT28_NoSecretAndNoWordOfAPromptIsLogged plants marks everywhere and looks for them in the log.
func TestT28_NoSecretAndNoWordOfAPromptIsLogged(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.model("m", "small")
		s.model("bad", "status(400,echo_key)")
		s.model("broken", "reset_after(2)")
	})
	for _, model := range []string{"m", "bad", "broken", "none"} {
		for _, stream := range []string{"true", "false"} {
			b.post("/v1/chat/completions", `{"model":"`+model+`","stream":`+stream+`,"user":"MARK-user","messages":[{"role":"user","content":"MARK-prompt"}]}`,
				"X-Tollgate-Tags", "MARK-tag=MARK-value", "X-Tollgate-Metadata", `{"MARK":1}`, "Traceparent", "00-MARK")
		}
	}
	b.get("/v1/models", "Authorization", "Bearer sk-tg-MARK")
	b.idle()
	require.NotContains(t, b.log.String(), "MARK")
	require.NotContains(t, b.log.String(), upstreamID)
	require.NotContains(t, b.log.String(), demoKey)
	for line := range strings.Lines(b.log.String()) {
		require.True(t, json.Valid([]byte(line)), line)
	}
}

// TestModelsAreGuardedAlikeOnEveryRoute: a model that the key's patterns leave out is 403 and one that nobody offers 404, under
// its public name alone, wherever it is asked for; nothing is forwarded and nothing held.
func TestModelsAreGuardedAlikeOnEveryRoute(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.model("gpt-allowed", "small")
		s.model("other", "small")
		s.principal.KeyModels = []string{"gpt-*", "mock-*"} // names of upstreams give no access
	})
	for _, rt := range b.gw.Routes() {
		if !rt.Metered {
			continue
		}
		for model, want := range map[string]struct {
			status int
			code   string
		}{
			"other": {http.StatusForbidden, "model_not_allowed"}, "gpt-unknown": {http.StatusNotFound, "model_not_found"},
			"mock-small": {http.StatusNotFound, "model_not_found"}, "GPT-allowed": {http.StatusNotFound, "model_not_found"},
		} {
			body := `{"model":"` + model + `","messages":[{"role":"user","content":"x"}],"prompt":"x","input":"x","max_tokens":5}`
			headers := []string{"Anthropic-Version", "2023-06-01"}
			if slices.Contains([]string{governance.RouteImageVariations, governance.RouteTranscriptions, governance.RouteTranslations}, rt.Name) {
				body = form("model", model, "file=a.wav", "RIFF")
				headers = append(headers, "Content-Type", formType)
			}
			a := b.do(b.request(rt.Method, rt.Path, body, headers...))
			require.Equal(t, want.status, a.StatusCode, "%s %s: %s", rt.Path, model, a.text())
			require.Contains(t, a.text(), want.code)
		}
	}
	require.Zero(t, b.mock.Counts().Count)
	require.Empty(t, b.ledger.admitted())
}

package openai_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/providers"
	"github.com/tollgate-gateway/tollgate/providers/openai"
	"github.com/tollgate-gateway/tollgate/providers/providertest"
)

func TestContract(t *testing.T) {
	t.Parallel()
	providertest.Run(t, openai.New(), "https://api.example.com")
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	for base, want := range map[string]string{
		"https://api.openai.com":                                  "https://api.openai.com/v1/chat/completions",
		"https://api.openai.com/":                                 "https://api.openai.com/v1/chat/completions",
		"https://api.openai.com/v1":                               "https://api.openai.com/v1/chat/completions",
		"https://api.openai.com/v1/":                              "https://api.openai.com/v1/chat/completions",
		"https://api.groq.com/openai/v1":                          "https://api.groq.com/openai/v1/chat/completions",
		"https://ark.example.com/api/v3":                          "https://ark.example.com/api/v3/chat/completions",
		"https://generativelanguage.googleapis.com/v1beta/openai": "https://generativelanguage.googleapis.com/v1beta/openai/chat/completions",
		"http://127.0.0.1:8000/serve":                             "http://127.0.0.1:8000/serve/v1/chat/completions",
		"http://[::1]:8000":                                       "http://[::1]:8000/v1/chat/completions",
		"https://vllm.example.com":                                "https://vllm.example.com/v1/chat/completions",
		"https://h.example.com/v1?api-version=2":                  "https://h.example.com/v1/chat/completions?api-version=2",
	} {
		req, err := openai.New().NewRequest(t.Context(), providers.Upstream{BaseURL: base}, chat, nil, nil)
		require.NoError(t, err, base)
		require.Equal(t, want, req.URL.String())
	}
	for d, want := range map[providers.Dialect]string{
		textCompletion: "/v1/completions", respond: "/v1/responses", embed: "/v1/embeddings", moderation: "/v1/moderations",
	} {
		req, err := openai.New().NewRequest(t.Context(), providers.Upstream{BaseURL: "http://h"}, d, nil, nil)
		require.NoError(t, err)
		require.Equal(t, want, req.URL.Path)
	}
	for _, base := range []string{
		"", "api.openai.com", "ftp://h/v1", "https:///v1", "https://user:MARK@h/v1", "https://h/v1#f", "https://h\x00/", "://MARK",
	} {
		_, err := openai.New().NewRequest(t.Context(), providers.Upstream{BaseURL: base}, chat, nil, nil)
		require.Error(t, err, base)
		require.NotContains(t, err.Error(), "MARK")
	}
}

func TestOf_DoesAsTheEntrySays(t *testing.T) {
	t.Parallel()
	p := openai.Of(&providers.Entry{
		Kind: "ours", Speaks: []string{"embeddings", "chat"}, Auth: "X-Team-Key", Unversioned: true, Quirks: providers.Quirks{NoStreamOptions: true},
	})
	require.Equal(t, "ours", p.Kind())
	require.Equal(t, []providers.Dialect{chat, providers.OpenAIEmbeddings}, p.Speaks())
	require.True(t, p.Quirks().NoStreamOptions)
	require.False(t, p.Batches())
	require.True(t, openai.New().Batches())
	require.True(t, openai.Of(&providers.Entry{Batches: true}).Batches())
	up := providers.Upstream{BaseURL: "https://api.example.com/inference", Credential: secret.New("key")}
	req, err := p.NewRequest(t.Context(), up, chat, http.Header{}, nil)
	require.NoError(t, err)
	require.Equal(t, "https://api.example.com/inference/chat/completions", req.URL.String())
	require.Equal(t, "key", req.Header.Get("X-Team-Key"))
	require.Empty(t, req.Header.Get("Authorization"))
	file, err := p.NewResourceRequest(t.Context(), up, http.MethodGet, providers.OpenAIFiles, nil, "", nil)
	require.NoError(t, err)
	require.Equal(t, "https://api.example.com/inference/files", file.URL.String())
	require.Equal(t, "key", file.Header.Get("X-Team-Key"))
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	client := http.Header{}
	client.Set("OpenAI-Beta", "assistants=v2")
	client.Set("Accept", "text/event-stream")
	client.Set("Tracestate", "a=b")
	up := providers.Upstream{BaseURL: "http://h", Credential: secret.New("sk-up")}
	req, err := openai.New().NewRequest(t.Context(), up, chat, client, []byte("{}"))
	require.NoError(t, err)
	require.Equal(t, http.Header{
		"Openai-Beta": {"assistants=v2"}, "Accept": {"text/event-stream"}, "Tracestate": {"a=b"},
		"Content-Type": {"application/json"}, "Accept-Encoding": {"identity"}, "User-Agent": {"tollgate/dev"},
		"Authorization": {"Bearer sk-up"},
	}, req.Header)
}

func TestClassify(t *testing.T) {
	t.Parallel()
	const ours, next = true, true
	for _, tc := range []struct {
		name   string
		status int
		body   string
		want   providers.Failure
	}{
		{"bad request", 400, `{"error":{"message":"Bad.","type":"invalid_request_error","param":"x","code":null}}`, providers.Failure{Code: governance.CodeInvalidRequest, Public: "Bad."}},
		{"not found", 404, `{"detail":"Not Found"}`, providers.Failure{Code: governance.CodeInvalidRequest, Public: "Not Found"}},
		{"conflict", 409, ``, providers.Failure{Code: governance.CodeInvalidRequest, Public: "The provider refused the request."}},
		{"too large", 413, `too big`, providers.Failure{Code: governance.CodePayloadTooLarge, Public: "too big"}},
		{"unprocessable", 422, `{"error":"No."}`, providers.Failure{Code: governance.CodeInvalidRequest, Public: "No."}},
		{"unauthorized", 401, `{"error":{"message":"Incorrect API key provided: sk-MARK"}}`, providers.Failure{Code: governance.CodeUpstreamAuthFailed, Public: "The provider does not accept the gateway's credential.", OurFault: ours, TryNext: next}},
		{"forbidden", 403, `<html>`, providers.Failure{Code: governance.CodeUpstreamAuthFailed, Public: "The provider does not accept the gateway's credential.", OurFault: ours, TryNext: next}},
		{"payment required", 402, `{}`, providers.Failure{Code: governance.CodeUpstreamQuota, Public: "The gateway's account at the provider is exhausted.", OurFault: ours, TryNext: next}},
		{"quota", 429, `{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}`, providers.Failure{Code: governance.CodeUpstreamQuota, Public: "The gateway's account at the provider is exhausted.", OurFault: ours, TryNext: next}},
		{"rate", 429, `{"error":{"message":"Slow down.","type":"requests","code":"rate_limit_exceeded"}}`, providers.Failure{Code: governance.CodeRateLimitExceeded, Public: "Slow down.", TryNext: next}},
		{"numeric code", 429, `{"error":{"message":"Slow down.","code":429}}`, providers.Failure{Code: governance.CodeRateLimitExceeded, Public: "Slow down.", TryNext: next}},
		{"server error", 500, `{"error":{"message":"Sorry."}}`, providers.Failure{Code: governance.CodeUpstreamAborted, Public: "Sorry.", TryNext: next}},
		{"array of errors", 503, `[{"error":{"code":503,"message":"Busy.","status":"UNAVAILABLE"}}]`, providers.Failure{Code: governance.CodeUpstreamAborted, Public: "Busy.", TryNext: next}},
		{"upstream's own time-out", 504, ``, providers.Failure{Code: governance.CodeUpstreamTimeout, Public: "The provider refused the request.", TryNext: next}},
		{"redirect", 307, ``, providers.Failure{Code: governance.CodeUpstreamInvalid, Public: "The provider's answer could not be understood.", TryNext: next}},
		{"200 with the caller's error", 200, `{"error":{"message":"Bad image.","type":"invalid_request_error"}}`, providers.Failure{Code: governance.CodeInvalidRequest, Public: "Bad image."}},
		{"200 with a numeric code", 200, `{"error":{"message":"Bad.","code":400}}`, providers.Failure{Code: governance.CodeInvalidRequest, Public: "Bad."}},
		{"200 with our error", 200, `{"error":{"message":"MARK","code":"insufficient_quota"}}`, providers.Failure{Code: governance.CodeUpstreamQuota, Public: "The gateway's account at the provider is exhausted.", OurFault: ours, TryNext: next}},
		{"200 with an unknown error", 200, `{"error":{"message":"Oops."}}`, providers.Failure{Code: governance.CodeUpstreamAborted, Public: "Oops.", TryNext: next}},
		{"200 with a failed response", 200, `{"type":"response.failed","response":{"error":{"code":"rate_limit_exceeded","message":"Slow down."}}}`, providers.Failure{Code: governance.CodeRateLimitExceeded, Public: "Slow down.", TryNext: next}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, openai.New().Classify(tc.status, http.Header{}, []byte(tc.body)))
		})
	}
}

func TestF055_RetryAfter(t *testing.T) {
	t.Parallel()
	wait := func(name, value string) time.Duration {
		h := http.Header{}
		h.Set(name, value)
		return openai.New().Classify(http.StatusTooManyRequests, h, nil).RetryAfter
	}
	require.Equal(t, 7*time.Second, wait("Retry-After", "7"))
	require.Equal(t, 1500*time.Millisecond, wait("Retry-After", "1.5"))
	require.Equal(t, 250*time.Millisecond, wait("Retry-After-Ms", "250"))
	require.InDelta(t, time.Minute, wait("Retry-After", time.Now().Add(time.Minute).UTC().Format(http.TimeFormat)), float64(2*time.Second))
	for _, bad := range []string{"", "-5", "soon", "99999999999999999999", "1h", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat), "NaN"} {
		require.Zero(t, wait("Retry-After", bad), bad)
	}
}

func FuzzClassify(f *testing.F) {
	f.Add(200, `{"error":{"message":"x","code":400}}`)
	f.Add(429, `[[["x"]]]`)
	f.Fuzz(func(t *testing.T, status int, body string) {
		fail := openai.New().Classify(status, http.Header{}, []byte(body))
		require.NotEmpty(t, fail.Code)
		require.NotEmpty(t, fail.Public)
	})
}

func TestLongErrorsAreCutBetweenCharacters(t *testing.T) {
	t.Parallel()
	fail := openai.New().Classify(http.StatusBadRequest, http.Header{}, []byte(`{"error":"`+strings.Repeat("é", 5_000)+`"}`))
	require.LessOrEqual(t, len(fail.Public), 2<<10)
	require.Equal(t, strings.Repeat("é", len(fail.Public)/2), fail.Public)
}

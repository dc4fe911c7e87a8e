package gemini_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/providers"
	"github.com/tollgate-gateway/tollgate/providers/gemini"
	"github.com/tollgate-gateway/tollgate/providers/providertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContract(t *testing.T) {
	t.Parallel()
	providertest.Run(t, gemini.New(), "https://generativelanguage.googleapis.com/v1beta")
}

func TestF140_AddressesHoldNoCredential(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		base, model string
		stream      bool
		want        string
	}{
		{"https://h/v1beta", "gemini-2.5-flash", false, "https://h/v1beta/models/gemini-2.5-flash:generateContent"},
		{"https://h/v1beta/", "models/gemini-2.5-flash", true, "https://h/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse"},
		{"https://h/v1beta?a=1", "m", true, "https://h/v1beta/models/m:streamGenerateContent?a=1&alt=sse"},
		{"https://h/v1beta", "a/../b?c#d e", false, "https://h/v1beta/models/a%2F..%2Fb%3Fc%23d%20e:generateContent"},
	} {
		up := providers.Upstream{BaseURL: tc.base, Model: tc.model, Stream: tc.stream, Credential: secret.New("MARK"), ClientQuery: "key=x&alt=json"}
		req, err := gemini.New().NewRequest(t.Context(), up, providers.GeminiGenerate, nil, nil)
		require.NoError(t, err)
		require.Equal(t, tc.want, req.URL.String())
		require.Equal(t, "MARK", req.Header.Get("X-Goog-Api-Key"))
		require.Empty(t, req.Header.Get("Authorization"))
	}
	for _, up := range []providers.Upstream{{BaseURL: "http://MARK@h", Model: "m"}, {BaseURL: "http://h/v1beta?key=MARK"}} {
		_, err := gemini.New().NewRequest(t.Context(), up, providers.GeminiGenerate, nil, nil)
		require.Error(t, err)
		require.NotContains(t, err.Error(), "MARK")
	}
}

func TestClassify(t *testing.T) {
	t.Parallel()
	said := func(status, details string) string {
		return `{"error":{"code":1,"message":"Said.","status":"` + status + `","details":[` + details + `]}}`
	}
	const (
		retry = `{"@type":"type.googleapis.com/google.rpc.Help"},{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"37s"}`
		bad   = `{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"API_KEY_INVALID","domain":"googleapis.com"}`
	)
	auth := providers.Failure{Code: governance.CodeUpstreamAuthFailed, Public: "The provider does not accept the gateway's credential.", OurFault: true, TryNext: true}
	plain := func(code governance.Code, next bool, wait time.Duration) providers.Failure {
		return providers.Failure{Code: code, Public: "Said.", TryNext: next, RetryAfter: wait}
	}
	for _, tc := range []struct {
		name   string
		status int
		body   string
		want   providers.Failure
	}{
		{"invalid", 400, said("INVALID_ARGUMENT", ""), plain(governance.CodeInvalidRequest, false, 0)},
		{"our key", 400, said("INVALID_ARGUMENT", bad), auth},
		{"unauthenticated", 401, said("UNAUTHENTICATED", ""), auth},
		{"forbidden", 403, said("PERMISSION_DENIED", ""), auth},
		{"not found", 404, said("NOT_FOUND", ""), plain(governance.CodeInvalidRequest, true, 0)},
		{"rate", 429, said("RESOURCE_EXHAUSTED", retry), plain(governance.CodeRateLimitExceeded, true, 37*time.Second)},
		{"rate in an array", 429, "[" + said("RESOURCE_EXHAUSTED", retry) + "\n]", plain(governance.CodeRateLimitExceeded, true, 37*time.Second)},
		{"absurd wait", 429, said("RESOURCE_EXHAUSTED", `{"@type":"x/google.rpc.RetryInfo","retryDelay":"-1s"}`), plain(governance.CodeRateLimitExceeded, true, 0)},
		{"internal", 500, said("INTERNAL", ""), plain(governance.CodeUpstreamAborted, true, 0)},
		{"unavailable", 503, said("UNAVAILABLE", ""), plain(governance.CodeUpstreamAborted, true, 0)},
		{"deadline", 504, said("DEADLINE_EXCEEDED", ""), plain(governance.CodeUpstreamTimeout, true, 0)},
		{"200 with unavailable", 200, said("UNAVAILABLE", ""), plain(governance.CodeUpstreamAborted, true, 0)},
		{"200 with rate", 200, said("RESOURCE_EXHAUSTED", ""), plain(governance.CodeRateLimitExceeded, true, 0)},
		{"200 with our key", 200, said("INVALID_ARGUMENT", bad), auth},
		{"200 with forbidden", 200, "[" + said("PERMISSION_DENIED", "") + "]", auth},
		{"200 with the unknown", 200, said("NEW", ""), plain(governance.CodeUpstreamAborted, true, 0)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, gemini.New().Classify(tc.status, http.Header{}, []byte(tc.body)))
		})
	}
}

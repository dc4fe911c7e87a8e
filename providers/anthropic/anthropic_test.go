package anthropic_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/providers"
	"github.com/tollgate-gateway/tollgate/providers/anthropic"
	"github.com/tollgate-gateway/tollgate/providers/providertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContract(t *testing.T) {
	t.Parallel()
	providertest.Run(t, anthropic.New(), "https://api.example.com")
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ base, query, want string }{
		{"https://api.anthropic.com", "", "https://api.anthropic.com/v1/messages"},
		{"https://api.anthropic.com/v1/", "", "https://api.anthropic.com/v1/messages"},
		{"https://api.moonshot.ai/anthropic", "", "https://api.moonshot.ai/anthropic/v1/messages"},
		{"https://api.anthropic.com", "beta=true", "https://api.anthropic.com/v1/messages?beta=true"},
		{"https://h/v1?a=1", "beta=true", "https://h/v1/messages?a=1&beta=true"},
		{"https://h/v1?a=1", "a=2&beta=false", "https://h/v1/messages?a=1"},
		{"https://h", "api_key=MARK&beta=true&url=http://evil", "https://h/v1/messages?beta=true"},
		{"https://h", "beta=true;x=%zz", "https://h/v1/messages"},
	} {
		up := providers.Upstream{BaseURL: tc.base, ClientQuery: tc.query}
		req, err := anthropic.New().NewRequest(t.Context(), up, providers.AnthropicMessages, nil, nil)
		require.NoError(t, err, tc)
		require.Equal(t, tc.want, req.URL.String())
	}
	req, err := anthropic.New().NewRequest(t.Context(), providers.Upstream{BaseURL: "http://h"}, providers.AnthropicCountTokens, nil, nil)
	require.NoError(t, err)
	require.Equal(t, "/v1/messages/count_tokens", req.URL.Path)
	_, err = anthropic.New().NewRequest(t.Context(), providers.Upstream{BaseURL: "http://MARK@h"}, providers.AnthropicMessages, nil, nil)
	require.ErrorIs(t, err, providers.ErrBaseURL)
	require.NotContains(t, err.Error(), "MARK")
}

func TestTheClientsVersionAndBetasGoOn(t *testing.T) {
	t.Parallel()
	client := http.Header{"Anthropic-Version": {"2026-10-21"}, "Anthropic-Beta": {"a-2026-01-01,b", "c"}, "X-Api-Key": {"sk-client"}}
	up := providers.Upstream{BaseURL: "http://h", Credential: secret.New("sk-ant-up")}
	req, err := anthropic.New().NewRequest(t.Context(), up, providers.AnthropicMessages, client, []byte("{}"))
	require.NoError(t, err)
	require.Equal(t, http.Header{
		"Anthropic-Version": {"2026-10-21"}, "Anthropic-Beta": {"a-2026-01-01,b", "c"}, "X-Api-Key": {"sk-ant-up"},
		"Content-Type": {"application/json"}, "Accept-Encoding": {"identity"}, "User-Agent": {"tollgate/dev"},
	}, req.Header)

	req, err = anthropic.New().NewRequest(t.Context(), up, providers.AnthropicMessages, http.Header{}, []byte("{}"))
	require.NoError(t, err)
	require.Equal(t, "2023-06-01", req.Header.Get("Anthropic-Version"), "a translated request has the version that it was translated to")
}

func TestClassify(t *testing.T) {
	t.Parallel()
	const ours, next = true, true
	quota := providers.Failure{Code: governance.CodeUpstreamQuota, Public: "The gateway's account at the provider is exhausted.", OurFault: ours, TryNext: next}
	auth := providers.Failure{Code: governance.CodeUpstreamAuthFailed, Public: "The provider does not accept the gateway's credential.", OurFault: ours, TryNext: next}
	said := func(kind, message string) string {
		return `{"type":"error","error":{"type":"` + kind + `","message":"` + message + `"},"request_id":"req_1"}`
	}
	for _, tc := range []struct {
		name   string
		status int
		body   string
		want   providers.Failure
	}{
		{"bad request", 400, said("invalid_request_error", "max_tokens: Field required"), providers.Failure{Code: governance.CodeInvalidRequest, Public: "max_tokens: Field required"}},
		{"credit", 400, said("invalid_request_error", "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing."), quota},
		{"spend limit", 400, said("invalid_request_error", "You have reached your specified API usage limits. You will regain access on 2026-01-01."), quota},
		{"unauthorized", 401, said("authentication_error", "invalid x-api-key MARK"), auth},
		{"billing", 402, said("billing_error", "MARK"), quota},
		{"forbidden", 403, said("permission_error", "MARK"), auth},
		{"unknown model", 404, said("not_found_error", "model: claude-0"), providers.Failure{Code: governance.CodeInvalidRequest, Public: "model: claude-0"}},
		{"too large", 413, said("request_too_large", "Too large."), providers.Failure{Code: governance.CodePayloadTooLarge, Public: "Too large."}},
		{"rate", 429, said("rate_limit_error", "Slow down."), providers.Failure{Code: governance.CodeRateLimitExceeded, Public: "Slow down.", TryNext: next}},
		{"failed", 500, said("api_error", "Internal server error"), providers.Failure{Code: governance.CodeUpstreamAborted, Public: "Internal server error", TryNext: next}},
		{"timeout", 504, said("timeout_error", "Too slow."), providers.Failure{Code: governance.CodeUpstreamTimeout, Public: "Too slow.", TryNext: next}},
		{"overloaded", 529, said("overloaded_error", "Overloaded"), providers.Failure{Code: governance.CodeUpstreamAborted, Public: "Overloaded", TryNext: next}},
		{"200 with overload", 200, said("overloaded_error", "Overloaded"), providers.Failure{Code: governance.CodeUpstreamAborted, Public: "Overloaded", TryNext: next}},
		{"200 with the caller's error", 200, said("invalid_request_error", "Bad."), providers.Failure{Code: governance.CodeInvalidRequest, Public: "Bad."}},
		{"200 with our error", 200, said("authentication_error", "MARK"), auth},
		{"200 with our bill", 200, said("billing_error", "MARK"), quota},
		{"200 with rate", 200, said("rate_limit_error", "Slow down."), providers.Failure{Code: governance.CodeRateLimitExceeded, Public: "Slow down.", TryNext: next}},
		{"200 with too large", 200, said("request_too_large", "Big."), providers.Failure{Code: governance.CodePayloadTooLarge, Public: "Big."}},
		{"200 with timeout", 200, said("timeout_error", "Slow."), providers.Failure{Code: governance.CodeUpstreamTimeout, Public: "Slow.", TryNext: next}},
		{"200 with not found", 200, said("not_found_error", "No."), providers.Failure{Code: governance.CodeInvalidRequest, Public: "No."}},
		{"200 with forbidden", 200, said("permission_error", "MARK"), auth},
		{"200 with an unknown error", 200, said("new_error", "Oops."), providers.Failure{Code: governance.CodeUpstreamAborted, Public: "Oops.", TryNext: next}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, anthropic.New().Classify(tc.status, http.Header{}, []byte(tc.body)))
		})
	}
}

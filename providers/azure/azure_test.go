package azure_test

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
	"github.com/tollgate-gateway/tollgate/providers/azure"
	"github.com/tollgate-gateway/tollgate/providers/openai"
	"github.com/tollgate-gateway/tollgate/providers/providertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func provider() azure.Provider { return azure.New(openai.Of(azure.Entry())) }

const (
	key   = "0123456789abcdef0123456789abcdef"
	token = "eyJhbGciOiJSUzI1NiJ9.eyJhdWQiOiJodHRwczovL2NvZ25pdGl2ZXNlcnZpY2VzLmF6dXJlLmNvbSJ9.c2lnbmF0dXJl"
)

func TestProvider(t *testing.T) {
	t.Parallel()
	providertest.Run(t, provider(), "https://r.openai.azure.com/openai/deployments")
}

func TestNewRequest_Addresses(t *testing.T) {
	t.Parallel()
	const host = "https://r.openai.azure.com"
	for _, tc := range []struct {
		base    string
		dialect providers.Dialect
		model   string
		want    string
	}{
		{host, providers.OpenAIChat, "gpt", "/openai/v1/chat/completions"},
		{host + "/", providers.OpenAIResponses, "gpt", "/openai/v1/responses"},
		{host + "/openai", providers.OpenAIEmbeddings, "e", "/openai/v1/embeddings"},
		{host + "/openai/v1/", providers.OpenAIChat, "gpt", "/openai/v1/chat/completions"},
		{host + "/openai/v1?api-version=preview", providers.OpenAIResponses, "gpt", "/openai/v1/responses?api-version=preview"},
		{host + "?api-version=preview", providers.OpenAIChat, "gpt", "/openai/v1/chat/completions?api-version=preview"},
		{host + "?api-version=2025-01-01-preview", providers.OpenAIChat, "gpt-4o", "/openai/deployments/gpt-4o/chat/completions?api-version=2025-01-01-preview"},
		{host + "/openai/?api-version=2024-06-01", providers.OpenAICompletions, "i", "/openai/deployments/i/completions?api-version=2024-06-01"},
		{host + "/openai/deployments", providers.OpenAIEmbeddings, "e", "/openai/deployments/e/embeddings?api-version=2024-10-21"},
		{host + "/openai?api-version=2025-04-01-preview", providers.OpenAIResponses, "gpt", "/openai/responses?api-version=2025-04-01-preview"},
		{host + "/team/openai/deployments/", providers.OpenAIChat, "d", "/team/openai/deployments/d/chat/completions?api-version=2024-10-21"},
	} {
		up := providers.Upstream{BaseURL: tc.base, Model: tc.model, Credential: secret.New(key)}
		req, err := provider().NewRequest(t.Context(), up, tc.dialect, http.Header{}, []byte("{}"))
		require.NoError(t, err)
		require.Equal(t, host+tc.want, req.URL.String(), tc.base)
		require.Equal(t, "r.openai.azure.com", req.Host)
	}
}

// F109: the name of a deployment is one segment of the path, whatever is in it.
func TestF109_DeploymentsAreOneSegment(t *testing.T) {
	t.Parallel()
	for model, want := range map[string]string{
		"a/b": "a%2Fb", "hf.co/x/y:Q4_K_M": "hf.co%2Fx%2Fy:Q4_K_M", "/abs/path": "%2Fabs%2Fpath", "模型/β": "%E6%A8%A1%E5%9E%8B%2F%CE%B2",
		"a%2Fb": "a%252Fb", "a?b#c": "a%3Fb%23c", "../x": "..%2Fx",
	} {
		up := providers.Upstream{BaseURL: "https://h?api-version=2024-10-21", Model: model}
		req, err := provider().NewRequest(t.Context(), up, providers.OpenAIChat, http.Header{}, nil)
		require.NoError(t, err)
		require.Equal(t, "https://h/openai/deployments/"+want+"/chat/completions?api-version=2024-10-21", req.URL.String())
		require.Equal(t, "/openai/deployments/"+model+"/chat/completions", req.URL.Path)
	}
	for _, model := range []string{"", ".", ".."} {
		up := providers.Upstream{BaseURL: "https://h?api-version=2024-10-21", Model: model}
		_, err := provider().NewRequest(t.Context(), up, providers.OpenAIChat, http.Header{}, nil)
		require.Error(t, err)
	}
}

// F140: the credential is in a header, and no error has the address.
func TestF140_CredentialsGoInHeaders(t *testing.T) {
	t.Parallel()
	for credential, want := range map[string]http.Header{
		key:                    {"Api-Key": {key}},
		token:                  {"Authorization": {"Bearer " + token}},
		"a.b.c":                {"Api-Key": {"a.b.c"}},
		"eyJhbGciOiJSUzI1NiJ9": {"Api-Key": {"eyJhbGciOiJSUzI1NiJ9"}},
		"":                     {},
	} {
		up := providers.Upstream{BaseURL: "https://h", Model: "m", Credential: secret.New(credential)}
		req, err := provider().NewRequest(t.Context(), up, providers.OpenAIChat, http.Header{"Api-Key": {"client"}, "Authorization": {"client"}}, nil)
		require.NoError(t, err)
		for _, name := range []string{"Api-Key", "Authorization"} {
			require.Equal(t, want[name], req.Header[name], credential)
		}
		require.NotContains(t, req.URL.String(), "eyJ")
	}
	for _, base := range []string{"https://MARK:MARK@h", "https://h#MARK", "://MARK", "MARK?api-version=2024-10-21"} {
		_, err := provider().NewRequest(t.Context(), providers.Upstream{BaseURL: base, Model: "m"}, providers.OpenAIChat, nil, nil)
		require.ErrorIs(t, err, providers.ErrBaseURL, base)
		require.NotContains(t, err.Error(), "MARK")
	}
}

func TestClassify_AzuresErrors(t *testing.T) {
	t.Parallel()
	const (
		noDeployment = `{"error":{"code":"DeploymentNotFound","message":"The API deployment for this resource does not exist."}}`
		filtered     = `{"error":{"message":"The response was filtered.","type":null,"param":"prompt","code":"content_filter","status":400,"innererror":{"code":"ResponsibleAIPolicyViolation","content_filter_result":{"hate":{"filtered":true,"severity":"high"}}}}}`
		tooMany      = `{"error":{"code":"429","message":"Requests have exceeded the token rate limit of your current pricing tier."}}`
		badKey       = `{"error":{"code":"401","message":"Access denied due to invalid subscription key or wrong API endpoint."}}`
		expired      = `{"statusCode":401,"message":"Unauthorized. Access token is missing, invalid, audience is incorrect, or have expired."}`
		exhausted    = `{"error":{"code":"insufficient_quota","message":"You exceeded your current quota."}}`
	)
	classify := func(status int, body string, headers ...string) providers.Failure {
		h := http.Header{}
		for i := 0; i < len(headers); i += 2 {
			h.Set(headers[i], headers[i+1])
		}
		return provider().Classify(status, h, []byte(body))
	}
	f := classify(http.StatusNotFound, noDeployment)
	require.Equal(t, governance.CodeInvalidRequest, f.Code)
	require.True(t, f.TryNext)
	require.Contains(t, f.Public, "deployment")
	f = classify(http.StatusBadRequest, filtered)
	require.Equal(t, governance.CodeInvalidRequest, f.Code)
	require.False(t, f.TryNext || f.OurFault)
	f = classify(http.StatusOK, filtered)
	require.Equal(t, governance.CodeInvalidRequest, f.Code)
	for header, value := range map[string]string{"Retry-After": "7", "Retry-After-Ms": "7000"} {
		f = classify(http.StatusTooManyRequests, tooMany, header, value)
		require.Equal(t, governance.CodeRateLimitExceeded, f.Code)
		require.True(t, f.TryNext)
		require.Equal(t, 7*time.Second, f.RetryAfter)
	}
	for _, body := range []string{badKey, expired} {
		f = classify(http.StatusUnauthorized, body)
		require.Equal(t, governance.CodeUpstreamAuthFailed, f.Code)
		require.True(t, f.OurFault && f.TryNext)
	}
	f = classify(http.StatusTooManyRequests, exhausted)
	require.Equal(t, governance.CodeUpstreamQuota, f.Code)
}

// The asynchronous filter sends what it found about the prompt ahead, and about the answer between and after its words, all
// of it without choices or without words. Nothing of that is usage, and nothing is withheld (ruling 36).
func TestMeter_FiltersOwnFramesAreNoUsage(t *testing.T) {
	t.Parallel()
	stream, err := os.Open(filepath.Join("testdata", "async_filter.txt"))
	require.NoError(t, err)
	defer func() { require.NoError(t, stream.Close()) }()
	m := provider().Meter(providers.OpenAIChat)
	events := sse.NewReader(stream)
	var withheld []string
	for ev, err := events.Next(); err == nil; ev, err = events.Next() {
		m.Event(ev)
		if m.Facts().UsageOnly {
			withheld = append(withheld, string(ev.Data))
		}
	}
	require.Len(t, withheld, 1)
	require.Contains(t, withheld[0], `"total_tokens":11`)
	facts := m.Facts()
	require.True(t, facts.HasUsage && facts.Terminal && facts.Finished)
	require.Equal(t, "gpt-4o-2024-11-20", facts.Model)
	require.Equal(t, int64(9), facts.Usage.Quantities[governance.UnitInput])
	require.Equal(t, int64(2), facts.Usage.Quantities[governance.UnitOutput])
}

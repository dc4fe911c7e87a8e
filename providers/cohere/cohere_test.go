package cohere_test

import (
	"bytes"
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
	"github.com/tollgate-gateway/tollgate/providers/cohere"
	"github.com/tollgate-gateway/tollgate/providers/providertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// compatible stands for the provider that writes requests of OpenAI's form.
type compatible struct{ providers.Provider }

func (compatible) NewRequest(
	ctx context.Context, up providers.Upstream, d providers.Dialect, client http.Header, body []byte,
) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, up.BaseURL+"/"+string(d), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Traceparent", client.Get("Traceparent"))
	req.Header.Set("Accept-Encoding", "identity")
	if !up.Credential.IsZero() {
		req.Header.Set("Authorization", "Bearer "+up.Credential.Reveal())
	}
	return req, nil
}

func (compatible) Meter(providers.Dialect) providers.Meter { return silent{} }

type silent struct{}

func (silent) Body([]byte)            {}
func (silent) Event(sse.Event)        {}
func (silent) Facts() providers.Facts { return providers.Facts{} }

func TestContract(t *testing.T) {
	t.Parallel()
	providertest.Run(t, cohere.New(compatible{}), "https://api.cohere.ai")
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	for base, want := range map[string][2]string{
		"https://api.cohere.ai":                   {"https://api.cohere.ai/v2/cohere/rerank", "https://api.cohere.ai/compatibility/v1/openai/chat"},
		"https://api.cohere.ai/":                  {"https://api.cohere.ai/v2/cohere/rerank", "https://api.cohere.ai/compatibility/v1/openai/chat"},
		"https://api.cohere.ai/compatibility/v1/": {"https://api.cohere.ai/v2/cohere/rerank", "https://api.cohere.ai/compatibility/v1/openai/chat"},
		"https://h/cohere/v2":                     {"https://h/cohere/v2/cohere/rerank", "https://h/cohere/compatibility/v1/openai/chat"},
	} {
		for i, d := range []providers.Dialect{providers.CohereRerank, providers.OpenAIChat} {
			req, err := cohere.New(compatible{}).NewRequest(t.Context(), providers.Upstream{BaseURL: base, Credential: secret.New("MARK")}, d, nil, nil)
			require.NoError(t, err)
			require.Equal(t, want[i], req.URL.String())
			require.Equal(t, "Bearer MARK", req.Header.Get("Authorization"))
		}
	}
}

func TestClassify(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		status     int
		body       string
		code       governance.Code
		ours, next bool
	}{
		{400, `{"message":"invalid request"}`, governance.CodeInvalidRequest, false, false},
		{401, `{"message":"invalid api token"}`, governance.CodeUpstreamAuthFailed, true, true},
		{404, `{"message":"model 'x' not found"}`, governance.CodeInvalidRequest, false, true},
		{422, `{"message":"too long"}`, governance.CodeInvalidRequest, false, false},
		{429, `{"message":"You are using a Trial key, which is limited to 10 API calls / minute."}`, governance.CodeRateLimitExceeded, false, true},
		{429, `{"message":"You are using a Trial key, which is limited to 1000 API calls / month."}`, governance.CodeUpstreamQuota, true, true},
		{498, `{"message":"blocked"}`, governance.CodeInvalidRequest, false, false},
		{503, `{"message":"unavailable"}`, governance.CodeUpstreamAborted, false, true},
		{200, `{"message":"odd"}`, governance.CodeUpstreamAborted, false, true},
	} {
		f := cohere.New(compatible{}).Classify(tc.status, http.Header{}, []byte(tc.body))
		require.Equal(t, tc.code, f.Code, tc.body)
		require.Equal(t, tc.ours, f.OurFault, tc.body)
		require.Equal(t, tc.next, f.TryNext, tc.body)
	}
}

package bedrock

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/providers"
	"github.com/tollgate-gateway/tollgate/providers/providertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const regional = "https://bedrock-runtime.us-east-1.amazonaws.com"

func TestContract(t *testing.T) {
	t.Parallel()
	providertest.Run(t, New(), regional)
}

func request(t *testing.T, p Provider, up providers.Upstream, body string) *http.Request {
	t.Helper()
	client := http.Header{"Traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}
	req, err := p.NewRequest(t.Context(), up, providers.BedrockConverse, client, []byte(body))
	require.NoError(t, err)
	return req
}

func TestF109_ModelsAreOneEscapedSegment(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		base, model string
		stream      bool
		want        string
	}{
		{regional, "amazon.nova-pro-v1:0", false, "/model/amazon.nova-pro-v1%3A0/converse"},
		{regional + "/", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", true, "/model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse-stream"},
		{"https://h/a%2Fb/", "arn:aws:bedrock:eu-central-1:1:inference-profile/x y", false, "/a%2Fb/model/arn%3Aaws%3Abedrock%3Aeu-central-1%3A1%3Ainference-profile%2Fx%20y/converse"},
		{regional, "a/../b?c#d", false, "/model/a%2F..%2Fb%3Fc%23d/converse"},
	} {
		req := request(t, New(), providers.Upstream{BaseURL: tc.base, Model: tc.model, Stream: tc.stream, Credential: secret.New("MARK")}, "{}")
		require.Equal(t, tc.want, req.URL.EscapedPath())
		require.Equal(t, "Bearer MARK", req.Header.Get("Authorization"))
		require.Empty(t, req.URL.RawQuery)
	}
	for _, up := range []providers.Upstream{{BaseURL: "http://MARK@h", Model: "m"}, {BaseURL: "http://h/MARK"}} {
		_, err := New().NewRequest(t.Context(), up, providers.BedrockConverse, nil, nil)
		require.Error(t, err)
		require.NotContains(t, err.Error(), "MARK")
	}
}

// The signatures were made by a program of a few lines after Amazon's specification, which gives that of Amazon's own example.
// In them the path is escaped a second time.
func TestSignatures(t *testing.T) {
	t.Parallel()
	p := New()
	p.now = func() time.Time { return time.Date(2015, 8, 30, 12, 36, 0, 0, time.UTC) }
	const (
		keys  = `"access_key_id":"AKIDEXAMPLE","secret_access_key":"wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"`
		model = "arn:aws:bedrock:eu-central-1:123456789012:application-inference-profile/ab12"
		base  = "https://bedrock-runtime.eu-central-1.amazonaws.com"
		scope = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/eu-central-1/bedrock/aws4_request, SignedHeaders="
	)
	for _, tc := range []struct{ name, base, credential, token, want string }{
		{"region of the address", base, "{" + keys + "}", "", scope + "content-length;content-type;host;x-amz-date, Signature=796db6f0b17b3805ac8a2698f5978e2b0e331615ab5ec5accb1340de5d043029"},
		{"region of the credential", base, " {" + keys + `,"region":"eu-central-1"}` + "\n", "", scope + "content-length;content-type;host;x-amz-date, Signature=796db6f0b17b3805ac8a2698f5978e2b0e331615ab5ec5accb1340de5d043029"},
		{"session", base, "{" + keys + `,"session_token":"TOKEN"}`, "TOKEN", scope + "content-length;content-type;host;x-amz-date;x-amz-security-token, Signature=58548eb6c7c301bba922709619d2babb016d86c9f14beb9b28d13c4ad7ee9f3a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			req := request(t, p, providers.Upstream{BaseURL: tc.base, Model: model, Credential: secret.New(tc.credential)}, `{"messages":[]}`)
			require.Equal(t, tc.want, req.Header.Get("Authorization"))
			require.Equal(t, "20150830T123600Z", req.Header.Get("X-Amz-Date"))
			require.Equal(t, tc.token, req.Header.Get("X-Amz-Security-Token"))
			require.NotEmpty(t, req.Header.Get("Traceparent"))
		})
	}
	_, err := p.NewRequest(t.Context(), providers.Upstream{BaseURL: "https://proxy.example.com", Model: model, Credential: secret.New("{" + keys + "}")}, providers.BedrockConverse, nil, nil)
	require.ErrorIs(t, err, errNoRegion)
}

func TestRegions(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{
		"bedrock-runtime.us-east-1.amazonaws.com":                          "us-east-1",
		"bedrock-runtime-fips.us-gov-west-1.amazonaws.com":                 "us-gov-west-1",
		"bedrock-runtime.cn-north-1.amazonaws.com.cn":                      "cn-north-1",
		"vpce-0a1b-2c3d.bedrock-runtime.ap-southeast-2.vpce.amazonaws.com": "ap-southeast-2",
		"example.com": "",
	} {
		require.Equal(t, want, regionOf(host), host)
	}
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"bedrock-api-key-YmVk==", `{"access_key_id":"a","secret_access_key":"b/+="}`, `{"access_key_id":"a","secret_access_key":"b","session_token":"c","region":"eu-west-1"}`} {
		require.NoError(t, New().CheckCredential(secret.New(good)))
	}
	for _, bad := range []string{
		"", "two MARKs", "{", `{"MARK":1}`, `{"access_key_id":"MARK"}`, `{"access_key_id":"MARK","secret_access_key":""}`, `{"access_key_id":"MARK","secret_access_key":"a\nb"}`,
		`{"access_key_id":"MARK","secret_access_key":"b","region":"x y"}`, `{"access_key_id":"MARK","secret_access_key":"b","rgion":"x"}`, `{"access_key_id":7,"secret_access_key":"MARK"}`,
	} {
		err := New().CheckCredential(secret.New(bad))
		require.ErrorIs(t, err, ErrCredential)
		require.NotContains(t, err.Error(), "MARK")
		if bad != "" {
			_, err = New().NewRequest(t.Context(), providers.Upstream{BaseURL: regional, Model: "m", Credential: secret.New(bad)}, providers.BedrockConverse, nil, nil)
			require.ErrorIs(t, err, ErrCredential)
		}
	}
}

func TestClassify(t *testing.T) {
	t.Parallel()
	auth := providers.Failure{Code: governance.CodeUpstreamAuthFailed, Public: "The provider does not accept the gateway's credential.", OurFault: true, TryNext: true}
	plain := func(code governance.Code, next bool) providers.Failure {
		return providers.Failure{Code: code, Public: "Said.", TryNext: next}
	}
	for _, tc := range []struct {
		kind   string
		status int
		want   providers.Failure
	}{
		{"ValidationException:http://internal.amazon.com/coral/com.amazon.bedrock/", 400, plain(governance.CodeInvalidRequest, false)},
		{"", 400, plain(governance.CodeInvalidRequest, false)},
		{"AccessDeniedException", 403, auth},
		{"UnrecognizedClientException", 403, auth},
		{"ExpiredTokenException", 400, auth},
		{"ServiceQuotaExceededException", 400, providers.Failure{Code: governance.CodeUpstreamQuota, Public: "The gateway's account at the provider is exhausted.", OurFault: true, TryNext: true}},
		{"ResourceNotFoundException", 404, plain(governance.CodeInvalidRequest, true)},
		{"ThrottlingException", 429, plain(governance.CodeRateLimitExceeded, true)},
		{"ModelNotReadyException", 429, plain(governance.CodeUpstreamAborted, true)},
		{"ModelTimeoutException", 408, plain(governance.CodeUpstreamTimeout, true)},
		{"ModelErrorException", 424, plain(governance.CodeUpstreamAborted, true)},
		{"InternalServerException", 500, plain(governance.CodeUpstreamAborted, true)},
		{"ServiceUnavailableException", 503, plain(governance.CodeUpstreamAborted, true)},
		{"aws.protocoltests#ThrottlingException", 200, plain(governance.CodeRateLimitExceeded, true)},
		{"validationException", 200, plain(governance.CodeInvalidRequest, false)},
		{"modelStreamErrorException", 200, plain(governance.CodeUpstreamAborted, true)},
		{"newException", 200, plain(governance.CodeUpstreamAborted, true)},
	} {
		t.Run(tc.kind, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, New().Classify(tc.status, http.Header{"X-Amzn-Errortype": {tc.kind}}, []byte(`{"message":"Said."}`)))
			require.Equal(t, tc.want, New().Classify(tc.status, http.Header{}, []byte(`{"__type":"`+tc.kind+`","message":"Said."}`)))
		})
	}
	f := New().Classify(400, http.Header{"X-Amzn-Errortype": {"ValidationException"}}, []byte(`{"message":"The provided model identifier is invalid."}`))
	require.True(t, f.TryNext)
	require.Equal(t, "Said.", New().Classify(400, http.Header{}, []byte(`{"Message":"Said."}`)).Public)
}

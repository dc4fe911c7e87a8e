package vertex

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
	"github.com/tollgate-gateway/tollgate/providers/providertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const base = "https://europe-west1-aiplatform.googleapis.com/v1/projects/p/locations/europe-west1"

// inner stands for the provider that writes requests of a dialect.
type inner struct{ speaks []providers.Dialect }

func (inner) Kind() string                  { return "inner" }
func (i inner) Speaks() []providers.Dialect { return i.speaks }

func (i inner) NewRequest(
	ctx context.Context, up providers.Upstream, d providers.Dialect, client http.Header, body []byte,
) (*http.Request, error) {
	if d != i.speaks[0] && d != i.speaks[len(i.speaks)-1] {
		return nil, providers.ErrDialect
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, up.BaseURL+"/models/"+up.Model, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if !up.Credential.IsZero() {
		req.Header.Set("X-Own-Key", up.Credential.Reveal())
	}
	req.Header.Set("Traceparent", client.Get("Traceparent"))
	req.Header.Set("Accept-Encoding", "identity")
	return req, nil
}

func (inner) Classify(status int, h http.Header, body []byte) providers.Failure {
	return providers.Classify(status, providers.ReadError(body), false, providers.RetryAfter(h))
}

func (inner) Meter(providers.Dialect) providers.Meter { return silent{} }

type silent struct{}

func (silent) Body([]byte)            {}
func (silent) Event(sse.Event)        {}
func (silent) Facts() providers.Facts { return providers.Facts{} }

func gemini() Provider { return New(inner{[]providers.Dialect{providers.GeminiGenerate}}) }

func claude() Claude {
	return NewClaude(inner{[]providers.Dialect{providers.AnthropicMessages, providers.AnthropicCountTokens}})
}

func TestContract(t *testing.T) {
	t.Parallel()
	providertest.Run(t, gemini(), base)
	providertest.Run(t, claude(), base)
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		p      providers.Provider
		d      providers.Dialect
		model  string
		stream bool
		want   string
	}{
		{gemini(), providers.GeminiGenerate, "gemini-2.5-flash", false, base + "/publishers/google/models/gemini-2.5-flash"},
		{claude(), providers.AnthropicMessages, "claude-sonnet-4-5@20250929", false, base + "/publishers/anthropic/models/claude-sonnet-4-5@20250929:rawPredict"},
		{claude(), providers.AnthropicMessages, "a/../b?c", true, base + "/publishers/anthropic/models/a%2F..%2Fb%3Fc:streamRawPredict"},
		{claude(), providers.AnthropicCountTokens, "claude-sonnet-4-5", false, base + "/publishers/anthropic/models/count-tokens:rawPredict"},
	} {
		up := providers.Upstream{BaseURL: base + "/", Model: tc.model, Stream: tc.stream, Credential: secret.New("ya29.MARK"), ClientQuery: "beta=true"}
		req, err := tc.p.NewRequest(t.Context(), up, tc.d, nil, nil)
		require.NoError(t, err)
		require.Equal(t, tc.want, req.URL.String())
		require.Equal(t, "Bearer ya29.MARK", req.Header.Get("Authorization"))
		require.Empty(t, req.Header.Get("X-Own-Key"))
	}
	account := &serviceAccount{ProjectID: "mine"}
	for given, want := range map[string]string{
		"https://us-east5-aiplatform.googleapis.com":     "https://us-east5-aiplatform.googleapis.com/v1/projects/mine/locations/us-east5",
		"https://us-east5-aiplatform.googleapis.com/v1/": "https://us-east5-aiplatform.googleapis.com/v1/projects/mine/locations/us-east5",
		"https://aiplatform.googleapis.com":              "https://aiplatform.googleapis.com/v1/projects/mine/locations/global",
		"https://proxy/v1/projects/a/locations/b/":       "https://proxy/v1/projects/a/locations/b",
	} {
		got, err := locate(given, account)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, given := range []string{"https://proxy.example.com", "https://us-east5-aiplatform.googleapis.com/v1beta1", "https://evil-aiplatform.googleapis.com.example"} {
		_, err := locate(given, account)
		require.ErrorIs(t, err, errAddress)
	}
	_, err := locate("https://us-east5-aiplatform.googleapis.com", nil)
	require.ErrorIs(t, err, errAddress, "an access token names no project")
	_, err = locate("https://MARK@h", account)
	require.ErrorIs(t, err, providers.ErrBaseURL)
}

// Vertex has the model in the path, and the version in the body.
func TestMembers(t *testing.T) {
	t.Parallel()
	doc, err := jsonedit.Parse([]byte(`{"model":"m","max_tokens":1E+1,"messages":[]}`))
	require.NoError(t, err)
	for d, want := range map[providers.Dialect]string{
		providers.AnthropicMessages:    `{"anthropic_version":"vertex-2023-10-16","max_tokens":1E+1,"messages":[]}`,
		providers.AnthropicCountTokens: `{"anthropic_version":"vertex-2023-10-16","model":"claude-x","max_tokens":1E+1,"messages":[]}`,
	} {
		body, err := doc.With(claude().Members(d, "claude-x")...)
		require.NoError(t, err)
		require.Equal(t, want, string(body))
	}
}

func TestClassify_AnUnknownModelIsOurs(t *testing.T) {
	t.Parallel()
	require.True(t, gemini().Classify(404, http.Header{}, []byte(`{"error":{"message":"Publisher Model was not found."}}`)).TryNext)
	require.False(t, gemini().Classify(400, http.Header{}, nil).TryNext)
}

// keyFile makes the key of a service account, once for all tests.
var keyFile = sync.OnceValue(func() string {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		panic(err)
	}
	text, err := json.MarshalIndent(map[string]string{
		"type": "service_account", "project_id": "mine", "private_key_id": "k1", "client_email": "gate@mine.iam.gserviceaccount.com",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), "client_id": "7",
		"auth_uri": "https://accounts.google.com/o/oauth2/auth", "token_uri": tokenURI, "universe_domain": "googleapis.com",
	}, "", "  ")
	if err != nil {
		panic(err)
	}
	return string(text)
})

func TestCredentials(t *testing.T) {
	t.Parallel()
	good := keyFile()
	for _, text := range []string{good, "ya29.token", strings.Replace(good, `"`+tokenURI+`"`, `""`, 1)} {
		require.NoError(t, gemini().CheckCredential(secret.New(text)))
	}
	for _, bad := range []string{
		"", "two MARKs", "{", `{"type":"service_account","client_email":"MARK"}`, strings.Replace(good, "service_account", "authorized_user", 1),
		strings.Replace(good, tokenURI, "https://169.254.169.254/token", 1), strings.Replace(good, tokenURI, "http://oauth2.googleapis.com/token", 1),
		strings.Replace(good, "BEGIN PRIVATE", "BEGIN PUBLIC", 1), strings.Replace(good, `"mine"`, `"../MARK"`, 1),
	} {
		err := gemini().CheckCredential(secret.New(bad))
		require.ErrorIs(t, err, ErrCredential, bad)
		require.NotContains(t, err.Error(), "MARK")
	}
}

// exchange is Google's token endpoint.
type exchange struct {
	calls  atomic.Int64
	status atomic.Int64
	hold   chan struct{} // closed: answers at once
}

func (x *exchange) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := x.calls.Add(1)
	<-x.hold
	if status := int(x.status.Load()); status != 0 {
		w.WriteHeader(status)
		fmt.Fprint(w, `{"error":"invalid_grant","error_description":"MARK"}`)
		return
	}
	parts := strings.Split(r.FormValue("assertion"), ".")
	var claims struct{ Iss, Scope, Aud string }
	if len(parts) == 3 {
		if text, err := base64.RawURLEncoding.DecodeString(parts[1]); err == nil {
			_ = json.Unmarshal(text, &claims)
		}
	}
	if claims.Iss != "gate@mine.iam.gserviceaccount.com" || claims.Scope != scope || claims.Aud != tokenURI {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"access_token":"token-%d","expires_in":3600,"token_type":"Bearer"}`, n)
}

// exchanged returns a provider whose token endpoint is x, and its clock.
func exchanged(t *testing.T, x *exchange) (Provider, *atomic.Int64) {
	t.Helper()
	server := httptest.NewServer(x)
	t.Cleanup(server.Close)
	p := gemini()
	passed := &atomic.Int64{}
	began := time.Now()
	p.tokens.now = func() time.Time { return began.Add(time.Duration(passed.Load())) }
	p.tokens.uri = server.URL
	return p, passed
}

// bearer returns what a request carries.
func bearer(ctx context.Context, p Provider) (string, error) {
	req, err := p.NewRequest(ctx, providers.Upstream{BaseURL: base, Model: "m", Credential: secret.New(keyFile())}, providers.GeminiGenerate, nil, nil)
	if err != nil {
		return "", err
	}
	return req.Header.Get("Authorization"), nil
}

func open() chan struct{} {
	hold := make(chan struct{})
	close(hold)
	return hold
}

func TestTokens_AreFetchedOnceAndRenewedAhead(t *testing.T) {
	t.Parallel()
	x := &exchange{hold: make(chan struct{})}
	p, passed := exchanged(t, x)
	var calls sync.WaitGroup
	got := make([]string, 8)
	for i := range got {
		calls.Go(func() {
			var err error
			got[i], err = bearer(t.Context(), p)
			if err != nil {
				got[i] = err.Error()
			}
		})
	}
	close(x.hold)
	calls.Wait()
	for _, header := range got {
		require.Equal(t, "Bearer token-1", header)
	}
	require.EqualValues(t, 1, x.calls.Load(), "one fetch for all")

	passed.Store(int64(54 * time.Minute))
	header, err := bearer(t.Context(), p)
	require.NoError(t, err)
	require.Equal(t, "Bearer token-1", header)
	passed.Store(int64(56 * time.Minute))
	header, err = bearer(t.Context(), p)
	require.NoError(t, err)
	require.Equal(t, "Bearer token-2", header, "renewed before its end")

	// A renewal that fails costs nobody a call while the old token serves, and is not tried with every call.
	x.status.Store(http.StatusServiceUnavailable)
	passed.Add(int64(57 * time.Minute))
	for range 3 {
		header, err = bearer(t.Context(), p)
		require.NoError(t, err)
		require.Equal(t, "Bearer token-2", header)
	}
	require.EqualValues(t, 3, x.calls.Load())
	passed.Add(int64(4 * time.Minute))
	for range 3 {
		_, err = bearer(t.Context(), p)
		require.EqualError(t, err, "authorize upstream request: fetch access token: status 503")
	}
	require.EqualValues(t, 4, x.calls.Load(), "calls share a failure, too")
	x.status.Store(0)
	passed.Add(int64(retryAfter))
	header, err = bearer(t.Context(), p)
	require.NoError(t, err)
	require.Equal(t, "Bearer token-5", header)
}

// Others go on with the old token while one call renews it.
func TestTokens_NobodyWaitsForARenewal(t *testing.T) {
	t.Parallel()
	x := &exchange{hold: open()}
	p, passed := exchanged(t, x)
	_, err := bearer(t.Context(), p)
	require.NoError(t, err)
	passed.Store(int64(56 * time.Minute))
	kept := p.tokens.kept(secret.New(keyFile()))
	<-kept.turn // somebody renews
	header, err := bearer(t.Context(), p)
	require.NoError(t, err)
	require.Equal(t, "Bearer token-1", header)
	kept.turn <- struct{}{}
}

// A call that ends while it waits for somebody else's fetch stops waiting; one that fetches does so for all, and its end is none
// of the fetch's.
func TestTokens_AndTheEndOfACall(t *testing.T) {
	t.Parallel()
	x := &exchange{hold: open()}
	p, _ := exchanged(t, x)
	kept := p.tokens.kept(secret.New(keyFile()))
	<-kept.turn
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := bearer(ended, p)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, x.calls.Load())
	kept.turn <- struct{}{}
	p.tokens.fetch(mustRead(t), kept)
	header, err := bearer(ended, p)
	require.NoError(t, err)
	require.Equal(t, "Bearer token-1", header)
}

func mustRead(t *testing.T) *serviceAccount {
	t.Helper()
	account, err := readCredential(secret.New(keyFile()))
	require.NoError(t, err)
	return account
}

func TestTokens_RefusalsAndRedirectsShowNothing(t *testing.T) {
	t.Parallel()
	x := &exchange{hold: open()}
	x.status.Store(http.StatusBadRequest)
	p, _ := exchanged(t, x)
	_, err := bearer(t.Context(), p)
	require.EqualError(t, err, "authorize upstream request: fetch access token: status 400")
	away := http.RedirectHandler("http://127.0.0.1:1/", http.StatusTemporaryRedirect)
	server := httptest.NewServer(away)
	t.Cleanup(server.Close)
	p = gemini()
	p.tokens.uri = server.URL
	_, err = bearer(t.Context(), p)
	require.EqualError(t, err, "authorize upstream request: fetch access token: status 307")
	server.Close()
	p = gemini()
	p.tokens.uri = server.URL
	_, err = bearer(t.Context(), p)
	require.ErrorContains(t, err, "cannot be reached")
	require.NotContains(t, err.Error(), server.URL)
}

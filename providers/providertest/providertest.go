// Package providertest checks what every provider must hold to, whatever it reaches.
package providertest

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
)

const (
	credential = "sk-MARK-upstream-credential"
	clientMark = "sk-MARK-client"
)

// Run checks p against the contract of providers.Provider. baseURL is one that the provider accepts.
func Run(t *testing.T, p providers.Provider, baseURL string) {
	t.Helper()
	require.NotEmpty(t, p.Kind())
	require.NotEmpty(t, p.Speaks())
	for _, d := range p.Speaks() {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			requests(t, p, baseURL, d)
			meters(t, p, d)
		})
	}
	t.Run("other dialects", func(t *testing.T) {
		t.Parallel()
		_, err := p.NewRequest(t.Context(), providers.Upstream{BaseURL: baseURL}, "no/such", http.Header{}, nil)
		require.Error(t, err)
	})
	t.Run("failures", func(t *testing.T) {
		t.Parallel()
		failures(t, p)
	})
}

// requests checks that the body goes out untouched, the credential in headers alone, and nothing of the client's own.
func requests(t *testing.T, p providers.Provider, baseURL string, d providers.Dialect) {
	t.Helper()
	client := http.Header{}
	for _, name := range []string{
		"Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "X-Forwarded-For",
		"X-Forwarded-Host", "Forwarded", "X-Real-Ip", "Host", "Connection", "Transfer-Encoding", "Te", "Upgrade",
		"Accept-Encoding", "Content-Encoding", "Content-Length", "User-Agent", "Origin", "Referer", "Idempotency-Key",
		"Openai-Organization", "Openai-Project", "X-Tollgate-End-User", "X-Tollgate-Tags", "X-Tollgate-Metadata",
		"X-Tollgate-Max-Cost", "X-Tollgate-Dry-Run", "X-Request-Id", "X-Stainless-Lang", "Baggage", "X_forwarded_For",
	} {
		client[name] = []string{clientMark}
	}
	client.Set("Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	body := []byte(" {\"model\" :\"m\", \"seed\":9007199254740993,\r\n\"x\":1E+2}\n")
	sent := bytes.Clone(body)
	up := providers.Upstream{BaseURL: baseURL, Model: "m", Credential: secret.New(credential)}

	req, err := p.NewRequest(t.Context(), up, d, client, sent)
	require.NoError(t, err)
	got, err := io.ReadAll(req.Body)
	require.NoError(t, err)
	require.Equal(t, body, got)
	require.Equal(t, body, sent, "the body is not changed in place")
	require.Equal(t, int64(len(body)), req.ContentLength)
	require.Equal(t, http.MethodPost, req.Method)
	require.Same(t, t.Context(), req.Context())
	require.NotContains(t, req.URL.String(), credential)
	require.Nil(t, req.URL.User)
	var dump strings.Builder
	require.NoError(t, req.Header.Write(&dump))
	require.Contains(t, dump.String(), credential)
	require.NotContains(t, dump.String(), clientMark)
	require.Equal(t, client.Get("Traceparent"), req.Header.Get("Traceparent"))
	require.Equal(t, "identity", req.Header.Get("Accept-Encoding"))

	req, err = p.NewRequest(t.Context(), providers.Upstream{BaseURL: baseURL, Model: "m"}, d, http.Header{}, body)
	require.NoError(t, err)
	require.Empty(t, req.Header.Values("Authorization"), "no credential, no header")
}

// meters checks that a meter survives what upstreams send, and that meters share nothing.
func meters(t *testing.T, p providers.Provider, d providers.Dialect) {
	t.Helper()
	one, other := p.Meter(d), p.Meter(d)
	require.Equal(t, other.Facts(), one.Facts())
	for _, text := range []string{
		"", "null", "[]", "{", `{"usage":{"x":-1}}`, `{"choices":[{"delta":{"content":"x"}}],"usage":{}}`, "[DONE]", "<html>",
		strings.Repeat("[", 20_000), `{"a":` + strings.Repeat(`{"a":`, 20_000), "\xff\xfe",
	} {
		one.Event(sse.Event{Raw: []byte(text), Data: []byte(text)})
		one.Event(sse.Event{Raw: []byte(text), Name: []byte("error"), Data: []byte(text)})
		one.Event(sse.Event{Raw: []byte(text)})
		one.Body([]byte(text))
	}
	require.False(t, one.Facts().HasUsage)
	require.Equal(t, providers.Facts{}, other.Facts())
}

// failures checks that every refusal has a code, and that what is about our account never shows the provider's text.
func failures(t *testing.T, p providers.Provider) {
	t.Helper()
	bodies := []string{
		"", "null", "[]", "{}", `{"error":null}`, `{"error":{"message":"MARK text","type":"t","code":null}}`,
		`{"error":{"message":["MARK"],"type":7,"code":"x"}}`, `{"error":"MARK"}`, `[{"error":{"message":"MARK"}}]`,
		"<html>MARK</html>", "MARK", strings.Repeat("x", 1<<20), "\xff\xfe", `{"error":{"error":{"error":"MARK"}}}`,
	}
	for status := 200; status < 600; status++ {
		for _, body := range bodies {
			f := p.Classify(status, http.Header{"Retry-After": {"7"}}, []byte(body))
			require.NotEmpty(t, f.Code, "%d %q", status, body)
			require.NotEmpty(t, f.Public, "%d %q", status, body)
			require.LessOrEqual(t, len(f.Public), 4<<10)
			require.GreaterOrEqual(t, f.RetryAfter.Seconds(), 0.0)
			if status == http.StatusUnauthorized || status == http.StatusPaymentRequired || status == http.StatusForbidden {
				require.True(t, f.OurFault)
				require.True(t, f.TryNext)
			}
			if f.OurFault {
				require.NotContains(t, f.Public, "MARK")
			}
		}
	}
	require.InDelta(t, 7, p.Classify(http.StatusTooManyRequests, http.Header{"Retry-After": {"7"}}, nil).RetryAfter.Seconds(), 0)
}

package gateway_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/gateway"
	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/providers"
	"github.com/tollgate-gateway/tollgate/providers/openai"
	"github.com/tollgate-gateway/tollgate/providers/translate"
)

const benchFrame = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}` + "\n\n"

// benchUpstream answers at once: a small completion, or a stream of 200 frames.
func benchUpstream(b *testing.B) string {
	b.Helper()
	stream := strings.Repeat(benchFrame, 199) + strings.Replace(benchFrame, "null", `"stop"`, 1) +
		`data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":200,"total_tokens":205}}` + "\n\ndata: [DONE]\n\n"
	unary := `{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Hello."},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}`
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), `"stream":true`) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, stream)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, unary)
	}))
	b.Cleanup(s.Close)
	return s.URL
}

func benchGateway(b *testing.B) string {
	b.Helper()
	s := &setup{}
	s.mockURL = benchUpstream(b)
	s.model("m", "x")
	p := governance.Principal{Organization: governance.Ref{Num: 1}, Key: governance.Ref{Num: 3}}
	gw, err := gateway.New(gateway.Options{
		Config: gateway.DefaultConfig(), Chain: []gateway.Link{{Plugin: keys{demoKey: p}}, {Plugin: router{}}, {Plugin: charger{}}},
		Providers: []providers.Provider{openai.New()}, Translators: translate.All(time.Now),
		Ledger: newLedger(), EndUsers: endUsers{}, Spend: new(spend), Now: time.Now,
		Catalogs: &catalogs{current: governance.NewCatalog(1, time.Now(), s.models, s.targets, nil)},
		Log:      zerolog.New(io.Discard), Metrics: &counters{seen: map[string]int{}},
	})
	require.NoError(b, err)
	server := httptest.NewServer(gw.Handler())
	b.Cleanup(func() {
		require.NoError(b, gw.Shutdown(b.Context()))
		server.Close()
	})
	return server.URL
}

func benchProxy(b *testing.B) string {
	b.Helper()
	target, err := url.Parse(benchUpstream(b))
	require.NoError(b, err)
	transport := &http.Transport{MaxIdleConnsPerHost: 256}
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Header.Set("Authorization", secret.New(upstreamID).Reveal())
	}}
	server := httptest.NewServer(proxy)
	b.Cleanup(func() { transport.CloseIdleConnections(); server.Close() })
	return server.URL
}

// BenchmarkServe compares a call through the gateway, its ledger in memory, with the standard library's bare proxy, and with
// one whose client speaks Anthropic's dialect to the same upstream. Client and upstream are part of all.
func BenchmarkServe(b *testing.B) {
	const chat = "/v1/chat/completions"
	for name, body := range map[string]string{"unary": chatBody, "stream of 200 frames": streamBody} {
		for kind, way := range map[string]struct {
			start func(*testing.B) string
			path  string
		}{"gateway": {benchGateway, chat}, "gateway, translated": {benchGateway, messagesPath}, "reverse proxy": {benchProxy, chat}} {
			b.Run(name+"/"+kind, func(b *testing.B) {
				url := way.start(b)
				transport := &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}
				defer transport.CloseIdleConnections()
				client := &http.Client{Transport: transport}
				b.ReportAllocs()
				for b.Loop() {
					r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, url+way.path, strings.NewReader(body))
					require.NoError(b, err)
					r.Header.Set("Anthropic-Version", "2023-06-01")
					r.Header.Set("Authorization", "Bearer "+demoKey)
					response, err := client.Do(r)
					require.NoError(b, err)
					_, err = io.Copy(io.Discard, response.Body)
					require.NoError(b, err)
					require.NoError(b, response.Body.Close())
					require.Equal(b, http.StatusOK, response.StatusCode)
				}
			})
		}
	}
}

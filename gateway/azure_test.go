package gateway_test

import (
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/providers/azure"
)

// azureBench is a gateway with one model "m" at deployments of resources that answer in turn.
func azureBench(t *testing.T, resources ...http.HandlerFunc) *bench {
	t.Helper()
	return start(t, func(s *setup) {
		for i, target := range s.model("m", make([]string, len(resources))...) {
			target.ProviderKind, target.UpstreamModel = azure.Kind, "gpt-4o"
			target.BaseURL = serveHTTP(t, resources[i]) + "?api-version=2024-10-21"
			target.Credential = secret.New("key-of-azure")
		}
	})
}

// says is a resource that gives one answer.
func says(t *testing.T, status int, media, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		require.NoError(t, err)
		if r.URL.RequestURI() != "/openai/deployments/gpt-4o/chat/completions?api-version=2024-10-21" || r.Header.Get("Api-Key") != "key-of-azure" {
			status = http.StatusTeapot
		}
		w.Header().Set("Content-Type", media)
		w.WriteHeader(status)
		_, err = io.WriteString(w, body)
		require.NoError(t, err)
	}
}

// What the asynchronous filter sends ahead, between and behind the words has no choices, or no words, and still is the
// client's: of a stream that was not asked for its usage the frame with the usage alone is withheld (ruling 36).
func TestAzure_FiltersResultsReachTheClient(t *testing.T) {
	t.Parallel()
	file, err := os.ReadFile("../providers/azure/testdata/async_filter.txt")
	require.NoError(t, err)
	whole := string(file)
	at := strings.Index(whole, `data: {"choices":[],"created":1750000000`)
	require.Positive(t, at)
	_, after, ok := strings.Cut(whole[at:], "\n\n")
	require.True(t, ok)
	const ask = `{"model":"m","stream":true,"messages":[{"role":"user","content":"Hi."}]`
	for body, want := range map[string]string{
		ask + `,"stream_options":{"include_usage":true}}`: whole,
		ask + `}`: whole[:at] + after,
	} {
		b := azureBench(t, says(t, http.StatusOK, "text/event-stream", whole))
		a := b.post("/v1/chat/completions", body)
		require.Equal(t, http.StatusOK, a.StatusCode, a.text())
		require.Equal(t, want, a.text())
		s := b.settled(1)[0]
		require.Equal(t, governance.UsageProvider, s.Source)
		require.EqualValues(t, 9, s.Quantities[governance.UnitInput])
		require.EqualValues(t, 2, s.Quantities[governance.UnitOutput])
	}
}

// F134: what Azure says of a request passes as it is, whatever its shape; a deployment that is not there is another target's
// chance, and what is wrong with our key is not the client's to know.
func TestF134_AzuresErrors(t *testing.T) {
	t.Parallel()
	const (
		answered     = `{"id":"chatcmpl-1","object":"chat.completion","model":"gpt-4o","choices":[{"index":0,"message":{"role":"assistant","content":"Hi."},"finish_reason":"stop","content_filter_results":{"hate":{"filtered":false,"severity":"safe"}}}],"prompt_filter_results":[{"prompt_index":0}],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}`
		noDeployment = `{"error":{"code":"DeploymentNotFound","message":"The API deployment for this resource does not exist."}}`
		filtered     = `{"error":{"message":"The response was filtered.","type":null,"param":"prompt","code":"content_filter","status":400,"innererror":{"code":"ResponsibleAIPolicyViolation"}}}`
		badKey       = `{"error":{"code":"401","message":"Access denied due to invalid subscription key of NAME."}}`
		tooMany      = `{"error":{"code":"429","message":"Requests have exceeded the token rate limit."}}`
	)
	ask := func(resources ...http.HandlerFunc) answer {
		return azureBench(t, resources...).post("/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"Hi."}]}`)
	}
	well := says(t, http.StatusOK, "application/json", answered)
	for status, body := range map[int]string{http.StatusNotFound: noDeployment, http.StatusUnauthorized: badKey, http.StatusTooManyRequests: tooMany} {
		a := ask(says(t, status, "application/json", body), well)
		require.Equal(t, http.StatusOK, a.StatusCode, a.text())
		require.Equal(t, answered, a.text())
	}
	a := ask(says(t, http.StatusBadRequest, "application/json", filtered), well)
	require.Equal(t, http.StatusBadRequest, a.StatusCode)
	require.Equal(t, filtered, a.text())
	a = ask(says(t, http.StatusNotFound, "application/json", noDeployment))
	require.Equal(t, http.StatusNotFound, a.StatusCode)
	require.Equal(t, noDeployment, a.text())
	a = ask(says(t, http.StatusUnauthorized, "application/json", badKey))
	require.Equal(t, http.StatusBadGateway, a.StatusCode)
	require.NotContains(t, a.text(), "NAME")
}

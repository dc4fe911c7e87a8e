package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// bedrocks are the models at the upstream that speaks Converse, by the scripts that it follows. A model is named as Bedrock
// names its own, with a colon, and is a part of the path.
var bedrocks = map[string]string{
	"bedrock":            "ok",
	"bedrock-tools":      "parallel_tools_in_one_frame",
	"bedrock-thinks":     "thinking,usage(1000,50,600)",
	"bedrock-throttled":  "status(429)",
	"bedrock-auth":       "status(403)",
	"bedrock-fails":      "mid_stream_error(object,3)",
	"bedrock-ends-early": "clean_close_without_done",
	"bedrock-cut":        "reset_after(3)",
}

// The clouds are reached by code of their own: by signatures, by tokens, at addresses that name the model.
func TestClouds(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	f.tryVertex(t)
	f.tryCohere(t)
	f.mock.Reset()
	f.tryBedrock(t)
	f.requireBooksBalance()
}

// tryBedrock calls Bedrock's models from all dialects, signed with our access keys. What these used is booked as Bedrock reports
// it.
func (f *fleet) tryBedrock(t *testing.T) {
	t.Helper()
	const secretKey = "marker/SECRET+key"
	amazon := f.foreign(object{
		"name": "amazon", "kind": "bedrock", "base_url": f.upstream,
		"credential": `{"access_key_id":"AKIDEXAMPLE","secret_access_key":"` + secretKey + `","region":"eu-central-1"}`,
	}, bedrocks)
	amazon.converse(t, "bedrock", "bedrock-tools")

	// Every request is signed for the region of the credential, and our secret is nowhere in it.
	for _, seen := range f.mock.Log().Requests {
		require.Regexp(t, `^AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/\d{8}/eu-central-1/bedrock/aws4_request, SignedHeaders=`, seen.Header.Get("Authorization"))
		require.NotContains(t, seen.Path, "marker")
	}
	amazon.refuse(t, "bedrock-throttled", "bedrock-auth", "marker")
	// An exception within a stream, an end without its last events and a cut are all told.
	for _, model := range []string{"bedrock-fails", "bedrock-ends-early", "bedrock-cut"} {
		require.NotNil(t, amazon.claude.do(t.Context(), amazon.ask(opMessagesHelper, model)).Error, model)
		require.NotNil(t, amazon.openAI.do(t.Context(), amazon.ask(opStream, model)).Error, model)
	}

	// F019: 400 in, 600 read from a cache, 50 out: 800 + 120 + 500 millionths of a dollar.
	amazon.book(t, "bedrock-thinks", "0.00142", object{"input": 400., "cache_read": 600., "output": 50., "request": 1.})
}

// offer makes a provider and a free model at it, and returns a key that may call it.
func (f *fleet) offer(kind, base, credential, name, upstreamModel string) (key string) {
	f.t.Helper()
	provider := f.create("providers", object{"name": "of-" + name, "kind": kind, "base_url": base, "credential": credential, "price_provider": "mock"})["id"]
	f.create("prices", object{"provider": "mock", "upstream_model": upstreamModel, "free": true, "effective_from": "2026-01-01T00:00:00Z"})
	f.create("models", object{"name": name, "targets": []object{{"provider_id": provider, "upstream_model": upstreamModel, "weight": 1, "priority": 0}}})
	key, _ = f.issue()
	f.awaitModels(key, name)
	return key
}

// tryVertex calls Gemini's and Claude's models on Vertex AI with an access token.
func (f *fleet) tryVertex(t *testing.T) {
	t.Helper()
	base := f.upstream + "/v1/projects/p/locations/europe-west1"
	gemini := f.offer("vertex", base, "ya29.marker", "vertex-gemini", "gemini-2.5-flash")
	claude := f.offer("vertex-anthropic", base, "ya29.marker", "vertex-claude", "claude-sonnet-4-5@20250929")
	for _, op := range []string{opChat, opStream} {
		require.Equal(t, saidWords, done(t, sdk{name: "go-openai", do: goOpenAI},
			task{Op: op, BaseURL: f.gateways[0].baseURL + "/v1", Key: gemini, Model: "vertex-gemini", Text: "hello", MaxRetries: pointer(0)}).Texts)
	}
	for _, op := range []string{opMessages, opMessagesHelper} {
		require.Equal(t, saidWords, done(t, sdk{name: "anthropic-sdk-go", do: anthropicGo},
			task{Op: op, BaseURL: f.gateways[0].baseURL, Key: claude, Model: "vertex-claude", Text: "hello", MaxRetries: pointer(0)}).Texts)
	}
	paths := map[string]bool{}
	for _, seen := range f.mock.Log().Requests {
		paths[seen.Path] = true
		require.Equal(t, "Bearer ya29.marker", seen.Header.Get("Authorization"))
		if strings.Contains(seen.Path, "/anthropic/") {
			require.Contains(t, string(seen.Body), `"anthropic_version":"vertex-2023-10-16"`)
			require.NotContains(t, string(seen.Body), `"model"`)
		}
	}
	const at = "/v1/projects/p/locations/europe-west1/publishers/"
	require.Equal(t, map[string]bool{
		at + "google/models/gemini-2.5-flash:generateContent":               true,
		at + "google/models/gemini-2.5-flash:streamGenerateContent?alt=sse": true,
		at + "anthropic/models/claude-sonnet-4-5@20250929:rawPredict":       true,
		at + "anthropic/models/claude-sonnet-4-5@20250929:streamRawPredict": true,
	}, paths)
}

// tryCohere ranks and chats at Cohere, whose two APIs stand side by side.
func (f *fleet) tryCohere(t *testing.T) {
	t.Helper()
	f.mock.Reset()
	key := f.offer("cohere", f.upstream, "sk-upstream-marker", "cohere", "command-a")
	require.Equal(t, saidWords, done(t, sdk{name: "go-openai", do: goOpenAI},
		task{Op: opChat, BaseURL: f.gateways[0].baseURL + "/v1", Key: key, Model: "cohere", Text: "hello", MaxRetries: pointer(0)}).Texts)
	ranked := must(t)(f.gateways[0].call(t.Context(), key, "/v1/rerank", `{"model":"cohere","query":"q","documents":["a","b"]}`))
	require.Equal(t, http.StatusOK, ranked.status)
	require.Contains(t, string(ranked.body), `"relevance_score"`)
	var paths []string
	for _, seen := range f.mock.Log().Requests {
		paths = append(paths, seen.Path)
	}
	require.Equal(t, []string{"/compatibility/v1/chat/completions", "/v2/rerank"}, paths)
}

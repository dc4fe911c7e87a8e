package console

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/secret"
)

func testKinds() []ProviderKind {
	return []ProviderKind{
		{Kind: "openai", Title: "OpenAI", BaseURL: "https://api.openai.com/v1", Dialects: []string{"openai/chat", "openai/responses"}},
		{Kind: "groq", Title: "Groq", BaseURL: "https://api.groq.com/openai/v1", Dialects: []string{"openai/chat"}, PriceProvider: "groq", Docs: "https://console.groq.com"},
		{Kind: "vllm", Title: "vLLM", ExampleURL: "http://localhost:8000/v1", Dialects: []string{"openai/chat"}},
	}
}

func TestProviderKinds(t *testing.T) {
	t.Parallel()
	e := newEnv(t, func(o *Options) { o.PrivateUpstreams = true })
	items, _ := e.must(http.MethodGet, "/provider-kinds", nil)["items"].([]any)
	require.Len(t, items, 3)
	require.Equal(t, object{
		"kind": "groq", "title": "Groq", "base_url": "https://api.groq.com/openai/v1", "example_url": "", "dialects": []any{"openai/chat"},
		"price_provider": "groq", "docs": "https://console.groq.com",
	}, items[1])

	made := e.must(http.MethodPost, "/providers", object{"name": "fast", "kind": "groq", "credential": "sk-1"})
	require.Equal(t, "https://api.groq.com/openai/v1", made["base_url"])
	require.Equal(t, "groq", made["price_provider"])
	made = e.must(http.MethodPost, "/providers", object{"name": "own", "kind": "groq", "base_url": "https://proxy.example.com/v1", "price_provider": "own"})
	require.Equal(t, "https://proxy.example.com/v1", made["base_url"])
	require.Equal(t, "own", made["price_provider"])
	made = e.must(http.MethodPost, "/providers", object{"name": "other", "kind": "openai"})
	require.Equal(t, "", made["price_provider"], "it is looked up by its own name")

	a := e.send(http.MethodPost, "/providers", object{"name": "lost", "kind": "gorq"})
	require.Equal(t, http.StatusBadRequest, a.status)
	require.Contains(t, a.faults()["body.kind"], "/admin/v1/provider-kinds")
	a = e.send(http.MethodPost, "/providers", object{"name": "where", "kind": "vllm"})
	require.Equal(t, http.StatusBadRequest, a.status)
	require.Contains(t, a.faults()["body.base_url"], "http://localhost:8000/v1")
	for _, query := range []string{"api-version=2024-10-21", "api-version=preview"} {
		e.must(http.MethodPost, "/providers", object{"name": query, "kind": "openai", "base_url": "https://h.example.com/openai?" + query})
	}
	for _, query := range []string{"api-version=", "api-version=a&key=b", "api-version=a%20b", "API-VERSION=a", "key=b"} {
		a = e.send(http.MethodPost, "/providers", object{"name": query, "kind": "openai", "base_url": "https://h.example.com?" + query})
		require.Contains(t, a.faults()["body.base_url"], "query", query)
	}
	e.must(http.MethodPost, "/providers", object{"name": "here", "kind": "vllm", "base_url": "http://localhost:8000/v1"})
}

// A kind says itself what its credentials look like; those of others are a word in a header. None is ever shown.
func TestProviderKinds_CheckTheirCredentials(t *testing.T) {
	t.Parallel()
	keys := ProviderKind{Kind: "cloud", Title: "Cloud", BaseURL: "https://cloud.example", CheckCredential: func(c secret.String) error {
		if strings.HasPrefix(c.Reveal(), "{") {
			return nil
		}
		return errors.New("the credential must be an object")
	}}
	e := newEnv(t, func(o *Options) { o.ProviderKinds = append(testKinds(), keys) })
	id := e.create("/providers", object{"name": "good", "kind": "cloud", "credential": `{"key": "two words"}`})
	e.must(http.MethodPatch, "/providers/"+id, object{"name": "better"})
	for _, refused := range []answer{
		e.send(http.MethodPost, "/providers", object{"name": "bad", "kind": "cloud", "credential": "MARK"}),
		e.send(http.MethodPatch, "/providers/"+id, object{"credential": "MARK"}),
		e.send(http.MethodPost, "/providers", object{"name": "bad", "kind": "groq", "credential": `{"key": "MARK"}`}),
	} {
		require.Contains(t, refused.faults(), "body.credential")
		require.NotContains(t, refused.text, "MARK")
	}
}

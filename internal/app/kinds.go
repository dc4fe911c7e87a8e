package app

import (
	"fmt"
	"os"

	"github.com/tollgate-gateway/tollgate/console"
	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/providers"
	"github.com/tollgate-gateway/tollgate/providers/anthropic"
	"github.com/tollgate-gateway/tollgate/providers/azure"
	"github.com/tollgate-gateway/tollgate/providers/bedrock"
	"github.com/tollgate-gateway/tollgate/providers/cohere"
	"github.com/tollgate-gateway/tollgate/providers/gemini"
	"github.com/tollgate-gateway/tollgate/providers/openai"
	"github.com/tollgate-gateway/tollgate/providers/vertex"
)

// kinds are the kinds of provider that a process knows: those with code of their own, those of the built-in catalog, and
// those of the operator's.
type kinds struct {
	providers []providers.Provider
	described []console.ProviderKind
}

// vertexExample is the form of an address of Vertex AI.
const vertexExample = "https://us-central1-aiplatform.googleapis.com/v1/projects/PROJECT/locations/us-central1"

// described is an entry as people are told of it.
func described(e *providers.Entry) console.ProviderKind {
	return console.ProviderKind{
		Kind: e.Kind, Title: e.Title, BaseURL: e.BaseURL, ExampleURL: e.ExampleURL, PriceProvider: e.Prices, Docs: e.Docs,
	}
}

// describedKinds are the kinds with code of their own, as people are told of them.
func describedKinds() map[string]console.ProviderKind {
	return map[string]console.ProviderKind{
		openai.Kind: {
			Title: "OpenAI, and whatever speaks all of its API", BaseURL: "https://api.openai.com/v1",
			Docs: "https://platform.openai.com/docs/api-reference",
		},
		anthropic.Kind: {
			Title: "Anthropic", BaseURL: "https://api.anthropic.com/v1", PriceProvider: "anthropic", Docs: "https://docs.anthropic.com/en/api",
		},
		gemini.Kind: {
			Title: "Google Gemini", BaseURL: "https://generativelanguage.googleapis.com/v1beta", PriceProvider: "google",
			Docs: "https://ai.google.dev/api",
		},
		azure.Kind: described(azure.Entry()),
		bedrock.Kind: {
			Title: "Amazon Bedrock", ExampleURL: "https://bedrock-runtime.us-east-1.amazonaws.com", PriceProvider: "aws",
			Docs: "https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html",
		},
		vertex.Kind: {
			Title: "Gemini on Google Vertex AI", ExampleURL: vertexExample, PriceProvider: "google",
			Docs: "https://cloud.google.com/vertex-ai/generative-ai/docs/model-reference/inference",
		},
		vertex.KindClaude: {
			Title: "Claude on Google Vertex AI", ExampleURL: vertexExample, PriceProvider: "google",
			Docs: "https://cloud.google.com/vertex-ai/generative-ai/docs/partner-models/claude/use-claude",
		},
		cohere.Kind: {Title: "Cohere", BaseURL: "https://api.cohere.ai", PriceProvider: "cohere", Docs: "https://docs.cohere.com/reference/rerank"},
	}
}

// openKinds reads the catalogs. One of the operator's own is at path; empty: there is none. Its entries cannot take the place
// of built-in ones, since the providers in the store mean these.
func openKinds(path string) (*kinds, error) {
	builtin, err := providers.Catalog()
	if err != nil {
		return nil, err
	}
	var own []providers.Entry
	if path != "" {
		text, err := os.ReadFile(path) //nolint:gosec // the operator names the file
		if err != nil {
			return nil, fmt.Errorf("TOLLGATE_PROVIDER_CATALOG: %w", err)
		}
		if own, err = providers.ReadCatalog(text); err != nil {
			return nil, fmt.Errorf("TOLLGATE_PROVIDER_CATALOG: %s: %w", path, err)
		}
	}
	k := &kinds{}
	known := make(map[string]bool)
	told := describedKinds()
	for _, p := range builtinProviders() {
		known[p.Kind()] = true
		d := told[p.Kind()]
		d.Kind = p.Kind()
		if checker, ok := p.(providers.CredentialChecker); ok {
			d.CheckCredential = checker.CheckCredential
		}
		k.add(p, d)
	}
	for i, e := range append(builtin, own...) {
		if known[e.Kind] {
			from := "built-in catalog"
			if i >= len(builtin) {
				from = "TOLLGATE_PROVIDER_CATALOG: " + path
			}
			return nil, fmt.Errorf("%s: entry %q has the name of a kind that is built in", from, e.Kind)
		}
		known[e.Kind] = true
		k.add(openai.Of(&e), described(&e))
	}
	return k, nil
}

func (k *kinds) add(p providers.Provider, d console.ProviderKind) {
	for _, spoken := range p.Speaks() {
		d.Dialects = append(d.Dialects, string(spoken))
	}
	k.providers, k.described = append(k.providers, p), append(k.described, d)
}

// noStreamOptions reports whether upstreams of a kind refuse the member stream_options.
func (k *kinds) noStreamOptions(kind string) bool {
	for _, p := range k.providers {
		if p.Kind() == kind {
			q, ok := p.(providers.Quirky)
			return ok && q.Quirks().NoStreamOptions
		}
	}
	return false
}

// entry finds a kind as people are told of it.
func (k *kinds) entry(kind string) (console.ProviderKind, error) {
	for _, d := range k.described {
		if d.Kind == kind {
			return d, nil
		}
	}
	return console.ProviderKind{}, fmt.Errorf("find kind %q: %w", kind, governance.ErrNotFound)
}

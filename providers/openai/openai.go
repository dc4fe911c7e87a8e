// Package openai reaches OpenAI and every upstream that speaks its API.
package openai

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"

	"github.com/tollgate-gateway/tollgate/providers"
)

// Kind is the name that providers in the store carry.
const Kind = "openai"

// Provider is a providers.Provider. New and Of make it.
type Provider struct {
	endpoints *providers.Endpoints
	kind      string
	speaks    []providers.Dialect
	auth      providers.Auth
	quirks    providers.Quirks
	batches   bool
}

var (
	_ providers.Provider = Provider{}
	_ providers.Quirky   = Provider{}
)

// New returns the provider of OpenAI itself, and of upstreams that speak all of its dialects.
func New() Provider {
	return Provider{endpoints: providers.NewEndpoints(pathOf), kind: Kind, batches: true, speaks: []providers.Dialect{
		providers.OpenAIChat, providers.OpenAICompletions, providers.OpenAIResponses,
		providers.OpenAIEmbeddings, providers.OpenAIModerations,
		providers.OpenAIImages, providers.OpenAIImageEdits, providers.OpenAIImageVariations,
		providers.OpenAISpeech, providers.OpenAITranscriptions, providers.OpenAITranslations, providers.CohereRerank,
	}}
}

// Of returns the provider that an entry of a catalog describes.
func Of(e *providers.Entry) Provider {
	endpoints := providers.NewEndpoints(pathOf)
	if e.Unversioned {
		endpoints = endpoints.Unversioned()
	}
	return Provider{endpoints: endpoints, kind: e.Kind, speaks: e.Dialects(), auth: e.Auth, quirks: e.Quirks, batches: e.Batches}
}

// Kind implements providers.Provider.
func (p Provider) Kind() string { return p.kind }

// Speaks implements providers.Provider.
func (p Provider) Speaks() []providers.Dialect { return p.speaks }

// Quirks implements providers.Quirky.
func (p Provider) Quirks() providers.Quirks { return p.quirks }

func pathOf(d providers.Dialect) (string, error) {
	switch d {
	case providers.OpenAIChat:
		return "chat/completions", nil
	case providers.OpenAICompletions:
		return "completions", nil
	case providers.OpenAIResponses:
		return "responses", nil
	case providers.OpenAIEmbeddings:
		return "embeddings", nil
	case providers.OpenAIModerations:
		return "moderations", nil
	case providers.OpenAIImages:
		return "images/generations", nil
	case providers.OpenAIImageEdits:
		return "images/edits", nil
	case providers.OpenAIImageVariations:
		return "images/variations", nil
	case providers.OpenAISpeech:
		return "audio/speech", nil
	case providers.OpenAITranscriptions:
		return "audio/transcriptions", nil
	case providers.OpenAITranslations:
		return "audio/translations", nil
	case providers.CohereRerank:
		return "rerank", nil
	case providers.OpenAIFiles:
		return "files", nil
	case providers.OpenAIBatches:
		return "batches", nil
	default:
		return "", fmt.Errorf("%w: %s", providers.ErrDialect, d)
	}
}

// NewRequest implements providers.Provider. Its errors never contain the URL, which may hold an account's name.
func (p Provider) NewRequest(
	ctx context.Context, up providers.Upstream, d providers.Dialect, client http.Header, body []byte,
) (*http.Request, error) {
	address, err := p.endpoints.Of(up.BaseURL, d)
	if err != nil {
		return nil, fmt.Errorf("build upstream address: %w", err)
	}
	req, err := providers.NewRequest(ctx, http.MethodPost, &address, cmp.Or(up.ContentType, "application/json"), bytes.NewReader(body), client,
		"Accept", "Openai-Beta", "Traceparent", "Tracestate")
	if err != nil {
		return nil, err
	}
	if !up.Credential.IsZero() {
		header, scheme := p.auth.Header()
		req.Header.Set(header, scheme+up.Credential.Reveal())
	}
	return req, nil
}

// Meter implements providers.Provider. A dialect that the upstream does not speak gets a meter that finds nothing.
func (Provider) Meter(d providers.Dialect) providers.Meter {
	switch d {
	case providers.OpenAIResponses:
		return newResponsesMeter()
	case providers.OpenAIImages, providers.OpenAIImageEdits, providers.OpenAIImageVariations:
		return &imageMeter{}
	case providers.OpenAISpeech, providers.OpenAITranscriptions, providers.OpenAITranslations:
		return &audioMeter{spoken: d == providers.OpenAISpeech}
	case providers.CohereRerank:
		return &rerankMeter{}
	default:
		return newChatMeter()
	}
}

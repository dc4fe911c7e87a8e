// Package openai reaches OpenAI and every upstream that speaks its API.
package openai

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"regexp"

	"github.com/tollgate-gateway/tollgate/internal/version"
	"github.com/tollgate-gateway/tollgate/providers"
)

// Kind is the name that providers in the store carry.
const Kind = "openai"

// Provider is a providers.Provider.
type Provider struct{}

var _ providers.Provider = Provider{}

// New returns the provider.
func New() Provider { return Provider{} }

// Kind implements providers.Provider.
func (Provider) Kind() string { return Kind }

// Speaks implements providers.Provider.
func (Provider) Speaks() []providers.Dialect {
	return []providers.Dialect{
		providers.OpenAIChat, providers.OpenAICompletions, providers.OpenAIResponses,
		providers.OpenAIEmbeddings, providers.OpenAIModerations,
	}
}

// ErrDialect says that the upstream does not speak a dialect.
var ErrDialect = errors.New("dialect is not spoken by this kind of provider")

func endpoint(d providers.Dialect) (string, error) {
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
	default:
		return "", fmt.Errorf("%w: %s", ErrDialect, d)
	}
}

// passed lists the client's headers that the upstream gets. Everything else, credentials above all, ends here.
func passed() []string { return []string{"Accept", "Openai-Beta", "Traceparent", "Tracestate"} }

// NewRequest implements providers.Provider. Its errors never contain the URL, which may hold an account's name.
func (Provider) NewRequest(
	ctx context.Context, up providers.Upstream, d providers.Dialect, client http.Header, body []byte,
) (*http.Request, error) {
	address, err := join(up.BaseURL, d)
	if err != nil {
		return nil, fmt.Errorf("build upstream address: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("build upstream request")
	}
	for _, name := range passed() {
		if values := client.Values(name); len(values) > 0 {
			req.Header[name] = append([]string(nil), values...)
		}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept-Encoding", "identity") // a meter reads the answer, and the client gets it as it came
	req.Header.Set("User-Agent", "tollgate/"+version.Version)
	if !up.Credential.IsZero() {
		req.Header.Set("Authorization", "Bearer "+up.Credential.Reveal())
	}
	return req, nil
}

// ErrBaseURL says that a base URL cannot be used.
var ErrBaseURL = errors.New("base URL must be http or https with a host, without user or fragment")

// versioned matches the segment of a path that names a version of an API: v1, v3, v1beta.
var versioned = regexp.MustCompile(`(^|/)v[0-9]+[a-z0-9]*(/|$)`)

// join returns the endpoint of d under base, which may name the API's version already: https://host, https://host/v1/ and
// https://host/openai/v1 all do. A query stays.
func join(base string, d providers.Dialect) (string, error) {
	end, err := endpoint(d)
	if err != nil {
		return "", err
	}
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.Fragment != "" {
		return "", ErrBaseURL
	}
	if !versioned.MatchString(path.Clean("/" + u.Path)) {
		u = u.JoinPath("v1")
	}
	return u.JoinPath(end).String(), nil
}

// Meter implements providers.Provider. A dialect that the upstream does not speak gets a meter that finds nothing.
func (Provider) Meter(d providers.Dialect) providers.Meter {
	switch d {
	case providers.OpenAIResponses:
		return newResponsesMeter()
	default:
		return newChatMeter()
	}
}

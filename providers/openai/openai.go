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
	"sync"

	"github.com/tollgate-gateway/tollgate/internal/version"
	"github.com/tollgate-gateway/tollgate/providers"
)

// Kind is the name that providers in the store carry.
const Kind = "openai"

// Provider is a providers.Provider. New makes it.
type Provider struct{ endpoints *endpoints }

var _ providers.Provider = Provider{}

// New returns the provider.
func New() Provider { return Provider{&endpoints{known: make(map[endpoint]*url.URL)}} }

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
	default:
		return "", fmt.Errorf("%w: %s", ErrDialect, d)
	}
}

// passed lists the client's headers that the upstream gets. Everything else, credentials above all, ends here.
func passed() [4]string { return [4]string{"Accept", "Openai-Beta", "Traceparent", "Tracestate"} }

// NewRequest implements providers.Provider. Its errors never contain the URL, which may hold an account's name.
func (p Provider) NewRequest(
	ctx context.Context, up providers.Upstream, d providers.Dialect, client http.Header, body []byte,
) (*http.Request, error) {
	address, err := p.endpoints.of(endpoint{up.BaseURL, d})
	if err != nil {
		return nil, fmt.Errorf("build upstream address: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "", bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("build upstream request")
	}
	req.URL, req.Host = &address, address.Host
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
func join(base string, d providers.Dialect) (*url.URL, error) {
	end, err := pathOf(d)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.Fragment != "" {
		return nil, ErrBaseURL
	}
	if !versioned.MatchString(path.Clean("/" + u.Path)) {
		u = u.JoinPath("v1")
	}
	// Read anew as it is written, since the path that JoinPath makes of an empty one lacks its first slash.
	if u, err = url.Parse(u.JoinPath(end).String()); err != nil {
		return nil, ErrBaseURL
	}
	return u, nil
}

// endpoint is where a dialect is spoken under a base URL.
type endpoint struct {
	base    string
	dialect providers.Dialect
}

const maxEndpoints = 1 << 10 // that are remembered; there are as many as are configured

// endpoints remembers addresses, which take longer to put together than a small request.
type endpoints struct {
	mu    sync.RWMutex
	known map[endpoint]*url.URL
}

func (e *endpoints) of(which endpoint) (url.URL, error) {
	e.mu.RLock()
	u := e.known[which]
	e.mu.RUnlock()
	if u != nil {
		return *u, nil
	}
	u, err := join(which.base, which.dialect)
	if err != nil {
		return url.URL{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.known) >= maxEndpoints {
		clear(e.known)
	}
	e.known[which] = u
	return *u, nil
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

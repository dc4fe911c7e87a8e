// Package anthropic reaches Anthropic and every upstream that speaks its Messages API.
package anthropic

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/tollgate-gateway/tollgate/providers"
)

// Kind is the name that providers in the store carry.
const Kind = "anthropic"

// Provider is a providers.Provider. New makes it.
type Provider struct{ endpoints *providers.Endpoints }

var _ providers.Provider = Provider{}

// New returns the provider.
func New() Provider { return Provider{providers.NewEndpoints(pathOf)} }

// Kind implements providers.Provider.
func (Provider) Kind() string { return Kind }

// Speaks implements providers.Provider.
func (Provider) Speaks() []providers.Dialect {
	return []providers.Dialect{providers.AnthropicMessages, providers.AnthropicCountTokens}
}

func pathOf(d providers.Dialect) (string, error) {
	switch d {
	case providers.AnthropicMessages:
		return "messages", nil
	case providers.AnthropicCountTokens:
		return "messages/count_tokens", nil
	default:
		return "", fmt.Errorf("%w: %s", providers.ErrDialect, d)
	}
}

// versionHeader names the version of the API that a request is written for. Clients of the dialect send theirs, which goes on
// as it is.
const versionHeader = "Anthropic-Version"

// translatedVersion is the version that requests in other dialects are translated to.
const translatedVersion = "2023-06-01"

// NewRequest implements providers.Provider. Its errors never contain the URL, which may hold an account's name.
func (p Provider) NewRequest(
	ctx context.Context, up providers.Upstream, d providers.Dialect, client http.Header, body []byte,
) (*http.Request, error) {
	address, err := p.endpoints.Of(up.BaseURL, d)
	if err != nil {
		return nil, fmt.Errorf("build upstream address: %w", err)
	}
	address.RawQuery = withBeta(address.RawQuery, up.ClientQuery)
	req, err := providers.NewRequest(ctx, http.MethodPost, &address, "application/json", bytes.NewReader(body), client,
		"Accept", versionHeader, "Anthropic-Beta", "Traceparent", "Tracestate")
	if err != nil {
		return nil, err
	}
	if req.Header.Get(versionHeader) == "" {
		req.Header.Set(versionHeader, translatedVersion)
	}
	if !up.Credential.IsZero() {
		req.Header.Set("X-Api-Key", up.Credential.Reveal())
	}
	return req, nil
}

// withBeta adds beta=true to a query if the client's has it: the form of the path that SDKs use for their beta APIs.
func withBeta(query, client string) string {
	if client == "" {
		return query
	}
	values, err := url.ParseQuery(client)
	if err != nil || values.Get("beta") != "true" {
		return query
	}
	return strings.TrimPrefix(query+"&beta=true", "&")
}

// Classify implements providers.Provider. An error that came with status 200 is read by its own type.
func (Provider) Classify(status int, h http.Header, body []byte) providers.Failure {
	said := providers.ReadError(body)
	if status >= 200 && status <= 299 {
		status = statusOf(said.Kind)
	}
	return providers.Classify(status, said, aboutAccount(status, said), providers.RetryAfter(h))
}

// aboutAccount reports whether a refusal is about what our account may spend. Anthropic says so with status 400, in words
// alone.
func aboutAccount(status int, said providers.Said) bool {
	return said.Kind == "billing_error" || status == http.StatusBadRequest &&
		(strings.Contains(said.Message, "credit balance is too low") || strings.Contains(said.Message, "reached your specified API usage limits"))
}

// statusOverloaded is Anthropic's own.
const statusOverloaded = 529

// statusOf returns the status of an error's type, for errors that came with status 200 or within a stream.
func statusOf(kind string) int {
	switch kind {
	case "invalid_request_error":
		return http.StatusBadRequest
	case "authentication_error":
		return http.StatusUnauthorized
	case "billing_error":
		return http.StatusPaymentRequired
	case "permission_error":
		return http.StatusForbidden
	case "not_found_error":
		return http.StatusNotFound
	case "request_too_large":
		return http.StatusRequestEntityTooLarge
	case "rate_limit_error":
		return http.StatusTooManyRequests
	case "timeout_error":
		return http.StatusGatewayTimeout
	case "overloaded_error":
		return statusOverloaded
	}
	return http.StatusBadGateway
}

// Meter implements providers.Provider. A dialect that the upstream does not speak gets a meter that finds nothing.
func (Provider) Meter(d providers.Dialect) providers.Meter {
	if d == providers.AnthropicCountTokens {
		return &countMeter{}
	}
	return &meter{}
}

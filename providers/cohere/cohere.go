// Package cohere reaches Cohere: v2/rerank, and chat and embeddings by its API for clients of OpenAI's.
package cohere

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/tollgate-gateway/tollgate/providers"
)

// Kind is the name that providers in the store carry.
const Kind = "cohere"

// Provider is a providers.Provider. New makes it.
type Provider struct{ compatible providers.Provider }

var _ providers.Provider = Provider{}

// New returns the provider. compatible writes requests of the form that Cohere has in common with OpenAI, and meters what
// both say.
func New(compatible providers.Provider) Provider { return Provider{compatible} }

// Kind implements providers.Provider.
func (Provider) Kind() string { return Kind }

// Speaks implements providers.Provider.
func (Provider) Speaks() []providers.Dialect {
	return []providers.Dialect{providers.OpenAIChat, providers.OpenAIEmbeddings, providers.CohereRerank}
}

// The APIs of Cohere, behind its host.
const (
	own        = "/v2"
	compatible = "/compatibility/v1"
)

// NewRequest implements providers.Provider. A base URL may name one of the APIs already.
func (p Provider) NewRequest(
	ctx context.Context, up providers.Upstream, d providers.Dialect, client http.Header, body []byte,
) (*http.Request, error) {
	api := compatible
	switch d {
	case providers.CohereRerank:
		api = own
	case providers.OpenAIChat, providers.OpenAIEmbeddings:
	default:
		return nil, fmt.Errorf("build upstream address: %w: %s", providers.ErrDialect, d)
	}
	base := strings.TrimRight(up.BaseURL, "/")
	for _, named := range []string{compatible, own} {
		base = strings.TrimSuffix(base, named)
	}
	up.BaseURL = base + api
	return p.compatible.NewRequest(ctx, up, d, client, body)
}

// Classify implements providers.Provider. A trial key that has had its month is an account that is exhausted, whatever the
// status says of rates.
func (Provider) Classify(status int, h http.Header, body []byte) providers.Failure {
	said := providers.ReadError(body)
	if status >= 200 && status <= 299 {
		status = http.StatusBadGateway
	}
	account := status == http.StatusTooManyRequests && strings.Contains(strings.ToLower(said.Message), "/ month")
	f := providers.Classify(status, said, account, providers.RetryAfter(h))
	if status == http.StatusNotFound {
		f.TryNext = true // the model is not known to this account
	}
	return f
}

// Meter implements providers.Provider.
func (p Provider) Meter(d providers.Dialect) providers.Meter { return p.compatible.Meter(d) }

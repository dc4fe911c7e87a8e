package openai

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/tollgate-gateway/tollgate/providers"
)

var _ providers.Batcher = Provider{}

// Batches implements providers.Batcher.
func (p Provider) Batches() bool { return p.batches }

// NewResourceRequest implements providers.Batcher. Its errors never contain the URL, which may hold an account's name.
func (p Provider) NewResourceRequest(
	ctx context.Context, up providers.Upstream, method string, resource providers.Dialect, path []string, contentType string, body io.Reader,
) (*http.Request, error) {
	if resource != providers.OpenAIFiles && resource != providers.OpenAIBatches {
		return nil, fmt.Errorf("%w: %s", providers.ErrDialect, resource)
	}
	base, err := p.endpoints.Of(up.BaseURL, resource)
	if err != nil {
		return nil, fmt.Errorf("build upstream address: %w", err)
	}
	address := &base
	for _, segment := range path {
		if segment == "" || segment == "." || segment == ".." {
			return nil, errors.New("build upstream address: a segment leads elsewhere")
		}
		address = address.JoinPath(url.PathEscape(segment))
	}
	if body == nil {
		contentType = ""
	}
	req, err := providers.NewRequest(ctx, method, address, contentType, body, nil)
	if err != nil {
		return nil, err
	}
	if !up.Credential.IsZero() {
		header, scheme := p.auth.Header()
		req.Header.Set(header, scheme+up.Credential.Reveal())
	}
	return req, nil
}

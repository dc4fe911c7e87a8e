package providers

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"

	"github.com/tollgate-gateway/tollgate/internal/version"
)

// NewRequest begins a request to an upstream's address, with what every provider's requests have in common. Of the client's
// headers those named by passed go on, and nothing else, credentials above all. Its errors never contain the address, which may hold an
// account's name.
func NewRequest(
	ctx context.Context, method string, address *url.URL, contentType string, body io.Reader, client http.Header, passed ...string,
) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, "", body)
	if err != nil {
		return nil, errors.New("build upstream request")
	}
	req.URL, req.Host = address, address.Host
	for _, name := range passed {
		if values := client.Values(name); len(values) > 0 {
			req.Header[name] = slices.Clone(values)
		}
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	req.Header.Set("Accept-Encoding", "identity") // a meter reads the answer, and the client gets it as it came
	req.Header.Set("User-Agent", "tollgate/"+version.Version)
	return req, nil
}

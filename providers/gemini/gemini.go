// Package gemini reaches Google's Gemini API: models/{model}:generateContent, and streamGenerateContent for streams.
package gemini

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tollgate-gateway/tollgate/providers"
)

// Kind is the name that providers in the store carry.
const Kind = "gemini"

// Provider is a providers.Provider. New makes it.
type Provider struct{ endpoints *providers.Endpoints }

var _ providers.Provider = Provider{}

// New returns the provider.
func New() Provider { return Provider{providers.NewEndpoints(pathOf)} }

// Kind implements providers.Provider.
func (Provider) Kind() string { return Kind }

// Speaks implements providers.Provider.
func (Provider) Speaks() []providers.Dialect { return []providers.Dialect{providers.GeminiGenerate} }

func pathOf(d providers.Dialect) (string, error) {
	if d != providers.GeminiGenerate {
		return "", fmt.Errorf("%w: %s", providers.ErrDialect, d)
	}
	return "models", nil
}

// errNoModel says that an upstream has no name of a model, which the URL wants.
var errNoModel = errors.New("upstream model has no name")

// NewRequest implements providers.Provider. The credential goes in a header and never in the URL, although Gemini takes it
// there too. Errors never contain the URL.
func (p Provider) NewRequest(
	ctx context.Context, up providers.Upstream, d providers.Dialect, client http.Header, body []byte,
) (*http.Request, error) {
	address, err := p.endpoints.Of(up.BaseURL, d)
	if err != nil {
		return nil, fmt.Errorf("build upstream address: %w", err)
	}
	if err := locate(&address, up); err != nil {
		return nil, fmt.Errorf("build upstream address: %w", err)
	}
	req, err := providers.NewRequest(ctx, http.MethodPost, &address, "application/json", bytes.NewReader(body), client, "Traceparent", "Tracestate")
	if err != nil {
		return nil, err
	}
	if !up.Credential.IsZero() {
		req.Header.Set("X-Goog-Api-Key", up.Credential.Reveal())
	}
	return req, nil
}

// locate makes the address of the models that of the method of one: the model's name is one segment of the path.
func locate(address *url.URL, up providers.Upstream) error {
	model := strings.TrimPrefix(up.Model, "models/") // as lists of models name it
	if model == "" {
		return errNoModel
	}
	method := ":generateContent"
	if up.Stream {
		method = ":streamGenerateContent"
		address.RawQuery = strings.TrimPrefix(address.RawQuery+"&alt=sse", "&")
	}
	escaped := address.EscapedPath() + "/" + url.PathEscape(model) + method
	address.Path += "/" + model + method
	address.RawPath = escaped
	return nil
}

// Classify implements providers.Provider. An error that came with status 200 is read by its own code, and our credential may
// be refused with status 400.
func (Provider) Classify(status int, h http.Header, body []byte) providers.Failure {
	said := providers.ReadError(body)
	detail := readDetail(body)
	if status >= 200 && status <= 299 {
		status = statusOf(detail.Status)
	}
	if status == http.StatusBadRequest && detail.badKey() {
		status = http.StatusUnauthorized
	}
	wait := providers.RetryAfter(h)
	if wait == 0 {
		wait = detail.retryDelay()
	}
	f := providers.Classify(status, said, false, wait)
	if status == http.StatusNotFound {
		f.TryNext = true // the model is not known to this account, or not in this version of the API
	}
	return f
}

// detail is what an error says besides its message, as google.rpc.Status and google.rpc.error_details define it.
type detail struct {
	Status  string `json:"status"`
	Details []struct {
		Type       string `json:"@type"`
		Reason     string `json:"reason"`
		RetryDelay string `json:"retryDelay"`
	} `json:"details"`
}

// readDetail reads {"error":{…}}, which comes in an array where a stream was asked for. What cannot be read says nothing.
func readDetail(body []byte) detail {
	type envelope struct {
		Error detail `json:"error"`
	}
	body = bytes.TrimSpace(body)
	if len(body) > 0 && body[0] == '[' {
		var list []envelope
		if json.Unmarshal(body, &list) != nil || len(list) == 0 {
			return detail{}
		}
		return list[0].Error
	}
	var one envelope
	if json.Unmarshal(body, &one) != nil {
		return detail{}
	}
	return one.Error
}

// badKey reports whether a 400 is about our credential.
func (d detail) badKey() bool {
	for _, each := range d.Details {
		if each.Reason == "API_KEY_INVALID" || each.Reason == "API_KEY_EXPIRED" {
			return true
		}
	}
	return false
}

const maxRetryDelay = 24 * time.Hour // a longer wait is as good as none

// retryDelay returns the hint of a RetryInfo, "37s"; 0: none.
func (d detail) retryDelay() time.Duration {
	for _, each := range d.Details {
		if !strings.HasSuffix(each.Type, "google.rpc.RetryInfo") {
			continue
		}
		if wait, err := time.ParseDuration(each.RetryDelay); err == nil && wait > 0 && wait <= maxRetryDelay {
			return wait
		}
	}
	return 0
}

// statusOf returns the HTTP status of a code of google.rpc.Code.
func statusOf(code string) int {
	switch code {
	case "INVALID_ARGUMENT", "FAILED_PRECONDITION", "OUT_OF_RANGE":
		return http.StatusBadRequest
	case "UNAUTHENTICATED":
		return http.StatusUnauthorized
	case "PERMISSION_DENIED":
		return http.StatusForbidden
	case "NOT_FOUND":
		return http.StatusNotFound
	case "RESOURCE_EXHAUSTED":
		return http.StatusTooManyRequests
	case "UNAVAILABLE":
		return http.StatusServiceUnavailable
	case "DEADLINE_EXCEEDED":
		return http.StatusGatewayTimeout
	}
	return http.StatusBadGateway
}

// Meter implements providers.Provider.
func (Provider) Meter(providers.Dialect) providers.Meter { return &meter{} }

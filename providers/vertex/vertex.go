// Package vertex reaches models on Google's Vertex AI: Gemini's in their own dialect, and Claude's in Anthropic's.
package vertex

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/providers"
)

// The names that providers in the store carry. A kind is a maker, since a call finds its dialect by the kind of its target.
const (
	Kind       = "vertex"           // Gemini's models
	KindClaude = "vertex-anthropic" // Claude's
)

// Provider is a providers.Provider. New makes it.
type Provider struct {
	inner  providers.Provider
	tokens *tokens
}

// Claude is a providers.Provider. NewClaude makes it.
type Claude struct{ Provider }

var (
	_ providers.Provider          = Provider{}
	_ providers.CredentialChecker = Provider{}
	_ providers.Provider          = Claude{}
	_ providers.MemberEditor      = Claude{}
)

// New returns the provider of Gemini's models. gemini writes requests in their dialect and meters the answers.
func New(gemini providers.Provider) Provider { return Provider{gemini, newTokens(time.Now)} }

// NewClaude returns the provider of Claude's models. anthropic writes requests in their dialect and meters the answers.
func NewClaude(anthropic providers.Provider) Claude {
	return Claude{Provider{anthropic, newTokens(time.Now)}}
}

// Kind implements providers.Provider.
func (Provider) Kind() string { return Kind }

// Kind implements providers.Provider.
func (Claude) Kind() string { return KindClaude }

// Speaks implements providers.Provider.
func (p Provider) Speaks() []providers.Dialect { return p.inner.Speaks() }

// Meter implements providers.Provider.
func (p Provider) Meter(d providers.Dialect) providers.Meter { return p.inner.Meter(d) }

// CheckCredential implements providers.CredentialChecker.
func (Provider) CheckCredential(credential secret.String) error {
	_, err := readCredential(credential)
	return err
}

// Classify implements providers.Provider.
func (p Provider) Classify(status int, h http.Header, body []byte) providers.Failure {
	f := p.inner.Classify(status, h, body)
	if status == http.StatusNotFound {
		f.TryNext = true // the model is not known in this project and location
	}
	return f
}

// NewRequest implements providers.Provider. It waits for an access token where there is none yet.
func (p Provider) NewRequest(
	ctx context.Context, up providers.Upstream, d providers.Dialect, client http.Header, body []byte,
) (*http.Request, error) {
	return p.request(ctx, up, d, client, body, "google")
}

func (p Provider) request(
	ctx context.Context, up providers.Upstream, d providers.Dialect, client http.Header, body []byte, publisher string,
) (*http.Request, error) {
	account, err := readCredential(up.Credential)
	if err != nil && !up.Credential.IsZero() {
		return nil, fmt.Errorf("authorize upstream request: %w", err)
	}
	base, err := locate(up.BaseURL, account)
	if err != nil {
		return nil, fmt.Errorf("build upstream address: %w", err)
	}
	token := up.Credential
	up.BaseURL, up.Credential = base+"/publishers/"+publisher, secret.String{}
	req, err := p.inner.NewRequest(ctx, up, d, client, body)
	if err != nil {
		return nil, err
	}
	if account != nil {
		if token, err = p.tokens.of(ctx, account, token); err != nil {
			return nil, fmt.Errorf("authorize upstream request: %w", err)
		}
	}
	if !token.IsZero() {
		req.Header.Set("Authorization", "Bearer "+token.Reveal())
	}
	return req, nil
}

var errAddress = errors.New("the base URL must name project and location, such as " +
	"https://us-central1-aiplatform.googleapis.com/v1/projects/PROJECT/locations/us-central1")

// regional finds the location in the name of an endpoint; that of the global one has none before it.
var regional = regexp.MustCompile(`^(?:([a-z0-9-]+)-)?aiplatform\.googleapis\.com$`)

// locate completes a base URL: a host alone gets the project of the service account and its own location. Its errors do not
// contain the URL.
func locate(base string, account *serviceAccount) (string, error) {
	u, err := providers.ParseBase(base)
	if err != nil {
		return "", err
	}
	if strings.Contains(u.Path, "/projects/") && strings.Contains(u.Path, "/locations/") {
		return strings.TrimRight(base, "/"), nil
	}
	host := regional.FindStringSubmatch(u.Hostname())
	if host == nil || account == nil || account.ProjectID == "" || strings.Trim(u.Path, "/") != "" && strings.Trim(u.Path, "/") != "v1" {
		return "", errAddress
	}
	location := host[1]
	if location == "" {
		location = "global"
	}
	u.Path, u.RawPath = "/v1/projects/"+account.ProjectID+"/locations/"+location, ""
	return u.String(), nil
}

// NewRequest implements providers.Provider. The model stands in the path, and counting tokens has a path of its own.
func (p Claude) NewRequest(
	ctx context.Context, up providers.Upstream, d providers.Dialect, client http.Header, body []byte,
) (*http.Request, error) {
	model, method := up.Model, ":rawPredict"
	switch {
	case !slices.Contains(p.Speaks(), d):
		return nil, fmt.Errorf("build upstream address: %w: %s", providers.ErrDialect, d)
	case d == providers.AnthropicCountTokens:
		model = "count-tokens"
	case model == "":
		return nil, errors.New("build upstream address: upstream model has no name")
	case up.Stream:
		method = ":streamRawPredict"
	}
	up.ClientQuery = "" // beta APIs are named in a header alone
	req, err := p.request(ctx, up, d, client, body, "anthropic")
	if err != nil {
		return nil, err
	}
	base, _, _ := strings.Cut(req.URL.EscapedPath(), "/publishers/anthropic")
	path := base + "/publishers/anthropic/models/" + url.PathEscape(model) + method
	address, err := req.URL.Parse(path)
	if err != nil {
		return nil, errors.New("build upstream address")
	}
	req.URL = address
	return req, nil
}

// claudeVersion is what Vertex has in the place of the header anthropic-version.
const claudeVersion = "vertex-2023-10-16"

// Members implements providers.MemberEditor.
func (Claude) Members(d providers.Dialect, model string) []jsonedit.Edit {
	named := jsonedit.At("model").Delete()
	if d == providers.AnthropicCountTokens {
		named = jsonedit.At("model").String(model)
	}
	return []jsonedit.Edit{named, jsonedit.At("anthropic_version").String(claudeVersion)}
}

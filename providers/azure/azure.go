// Package azure reaches Azure OpenAI: OpenAI's dialects under addresses, credentials and errors of Azure's own.
//
// A base URL is that of the resource, https://NAME.openai.azure.com, and means the v1 API, as /openai/v1 behind it does, where
// the body names the deployment. With an api-version in its query, or with /openai/deployments behind it, it means the API
// before that, where the path names the deployment. Either way the upstream model is the deployment.
package azure

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/providers"
)

// Kind is the name that providers in the store carry.
const Kind = "azure"

// lastDated is the newest api-version of the API before v1 that is no preview:
// https://learn.microsoft.com/azure/ai-foundry/openai/api-version-lifecycle. Base URLs that name none get it.
const lastDated = "2024-10-21"

// Entry describes the kind. Its paths begin where Azure's provider says.
func Entry() *providers.Entry {
	return &providers.Entry{
		Kind: Kind, Title: "Azure OpenAI", ExampleURL: "https://RESOURCE.openai.azure.com/openai/v1", Prices: "azure",
		Speaks: []string{
			"chat", "completions", "responses", "embeddings", "images", "image_edits", "speech", "transcriptions", "translations",
		}, Unversioned: true,
		Docs: "https://learn.microsoft.com/azure/ai-foundry/openai/reference",
	}
}

// Provider is a providers.Provider. New makes it.
type Provider struct{ wire providers.Provider }

var _ providers.Provider = Provider{}

// New returns the provider. wire is that of Entry: it knows the dialects, and this one where they are spoken.
func New(wire providers.Provider) Provider { return Provider{wire} }

// Kind implements providers.Provider.
func (Provider) Kind() string { return Kind }

// Speaks implements providers.Provider.
func (p Provider) Speaks() []providers.Dialect { return p.wire.Speaks() }

// Meter implements providers.Provider. Usage is reported as OpenAI does.
func (p Provider) Meter(d providers.Dialect) providers.Meter { return p.wire.Meter(d) }

// errNoDeployment says that an upstream has no name of a deployment, which the URL wants.
var errNoDeployment = errors.New("upstream model has no name")

// NewRequest implements providers.Provider. A credential is an API key and goes in the header api-key, unless it is a token of
// Microsoft Entra, which is a JWT.
func (p Provider) NewRequest(
	ctx context.Context, up providers.Upstream, d providers.Dialect, client http.Header, body []byte,
) (*http.Request, error) {
	base, err := locate(up, d)
	if err != nil {
		return nil, fmt.Errorf("build upstream address: %w", err)
	}
	key := up.Credential
	up.BaseURL = base
	if !isToken(key.Reveal()) {
		up.Credential = secret.String{}
	}
	req, err := p.wire.NewRequest(ctx, up, d, client, body)
	if err != nil {
		return nil, err
	}
	if up.Credential.IsZero() && !key.IsZero() {
		req.Header.Set("Api-Key", key.Reveal())
	}
	return req, nil
}

// locate returns what stands before a dialect's path.
func locate(up providers.Upstream, d providers.Dialect) (string, error) {
	u, err := url.Parse(up.BaseURL)
	if err != nil {
		return "", providers.ErrBaseURL
	}
	root := strings.TrimRight(u.EscapedPath(), "/")
	if strings.HasSuffix(root, "/openai/v1") {
		return up.BaseURL, nil
	}
	root, deployments := strings.CutSuffix(root, "/deployments")
	root = strings.TrimSuffix(root, "/openai")
	query := u.Query()
	dated := query.Get("api-version")
	if !deployments && (dated == "" || dated == "preview" || dated == "latest") {
		return rooted(u, root+"/openai/v1"), nil
	}
	if dated == "" {
		u.RawQuery = "api-version=" + lastDated
	}
	if d == providers.OpenAIResponses { // its bodies name the deployment
		return rooted(u, root+"/openai"), nil
	}
	if up.Model == "" || up.Model == "." || up.Model == ".." {
		return "", errNoDeployment
	}
	return rooted(u, root+"/openai/deployments/"+url.PathEscape(up.Model)), nil
}

// rooted returns u with another path, which is escaped.
func rooted(u *url.URL, path string) string {
	text := u.Scheme + "://" + u.Host + path
	if u.User != nil || u.Fragment != "" {
		return "" // as nothing that can be called: what they are may be secret
	}
	if u.RawQuery != "" {
		text += "?" + u.RawQuery
	}
	return text
}

// isToken reports whether a credential is a JWT: three parts in base64url, the first of which is an object.
func isToken(credential string) bool {
	parts := strings.Split(credential, ".")
	if len(parts) != 3 {
		return false
	}
	for _, part := range parts {
		if _, err := base64.RawURLEncoding.DecodeString(part); err != nil || part == "" {
			return false
		}
	}
	head, _ := base64.RawURLEncoding.DecodeString(parts[0])
	return head[0] == '{'
}

// Classify implements providers.Provider. What a 404 misses is a deployment, or the resource's version of the API: another
// target may have them.
func (p Provider) Classify(status int, h http.Header, body []byte) providers.Failure {
	f := p.wire.Classify(status, h, body)
	if status == http.StatusNotFound {
		f.TryNext = true
	}
	return f
}

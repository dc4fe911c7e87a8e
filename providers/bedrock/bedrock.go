// Package bedrock reaches Amazon Bedrock's Converse API: model/{model}/converse, and converse-stream for streams.
package bedrock

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/providers"
)

// Kind is the name that providers in the store carry.
const Kind = "bedrock"

// service is Bedrock's name in signatures.
const service = "bedrock"

// Provider is a providers.Provider. New makes it.
type Provider struct {
	signer *v4.Signer
	now    func() time.Time
}

var (
	_ providers.Provider          = Provider{}
	_ providers.Framer            = Provider{}
	_ providers.CredentialChecker = Provider{}
)

// New returns the provider.
func New() Provider { return Provider{signer: v4.NewSigner(), now: time.Now} }

// Kind implements providers.Provider.
func (Provider) Kind() string { return Kind }

// Speaks implements providers.Provider.
func (Provider) Speaks() []providers.Dialect { return []providers.Dialect{providers.BedrockConverse} }

var (
	errNoModel  = errors.New("upstream model has no name")
	errNoRegion = errors.New("neither the base URL nor the credential names a region")
)

// NewRequest implements providers.Provider. Access keys sign the request (Signature Version 4), API keys go with it. Errors
// never contain the URL or the credential.
func (p Provider) NewRequest(
	ctx context.Context, up providers.Upstream, d providers.Dialect, client http.Header, body []byte,
) (*http.Request, error) {
	if d != providers.BedrockConverse {
		return nil, fmt.Errorf("build upstream address: %w: %s", providers.ErrDialect, d)
	}
	address, err := providers.ParseBase(up.BaseURL)
	if err != nil {
		return nil, fmt.Errorf("build upstream address: %w", err)
	}
	if err := locate(address, up); err != nil {
		return nil, fmt.Errorf("build upstream address: %w", err)
	}
	req, err := providers.NewRequest(ctx, http.MethodPost, address, "application/json", bytes.NewReader(body), client, "Traceparent", "Tracestate")
	if err != nil {
		return nil, err
	}
	// What is on the way to be changed, as a mesh does with traces, is not signed.
	signed := req.Clone(ctx)
	signed.Header = http.Header{"Content-Type": req.Header["Content-Type"]}
	if err := p.authorize(signed, up.Credential, body); err != nil {
		return nil, fmt.Errorf("authorize upstream request: %w", err)
	}
	maps.Copy(req.Header, signed.Header)
	return req, nil
}

// locate makes a base URL the address of a model's method. The model, which may be an ARN with colons and slashes, is one
// segment of the path, in which Amazon escapes all that is not unreserved.
func locate(address *url.URL, up providers.Upstream) error {
	if up.Model == "" {
		return errNoModel
	}
	method := "/converse"
	if up.Stream {
		method = "/converse-stream"
	}
	before := strings.TrimSuffix(address.EscapedPath(), "/") + "/model/"
	address.Path = strings.TrimSuffix(address.Path, "/") + "/model/" + up.Model + method
	address.RawPath = before + escape(up.Model) + method
	return nil
}

// escape writes a segment of a path as Amazon's signatures want it.
func escape(segment string) string {
	var b strings.Builder
	for i := range len(segment) {
		switch c := segment[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("-._~", c) >= 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// authorize signs a request, or gives it the API key.
func (p Provider) authorize(req *http.Request, credential secret.String, body []byte) error {
	if credential.IsZero() {
		return nil
	}
	keys, err := readCredential(credential)
	if err != nil {
		return err
	}
	if keys == nil {
		req.Header.Set("Authorization", "Bearer "+credential.Reveal())
		return nil
	}
	region := keys.Region
	if region == "" {
		region = regionOf(req.URL.Hostname())
	}
	if region == "" {
		return errNoRegion
	}
	sum := sha256.Sum256(body)
	signed := aws.Credentials{AccessKeyID: keys.AccessKeyID, SecretAccessKey: keys.SecretAccessKey, SessionToken: keys.SessionToken}
	if err := p.signer.SignHTTP(req.Context(), signed, req, hex.EncodeToString(sum[:]), service, region, p.now().UTC()); err != nil {
		return errors.New("sign request") // the signer's own words may show what it signs
	}
	return nil
}

// hostRegion finds the region in the names of Bedrock's endpoints: public, FIPS, of China, and of private links.
var hostRegion = regexp.MustCompile(`(?:^|\.)bedrock-runtime(?:-fips)?\.([a-z]{2,}(?:-[a-z]+)+-\d+)\.`)

func regionOf(host string) string {
	if m := hostRegion.FindStringSubmatch(host); m != nil {
		return m[1]
	}
	return ""
}

// Frames implements providers.Framer.
func (Provider) Frames(stream io.Reader) providers.Events { return newFrames(stream) }

// Meter implements providers.Provider.
func (Provider) Meter(providers.Dialect) providers.Meter { return &meter{} }

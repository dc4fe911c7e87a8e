package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/providers"
)

const (
	maxResource  = 1 << 20          // bytes of a JSON object of an account
	resourceTime = 60 * time.Second // of a request for one
)

// account is a provider's account that keeps files and batches.
type account struct {
	g       *Gateway
	target  *governance.Target // one of those that the account serves
	batcher providers.Batcher
}

// account returns the account behind a target; ok is false where it keeps no files.
func (g *Gateway) account(t *governance.Target) (a account, ok bool) {
	b, ok := g.providers[t.ProviderKind].(providers.Batcher)
	return account{g, t, b}, ok && b.Batches()
}

// resource is one request to an account.
type resource struct {
	method      string
	kind        providers.Dialect
	path        []string
	query       url.Values
	contentType string
	body        io.Reader // nil: none
}

// ask sends a request and returns the answer, whatever its status, with a body that needs no decoding and must be closed. sent
// says whether the provider may have got a part of the request. Errors are *failure.
func (a account) ask(ctx context.Context, r resource) (response *http.Response, sent bool, err error) {
	var s sending
	up := providers.Upstream{BaseURL: a.target.BaseURL, Credential: a.target.Credential}
	request, err := a.batcher.NewResourceRequest(s.watch(ctx), up, r.method, r.kind, r.path, r.contentType, r.body)
	if err != nil {
		return nil, false, &failure{cause: &governance.Error{
			Code: governance.CodeUpstreamUnreachable, Public: "The provider cannot be called as it is configured.", Err: err,
		}}
	}
	if len(r.query) > 0 {
		q := request.URL.Query() // of the configured address
		maps.Copy(q, r.query)
		request.URL.RawQuery = q.Encode()
	}
	response, err = a.g.upstreams.of(a.target.Provider.Num).RoundTrip(request)
	if err != nil {
		e := &governance.Error{Code: governance.CodeUpstreamUnreachable, Public: "The provider cannot be reached.", Err: err}
		if errors.Is(err, context.DeadlineExceeded) {
			e.Code, e.Public = governance.CodeUpstreamTimeout, "The provider did not answer in time."
		}
		return nil, s.written(), &failure{cause: e}
	}
	plain, err := decoded(response)
	if err != nil {
		_ = response.Body.Close()
		return nil, true, &failure{cause: &governance.Error{
			Code: governance.CodeUpstreamInvalid, Public: "The provider's answer is compressed in a way that was not asked for.", Err: err,
		}}
	}
	response.Body = readCloser{plain, response.Body}
	return response, true, nil
}

type readCloser struct {
	io.Reader
	io.Closer
}

// object asks for a JSON object. A refusal of the provider is a *resourceError.
func (a account) object(ctx context.Context, r resource) (doc *jsonedit.Document, sent bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, resourceTime)
	defer cancel()
	response, sent, err := a.ask(ctx, r)
	if err != nil {
		return nil, sent, err
	}
	defer func() { _ = response.Body.Close() }()
	return a.read(response)
}

// read takes a JSON object from an answer.
func (a account) read(response *http.Response) (doc *jsonedit.Document, sent bool, err error) {
	body, err := io.ReadAll(io.LimitReader(response.Body, maxResource+1))
	if err == nil && response.StatusCode/100 != 2 {
		return nil, true, &resourceError{a, response.StatusCode, response.Header, body}
	}
	if err == nil && len(body) > maxResource {
		err = errors.New("object is too large")
	}
	if err == nil {
		doc, err = jsonedit.Parse(body)
	}
	if err != nil {
		return nil, true, &failure{cause: &governance.Error{Code: governance.CodeUpstreamInvalid, Public: invalidMessage, Err: err}}
	}
	return doc, true, nil
}

// resourceError is a provider's answer that is no success.
type resourceError struct {
	account
	status int
	header http.Header
	body   []byte
}

func (r *resourceError) Error() string {
	return fmt.Sprintf("resource of provider %s: status %d", r.target.Provider.Name, r.status)
}

// explain gives an error of an account its form for the client, who gets the provider's own words about the request, but for
// the names that the provider has for what the client knows by ours.
func (c *call) explain(err error, names naming) error {
	r, ok := errors.AsType[*resourceError](err)
	if !ok {
		return err
	}
	why := r.batcher.Classify(r.status, r.header, r.body)
	told := c.refusal(&attempt{target: r.target, provider: r.batcher, number: 1}, r.status, r.header, r.body, why)
	if f, ok := errors.AsType[*failure](told); ok {
		f.body = names.hide(f.body)
		f.cause.Public = string(names.hide([]byte(f.cause.Public)))
	}
	return told
}

// patient ends a request from which nothing has come for too long.
type patient struct {
	io.Reader
	timer *time.Timer
	wait  time.Duration
}

// patience returns a context for a request whose answer may take any time, as long as some of it comes.
func (g *Gateway) patience(ctx context.Context) (context.Context, *patient, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	p := &patient{timer: time.AfterFunc(g.cfg.Idle, func() { cancel(errSilent) }), wait: g.cfg.Idle}
	return ctx, p, func() {
		p.timer.Stop()
		cancel(errOver)
	}
}

// Read implements io.Reader.
func (p *patient) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b)
	p.timer.Reset(p.wait)
	return n, err
}

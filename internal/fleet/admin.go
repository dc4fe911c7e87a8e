package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// callTimeout bounds one call of the admin API or of the mock; a ledger check reads the whole ledger.
const callTimeout = 2 * time.Minute

// exchange makes one call and returns the status and the whole body.
func exchange(ctx context.Context, client *http.Client, method, target string, header http.Header, body []byte) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return 0, nil, fmt.Errorf("make request: %w", err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	r, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, nil, fmt.Errorf("read answer: %w", err)
	}
	return r.StatusCode, text, nil
}

// Object is a JSON object of the admin API.
type Object = map[string]any

// Text is a member that is a string; else "".
func Text(o Object, member string) string {
	s, _ := o[member].(string)
	return s
}

// Items are the objects of a member that is a list.
func Items(o Object, member string) []Object {
	list, _ := o[member].([]any)
	all := make([]Object, 0, len(list))
	for _, v := range list {
		if item, ok := v.(Object); ok {
			all = append(all, item)
		}
	}
	return all
}

// StatusError is an answer of the admin API, or of the mock's own, that is not a success.
type StatusError struct {
	Status int
	Body   string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("status %d: %s", e.Status, e.Body)
}

// Admin is a client of the admin API.
type Admin struct {
	URL   string
	Token secret.String
	// Patience is for how long a call is repeated that is answered 503, since the database is away; 0: it is not.
	Patience time.Duration

	client *http.Client
}

// NewAdmin calls a control plane through client.
func NewAdmin(client *http.Client, url string, token secret.String) *Admin {
	return &Admin{URL: url, Token: token, client: client}
}

// Do calls the admin API; path is what follows /admin/v1/. Numbers of the answer are json.Number. An answer that is not
// 2xx is a StatusError.
func (a *Admin) Do(ctx context.Context, method, path string, body Object) (Object, error) {
	var payload []byte
	if body != nil {
		var err error
		if payload, err = json.Marshal(body); err != nil {
			return nil, fmt.Errorf("write request: %w", err)
		}
	}
	status, text, err := a.exchange(ctx, method, path, payload)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if status < 200 || status > 299 {
		return nil, fmt.Errorf("%s %s: %w", method, path, &StatusError{status, string(text)})
	}
	var o Object
	if len(text) == 0 {
		return o, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&o); err != nil {
		return nil, fmt.Errorf("%s %s: read answer: %w", method, path, err)
	}
	return o, nil
}

// exchange makes a call, and the same one again while patience lasts.
func (a *Admin) exchange(ctx context.Context, method, path string, payload []byte) (status int, text []byte, err error) {
	header := http.Header{"Authorization": {"Bearer " + a.Token.Reveal()}}
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for end := time.Now().Add(a.Patience); ; {
		status, text, err = exchange(ctx, a.client, method, a.URL+"/admin/v1/"+path, header, payload)
		if err != nil || status != http.StatusServiceUnavailable || !time.Now().Before(end) {
			return status, text, err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return status, text, nil
		}
	}
}

// Get reads a resource.
func (a *Admin) Get(ctx context.Context, path string) (Object, error) {
	return a.Do(ctx, http.MethodGet, path, nil)
}

// Create makes a resource and returns it.
func (a *Admin) Create(ctx context.Context, path string, body Object) (Object, error) {
	return a.Do(ctx, http.MethodPost, path, body)
}

// List reads all pages of a list. query is its filter, without limit and cursor.
func (a *Admin) List(ctx context.Context, path string, query url.Values) ([]Object, error) {
	q := url.Values{}
	for name, values := range query {
		q[name] = values
	}
	q.Set("limit", "250")
	var all []Object
	for {
		page, err := a.Get(ctx, path+"?"+q.Encode())
		if err != nil {
			return nil, err
		}
		all = append(all, Items(page, "items")...)
		next := Text(page, "next_cursor")
		if next == "" {
			return all, nil
		}
		q.Set("cursor", next)
	}
}

// Tenant is what a caller needs: an organization, and a priced model of an upstream.
type Tenant struct {
	Organization, Provider, Model string // public ids
}

// Prices of the models that AddModel makes, in US dollars per million tokens.
const (
	InputPrice  = "2"
	OutputPrice = "10"
)

// SetUp makes an organization, a provider named mock at an upstream, and a model with prices, whose public and upstream name
// is model.
func (a *Admin) SetUp(ctx context.Context, upstream, model string) (Tenant, error) {
	var t Tenant
	organization, err := a.Create(ctx, "organizations", Object{"name": "Acme"})
	if err != nil {
		return t, err
	}
	if t.Provider, err = a.AddProvider(ctx, upstream); err != nil {
		return t, err
	}
	t.Organization = Text(organization, "id")
	t.Model, err = a.AddModel(ctx, t.Provider, model, model)
	return t, err
}

// AddProvider makes an upstream, by its base URL, a provider named mock and returns its id.
func (a *Admin) AddProvider(ctx context.Context, upstream string) (string, error) {
	provider, err := a.Create(ctx, "providers", Object{ //nolint:gosec // the mock takes any credential
		"name": "mock", "kind": "openai", "base_url": upstream + "/v1", "credential": "sk-of-the-mock",
	})
	return Text(provider, "id"), err
}

// AddModel offers a model of the provider mock under a public name, prices it, and returns the model's id.
func (a *Admin) AddModel(ctx context.Context, provider, name, upstreamModel string) (string, error) {
	for unit, price := range map[string]string{"input": InputPrice, "output": OutputPrice} {
		if _, err := a.Create(ctx, "prices", Object{
			"provider": "mock", "upstream_model": upstreamModel, "unit": unit, "usd_per_million": price,
			"effective_from": "2026-01-01T00:00:00Z",
		}); err != nil {
			return "", err
		}
	}
	model, err := a.Create(ctx, "models", Object{"name": name, "targets": []Object{
		{"provider_id": provider, "upstream_model": upstreamModel, "weight": 1, "priority": 0},
	}})
	return Text(model, "id"), err
}

// SetUp is Admin's, at the fleet's own upstream.
func (f *Fleet) SetUp(ctx context.Context, model string) (Tenant, error) {
	return f.Admin.SetUp(ctx, f.Mock.BaseURL, model)
}

// AddProvider is Admin's, at the fleet's own upstream.
func (f *Fleet) AddProvider(ctx context.Context) (string, error) {
	return f.Admin.AddProvider(ctx, f.Mock.BaseURL)
}

// Issue makes a virtual key of an organization, with limits of its own, and returns its text and its id.
func (a *Admin) Issue(ctx context.Context, organization, name string, limits ...Object) (key secret.String, id string, err error) {
	if limits == nil {
		limits = []Object{}
	}
	o, err := a.Create(ctx, "keys", Object{"organization_id": organization, "name": name, "limits": limits})
	return secret.New(Text(o, "key")), Text(o, "id"), err
}

// AwaitClosed waits until no reservation is open.
func (a *Admin) AwaitClosed(ctx context.Context) error {
	ticker := time.NewTicker(10 * pollInterval)
	defer ticker.Stop()
	for {
		page, err := a.Get(ctx, "reservations?state=open&limit=1")
		if err != nil {
			return err
		}
		if len(Items(page, "items")) == 0 {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("wait until no reservation is open: %w", ctx.Err())
		}
	}
}

// ErrUnclean is a ledger that disagrees with its counters.
var ErrUnclean = errors.New("ledger check is not clean")

// CheckLedger recomputes the ledger; a disagreement is ErrUnclean with the checks that found it.
func (a *Admin) CheckLedger(ctx context.Context) error {
	report, err := a.Get(ctx, "ledger/check")
	if err != nil {
		return err
	}
	if clean, _ := report["clean"].(bool); clean {
		return nil
	}
	err = ErrUnclean
	for _, c := range Items(report, "checks") {
		if n, ok := c["violations"].(json.Number); ok && n != "0" {
			err = fmt.Errorf("%w; %s %s: %s", err, Text(c, "id"), Text(c, "name"), n)
		}
	}
	return err
}

package pgstore

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/seal"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// Providers keeps accounts at upstreams. Their credentials are sealed before they leave the process, bound to the
// organization, the provider and the scheme and host they are for: where one of these is changed behind the store's back,
// or the URL without the credential, the credential no longer opens.
type Providers struct {
	table[governance.Provider, providersRow]
	keys *seal.Keys
}

var _ governance.Store[governance.Provider] = (*Providers)(nil)

// NewProviders makes a store of providers.
func NewProviders(pool *pgxpool.Pool, keys *seal.Keys) *Providers {
	return &Providers{providersTable(pool), keys}
}

func providersTable(pool *pgxpool.Pool) table[governance.Provider, providersRow] {
	return table[governance.Provider, providersRow]{pool: pool, resource: "providers", kind: ids.Provider}
}

type providersRow struct {
	metaRow
	organizationRow
	Name          string `db:"name"`
	Kind          string `db:"kind"`
	BaseURL       string `db:"base_url"`
	PriceProvider string `db:"price_provider"`
	HasCredential bool   `db:"has_credential"`
	Sealed        []byte `db:"credential" audit:"-"`
}

func (r providersRow) domain() governance.Provider {
	return governance.Provider{
		Meta: r.meta(), Organization: r.organization(), Name: r.Name, Kind: r.Kind, BaseURL: r.BaseURL,
		PriceProvider: r.PriceProvider,
	}
}

// sealed is a credential as the database keeps it, with what it is bound to.
type sealed struct {
	bytes                           []byte
	organization, provider, baseURL string
}

// open returns the credential; none: a zero secret.
func (s sealed) open(keys *seal.Keys) (secret.String, error) {
	if len(s.bytes) == 0 {
		return secret.String{}, nil
	}
	plain, err := keys.Open(s.bytes, credentialContext(s.organization, s.provider, s.baseURL)...)
	if err != nil {
		return secret.String{}, fmt.Errorf("open credential of %s: %w", s.provider, err)
	}
	return plain, nil
}

// credentialContext is what a credential is bound to. The last part is the version of this list.
func credentialContext(organization, provider, baseURL string) []string {
	return []string{organization, provider, "provider credential", origin(baseURL), "1"}
}

// origin returns scheme and host of a URL in lower case.
func origin(baseURL string) string {
	u, err := url.Parse(baseURL)
	if err != nil {
		return baseURL
	}
	return strings.ToLower(u.Scheme + "://" + u.Host)
}

// Get returns a provider without its credential, but with whether that can be opened.
func (s *Providers) Get(ctx context.Context, by governance.Actor, id string) (governance.Provider, error) {
	r, err := read(ctx, s.pool, func(ctx context.Context, q querier) (providersRow, error) { return s.find(ctx, q, by, id) })
	if err != nil {
		return governance.Provider{}, err
	}
	return s.shown(r), nil
}

// shown adds whether the credential opens.
func (s *Providers) shown(r providersRow) governance.Provider {
	p := r.domain()
	stored := sealed{r.Sealed, r.OrganizationID, r.ID, r.BaseURL}
	_, err := stored.open(s.keys)
	p.CredentialOK = err == nil && r.HasCredential
	return p
}

// List returns a page of providers as Get returns them.
func (s *Providers) List(ctx context.Context, by governance.Actor, f governance.ListFilter, p governance.Page) ([]governance.Provider, string, error) {
	rows, next, err := s.page(ctx, by, f, p)
	if err != nil {
		return nil, "", err
	}
	shown := make([]governance.Provider, 0, len(rows))
	for _, r := range rows {
		shown = append(shown, s.shown(r))
	}
	return shown, next, nil
}

// Create adds a provider; without an organization it is the platform's, unless the actor is bound to one.
func (s *Providers) Create(ctx context.Context, by governance.Actor, p governance.Provider) (governance.Provider, error) {
	var created providersRow
	err := write(ctx, s.pool, by, func(ctx context.Context, c *change) error {
		home, err := homeOf(ctx, c, p.Organization)
		if err != nil {
			return err
		}
		if err := checkProvider(&p); err != nil {
			return err
		}
		id := ids.NewPublic(ids.Provider)
		credential, err := s.sealCredential(&p, home.ID, id)
		if err != nil {
			return err
		}
		num, err := scalar[int64](ctx, c.tx, "providers_insert", args{
			"public_id": id, "organization_num": nullNum(home.Num), "name": p.Name, "kind": p.Kind, "base_url": p.BaseURL,
			"price_provider": p.PriceProvider, "credential": credential,
		})
		if err != nil {
			return err
		}
		created, err = s.noted(ctx, c, "create", num, nil)
		return err
	})
	if err != nil {
		return governance.Provider{}, err
	}
	return s.shown(created), nil
}

// Update writes the after-image. A zero credential keeps the stored one, which opens only while scheme and host stay: a
// change of these asks for the credential again, or to drop it, since it would be lost otherwise.
func (s *Providers) Update(ctx context.Context, by governance.Actor, p governance.Provider) (governance.Provider, error) {
	var after providersRow
	err := write(ctx, s.pool, by, func(ctx context.Context, c *change) error {
		before, err := s.owned(ctx, c, p.ID, p.Version)
		if err != nil {
			return err
		}
		if err := same("organization_id", p.Organization, before.organization()); err != nil {
			return err
		}
		if err := checkProvider(&p); err != nil {
			return err
		}
		credential := before.Sealed
		switch {
		case !p.Credential.IsZero():
			if credential, err = s.sealCredential(&p, before.OrganizationID, before.ID); err != nil {
				return err
			}
		case p.DropCredential:
			credential = nil
		case before.HasCredential && origin(p.BaseURL) != origin(before.BaseURL):
			return invalid("credential", "must be sent again, since it is bound to the scheme and host of base_url; null: none is sent")
		}
		after, err = s.put(ctx, c, "update", before, args{
			"name": p.Name, "kind": p.Kind, "base_url": p.BaseURL, "price_provider": p.PriceProvider, "credential": credential,
		})
		return err
	})
	if err != nil {
		return governance.Provider{}, err
	}
	return s.shown(after), nil
}

func (s *Providers) sealCredential(p *governance.Provider, organization, id string) ([]byte, error) {
	if p.Credential.IsZero() {
		return nil, nil
	}
	b, err := s.keys.Seal(p.Credential, credentialContext(organization, id, p.BaseURL)...)
	if err != nil {
		return nil, fmt.Errorf("seal credential: %w", err)
	}
	return b, nil
}

func checkProvider(p *governance.Provider) error {
	u, err := url.Parse(p.BaseURL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return invalid("base_url", "is not an http or https URL")
	}
	if u.User != nil || !governance.IsBaseQuery(u.RawQuery) || u.Fragment != "" {
		return invalid("base_url", "has a user, a query or a fragment; credentials go into credential")
	}
	return nil
}

// homeOf finds whose a new provider or model is: the organization that it names or that bounds the actor, else the
// platform, which is the zero reference.
func homeOf(ctx context.Context, c *change, ref governance.Ref) (governance.Ref, error) {
	if ref.IsZero() && c.by.Organization == 0 {
		return governance.Ref{}, nil
	}
	o, err := organizationOf(ctx, c, ref)
	if err != nil {
		return governance.Ref{}, err
	}
	return governance.Ref{Num: o.Num, ID: o.ID, Name: o.Name}, nil
}

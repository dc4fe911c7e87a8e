package pgstore

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/seal"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// Guardrails keeps rules about what may be said to models and by them. The secrets of webhooks are sealed before they leave the
// process, bound to the organization, the guardrail and the scheme and host of the webhook, as credentials of providers are.
type Guardrails struct {
	table[governance.Guardrail, guardrailsRow]
	keys *seal.Keys
}

var _ governance.Store[governance.Guardrail] = (*Guardrails)(nil)

// NewGuardrails makes a store of guardrails.
func NewGuardrails(pool *pgxpool.Pool, keys *seal.Keys) *Guardrails {
	return &Guardrails{table[governance.Guardrail, guardrailsRow]{pool: pool, resource: "guardrails", kind: ids.Guardrail}, keys}
}

type guardrailsRow struct {
	metaRow
	organizationRow
	teamRow
	KeyNum       int64                    `db:"key_num"`
	KeyID        string                   `db:"key_id"`
	KeyName      string                   `db:"key_name"`
	Name         string                   `db:"name"`
	Models       []string                 `db:"models"`
	Stage        string                   `db:"stage"`
	Rule         governance.GuardrailRule `db:"rule"`
	Action       string                   `db:"action"`
	AllowOnError bool                     `db:"allow_on_error"`
	Disabled     bool                     `db:"disabled"`
	HasSecret    bool                     `db:"has_secret"`
	Sealed       []byte                   `db:"secret" audit:"-"`
}

func (r guardrailsRow) domain() governance.Guardrail {
	return governance.Guardrail{
		Meta: r.meta(), Organization: r.organization(), Name: r.Name,
		Team: r.team(), Key: governance.Ref{Num: r.KeyNum, ID: r.KeyID, Name: r.KeyName},
		Models: r.Models, Stage: governance.GuardrailStage(r.Stage), Rule: r.Rule, Action: governance.GuardrailAction(r.Action),
		AllowOnError: r.AllowOnError, Disabled: r.Disabled,
	}
}

// open returns the secret of a webhook; none: a zero one.
func (r guardrailsRow) open(keys *seal.Keys) (secret.String, error) {
	if !r.HasSecret {
		return secret.String{}, nil
	}
	plain, err := keys.Open(r.Sealed, guardrailContext(r.OrganizationID, r.ID, r.Rule.URL)...)
	if err != nil {
		return secret.String{}, fmt.Errorf("open secret of %s: %w", r.ID, err)
	}
	return plain, nil
}

// guardrailContext is what a secret is bound to. The last part is the version of this list.
func guardrailContext(organization, guardrail, webhook string) []string {
	return []string{organization, guardrail, "guardrail secret", origin(webhook), "1"}
}

// shown adds whether the secret opens.
func (s *Guardrails) shown(r guardrailsRow) governance.Guardrail {
	g := r.domain()
	_, err := r.open(s.keys)
	g.SecretOK = err == nil && r.HasSecret
	return g
}

// Get returns a guardrail without its secret, but with whether that can be opened.
func (s *Guardrails) Get(ctx context.Context, by governance.Actor, id string) (governance.Guardrail, error) {
	r, err := read(ctx, s.pool, func(ctx context.Context, q querier) (guardrailsRow, error) { return s.find(ctx, q, by, id) })
	if err != nil {
		return governance.Guardrail{}, err
	}
	return s.shown(r), nil
}

// List returns a page of guardrails as Get returns them.
func (s *Guardrails) List(ctx context.Context, by governance.Actor, f governance.ListFilter, p governance.Page) ([]governance.Guardrail, string, error) {
	rows, next, err := s.page(ctx, by, f, p)
	if err != nil {
		return nil, "", err
	}
	shown := make([]governance.Guardrail, 0, len(rows))
	for _, r := range rows {
		shown = append(shown, s.shown(r))
	}
	return shown, next, nil
}

// Create adds a guardrail. Its organization follows from the team or the key that it names; without any of them it is the
// platform's, unless the actor is bound to an organization.
func (s *Guardrails) Create(ctx context.Context, by governance.Actor, g governance.Guardrail) (governance.Guardrail, error) {
	var created guardrailsRow
	err := write(ctx, s.pool, by, func(ctx context.Context, c *change) error {
		if err := s.resolve(ctx, c, &g); err != nil {
			return err
		}
		a, err := s.args(&g)
		if err != nil {
			return err
		}
		id := ids.NewPublic(ids.Guardrail)
		sealed, err := s.sealSecret(&g, id)
		if err != nil {
			return err
		}
		a["public_id"], a["secret"] = id, sealed
		a["organization_num"], a["team_num"], a["key_num"] = nullNum(g.Organization.Num), nullNum(g.Team.Num), nullNum(g.Key.Num)
		num, err := scalar[int64](ctx, c.tx, "guardrails_insert", a)
		if err != nil {
			return err
		}
		created, err = s.noted(ctx, c, "create", num, nil)
		return err
	})
	if err != nil {
		return governance.Guardrail{}, err
	}
	return s.shown(created), nil
}

// Update writes the after-image. What it applies to cannot change. A zero secret keeps the stored one, as long as the webhook's
// scheme and host stay; with any other rule the secret goes.
func (s *Guardrails) Update(ctx context.Context, by governance.Actor, g governance.Guardrail) (governance.Guardrail, error) {
	var after guardrailsRow
	err := write(ctx, s.pool, by, func(ctx context.Context, c *change) error {
		before, err := s.owned(ctx, c, g.ID, g.Version)
		if err != nil {
			return err
		}
		was := before.domain()
		for _, fixed := range []struct {
			field     string
			want, now governance.Ref
		}{{"organization_id", g.Organization, was.Organization}, {"scope", g.Team, was.Team}, {"scope", g.Key, was.Key}} {
			if err := same(fixed.field, fixed.want, fixed.now); err != nil {
				return err
			}
		}
		g.Organization = was.Organization
		a, err := s.args(&g)
		if err != nil {
			return err
		}
		a["secret"] = before.Sealed
		if g.Rule.Type != governance.RuleWebhook || !g.Secret.IsZero() || !before.HasSecret || origin(g.Rule.URL) != origin(before.Rule.URL) {
			if a["secret"], err = s.sealSecret(&g, before.ID); err != nil {
				return err
			}
		}
		after, err = s.put(ctx, c, "update", before, a)
		return err
	})
	if err != nil {
		return governance.Guardrail{}, err
	}
	return s.shown(after), nil
}

// resolve finds the rows that a guardrail names, and the organization that follows from them.
func (s *Guardrails) resolve(ctx context.Context, c *change, g *governance.Guardrail) error {
	var of int64 // organization of the team or key
	var err error
	switch {
	case !g.Team.IsZero():
		g.Team.Num, of, err = member(ctx, c, governance.ScopeTeam, g.Team, "scope.id")
	case !g.Key.IsZero():
		g.Key.Num, of, err = member(ctx, c, governance.ScopeKey, g.Key, "scope.id")
	}
	if err != nil {
		return err
	}
	if g.Organization.IsZero() {
		g.Organization.Num = of
	}
	if g.Organization, err = homeOf(ctx, c, g.Organization); err != nil {
		return err
	}
	if of != 0 && of != g.Organization.Num {
		return invalid("scope.id", "lies in another organization")
	}
	return nil
}

// args checks a guardrail and returns what both writes write of it.
func (s *Guardrails) args(g *governance.Guardrail) (args, error) {
	if err := g.Check(); err != nil {
		return nil, err
	}
	if g.Rule.Type == governance.RuleWebhook {
		if u, err := url.Parse(g.Rule.URL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
			return nil, invalid("rule.url", "is not an http or https URL")
		}
	}
	rule, err := json.Marshal(g.Rule)
	if err != nil {
		return nil, fmt.Errorf("encode rule: %w", err)
	}
	return args{
		"name": g.Name, "models": append([]string{}, g.Models...), "stage": string(g.Stage), "rule": string(rule), "action": string(g.Action),
		"allow_on_error": g.AllowOnError, "disabled": g.Disabled,
	}, nil
}

// sealSecret returns the secret of a webhook as it is stored. Other rules have none.
func (s *Guardrails) sealSecret(g *governance.Guardrail, id string) ([]byte, error) {
	switch {
	case g.Rule.Type != governance.RuleWebhook && g.Secret.IsZero():
		return nil, nil
	case g.Rule.Type != governance.RuleWebhook:
		return nil, invalid("secret", "belongs to webhooks only")
	case g.Secret.IsZero():
		return nil, invalid("secret", "is missing: it signs the calls of the webhook, and is bound to the scheme and host of its URL")
	}
	b, err := s.keys.Seal(g.Secret, guardrailContext(g.Organization.ID, id, g.Rule.URL)...)
	if err != nil {
		return nil, fmt.Errorf("seal secret: %w", err)
	}
	return b, nil
}

// readGuardrails reads all that are not deleted, with their secrets opened.
func (c *Catalogs) readGuardrails(ctx context.Context, q querier) ([]*governance.Guardrail, error) {
	everything := filter(governance.Actor{})
	everything["count"] = (*int64)(nil)
	rows, err := many[guardrailsRow](ctx, q, "guardrails_read", everything)
	if err != nil {
		return nil, err
	}
	all := make([]*governance.Guardrail, 0, len(rows))
	for _, r := range rows {
		g := r.domain()
		if g.Secret, err = r.open(c.keys); err != nil {
			// It stays in force: without its secret it cannot ask its webhook, and does what it does on errors.
			c.o.Log.Error().Err(err).Msg("guardrail without its secret")
		}
		g.SecretOK = !g.Secret.IsZero()
		all = append(all, &g)
	}
	return all, nil
}

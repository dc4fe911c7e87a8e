package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/pricebook"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/providers/anthropic"
	"github.com/tollgate-gateway/tollgate/providers/gemini"
	"github.com/tollgate-gateway/tollgate/providers/openai"
)

// demoBudget is the demo team's monthly budget, in nano-dollars.
const demoBudget = 100_000_000_000

// demoActor signs what dev makes by itself.
func demoActor() governance.Actor {
	return governance.Actor{Kind: "system", ID: "dev", Name: "tollgate dev"}
}

// known is a provider that dev offers when its key is in the environment. It has the name of its kind.
type known struct {
	kind      string
	prices    string   // its name in the price book
	variables []string // that may have the key; the first that is set counts
}

func knownProviders() []known {
	return []known{
		{openai.Kind, "openai", []string{"OPENAI_API_KEY"}},
		{anthropic.Kind, "anthropic", []string{"ANTHROPIC_API_KEY"}},
		{gemini.Kind, "google", []string{"GEMINI_API_KEY", "GOOGLE_API_KEY"}},
		{"groq", "groq", []string{"GROQ_API_KEY"}},
		{"mistral", "mistral", []string{"MISTRAL_API_KEY"}},
		{"deepseek", "deepseek", []string{"DEEPSEEK_API_KEY"}},
	}
}

// key returns the credential that the environment has; zero: none.
func (k known) key() secret.String {
	for _, name := range k.variables {
		if value := os.Getenv(name); value != "" {
			return secret.New(value)
		}
	}
	return secret.String{}
}

// demo makes the demo organization with its team, key and mock model at the first start, points the mock provider to where
// it listens this time, and offers the models of providers whose key is in the environment.
func (a *App) demo(ctx context.Context, secrets *devSecrets, upstream string) error {
	mock, err := a.ensureProvider(ctx, governance.Provider{Name: "mock", Kind: "openai", BaseURL: upstream + "/v1"})
	if err != nil {
		return err
	}
	if err := a.ensureModel(ctx, devModel, mock, devModel); err != nil {
		return err
	}
	if err := a.ensureMockPrice(ctx); err != nil {
		return err
	}
	for _, k := range knownProviders() {
		if key := k.key(); !key.IsZero() {
			if err := a.offer(ctx, k, key); err != nil {
				return fmt.Errorf("offer %s: %w", k.kind, err)
			}
		}
	}
	if !secrets.DemoKey.IsZero() {
		return nil
	}
	return a.demoTenant(ctx, secrets)
}

// ensureProvider makes a provider of the platform, or brings the one of that name up to date.
func (a *App) ensureProvider(ctx context.Context, want governance.Provider) (governance.Provider, error) {
	rows, _, err := a.stores.providers.List(ctx, demoActor(), governance.ListFilter{Name: want.Name}, governance.Page{Limit: 10})
	if err != nil {
		return governance.Provider{}, fmt.Errorf("list providers: %w", err)
	}
	at := slices.IndexFunc(rows, func(p governance.Provider) bool { return p.Organization.IsZero() })
	if at < 0 {
		return a.stores.providers.Create(ctx, demoActor(), want)
	}
	have := rows[at]
	if have.BaseURL == want.BaseURL && want.Credential.IsZero() {
		return have, nil
	}
	want.Meta, want.PriceProvider = have.Meta, have.PriceProvider
	return a.stores.providers.Update(ctx, demoActor(), want)
}

func (a *App) ensureModel(ctx context.Context, name string, p governance.Provider, upstream string) error {
	_, err := a.stores.models.Create(ctx, demoActor(), governance.Model{Name: name, Targets: []governance.ModelTarget{
		{Provider: governance.Ref{ID: p.ID}, Upstream: upstream, Weight: 1},
	}})
	if err != nil && !errors.Is(err, governance.ErrExists) {
		return fmt.Errorf("make model %s: %w", name, err)
	}
	return nil
}

// ensureMockPrice gives the mock model a price that is easy to check by hand: 2 and 10 dollars per million tokens.
func (a *App) ensureMockPrice(ctx context.Context) error {
	rows, _, err := a.stores.prices.List(ctx, "mock", devModel, governance.Page{Limit: 1})
	if err != nil || len(rows) > 0 {
		return err
	}
	var prices governance.UnitPrices
	prices[governance.UnitInput], prices[governance.UnitOutput] = 2_000_000_000, 10_000_000_000
	_, err = a.stores.prices.Add(ctx, demoActor(), []governance.PriceVersion{{
		Provider: "mock", UpstreamModel: devModel, EffectiveFrom: time.Unix(0, 0).UTC(), Source: "demo",
		Tiers: []governance.PriceTier{{Prices: prices}},
	}})
	if err != nil {
		return fmt.Errorf("price %s: %w", devModel, err)
	}
	return nil
}

// offer sets a provider up with the credential of the environment and offers each of its models that has a price.
func (a *App) offer(ctx context.Context, k known, credential secret.String) error {
	kind, err := a.kinds.entry(k.kind)
	if err != nil {
		return err
	}
	p, err := a.ensureProvider(ctx, governance.Provider{
		Name: k.kind, Kind: k.kind, BaseURL: kind.BaseURL, PriceProvider: k.prices, Credential: credential,
	})
	if err != nil {
		return err
	}
	book, err := pricebook.Load(time.Now())
	if err != nil {
		return err
	}
	for i := range book {
		if book[i].Provider != k.prices {
			continue
		}
		if err := a.ensureModel(ctx, book[i].UpstreamModel, p, book[i].UpstreamModel); err != nil {
			return err
		}
	}
	return nil
}

// demoTenant makes the organization, the team with its budget, and the key, which is kept in the secrets file.
func (a *App) demoTenant(ctx context.Context, secrets *devSecrets) error {
	by := demoActor()
	org, err := a.ensureOrganization(ctx, "Demo")
	if err != nil {
		return err
	}
	team, err := a.ensureTeam(ctx, org, "Demo team")
	if err != nil {
		return err
	}
	key, _, err := a.stores.keys.Issue(ctx, by, governance.VirtualKey{
		Organization: governance.Ref{ID: org.ID}, Team: governance.Ref{ID: team.ID}, Name: "Demo key",
	}, nil)
	if err != nil {
		return fmt.Errorf("issue key: %w", err)
	}
	secrets.DemoKey = key.Secret
	return secrets.save()
}

func (a *App) ensureOrganization(ctx context.Context, name string) (governance.Organization, error) {
	rows, _, err := a.stores.organizations.List(ctx, demoActor(), governance.ListFilter{Name: name}, governance.Page{Limit: 1})
	if err != nil {
		return governance.Organization{}, fmt.Errorf("list organizations: %w", err)
	}
	if len(rows) > 0 {
		return rows[0], nil
	}
	return a.stores.organizations.Create(ctx, demoActor(), governance.Organization{Name: name})
}

func (a *App) ensureTeam(ctx context.Context, org governance.Organization, name string) (governance.Team, error) {
	filter := governance.ListFilter{Organization: org.ID, Name: name}
	rows, _, err := a.stores.teams.List(ctx, demoActor(), filter, governance.Page{Limit: 1})
	if err != nil {
		return governance.Team{}, fmt.Errorf("list teams: %w", err)
	}
	if len(rows) > 0 {
		return rows[0], nil
	}
	team, _, err := a.stores.teams.CreateWithLimits(ctx, demoActor(),
		governance.Team{Organization: governance.Ref{ID: org.ID}, Name: name},
		[]governance.Limit{{
			Kind: governance.KindBudget, Metric: governance.MetricCost, Amount: demoBudget, CarryDebt: true,
			Window:  governance.Window{Type: governance.WindowCalendar, Period: "month", TimeZone: "UTC"},
			Reserve: governance.ReserveDeclared, Enforcement: governance.EnforceExact, Mode: governance.ModeEnforce,
			Thresholds: []int{50, 80, 100},
		}})
	return team, err
}

package pgstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// Models keeps public names and what serves them.
type Models struct {
	table[governance.Model, modelsRow]
	maxOutput       func(priceProvider, upstreamModel string) int64
	noStreamOptions func(kind string) bool
}

var _ governance.Store[governance.Model] = (*Models)(nil)

// NewModels makes a store of models.
func NewModels(pool *pgxpool.Pool) *Models {
	return &Models{modelsTable(pool), func(string, string) int64 { return 0 }, func(string) bool { return false }}
}

// WithMaxOutput makes new targets begin with an output maximum in tokens that known gives for a provider of the price book
// and an upstream model; 0: unknown.
func (s *Models) WithMaxOutput(known func(priceProvider, upstreamModel string) int64) *Models {
	s.maxOutput = known
	return s
}

// WithoutStreamOptions makes new targets of the kinds of provider that refused names begin without the member stream_options.
func (s *Models) WithoutStreamOptions(refused func(kind string) bool) *Models {
	s.noStreamOptions = refused
	return s
}

func modelsTable(pool *pgxpool.Pool) table[governance.Model, modelsRow] {
	return table[governance.Model, modelsRow]{pool: pool, resource: "models", kind: ids.Model}
}

// modelsRow has a model and, as lists of equal length, its targets in their order.
type modelsRow struct {
	metaRow
	organizationRow
	Name          string   `db:"name"`
	TargetNums    []int64  `db:"targets_num"`
	TargetIDs     []string `db:"target_ids"`
	ProviderNums  []int64  `db:"providers_num"`
	ProviderIDs   []string `db:"provider_ids"`
	ProviderNames []string `db:"provider_names"`
	Upstreams     []string `db:"upstream_models"`
	Weights       []int64  `db:"weights"`
	Priorities    []int64  `db:"priorities"`
}

func (r modelsRow) domain() governance.Model {
	m := governance.Model{Meta: r.meta(), Organization: r.organization(), Name: r.Name}
	for i := range r.TargetNums {
		m.Targets = append(m.Targets, governance.ModelTarget{
			Target:   governance.Ref{Num: r.TargetNums[i], ID: r.TargetIDs[i], Name: r.Upstreams[i]},
			Provider: governance.Ref{Num: r.ProviderNums[i], ID: r.ProviderIDs[i], Name: r.ProviderNames[i]},
			Upstream: r.Upstreams[i], Weight: int(r.Weights[i]), Priority: int(r.Priorities[i]),
		})
	}
	return m
}

// Create adds a model. Targets that do not exist yet are made.
func (s *Models) Create(ctx context.Context, by governance.Actor, m governance.Model) (governance.Model, error) {
	var created modelsRow
	err := write(ctx, s.pool, by, func(ctx context.Context, c *change) error {
		home, err := homeOf(ctx, c, m.Organization)
		if err != nil {
			return err
		}
		num, err := scalar[int64](ctx, c.tx, "models_insert", args{
			"public_id": ids.NewPublic(ids.Model), "organization_num": nullNum(home.Num), "name": m.Name,
		})
		if err != nil {
			return err
		}
		if err := s.setTargets(ctx, c, num, home.Num, m.Targets); err != nil {
			return err
		}
		created, err = s.noted(ctx, c, "create", num, nil)
		return err
	})
	if err != nil {
		return governance.Model{}, err
	}
	return created.domain(), nil
}

// Update writes the after-image with its whole list of targets.
func (s *Models) Update(ctx context.Context, by governance.Actor, m governance.Model) (governance.Model, error) {
	return s.update(ctx, by, m.Meta, func(ctx context.Context, c *change, before modelsRow) (args, error) {
		if err := same("organization_id", m.Organization, before.organization()); err != nil {
			return nil, err
		}
		if err := s.setTargets(ctx, c, before.Num, before.OrganizationNum, m.Targets); err != nil {
			return nil, err
		}
		return args{"name": m.Name}, nil
	})
}

// setTargets replaces the targets of a model whose organization is home; 0: the platform's.
func (s *Models) setTargets(ctx context.Context, c *change, num, home int64, wanted []governance.ModelTarget) error {
	if _, err := exec(ctx, c.tx, "model_targets_clear", args{"model": num}); err != nil {
		return err
	}
	var seen []int64
	for i, w := range wanted {
		field := fmt.Sprintf("targets[%d]", i)
		target, err := s.target(ctx, c, home, w, field)
		if err != nil {
			return err
		}
		if slices.Contains(seen, target) {
			return invalid(field, "stands twice")
		}
		seen = append(seen, target)
		if w.Weight == 0 {
			w.Weight = 1
		}
		_, err = exec(ctx, c.tx, "model_targets_add", args{
			"model": num, "target": target, "position": i, "weight": w.Weight, "priority": w.Priority,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// target finds or makes what serves a model. It belongs to the model's organization or to the platform.
func (s *Models) target(ctx context.Context, c *change, home int64, w governance.ModelTarget, field string) (int64, error) {
	if !w.Target.IsZero() {
		targets := targetsTable(nil)
		t, err := targets.reference(ctx, c.tx, c.by, w.Target, field+".target_id")
		if err != nil {
			return 0, err
		}
		return t.Num, offered(t.OrganizationNum, home, field+".target_id")
	}
	providers := providersTable(nil)
	p, err := providers.reference(ctx, c.tx, c.by, w.Provider, field+".provider_id")
	if err != nil {
		return 0, err
	}
	if err := offered(p.OrganizationNum, home, field+".provider_id"); err != nil {
		return 0, err
	}
	if w.Upstream == "" {
		return 0, invalid(field+".upstream_model", "is missing")
	}
	a := args{
		"public_id": ids.NewPublic(ids.Target), "provider": p.Num, "upstream_model": w.Upstream,
		"max_output":        s.maxOutput(cmp.Or(p.PriceProvider, p.Name), w.Upstream),
		"no_stream_options": s.noStreamOptions(p.Kind),
	}
	if _, err := exec(ctx, c.tx, "targets_ensure", a); err != nil {
		return 0, err
	}
	return scalar[int64](ctx, c.tx, "targets_of", a)
}

// offered refuses what is another organization's: the platform offers only what is its own.
func offered(owner, home int64, field string) error {
	if owner != 0 && owner != home {
		return invalid(field, "is not offered to the model's organization")
	}
	return nil
}

// Targets reads targets and changes what may be changed on them. They come into being with the models that use them.
type Targets struct {
	table[governance.Target, targetsRow]
}

var _ governance.TargetStore = (*Targets)(nil)

// NewTargets makes a store of targets.
func NewTargets(pool *pgxpool.Pool) *Targets { return &Targets{targetsTable(pool)} }

func targetsTable(pool *pgxpool.Pool) table[governance.Target, targetsRow] {
	return table[governance.Target, targetsRow]{pool: pool, resource: "targets", kind: ids.Target}
}

type targetsRow struct {
	metaRow
	organizationRow
	ProviderNum     int64    `db:"provider_num"`
	ProviderID      string   `db:"provider_id"`
	ProviderName    string   `db:"provider_name"`
	ProviderKind    string   `db:"provider_kind"`
	PriceProvider   string   `db:"price_provider"`
	BaseURL         string   `db:"base_url"`
	UpstreamModel   string   `db:"upstream_model"`
	OnDisconnect    string   `db:"on_disconnect"`
	NoStreamOptions bool     `db:"no_stream_options"`
	DroppedMembers  []string `db:"dropped_members"`
	MaxOutput       int64    `db:"max_output"`
	P99Output       int64    `db:"p99_output"`
	P95Rate         int64    `db:"p95_rate"`
	Sealed          []byte   `db:"credential" audit:"-"`
}

// What an answer is expected to have before there are statistics, and the least that is expected ever, in tokens.
const (
	unknownOutput = 4096
	leastOutput   = 1024
)

func (r targetsRow) domain() governance.Target {
	t := governance.Target{
		Meta: r.meta(), Provider: governance.Ref{Num: r.ProviderNum, ID: r.ProviderID, Name: r.ProviderName},
		ProviderKind: r.ProviderKind, BaseURL: r.BaseURL, UpstreamModel: r.UpstreamModel,
		OnDisconnect: governance.OnDisconnect(r.OnDisconnect), NoStreamOptions: r.NoStreamOptions, MaxOutput: r.MaxOutput, Drop: r.DroppedMembers,
		ExpectedOutput: unknownOutput, OutputRate: r.P95Rate,
	}
	if r.P99Output > 0 {
		t.ExpectedOutput = max(r.P99Output, leastOutput)
	}
	return t
}

func (r targetsRow) priceKey() priceKey { return priceKey{r.PriceProvider, r.UpstreamModel} }

// Get returns a target without its credential, with the price that is in force.
func (s *Targets) Get(ctx context.Context, by governance.Actor, id string) (governance.Target, error) {
	r, err := read(ctx, s.pool, func(ctx context.Context, q querier) (targetsRow, error) { return s.find(ctx, q, by, id) })
	if err != nil {
		return governance.Target{}, err
	}
	priced, err := s.priced(ctx, r)
	if err != nil {
		return governance.Target{}, err
	}
	return priced[0], nil
}

// List returns a page of targets as Get returns them.
func (s *Targets) List(ctx context.Context, by governance.Actor, f governance.ListFilter, p governance.Page) ([]governance.Target, string, error) {
	rows, next, err := s.page(ctx, by, f, p)
	if err != nil {
		return nil, "", err
	}
	priced, err := s.priced(ctx, rows...)
	return priced, next, err
}

func (s *Targets) priced(ctx context.Context, rows ...targetsRow) ([]governance.Target, error) {
	nums := make([]int64, 0, len(rows))
	for _, r := range rows {
		nums = append(nums, r.Num)
	}
	priceRows, err := read(ctx, s.pool, func(ctx context.Context, q querier) ([]pricesRow, error) {
		return many[pricesRow](ctx, q, "prices_in_force", args{"targets": nums})
	})
	if err != nil {
		return nil, err
	}
	prices := priceIndex(priceRows)
	targets := make([]governance.Target, 0, len(rows))
	for _, r := range rows {
		t := r.domain()
		t.Price = prices[r.priceKey()]
		targets = append(targets, t)
	}
	return targets, nil
}

// Patch changes what may be changed on a target. version 0 changes whatever version there is.
func (s *Targets) Patch(ctx context.Context, by governance.Actor, id string, version int64, patch governance.TargetPatch) (governance.Target, error) {
	_, err := s.update(ctx, by, governance.Meta{ID: id, Version: version}, func(_ context.Context, _ *change, before targetsRow) (args, error) {
		a := args{
			"on_disconnect": before.OnDisconnect, "no_stream_options": before.NoStreamOptions, "max_output": before.MaxOutput,
			"dropped_members": before.DroppedMembers,
		}
		if patch.OnDisconnect != nil {
			a["on_disconnect"] = string(*patch.OnDisconnect)
		}
		if patch.NoStreamOptions != nil {
			a["no_stream_options"] = *patch.NoStreamOptions
		}
		if patch.Drop != nil {
			if at, reason := governance.CheckDrop(*patch.Drop); reason != "" {
				return nil, invalid(fmt.Sprintf("drop[%d]", at), reason)
			}
			a["dropped_members"] = append([]string{}, *patch.Drop...)
		}
		if patch.MaxOutput != nil {
			a["max_output"] = *patch.MaxOutput
		}
		return a, nil
	})
	if err != nil {
		return governance.Target{}, err
	}
	return s.Get(ctx, by, id)
}

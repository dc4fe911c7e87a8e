package pgstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

// Prices keeps the price book. Versions are only ever added; triggers refuse everything else.
type Prices struct{ pool *pgxpool.Pool }

var _ governance.PriceStore = (*Prices)(nil)

// NewPrices makes a store of prices.
func NewPrices(pool *pgxpool.Pool) *Prices { return &Prices{pool} }

// pricesRow has a version and, as lists of equal length, its unit prices.
type pricesRow struct {
	Num           int64     `db:"num"`
	ID            string    `db:"id"`
	Provider      string    `db:"provider"`
	UpstreamModel string    `db:"upstream_model"`
	EffectiveFrom time.Time `db:"effective_from"`
	Free          bool      `db:"free"`
	Source        string    `db:"source"`
	CreatedAt     time.Time `db:"created_at"`
	ServiceTiers  []string  `db:"service_tiers"`
	FromInputs    []int64   `db:"from_inputs"`
	Units         []int64   `db:"units"`
	PerMillions   []int64   `db:"per_millions"`
}

func (r pricesRow) domain() governance.PriceVersion {
	v := governance.PriceVersion{
		Num: r.Num, ID: r.ID, Provider: r.Provider, UpstreamModel: r.UpstreamModel, EffectiveFrom: r.EffectiveFrom.UTC(),
		Free: r.Free, Source: r.Source, CreatedAt: r.CreatedAt.UTC(),
		Tiers: []governance.PriceTier{{}},
	}
	for i, unit := range r.Units { // ordered by service tier and from_input, the ordinary tier first
		last := &v.Tiers[len(v.Tiers)-1]
		if last.ServiceTier != r.ServiceTiers[i] || last.FromInput != r.FromInputs[i] {
			v.Tiers = append(v.Tiers, governance.PriceTier{ServiceTier: r.ServiceTiers[i], FromInput: r.FromInputs[i]})
			last = &v.Tiers[len(v.Tiers)-1]
		}
		if unit < int64(governance.UnitCount) {
			last.Prices[unit] = money.PerMillion(r.PerMillions[i])
		}
	}
	return v
}

// priceKey is what a target finds its price by.
type priceKey struct{ provider, model string }

func priceIndex(rows []pricesRow) map[priceKey]*governance.PriceVersion {
	index := make(map[priceKey]*governance.PriceVersion, len(rows))
	for _, r := range rows {
		v := r.domain()
		index[priceKey{v.Provider, v.UpstreamModel}] = &v
	}
	return index
}

// Get returns one version.
func (s *Prices) Get(ctx context.Context, id string) (governance.PriceVersion, error) {
	r, err := read(ctx, s.pool, func(ctx context.Context, q querier) (pricesRow, error) {
		return one[pricesRow](ctx, q, "prices_read", args{
			"id": id, "provider": "", "upstream_model": "", "after": int64(0), "count": int64(1),
		})
	})
	if err != nil || id == "" {
		return governance.PriceVersion{}, cmp.Or(err, governance.ErrNotFound)
	}
	return r.domain(), nil
}

// List returns a page of versions, newest first, of one provider and model where they are given.
func (s *Prices) List(ctx context.Context, provider, upstreamModel string, p governance.Page) ([]governance.PriceVersion, string, error) {
	after, err := parseCursor("prices", p.Cursor)
	if err != nil {
		return nil, "", err
	}
	size := pageSize(p)
	rows, err := read(ctx, s.pool, func(ctx context.Context, q querier) ([]pricesRow, error) {
		return many[pricesRow](ctx, q, "prices_read", args{
			"id": "", "provider": provider, "upstream_model": upstreamModel, "after": after, "count": int64(size) + 1,
		})
	})
	if err != nil {
		return nil, "", err
	}
	next := ""
	if len(rows) > size {
		rows = rows[:size]
		next = cursor("prices", rows[size-1].Num)
	}
	list := make([]governance.PriceVersion, 0, len(rows))
	for _, r := range rows {
		list = append(list, r.domain())
	}
	return list, next, nil
}

// Empty reports whether the book has no version yet.
func (s *Prices) Empty(ctx context.Context) (bool, error) {
	return read(ctx, s.pool, func(ctx context.Context, q querier) (bool, error) {
		return scalar[bool](ctx, q, "prices_empty", nil)
	})
}

// Add adds versions in one transaction. One without an instant is active at once.
func (s *Prices) Add(ctx context.Context, by governance.Actor, versions []governance.PriceVersion) ([]governance.PriceVersion, error) {
	var added []governance.PriceVersion
	err := write(ctx, s.pool, by, func(ctx context.Context, c *change) (err error) {
		added, err = s.add(ctx, c, versions)
		return err
	})
	return added, err
}

// Fill adds versions to a book that has none yet, and returns ErrExists where it has: of several replicas that try, one
// succeeds.
func (s *Prices) Fill(ctx context.Context, by governance.Actor, versions []governance.PriceVersion) ([]governance.PriceVersion, error) {
	var added []governance.PriceVersion
	err := write(ctx, s.pool, by, func(ctx context.Context, c *change) error {
		empty, err := scalar[bool](ctx, c.tx, "prices_empty", nil)
		if err != nil {
			return err
		}
		if !empty {
			return governance.ErrExists
		}
		added, err = s.add(ctx, c, versions)
		return err
	})
	return added, err
}

func (s *Prices) add(ctx context.Context, c *change, versions []governance.PriceVersion) ([]governance.PriceVersion, error) {
	batch, err := newPriceBatch(versions)
	if err != nil {
		return nil, err
	}
	if _, err := exec(ctx, c.tx, "prices_add", batch); err != nil {
		return nil, err
	}
	if _, err := exec(ctx, c.tx, "price_units_add", batch); err != nil {
		return nil, err
	}
	rows, err := many[pricesRow](ctx, c.tx, "prices_of", batch)
	if err != nil {
		return nil, err
	}
	added := make([]governance.PriceVersion, 0, len(rows))
	for _, r := range rows {
		c.note(note{action: "create", resource: "prices", id: r.ID, num: r.Num, after: r})
		added = append(added, r.domain())
	}
	return added, nil
}

// newPriceBatch makes lists of what two statements insert.
func newPriceBatch(versions []governance.PriceVersion) (args, error) {
	var public, providers, models, sources, owners, services []string
	var from []*time.Time
	var free []bool
	var fromInputs, units, perMillions []int64
	for i := range versions {
		v := &versions[i]
		if err := checkPrice(v); err != nil {
			return nil, fmt.Errorf("price %d: %w", i, err)
		}
		id := ids.NewPublic(ids.Price)
		public, providers, models = append(public, id), append(providers, v.Provider), append(models, v.UpstreamModel)
		from, free, sources = append(from, nullable(v.EffectiveFrom)), append(free, v.Free), append(sources, v.Source)
		for _, t := range v.Tiers {
			for unit, price := range t.Prices {
				if price == 0 && unit != int(governance.UnitInput) { // the first unit keeps a tier of zeros alive
					continue
				}
				owners, services = append(owners, id), append(services, t.ServiceTier)
				fromInputs, units = append(fromInputs, t.FromInput), append(units, int64(unit))
				perMillions = append(perMillions, int64(price))
			}
		}
	}
	return args{
		"ids": list(public), "providers": list(providers), "models": list(models), "from": from, "free": free, "sources": list(sources),
		"owners": list(owners), "services": list(services), "from_inputs": fromInputs, "units": units, "per_millions": perMillions,
	}, nil
}

func checkPrice(v *governance.PriceVersion) error {
	if v.Provider == "" {
		return invalid("provider", "is missing")
	}
	if v.UpstreamModel == "" {
		return invalid("upstream_model", "is missing")
	}
	priced := false
	for _, t := range v.Tiers {
		for _, price := range t.Prices {
			if price < 0 {
				return invalid("usd_per_million", "is negative")
			}
			priced = priced || price > 0
		}
	}
	if !v.Free && !priced {
		return invalid("free", "is not set, though nothing has a price")
	}
	ordinary := slices.ContainsFunc(v.Tiers, func(t governance.PriceTier) bool { return t.ServiceTier == "" && t.FromInput == 0 })
	if !v.Free && !ordinary {
		return invalid("tiers", "lack the ordinary one")
	}
	return nil
}

package console

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

// priceAttempts is how often a new version is based on the book anew, because another one came in between.
const priceAttempts = 5

// priceTier is what holds from a number of input tokens on, for one service tier.
type priceTier struct {
	ServiceTier   string             `json:"service_tier" doc:"Empty: the provider's ordinary one"`
	FromInput     int64              `json:"from_input" doc:"Input tokens of the prompt from which it holds"`
	USDPerMillion map[string]decimal `json:"usd_per_million" doc:"Unit to US dollars per million units"`
}

// price is one immutable version of the price book.
type price struct {
	ID            string      `json:"id"`
	Provider      string      `json:"provider"`
	UpstreamModel string      `json:"upstream_model"`
	EffectiveFrom time.Time   `json:"effective_from"`
	Free          bool        `json:"free"`
	Tiers         []priceTier `json:"tiers" nullable:"false"`
	Source        string      `json:"source"`
	CreatedAt     time.Time   `json:"created_at"`
	Unit          string      `json:"unit,omitempty" doc:"What the request set; only in its answer"`
	USDPerMillion decimal     `json:"usd_per_million,omitempty" doc:"What the request set; only in its answer"`
}

func viewPrice(p governance.PriceVersion) price {
	v := price{
		ID: p.ID, Provider: p.Provider, UpstreamModel: p.UpstreamModel, EffectiveFrom: p.EffectiveFrom.UTC(), Free: p.Free,
		Tiers: make([]priceTier, 0, len(p.Tiers)), Source: p.Source, CreatedAt: p.CreatedAt.UTC(),
	}
	for _, t := range p.Tiers {
		v.Tiers = append(v.Tiers, priceTier{
			ServiceTier: t.ServiceTier, FromInput: t.FromInput, USDPerMillion: viewUnitPrices(t.Prices),
		})
	}
	return v
}

func viewUnitPrices(prices governance.UnitPrices) map[string]decimal {
	m := make(map[string]decimal)
	for u, p := range prices {
		if p != 0 {
			m[governance.Unit(u).String()] = decimal(p.String())
		}
	}
	return m
}

// priceBody sets the price of one unit. The other units of the model keep the price that they have at that moment, so
// that a model's book is written unit by unit.
type priceBody struct {
	Provider      string     `json:"provider" minLength:"1" maxLength:"200" doc:"Name in the price book"`
	UpstreamModel string     `json:"upstream_model" minLength:"1" maxLength:"300"`
	Unit          string     `json:"unit,omitempty" enum:"input,cache_read,cache_write_5m,cache_write_1h,input_audio,input_image,output,reasoning,output_audio,output_image,image,request,search,character,second" doc:"Needed unless free"`
	USDPerMillion *decimal   `json:"usd_per_million,omitempty" doc:"US dollars per million units; needed unless free"`
	ServiceTier   string     `json:"service_tier,omitempty" maxLength:"64"`
	FromInput     int64      `json:"from_input,omitempty" minimum:"0" maximum:"1000000000" doc:"Input tokens from which it holds"`
	Free          bool       `json:"free,omitempty" doc:"The model costs nothing, explicitly"`
	EffectiveFrom *time.Time `json:"effective_from,omitempty" nullable:"true" doc:"Absent: now"`
	Source        string     `json:"source,omitempty" maxLength:"1000" doc:"Where it comes from, for people"`
}

type PriceFilter struct {
	Provider      string `query:"provider" maxLength:"200"`
	UpstreamModel string `query:"upstream_model" maxLength:"300"`
}

type priceListInput struct {
	PageQuery
	PriceFilter
}

type priceOutput struct {
	Location string `header:"Location"`
	Body     price
}

func (s *server) registerPrices(api huma.API) {
	const path, what = "/prices", "price"
	list := operation(http.MethodGet, path, "list-prices", "prices", "List price versions, newest first")
	handle(api, list, what, func(ctx context.Context, in *priceListInput) (*pageOutput[price], error) {
		rows, next, err := s.Prices.List(ctx, in.Provider, in.UpstreamModel, in.page())
		if err != nil {
			return nil, err
		}
		return pageOf(rows, next, viewPrice), nil
	})
	get := operation(http.MethodGet, path+"/{id}", "get-prices", "prices", "Get a price version", http.StatusNotFound)
	handle(api, get, what, func(ctx context.Context, in *IDInput) (*priceOutput, error) {
		if !ids.IsPublic(ids.Price, in.ID) {
			return nil, governance.ErrNotFound
		}
		p, err := s.Prices.Get(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		return &priceOutput{Body: viewPrice(p)}, nil
	})
	create := operation(http.MethodPost, path, "post-prices", "prices", "Add a price. Versions are never changed: this adds one",
		http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	handle(api, create, what, func(ctx context.Context, in *bodyInput[priceBody]) (*priceOutput, error) {
		p, err := s.addPrice(ctx, in.Body)
		if err != nil {
			return nil, err
		}
		out := &priceOutput{Location: prefix + path + "/" + p.ID, Body: viewPrice(p)}
		if in.Body.USDPerMillion != nil {
			out.Body.Unit, out.Body.USDPerMillion = in.Body.Unit, *in.Body.USDPerMillion
		}
		return out, nil
	})
}

func (b priceBody) check() error {
	if err := checkName("provider", b.Provider, maxName); err != nil {
		return err
	}
	if err := checkName("upstream_model", b.UpstreamModel, maxModelName); err != nil {
		return err
	}
	switch {
	case b.Free && (b.Unit != "" || b.USDPerMillion != nil):
		return invalidField("free", "goes without unit and usd_per_million")
	case !b.Free && b.Unit == "":
		return invalidField("unit", "is needed")
	case !b.Free && b.USDPerMillion == nil:
		return invalidField("usd_per_million", "is needed")
	}
	return nil
}

// addPrice adds the version that follows from the one in force and the body.
func (s *server) addPrice(ctx context.Context, b priceBody) (governance.PriceVersion, error) {
	var none governance.PriceVersion
	if err := b.check(); err != nil {
		return none, err
	}
	from, err := checkInstant("effective_from", b.EffectiveFrom)
	if err != nil {
		return none, err
	}
	if from.IsZero() {
		from = s.Now().UTC().Truncate(time.Microsecond)
	}
	for range priceAttempts {
		next, err := s.nextVersion(ctx, b, from)
		if err != nil {
			return none, err
		}
		added, err := s.Prices.Add(ctx, actorOf(ctx), []governance.PriceVersion{next})
		if err == nil {
			return added[0], nil
		}
		if !errors.Is(err, governance.ErrExists) {
			return none, err
		}
	}
	return none, governance.ErrConflict
}

// nextVersion bases a version on the one in force at from. Where one begins at that very moment, the new one begins a
// microsecond later: versions are never changed, and two cannot begin at once.
func (s *server) nextVersion(ctx context.Context, b priceBody, from time.Time) (governance.PriceVersion, error) {
	next := governance.PriceVersion{
		Provider: b.Provider, UpstreamModel: b.UpstreamModel, EffectiveFrom: from, Free: b.Free, Source: b.Source,
		Tiers: []governance.PriceTier{{}},
	}
	base, err := s.inForce(ctx, b, from)
	if err != nil {
		return next, err
	}
	if base != nil {
		if !base.EffectiveFrom.Before(from) {
			next.EffectiveFrom = base.EffectiveFrom.Add(time.Microsecond)
		}
		if !b.Free && !base.Free {
			next.Tiers = slices.Clone(base.Tiers)
		}
	}
	if b.Free {
		return next, nil
	}
	unit, ok := governance.ParseUnit(b.Unit)
	if !ok {
		return next, invalidField("unit", "is not one")
	}
	amount, err := dollars("usd_per_million", *b.USDPerMillion)
	if err != nil {
		return next, err
	}
	at := slices.IndexFunc(next.Tiers, func(t governance.PriceTier) bool {
		return t.ServiceTier == b.ServiceTier && t.FromInput == b.FromInput
	})
	if at < 0 {
		at = len(next.Tiers)
		next.Tiers = append(next.Tiers, governance.PriceTier{ServiceTier: b.ServiceTier, FromInput: b.FromInput})
	}
	next.Tiers[at].Prices[unit] = money.PerMillion(amount)
	sortTiers(next.Tiers)
	return next, nil
}

func sortTiers(tiers []governance.PriceTier) {
	slices.SortFunc(tiers, func(a, b governance.PriceTier) int {
		if a.ServiceTier != b.ServiceTier {
			if a.ServiceTier < b.ServiceTier {
				return -1
			}
			return 1
		}
		return int(a.FromInput - b.FromInput)
	})
}

// priceSlack is how far behind a moment a version may begin that was meant for it: one microsecond for each unit and tier
// that was written for the same moment.
const priceSlack = time.Millisecond

// inForce returns the version that holds at from, or that was moved behind it by a few microseconds. Nil: there is none.
func (s *server) inForce(ctx context.Context, b priceBody, from time.Time) (*governance.PriceVersion, error) {
	var found *governance.PriceVersion
	query := governance.Page{Limit: maxChain}
	for {
		versions, next, err := s.Prices.List(ctx, b.Provider, b.UpstreamModel, query)
		if err != nil {
			return nil, err
		}
		for _, v := range versions {
			if v.EffectiveFrom.Before(from.Add(priceSlack)) && (found == nil || found.EffectiveFrom.Before(v.EffectiveFrom)) {
				found = &v
			}
		}
		if next == "" {
			return found, nil
		}
		query.Cursor = next
	}
}

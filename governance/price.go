package governance

import (
	"slices"
	"strings"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/money"
)

// Unit is what a quantity counts. The units are disjoint: no token is counted in two of them.
type Unit uint8

// The units. Their numbers are stored in ledger rows and are never reused.
const (
	UnitInput        Unit = iota // uncached text tokens of the prompt
	UnitCacheRead                // prompt tokens read from the provider's cache
	UnitCacheWrite5m             // prompt tokens written to a cache that lives 5 minutes, or for no stated time
	UnitCacheWrite1h             // prompt tokens written to a cache that lives 1 hour
	UnitInputAudio               // audio tokens of the prompt
	UnitInputImage               // image tokens of the prompt
	UnitOutput                   // text tokens of the answer without reasoning
	UnitReasoning                // tokens of reasoning; priced as output where no price of their own is known
	UnitOutputAudio              // audio tokens of the answer
	UnitOutputImage              // image tokens of the answer
	UnitImage                    // generated images, by the piece
	UnitRequest                  // calls
	UnitSearch                   // searches that the provider made and charges by the piece; of rerank its search units
	UnitCharacter                // characters that were spoken: Unicode code points of the text
	UnitSecond                   // seconds of audio that were listened to, begun ones as whole ones
	UnitCount                    // how many units there are; not a unit
)

// Quantities counts each unit of one call; all are ≥ 0.
type Quantities [UnitCount]int64

// InputTokens is everything that the model read, cached tokens included.
func (q *Quantities) InputTokens() int64 {
	return q[UnitInput] + q[UnitCacheRead] + q[UnitCacheWrite5m] + q[UnitCacheWrite1h] + q[UnitInputAudio] + q[UnitInputImage]
}

// OutputTokens is everything that the model wrote, reasoning included.
func (q *Quantities) OutputTokens() int64 {
	return q[UnitOutput] + q[UnitReasoning] + q[UnitOutputAudio] + q[UnitOutputImage]
}

// Tokens is all input and output tokens.
func (q *Quantities) Tokens() int64 { return q.InputTokens() + q.OutputTokens() }

// ByName maps the name of each unit that was counted to its number.
func (q *Quantities) ByName() map[string]int64 {
	named := make(map[string]int64)
	for u, n := range q {
		if n != 0 {
			named[Unit(u).String()] = n
		}
	}
	return named
}

// UnitPrices is a price for each unit, in nano-dollars per million.
type UnitPrices [UnitCount]money.PerMillion

// filled returns the prices with those of tokens that have none of their own replaced by the price of the unit that they
// are a part of, so that no kind of token is silently free.
func (p UnitPrices) filled() UnitPrices {
	for _, part := range []struct{ unit, of Unit }{
		{UnitCacheRead, UnitInput},
		{UnitCacheWrite5m, UnitInput},
		{UnitCacheWrite1h, UnitCacheWrite5m},
		{UnitInputAudio, UnitInput},
		{UnitInputImage, UnitInput},
		{UnitReasoning, UnitOutput},
		{UnitOutputAudio, UnitOutput},
		{UnitOutputImage, UnitOutput},
	} {
		if p[part.unit] == 0 {
			p[part.unit] = p[part.of]
		}
	}
	return p
}

// PriceTier is what holds from a number of input tokens on, for one service tier of the provider.
type PriceTier struct {
	ServiceTier string // "" is the provider's ordinary one; others are named as the provider names them, of pictures as ImageTier does
	FromInput   int64  // input tokens of the whole prompt from which the tier applies
	Prices      UnitPrices
}

// PriceVersion is one immutable entry of the price book.
type PriceVersion struct {
	Num           int64
	ID            string
	Provider      string // price book provider, e.g. "openai"
	UpstreamModel string
	EffectiveFrom time.Time
	Free          bool        // explicitly costs nothing; else zero prices are not a free model
	Tiers         []PriceTier // ordered by service tier, then FromInput; the first is {"" 0}
	Source        string      // where it comes from, for people
	CreatedAt     time.Time
}

// Cost prices what was used. The tier follows from the input tokens and the service tier; an unknown service tier is the
// ordinary one. It returns the unit prices that were used, so that a row can be recomputed from itself.
func (p *PriceVersion) Cost(q *Quantities, serviceTier string) (money.Nano, UnitPrices, error) {
	prices := p.tier(q.InputTokens(), serviceTier)
	cost, err := CostAt(q, &prices)
	return cost, prices, err
}

// CostAt is the settlement arithmetic: Σ quantity × price, rounded once, half to even.
func CostAt(q *Quantities, prices *UnitPrices) (money.Nano, error) {
	var sum money.Sum
	for u := range q {
		if err := sum.Add(q[u], prices[u]); err != nil {
			return 0, err
		}
	}
	return sum.HalfEven()
}

// Ceiling is the most that a prompt and output answer tokens can cost, rounded up: what a hold of money takes. It takes the
// dearest prices that the request can reach: of every context tier up to the estimate and every service tier that need not be
// asked for or is, of cache writes, images and audio only where the request has them.
func (p *PriceVersion) Ceiling(d *Demand, output int64) (money.Nano, error) {
	prices := p.dearest(d)
	q := d.quantities(output)
	var sum money.Sum
	for u := range q {
		if err := sum.Add(q[u], prices[u]); err != nil {
			return 0, err
		}
	}
	return sum.Up()
}

// dearest returns the prices of Ceiling for the units of the demand's quantities.
func (p *PriceVersion) dearest(d *Demand) UnitPrices {
	input, output := []Unit{UnitInput}, []Unit{UnitOutput, UnitReasoning}
	if d.CacheWrites {
		input = append(input, UnitCacheWrite5m, UnitCacheWrite1h)
	}
	if d.Images {
		input = append(input, UnitInputImage)
	}
	if d.Audio {
		input = append(input, UnitInputAudio)
	}
	if d.AudioOutput {
		output = append(output, UnitOutputAudio)
	}
	in, out := d.units()
	input, output = append(input, in), append(output, out)
	chosen := d.Counted[UnitImage] > 0 && !d.AnyTier // the request itself names the tier
	var dearest UnitPrices
	tiers, largest := p.complete(), d.Input
	if d.Batch != nil {
		tiers, largest = p.BatchTiers(), d.Batch.Largest
	}
	for i := range tiers {
		service := tiers[i].ServiceTier
		if tiers[i].FromInput > largest || chosen && service != p.nearest(d.Tier) || onlyIfAsked(service) && service != p.nearest(d.ServiceTier) {
			continue
		}
		prices := tiers[i].Prices
		for _, u := range input {
			dearest[in] = max(dearest[in], prices[u])
		}
		for _, u := range output {
			dearest[out] = max(dearest[out], prices[u])
		}
		for u, n := range d.Counted {
			if n > 0 {
				dearest[u] = max(dearest[u], prices[u])
			}
		}
		dearest[UnitRequest] = max(dearest[UnitRequest], prices[UnitRequest])
	}
	return dearest
}

// Service tiers as OpenAI and Anthropic name them. The last two cost more than the ordinary one.
const (
	ServiceTierFlex     = "flex"
	ServiceTierPriority = "priority"
	ServiceTierFast     = "fast"
)

// InferenceUS is the place of inference at which tokens of Claude cost more, as Anthropic names it.
const InferenceUS = "us"

// RegionalTier names the tier that a service tier has at a place of inference: us, fast/us.
func RegionalTier(service, place string) string {
	if ordinary(service) {
		return place
	}
	return service + "/" + place
}

// onlyIfAsked reports whether no request comes to a service tier, or to its place of inference, without asking for it.
func onlyIfAsked(service string) bool {
	service, place, _ := strings.Cut(service, "/")
	return service == ServiceTierPriority || service == ServiceTierFast || service == InferenceUS || place == InferenceUS
}

// ordinary reports whether a name is that of a provider's ordinary service tier.
func ordinary(service string) bool {
	switch service {
	case "", "default", "standard", "standard_only", "auto", "on_demand":
		return true
	}
	return false
}

// prices returns what a tier charges. Fees that come beside tokens, for requests and searches, are those of the tier of fewer tokens, of
// the service tier that it is a case of, or else the ordinary ones where it has none of its own: tiers are often written for
// tokens alone. A price of tokens or pieces that a tier lacks is a gap, and refused (F040).
func (p *PriceVersion) prices(tier int) UnitPrices {
	t := &p.Tiers[tier]
	prices := t.Prices
	for _, u := range [...]Unit{UnitRequest, UnitSearch} {
		for name := t.ServiceTier; prices[u] == 0; name = name[:max(strings.LastIndexByte(name, '/'), 0)] {
			for i := len(p.Tiers) - 1; i >= 0 && prices[u] == 0; i-- {
				if other := &p.Tiers[i]; other.ServiceTier == name && other.FromInput <= t.FromInput {
					prices[u] = other.Prices[u]
				}
			}
			if name == "" {
				break
			}
		}
	}
	return prices.filled()
}

// complete returns the tiers with all that they charge.
func (p *PriceVersion) complete() []PriceTier {
	all := slices.Clone(p.Tiers)
	for i := range all {
		all[i].Prices = p.prices(i)
	}
	return all
}

// nearest returns which of p's service tiers a name stands for: itself, else what it is a case of, else the ordinary one.
func (p *PriceVersion) nearest(name string) string {
	for name != "" && !slices.ContainsFunc(p.Tiers, func(t PriceTier) bool { return t.ServiceTier == name }) {
		name = name[:max(strings.LastIndexByte(name, '/'), 0)]
	}
	return name
}

// BatchTiers returns the context tiers at which batches are charged, lowest first: those of the provider's service tier for
// batches or, where it has no price, the ordinary ones, with a price for each kind of token. A price without any has one at which nothing costs anything.
func (p *PriceVersion) BatchTiers() []PriceTier {
	var tiers []PriceTier
	for _, service := range []string{ServiceTierBatch, ""} {
		for i := range p.Tiers {
			if p.Tiers[i].ServiceTier == service {
				tier := p.Tiers[i]
				tier.Prices = p.prices(i)
				tiers = append(tiers, tier)
			}
		}
		if len(tiers) > 0 {
			return tiers
		}
	}
	return []PriceTier{{}}
}

// Tiered reports whether a service tier has prices of its own. The ordinary one always has, whatever its provider calls it.
func (p *PriceVersion) Tiered(service string) bool {
	return ordinary(service) || slices.ContainsFunc(p.Tiers, func(t PriceTier) bool { return t.ServiceTier == service })
}

func (p *PriceVersion) tier(input int64, service string) UnitPrices {
	found := -1
	for _, name := range []string{p.nearest(service), ""} {
		for i := range p.Tiers {
			if p.Tiers[i].ServiceTier == name && p.Tiers[i].FromInput <= input {
				found = i
			}
		}
		if found >= 0 {
			return p.prices(found)
		}
	}
	return UnitPrices{}
}

// Package pricebook brings the public prices and output maxima that ship with Tollgate. They are facts with a date, not
// truth: the first import into an empty book is active at once, later ones are for a person to look at.
package pricebook

import (
	"bytes"
	"cmp"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

//go:generate go run ./generate -prices $GENAI_PRICES -models $MODELS_DEV -date 2026-09-23 -out book.json.gz

//go:embed book.json.gz
var embedded []byte

// File is the form of the embedded book. Its numbers are whole nano-dollars per million units.
type File struct {
	Date  string  `json:"date"` // of the source, as YYYY-MM-DD
	Items []Entry `json:"items"`
}

// Entry is what one provider asks for one model, under each of the model's names.
type Entry struct {
	Provider  string    `json:"provider"`
	Names     []string  `json:"names"`
	MaxOutput int64     `json:"max_output,omitempty"` // tokens; 0: unknown
	Versions  []Version `json:"versions,omitempty"`   // by date; none: the price is not known
	// Modes are the prices of service tiers that are asked for, such as priority, by their names. They hold with every version;
	// what they leave out costs as much more as the input does.
	Modes map[string]map[governance.Unit]int64 `json:"modes,omitempty"`
}

// Version holds from a date on.
type Version struct {
	From  string `json:"from,omitempty"` // YYYY-MM-DD, from midnight UTC; empty: since ever
	Free  bool   `json:"free,omitempty"`
	Tiers []Tier `json:"tiers,omitempty"`
}

// Tier holds from a number of input tokens on.
type Tier struct {
	FromInput int64                     `json:"from_input,omitempty"`
	Prices    map[governance.Unit]int64 `json:"prices"`
}

// Book is the embedded data.
type Book struct{ file File }

// Open reads the embedded data.
func Open() (*Book, error) {
	r, err := gzip.NewReader(bytes.NewReader(embedded))
	if err != nil {
		return nil, fmt.Errorf("open price book: %w", err)
	}
	var b Book
	if err := json.NewDecoder(r).Decode(&b.file); err != nil {
		return nil, fmt.Errorf("read price book: %w", err)
	}
	return &b, nil
}

// Load returns the embedded prices as Versions does.
func Load(now time.Time) ([]governance.PriceVersion, error) {
	b, err := Open()
	if err != nil {
		return nil, err
	}
	return b.Versions(now)
}

// Versions returns, for each provider and model name, the version that is in force at now, without an instant, so that it
// holds from its import on, and all later ones with theirs.
func (b *Book) Versions(now time.Time) ([]governance.PriceVersion, error) {
	var all []governance.PriceVersion
	for _, e := range b.file.Items {
		versions, err := e.from(now)
		if err != nil {
			return nil, err
		}
		for _, name := range e.Names {
			for _, v := range versions {
				v.UpstreamModel, v.Source = name, "genai-prices "+b.file.Date
				all = append(all, v)
			}
		}
	}
	return all, nil
}

func (e *Entry) from(now time.Time) ([]governance.PriceVersion, error) {
	var kept []governance.PriceVersion
	for _, v := range e.Versions {
		p := governance.PriceVersion{Provider: e.Provider, Free: v.Free}
		for _, t := range v.Tiers {
			tier := governance.PriceTier{FromInput: t.FromInput}
			for unit, price := range t.Prices {
				if unit >= governance.UnitCount {
					return nil, fmt.Errorf("read price of %s %s: unit %d is unknown", e.Provider, e.Names[0], unit)
				}
				tier.Prices[unit] = money.PerMillion(price)
			}
			p.Tiers = append(p.Tiers, tier)
		}
		if !p.Free && len(p.Tiers) > 0 {
			ordinary := p.Tiers
			p.Tiers = append(slices.Clone(ordinary), halved(e.Provider, ordinary)...)
			p.Tiers = append(p.Tiers, e.modes(&ordinary[0])...)
			p.Tiers = append(p.Tiers, regional(e.Provider, p.Tiers)...)
			slices.SortStableFunc(p.Tiers, func(a, b governance.PriceTier) int {
				return cmp.Or(cmp.Compare(a.ServiceTier, b.ServiceTier), cmp.Compare(a.FromInput, b.FromInput))
			})
		}
		if v.From != "" {
			at, err := time.Parse(time.DateOnly, v.From)
			if err != nil {
				return nil, fmt.Errorf("read price of %s %s: %w", e.Provider, e.Names[0], err)
			}
			p.EffectiveFrom = at
		}
		if !p.EffectiveFrom.After(now) { // this one or a later one is in force
			p.EffectiveFrom = time.Time{}
			kept = kept[:0]
		}
		kept = append(kept, p)
	}
	return kept, nil
}

// halfPriced lists the service tiers of a provider at which tokens cost half of what they ordinarily do, by its own pages of
// prices, in alphabetical order. The source of the book has ordinary prices alone.
func halfPriced(provider string) []string {
	switch provider {
	case "openai":
		return []string{"batch", "flex"}
	case "anthropic", "azure", "google":
		return []string{"batch"}
	}
	return nil
}

// halved returns the tiers that follow from the ordinary ones. What is charged by the piece costs the same everywhere.
func halved(provider string, ordinary []governance.PriceTier) []governance.PriceTier {
	var all []governance.PriceTier
	for _, service := range halfPriced(provider) {
		for _, t := range ordinary {
			t.ServiceTier = service
			for u := governance.UnitInput; u <= governance.UnitOutputImage; u++ {
				t.Prices[u] = (t.Prices[u] + 1) / 2
			}
			all = append(all, t)
		}
	}
	return all
}

// regional returns what tiers cost where the provider computes in the United States alone: tokens of Claude a tenth more, by
// Anthropic's page of prices. Models that leave no choice of the place never say that they were there.
func regional(provider string, tiers []governance.PriceTier) []governance.PriceTier {
	if provider != "anthropic" {
		return nil
	}
	var all []governance.PriceTier
	for _, t := range tiers {
		t.ServiceTier = governance.RegionalTier(t.ServiceTier, governance.InferenceUS)
		for u := governance.UnitInput; u <= governance.UnitOutputImage; u++ {
			t.Prices[u] = money.PerMillion(scaled(int64(t.Prices[u]), 11, 10))
		}
		all = append(all, t)
	}
	return all
}

// modes returns the tiers of the entry's modes, beside the ordinary prices.
func (e *Entry) modes(ordinary *governance.PriceTier) []governance.PriceTier {
	var all []governance.PriceTier
	for name, prices := range e.Modes {
		t := *ordinary
		t.ServiceTier = name
		input, base := prices[governance.UnitInput], int64(ordinary.Prices[governance.UnitInput])
		for u := governance.UnitInput; u <= governance.UnitOutputImage; u++ {
			if price, ok := prices[u]; ok {
				t.Prices[u] = money.PerMillion(price)
			} else if base > 0 {
				t.Prices[u] = money.PerMillion(scaled(int64(ordinary.Prices[u]), input, base))
			}
		}
		all = append(all, t)
	}
	return all
}

// scaled returns price × by ÷ of, rounded up.
func scaled(price, by, of int64) int64 {
	high, low := bits.Mul64(uint64(price), uint64(by))
	whole, rest := bits.Div64(high, low, uint64(of))
	if rest > 0 {
		whole++
	}
	return int64(whole)
}

// MaxOutput returns how many tokens a model of a price book provider can answer at most; 0: unknown.
func (b *Book) MaxOutput(provider, model string) int64 {
	i, ok := slices.BinarySearchFunc(b.file.Items, provider, func(e Entry, p string) int { return cmp.Compare(e.Provider, p) })
	for ok && i < len(b.file.Items) && b.file.Items[i].Provider == provider {
		if slices.Contains(b.file.Items[i].Names, model) {
			return b.file.Items[i].MaxOutput
		}
		i++
	}
	return 0
}

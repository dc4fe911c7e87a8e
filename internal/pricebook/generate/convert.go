package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/money"
	"github.com/tollgate-gateway/tollgate/internal/pricebook"
)

// sourceProvider is a provider of genai-prices.
type sourceProvider struct {
	ID     string        `json:"id"`
	Models []sourceModel `json:"models"`
}

type sourceModel struct {
	ID     string          `json:"id"`
	Match  clause          `json:"match"`
	Prices json.RawMessage `json:"prices"` // one set of prices, or a list of conditional ones
}

// clause says which names a model has.
type clause struct {
	Equals     string   `json:"equals"`
	StartsWith string   `json:"starts_with"`
	EndsWith   string   `json:"ends_with"`
	Contains   string   `json:"contains"`
	Regex      string   `json:"regex"`
	Or         []clause `json:"or"`
	And        []clause `json:"and"`
}

// names lists the names that the clause spells out.
func (c clause) names() []string {
	var all []string
	if c.Equals != "" {
		all = append(all, c.Equals)
	}
	for _, part := range c.Or {
		all = append(all, part.names()...)
	}
	return all
}

func (c clause) matches(name string) bool {
	switch {
	case c.Equals != "":
		return name == c.Equals
	case c.StartsWith != "":
		return strings.HasPrefix(name, c.StartsWith)
	case c.EndsWith != "":
		return strings.HasSuffix(name, c.EndsWith)
	case c.Contains != "":
		return strings.Contains(name, c.Contains)
	case c.Regex != "":
		found, err := regexp.MatchString(c.Regex, name)
		return err == nil && found // a pattern that only other engines read gives no further names
	case len(c.Or) > 0:
		return slices.ContainsFunc(c.Or, func(part clause) bool { return part.matches(name) })
	case len(c.And) > 0:
		return !slices.ContainsFunc(c.And, func(part clause) bool { return !part.matches(name) })
	}
	return false
}

// catalogue is models.dev: provider → its models.
type catalogue map[string]struct {
	Models map[string]struct {
		Limit struct {
			Output int64 `json:"output"`
		} `json:"limit"`
		Experimental struct {
			Modes map[string]mode `json:"modes"`
		} `json:"experimental"`
	} `json:"models"`
}

// mode is a way to call a model that has prices of its own.
type mode struct {
	Cost     map[string]json.RawMessage `json:"cost"` // dollars per million tokens
	Provider struct {
		Body struct {
			ServiceTier string `json:"service_tier"`
			Speed       string `json:"speed"`
		} `json:"body"`
	} `json:"provider"`
}

// prices returns the service tier that answers of the mode name, and its prices; "": it has none.
func (m *mode) prices() (tier string, prices map[governance.Unit]int64, err error) {
	tier = cmp.Or(m.Provider.Body.ServiceTier, m.Provider.Body.Speed)
	prices = make(map[governance.Unit]int64)
	for key, u := range map[string]governance.Unit{
		"input": governance.UnitInput, "output": governance.UnitOutput, "reasoning": governance.UnitReasoning,
		"cache_read": governance.UnitCacheRead, "cache_write": governance.UnitCacheWrite5m,
		"input_audio": governance.UnitInputAudio, "output_audio": governance.UnitOutputAudio,
	} {
		if raw := m.Cost[key]; raw != nil {
			if prices[u], err = nanoPerMillion(json.Number(raw), 1_000_000); err != nil {
				return "", nil, fmt.Errorf("%s: %w", key, err)
			}
		}
	}
	if prices[governance.UnitInput] == 0 || prices[governance.UnitOutput] == 0 {
		return "", nil, nil
	}
	return tier, prices, nil
}

// catalogueName gives what models.dev calls a provider of genai-prices, where the two differ.
func catalogueName(provider string) string {
	switch provider {
	case "aws":
		return "amazon-bedrock"
	case "fireworks":
		return "fireworks-ai"
	case "together":
		return "togetherai"
	case "x-ai":
		return "xai"
	case "novita":
		return "novita-ai"
	}
	return provider
}

// convert makes the entries of the book, ordered by provider and first name.
func convert(priceData, modelData []byte) ([]pricebook.Entry, error) {
	var providers []sourceProvider
	if err := json.Unmarshal(priceData, &providers); err != nil {
		return nil, fmt.Errorf("read prices: %w", err)
	}
	var models catalogue
	if err := json.Unmarshal(modelData, &models); err != nil {
		return nil, fmt.Errorf("read models: %w", err)
	}
	var items []pricebook.Entry
	for _, p := range providers {
		listed := models[catalogueName(p.ID)].Models
		taken := make(map[string]bool) // a name belongs to the first model that has it
		entries := make([]pricebook.Entry, len(p.Models))
		for i, m := range p.Models {
			versions, err := convertPrices(m.Prices)
			if err != nil {
				return nil, fmt.Errorf("read price of %s %s: %w", p.ID, m.ID, err)
			}
			entries[i] = pricebook.Entry{Provider: p.ID, Versions: versions}
			for _, name := range append([]string{m.ID}, m.Match.names()...) {
				if !taken[name] {
					taken[name] = true
					entries[i].Names = append(entries[i].Names, name)
				}
			}
		}
		for name := range listed {
			i := slices.IndexFunc(p.Models, func(m sourceModel) bool { return m.Match.matches(name) })
			if i >= 0 && !taken[name] {
				taken[name] = true
				entries[i].Names = append(entries[i].Names, name)
			}
		}
		for _, e := range entries {
			for _, name := range e.Names {
				e.MaxOutput = max(e.MaxOutput, listed[name].Limit.Output)
				for _, m := range listed[name].Experimental.Modes {
					tier, prices, err := m.prices()
					if err != nil {
						return nil, fmt.Errorf("read modes of %s %s: %w", p.ID, name, err)
					}
					if tier != "" && e.Modes == nil {
						e.Modes = make(map[string]map[governance.Unit]int64)
					}
					if tier != "" {
						e.Modes[tier] = prices
					}
				}
			}
			if len(e.Names) > 0 && (len(e.Versions) > 0 || e.MaxOutput > 0) {
				slices.Sort(e.Names)
				items = append(items, e)
			}
		}
	}
	slices.SortStableFunc(items, func(a, b pricebook.Entry) int {
		return cmp.Or(cmp.Compare(a.Provider, b.Provider), cmp.Compare(a.Names[0], b.Names[0]))
	})
	return items, nil
}

// conditional is a set of prices that holds from a date, or at some time of each day.
type conditional struct {
	Constraint *struct {
		StartDate string `json:"start_date"`
		StartTime string `json:"start_time"`
	} `json:"constraint"`
	Prices map[string]json.RawMessage `json:"prices"`
}

// convertPrices makes one version for each date. Where a price depends on the time of day, the dearest counts.
func convertPrices(raw json.RawMessage) ([]pricebook.Version, error) {
	var list []conditional
	if bytes.HasPrefix(bytes.TrimSpace(raw), []byte("[")) {
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, err
		}
	} else {
		list = make([]conditional, 1)
		if err := json.Unmarshal(raw, &list[0].Prices); err != nil {
			return nil, err
		}
	}
	var byDate []datedSteps
	var byHour []steps
	for _, c := range list {
		priced, err := parseSteps(c.Prices)
		if err != nil {
			return nil, err
		}
		switch {
		case c.Constraint == nil:
			byDate = append(byDate, datedSteps{"", priced})
		case c.Constraint.StartDate != "":
			byDate = append(byDate, datedSteps{c.Constraint.StartDate, priced})
		case c.Constraint.StartTime != "":
			byHour = append(byHour, priced)
		default:
			return nil, errors.New("constraint is of no known kind")
		}
	}
	var versions []pricebook.Version
	for _, d := range byDate {
		for _, hour := range byHour {
			d.raise(hour)
		}
		if tiers := d.tiers(); len(tiers) > 0 {
			versions = append(versions, pricebook.Version{From: d.from, Tiers: tiers, Free: d.free()})
		}
	}
	slices.SortStableFunc(versions, func(a, b pricebook.Version) int { return cmp.Compare(a.From, b.From) })
	return versions, nil
}

// step is a price from a number of input tokens on.
type step struct{ from, price int64 }

// steps has the prices of each unit, by ascending number of input tokens.
type steps map[governance.Unit][]step

type datedSteps struct {
	from string
	steps
}

// unit tells what a key of the source prices, and how many of them its number is for. Keys of quantities that Tollgate does
// not count are left out.
func unit(key string) (u governance.Unit, per int64, ok bool) {
	const million, thousand, hour = 1_000_000, 1_000, 3_600
	switch key {
	case "input_mtok":
		return governance.UnitInput, million, true
	case "cache_read_mtok":
		return governance.UnitCacheRead, million, true
	case "cache_write_mtok", "cache_write_5m_mtok":
		return governance.UnitCacheWrite5m, million, true
	case "cache_write_1h_mtok":
		return governance.UnitCacheWrite1h, million, true
	case "input_audio_mtok":
		return governance.UnitInputAudio, million, true
	case "input_image_mtok":
		return governance.UnitInputImage, million, true
	case "output_mtok":
		return governance.UnitOutput, million, true
	case "output_reasoning_mtok":
		return governance.UnitReasoning, million, true
	case "output_audio_mtok":
		return governance.UnitOutputAudio, million, true
	case "output_image_mtok":
		return governance.UnitOutputImage, million, true
	case "requests_kcount":
		return governance.UnitRequest, thousand, true
	case "web_searches_kcount", "rerank_searches_kcount":
		return governance.UnitSearch, thousand, true
	case "audio_hours": // of which input_audio_hours is the same, said of one direction
		return governance.UnitSecond, hour, true
	case "input_mchars":
		return governance.UnitCharacter, million, true
	}
	return 0, 0, false
}

func parseSteps(prices map[string]json.RawMessage) (steps, error) {
	all := make(steps)
	for key, raw := range prices {
		u, per, ok := unit(key)
		if !ok {
			continue
		}
		var tiered struct {
			Base  json.Number `json:"base"`
			Tiers []struct {
				Start int64       `json:"start"` // the price holds for prompts of more tokens than this
				Price json.Number `json:"price"`
			} `json:"tiers"`
		}
		if !bytes.HasPrefix(raw, []byte("{")) {
			tiered.Base = json.Number(raw)
		} else if err := json.Unmarshal(raw, &tiered); err != nil {
			return nil, err
		}
		base, err := nanoPerMillion(tiered.Base, per)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		all[u] = []step{{0, base}}
		for _, t := range tiered.Tiers {
			price, err := nanoPerMillion(t.Price, per)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
			all[u] = append(all[u], step{t.Start + 1, price})
		}
	}
	return all, nil
}

// nanoPerMillion reads a decimal of dollars for so many units as whole nano-dollars. The source has traces of binary
// fractions in places, such as 0.18000000000000002, which are dropped, and thirds, which are rounded up.
func nanoPerMillion(dollars json.Number, per int64) (int64, error) {
	text := dollars.String()
	var up int64
	if whole, fraction, _ := strings.Cut(text, "."); len(fraction) > 9 {
		text = whole + "." + fraction[:9]
		if !strings.HasPrefix(fraction[9:]+"000", "000") {
			up = 1
		}
	}
	nano, err := money.ParseScaled(text, 9)
	if err != nil {
		return 0, fmt.Errorf("price %s: %w", dollars, err)
	}
	return ((nano+up)*1_000_000 + per - 1) / per, nil
}

// at returns the price of a unit for a prompt of so many tokens.
func (s steps) at(u governance.Unit, input int64) int64 {
	var price int64
	for _, st := range s[u] {
		if st.from <= input {
			price = st.price
		}
	}
	return price
}

// starts lists where any price changes.
func (s steps) starts() []int64 {
	var all []int64
	for _, list := range s {
		for _, st := range list {
			all = append(all, st.from)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// raise makes each price the dearer of its own and the other's.
func (s steps) raise(other steps) {
	merged := make(steps)
	both := append(s.starts(), other.starts()...)
	slices.Sort(both)
	for u := range governance.UnitCount {
		if s[u] == nil && other[u] == nil {
			continue
		}
		for _, from := range slices.Compact(slices.Clone(both)) {
			merged[u] = append(merged[u], step{from, max(s.at(u, from), other.at(u, from))})
		}
	}
	clear(s)
	for u, list := range merged {
		s[u] = list
	}
}

func (s steps) tiers() []pricebook.Tier {
	var tiers []pricebook.Tier
	for _, from := range s.starts() {
		t := pricebook.Tier{FromInput: from, Prices: make(map[governance.Unit]int64)}
		for u := range s {
			t.Prices[u] = s.at(u, from)
		}
		tiers = append(tiers, t)
	}
	return tiers
}

// free reports whether every stated price is zero.
func (s steps) free() bool {
	for _, list := range s {
		for _, st := range list {
			if st.price > 0 {
				return false
			}
		}
	}
	return len(s) > 0
}

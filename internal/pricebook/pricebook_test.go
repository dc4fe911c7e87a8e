package pricebook

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var today = time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC)

func find(t *testing.T, provider, model string, now time.Time) []governance.PriceVersion {
	t.Helper()
	all, err := Load(now)
	require.NoError(t, err)
	var found []governance.PriceVersion
	for _, v := range all {
		if v.Provider == provider && v.UpstreamModel == model {
			found = append(found, v)
		}
	}
	return found
}

func TestLoad_HasWhatPeopleUse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		provider, model string
		prices          map[governance.Unit]money.PerMillion
	}{
		{"openai", "gpt-4o", map[governance.Unit]money.PerMillion{
			governance.UnitInput: 2_500_000_000, governance.UnitCacheRead: 1_250_000_000, governance.UnitOutput: 10_000_000_000,
		}},
		{"openai", "gpt-4o-mini", map[governance.Unit]money.PerMillion{
			governance.UnitInput: 150_000_000, governance.UnitCacheRead: 75_000_000, governance.UnitOutput: 600_000_000,
		}},
		{"anthropic", "claude-sonnet-4-5", map[governance.Unit]money.PerMillion{
			governance.UnitInput: 3_000_000_000, governance.UnitCacheRead: 300_000_000, governance.UnitCacheWrite5m: 3_750_000_000,
			governance.UnitCacheWrite1h: 6_000_000_000, governance.UnitOutput: 15_000_000_000,
			governance.UnitSearch: 10_000_000_000_000,
		}},
	} {
		found := find(t, c.provider, c.model, today)
		require.Len(t, found, 1, c.model)
		require.True(t, found[0].EffectiveFrom.IsZero(), "in force from its import on")
		require.False(t, found[0].Free)
		require.Equal(t, governance.PriceTier{}.ServiceTier, found[0].Tiers[0].ServiceTier)
		require.Zero(t, found[0].Tiers[0].FromInput)
		for unit, price := range c.prices {
			require.Equal(t, price, found[0].Tiers[0].Prices[unit], "%s unit %d", c.model, unit)
		}
	}
}

// Names come from more than one source, so that a dated snapshot of a model has its price too.
func TestLoad_KnowsSnapshots(t *testing.T) {
	t.Parallel()
	require.NotEmpty(t, find(t, "openai", "gpt-4o-2024-08-06", today))
	require.NotEmpty(t, find(t, "anthropic", "claude-sonnet-4-5-20250929", today))
}

func TestLoad_LongPromptsHaveATierOfTheirOwn(t *testing.T) {
	t.Parallel()
	v := find(t, "anthropic", "claude-sonnet-4-5", today)[0]
	require.Len(t, v.Tiers, 8, "two ordinary ones, two of batches, and those of inference in the United States")
	for input, want := range map[int64]money.Nano{200_000: 600_000_000, 200_001: 1_200_006_000} {
		cost, _, err := v.Cost(&governance.Quantities{governance.UnitInput: input}, "")
		require.NoError(t, err)
		require.Equal(t, want, cost)
	}
}

// Tokens of batches and of flexible processing cost half; searches cost the same everywhere.
func TestLoad_SlowTiersAreHalfPriced(t *testing.T) {
	t.Parallel()
	v := find(t, "openai", "gpt-4.1", today)[0]
	used := governance.Quantities{governance.UnitInput: 1_000_000, governance.UnitCacheRead: 1_000_000, governance.UnitOutput: 1_000_000}
	ordinary, _, err := v.Cost(&used, "default")
	require.NoError(t, err)
	require.Equal(t, money.Nano(10_500_000_000), ordinary)
	for _, tier := range []string{"batch", "flex"} {
		require.True(t, v.Tiered(tier))
		cost, _, err := v.Cost(&used, tier)
		require.NoError(t, err)
		require.Equal(t, ordinary/2, cost, tier)
		search, _, err := v.Cost(&governance.Quantities{governance.UnitSearch: 1}, tier)
		require.NoError(t, err)
		require.Equal(t, money.Nano(10_000_000), search, tier)
	}
	require.False(t, v.Tiered("priority"), "no source has it")
	require.Equal(t, []string{"", "batch", "flex"}, services(&v))
	require.False(t, find(t, "mistral", "mistral-large-latest", today)[0].Tiered("batch"))
}

// services lists the service tiers of a price in their order.
func services(v *governance.PriceVersion) []string {
	var all []string
	for _, t := range v.Tiers {
		all = append(all, t.ServiceTier)
	}
	return slices.Compact(all)
}

// TestLoad_FastTiersHaveTheirOwnPrices: priority processing of OpenAI, and the fast mode of Claude. What the source leaves out, such
// as cache writes for an hour, is dearer by as much as the input is.
func TestLoad_FastTiersHaveTheirOwnPrices(t *testing.T) {
	t.Parallel()
	v := find(t, "openai", "gpt-5.5", today)[0]
	require.Equal(t, []string{"", "batch", "flex", "priority"}, services(&v))
	used := governance.Quantities{governance.UnitInput: 100_000, governance.UnitCacheRead: 100_000, governance.UnitOutput: 100_000}
	for tier, want := range map[string]money.Nano{"default": 3_550_000_000, "priority": 8_875_000_000} {
		cost, _, err := v.Cost(&used, tier)
		require.NoError(t, err)
		require.Equal(t, want, cost, tier)
	}
	v = find(t, "anthropic", "claude-opus-4-6", today)[0]
	require.Equal(t, []string{"", "batch", "batch/us", "fast", "fast/us", "us"}, services(&v))
	used = governance.Quantities{governance.UnitInput: 1_000_000, governance.UnitCacheWrite5m: 1_000_000, governance.UnitCacheWrite1h: 1_000_000, governance.UnitSearch: 1}
	for tier, want := range map[string]money.Nano{
		"standard": 21_260_000_000, "fast": 127_510_000_000, "us": 23_385_000_000, "fast/us": 140_260_000_000, "fast/mars": 127_510_000_000,
	} {
		cost, _, err := v.Cost(&used, tier)
		require.NoError(t, err)
		require.Equal(t, want, cost, tier)
	}
}

func TestLoad_TakesTheVersionInForceAndLaterOnes(t *testing.T) {
	t.Parallel()
	before := find(t, "deepseek", "deepseek-v4-flash", time.Date(2026, 8, 16, 0, 0, 0, 0, time.UTC))
	require.Len(t, before, 2)
	require.True(t, before[0].EffectiveFrom.IsZero())
	require.Equal(t, time.Date(2026, 8, 17, 0, 0, 0, 0, time.UTC), before[1].EffectiveFrom)
	after := find(t, "deepseek", "deepseek-v4-flash", time.Date(2026, 8, 17, 0, 0, 0, 0, time.UTC))
	require.Len(t, after, 1)
	require.True(t, after[0].EffectiveFrom.IsZero())
}

// A price that depends on the time of day is booked at its dearest, since the hour of a charge is the provider's.
func TestLoad_TakesTheDearestHour(t *testing.T) {
	t.Parallel()
	v := find(t, "deepseek", "deepseek-chat", today)[0]
	require.Equal(t, money.PerMillion(270_000_000), v.Tiers[0].Prices[governance.UnitInput])
	require.Equal(t, money.PerMillion(1_100_000_000), v.Tiers[0].Prices[governance.UnitOutput])
}

func TestLoad_EveryVersionCanBeStored(t *testing.T) {
	t.Parallel()
	all, err := Load(today)
	require.NoError(t, err)
	require.Greater(t, len(all), 2000)
	type key struct {
		provider, model string
		from            time.Time
	}
	seen := make(map[key]bool)
	for _, v := range all {
		k := key{v.Provider, v.UpstreamModel, v.EffectiveFrom}
		require.False(t, seen[k], "%v stands twice", k)
		seen[k] = true
		require.NotEmpty(t, v.Tiers, "%v", k)
		priced := false
		for i, tier := range v.Tiers {
			if i == 0 || tier.ServiceTier != v.Tiers[i-1].ServiceTier {
				require.Zero(t, tier.FromInput, "%v", k)
				require.Equal(t, i == 0, tier.ServiceTier == "", "%v", k)
			} else {
				require.Greater(t, tier.FromInput, v.Tiers[i-1].FromInput, "%v", k)
			}
			for _, price := range tier.Prices {
				require.GreaterOrEqual(t, price, money.PerMillion(0))
				priced = priced || price > 0
			}
		}
		require.NotEqual(t, priced, v.Free, "%v", k)
	}
}

func TestMaxOutput(t *testing.T) {
	t.Parallel()
	b, err := Open()
	require.NoError(t, err)
	require.EqualValues(t, 16_384, b.MaxOutput("openai", "gpt-4o"))
	require.Zero(t, b.MaxOutput("openai", "no such model"))
	require.Zero(t, b.MaxOutput("nobody", "gpt-4o"))
}

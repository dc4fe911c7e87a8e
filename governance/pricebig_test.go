package governance_test

import (
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/meter"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

// partOf says which unit's price a kind of tokens has where it has none of its own.
var partOf = map[governance.Unit]governance.Unit{
	governance.UnitCacheRead: governance.UnitInput, governance.UnitCacheWrite5m: governance.UnitInput, governance.UnitCacheWrite1h: governance.UnitCacheWrite5m,
	governance.UnitInputAudio: governance.UnitInput, governance.UnitInputImage: governance.UnitInput, governance.UnitReasoning: governance.UnitOutput,
	governance.UnitOutputAudio: governance.UnitOutput, governance.UnitOutputImage: governance.UnitOutput,
}

func priceOf(prices *governance.UnitPrices, u governance.Unit) int64 {
	if part, is := partOf[u]; is && prices[u] == 0 {
		return priceOf(prices, part)
	}
	return int64(prices[u])
}

// withFees returns a tier's prices with the fees that it takes over: the ordinary ones, and those of lower tiers of its own, which win.
func withFees(v *governance.PriceVersion, tier int) *governance.UnitPrices {
	prices := v.Tiers[tier].Prices
	for _, u := range []governance.Unit{governance.UnitRequest, governance.UnitSearch} {
		for _, name := range []string{"", v.Tiers[tier].ServiceTier} {
			for i := range v.Tiers {
				taken := v.Tiers[i].ServiceTier == name && v.Tiers[i].FromInput <= v.Tiers[tier].FromInput
				if taken && v.Tiers[tier].Prices[u] == 0 && v.Tiers[i].Prices[u] > 0 {
					prices[u] = v.Tiers[i].Prices[u]
				}
			}
		}
	}
	return &prices
}

// TestCost_EqualsBigArithmetic prices usage with whole numbers of any size: the tier that holds, the prices of kinds that
// have none of their own, one rounding, and what does not fit.
func TestCost_EqualsBigArithmetic(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		amounts := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 3_000_000), rapid.SampledFrom([]int64{1, meter.MaxAmount - 1, meter.MaxAmount}))
		unitPrices := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 200_000_000_000), rapid.SampledFrom([]int64{1, 500_000, math.MaxInt64 - 1, math.MaxInt64}))
		var q governance.Quantities
		for u := range q {
			q[u] = amounts.Draw(t, governance.Unit(u).String())
		}
		input := new(big.Int)
		for _, u := range []governance.Unit{
			governance.UnitInput, governance.UnitCacheRead, governance.UnitCacheWrite5m, governance.UnitCacheWrite1h, governance.UnitInputAudio, governance.UnitInputImage,
		} {
			input.Add(input, big.NewInt(q[u]))
		}
		require.True(t, input.IsInt64())
		var v governance.PriceVersion
		for _, service := range []string{"", "flex", "priority"} {
			from := int64(0)
			for n := range rapid.IntRange(0, 3).Draw(t, "tiers") {
				if n > 0 { // at, just above or just below what the prompt has
					from = max(from+1, rapid.OneOf(rapid.Int64Range(1, 4_000_000), rapid.Int64Range(input.Int64()-1, input.Int64()+1)).Draw(t, "from"))
				}
				tier := governance.PriceTier{ServiceTier: service, FromInput: from}
				for u := range tier.Prices {
					tier.Prices[u] = money.PerMillion(unitPrices.Draw(t, governance.Unit(u).String()))
				}
				v.Tiers = append(v.Tiers, tier)
			}
		}
		service := rapid.SampledFrom([]string{"", "flex", "priority", "unheard of"}).Draw(t, "service")
		prices := &governance.UnitPrices{} // nothing is known
		for _, name := range []string{"", service} {
			for i := range v.Tiers {
				if v.Tiers[i].ServiceTier == name && big.NewInt(v.Tiers[i].FromInput).Cmp(input) <= 0 {
					prices = withFees(&v, i) // they are in order
				}
			}
		}
		sum := new(big.Int)
		for u := range q {
			sum.Add(sum, new(big.Int).Mul(big.NewInt(q[u]), big.NewInt(priceOf(prices, governance.Unit(u)))))
		}
		want, rest := new(big.Int).QuoRem(sum, big.NewInt(1_000_000), new(big.Int))
		if half := rest.Cmp(big.NewInt(500_000)); half > 0 || half == 0 && want.Bit(0) == 1 {
			want.Add(want, big.NewInt(1))
		}
		cost, used, err := v.Cost(&q, service)
		for u := range used {
			require.Equal(t, priceOf(prices, governance.Unit(u)), int64(used[u]), "price of %s", governance.Unit(u))
		}
		if !want.IsInt64() {
			require.ErrorIs(t, err, money.ErrOverflow)
			return
		}
		require.NoError(t, err)
		require.Equal(t, want.Int64(), int64(cost))
	})
}

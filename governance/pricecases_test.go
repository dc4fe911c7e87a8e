package governance_test

import (
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

// A price of one's own and one of the book give the same cost for the same usage: there is one path.
func TestF019_CachedTokensCostTheSameOnEveryPath(t *testing.T) {
	t.Parallel()
	q := governance.Quantities{governance.UnitInput: 100, governance.UnitCacheWrite5m: 700, governance.UnitCacheRead: 200}
	require.EqualValues(t, 1000, q.InputTokens())
	prices := governance.UnitPrices{
		governance.UnitInput: 3_000_000_000, governance.UnitCacheWrite5m: 3_750_000_000, governance.UnitCacheRead: 300_000_000,
	}
	book := governance.PriceVersion{Tiers: []governance.PriceTier{
		{Prices: prices}, {FromInput: 200_001, Prices: governance.UnitPrices{governance.UnitInput: 6_000_000_000}},
	}}
	cost, _, err := book.Cost(&q, "")
	require.NoError(t, err)
	require.Equal(t, "0.002985", cost.String())
	require.Equal(t, cost, costOf(t, prices, q))
}

// Usage whose cached tokens are not part of the input stays as it is; a negative quantity is an error, never a credit.
func TestF034_NoQuantityAndNoCostIsNegative(t *testing.T) {
	t.Parallel()
	prices := governance.UnitPrices{
		governance.UnitInput: 3_000_000_000, governance.UnitCacheRead: 300_000_000, governance.UnitOutput: 15_000_000_000,
	}
	q := governance.Quantities{governance.UnitInput: 342, governance.UnitCacheRead: 86_272, governance.UnitOutput: 44}
	require.Equal(t, "0.0275676", costOf(t, prices, q).String())
	q[governance.UnitInput] = 342 - 86_272
	_, err := governance.CostAt(&q, &prices)
	require.ErrorIs(t, err, money.ErrNegative)
}

func quantities(t *rapid.T) governance.Quantities {
	var q governance.Quantities
	for u := range q {
		q[u] = rapid.Int64Range(0, 2_000_000).Draw(t, governance.Unit(u).String())
	}
	return q
}

func prices(t *rapid.T) governance.UnitPrices {
	var p governance.UnitPrices
	for u := range p {
		p[u] = money.PerMillion(rapid.Int64Range(0, 200_000_000_000).Draw(t, governance.Unit(u).String()))
	}
	return p
}

// The arithmetic is that of whole numbers of any size, rounded once, half to even.
func TestCostAt_IsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		q, p := quantities(t), prices(t)
		sum := new(big.Int)
		for u := range q {
			sum.Add(sum, new(big.Int).Mul(big.NewInt(q[u]), big.NewInt(int64(p[u]))))
		}
		want, rest := new(big.Int).QuoRem(sum, big.NewInt(1_000_000), new(big.Int))
		if rest.Int64() > 500_000 || rest.Int64() == 500_000 && want.Bit(0) == 1 {
			want.Add(want, big.NewInt(1))
		}
		cost, err := governance.CostAt(&q, &p)
		require.NoError(t, err)
		require.Equal(t, want.Int64(), int64(cost))
		require.Equal(t, q.Tokens(), q.InputTokens()+q.OutputTokens())
	})
}

// TestF040_FeesHoldInEveryTier: a tier is often written for tokens alone, and a search costs the same in it.
func TestF040_FeesHoldInEveryTier(t *testing.T) {
	t.Parallel()
	ordinary, long, priority := governance.PriceTier{}, governance.PriceTier{FromInput: 200}, governance.PriceTier{ServiceTier: "priority"}
	for _, tier := range []*governance.PriceTier{&ordinary, &long, &priority} {
		tier.Prices[governance.UnitInput], tier.Prices[governance.UnitOutput] = 1_000_000, 1_000_000
	}
	ordinary.Prices[governance.UnitSearch], ordinary.Prices[governance.UnitRequest] = 10_000_000_000_000, 700_000_000
	v := governance.PriceVersion{Tiers: []governance.PriceTier{ordinary, long, priority}}
	for _, input := range []int64{100, 500} {
		for _, service := range []string{"", "priority", "priority/us"} {
			cost, prices, err := v.Cost(&governance.Quantities{governance.UnitInput: input, governance.UnitSearch: 3, governance.UnitRequest: 1}, service)
			require.NoError(t, err)
			require.Equal(t, money.Nano(30_000_000+700+input), cost)
			require.Equal(t, ordinary.Prices[governance.UnitSearch], prices[governance.UnitSearch])
		}
	}
}

// What is held for a call is never less than what it can cost, whichever tier it ends up in. Some are there for those alone who
// ask for them, and cost the others nothing.
func TestCeiling_CoversTheCost(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := governance.PriceVersion{Tiers: []governance.PriceTier{
			{Prices: prices(t)},
			{FromInput: rapid.Int64Range(1, 1_000_000).Draw(t, "from"), Prices: prices(t)},
			{ServiceTier: "fast", Prices: prices(t)},
			{ServiceTier: "flex", Prices: prices(t)},
			{ServiceTier: "priority", Prices: prices(t)},
		}}
		for i := range v.Tiers { // nobody asks more for what is cached
			v.Tiers[i].Prices[governance.UnitCacheRead] = v.Tiers[i].Prices[governance.UnitInput] / 10
		}
		d := governance.Demand{
			CacheWrites: rapid.Bool().Draw(t, "writes"), Images: rapid.Bool().Draw(t, "images"),
			Audio: rapid.Bool().Draw(t, "audio"), AudioOutput: rapid.Bool().Draw(t, "spoken"),
			ServiceTier: rapid.SampledFrom([]string{"", "default", "priority", "fast", "us", "fast/us", "priority/us"}).Draw(t, "asked"),
		}
		q := quantities(t)
		for u, has := range map[governance.Unit]bool{
			governance.UnitCacheWrite5m: d.CacheWrites, governance.UnitCacheWrite1h: d.CacheWrites,
			governance.UnitInputImage: d.Images, governance.UnitInputAudio: d.Audio, governance.UnitOutputAudio: d.AudioOutput,
			governance.UnitOutputImage: false,
		} {
			if !has {
				q[u] = 0
			}
		}
		for _, piece := range []governance.Unit{
			governance.UnitImage, governance.UnitSearch, governance.UnitCharacter, governance.UnitSecond,
		} {
			d.Counted[piece] = q[piece]
		}
		d.AnyTier = true
		q[governance.UnitRequest] = 1
		more := rapid.Int64Range(0, 1000).Draw(t, "more")
		d.Input = q.InputTokens() + more
		ceiling, err := v.Ceiling(&d, q.OutputTokens()+more)
		require.NoError(t, err)
		for _, service := range []string{"", "flex", d.EstimateTier(), "unheard of"} {
			cost, _, err := v.Cost(&q, service)
			require.NoError(t, err)
			require.LessOrEqual(t, cost, ceiling)
		}
		if d.EstimateTier() == "" {
			v.Tiers = v.Tiers[:4]
			without, err := v.Ceiling(&d, q.OutputTokens()+more)
			require.NoError(t, err)
			v.Tiers = append(v.Tiers[:2:2], v.Tiers[3])
			alone, err := v.Ceiling(&d, q.OutputTokens()+more)
			require.NoError(t, err)
			require.Equal(t, []money.Nano{ceiling, ceiling}, []money.Nano{without, alone})
		}
	})
}

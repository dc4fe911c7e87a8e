package governance_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

func costOf(t *testing.T, prices governance.UnitPrices, q governance.Quantities) money.Nano {
	t.Helper()
	p := governance.PriceVersion{Tiers: []governance.PriceTier{{Prices: prices}}}
	cost, used, err := p.Cost(&q, "")
	require.NoError(t, err)
	again, err := governance.CostAt(&q, &used)
	require.NoError(t, err)
	require.Equal(t, cost, again)
	return cost
}

func TestF020_ReasoningIsPricedAsOutputOnce(t *testing.T) {
	t.Parallel()
	var prices governance.UnitPrices
	prices[governance.UnitOutput] = 180_000_000_000
	var q governance.Quantities
	q[governance.UnitOutput] = 1_944 - 1_360
	q[governance.UnitReasoning] = 1_360
	require.Equal(t, "0.34992", costOf(t, prices, q).String())
}

func TestF022_AudioHasItsOwnPrice(t *testing.T) {
	t.Parallel()
	var prices governance.UnitPrices
	prices[governance.UnitOutput] = 10_000_000_000
	prices[governance.UnitOutputAudio] = 80_000_000_000
	var q governance.Quantities
	q[governance.UnitOutput] = 110
	q[governance.UnitOutputAudio] = 482
	require.Equal(t, "0.03966", costOf(t, prices, q).String())
}

func TestTokensWithoutAPriceOfTheirOwnAreNotFree(t *testing.T) {
	t.Parallel()
	var prices governance.UnitPrices
	prices[governance.UnitInput] = 1_000_000
	prices[governance.UnitOutput] = 10_000_000
	var q governance.Quantities
	for _, u := range []governance.Unit{
		governance.UnitCacheRead, governance.UnitCacheWrite5m, governance.UnitCacheWrite1h,
		governance.UnitInputAudio, governance.UnitInputImage,
	} {
		q[u] = 1
	}
	require.Equal(t, money.Nano(5), costOf(t, prices, q))
	q = governance.Quantities{}
	for _, u := range []governance.Unit{governance.UnitReasoning, governance.UnitOutputAudio, governance.UnitOutputImage} {
		q[u] = 1
	}
	require.Equal(t, money.Nano(30), costOf(t, prices, q))
}

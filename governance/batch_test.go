package governance_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

func tier(service string, from int64, input, output money.PerMillion) governance.PriceTier {
	t := governance.PriceTier{ServiceTier: service, FromInput: from}
	t.Prices[governance.UnitInput], t.Prices[governance.UnitOutput] = input, output
	return t
}

const dollar = 1_000_000_000 // nano-dollars

func TestBatch_ReservesTheDearestThatItCanReach(t *testing.T) {
	t.Parallel()
	target := &governance.Target{ExpectedOutput: 2_000, Price: &governance.PriceVersion{Tiers: []governance.PriceTier{
		tier("", 0, 2*dollar, 10*dollar), tier("", 1_000, 4*dollar, 20*dollar),
		tier("batch", 0, 1*dollar, 5*dollar), tier("batch", 1_000, 3*dollar, 7*dollar),
		tier("priority", 0, 100*dollar, 100*dollar),
	}}}
	var d governance.Demand
	require.NoError(t, d.Add(&governance.Demand{Input: 100, Declared: 50, Outputs: 2}))
	require.NoError(t, d.Add(&governance.Demand{Input: 300, Outputs: 1}))
	require.Equal(t, &governance.BatchDemand{Requests: 2, Largest: 300}, d.Batch)
	require.EqualValues(t, 400, d.Input)
	require.EqualValues(t, 100+2_000, d.Output(target, governance.ReserveDeclared))
	cost, err := d.Cost(target, governance.ReserveDeclared)
	require.NoError(t, err)
	require.EqualValues(t, 400*1_000+2_100*5_000, cost, "the price of batches, in its first context tier")
	e, err := d.Estimate(target, nil)
	require.NoError(t, err)
	require.Equal(t, cost, e.Cost)
	require.EqualValues(t, 2, e.Quantities[governance.UnitRequest])

	require.NoError(t, d.Add(&governance.Demand{Input: 1_000, Declared: 1, Outputs: 1}))
	cost, err = d.Cost(target, governance.ReserveDeclared)
	require.NoError(t, err)
	require.EqualValues(t, 1_400*3_000+2_101*7_000, cost, "one prompt reaches the second")

	plain := &governance.PriceVersion{Tiers: target.Price.Tiers[:2]}
	require.Len(t, plain.BatchTiers(), 2)
	require.EqualValues(t, 2*dollar, plain.BatchTiers()[0].Prices[governance.UnitCacheRead], "each kind of token has a price")
	require.Len(t, (&governance.PriceVersion{Free: true}).BatchTiers(), 1)
}

func TestBatch_RefusesWhatCannotBeCounted(t *testing.T) {
	t.Parallel()
	for _, one := range []governance.Demand{
		{Declared: governance.MaxTokens, Outputs: 1 << 20},
		{Declared: governance.MaxAmount, Outputs: 1},
		{Outputs: 1 << 20},
		{Input: governance.MaxAmount},
	} {
		d := governance.Demand{}
		require.NoError(t, d.Add(&governance.Demand{Input: 1, Declared: 1, Outputs: 1}))
		require.NoError(t, d.Add(&governance.Demand{Input: 1, Outputs: 1}))
		require.Equal(t, governance.CodeInvalidRequest, governance.CodeOf(d.Add(&one)))
	}
}

func charges(price *governance.PriceVersion) *governance.Batch {
	b := &governance.Batch{}
	for i, t := range price.BatchTiers() {
		b.Charges = append(b.Charges, governance.BatchCharge{Attempt: ids.ID{byte(i + 1)}, FromInput: t.FromInput, Prices: t.Prices})
	}
	return b
}

// Each answer is charged at its own context tier, and all charges are closed.
func TestBatch_SettlementsAreTheSumOfTheAnswers(t *testing.T) {
	t.Parallel()
	price := &governance.PriceVersion{Tiers: []governance.PriceTier{
		tier("", 0, 9*dollar, 9*dollar), tier("batch", 0, 1*dollar, 5*dollar), tier("batch", 500, 3*dollar, 7*dollar),
	}}
	rapid.Check(t, func(t *rapid.T) {
		b := charges(price)
		require.Len(t, b.Charges, 2)
		uses := make([]governance.BatchUse, len(b.Charges))
		var want money.Nano
		n := rapid.IntRange(0, 20).Draw(t, "answers")
		for range n {
			var q governance.Quantities
			q[governance.UnitInput] = rapid.Int64Range(0, 1_000).Draw(t, "input")
			q[governance.UnitReasoning] = rapid.Int64Range(0, 1_000).Draw(t, "reasoning")
			uses[b.Charge(q.InputTokens())].Add(&q)
			cost, _, err := price.Cost(&q, governance.ServiceTierBatch)
			require.NoError(t, err)
			want += cost
		}
		all := b.Settlements(uses)
		require.Len(t, all, 2)
		var booked money.Nano
		var requests int64
		rows, reached := 0, 0
		for i, s := range all {
			if uses[i].Answers > 0 {
				reached++
			}
			require.Equal(t, b.Charges[i].Attempt, s.ID)
			booked += s.Cost
			if !s.Release {
				rows++
				requests += s.Quantities[governance.UnitRequest]
			}
		}
		require.Equal(t, want, booked) // every price is a whole nano-dollar a token
		require.EqualValues(t, n, requests)
		require.Equal(t, max(reached, 1), rows, "what was sent leaves a row, tiers that nothing has reached leave none")
	})
}

func TestBatch_WithoutAnswersLeavesOneRow(t *testing.T) {
	t.Parallel()
	b := charges(&governance.PriceVersion{Tiers: []governance.PriceTier{tier("", 0, 1, 1), tier("", 9, 2, 2)}})
	all := b.Settlements(make([]governance.BatchUse, 2))
	require.False(t, all[0].Release)
	require.Equal(t, governance.OutcomeUpstreamError, all[0].Outcome)
	require.Equal(t, governance.UsageZero, all[0].Source)
	require.Zero(t, all[0].Cost)
	require.True(t, all[1].Release)
}

func TestBatch_WhatCannotBePricedStandsAsReserved(t *testing.T) {
	t.Parallel()
	b := charges(&governance.PriceVersion{Tiers: []governance.PriceTier{tier("", 0, 1<<60, 1)}})
	var q governance.Quantities
	q[governance.UnitInput] = governance.MaxTokens
	uses := make([]governance.BatchUse, 1)
	uses[0].Add(&q)
	s := b.Settlements(uses)[0]
	require.Equal(t, governance.UsageReservation, s.Source)
	require.Equal(t, governance.BasisHold, s.Budget)
}

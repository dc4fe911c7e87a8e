package governance_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

// price: 3 $ per million of input, 15 $ of output, 0.3 $ of cached input.
func price() *governance.PriceVersion {
	var p governance.UnitPrices
	p[governance.UnitInput] = 3_000_000_000
	p[governance.UnitCacheRead] = 300_000_000
	p[governance.UnitCacheWrite5m] = 3_750_000_000
	p[governance.UnitOutput] = 15_000_000_000
	p[governance.UnitReasoning] = 15_000_000_000
	return &governance.PriceVersion{Num: 1, Tiers: []governance.PriceTier{{Prices: p}}}
}

func target() *governance.Target {
	return &governance.Target{Price: price(), ExpectedOutput: 2_000, MaxOutput: 8_192}
}

func reserved(t require.TestingT, input, output int64) governance.Estimate {
	d := governance.Demand{Input: input, Declared: output, Outputs: 1}
	e, err := d.Estimate(target(), nil)
	require.NoError(t, err)
	return e
}

func usage(input, output int64) *governance.Usage {
	var u governance.Usage
	u.Quantities[governance.UnitInput] = input
	u.Quantities[governance.UnitOutput] = output
	return &u
}

func TestF026_F056_SettlementMatrix(t *testing.T) {
	t.Parallel()
	const actual, hold, zero = governance.BasisActual, governance.BasisHold, governance.BasisZero
	whole := governance.Ending{Written: true, FirstByte: true, Terminal: true}
	with := func(e governance.Ending, edit func(*governance.Ending)) governance.Ending {
		edit(&e)
		return e
	}
	begun := with(whole, func(e *governance.Ending) { e.Terminal = false })
	type want struct {
		outcome       governance.Outcome
		source        governance.UsageSource
		input, output int64
		requests      governance.Basis
		rate          governance.Basis
		budget        governance.Basis
		release       bool
	}
	for _, tc := range []struct {
		name   string
		ending governance.Ending
		want   want
	}{
		{
			"complete, valid usage",
			with(whole, func(e *governance.Ending) { e.Usage = usage(90, 30) }),
			want{governance.OutcomeComplete, governance.UsageProvider, 90, 30, hold, actual, actual, false},
		},
		{
			"complete, more used than reserved",
			with(whole, func(e *governance.Ending) { e.Usage = usage(900, 3_000) }),
			want{governance.OutcomeComplete, governance.UsageProvider, 900, 3_000, hold, actual, actual, false},
		},
		{
			"complete, usage explicitly 0",
			with(whole, func(e *governance.Ending) { e.Usage = usage(0, 0); e.OutputBytes = 300 }),
			want{governance.OutcomeComplete, governance.UsageZero, 0, 0, hold, actual, actual, false},
		},
		{
			"complete, usage missing",
			with(whole, func(e *governance.Ending) { e.OutputBytes = 100; e.Generating = time.Hour }),
			want{governance.OutcomeComplete, governance.UsageEstimate, 100, 34, hold, hold, actual, false},
		},
		{
			"complete, usage invalid",
			with(whole, func(e *governance.Ending) { e.Usage = usage(-1, 4); e.OutputBytes = 100 }),
			want{governance.OutcomeComplete, governance.UsageEstimate, 100, 34, hold, hold, actual, false},
		},
		{
			"client left, the prompt's usage known",
			with(begun, func(e *governance.Ending) { e.ClientLeft = true; e.Prompt = usage(45, 0); e.OutputBytes = 100 }),
			want{governance.OutcomeClientLeft, governance.UsageEstimate, 45, 34, hold, actual, actual, false},
		},
		{
			"died, the prompt's usage known and larger than estimated",
			with(begun, func(e *governance.Ending) { e.Prompt = usage(450, 0); e.OutputBytes = 100 }),
			want{governance.OutcomeUpstreamAborted, governance.UsageEstimate, 450, 34, hold, hold, actual, false},
		},
		{
			"died, the prompt's usage absurd",
			with(begun, func(e *governance.Ending) { e.Prompt = usage(-45, 0); e.OutputBytes = 100 }),
			want{governance.OutcomeUpstreamAborted, governance.UsageEstimate, 100, 34, hold, hold, actual, false},
		},
		{
			"complete, usage absurd",
			with(whole, func(e *governance.Ending) { e.Usage = usage(1, math.MaxInt64); e.OutputBytes = 100 }),
			want{governance.OutcomeComplete, governance.UsageEstimate, 100, 34, hold, hold, actual, false},
		},
		{
			"complete, usage missing, more relayed than reserved",
			with(whole, func(e *governance.Ending) { e.OutputBytes = 1 << 40 }),
			want{governance.OutcomeComplete, governance.UsageEstimate, 100, 200, hold, hold, actual, false},
		},
		{
			"blocked, usage known",
			with(whole, func(e *governance.Ending) { e.Blocked = true; e.Usage = usage(90, 30) }),
			want{governance.OutcomeBlocked, governance.UsageProvider, 90, 30, hold, actual, actual, false},
		},
		{
			"blocked, usage unknown",
			with(whole, func(e *governance.Ending) { e.Blocked = true; e.OutputBytes = 9 }),
			want{governance.OutcomeBlocked, governance.UsageEstimate, 100, 3, hold, hold, actual, false},
		},
		{
			"cut within a stream, cumulative usage seen",
			with(begun, func(e *governance.Ending) { e.Cut = true; e.Usage = usage(90, 7) }),
			want{governance.OutcomeCut, governance.UsageProvider, 90, 7, hold, actual, actual, false},
		},
		{
			"cut within a stream, no usage seen",
			with(begun, func(e *governance.Ending) { e.Cut = true; e.OutputBytes = 9 }),
			want{governance.OutcomeCut, governance.UsageEstimate, 100, 3, hold, hold, actual, false},
		},
		{
			"from the cache",
			governance.Ending{CacheHit: true},
			want{governance.OutcomeCacheHit, governance.UsageCache, 0, 0, hold, zero, zero, false},
		},
		{
			"client left, usage still obtained",
			with(whole, func(e *governance.Ending) { e.ClientLeft = true; e.Usage = usage(90, 30) }),
			want{governance.OutcomeClientLeft, governance.UsageProvider, 90, 30, hold, actual, actual, false},
		},
		{
			"client left, drained, no usage",
			with(whole, func(e *governance.Ending) { e.ClientLeft = true; e.OutputBytes = 9 }),
			want{governance.OutcomeClientLeft, governance.UsageEstimate, 100, 3, hold, actual, actual, false},
		},
		{
			"client left, upstream aborted, cumulative usage seen",
			with(begun, func(e *governance.Ending) { e.ClientLeft = true; e.Usage = usage(90, 7) }),
			want{governance.OutcomeClientLeft, governance.UsageEstimate, 90, 7, hold, actual, actual, false},
		},
		{
			"client left, upstream aborted, zeros in unfinished frames",
			with(begun, func(e *governance.Ending) { e.ClientLeft = true; e.Usage = usage(0, 0); e.OutputBytes = 9 }),
			want{governance.OutcomeClientLeft, governance.UsageEstimate, 100, 3, hold, actual, actual, false},
		},
		{
			"client left, more relayed than the target's speed explains",
			with(begun, func(e *governance.Ending) {
				e.ClientLeft, e.OutputBytes, e.Generating, e.OutputRate = true, 240, time.Second, 50
			}),
			want{governance.OutcomeClientLeft, governance.UsageEstimate, 100, 80, hold, actual, actual, false},
		},
		{
			"client left during hidden reasoning",
			with(begun, func(e *governance.Ending) {
				e.ClientLeft, e.OutputBytes, e.Generating, e.OutputRate = true, 9, 2*time.Second, 50
			}),
			want{governance.OutcomeClientLeft, governance.UsageEstimate, 100, 100, hold, actual, actual, false},
		},
		{
			"client left during hidden reasoning of a target that was never measured",
			with(begun, func(e *governance.Ending) { e.ClientLeft, e.Generating = true, 1500*time.Millisecond }),
			want{governance.OutcomeClientLeft, governance.UsageEstimate, 100, 150, hold, actual, actual, false},
		},
		{
			"client left before the first byte",
			governance.Ending{Written: true, ClientLeft: true, Generating: time.Second, OutputRate: 10},
			want{governance.OutcomeClientLeft, governance.UsageEstimate, 100, 10, hold, actual, actual, false},
		},
		{
			"upstream died after the first byte, usage seen",
			with(begun, func(e *governance.Ending) { e.Usage = usage(90, 7) }),
			want{governance.OutcomeUpstreamAborted, governance.UsageProvider, 90, 7, hold, hold, actual, false},
		},
		{
			"upstream died after the first byte, no usage",
			with(begun, func(e *governance.Ending) { e.OutputBytes = 9 }),
			want{governance.OutcomeUpstreamAborted, governance.UsageEstimate, 100, 3, hold, hold, actual, false},
		},
		{
			"upstream fell silent after the first byte",
			with(begun, func(e *governance.Ending) { e.TimedOut = true; e.Generating, e.OutputRate = time.Second, 20 }),
			want{governance.OutcomeUpstreamAborted, governance.UsageEstimate, 100, 20, hold, hold, actual, false},
		},
		{
			"an error event after the first byte",
			with(begun, func(e *governance.Ending) { e.Refused = true; e.OutputBytes = 9 }),
			want{governance.OutcomeUpstreamAborted, governance.UsageEstimate, 100, 3, hold, hold, actual, false},
		},
		{
			"a terminal event that says the answer failed",
			with(whole, func(e *governance.Ending) { e.Refused = true; e.OutputBytes = 9 }),
			want{governance.OutcomeUpstreamAborted, governance.UsageEstimate, 100, 3, hold, hold, actual, false},
		},
		{
			"upstream error before any byte",
			governance.Ending{Written: true, Refused: true},
			want{governance.OutcomeUpstreamError, governance.UsageZero, 0, 0, hold, zero, zero, false},
		},
		{
			"upstream error, and the client had left",
			governance.Ending{Written: true, Refused: true, ClientLeft: true},
			want{governance.OutcomeUpstreamError, governance.UsageZero, 0, 0, hold, zero, zero, false},
		},
		{
			"connection broke before any byte",
			governance.Ending{Written: true},
			want{governance.OutcomeUpstreamError, governance.UsageZero, 0, 0, hold, zero, zero, false},
		},
		{
			"never written",
			governance.Ending{},
			want{governance.OutcomeUpstreamError, governance.UsageZero, 0, 0, zero, zero, zero, true},
		},
		{
			"never written, client left",
			governance.Ending{ClientLeft: true},
			want{governance.OutcomeClientLeft, governance.UsageZero, 0, 0, zero, zero, zero, true},
		},
		{
			"never written, timed out",
			governance.Ending{TimedOut: true},
			want{governance.OutcomeUpstreamTimeout, governance.UsageZero, 0, 0, zero, zero, zero, true},
		},
		{
			"timed out after it was written",
			governance.Ending{Written: true, TimedOut: true},
			want{governance.OutcomeUpstreamTimeout, governance.UsageReservation, 100, 200, hold, hold, hold, false},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			e := tc.ending
			e.ID = ids.New(time.Now())
			e.Price = price()
			e.Reserved = reserved(t, 100, 200)
			s := e.Settlement()
			got := want{
				s.Outcome, s.Source, s.Quantities.InputTokens(), s.Quantities.OutputTokens(),
				s.Requests, s.Rate, s.Budget, s.Release,
			}
			require.Equal(t, tc.want, got)
			require.Equal(t, e.ID, s.ID)
			require.False(t, s.Carry)
			require.Equal(t, money.Nano(tc.want.input*3_000+tc.want.output*15_000), s.Cost)
		})
	}
}

func TestSettlementOfAnUnpricedTarget(t *testing.T) {
	t.Parallel()
	s := (&governance.Ending{Written: true, FirstByte: true, Terminal: true, Usage: usage(7, 8)}).Settlement()
	require.Equal(t, governance.UsageProvider, s.Source)
	require.Zero(t, s.Cost)
	require.Equal(t, int64(15), s.Quantities.Tokens())
}

func TestSettlementOfWhatCannotBePricedKeepsTheReservation(t *testing.T) {
	t.Parallel()
	dear := price()
	dear.Tiers[0].Prices[governance.UnitOutput] = math.MaxInt64
	e := governance.Ending{
		Written: true, FirstByte: true, Terminal: true,
		Price: dear, Usage: usage(1, 1<<27), Reserved: reserved(t, 10, 20),
	}
	s := e.Settlement()
	require.Equal(t, governance.UsageReservation, s.Source)
	require.Equal(t, governance.BasisHold, s.Budget)
	require.Equal(t, e.Reserved.Cost, s.Cost)
}

// What is reported in units without a price, or beyond what an account can hold, says nothing of the cost.
func TestSettlementOfUselessUsageIsAnEstimate(t *testing.T) {
	t.Parallel()
	whole := governance.Ending{Written: true, FirstByte: true, Terminal: true, OutputBytes: 30, Reserved: reserved(t, 10, 20), Price: price()}
	absurd := whole
	absurd.Usage = usage(1_000_000_000_000, 1) // three million dollars
	s := absurd.Settlement()
	require.Equal(t, governance.UsageEstimate, s.Source)
	require.Equal(t, int64(20), s.Quantities.Tokens(), "the prompt as it was reserved, and 30 bytes of the answer")
	require.Positive(t, s.Cost)

	heard := governance.PriceTier{}
	heard.Prices[governance.UnitSecond] = 100_000_000
	p := &governance.PriceVersion{Tiers: []governance.PriceTier{heard}}
	d := governance.Demand{Outputs: 1, Audio: true, Declared: 9}
	d.Counted[governance.UnitSecond] = 3
	held, err := d.Estimate(&governance.Target{Price: p}, nil)
	require.NoError(t, err)
	tokens := governance.Ending{Written: true, FirstByte: true, Terminal: true, Usage: usage(1, 9), Reserved: held, Price: p}
	s = tokens.Settlement()
	require.Equal(t, governance.UsageEstimate, s.Source, "tokens of a model that is priced by the second")
	require.Equal(t, held.Cost, s.Cost)
	require.EqualValues(t, 3, s.Quantities[governance.UnitSecond])
}

// What was read from a cache before the client left is not booked at the price of fresh input.
func TestF004_APromptWhoseUsageIsKnownIsNotEstimated(t *testing.T) {
	t.Parallel()
	prompt := usage(45, 0)
	prompt.Quantities[governance.UnitCacheRead] = 20_000
	e := governance.Ending{
		Written: true, FirstByte: true, ClientLeft: true, Price: price(), Prompt: prompt, OutputBytes: 30, Reserved: reserved(t, 30_000, 500),
	}
	s := e.Settlement()
	require.Equal(t, "0.006285", s.Cost.String(), "45 fresh and 20,000 cached tokens, and 10 of the answer")
	require.Equal(t, governance.UsageEstimate, s.Source)
}

func TestSettlementCountsTheFeePerCall(t *testing.T) {
	t.Parallel()
	p := price()
	p.Tiers[0].Prices[governance.UnitRequest] = 5_000_000 * 1_000_000
	e := governance.Ending{Written: true, FirstByte: true, Terminal: true, Price: p, Usage: usage(1, 1)}
	require.Equal(t, money.Nano(3_000+15_000+5_000_000), e.Settlement().Cost)
	e.Usage = usage(0, 0)
	require.Zero(t, e.Settlement().Cost, "an explicit zero costs nothing")
}

func TestSettlementProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		flag := rapid.Bool()
		count := rapid.OneOf(rapid.Int64Range(0, 1<<20), rapid.Int64())
		e := governance.Ending{
			CacheHit: flag.Draw(t, "cache hit"), Written: flag.Draw(t, "written"), Refused: flag.Draw(t, "refused"),
			FirstByte: flag.Draw(t, "first byte"), Terminal: flag.Draw(t, "terminal"), ClientLeft: flag.Draw(t, "left"),
			TimedOut: flag.Draw(t, "timed out"), Blocked: flag.Draw(t, "blocked"), Cut: flag.Draw(t, "cut"),
			OutputBytes: count.Draw(t, "bytes"), Generating: time.Duration(count.Draw(t, "generating")),
			OutputRate: count.Draw(t, "rate"),
		}
		d := governance.Demand{
			Input:       rapid.Int64Range(0, 1<<24).Draw(t, "input"),
			Declared:    rapid.Int64Range(0, 1<<24).Draw(t, "declared"),
			Outputs:     rapid.Int64Range(1, 8).Draw(t, "outputs"),
			CacheWrites: flag.Draw(t, "cache writes"),
		}
		tgt := target()
		tgt.Price = anyPrice(t)
		e.Price = tgt.Price
		var err error
		e.Reserved, err = d.Estimate(tgt, nil)
		require.NoError(t, err)
		if flag.Draw(t, "usage") {
			e.Usage = &governance.Usage{ServiceTier: rapid.SampledFrom([]string{"", "priority", "odd"}).Draw(t, "tier")}
			for u := range e.Usage.Quantities {
				e.Usage.Quantities[u] = count.Draw(t, "quantity")
			}
		}
		if flag.Draw(t, "prompt") {
			e.Prompt = usage(count.Draw(t, "prompt input"), 0)
		}

		s := e.Settlement()
		for _, n := range s.Quantities {
			require.GreaterOrEqual(t, n, int64(0))
		}
		require.GreaterOrEqual(t, s.Cost, money.Nano(0))
		cost, err := governance.CostAt(&s.Quantities, &s.Prices)
		require.NoError(t, err)
		require.Equal(t, cost, s.Cost, "a row is recomputed from itself")
		if s.Source == governance.UsageEstimate && e.Usage == nil && e.Prompt == nil || s.Source == governance.UsageReservation {
			require.LessOrEqual(t, s.Cost, e.Reserved.Cost)
			require.LessOrEqual(t, s.Quantities.Tokens(), e.Reserved.Quantities.Tokens())
		}
		if s.Release {
			require.False(t, e.Written)
			require.Zero(t, s.Cost)
			require.Equal(t, governance.BasisZero, s.Requests)
		} else {
			require.Equal(t, governance.BasisHold, s.Requests)
		}
		require.Equal(t, s, e.Settlement(), "the same facts give the same settlement")
	})
}

func anyPrice(t *rapid.T) *governance.PriceVersion {
	p := &governance.PriceVersion{}
	for _, tier := range []governance.PriceTier{{}, {FromInput: 1_000}, {ServiceTier: "priority"}} {
		for u := range tier.Prices {
			tier.Prices[u] = money.PerMillion(rapid.Int64Range(0, 1_000_000_000_000).Draw(t, "price"))
		}
		p.Tiers = append(p.Tiers, tier)
	}
	return p
}

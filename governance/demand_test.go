package governance_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

func demandOf(t *testing.T, route, body string) (governance.Demand, error) {
	t.Helper()
	doc, err := jsonedit.Parse([]byte(body))
	require.NoError(t, err)
	return governance.DemandOf(route, doc)
}

// Tiers that cost more are held for those alone who ask for them.
func TestDemandOf_ServiceTiers(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{}`: "", `{"service_tier":"auto"}`: "", `{"service_tier":"default"}`: "", `{"service_tier":null}`: "", `{"service_tier":7}`: "",
		`{"service_tier":"flex"}`: "", `{"service_tier":"priority"}`: "priority", `{"speed":"fast"}`: "fast", `{"speed":"standard"}`: "",
		`{"speed":"fast","service_tier":"auto"}`: "fast", `{"inference_geo":"us"}`: "us", `{"inference_geo":"global"}`: "",
		`{"inference_geo":"us","service_tier":"standard_only"}`: "us", `{"inference_geo":"us","speed":"fast"}`: "fast/us",
	} {
		for _, route := range []string{governance.RouteChat, governance.RouteResponses, governance.RouteMessages, governance.RouteCompletions} {
			d, err := demandOf(t, route, body)
			require.NoError(t, err)
			require.Equal(t, want, d.EstimateTier(), "%s %s", route, body)
		}
	}
}

func TestDemandOf(t *testing.T) {
	t.Parallel()
	const chat = governance.RouteChat
	for _, tc := range []struct {
		name, route, body        string
		input, declared, outputs int64
		noOutput, writes         bool
	}{
		{name: "chat says nothing", route: chat, body: `{"messages":[{"content":"abcdefgh"}]}`, input: 7, outputs: 1},
		{name: "chat, both limits: the larger", route: chat, body: `{"max_tokens":50,"max_completion_tokens":40}`, declared: 50, outputs: 1},
		{name: "chat, both limits, the larger last", route: chat, body: `{"max_tokens":1,"max_completion_tokens":5000}`, declared: 5000, outputs: 1},
		{name: "chat, null is absent", route: chat, body: `{"max_tokens":null,"n":null}`, outputs: 1},
		{name: "chat ignores what its dialect lacks", route: chat, body: `{"max_output_tokens":1,"best_of":9}`, outputs: 1},
		{name: "chat, n", route: chat, body: `{"n":3,"max_tokens":10}`, declared: 10, outputs: 3},
		{name: "completions default to 16", route: governance.RouteCompletions, body: `{"prompt":"abc"}`, input: 1, declared: 16, outputs: 1},
		{
			name: "completions: prompts times the larger of n and best_of", route: governance.RouteCompletions,
			body: `{"prompt":["abc","abc"],"n":2,"best_of":5,"max_tokens":7}`, input: 2, declared: 7, outputs: 10,
		},
		{name: "responses", route: governance.RouteResponses, body: `{"input":"abc","max_output_tokens":9,"max_tokens":1}`, input: 1, declared: 9, outputs: 1},
		{name: "messages", route: governance.RouteMessages, body: `{"max_tokens":9}`, declared: 9, outputs: 1},
		{name: "embeddings", route: governance.RouteEmbeddings, body: `{"input":["abc","abc"],"n":-4}`, input: 2, noOutput: true},
		{name: "moderations", route: governance.RouteModerations, body: `{"input":"abc"}`, input: 1, noOutput: true},
		{name: "count_tokens", route: governance.RouteCountTokens, body: `{"max_tokens":5,"messages":[{"content":"abc"}]}`, noOutput: true},
		{
			name: "cache writes", route: chat, outputs: 1, writes: true, input: 5,
			body: `{"messages":[{"content":[{"type":"text","text":"abc","cache_control":{"type":"ephemeral"}}]}]}`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d, err := demandOf(t, tc.route, tc.body)
			require.NoError(t, err)
			require.Equal(t, governance.Demand{
				Input: tc.input, Declared: tc.declared, DeclaredBy: d.DeclaredBy, Outputs: tc.outputs,
				NoOutput: tc.noOutput, Costless: tc.route == governance.RouteCountTokens, CacheWrites: tc.writes, Version: jsonedit.EstimatorVersion,
			}, d)
		})
	}
}

// Counting tokens is one request and costs nothing, whatever its target's price is, or whether it has one.
func TestRuling29_CountingTokensCostsNothing(t *testing.T) {
	t.Parallel()
	d, err := demandOf(t, governance.RouteCountTokens, `{"messages":[{"content":"abc"}]}`)
	require.NoError(t, err)
	priced := target()
	priced.Price.Tiers[0].Prices[governance.UnitRequest] = 5_000_000_000_000
	for _, tgt := range []*governance.Target{priced, {}} {
		require.False(t, d.Unpriced(tgt))
		e, err := d.Estimate(tgt, nil)
		require.NoError(t, err)
		require.Equal(t, governance.Estimate{}, e)
		cost, err := d.Amount(&governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricCost}, tgt)
		require.NoError(t, err)
		require.Zero(t, cost)
		requests, err := d.Amount(&governance.Limit{Kind: governance.KindRate, Metric: governance.MetricRequests}, tgt)
		require.NoError(t, err)
		require.EqualValues(t, 1, requests)
	}
}

func TestDemandRefusesAbsurdOutput(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ route, body, param string }{
		{governance.RouteChat, `{"max_tokens":-1}`, "max_tokens"},
		{governance.RouteChat, `{"max_tokens":1099511627777}`, "max_tokens"},
		{governance.RouteChat, `{"max_tokens":9223372036854775808}`, "max_tokens"},
		{governance.RouteChat, `{"max_completion_tokens":1e308}`, "max_completion_tokens"},
		{governance.RouteChat, `{"max_tokens":"12"}`, "max_tokens"},
		{governance.RouteChat, `{"max_tokens":1.5}`, "max_tokens"},
		{governance.RouteChat, `{"n":0}`, "n"},
		{governance.RouteChat, `{"n":-3}`, "n"},
		{governance.RouteChat, `{"n":9223372036854775807}`, "n"},
		{governance.RouteCompletions, `{"prompt":["a","b","c"],"best_of":1048576}`, "best_of"},
		{governance.RouteResponses, `{"max_output_tokens":-5}`, "max_output_tokens"},
	} {
		_, err := demandOf(t, tc.route, tc.body)
		require.Equal(t, governance.CodeInvalidRequest, governance.CodeOf(err), "%s", tc.body)
		var e *governance.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, tc.param, e.Param)
	}
}

func TestOutputByPolicy(t *testing.T) {
	t.Parallel()
	const declared, expected, maximum = governance.ReserveDeclared, governance.ReserveExpected, governance.ReserveMaximum
	for _, tc := range []struct {
		name               string
		declaredTokens     int64
		expectedTokens     int64
		maxOutput          int64
		policy             governance.ReservePolicy
		outputs, wantTotal int64
	}{
		{"declared", 300, 2_000, 8_192, declared, 1, 300},
		{"declared, client silent", 0, 2_000, 8_192, declared, 1, 2_000},
		{"declared above what the model can", 1 << 40, 2_000, 8_192, declared, 2, 2 * 8_192},
		{"declared above an unknown maximum", 1 << 40, 2_000, 0, declared, 1, 1 << 40},
		{"expected", 3_000, 2_000, 8_192, expected, 1, 2_000},
		{"expected at most what is declared", 300, 2_000, 8_192, expected, 1, 300},
		{"expected is at least 1,024", 0, 10, 8_192, expected, 1, 1_024},
		{"expected before there is any", 0, 0, 8_192, expected, 1, 4_096},
		{"expected of a small model", 0, 0, 512, expected, 1, 512},
		{"maximum", 0, 2_000, 8_192, maximum, 1, 8_192},
		{"maximum, declared", 300, 2_000, 8_192, maximum, 3, 900},
		{"maximum, unknown", 0, 2_000, 0, maximum, 1, 2_000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := governance.Demand{Declared: tc.declaredTokens, Outputs: tc.outputs}
			tgt := governance.Target{ExpectedOutput: tc.expectedTokens, MaxOutput: tc.maxOutput}
			require.Equal(t, tc.wantTotal, d.Output(&tgt, tc.policy))
			d.NoOutput = true
			require.Zero(t, d.Output(&tgt, tc.policy))
		})
	}
}

func TestAmountByMetric(t *testing.T) {
	t.Parallel()
	d := governance.Demand{Input: 100, Declared: 5_000, Outputs: 1}
	amount := func(kind governance.Kind, m governance.Metric, p governance.ReservePolicy) int64 {
		n, err := d.Amount(&governance.Limit{Kind: kind, Metric: m, Reserve: p}, target())
		require.NoError(t, err)
		return n
	}
	const rate, budget, slots = governance.KindRate, governance.KindBudget, governance.KindConcurrency
	require.Equal(t, int64(1), amount(rate, governance.MetricRequests, ""))
	require.Equal(t, int64(1), amount(slots, governance.MetricRequests, ""))
	require.Equal(t, int64(100), amount(rate, governance.MetricInputTokens, ""))
	require.Equal(t, int64(2_000), amount(rate, governance.MetricOutputTokens, ""), "rates reserve what is expected")
	require.Equal(t, int64(5_000), amount(budget, governance.MetricOutputTokens, ""), "budgets reserve what is declared")
	require.Equal(t, int64(2_100), amount(rate, governance.MetricTokens, ""))
	require.Equal(t, int64(5_100), amount(rate, governance.MetricTokens, governance.ReserveDeclared))
	require.Equal(t, int64(100*3_000+5_000*15_000), amount(budget, governance.MetricCost, ""))
	d.CacheWrites = true
	require.Equal(t, int64(100*3_750+5_000*15_000), amount(budget, governance.MetricCost, ""), "cache writes are dearer")
}

func TestCostReachesOnlyWhatTheRequestHas(t *testing.T) {
	t.Parallel()
	p := price()
	p.Tiers[0].Prices[governance.UnitInputImage] = 5_000_000_000
	p.Tiers[0].Prices[governance.UnitInputAudio] = 40_000_000_000
	p.Tiers[0].Prices[governance.UnitOutputAudio] = 80_000_000_000
	cost := func(body string) (in, out int64) {
		d, err := demandOf(t, governance.RouteChat, body)
		require.NoError(t, err)
		e, err := d.Estimate(&governance.Target{Price: p}, nil)
		require.NoError(t, err)
		return int64(e.Prices[governance.UnitInput]), int64(e.Prices[governance.UnitOutput])
	}
	for body, want := range map[string][2]int64{
		`{"messages":[{"content":"hi"}],"audio":null}`:                                                           {3_000_000_000, 15_000_000_000},
		`{"messages":[{"content":[{"type":"image_url","image_url":{"url":"https://h/i.png"}}]}]}`:                {5_000_000_000, 15_000_000_000},
		`{"messages":[{"content":[{"type":"input_audio","input_audio":{"data":"UklGRg==","format":"wav"}}]}]}`:   {40_000_000_000, 15_000_000_000},
		`{"messages":[{"content":"hi"}],"modalities":["text","audio"],"audio":{"voice":"alloy","format":"wav"}}`: {3_000_000_000, 80_000_000_000},
	} {
		in, out := cost(body)
		require.Equal(t, want, [2]int64{in, out}, body)
	}
}

func TestF040_UnpricedTargetIsRefusedByLimitsOfCost(t *testing.T) {
	t.Parallel()
	d := governance.Demand{Input: 100, Outputs: 1}
	unpriced := []*governance.Target{
		{},
		{Price: &governance.PriceVersion{}},
		{Price: &governance.PriceVersion{Tiers: []governance.PriceTier{{}}}},
	}
	for _, tgt := range unpriced {
		require.True(t, d.Unpriced(tgt))
		_, err := d.Amount(&governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricCost}, tgt)
		require.Equal(t, governance.CodeModelUnpriced, governance.CodeOf(err))
		n, err := d.Amount(&governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricTokens}, tgt)
		require.NoError(t, err)
		require.Positive(t, n)
	}
}

func TestF040_APriceThatLacksAUnitIsNoneForRequestsThatUseIt(t *testing.T) {
	t.Parallel()
	tier := func(input, output money.PerMillion) governance.PriceTier {
		var prices governance.UnitPrices
		prices[governance.UnitInput], prices[governance.UnitOutput] = input, output
		return governance.PriceTier{Prices: prices}
	}
	long := tier(5, 0)
	long.FromInput = 200_000
	var request governance.PriceTier
	request.Prices[governance.UnitRequest] = 1
	chat, embeddings := governance.Demand{Outputs: 1}, governance.Demand{NoOutput: true}
	for name, tc := range map[string]struct {
		tiers            []governance.PriceTier
		chat, embeddings bool
	}{
		"both":                  {[]governance.PriceTier{tier(1, 2)}, false, false},
		"input alone":           {[]governance.PriceTier{tier(1, 0)}, true, false},
		"output alone":          {[]governance.PriceTier{tier(0, 2)}, true, true},
		"requests alone":        {[]governance.PriceTier{request}, true, true},
		"a gap in another tier": {[]governance.PriceTier{tier(1, 2), long}, true, false},
		"no tier":               {nil, true, true},
	} {
		tgt := &governance.Target{Price: &governance.PriceVersion{Tiers: tc.tiers}}
		require.Equal(t, tc.chat, chat.Unpriced(tgt), name)
		require.Equal(t, tc.embeddings, embeddings.Unpriced(tgt), name)
		_, err := chat.Cost(tgt, governance.ReserveDeclared)
		require.Equal(t, tc.chat, governance.CodeOf(err) == governance.CodeModelUnpriced, name)
		tgt.Price.Free = true
		require.False(t, chat.Unpriced(tgt), name)
	}
}

func TestF017_FreeTargetAsksNoMoney(t *testing.T) {
	t.Parallel()
	d := governance.Demand{Input: 100, Outputs: 1}
	tgt := &governance.Target{Price: &governance.PriceVersion{Free: true, Tiers: []governance.PriceTier{{}}}}
	require.False(t, d.Unpriced(tgt))
	n, err := d.Amount(&governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricCost}, tgt)
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = d.Amount(&governance.Limit{Kind: governance.KindRate, Metric: governance.MetricTokens}, tgt)
	require.NoError(t, err)
	require.Positive(t, n, "limits of tokens still hold")
}

func TestCostThatDoesNotFitIsTheCallersFault(t *testing.T) {
	t.Parallel()
	tgt := &governance.Target{Price: price()}
	for _, tc := range []struct {
		body   string
		metric governance.Metric
	}{
		{`{"max_tokens":1,"max_completion_tokens":1000000000000}`, governance.MetricCost}, // 15 million dollars
		{`{"max_completion_tokens":1099511627776,"n":1048576}`, governance.MetricCost},
		{`{"max_completion_tokens":1099511627776,"n":1048576}`, governance.MetricTokens},
		{`{"max_completion_tokens":1099511627776,"n":1048576}`, governance.MetricOutputTokens},
	} {
		d, err := demandOf(t, governance.RouteChat, tc.body)
		require.NoError(t, err)
		_, err = d.Amount(&governance.Limit{Kind: governance.KindBudget, Metric: tc.metric}, tgt)
		var e *governance.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, [2]string{string(governance.CodeInvalidRequest), "max_completion_tokens"}, [2]string{string(e.Code), e.Param})
		_, err = d.Estimate(tgt, nil)
		require.Equal(t, governance.CodeInvalidRequest, governance.CodeOf(err))
	}
	d, err := demandOf(t, governance.RouteChat, `{"max_tokens":60000000000}`)
	require.NoError(t, err)
	cost, err := d.Cost(tgt, governance.ReserveDeclared)
	require.NoError(t, err)
	require.Equal(t, money.Nano(900_000_000_000_000), cost, "900,000 dollars can be counted")
}

func TestEstimateCoversEveryHold(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := governance.Demand{
			Input:       rapid.Int64Range(0, 1<<20).Draw(t, "input"),
			Declared:    rapid.Int64Range(0, 1<<20).Draw(t, "declared"),
			Outputs:     rapid.Int64Range(1, 64).Draw(t, "outputs"),
			CacheWrites: rapid.Bool().Draw(t, "writes"),
			NoOutput:    rapid.Bool().Draw(t, "no output"),
		}
		tgt := &governance.Target{
			Price: anyPrice(t), ExpectedOutput: rapid.Int64Range(0, 1<<20).Draw(t, "expected"),
			MaxOutput: rapid.Int64Range(0, 1<<20).Draw(t, "max"),
		}
		var holds []governance.Hold
		for range rapid.IntRange(0, 4).Draw(t, "holds") {
			l := &governance.Limit{
				Kind: rapid.SampledFrom([]governance.Kind{governance.KindRate, governance.KindBudget}).Draw(t, "kind"),
				Metric: rapid.SampledFrom([]governance.Metric{
					governance.MetricRequests, governance.MetricTokens, governance.MetricInputTokens,
					governance.MetricOutputTokens, governance.MetricCost,
				}).Draw(t, "metric"),
				Reserve: rapid.SampledFrom([]governance.ReservePolicy{
					"", governance.ReserveDeclared, governance.ReserveExpected, governance.ReserveMaximum,
				}).Draw(t, "policy"),
			}
			if d.Unpriced(tgt) && l.Metric == governance.MetricCost {
				continue
			}
			amount, err := d.Amount(l, tgt)
			require.NoError(t, err)
			holds = append(holds, governance.Hold{Limit: l, Amount: amount})
		}
		e, err := d.Estimate(tgt, holds)
		require.NoError(t, err)
		cost, err := governance.CostAt(&e.Quantities, &e.Prices)
		require.NoError(t, err)
		require.Equal(t, cost, e.Cost)
		of := map[governance.Metric]int64{
			governance.MetricRequests: 1, governance.MetricTokens: e.Quantities.Tokens(),
			governance.MetricInputTokens: e.Quantities.InputTokens(), governance.MetricOutputTokens: e.Quantities.OutputTokens(),
			governance.MetricCost: int64(e.Cost) + 1, // a hold is rounded up
		}
		for _, h := range holds {
			require.LessOrEqual(t, h.Amount, of[h.Limit.Metric], h.Limit.Metric)
		}
	})
}

func TestF010_EstimateUsesTheTierThatTheBillUses(t *testing.T) {
	t.Parallel()
	p := price()
	double := governance.PriceTier{FromInput: 1_000, Prices: p.Tiers[0].Prices}
	for u := range double.Prices {
		double.Prices[u] *= 2
	}
	p.Tiers = append(p.Tiers, double)
	d := governance.Demand{Input: 1_500, Declared: 10, Outputs: 1}
	cost, err := d.Cost(&governance.Target{Price: p}, governance.ReserveDeclared)
	require.NoError(t, err)
	require.Equal(t, money.Nano(1_500*6_000+10*30_000), cost)
}

func FuzzDemandOf(f *testing.F) {
	for _, body := range []string{
		`{"messages":[{"content":"hi"}],"max_tokens":5,"n":2}`,
		`{"prompt":["a",[1,2]],"best_of":3}`,
		fmt.Sprintf(`{"max_output_tokens":%d}`, int64(math.MaxInt64)),
	} {
		f.Add(body)
	}
	routes := []string{governance.RouteChat, governance.RouteCompletions, governance.RouteResponses, governance.RouteEmbeddings}
	f.Fuzz(func(t *testing.T, body string) {
		doc, err := jsonedit.Parse([]byte(body))
		if err != nil {
			return
		}
		for _, route := range routes {
			d, err := governance.DemandOf(route, doc)
			if err != nil {
				require.Equal(t, governance.CodeInvalidRequest, governance.CodeOf(err))
				continue
			}
			for _, policy := range []governance.ReservePolicy{governance.ReserveDeclared, governance.ReserveExpected, governance.ReserveMaximum} {
				require.GreaterOrEqual(t, d.Output(&governance.Target{ExpectedOutput: math.MaxInt64}, policy), int64(0))
			}
			require.GreaterOrEqual(t, d.Input, int64(0))
		}
	})
}

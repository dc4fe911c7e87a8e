package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/money"
	"github.com/tollgate-gateway/tollgate/internal/pricebook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What has at most nine digits behind the point is read exactly: as text, never as a binary fraction.
func TestNanoPerMillion_IsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		nano := rapid.Int64Range(0, 1_000_000_000_000).Draw(t, "nano")
		got, err := nanoPerMillion(json.Number(money.Nano(nano).String()), 1_000_000)
		require.NoError(t, err)
		require.Equal(t, nano, got)
		got, err = nanoPerMillion(json.Number(money.Nano(nano).String()), 1_000)
		require.NoError(t, err)
		require.Equal(t, nano*1000, got)
	})
}

func TestNanoPerMillion_DropsTracesAndRoundsThirdsUp(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"0.18000000000000002": 180_000_000,
		"0.08333333333333334": 83_333_334,
		"0.29999999999999999": 300_000_000,
		"0.0000000005":        1,
		"3":                   3_000_000_000,
	} {
		got, err := nanoPerMillion(json.Number(text), 1_000_000)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"-1", "1e-5", "", "x"} {
		_, err := nanoPerMillion(json.Number(text), 1_000_000)
		require.Error(t, err, text)
	}
}

func TestConvert(t *testing.T) {
	t.Parallel()
	items, err := convert([]byte(`[{"id":"aws","models":[
		{"id":"m","match":{"or":[{"equals":"m-1"},{"starts_with":"m-"}]},"prices":[
			{"prices":{"input_mtok":{"base":1,"tiers":[{"start":10,"price":2}]},"output_mtok":3,"input_gpixels":9}},
			{"constraint":{"type":"start_date","start_date":"2026-01-01"},"prices":{"input_mtok":4}},
			{"constraint":{"type":"time_of_date","start_time":"01:00:00Z"},"prices":{"input_mtok":{"base":1.5,"tiers":[{"start":20,"price":8}]}}}]},
		{"id":"m-2","match":{"equals":"m-2"},"prices":{"input_mtok":0}},
		{"id":"unknown","match":{"equals":"unknown"},"prices":{}}]}]`),
		[]byte(`{"amazon-bedrock":{"models":{"m-3":{"limit":{"output":77}},"other":{"limit":{"output":1}}}}}`))
	require.NoError(t, err)
	const in, out = governance.UnitInput, governance.UnitOutput
	prices := func(of ...int64) map[governance.Unit]int64 {
		m := map[governance.Unit]int64{in: of[0] * 100_000_000}
		if len(of) > 1 {
			m[out] = of[1] * 100_000_000
		}
		return m
	}
	require.Equal(t, []pricebook.Entry{
		{Provider: "aws", Names: []string{"m", "m-1", "m-3"}, MaxOutput: 77, Versions: []pricebook.Version{
			{Tiers: []pricebook.Tier{
				{Prices: prices(15, 30)}, {FromInput: 11, Prices: prices(20, 30)}, {FromInput: 21, Prices: prices(80, 30)},
			}},
			{From: "2026-01-01", Tiers: []pricebook.Tier{{Prices: prices(40)}, {FromInput: 21, Prices: prices(80)}}},
		}},
		{Provider: "aws", Names: []string{"m-2"}, Versions: []pricebook.Version{{Free: true, Tiers: []pricebook.Tier{{Prices: prices(0)}}}}},
	}, items)
}

// What is no token has its own number of units: an hour has 3,600 seconds, and what does not divide is rounded up.
func TestParseSteps_UnitsThatAreNoTokens(t *testing.T) {
	t.Parallel()
	all, err := parseSteps(map[string]json.RawMessage{
		"audio_hours": json.RawMessage("0.111"), "input_audio_hours": json.RawMessage("0.111"), "input_mchars": json.RawMessage("15"),
		"rerank_searches_kcount": json.RawMessage("2"), "requests_kcount": json.RawMessage("5"),
	})
	require.NoError(t, err)
	require.Equal(t, steps{
		governance.UnitSecond: {{0, 30_833_333_334}}, governance.UnitCharacter: {{0, 15_000_000_000}},
		governance.UnitSearch: {{0, 2_000_000_000_000}}, governance.UnitRequest: {{0, 5_000_000_000_000}},
	}, all)
}

func TestConvert_RefusesAConstraintOfAnUnknownKind(t *testing.T) {
	t.Parallel()
	_, err := convert([]byte(`[{"id":"p","models":[{"id":"m","match":{},"prices":[{"constraint":{"type":"moon"},"prices":{}}]}]}]`), []byte(`{}`))
	require.ErrorContains(t, err, "no known kind")
}

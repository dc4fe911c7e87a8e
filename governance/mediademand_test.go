package governance_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
)

// What a request for pictures, speech, transcripts or rankings may use at most, by the piece and by the token.
func TestDemandOf_WhatIsNoText(t *testing.T) {
	t.Parallel()
	documents := `"` + strings.Repeat(`x","`, 150) + `x"`
	for _, tc := range []struct {
		name, route, body string
		unit              governance.Unit
		counted, output   int64
		tier              string
	}{
		{"a picture", governance.RouteImages, `{"prompt":"abc"}`, governance.UnitImage, 1, 6240, ""},
		{"two of low quality", governance.RouteImages, `{"n":2,"quality":"low"}`, governance.UnitImage, 2, 2 * 417, "low"},
		{"a large one", governance.RouteImages, `{"quality":"auto","size":"2048x3072"}`, governance.UnitImage, 1, 4 * 6240, "2048x3072"},
		{"one that is shown on its way", governance.RouteImages, `{"partial_images":3}`, governance.UnitImage, 1, 6540, ""},
		{"one that moves", governance.RouteImages, `{"output_format":"gif","quality":"low"}`, governance.UnitImage, 1, 9 * 417, "low"},
		{"one that moves longer", governance.RouteImages, `{"output_format":"gif","quality":"low","frame_count":16}`, governance.UnitImage, 1, 16 * 417, "low"},
		{"speech", governance.RouteSpeech, `{"input":"Grüße, 漢字 🙂"}`, governance.UnitCharacter, 11, 22 + 128, ""},
		{"a ranking", governance.RouteRerank, `{"query":"q","documents":["a","b"]}`, governance.UnitSearch, 1, 0, ""},
		{"a ranking of many", governance.RouteRerank, `{"query":"q","documents":[` + documents + `]}`, governance.UnitSearch, 2, 0, ""},
		{"a ranking of long ones", governance.RouteRerank, `{"query":"q","documents":["` + strings.Repeat("x", 300_000) + `"]}`, governance.UnitSearch, 3, 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d, err := demandOf(t, tc.route, tc.body)
			require.NoError(t, err)
			require.Equal(t, tc.counted, d.Counted[tc.unit])
			require.Equal(t, tc.tier, d.Tier)
			require.Equal(t, tc.output, d.Output(&governance.Target{}, governance.ReserveDeclared))
			byPiece := governance.PriceTier{}
			byPiece.Prices[tc.unit] = 1
			target := &governance.Target{Price: &governance.PriceVersion{Tiers: []governance.PriceTier{byPiece}}}
			require.Zero(t, d.Output(target, governance.ReserveDeclared), "a price by the piece holds no tokens")
			require.False(t, d.Unpriced(target))
			target.Price.Tiers[0].Prices = governance.UnitPrices{}
			require.True(t, d.Unpriced(target))
		})
	}
}

// Pictures and speech that are charged by the token need no price of text that is written.
func TestUnpriced_PicturesAndSpeechByTheToken(t *testing.T) {
	t.Parallel()
	for route, c := range map[string]struct {
		body string
		unit governance.Unit
	}{
		governance.RouteImages: {`{"prompt":"abc"}`, governance.UnitOutputImage}, governance.RouteSpeech: {`{"input":"abc"}`, governance.UnitOutputAudio},
	} {
		d, err := demandOf(t, route, c.body)
		require.NoError(t, err)
		tier := governance.PriceTier{}
		tier.Prices[governance.UnitInput] = 1
		target := &governance.Target{Price: &governance.PriceVersion{Tiers: []governance.PriceTier{tier}}}
		require.True(t, d.Unpriced(target), route)
		target.Price.Tiers[0].Prices[c.unit] = 1
		require.False(t, d.Unpriced(target), route)
	}
	for _, body := range []string{`{"voice":"a"}`, `{"input":""}`, `{"input":null}`} {
		_, err := demandOf(t, governance.RouteSpeech, body)
		require.Error(t, err, body)
	}
}

// TestImageTier_LeadsToNoServiceTier: else a caller would choose the price.
func TestImageTier_LeadsToNoServiceTier(t *testing.T) {
	t.Parallel()
	for choice, want := range map[[2]string]string{
		{"hd", "1024x1792"}: "hd/1024x1792", {"batch", ""}: "", {"", "batch"}: "", {"Flex", "512x512"}: "512x512", {"512x512", ""}: "", {"us", "us"}: "",
		{"priority/us", "1x1"}: "1x1", {"low", "auto"}: "low", {"auto", "x"}: "", {"hd", "1024x"}: "hd",
	} {
		require.Equal(t, want, governance.ImageTier(choice[0], choice[1]), choice)
	}
}

// A price by the piece in one tier alone leaves the others to the token.
func TestUnpriced_ATierWithoutAPiece(t *testing.T) {
	t.Parallel()
	d, err := demandOf(t, governance.RouteImages, `{"prompt":"abc"}`)
	require.NoError(t, err)
	whole := governance.PriceTier{}
	whole.Prices[governance.UnitImage] = 1
	target := &governance.Target{Price: &governance.PriceVersion{Tiers: []governance.PriceTier{whole, {ServiceTier: "hd"}}}}
	require.True(t, d.Unpriced(target))
}

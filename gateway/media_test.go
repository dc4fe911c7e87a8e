package gateway_test

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/gateway"
	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/mock"
	"github.com/tollgate-gateway/tollgate/internal/money"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/plugins"
)

// priced sets the prices of a target's only tier, in nano-dollars per million.
func priced(t *governance.Target, units map[governance.Unit]int64) {
	tier := governance.PriceTier{}
	for u, perMillion := range units {
		tier.Prices[u] = moneyPerMillion(perMillion)
	}
	t.Price = &governance.PriceVersion{Num: 8, ID: "price_000000000008", Tiers: []governance.PriceTier{tier}}
}

// only is what a row counts.
func only(units map[governance.Unit]int64) governance.Quantities {
	var q governance.Quantities
	for u, n := range units {
		q[u] = n
	}
	return q
}

const imageBody = `{"model":"m","prompt":"A cat in a hat.","n":2}`

// Pictures that have a price by the piece are counted in the answer, whatever it says of tokens.
func TestImages_ByThePiece(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		priced(s.model("m", "ok_no_usage")[0], map[governance.Unit]int64{governance.UnitImage: 40_000_000_000_000}) // 0.04 each
	})
	a := b.post("/v1/images/generations", imageBody)
	require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	require.Equal(t, 2, strings.Count(a.text(), "b64_json"))
	require.Equal(t, "0.08", a.Header.Get("X-Tollgate-Cost-Usd"))
	s := b.settled(1)[0]
	require.Equal(t, only(map[governance.Unit]int64{governance.UnitImage: 2, governance.UnitRequest: 1}), s.Quantities)
	require.Equal(t, governance.UsageProvider, s.Source)
	require.Equal(t, dollars(t, "0.08"), b.ledger.admitted()[0].Estimate.Cost)
	require.JSONEq(t, `{"model":"mock-ok_no_usage","prompt":"A cat in a hat.","n":2}`, string(b.sent()[0].Body))
}

// Pictures that have a price by the token are held at the most that they can take, and settled to what the provider says.
func TestImages_ByTheToken(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		priced(s.model("m", "usage(10,2)")[0], map[governance.Unit]int64{governance.UnitInput: 5_000_000_000, governance.UnitOutput: 40_000_000_000})
	})
	a := b.post("/v1/images/generations", imageBody)
	require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	s := b.settled(1)[0]
	require.Equal(t, only(map[governance.Unit]int64{
		governance.UnitInput: 10, governance.UnitOutputImage: 2, governance.UnitImage: 2, governance.UnitRequest: 1,
	}), s.Quantities)
	require.Equal(t, dollars(t, "0.00013"), s.Cost)
	held := b.ledger.admitted()[0].Estimate
	require.EqualValues(t, 2*6240, held.Quantities[governance.UnitOutputImage])
}

// A provider that counts nothing where its price is by the token costs what was held, not nothing.
func TestImages_WithoutTheTokensOfTheirPrice(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.model("m", "ok_no_usage") })
	require.Equal(t, http.StatusOK, b.post("/v1/images/generations", imageBody).StatusCode)
	s := b.settled(1)[0]
	require.Equal(t, governance.UsageEstimate, s.Source)
	require.Equal(t, b.ledger.admitted()[0].Estimate.Cost, s.Cost)
	require.Positive(t, s.Cost)
}

// A stream of pictures passes byte for byte, and is settled to its last event.
func TestImages_Stream(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.model("m", "usage(10,272)") })
	a := b.post("/v1/images/generations", `{"model":"m","prompt":"A cat.","stream":true,"partial_images":2}`)
	require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	require.Equal(t, 2, strings.Count(a.text(), "event: image_generation.partial_image\n"))
	require.Equal(t, 1, strings.Count(a.text(), "event: image_generation.completed\n"))
	s := b.settled(1)[0]
	require.Equal(t, governance.OutcomeComplete, s.Outcome)
	require.Equal(t, only(map[governance.Unit]int64{
		governance.UnitInput: 10, governance.UnitOutputImage: 272, governance.UnitImage: 1, governance.UnitRequest: 1,
	}), s.Quantities)
}

// The quality and the size of a picture choose its price, as the request names them.
func TestImages_TiersByQualityAndSize(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		target := s.model("m", "ok_no_usage")[0]
		priced(target, map[governance.Unit]int64{governance.UnitImage: 40_000_000_000_000})
		for name, price := range map[string]int64{"hd": 80_000_000_000_000, "hd/1024x1792": 120_000_000_000_000} {
			tier := governance.PriceTier{ServiceTier: name}
			tier.Prices[governance.UnitImage] = moneyPerMillion(price)
			target.Price.Tiers = append(target.Price.Tiers, tier)
		}
	})
	for _, tc := range []struct{ choices, held, cost string }{
		{`"quality":"standard","size":"1024x1024"`, "0.04", "0.04"},
		{`"quality":"hd","size":"1024x1024"`, "0.08", "0.08"},
		{`"quality":"hd","size":"1024x1792"`, "0.12", "0.12"},
		{`"size":"1024x1024"`, "0.12", "0.04"}, // the provider may choose a quality
	} {
		a := b.post("/v1/images/generations", `{"model":"m","prompt":"A cat.",`+tc.choices+`}`)
		require.Equal(t, http.StatusOK, a.StatusCode, a.text())
		require.Equal(t, tc.cost, a.Header.Get("X-Tollgate-Cost-Usd"), tc.choices)
		all := b.ledger.admitted()
		require.Equal(t, tc.held, all[len(all)-1].Estimate.Cost.String(), tc.choices)
	}
}

// A budget of money holds exactly on the routes that are charged by the piece: one that affords two pictures admits two.
func TestImages_ABudgetAffordsWhatItCan(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		priced(s.model("m", "ok_no_usage")[0], map[governance.Unit]int64{governance.UnitImage: 40_000_000_000_000})
		s.limit(governance.KindBudget, governance.MetricCost, int64(dollars(t, "0.1")))
	})
	statuses := map[int]int{}
	for range 5 {
		statuses[b.post("/v1/images/generations", `{"model":"m","prompt":"A cat."}`).StatusCode]++
	}
	require.Equal(t, map[int]int{http.StatusOK: 2, http.StatusTooManyRequests: 3}, statuses)
	require.Len(t, b.sent(), 2)
}

func TestImages_AbsurdRequestsAreRefused(t *testing.T) {
	t.Parallel()
	b := start(t)
	for member, param := range map[string]string{
		`"n":0`: "n", `"n":-1`: "n", `"n":1e9`: "n", `"n":"2"`: "n", `"partial_images":-1`: "partial_images",
		`"quality":7`: "quality", `"size":[]`: "size",
	} {
		a := b.post("/v1/images/generations", `{"model":"m","prompt":"A cat.",`+member+`}`)
		require.Equal(t, http.StatusBadRequest, a.StatusCode, member)
		require.Equal(t, param, *a.failure(t).Param)
	}
	require.Empty(t, b.sent())
}

const speechBody = `{"model":"m","input":"Grüße!","voice":"alloy"}`

// Speech is charged by the character of the request; what is heard passes byte for byte.
func TestSpeech_ByTheCharacter(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		priced(s.model("m", "ok")[0], map[governance.Unit]int64{governance.UnitCharacter: 15_000_000_000})
	})
	a := b.post("/v1/audio/speech", speechBody)
	require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	require.NoError(t, a.err)
	require.Equal(t, "audio/mpeg", a.Header.Get("Content-Type"))
	require.True(t, strings.HasPrefix(a.text(), "ID3\x04"))
	require.True(t, strings.HasSuffix(a.text(), "\xff\xfb\x90\x00"+lastWord(t)))
	s := b.settled(1)[0]
	require.Equal(t, only(map[governance.Unit]int64{governance.UnitCharacter: 6, governance.UnitRequest: 1}), s.Quantities)
	require.Equal(t, dollars(t, "0.00009"), s.Cost)
	require.Equal(t, governance.OutcomeComplete, s.Outcome)
}

// Speech can be heard before all of it is there.
func TestSpeech_IsHeardAsItComes(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.model("m", "confirm") })
	o := b.openAt("/v1/audio/speech", speechBody)
	heard := make([]byte, 4)
	_, err := o.lines.Read(heard)
	require.NoError(t, err)
	require.Equal(t, "ID3\x04", string(heard))
	require.Empty(t, b.ledger.closed())
	for range 9 {
		b.release(1)
	}
	b.settled(1)
}

// Speech that breaks off does not end like a whole one.
func TestSpeech_ABrokenEndIsVisible(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.model("m", "reset_after(3)") })
	a := b.post("/v1/audio/speech", speechBody)
	require.Equal(t, http.StatusOK, a.StatusCode)
	require.Error(t, a.err)
	s := b.settled(1)[0]
	require.Equal(t, governance.OutcomeUpstreamAborted, s.Outcome)
	require.Positive(t, s.Cost, "the provider has spoken, and will charge for it")
}

// Speech as events reports its tokens.
func TestSpeech_AsEvents(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.model("m", "usage(5,9)") })
	a := b.post("/v1/audio/speech", `{"model":"m","input":"Hello.","voice":"alloy","stream_format":"sse"}`)
	require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	require.Equal(t, 1, strings.Count(a.text(), "event: speech.audio.done\n"))
	s := b.settled(1)[0]
	require.Equal(t, only(map[governance.Unit]int64{
		governance.UnitInput: 5, governance.UnitOutputAudio: 9, governance.UnitCharacter: 6, governance.UnitRequest: 1,
	}), s.Quantities)
}

// An error in the place of speech is one, and another target may be asked.
func TestSpeech_FallsBackBeforeItIsHeard(t *testing.T) {
	t.Parallel()
	for _, script := range []string{"status(503)", "reset_before_bytes", "reset_after(0)"} {
		b := start(t, func(s *setup) { s.model("m", script, "ok") })
		a := b.post("/v1/audio/speech", speechBody)
		require.Equal(t, http.StatusOK, a.StatusCode, "%s: %s", script, a.text())
		require.Equal(t, "2", a.Header.Get("X-Tollgate-Attempts"), script)
		require.True(t, strings.HasPrefix(a.text(), "ID3"), script)
	}
}

const rerankBody = `{"model":"m","query":"What is the capital?","documents":["Bern","Rome","Oslo"],"top_n":2}`

// Rankings are charged by the search or by the token, on either path.
func TestRerank(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		priced(s.model("m", "ok")[0], map[governance.Unit]int64{governance.UnitSearch: 2_000_000_000_000})
	})
	for _, path := range []string{"/v1/rerank", "/v2/rerank", "/rerank", "/openai/v1/rerank"} {
		a := b.post(path, rerankBody)
		require.Equal(t, http.StatusOK, a.StatusCode, a.text())
		require.Equal(t, "0.002", a.Header.Get("X-Tollgate-Cost-Usd"))
	}
	for _, s := range b.settled(4) {
		require.EqualValues(t, 1, s.Quantities[governance.UnitSearch])
		require.Equal(t, governance.UsageProvider, s.Source)
	}
	require.Equal(t, dollars(t, "0.002"), b.ledger.admitted()[0].Estimate.Cost)
}

func moneyPerMillion(n int64) money.PerMillion { return money.PerMillion(n) }

func lastWord(t *testing.T) string {
	t.Helper()
	words := strings.SplitAfter(mock.DefaultText, " ")
	return words[len(words)-1]
}

// TestF211_SpeechThatFallsSilentIsEnded: a provider that stops in the middle is not waited for without end, and what it has
// spoken is paid for.
func TestF211_SpeechThatFallsSilentIsEnded(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.model("m", "freeze_after(2)")
		s.config.Idle = 200 * time.Millisecond
	})
	a := b.post("/v1/audio/speech", speechBody)
	require.Equal(t, http.StatusOK, a.StatusCode)
	require.Error(t, a.err)
	s := b.settled(1)[0]
	require.Equal(t, governance.OutcomeUpstreamAborted, s.Outcome)
	require.Positive(t, s.Cost)
}

// A client that leaves while it listens ends the upstream's work, and pays for what was asked for.
func TestSpeech_AListenerLeaves(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		priced(s.model("m", "freeze_after(2)")[0], map[governance.Unit]int64{governance.UnitCharacter: 15_000_000_000})
	})
	o := b.openAt("/v1/audio/speech", speechBody)
	_, err := o.lines.ReadByte()
	require.NoError(t, err)
	o.leave()
	s := b.settled(1)[0]
	require.Equal(t, governance.OutcomeClientLeft, s.Outcome)
	require.EqualValues(t, 6, s.Quantities[governance.UnitCharacter])
	b.sums(func(c mock.Counts) bool { return c.Aborted == 1 })
}

// Speech whose length is known ends after its account is settled too.
func TestSpeech_OfAKnownLength(t *testing.T) {
	t.Parallel()
	sound := bytes.Repeat([]byte{0xff, 0xfb}, 100_000)
	b := hostile(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "audio/wav")
		w.Header().Set("Content-Length", strconv.Itoa(len(sound)))
		_, _ = w.Write(sound)
	})
	a := b.post("/v1/audio/speech", speechBody)
	require.NoError(t, a.err)
	require.Len(t, b.ledger.closed(), 1, "settled before its last byte")
	require.True(t, bytes.Equal(sound, a.body))
	require.EqualValues(t, len(sound), a.ContentLength)
}

// What is no sound is not passed on as some.
func TestSpeech_AnswersThatAreNone(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ contentType, body string }{
		{"text/html", "<html>busy</html>"}, {"audio/mpeg", ""}, {"application/json", `{"half":`}, {"", "\x00\x01"},
	} {
		b := hostile(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = []string{tc.contentType}
			_, _ = io.WriteString(w, tc.body)
		})
		a := b.post("/v1/audio/speech", speechBody)
		require.Equal(t, http.StatusBadGateway, a.StatusCode, "%s: %s", tc.contentType, a.text())
		require.Equal(t, "upstream_invalid_response", a.failure(t).Code)
		require.NotEqual(t, governance.OutcomeComplete, b.settled(1)[0].Outcome)
	}
}

// TestF079_ALargePictureIsOneLine: a picture of 17 MB comes as one line of a stream, and as one string of an answer.
func TestF079_ALargePictureIsOneLine(t *testing.T) {
	t.Parallel()
	picture := strings.Repeat("iVBORw0K", 17<<17)
	const usage = `"usage":{"input_tokens":10,"output_tokens":4160,"total_tokens":4170,"input_tokens_details":{"text_tokens":10,"image_tokens":0}}`
	event := "event: image_generation.completed\ndata: {\"type\":\"image_generation.completed\",\"b64_json\":\"" + picture + "\"," + usage + "}\n\n"
	whole := `{"created":1,"data":[{"b64_json":"` + picture + `"}],` + usage + `}`
	b := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if bytes.Contains(body, []byte("stream")) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, event)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, whole)
	})
	a := b.post("/v1/images/generations", `{"model":"m","prompt":"A cat.","stream":true}`)
	require.NoError(t, a.err)
	require.True(t, a.text() == event)
	a = b.post("/v1/images/generations", `{"model":"m","prompt":"A cat."}`)
	require.NoError(t, a.err)
	require.True(t, a.text() == whole)
	require.Empty(t, a.Header.Get("X-Tollgate-Cost-Usd"), "larger than answers whose cost stands in a header (ruling 37)")
	for _, s := range b.settled(2) {
		require.EqualValues(t, 4160, s.Quantities[governance.UnitOutputImage])
	}
}

// Moderations are metered like any other call: by their prompt, since they report nothing.
func TestModerations_AreMetered(t *testing.T) {
	t.Parallel()
	b := start(t)
	a := b.post("/v1/moderations", `{"model":"m","input":"Some words that are moderated."}`)
	require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	s := b.settled(1)[0]
	require.EqualValues(t, 10, s.Quantities[governance.UnitInput])
	require.Equal(t, dollars(t, "0.00001"), s.Cost)
}

// TestF224_WhatGuardsCannotSeeIsRefused: forms and sound pass no guard that has something to do for the caller.
func TestF224_WhatGuardsCannotSeeIsRefused(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.model("m", "ok")
		s.chain = []gateway.Link{{Plugin: filter{&witness{id: "w", event: func(sse.Event) (plugins.Verdict, error) { return plugins.Verdict{}, nil }}}}}
	})
	for _, a := range []answer{
		b.post("/v1/audio/speech", speechBody),
		b.postForm("/v1/audio/transcriptions", "model", "m", "file=a.mp3", "x"),
		b.postForm("/v1/images/edits", "model", "m", "image=a.png", "x"),
	} {
		require.Equal(t, http.StatusForbidden, a.StatusCode, a.text())
		require.Equal(t, "plugin_unsupported", a.failure(t).Code)
	}
	require.Empty(t, b.sent())
	require.Equal(t, http.StatusOK, b.post("/v1/images/generations", imageBody).StatusCode)
	require.Equal(t, http.StatusOK, b.post("/v1/rerank", rerankBody).StatusCode)
}

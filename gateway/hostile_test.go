package gateway_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/gateway"
	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/plugins"
)

// hostile starts a gateway whose only target is an upstream of the test's own.
func hostile(t *testing.T, upstream http.HandlerFunc, change ...func(*setup)) *bench {
	t.Helper()
	server := httptest.NewServer(upstream)
	t.Cleanup(server.Close)
	return start(t, append([]func(*setup){func(s *setup) { s.model("m", "small")[0].BaseURL = server.URL }}, change...)...)
}

func TestF23_T38_AnswersThatAreNone(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		code   string
	}{
		"HTML": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<html>welcome</html>")
		}, "upstream_invalid_response"},
		"empty":      {func(http.ResponseWriter, *http.Request) {}, "upstream_invalid_response"},
		"no content": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, "upstream_invalid_response"},
		"half of an object": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"id":"c","choices":[`)
		}, "upstream_invalid_response"},
		"not modified": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) }, "upstream_invalid_response"},
		"a length that is too long": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, `{}`)
		}, "upstream_aborted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := hostile(t, tc.answer)
			for _, body := range []string{chatBody, streamBody} {
				a := b.post("/v1/chat/completions", body)
				require.Equal(t, http.StatusBadGateway, a.StatusCode, a.text())
				require.Equal(t, tc.code, a.failure(t).Code)
				require.NotContains(t, a.text(), "welcome")
			}
			require.Zero(t, b.ledger.held())
			for _, s := range b.settled(2) {
				require.NotEqual(t, governance.OutcomeComplete, s.Outcome)
			}
		})
	}
}

func TestT21_ADecompressionBombIsCut(t *testing.T) {
	t.Parallel()
	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	_, err := io.WriteString(w, `{"x":"`)
	require.NoError(t, err)
	for range 64 {
		_, err = w.Write(bytes.Repeat([]byte("x"), 1<<20))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	b := hostile(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(bomb.Bytes())
	})
	a := b.chat()
	require.Equal(t, http.StatusBadGateway, a.StatusCode)
	require.Equal(t, "upstream_invalid_response", a.failure(t).Code)
}

func TestT18_TheProvidersHeadersEndHere(t *testing.T) {
	t.Parallel()
	b := hostile(t, func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		h.Set("Content-Type", "application/json")
		h.Set("Set-Cookie", "a=b")
		h.Set("Openai-Organization", "our-account")
		h.Set("X-Request-Id", "theirs")
		h.Set("X-Ratelimit-Remaining-Requests", "7")
		h.Set("Server", "theirs")
		h.Set("Trailer", "X-Trailer")
		_, _ = io.WriteString(w, `{"id":"c","object":"chat.completion","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
		h.Set("X-Trailer", "theirs")
	})
	a := b.chat()
	require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	for _, name := range []string{"Link", "Set-Cookie", "Openai-Organization", "X-Ratelimit-Remaining-Requests", "Server", "Trailer"} {
		require.Empty(t, a.Header.Get(name), name)
	}
	require.NotEqual(t, "theirs", a.Header.Get("X-Request-Id"))
	require.Empty(t, a.Trailer)
}

func TestF31_UsageThatMakesNoSenseIsEstimated(t *testing.T) {
	t.Parallel()
	for _, usage := range []string{`{"prompt_tokens":-5,"completion_tokens":1}`, `{"prompt_tokens":"many"}`, `{"prompt_tokens":9223372036854775807,"completion_tokens":1}`, `null`} {
		b := hostile(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"id":"c","choices":[{"index":0,"message":{"content":"hello there"},"finish_reason":"stop"}],"usage":`+usage+`}`)
		})
		a := b.chat()
		require.Equal(t, http.StatusOK, a.StatusCode)
		require.Contains(t, a.text(), usage, "the answer itself is not touched")
		s := b.settled(1)
		require.Equal(t, governance.UsageEstimate, s[0].Source)
		require.Positive(t, s[0].Cost)
		require.Equal(t, 1, b.metrics.all()["tollgate_gateway_usage_missing_total{provider-1}"])
	}
}

func TestF31_AnExplicitZeroIsZero(t *testing.T) {
	t.Parallel()
	b := hostile(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}}`)
	})
	a := b.chat()
	require.Equal(t, "0", a.Header.Get("X-Tollgate-Cost-Usd"))
	require.Equal(t, governance.UsageZero, b.settled(1)[0].Source)
}

func TestRuling39_AnIncompleteLastEventIsNotForwarded(t *testing.T) {
	t.Parallel()
	const frame = `data: {"id":"c","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}` + "\n\n"
	send := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, text)
		}
	}
	a := hostile(t, send(frame+`data: {"id":"c","cho`)).stream()
	require.True(t, strings.HasPrefix(a.text(), frame+`data: {"error":`), a.text())
	require.NotContains(t, a.text(), `"cho`+"\n")

	a = hostile(t, send(frame+"data: [DONE]\n")).stream()
	require.NoError(t, a.err)
	require.Equal(t, frame+"data: [DONE]\n", a.text(), "one that is ended by a single newline is complete")

	a = hostile(t, send(strings.TrimSuffix(frame, "\n"))).stream()
	require.Contains(t, a.text(), "}]}\n\ndata: {\"error\":", "the error is an event of its own")
}

func TestF155_AnAuthenticatorThatCannotReadIsNoPluginFailure(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.model("m", "small")
		s.chain = []gateway.Link{{Plugin: &witness{id: "w", guard: func(context.Context) (plugins.Verdict, error) {
			return plugins.Verdict{}, errors.Join(errors.New("MARK"), governance.ErrStoreAway)
		}}}}
	})
	a := b.chat()
	require.Equal(t, http.StatusServiceUnavailable, a.StatusCode)
	require.Equal(t, "data_store_unavailable", a.failure(t).Code)
	requireClean(t, a, "MARK")
}

func TestAnUpstreamThatKeepsItsConnectionOpenAfterTheEnd(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	b := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, `data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	a := b.stream()
	require.NoError(t, a.err)
	require.True(t, strings.HasSuffix(a.text(), "[DONE]\n\n"))
	require.Equal(t, governance.OutcomeComplete, b.settled(1)[0].Outcome)
}

// TestUsageOfAnUnknownShapeIsKeptAndFlagged: the call is charged by an estimate, and what the provider said can be looked at.
func TestUsageOfAnUnknownShapeIsKeptAndFlagged(t *testing.T) {
	t.Parallel()
	w := &witness{id: "w"}
	b := start(t, func(s *setup) {
		s.model("m", "usage(-5,7)")
		s.chain = []gateway.Link{{Plugin: w}}
	})
	require.Equal(t, http.StatusOK, b.chat().StatusCode)
	told := w.told(t)
	require.Equal(t, "unknown", told.Call.Tags["tollgate.usage_shape"])
	require.Len(t, told.Attempts, 1)
	require.Equal(t, governance.UsageEstimate, told.Attempts[0].Settlement.Source)
	require.Contains(t, string(told.Attempts[0].RawUsage), `"prompt_tokens":-5`)
}

// TestDearTiersAreHeldAndBookedForThoseWhoAsk, also where the answer breaks off before it says its tier.
func TestDearTiersAreHeldAndBookedForThoseWhoAsk(t *testing.T) {
	t.Parallel()
	w := &witness{id: "w"}
	b := start(t, func(s *setup) {
		s.chain = []gateway.Link{{Plugin: w}}
		for _, target := range append(s.model("m", "small"), s.model("cut", "reset_after(3)")...) {
			dear := target.Price.Tiers[0]
			dear.ServiceTier = governance.ServiceTierPriority
			dear.Prices[governance.UnitInput] *= 3
			dear.Prices[governance.UnitOutput] *= 3
			target.Price = &governance.PriceVersion{Num: 8, ID: "price_000000000008", Tiers: []governance.PriceTier{target.Price.Tiers[0], dear}}
		}
	})
	ask := func(model, tier string) {
		b.post("/v1/chat/completions", `{"model":"`+model+`","stream":true,"max_tokens":20,"messages":[{"role":"user","content":"hello"}]`+tier+`}`)
	}
	ask("m", "")
	ask("m", `,"service_tier":"default"`)
	ask("m", `,"service_tier":"priority"`)
	ask("cut", "")
	ask("cut", `,"service_tier":"priority"`)
	held := b.ledger.admitted()
	require.Len(t, held, 5)
	require.Equal(t, held[0].Estimate.Cost, held[1].Estimate.Cost)
	require.Equal(t, 3*held[0].Estimate.Cost, held[2].Estimate.Cost)
	var records []plugins.Record
	require.Eventually(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		records = slices.Clone(w.records)
		return len(records) == 5
	}, time.Minute, time.Millisecond)
	var booked []int64 // dollars per million tokens of the output
	for _, r := range records {
		s := r.Attempts[0].Settlement
		require.Positive(t, s.Cost)
		booked = append(booked, int64(s.Prices[governance.UnitOutput])/1_000_000_000)
	}
	slices.Sort(booked) // records may come in another order
	require.Equal(t, []int64{2, 2, 2, 2, 6}, booked, "the provider says that the third was ordinary; what broke off had not said it")
}

// TestServiceTiersAreChargedOrFlagged: a tier that has prices is charged at them, one that has none at the ordinary ones, and
// then the row says so. What the provider calls its ordinary tier is no such thing.
func TestServiceTiersAreChargedOrFlagged(t *testing.T) {
	t.Parallel()
	for tier, want := range map[string]struct{ cost, tag string }{
		"default":  {"0.00003", ""},
		"flex":     {"0.000015", ""},
		"priority": {"0.00003", "priority"},
	} {
		t.Run(tier, func(t *testing.T) {
			t.Parallel()
			w := &witness{id: "w"}
			b := hostile(t, func(rw http.ResponseWriter, _ *http.Request) {
				rw.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(rw, `{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],`+
					`"usage":{"prompt_tokens":10,"completion_tokens":10,"total_tokens":20},"service_tier":"`+tier+`"}`)
			}, func(s *setup) {
				s.chain = []gateway.Link{{Plugin: w}}
				flex := s.targets[0].Price.Tiers[0]
				flex.ServiceTier = "flex"
				flex.Prices[governance.UnitInput] /= 2
				flex.Prices[governance.UnitOutput] /= 2
				s.targets[0].Price.Tiers = append(s.targets[0].Price.Tiers, flex)
			})
			a := b.chat()
			require.Equal(t, http.StatusOK, a.StatusCode, a.text())
			require.Equal(t, want.cost, a.Header.Get("X-Tollgate-Cost-Usd"))
			require.Equal(t, want.tag, w.told(t).Call.Tags["tollgate.unpriced_tier"])
			flagged := 0
			if want.tag != "" {
				flagged = 1
			}
			require.Equal(t, flagged, b.metrics.all()["tollgate_gateway_service_tier_unpriced_total{provider-1}"])
		})
	}
}

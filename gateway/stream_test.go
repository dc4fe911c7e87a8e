package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/mock"
	"github.com/tollgate-gateway/tollgate/providers/translate"
)

// direct asks the mock itself, past the gateway, with the body that the gateway would send.
func (b *bench) direct(script, body string) string {
	b.t.Helper()
	body = strings.Replace(body, `"m"`, strconv.Quote("mock-"+script), 1)
	r, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, b.mockURL+"/v1/chat/completions", strings.NewReader(body))
	require.NoError(b.t, err)
	r.Header.Set("Authorization", "Bearer "+upstreamID)
	return b.do(r).text()
}

// withUsage is a stream whose usage frame the client asked for, so that nothing at all may differ.
const withUsage = `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"Say hello."}]}`

// numbered hides what differs between two answers of the mock: its running number.
func numbered(s string) string {
	for i := range 20 {
		s = strings.ReplaceAll(s, fmt.Sprintf("mock-%d\"", i), "mock-N\"")
	}
	return s
}

func TestStreams_PassByteForByte(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"F070 combined terminal frame": "combined_terminal_frame",
		"F071 role-only frames":        "role_only",
		"F071 refusals":                "refusal",
		"F071 annotations":             "annotations",
		"F073 dribble of 1 byte":       "byte_dribble(1)",
		"F073 dribble of 7 bytes":      "byte_dribble(7)",
		"F074 comments":                "comments(3)",
		"F079 line of 70 KB":           "giant_line(70k)",
		"F079 line of 1.1 MB":          "giant_line(1100k)",
		"F079 line of 5 MB":            "giant_line(5m)",
		"F079 line of 17 MB":           "giant_line(17m)",
		"F080 blank lines":             "blank_lines(5000)",
		"F080 comment lines":           "comments(5000)",
		"F091 choices empty":           "choices_shape(empty)",
		"F091 choices null":            "choices_shape(null)",
		"F091 choices object":          "choices_shape(object)",
		"F091 choices absent":          "choices_shape(absent)",
		"F091 data null":               "data_null",
		"F094 parallel tools":          "parallel_tools_in_one_frame",
		"F113 two choices interleaved": "n2_interleaved",
		"two terminal events":          "two_terminal_events",
		"logprobs":                     "logprobs",
		"usage in each frame":          "usage_each_frame_cumulative",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t, func(s *setup) { s.model("m", script) })
			a := b.post("/v1/chat/completions", withUsage)
			require.Equal(t, http.StatusOK, a.StatusCode)
			require.NoError(t, a.err)
			want := b.direct(script, withUsage)
			require.True(t, numbered(want) == numbered(a.text()), "the stream has changed: %.400s\nwant %.400s", a.text(), want)
			s := b.settled(1)
			require.Equal(t, governance.OutcomeComplete, s[0].Outcome)
			require.Equal(t, governance.UsageProvider, s[0].Source)
			require.Zero(t, b.ledger.held())
		})
	}
}

func TestF077_F086_F131_AnErrorInsideASuccessGetsItsRealStatus(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.model("m", "200_first_event_error"); s.model("u", "200_with_error_body") })
	a := b.stream()
	require.GreaterOrEqual(t, a.StatusCode, 400)
	require.Equal(t, "application/json", a.Header.Get("Content-Type"))
	require.NotEmpty(t, a.failure(t).Message)

	a = b.post("/v1/chat/completions", strings.Replace(chatBody, `"m"`, `"u"`, 1))
	require.GreaterOrEqual(t, a.StatusCode, 400, a.text())
	require.NotEmpty(t, a.failure(t).Message)
	for _, s := range b.settled(2) {
		require.Equal(t, governance.OutcomeUpstreamError, s.Outcome)
		require.Zero(t, s.Cost)
	}
}

func TestF077_AFirstEventErrorTriesTheNextTarget(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.model("m", "status(500)", "small") })
	a := b.stream()
	require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	require.Equal(t, "2", a.Header.Get("X-Tollgate-Attempts"))
}

func TestF083_F085_F089_ABrokenStreamNeverLooksWhole(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{"reset": "reset_after(3)", "clean close": "clean_close_without_done(3)"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t, func(s *setup) { s.model("m", script) })
			a := b.stream()
			require.Equal(t, http.StatusOK, a.StatusCode)
			require.NotContains(t, a.text(), "[DONE]")
			require.ErrorIs(t, a.err, io.ErrUnexpectedEOF, "the terminating chunk must be missing")
			frames := strings.Split(strings.TrimSpace(a.text()), "\n\n")
			require.Contains(t, frames[len(frames)-1], `data: {"error":{"message":"The provider broke off its answer."`)
			require.NotContains(t, a.text(), "event:")
			s := b.settled(1)
			require.Equal(t, governance.OutcomeUpstreamAborted, s[0].Outcome)
			require.Positive(t, s[0].Quantities.OutputTokens())
		})
	}
	t.Run("responses", func(t *testing.T) {
		t.Parallel()
		b := start(t, func(s *setup) { s.model("m", "reset_after(3)") })
		a := b.post("/v1/responses", `{"model":"m","stream":true,"input":"Say hello."}`)
		require.Equal(t, http.StatusOK, a.StatusCode)
		require.Contains(t, a.text(), "event: error\ndata: {\"type\":\"error\",\"code\":\"upstream_aborted\"")
		require.NotContains(t, a.text(), "response.completed")
		require.Equal(t, governance.OutcomeUpstreamAborted, b.settled(1)[0].Outcome)
	})
	t.Run("before any byte", func(t *testing.T) {
		t.Parallel()
		b := start(t, func(s *setup) { s.model("m", "reset_before_bytes") })
		a := b.stream()
		require.Equal(t, http.StatusBadGateway, a.StatusCode)
		require.Equal(t, "upstream_unreachable", a.failure(t).Code)
		require.Equal(t, "false", a.Header.Get("X-Should-Retry"))
		require.Equal(t, "true", a.Header.Get("X-Envoy-Ratelimited"))
	})
}

func TestRuling30_ACleanEndAfterEveryFinishReasonIsComplete(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.model("m", "clean_close_without_done") })
	a := b.stream()
	require.NoError(t, a.err)
	require.NotContains(t, a.text(), "error")
	require.Equal(t, governance.OutcomeComplete, b.settled(1)[0].Outcome)
}

func TestF082_AnUpstreamsOwnErrorEventPassesAndNothingIsAdded(t *testing.T) {
	t.Parallel()
	for _, shape := range []string{"object", "string", "event", "nested", "numeric_code"} {
		t.Run(shape, func(t *testing.T) {
			t.Parallel()
			script := "mid_stream_error(" + shape + ")"
			b := start(t, func(s *setup) { s.model("m", script) })
			a := b.post("/v1/chat/completions", withUsage)
			require.Equal(t, http.StatusOK, a.StatusCode)
			require.Equal(t, numbered(b.direct(script, withUsage)), numbered(a.text()))
			require.ErrorIs(t, a.err, io.ErrUnexpectedEOF)
			require.Equal(t, governance.OutcomeUpstreamAborted, b.settled(1)[0].Outcome)
		})
	}
}

func TestF086_StatusMirrorsTheUpstreamUntilTheFirstByte(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 404, 409, 413, 422, 429, 500, 503} {
		b := start(t, func(s *setup) { s.model("m", fmt.Sprintf("status(%d)", status)) })
		a := b.stream()
		require.Equal(t, status, a.StatusCode)
		require.Equal(t, b.direct(fmt.Sprintf("status(%d)", status), streamBody), a.text(), "the error body passes untouched")
		require.Equal(t, "application/json", a.Header.Get("Content-Type"))
	}
}

func TestF050_F088_AClientThatLeavesBeforeTheFirstByteIsSeen(t *testing.T) {
	t.Parallel()
	for _, body := range []string{chatBody, streamBody} {
		b := start(t, func(s *setup) {
			s.model("m", "hold")
			s.model("ok", "small")
			s.limit(governance.KindConcurrency, governance.MetricRequests, 1)
		})
		ctx, leave := contextWithCancel(t)
		failed := make(chan error, 1)
		go func() {
			response, err := b.client.Do(b.request(http.MethodPost, "/v1/chat/completions", body).WithContext(ctx))
			if err == nil {
				_ = response.Body.Close()
			}
			failed <- err
		}()
		b.sums(func(c mock.Counts) bool { return c.InFlight == 1 })
		leave()
		require.Error(t, <-failed)
		b.sums(func(c mock.Counts) bool { return c.Aborted == 1 })
		s := b.settled(1)
		require.Equal(t, governance.OutcomeClientLeft, s[0].Outcome)
		b.idle()
		require.Equal(t, http.StatusOK, b.post("/v1/chat/completions", strings.Replace(body, `"m"`, `"ok"`, 1)).StatusCode, "the slot is free again")
	}
}

func TestF050_EveryWayOutFreesTheSlot(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.model("m", "small")
		s.model("cut", "confirm")
		s.model("broken", "reset_after(2)")
		s.model("refused", "status(500)")
		s.limit(governance.KindConcurrency, governance.MetricRequests, 1)
	})
	use := func(model string) answer {
		return b.post("/v1/chat/completions", strings.Replace(streamBody, `"m"`, strconv.Quote(model), 1))
	}
	o := b.open(strings.Replace(streamBody, `"m"`, `"cut"`, 1))
	o.event(t)
	require.Equal(t, http.StatusTooManyRequests, b.stream().StatusCode)
	o.leave()
	b.settled(1)
	b.idle()
	for _, model := range []string{"m", "broken", "m", "refused", "m", "unknown", "m"} {
		a := use(model)
		require.NotEqual(t, http.StatusTooManyRequests, a.StatusCode, model)
	}
	require.Zero(t, b.ledger.held())
}

func TestF004_F092_DisconnectSettlesByTheTargetsWay(t *testing.T) {
	t.Parallel()
	t.Run("abort", func(t *testing.T) {
		t.Parallel()
		b := start(t, func(s *setup) { s.model("m", "confirm") })
		o := b.open(streamBody)
		b.mock.Release(0, 2)
		o.event(t)
		o.event(t)
		o.leave()
		b.sums(func(c mock.Counts) bool { return c.Aborted == 1 })
		s := b.settled(1)
		require.Equal(t, governance.OutcomeClientLeft, s[0].Outcome)
		require.Equal(t, governance.UsageEstimate, s[0].Source)
		require.Positive(t, s[0].Cost)
	})
	t.Run("drain", func(t *testing.T) {
		t.Parallel()
		b := start(t, func(s *setup) { s.model("m", "confirm")[0].OnDisconnect = governance.DisconnectDrain })
		o := b.open(streamBody)
		b.mock.Release(0, 2)
		o.event(t)
		o.leave()
		require.Eventually(t, func() bool { b.mock.Release(0, 1); return b.mock.Counts().Ended == 1 }, 10*time.Second, time.Millisecond)
		s := b.settled(1)
		require.Equal(t, governance.OutcomeClientLeft, s[0].Outcome)
		require.Equal(t, governance.UsageProvider, s[0].Source)
		require.Zero(t, b.mock.Counts().Aborted)
	})
	t.Run("drain is bounded in number", func(t *testing.T) {
		t.Parallel()
		b := start(t, func(s *setup) {
			s.config.Drains = 0
			s.model("m", "confirm")[0].OnDisconnect = governance.DisconnectDrain
		})
		o := b.open(streamBody)
		b.mock.Release(0, 1)
		o.event(t)
		o.leave()
		b.sums(func(c mock.Counts) bool { return c.Aborted == 1 })
	})
	t.Run("drain is bounded in time", func(t *testing.T) {
		t.Parallel()
		b := start(t, func(s *setup) {
			s.config.DrainTime = time.Millisecond
			s.model("m", "confirm")[0].OnDisconnect = governance.DisconnectDrain
		})
		o := b.open(streamBody)
		b.mock.Release(0, 1)
		o.event(t)
		o.leave()
		b.sums(func(c mock.Counts) bool { return c.Aborted == 1 })
		require.Equal(t, governance.UsageEstimate, b.settled(1)[0].Source)
	})
}

func TestF095_CompressedAnswersAreReadable(t *testing.T) {
	t.Parallel()
	for _, coding := range []string{"gzip", "deflate", "br"} {
		b := start(t, func(s *setup) { s.model("m", coding); s.model("bad", coding+",status(400)") })
		for _, accept := range []string{"", "gzip, br"} {
			a := b.chat("Accept-Encoding", accept)
			require.Equal(t, http.StatusOK, a.StatusCode, a.text())
			require.Contains(t, a.text(), `"object":"chat.completion"`)
			require.Empty(t, a.Header.Get("Content-Encoding"))
			a = b.stream("Accept-Encoding", accept)
			require.True(t, strings.HasSuffix(a.text(), "[DONE]\n\n"), a.text())
			a = b.post("/v1/chat/completions", strings.Replace(chatBody, `"m"`, `"bad"`, 1), "Accept-Encoding", accept)
			require.Equal(t, http.StatusBadRequest, a.StatusCode)
			require.NotEmpty(t, a.failure(t).Message)
		}
	}
}

func TestF211_OnlyPingsAreSilence(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.config.Idle = 150 * time.Millisecond
		s.model("m", "pings_only_after(3,10ms)")
		s.model("frozen", "freeze_after(3)")
	})
	for _, model := range []string{"m", "frozen"} {
		a := b.post("/v1/chat/completions", strings.Replace(streamBody, `"m"`, strconv.Quote(model), 1))
		require.Equal(t, http.StatusOK, a.StatusCode)
		require.Contains(t, a.text(), `"code":"upstream_timeout"`)
		require.NotContains(t, a.text(), "[DONE]")
	}
	for _, s := range b.settled(2) {
		require.Equal(t, governance.OutcomeUpstreamAborted, s.Outcome)
	}
}

func TestF018_SilenceBeforeTheFirstByte(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.config.Connect, s.config.FirstByte = 900*time.Millisecond, time.Second
		s.model("m", "hold")
	})
	a := b.stream()
	require.Equal(t, http.StatusGatewayTimeout, a.StatusCode)
	require.Equal(t, "upstream_timeout", a.failure(t).Code)
	require.Equal(t, "false", a.Header.Get("X-Should-Retry"))
	require.Equal(t, governance.UsageReservation, b.settled(1)[0].Source)
}

func TestF212_TheLastTargetGetsAllOfTheTime(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.config.FailoverAfter = 10 * time.Millisecond
		s.model("m", "first_byte_delay(50ms)")
		s.model("second", "hold", "first_byte_delay(50ms)")
	})
	a := b.stream()
	require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	a = b.post("/v1/chat/completions", strings.Replace(streamBody, `"m"`, `"second"`, 1))
	require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	require.Equal(t, "2", a.Header.Get("X-Tollgate-Attempts"))
}

func TestF097_KeepAlivesWhereSwitchedOn(t *testing.T) {
	t.Parallel()
	const empty = `"choices":[{"index":0,"delta":{},"finish_reason":null}]`
	b := start(t, func(s *setup) {
		s.config.KeepAlive = 5 * time.Millisecond
		s.model("m", "hold")
		s.model("refused", "hold,status(429)")
		s.model("broken", "hold,reset_after(2)")
		s.model("slow", "confirm")
	})
	as := func(model string) string { return strings.Replace(streamBody, `"m"`, strconv.Quote(model), 1) }
	o := b.open(as("m"))
	require.Equal(t, http.StatusOK, o.StatusCode, "committed although the upstream has said nothing")
	for range 3 {
		require.Contains(t, o.event(t), empty)
	}
	b.release(1)
	rest, err := io.ReadAll(o.lines)
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(string(rest), "data: [DONE]\n\n"))
	require.Equal(t, governance.OutcomeComplete, b.settled(1)[0].Outcome)

	o = b.open(as("refused"))
	require.Contains(t, o.event(t), empty)
	b.release(1)
	rest, err = io.ReadAll(o.lines)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Contains(t, string(rest), `data: {"error":`, "later errors are told within the stream")
	require.NotContains(t, string(rest), "[DONE]")

	o = b.open(as("broken"))
	require.Contains(t, o.event(t), empty)
	b.release(1)
	rest, err = io.ReadAll(o.lines)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Contains(t, string(rest), `"code":"upstream_aborted"`)

	// Behind the upstream's first frame they are of the same answer.
	o = b.open(as("slow"))
	for e := o.event(t); !strings.Contains(e, "chatcmpl-mock"); e = o.event(t) {
		require.Contains(t, e, `"id":""`)
	}
	require.Regexp(t, `"id":"chatcmpl-mock-[0-9]+","object":"chat.completion.chunk","created":1750000000,.*`+regexp.QuoteMeta(empty), o.event(t))
	b.release(20)
	_, err = io.ReadAll(o.lines)
	require.NoError(t, err)

	b.settled(4)
	require.Zero(t, b.ledger.held())
}

func TestF097_WhatIsKnownEarlyKeepsItsStatus(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.config.KeepAlive = time.Minute
		s.model("m", "status(429)")
		s.model("ok", "small")
	})
	require.Equal(t, http.StatusTooManyRequests, b.stream().StatusCode)
	require.Equal(t, http.StatusTooManyRequests, b.chat().StatusCode)
	a := b.post("/v1/chat/completions", strings.Replace(streamBody, `"m"`, `"ok"`, 1))
	require.NotContains(t, a.text(), `"delta":{},"finish_reason":null`)
}

func TestF098_F208_AClientThatStopsReadingIsDropped(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.config.ClientWrite = 1200 * time.Millisecond
		s.model("m", "giant_line(30m)")
	})
	o := b.open(streamBody)
	_ = o // it reads nothing more
	s := b.settled(1)
	require.Equal(t, governance.OutcomeClientLeft, s[0].Outcome)
	b.idle()
	require.Zero(t, b.ledger.held())
}

func TestF208_AnEndlessLineIsAnError(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.model("m", "endless_line") })
	a := b.stream()
	require.Equal(t, http.StatusBadGateway, a.StatusCode)
	require.Equal(t, "upstream_invalid_response", a.failure(t).Code)
	b.sums(func(c mock.Counts) bool { return c.Aborted == 1 })
	require.Zero(t, b.ledger.held())
}

func TestF115_TargetsWithoutStreamOptions(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.model("m", "small")[0].NoStreamOptions = true })
	for _, body := range []string{streamBody, withUsage} {
		a := b.post("/v1/chat/completions", body)
		require.Equal(t, http.StatusOK, a.StatusCode, a.text())
		require.True(t, strings.HasSuffix(a.text(), "[DONE]\n\n"))
		require.Equal(t, body == withUsage, strings.Contains(a.text(), `"choices":[],"usage":{"prompt_tokens":`), "the client's view is constant")
		require.Equal(t, body == withUsage, strings.Contains(a.text(), `"estimated":true}}`))
	}
	for _, r := range b.sent() {
		require.NotContains(t, string(r.Body), "stream_options")
	}
	for _, s := range b.settled(2) {
		require.Equal(t, governance.UsageEstimate, s.Source)
		require.Positive(t, s.Quantities.OutputTokens())
	}
}

func TestRuling35_OtherStreamOptionsKeepTheirBytes(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.post("/v1/chat/completions", `{"model":"m","stream":true,"stream_options":{ "x" : 1.0},"messages":[]}`)
	require.Contains(t, string(b.sent()[0].Body), `"stream_options":{"include_usage":true, "x" : 1.0}`)
	a := b.post("/v1/chat/completions", `{"model":"m","stream":true,"stream_options":[],"messages":[]}`)
	require.Equal(t, http.StatusBadRequest, a.StatusCode)
	require.Equal(t, "stream_options", *a.failure(t).Param)
	require.Zero(t, b.ledger.held())
}

func TestRuling31_TheEndOfAnAnswerWaitsForItsSettlement(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.config.AnswerHold = 5 * time.Second })
	b.ledger.slow = make(chan struct{})
	o := b.open(streamBody)
	for !strings.Contains(o.event(t), `"finish_reason":"stop"`) {
	}
	require.Empty(t, b.ledger.closed())
	close(b.ledger.slow)
	rest, err := io.ReadAll(o.lines)
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(string(rest), "data: [DONE]\n\n"))
	require.Len(t, b.ledger.closed(), 1)
}

func TestRuling31_ButNotForLong(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.ledger.slow = make(chan struct{})
	a := b.stream()
	require.True(t, strings.HasSuffix(a.text(), "data: [DONE]\n\n"))
}

func TestF199_AbandonedStreamsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.translators = translate.All(time.Now)
		s.model("m", "confirm")
		s.claude("claude", "confirm")
	})
	for i := range 500 { // by turns on a native and on a translated lane
		body := streamBody
		if i%2 == 1 {
			body = strings.Replace(body, `"model":"m"`, `"model":"claude"`, 1)
		}
		o := b.open(body)
		b.mock.Release(0, 1)
		o.event(t)
		o.leave()
		_ = o.Body.Close()
	}
	b.settled(500)
	b.idle()
	b.sums(func(c mock.Counts) bool { return c.InFlight == 0 })
	require.Zero(t, b.ledger.held())
	// goleak checks the goroutines when the tests are over
}

func TestF112_SizesInBothDirections(t *testing.T) {
	t.Parallel()
	b := start(t)
	for _, size := range []int{32<<10 - 1, 32 << 10, 32<<10 + 1, 64<<10 + 1, 1<<20 + 1, 4 << 20, 32 << 20} {
		body := `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}],"pad":"` + strings.Repeat("x", size) + `"}`
		a := b.post("/v1/chat/completions", body)
		require.Equal(t, http.StatusOK, a.StatusCode, size)
		log := b.sent()
		require.Equal(t, len(body)+len("mock-small")-1, len(log[len(log)-1].Body))
		b.mock.Reset()
	}
}

func TestF106_ABodyThatIsTooLargeIsRefusedInJSON(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.config.MaxBody = 1 << 20 })
	body := `{"model":"m","messages":[],"pad":"` + strings.Repeat("x", 1<<20) + `"}`
	a := b.post("/v1/chat/completions", body)
	require.Equal(t, http.StatusRequestEntityTooLarge, a.StatusCode)
	require.Equal(t, "payload_too_large", a.failure(t).Code)
	chunked := b.request(http.MethodPost, "/v1/chat/completions", "")
	chunked.Body, chunked.ContentLength = io.NopCloser(strings.NewReader(body)), -1
	response, err := b.client.Do(chunked)
	if err == nil { // the server may close before all of the body is sent
		require.Equal(t, http.StatusRequestEntityTooLarge, response.StatusCode)
		_ = response.Body.Close()
	}
	require.Zero(t, b.mock.Counts().Count)
}

func TestRuling42_TooManyBodiesInFlight(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.config.MaxBody, s.config.MaxBodiesInFlight = 40<<10, 60<<10
		s.model("m", "hold")
	})
	body := `{"model":"m","messages":[],"pad":"` + strings.Repeat("x", 39<<10) + `"}`
	first := make(chan int, 1)
	go func() { first <- b.post("/v1/chat/completions", body).StatusCode }()
	b.sums(func(c mock.Counts) bool { return c.InFlight == 1 })
	a := b.post("/v1/chat/completions", body)
	require.Equal(t, http.StatusServiceUnavailable, a.StatusCode)
	require.Equal(t, "gateway_overloaded", a.failure(t).Code)
	require.NotEmpty(t, a.Header.Get("Retry-After"))
	b.mock.Release(0, 1)
	require.Equal(t, http.StatusOK, <-first)
}

func TestF106_AStreamThatHasBegunHoldsNoBody(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.config.MaxBody, s.config.MaxBodiesInFlight = 40<<10, 60<<10
		s.model("m", "confirm")
	})
	body := strings.Replace(streamBody, "{", `{"pad":"`+strings.Repeat("x", 39<<10)+`",`, 1)
	for range 5 {
		o := b.open(body)
		b.mock.Release(0, 1)
		o.event(t)
	}
}

func TestF019_AClientThatPausesWithinItsBodyIsDropped(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.config.BodyProgress = 20 * time.Millisecond })
	out := b.raw("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + demoKey + "\r\nContent-Length: 100\r\n\r\n{\"model\"")
	require.True(t, strings.HasPrefix(out, "HTTP/1.1 408 "), out)
}

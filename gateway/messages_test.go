package gateway_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
)

const (
	messagesPath = "/v1/messages"
	messagesBody = `{"model":"c","max_tokens":100,"messages":[{"role":"user","content":"Say hello."}]}`
	messagesLive = `{"model":"c","max_tokens":100,"stream":true,"messages":[{"role":"user","content":"Say hello."}]}`
)

// messages posts to the Messages API as a client of it does.
func (b *bench) messages(body string, headers ...string) answer {
	return b.post(messagesPath, body, append([]string{"Anthropic-Version", "2026-10-21"}, headers...)...)
}

// anthropicFailure is an error as clients of Anthropic read it.
type anthropicFailure struct {
	Type  string
	Error struct {
		Type, Message, Code string
		Details             struct{ Limit string }
	}
	RequestID string `json:"request_id"`
}

func (a answer) anthropic(t *testing.T) anthropicFailure {
	t.Helper()
	var e anthropicFailure
	require.NoError(t, json.Unmarshal(a.body, &e), a.text())
	require.Equal(t, "error", e.Type, a.text())
	return e
}

func TestMessages_Unary(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.claude("c", "usage(100,20,40)") })
	for _, headers := range [][]string{
		nil,
		{"Authorization", "", "X-Api-Key", demoKey},
		{"Anthropic-Beta", "context-1m-2025-08-07,interleaved-thinking-2025-05-14"},
	} {
		a := b.messages(messagesBody, headers...)
		require.Equal(t, http.StatusOK, a.StatusCode, a.text())
		require.Contains(t, a.text(), `"type":"message"`)
		require.Equal(t, "0.00014", a.Header.Get("X-Tollgate-Cost-Usd"), "60 fresh and 40 cached tokens at one price, 20 of output")
	}
	for _, s := range b.settled(3) {
		require.Equal(t, governance.UsageProvider, s.Source)
		require.EqualValues(t, 60, s.Quantities[governance.UnitInput])
		require.EqualValues(t, 40, s.Quantities[governance.UnitCacheRead])
		require.EqualValues(t, 20, s.Quantities[governance.UnitOutput])
	}
	r := b.ledger.admitted()[0]
	require.Equal(t, governance.RouteMessages, r.Origin.Route)
	require.EqualValues(t, 100, r.Estimate.Quantities[governance.UnitOutput])
	seen := b.sent()
	require.Equal(t, upstreamID, seen[0].Header.Get("X-Api-Key"))
	require.Empty(t, seen[0].Header.Get("Authorization"))
	require.Equal(t, "2026-10-21", seen[0].Header.Get("Anthropic-Version"), "the client's version is never pinned")
	require.Equal(t, "context-1m-2025-08-07,interleaved-thinking-2025-05-14", seen[2].Header.Get("Anthropic-Beta"))
}

func TestF143_MessagesPassTheAllowListAlone(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.claude("c", "ok") })
	a := b.post(messagesPath+"?beta=true&api_base=http://127.0.0.1:1", messagesBody, "Anthropic-Version", "2023-06-01", "X-Api-Base", "http://127.0.0.1:1",
		"Cookie", "a=b", "X-Stainless-Lang", "js", "X-Claude-Code-Session-Id", "s", "X-App", "cli", "Anthropic-Dangerous-Direct-Browser-Access", "true")
	require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	seen := b.sent()[0]
	require.Equal(t, "/v1/messages?beta=true", seen.Path)
	for name := range seen.Header {
		require.Contains(t, []string{"Accept-Encoding", "Anthropic-Version", "Content-Length", "Content-Type", "User-Agent", "X-Api-Key"}, name)
	}
}

// Thinking with its signature, cache marks and members that no gateway knows arrive as they were sent, and twice alike.
func TestF118_F121_F122_F133_MessagesKeepTheirBytes(t *testing.T) {
	t.Parallel()
	body := "{ \"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024}, \"max_tokens\":2048,\"model\" :\"c\",\"temperature\":1.0,\"top_k\":1E+2,\r\n" +
		`"system":[{"type":"text","text":"a"},{"type":"text","text":"b","cache_control":{"type":"ephemeral","ttl":"1h"}}],` +
		`"messages":[{"role":"user","content":"<b>&` + "\u2028" + `"},{"role":"assistant","content":[{"type":"thinking","thinking":"  odd\u2028 white\/space \ud83d\ude00 ","signature":"c2ln\/bmF0dXJl=="},` +
		`{"type":"text","text":"x"},{"type":"tool_use","id":"toolu_1","name":"f","input":{"id":9223372036854775807,"id":1}},{"type":"redacted_thinking","data":"AAAA"},` +
		`{"type":"tool_use","id":"toolu_2","name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":"1","cache_control":{"type":"ephemeral"}},` +
		`{"type":"tool_result","tool_use_id":"toolu_2","is_error":true}]}],"tools":[{"name":"f","input_schema":{"type":"object"},"cache_control":{"type":"ephemeral"}}],` +
		`"context_management":{"edits":[]},"output_config":{"effort":"low"},"container":null,"betas":["x"], "zz":0.123000000000000005123}`
	b := start(t, func(s *setup) { s.claude("c", "ok") })
	for range 2 {
		a := b.messages(body)
		require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	}
	require.Equal(t, strings.Replace(body, `"c"`, `"mock-ok"`, 1), string(b.sent()[0].Body))
	require.Equal(t, b.sent()[0].BodySHA256, b.sent()[1].BodySHA256)
	demand := b.ledger.admitted()[0].Estimate
	require.Positive(t, demand.Cost)
}

func TestMessages_StreamByteForByte(t *testing.T) {
	t.Parallel()
	for _, script := range []string{"ok", "byte_dribble(3)", "comments(200)", "giant_line(70000)", "usage(7,9)"} {
		b := start(t, func(s *setup) { s.claude("c", script) })
		direct, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.mockURL+messagesPath, strings.NewReader(strings.Replace(messagesLive, `"c"`, strconv.Quote("mock-"+script), 1)))
		require.NoError(t, err)
		direct.Header.Set("X-Api-Key", upstreamID)
		direct.Header.Set("Anthropic-Version", "2023-06-01")
		want := b.do(direct)
		a := b.messages(messagesLive)
		require.NoError(t, a.err)
		require.Equal(t, http.StatusOK, a.StatusCode, a.text())
		require.Equal(t, "text/event-stream", a.Header.Get("Content-Type"))
		require.Equal(t, numbered(want.text()), numbered(strings.ReplaceAll(a.text(), "msg_mock_2", "msg_mock_1")), script)
		require.Contains(t, a.text(), "event: ping\n")
		s := b.settled(1)[0]
		require.Equal(t, governance.OutcomeComplete, s.Outcome)
		require.Equal(t, governance.UsageProvider, s.Source)
		require.Zero(t, b.ledger.held())
	}
}

func TestMessages_NeedTheirVersion(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.claude("c", "ok") })
	for _, path := range []string{messagesPath, messagesPath + "/count_tokens"} {
		a := b.post(path, messagesBody)
		require.Equal(t, http.StatusBadRequest, a.StatusCode)
		e := a.anthropic(t)
		require.Equal(t, "invalid_request_error", e.Error.Type)
		require.Contains(t, e.Error.Message, "anthropic-version")
		require.Equal(t, a.Header.Get("Request-Id"), e.RequestID)
	}
	require.Zero(t, b.mock.Counts().Count)
}

func TestRuling29_CountingTokensIsOneRequestAndCostsNothing(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.claude("c", "ok")[0].Price = nil
		s.claude("refused", "status(404)")
		s.limit(governance.KindBudget, governance.MetricCost, 1)
		s.limit(governance.KindRate, governance.MetricRequests, 2)
	})
	count := func(model string) answer {
		return b.post(messagesPath+"/count_tokens", strings.Replace(messagesBody, `"c"`, strconv.Quote(model), 1), "Anthropic-Version", "2023-06-01")
	}
	a := count("c")
	require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	require.Contains(t, a.text(), `"input_tokens":`)
	require.Equal(t, "0", a.Header.Get("X-Tollgate-Cost-Usd"))
	require.Equal(t, "/v1/messages/count_tokens", b.sent()[0].Path)
	s := b.settled(1)[0]
	require.Equal(t, governance.OutcomeComplete, s.Outcome)
	require.Equal(t, governance.UsageZero, s.Source)
	require.Zero(t, s.Cost)
	require.Zero(t, s.Quantities)
	require.Equal(t, governance.BasisHold, s.Requests)

	a = count("refused") // F128: the provider's own error, in its shape
	require.Equal(t, http.StatusNotFound, a.StatusCode)
	require.Equal(t, "not_found_error", a.anthropic(t).Error.Type)

	a = count("c")
	require.Equal(t, http.StatusTooManyRequests, a.StatusCode, "each counts as a request")
	require.Equal(t, "rate_limit_error", a.anthropic(t).Error.Type)
}

func TestMessages_RefusalsCarryTheContractsSignals(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		kind       governance.Kind
		metric     governance.Metric
		amount     int64
		calls      int
		typ, code  string
		shouldWait bool
	}{
		{governance.KindBudget, governance.MetricCost, 0, 1, "billing_error", "budget_exceeded", false},
		{governance.KindRate, governance.MetricRequests, 1, 2, "rate_limit_error", "rate_limit_exceeded", true},
		{governance.KindRate, governance.MetricTokens, 150, 2, "rate_limit_error", "token_limit_exceeded", true},
	} {
		b := start(t, func(s *setup) { s.claude("c", "ok"); s.limit(tc.kind, tc.metric, tc.amount) })
		var a answer
		for range tc.calls {
			a = b.messages(messagesBody)
		}
		require.Equal(t, http.StatusTooManyRequests, a.StatusCode, a.text())
		e := a.anthropic(t)
		require.Equal(t, tc.typ, e.Error.Type, a.text())
		require.Equal(t, tc.code, e.Error.Code)
		if tc.shouldWait {
			require.NotEmpty(t, a.Header.Get("Retry-After"))
			require.Empty(t, a.Header.Get("X-Should-Retry"))
		} else {
			require.Empty(t, a.Header.Get("Retry-After"))
			require.Equal(t, "false", a.Header.Get("X-Should-Retry"))
		}
	}
}

func TestF155_MessagesThatNoLimitCouldDecide(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.claude("c", "ok") })
	b.ledger.fail = func(governance.ReserveRequest) error { return governance.ErrLimitStoreUnavailable }
	for _, body := range []string{messagesBody, messagesLive} {
		a := b.messages(body)
		require.Equal(t, http.StatusServiceUnavailable, a.StatusCode)
		require.Equal(t, "overloaded_error", a.anthropic(t).Error.Type)
		require.Equal(t, "limit_store_unavailable", a.anthropic(t).Error.Code)
		require.NotEmpty(t, a.Header.Get("Retry-After"))
	}
	require.Zero(t, b.mock.Counts().Count)
}

func TestRuling40_AnthropicsErrorsPassUntouchedButForOurCredential(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.claude("bad", "status(400)")
		s.claude("overloaded", "status(529)")
		s.claude("rate", "status(429),retry_after(7)")
		s.claude("echo", "status(400,echo_key)")
		s.claude("text", "status(500,text)")
		s.claude("auth", "status(401)")
		s.claude("within", "200_with_error_body")
		s.claude("first", "200_first_event_error")
	})
	ask := func(model, body string) answer {
		return b.messages(strings.Replace(body, `"c"`, strconv.Quote(model), 1))
	}
	for _, body := range []string{messagesBody, messagesLive} {
		for model, status := range map[string]int{"bad": 400, "overloaded": 529, "rate": 429} {
			a := ask(model, body)
			require.Equal(t, status, a.StatusCode)
			require.Equal(t, "application/json", a.Header.Get("Content-Type"))
			require.True(t, strings.HasPrefix(a.anthropic(t).RequestID, "req_mock_"), "the provider's own: "+a.text())
			if model == "rate" {
				require.Equal(t, "7", a.Header.Get("Retry-After"), "F055")
			}
		}
		a := ask("echo", body)
		require.NotContains(t, a.text(), upstreamID)
		a = ask("text", body)
		require.Equal(t, http.StatusInternalServerError, a.StatusCode)
		require.Equal(t, "api_error", a.anthropic(t).Error.Type)
		require.Equal(t, a.Header.Get("Request-Id"), a.anthropic(t).RequestID)
		a = ask("auth", body)
		require.Equal(t, http.StatusBadGateway, a.StatusCode)
		require.Equal(t, "upstream_auth_failed", a.anthropic(t).Error.Code)
		require.NotContains(t, a.text(), "mock")
	}
	a := ask("within", messagesBody)
	require.GreaterOrEqual(t, a.StatusCode, 400, "F131")
	require.NotEmpty(t, a.anthropic(t).Error.Message)
	a = ask("first", messagesLive)
	require.Equal(t, http.StatusBadRequest, a.StatusCode, "F077")
	require.Equal(t, "invalid_request_error", a.anthropic(t).Error.Type)
}

func TestF083_F089_MessagesThatBreakOffEndWithTheirErrorEvent(t *testing.T) {
	t.Parallel()
	for script, told := range map[string]string{
		"reset_after(5)":              `"code":"upstream_aborted"`,
		"clean_close_without_done(7)": `"code":"upstream_aborted"`,
		"mid_stream_error(object,5)":  "The server had an error while processing your request.",
	} {
		b := start(t, func(s *setup) { s.claude("c", script) })
		a := b.messages(messagesLive)
		require.Equal(t, http.StatusOK, a.StatusCode)
		require.ErrorIs(t, a.err, io.ErrUnexpectedEOF, "no clean end")
		require.Equal(t, 1, strings.Count(a.text(), "event: error\n"), a.text())
		require.NotContains(t, a.text(), "message_stop")
		_, said, _ := strings.Cut(a.text(), "event: error\ndata: ")
		require.Contains(t, said, told)
		var e anthropicFailure
		require.NoError(t, json.Unmarshal([]byte(strings.TrimSpace(said)), &e))
		require.Equal(t, "error", e.Type)
		require.Equal(t, "api_error", e.Error.Type)
		s := b.settled(1)[0]
		require.Equal(t, governance.OutcomeUpstreamAborted, s.Outcome)
		require.NotEqual(t, int64(1), s.Quantities.OutputTokens(), "F004: never the placeholder")
	}
}

// F004: the client leaves a stream that has told the usage of its prompt; what was relayed is charged, never the placeholder.
func TestF004_AClientThatLeavesMessagesPaysForWhatItGot(t *testing.T) {
	t.Parallel()
	for way, check := range map[governance.OnDisconnect]func(governance.Settlement){
		governance.DisconnectAbort: func(s governance.Settlement) {
			require.Equal(t, governance.UsageEstimate, s.Source)
			require.EqualValues(t, 5, s.Quantities[governance.UnitInput])
			require.EqualValues(t, 40, s.Quantities[governance.UnitCacheRead])
			require.GreaterOrEqual(t, s.Quantities[governance.UnitOutput], int64(len("The quick brown fox jumps ")/3))
		},
		governance.DisconnectDrain: func(s governance.Settlement) {
			require.Equal(t, governance.UsageProvider, s.Source)
			require.EqualValues(t, 511, s.Quantities[governance.UnitOutput])
		},
	} {
		b := start(t, func(s *setup) { s.claude("c", "confirm,usage(45,511,40)")[0].OnDisconnect = way })
		o := b.openAt(messagesPath, messagesLive, "Anthropic-Version", "2023-06-01")
		b.release(7)
		for seen := ""; !strings.Contains(seen, "jumps"); {
			seen = o.event(t)
		}
		o.leave()
		if way == governance.DisconnectDrain {
			b.release(20)
		}
		check(b.settled(1)[0])
		require.Zero(t, b.ledger.held())
	}
}

func TestF097_PingsKeepMessagesAlive(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.config.KeepAlive = 5 * time.Millisecond
		s.claude("c", "hold")
	})
	o := b.openAt(messagesPath, messagesLive, "Anthropic-Version", "2023-06-01")
	require.Equal(t, http.StatusOK, o.StatusCode)
	for range 3 {
		require.JSONEq(t, `{"type":"ping"}`, o.event(t))
	}
	b.release(1)
	rest, err := io.ReadAll(o.lines)
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(string(rest), "data: {\"type\":\"message_stop\"}\n\n"), string(rest))
	require.Equal(t, governance.OutcomeComplete, b.settled(1)[0].Outcome)
}

// Nothing comes behind the end of a stream, however long its upstream keeps the connection open.
func TestF097_NoKeepAliveFollowsTheEnd(t *testing.T) {
	t.Parallel()
	ends := map[string]string{"/v1/chat/completions": "data: [DONE]\n\n", messagesPath: "data: {\"type\":\"message_stop\"}\n\n"}
	upstream := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		if r.URL.Path == messagesPath {
			_, _ = io.WriteString(w, "data: {\"type\":\"message_start\",\"message\":{}}\n\ndata: {\"type\":\"message_stop\"}\n\n")
		} else {
			_, _ = io.WriteString(w, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
		}
		_ = http.NewResponseController(w).Flush() // and the connection stays open
		<-r.Context().Done()
	}))
	b := start(t, func(s *setup) {
		s.config.KeepAlive = 5 * time.Millisecond
		s.model("m", "x")[0].BaseURL = upstream
		s.claude("c", "x")[0].BaseURL = upstream
	})
	for path, body := range map[string]string{"/v1/chat/completions": streamBody, messagesPath: messagesLive} {
		a := b.post(path, body, "Anthropic-Version", "2023-06-01")
		require.NoError(t, a.err)
		require.True(t, strings.HasSuffix(a.text(), ends[path]), a.text())
	}
}

func TestRuling27_MessagesNameTheirEndUserInTheirMetadata(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.claude("c", "ok") })
	named := func(user string) string {
		return `{"model":"c","max_tokens":9,"metadata":{"user_id":` + user + `},"messages":[{"role":"user","content":"x"}]}`
	}
	require.Equal(t, http.StatusOK, b.messages(named(`"ann"`)).StatusCode)
	require.Equal(t, http.StatusOK, b.messages(named(`"ann"`), "X-Tollgate-End-User", "ann").StatusCode)
	require.Equal(t, http.StatusOK, b.messages(named(`null`)).StatusCode)
	require.NotZero(t, b.ledger.admitted()[0].Origin.EndUser)
	require.Zero(t, b.ledger.admitted()[2].Origin.EndUser)
	require.Equal(t, http.StatusBadRequest, b.messages(named(`"ann"`), "X-Tollgate-End-User", "bob").StatusCode)
	require.Equal(t, http.StatusBadRequest, b.messages(named(`7`)).StatusCode)
	a := b.post("/v1/chat/completions", `{"model":"c","metadata":{"user_id":7},"messages":[]}`)
	require.NotEqual(t, "invalid_request", a.failure(t).Code, "in other dialects it is a name like any other")
}

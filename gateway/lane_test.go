package gateway_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/gateway"
	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/plugins"
	"github.com/tollgate-gateway/tollgate/providers"
)

// bridge is the smallest translator that can be: it carries the words of an answer, and says what it was given.
type bridge struct{ from, to providers.Dialect }

func (b bridge) From() providers.Dialect { return b.from }

func (b bridge) To() providers.Dialect { return b.to }

func (b bridge) Request(body *jsonedit.Document, model string) ([]byte, []providers.Warning, error) {
	if _, ok := body.Get("unheard_of"); ok {
		return nil, nil, &governance.Error{Code: governance.CodeInvalidRequest, Public: "unheard_of cannot be translated.", Param: "unheard_of"}
	}
	if _, ok := body.Get("broken"); ok {
		return []byte("{"), nil, nil
	}
	var warnings []providers.Warning
	if _, ok := body.Get("seed"); ok {
		warnings = []providers.Warning{{Param: "seed", Reason: "has no counterpart"}}
	}
	if _, ok := body.Get("unlimited"); ok {
		warnings = append(warnings, providers.Warning{Param: "max_tokens", Reason: "got 50"})
	}
	stream, _, _ := body.Bool("stream")
	messages, _ := body.Get("messages")
	return fmt.Appendf(nil, `{"model":%q,"max_tokens":50,"stream":%t,"messages":%s}`, model, stream, messages), warnings, nil
}

func (b bridge) NewAnswer(*jsonedit.Document) providers.Answer { return &carried{bridge: b} }

// carried is an answer on its way.
type carried struct {
	bridge
	usage string
}

// said is what both dialects have of a text.
type said struct {
	Type    string          `json:"type"`
	Usage   json.RawMessage `json:"usage"`
	Content []struct{ Text string }
	Delta   struct{ Text string }
	Choices []struct {
		Message, Delta struct{ Content string }
	}
	Error struct{ Message string }
}

func (a *carried) Body(upstream []byte) ([]byte, error) {
	var s said
	if err := json.Unmarshal(upstream, &s); err != nil {
		return nil, err
	}
	text := ""
	for _, c := range s.Content {
		text += c.Text
	}
	for _, c := range s.Choices {
		text += c.Message.Content
	}
	if text == "" {
		return nil, errors.New("no text")
	}
	return fmt.Appendf(nil, `{"carried":%q}`, text), nil
}

func (a *carried) Event(w io.Writer, ev sse.Event) error {
	if string(ev.Data) == "[DONE]" {
		return a.close(w)
	}
	var s said
	if err := json.Unmarshal(ev.Data, &s); err != nil {
		return err
	}
	text := s.Delta.Text
	for _, c := range s.Choices {
		text += c.Delta.Content
	}
	if len(s.Usage) > 0 && string(s.Usage) != "null" {
		a.usage = string(s.Usage)
	}
	switch {
	case s.Type == "message_stop":
		return a.close(w)
	case text == "poison":
		return errors.New("cannot be carried")
	case text == "":
		return nil
	}
	_, err := fmt.Fprintf(w, "data: {\"carried\":%q}\n\ndata: {\"twice\":true}\n\n", text)
	return err
}

func (a *carried) close(w io.Writer) error {
	_, err := fmt.Fprintf(w, "data: {\"over\":true,\"usage\":%s}\n\n", a.usage)
	return err
}

func (a *carried) End(w io.Writer) error {
	_, err := io.WriteString(w, "data: {\"end\":true}\n\n")
	return err
}

func (a *carried) Error(status int, body []byte) []byte {
	var s said
	_ = json.Unmarshal(body, &s)
	return fmt.Appendf(nil, `{"carried_error":%q,"status":%d}`, s.Error.Message, status)
}

// bridged offers "to-claude" to clients of chat, and "to-chat" to those of the Messages API.
func bridged(script string, change ...func(*setup)) func(*setup) {
	return func(s *setup) {
		s.translators = []providers.Translator{
			bridge{providers.OpenAIChat, providers.AnthropicMessages}, bridge{providers.AnthropicMessages, providers.OpenAIChat},
		}
		s.claude("to-claude", script)
		s.model("to-chat", script)
		for _, c := range change {
			c(s)
		}
	}
}

func (b *bench) across(model, body string, headers ...string) answer {
	body = strings.NewReplacer(`"m"`, strconv.Quote(model), `"c"`, strconv.Quote(model)).Replace(body)
	if model == "to-claude" {
		return b.post("/v1/chat/completions", body, headers...)
	}
	return b.messages(body, headers...)
}

const mockWords = "The quick brown fox jumps over the lazy dog."

func TestTranslatedLanes_WholeAnswers(t *testing.T) {
	t.Parallel()
	for _, model := range []string{"to-claude", "to-chat"} {
		b := start(t, bridged("usage(100,20,40)"))
		a := b.across(model, strings.Replace(chatBody, "{", `{"seed":1,`, 1))
		require.Equal(t, http.StatusOK, a.StatusCode, a.text())
		require.Equal(t, `{"carried":"`+mockWords+`"}`, a.text())
		require.Equal(t, "application/json", a.Header.Get("Content-Type"))
		require.Equal(t, strconv.Itoa(len(a.body)), a.Header.Get("Content-Length"))
		require.Equal(t, "seed: has no counterpart", a.Header.Get("X-Tollgate-Warnings"))
		require.Equal(t, "0.00014", a.Header.Get("X-Tollgate-Cost-Usd"), "by the meter of what the upstream speaks")
		require.Contains(t, string(b.sent()[0].Body), `"mock-usage(100,20,40)"`)
		s := b.settled(1)[0]
		require.Equal(t, governance.UsageProvider, s.Source)
		require.EqualValues(t, 40, s.Quantities[governance.UnitCacheRead])
		require.EqualValues(t, 60, s.Quantities[governance.UnitInput])
		if model == "to-claude" {
			require.Equal(t, "/v1/messages", b.sent()[0].Path)
			require.Equal(t, "2023-06-01", b.sent()[0].Header.Get("Anthropic-Version"))
		} else {
			require.Equal(t, "/v1/chat/completions", b.sent()[0].Path)
			require.Empty(t, b.sent()[0].Header.Get("Anthropic-Version"))
		}
		require.Empty(t, b.across(model, chatBody).Header.Get("X-Tollgate-Warnings"))
	}
}

func TestTranslatedLanes_Streams(t *testing.T) {
	t.Parallel()
	for _, model := range []string{"to-claude", "to-chat"} {
		b := start(t, bridged("usage(100,20,40)"))
		a := b.across(model, streamBody)
		require.NoError(t, a.err)
		require.Equal(t, http.StatusOK, a.StatusCode, a.text())
		require.Equal(t, "text/event-stream", a.Header.Get("Content-Type"))
		require.Equal(t, 9, strings.Count(a.text(), `data: {"carried":"`), a.text())
		require.True(t, strings.HasPrefix(a.text(), "data: {\"carried\":\"The \"}\n\ndata: {\"twice\":true}\n\ndata: {\"carried\":\"quick \"}\n\n"), a.text())
		require.Contains(t, a.text(), `{"over":true,"usage":{`)
		require.Contains(t, a.text(), `20`)
		require.NotContains(t, a.text(), "ping")
		require.NotContains(t, a.text(), "[DONE]")
		s := b.settled(1)[0]
		require.Equal(t, governance.OutcomeComplete, s.Outcome)
		require.Equal(t, governance.UsageProvider, s.Source)
		require.EqualValues(t, 20, s.Quantities.OutputTokens())
		require.Zero(t, b.ledger.held())
		if model == "to-chat" {
			require.Contains(t, string(b.sent()[0].Body), `"stream_options":{"include_usage":true}`)
		}
	}
}

func TestTranslatedLanes_TheEndWaitsForItsSettlement(t *testing.T) {
	t.Parallel()
	for _, model := range []string{"to-claude", "to-chat"} {
		b := start(t, bridged("confirm", func(s *setup) { s.config.AnswerHold = 5 * time.Second }))
		path, body := "/v1/chat/completions", strings.Replace(streamBody, `"m"`, strconv.Quote(model), 1)
		if model == "to-chat" {
			path = messagesPath
		}
		o := b.openAt(path, body, "Anthropic-Version", "2023-06-01")
		b.release(100)
		for !strings.Contains(o.event(t), `"over":`) {
		}
		require.Len(t, b.ledger.closed(), 1, "settled before the client hears of the end")
	}
}

// A parameter that cannot be carried is named before anything is held or sent; a target that takes it as it is may come next.
func TestF100_WhatCannotBeTranslatedIsRefusedByName(t *testing.T) {
	t.Parallel()
	refused := strings.Replace(chatBody, "{", `{"unheard_of":1,`, 1)
	b := start(t, bridged("ok"))
	a := b.across("to-claude", refused)
	require.Equal(t, http.StatusBadRequest, a.StatusCode)
	require.Equal(t, "invalid_request", a.failure(t).Code)
	require.Contains(t, a.text(), `"param":"unheard_of"`)
	a = b.across("to-chat", refused)
	require.Equal(t, http.StatusBadRequest, a.StatusCode)
	require.Contains(t, a.anthropic(t).Error.Message, "unheard_of")
	a = b.across("to-chat", strings.Replace(chatBody, "{", `{"broken":1,`, 1))
	require.Equal(t, http.StatusInternalServerError, a.StatusCode, "a translator that writes no JSON")
	require.Empty(t, b.ledger.admitted())
	require.Zero(t, b.mock.Counts().Count)

	b = start(t, bridged("ok", func(s *setup) {
		native := s.model("native", "ok")[0]
		m := s.models[0]
		m.Targets = append(m.Targets, governance.ModelTarget{Target: governance.Ref{Num: native.Num}, Priority: 1})
	}))
	a = b.across("to-claude", refused)
	require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	require.Contains(t, string(b.sent()[0].Body), "unheard_of")
	require.Empty(t, a.Header.Get("X-Tollgate-Warnings"))
}

func TestTranslatedLanes_ErrorsAreTheClients(t *testing.T) {
	t.Parallel()
	for _, model := range []string{"to-claude", "to-chat"} {
		for _, body := range []string{chatBody, streamBody} {
			b := start(t, bridged("status(429),retry_after(7)"))
			a := b.across(model, body)
			require.Equal(t, http.StatusTooManyRequests, a.StatusCode)
			require.Equal(t, "7", a.Header.Get("Retry-After"))
			var e struct {
				Carried   string `json:"carried_error"`
				Status    int
				RequestID string `json:"request_id"`
			}
			require.NoError(t, json.Unmarshal(a.body, &e), a.text())
			require.Equal(t, "The mock was told to answer 429.", e.Carried)
			require.Equal(t, http.StatusTooManyRequests, e.Status)
			if model == "to-chat" {
				require.Equal(t, a.Header.Get("Request-Id"), e.RequestID)
			} else {
				require.Empty(t, e.RequestID)
			}
			require.Equal(t, governance.OutcomeUpstreamError, b.settled(1)[0].Outcome)

			b = start(t, bridged("status(401,echo_key)"))
			a = b.across(model, body)
			require.Equal(t, http.StatusBadGateway, a.StatusCode)
			requireClean(t, a, upstreamID, "carried")
			b = start(t, bridged("status(400,echo_key)"))
			a = b.across(model, body)
			require.Equal(t, http.StatusBadRequest, a.StatusCode)
			requireClean(t, a, upstreamID)
			b = start(t, bridged("status(502,html)"))
			a = b.across(model, body)
			require.Equal(t, http.StatusBadGateway, a.StatusCode)
			require.NotContains(t, a.text(), "<html>")
		}
		b := start(t, bridged("200_first_event_error"))
		a := b.across(model, streamBody)
		require.Equal(t, http.StatusBadRequest, a.StatusCode)
		require.Contains(t, a.text(), "carried_error")

		for script, told := range map[string]string{
			"mid_stream_error(object,5)":  "carried_error",
			"reset_after(5)":              "upstream_aborted",
			"clean_close_without_done(5)": "upstream_aborted",
			"text(poison)":                "upstream_invalid_response",
		} {
			b := start(t, bridged(script))
			a := b.across(model, streamBody)
			require.Contains(t, a.text(), told, script)
			require.NotContains(t, a.text(), `"over":`)
			if a.StatusCode == http.StatusOK {
				require.ErrorIs(t, a.err, io.ErrUnexpectedEOF)
				require.Equal(t, model == "to-chat", strings.Contains(a.text(), "event: error\n"), a.text())
				require.NotEqual(t, governance.OutcomeComplete, b.settled(1)[0].Outcome, script)
			}
			require.Zero(t, b.ledger.held())
		}
	}
	b := start(t, bridged("choices_shape(empty)"))
	a := b.across("to-chat", chatBody)
	require.Equal(t, http.StatusBadGateway, a.StatusCode, "an answer without a text cannot be carried")
	require.Equal(t, "upstream_invalid_response", a.anthropic(t).Error.Code)
	require.Equal(t, governance.UsageProvider, b.settled(1)[0].Source, "it was made all the same")
}

// A chat stream that ends in order without its [DONE] is closed by the translator (ruling 30).
func TestRuling30_TranslatedStreamsAreClosed(t *testing.T) {
	t.Parallel()
	b := start(t, bridged("clean_close_without_done"))
	a := b.across("to-chat", streamBody)
	require.NoError(t, a.err)
	require.True(t, strings.HasSuffix(a.text(), "data: {\"end\":true}\n\n"), a.text())
	require.Equal(t, governance.OutcomeComplete, b.settled(1)[0].Outcome)
}

// F115: an upstream that cannot be asked for the usage of a stream still gives the translator one, estimated.
func TestF115_TranslatedStreamsOfUpstreamsWithoutUsage(t *testing.T) {
	t.Parallel()
	for _, script := range []string{"ok_no_usage", "ok_no_usage,clean_close_without_done"} {
		b := start(t, bridged(script, func(s *setup) { s.targets[1].NoStreamOptions = true }))
		a := b.across("to-chat", streamBody)
		require.NoError(t, a.err)
		require.NotContains(t, string(b.sent()[0].Body), "stream_options")
		s := b.settled(1)[0]
		require.Equal(t, governance.UsageEstimate, s.Source)
		if script == "ok_no_usage" {
			require.Contains(t, a.text(), `"completion_tokens":`+strconv.FormatInt(s.Quantities.OutputTokens(), 10)+`,`, a.text())
			require.Contains(t, a.text(), `"estimated":true`)
		}
	}
}

// The chain sees what the client gets, event by event.
func TestF146_F224_GuardsSeeTheClientsDialect(t *testing.T) {
	t.Parallel()
	for _, model := range []string{"to-claude", "to-chat"} {
		var seen []string
		guard := filter{&witness{id: "guard", event: func(ev sse.Event) (plugins.Verdict, error) {
			seen = append(seen, string(ev.Data))
			switch {
			case strings.Contains(string(ev.Data), "fox"):
				return plugins.Verdict{Body: []byte(`{"masked":true}`)}, nil
			case strings.Contains(string(ev.Data), "lazy"):
				return plugins.Verdict{Deny: &governance.Error{Code: governance.CodeContentBlocked, Public: "Blocked."}}, nil
			}
			return plugins.Verdict{}, nil
		}}}
		b := start(t, bridged("ok", func(s *setup) { s.chain = []gateway.Link{{Plugin: guard}} }))
		a := b.across(model, streamBody)
		require.ErrorIs(t, a.err, io.ErrUnexpectedEOF)
		require.Contains(t, a.text(), "data: {\"masked\":true}\n\ndata: {\"twice\":true}\n\n")
		require.NotContains(t, a.text(), "lazy")
		require.Contains(t, a.text(), "content_blocked")
		require.Equal(t, governance.OutcomeBlocked, b.settled(1)[0].Outcome)
		for _, data := range seen {
			require.True(t, strings.Contains(data, "carried") || strings.Contains(data, "twice"), data)
		}
		a = b.across(model, chatBody)
		require.Equal(t, `{"masked":true}`, a.text())
	}
}

func TestTranslatedLanes_KeepAlivesAreTheClients(t *testing.T) {
	t.Parallel()
	b := start(t, bridged("hold", func(s *setup) { s.config.KeepAlive = 5 * time.Millisecond }))
	for model, empty := range map[string]string{"to-claude": `"object":"chat.completion.chunk"`, "to-chat": `{"type": "ping"}`} {
		path := "/v1/chat/completions"
		if model == "to-chat" {
			path = messagesPath
		}
		o := b.openAt(path, strings.Replace(streamBody, `"m"`, strconv.Quote(model), 1), "Anthropic-Version", "2023-06-01")
		require.Contains(t, o.event(t), empty)
		b.release(1)
		rest, err := io.ReadAll(o.lines)
		require.NoError(t, err)
		require.Contains(t, string(rest), `"over":`)
	}
}

// Where a client has set no limit the target's own stands in the body, since Anthropic's dialect wants one.
func TestTranslatedLanes_TheTargetsMaximumIsTheLimit(t *testing.T) {
	t.Parallel()
	b := start(t, bridged("ok", func(s *setup) { s.targets[0].MaxOutput = 8192 }))
	a := b.across("to-claude", strings.Replace(chatBody, "{", `{"unlimited":1,"seed":1,`, 1))
	require.Equal(t, http.StatusOK, a.StatusCode)
	require.Contains(t, string(b.sent()[0].Body), `"max_tokens":8192`)
	require.Equal(t, "seed: has no counterpart", a.Header.Get("X-Tollgate-Warnings"), "there is nothing to warn of: the model's own maximum is no loss")
	require.Equal(t, http.StatusOK, b.across("to-claude", strings.Replace(chatBody, "{", `{"max_tokens":9,`, 1)).StatusCode)
	require.Contains(t, string(b.sent()[1].Body), `"max_tokens":50`, "as the translator wrote it")
}

func TestTwoTranslatorsOfOnePairAreAFault(t *testing.T) {
	t.Parallel()
	_, err := gateway.New(gateway.Options{
		Config: gateway.DefaultConfig(), Chain: []gateway.Link{{Plugin: keys{}}, {Plugin: router{}}}, Metrics: &counters{seen: map[string]int{}},
		Translators: []providers.Translator{bridge{"a", "b"}, bridge{"a", "c"}, bridge{"a", "b"}},
	})
	require.ErrorContains(t, err, "two translators from a to b")
}

// F199: a client that leaves a translated stream leaves nothing behind.
func TestF199_AbandonedTranslatedStreams(t *testing.T) {
	t.Parallel()
	b := start(t, bridged("freeze_after(6)"))
	const streams = 20
	for i := range streams {
		path, model := "/v1/chat/completions", "to-claude"
		if i%2 == 0 {
			path, model = messagesPath, "to-chat"
		}
		o := b.openAt(path, strings.Replace(streamBody, `"m"`, strconv.Quote(model), 1), "Anthropic-Version", "2023-06-01")
		require.Contains(t, o.event(t), "carried")
		o.leave()
	}
	for _, s := range b.settled(streams) {
		require.Equal(t, governance.OutcomeClientLeft, s.Outcome)
	}
	b.idle()
	require.Zero(t, b.ledger.held())
}

package translate_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
	"github.com/tollgate-gateway/tollgate/providers/translate"
)

// clientOf is a small request of a dialect.
func clientOf(d providers.Dialect) string {
	switch d {
	case providers.AnthropicMessages:
		return `{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"Hi"}]}`
	case providers.OpenAIChat:
		return `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"Hi"}]}`
	default:
		return `{"model":"m","stream":true,"input":"Hi"}`
	}
}

// wholeEvents is a writer that takes nothing but whole events.
type wholeEvents struct {
	bytes.Buffer
	t *testing.T
}

func (w *wholeEvents) Write(p []byte) (int, error) {
	require.True(w.t, bytes.HasSuffix(p, []byte("\n\n")), "%q", p)
	return w.Buffer.Write(p)
}

func TestF073_F074_F080_AnyChunkingGivesTheSameWholeEvents(t *testing.T) {
	t.Parallel()
	eachCase(t, func(t *testing.T, tr providers.Translator, dir string) {
		upstream, ok := given(t, dir, "upstream.txt")
		if !ok {
			return
		}
		client, _ := given(t, dir, "client.json")
		want := streamed(t, tr, client, upstream)
		for _, src := range []io.Reader{
			iotest.OneByteReader(strings.NewReader(upstream)),
			iotest.HalfReader(strings.NewReader(upstream)),
			iotest.DataErrReader(strings.NewReader(upstream)),
			strings.NewReader(strings.ReplaceAll(upstream, "\n", "\r\n")),
			strings.NewReader(strings.ReplaceAll(upstream, "\n\n", "\n\n: ping\n\n\n\n:\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n")),
		} {
			if tr.To() == providers.OpenAIResponses {
				src = io.MultiReader(strings.NewReader(": comment\n\n"), src)
			}
			answer := tr.NewAnswer(parse(t, client))
			out := wholeEvents{t: t}
			for events := sse.NewReader(src); ; {
				ev, err := events.Next()
				if errors.Is(err, io.EOF) {
					require.NoError(t, answer.End(&out))
					break
				}
				require.NoError(t, err)
				require.NoError(t, answer.Event(&out, ev), string(ev.Raw))
			}
			require.Equal(t, want, out.String())
			require.NoError(t, answer.End(&out), "the end may be told twice")
			require.Equal(t, want, out.String())
		}
	})
}

// said is what a model says, in pieces that are the insides of JSON strings.
type said struct {
	reasoning, text []string
	calls           []saidCall
	order           []int // which call the next piece of arguments is of
	finish          string
}

type saidCall struct {
	id, name string
	pieces   []string
}

// inside draws the inside of a JSON string and cuts it anywhere but within an escape.
func inside(t *rapid.T, label string) []string {
	atoms := []string{"a", " ", "é", "狐", "😀", `\ud83d`, `\ude00`, `\u00e9`, `\n`, `\"`, `\\`, `\/`, "<", "&", "{", "}", "data: "}
	drawn := rapid.SliceOfN(rapid.SampledFrom(atoms), 0, 12).Draw(t, label)
	return cut(t, drawn)
}

func cut(t *rapid.T, atoms []string) (pieces []string) {
	for len(atoms) > 0 {
		n := rapid.IntRange(1, len(atoms)).Draw(t, "piece")
		pieces = append(pieces, strings.Join(atoms[:n], ""))
		atoms = atoms[n:]
	}
	return pieces
}

func draw(t *rapid.T) said {
	s := said{finish: rapid.SampledFrom([]string{"stop", "length"}).Draw(t, "finish")}
	s.reasoning, s.text = inside(t, "reasoning"), inside(t, "text")
	for i := range rapid.IntRange(0, 3).Draw(t, "calls") {
		c := saidCall{id: fmt.Sprintf("call_%d", i), name: fmt.Sprintf("tool%d", i)}
		if rapid.Bool().Draw(t, "arguments") {
			value := strings.Join(inside(t, "value"), "")
			c.pieces = cut(t, strings.SplitAfter(`{\"a\":[`+fmt.Sprint(i)+`.0,\"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(value)+`\"]}`, ","))
		}
		for range c.pieces {
			s.order = append(s.order, i)
		}
		s.calls = append(s.calls, c)
		s.finish = "tool_calls"
	}
	s.order = rapid.Permutation(s.order).Draw(t, "order")
	return s
}

// unescaped returns the text of the inside of a JSON string.
func unescaped(t require.TestingT, pieces []string) (text string) {
	require.NoError(t, json.Unmarshal([]byte(`"`+strings.Join(pieces, "")+`"`), &text))
	return text
}

func data(b *strings.Builder, format string, args ...any) {
	fmt.Fprintf(b, "data: "+format+"\n\n", args...)
}

// in writes the stream of a dialect.
func (s said) in(d providers.Dialect) string {
	var b strings.Builder
	switch d {
	case providers.OpenAIChat:
		s.chat(&b)
	case providers.AnthropicMessages:
		s.messages(&b)
	case providers.GeminiGenerate:
		s.gemini(&b)
	case providers.BedrockConverse:
		s.converse(&b)
	default:
		s.responses(&b)
	}
	return b.String()
}

func (s said) chat(b *strings.Builder) {
	const head = `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"up","choices":[{"index":0,"delta":`
	data(b, head+`{"role":"assistant","content":""},"finish_reason":null}]}`)
	for _, piece := range s.reasoning {
		data(b, head+`{"reasoning_content":"%s"},"finish_reason":null}]}`, piece)
	}
	for _, piece := range s.text {
		data(b, head+`{"content":"%s"},"finish_reason":null}]}`, piece)
	}
	for i, c := range s.calls {
		data(b, head+`{"tool_calls":[{"index":%d,"id":%q,"type":"function","function":{"name":%q,"arguments":""}}]},"finish_reason":null}]}`, i, c.id, c.name)
	}
	next := make([]int, len(s.calls))
	for _, i := range s.order {
		data(b, head+`{"tool_calls":[{"index":%d,"function":{"arguments":"%s"}}]},"finish_reason":null}]}`, i, s.calls[i].pieces[next[i]])
		next[i]++
	}
	data(b, head+`{},"finish_reason":%q}]}`, s.finish)
	data(b, `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"up","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12}}`)
	data(b, "[DONE]")
}

func (s said) messages(b *strings.Builder) {
	data(b, `{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"up","content":[],"stop_reason":null,"usage":{"input_tokens":7,"output_tokens":1}}}`)
	index := 0
	block := func(start, delta string, pieces []string) {
		data(b, `{"type":"content_block_start","index":%d,"content_block":%s}`, index, start)
		for _, piece := range pieces {
			data(b, `{"type":"content_block_delta","index":%d,"delta":`+delta+`}`, index, piece)
		}
		data(b, `{"type":"content_block_stop","index":%d}`, index)
		index++
	}
	if len(s.reasoning) > 0 {
		block(`{"type":"thinking","thinking":"","signature":""}`, `{"type":"thinking_delta","thinking":"%s"}`, s.reasoning)
	}
	if len(s.text) > 0 {
		block(`{"type":"text","text":""}`, `{"type":"text_delta","text":"%s"}`, s.text)
	}
	for _, c := range s.calls {
		block(fmt.Sprintf(`{"type":"tool_use","id":%q,"name":%q,"input":{}}`, c.id, c.name), `{"type":"input_json_delta","partial_json":"%s"}`, c.pieces)
	}
	reason := map[string]string{"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}[s.finish]
	data(b, `{"type":"message_delta","delta":{"stop_reason":%q,"stop_sequence":null},"usage":{"output_tokens":5}}`, reason)
	data(b, `{"type":"message_stop"}`)
}

func (s said) responses(b *strings.Builder) {
	status, details := "completed", "null"
	if s.finish == "length" {
		status, details = "incomplete", `{"reason":"max_output_tokens"}`
	}
	data(b, `{"type":"response.created","response":{"id":"resp_1","object":"response","created_at":1,"model":"up","status":"in_progress"}}`)
	for _, piece := range s.reasoning {
		data(b, `{"type":"response.reasoning_text.delta","output_index":0,"delta":"%s"}`, piece)
	}
	for _, piece := range s.text {
		data(b, `{"type":"response.output_text.delta","output_index":1,"delta":"%s"}`, piece)
	}
	for i, c := range s.calls {
		data(b, `{"type":"response.output_item.added","output_index":%d,"item":{"type":"function_call","id":"fc_%d","call_id":%q,"name":%q,"arguments":""}}`, 2+i, i, c.id, c.name)
	}
	next := make([]int, len(s.calls))
	for _, i := range s.order {
		data(b, `{"type":"response.function_call_arguments.delta","output_index":%d,"delta":"%s"}`, 2+i, s.calls[i].pieces[next[i]])
		next[i]++
	}
	for i, c := range s.calls {
		whole := strings.Join(c.pieces, "")
		if whole == "" {
			whole = "{}"
		}
		data(b, `{"type":"response.function_call_arguments.done","output_index":%d,"arguments":"%s"}`, 2+i, whole)
	}
	data(b, `{"type":"response.%s","response":{"id":"resp_1","object":"response","created_at":1,"model":"up","status":%q,"incomplete_details":%s,`+
		`"usage":{"input_tokens":7,"output_tokens":5,"total_tokens":12}}}`, status, status, details)
}

func (s said) gemini(b *strings.Builder) {
	const tail = `"usageMetadata":{"promptTokenCount":7,"candidatesTokenCount":%d,"totalTokenCount":12},"modelVersion":"up","responseId":"r1"}`
	piece := func(part string) {
		data(b, "%s", `{"candidates":[{"content":{"role":"model","parts":[`+part+`]},"index":0}],`+fmt.Sprintf(tail, 1))
	}
	for _, p := range s.reasoning {
		piece(`{"text":"` + p + `","thought":true}`)
	}
	for _, p := range s.text {
		piece(`{"text":"` + p + `"}`)
	}
	for _, c := range s.calls {
		var args string
		if json.Unmarshal([]byte(`"`+strings.Join(c.pieces, "")+`"`), &args) != nil || args == "" {
			args = "{}"
		}
		piece(fmt.Sprintf(`{"functionCall":{"id":%q,"name":%q,"args":%s}}`, c.id, c.name, args))
	}
	reason := map[string]string{"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP"}[s.finish]
	data(b, "%s", `{"candidates":[{"content":{"role":"model","parts":[{"text":""}]},"finishReason":"`+reason+`","index":0}],`+fmt.Sprintf(tail, 5))
}

func (s said) converse(b *strings.Builder) {
	event := func(name, format string, args ...any) {
		b.WriteString("event: " + name + "\n")
		data(b, format, args...)
	}
	event("messageStart", `{"p":"abc","role":"assistant"}`)
	index := 0
	block := func(delta string, pieces []string) {
		for _, piece := range pieces {
			event("contentBlockDelta", `{"contentBlockIndex":%d,"delta":`+delta+`}`, index, piece)
		}
		event("contentBlockStop", `{"contentBlockIndex":%d}`, index)
		index++
	}
	if len(s.reasoning) > 0 {
		block(`{"reasoningContent":{"text":"%s"}}`, s.reasoning)
	}
	if len(s.text) > 0 {
		block(`{"text":"%s"}`, s.text)
	}
	for _, c := range s.calls {
		event("contentBlockStart", `{"contentBlockIndex":%d,"start":{"toolUse":{"toolUseId":%q,"name":%q}}}`, index, c.id, c.name)
		block(`{"toolUse":{"input":"%s"}}`, c.pieces)
	}
	reason := map[string]string{"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}[s.finish]
	event("messageStop", `{"stopReason":%q}`, reason)
	event("metadata", `{"usage":{"inputTokens":7,"outputTokens":5,"totalTokens":12},"metrics":{"latencyMs":1}}`)
}

// rawTexts puts the pieces of a stream together as its client does, before they are decoded.
func rawTexts(t testing.TB, d providers.Dialect, out string) (reasoning, text string) {
	t.Helper()
	var thoughts, words pieces
	for _, ev := range events(t, out) {
		switch d {
		case providers.AnthropicMessages:
			thoughts.add(t, ev.Data, "delta", "thinking")
			words.add(t, ev.Data, "delta", "text")
		case providers.OpenAIChat:
			var chunk struct {
				Choices []struct {
					Delta json.RawMessage `json:"delta"`
				} `json:"choices"`
			}
			if json.Unmarshal(ev.Data, &chunk) == nil && len(chunk.Choices) > 0 {
				thoughts.add(t, chunk.Choices[0].Delta, "reasoning_content")
				words.add(t, chunk.Choices[0].Delta, "content")
			}
		default:
			switch string(ev.Name) {
			case "response.reasoning_text.delta":
				thoughts.add(t, ev.Data, "delta")
			case "response.output_text.delta":
				words.add(t, ev.Data, "delta")
			}
		}
	}
	return thoughts.text(t), words.text(t)
}

// F125: whatever an upstream says, in whatever pieces and order, its client's SDK puts the same together.
func TestF125_F127_StreamsSayWhatTheUpstreamSaid(t *testing.T) {
	t.Parallel()
	for _, tr := range translate.All(clock) {
		t.Run(folder(tr), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(rt *rapid.T) {
				s := draw(rt)
				out, err := stream(tr.NewAnswer(parse(t, clientOf(tr.From()))), strings.NewReader(s.in(tr.To())))
				require.NoError(rt, err, out)
				got := readStream(t, tr.From(), out)
				reasoning, text := rawTexts(t, tr.From(), out)
				require.Equal(rt, unescaped(rt, s.reasoning), reasoning, out)
				require.Equal(rt, unescaped(rt, s.text), text, out)
				require.Len(rt, got.Calls, len(s.calls), out)
				for i, c := range s.calls {
					want := unescaped(rt, c.pieces)
					if want == "" {
						want = "{}"
					}
					require.Equal(rt, call{c.id, c.name, want}, got.Calls[i], out)
				}
				require.Equal(rt, finishIn(tr.From(), s.finish), got.Finish, out)
				require.Equal(rt, []int64{7, 5}, []int64{got.In, got.Out}, out)
			})
		})
	}
}

// finishIn returns how a dialect says why an answer ended.
func finishIn(d providers.Dialect, finish string) string {
	switch d {
	case providers.AnthropicMessages:
		return map[string]string{"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}[finish]
	case providers.OpenAIResponses:
		return map[string]string{"stop": "completed", "length": "incomplete", "tool_calls": "completed"}[finish]
	default:
		return finish
	}
}

// Every piece of text goes out with the event that brought it.
func TestStreams_HoldNoTextBack(t *testing.T) {
	t.Parallel()
	for _, tr := range translate.All(clock) {
		t.Run(folder(tr), func(t *testing.T) {
			t.Parallel()
			answer := tr.NewAnswer(parse(t, clientOf(tr.From())))
			s := said{text: []string{"one", "two", "three"}, finish: "stop"}
			var seen int
			for _, ev := range events(t, s.in(tr.To())) {
				var out bytes.Buffer
				require.NoError(t, answer.Event(&out, ev))
				for _, piece := range s.text {
					if strings.Contains(string(ev.Data), `"`+piece+`"`) {
						require.Contains(t, out.String(), `"`+piece+`"`)
						seen++
					}
				}
			}
			require.Equal(t, 3, seen)
		})
	}
}

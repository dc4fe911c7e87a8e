package translate_test

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	openai "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/responses"
	goopenai "github.com/sashabaranov/go-openai"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/providers"
)

// understood returns what an SDK's type for parameters keeps of a request: all that it knows.
func understood(t *testing.T, d providers.Dialect, request string) string {
	t.Helper()
	var params any
	switch d {
	case providers.AnthropicMessages:
		params = &anthropic.MessageNewParams{}
	case providers.OpenAIChat:
		params = &openai.ChatCompletionNewParams{}
	case providers.OpenAIResponses:
		params = &responses.ResponseNewParams{}
	default:
		t.Fatalf("no SDK for %s", d)
	}
	require.NoError(t, json.Unmarshal([]byte(request), params), request)
	kept, err := json.Marshal(params)
	require.NoError(t, err)
	return string(kept)
}

// generic decodes JSON without what SDKs send by other means, extensions of compatible upstreams, and the one union that
// openai-go cannot read back; short forms of a content become its long form.
func generic(t *testing.T, text string) map[string]any {
	t.Helper()
	var v map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &v), text)
	delete(v, "stream")
	if choice, ok := v["tool_choice"].(map[string]any); ok && choice["type"] == "function" {
		delete(v, "tool_choice")
	}
	return normal(v).(map[string]any)
}

func normal(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = normal(v[i])
		}
	case map[string]any:
		for name, inner := range v {
			switch {
			case inner == nil || name == "reasoning_content":
				delete(v, name)
			case name == "content" && v["type"] == "tool_result" && isText(inner):
				v[name] = []any{map[string]any{"type": "text", "text": inner}}
			default:
				v[name] = normal(inner)
			}
		}
	}
	return v
}

func isText(v any) bool {
	_, ok := v.(string)
	return ok
}

// noSDK reports whether nobody's SDK for a dialect is among the modules.
func noSDK(d providers.Dialect) bool { return d == gemini || d == converse }

func TestRequests_AreWhatSDKsSend(t *testing.T) {
	t.Parallel()
	eachCase(t, func(t *testing.T, tr providers.Translator, dir string) {
		request, ok := given(t, dir, "request.json")
		if !ok || noSDK(tr.To()) {
			return
		}
		require.Equal(t, generic(t, request), generic(t, understood(t, tr.To(), request)))
	})
}

// answer is what an SDK makes of a stream or a body.
type answer struct {
	Text, Refusal, Reasoning string
	Calls                    []call
	Finish                   string
	In, Out                  int64
}

type call struct{ ID, Name, Arguments string }

func (a *answer) call(id, name, arguments string) {
	a.Calls = append(a.Calls, call{id, name, arguments})
}

func fromMessage(m *anthropic.Message) (a answer) {
	for _, block := range m.Content {
		switch block.Type {
		case "text":
			a.Text += block.Text
		case "thinking":
			a.Reasoning += block.Thinking
		case "tool_use":
			a.call(block.ID, block.Name, string(block.Input))
		}
	}
	a.Finish = string(m.StopReason)
	a.In = m.Usage.InputTokens + m.Usage.CacheReadInputTokens + m.Usage.CacheCreationInputTokens
	a.Out = m.Usage.OutputTokens
	return a
}

func fromCompletion(c *openai.ChatCompletion) (a answer) {
	m := c.Choices[0].Message
	a.Text, a.Refusal, a.Finish = m.Content, m.Refusal, c.Choices[0].FinishReason
	for _, tool := range m.ToolCalls {
		a.call(tool.ID, tool.Function.Name, tool.Function.Arguments)
	}
	a.In, a.Out = c.Usage.PromptTokens, c.Usage.CompletionTokens
	return a
}

func fromResponse(r *responses.Response) (a answer) {
	for _, item := range r.Output {
		switch item.Type {
		case "message":
			for _, part := range item.Content {
				a.Text += part.Text
				a.Refusal += part.Refusal
			}
		case "reasoning":
			for _, part := range item.Content {
				a.Reasoning += part.Text
			}
			for _, part := range item.Summary {
				a.Reasoning += part.Text
			}
		case "function_call":
			a.call(item.CallID, item.Name, item.Arguments.OfString)
		case "custom_tool_call":
			a.call(item.CallID, item.Name, item.Input)
		}
	}
	a.Finish = string(r.Status)
	a.In, a.Out = r.Usage.InputTokens, r.Usage.OutputTokens
	return a
}

// readBody reads a whole answer with the SDK of a dialect.
func readBody(t testing.TB, d providers.Dialect, body string) answer {
	t.Helper()
	switch d {
	case providers.AnthropicMessages:
		var m anthropic.Message
		require.NoError(t, json.Unmarshal([]byte(body), &m), body)
		return fromMessage(&m)
	case providers.OpenAIChat:
		var c openai.ChatCompletion
		require.NoError(t, json.Unmarshal([]byte(body), &c), body)
		var other goopenai.ChatCompletionResponse
		require.NoError(t, json.Unmarshal([]byte(body), &other), body)
		require.Equal(t, c.Choices[0].Message.Content, other.Choices[0].Message.Content)
		a := fromCompletion(&c)
		a.Reasoning = other.Choices[0].Message.ReasoningContent
		return a
	default:
		var r responses.Response
		require.NoError(t, json.Unmarshal([]byte(body), &r), body)
		return fromResponse(&r)
	}
}

// readStream reads a stream with the SDK of a dialect, and holds it to what the dialect promises about its events.
func readStream(t testing.TB, d providers.Dialect, out string) answer {
	t.Helper()
	switch d {
	case providers.AnthropicMessages:
		return readMessages(t, out)
	case providers.OpenAIChat:
		return readChat(t, out)
	default:
		return readResponses(t, out)
	}
}

// pieces puts JSON strings together before they are decoded: streams cut them within an emoji.
type pieces []byte

// add adds the string at a path of members.
func (p *pieces) add(t testing.TB, data []byte, path ...string) {
	t.Helper()
	for _, name := range path {
		var members map[string]json.RawMessage
		if len(data) == 0 || data[0] != '{' {
			return
		}
		require.NoError(t, json.Unmarshal(data, &members))
		data = members[name]
	}
	if len(data) > 0 && data[0] == '"' {
		*p = append(*p, data[1:len(data)-1]...)
	}
}

func (p pieces) text(t testing.TB) (text string) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(`"`+string(p)+`"`), &text))
	return text
}

func readMessages(t testing.TB, out string) answer {
	t.Helper()
	var m anthropic.Message
	open, next, last := -1, 0, ""
	for _, ev := range events(t, out) {
		var event anthropic.MessageStreamEventUnion
		require.NoError(t, json.Unmarshal(ev.Data, &event), out)
		require.Equal(t, event.Type, string(ev.Name), out)
		require.NoError(t, m.Accumulate(event), out)
		switch last = event.Type; last {
		case "content_block_start":
			require.Equal(t, -1, open, "one block is open at a time: %s", out)
			require.EqualValues(t, next, event.Index, out)
			open, next = next, next+1
		case "content_block_delta":
			require.EqualValues(t, open, event.Index, out)
		case "content_block_stop":
			require.EqualValues(t, open, event.Index, out)
			open = -1
		case "message_delta":
			require.Equal(t, -1, open, out)
		}
	}
	require.Equal(t, "message_stop", last, out)
	return fromMessage(&m)
}

func readChat(t testing.TB, out string) answer {
	t.Helper()
	var acc openai.ChatCompletionAccumulator
	reasoning := ""
	all := events(t, out)
	require.NotEmpty(t, all)
	for i, ev := range all {
		require.Nil(t, ev.Name, out)
		if i == len(all)-1 {
			require.Equal(t, "[DONE]", string(ev.Data), out)
			break
		}
		var shape map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(ev.Data, &shape), out)
		for _, name := range []string{"id", "object", "created", "model", "choices"} {
			require.Contains(t, shape, name)
		}
		var chunk openai.ChatCompletionChunk
		require.NoError(t, json.Unmarshal(ev.Data, &chunk), out)
		require.True(t, acc.AddChunk(chunk), out)
		var other goopenai.ChatCompletionStreamResponse
		require.NoError(t, json.Unmarshal(ev.Data, &other), out)
		for _, choice := range other.Choices {
			reasoning += choice.Delta.ReasoningContent
		}
	}
	a := fromCompletion(&acc.ChatCompletion)
	a.Reasoning = reasoning
	return a
}

func readResponses(t testing.TB, out string) answer {
	t.Helper()
	var last responses.ResponseStreamEventUnion
	var texts, whole pieces
	arguments := map[string]string{}
	for n, ev := range events(t, out) {
		last = responses.ResponseStreamEventUnion{}
		require.NoError(t, json.Unmarshal(ev.Data, &last), out)
		require.Equal(t, last.Type, string(ev.Name), out)
		require.EqualValues(t, n, last.SequenceNumber, out)
		switch last.Type {
		case "response.output_text.delta":
			texts.add(t, ev.Data, "delta")
		case "response.output_text.done":
			whole.add(t, ev.Data, "text")
		case "response.function_call_arguments.delta", "response.custom_tool_call_input.delta":
			arguments[last.ItemID] += last.Delta
		case "response.function_call_arguments.done":
			require.Equal(t, arguments[last.ItemID], last.Arguments, out)
		case "response.custom_tool_call_input.done":
			require.Equal(t, arguments[last.ItemID], last.Input, out)
		}
	}
	require.Contains(t, []string{"response.completed", "response.incomplete"}, last.Type, out)
	require.Equal(t, string(whole), string(texts), out)
	return fromResponse(&last.Response)
}

func TestAnswers_AreWhatSDKsRead(t *testing.T) {
	t.Parallel()
	eachCase(t, func(t *testing.T, tr providers.Translator, dir string) {
		if body, ok := given(t, dir, "answer.json"); ok {
			upstream, _ := given(t, dir, "upstream.json")
			got := readBody(t, tr.From(), body)
			require.NotEmpty(t, got.Finish)
			if !noSDK(tr.To()) {
				require.Equal(t, text(readBody(t, tr.To(), upstream)), text(got))
			}
		}
		if out, ok := given(t, dir, "answer.txt"); ok {
			require.NotEmpty(t, readStream(t, tr.From(), out).Finish, filepath.Base(dir))
		}
	})
}

// text is what a model said, in whatever form a dialect has it.
func text(a answer) string { return a.Text + a.Refusal }

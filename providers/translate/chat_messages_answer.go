package translate

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
)

// chatToMessages serves clients of the chat dialect from targets of Anthropic's.
type chatToMessages struct {
	now     func() time.Time
	halfway bool // Anthropic's dialect is not where the request ends, so that what it demands need not be there
}

// From implements providers.Translator.
func (chatToMessages) From() providers.Dialect { return providers.OpenAIChat }

// To implements providers.Translator.
func (chatToMessages) To() providers.Dialect { return providers.AnthropicMessages }

// NewAnswer implements providers.Translator.
func (t chatToMessages) NewAnswer(client *jsonedit.Document) providers.Answer {
	return &chatFromMessages{now: t.now, usageAsked: usageAsked(client), tools: map[int]*callFromBlock{}}
}

// usageAsked reports whether a client of the chat dialect wants the usage at the end of its stream.
func usageAsked(client *jsonedit.Document) bool {
	asked, _, err := client.Bool("stream_options", "include_usage")
	return err == nil && asked
}

// chatFromMessages makes a completion of a message.
type chatFromMessages struct {
	now        func() time.Time
	usageAsked bool

	id, model, created raw
	usage              messagesUsage
	tools              map[int]*callFromBlock // the open ones, by their block
	called             int                    // tool calls so far
	stopped            bool                   // the finish reason is out
	done               bool
	frames             frames
}

// callFromBlock is a tool call whose block is open.
type callFromBlock struct {
	index  int
	silent bool // no byte of its arguments is out
}

// finishOf returns the chat dialect's word for a stop reason of Anthropic's. Words that are not known yet are stops.
func finishOf(reason raw) raw {
	switch unquote(reason) {
	case stopMaxTokens, stopContextEnd:
		return quote(finishLength)
	case stopToolUse:
		return quote(finishToolCalls)
	case stopRefusal:
		return quote(finishContentFilter)
	default: // end_turn, stop_sequence, pause_turn
		return quote(finishStop)
	}
}

// nativeOf returns the word of the model's own provider for why it stopped: native, where the message was made of another dialect.
func nativeOf(reason, native raw) raw {
	if hasText(native) {
		return native
	}
	return reason
}

// explanation returns why a model refused; nil where it did not say.
func explanation(details raw) raw {
	var d struct {
		Explanation raw `json:"explanation"`
	}
	if len(details) == 0 || json.Unmarshal(details, &d, options) != nil || !hasText(d.Explanation) {
		return nil
	}
	return d.Explanation
}

// Body implements providers.Answer.
func (a *chatFromMessages) Body(upstream []byte) ([]byte, error) {
	var in messagesAnswer
	if err := json.Unmarshal(upstream, &in, options); err != nil {
		return nil, fmt.Errorf("decode message: %w", err)
	}
	if in.Type != "message" {
		return nil, errNoAnswer
	}
	a.begin(&in)
	message := chatDelta{Role: "assistant"}
	var texts, thoughts []raw
	for i, block := range in.Content.parts {
		switch block.Type {
		case "text":
			if isString(block.Text) {
				texts = append(texts, block.Text)
			}
		case "thinking", "redacted_thinking":
			if hasText(block.Thinking) {
				thoughts = append(thoughts, block.Thinking)
			}
			message.ReasoningDetails = append(message.ReasoningDetails, detailOf(i, &block))
		case "tool_use":
			if !given(block.Input) {
				block.Input = raw("{}")
			}
			message.ToolCalls = append(message.ToolCalls, chatToolCall{
				ID: block.ID, Type: "function",
				Function: chatFunction{Name: block.Name, Arguments: quote(string(block.Input))},
			})
		}
	}
	message.Content = raw("null")
	if len(texts) > 0 {
		message.Content = joined(texts, "")
	}
	if len(thoughts) > 0 {
		message.ReasoningContent = joined(thoughts, "")
	}
	message.Refusal = explanation(in.StopDetails)
	if message.Refusal == nil {
		message.Refusal = raw("null")
	}
	usage, err := encode(a.usage.chat())
	if err != nil {
		return nil, err
	}
	return encode(chatOutput{
		ID: a.id, Object: "chat.completion", Created: a.created, Model: a.model,
		Choices: []chatChoice{{
			Message: &message, Logprobs: raw("null"), FinishReason: finishOf(in.StopReason), NativeReason: nativeOf(in.StopReason, in.NativeReason),
		}},
		Usage: usage,
	})
}

// detailOf keeps the thoughts of a block in the form in which a client can send them back.
func detailOf(index int, block *messagesBlock) chatReasoning {
	detail := chatReasoning{Type: reasoningText, Format: reasoningAnthropic, Index: index, Text: block.Thinking, Signature: block.Signature}
	if block.Type == "redacted_thinking" {
		detail.Type, detail.Data = reasoningEncrypted, block.Data
	}
	return detail
}

func (a *chatFromMessages) begin(m *messagesAnswer) {
	a.id, a.model = m.ID, m.Model
	a.created = raw(strconv.FormatInt(a.now().Unix(), 10))
	read(&a.usage, m.Usage)
}

// Event implements providers.Answer.
func (a *chatFromMessages) Event(w io.Writer, ev sse.Event) error {
	var in messagesEvent
	if ok, err := decodeEvent(ev, &in); !ok || err != nil || a.done {
		return err
	}
	if in.Type == "" {
		in.Type = string(ev.Name)
	}
	if a.created == nil && in.Type != "message_start" {
		if in.Type == "ping" {
			return nil
		}
		return errNoAnswer
	}
	var err error
	switch in.Type {
	case "message_start":
		if in.Message == nil {
			return errNoAnswer
		}
		a.begin(in.Message)
		a.chunk(&chatDelta{Role: "assistant", Content: raw(`""`)})
	case "content_block_start":
		err = a.start(in.Index, in.ContentBlock)
	case "content_block_delta":
		a.delta(in.Index, &in.Delta)
	case "content_block_stop":
		a.stop(in.Index)
	case "message_delta":
		read(&a.usage, in.Usage)
		if given(in.Delta.StopReason) && !a.stopped {
			a.finish(&in.Delta)
		}
	case "message_stop":
		err = a.end()
	}
	if err != nil {
		return err
	}
	return a.frames.flush(w)
}

// chunk adds a chunk with one delta.
func (a *chatFromMessages) chunk(delta *chatDelta) { a.choice(chatChoice{Delta: delta}) }

func (a *chatFromMessages) choice(choice chatChoice) {
	out := chatOutput{
		ID: a.id, Object: "chat.completion.chunk", Created: a.created, Model: a.model, Choices: []chatChoice{choice},
	}
	if a.usageAsked {
		out.Usage = raw("null")
	}
	a.frames.data(out)
}

// start begins a block. Whatever of it is there already goes out at once.
func (a *chatFromMessages) start(index int, block *messagesBlock) error {
	if block == nil {
		return errNoAnswer
	}
	switch block.Type {
	case "text":
		a.delta(index, &messagesDelta{Type: "text_delta", Text: block.Text})
	case "thinking":
		a.delta(index, &messagesDelta{Type: "thinking_delta", Thinking: block.Thinking})
		a.delta(index, &messagesDelta{Type: "signature_delta", Signature: block.Signature})
	case "redacted_thinking":
		a.chunk(&chatDelta{ReasoningDetails: []chatReasoning{detailOf(index, block)}})
	case "tool_use":
		if len(a.tools) == maxOpen {
			return errTooMuch
		}
		call := &callFromBlock{index: a.called, silent: true}
		a.tools[index] = call
		a.called++
		arguments := raw(`""`)
		if !neutral(block.Input) {
			arguments, call.silent = quote(string(block.Input)), false
		}
		a.chunk(&chatDelta{ToolCalls: []chatToolCall{{
			Index: &call.index, ID: block.ID, Type: "function",
			Function: chatFunction{Name: block.Name, Arguments: arguments},
		}}})
	}
	return nil
}

// delta passes on a piece of a block.
func (a *chatFromMessages) delta(index int, d *messagesDelta) {
	switch d.Type {
	case "text_delta":
		if hasText(d.Text) {
			a.chunk(&chatDelta{Content: d.Text})
		}
	case "thinking_delta":
		if hasText(d.Thinking) {
			a.chunk(&chatDelta{
				ReasoningContent: d.Thinking,
				ReasoningDetails: []chatReasoning{{Type: reasoningText, Format: reasoningAnthropic, Index: index, Text: d.Thinking}},
			})
		}
	case "signature_delta":
		if hasText(d.Signature) {
			a.chunk(&chatDelta{ReasoningDetails: []chatReasoning{
				{Type: reasoningText, Format: reasoningAnthropic, Index: index, Signature: d.Signature},
			}})
		}
	case "input_json_delta":
		call := a.tools[index]
		if call == nil || !hasText(d.PartialJSON) {
			return
		}
		call.silent = false
		a.arguments(call, d.PartialJSON)
	}
}

func (a *chatFromMessages) arguments(call *callFromBlock, piece raw) {
	a.chunk(&chatDelta{ToolCalls: []chatToolCall{{Index: &call.index, Function: chatFunction{Arguments: piece}}}})
}

// stop ends a block. A call without arguments has an empty object of them.
func (a *chatFromMessages) stop(index int) {
	if call := a.tools[index]; call != nil {
		if call.silent {
			a.arguments(call, raw(`"{}"`))
		}
		delete(a.tools, index)
	}
}

// finish says why the answer ended.
func (a *chatFromMessages) finish(d *messagesDelta) {
	for _, index := range slices.Sorted(maps.Keys(a.tools)) {
		a.stop(index)
	}
	a.stopped = true
	if why := explanation(d.StopDetails); why != nil {
		a.chunk(&chatDelta{Refusal: why})
	}
	a.choice(chatChoice{Delta: &chatDelta{}, FinishReason: finishOf(d.StopReason), NativeReason: nativeOf(d.StopReason, d.NativeReason)})
}

// end closes the stream.
func (a *chatFromMessages) end() error {
	if !a.stopped {
		return errIncomplete
	}
	a.done = true
	if a.usageAsked {
		usage, err := encode(a.usage.chat())
		if err != nil {
			return err
		}
		a.frames.data(chatOutput{ID: a.id, Object: "chat.completion.chunk", Created: a.created, Model: a.model, Usage: usage})
	}
	a.frames.done()
	return nil
}

// End implements providers.Answer.
func (a *chatFromMessages) End(io.Writer) error {
	if !a.done {
		return errIncomplete
	}
	return nil
}

// Error implements providers.Answer.
func (a *chatFromMessages) Error(status int, body []byte) []byte {
	return failureOf(status, body).chat()
}

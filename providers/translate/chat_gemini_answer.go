package translate

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
)

// chatToGemini serves clients of the chat dialect from targets of Gemini's.
type chatToGemini struct{ now func() time.Time }

// From implements providers.Translator.
func (chatToGemini) From() providers.Dialect { return providers.OpenAIChat }

// To implements providers.Translator.
func (chatToGemini) To() providers.Dialect { return providers.GeminiGenerate }

// NewAnswer implements providers.Translator.
func (t chatToGemini) NewAnswer(client *jsonedit.Document) providers.Answer {
	model, _, err := client.String("model")
	if err != nil {
		model = ""
	}
	return &chatFromGemini{now: t.now, usageAsked: usageAsked(client), model: quote(model), id: raw(`"chatcmpl-unnamed"`)}
}

// chatFromGemini makes a completion of an answer of Gemini's. Its streams end without a word: the end is the end.
type chatFromGemini struct {
	now        func() time.Time
	usageAsked bool

	id, model, created raw
	usage              geminiUsage
	measured           bool
	calls              int
	stopped            bool // the finish reason is out
	done               bool
	frames             frames
}

func (a *chatFromGemini) begin(in *geminiAnswer) {
	if hasText(in.ResponseID) {
		a.id = quote("chatcmpl-" + unquote(in.ResponseID))
	}
	if hasText(in.Model) {
		a.model = in.Model
	}
	a.created = raw(strconv.FormatInt(a.now().Unix(), 10))
}

func (a *chatFromGemini) measure(in *geminiAnswer) {
	if given(in.Usage) {
		a.measured = true
		a.usage = geminiUsage{}
		read(&a.usage, in.Usage)
	}
}

// delta returns what a piece of an answer says, why it ended in the chat dialect's word and in Gemini's, and whether it did.
func (a *chatFromGemini) delta(in *geminiAnswer) (d chatDelta, reason, native raw, ended bool, err error) {
	if hasText(in.Feedback.BlockReason) && len(in.Candidates) == 0 {
		return d, quote(finishContentFilter), in.Feedback.BlockReason, true, nil
	}
	var texts, thoughts []raw
	for _, candidate := range in.Candidates {
		if candidate.Index != 0 {
			continue // the request asked for one
		}
		for _, part := range candidate.Content.Parts {
			switch {
			case part.FunctionCall != nil:
				call, err := a.call(&part)
				if err != nil {
					return d, nil, nil, false, err
				}
				d.ToolCalls = append(d.ToolCalls, call)
			case hasText(part.Text) && part.Thought:
				thoughts = append(thoughts, part.Text)
			case hasText(part.Text):
				texts = append(texts, part.Text)
			}
		}
		if candidate.FinishReason != "" {
			ended = true
			reason, native = quote(geminiFinish(candidate.FinishReason, a.calls > 0)), quote(candidate.FinishReason)
		}
	}
	if len(texts) > 0 {
		d.Content = joined(texts, "")
	}
	if len(thoughts) > 0 {
		d.ReasoningContent = joined(thoughts, "")
	}
	return d, reason, native, ended, nil
}

// call translates a call, which always comes whole. Its id keeps its signature, since few clients send back anything else.
func (a *chatFromGemini) call(part *geminiPart) (chatToolCall, error) {
	if a.calls == maxOpen {
		return chatToolCall{}, errTooMuch
	}
	index := a.calls
	a.calls++
	var extra raw
	if hasText(part.ThoughtSignature) {
		var e geminiExtra
		e.Google.ThoughtSignature = part.ThoughtSignature
		var err error
		if extra, err = encode(e); err != nil {
			return chatToolCall{}, err
		}
	}
	args := part.FunctionCall.Args
	if !given(args) {
		args = raw("{}")
	}
	id := part.FunctionCall.ID
	if id == "" {
		id = fmt.Sprintf("call_%s_%d", toolID(unquote(a.id)), index)
	}
	return chatToolCall{
		Index: &index, ID: sealID(id, extra), Type: "function",
		Function: chatFunction{Name: part.FunctionCall.Name, Arguments: quote(string(args))},
	}, nil
}

// Body implements providers.Answer.
func (a *chatFromGemini) Body(upstream []byte) ([]byte, error) {
	var in geminiAnswer
	if err := json.Unmarshal(upstream, &in, options); err != nil {
		return nil, fmt.Errorf("decode answer: %w", err)
	}
	a.begin(&in)
	a.measure(&in)
	message, reason, native, ended, err := a.delta(&in)
	switch {
	case err != nil:
		return nil, err
	case !ended:
		return nil, errNoAnswer
	}
	message.Role = "assistant"
	for i := range message.ToolCalls {
		message.ToolCalls[i].Index = nil
	}
	if message.Content == nil {
		message.Content = raw("null")
	}
	message.Refusal = raw("null")
	usage := raw("null")
	if a.measured {
		if usage, err = encode(a.usage.chat()); err != nil {
			return nil, err
		}
	}
	return encode(chatOutput{
		ID: a.id, Object: "chat.completion", Created: a.created, Model: a.model,
		Choices: []chatChoice{{Message: &message, Logprobs: raw("null"), FinishReason: reason, NativeReason: native}},
		Usage:   usage,
	})
}

// Event implements providers.Answer.
func (a *chatFromGemini) Event(w io.Writer, ev sse.Event) error {
	var in geminiAnswer
	if ok, err := decodeEvent(ev, &in); !ok || err != nil || a.done {
		return err
	}
	if a.created == nil {
		a.begin(&in)
		a.choice(chatChoice{Delta: &chatDelta{Role: "assistant", Content: raw(`""`)}})
	}
	a.measure(&in)
	delta, reason, native, ended, err := a.delta(&in)
	if err != nil {
		return err
	}
	if delta.Content != nil || delta.ReasoningContent != nil || delta.ToolCalls != nil {
		a.choice(chatChoice{Delta: &delta})
	}
	if ended && !a.stopped {
		a.stopped = true
		a.choice(chatChoice{Delta: &chatDelta{}, FinishReason: reason, NativeReason: native})
	}
	return a.frames.flush(w)
}

func (a *chatFromGemini) choice(choice chatChoice) {
	out := chatOutput{ID: a.id, Object: "chat.completion.chunk", Created: a.created, Model: a.model, Choices: []chatChoice{choice}}
	if a.usageAsked {
		out.Usage = raw("null")
	}
	a.frames.data(out)
}

// End implements providers.Answer.
func (a *chatFromGemini) End(w io.Writer) error {
	switch {
	case a.done:
		return nil
	case !a.stopped:
		return errIncomplete
	}
	a.done = true
	if a.usageAsked && a.measured {
		usage, err := encode(a.usage.chat())
		if err != nil {
			return err
		}
		a.frames.data(chatOutput{ID: a.id, Object: "chat.completion.chunk", Created: a.created, Model: a.model, Usage: usage})
	}
	a.frames.done()
	return a.frames.flush(w)
}

// Error implements providers.Answer.
func (a *chatFromGemini) Error(status int, body []byte) []byte {
	return failureOf(status, body).chat()
}

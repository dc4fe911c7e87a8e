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

// chatToResponses serves clients of the chat dialect from targets of the responses dialect.
type chatToResponses struct{ now func() time.Time }

// From implements providers.Translator.
func (chatToResponses) From() providers.Dialect { return providers.OpenAIChat }

// To implements providers.Translator.
func (chatToResponses) To() providers.Dialect { return providers.OpenAIResponses }

// NewAnswer implements providers.Translator.
func (t chatToResponses) NewAnswer(client *jsonedit.Document) providers.Answer {
	return &chatFromResponses{now: t.now, usageAsked: usageAsked(client), calls: map[int]*callFromItem{}}
}

// chatFromResponses makes a completion of a response.
type chatFromResponses struct {
	now        func() time.Time
	usageAsked bool

	id, model, created, tier raw
	calls                    map[int]*callFromItem // by their place in the output
	reasoned                 bool                  // some reasoning is out
	done                     bool
	frames                   frames
}

type callFromItem struct {
	index  int
	silent bool // no byte of its arguments is out
}

// responsesEvent is an event of a stream, as upstreams send it.
type responsesEvent struct {
	Type         string             `json:"type"`
	Response     *responsesUpstream `json:"response"`
	Item         *responsesItem     `json:"item"`
	OutputIndex  int                `json:"output_index"`
	SummaryIndex int                `json:"summary_index"`
	Delta        raw                `json:"delta"`
	Arguments    raw                `json:"arguments"`
}

// responsesUpstream is what is read of a response.
type responsesUpstream struct {
	ID                raw             `json:"id"`
	Object            string          `json:"object"`
	CreatedAt         raw             `json:"created_at"`
	Model             raw             `json:"model"`
	ServiceTier       raw             `json:"service_tier"`
	Status            string          `json:"status"`
	IncompleteDetails raw             `json:"incomplete_details"`
	Output            []responsesItem `json:"output"`
	Usage             raw             `json:"usage"`
}

// finish returns the chat dialect's word for how a response ended, and the response's own.
func (r *responsesUpstream) finish(called bool) (reason, native raw) {
	if r.Status == statusIncomplete {
		var details struct {
			Reason string `json:"reason"`
		}
		if len(r.IncompleteDetails) > 0 && json.Unmarshal(r.IncompleteDetails, &details, options) != nil {
			details.Reason = ""
		}
		if details.Reason == incompleteFiltered {
			return quote(finishContentFilter), quote(details.Reason)
		}
		return quote(finishLength), quote(details.Reason)
	}
	if called {
		return quote(finishToolCalls), quote(r.Status)
	}
	return quote(finishStop), quote(r.Status)
}

func (a *chatFromResponses) begin(r *responsesUpstream) {
	a.id, a.model, a.created, a.tier = r.ID, r.Model, r.CreatedAt, present(r.ServiceTier)
	if _, err := strconv.ParseInt(string(a.created), 10, 64); err != nil {
		a.created = raw(strconv.FormatInt(a.now().Unix(), 10))
	}
}

// Body implements providers.Answer.
func (a *chatFromResponses) Body(upstream []byte) ([]byte, error) {
	var in responsesUpstream
	if err := json.Unmarshal(upstream, &in, options); err != nil {
		return nil, fmt.Errorf("decode response: %w", err)
	}
	if in.Object != "response" || in.Status != statusCompleted && in.Status != statusIncomplete {
		return nil, errNoAnswer
	}
	a.begin(&in)
	message := chatDelta{Role: "assistant"}
	var texts, thoughts, refusals []raw
	for i := range in.Output {
		switch item := &in.Output[i]; item.Type {
		case itemMessage:
			for _, part := range item.Content.parts {
				switch {
				case part.Type == partText && isString(part.Text):
					texts = append(texts, part.Text)
				case part.Type == partRefusal && hasText(part.Refusal):
					refusals = append(refusals, part.Refusal)
				}
			}
		case itemReasoning:
			for _, part := range append(item.Summary, item.Content.parts...) {
				if hasText(part.Text) {
					thoughts = append(thoughts, part.Text)
				}
			}
		case itemCall:
			arguments := item.Arguments
			if !hasText(arguments) {
				arguments = raw(`"{}"`)
			}
			message.ToolCalls = append(message.ToolCalls, chatToolCall{
				ID: item.CallID, Type: "function", Function: chatFunction{Name: item.Name, Arguments: arguments},
			})
		}
	}
	message.Content, message.Refusal = raw("null"), raw("null")
	if len(texts) > 0 {
		message.Content = joined(texts, "")
	}
	if len(refusals) > 0 {
		message.Refusal = joined(refusals, "")
	}
	if len(thoughts) > 0 {
		message.ReasoningContent = joined(thoughts, `\n\n`)
	}
	usage, err := usageOf(in.Usage)
	if err != nil {
		return nil, err
	}
	reason, native := in.finish(len(message.ToolCalls) > 0)
	return encode(chatOutput{
		ID: a.id, Object: "chat.completion", Created: a.created, Model: a.model, ServiceTier: a.tier,
		Choices: []chatChoice{{Message: &message, Logprobs: raw("null"), FinishReason: reason, NativeReason: native}},
		Usage:   usage,
	})
}

// usageOf returns a usage in the chat dialect's words; null where there is none.
func usageOf(usage raw) (raw, error) {
	if !given(usage) {
		return raw("null"), nil
	}
	var u responsesUsage
	read(&u, usage)
	return encode(u.chat())
}

// Event implements providers.Answer.
func (a *chatFromResponses) Event(w io.Writer, ev sse.Event) error {
	var in responsesEvent
	if ok, err := decodeEvent(ev, &in); !ok || err != nil || a.done {
		return err
	}
	if in.Type == "" {
		in.Type = string(ev.Name)
	}
	if a.created == nil {
		if in.Response == nil {
			return errNoAnswer
		}
		a.begin(in.Response)
		a.chunk(&chatDelta{Role: "assistant", Content: raw(`""`)})
	}
	var err error
	switch in.Type {
	case "response.output_item.added":
		err = a.item(in.OutputIndex, in.Item)
	case "response.output_text.delta":
		if hasText(in.Delta) {
			a.chunk(&chatDelta{Content: in.Delta})
		}
	case "response.refusal.delta":
		if hasText(in.Delta) {
			a.chunk(&chatDelta{Refusal: in.Delta})
		}
	case "response.reasoning_summary_part.added":
		if a.reasoned {
			a.chunk(&chatDelta{ReasoningContent: raw(`"\n\n"`)})
		}
	case "response.reasoning_summary_text.delta", "response.reasoning_text.delta":
		if hasText(in.Delta) {
			a.reasoned = true
			a.chunk(&chatDelta{ReasoningContent: in.Delta})
		}
	case "response.function_call_arguments.delta":
		a.arguments(a.calls[in.OutputIndex], in.Delta)
	case "response.function_call_arguments.done":
		if call := a.calls[in.OutputIndex]; call != nil && call.silent {
			a.arguments(call, in.Arguments)
		}
	case "response.completed", "response.incomplete":
		err = a.end(in.Response)
	}
	if err != nil {
		return err
	}
	return a.frames.flush(w)
}

func (a *chatFromResponses) chunk(delta *chatDelta) { a.choice(chatChoice{Delta: delta}) }

func (a *chatFromResponses) choice(choice chatChoice) {
	out := chatOutput{
		ID: a.id, Object: "chat.completion.chunk", Created: a.created, Model: a.model, ServiceTier: a.tier,
		Choices: []chatChoice{choice},
	}
	if a.usageAsked {
		out.Usage = raw("null")
	}
	a.frames.data(out)
}

// item begins a call.
func (a *chatFromResponses) item(place int, item *responsesItem) error {
	if item == nil || item.Type != itemCall {
		return nil
	}
	if len(a.calls) == maxOpen {
		return errTooMuch
	}
	call := &callFromItem{index: len(a.calls), silent: !hasText(item.Arguments)}
	a.calls[place] = call
	arguments := raw(`""`)
	if !call.silent {
		arguments = item.Arguments
	}
	a.chunk(&chatDelta{ToolCalls: []chatToolCall{{
		Index: &call.index, ID: item.CallID, Type: "function", Function: chatFunction{Name: item.Name, Arguments: arguments},
	}}})
	return nil
}

func (a *chatFromResponses) arguments(call *callFromItem, piece raw) {
	if call != nil && hasText(piece) {
		call.silent = false
		a.chunk(&chatDelta{ToolCalls: []chatToolCall{{Index: &call.index, Function: chatFunction{Arguments: piece}}}})
	}
}

// end closes the stream.
func (a *chatFromResponses) end(r *responsesUpstream) error {
	if r == nil {
		return errNoAnswer
	}
	a.done = true
	reason, native := r.finish(len(a.calls) > 0)
	a.choice(chatChoice{Delta: &chatDelta{}, FinishReason: reason, NativeReason: native})
	if a.usageAsked && given(r.Usage) {
		usage, err := usageOf(r.Usage)
		if err != nil {
			return err
		}
		a.frames.data(chatOutput{
			ID: a.id, Object: "chat.completion.chunk", Created: a.created, Model: a.model, ServiceTier: a.tier, Usage: usage,
		})
	}
	a.frames.done()
	return nil
}

// End implements providers.Answer.
func (a *chatFromResponses) End(io.Writer) error {
	if !a.done {
		return errIncomplete
	}
	return nil
}

// Error implements providers.Answer.
func (a *chatFromResponses) Error(status int, body []byte) []byte {
	return failureOf(status, body).chat()
}

package translate

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
)

// messagesToConverse serves clients of Anthropic's dialect from targets of Bedrock's Converse.
type messagesToConverse struct{ now func() time.Time }

// From implements providers.Translator.
func (messagesToConverse) From() providers.Dialect { return providers.AnthropicMessages }

// To implements providers.Translator.
func (messagesToConverse) To() providers.Dialect { return providers.BedrockConverse }

// NewAnswer implements providers.Translator. Converse names neither its answers nor the model: the client's own name of it and
// the time stand in.
func (t messagesToConverse) NewAnswer(client *jsonedit.Document) providers.Answer {
	model, _, err := client.String("model")
	if err != nil {
		model = ""
	}
	return &messagesFromConverse{model: quote(model), id: quote("msg_" + strconv.FormatInt(t.now().UnixNano(), 36))}
}

// messagesFromConverse makes a message of an answer of Converse's. Both have blocks, one behind the other; a stream of Converse
// does not say where a block of text or thoughts begins.
type messagesFromConverse struct {
	id, model raw
	usage     converseUsage
	stop      raw // the stop reason in Converse's words; nil until it is known
	matched   raw // the stop sequence, where the upstream tells

	open  string // the kind of the block that is open; "": none is
	place int    // its index in the upstream's count
	count int    // blocks so far
	begun bool
	done  bool

	called bool // a tool was
	frames frames
}

// converseStop returns Anthropic's word for a stop reason of Converse's. Words that are not known yet are ordinary ends.
func converseStop(reason raw) string {
	switch word := unquote(reason); word {
	case stopEndTurn, stopMaxTokens, stopSequence, stopToolUse, stopContextEnd:
		return word
	case "guardrail_intervened", "content_filtered":
		return stopRefusal
	default: // malformed_model_output, malformed_tool_use
		return stopEndTurn
	}
}

// ended returns what a message says about its end.
func (a *messagesFromConverse) ended() messagesDelta {
	reason := converseStop(a.stop)
	if a.called && unquote(a.stop) == stopEndTurn { // models have been seen to call a tool and to say no more than this
		reason = stopToolUse
	}
	d := messagesDelta{StopReason: quote(reason), StopSequence: raw("null"), NativeReason: a.stop}
	if unquote(a.stop) == stopSequence && hasText(a.matched) {
		d.StopSequence = a.matched
	}
	return d
}

// Body implements providers.Answer.
func (a *messagesFromConverse) Body(upstream []byte) ([]byte, error) {
	var in converseAnswer
	if err := json.Unmarshal(upstream, &in, options); err != nil {
		return nil, fmt.Errorf("decode answer: %w", err)
	}
	if in.Output == nil || in.Output.Message == nil {
		return nil, errNoAnswer
	}
	blocks := []messagesBlock{}
	for i := range in.Output.Message.Content {
		a.called = a.called || in.Output.Message.Content[i].ToolUse != nil
		blocks = append(blocks, messagesBlocks(&in.Output.Message.Content[i])...)
	}
	read(&a.usage, in.Usage)
	usage, err := encode(a.usage.messages())
	if err != nil {
		return nil, err
	}
	a.stop, a.matched = in.StopReason, in.Fields.StopSequence
	end := a.ended()
	return encode(messagesAnswer{
		ID: a.id, Type: "message", Role: "assistant", Model: a.model, Content: messagesContent{parts: blocks},
		StopReason: end.StopReason, StopSequence: end.StopSequence, NativeReason: end.NativeReason, Usage: usage,
	})
}

// messagesBlocks returns the blocks that one of Converse's becomes.
func messagesBlocks(b *converseBlock) (blocks []messagesBlock) {
	switch {
	case hasText(b.Text):
		return []messagesBlock{{Type: "text", Text: b.Text}}
	case b.ToolUse != nil:
		input := b.ToolUse.Input
		if !given(input) {
			input = raw("{}")
		}
		return []messagesBlock{{Type: "tool_use", ID: b.ToolUse.ToolUseID, Name: b.ToolUse.Name, Input: input}}
	case b.Reasoning != nil && b.Reasoning.Whole != nil && isString(b.Reasoning.Whole.Text):
		thought := b.Reasoning.Whole
		if !isString(thought.Signature) {
			thought.Signature = raw(`""`)
		}
		return []messagesBlock{{Type: "thinking", Thinking: thought.Text, Signature: thought.Signature}}
	case b.Reasoning != nil && hasText(b.Reasoning.Redacted):
		return []messagesBlock{{Type: "redacted_thinking", Data: b.Reasoning.Redacted}}
	case b.Citations != nil:
		for i := range b.Citations.Content {
			if text := b.Citations.Content[i].Text; hasText(text) {
				blocks = append(blocks, messagesBlock{Type: "text", Text: text})
			}
		}
	}
	return blocks
}

// Event implements providers.Answer.
func (a *messagesFromConverse) Event(w io.Writer, ev sse.Event) error {
	var in converseAnswer
	if ok, err := decodeEvent(ev, &in); !ok || err != nil || a.done {
		return err
	}
	name := string(ev.Name)
	if !a.begun && name != "messageStart" {
		if strings.HasPrefix(name, "contentBlock") || name == "messageStop" {
			return errNoAnswer
		}
		return nil
	}
	switch name {
	case "messageStart":
		if !a.begun {
			return a.begin(w)
		}
	case "contentBlockStart":
		if in.Start.ToolUse != nil {
			a.called = true
			if err := a.start(in.Index, messagesBlock{Type: "tool_use", ID: in.Start.ToolUse.ToolUseID, Name: in.Start.ToolUse.Name, Input: raw("{}")}); err != nil {
				return err
			}
		}
	case "contentBlockDelta":
		if err := a.piece(in.Index, &in.Delta); err != nil {
			return err
		}
	case "contentBlockStop":
		a.close()
	case "messageStop":
		a.close()
		a.stop, a.matched = in.StopReason, in.Fields.StopSequence
	case "metadata":
		read(&a.usage, in.Usage)
		if a.stop != nil {
			return a.End(w)
		}
	}
	return a.frames.flush(w)
}

// begin opens the message. Its prompt is counted at its end.
func (a *messagesFromConverse) begin(w io.Writer) error {
	a.begun = true
	usage, err := encode(messagesUsage{})
	if err != nil {
		return err
	}
	a.frames.named("message_start", struct {
		Type    string         `json:"type"`
		Message messagesAnswer `json:"message"`
	}{"message_start", messagesAnswer{ID: a.id, Type: "message", Role: "assistant", Model: a.model, Usage: usage}})
	return a.frames.flush(w)
}

// start opens a block, after the one before it.
func (a *messagesFromConverse) start(place int, block any) error {
	a.close()
	if a.count == maxOpen {
		return errTooMuch
	}
	a.open, a.place = kindOfBlock(block), place
	a.frames.named("content_block_start", struct {
		Type  string `json:"type"`
		Index int    `json:"index"`
		Block any    `json:"content_block"`
	}{"content_block_start", a.count, block})
	a.count++
	return nil
}

// textStart and thinkingStart are blocks before their first pieces.
type (
	textStart struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	thinkingStart struct {
		Type      string `json:"type"`
		Thinking  string `json:"thinking"`
		Signature string `json:"signature"`
	}
)

func kindOfBlock(block any) string {
	switch b := block.(type) {
	case messagesBlock:
		return b.Type
	case thinkingStart:
		return b.Type
	case textStart:
		return b.Type
	}
	return ""
}

// piece passes on a piece of a block, which it opens if need be.
func (a *messagesFromConverse) piece(place int, d *converseBlock) error {
	var block any
	var delta messagesDelta
	switch r := d.Reasoning; {
	case hasText(d.Text):
		block, delta = textStart{Type: "text"}, messagesDelta{Type: "text_delta", Text: d.Text}
	case d.ToolUse != nil:
		if a.open != "tool_use" || a.place != place {
			return fmt.Errorf("%w: a piece of a call that has not begun", errNoAnswer)
		}
		if !hasText(d.ToolUse.Input) {
			return nil
		}
		a.delta(messagesDelta{Type: "input_json_delta", PartialJSON: d.ToolUse.Input})
		return nil
	case r == nil:
		return nil
	case hasText(r.Redacted):
		if err := a.start(place, messagesBlock{Type: "redacted_thinking", Data: r.Redacted}); err != nil {
			return err
		}
		a.close()
		return nil
	case hasText(r.Text):
		block, delta = thinkingStart{Type: "thinking"}, messagesDelta{Type: "thinking_delta", Thinking: r.Text}
	case hasText(r.Signature):
		block, delta = thinkingStart{Type: "thinking"}, messagesDelta{Type: "signature_delta", Signature: r.Signature}
	default:
		return nil
	}
	if a.open != kindOfBlock(block) || a.place != place {
		if err := a.start(place, block); err != nil {
			return err
		}
	}
	a.delta(delta)
	return nil
}

// delta adds a piece to the block that is open.
func (a *messagesFromConverse) delta(d messagesDelta) {
	a.frames.named("content_block_delta", struct {
		Type  string        `json:"type"`
		Index int           `json:"index"`
		Delta messagesDelta `json:"delta"`
	}{"content_block_delta", a.count - 1, d})
}

// close ends the block that is open.
func (a *messagesFromConverse) close() {
	if a.open == "" {
		return
	}
	a.open = ""
	a.frames.named("content_block_stop", struct {
		Type  string `json:"type"`
		Index int    `json:"index"`
	}{"content_block_stop", a.count - 1})
}

// End implements providers.Answer.
func (a *messagesFromConverse) End(w io.Writer) error {
	switch {
	case a.done:
		return nil
	case a.stop == nil:
		return errIncomplete
	}
	a.done = true
	usage, err := encode(a.usage.messages())
	if err != nil {
		return err
	}
	a.frames.messagesEnd(a.ended(), usage)
	return a.frames.flush(w)
}

// Error implements providers.Answer.
func (a *messagesFromConverse) Error(status int, body []byte) []byte {
	return failureOf(status, body).messages()
}

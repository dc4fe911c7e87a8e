package translate

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
)

// messagesToChat serves clients of Anthropic's dialect from targets of the chat dialect.
type messagesToChat struct {
	halfway bool // the chat dialect is not where the request ends, so that its upstreams' limits are not its own
}

// From implements providers.Translator.
func (messagesToChat) From() providers.Dialect { return providers.AnthropicMessages }

// To implements providers.Translator.
func (messagesToChat) To() providers.Dialect { return providers.OpenAIChat }

// NewAnswer implements providers.Translator.
func (messagesToChat) NewAnswer(client *jsonedit.Document) providers.Answer {
	model, _, err := client.String("model")
	if err != nil {
		model = ""
	}
	return &messagesFromChat{model: quote(model), id: raw(`"msg_unnamed"`), byIndex: map[int]*block{}}
}

// thinkingMark is the signature of thoughts that came from a target of the chat dialect, before the name of the member that
// carried them there. Some of these targets want them back with the results of tools; nobody checks a signature.
const thinkingMark = "chat:"

// messagesFromChat makes a message of a completion.
//
// In Anthropic's dialect one block follows the other, while chunks may mix the arguments of several calls. The first block
// that is not closed is live: it is passed on as it comes. What belongs to later ones waits until the live one is complete.
type messagesFromChat struct {
	id, model raw // the client's model until the upstream names its own
	usage     messagesUsage
	finish    raw // the finish reason; nil until it is known
	native    raw // the upstream's own word for it
	matched   raw // the stop sequence, where the upstream tells
	refused   bool
	called    bool

	blocks  []*block       // those that are not closed, the live one first
	byIndex map[int]*block // calls by the index that the upstream gave them
	count   int            // blocks so far
	held    int            // bytes that wait in blocks
	begun   bool
	done    bool
	frames  frames
}

// block is one that is not closed.
type block struct {
	kind    string // text, thinking or tool_use
	index   int
	own     string // of a call: its id in the upstream's words
	id      string // and in the client's
	name    string
	member  string // of thoughts: where they came from
	pieces  []raw  // texts, thoughts or arguments that wait
	started bool
	args    nesting // of a call: where its arguments stand
}

// nesting follows JSON text far enough to know when an object is complete.
type nesting struct {
	depth    int
	inString bool
	escaped  bool
	complete bool
}

func (n *nesting) add(text string) {
	for i := range len(text) {
		c := text[i]
		switch {
		case n.escaped:
			n.escaped = false
		case n.inString:
			n.escaped = c == '\\'
			n.inString = c != '"'
		case c == '"':
			n.inString = true
		case c == '{' || c == '[':
			n.depth++
		case c == '}' || c == ']':
			n.depth--
			n.complete = n.depth == 0
		}
	}
}

// stopOf returns Anthropic's word for a finish reason. Upstreams have been seen to call a tool and to say stop.
func (a *messagesFromChat) stopOf() raw {
	switch unquote(a.finish) {
	case finishLength:
		return quote(stopMaxTokens)
	case finishContentFilter:
		return quote(stopRefusal)
	}
	switch {
	case a.called:
		return quote(stopToolUse)
	case a.refused:
		return quote(stopRefusal)
	case a.matched != nil:
		return quote(stopSequence)
	}
	return quote(stopEndTurn)
}

// Body implements providers.Answer.
func (a *messagesFromChat) Body(upstream []byte) ([]byte, error) {
	var in chatAnswer
	if err := json.Unmarshal(upstream, &in, options); err != nil {
		return nil, fmt.Errorf("decode completion: %w", err)
	}
	choices := in.Choices
	if len(choices) == 0 || choices[0].Message == nil {
		return nil, errNoAnswer
	}
	a.named(&in)
	choice := choices[0]
	m := choice.Message
	blocks := []messagesBlock{}
	content, thought := m.texts()
	if text, member := m.reasoning(thought); hasText(text) {
		blocks = append(blocks, messagesBlock{Type: "thinking", Thinking: text, Signature: quote(thinkingMark + member)})
	}
	if hasText(content) {
		blocks = append(blocks, messagesBlock{Type: "text", Text: content})
	}
	if hasText(m.Refusal) {
		a.refused = true
		blocks = append(blocks, messagesBlock{Type: "text", Text: m.Refusal})
	}
	for i, call := range m.ToolCalls {
		a.called = true
		input, ok := object(call.Function.Arguments)
		if !ok { // a model's slip that its client's tool has to see
			invalid, err := encode(struct {
				Invalid raw `json:"invalid_arguments"`
			}{call.Function.Arguments})
			if err != nil {
				return nil, err
			}
			input = invalid
		}
		blocks = append(blocks, messagesBlock{Type: "tool_use", ID: sealID(callID(call.ID, a.id, i), call.Extra), Name: call.Function.Name, Input: input})
	}
	var usage chatUsage
	read(&usage, in.Usage)
	encoded, err := encode(usage.messages())
	if err != nil {
		return nil, err
	}
	a.finished(&choice)
	return encode(messagesAnswer{
		ID: a.id, Type: "message", Role: "assistant", Model: a.model, Content: messagesContent{parts: blocks},
		StopReason: a.stopOf(), StopSequence: a.matched, NativeReason: a.native, Usage: encoded,
	})
}

// callID returns the id of a call, which some upstreams leave out.
func callID(id string, answer raw, index int) string {
	if id != "" {
		return id
	}
	return fmt.Sprintf("toolu_%s_%d", unquote(answer), index)
}

// finished takes note of why a choice ended.
func (a *messagesFromChat) finished(choice *chatChoice) {
	a.finish, a.native = choice.FinishReason, choice.FinishReason
	if hasText(choice.NativeReason) {
		a.native = choice.NativeReason
	}
	if unquote(a.finish) == finishStop && isString(choice.StopReason) {
		a.matched = choice.StopReason
	}
}

// Event implements providers.Answer.
func (a *messagesFromChat) Event(w io.Writer, ev sse.Event) error {
	if isDone(ev.Data) {
		if a.begun && a.finish == nil {
			a.finish = quote(finishStop) // whole all the same: some self-hosted servers name no reason
		}
		return a.End(w)
	}
	var in chatAnswer
	if ok, err := decodeEvent(ev, &in); !ok || err != nil || a.done {
		return err
	}
	choices := in.Choices
	if !a.begun {
		if !hasText(in.ID) && len(choices) == 0 {
			return nil // Azure's word about its filters
		}
		if err := a.begin(&in); err != nil {
			return err
		}
	}
	var usage chatUsage
	if read(&usage, in.Usage); usage != (chatUsage{}) {
		a.usage = usage.messages()
	}
	for i := range choices {
		if choices[i].Index != 0 {
			continue // the request asked for one
		}
		if choices[i].Delta != nil {
			if err := a.delta(choices[i].Delta); err != nil {
				return err
			}
		}
		if isString(choices[i].FinishReason) {
			a.finished(&choices[i])
		}
	}
	return a.frames.flush(w)
}

// named takes the names of the answer and of the model, where the upstream gives them.
func (a *messagesFromChat) named(in *chatAnswer) {
	if hasText(in.ID) {
		a.id = in.ID
	}
	if hasText(in.Model) {
		a.model = in.Model
	}
}

// begin opens the message.
func (a *messagesFromChat) begin(in *chatAnswer) error {
	a.begun = true
	a.named(in)
	usage, err := encode(messagesUsage{})
	if err != nil {
		return err
	}
	a.frames.named("message_start", struct {
		Type    string         `json:"type"`
		Message messagesAnswer `json:"message"`
	}{"message_start", messagesAnswer{ID: a.id, Type: "message", Role: "assistant", Model: a.model, Usage: usage}})
	return nil
}

// delta sorts a piece of the answer into its blocks.
func (a *messagesFromChat) delta(d *chatDelta) error {
	content, thought := d.texts()
	if text, member := d.reasoning(thought); hasText(text) {
		if err := a.say("thinking", member, text); err != nil {
			return err
		}
	}
	if hasText(content) {
		if err := a.say("text", "", content); err != nil {
			return err
		}
	}
	if hasText(d.Refusal) {
		a.refused = true
		if err := a.say("text", "", d.Refusal); err != nil {
			return err
		}
	}
	for i := range d.ToolCalls {
		if err := a.call(i, &d.ToolCalls[i]); err != nil {
			return err
		}
	}
	return nil
}

// say adds a piece to the last block if it is of this kind, else to a new one.
func (a *messagesFromChat) say(kind, member string, piece raw) error {
	if n := len(a.blocks); n > 0 && a.blocks[n-1].kind == kind && a.blocks[n-1].member == member {
		return a.add(a.blocks[n-1], piece)
	}
	b := &block{kind: kind, member: member}
	if err := a.open(b); err != nil {
		return err
	}
	return a.add(b, piece)
}

func (a *messagesFromChat) open(b *block) error {
	if len(a.blocks) == maxOpen {
		return errTooMuch
	}
	b.index = a.count
	a.count++
	a.blocks = append(a.blocks, b)
	return nil
}

// call adds a piece of a call. A piece with another id begins another call, whatever its index says: there are upstreams
// that give every call the index 0, or none.
func (a *messagesFromChat) call(place int, piece *chatToolCall) error {
	if piece.Index != nil {
		place = *piece.Index
	}
	b := a.byIndex[place]
	if b == nil || piece.ID != "" && piece.ID != b.own && piece.Function.Name != "" {
		own := callID(piece.ID, a.id, a.count)
		b = &block{kind: "tool_use", own: own, id: sealID(own, piece.Extra), name: piece.Function.Name}
		if len(a.byIndex) == maxOpen {
			return errTooMuch
		}
		if err := a.open(b); err != nil {
			return err
		}
		a.byIndex[place] = b
		a.called = true
	} else if b.name == "" {
		b.name = piece.Function.Name
	}
	arguments := piece.Function.Arguments
	if given(arguments) && !isString(arguments) {
		arguments = quote(string(arguments)) // an object where the dialect has a string
	}
	if hasText(arguments) {
		b.args.add(unquote(arguments))
		return a.add(b, arguments)
	}
	return a.advance()
}

// add adds a piece to a block.
func (a *messagesFromChat) add(b *block, piece raw) error {
	if !slices.Contains(a.blocks, b) {
		if strings.TrimSpace(unquote(piece)) == "" {
			return nil
		}
		return fmt.Errorf("%w: a call went on after its arguments were complete", errNoAnswer)
	}
	if a.held += len(piece); a.held > maxHeld {
		return errTooMuch
	}
	b.pieces = append(b.pieces, piece)
	return a.advance()
}

// advance passes on what the live block has, and closes it if others wait and it can get no more.
func (a *messagesFromChat) advance() error {
	for len(a.blocks) > 0 {
		live := a.blocks[0]
		a.pass(live)
		if len(a.blocks) == 1 || live.kind == "tool_use" && !live.args.complete {
			return nil
		}
		a.close()
	}
	return nil
}

// pass writes what waits in the live block. A call without a name cannot begin yet.
func (a *messagesFromChat) pass(b *block) {
	if !b.started {
		if b.kind == "tool_use" && b.name == "" {
			return
		}
		b.started = true
		a.frames.named("content_block_start", struct {
			Type  string `json:"type"`
			Index int    `json:"index"`
			Block any    `json:"content_block"`
		}{"content_block_start", b.index, b.start()})
	}
	for _, piece := range b.pieces {
		a.held -= len(piece)
		delta := messagesDelta{}
		switch b.kind {
		case "text":
			delta.Type, delta.Text = "text_delta", piece
		case "thinking":
			delta.Type, delta.Thinking = "thinking_delta", piece
		default:
			delta.Type, delta.PartialJSON = "input_json_delta", piece
		}
		a.blockDelta(b.index, delta)
	}
	b.pieces = b.pieces[:0]
}

// start is what a block is before its first piece.
func (b *block) start() any {
	switch b.kind {
	case "text":
		return struct {
			Type string `json:"type"`
			Text string `json:"text"`
		}{b.kind, ""}
	case "thinking":
		return struct {
			Type      string `json:"type"`
			Thinking  string `json:"thinking"`
			Signature string `json:"signature"`
		}{b.kind, "", ""}
	default:
		return messagesBlock{Type: b.kind, ID: b.id, Name: b.name, Input: raw("{}")}
	}
}

func (a *messagesFromChat) blockDelta(index int, delta messagesDelta) {
	a.frames.named("content_block_delta", struct {
		Type  string        `json:"type"`
		Index int           `json:"index"`
		Delta messagesDelta `json:"delta"`
	}{"content_block_delta", index, delta})
}

// close ends the live block.
func (a *messagesFromChat) close() {
	live := a.blocks[0]
	if live.kind == "tool_use" && live.name == "" {
		live.name = "unnamed"
		a.pass(live)
	}
	if live.kind == "thinking" {
		a.blockDelta(live.index, messagesDelta{Type: "signature_delta", Signature: quote(thinkingMark + live.member)})
	}
	a.frames.named("content_block_stop", struct {
		Type  string `json:"type"`
		Index int    `json:"index"`
	}{"content_block_stop", live.index})
	a.blocks[0] = nil
	a.blocks = a.blocks[1:]
}

// End implements providers.Answer.
func (a *messagesFromChat) End(w io.Writer) error {
	switch {
	case a.done:
		return nil
	case a.finish == nil:
		return errIncomplete
	}
	a.done = true
	for len(a.blocks) > 0 {
		a.pass(a.blocks[0])
		a.close()
	}
	usage, err := encode(a.usage)
	if err != nil {
		return err
	}
	matched := a.matched
	if matched == nil {
		matched = raw("null")
	}
	a.frames.messagesEnd(messagesDelta{StopReason: a.stopOf(), StopSequence: matched, NativeReason: a.native}, usage)
	return a.frames.flush(w)
}

// Error implements providers.Answer.
func (a *messagesFromChat) Error(status int, body []byte) []byte {
	return failureOf(status, body).messages()
}

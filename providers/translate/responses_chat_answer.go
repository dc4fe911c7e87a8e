package translate

import (
	"bytes"
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

// responsesToChat serves clients of the responses dialect from targets of the chat dialect.
type responsesToChat struct {
	now     func() time.Time
	halfway bool // the chat dialect is not where the request ends, so that its upstreams' limits are not its own
}

// From implements providers.Translator.
func (responsesToChat) From() providers.Dialect { return providers.OpenAIResponses }

// To implements providers.Translator.
func (responsesToChat) To() providers.Dialect { return providers.OpenAIChat }

// maxEcho is the longest member of a request that its answer repeats, in bytes: it is kept as long as a stream lasts.
const maxEcho = 64 << 10

// NewAnswer implements providers.Translator.
func (t responsesToChat) NewAnswer(client *jsonedit.Document) providers.Answer {
	echo := func(name, absent string) raw {
		value, ok := client.Get(name)
		if !ok || !given(value) || len(value) > maxEcho {
			return raw(absent)
		}
		return bytes.Clone(value)
	}
	reasoning := partReasoning
	if summary, ok := client.Get("reasoning", "summary"); ok && given(summary) {
		reasoning = partSummary // what clients show that ask for it
	}
	return &responsesFromChat{
		now: t.now, tools: clientTools(client), reasoning: reasoning, calls: map[int]*outputItem{},
		response: responsesAnswer{
			ID: raw(`"resp_unnamed"`), Object: "response", Error: raw("null"), IncompleteDetails: raw("null"), PreviousResponseID: raw("null"),
			Model: echo("model", `""`), Instructions: echo("instructions", "null"), MaxOutputTokens: echo("max_output_tokens", "null"),
			ParallelToolCalls: echo("parallel_tool_calls", "true"), Reasoning: echo("reasoning", `{"effort":null,"summary":null}`),
			Temperature: echo("temperature", "1"), Text: echo("text", `{"format":{"type":"text"}}`),
			ToolChoice: echo("tool_choice", `"auto"`), Tools: echo("tools", "[]"), TopP: echo("top_p", "1"),
			Truncation: echo("truncation", `"disabled"`), User: echo("user", "null"), Metadata: echo("metadata", "{}"), Usage: raw("null"),
		},
	}
}

// clientTool is what a client calls a tool that its target knows as a function.
type clientTool struct {
	name, namespace string
	custom          bool
}

// clientTools returns the tools that have another name or another kind at the target, by the name that they have there.
func clientTools(client *jsonedit.Document) map[string]clientTool {
	type offered struct {
		Type string `json:"type"`
		Name string `json:"name"`
	}
	var tools []struct {
		offered
		Tools []offered `json:"tools"`
	}
	value, ok := client.Get("tools")
	if !ok || json.Unmarshal(value, &tools, options) != nil {
		return nil
	}
	known := map[string]clientTool{}
	for _, tool := range tools {
		if tool.Type == "custom" {
			known[tool.Name] = clientTool{name: tool.Name, custom: true}
		}
		for _, inner := range tool.Tools {
			known[flatName(tool.Name, inner.Name)] = clientTool{name: inner.Name, namespace: tool.Name, custom: inner.Type == "custom"}
		}
	}
	return known
}

// responsesFromChat makes a response of a completion. Its dialect repeats at its end what was said before, so that a stream
// has to hold its whole answer.
type responsesFromChat struct {
	now       func() time.Time
	tools     map[string]clientTool
	reasoning string // the kind of part that reasoning becomes

	response responsesAnswer
	usage    chatUsage
	measured bool // the upstream told a usage
	finish   raw
	items    []*outputItem
	spoken   *outputItem         // the open message or reasoning
	calls    map[int]*outputItem // by the index that the upstream gave them
	held     int                 // bytes of the answer so far
	sequence int                 // the number of the next event
	begun    bool
	done     bool
	frames   frames
}

// outputItem is an item of the answer.
type outputItem struct {
	kind   string // itemMessage, itemReasoning, itemCall or itemCustom
	part   string // of a message or reasoning: what its part is
	index  int
	id     string
	own    string // of a call: its id in the upstream's words
	callID string // and in the client's

	namespace string
	name      string
	text      []byte // its text, reasoning or arguments, as the inside of a JSON string
	told      int    // bytes of the text that are out
	started   bool
	status    string // once it is closed
	details   []chatReasoning
}

// literal returns the item's text.
func (i *outputItem) literal() raw { return append(append(raw{'"'}, i.text...), '"') }

// item returns what the dialect calls an item, complete or as it begins.
func (i *outputItem) item(status string, whole bool) responsesItem {
	text := raw(`""`)
	if whole {
		text = i.literal()
	}
	out := responsesItem{ID: i.id, Type: i.kind, Status: status, CallID: i.callID, Namespace: i.namespace, Name: i.name}
	switch i.kind {
	case itemCall:
		out.Arguments = text
	case itemCustom:
		out.Input = raw(`""`)
		if whole {
			out.Input = i.input()
		}
	case itemMessage:
		out.Role = "assistant"
		out.Content.parts = []responsesPart{}
		if whole {
			out.Content.parts = append(out.Content.parts, i.partOf(text))
		}
	default:
		parts := []responsesPart{}
		if whole && len(i.text) > 0 {
			parts = append(parts, i.partOf(text))
		}
		out.Summary = []responsesPart{}
		if i.part == partSummary {
			out.Summary = parts
		} else {
			out.Content.parts = parts
		}
		if whole && (len(i.details) > 0 || i.part == partSummary) {
			out.Encrypted = sealed(i.details)
		}
	}
	return out
}

// sealedMark begins what this dialect calls encrypted, and what holds an upstream's reasoning_details here: the client keeps
// it unread and sends it back, and with it the signatures without which some upstreams do not go on. It also tells reasoning
// of the chat dialect from summaries by OpenAI's own models.
const sealedMark = "chat:"

func sealed(details []chatReasoning) raw {
	text, err := encode(details)
	if err != nil {
		return nil
	}
	return quote(sealedMark + string(text))
}

// unsealed returns the reasoning_details in an item of reasoning; ours is false where it came from elsewhere.
func unsealed(encrypted raw) (details []chatReasoning, ours bool) {
	text, ours := strings.CutPrefix(unquote(encrypted), sealedMark)
	if !ours || json.Unmarshal([]byte(text), &details, options) != nil {
		return nil, false
	}
	return details, true
}

func (i *outputItem) partOf(text raw) responsesPart {
	switch i.part {
	case partRefusal:
		return responsesPart{Type: i.part, Refusal: text}
	case partText:
		return responsesPart{Type: i.part, Text: text, Annotations: raw("[]"), Logprobs: raw("[]")}
	default:
		return responsesPart{Type: i.part, Text: text}
	}
}

// input takes a custom tool's input out of the function's arguments. A model that sends something else has sent that.
func (i *outputItem) input() raw {
	var in customInput
	text := unquote(i.literal())
	if json.Unmarshal([]byte(text), &in, options) != nil || !isString(in.Input) {
		return quote(text)
	}
	return in.Input
}

// Body implements providers.Answer.
func (a *responsesFromChat) Body(upstream []byte) ([]byte, error) {
	var in chatAnswer
	if err := json.Unmarshal(upstream, &in, options); err != nil {
		return nil, fmt.Errorf("decode completion: %w", err)
	}
	choices := in.Choices
	if len(choices) == 0 || choices[0].Message == nil {
		return nil, errNoAnswer
	}
	a.named(&in)
	a.measure(in.Usage)
	if err := a.delta(choices[0].Message); err != nil {
		return nil, err
	}
	a.finish = choices[0].FinishReason
	if err := a.complete(); err != nil {
		return nil, err
	}
	return encode(a.response)
}

// named takes the names of the answer and of the model, where the upstream gives them.
func (a *responsesFromChat) named(in *chatAnswer) {
	if hasText(in.ID) {
		a.response.ID = quote("resp_" + unquote(in.ID))
	}
	if hasText(in.Model) {
		a.response.Model = in.Model
	}
	if hasText(in.ServiceTier) {
		a.response.ServiceTier = in.ServiceTier
	}
	a.response.CreatedAt = in.Created
	if n, err := strconv.ParseInt(string(in.Created), 10, 64); err != nil || n == 0 {
		a.response.CreatedAt = raw(strconv.FormatInt(a.now().Unix(), 10))
	}
}

func (a *responsesFromChat) measure(usage raw) {
	if given(usage) {
		a.measured = true
		read(&a.usage, usage)
	}
}

// Event implements providers.Answer.
func (a *responsesFromChat) Event(w io.Writer, ev sse.Event) error {
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
		a.begun = true
		a.named(&in)
		a.response.Status = statusInProgress
		a.respond("response.created")
		a.respond("response.in_progress")
	}
	a.measure(in.Usage)
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
			a.finish = choices[i].FinishReason
		}
	}
	return a.frames.flush(w)
}

// responsesFrame is an event of a stream, as clients get it. Which members it has depends on its type.
type responsesFrame struct {
	Type           string           `json:"type"`
	SequenceNumber int              `json:"sequence_number"`
	Response       *responsesAnswer `json:"response,omitzero"`
	ItemID         string           `json:"item_id,omitzero"`
	OutputIndex    *int             `json:"output_index,omitzero"`
	ContentIndex   *int             `json:"content_index,omitzero"`
	SummaryIndex   *int             `json:"summary_index,omitzero"`
	Item           *responsesItem   `json:"item,omitzero"`
	Part           *responsesPart   `json:"part,omitzero"`
	Delta          raw              `json:"delta,omitzero"`
	Text           raw              `json:"text,omitzero"`
	Refusal        raw              `json:"refusal,omitzero"`
	Arguments      raw              `json:"arguments,omitzero"`
	Name           string           `json:"name,omitzero"`
	Input          raw              `json:"input,omitzero"`
	Logprobs       raw              `json:"logprobs,omitzero"`
}

// tell adds an event. Nothing precedes the answer's own event.
func (a *responsesFromChat) tell(f responsesFrame) {
	f.SequenceNumber = a.sequence
	a.sequence++
	if a.begun {
		a.frames.named(f.Type, f)
	}
}

func (a *responsesFromChat) respond(kind string) {
	a.tell(responsesFrame{Type: kind, Response: &a.response})
}

// delta sorts a piece of the answer into its items.
func (a *responsesFromChat) delta(d *chatDelta) error {
	content, thought := d.texts()
	if reasoning, _ := d.reasoning(thought); hasText(reasoning) {
		if err := a.say(itemReasoning, a.reasoning, reasoning); err != nil {
			return err
		}
	}
	for i := range d.ReasoningDetails {
		if err := a.detail(&d.ReasoningDetails[i]); err != nil {
			return err
		}
	}
	if hasText(content) {
		if err := a.say(itemMessage, partText, content); err != nil {
			return err
		}
	}
	if hasText(d.Refusal) {
		if err := a.say(itemMessage, partRefusal, d.Refusal); err != nil {
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

// detail adds a piece of a provider's own reasoning to the open item of reasoning, or begins one for it.
func (a *responsesFromChat) detail(piece *chatReasoning) error {
	if a.held += len(piece.Text) + len(piece.Summary) + len(piece.Signature) + len(piece.Data); a.held > maxHeld {
		return errTooMuch
	}
	n := len(a.items)
	if n == 0 || a.items[n-1].kind != itemReasoning || a.items[n-1].status != "" {
		a.close(a.spoken, statusCompleted)
		item, err := a.open(outputItem{kind: itemReasoning, part: a.reasoning})
		if err != nil {
			return err
		}
		a.spoken = item
		a.advance(item)
		n++
	}
	item := a.items[n-1]
	if k := len(item.details) - 1; k >= 0 && item.details[k].Index == piece.Index && item.details[k].Type == piece.Type {
		last := &item.details[k]
		last.Text, last.Summary = appended(last.Text, piece.Text), appended(last.Summary, piece.Summary)
		last.Signature, last.Data = appended(last.Signature, piece.Signature), appended(last.Data, piece.Data)
		return nil
	}
	if len(item.details) == maxOpen {
		return errTooMuch
	}
	item.details = append(item.details, *piece)
	return nil
}

// appended puts a piece behind a JSON string.
func appended(text, piece raw) raw {
	switch {
	case !isString(piece):
		return text
	case !isString(text):
		return append(raw{}, piece...)
	}
	return append(text[:len(text)-1], piece[1:]...)
}

// say adds a piece of text to the open item if it is of this kind, else to a new one.
func (a *responsesFromChat) say(kind, part string, piece raw) error {
	if a.spoken == nil || a.spoken.part != part {
		a.close(a.spoken, statusCompleted)
		item, err := a.open(outputItem{kind: kind, part: part})
		if err != nil {
			return err
		}
		a.spoken = item
	}
	return a.add(a.spoken, piece)
}

// open begins an item.
func (a *responsesFromChat) open(item outputItem) (*outputItem, error) {
	if len(a.items) == maxOpen {
		return nil, errTooMuch
	}
	item.index = len(a.items)
	prefix := map[string]string{itemMessage: "msg", itemReasoning: "rs", itemCall: "fc", itemCustom: "ctc"}[item.kind]
	item.id = fmt.Sprintf("%s_%s_%d", prefix, strings.TrimPrefix(unquote(a.response.ID), "resp_"), item.index)
	a.items = append(a.items, &item)
	return &item, nil
}

// call adds a piece of a call. A piece with another id begins another call, whatever its index says.
func (a *responsesFromChat) call(place int, piece *chatToolCall) error {
	if piece.Index != nil {
		place = *piece.Index
	}
	item := a.calls[place]
	if item == nil || piece.ID != "" && piece.ID != item.own && piece.Function.Name != "" {
		a.close(a.spoken, statusCompleted)
		a.spoken = nil
		called, known := a.tools[piece.Function.Name]
		if !known {
			called.name = piece.Function.Name
		}
		kind := itemCall
		if called.custom {
			kind = itemCustom
		}
		var err error
		if item, err = a.open(outputItem{kind: kind, name: called.name, namespace: called.namespace}); err != nil {
			return err
		}
		item.own = piece.ID
		if item.own == "" {
			item.own = "call_" + item.id
		}
		item.callID = sealID(item.own, piece.Extra)
		a.calls[place] = item
	} else if item.name == "" {
		item.name = piece.Function.Name
	}
	arguments := piece.Function.Arguments
	if given(arguments) && !isString(arguments) {
		arguments = quote(string(arguments)) // an object where the dialect has a string
	}
	return a.add(item, arguments)
}

// add adds a piece to an item and passes on what can be told of it.
func (a *responsesFromChat) add(item *outputItem, piece raw) error {
	if hasText(piece) {
		if a.held += len(piece); a.held > maxHeld {
			return errTooMuch
		}
		item.text = append(item.text, piece[1:len(piece)-1]...)
	}
	a.advance(item)
	return nil
}

// advance passes on what is new of an item. A call without a name cannot begin; a custom tool's input is known at its end.
func (a *responsesFromChat) advance(item *outputItem) {
	spoken := item.kind == itemMessage || item.kind == itemReasoning
	if !item.started {
		if !spoken && item.name == "" {
			return
		}
		item.started = true
		begun := item.item(statusInProgress, false)
		a.tell(responsesFrame{Type: "response.output_item.added", OutputIndex: &item.index, Item: &begun})
		if spoken {
			part := item.partOf(raw(`""`))
			a.tell(item.frame(item.partEvent()+".added", responsesFrame{Part: &part}))
		}
	}
	if item.told == len(item.text) || item.kind == itemCustom {
		return
	}
	delta := append(append(raw{'"'}, item.text[item.told:]...), '"')
	item.told = len(item.text)
	frame := responsesFrame{Delta: delta}
	if item.part == partText {
		frame.Logprobs = raw("[]")
	}
	a.tell(item.frame(item.event()+".delta", frame))
}

// event returns the name that the events of an item's text begin with.
func (i *outputItem) event() string {
	switch {
	case i.kind == itemCall:
		return "response.function_call_arguments"
	case i.kind == itemCustom:
		return "response.custom_tool_call_input"
	case i.part == partSummary:
		return "response.reasoning_summary_text"
	}
	return "response." + i.part
}

// partEvent returns the name that the events of an item's part begin with.
func (i *outputItem) partEvent() string {
	if i.part == partSummary {
		return "response.reasoning_summary_part"
	}
	return "response.content_part"
}

// frame fills in where an event belongs.
func (i *outputItem) frame(kind string, f responsesFrame) responsesFrame {
	f.Type, f.ItemID, f.OutputIndex = kind, i.id, &i.index
	switch i.part {
	case "":
	case partSummary:
		f.SummaryIndex = new(int)
	default:
		f.ContentIndex = new(int)
	}
	return f
}

// close ends an item.
func (a *responsesFromChat) close(item *outputItem, status string) {
	if item == nil || item.status != "" {
		return
	}
	item.status = status
	if item.name == "" && (item.kind == itemCall || item.kind == itemCustom) {
		item.name = "unnamed"
	}
	a.advance(item)
	text := item.literal()
	switch {
	case item.kind == itemCall && len(item.text) == 0:
		item.text, text = []byte("{}"), raw(`"{}"`)
		a.advance(item)
		fallthrough
	case item.kind == itemCall:
		a.tell(item.frame(item.event()+".done", responsesFrame{Arguments: text, Name: item.name}))
	case item.kind == itemCustom:
		input := item.input()
		a.tell(item.frame(item.event()+".delta", responsesFrame{Delta: input}))
		a.tell(item.frame(item.event()+".done", responsesFrame{Input: input}))
	default:
		frame := responsesFrame{Text: text}
		switch item.part {
		case partRefusal:
			frame = responsesFrame{Refusal: text}
		case partText:
			frame.Logprobs = raw("[]")
		}
		a.tell(item.frame(item.event()+".done", frame))
		part := item.partOf(text)
		a.tell(item.frame(item.partEvent()+".done", responsesFrame{Part: &part}))
	}
	whole := item.item(status, true)
	a.tell(responsesFrame{Type: "response.output_item.done", OutputIndex: &item.index, Item: &whole})
}

// complete closes every item and says how the answer ended.
func (a *responsesFromChat) complete() error {
	a.done = true
	a.response.Status = statusCompleted
	reason := map[string]string{finishLength: incompleteLength, finishContentFilter: incompleteFiltered}[unquote(a.finish)]
	if reason != "" {
		a.response.Status = statusIncomplete
		details, err := encode(struct {
			Reason string `json:"reason"`
		}{reason})
		if err != nil {
			return err
		}
		a.response.IncompleteDetails = details
	}
	a.response.Output = make([]responsesItem, len(a.items))
	for i, item := range a.items {
		status := statusCompleted
		if i == len(a.items)-1 {
			status = a.response.Status
		}
		a.close(item, status)
		a.response.Output[i] = item.item(item.status, true)
	}
	if a.measured {
		usage, err := encode(a.usage.responses())
		if err != nil {
			return err
		}
		a.response.Usage = usage
	}
	return nil
}

// End implements providers.Answer.
func (a *responsesFromChat) End(w io.Writer) error {
	switch {
	case a.done:
		return nil
	case a.finish == nil:
		return errIncomplete
	}
	if err := a.complete(); err != nil {
		return err
	}
	a.respond("response." + a.response.Status)
	return a.frames.flush(w)
}

// Error implements providers.Answer.
func (a *responsesFromChat) Error(status int, body []byte) []byte {
	return failureOf(status, body).responses(a.begun, a.sequence)
}

package translate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/providers"
)

const (
	// defaultMaxTokens is the output limit for clients that give none, since Anthropic demands one. Every model that is
	// still served takes it.
	defaultMaxTokens = 8_192
	// minThinking is the smallest budget that Anthropic takes for thinking.
	minThinking = 1_024
)

// chatToMessagesRequest translates one request.
type chatToMessagesRequest struct {
	in      chatRequest
	out     messagesRequest
	model   version
	notes   notes
	thought bool // the target's model is told to think
	halfway bool // see chatToMessages
}

// Request implements providers.Translator.
func (c chatToMessages) Request(body *jsonedit.Document, model string) ([]byte, []providers.Warning, error) {
	t := chatToMessagesRequest{model: claudeVersion(model), halfway: c.halfway}
	if err := decodeRequest(body.Bytes(), &t.in); err != nil {
		return nil, nil, err
	}
	t.out.Model = quote(model)
	for _, step := range []func() error{
		t.in.refused, t.messages, t.tools, t.toolChoice, t.format, t.lengths, t.thinking, t.sampling, t.identity, t.dropped,
	} {
		if err := step(); err != nil {
			return nil, nil, err
		}
	}
	out, err := encode(t.out)
	return out, t.notes, err
}

// isOnly reports whether v is an array of this one string.
func isOnly(v raw, text string) bool {
	var list []string
	return json.Unmarshal(v, &list, options) == nil && len(list) == 1 && list[0] == text
}

// dropped takes note of what only tunes the answer.
func (t *chatToMessagesRequest) dropped() error {
	const none = "the target has no such parameter"
	t.notes.dropped("logit_bias", t.in.LogitBias, none)
	t.notes.dropped("frequency_penalty", t.in.FrequencyPenalty, none)
	t.notes.dropped("presence_penalty", t.in.PresencePenalty, none)
	t.notes.changed("seed", t.in.Seed, "", none)
	t.notes.dropped("top_logprobs", t.in.TopLogprobs, none)
	t.notes.dropped("prediction", t.in.Prediction, none)
	t.notes.dropped("verbosity", t.in.Verbosity, none)
	t.notes.dropped("store", t.in.Store, "the target stores no answers")
	t.notes.dropped("metadata", t.in.Metadata, none)
	t.notes.dropped("prompt_cache_key", t.in.PromptCacheKey, "the target caches by cache_control")
	t.notes.dropped("prompt_cache_retention", t.in.PromptCacheRetain, "the target caches by cache_control")
	t.notes.unknown("", t.in.Rest)
	return nil
}

// identity carries who asks, and how urgently.
func (t *chatToMessagesRequest) identity() error {
	t.out.Stream = t.in.Stream
	switch user := t.in.User; {
	case given(user):
		t.out.Metadata = &messagesMetadata{UserID: user}
		t.notes.dropped("safety_identifier", t.in.SafetyIdentifier, "user is sent in its place")
	case given(t.in.SafetyIdentifier):
		t.out.Metadata = &messagesMetadata{UserID: t.in.SafetyIdentifier}
	}
	switch tier := unquote(t.in.ServiceTier); {
	case tier == "" || tier == "auto":
	case tier == "default":
		t.out.ServiceTier = raw(`"standard_only"`)
	case t.halfway && (tier == "flex" || tier == "priority"): // tiers of the target behind
		t.out.ServiceTier = t.in.ServiceTier
	default:
		t.notes.add("service_tier", "the target has no tier of this name")
	}
	return nil
}

// messages carries the conversation: system messages go to the front, where alone the target has them, and neighbours of one
// role become one message, so that all results of a turn's tools stand in one.
func (t *chatToMessagesRequest) messages() error {
	for i := range t.in.Messages {
		m := &t.in.Messages[i]
		at := fmt.Sprintf("messages[%d]", i)
		m.unnamed(&t.notes)
		var blocks []messagesBlock
		var err error
		role := "user"
		switch m.Role {
		case "system", "developer":
			if len(t.out.Messages) > 0 {
				t.notes.add(at, "moved to the front where the target has its instructions")
			}
			if blocks, err = t.content(at, m.Content); err == nil {
				t.out.System.parts = append(t.out.System.parts, marked(blocks, m.CacheControl)...)
			}
			if err != nil {
				return err
			}
			continue
		case "user":
			blocks, err = t.content(at, m.Content)
		case "assistant":
			role = m.Role
			blocks, err = t.assistant(at, m)
		case "tool":
			blocks, err = t.toolResult(at, m)
		case "function":
			err = refuse(at+".role", "the target knows functions as tools alone: use the role tool")
		default:
			err = refuse(at+".role", "the role must be one of system, developer, user, assistant and tool")
		}
		if err != nil {
			return err
		}
		t.push(role, marked(blocks, m.CacheControl))
	}
	if len(t.out.Messages) == 0 {
		return refuse("messages", "the target needs a message that is not empty beside its instructions")
	}
	return nil
}

// push adds blocks to the last message, if it is of the same role. Nothing is no message.
func (t *chatToMessagesRequest) push(role string, blocks []messagesBlock) {
	if len(blocks) == 0 {
		return
	}
	if n := len(t.out.Messages); n > 0 && t.out.Messages[n-1].Role == role {
		t.out.Messages[n-1].Content.parts = append(t.out.Messages[n-1].Content.parts, blocks...)
		return
	}
	t.out.Messages = append(t.out.Messages, messagesMessage{Role: role, Content: messagesContent{parts: blocks}})
}

// marked puts a message's cache marker on its last block.
func marked(blocks []messagesBlock, marker raw) []messagesBlock {
	if n := len(blocks); n > 0 && given(marker) && blocks[n-1].CacheControl == nil {
		blocks[n-1].CacheControl = marker
	}
	return blocks
}

// content translates the content of a message. Texts without a letter, which the target refuses, say nothing and are left out.
func (t *chatToMessagesRequest) content(at string, c chatContent) ([]messagesBlock, error) {
	var blocks []messagesBlock
	for i, part := range c.list() {
		here := fmt.Sprintf("%s.content[%d]", at, i)
		part.unnamed(&t.notes)
		block := messagesBlock{CacheControl: part.CacheControl}
		switch part.Type {
		case "text":
			if blank(part.Text) {
				continue
			}
			block.Type, block.Text = "text", part.Text
		case "refusal":
			if blank(part.Refusal) {
				continue
			}
			block.Type, block.Text = "text", part.Refusal
		case "image_url":
			if part.ImageURL == nil {
				return nil, refuse(here+".image_url", "the part must have an image_url")
			}
			source, err := sourceOf(here+".image_url.url", part.ImageURL.URL)
			if err != nil {
				return nil, err
			}
			if detail := unquote(part.ImageURL.Detail); detail != "" && detail != "auto" {
				t.notes.add("messages[].content[].image_url.detail", "the target decides on the detail by itself")
			}
			block.Type, block.Source = "image", source
		case "file":
			if err := t.file(here, part.File, &block); err != nil {
				return nil, err
			}
		default:
			return nil, refuse(here+".type", "the target takes no parts of the type %.40q", part.Type)
		}
		blocks = append(blocks, block)
	}
	return blocks, nil
}

// file makes a block a document.
func (t *chatToMessagesRequest) file(at string, file *chatFile, block *messagesBlock) error {
	switch {
	case file == nil:
		return refuse(at+".file", "the part must have a file")
	case given(file.FileID):
		return refuse(at+".file.file_id", "the target does not have this file: send it as file_data")
	}
	source, err := sourceOf(at+".file.file_data", file.FileData)
	if err != nil {
		return err
	}
	block.Type, block.Source = "document", source
	if hasText(file.Filename) {
		block.Title = file.Filename
	}
	return nil
}

// mediaTypeOf returns the media type in the head of a data URL. What OpenAI takes for JPEG others do not know.
func mediaTypeOf(head string) string {
	kind, _, _ := strings.Cut(strings.ToLower(strings.TrimPrefix(head, "data:")), ";")
	if kind == "image/jpg" {
		return "image/jpeg"
	}
	return kind
}

// sourceOf translates a URL, which may carry its data in itself.
func sourceOf(at string, literal raw) (raw, error) {
	url := unquote(literal)
	head, data, ok := strings.Cut(url, ",")
	switch {
	case strings.HasPrefix(url, "https://"), strings.HasPrefix(url, "http://"):
		return encode(messagesSource{Type: "url", URL: literal})
	case ok && strings.HasPrefix(head, "data:") && strings.HasSuffix(head, ";base64"):
		return encode(messagesSource{Type: "base64", MediaType: mediaTypeOf(head), Data: quote(data)})
	}
	return nil, refuse(at, "it must be an http(s) URL or a data URL in base64")
}

// assistant translates what a model said: its text, then its calls, and its thoughts at the places that they had among them. Claude's
// API refuses a message whose thoughts stand elsewhere (F122).
func (t *chatToMessagesRequest) assistant(at string, m *chatMessage) ([]messagesBlock, error) {
	switch {
	case given(m.FunctionCall):
		return nil, refuse(at+".function_call", "the target knows functions as tools alone: use tool_calls")
	case given(m.Audio):
		return nil, refuse(at+".audio", "the target has no audio of earlier answers")
	}
	blocks, err := t.content(at, m.Content)
	if err != nil {
		return nil, err
	}
	if hasText(m.Refusal) {
		blocks = append(blocks, messagesBlock{Type: "text", Text: m.Refusal})
	}
	for i, call := range m.ToolCalls {
		here := fmt.Sprintf("%s.tool_calls[%d]", at, i)
		if call.Type != "" && call.Type != "function" {
			return nil, refuse(here+".type", "the target has no tools of the type %.40q", call.Type)
		}
		input, ok := object(call.Function.Arguments)
		if !ok {
			return nil, refuse(here+".function.arguments", "the arguments must be a JSON object in a string")
		}
		call.unnamed(&t.notes)
		t.notes.dropped("messages[].tool_calls[].extra_content", call.Extra, "it is of another provider's model")
		blocks = append(blocks, messagesBlock{Type: "tool_use", ID: toolID(call.ID), Name: call.Function.Name, Input: input})
	}
	for i, thought := range t.thoughts(m) {
		place := min(max(thought.place, i), len(blocks))
		blocks = slices.Insert(blocks, place, thought.block)
	}
	return blocks, nil
}

// placedThought is a block of thoughts, and which of the message's blocks it was.
type placedThought struct {
	block messagesBlock
	place int
}

// thoughts translates the reasoning that carries Anthropic's signature, in its order. Reasoning without it would be refused.
func (t *chatToMessagesRequest) thoughts(m *chatMessage) []placedThought {
	var blocks []placedThought
	for _, r := range m.ReasoningDetails {
		switch {
		case r.Format != reasoningAnthropic:
		case r.Type == reasoningText && hasText(r.Signature):
			text := r.Text
			if text == nil {
				text = raw(`""`)
			}
			blocks = append(blocks, placedThought{messagesBlock{Type: "thinking", Thinking: text, Signature: r.Signature}, r.Index})
			continue
		case r.Type == reasoningEncrypted && hasText(r.Data):
			blocks = append(blocks, placedThought{messagesBlock{Type: "redacted_thinking", Data: r.Data}, r.Index})
			continue
		}
		t.notes.add("messages[].reasoning_details", "the target takes no reasoning without its own signature")
	}
	if len(blocks) == 0 {
		const unsigned = "the target takes back no reasoning without its signature"
		t.notes.dropped("messages[].reasoning_content", m.ReasoningContent, unsigned)
		t.notes.dropped("messages[].reasoning", m.Reasoning, unsigned)
	}
	return blocks
}

// toolResult translates what a tool returned.
func (t *chatToMessagesRequest) toolResult(at string, m *chatMessage) ([]messagesBlock, error) {
	if m.ToolCallID == "" {
		return nil, refuse(at+".tool_call_id", "a message of the role tool must name its call")
	}
	block := messagesBlock{Type: "tool_result", ToolUseID: toolID(m.ToolCallID)}
	if hasText(m.Content.text) {
		block.Content.text = m.Content.text
		return []messagesBlock{block}, nil
	}
	content, err := t.content(at, m.Content)
	if err != nil {
		return nil, err
	}
	block.Content.parts = content
	return []messagesBlock{block}, nil
}

// toolID returns an id that Anthropic takes: letters, digits, _ and -. Others write dots and colons into theirs.
func toolID(id string) string {
	clean := func(c byte) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
	}
	var b strings.Builder
	for i := range len(id) {
		if clean(id[i]) {
			b.WriteByte(id[i])
		} else {
			fmt.Fprintf(&b, "_%02x", id[i])
		}
	}
	return b.String()
}

// tools carries the tools.
func (t *chatToMessagesRequest) tools() error {
	for i, tool := range t.in.Tools {
		at := fmt.Sprintf("tools[%d]", i)
		if tool.Type != "function" || tool.Function == nil {
			return refuse(at+".type", "the target has no tools of the type %.40q", tool.Type)
		}
		f := tool.Function
		t.notes.unknown("tools[].", tool.Rest)
		t.notes.unknown("tools[].function.", f.Rest)
		out := messagesTool{Name: f.Name, Description: f.Description, InputSchema: f.Parameters, CacheControl: tool.CacheControl}
		if !given(out.InputSchema) {
			out.InputSchema = raw(`{"type":"object","properties":{}}`)
		}
		if !given(out.CacheControl) {
			out.CacheControl = f.CacheControl
		}
		if string(f.Strict) == "true" {
			out.Strict = f.Strict
		}
		t.out.Tools = append(t.out.Tools, out)
	}
	return nil
}

// toolChoice carries which tools may, must or must not be called, and whether several at once.
func (t *chatToMessagesRequest) toolChoice() error {
	var choice messagesChoice
	switch v := t.in.ToolChoice; {
	case !given(v):
	case isString(v):
		kinds := map[string]string{"none": "none", "auto": "auto", "required": "any"}
		choice.Type = kinds[unquote(v)]
		if choice.Type == "" {
			return refuse("tool_choice", "it must be none, auto, required or a function")
		}
	default:
		name, ok := t.notes.function(v)
		if !ok {
			return refuse("tool_choice", "the target can be told of one function alone")
		}
		choice.Type, choice.Name = "tool", name
	}
	if string(t.in.ParallelToolCalls) == "false" && len(t.in.Tools) > 0 && choice.Type != "none" {
		if choice.Type == "" {
			choice.Type = "auto"
		}
		choice.DisableParallelToolUse = raw("true")
	}
	switch {
	case len(t.in.Tools) == 0:
		t.notes.toolless(t.in.ToolChoice)
	case choice.Type != "":
		t.out.ToolChoice = &choice
	}
	return nil
}

// format carries the form that the answer must have.
func (t *chatToMessagesRequest) format() error {
	f := t.in.ResponseFormat
	switch {
	case f == nil || f.Type == "text":
		return nil
	case f.Type != "json_schema":
		return refuse("response_format", "the target knows the format json_schema alone")
	case f.JSONSchema == nil || !given(f.JSONSchema.Schema):
		return refuse("response_format.json_schema.schema", "the target needs a schema")
	}
	t.notes.unknown("response_format.", f.Rest)
	t.notes.unknown("response_format.json_schema.", f.JSONSchema.Rest)
	t.notes.dropped("response_format.json_schema.description", f.JSONSchema.Description, "the target takes the schema alone")
	t.output().Format = &messagesFormat{Type: "json_schema", Schema: f.JSONSchema.Schema}
	return nil
}

func (t *chatToMessagesRequest) output() *messagesOutput {
	if t.out.OutputConfig == nil {
		t.out.OutputConfig = &messagesOutput{}
	}
	return t.out.OutputConfig
}

// lengths carries where the answer ends.
func (t *chatToMessagesRequest) lengths() error {
	switch {
	case given(t.in.MaxCompletionTokens):
		t.out.MaxTokens = t.in.MaxCompletionTokens
	case given(t.in.MaxTokens):
		t.out.MaxTokens = t.in.MaxTokens
	}
	if given(t.in.Stop) {
		list := []raw{t.in.Stop}
		if t.in.Stop[0] == '[' {
			list = nil
			if err := json.Unmarshal(t.in.Stop, &list, options); err != nil {
				return refuse("stop", "it must be a string or an array of strings")
			}
		}
		for _, stop := range list {
			switch {
			case !isString(stop):
				return refuse("stop", "it must be a string or an array of strings")
			case strings.TrimSpace(unquote(stop)) == "":
				t.notes.add("stop", "the target does not stop at white space")
			default:
				t.out.StopSequences = append(t.out.StopSequences, stop)
			}
		}
	}
	return nil
}

// thinking carries how long the model may think, and with it the output limit, which includes its thoughts.
func (t *chatToMessagesRequest) thinking() error {
	limit, err := t.maxTokens()
	if err != nil {
		return err
	}
	config, err := t.thoughtsOf(limit)
	if err != nil {
		return err
	}
	room := int64(0)
	if config.Type != "" {
		t.thought = config.Type != "disabled"
		room = max(config.BudgetTokens, thinkingRoom[unquote(t.in.ReasoningEffort)])
		if t.out.Thinking, err = encode(config); err != nil {
			return err
		}
	}
	if t.out.MaxTokens == nil && (!t.halfway || room > 0) {
		t.out.MaxTokens = raw(strconv.FormatInt(defaultMaxTokens+room, 10))
		t.notes.add("max_tokens", "not given; the target needs one and got "+string(t.out.MaxTokens))
	}
	return nil
}

// maxTokens returns the client's output limit; 0 where it gave none.
func (t *chatToMessagesRequest) maxTokens() (int64, error) {
	if !given(t.out.MaxTokens) {
		return 0, nil
	}
	n, err := strconv.ParseInt(string(t.out.MaxTokens), 10, 64)
	if err != nil {
		name := "max_completion_tokens"
		if !given(t.in.MaxCompletionTokens) {
			name = "max_tokens"
		}
		return 0, refuse(name, "it must be a whole number")
	}
	return n, nil
}

// thinkingRoom is how many tokens an effort may take to think.
var thinkingRoom = map[string]int64{
	"minimal": minThinking, "low": 2_048, "medium": 8_192, "high": 16_384, "xhigh": 32_768, "max": 32_768, "ultra": 32_768,
}

// thoughtsOf returns how the model is told to think; nothing where it is not.
func (t *chatToMessagesRequest) thoughtsOf(limit int64) (config messagesThinking, err error) {
	effort := unquote(t.in.ReasoningEffort)
	room, known := thinkingRoom[effort]
	switch {
	case given(t.in.Thinking):
		if json.Unmarshal(t.in.Thinking, &config, options) != nil || config.Type == "" {
			return config, refuse("thinking", "it must be an object with a type")
		}
		t.notes.dropped("reasoning_effort", t.in.ReasoningEffort, "thinking is sent in its place")
		return config, nil
	case effort == "" || effort == "none":
		return config, nil
	case !known:
		return config, refuse("reasoning_effort", "the target knows no effort of this name")
	case t.forced():
		t.notes.add("reasoning_effort", "the target does not think where a tool must be called")
		return config, nil
	case !t.model.thinks():
		t.notes.add("reasoning_effort", "the target's model does not think")
		return config, nil
	case t.model.adaptive():
		return t.adapt(effort), nil
	}
	if limit > 0 {
		room = min(room, limit*3/4) // the rest is for the answer
	}
	switch {
	case room < minThinking:
		t.notes.add("reasoning_effort", "the output limit leaves no room for thinking")
		return config, nil
	case t.lostThoughts():
		t.notes.add("reasoning_effort", "the target does not go on thinking after tool calls whose reasoning_details are lost")
		return config, nil
	}
	return messagesThinking{Type: "enabled", BudgetTokens: room}, nil
}

// forced reports whether a tool must be called.
func (t *chatToMessagesRequest) forced() bool {
	c := t.out.ToolChoice
	return c != nil && (c.Type == "any" || c.Type == "tool")
}

// adapt tells a model that decides by itself how much effort to take.
func (t *chatToMessagesRequest) adapt(effort string) messagesThinking {
	switch {
	case effort == "minimal":
		effort = "low"
	case effort == "ultra":
		effort = "max"
	case effort == "xhigh" && !t.model.atLeast(4, 7):
		effort = "high"
		t.notes.add("reasoning_effort", "the target's model knows no more than high")
	}
	t.output().Effort = quote(effort)
	config := messagesThinking{Type: "adaptive"}
	if t.model.atLeast(4, 7) {
		config.Display = "summarized" // these models hide their thoughts unless asked
	}
	return config
}

// lostThoughts reports whether the conversation stands behind tool calls that do not come with the thoughts before them,
// which Anthropic demands of a model with a budget.
func (t *chatToMessagesRequest) lostThoughts() bool {
	for i := len(t.out.Messages) - 1; i >= 0; i-- {
		m := t.out.Messages[i]
		first := m.Content.parts[0].Type
		if m.Role == "assistant" {
			return first != "thinking" && first != "redacted_thinking"
		}
		if first != "tool_result" {
			return false
		}
	}
	return false
}

// sampling carries how the words are chosen, as far as the model takes it.
func (t *chatToMessagesRequest) sampling() error {
	temperature, topP := t.in.Temperature, t.in.TopP
	fixed := ""
	switch {
	case !t.model.samples():
		fixed = "the target's model takes no sampling parameters"
	case t.thought:
		fixed = "the target does not take it while its model thinks"
	}
	if fixed != "" {
		t.notes.changed("temperature", temperature, "1", fixed)
		t.notes.changed("top_p", topP, "1", fixed)
		t.notes.changed("top_k", t.in.TopK, "", fixed)
		return nil
	}
	if given(temperature) {
		f, err := strconv.ParseFloat(string(temperature), 64)
		if err != nil {
			return refuse("temperature", "it must be a number")
		}
		t.out.Temperature = temperature
		if f > 1 {
			t.out.Temperature = raw("1")
			t.notes.add("temperature", "lowered to 1 which is the target's highest")
		}
	}
	switch {
	case !given(topP):
	case given(temperature) && t.model.samplesEither():
		t.notes.changed("top_p", topP, "1", "the target's model takes temperature or top_p but not both")
	default:
		t.out.TopP = topP
	}
	if given(t.in.TopK) {
		t.out.TopK = t.in.TopK
	}
	return nil
}

package translate

import (
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"

	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/providers"
)

// responsesToChatRequest translates one request.
type responsesToChatRequest struct {
	in      responsesRequest
	out     chatRequest
	model   openaiModel
	thought raw             // the reasoning before the next thing that the model said
	details []chatReasoning // the same with its signatures
	notes   notes
}

// Request implements providers.Translator.
func (tr responsesToChat) Request(body *jsonedit.Document, model string) ([]byte, []providers.Warning, error) {
	t := responsesToChatRequest{model: openaiModelOf(model)}
	if tr.halfway {
		t.model.reasons = true
	}
	if err := decodeRequest(body.Bytes(), &t.in); err != nil {
		return nil, nil, err
	}
	t.out.Model = quote(model)
	for _, step := range []func() error{t.stateless, t.input, t.tools, t.toolChoice, t.text, t.parameters} {
		if err := step(); err != nil {
			return nil, nil, err
		}
	}
	out, err := encode(t.out)
	return out, t.notes, err
}

// stateless refuses what needs a target that remembers.
func (t *responsesToChatRequest) stateless() error {
	const state = "the target keeps no state: send the whole conversation as input"
	for _, p := range []struct {
		name  string
		value raw
		why   string
	}{
		{"previous_response_id", t.in.PreviousResponseID, state},
		{"conversation", t.in.Conversation, state},
		{"prompt", t.in.Prompt, "the target keeps no prompts: send instructions and input"},
		{"background", t.in.Background, "the target answers at once or not at all"},
		{"top_logprobs", t.in.TopLogprobs, "the probabilities of the target's dialect are not translated"},
	} {
		if !neutral(p.value) {
			return refuse(p.name, "%s", p.why)
		}
	}
	if string(t.in.Store) == "true" {
		t.notes.add("store", "the answer is not stored")
	}
	return nil
}

// input makes the items a conversation.
func (t *responsesToChatRequest) input() error {
	if hasText(t.in.Instructions) {
		t.say(chatMessage{Role: "system", Content: chatContent{text: t.in.Instructions}})
	} else if given(t.in.Instructions) && !isString(t.in.Instructions) {
		return refuse("instructions", "they must be a string")
	}
	if t.in.Input.text != nil {
		t.say(chatMessage{Role: "user", Content: chatContent{text: t.in.Input.text}})
	}
	for i := range t.in.Input.items {
		if err := t.item(fmt.Sprintf("input[%d]", i), &t.in.Input.items[i]); err != nil {
			return err
		}
	}
	if len(t.out.Messages) == 0 {
		return refuse("input", "there must be an input")
	}
	return nil
}

func (t *responsesToChatRequest) say(m chatMessage) { t.out.Messages = append(t.out.Messages, m) }

func (t *responsesToChatRequest) item(at string, item *responsesItem) error {
	switch item.Type {
	case "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "computer_call",
		"computer_call_output", "mcp_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response":
		t.notes.add("input[]."+item.Type, "the target takes back no calls of a provider's own tools")
		return nil
	}
	t.notes.unknown("input[].", item.Rest)
	switch item.Type {
	case itemMessage, "":
		return t.message(at, item)
	case itemReasoning:
		t.reasoning(item)
		return nil
	case itemCall:
		arguments := item.Arguments
		if !hasText(arguments) {
			arguments = raw(`"{}"`)
		}
		t.call(item, arguments)
		return nil
	case itemCustom:
		input := item.Input
		if !isString(input) {
			input = raw(`""`)
		}
		arguments, err := encode(customInput{input})
		if err != nil {
			return err
		}
		t.call(item, quote(string(arguments)))
		return nil
	case itemCallOutput, itemCustomOutput:
		return t.output(at, item)
	}
	return refuse(at+".type", "the target takes no items of the type %.40q", item.Type)
}

// message translates a message.
func (t *responsesToChatRequest) message(at string, item *responsesItem) error {
	if given(item.Content.other) || item.Content.IsZero() {
		return refuse(at+".content", "it must be a string or an array of parts")
	}
	parts, err := t.parts(at, item.Content)
	if err != nil {
		return err
	}
	switch item.Role {
	case "user":
		if len(parts) > 0 {
			t.say(chatMessage{Role: "user", Content: contentOf(parts)})
		}
	case "system", "developer":
		role := item.Role
		if !t.model.own {
			role = "system" // the one that every upstream knows
		}
		if text := textOf(parts, `\n\n`); text != nil {
			t.say(chatMessage{Role: role, Content: chatContent{text: text}})
		}
	case "assistant":
		if text := textOf(parts, ""); text != nil {
			m := t.assistant()
			if m.Content.text != nil {
				text = joined([]raw{m.Content.text, text}, `\n\n`)
			}
			m.Content.text = text
		}
	default:
		return refuse(at+".role", "the role must be one of system, developer, user and assistant")
	}
	return nil
}

// contentOf returns a text where there is nothing else: some upstreams take no parts.
func contentOf(parts []chatPart) chatContent {
	if len(parts) == 1 && parts[0].Type == "text" {
		return chatContent{text: parts[0].Text}
	}
	return chatContent{parts: parts}
}

// textOf returns the texts of parts as one; nil where there is none.
func textOf(parts []chatPart, separator string) raw {
	var texts []raw
	for _, part := range parts {
		if part.Type == "text" {
			texts = append(texts, part.Text)
		}
	}
	if texts == nil {
		return nil
	}
	return joined(texts, separator)
}

// parts translates a content. Empty texts say nothing and are left out.
func (t *responsesToChatRequest) parts(at string, c responsesContent) ([]chatPart, error) {
	var parts []chatPart
	for i, part := range partsOf(c) {
		here := fmt.Sprintf("%s.content[%d]", at, i)
		t.notes.unknown("input[].content[].", part.Rest)
		switch part.Type {
		case "input_text", partText, "text":
			if hasText(part.Text) {
				parts = append(parts, chatPart{Type: "text", Text: part.Text})
			}
		case partRefusal:
			if hasText(part.Refusal) {
				parts = append(parts, chatPart{Type: "text", Text: part.Refusal})
			}
		case "input_image":
			if !hasText(part.ImageURL) {
				return nil, refuse(here+".image_url", "the target takes images by URL alone")
			}
			parts = append(parts, chatPart{Type: "image_url", ImageURL: &chatImage{URL: part.ImageURL, Detail: present(part.Detail)}})
		case "input_file":
			if hasText(part.FileURL) {
				return nil, refuse(here+".file_url", "the target takes files as file_data alone")
			}
			parts = append(parts, chatPart{Type: "file", File: &chatFile{
				Filename: present(part.Filename), FileData: present(part.FileData), FileID: present(part.FileID),
			}})
		default:
			return nil, refuse(here+".type", "the target takes no parts of the type %.40q", part.Type)
		}
	}
	return parts, nil
}

// assistant returns the message of the model's turn: what it says in a row, calls included, is one.
func (t *responsesToChatRequest) assistant() *chatMessage {
	n := len(t.out.Messages)
	if n == 0 || t.out.Messages[n-1].Role != "assistant" {
		t.say(chatMessage{Role: "assistant"})
		n++
	}
	m := &t.out.Messages[n-1]
	if t.thought != nil {
		m.ReasoningContent, t.thought = t.thought, nil
	}
	m.ReasoningDetails, t.details = append(m.ReasoningDetails, t.details...), nil
	return m
}

// reasoning keeps the reasoning that came from a target of the chat dialect for the model's turn: some want it back. The
// summaries and the sealed reasoning of OpenAI's own models are nothing to others.
func (t *responsesToChatRequest) reasoning(item *responsesItem) {
	details, ours := unsealed(item.Encrypted)
	var texts []raw
	for _, part := range append(item.Summary, item.Content.parts...) {
		if hasText(part.Text) && (part.Type == partReasoning || part.Type == partSummary && ours) {
			texts = append(texts, part.Text)
		}
	}
	if texts == nil && details == nil {
		t.notes.add("input[].reasoning", "the target takes back no reasoning of another provider's model")
		return
	}
	t.details = append(t.details, details...)
	if texts != nil {
		t.thought = joined(texts, "")
	}
}

func (t *responsesToChatRequest) call(item *responsesItem, arguments raw) {
	m := t.assistant()
	id, extra := unsealID(item.CallID)
	m.ToolCalls = append(m.ToolCalls, chatToolCall{
		ID: id, Type: "function", Extra: extra, Function: chatFunction{Name: flatName(item.Namespace, item.Name), Arguments: arguments},
	})
}

// output puts what a tool returned directly behind its call, where alone the target takes it.
func (t *responsesToChatRequest) output(at string, item *responsesItem) error {
	parts, err := t.parts(at, item.Output)
	if err != nil {
		return err
	}
	text := textOf(parts, `\n`)
	images := slices.DeleteFunc(parts, func(p chatPart) bool { return p.Type == "text" })
	switch {
	case text == nil && len(images) > 0:
		text = raw(`"The result follows in the next message."`)
	case text == nil:
		text = raw(`""`)
	}
	id, _ := unsealID(item.CallID)
	place := t.behind(id)
	t.out.Messages = slices.Insert(t.out.Messages, place, chatMessage{
		Role: "tool", ToolCallID: id, Content: chatContent{text: text},
	})
	if len(images) > 0 {
		label := chatPart{Type: "text", Text: quote("Returned by the tool call " + id + ":")}
		t.say(chatMessage{Role: "user", Content: chatContent{parts: append([]chatPart{label}, images...)}})
	}
	return nil
}

// behind returns the place behind a call and what other calls of the same turn have returned already.
func (t *responsesToChatRequest) behind(id string) int {
	for i := len(t.out.Messages) - 1; i >= 0; i-- {
		if slices.ContainsFunc(t.out.Messages[i].ToolCalls, func(c chatToolCall) bool { return c.ID == id }) {
			for i++; i < len(t.out.Messages) && t.out.Messages[i].Role == "tool"; i++ {
			}
			return i
		}
	}
	return len(t.out.Messages)
}

// customInput is what a custom tool gets when it is offered as a function.
type customInput struct {
	Input raw `json:"input"`
}

// customParameters is the schema of customInput.
const customParameters = `{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}`

// tools carries the functions; custom tools become functions of one text, and those of a namespace get its name before theirs.
// Tools of the provider's own are left out as long as others remain: agents offer them to every model.
func (t *responsesToChatRequest) tools() error {
	t.offer("tools[].", responsesTool{Tools: t.in.Tools})
	if len(t.in.Tools) > 0 && len(t.out.Tools) == 0 {
		return refuse("tools", "the target has none of these tools of its own")
	}
	return nil
}

// offer carries the tools of a namespace; of none, which has no name, at first.
func (t *responsesToChatRequest) offer(at string, namespace responsesTool) {
	for _, tool := range namespace.Tools {
		f := chatToolSpec{Name: flatName(namespace.Name, tool.Name), Description: describe(namespace, tool)}
		switch {
		case tool.Type == "function":
			f.Parameters, f.Strict = present(tool.Parameters), present(tool.Strict)
		case tool.Type == "custom":
			f.Parameters = raw(customParameters)
		case tool.Type == "namespace" && namespace.Name == "":
			t.notes.unknown(at, tool.Rest)
			t.offer(at+"tools[].", tool)
			continue
		default:
			t.notes.add(at+tool.Type, "the target has no such tool of its own")
			continue
		}
		t.notes.unknown(at, tool.Rest)
		if tool.Format != nil {
			t.notes.unknown(at+"format.", tool.Format.Rest)
		}
		t.out.Tools = append(t.out.Tools, chatTool{Type: "function", Function: &f})
	}
}

// describe tells of a tool what its namespace says, and of a custom one what its schema cannot.
func describe(namespace, tool responsesTool) raw {
	parts := []raw{}
	for _, text := range []raw{namespace.Description, tool.Description} {
		if hasText(text) {
			parts = append(parts, text)
		}
	}
	if f := tool.Format; f != nil && hasText(f.Definition) {
		parts = append(parts, quote("The input must follow this grammar ("+unquote(f.Syntax)+"):"), f.Definition)
	}
	if len(parts) == 0 {
		return nil
	}
	return joined(parts, `\n\n`)
}

func (t *responsesToChatRequest) toolChoice() error {
	if len(t.out.Tools) == 0 {
		t.notes.toolless(t.in.ToolChoice)
		return nil
	}
	t.out.ParallelToolCalls = present(t.in.ParallelToolCalls)
	switch v := t.in.ToolChoice; {
	case !given(v):
	case isString(v):
		t.out.ToolChoice = v
	default:
		var in responsesChoice
		if json.Unmarshal(v, &in, options) != nil || in.Type != "function" && in.Type != "custom" {
			return refuse("tool_choice", "the target can be told of one function alone")
		}
		t.notes.unknown("tool_choice.", in.Rest)
		choice, err := encode(chatToolChoice{Type: "function", Function: &chatFunction{Name: in.Name}})
		if err != nil {
			return err
		}
		t.out.ToolChoice = choice
	}
	return nil
}

// text carries the form that the answer must have.
func (t *responsesToChatRequest) text() error {
	if t.in.Text == nil {
		return nil
	}
	t.notes.unknown("text.", t.in.Text.Rest)
	if given(t.in.Text.Verbosity) {
		if t.model.own && t.model.reasons {
			t.out.Verbosity = t.in.Text.Verbosity
		} else {
			t.notes.add("text.verbosity", "the target's model is not known to take it")
		}
	}
	f := t.in.Text.Format
	if f == nil || f.Type == "text" {
		return nil
	}
	t.notes.unknown("text.format.", f.Rest)
	t.out.ResponseFormat = &chatFormat{Type: f.Type}
	if f.Type == "json_schema" {
		t.out.ResponseFormat.JSONSchema = &chatSchema{
			Name: f.Name, Description: present(f.Description), Schema: f.Schema, Strict: present(f.Strict),
		}
	}
	return nil
}

// parameters carries the rest. What only OpenAI's own API knows goes to its own models alone.
func (t *responsesToChatRequest) parameters() error {
	t.model.maxTokens(&t.out, present(t.in.MaxOutputTokens))
	if r := t.in.Reasoning; r != nil {
		t.notes.unknown("reasoning.", r.Rest)
		if given(r.Effort) && !t.model.reasons {
			t.notes.add("reasoning.effort", "the target's model is not known to take an effort")
		} else {
			t.out.ReasoningEffort = present(r.Effort)
		}
		t.notes.dropped("reasoning.generate_summary", r.GenerateSummary, "it is called summary now")
	}
	t.out.Temperature = present(t.in.Temperature)
	t.out.TopP = present(t.in.TopP)
	t.out.Stream = present(t.in.Stream)
	if string(t.in.Stream) == "true" {
		t.out.StreamOptions = raw(`{"include_usage":true}`)
	}
	t.out.User = present(t.in.User)
	for _, p := range []struct {
		name string
		in   raw
		out  *raw
	}{
		{"safety_identifier", t.in.SafetyIdentifier, &t.out.SafetyIdentifier},
		{"service_tier", t.in.ServiceTier, &t.out.ServiceTier},
		{"prompt_cache_key", t.in.PromptCacheKey, &t.out.PromptCacheKey},
		{"prompt_cache_retention", t.in.PromptCacheRetain, &t.out.PromptCacheRetain},
	} {
		if t.model.own {
			*p.out = present(p.in)
		} else {
			t.notes.dropped(p.name, p.in, "the target is not known to take it")
		}
	}
	t.notes.dropped("include", t.in.Include, "the target has nothing to include")
	t.notes.changed("truncation", t.in.Truncation, `"disabled"`, "the target does not shorten conversations")
	t.notes.changed("max_tool_calls", t.in.MaxToolCalls, "", "it counts the provider's own tools which the target has not")
	t.notes.dropped("context_management", t.in.ContextManagement, "the target does not shorten conversations")
	t.notes.unknown("", t.in.Rest)
	return nil
}

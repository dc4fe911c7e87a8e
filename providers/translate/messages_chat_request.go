package translate

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/providers"
)

// maxUser is the longest user that OpenAI takes, in bytes.
const maxUser = 64

// messagesToChatRequest translates one request.
type messagesToChatRequest struct {
	in    messagesRequest
	out   chatRequest
	model openaiModel
	notes notes
}

// Request implements providers.Translator.
func (tr messagesToChat) Request(body *jsonedit.Document, model string) ([]byte, []providers.Warning, error) {
	t := messagesToChatRequest{model: openaiModelOf(model)}
	if tr.halfway {
		t.model.reasons = true
	}
	if err := decodeRequest(body.Bytes(), &t.in); err != nil {
		return nil, nil, err
	}
	t.out.Model = quote(model)
	for _, step := range []func() error{
		t.system, t.messages, t.tools, t.toolChoice, t.format, t.reasoning, t.parameters,
	} {
		if err := step(); err != nil {
			return nil, nil, err
		}
	}
	out, err := encode(t.out)
	return out, t.notes, err
}

// system makes the instructions the first message.
func (t *messagesToChatRequest) system() error {
	if given(t.in.System.other) {
		return refuse("system", "it must be a string or an array of text blocks")
	}
	texts, err := t.texts("system", blocksOf(t.in.System))
	if err != nil || len(texts) == 0 {
		return err
	}
	t.out.Messages = append(t.out.Messages, chatMessage{Role: "system", Content: chatContent{text: joined(texts, `\n\n`)}})
	return nil
}

// texts returns the texts of blocks that are nothing else.
func (t *messagesToChatRequest) texts(at string, blocks []messagesBlock) ([]raw, error) {
	var texts []raw
	for i, block := range blocks {
		if block.Type != "text" || !isString(block.Text) {
			return nil, refuse(fmt.Sprintf("%s[%d].type", at, i), "only text can stand here")
		}
		t.noted(at+"[].", &block)
		if hasText(block.Text) {
			texts = append(texts, block.Text)
		}
	}
	return texts, nil
}

// noted takes note of what a block has beside its content.
func (t *messagesToChatRequest) noted(at string, block *messagesBlock) {
	t.notes.dropped("cache_control", block.CacheControl, "the target caches prompts by itself")
	t.notes.dropped(at+"caller", block.Caller, "the target does not tell callers apart")
	t.notes.dropped(at+"citations", block.Citations, "the target has no citations")
	t.notes.unknown(at, block.Rest)
}

// messages carries the conversation.
func (t *messagesToChatRequest) messages() error {
	for i := range t.in.Messages {
		m := &t.in.Messages[i]
		at := fmt.Sprintf("messages[%d]", i)
		t.notes.unknown("messages[].", m.Rest)
		if m.Content.text == nil && m.Content.parts == nil {
			return refuse(at+".content", "it must be a string or an array of blocks")
		}
		var err error
		switch m.Role {
		case "user":
			err = t.user(at, blocksOf(m.Content))
		case "assistant":
			err = t.assistant(at, blocksOf(m.Content))
		case "system":
			var texts []raw
			if texts, err = t.texts(at+".content", blocksOf(m.Content)); err == nil && len(texts) > 0 {
				t.out.Messages = append(t.out.Messages, chatMessage{Role: m.Role, Content: chatContent{text: joined(texts, `\n\n`)}})
			}
		default:
			err = refuse(at+".role", "the role must be user, assistant or system")
		}
		if err != nil {
			return err
		}
	}
	if len(t.out.Messages) == 0 {
		return refuse("messages", "there must be a message that is not empty")
	}
	return nil
}

// user translates a message of the user: the results of tools become messages of their own, which must follow the calls
// directly, then comes what else there is. A tool's message holds text alone, so that images move behind the results.
func (t *messagesToChatRequest) user(at string, blocks []messagesBlock) error {
	var parts, moved []chatPart
	for i := range blocks {
		block := &blocks[i]
		here := fmt.Sprintf("%s.content[%d]", at, i)
		t.noted("messages[].content[].", block)
		if block.Type == "tool_result" {
			images, err := t.toolResult(here, block)
			if err != nil {
				return err
			}
			moved = append(moved, images...)
			continue
		}
		part, err := t.part(here, block)
		if err != nil {
			return err
		}
		parts = append(parts, part...)
	}
	parts = append(moved, parts...)
	switch {
	case len(parts) == 0:
		return nil
	case len(parts) == 1 && parts[0].Type == "text":
		t.out.Messages = append(t.out.Messages, chatMessage{Role: "user", Content: chatContent{text: parts[0].Text}})
	default:
		t.out.Messages = append(t.out.Messages, chatMessage{Role: "user", Content: chatContent{parts: parts}})
	}
	return nil
}

// part translates a block of the user's to parts.
func (t *messagesToChatRequest) part(at string, block *messagesBlock) ([]chatPart, error) {
	switch block.Type {
	case "text":
		if !hasText(block.Text) {
			return nil, nil
		}
		return []chatPart{{Type: "text", Text: block.Text}}, nil
	case "image":
		source, err := t.source(at, block.Source)
		if err != nil {
			return nil, err
		}
		url, err := imageURL(at, source)
		if err != nil {
			return nil, err
		}
		return []chatPart{{Type: "image_url", ImageURL: &chatImage{URL: url}}}, nil
	case "document":
		return t.document(at, block)
	}
	return nil, refuse(at+".type", "the target takes no blocks of the type %.40q", block.Type)
}

func (t *messagesToChatRequest) source(at string, value raw) (source messagesSource, err error) {
	if len(value) == 0 || json.Unmarshal(value, &source, options) != nil {
		return source, refuse(at+".source", "it must be an object")
	}
	t.notes.unknown("messages[].content[].source.", source.Rest)
	return source, nil
}

func imageURL(at string, source messagesSource) (raw, error) {
	switch {
	case source.Type == "base64":
		return dataURL(at, source)
	case source.Type != "url":
		return nil, refuse(at+".source.type", "the target takes images by URL or in base64 alone")
	case !hasText(source.URL):
		return nil, refuse(at+".source.url", "it must be a string")
	}
	return source.URL, nil
}

// dataURL puts the data of a source into a URL.
func dataURL(at string, source messagesSource) (raw, error) {
	if !isString(source.Data) {
		return nil, refuse(at+".source.data", "it must be a string")
	}
	return quote("data:" + source.MediaType + ";base64," + unquote(source.Data)), nil
}

// document translates a document: texts are texts, PDFs are files.
func (t *messagesToChatRequest) document(at string, block *messagesBlock) ([]chatPart, error) {
	source, err := t.source(at, block.Source)
	if err != nil {
		return nil, err
	}
	var heading []raw
	for _, text := range []raw{block.Title, block.Context} {
		if hasText(text) {
			heading = append(heading, text)
		}
	}
	switch source.Type {
	case "text":
		if !isString(source.Data) {
			return nil, refuse(at+".source.data", "it must be a string")
		}
		return []chatPart{{Type: "text", Text: joined(append(heading, source.Data), `\n\n`)}}, nil
	case "content":
		var parts []chatPart
		for _, text := range heading {
			parts = append(parts, chatPart{Type: "text", Text: text})
		}
		for i, inner := range blocksOf(source.Content) {
			part, err := t.part(fmt.Sprintf("%s.source.content[%d]", at, i), &inner)
			if err != nil {
				return nil, err
			}
			parts = append(parts, part...)
		}
		return parts, nil
	case "base64":
		name := block.Title
		if !hasText(name) {
			name = raw(`"document"`)
		}
		t.notes.dropped("messages[].content[].context", block.Context, "the target takes a file with its name alone")
		data, err := dataURL(at, source)
		if err != nil {
			return nil, err
		}
		return []chatPart{{Type: "file", File: &chatFile{Filename: name, FileData: data}}}, nil
	}
	return nil, refuse(at+".source.type", "the target takes documents as text or in base64 alone")
}

// toolResult adds a tool's message and returns the images of it.
func (t *messagesToChatRequest) toolResult(at string, block *messagesBlock) (images []chatPart, err error) {
	if given(block.Content.other) {
		return nil, refuse(at+".content", "it must be a string or an array of blocks")
	}
	var texts []raw
	for i, inner := range blocksOf(block.Content) {
		here := fmt.Sprintf("%s.content[%d]", at, i)
		if inner.Type == "text" {
			t.noted("messages[].content[].content[].", &inner)
			if hasText(inner.Text) {
				texts = append(texts, inner.Text)
			}
			continue
		}
		parts, err := t.part(here, &inner)
		if err != nil {
			return nil, err
		}
		images = append(images, parts...)
	}
	if len(images) > 0 {
		id, _ := unsealID(block.ToolUseID)
		label := quote("Returned by the tool call " + id + ":")
		images = append([]chatPart{{Type: "text", Text: label}}, images...)
		if len(texts) == 0 {
			texts = append(texts, raw(`"The result follows in the next message."`))
		}
	}
	if string(block.IsError) == "true" {
		texts = append([]raw{raw(`"Error:"`)}, texts...) // the target has no mark for it
	}
	text := raw(`""`)
	if len(texts) > 0 {
		text = joined(texts, `\n`)
	}
	id, _ := unsealID(block.ToolUseID)
	t.out.Messages = append(t.out.Messages, chatMessage{Role: "tool", ToolCallID: id, Content: chatContent{text: text}})
	return images, nil
}

// assistant translates what a model said. Its thoughts go back only where they came from: see thinkingMark.
func (t *messagesToChatRequest) assistant(at string, blocks []messagesBlock) error {
	m := chatMessage{Role: "assistant"}
	var texts, thoughts []raw
	member := ""
	for i := range blocks {
		block := &blocks[i]
		t.noted("messages[].content[].", block)
		switch block.Type {
		case "text":
			if hasText(block.Text) {
				texts = append(texts, block.Text)
			}
		case "thinking":
			name, ours := strings.CutPrefix(unquote(block.Signature), thinkingMark)
			if !ours || !isString(block.Thinking) {
				t.notes.add("messages[].content[].thinking", "the target takes back no thoughts of another provider's model")
				continue
			}
			thoughts, member = append(thoughts, block.Thinking), name
		case "redacted_thinking":
			t.notes.add("messages[].content[].redacted_thinking", "the target takes back no thoughts of another provider's model")
		case "tool_use":
			input := block.Input
			if !given(input) {
				input = raw("{}")
			}
			id, extra := unsealID(block.ID)
			m.ToolCalls = append(m.ToolCalls, chatToolCall{
				ID: id, Type: "function", Extra: extra,
				Function: chatFunction{Name: block.Name, Arguments: quote(string(input))},
			})
		default:
			return refuse(fmt.Sprintf("%s.content[%d].type", at, i), "the target takes no blocks of the type %.40q", block.Type)
		}
	}
	if len(texts) > 0 {
		m.Content.text = joined(texts, "")
	}
	switch {
	case len(thoughts) == 0:
	case member == "reasoning":
		m.Reasoning = joined(thoughts, "")
	case member == "reasoning_content":
		m.ReasoningContent = joined(thoughts, "")
	}
	if m.Content.text != nil || m.ToolCalls != nil {
		t.out.Messages = append(t.out.Messages, m)
	}
	return nil
}

// tools carries the client's own tools; those that Anthropic runs itself exist nowhere else.
func (t *messagesToChatRequest) tools() error {
	for i, tool := range t.in.Tools {
		if tool.Type != "" && tool.Type != "custom" {
			return refuse(fmt.Sprintf("tools[%d].type", i), "the target has no tool %.60q of its own", tool.Type)
		}
		t.notes.dropped("cache_control", tool.CacheControl, "the target caches prompts by itself")
		t.notes.unknown("tools[].", tool.Rest)
		t.out.Tools = append(t.out.Tools, chatTool{Type: "function", Function: &chatToolSpec{
			Name: tool.Name, Description: tool.Description, Parameters: tool.InputSchema, Strict: tool.Strict,
		}})
	}
	return nil
}

// toolChoice carries which tools may, must or must not be called.
func (t *messagesToChatRequest) toolChoice() error {
	c := t.in.ToolChoice
	if c == nil {
		return nil
	}
	t.notes.unknown("tool_choice.", c.Rest)
	switch c.Type {
	case "auto", "none":
		t.out.ToolChoice = quote(c.Type)
	case "any":
		t.out.ToolChoice = raw(`"required"`)
	case "tool":
		choice, err := encode(chatToolChoice{Type: "function", Function: &chatFunction{Name: c.Name}})
		if err != nil {
			return err
		}
		t.out.ToolChoice = choice
	default:
		return refuse("tool_choice.type", "it must be auto, any, tool or none")
	}
	if string(c.DisableParallelToolUse) == "true" && len(t.in.Tools) > 0 {
		t.out.ParallelToolCalls = raw("false")
	}
	return nil
}

// format carries the form that the answer must have.
func (t *messagesToChatRequest) format() error {
	f, at := t.in.OutputFormat, "output_format"
	if o := t.in.OutputConfig; o != nil {
		t.notes.unknown("output_config.", o.Rest)
		if o.Format != nil {
			f, at = o.Format, "output_config.format"
		}
	}
	switch {
	case f == nil:
		return nil
	case f.Type != "json_schema" || !given(f.Schema):
		return refuse(at, "it must be a json_schema with its schema")
	}
	t.notes.unknown(at+".", f.Rest)
	t.out.ResponseFormat = &chatFormat{Type: "json_schema", JSONSchema: &chatSchema{
		Name: raw(`"answer"`), Schema: f.Schema, Strict: raw("true"),
	}}
	return nil
}

// reasoning carries how long the model may think.
func (t *messagesToChatRequest) reasoning() error {
	var thinking messagesThinking
	param, effort := "thinking", ""
	if given(t.in.Thinking) {
		if json.Unmarshal(t.in.Thinking, &thinking, options) != nil {
			return refuse("thinking", "it must be an object with a type")
		}
		t.notes.unknown("thinking.", thinking.Rest)
	}
	switch thinking.Type {
	case "", "disabled", "adaptive":
	case "enabled":
		effort = effortOf(thinking.BudgetTokens)
	default:
		return refuse("thinking.type", "it must be enabled, adaptive or disabled")
	}
	if o := t.in.OutputConfig; o != nil && given(o.Effort) {
		param, effort = "output_config.effort", unquote(o.Effort)
		switch effort {
		case "low", "medium", "high", "xhigh":
		case "max":
			effort = "xhigh"
		default:
			return refuse(param, "it must be low, medium, high, xhigh or max")
		}
	}
	switch {
	case effort == "":
	case !t.model.reasons:
		t.notes.add(param, "the target's model is not known to take an effort")
	default:
		t.out.ReasoningEffort = quote(effort)
	}
	return nil
}

// effortOf returns the effort that comes near a budget of tokens.
func effortOf(budget int64) string {
	switch {
	case budget < 4_096:
		return "low"
	case budget < 16_384:
		return "medium"
	default:
		return "high"
	}
}

// parameters carries the rest.
func (t *messagesToChatRequest) parameters() error {
	const none = "the target has no such parameter"
	switch {
	case given(t.in.InferenceGeo) && string(t.in.InferenceGeo) != `"global"`:
		return refuse("inference_geo", "the target does not let callers choose where it computes")
	case !neutral(t.in.MCPServers):
		return refuse("mcp_servers", "the target reaches no MCP servers")
	case !neutral(t.in.Container):
		return refuse("container", "the target has no containers")
	}
	t.model.maxTokens(&t.out, present(t.in.MaxTokens))
	t.out.Temperature = present(t.in.Temperature)
	t.out.TopP = present(t.in.TopP)
	if len(t.in.StopSequences) > 0 {
		stop, err := encode(t.in.StopSequences)
		if err != nil {
			return err
		}
		t.out.Stop = stop
	}
	t.out.Stream = present(t.in.Stream)
	if string(t.in.Stream) == "true" {
		t.out.StreamOptions = raw(`{"include_usage":true}`)
	}
	if m := t.in.Metadata; m != nil {
		t.notes.unknown("metadata.", m.Rest)
		switch {
		case !given(m.UserID):
		case len(m.UserID) > maxUser+len(`""`):
			t.notes.add("metadata.user_id", "longer than the target takes")
		default:
			t.out.User = m.UserID
		}
	}
	switch tier := unquote(t.in.ServiceTier); tier {
	case "", "auto":
	case "standard_only":
		if t.model.own {
			t.out.ServiceTier = raw(`"default"`)
		}
	default:
		t.notes.add("service_tier", "the target has no tier of this name")
	}
	t.notes.changed("top_k", t.in.TopK, "", none)
	t.notes.dropped("cache_control", t.in.CacheControl, "the target caches prompts by itself")
	t.notes.dropped("context_management", t.in.ContextManagement, none)
	t.notes.unknown("", t.in.Rest)
	return nil
}

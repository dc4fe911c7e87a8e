package translate

import (
	"fmt"
	"strconv"

	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/providers"
)

// chatToResponsesRequest translates one request.
type chatToResponsesRequest struct {
	in    chatRequest
	out   responsesRequest
	notes notes
}

// Request implements providers.Translator.
func (chatToResponses) Request(body *jsonedit.Document, model string) ([]byte, []providers.Warning, error) {
	var t chatToResponsesRequest
	if err := decodeRequest(body.Bytes(), &t.in); err != nil {
		return nil, nil, err
	}
	t.out.Model = quote(model)
	for _, step := range []func() error{t.in.refused, t.unstoppable, t.messages, t.tools, t.toolChoice, t.format, t.parameters} {
		if err := step(); err != nil {
			return nil, nil, err
		}
	}
	out, err := encode(t.out)
	return out, t.notes, err
}

// unstoppable refuses texts to stop at.
func (t *chatToResponsesRequest) unstoppable() error {
	if !neutral(t.in.Stop) {
		return refuse("stop", "the target does not stop at texts")
	}
	return nil
}

// messages makes the conversation a list of items.
func (t *chatToResponsesRequest) messages() error {
	for i := range t.in.Messages {
		m := &t.in.Messages[i]
		at := fmt.Sprintf("messages[%d]", i)
		m.unnamed(&t.notes)
		t.notes.dropped("cache_control", m.CacheControl, "the target caches prompts by itself")
		var err error
		switch m.Role {
		case "system", "developer", "user":
			err = t.message(at, m, "input_text")
		case "assistant":
			err = t.assistant(at, m)
		case "tool":
			err = t.toolOutput(at, m)
		case "function":
			err = refuse(at+".role", "the target knows functions as tools alone: use the role tool")
		default:
			err = refuse(at+".role", "the role must be one of system, developer, user, assistant and tool")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// message adds a message whose texts are of a kind; one without content is none.
func (t *chatToResponsesRequest) message(at string, m *chatMessage, text string) error {
	content, err := t.content(at, m.Content, text)
	if err != nil {
		return err
	}
	if hasText(m.Refusal) {
		parts := content.parts
		if content.text != nil {
			parts = []responsesPart{{Type: text, Text: content.text}}
		}
		content = responsesContent{parts: append(parts, responsesPart{Type: partRefusal, Refusal: m.Refusal})}
	}
	if len(content.parts) > 0 || hasText(content.text) || m.Role != "assistant" {
		t.out.Input.items = append(t.out.Input.items, responsesItem{Type: itemMessage, Role: m.Role, Content: content})
	}
	return nil
}

// content translates a content: a text stays one.
func (t *chatToResponsesRequest) content(at string, c chatContent, text string) (out responsesContent, err error) {
	if c.text != nil {
		return responsesContent{text: c.text}, nil
	}
	if len(c.parts) == 0 {
		return responsesContent{text: raw(`""`)}, nil
	}
	for i, part := range c.parts {
		here := fmt.Sprintf("%s.content[%d]", at, i)
		part.unnamed(&t.notes)
		t.notes.dropped("cache_control", part.CacheControl, "the target caches prompts by itself")
		switch part.Type {
		case "text":
			out.parts = append(out.parts, responsesPart{Type: text, Text: part.Text})
		case "refusal":
			out.parts = append(out.parts, responsesPart{Type: partRefusal, Refusal: part.Refusal})
		case "image_url":
			if part.ImageURL == nil {
				return out, refuse(here+".image_url", "the part must have an image_url")
			}
			out.parts = append(out.parts, responsesPart{Type: "input_image", ImageURL: part.ImageURL.URL, Detail: part.ImageURL.Detail})
		case "file":
			if part.File == nil {
				return out, refuse(here+".file", "the part must have a file")
			}
			f := part.File
			out.parts = append(out.parts, responsesPart{Type: "input_file", Filename: f.Filename, FileData: f.FileData, FileID: f.FileID})
		default:
			return out, refuse(here+".type", "the target takes no parts of the type %.40q", part.Type)
		}
	}
	return out, nil
}

// assistant translates what a model said: its text, then its calls.
func (t *chatToResponsesRequest) assistant(at string, m *chatMessage) error {
	switch {
	case given(m.FunctionCall):
		return refuse(at+".function_call", "the target knows functions as tools alone: use tool_calls")
	case given(m.Audio):
		return refuse(at+".audio", "the target has no audio of earlier answers")
	}
	const kept = "the target takes back its own reasoning items alone"
	t.notes.dropped("messages[].reasoning_content", m.ReasoningContent, kept)
	t.notes.dropped("messages[].reasoning", m.Reasoning, kept)
	if len(m.ReasoningDetails) > 0 {
		t.notes.add("messages[].reasoning_details", kept)
	}
	if err := t.message(at, m, partText); err != nil {
		return err
	}
	for i, call := range m.ToolCalls {
		if call.Type != "" && call.Type != "function" {
			return refuse(fmt.Sprintf("%s.tool_calls[%d].type", at, i), "only function tools are translated")
		}
		call.unnamed(&t.notes)
		t.notes.dropped("messages[].tool_calls[].extra_content", call.Extra, "it is of another provider's model")
		arguments := call.Function.Arguments
		if !hasText(arguments) {
			arguments = raw(`"{}"`)
		}
		id, _ := unsealID(call.ID)
		t.out.Input.items = append(t.out.Input.items, responsesItem{
			Type: itemCall, CallID: id, Name: call.Function.Name, Arguments: arguments,
		})
	}
	return nil
}

// toolOutput translates what a tool returned.
func (t *chatToResponsesRequest) toolOutput(at string, m *chatMessage) error {
	if m.ToolCallID == "" {
		return refuse(at+".tool_call_id", "a message of the role tool must name its call")
	}
	output, err := t.content(at, m.Content, "input_text")
	if err != nil {
		return err
	}
	id, _ := unsealID(m.ToolCallID)
	t.out.Input.items = append(t.out.Input.items, responsesItem{Type: itemCallOutput, CallID: id, Output: output})
	return nil
}

// tools lays the functions flat. What is strict unless said otherwise there is not here.
func (t *chatToResponsesRequest) tools() error {
	for i, tool := range t.in.Tools {
		if tool.Type != "function" || tool.Function == nil {
			return refuse(fmt.Sprintf("tools[%d].type", i), "only function tools are translated")
		}
		f := tool.Function
		t.notes.unknown("tools[].", tool.Rest)
		t.notes.unknown("tools[].function.", f.Rest)
		t.notes.dropped("cache_control", tool.CacheControl, "the target caches prompts by itself")
		out := responsesTool{Type: "function", Name: f.Name, Description: f.Description, Parameters: f.Parameters, Strict: f.Strict}
		if !given(out.Strict) {
			out.Strict = raw("false")
		}
		if !given(out.Parameters) {
			out.Parameters = raw(`{"type":"object","properties":{}}`)
		}
		t.out.Tools = append(t.out.Tools, out)
	}
	return nil
}

func (t *chatToResponsesRequest) toolChoice() error {
	switch v := t.in.ToolChoice; {
	case !given(v):
	case isString(v):
		t.out.ToolChoice = v
	default:
		name, ok := t.notes.function(v)
		if !ok {
			return refuse("tool_choice", "only the choice of one function is translated")
		}
		choice, err := encode(responsesChoice{Type: "function", Name: name})
		if err != nil {
			return err
		}
		t.out.ToolChoice = choice
	}
	t.out.ParallelToolCalls = present(t.in.ParallelToolCalls)
	return nil
}

func (t *chatToResponsesRequest) format() error {
	if f := t.in.ResponseFormat; f != nil {
		t.notes.unknown("response_format.", f.Rest)
		format := responsesFormat{Type: f.Type}
		if s := f.JSONSchema; s != nil {
			t.notes.unknown("response_format.json_schema.", s.Rest)
			format = responsesFormat{Type: f.Type, Name: s.Name, Description: s.Description, Schema: s.Schema, Strict: s.Strict}
		}
		t.out.Text = &responsesText{Format: &format}
	}
	if given(t.in.Verbosity) {
		if t.out.Text == nil {
			t.out.Text = &responsesText{}
		}
		t.out.Text.Verbosity = t.in.Verbosity
	}
	return nil
}

// leastOutputLimit is the least output limit that OpenAI's responses take, in tokens. Agents ask for one to see whether a model is there.
const leastOutputLimit = 16

// parameters carries the rest.
func (t *chatToResponsesRequest) parameters() error {
	const none = "the target has no such parameter"
	t.out.MaxOutputTokens = present(t.in.MaxTokens)
	if given(t.in.MaxCompletionTokens) {
		t.out.MaxOutputTokens = t.in.MaxCompletionTokens
	}
	if n, err := strconv.ParseInt(string(t.out.MaxOutputTokens), 10, 64); err == nil && n > 0 && n < leastOutputLimit {
		t.notes.add("max_tokens", "raised to the least that the target takes, 16")
		t.out.MaxOutputTokens = raw(strconv.Itoa(leastOutputLimit))
	}
	if given(t.in.ReasoningEffort) {
		t.out.Reasoning = &responsesReasoning{Effort: t.in.ReasoningEffort}
	}
	t.out.Temperature = present(t.in.Temperature)
	t.out.TopP = present(t.in.TopP)
	t.out.Stream = present(t.in.Stream)
	t.out.User = present(t.in.User)
	t.out.SafetyIdentifier = present(t.in.SafetyIdentifier)
	t.out.ServiceTier = present(t.in.ServiceTier)
	t.out.Metadata = present(t.in.Metadata)
	t.out.PromptCacheKey = present(t.in.PromptCacheKey)
	t.out.PromptCacheRetain = present(t.in.PromptCacheRetain)
	t.out.Store = raw("false") // what this client's dialect does unless told, and the target's does not
	if given(t.in.Store) {
		t.out.Store = t.in.Store
	}
	t.notes.dropped("logit_bias", t.in.LogitBias, none)
	t.notes.dropped("frequency_penalty", t.in.FrequencyPenalty, none)
	t.notes.dropped("presence_penalty", t.in.PresencePenalty, none)
	t.notes.changed("seed", t.in.Seed, "", none)
	t.notes.dropped("top_logprobs", t.in.TopLogprobs, none)
	t.notes.dropped("prediction", t.in.Prediction, none)
	t.notes.dropped("thinking", t.in.Thinking, none)
	t.notes.changed("top_k", t.in.TopK, "", none)
	t.notes.unknown("", t.in.Rest)
	return nil
}

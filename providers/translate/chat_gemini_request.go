package translate

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/providers"
)

// unsigned is what Google documents for calls whose signature is not to be had: those of other models, for example.
const unsigned = `"skip_thought_signature_validator"`

// chatToGeminiRequest translates one request.
type chatToGeminiRequest struct {
	in    chatRequest
	out   geminiRequest
	model string
	names map[string]string // of functions, by the ids of their calls: a result is told by the name
	notes notes
}

// Request implements providers.Translator.
func (chatToGemini) Request(body *jsonedit.Document, model string) ([]byte, []providers.Warning, error) {
	t := chatToGeminiRequest{model: model, names: map[string]string{}}
	if err := decodeRequest(body.Bytes(), &t.in); err != nil {
		return nil, nil, err
	}
	for _, step := range []func() error{t.in.refused, t.messages, t.tools, t.toolChoice, t.format, t.generation, t.dropped} {
		if err := step(); err != nil {
			return nil, nil, err
		}
	}
	out, err := encode(t.out)
	return out, t.notes, err
}

// messages carries the conversation: instructions stand apart, and neighbours of one role become one turn.
func (t *chatToGeminiRequest) messages() error {
	for i := range t.in.Messages {
		m := &t.in.Messages[i]
		at := fmt.Sprintf("messages[%d]", i)
		m.unnamed(&t.notes)
		t.notes.dropped("cache_control", m.CacheControl, "the target caches prompts by itself")
		var parts []geminiPart
		var err error
		role := "user"
		switch m.Role {
		case "system", "developer":
			if len(t.out.Contents) > 0 {
				t.notes.add(at, "moved to the front where the target has its instructions")
			}
			if parts, err = t.parts(at, m.Content); err != nil {
				return err
			}
			if t.out.System == nil && len(parts) > 0 {
				t.out.System = &geminiContent{}
			}
			if len(parts) > 0 {
				t.out.System.Parts = append(t.out.System.Parts, parts...)
			}
			continue
		case "user":
			parts, err = t.parts(at, m.Content)
		case "assistant":
			role = "model"
			parts, err = t.assistant(at, m)
		case "tool":
			parts, err = t.toolResult(at, m)
		case "function":
			err = refuse(at+".role", "the target knows functions as tools alone: use the role tool")
		default:
			err = refuse(at+".role", "the role must be one of system, developer, user, assistant and tool")
		}
		if err != nil {
			return err
		}
		t.push(role, parts)
	}
	if len(t.out.Contents) == 0 {
		return refuse("messages", "the target needs a message that is not empty beside its instructions")
	}
	return nil
}

func (t *chatToGeminiRequest) push(role string, parts []geminiPart) {
	if len(parts) == 0 {
		return
	}
	if n := len(t.out.Contents); n > 0 && t.out.Contents[n-1].Role == role {
		t.out.Contents[n-1].Parts = append(t.out.Contents[n-1].Parts, parts...)
		return
	}
	t.out.Contents = append(t.out.Contents, geminiContent{Role: role, Parts: parts})
}

// parts translates the content of a message. Empty texts say nothing and are left out.
func (t *chatToGeminiRequest) parts(at string, c chatContent) ([]geminiPart, error) {
	var parts []geminiPart
	for i, part := range c.list() {
		here := fmt.Sprintf("%s.content[%d]", at, i)
		part.unnamed(&t.notes)
		t.notes.dropped("cache_control", part.CacheControl, "the target caches prompts by itself")
		switch part.Type {
		case "text":
			if hasText(part.Text) {
				parts = append(parts, geminiPart{Text: part.Text})
			}
		case "refusal":
			if hasText(part.Refusal) {
				parts = append(parts, geminiPart{Text: part.Refusal})
			}
		case "image_url":
			if part.ImageURL == nil {
				return nil, refuse(here+".image_url", "the part must have an image_url")
			}
			if detail := unquote(part.ImageURL.Detail); detail != "" && detail != "auto" {
				t.notes.add("messages[].content[].image_url.detail", "the target decides on the detail by itself")
			}
			out, err := geminiSource(here+".image_url.url", part.ImageURL.URL)
			if err != nil {
				return nil, err
			}
			parts = append(parts, out)
		case "file":
			if part.File == nil || given(part.File.FileID) {
				return nil, refuse(here+".file.file_id", "the target does not have this file: send it as file_data")
			}
			out, err := geminiSource(here+".file.file_data", part.File.FileData)
			if err != nil {
				return nil, err
			}
			parts = append(parts, out)
		case "input_audio":
			var audio struct {
				Data   raw    `json:"data"`
				Format string `json:"format"`
			}
			if json.Unmarshal(part.InputAudio, &audio, options) != nil || !hasText(audio.Data) || audio.Format == "" {
				return nil, refuse(here+".input_audio", "it must have data and a format")
			}
			parts = append(parts, geminiPart{InlineData: &geminiBlob{MimeType: "audio/" + audio.Format, Data: audio.Data}})
		default:
			return nil, refuse(here+".type", "the target takes no parts of the type %.40q", part.Type)
		}
	}
	return parts, nil
}

// geminiSource translates a URL, which may carry its data in itself.
func geminiSource(at string, literal raw) (geminiPart, error) {
	url := unquote(literal)
	head, data, ok := strings.Cut(url, ",")
	switch {
	case strings.HasPrefix(url, "https://"), strings.HasPrefix(url, "http://"):
		return geminiPart{FileData: &geminiFile{MimeType: mimeType(url), FileURI: literal}}, nil
	case ok && strings.HasPrefix(head, "data:") && strings.HasSuffix(head, ";base64"):
		return geminiPart{InlineData: &geminiBlob{MimeType: mediaTypeOf(head), Data: quote(data)}}, nil
	}
	return geminiPart{}, refuse(at, "it must be an http(s) URL or a data URL in base64")
}

// assistant translates what a model said: its text, then its calls with the signatures that its ids have kept.
func (t *chatToGeminiRequest) assistant(at string, m *chatMessage) ([]geminiPart, error) {
	switch {
	case given(m.FunctionCall):
		return nil, refuse(at+".function_call", "the target knows functions as tools alone: use tool_calls")
	case given(m.Audio):
		return nil, refuse(at+".audio", "the target has no audio of earlier answers")
	}
	const summed = "the target takes back no thoughts but their signatures"
	t.notes.dropped("messages[].reasoning_content", m.ReasoningContent, summed)
	t.notes.dropped("messages[].reasoning", m.Reasoning, summed)
	if len(m.ReasoningDetails) > 0 {
		t.notes.add("messages[].reasoning_details", summed)
	}
	parts, err := t.parts(at, m.Content)
	if err != nil {
		return nil, err
	}
	if hasText(m.Refusal) {
		parts = append(parts, geminiPart{Text: m.Refusal})
	}
	for i, call := range m.ToolCalls {
		here := fmt.Sprintf("%s.tool_calls[%d]", at, i)
		if call.Type != "" && call.Type != "function" {
			return nil, refuse(here+".type", "the target has no tools of the type %.40q", call.Type)
		}
		args, ok := object(call.Function.Arguments)
		if !ok {
			return nil, refuse(here+".function.arguments", "the arguments must be a JSON object in a string")
		}
		call.unnamed(&t.notes)
		t.names[call.ID] = call.Function.Name
		signature := signatureOf(&call)
		if signature == nil && i == 0 && geminiVersion(t.model).atLeast(3, 0) {
			signature = raw(unsigned)
		}
		parts = append(parts, geminiPart{
			FunctionCall:     &geminiCall{Name: call.Function.Name, Args: args},
			ThoughtSignature: signature,
		})
	}
	return parts, nil
}

// geminiExtra is the extra_content of a call, in the form that Google's own bridge from the chat dialect has.
type geminiExtra struct {
	Google struct {
		ThoughtSignature raw `json:"thought_signature,omitzero"`
	} `json:"google"`
}

// signatureOf returns the signature of a call: from its id, or from its extra_content where a client kept that.
func signatureOf(call *chatToolCall) raw {
	_, extra := unsealID(call.ID)
	if given(call.Extra) {
		extra = call.Extra
	}
	var in geminiExtra
	if len(extra) == 0 || json.Unmarshal(extra, &in, options) != nil {
		return nil
	}
	return present(in.Google.ThoughtSignature)
}

// toolResult translates what a tool returned: an object as it is, any other text as the output in one.
func (t *chatToGeminiRequest) toolResult(at string, m *chatMessage) ([]geminiPart, error) {
	name, ok := t.names[m.ToolCallID]
	if !ok {
		return nil, refuse(at+".tool_call_id", "it must be the id of a call in an earlier message")
	}
	parts, err := t.parts(at, m.Content)
	if err != nil {
		return nil, err
	}
	var texts []raw
	var media []geminiPart
	for _, part := range parts {
		if part.Text != nil {
			texts = append(texts, part.Text)
		} else {
			media = append(media, part)
		}
	}
	text := raw(`""`)
	if len(texts) > 0 {
		text = joined(texts, `\n`)
	}
	response, ok := object(text)
	if !ok || len(texts) == 0 {
		if response, err = encode(struct {
			Output raw `json:"output"`
		}{text}); err != nil {
			return nil, err
		}
	}
	result := geminiPart{FunctionResponse: &geminiResponse{Name: name, Response: response}}
	return append([]geminiPart{result}, media...), nil
}

// tools carries the functions.
func (t *chatToGeminiRequest) tools() error {
	var functions []geminiFunction
	for i, tool := range t.in.Tools {
		if tool.Type != "function" || tool.Function == nil {
			return refuse(fmt.Sprintf("tools[%d].type", i), "the target has no tools of the type %.40q", tool.Type)
		}
		f := tool.Function
		t.notes.unknown("tools[].", tool.Rest)
		t.notes.unknown("tools[].function.", f.Rest)
		t.notes.dropped("tools[].function.strict", f.Strict, "the target does not promise to keep to a schema")
		t.notes.dropped("cache_control", tool.CacheControl, "the target caches prompts by itself")
		functions = append(functions, geminiFunction{Name: f.Name, Description: present(f.Description), Parameters: present(f.Parameters)})
	}
	if functions != nil {
		t.out.Tools = []geminiTools{{functions}}
	}
	return nil
}

// toolChoice carries which functions may, must or must not be called.
func (t *chatToGeminiRequest) toolChoice() error {
	if len(t.in.Tools) == 0 {
		t.notes.toolless(t.in.ToolChoice)
		return nil
	}
	if string(t.in.ParallelToolCalls) == "false" {
		t.notes.add("parallel_tool_calls", "the target cannot be kept to one call")
	}
	var calling geminiCalling
	switch v := t.in.ToolChoice; {
	case !given(v):
		return nil
	case isString(v):
		calling.Mode = map[string]string{"none": "NONE", "auto": "AUTO", "required": "ANY"}[unquote(v)]
		if calling.Mode == "" {
			return refuse("tool_choice", "it must be none, auto, required or a function")
		}
	default:
		name, ok := t.notes.function(v)
		if !ok {
			return refuse("tool_choice", "only the choice of one function is translated")
		}
		calling = geminiCalling{Mode: "ANY", Allowed: []string{name}}
	}
	t.out.ToolConfig = &geminiToolConfig{calling}
	return nil
}

// format carries the form that the answer must have.
func (t *chatToGeminiRequest) format() error {
	f := t.in.ResponseFormat
	if f == nil || f.Type == "text" {
		return nil
	}
	t.notes.unknown("response_format.", f.Rest)
	t.out.Generation.MimeType = "application/json"
	switch {
	case f.Type == "json_object":
		return nil
	case f.Type != "json_schema" || f.JSONSchema == nil || !given(f.JSONSchema.Schema):
		return refuse("response_format", "it must be text, json_object or json_schema with its schema")
	}
	t.notes.unknown("response_format.json_schema.", f.JSONSchema.Rest)
	t.out.Generation.Schema = f.JSONSchema.Schema
	return nil
}

// generation carries what tunes the answer.
func (t *chatToGeminiRequest) generation() error {
	g := &t.out.Generation
	g.MaxOutputTokens = present(t.in.MaxTokens)
	if given(t.in.MaxCompletionTokens) {
		g.MaxOutputTokens = t.in.MaxCompletionTokens
	}
	g.Temperature, g.TopP, g.TopK = present(t.in.Temperature), present(t.in.TopP), present(t.in.TopK)
	g.Seed, g.PresencePenalty, g.FrequencyPenalty = present(t.in.Seed), present(t.in.PresencePenalty), present(t.in.FrequencyPenalty)
	switch stop := t.in.Stop; {
	case !given(stop):
	case isString(stop):
		list, err := encode([]raw{stop})
		if err != nil {
			return err
		}
		g.StopSequences = list
	default:
		g.StopSequences = stop
	}
	if effort := unquote(t.in.ReasoningEffort); effort != "" {
		thinking, ok := geminiEffort(effort, t.model)
		if !ok {
			return refuse("reasoning_effort", "the target knows no effort of this name")
		}
		g.Thinking = &thinking
	}
	return nil
}

// dropped takes note of what the target has no place for.
func (t *chatToGeminiRequest) dropped() error {
	const none = "the target has no such parameter"
	for _, p := range []struct {
		name  string
		value raw
	}{
		{"logit_bias", t.in.LogitBias},
		{"top_logprobs", t.in.TopLogprobs},
		{"prediction", t.in.Prediction},
		{"verbosity", t.in.Verbosity},
		{"store", t.in.Store},
		{"metadata", t.in.Metadata},
		{"user", t.in.User},
		{"safety_identifier", t.in.SafetyIdentifier},
		{"prompt_cache_key", t.in.PromptCacheKey},
		{"prompt_cache_retention", t.in.PromptCacheRetain},
		{"thinking", t.in.Thinking},
	} {
		t.notes.dropped(p.name, p.value, none)
	}
	t.notes.changed("service_tier", t.in.ServiceTier, `"auto"`, none)
	t.notes.unknown("", t.in.Rest)
	return nil
}

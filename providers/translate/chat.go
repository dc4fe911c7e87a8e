package translate

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/tollgate-gateway/tollgate/governance"
)

// chatRequest is a request of the chat completions dialect, in the order in which it is written.
type chatRequest struct {
	Model               raw           `json:"model,omitzero"`
	Messages            []chatMessage `json:"messages"`
	Tools               []chatTool    `json:"tools,omitzero"`
	ToolChoice          raw           `json:"tool_choice,omitzero"`
	ParallelToolCalls   raw           `json:"parallel_tool_calls,omitzero"`
	ResponseFormat      *chatFormat   `json:"response_format,omitzero"`
	MaxTokens           raw           `json:"max_tokens,omitzero"`
	MaxCompletionTokens raw           `json:"max_completion_tokens,omitzero"`
	Temperature         raw           `json:"temperature,omitzero"`
	TopP                raw           `json:"top_p,omitzero"`
	Stop                raw           `json:"stop,omitzero"`
	ReasoningEffort     raw           `json:"reasoning_effort,omitzero"`
	Verbosity           raw           `json:"verbosity,omitzero"`
	Stream              raw           `json:"stream,omitzero"`
	StreamOptions       raw           `json:"stream_options,omitzero"`
	User                raw           `json:"user,omitzero"`
	SafetyIdentifier    raw           `json:"safety_identifier,omitzero"`
	ServiceTier         raw           `json:"service_tier,omitzero"`
	Store               raw           `json:"store,omitzero"`
	Metadata            raw           `json:"metadata,omitzero"`
	PromptCacheKey      raw           `json:"prompt_cache_key,omitzero"`
	PromptCacheRetain   raw           `json:"prompt_cache_retention,omitzero"`
	N                   raw           `json:"n,omitzero"`
	Seed                raw           `json:"seed,omitzero"`
	FrequencyPenalty    raw           `json:"frequency_penalty,omitzero"`
	PresencePenalty     raw           `json:"presence_penalty,omitzero"`
	LogitBias           raw           `json:"logit_bias,omitzero"`
	Logprobs            raw           `json:"logprobs,omitzero"`
	TopLogprobs         raw           `json:"top_logprobs,omitzero"`
	Modalities          raw           `json:"modalities,omitzero"`
	Audio               raw           `json:"audio,omitzero"`
	Prediction          raw           `json:"prediction,omitzero"`
	WebSearchOptions    raw           `json:"web_search_options,omitzero"`
	Functions           raw           `json:"functions,omitzero"`
	FunctionCall        raw           `json:"function_call,omitzero"`
	Thinking            raw           `json:"thinking,omitzero"` // an extension: what Anthropic's dialect has under this name
	TopK                raw           `json:"top_k,omitzero"`    // an extension of many upstreams
	Rest                raw           `json:",embed"`
}

// chatMessage is a message of a request.
type chatMessage struct {
	Role             string          `json:"role"`
	Content          chatContent     `json:"content"`
	Refusal          raw             `json:"refusal,omitzero"`
	ReasoningContent raw             `json:"reasoning_content,omitzero"` // an extension: DeepSeek, Moonshot, older vLLM
	Reasoning        raw             `json:"reasoning,omitzero"`         // an extension: OpenRouter, Groq, newer vLLM
	ReasoningDetails []chatReasoning `json:"reasoning_details,omitzero"`
	ToolCalls        []chatToolCall  `json:"tool_calls,omitzero"`
	ToolCallID       string          `json:"tool_call_id,omitzero"`
	Name             raw             `json:"name,omitzero"`
	Audio            raw             `json:"audio,omitzero"`
	FunctionCall     raw             `json:"function_call,omitzero"`
	Annotations      raw             `json:"annotations,omitzero"`
	CacheControl     raw             `json:"cache_control,omitzero"` // an extension: Anthropic's marker
	Rest             raw             `json:",embed"`
}

// chatContent is a text, a list of parts, or nothing, which is written as null.
type chatContent struct {
	text  raw
	parts []chatPart
}

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (c *chatContent) UnmarshalJSONFrom(dec *jsontext.Decoder) (err error) {
	switch dec.PeekKind() {
	case '"':
		return json.UnmarshalDecode(dec, &c.text)
	case 'n', '[':
		return json.UnmarshalDecode(dec, &c.parts)
	default:
		return wrongKind(dec, "a string or an array of parts")
	}
}

// MarshalJSONTo implements json.MarshalerTo.
func (c chatContent) MarshalJSONTo(enc *jsontext.Encoder) error {
	switch {
	case c.parts != nil:
		return json.MarshalEncode(enc, c.parts)
	case c.text != nil:
		return enc.WriteValue(c.text)
	default:
		return enc.WriteToken(jsontext.Null)
	}
}

// wrongKind skips the next value and refuses it.
func wrongKind(dec *jsontext.Decoder, want string) error {
	if err := dec.SkipValue(); err != nil {
		return err
	}
	return &governance.Error{Code: governance.CodeInvalidRequest, Public: "the member must be " + want}
}

// list returns the content as parts.
func (c chatContent) list() []chatPart {
	if c.text != nil {
		return []chatPart{{Type: "text", Text: c.text}}
	}
	return c.parts
}

// chatPart is a part of a message.
type chatPart struct {
	Type         string     `json:"type"`
	Text         raw        `json:"text,omitzero"`
	Refusal      raw        `json:"refusal,omitzero"`
	ImageURL     *chatImage `json:"image_url,omitzero"`
	File         *chatFile  `json:"file,omitzero"`
	InputAudio   raw        `json:"input_audio,omitzero"`
	CacheControl raw        `json:"cache_control,omitzero"`
	Rest         raw        `json:",embed"`
}

type chatImage struct {
	URL    raw `json:"url"`
	Detail raw `json:"detail,omitzero"`
	Rest   raw `json:",embed"`
}

type chatFile struct {
	Filename raw `json:"filename,omitzero"`
	FileData raw `json:"file_data,omitzero"`
	FileID   raw `json:"file_id,omitzero"`
	Rest     raw `json:",embed"`
}

// chatReasoning is a piece of reasoning in the form that OpenRouter gave it: the only common one that carries signatures.
type chatReasoning struct {
	Type      string `json:"type"`
	Text      raw    `json:"text,omitzero"`
	Summary   raw    `json:"summary,omitzero"`
	Signature raw    `json:"signature,omitzero"`
	Data      raw    `json:"data,omitzero"`
	ID        raw    `json:"id,omitzero"`
	Format    string `json:"format,omitzero"`
	Index     int    `json:"index"`
}

// The kinds of chatReasoning, and the format whose signatures are Anthropic's.
const (
	reasoningText      = "reasoning.text"
	reasoningEncrypted = "reasoning.encrypted"
	reasoningAnthropic = "anthropic-claude-v1"
)

// chatToolCall is a call in a message, and the same in pieces in a stream, where only the first has an id and a name.
type chatToolCall struct {
	Index    *int         `json:"index,omitzero"`
	ID       string       `json:"id,omitzero"`
	Type     string       `json:"type,omitzero"`
	Function chatFunction `json:"function"`
	Custom   raw          `json:"custom,omitzero"`
	Extra    raw          `json:"extra_content,omitzero"` // an extension: what Gemini's models want back
	Rest     raw          `json:",embed"`
}

type chatFunction struct {
	Name      string `json:"name,omitzero"`
	Arguments raw    `json:"arguments,omitzero"`
	Rest      raw    `json:",embed"`
}

// unnamed takes note of what nobody here knows within a call.
func (c *chatToolCall) unnamed(n *notes) {
	n.unknown("messages[].tool_calls[].", c.Rest)
	n.unknown("messages[].tool_calls[].function.", c.Function.Rest)
}

// unnamed takes note of what nobody here knows within a part.
func (p *chatPart) unnamed(n *notes) {
	n.unknown("messages[].content[].", p.Rest)
	if p.ImageURL != nil {
		n.unknown("messages[].content[].image_url.", p.ImageURL.Rest)
	}
	if p.File != nil {
		n.unknown("messages[].content[].file.", p.File.Rest)
	}
}

// unnamed takes note of what nobody here knows within a message, and of what no other dialect has.
func (m *chatMessage) unnamed(n *notes) {
	n.unknown("messages[].", m.Rest)
	n.dropped("messages[].name", m.Name, "the target does not tell participants apart")
	n.dropped("messages[].annotations", m.Annotations, "the target takes back texts alone")
}

// chatTool is a tool that the model may call.
type chatTool struct {
	Type         string        `json:"type"`
	Function     *chatToolSpec `json:"function,omitzero"`
	Custom       raw           `json:"custom,omitzero"`
	CacheControl raw           `json:"cache_control,omitzero"`
	Rest         raw           `json:",embed"`
}

type chatToolSpec struct {
	Name         string `json:"name"`
	Description  raw    `json:"description,omitzero"`
	Parameters   raw    `json:"parameters,omitzero"`
	Strict       raw    `json:"strict,omitzero"`
	CacheControl raw    `json:"cache_control,omitzero"`
	Rest         raw    `json:",embed"`
}

// chatToolChoice is a tool_choice that is an object.
type chatToolChoice struct {
	Type     string        `json:"type"`
	Function *chatFunction `json:"function,omitzero"`
	Rest     raw           `json:",embed"`
}

// function returns the name of the one function that a tool_choice names; ok is false where it says anything else.
func (n *notes) function(choice raw) (name string, ok bool) {
	var in chatToolChoice
	if json.Unmarshal(choice, &in, options) != nil || in.Type != "function" || in.Function == nil {
		return "", false
	}
	n.unknown("tool_choice.", in.Rest)
	n.unknown("tool_choice.function.", in.Function.Rest)
	return in.Function.Name, true
}

// toolless takes note of a tool_choice that demands a tool where there is none.
func (n *notes) toolless(choice raw) {
	if said := unquote(choice); given(choice) && said != "none" && said != "auto" {
		n.add("tool_choice", "there are no tools")
	}
}

// chatFormat is a response_format.
type chatFormat struct {
	Type       string      `json:"type"`
	JSONSchema *chatSchema `json:"json_schema,omitzero"`
	Rest       raw         `json:",embed"`
}

type chatSchema struct {
	Name        raw `json:"name,omitzero"`
	Description raw `json:"description,omitzero"`
	Schema      raw `json:"schema,omitzero"`
	Strict      raw `json:"strict,omitzero"`
	Rest        raw `json:",embed"`
}

// chatAnswer is a completion, or a chunk of one, as upstreams send it.
type chatAnswer struct {
	ID          raw         `json:"id"`
	Created     raw         `json:"created"`
	Model       raw         `json:"model"`
	ServiceTier raw         `json:"service_tier"`
	Choices     chatChoices `json:"choices"`
	Usage       raw         `json:"usage"`
}

// chatChoices are the choices of an answer. Upstreams have been seen to send null and {} for none.
type chatChoices []chatChoice

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (c *chatChoices) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if dec.PeekKind() != '[' {
		return dec.SkipValue()
	}
	return json.UnmarshalDecode(dec, (*[]chatChoice)(c))
}

// chatOutput is a completion, or a chunk of one, as clients get it: always in full, since strict clients refuse less.
type chatOutput struct {
	ID          raw          `json:"id"`
	Object      string       `json:"object"`
	Created     raw          `json:"created"`
	Model       raw          `json:"model"`
	ServiceTier raw          `json:"service_tier,omitzero"`
	Choices     []chatChoice `json:"choices"`
	Usage       raw          `json:"usage,omitzero"`
}

// chatChoice is one of the choices. A completion has a message, a chunk has a delta.
type chatChoice struct {
	Index        int        `json:"index"`
	Delta        *chatDelta `json:"delta,omitzero"`
	Message      *chatDelta `json:"message,omitzero"`
	Logprobs     raw        `json:"logprobs,omitzero"`
	FinishReason raw        `json:"finish_reason"`
	NativeReason raw        `json:"native_finish_reason,omitzero"` // an extension: the upstream's own word, as OpenRouter has it
	StopReason   raw        `json:"stop_reason,omitzero"`          // an extension: vLLM's stop string or token
}

// chatDelta is what a choice says, whole or in part.
type chatDelta struct {
	Role             string          `json:"role,omitzero"`
	Content          raw             `json:"content,omitzero"`
	Refusal          raw             `json:"refusal,omitzero"`
	ReasoningContent raw             `json:"reasoning_content,omitzero"`
	Reasoning        raw             `json:"reasoning,omitzero"`
	ReasoningDetails []chatReasoning `json:"reasoning_details,omitzero"`
	ToolCalls        []chatToolCall  `json:"tool_calls,omitzero"`
	Annotations      raw             `json:"annotations,omitzero"`
}

// texts returns the content of a delta. Mistral's models think in its parts, where others have a string.
func (d *chatDelta) texts() (content, thought raw) {
	if len(d.Content) == 0 || d.Content[0] != '[' {
		return d.Content, nil
	}
	var parts []struct {
		Text     raw `json:"text"`
		Thinking []struct {
			Text raw `json:"text"`
		} `json:"thinking"`
	}
	if json.Unmarshal(d.Content, &parts, options) != nil {
		return nil, nil
	}
	texts, thoughts := []raw{raw(`""`)}, []raw{raw(`""`)}
	for _, part := range parts {
		if hasText(part.Text) {
			texts = append(texts, part.Text)
		}
		for _, inner := range part.Thinking {
			if hasText(inner.Text) {
				thoughts = append(thoughts, inner.Text)
			}
		}
	}
	return joined(texts, ""), joined(thoughts, "")
}

// reasoning returns the reasoning of a delta, or what its content holds of it, and the name of the member that carries it.
func (d *chatDelta) reasoning(thought raw) (text raw, member string) {
	switch {
	case hasText(d.ReasoningContent):
		return d.ReasoningContent, "reasoning_content"
	case hasText(d.Reasoning):
		return d.Reasoning, "reasoning"
	default:
		return thought, "content"
	}
}

// chatUsage is the usage of a completion. The prompt includes what was read from and written to caches.
type chatUsage struct {
	PromptTokens     count             `json:"prompt_tokens"`
	CompletionTokens count             `json:"completion_tokens"`
	TotalTokens      count             `json:"total_tokens"`
	PromptDetails    chatPromptDetails `json:"prompt_tokens_details"`
	Details          chatAnswerDetails `json:"completion_tokens_details"`

	CacheHit count `json:"prompt_cache_hit_tokens,omitzero"` // where DeepSeek has the cached tokens
	Cached   count `json:"cached_tokens,omitzero"`           // where Moonshot has them
}

type chatPromptDetails struct {
	CachedTokens     count `json:"cached_tokens"`
	CacheWriteTokens count `json:"cache_write_tokens,omitzero"`
}

type chatAnswerDetails struct {
	ReasoningTokens count `json:"reasoning_tokens"`
}

// refused refuses what no target of another dialect gives: the answer would be another one than the client asked for.
func (r *chatRequest) refused() error {
	if given(r.N) && string(r.N) != "1" {
		return refuse("n", "the target gives one choice")
	}
	if given(r.Modalities) && !isOnly(r.Modalities, "text") {
		return refuse("modalities", "the target gives text alone")
	}
	for _, p := range []struct {
		name  string
		value raw
		why   string
	}{
		{"audio", r.Audio, "the target gives text alone"},
		{"logprobs", r.Logprobs, "the probabilities of the target's dialect, if it has any, are not translated"},
		{"functions", r.Functions, "the target knows functions as tools alone"},
		{"function_call", r.FunctionCall, "the target knows functions as tools alone: use tool_choice"},
		{"web_search_options", r.WebSearchOptions, "the target cannot search by this parameter"},
	} {
		if !neutral(p.value) {
			return refuse(p.name, "%s", p.why)
		}
	}
	return nil
}

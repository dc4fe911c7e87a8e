package translate

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// responsesRequest is a request of the responses dialect, in the order in which it is written.
type responsesRequest struct {
	Model              raw                 `json:"model,omitzero"`
	Instructions       raw                 `json:"instructions,omitzero"`
	Input              responsesInput      `json:"input"`
	Tools              []responsesTool     `json:"tools,omitzero"`
	ToolChoice         raw                 `json:"tool_choice,omitzero"`
	ParallelToolCalls  raw                 `json:"parallel_tool_calls,omitzero"`
	Text               *responsesText      `json:"text,omitzero"`
	Reasoning          *responsesReasoning `json:"reasoning,omitzero"`
	MaxOutputTokens    raw                 `json:"max_output_tokens,omitzero"`
	Temperature        raw                 `json:"temperature,omitzero"`
	TopP               raw                 `json:"top_p,omitzero"`
	TopLogprobs        raw                 `json:"top_logprobs,omitzero"`
	Stream             raw                 `json:"stream,omitzero"`
	StreamOptions      raw                 `json:"stream_options,omitzero"`
	User               raw                 `json:"user,omitzero"`
	SafetyIdentifier   raw                 `json:"safety_identifier,omitzero"`
	ServiceTier        raw                 `json:"service_tier,omitzero"`
	Store              raw                 `json:"store,omitzero"`
	Metadata           raw                 `json:"metadata,omitzero"`
	PromptCacheKey     raw                 `json:"prompt_cache_key,omitzero"`
	PromptCacheRetain  raw                 `json:"prompt_cache_retention,omitzero"`
	Include            raw                 `json:"include,omitzero"`
	Truncation         raw                 `json:"truncation,omitzero"`
	MaxToolCalls       raw                 `json:"max_tool_calls,omitzero"`
	Background         raw                 `json:"background,omitzero"`
	Conversation       raw                 `json:"conversation,omitzero"`
	PreviousResponseID raw                 `json:"previous_response_id,omitzero"`
	Prompt             raw                 `json:"prompt,omitzero"`
	ContextManagement  raw                 `json:"context_management,omitzero"`
	Rest               raw                 `json:",embed"`
}

// responsesInput is a text or a list of items.
type responsesInput struct {
	text  raw
	items []responsesItem
}

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (in *responsesInput) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	switch dec.PeekKind() {
	case '"':
		return json.UnmarshalDecode(dec, &in.text)
	case '[', 'n':
		return json.UnmarshalDecode(dec, &in.items)
	default:
		return wrongKind(dec, "a string or an array of items")
	}
}

// MarshalJSONTo implements json.MarshalerTo.
func (in responsesInput) MarshalJSONTo(enc *jsontext.Encoder) error {
	if in.text != nil {
		return enc.WriteValue(in.text)
	}
	return json.MarshalEncode(enc, in.items)
}

// responsesItem is an item of any kind. An input without a type is a message.
type responsesItem struct {
	ID        string           `json:"id,omitzero"`
	Type      string           `json:"type,omitzero"`
	Status    string           `json:"status,omitzero"`
	Role      string           `json:"role,omitzero"`
	CallID    string           `json:"call_id,omitzero"`
	Namespace string           `json:"namespace,omitzero"`
	Name      string           `json:"name,omitzero"`
	Arguments raw              `json:"arguments,omitzero"`
	Input     raw              `json:"input,omitzero"`
	Output    responsesContent `json:"output,omitzero"`
	Summary   []responsesPart  `json:"summary,omitzero"`
	Content   responsesContent `json:"content,omitzero"`
	Encrypted raw              `json:"encrypted_content,omitzero"`
	Phase     raw              `json:"phase,omitzero"`
	Rest      raw              `json:",embed"`
}

// The kinds of items that cross.
const (
	itemMessage        = "message"
	itemReasoning      = "reasoning"
	itemCall           = "function_call"
	itemCallOutput     = "function_call_output"
	itemCustom         = "custom_tool_call"
	itemCustomOutput   = "custom_tool_call_output"
	partText           = "output_text"
	partRefusal        = "refusal"
	partReasoning      = "reasoning_text"
	partSummary        = "summary_text"
	statusInProgress   = "in_progress"
	statusCompleted    = "completed"
	statusIncomplete   = "incomplete"
	incompleteLength   = "max_output_tokens"
	incompleteFiltered = "content_filter"
)

// responsesContent is a text or a list of parts.
type responsesContent = content[responsesPart]

// partsOf returns content as parts.
func partsOf(c responsesContent) []responsesPart {
	if c.text != nil {
		return []responsesPart{{Type: "input_text", Text: c.text}}
	}
	return c.parts
}

// responsesPart is a part of an item of any kind.
type responsesPart struct {
	Type        string `json:"type"`
	Annotations raw    `json:"annotations,omitzero"`
	Logprobs    raw    `json:"logprobs,omitzero"`
	Text        raw    `json:"text,omitzero"`
	Refusal     raw    `json:"refusal,omitzero"`
	ImageURL    raw    `json:"image_url,omitzero"`
	Detail      raw    `json:"detail,omitzero"`
	Filename    raw    `json:"filename,omitzero"`
	FileData    raw    `json:"file_data,omitzero"`
	FileID      raw    `json:"file_id,omitzero"`
	FileURL     raw    `json:"file_url,omitzero"`
	Rest        raw    `json:",embed"`
}

// responsesTool is a tool of any kind. Functions lie flat here.
type responsesTool struct {
	Type        string           `json:"type"`
	Name        string           `json:"name,omitzero"`
	Description raw              `json:"description,omitzero"`
	Parameters  raw              `json:"parameters,omitzero"`
	Strict      raw              `json:"strict,omitzero"`
	Format      *responsesFormat `json:"format,omitzero"`
	Tools       []responsesTool  `json:"tools,omitzero"` // of a namespace
	Rest        raw              `json:",embed"`
}

// flatName is what a tool of a namespace is called where there are none.
func flatName(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "__" + name
}

// responsesFormat is the form of an answer, or of a custom tool's input.
type responsesFormat struct {
	Type        string `json:"type"`
	Name        raw    `json:"name,omitzero"`
	Description raw    `json:"description,omitzero"`
	Schema      raw    `json:"schema,omitzero"`
	Strict      raw    `json:"strict,omitzero"`
	Syntax      raw    `json:"syntax,omitzero"`
	Definition  raw    `json:"definition,omitzero"`
	Rest        raw    `json:",embed"`
}

type responsesText struct {
	Format    *responsesFormat `json:"format,omitzero"`
	Verbosity raw              `json:"verbosity,omitzero"`
	Rest      raw              `json:",embed"`
}

type responsesReasoning struct {
	Effort          raw `json:"effort,omitzero"`
	Summary         raw `json:"summary,omitzero"`
	GenerateSummary raw `json:"generate_summary,omitzero"`
	Rest            raw `json:",embed"`
}

// responsesChoice is a tool_choice that is an object.
type responsesChoice struct {
	Type string `json:"type"`
	Name string `json:"name,omitzero"`
	Rest raw    `json:",embed"`
}

// responsesAnswer is a response.
type responsesAnswer struct {
	ID                 raw             `json:"id"`
	Object             string          `json:"object"`
	CreatedAt          raw             `json:"created_at"`
	Status             string          `json:"status"`
	Error              raw             `json:"error"`
	IncompleteDetails  raw             `json:"incomplete_details"`
	Instructions       raw             `json:"instructions"`
	MaxOutputTokens    raw             `json:"max_output_tokens"`
	Model              raw             `json:"model"`
	Output             []responsesItem `json:"output"`
	ParallelToolCalls  raw             `json:"parallel_tool_calls"`
	PreviousResponseID raw             `json:"previous_response_id"`
	Reasoning          raw             `json:"reasoning"`
	ServiceTier        raw             `json:"service_tier,omitzero"`
	Store              bool            `json:"store"`
	Temperature        raw             `json:"temperature"`
	Text               raw             `json:"text"`
	ToolChoice         raw             `json:"tool_choice"`
	Tools              raw             `json:"tools"`
	TopP               raw             `json:"top_p"`
	Truncation         raw             `json:"truncation"`
	Usage              raw             `json:"usage"`
	User               raw             `json:"user"`
	Metadata           raw             `json:"metadata"`
}

// responsesUsage is the usage of a response. The input includes what was read from and written to caches.
type responsesUsage struct {
	InputTokens  count             `json:"input_tokens"`
	InputDetails chatPromptDetails `json:"input_tokens_details"`
	OutputTokens count             `json:"output_tokens"`
	Details      chatAnswerDetails `json:"output_tokens_details"`
	TotalTokens  count             `json:"total_tokens"`
}

package translate

// messagesRequest is a request of Anthropic's dialect, in the order in which it is written.
type messagesRequest struct {
	Model             raw               `json:"model,omitzero"`
	MaxTokens         raw               `json:"max_tokens,omitzero"`
	System            messagesContent   `json:"system,omitzero"`
	Tools             []messagesTool    `json:"tools,omitzero"`
	Messages          []messagesMessage `json:"messages"`
	ToolChoice        *messagesChoice   `json:"tool_choice,omitzero"`
	Thinking          raw               `json:"thinking,omitzero"`
	OutputConfig      *messagesOutput   `json:"output_config,omitzero"`
	OutputFormat      *messagesFormat   `json:"output_format,omitzero"` // what output_config.format was called in its beta
	Temperature       raw               `json:"temperature,omitzero"`
	TopP              raw               `json:"top_p,omitzero"`
	TopK              raw               `json:"top_k,omitzero"`
	StopSequences     []raw             `json:"stop_sequences,omitzero"`
	Stream            raw               `json:"stream,omitzero"`
	Metadata          *messagesMetadata `json:"metadata,omitzero"`
	ServiceTier       raw               `json:"service_tier,omitzero"`
	CacheControl      raw               `json:"cache_control,omitzero"`
	ContextManagement raw               `json:"context_management,omitzero"`
	Container         raw               `json:"container,omitzero"`
	MCPServers        raw               `json:"mcp_servers,omitzero"`
	InferenceGeo      raw               `json:"inference_geo,omitzero"`
	Rest              raw               `json:",embed"`
}

type messagesMetadata struct {
	UserID raw `json:"user_id,omitzero"`
	Rest   raw `json:",embed"`
}

type messagesOutput struct {
	Effort raw             `json:"effort,omitzero"`
	Format *messagesFormat `json:"format,omitzero"`
	Rest   raw             `json:",embed"`
}

type messagesFormat struct {
	Type   string `json:"type"`
	Schema raw    `json:"schema,omitzero"`
	Rest   raw    `json:",embed"`
}

type messagesThinking struct {
	Type         string `json:"type"`
	BudgetTokens int64  `json:"budget_tokens,omitzero"`
	Display      string `json:"display,omitzero"`
	Rest         raw    `json:",embed"`
}

type messagesChoice struct {
	Type                   string `json:"type"`
	Name                   string `json:"name,omitzero"`
	DisableParallelToolUse raw    `json:"disable_parallel_tool_use,omitzero"`
	Rest                   raw    `json:",embed"`
}

type messagesTool struct {
	Type         string `json:"type,omitzero"` // absent for the client's own tools
	Name         string `json:"name"`
	Description  raw    `json:"description,omitzero"`
	InputSchema  raw    `json:"input_schema,omitzero"`
	Strict       raw    `json:"strict,omitzero"`
	CacheControl raw    `json:"cache_control,omitzero"`
	Rest         raw    `json:",embed"`
}

type messagesMessage struct {
	Role    string          `json:"role"`
	Content messagesContent `json:"content"`
	Rest    raw             `json:",embed"`
}

// messagesContent is a text or a list of blocks. What is neither are results of a provider's own tools.
type messagesContent = content[messagesBlock]

// blocksOf returns content as blocks.
func blocksOf(c messagesContent) []messagesBlock {
	if c.text != nil {
		return []messagesBlock{{Type: "text", Text: c.text}}
	}
	return c.parts
}

// messagesBlock is a block of any kind.
type messagesBlock struct {
	Type         string          `json:"type"`
	Text         raw             `json:"text,omitzero"`
	Thinking     raw             `json:"thinking,omitzero"`
	Signature    raw             `json:"signature,omitzero"`
	Data         raw             `json:"data,omitzero"`
	Source       raw             `json:"source,omitzero"`
	ID           string          `json:"id,omitzero"`
	Name         string          `json:"name,omitzero"`
	Input        raw             `json:"input,omitzero"`
	ToolUseID    string          `json:"tool_use_id,omitzero"`
	Content      messagesContent `json:"content,omitzero"`
	IsError      raw             `json:"is_error,omitzero"`
	Title        raw             `json:"title,omitzero"`
	Context      raw             `json:"context,omitzero"`
	Citations    raw             `json:"citations,omitzero"`
	Caller       raw             `json:"caller,omitzero"`
	CacheControl raw             `json:"cache_control,omitzero"`
	Rest         raw             `json:",embed"`
}

// messagesSource is where an image or a document comes from.
type messagesSource struct {
	Type      string          `json:"type"`
	MediaType string          `json:"media_type,omitzero"`
	Data      raw             `json:"data,omitzero"`
	URL       raw             `json:"url,omitzero"`
	FileID    raw             `json:"file_id,omitzero"`
	Content   messagesContent `json:"content,omitzero"`
	Rest      raw             `json:",embed"`
}

// messagesAnswer is a message that a model made.
type messagesAnswer struct {
	ID           raw             `json:"id"`
	Type         string          `json:"type"`
	Role         string          `json:"role"`
	Model        raw             `json:"model"`
	Content      messagesContent `json:"content"`
	StopReason   raw             `json:"stop_reason"`
	StopSequence raw             `json:"stop_sequence"`
	StopDetails  raw             `json:"stop_details,omitzero"`
	NativeReason raw             `json:"native_finish_reason,omitzero"` // an extension: the upstream's own word
	Usage        raw             `json:"usage"`
}

// messagesEvent is an event of a stream, as upstreams send it.
type messagesEvent struct {
	Type         string          `json:"type"`
	Message      *messagesAnswer `json:"message"`
	Index        int             `json:"index"`
	ContentBlock *messagesBlock  `json:"content_block"`
	Delta        messagesDelta   `json:"delta"`
	Usage        raw             `json:"usage"`
}

// messagesDelta is what an event adds to a block or to the message.
type messagesDelta struct {
	Type        string `json:"type,omitzero"`
	Text        raw    `json:"text,omitzero"`
	PartialJSON raw    `json:"partial_json,omitzero"`
	Thinking    raw    `json:"thinking,omitzero"`
	Signature   raw    `json:"signature,omitzero"`

	StopReason   raw `json:"stop_reason,omitzero"`
	StopSequence raw `json:"stop_sequence,omitzero"`
	StopDetails  raw `json:"stop_details,omitzero"`
	NativeReason raw `json:"native_finish_reason,omitzero"`
}

// messagesUsage is the usage of a message. Its counts are disjoint, except for those in the details.
type messagesUsage struct {
	InputTokens         count            `json:"input_tokens"`
	CacheCreationTokens count            `json:"cache_creation_input_tokens"`
	CacheReadTokens     count            `json:"cache_read_input_tokens"`
	OutputTokens        count            `json:"output_tokens"`
	Details             *messagesDetails `json:"output_tokens_details,omitzero"`
}

type messagesDetails struct {
	ThinkingTokens count `json:"thinking_tokens"`
}

// The stop reasons of Anthropic's dialect.
const (
	stopEndTurn    = "end_turn"
	stopMaxTokens  = "max_tokens"
	stopSequence   = "stop_sequence"
	stopToolUse    = "tool_use"
	stopPauseTurn  = "pause_turn"
	stopRefusal    = "refusal"
	stopContextEnd = "model_context_window_exceeded"
)

// The finish reasons of the chat dialect.
const (
	finishStop          = "stop"
	finishLength        = "length"
	finishToolCalls     = "tool_calls"
	finishFunctionCall  = "function_call"
	finishContentFilter = "content_filter"
)

// messagesEnd adds the two events that a stream of messages ends with.
func (f *frames) messagesEnd(delta messagesDelta, usage raw) {
	f.named("message_delta", struct {
		Type  string        `json:"type"`
		Delta messagesDelta `json:"delta"`
		Usage raw           `json:"usage"`
	}{"message_delta", delta, usage})
	f.named("message_stop", struct {
		Type string `json:"type"`
	}{"message_stop"})
}

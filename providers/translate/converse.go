package translate

import "strings"

// converseRequest is a request of Bedrock's Converse dialect. The model and whether the answer is a stream stand in the path.
type converseRequest struct {
	System       []converseBlock     `json:"system,omitzero"`
	Messages     []converseMessage   `json:"messages"`
	Inference    converseInference   `json:"inferenceConfig,omitzero"`
	ToolConfig   *converseToolConfig `json:"toolConfig,omitzero"`
	OutputConfig *converseOutput     `json:"outputConfig,omitzero"`
	ServiceTier  *converseTier       `json:"serviceTier,omitzero"`
	Fields       converseFields      `json:"additionalModelRequestFields,omitzero"`
	AnswerFields []string            `json:"additionalModelResponseFieldPaths,omitzero"`
}

type converseMessage struct {
	Role    string          `json:"role"`
	Content []converseBlock `json:"content"`
}

// converseBlock is a block of any kind: the member that is there says of which.
type converseBlock struct {
	Text       raw                 `json:"text,omitzero"`
	Image      *converseImage      `json:"image,omitzero"`
	Document   *converseDocument   `json:"document,omitzero"`
	ToolUse    *converseToolUse    `json:"toolUse,omitzero"`
	ToolResult *converseToolResult `json:"toolResult,omitzero"`
	Reasoning  *converseReasoning  `json:"reasoningContent,omitzero"`
	Citations  *converseCited      `json:"citationsContent,omitzero"`
	CachePoint *conversePoint      `json:"cachePoint,omitzero"`
}

// conversePoint says that everything before it is to be cached.
type conversePoint struct {
	Type string `json:"type"`
	TTL  string `json:"ttl,omitzero"`
}

type converseImage struct {
	Format string         `json:"format"`
	Source converseSource `json:"source"`
}

type converseDocument struct {
	Format    string             `json:"format"`
	Name      string             `json:"name"`
	Source    converseSource     `json:"source"`
	Context   raw                `json:"context,omitzero"`
	Citations *converseCitations `json:"citations,omitzero"`
}

type converseCitations struct {
	Enabled bool `json:"enabled"`
}

// converseSource is where an image or a document comes from: bytes in base64, a text, or blocks of text.
type converseSource struct {
	Bytes   raw             `json:"bytes,omitzero"`
	Text    raw             `json:"text,omitzero"`
	Content []converseBlock `json:"content,omitzero"`
}

type converseToolUse struct {
	ToolUseID string `json:"toolUseId"`
	Name      string `json:"name"`
	Input     raw    `json:"input,omitzero"` // an object; in a stream a piece of its text
}

type converseToolResult struct {
	ToolUseID string          `json:"toolUseId"`
	Content   []converseBlock `json:"content"`
	Status    string          `json:"status,omitzero"`
}

// converseReasoning holds thoughts: whole ones in a block, or a piece of them in a stream.
type converseReasoning struct {
	Whole     *converseThought `json:"reasoningText,omitzero"`
	Redacted  raw              `json:"redactedContent,omitzero"`
	Text      raw              `json:"text,omitzero"`
	Signature raw              `json:"signature,omitzero"`
}

type converseThought struct {
	Text      raw `json:"text"`
	Signature raw `json:"signature,omitzero"`
}

// converseCited is text with what it was taken from.
type converseCited struct {
	Content []converseBlock `json:"content"`
}

type converseInference struct {
	MaxTokens     raw   `json:"maxTokens,omitzero"`
	Temperature   raw   `json:"temperature,omitzero"`
	TopP          raw   `json:"topP,omitzero"`
	StopSequences []raw `json:"stopSequences,omitzero"`
}

type converseToolConfig struct {
	Tools  []converseTool  `json:"tools"`
	Choice *converseChoice `json:"toolChoice,omitzero"`
}

type converseTool struct {
	Spec       *converseSpec  `json:"toolSpec,omitzero"`
	CachePoint *conversePoint `json:"cachePoint,omitzero"`
}

type converseSpec struct {
	Name        string         `json:"name"`
	Description raw            `json:"description,omitzero"`
	InputSchema converseSchema `json:"inputSchema"`
	Strict      raw            `json:"strict,omitzero"`
}

type converseSchema struct {
	JSON raw `json:"json"`
}

type converseChoice struct {
	Auto *struct{}     `json:"auto,omitzero"`
	Any  *struct{}     `json:"any,omitzero"`
	Tool *converseName `json:"tool,omitzero"`
}

type converseName struct {
	Name string `json:"name"`
}

type converseOutput struct {
	Effort raw             `json:"effort,omitzero"`
	Format *converseFormat `json:"textFormat,omitzero"`
}

// converseFormat wants its schema as a text.
type converseFormat struct {
	Type      string `json:"type"`
	Structure struct {
		JSONSchema struct {
			Schema raw    `json:"schema"`
			Name   string `json:"name"`
		} `json:"jsonSchema"`
	} `json:"structure"`
}

type converseTier struct {
	Type string `json:"type"`
}

// converseFields are what the models of one maker take beyond the dialect: here those of Anthropic's.
type converseFields struct {
	Thinking   raw             `json:"thinking,omitzero"`
	TopK       raw             `json:"top_k,omitzero"`
	ToolChoice *messagesChoice `json:"tool_choice,omitzero"`
}

// converseAnswer is a whole answer, or an event of a stream, whose kind is its name.
type converseAnswer struct {
	Output *struct {
		Message *converseMessage `json:"message"`
	} `json:"output"`
	StopReason raw `json:"stopReason"`
	Usage      raw `json:"usage"`
	Fields     struct {
		StopSequence raw `json:"stop_sequence"`
	} `json:"additionalModelResponseFields"`

	Index int `json:"contentBlockIndex"`
	Start struct {
		ToolUse *converseToolUse `json:"toolUse"`
	} `json:"start"`
	Delta converseBlock `json:"delta"`
}

// converseUsage counts what caches served and took beside the input.
type converseUsage struct {
	Input      count `json:"inputTokens"`
	Output     count `json:"outputTokens"`
	CacheRead  count `json:"cacheReadInputTokens"`
	CacheWrite count `json:"cacheWriteInputTokens"`
}

// messages returns the usage in the words of Anthropic's dialect.
func (u converseUsage) messages() messagesUsage {
	return messagesUsage{
		InputTokens: u.Input, OutputTokens: u.Output, CacheReadTokens: u.CacheRead, CacheCreationTokens: u.CacheWrite,
	}
}

// maker is whose a model is that Bedrock serves, as far as its name tells.
type maker int

const (
	makerUnknown maker = iota // profiles of one's own are named by numbers
	makerAnthropic
	makerNova
	makerOther
)

// makerOf reads a model's id, the id of an inference profile or the ARN of either: us.anthropic.claude-…, amazon.nova-pro-v1:0.
func makerOf(model string) maker {
	switch {
	case strings.Contains(model, "claude"):
		return makerAnthropic
	case strings.Contains(model, "amazon.nova"):
		return makerNova
	case strings.Contains(model, "application-inference-profile/"), !strings.Contains(model, "."):
		return makerUnknown
	}
	return makerOther
}

// likeClaude reports whether a model may take what is Anthropic's own.
func (m maker) likeClaude() bool { return m == makerAnthropic || m == makerUnknown }

// caches reports whether a model may take cache points.
func (m maker) caches() bool { return m != makerOther }

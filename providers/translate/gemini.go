package translate

import (
	"path"
	"regexp"
	"strconv"
	"strings"
)

// geminiRequest is a request of Gemini's generateContent dialect, in the order in which it is written. The model stands in
// the URL, and so does whether the answer is a stream.
type geminiRequest struct {
	System     *geminiContent    `json:"systemInstruction,omitzero"`
	Contents   []geminiContent   `json:"contents"`
	Tools      []geminiTools     `json:"tools,omitzero"`
	ToolConfig *geminiToolConfig `json:"toolConfig,omitzero"`
	Generation geminiGeneration  `json:"generationConfig,omitzero"`
}

type geminiContent struct {
	Role  string       `json:"role,omitzero"`
	Parts []geminiPart `json:"parts"`
}

// geminiPart is a part of any kind.
type geminiPart struct {
	Text             raw             `json:"text,omitzero"`
	Thought          bool            `json:"thought,omitzero"`
	InlineData       *geminiBlob     `json:"inlineData,omitzero"`
	FileData         *geminiFile     `json:"fileData,omitzero"`
	FunctionCall     *geminiCall     `json:"functionCall,omitzero"`
	FunctionResponse *geminiResponse `json:"functionResponse,omitzero"`
	ThoughtSignature raw             `json:"thoughtSignature,omitzero"`
}

type geminiBlob struct {
	MimeType string `json:"mimeType"`
	Data     raw    `json:"data"`
}

type geminiFile struct {
	MimeType string `json:"mimeType,omitzero"`
	FileURI  raw    `json:"fileUri"`
}

type geminiCall struct {
	ID   string `json:"id,omitzero"`
	Name string `json:"name"`
	Args raw    `json:"args,omitzero"`
}

type geminiResponse struct {
	ID       string `json:"id,omitzero"`
	Name     string `json:"name"`
	Response raw    `json:"response"`
}

type geminiTools struct {
	Declarations []geminiFunction `json:"functionDeclarations"`
}

// geminiFunction is a function that the model may call. Its parameters are JSON Schema, which the member "parameters" is not.
type geminiFunction struct {
	Name        string `json:"name"`
	Description raw    `json:"description,omitzero"`
	Parameters  raw    `json:"parametersJsonSchema,omitzero"`
}

type geminiToolConfig struct {
	Calling geminiCalling `json:"functionCallingConfig"`
}

type geminiCalling struct {
	Mode    string   `json:"mode"`
	Allowed []string `json:"allowedFunctionNames,omitzero"`
}

type geminiGeneration struct {
	MaxOutputTokens  raw             `json:"maxOutputTokens,omitzero"`
	Temperature      raw             `json:"temperature,omitzero"`
	TopP             raw             `json:"topP,omitzero"`
	TopK             raw             `json:"topK,omitzero"`
	StopSequences    raw             `json:"stopSequences,omitzero"`
	Seed             raw             `json:"seed,omitzero"`
	PresencePenalty  raw             `json:"presencePenalty,omitzero"`
	FrequencyPenalty raw             `json:"frequencyPenalty,omitzero"`
	MimeType         string          `json:"responseMimeType,omitzero"`
	Schema           raw             `json:"responseJsonSchema,omitzero"`
	Thinking         *geminiThinking `json:"thinkingConfig,omitzero"`
}

type geminiThinking struct {
	Level   string `json:"thinkingLevel,omitzero"`
	Budget  *int64 `json:"thinkingBudget,omitzero"`
	Include bool   `json:"includeThoughts,omitzero"`
}

// geminiAnswer is an answer, or a piece of one: in a stream every event has this form.
type geminiAnswer struct {
	Candidates []struct {
		Index        int           `json:"index"`
		Content      geminiContent `json:"content"`
		FinishReason string        `json:"finishReason"`
	} `json:"candidates"`
	Feedback struct {
		BlockReason raw `json:"blockReason"`
	} `json:"promptFeedback"`
	Usage      raw `json:"usageMetadata"`
	Model      raw `json:"modelVersion"`
	ResponseID raw `json:"responseId"`
}

// geminiUsage is the usage of an answer, told anew with each piece of a stream. Thoughts and what tools brought in stand
// beside the candidates and the prompt, what a cache served is a part of the prompt.
type geminiUsage struct {
	Prompt     count `json:"promptTokenCount"`
	ToolPrompt count `json:"toolUsePromptTokenCount"`
	Candidates count `json:"candidatesTokenCount"`
	Thoughts   count `json:"thoughtsTokenCount"`
	Cached     count `json:"cachedContentTokenCount"`
}

// chat returns the usage as the chat dialect counts it.
func (u geminiUsage) chat() chatUsage {
	out := chatUsage{
		PromptTokens: u.Prompt + u.ToolPrompt, CompletionTokens: u.Candidates + u.Thoughts,
		PromptDetails: chatPromptDetails{CachedTokens: u.Cached}, Details: chatAnswerDetails{ReasoningTokens: u.Thoughts},
	}
	out.TotalTokens = out.PromptTokens + out.CompletionTokens
	return out
}

// geminiFinish returns the chat dialect's word for a finish reason. Words that are not known yet are stops.
func geminiFinish(reason string, called bool) string {
	switch reason {
	case "MAX_TOKENS":
		return finishLength
	case "SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT":
		return finishContentFilter
	}
	if called {
		return finishToolCalls
	}
	return finishStop
}

// geminiName finds the generation in a model's name.
var geminiName = regexp.MustCompile(`gemini-(\d{1,2})(?:\.(\d{1,2}))?`)

func geminiVersion(model string) version {
	m := geminiName.FindStringSubmatch(model)
	if m == nil {
		return version{}
	}
	major, _ := strconv.Atoi(m[1]) // the expression takes digits alone
	minor, _ := strconv.Atoi(m[2]) // none is zero
	return version{major, minor}
}

// geminiEffort returns how a model is told an effort: a level since 3, of which the larger models know fewer, a budget of
// tokens before. The numbers are those of Google's own bridge from the chat dialect. ok is false for an effort without a name.
func geminiEffort(effort, model string) (t geminiThinking, ok bool) {
	budgets := map[string]int64{"none": 0, "minimal": 1_024, "low": 1_024, "medium": 8_192, "high": 24_576, "xhigh": 24_576, "max": 24_576, "ultra": 24_576}
	budget, ok := budgets[effort]
	if !ok {
		return t, false
	}
	t.Include = effort != "none"
	if !geminiVersion(model).atLeast(3, 0) {
		t.Budget = &budget
		return t, true
	}
	t.Level = map[string]string{"none": "minimal", "xhigh": "high", "max": "high", "ultra": "high"}[effort]
	if t.Level == "" {
		t.Level = effort
	}
	if !strings.Contains(model, "flash") {
		t.Level = map[string]string{"minimal": "low", "low": "low", "medium": "high", "high": "high"}[t.Level]
	}
	return t, true
}

// mimeTypes are the kinds of files that URLs are known by.
var mimeTypes = map[string]string{
	".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp", ".gif": "image/gif", ".heic": "image/heic",
	".pdf": "application/pdf",
}

// mimeType returns the kind of the file behind a URL; "" where it does not tell.
func mimeType(url string) string {
	url, _, _ = strings.Cut(url, "?")
	return mimeTypes[strings.ToLower(path.Ext(url))]
}

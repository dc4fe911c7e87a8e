package mock

import (
	"net/http"
	"strconv"
	"strings"
)

// The methods of a model in Gemini's API, behind the model's name.
const (
	geminiWhole  = ":generateContent"
	geminiStream = ":streamGenerateContent"
)

// geminiModel returns the model that a path of Gemini's API names, and whether it asks for a stream. ok is false for others.
func geminiModel(path string) (model string, stream, ok bool) {
	_, name, _ := strings.Cut(path, "/models/")
	if model, ok = strings.CutSuffix(name, geminiStream); ok {
		return model, true, true
	}
	model, ok = strings.CutSuffix(name, geminiWhole)
	return model, false, ok
}

// geminiUsage counts cached tokens within the prompt, and thoughts beside the candidates.
func (c *call) geminiUsage(u usage) string {
	if c.script.usageMode == usageNever {
		return ""
	}
	s := `,"usageMetadata":{"promptTokenCount":` + strconv.Itoa(u.in) + `,"candidatesTokenCount":` + strconv.Itoa(u.out-u.reasoning) +
		`,"totalTokenCount":` + strconv.Itoa(u.in+u.out) + `,"promptTokensDetails":[{"modality":"TEXT","tokenCount":` + strconv.Itoa(u.in) + `}]`
	if u.cached > 0 {
		s += `,"cachedContentTokenCount":` + strconv.Itoa(u.cached)
	}
	if u.reasoning > 0 {
		s += `,"thoughtsTokenCount":` + strconv.Itoa(u.reasoning)
	}
	return s + `}`
}

// geminiParts returns the parts of an answer: each word, or the calls of tools.
func (c *call) geminiParts(words []string) []string {
	call := func(use toolUse) string {
		return `{"functionCall":{"name":` + string(quote(use.name)) + `,"args":` + use.input + `}}`
	}
	var parts []string
	if c.script.thinking {
		parts = append(parts, `{"text":"`+Thinking+`","thought":true}`)
	}
	switch {
	case c.script.parallelTools:
		return append(parts, call(toolUse{"weather", `{"city":"Paris"}`}), call(toolUse{"weather", `{"city":"Rome"}`}))
	case c.script.tool != nil:
		return append(parts, call(*c.script.tool))
	}
	for _, word := range words {
		parts = append(parts, `{"text":`+string(quote(word))+`}`)
	}
	return parts
}

// generate answers generateContent and streamGenerateContent. The last event of a stream alone has a finish reason.
func (c *call) generate() answer {
	if len(c.body.Contents) == 0 {
		return c.refuse(http.StatusBadRequest, "object", "* GenerateContentRequest.contents: contents is not specified")
	}
	words, missing := c.cut(1 << 30)
	u := c.count(len(words))
	parts, finish := c.geminiParts(words), "STOP"
	switch {
	case c.script.refusal:
		finish = "SAFETY"
	case missing:
		finish = "MAX_TOKENS"
	}
	piece := func(parts, finish string) string {
		s := `{"candidates":[{"content":{"parts":[` + parts + `],"role":"model"}`
		if finish != "" {
			s += `,"finishReason":"` + finish + `"`
		}
		return s + `,"index":0}]` + c.geminiUsage(u) + `,"modelVersion":` + c.model() + `,"responseId":"mock_` + c.number() + `"}`
	}
	if !c.body.Stream {
		return unary(piece(strings.Join(parts, ","), finish))
	}
	var frames [][]byte
	for _, part := range parts {
		frames = append(frames, event("", []byte(piece(part, ""))))
	}
	return streamOf(1, append(frames, event("", []byte(piece(`{"text":""}`, finish))))...)
}

// geminiStatus is the name of a status in google.rpc.Code.
func geminiStatus(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "INVALID_ARGUMENT"
	case http.StatusUnauthorized:
		return "UNAUTHENTICATED"
	case http.StatusForbidden:
		return "PERMISSION_DENIED"
	case http.StatusNotFound:
		return "NOT_FOUND"
	case http.StatusTooManyRequests:
		return "RESOURCE_EXHAUSTED"
	case http.StatusServiceUnavailable:
		return "UNAVAILABLE"
	case http.StatusGatewayTimeout:
		return "DEADLINE_EXCEEDED"
	}
	return "INTERNAL"
}

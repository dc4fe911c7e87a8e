package mock

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// dialect is whose words an answer uses.
type dialect int

const (
	openAI dialect = iota
	openAIResponses
	anthropic
	gemini
	bedrock
)

func dialectOf(r *http.Request, path string) dialect {
	if _, _, ok := geminiModel(path); ok {
		return gemini
	}
	if _, _, ok := bedrockModel(path); ok {
		return bedrock
	}
	switch {
	case strings.HasPrefix(path, "/messages"), r.Header.Get("Anthropic-Version") != "":
		return anthropic
	case strings.HasPrefix(path, "/responses"), path == "/realtime":
		return openAIResponses
	default:
		return openAI
	}
}

// refuse makes an error answer in the dialect of the call and the given shape.
func (c *call) refuse(status int, shape, message string) answer {
	a := answer{status: status, contentType: contentJSON}
	switch shape {
	case "text":
		a.contentType = contentPlain
	case "html":
		a.contentType = "text/html; charset=utf-8"
	}
	a.frames = [][]byte{c.errorBody(status, shape, message)}
	if c.dialect == bedrock && status != http.StatusOK {
		a.header = [2]string{"X-Amzn-Errortype", bedrockKind(status) + ":http://internal.amazon.com/coral/com.amazon.bedrock/"}
	}
	return a
}

// errorFrame makes an error event of a stream.
func (c *call) errorFrame(status int, shape string) []byte {
	const message = "The server had an error while processing your request."
	switch {
	case c.dialect == bedrock:
		kind := bedrockKind(status)
		return bedrockException(strings.ToLower(kind[:1])+kind[1:], string(c.errorBody(status, shape, message)))
	case shape == "event":
		return event("error", c.errorBody(status, "object", message))
	case c.dialect == anthropic:
		return event("error", c.errorBody(status, shape, message))
	case c.dialect == openAIResponses && shape == "object":
		b := append([]byte(`{"type":"error","code":"server_error","message":`), quote(message)...)
		return event("error", append(b, `,"param":null,"sequence_number":99}`...))
	default:
		return event("", c.errorBody(status, shape, message))
	}
}

// event makes a server-sent event; name may be empty.
func event(name string, data []byte) []byte {
	b := make([]byte, 0, len(name)+len(data)+20)
	if name != "" {
		b = append(append(append(b, "event: "...), name...), '\n')
	}
	b = append(append(b, "data: "...), data...)
	return append(b, "\n\n"...)
}

func (c *call) errorBody(status int, shape, message string) []byte {
	kind, code := errorWords(status)
	switch shape {
	case "quota":
		kind, code, message = "insufficient_quota", `"insufficient_quota"`, "You exceeded your current quota, please check your plan and billing details."
	case "context_length":
		kind, code, message = "invalid_request_error", `"context_length_exceeded"`, "This model's maximum context length is 8192 tokens."
	case "numeric_code":
		code = strconv.Itoa(status)
	case "echo_key":
		message = "Incorrect API key provided: " + strings.Join(credentials(c.r), ", ") + "."
	}
	object := `{"error":{"message":` + string(quote(message)) + `,"type":"` + kind + `","param":null,"code":` + code + `}}`
	if c.dialect == anthropic {
		object = `{"type":"error","error":{"type":"` + anthropicKind(status) + `","message":` + string(quote(message)) +
			`},"request_id":"req_mock_` + strconv.FormatInt(c.seen.ID, 10) + `"}`
	}
	if c.dialect == gemini {
		object = `{"error":{"code":` + strconv.Itoa(status) + `,"message":` + string(quote(message)) + `,"status":"` + geminiStatus(status) + `"}}`
	}
	if c.dialect == bedrock {
		object = `{"message":` + string(quote(message)) + `}`
	}
	switch shape {
	case "string":
		return []byte(`{"error":` + string(quote(message)) + `}`)
	case "array":
		return []byte("[" + object + "]")
	case "nested":
		return []byte(`{"error":{"message":` + string(quote(object)) + `,"type":null,"param":null,"code":null}}`)
	case "detail":
		return []byte(`{"detail":` + string(quote(message)) + `}`)
	case "text":
		return []byte(message)
	case "html":
		return []byte("<html><head><title>" + strconv.Itoa(status) + "</title></head><body><h1>" + message + "</h1></body></html>")
	case "empty":
		return nil
	default:
		return []byte(object)
	}
}

// errorWords returns OpenAI's type and its code as JSON.
func errorWords(status int) (kind, code string) {
	switch status {
	case http.StatusUnauthorized:
		return "invalid_request_error", `"invalid_api_key"`
	case http.StatusForbidden:
		return "invalid_request_error", `"unsupported_country_region_territory"`
	case http.StatusNotFound:
		return "invalid_request_error", `"not_found"`
	case http.StatusTooManyRequests:
		return "requests", `"rate_limit_exceeded"`
	}
	if status >= 500 {
		return "server_error", "null"
	}
	return "invalid_request_error", "null"
}

func anthropicKind(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "invalid_request_error"
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusPaymentRequired:
		return "billing_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable, 529:
		return "overloaded_error"
	}
	return "api_error"
}

// quote writes text as JSON; bytes that are no UTF-8 become U+FFFD.
func quote(text string) []byte {
	b, err := jsontext.AppendQuote(nil, text)
	if err != nil {
		b, _ = jsontext.AppendQuote(nil, strings.ToValidUTF8(text, "\uFFFD"))
	}
	return b
}

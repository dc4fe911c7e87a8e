package translate

import (
	"bytes"
	"net/http"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
)

// failure is an upstream's error in no dialect.
type failure struct {
	kind    string // its type, in the upstream's words; "" where it gave none
	message raw
	code    raw // a string or null
	param   raw // a string or null
	status  int
}

// maxMessage bounds what is made a message of a body that is none.
const maxMessage = 4 << 10

// failureOf reads an error body, which may be of any dialect, of none, or no JSON at all.
func failureOf(status int, body []byte) failure {
	f := failure{status: status, code: raw("null"), param: raw("null")}
	f.find(body, 4)
	if !hasText(f.message) {
		text := strings.TrimSpace(strings.ToValidUTF8(string(body[:min(len(body), maxMessage)]), ""))
		if text == "" || text[0] == '<' {
			text = http.StatusText(status)
		}
		if text == "" {
			text = "the upstream gave no reason"
		}
		f.message = quote(text)
	}
	if f.overflow() && strings.Trim(unquote(f.code), "0123456789") == "" { // some repeat the status there
		f.code = quote(codeOverflow)
	}
	return f
}

// find looks for the error in a body: under "error", "response", "errors", "detail", or in the first member of an array.
func (f *failure) find(body []byte, depth int) {
	body = bytes.TrimSpace(body)
	if depth == 0 || len(body) == 0 || hasText(f.message) {
		return
	}
	switch body[0] {
	case '"':
		var message raw
		if json.Unmarshal(body, &message, options) == nil {
			f.message = message
		}
	case '[':
		var list []raw
		if json.Unmarshal(body, &list, options) == nil && len(list) > 0 {
			f.find(list[0], depth-1)
		}
	case '{':
		var in struct {
			Type     raw `json:"type"`
			Code     raw `json:"code"`
			Param    raw `json:"param"`
			Message  raw `json:"message"`
			Error    raw `json:"error"`
			Response raw `json:"response"`
			Errors   raw `json:"errors"`
			Detail   raw `json:"detail"`
			Msg      raw `json:"msg"`
			Amazon   raw `json:"Message"`
		}
		if json.Unmarshal(body, &in, options) != nil {
			return
		}
		if kind := unquote(in.Type); kind != "" && kind != "error" && kind != "response.failed" {
			f.kind = kind
		}
		if isString(in.Code) {
			f.code = in.Code
		} else if given(in.Code) {
			f.code = quote(string(in.Code))
		}
		if hasText(in.Param) {
			f.param = in.Param
		}
		for _, place := range []raw{in.Message, in.Error, in.Response, in.Errors, in.Detail, in.Msg, in.Amazon} {
			f.find(place, depth-1)
		}
	}
}

// codeOverflow is the chat dialect's code for a prompt that is longer than the model's context.
const codeOverflow = "context_length_exceeded"

// overflow reports whether a prompt was longer than the model's context: agents shorten theirs when they are told so.
func (f failure) overflow() bool {
	if unquote(f.code) == codeOverflow {
		return true
	}
	said := strings.ToLower(unquote(f.message))
	return f.status == http.StatusBadRequest && slices.ContainsFunc([]string{
		"prompt is too long",                                // Anthropic
		"exceeds the maximum number of tokens allowed",      // Gemini
		"input is too long for requested model",             // Bedrock
		"maximum context length", "context length exceeded", // vLLM and other servers
	}, func(words string) bool { return strings.Contains(said, words) })
}

// chat writes the error in the form of OpenAI's dialects.
func (f failure) chat() []byte {
	kind := f.kind
	if kind == "" {
		kind = kindOf(f.status)
	}
	return f.encode(struct {
		Error any `json:"error"`
	}{struct {
		Message raw    `json:"message"`
		Type    string `json:"type"`
		Param   raw    `json:"param"`
		Code    raw    `json:"code"`
	}{f.message, kind, f.param, f.code}})
}

// responses writes the error in the form of the responses dialect: within a stream that has begun it is an event.
func (f failure) responses(begun bool, sequence int) []byte {
	if !begun {
		return f.chat()
	}
	return f.encode(struct {
		Type           string `json:"type"`
		SequenceNumber int    `json:"sequence_number"`
		Code           raw    `json:"code"`
		Message        raw    `json:"message"`
		Param          raw    `json:"param"`
	}{"error", sequence, f.code, f.message, f.param})
}

// messages writes the error in the form of Anthropic's dialect, whose clients go by the type. The code, which it does not
// have, stays visible.
func (f failure) messages() []byte {
	kind := kindOf(f.status)
	if f.status < http.StatusBadRequest && anthropicKinds[f.kind] {
		kind = f.kind
	}
	message := f.message
	if text := unquote(message); f.overflow() && !strings.Contains(text, "prompt is too long") {
		message = quote("prompt is too long: " + text) // what Anthropic's own clients look for
	}
	return f.encode(struct {
		Type  string `json:"type"`
		Error any    `json:"error"`
	}{"error", struct {
		Type    string `json:"type"`
		Message raw    `json:"message"`
		Code    raw    `json:"code,omitzero"`
		Param   raw    `json:"param,omitzero"`
	}{kind, message, present(f.code), present(f.param)}})
}

// encode writes an error; a message that no encoder takes is left out.
func (f failure) encode(v any) []byte {
	out, err := encode(v)
	if err != nil {
		return []byte(`{"error":{"message":"the upstream's error cannot be shown","type":"api_error","param":null,"code":null}}`)
	}
	return out
}

// anthropicKinds are the types of Anthropic's errors.
var anthropicKinds = map[string]bool{
	"invalid_request_error": true, "authentication_error": true, "billing_error": true, "permission_error": true,
	"not_found_error": true, "request_too_large": true, "rate_limit_error": true, "timeout_error": true,
	"overloaded_error": true, "api_error": true,
}

// kindOf returns the type that an error of a status has in Anthropic's dialect, most of which OpenAI's has too.
func kindOf(status int) string {
	switch status {
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
	case http.StatusGatewayTimeout:
		return "timeout_error"
	}
	if status >= 400 && status < 500 {
		return "invalid_request_error"
	}
	return "api_error"
}

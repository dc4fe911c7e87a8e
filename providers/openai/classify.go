package openai

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/providers"
)

const (
	maxErrorRead   = 64 << 10       // bytes of an error that are looked at
	maxErrorShown  = 2 << 10        // bytes of its text that a caller may read
	maxRetryAfter  = 24 * time.Hour // a longer wait is as good as none
	genericFailure = "The provider refused the request."
)

// Classify implements providers.Provider by the contract's error table: 401, 402, 403 and an exhausted quota are about our
// account; every other refusal is the caller's to see. Server errors and rates may fare better at another target, faults
// of the request may not. An error that came with status 200 is read by its own code and type.
func (Provider) Classify(status int, h http.Header, body []byte) providers.Failure {
	said := readError(body)
	if status >= 200 && status <= 299 {
		status = said.status()
	}
	f := providers.Failure{Public: said.message, RetryAfter: retryAfter(h)}
	if f.Public == "" {
		f.Public = genericFailure
	}
	ours := func(code governance.Code, public string) providers.Failure {
		return providers.Failure{Code: code, Public: public, OurFault: true, TryNext: true, RetryAfter: f.RetryAfter}
	}
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return ours(governance.CodeUpstreamAuthFailed, "The provider does not accept the gateway's credential.")
	case status == http.StatusPaymentRequired || status == http.StatusTooManyRequests && said.aboutAccount():
		return ours(governance.CodeUpstreamQuota, "The gateway's account at the provider is exhausted.")
	case status < 400: // a redirect, which is never followed
		f.Code, f.Public, f.TryNext = governance.CodeUpstreamInvalid, "The provider's answer could not be understood.", true
	case status == http.StatusTooManyRequests:
		f.Code, f.TryNext = governance.CodeRateLimitExceeded, true
	case status == http.StatusRequestEntityTooLarge:
		f.Code = governance.CodePayloadTooLarge
	case status == http.StatusRequestTimeout || status == http.StatusGatewayTimeout:
		f.Code, f.TryNext = governance.CodeUpstreamTimeout, true
	case status >= 500:
		f.Code, f.TryNext = governance.CodeUpstreamAborted, true
	default:
		f.Code = governance.CodeInvalidRequest
	}
	return f
}

// saidError is what an upstream says about a failure, whatever the shape.
type saidError struct {
	message string
	kind    string // the member "type"
	code    string // a word or a number
}

// readError understands {"error":{…}}, {"error":"…"}, an array of such, {"message"}, {"detail"} and plain text.
func readError(body []byte) saidError {
	body = bytes.TrimSpace(body[:min(len(body), maxErrorRead)])
	if said, ok := parseError(body); ok {
		return said
	}
	if len(body) == 0 || body[0] == '<' || body[0] == '{' || body[0] == '[' {
		return saidError{} // HTML, or JSON that says nothing we know
	}
	return saidError{message: shorten(string(body))}
}

func parseError(body []byte) (said saidError, ok bool) {
	switch {
	case len(body) == 0:
		return saidError{}, false
	case body[0] == '"':
		var text string
		if json.Unmarshal(body, &text) != nil {
			return saidError{}, false
		}
		return saidError{message: shorten(text)}, true
	case body[0] == '[':
		var list []json.RawMessage
		if json.Unmarshal(body, &list) != nil || len(list) == 0 || len(list[0]) == 0 || list[0][0] != '{' {
			return saidError{}, false
		}
		return parseError(list[0])
	case body[0] != '{':
		return saidError{}, false
	}
	var object struct {
		Error    json.RawMessage `json:"error"`
		Response struct {
			Error json.RawMessage `json:"error"`
		} `json:"response"`
		Message json.RawMessage `json:"message"`
		Detail  json.RawMessage `json:"detail"`
		Type    json.RawMessage `json:"type"`
		Code    json.RawMessage `json:"code"`
	}
	if json.Unmarshal(body, &object) != nil {
		return saidError{}, false
	}
	for _, inner := range []json.RawMessage{object.Error, object.Response.Error} {
		if len(inner) > 0 && inner[0] != 'n' {
			return parseError(inner)
		}
	}
	said = saidError{message: shorten(word(object.Message)), kind: word(object.Type), code: word(object.Code)}
	if said.message == "" {
		said.message = shorten(word(object.Detail))
	}
	return said, said != saidError{}
}

// word returns the text of a string or a number, and nothing for all else.
func word(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var n json.Number
	if json.Unmarshal(raw, &n) == nil {
		return n.String()
	}
	return ""
}

func shorten(s string) string {
	if len(s) <= maxErrorShown {
		return s
	}
	s = s[:maxErrorShown]
	for !utf8.ValidString(s) && s != "" {
		s = s[:len(s)-1]
	}
	return s
}

// aboutAccount reports whether a 429 is about what our account may spend and not about its rate.
func (e saidError) aboutAccount() bool {
	for _, s := range []string{e.code, e.kind} {
		switch s {
		case "insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "insufficient_balance",
			"exceeded_current_quota_error", "account_deactivated", "credits_exhausted":
			return true
		}
	}
	return false
}

// status returns the status that an error sent with status 200 should have had.
func (e saidError) status() int {
	if n, err := strconv.Atoi(e.code); err == nil && n >= 400 && n <= 599 {
		return n
	}
	if e.aboutAccount() {
		return http.StatusTooManyRequests
	}
	for _, s := range []string{e.code, e.kind} {
		switch s {
		case "invalid_request_error", "BadRequestError", "invalid_prompt", "context_length_exceeded", "invalid_image",
			"invalid_image_format", "invalid_base64_image", "invalid_image_url", "image_parse_error", "image_too_large",
			"content_filter", "content_policy_violation":
			return http.StatusBadRequest
		case "authentication_error", "invalid_api_key":
			return http.StatusUnauthorized
		case "permission_error":
			return http.StatusForbidden
		case "not_found_error", "model_not_found":
			return http.StatusNotFound
		case "rate_limit_error", "rate_limit_exceeded", "requests", "tokens":
			return http.StatusTooManyRequests
		}
	}
	return http.StatusBadGateway
}

// retryAfter reads the provider's hint in milliseconds, seconds or as a date; 0: none.
func retryAfter(h http.Header) time.Duration {
	wait, err := time.ParseDuration(strings.TrimSpace(h.Get("Retry-After-Ms")) + "ms")
	if err != nil {
		given := strings.TrimSpace(h.Get("Retry-After"))
		if wait, err = time.ParseDuration(given + "s"); err != nil {
			at, err := http.ParseTime(given)
			if err != nil {
				return 0
			}
			wait = time.Until(at)
		}
	}
	if wait < 0 || wait > maxRetryAfter {
		return 0
	}
	return wait
}

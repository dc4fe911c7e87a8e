package providers

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tollgate-gateway/tollgate/governance"
)

const (
	maxErrorRead  = 64 << 10       // bytes of an error that are looked at
	maxErrorShown = 2 << 10        // bytes of its text that a caller may read
	maxRetryAfter = 24 * time.Hour // a longer wait is as good as none
)

// Classify applies the contract's error table to what an upstream said: 401, 402 and 403 are about our account, as is what
// account says to be; every other refusal is the caller's to see. Server errors and rates may fare better at another target,
// faults of the request may not. wait is the upstream's hint when to try again.
func Classify(status int, said Said, account bool, wait time.Duration) Failure {
	f := Failure{Public: said.Message, RetryAfter: wait}
	if f.Public == "" {
		f.Public = "The provider refused the request."
	}
	ours := func(code governance.Code, public string) Failure {
		return Failure{Code: code, Public: public, OurFault: true, TryNext: true, RetryAfter: wait}
	}
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return ours(governance.CodeUpstreamAuthFailed, "The provider does not accept the gateway's credential.")
	case status == http.StatusPaymentRequired || account:
		return ours(governance.CodeUpstreamQuota, "The gateway's account at the provider is exhausted.")
	case status < http.StatusBadRequest: // a redirect, which is never followed
		f.Code, f.Public, f.TryNext = governance.CodeUpstreamInvalid, "The provider's answer could not be understood.", true
	case status == http.StatusTooManyRequests:
		f.Code, f.TryNext = governance.CodeRateLimitExceeded, true
	case status == http.StatusRequestEntityTooLarge:
		f.Code = governance.CodePayloadTooLarge
	case status == http.StatusRequestTimeout || status == http.StatusGatewayTimeout:
		f.Code, f.TryNext = governance.CodeUpstreamTimeout, true
	case status >= http.StatusInternalServerError:
		f.Code, f.TryNext = governance.CodeUpstreamAborted, true
	default:
		f.Code = governance.CodeInvalidRequest
	}
	return f
}

// Said is what an upstream says about a failure, whatever the shape.
type Said struct {
	Message string // cut to what a caller may read
	Kind    string // the member "type"
	Code    string // a word or a number
}

// ReadError understands {"error":{…}}, {"error":"…"}, an array of such, {"message"}, {"detail"} and plain text.
func ReadError(body []byte) Said {
	body = bytes.TrimSpace(body[:min(len(body), maxErrorRead)])
	if said, ok := parseError(body); ok {
		return said
	}
	if len(body) == 0 || body[0] == '<' || body[0] == '{' || body[0] == '[' {
		return Said{} // HTML, or JSON that says nothing we know
	}
	return Said{Message: shorten(string(body))}
}

func parseError(body []byte) (said Said, ok bool) {
	switch {
	case len(body) == 0:
		return Said{}, false
	case body[0] == '"':
		var text string
		if json.Unmarshal(body, &text) != nil {
			return Said{}, false
		}
		return Said{Message: shorten(text)}, true
	case body[0] == '[':
		var list []json.RawMessage
		if json.Unmarshal(body, &list) != nil || len(list) == 0 || len(list[0]) == 0 || list[0][0] != '{' {
			return Said{}, false
		}
		return parseError(list[0])
	case body[0] != '{':
		return Said{}, false
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
		return Said{}, false
	}
	for _, inner := range []json.RawMessage{object.Error, object.Response.Error} {
		if len(inner) > 0 && inner[0] != 'n' {
			return parseError(inner)
		}
	}
	said = Said{Message: shorten(word(object.Message)), Kind: word(object.Type), Code: word(object.Code)}
	if said.Message == "" {
		said.Message = shorten(word(object.Detail))
	}
	return said, said != Said{}
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

// RetryAfter reads the provider's hint in milliseconds, seconds or as a date; 0: none.
func RetryAfter(h http.Header) time.Duration {
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

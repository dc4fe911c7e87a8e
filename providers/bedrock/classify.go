package bedrock

import (
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/tollgate-gateway/tollgate/providers"
)

// said is an error of Bedrock's: its name stands in a header of the answer, or in the body where that is an event.
type said struct {
	Type    string `json:"__type"`
	Message string `json:"message"`
}

// kindOf returns the name of an error, such as ThrottlingException, without what may stand around it: a namespace before it
// ("aws.protocol#"), an address behind it (":http://…"). Events write it with a small first letter.
func kindOf(h http.Header, body []byte) string {
	kind := h.Get("X-Amzn-Errortype")
	if kind == "" {
		var inside said
		if json.Unmarshal(body, &inside) == nil {
			kind = inside.Type
		}
	}
	kind, _, _ = strings.Cut(kind, ":")
	kind = kind[strings.LastIndexByte(kind, '#')+1:]
	if kind == "" {
		return ""
	}
	return strings.ToUpper(kind[:1]) + kind[1:]
}

// Classify implements providers.Provider. The name of an error says more than its status, and is all that errors within a
// stream have.
func (Provider) Classify(status int, h http.Header, body []byte) providers.Failure {
	text := providers.ReadError(body)
	inside := status >= 200 && status <= 299
	if inside {
		status = http.StatusBadGateway
	}
	account, next := false, status == http.StatusNotFound // the model is not known in this region
	switch kindOf(h, body) {
	case "ThrottlingException", "TooManyRequestsException":
		status = http.StatusTooManyRequests
	case "ServiceQuotaExceededException":
		account = true
	case "ModelNotReadyException", "ServiceUnavailableException":
		status = http.StatusServiceUnavailable
	case "ModelTimeoutException":
		status = http.StatusGatewayTimeout
	case "InternalServerException", "ModelErrorException", "ModelStreamErrorException":
		status = http.StatusBadGateway
	case "AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException", "ExpiredTokenException",
		"IncompleteSignatureException", "MissingAuthenticationTokenException", "InvalidClientTokenId":
		status = http.StatusForbidden
	case "ResourceNotFoundException":
		status, next = http.StatusNotFound, true
	case "ValidationException":
		if inside {
			status = http.StatusBadRequest
		}
		next = next || aboutTarget(text.Message)
	}
	f := providers.Classify(status, text, account, providers.RetryAfter(h))
	f.TryNext = f.TryNext || next
	return f
}

// aboutTarget reports whether a refusal of a request is about the model that our own target names, and not about what the
// client sent.
func aboutTarget(message string) bool {
	return strings.Contains(message, "model identifier") || strings.Contains(message, "on-demand throughput")
}

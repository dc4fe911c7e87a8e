package openai

import (
	"net/http"
	"strconv"

	"github.com/tollgate-gateway/tollgate/providers"
)

// Classify implements providers.Provider. An error that came with status 200 is read by its own code and type.
func (Provider) Classify(status int, h http.Header, body []byte) providers.Failure {
	said := providers.ReadError(body)
	if status >= 200 && status <= 299 {
		status = statusOf(said)
	}
	account := status == http.StatusTooManyRequests && aboutAccount(said)
	return providers.Classify(status, said, account, providers.RetryAfter(h))
}

// aboutAccount reports whether a 429 is about what our account may spend and not about its rate.
func aboutAccount(e providers.Said) bool {
	for _, s := range []string{e.Code, e.Kind} {
		switch s {
		case "insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "insufficient_balance",
			"exceeded_current_quota_error", "account_deactivated", "credits_exhausted":
			return true
		}
	}
	return false
}

// statusOf returns the status that an error sent with status 200 should have had.
func statusOf(e providers.Said) int {
	if n, err := strconv.Atoi(e.Code); err == nil && n >= 400 && n <= 599 {
		return n
	}
	if aboutAccount(e) {
		return http.StatusTooManyRequests
	}
	for _, s := range []string{e.Code, e.Kind} {
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

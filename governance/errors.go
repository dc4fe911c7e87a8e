package governance

import (
	"errors"
	"fmt"
	"time"
)

// Code names a failure for machines. Clients, dashboards and alerts depend on it, so a code is never renamed.
type Code string

// The codes of the contract's error table.
const (
	CodeInternal              Code = "internal_error"
	CodeInvalidRequest        Code = "invalid_request"
	CodeInvalidAPIKey         Code = "invalid_api_key"
	CodeKeyExpired            Code = "key_expired"
	CodeKeyRevoked            Code = "key_revoked"
	CodeKeyBlocked            Code = "key_blocked"
	CodeTeamBlocked           Code = "team_blocked"
	CodeUserBlocked           Code = "user_blocked"
	CodeOrganizationBlocked   Code = "organization_blocked"
	CodeModelNotAllowed       Code = "model_not_allowed"
	CodeModelNotFound         Code = "model_not_found"
	CodeNotFound              Code = "not_found"
	CodeMethodNotAllowed      Code = "method_not_allowed"
	CodePayloadTooLarge       Code = "payload_too_large"
	CodeUnsupportedEncoding   Code = "unsupported_content_encoding"
	CodeModelUnpriced         Code = "model_unpriced"
	CodeMaxCostExceeded       Code = "max_cost_exceeded"
	CodeContentBlocked        Code = "content_blocked"
	CodeBudgetExceeded        Code = "budget_exceeded"
	CodeReservationTooLarge   Code = "reservation_too_large"
	CodeBudgetHeld            Code = "budget_held"
	CodeRateLimitExceeded     Code = "rate_limit_exceeded"
	CodeTokenLimitExceeded    Code = "token_limit_exceeded" //nolint:gosec // no credential
	CodeConcurrencyExceeded   Code = "concurrency_exceeded"
	CodeRequestExceedsLimit   Code = "request_exceeds_limit"
	CodeIdempotencyInProgress Code = "idempotency_in_progress"
	CodeIdempotencyMismatch   Code = "idempotency_mismatch"
	CodeLimitStoreUnavailable Code = "limit_store_unavailable"
	CodeDataStoreUnavailable  Code = "data_store_unavailable"
	CodeGatewayOverloaded     Code = "gateway_overloaded"
	CodePluginUnavailable     Code = "plugin_unavailable"
	CodePluginUnsupported     Code = "plugin_unsupported"
	CodeUpstreamAuthFailed    Code = "upstream_auth_failed"
	CodeUpstreamQuota         Code = "upstream_quota_exhausted"
	CodeUpstreamUnreachable   Code = "upstream_unreachable"
	CodeUpstreamTimeout       Code = "upstream_timeout"
	CodeUpstreamAborted       Code = "upstream_aborted"
	CodeUpstreamInvalid       Code = "upstream_invalid_response"
	CodeUpgradeUnsupported    Code = "upgrade_unsupported"
)

// Error is a failure that a caller may see. Public, Param and Details are shown; Err is only logged.
type Error struct {
	Code       Code
	Public     string
	Param      string        // the request's member at fault; empty: none
	RetryAfter time.Duration // zero where waiting does not help
	Details    any           // encoded as JSON into error.details; nil: none
	Err        error
}

func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("%s: %s", e.Code, e.Public)
	}
	return fmt.Sprintf("%s: %s: %v", e.Code, e.Public, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// CodeOf returns the code of the first Error in err's chain; any other error is internal.
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeInternal
}

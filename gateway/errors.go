package gateway

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
)

// OpenAI's error types. Clients choose by them whether to retry.
const (
	typeAuthentication = "authentication_error"
	typePermission     = "permission_error"
	typeInvalid        = "invalid_request_error"
	typeRate           = "rate_limit_error"
	typeQuota          = "insufficient_quota"
	typeServer         = "server_error"
)

// answerTo is how a code is answered.
type answerTo struct {
	status int
	kind   string
	wait   bool // a short wait helps: Retry-After, jittered
}

// answers is the one place where a code becomes a status. A test keeps it whole.
var answers = map[governance.Code]answerTo{
	governance.CodeInternal:              {http.StatusInternalServerError, typeServer, false},
	governance.CodeInvalidRequest:        {http.StatusBadRequest, typeInvalid, false},
	governance.CodeInvalidAPIKey:         {http.StatusUnauthorized, typeAuthentication, false},
	governance.CodeKeyExpired:            {http.StatusUnauthorized, typeAuthentication, false},
	governance.CodeKeyRevoked:            {http.StatusUnauthorized, typeAuthentication, false},
	governance.CodeKeyBlocked:            {http.StatusForbidden, typePermission, false},
	governance.CodeTeamBlocked:           {http.StatusForbidden, typePermission, false},
	governance.CodeUserBlocked:           {http.StatusForbidden, typePermission, false},
	governance.CodeOrganizationBlocked:   {http.StatusForbidden, typePermission, false},
	governance.CodeModelNotAllowed:       {http.StatusForbidden, typePermission, false},
	governance.CodeModelNotFound:         {http.StatusNotFound, typeInvalid, false},
	governance.CodeNotFound:              {http.StatusNotFound, typeInvalid, false},
	governance.CodeMethodNotAllowed:      {http.StatusMethodNotAllowed, typeInvalid, false},
	governance.CodePayloadTooLarge:       {http.StatusRequestEntityTooLarge, typeInvalid, false},
	governance.CodeUnsupportedEncoding:   {http.StatusUnsupportedMediaType, typeInvalid, false},
	governance.CodeModelUnpriced:         {http.StatusUnprocessableEntity, typeInvalid, false},
	governance.CodeMaxCostExceeded:       {http.StatusUnprocessableEntity, typeInvalid, false},
	governance.CodeContentBlocked:        {http.StatusBadRequest, typeInvalid, false},
	governance.CodeBudgetExceeded:        {http.StatusTooManyRequests, typeQuota, false},
	governance.CodeReservationTooLarge:   {http.StatusTooManyRequests, typeQuota, false},
	governance.CodeBudgetHeld:            {http.StatusTooManyRequests, typeRate, false},
	governance.CodeRateLimitExceeded:     {http.StatusTooManyRequests, typeRate, false},
	governance.CodeTokenLimitExceeded:    {http.StatusTooManyRequests, typeRate, false},
	governance.CodeConcurrencyExceeded:   {http.StatusTooManyRequests, typeRate, false},
	governance.CodeRequestExceedsLimit:   {http.StatusBadRequest, typeInvalid, false},
	governance.CodeIdempotencyInProgress: {http.StatusConflict, typeInvalid, false},
	governance.CodeIdempotencyMismatch:   {http.StatusUnprocessableEntity, typeInvalid, false},
	governance.CodeLimitStoreUnavailable: {http.StatusServiceUnavailable, typeServer, true},
	governance.CodeDataStoreUnavailable:  {http.StatusServiceUnavailable, typeServer, true},
	governance.CodeGatewayOverloaded:     {http.StatusServiceUnavailable, typeServer, true},
	governance.CodePluginUnavailable:     {http.StatusServiceUnavailable, typeServer, true},
	governance.CodePluginUnsupported:     {http.StatusForbidden, typePermission, false},
	governance.CodeUpstreamAuthFailed:    {http.StatusBadGateway, typeServer, false},
	governance.CodeUpstreamQuota:         {http.StatusServiceUnavailable, typeServer, false},
	governance.CodeUpstreamUnreachable:   {http.StatusBadGateway, typeServer, false},
	governance.CodeUpstreamTimeout:       {http.StatusGatewayTimeout, typeServer, false},
	governance.CodeUpstreamAborted:       {http.StatusBadGateway, typeServer, false},
	governance.CodeUpstreamInvalid:       {http.StatusBadGateway, typeServer, false},
	governance.CodeUpgradeUnsupported:    {http.StatusNotImplemented, typeInvalid, false},
}

// failure is what ends a call, or one attempt of it, without an answer.
type failure struct {
	cause       *governance.Error
	status      int                 // in place of the code's own; 0: the code's
	body        []byte              // the upstream's JSON error, passed on as it is; nil: the cause in the dialect's shape
	retryAfter  string              // the upstream's own hint, passed on
	wait        time.Duration       // the same, as it was understood
	shouldRetry string              // x-should-retry: "true", "false" or unsaid
	meshFinal   bool                // x-envoy-ratelimited, so that no mesh in between sends the request again
	next        bool                // another target may do better
	spoken      *governance.Refusal // the limit that the error speaks of
	closing     bool                // the connection cannot be used again
}

func (f *failure) Error() string { return f.cause.Error() }

func (f *failure) Unwrap() error { return f.cause }

// fault is a failure that Tollgate itself finds.
func fault(code governance.Code, public string) *governance.Error {
	return &governance.Error{Code: code, Public: public}
}

// invalid refuses a request for a member or a header of it.
func invalid(param, public string) *governance.Error {
	return &governance.Error{Code: governance.CodeInvalidRequest, Public: public, Param: param}
}

// asFailure gives any error the form in which it is answered. What is no governance.Error is hidden from the client.
func asFailure(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	if e, ok := errors.AsType[*governance.Error](err); ok {
		return &failure{cause: e}
	}
	return &failure{cause: &governance.Error{
		Code:   governance.CodeInternal,
		Public: "The gateway failed. Its operator can find out why by the request id.",
		Err:    err,
	}}
}

// statusOf returns the status that f is answered with. budgetStatus is the caller's setting for budgets, 429 or 402.
func (f *failure) statusOf(budgetStatus int) int {
	switch {
	case f.status != 0:
		return f.status
	case answers[f.cause.Code].kind == typeQuota && budgetStatus != 0:
		return budgetStatus
	}
	return answers[f.cause.Code].status
}

// hints tells clients, their SDKs and the meshes between whether and when to try again.
func (f *failure) hints(h http.Header) {
	wait := f.cause.RetryAfter
	if answers[f.cause.Code].wait { // whoever found it out: clients that were refused together must not come back together
		wait = 2*time.Second + rand.N(8*time.Second) //nolint:gosec // jitter, no secret
	}
	switch {
	case f.retryAfter != "":
		h.Set("Retry-After", f.retryAfter)
	case wait > longestWait:
		h.Set("X-Should-Retry", "false")
	case wait > 0:
		h.Set("Retry-After", roundedUp(wait, time.Second))
		h.Set("Retry-After-Ms", roundedUp(wait, time.Millisecond))
	case answers[f.cause.Code].kind == typeQuota:
		h.Set("X-Should-Retry", "false")
	}
	if f.shouldRetry != "" {
		h.Set("X-Should-Retry", f.shouldRetry)
	}
	if f.meshFinal {
		h.Set("X-Envoy-Ratelimited", "true")
	}
}

// roundedUp counts the units of a wait, so that a client that obeys does not come too early.
func roundedUp(wait, unit time.Duration) string {
	return strconv.FormatInt(int64((wait+unit-1)/unit), 10)
}

// longestWait is the longest wait that clients are asked for. SDKs ignore longer ones or sleep through them.
const longestWait = 60 * time.Second

type openAIError struct {
	Error openAIErrorBody `json:"error"`
}

type openAIErrorBody struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
	Details any     `json:"details,omitempty"`
}

type anthropicError struct {
	Type      string             `json:"type"`
	Error     anthropicErrorBody `json:"error"`
	RequestID string             `json:"request_id"`
}

type anthropicErrorBody struct {
	Type    string `json:"type"`
	Message string `json:"message"`
	Code    string `json:"code"`
	Details any    `json:"details,omitempty"`
}

// encode writes e in the caller's dialect.
func encode(e *governance.Error, status int, anthropic bool, requestID string) []byte {
	var v any = openAIError{openAIErrorBody{
		Message: e.Public, Type: answers[e.Code].kind, Param: orNull(e.Param), Code: string(e.Code), Details: e.Details,
	}}
	if anthropic {
		v = anthropicError{"error", anthropicErrorBody{
			Type: anthropicType(status, e.Code), Message: e.Public, Code: string(e.Code), Details: e.Details,
		}, requestID}
	}
	b, err := json.Marshal(v)
	if err != nil {
		// Details are plain data of this package; if they cannot be written the error still can.
		bare := *e
		bare.Details = nil
		return encode(&bare, status, anthropic, requestID)
	}
	return b
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// anthropicType follows ruling 41.
func anthropicType(status int, code governance.Code) string {
	switch {
	case answers[code].kind == typeQuota:
		return "billing_error"
	case status == http.StatusUnauthorized:
		return "authentication_error"
	case status == http.StatusForbidden:
		return "permission_error"
	case status == http.StatusNotFound:
		return "not_found_error"
	case status == http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case status == http.StatusServiceUnavailable || status == statusOverloaded:
		return "overloaded_error"
	case status < http.StatusInternalServerError:
		return "invalid_request_error"
	}
	return "api_error"
}

// statusOverloaded is Anthropic's.
const statusOverloaded = 529

// AnswerTo returns the status and the error type that a code is answered with; 0: the code is unknown.
func AnswerTo(code governance.Code) (status int, kind string) {
	a := answers[code]
	return a.status, a.kind
}

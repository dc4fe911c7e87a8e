package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json"
	"github.com/rs/zerolog"

	"github.com/tollgate-gateway/tollgate/governance"
)

// Codes of problems that only the admin API has.
const (
	codeUnauthorized       = "unauthorized"
	codeForbidden          = "forbidden"
	codeTooManyFailures    = "too_many_failed_logins"
	codeExists             = "already_exists"
	codeConflict           = "conflict"
	codePreconditionFailed = "precondition_failed"
	codeUnsupportedMedia   = "unsupported_media_type"
	codeRequestTimeout     = "request_timeout"
)

const problemType = "application/problem+json"

// retryAway is how long a caller should wait for a store that is away.
const retryAway = 2 * time.Second

// fault is one member at fault.
type fault struct {
	Location string `json:"location" doc:"Where it is: body.limits[0].amount, query.limit, path.id, header.If-Match"`
	Message  string `json:"message" doc:"What is wrong with it"`
}

// Error writes the fault as "location: message". The framework keeps only this text of a decoder's error.
func (f *fault) Error() string { return f.Location + ": " + f.Message }

// problem is the body of every answer that is not a success: problem details of RFC 9457.
type problem struct {
	Type      string  `json:"type" doc:"Always about:blank: code tells problems apart"`
	Title     string  `json:"title" doc:"The status in words"`
	Status    int     `json:"status" doc:"The HTTP status"`
	Code      string  `json:"code" doc:"Names the problem for machines; never renamed"`
	Detail    string  `json:"detail" doc:"What happened and what to do, for people"`
	RequestID string  `json:"request_id,omitempty" doc:"Names the request in the gateway's log"`
	Errors    []fault `json:"errors,omitempty" nullable:"false" doc:"Every member at fault"`

	retryAfter time.Duration
}

func (p *problem) Error() string { return p.Detail }

// GetStatus returns the HTTP status.
func (p *problem) GetStatus() int { return p.Status }

// ContentType replaces the plain JSON type by that of problem details.
func (p *problem) ContentType(string) string { return problemType }

// GetHeaders returns what goes out beside the body.
func (p *problem) GetHeaders() http.Header {
	h := http.Header{}
	if p.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(p.retryAfter.Seconds())))
	}
	return h
}

func newProblem(status int, code, detail string, faults ...fault) *problem {
	return &problem{
		Type: "about:blank", Title: http.StatusText(status), Status: status, Code: code, Detail: detail, Errors: faults,
	}
}

// invalid is the problem of a request whose members are at fault.
func invalid(faults ...fault) *problem {
	detail := "The request was refused; nothing was changed."
	if len(faults) > 0 {
		detail = faults[0].Error()
	}
	if more := len(faults) - 1; more > 0 {
		detail += fmt.Sprintf(" (and %d more)", more)
	}
	return newProblem(http.StatusBadRequest, string(governance.CodeInvalidRequest), detail, faults...)
}

// invalidField refuses one member of the body.
func invalidField(field, reason string) error {
	return &governance.InvalidError{Field: field, Reason: reason}
}

func notFound(what string) *problem {
	return newProblem(http.StatusNotFound, string(governance.CodeNotFound), "There is no such "+what+".")
}

// problemOf translates what a store or a conversion returned. Texts of unknown errors go to the log only.
func problemOf(ctx context.Context, err error, what string) error {
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	if bad, ok := errors.AsType[*governance.InvalidError](err); ok {
		return invalid(fault{Location: bodyLocation(bad.Field), Message: bad.Reason})
	}
	if refused, ok := errors.AsType[*governance.RefusedError](err); ok {
		return newProblem(http.StatusConflict, codeConflict, sentence(refused.Reason))
	}
	switch {
	case errors.Is(err, governance.ErrNotFound):
		return notFound(what)
	case errors.Is(err, governance.ErrExists):
		return newProblem(http.StatusConflict, codeExists,
			"There is such a "+what+" already: its name, or what identifies it, is taken.")
	case errors.Is(err, governance.ErrConflict):
		return newProblem(http.StatusConflict, codeConflict, "The "+what+" was changed meanwhile. Read it again and retry.")
	case errors.Is(err, governance.ErrStoreAway), errors.Is(err, governance.ErrStale),
		errors.Is(err, governance.ErrLimitStoreUnavailable), errors.Is(err, context.DeadlineExceeded):
		zerolog.Ctx(ctx).Warn().Err(err).Msg("store unavailable")
		p := newProblem(http.StatusServiceUnavailable, string(governance.CodeDataStoreUnavailable),
			"The database did not answer in time. Nothing is known to have changed; retry.")
		p.retryAfter = retryAway
		return p
	case errors.Is(err, context.Canceled):
		return newProblem(http.StatusServiceUnavailable, string(governance.CodeDataStoreUnavailable), "The request was cancelled.")
	}
	zerolog.Ctx(ctx).Error().Err(err).Msg("admin request failed")
	return newProblem(http.StatusInternalServerError, string(governance.CodeInternal),
		"Something went wrong inside Tollgate. The log has more under this request id.")
}

// sentence begins a reason with a capital and ends it with a full stop.
func sentence(reason string) string {
	first, size := utf8.DecodeRuneInString(reason)
	return string(unicode.ToUpper(first)) + reason[size:] + "."
}

func bodyLocation(field string) string {
	switch {
	case field == "":
		return "body"
	case field == "cursor", field == "group_by", field == "time_zone": // the stores' names of query parameters
		return "query." + field
	case strings.HasPrefix(field, "path."), strings.HasPrefix(field, "query."), strings.HasPrefix(field, "header."):
		return field
	}
	return "body." + field
}

// fromFramework translates the errors that the framework makes for requests that do not fit their schema. Values are
// not echoed, since one of them may be a credential.
func fromFramework(op *huma.Operation, e *huma.ErrorModel) *problem {
	faults := make([]fault, 0, len(e.Errors))
	for _, d := range e.Errors {
		f := fault{Location: d.Location, Message: explain(op, d)}
		if location, message, ok := strings.Cut(d.Message, ": "); ok && strings.HasPrefix(location, "body") {
			f = fault{Location: location, Message: message} // from the decoder
		}
		faults = append(faults, f)
	}
	if e.Status == http.StatusUnprocessableEntity || e.Status == http.StatusBadRequest {
		if len(faults) == 0 {
			faults = append(faults, fault{Location: "body", Message: e.Detail})
		}
		return invalid(faults...)
	}
	return newProblem(e.Status, string(governance.CodeInvalidRequest), e.Detail, faults...)
}

// explain turns a terse validation message into one that says what to do.
func explain(op *huma.Operation, d *huma.ErrorDetail) string {
	switch d.Message {
	case "expected string":
		if _, isNumber := d.Value.(float64); isNumber {
			return `expected a string; numbers that are counted or paid are written in quotes, such as "12.5"`
		}
	case "unexpected property":
		name := d.Location[strings.LastIndexByte(d.Location, '.')+1:]
		if fixed, ok := op.Metadata[fixedMembers].(map[string]bool); ok && fixed[name] && d.Location == "body."+name {
			return "cannot be changed; create another one instead"
		}
		return "unknown member"
	}
	if strings.HasPrefix(d.Message, "invalid date/time") || strings.HasPrefix(d.Message, "expected string to be RFC 3339") {
		return "must be an RFC 3339 time, such as 2026-01-31T09:00:00Z"
	}
	return d.Message
}

// writeProblem answers outside of any operation.
func writeProblem(w http.ResponseWriter, r *http.Request, p *problem) {
	p.RequestID = requestID(r.Context())
	for name, values := range p.GetHeaders() {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Type", problemType)
	w.WriteHeader(p.Status)
	body, err := json.Marshal(p)
	if err != nil {
		zerolog.Ctx(r.Context()).Error().Err(err).Msg("problem not encoded")
		return
	}
	_, _ = w.Write(body) // a client that is gone cannot be told
}

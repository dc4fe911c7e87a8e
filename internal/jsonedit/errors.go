package jsonedit

import (
	"errors"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Reasons why a body or an access to it is refused. Their texts may be shown to the client.
var (
	ErrSyntax        = errors.New("the body is not valid JSON")
	ErrInvalidUTF8   = errors.New("the body is not valid UTF-8")
	ErrNotObject     = errors.New("the body is not a JSON object")
	ErrTrailingData  = errors.New("the body has data after its JSON object")
	ErrDuplicateName = errors.New("a member is given twice")
	ErrCaseVariant   = errors.New("a member differs only in case from one that the gateway reads")
	ErrTooDeep       = errors.New("the body is nested more than 1,000 levels deep")
	ErrTooManyNames  = errors.New("an object has more than 10,000 members")
	ErrTooManyTokens = errors.New("the body has more than 1,000,000 JSON tokens")
	ErrWantString    = errors.New("the member must be a string")
	ErrWantInteger   = errors.New("the member must be an integer")
	ErrWantBool      = errors.New("the member must be true or false")
	ErrWantObject    = errors.New("the member must be an object")
)

// Error says what is wrong with a body, and where. Its text is made of a reason of this package, the member's name and a
// byte offset, so that it may be shown to the client, whose own words those are.
type Error struct {
	Reason error  // one of the Err values of this package
	Param  string // the member as a path such as messages[2].role, at most 128 bytes; empty where there is none
	Offset int64  // bytes of the body before the fault
}

// Error names the reason, the member and the offset.
func (e *Error) Error() string {
	text := e.Reason.Error()
	if e.Param != "" {
		text += ": " + e.Param
	}
	if e.Offset > 0 {
		text += " (at byte " + strconv.FormatInt(e.Offset, 10) + ")"
	}
	return text
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Reason }

const maxParam = 128

// param writes a JSON pointer in the form that the providers' errors use: messages[2].role.
func param(p jsontext.Pointer) string {
	var b strings.Builder
	for token := range p.Tokens() {
		if _, err := strconv.ParseUint(token, 10, 31); err == nil && b.Len() > 0 {
			b.WriteString("[" + token + "]")
		} else {
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(token)
		}
		if b.Len() > maxParam {
			return strings.ToValidUTF8(b.String()[:maxParam], "")
		}
	}
	return b.String()
}

package console

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/tollgate-gateway/tollgate/governance"
)

// maxBody is the longest request body, in bytes.
const maxBody = 1 << 20

// bodyTimeout is how long a body may take to arrive.
const bodyTimeout = 15 * time.Second

// strictBody lets only bodies through that can be read in one way: JSON of at most maxBody bytes, valid UTF-8, no member
// named twice, nothing behind the value, no NUL character, which no text column can keep.
func strictBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost && r.Method != http.MethodPatch && r.Method != http.MethodPut {
			next.ServeHTTP(w, r)
			return
		}
		body, p := readBody(w, r)
		if p != nil {
			writeProblem(w, r, p)
			return
		}
		if p := checkEncoding(r, body); p != nil {
			writeProblem(w, r, p)
			return
		}
		if err := checkJSON(body); err != nil {
			writeProblem(w, r, invalid(*err))
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.ContentLength = int64(len(body))
		next.ServeHTTP(w, r)
	})
}

// readBody reads a body that comes in time. The deadline is taken back afterwards, since it would end the operation too.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, *problem) {
	connection := http.NewResponseController(w)
	_ = connection.SetReadDeadline(time.Now().Add(bodyTimeout)) // a writer without deadlines has no connection either
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		_ = connection.SetReadDeadline(time.Time{})
		return body, nil
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, newProblem(http.StatusRequestEntityTooLarge, string(governance.CodePayloadTooLarge), "The body is longer than 1 MiB.")
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, newProblem(http.StatusRequestTimeout, codeRequestTimeout, "The body did not arrive in time.")
	}
	return nil, invalid(fault{Location: "body", Message: "could not be read to its end"})
}

func checkEncoding(r *http.Request, body []byte) *problem {
	if r.Header.Get("Content-Encoding") != "" {
		return newProblem(http.StatusUnsupportedMediaType, string(governance.CodeUnsupportedEncoding),
			"Send the body without Content-Encoding.")
	}
	given := r.Header.Get("Content-Type")
	if len(body) == 0 && given == "" {
		return nil
	}
	switch kind, _, _ := mime.ParseMediaType(given); kind {
	case "application/json", "application/merge-patch+json":
		return nil
	}
	return newProblem(http.StatusUnsupportedMediaType, codeUnsupportedMedia, "Send Content-Type: application/json.")
}

// checkJSON reads a body token by token, since that is what reports a repeated name. An empty body is left to the operation.
func checkJSON(body []byte) *fault {
	if len(body) == 0 {
		return nil
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return &fault{Location: "body", Message: "is only white space"}
	}
	d := jsontext.NewDecoder(bytes.NewReader(body))
	for {
		token, err := d.ReadToken()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			where := d.StackPointer()
			if syntax, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
				where = syntax.JSONPointer
			}
			return &fault{Location: "body" + dotted(where), Message: plainJSONError(err)}
		case token.Kind() == '"' && strings.ContainsRune(token.String(), 0):
			return &fault{Location: "body" + dotted(d.StackPointer()), Message: "contains a NUL character"}
		case d.StackDepth() == 0 && len(bytes.TrimSpace(body[d.InputOffset():])) > 0:
			return &fault{Location: "body", Message: fmt.Sprintf("has more behind its value, from byte %d on", d.InputOffset())}
		}
	}
}

func plainJSONError(err error) string {
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		return "is given twice"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "is not JSON: it ends too early"
	}
	if syntax, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		return fmt.Sprintf("is not JSON: %v at byte %d", syntax.Err, syntax.ByteOffset)
	}
	return "is not JSON"
}

// dotted writes a JSON pointer as the path that people know: /limits/0/amount is .limits[0].amount.
func dotted(p jsontext.Pointer) string {
	var b strings.Builder
	for token := range p.Tokens() {
		if _, err := strconv.Atoi(token); err == nil {
			b.WriteString("[" + token + "]")
		} else {
			b.WriteString("." + token)
		}
	}
	return b.String()
}

// strictQuery refuses query strings and paths that no column could match, and parameters that are given twice.
func strictQuery(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isText(r.URL.Path) {
			writeProblem(w, r, notFound("resource"))
			return
		}
		query, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			writeProblem(w, r, invalid(fault{Location: "query", Message: "is not a valid query string"}))
			return
		}
		for name, values := range query {
			switch {
			case !isText(name):
				writeProblem(w, r, invalid(fault{Location: "query", Message: "has a name that is not text"}))
				return
			case len(values) > 1:
				writeProblem(w, r, invalid(fault{Location: "query." + name, Message: "is given twice"}))
				return
			case !isText(values[0]):
				writeProblem(w, r, invalid(fault{Location: "query." + name, Message: "is not text: NUL or invalid UTF-8"}))
				return
			case len(values[0]) > maxQueryValue:
				writeProblem(w, r, invalid(fault{Location: "query." + name, Message: "is too long"}))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// maxQueryValue is the longest value of a query parameter, in bytes.
const maxQueryValue = 2048

func isText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// jsonFormat encodes and decodes bodies. Decoding is strict about names; what the schema cannot say is said by types.
func jsonFormat() huma.Format {
	return huma.Format{
		Marshal: func(w io.Writer, v any) error {
			// A nil list of patterns means "no narrowing", an empty one "none": the difference must show.
			return json.MarshalWrite(w, v, json.Deterministic(true), json.FormatNilSliceAsNull(true))
		},
		Unmarshal: func(data []byte, v any) error {
			err := json.Unmarshal(data, v, json.RejectUnknownMembers(true))
			if semantic, ok := errors.AsType[*json.SemanticError](err); ok {
				message := "does not have the type that its schema asks for"
				switch {
				case errors.Is(err, json.ErrUnknownName):
					message = "unknown member"
				case semantic.Err != nil:
					message = semantic.Err.Error()
				}
				return &fault{Location: "body" + dotted(semantic.JSONPointer), Message: message}
			}
			return err
		},
	}
}

// Package jsonscan walks JSON texts without decoding them: what an upstream sends goes on as it is, and is only read on its
// way. It is lenient for that reason.
package jsonscan

import (
	"bytes"
	"io"

	"github.com/go-json-experiment/json/jsontext"
)

// Scanner walks one JSON text after another and keeps its memory between them. After the first fault every method says that
// there is nothing more; Fault tells then. It is not safe for concurrent use.
type Scanner struct {
	buf     bytes.Buffer
	dec     *jsontext.Decoder
	fault   bool
	scratch []byte
}

// options take names that are given twice, since a stricter reader would see less than the client does.
func options() jsontext.Options {
	return jsontext.AllowDuplicateNames(true)
}

// Reset begins with another text, which must not be changed while it is walked.
func (s *Scanner) Reset(text []byte) {
	s.buf = *bytes.NewBuffer(text)
	s.fault = false
	if s.dec == nil {
		s.dec = jsontext.NewDecoder(&s.buf, options(), jsontext.AllowInvalidUTF8(true))
		return
	}
	s.dec.Reset(&s.buf, s.dec.Options())
}

// Fault reports whether the text turned out not to be what the walk took it for.
func (s *Scanner) Fault() bool { return s.fault }

// End reports whether the text was valid and nothing follows.
func (s *Scanner) End() bool {
	if s.fault {
		return false
	}
	_, err := s.dec.ReadToken()
	return err == io.EOF //nolint:errorlint // jsontext returns it bare at the end of input
}

// Enter steps into the next value, which must be of the given kind, '{' or '['.
func (s *Scanner) Enter(kind jsontext.Kind) {
	if s.Kind() != kind {
		s.fault = true
		return
	}
	s.step()
}

// Next reports whether the object or array that was entered has more in it; it leaves it where not.
func (s *Scanner) Next() bool {
	switch s.Kind() {
	case '}', ']':
		s.step()
		return false
	default:
		return !s.fault
	}
}

// Each calls do for everything in the next value if it is of the given kind, '{' or '['; a value of another kind, null above
// all, is skipped.
func (s *Scanner) Each(kind jsontext.Kind, do func()) {
	if s.Kind() != kind {
		s.Skip()
		return
	}
	for s.Enter(kind); s.Next(); {
		do()
	}
}

// Name returns the name of the next member. It is valid until the next call and never nil.
func (s *Scanner) Name() []byte { return s.Text() }

func (s *Scanner) step() {
	if _, err := s.dec.ReadToken(); err != nil {
		s.fault = true
	}
}

// Skip steps over the next value.
func (s *Scanner) Skip() {
	if !s.fault && s.dec.SkipValue() != nil {
		s.fault = true
	}
}

// Kind returns the kind of what comes next; 0 after a fault.
func (s *Scanner) Kind() jsontext.Kind {
	if s.fault {
		return jsontext.KindInvalid
	}
	kind := s.dec.PeekKind()
	s.fault = kind == jsontext.KindInvalid
	return kind
}

// Raw returns the next value as it stands; it is valid until the next call.
func (s *Scanner) Raw() []byte {
	if s.fault {
		return nil
	}
	v, err := s.dec.ReadValue()
	if err != nil {
		s.fault = true
		return nil
	}
	return v
}

// Text returns the next value if it is a string, unescaped, and skips any other; it is valid until the next call.
func (s *Scanner) Text() []byte {
	if s.Kind() != '"' {
		s.Skip()
		return s.scratch[:0]
	}
	v := s.Raw()
	if s.fault {
		return s.scratch[:0]
	}
	if inner := v[1 : len(v)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	s.scratch, _ = jsontext.AppendUnquote(s.scratch[:0], v) // complains of lone surrogates alone, which it replaces
	return s.scratch
}

package openai

import (
	"bytes"
	"io"

	"github.com/go-json-experiment/json/jsontext"
)

// scanner walks one JSON text without decoding it. After the first fault every method says that there is nothing more;
// fault tells then. It keeps its memory between texts.
type scanner struct {
	buf     bytes.Buffer
	dec     *jsontext.Decoder
	fault   bool
	scratch []byte
}

// options are lenient: what a provider sends goes to the client as it is, and is only read here.
func options() jsontext.Options {
	return jsontext.AllowDuplicateNames(true)
}

func (s *scanner) reset(text []byte) {
	s.buf = *bytes.NewBuffer(text)
	s.fault = false
	if s.dec == nil {
		s.dec = jsontext.NewDecoder(&s.buf, options(), jsontext.AllowInvalidUTF8(true))
		return
	}
	s.dec.Reset(&s.buf, s.dec.Options())
}

// end reports whether the text was valid and nothing follows.
func (s *scanner) end() bool {
	if s.fault {
		return false
	}
	_, err := s.dec.ReadToken()
	return err == io.EOF //nolint:errorlint // jsontext returns it bare at the end of input
}

// enter steps into the next value, which must be of the given kind, '{' or '['.
func (s *scanner) enter(kind jsontext.Kind) {
	if s.kind() != kind {
		s.fault = true
		return
	}
	s.step()
}

// next reports whether the object or array that was entered has more in it; it leaves it where not.
func (s *scanner) next() bool {
	switch s.kind() {
	case '}', ']':
		s.step()
		return false
	default:
		return !s.fault
	}
}

// name returns the name of the next member. It is valid until the next call and never nil.
func (s *scanner) name() []byte { return s.text() }

func (s *scanner) step() {
	if _, err := s.dec.ReadToken(); err != nil {
		s.fault = true
	}
}

func (s *scanner) skip() {
	if !s.fault && s.dec.SkipValue() != nil {
		s.fault = true
	}
}

// kind returns the kind of what comes next; 0 after a fault.
func (s *scanner) kind() jsontext.Kind {
	if s.fault {
		return jsontext.KindInvalid
	}
	kind := s.dec.PeekKind()
	s.fault = kind == jsontext.KindInvalid
	return kind
}

// raw returns the next value as it stands; it is valid until the next call.
func (s *scanner) raw() []byte {
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

// text returns the next value if it is a string, unescaped, and skips any other; it is valid until the next call.
func (s *scanner) text() []byte {
	if s.kind() != '"' {
		s.skip()
		return s.scratch[:0]
	}
	v := s.raw()
	if s.fault {
		return s.scratch[:0]
	}
	if inner := v[1 : len(v)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	s.scratch, _ = jsontext.AppendUnquote(s.scratch[:0], v) // complains of lone surrogates alone, which it replaces
	return s.scratch
}

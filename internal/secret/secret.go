// Package secret wraps values that must not reach a log, an answer or a dump.
package secret

import (
	"crypto/subtle"
	"errors"
	"fmt"
)

const mask = "[secret]"

// ErrMasked says that the placeholder of a secret was read back in its place.
var ErrMasked = errors.New("this is the placeholder of a secret, not the secret")

// String prints as a placeholder in every format; Reveal is the only way to its text. The zero value is no secret.
type String struct {
	_ [0]func() // not comparable with ==, which would compare addresses; use Equal
	// text is behind a pointer because fmt does not call the methods of a value in an unexported field of a struct: it
	// prints what is inside, and that is now an address.
	text *string
}

// New wraps text.
func New(text string) String {
	if text == "" {
		return String{}
	}
	return String{text: &text}
}

// Reveal returns the text. Call it only where the secret leaves for its destination.
func (s String) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// IsZero reports whether there is no secret.
func (s String) IsZero() bool { return s.text == nil }

// Equal reports whether two secrets are the same, in a time that does not tell where they differ.
func (s String) Equal(other String) bool {
	return subtle.ConstantTimeCompare([]byte(s.Reveal()), []byte(other.Reveal())) == 1
}

// String returns the placeholder.
func (String) String() string { return mask }

// GoString returns the placeholder.
func (String) GoString() string { return mask }

// Format writes the placeholder whatever the verb.
func (String) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(mask)) }

// MarshalText returns the placeholder, so that no encoder can show the text.
func (String) MarshalText() ([]byte, error) { return []byte(mask), nil }

// UnmarshalText takes the text as the secret, so that settings can be read into it. A placeholder that comes back from
// where it was shown is ErrMasked: taken for the secret, it would replace it.
func (s *String) UnmarshalText(text []byte) error {
	if string(text) == mask {
		return ErrMasked
	}
	*s = New(string(text))
	return nil
}

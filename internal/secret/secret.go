// Package secret wraps values that must not reach a log, an answer or a dump.
package secret

import "fmt"

const mask = "[secret]"

// String prints as a placeholder in every format; Reveal is the only way to its text.
type String struct{ text string }

// New wraps text.
func New(text string) String { return String{text} }

// Reveal returns the text. Call it only where the secret leaves for its destination.
func (s String) Reveal() string { return s.text }

// IsZero reports whether there is no secret.
func (s String) IsZero() bool { return s.text == "" }

// String returns the placeholder.
func (String) String() string { return mask }

// GoString returns the placeholder.
func (String) GoString() string { return mask }

// Format writes the placeholder whatever the verb.
func (String) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(mask)) }

// MarshalText returns the placeholder, so that no encoder can show the text.
func (String) MarshalText() ([]byte, error) { return []byte(mask), nil }

// UnmarshalText takes the text as the secret, so that settings can be read into it.
func (s *String) UnmarshalText(text []byte) error {
	s.text = string(text)
	return nil
}

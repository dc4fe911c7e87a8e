package providers

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"

	"github.com/tollgate-gateway/tollgate/internal/jsonscan"
)

// Seal returns the name under which encrypted content is remembered: its SHA-256 in hex.
func Seal(encrypted []byte) string {
	sum := sha256.Sum256(encrypted)
	return hex.EncodeToString(sum[:])
}

// LastSealed returns the seal of the last item of a request's input, in OpenAI's responses dialect, that has encrypted content; "": none has.
func LastSealed(input []byte) (seal string) {
	if !bytes.Contains(input, []byte(`"encrypted_content"`)) {
		return ""
	}
	var s jsonscan.Scanner
	s.Reset(input)
	s.Each('[', func() {
		s.Each('{', func() {
			if string(s.Name()) != "encrypted_content" {
				s.Skip()
				return
			}
			if text := s.Text(); len(text) > 0 {
				seal = Seal(text)
			}
		})
	})
	return seal
}

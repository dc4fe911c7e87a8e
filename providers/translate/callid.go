package translate

import (
	"encoding/base64"
	"strings"
)

// extraMark stands in the id of a call between what the upstream called it and what else the upstream wants back with it.
const extraMark = "__extra__"

// sealID returns an id for a client whose dialect has no place for the extra_content of a call. Gemini's models put the
// signature of their thoughts there, and refuse a conversation whose calls have lost it; ids are what every client sends back.
func sealID(id string, extra raw) string {
	if !given(extra) {
		return id
	}
	return id + extraMark + base64.RawURLEncoding.EncodeToString(extra)
}

// unsealID takes such an id apart. Any other id is what it is.
func unsealID(id string) (own string, extra raw) {
	own, sealed, ok := strings.Cut(id, extraMark)
	if !ok {
		return id, nil
	}
	extra, err := base64.RawURLEncoding.DecodeString(sealed)
	if err != nil || !extra.IsValid() {
		return id, nil
	}
	return own, extra
}

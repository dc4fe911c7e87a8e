package guardrail

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// maxBare is how long a number, or what else stands outside of strings, may be to be read as one text, in bytes.
const maxBare = 1 << 10

// input reads the input of a tool, which is JSON within a text and comes in pieces. Each string in it is a text of its own, and so
// is each number: what takes the place of one is a string, and the input stays JSON whatever is masked.
type input struct {
	effects []effect
	hit     func(*rail)
	text    *scanner // of the string that is open; nil: none is
	escape  string   // the beginning of an escape
	bare    []byte   // a number, or another word outside of strings
	out     []byte
}

func newInput(effects []effect, hit func(*rail)) *input { return &input{effects: effects, hit: hit} }

// push adds a piece and returns what can be passed on. A rail says that the input is blocked by it.
func (in *input) push(piece string) (out string, by *rail) {
	in.out = in.out[:0]
	piece = in.escape + piece
	in.escape = ""
	for at := 0; at < len(piece); {
		c := piece[at]
		switch {
		case in.text == nil && c == '"':
			if by := in.word(); by != nil {
				return "", by
			}
			in.out = append(in.out, c)
			in.text = newScanner(in.effects, in.hit)
			at++
		case in.text == nil && strings.IndexByte("{}[]:, \t\r\n", c) >= 0:
			if by := in.word(); by != nil {
				return "", by
			}
			in.out = append(in.out, c)
			at++
		case in.text == nil:
			in.bare = append(in.bare, c)
			if at++; len(in.bare) > maxBare {
				if by := in.word(); by != nil {
					return "", by
				}
			}
		case c == '"':
			if by := in.close(); by != nil {
				return "", by
			}
			in.out = append(in.out, c)
			at++
		case c == '\\':
			size, more := escapeAt(piece[at:])
			if more {
				in.escape = piece[at:]
				return string(in.out), nil
			}
			if by := in.add(decoded(piece[at : at+size])); by != nil {
				return "", by
			}
			at += size
		default:
			end := at + 1
			for end < len(piece) && piece[end] != '"' && piece[end] != '\\' {
				end++
			}
			if by := in.add(piece[at:end]); by != nil {
				return "", by
			}
			at = end
		}
	}
	return string(in.out), nil
}

// end returns the rest.
func (in *input) end() (out string, by *rail) {
	in.out = in.out[:0]
	rest := in.escape
	in.escape = ""
	if in.text != nil {
		by = in.close()
	} else {
		by = in.word()
	}
	return string(in.out) + rest, by
}

// add gives letters to the string that is open.
func (in *input) add(text string) *rail {
	out, by := in.text.push(text)
	in.out = appendEscaped(in.out, out)
	return by
}

// close ends the string that is open.
func (in *input) close() *rail {
	out, by := in.text.end()
	in.out = appendEscaped(in.out, out)
	in.text = nil
	return by
}

// word passes on what stands outside of strings.
func (in *input) word() *rail {
	if len(in.bare) == 0 {
		return nil
	}
	text, by := (&reader{ctx: context.Background(), effects: in.effects, hit: in.hit}).whole(string(in.bare))
	if text == string(in.bare) {
		in.out = append(in.out, text...)
	} else {
		in.out = append(appendEscaped(append(in.out, '"'), text), '"')
	}
	in.bare = in.bare[:0]
	return by
}

// escapeAt returns the bytes of the escape that a text begins with: of two, where they make one letter. more says that what
// follows decides.
func escapeAt(text string) (size int, more bool) {
	const unicodeEscape = len(`\u0000`)
	switch {
	case len(text) < 2:
		return len(text), true
	case text[1] != 'u':
		return 2, false
	case len(text) < unicodeEscape:
		return len(text), true
	}
	high := strings.ToLower(text[2:4])
	if high < "d8" || high > "db" {
		return unicodeEscape, false
	}
	behind := text[unicodeEscape:]
	switch {
	case len(behind) < unicodeEscape && strings.HasPrefix(`\u`, behind[:min(len(behind), 2)]):
		return len(text), true
	case strings.HasPrefix(behind, `\u`):
		return 2 * unicodeEscape, false
	}
	return unicodeEscape, false
}

// decoded returns what an escape means. One that means nothing stays as it is.
func decoded(escape string) string {
	text, err := jsontext.AppendUnquote(nil, `"`+escape+`"`)
	if err != nil && len(text) == 0 {
		return escape
	}
	return string(text)
}

// appendEscaped writes the inside of a JSON string.
func appendEscaped(out []byte, text string) []byte {
	quoted, _ := jsontext.AppendQuote(nil, text) // its only error is about invalid UTF-8, replaced by U+FFFD
	return append(out, quoted[1:len(quoted)-1]...)
}

// isInput reports whether a text is JSON of an object or a list, as inputs of tools are.
func isInput(text string) bool {
	trimmed := strings.TrimSpace(text)
	return trimmed != "" && (trimmed[0] == '{' || trimmed[0] == '[') && json.Valid([]byte(text))
}

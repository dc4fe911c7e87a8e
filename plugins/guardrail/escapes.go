package guardrail

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// unescaper reads what JSON writes as \uXXXX. The inputs and results of tools are JSON within a text, and some programs write
// every letter that is not ASCII in this way; a model may write any. What JSON must escape stays as it is, so that JSON is
// still JSON behind it.
type unescaper struct{ held string }

const escape = len(`\u0000`)

// push takes a piece and returns what is whole of it.
func (u *unescaper) push(piece string) string {
	text := u.held + piece
	u.held = ""
	if strings.IndexByte(text, '\\') < 0 {
		return text
	}
	var out strings.Builder
	for at := 0; at < len(text); {
		next := strings.IndexByte(text[at:], '\\')
		if next < 0 {
			out.WriteString(text[at:])
			break
		}
		out.WriteString(text[at : at+next])
		at += next
		r, size, more := escaped(text[at:])
		switch {
		case more:
			u.held = text[at:]
			return out.String()
		case r < 0:
			out.WriteString(text[at : at+size])
		default:
			out.WriteRune(r)
		}
		at += size
	}
	return out.String()
}

// end returns the rest.
func (u *unescaper) end() string {
	rest := u.held
	u.held = ""
	return rest
}

// escaped reads what a text begins with, which is a backslash: the rune that it means and its bytes. A negative rune stays as
// it is written. more says that what follows decides.
func escaped(text string) (r rune, size int, more bool) {
	switch {
	case len(text) < 2:
		return -1, len(text), true
	case text[1] != 'u':
		return -1, 2, false
	case len(text) < escape:
		return -1, len(text), true
	}
	code, err := strconv.ParseUint(text[2:escape], 16, 16)
	if err != nil {
		return -1, 2, false
	}
	r, size = rune(code), escape
	if utf16.IsSurrogate(r) {
		behind := text[escape:]
		if len(behind) < escape && strings.HasPrefix(`\u`, behind[:min(len(behind), 2)]) {
			return -1, len(text), true
		}
		low, err := strconv.ParseUint(strings.TrimPrefix(behind[:min(len(behind), escape)], `\u`), 16, 16)
		r, size = utf16.DecodeRune(r, rune(low)), 2*escape
		if err != nil || !strings.HasPrefix(behind, `\u`) || r == unicode.ReplacementChar {
			return -1, escape, false
		}
	}
	if r < ' ' || r == '"' || r == '\\' || r == 0x7f {
		return -1, size, false
	}
	return r, size, false
}

// readable returns a whole text as it reads: with letters for their numbers, without characters that nobody sees, and with
// ordinary letters for those that only look otherwise.
func readable(text string) string {
	if strings.Contains(text, `\u`) {
		var u unescaper
		text = u.push(text) + u.end()
	}
	if strings.IndexFunc(text, func(r rune) bool { return r >= utf8.RuneSelf }) < 0 {
		return text
	}
	return norm.NFKC.String(strings.Map(func(r rune) rune {
		if r >= utf8.RuneSelf && unicode.In(r, unicode.Cf, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point) {
			return -1
		}
		return r
	}, text))
}

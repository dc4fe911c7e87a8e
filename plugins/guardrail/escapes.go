package guardrail

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// readable returns a whole text as it reads: with letters for their numbers in JSON, without characters that nobody sees, and with
// ordinary letters for those that only look otherwise.
func readable(text string) string {
	text = unescaped(text)
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

// unescaped reads what JSON writes as \uXXXX, as programs do that write ASCII alone. What JSON must escape stays as it is, so that
// JSON within the text is still JSON.
func unescaped(text string) string {
	if !strings.Contains(text, `\u`) {
		return text
	}
	var out strings.Builder
	for text != "" {
		next := strings.IndexByte(text, '\\')
		if next < 0 {
			break
		}
		out.WriteString(text[:next])
		text = text[next:]
		size, _ := escapeAt(text)
		escape := text[:size]
		r, _ := utf8.DecodeRuneInString(decoded(escape))
		if size > 2 && r >= ' ' && r != '"' && r != '\\' && r != 0x7f && r != utf8.RuneError {
			escape = decoded(escape)
		}
		out.WriteString(escape)
		text = text[size:]
	}
	out.WriteString(text)
	return out.String()
}

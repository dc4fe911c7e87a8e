package guardrail

import (
	"fmt"
	"net/netip"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tollgate-gateway/tollgate/governance"
)

// pattern is one expression of a rule.
type pattern struct {
	re     *regexp.Regexp
	prog   *syntax.Prog
	begins *[utf8.RuneSelf]bool
	starts starts
	within *stretches // nil: a match may depend on what is around it
	// refine looks at a match within its text and returns where it really ends; false: it is none. Nil: all are.
	refine func(text string, start, end int) (int, bool)
}

// compile makes the patterns of a rule that looks for texts. The rule was checked.
func compile(r *governance.GuardrailRule) ([]pattern, error) {
	switch r.Type {
	case governance.RuleRegex:
		all := make([]pattern, 0, len(r.Patterns))
		for _, text := range r.Patterns {
			p, err := newPattern(text, nil)
			if err != nil {
				return nil, err
			}
			all = append(all, p)
		}
		return all, nil
	case governance.RuleKeywords:
		p, err := keywords(r.Words)
		return []pattern{p}, err
	case governance.RulePII:
		return builtin(pii(), r.Kinds)
	case governance.RuleSecrets:
		return builtin(secrets(), nil)
	default:
		return nil, nil
	}
}

func newPattern(text string, refine func(string, int, int) (int, bool)) (pattern, error) {
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return pattern{}, fmt.Errorf("parse pattern: %w", err)
	}
	prog, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return pattern{}, fmt.Errorf("compile pattern: %w", err)
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return pattern{}, fmt.Errorf("compile pattern: %w", err)
	}
	return pattern{re: re, prog: prog, begins: firsts(prog), starts: startsOf(prog), within: stretchesOf(prog), refine: refine}, nil
}

// find returns the first match in text that begins at or behind from, with what lies before it as its context.
func (p *pattern) find(text string, from int) (start, end int, ok bool) {
	if p.within != nil {
		for start, end := p.within.next(text, from); start < end; start, end = p.within.next(text, end) {
			if at := p.re.FindStringIndex(text[start:end]); at != nil {
				return start + at[0], start + at[1], true
			}
		}
		return 0, 0, false
	}
	context := 0
	if from > 0 {
		_, size := utf8.DecodeLastRuneInString(text[:from])
		context = from - size
	}
	at := p.re.FindStringIndex(text[context:])
	if at != nil && context+at[0] < from { // it overlaps with what was found before
		context = from
		at = p.re.FindStringIndex(text[context:])
	}
	if at == nil {
		return 0, 0, false
	}
	return context + at[0], context + at[1], true
}

// keywords finds whole words: what stands before and behind them is no letter and no digit; see inWord.
func keywords(words []string) (pattern, error) {
	sorted := slices.Clone(words)
	slices.SortFunc(sorted, func(a, b string) int { return len(b) - len(a) }) // the longest first
	// Between the words of a phrase any white space will do, and a line break as JSON writes it: text is wrapped.
	const gap = `(?:\s|\pZ|\\[nrt])+`
	gaps := regexp.MustCompile(gap)
	quoted := make([]string, 0, len(sorted))
	for i, w := range sorted {
		parts := strings.Fields(w)
		sorted[i] = strings.Join(parts, " ")
		for j := range parts {
			parts[j] = regexp.QuoteMeta(parts[j])
		}
		quoted = append(quoted, strings.Join(parts, gap))
	}
	alone := func(text string, start, end int) bool {
		first, _ := utf8.DecodeRuneInString(text[start:])
		last, _ := utf8.DecodeLastRuneInString(text[:end])
		return !(endsInWord(text[:start]) && inWord(first)) && !(beginsInWord(text[end:]) && inWord(last))
	}
	refine := func(text string, start, end int) (int, bool) {
		if alone(text, start, end) {
			return end, true
		}
		for _, w := range sorted { // a shorter one may be whole where the longest is not
			// Folded letters may have other lengths, so that the end is looked for.
			for stop := start; stop <= end; stop++ {
				if len(w) > 2*(stop-start) || !alone(text, start, stop) {
					continue
				}
				if strings.EqualFold(gaps.ReplaceAllString(text[start:stop], " "), w) {
					return stop, true
				}
			}
		}
		return 0, false
	}
	return newPattern("(?i:"+strings.Join(quoted, "|")+")", refine)
}

// inWord reports whether a rune makes what is next to it a part of a longer word. Scripts that put no spaces between words have no
// such ends.
func inWord(r rune) bool {
	return (unicode.IsLetter(r) || unicode.IsDigit(r)) &&
		!unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar)
}

func beginsInWord(text string) bool {
	r, _ := utf8.DecodeRuneInString(text)
	return inWord(r)
}

// endsInWord reports whether a text ends with a letter or a digit. The inputs and results of tools are JSON within a text: there a
// new line is a backslash and an n, which is no letter.
func endsInWord(text string) bool {
	r, size := utf8.DecodeLastRuneInString(text)
	if !inWord(r) {
		return false
	}
	before := text[:len(text)-size]
	return !strings.HasSuffix(before, `\`) || !strings.ContainsRune("nrtbf", r)
}

// named is a pattern that comes with the product.
type named struct {
	name, text string
	refine     func(text string, start, end int) (int, bool)
}

// builtin compiles those of all whose names are wanted; nil: every one.
func builtin(all []named, wanted []string) ([]pattern, error) {
	var compiled []pattern
	for _, n := range all {
		if wanted != nil && !slices.Contains(wanted, n.name) {
			continue
		}
		p, err := newPattern(n.text, n.refine)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n.name, err)
		}
		compiled = append(compiled, p)
	}
	return compiled, nil
}

// apart accepts a match that is no part of a longer word or number, and that ok accepts.
func apart(ok func(match string) bool) func(string, int, int) (int, bool) {
	return func(text string, start, end int) (int, bool) {
		return end, !endsInWord(text[:start]) && !beginsInWord(text[end:]) && ok(text[start:end])
	}
}

func digits(s string) string {
	return strings.Map(func(r rune) rune {
		if r < '0' || r > '9' {
			return -1
		}
		return r
	}, s)
}

func pii() []named {
	return []named{
		{"email", `[A-Za-z0-9][A-Za-z0-9._%+\-]{0,63}@[A-Za-z0-9](?:[A-Za-z0-9\-]{0,62}\.)+[A-Za-z]{2,24}`, nil},
		// By E.164: up to 15 digits. Without a plus only what is written in groups is taken for a number to call.
		{"phone", `\+?\(?\d{1,4}\)?(?:[ .\-/]?\(?\d{1,4}\)?){1,6}`, apart(func(s string) bool {
			n := len(digits(s))
			if _, err := time.Parse(time.DateOnly, s[:min(len(s), len(time.DateOnly))]); err == nil {
				return false
			}
			return n <= 15 && (strings.HasPrefix(s, "+") && n >= 8 || n >= 9 && strings.ContainsAny(s, " .-/"))
		})},
		{"credit_card", `\d(?:[ \-\x{2013}]{0,2}\d){12,18}`, apart(func(s string) bool { return luhn(digits(s)) })},
		{"iban", `[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}`, iban},
		{"ip_address", `(?:\d{1,3}\.){3}\d{1,3}|[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:(?:\.\d{1,3}){3})?`, apart(func(s string) bool {
			ip, err := netip.ParseAddr(s)
			return err == nil && !ip.IsUnspecified()
		})},
		{"us_ssn", `\d{3}-\d{2}-\d{4}`, apart(func(s string) bool {
			return s[:3] != "000" && s[:3] != "666" && s[0] != '9' && s[4:6] != "00" && s[7:] != "0000"
		})},
	}
}

// luhn checks the last digit of a card's number (ISO/IEC 7812-1).
func luhn(number string) bool {
	sum := 0
	for i := range len(number) {
		d := int(number[len(number)-1-i] - '0')
		if i%2 == 1 {
			d *= 2
			if d > 9 {
				d -= 9
			}
		}
		sum += d
	}
	return sum%10 == 0 && strings.Trim(number, "0") != ""
}

// iban accepts a match, or its beginning where words follow that look like more of it, by its check digits (ISO 13616).
func iban(text string, start, end int) (int, bool) {
	if endsInWord(text[:start]) {
		return 0, false
	}
	const least = 15
	for ; len(strings.ReplaceAll(text[start:end], " ", "")) >= least; end-- {
		if beginsInWord(text[end:]) || text[end-1] == ' ' {
			continue
		}
		rest := 0
		number := strings.ReplaceAll(text[start:end], " ", "")
		for _, c := range number[4:] + number[:4] {
			if c >= 'A' {
				rest = (rest*100 + int(c-'A') + 10) % 97
			} else {
				rest = (rest*10 + int(c-'0')) % 97
			}
		}
		if rest == 1 {
			return end, true
		}
	}
	return 0, false
}

// secrets are credentials by the prefixes that their makers gave them. A key that has lost its end is one up to where its letters end.
func secrets() []named {
	const key = `-----BEGIN [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----[A-Za-z0-9+/=\s\\:,.()\-]*?`
	return []named{
		{"aws", `(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}`, nil},
		{"aws secret", `(?i)aws_secret_access_key["']?\s{0,3}[=:]\s{0,3}["']?[A-Za-z0-9/+=]{40}`, nil},
		{"github", `gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,}`, nil},
		{"sk", `sk-[A-Za-z0-9_\-]{20,}`, nil}, // OpenAI, Anthropic, Tollgate and others
		{"slack", `xox[abeoprs]-[A-Za-z0-9\-]{10,}`, nil},
		{"google", `AIza[0-9A-Za-z_\-]{35}`, nil},
		{"stripe", `[rs]k_live_[0-9A-Za-z]{16,}`, nil},
		{"jwt", `eyJ[A-Za-z0-9_\-]{8,}\.eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}`, nil},
		{"private key", key + `-----END [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----|` + strings.TrimSuffix(key, "?"), nil},
	}
}

package guardrail

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/governance"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func railOf(t require.TestingT, action governance.GuardrailAction, rule governance.GuardrailRule) *rail {
	r := newRail(&governance.Guardrail{
		Meta: governance.Meta{Num: 1, ID: "guard_000000000001", Version: 1}, Name: "no", Stage: governance.StageBoth, Action: action, Rule: rule,
	})
	require.NoError(t, r.broken)
	return r
}

func words(list ...string) governance.GuardrailRule {
	return governance.GuardrailRule{Type: governance.RuleKeywords, Words: list}
}

func patterns(list ...string) governance.GuardrailRule {
	return governance.GuardrailRule{Type: governance.RuleRegex, Patterns: list}
}

func readerOf(rails ...*rail) *reader {
	return &reader{ctx: context.Background(), effects: effectsOf(rails), hit: func(*rail) {}}
}

// masked returns a text as the rails leave it whole.
func masked(t require.TestingT, text string, rails ...*rail) string {
	out, by := readerOf(rails...).whole(text)
	require.Nil(t, by)
	return out
}

func TestKeywordsAreWholeWords(t *testing.T) {
	t.Parallel()
	r := railOf(t, governance.ActionMask, words("secret", "top secret", "Straße", "秘密", "c++"))
	for text, want := range map[string]string{
		"a Secret here":          "a [masked] here",
		"secretary":              "secretary",
		"top secretary":          "top secretary",
		"TOP SECRET!":            "[masked]!",
		"very top secret.":       "very [masked].",
		"unsecret secret":        "unsecret [masked]",
		"Die STRASSE, straße":    "Die STRASSE, [masked]",
		"X秘密":                    "X[masked]",
		"这是秘密文件":                 "这是[masked]文件",
		"\"秘密\"":                 "\"[masked]\"",
		"in C++ and c++11":       "in [masked] and [masked]11",
		"secret secret":          "[masked] [masked]",
		"":                       "",
		`{"a":"x\nsecret"}`:      `{"a":"x\n[masked]"}`,
		`{"a":"nsecret"}`:        `{"a":"nsecret"}`,
		"a top\n\t\u00a0secret.": "a [masked].",
		`"top\nsecret"`:          `"[masked]"`,
		"se\u200bcr\u00adet, …":  "[masked], ...",
		"ｓｅｃｒｅｔ 𝐬𝐞𝐜𝐫𝐞𝐭":      "[masked] [masked]",
		"s\u200be\u200b … ｅ": "s\u200be\u200b … ｅ",
		`\u0073ecret \u00e9`: "[masked] é",
		`\u0073ecre \u00e9`:  `\u0073ecre \u00e9`,
	} {
		require.Equal(t, want, masked(t, text, r), text)
	}
}

func TestPII(t *testing.T) {
	t.Parallel()
	for kind, cases := range map[string]map[string]string{
		"email": {
			"write to jane.doe+x@mail.example.co.uk now": "write to [masked] now", "a@b": "a@b", "@someone": "@someone",
		},
		"phone": {
			"call +49 (30) 1234-5678 today": "call [masked] today", "call 030 12345678": "call [masked]", "at 2026-12-01 10:15": "at 2026-12-01 10:15", "call 212-555-0187!": "call [masked]!",
			"in 2026": "in 2026", "1234567890": "1234567890", "+4915112345678": "[masked]", "version 1.2.3": "version 1.2.3",
		},
		"credit_card": {
			"4111 1111 1111 1111": "[masked]", "4111-1111-1111-1112": "4111-1111-1111-1112", "378282246310005.": "[masked].", "4111\u00a01111  1111–1111": "[masked]", "0000000000000000": "0000000000000000",
		},
		"iban": {
			"DE89 3704 0044 0532 0130 00 BIC": "[masked] BIC", "GB82WEST12345698765432": "[masked]", "DE00 3704 0044 0532 0130 00": "DE00 3704 0044 0532 0130 00",
		},
		"ip_address": {
			"from 192.168.0.1:80": "from [masked]:80", "999.1.1.1": "999.1.1.1", "at 2001:db8::1!": "at [masked]!", "::ffff:10.0.0.1 said": "[masked] said", "at 12:30:45": "at 12:30:45", "::": "::",
		},
		"us_ssn": {"078-05-1120": "[masked]", "000-12-3456": "000-12-3456", "5078-05-1120": "5078-05-1120"},
	} {
		r := railOf(t, governance.ActionMask, governance.GuardrailRule{Type: governance.RulePII, Kinds: []string{kind}})
		for text, want := range cases {
			require.Equal(t, want, masked(t, text, r), "%s: %s", kind, text)
		}
	}
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	r := railOf(t, governance.ActionMask, governance.GuardrailRule{Type: governance.RuleSecrets})
	for text, want := range map[string]string{
		"AWS_SECRET_ACCESS_KEY=" + strings.Repeat("aB3/", 10) + " is one":                   "[masked] is one",
		"AKIA" + "IOSFODNN7EXAMPLE is one":                                                  "[masked] is one",
		"ghp_" + strings.Repeat("a", 36):                                                    "[masked]",
		"sk-" + "proj-abcdefghijklmnopqrstuvwxyz":                                           "[masked]",
		"sk-" + "ant-api03-abcdefghijklmnopqrstuvwxyz":                                      "[masked]",
		"sk-tg-" + strings.Repeat("x", 60):                                                  "[masked]",
		"xoxb-" + "1234567890-abcdef":                                                       "[masked]",
		"-----BEGIN RSA PRIVATE KEY-----\nMIIE+/=\nabc\n-----END RSA PRIVATE KEY-----":      "[masked]",
		"eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0": "[masked]",
		"sk-short": "sk-short",
	} {
		require.Equal(t, want, masked(t, text, r), text)
	}
}

// TestSecrets_AsLongAsTheyAre: a part of a key is enough to make all of it, so that no part may pass, in a stream neither.
func TestSecrets_AsLongAsTheyAre(t *testing.T) {
	t.Parallel()
	r := railOf(t, governance.ActionMask, governance.GuardrailRule{Type: governance.RuleSecrets})
	line := strings.Repeat("MIIEpAIBAAKCAQEA", 4)
	key := func(lines int, newLine string) string {
		return "-----BEGIN RSA PRIVATE KEY-----" + newLine + strings.Repeat(line+newLine, lines) + "-----END RSA PRIVATE KEY-----"
	}
	jwt := "eyJ" + strings.Repeat("hbGciOiJI", 9) + ".eyJ" + strings.Repeat("zdWIiOiI", 500) + "." + strings.Repeat("dozjgNry", 40)
	for text, want := range map[string]string{
		"my key: " + key(25, "\n") + "\nand more.": "my key: [masked]\nand more.",
		key(50, "\r\n") + " " + key(3, `\n`):       "[masked] [masked]",
		"x " + key(180, "\n") + "!":                "x [masked]!",
		key(5, "\n")[:200] + "!":                   "[masked]!",
		"a " + jwt + " b":                          "a [masked] b",
		"sk-" + strings.Repeat("a", 900) + ".":     "[masked].",
	} {
		require.Equal(t, want, masked(t, text, r))
		require.Equal(t, want, masked(t, strings.Repeat("filler. ", 3_000)+text, r)[8*3_000:])
		s := newScanner(effectsOf([]*rail{r}), func(*rail) {})
		got := ""
		for rest := text; rest != ""; {
			n := min(50, len(rest))
			out, by := s.push(rest[:n])
			require.Nil(t, by)
			got, rest = got+out, rest[n:]
		}
		out, by := s.end()
		require.Nil(t, by)
		require.Equal(t, want, got+out)
	}
}

// TestF146_PiecesMakeNoDifference: however a text is cut, what is passed on is what the whole text would be; and where a rail
// blocks, nothing of a match, nor of what is behind it, was.
func TestF146_PiecesMakeNoDifference(t *testing.T) {
	t.Parallel()
	rules := []governance.GuardrailRule{
		words("ab", "abc", "b a", "ca"), words("a"),
		patterns(`ab+c`), patterns(`a[^b]{0,3}b`), patterns(`\bab\b`), patterns(`(?i)BA|BAB`), patterns(`b.{2}a|c`), patterns(`(?m)^ab`, `b(?m)$`),
		patterns(`a|ab|abc`), patterns(`(?s)b.*?c`),
		{Type: governance.RuleSecrets},
	}
	texts := rapid.StringOfN(rapid.SampledFrom([]rune("aabbcc A秘\n.\\n")), 0, 60, -1)
	rapid.Check(t, func(t *rapid.T) {
		var rails []*rail
		for range rapid.IntRange(1, 3).Draw(t, "rails") {
			rails = append(rails, railOf(t, governance.ActionMask, rapid.SampledFrom(rules).Draw(t, "rule")))
		}
		text := texts.Draw(t, "text")
		want := masked(t, text, rails...)
		s := newScanner(effectsOf(rails), func(*rail) {})
		got := ""
		for rest := []rune(text); len(rest) > 0; {
			n := rapid.IntRange(1, min(len(rest), 5)).Draw(t, "piece")
			out, by := s.push(string(rest[:n]))
			require.Nil(t, by)
			got += out
			require.True(t, strings.HasPrefix(want, got), "%q is passed on of %q", got, want)
			rest = rest[n:]
		}
		out, by := s.end()
		require.Nil(t, by)
		require.Equal(t, want, got+out)

		blocker := railOf(t, governance.ActionBlock, rapid.SampledFrom(rules).Draw(t, "blocks"))
		first := len(text)
		for _, p := range blocker.patterns {
			for pos := 0; ; {
				start, end, ok := p.find(text, pos)
				if !ok {
					break
				}
				if p.refine != nil {
					if _, ok = p.refine(text, start, end); !ok {
						pos = start + len(string([]rune(text[start:])[0]))
						continue
					}
				}
				first = min(first, start)
				break
			}
		}
		s = newScanner(effectsOf([]*rail{blocker}), func(*rail) {})
		got, by = "", nil
		for rest := []rune(text); len(rest) > 0 && by == nil; {
			n := rapid.IntRange(1, min(len(rest), 5)).Draw(t, "piece")
			out, by = s.push(string(rest[:n]))
			got += out
			rest = rest[n:]
		}
		if by == nil {
			out, by = s.end()
			got += out
		}
		require.True(t, strings.HasPrefix(text[:first], got), "%q is passed on of %q", got, text[:first])
		require.Equal(t, first < len(text), by != nil)
	})
}

// TestStretches_HideNoMatch: a search of the parts of a text that can hold a match finds what a search of all of it does.
func TestStretches_HideNoMatch(t *testing.T) {
	t.Parallel()
	expressions := []string{
		`a+b`, `[^b]{2}c`, `(?i)straße|kelvin`, `a.c`, `(?s)a.+c`, `(ab|ba)+`, `a?b?c`, `(?:a|bc){2,3}`, `\x{79d8}b`, `[a-c]{3}`, `(?i)k`, `[^\x00-\x{10FFFF}]`,
	}
	for _, n := range append(pii(), secrets()...) {
		expressions = append(expressions, n.text)
	}
	var all, slow []pattern
	for _, text := range expressions {
		p, err := newPattern(text, nil)
		require.NoError(t, err)
		all = append(all, p)
		p.within = nil
		slow = append(slow, p)
	}
	texts := rapid.StringOfN(rapid.SampledFrom([]rune("aabbcc秘\n.@1234-: AKIAskſ\u212aß_\xff")), 0, 60, -1)
	samples := []string{"me@example.org", "AKIAABCDEFGHIJKLMNOP", "4111 1111 1111 1111", "10.0.0.1", "::1", "DE89 3704 0044 0532 0130 00", "123-45-6789", "sk-abcdefghijklmnopqrstuvwx"}
	rapid.Check(t, func(t *rapid.T) {
		text := texts.Draw(t, "text") + rapid.SampledFrom(samples).Draw(t, "sample") + texts.Draw(t, "rest")
		from := rapid.IntRange(0, len(text)).Draw(t, "from")
		for from < len(text) && !utf8.RuneStart(text[from]) {
			from++
		}
		for i := range all {
			start, end, ok := all[i].find(text, from)
			start2, end2, ok2 := slow[i].find(text, from)
			require.Equal(t, []any{start2, end2, ok2}, []any{start, end, ok}, "%s in %q from %d", expressions[i], text, from)
		}
	})
}

// TestUnescaped_LeavesWhatJSONNeeds, and JSON means the same without the other escapes.
func TestUnescaped_LeavesWhatJSONNeeds(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`\u0041\u00e9`: "Aé", `\\u0041`: `\\u0041`, `\\\u0041`: `\\A`, `\ud83d\ude00!`: "😀!", `\ud83d x`: `\ud83d x`,
		`\ude00\u0041`: `\ude00A`, `\u0022\u005C\u005c\u000a\u007f`: `\u0022\u005C\u005c\u000a\u007f`, `\u00`: `\u00`, `\uzzzz`: `\uzzzz`, `\`: `\`, `\u`: `\u`,
	} {
		require.Equal(t, want, unescaped(text), text)
	}
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.String().Draw(t, "value")
		var read string
		require.NoError(t, json.Unmarshal([]byte(unescaped(byNumbers(value))), &read))
		require.Equal(t, value, read)
	})
}

// byNumbers writes a JSON string with every character by its number.
func byNumbers(value string) string {
	written := `"`
	for _, unit := range utf16.Encode([]rune(value)) {
		written += fmt.Sprintf(`\u%04x`, unit)
	}
	return written + `"`
}

// TestInput_PiecesMakeNoDifference: what goes out is what the whole input would become, it is JSON, and without a match it means what
// it meant before.
func TestInput_PiecesMakeNoDifference(t *testing.T) {
	t.Parallel()
	effects := effectsOf([]*rail{railOf(t, governance.ActionMask, words("secret", "top secret")), railOf(t, governance.ActionMask, patterns(`\d{4}`, `a.{0,9}b`))})
	values := rapid.Custom(func(t *rapid.T) any {
		text := rapid.StringOfN(rapid.SampledFrom([]rune("ab \"\\\n/é秘😀1")), 0, 8, -1)
		return rapid.OneOf(
			rapid.Map(text, func(s string) any { return s }), rapid.Map(rapid.IntRange(-20_000, 20_000), func(n int) any { return n }),
			rapid.Just[any](nil), rapid.Just[any](true), rapid.Just[any]("my secret"), rapid.Just[any]("top\nsecret 1234"),
		).Draw(t, "value")
	})
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfN(values, 0, 5).Draw(t, "list")
		document, err := json.Marshal(map[string]any{"list": list, "deep": map[string]any{"x": list}})
		require.NoError(t, err)
		text := string(document)
		if rapid.Bool().Draw(t, "by numbers") {
			text = `{"list":[` + byNumbers(fmt.Sprint(list...)) + `, -1.5e3 ]}`
		}
		want, by := (&reader{ctx: t.Context(), effects: effects, hit: func(*rail) {}}).input(text)
		require.Nil(t, by)
		in := newInput(effects, func(*rail) {})
		got := ""
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, min(len(rest), 7)).Draw(t, "piece")
			for n < len(rest) && !utf8.RuneStart(rest[n]) {
				n++
			}
			out, by := in.push(rest[:n])
			require.Nil(t, by)
			got += out
			rest = rest[n:]
		}
		out, by := in.end()
		require.Nil(t, by)
		got += out
		require.True(t, json.Valid([]byte(got)), got)
		require.JSONEq(t, want, got)
		if want == text {
			require.JSONEq(t, text, got)
		}
	})
}

// TestInput_ThatIsNoJSON passes as it is, but for what is masked.
func TestInput_ThatIsNoJSON(t *testing.T) {
	t.Parallel()
	effects := effectsOf([]*rail{railOf(t, governance.ActionMask, words("secret"))})
	for text, want := range map[string]string{
		`{"a":"b`: `{"a":"b`, `{"a":"\u00`: `{"a":"\u00`, `secret`: `"[masked]"`, `{a: secret}`: `{a: "[masked]"}`, `"secret`: `"[masked]`, `[1,,]`: `[1,,]`,
		strings.Repeat("x", 3*maxBare): strings.Repeat("x", 3*maxBare),
	} {
		in := newInput(effects, func(*rail) {})
		out, by := in.push(text)
		require.Nil(t, by)
		rest, by := in.end()
		require.Nil(t, by)
		require.Equal(t, want, out+rest)
	}
	in := newInput(effectsOf([]*rail{railOf(t, governance.ActionBlock, words("secret"))}), func(*rail) {})
	out, by := in.push(`{"a":"my sec`)
	require.Nil(t, by)
	require.NotContains(t, out, "sec")
	_, by = in.push(`ret"}`)
	require.NotNil(t, by)
}

// TestWhatCannotBecomeAMatchIsPassedOnAtOnce: a guard of streams must not make them wait.
func TestWhatCannotBecomeAMatchIsPassedOnAtOnce(t *testing.T) {
	t.Parallel()
	s := newScanner(effectsOf([]*rail{railOf(t, governance.ActionMask, words("forbidden fruit"))}), func(*rail) {})
	for _, c := range [][2]string{{"Hello ", "Hello "}, {"world, ", "world, "}, {"for", ""}, {"bid", ""}, {" you", "forbid you"}, {"; forbidden", "; "}, {" fruit", ""}, {".", "[masked]."}} {
		out, by := s.push(c[0])
		require.Nil(t, by)
		require.Equal(t, c[1], out, c[0])
	}
	long := strings.Repeat("x", maxHeld)
	s = newScanner(effectsOf([]*rail{railOf(t, governance.ActionMask, patterns(`<x*>`))}), func(*rail) {})
	out, _ := s.push("<" + long + "x")
	require.Len(t, out, maxHeld+2, "what is held back is bounded")
}

func BenchmarkScanner(b *testing.B) {
	rails := []*rail{
		railOf(b, governance.ActionMask, governance.GuardrailRule{Type: governance.RulePII, Kinds: governance.PIIKinds()}),
		railOf(b, governance.ActionMask, governance.GuardrailRule{Type: governance.RuleSecrets}),
		railOf(b, governance.ActionBlock, words("confidential", "internal only")),
	}
	piece := "the quick brown fox jumps over 12 lazy dogs; "
	b.Run("stream", func(b *testing.B) {
		s := newScanner(effectsOf(rails), func(*rail) {})
		b.SetBytes(int64(len(piece)))
		b.ReportAllocs()
		for b.Loop() {
			s.push(piece)
		}
	})
	b.Run("whole", func(b *testing.B) {
		text := strings.Repeat(piece, 1<<20/len(piece))
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			readerOf(rails...).whole(text)
		}
	})
}

package governance_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
)

func TestGuardrail_CheckNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	rule := func(r governance.GuardrailRule) governance.Guardrail {
		return governance.Guardrail{Stage: governance.StageBoth, Action: governance.ActionBlock, Rule: r}
	}
	for _, c := range []struct {
		g     governance.Guardrail
		field string // "": nothing is wrong
	}{
		{rule(governance.GuardrailRule{Type: governance.RuleSecrets}), ""},
		{rule(governance.GuardrailRule{Type: governance.RuleRegex, Patterns: []string{`\bfoo\d+\b`, `(?m)^bar`}}), ""},
		{rule(governance.GuardrailRule{Type: governance.RuleRegex}), "rule.patterns"},
		{rule(governance.GuardrailRule{Type: governance.RuleRegex, Patterns: []string{"a", "("}}), "rule.patterns[1]"},
		{rule(governance.GuardrailRule{Type: governance.RuleRegex, Patterns: []string{`(?=a)`}}), "rule.patterns[0]"},
		{rule(governance.GuardrailRule{Type: governance.RuleRegex, Patterns: []string{"^a"}}), "rule.patterns[0]"},
		{rule(governance.GuardrailRule{Type: governance.RuleRegex, Patterns: []string{"a$"}}), "rule.patterns[0]"},
		{rule(governance.GuardrailRule{Type: governance.RuleRegex, Patterns: []string{"a*"}}), "rule.patterns[0]"},
		{rule(governance.GuardrailRule{Type: governance.RuleRegex, Patterns: []string{`a|\b`}}), "rule.patterns[0]"},
		{rule(governance.GuardrailRule{Type: governance.RuleRegex, Patterns: slices.Repeat([]string{`(?i)[\p{L}]{1,200}pN`}, 50)}), "rule.patterns[24]"},
		{rule(governance.GuardrailRule{Type: governance.RuleRegex, Patterns: []string{strings.Repeat("a", 1025)}}), "rule.patterns[0]"},
		{rule(governance.GuardrailRule{Type: governance.RuleRegex, Patterns: []string{`((a{30}){30}){12}`}}), "rule.patterns[0]"},
		{rule(governance.GuardrailRule{Type: governance.RuleKeywords, Words: []string{"x", " "}}), "rule.words[1]"},
		{rule(governance.GuardrailRule{Type: governance.RulePII, Kinds: []string{"email", "shoe_size"}}), "rule.kinds[1]"},
		{rule(governance.GuardrailRule{Type: governance.RulePII}), "rule.kinds"},
		{rule(governance.GuardrailRule{Type: governance.RuleMaxSize}), "rule.bytes"},
		{rule(governance.GuardrailRule{Type: governance.RuleMaxTokens, Tokens: 5}), "stage"},
		{rule(governance.GuardrailRule{Type: governance.RuleWebhook, URL: "https://x", Timeout: 5}), "rule.timeout_ms"},
		{rule(governance.GuardrailRule{Type: governance.RuleWebhook}), "rule.url"},
		{rule(governance.GuardrailRule{Type: governance.RuleSecrets, Bytes: 5}), "rule.bytes"},
		{rule(governance.GuardrailRule{Type: "vibes"}), "rule.type"},
		{governance.Guardrail{Stage: "never"}, "stage"},
		{governance.Guardrail{Stage: governance.StageBoth, Action: "shout"}, "action"},
	} {
		err := c.g.Check()
		if c.field == "" {
			require.NoError(t, err)
			continue
		}
		wrong, ok := errors.AsType[*governance.InvalidError](err)
		require.True(t, ok, "%v %v", c.g, err)
		require.Equal(t, c.field, wrong.Field, "%v", err)
	}
}

func TestGuardrail_AppliesToThoseItNames(t *testing.T) {
	t.Parallel()
	p := &governance.Principal{Organization: governance.Ref{Num: 1}, Team: governance.Ref{Num: 2}, Key: governance.Ref{Num: 3}}
	for _, c := range []struct {
		g    governance.Guardrail
		want bool
	}{
		{governance.Guardrail{}, true},
		{governance.Guardrail{Disabled: true}, false},
		{governance.Guardrail{Organization: governance.Ref{Num: 1}}, true},
		{governance.Guardrail{Organization: governance.Ref{Num: 9}}, false},
		{governance.Guardrail{Organization: governance.Ref{Num: 1}, Team: governance.Ref{Num: 2}}, true},
		{governance.Guardrail{Organization: governance.Ref{Num: 1}, Team: governance.Ref{Num: 9}}, false},
		{governance.Guardrail{Organization: governance.Ref{Num: 1}, Key: governance.Ref{Num: 3}}, true},
		{governance.Guardrail{Organization: governance.Ref{Num: 1}, Key: governance.Ref{Num: 9}}, false},
		{governance.Guardrail{Models: []string{"gpt-*"}}, true},
		{governance.Guardrail{Models: []string{"claude-*"}}, false},
	} {
		require.Equal(t, c.want, c.g.AppliesTo(p, "gpt-4o"), "%+v", c.g)
	}
}

package governance_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/governance"
)

func TestMatchPattern(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		pattern, name string
		want          bool
	}{
		{"gpt-4o", "gpt-4o", true},
		{"gpt-4o", "gpt-4o-mini", false},
		{"gpt-4o", "GPT-4o", false},
		{"gpt-*", "gpt-4o", true},
		{"gpt-*", "gpt-", true},
		{"gpt-*", "my-gpt-4o", false},
		{"*", "anything/at:all", true},
		{"*", "", true},
		{"", "", true},
		{"", "a", false},
		{"*-mini", "gpt-4o-mini", true},
		{"*-mini", "gpt-4o-mini-2", false},
		{"a*b*c", "a--b--b--c", true},
		{"a*b*c", "a--c--b", false},
		{"[gp]t-?", "gt-4", false},
		{"gpt.4", "gpt-4", false},
	} {
		require.Equal(t, tc.want, governance.MatchPattern(tc.pattern, tc.name), "%q %q", tc.pattern, tc.name)
	}
}

func TestListsOfPatterns(t *testing.T) {
	t.Parallel()
	require.True(t, governance.Covers(nil, "m"))
	require.True(t, governance.Covers([]string{}, "m"), "a limit without patterns counts every call")
	require.False(t, governance.Covers([]string{"x"}, "m"))
	require.True(t, governance.Allows(nil, "m"))
	require.False(t, governance.Allows([]string{}, "m"), "an empty list of a key allows nothing")
	require.True(t, governance.Allows([]string{"x", "m*"}, "m"))

	p := governance.Principal{KeyModels: []string{"gpt-*"}, TeamModels: []string{"*-mini"}}
	require.True(t, p.MayUse("gpt-4o-mini"))
	require.False(t, p.MayUse("gpt-4o"), "the team's list narrows its keys'")
	require.False(t, p.MayUse("claude-mini"))
}

func matchByRegexp(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	return regexp.MustCompile(`(?s)\A` + strings.Join(parts, ".*") + `\z`).MatchString(name)
}

func TestMatchPatternEqualsARegexp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringOfN(rapid.SampledFrom([]rune("ab*.")), 0, 12, -1).Draw(t, "pattern")
		name := rapid.StringOfN(rapid.SampledFrom([]rune("ab.")), 0, 16, -1).Draw(t, "name")
		require.Equal(t, matchByRegexp(pattern, name), governance.MatchPattern(pattern, name))
	})
}

func FuzzMatchPattern(f *testing.F) {
	f.Add("gpt-*", "gpt-4o")
	f.Add(strings.Repeat("a*", 60)+"b", strings.Repeat("a", 120))
	f.Fuzz(func(t *testing.T, pattern, name string) {
		got := governance.MatchPattern(pattern, name)
		if !strings.Contains(pattern, "*") {
			require.Equal(t, pattern == name, got)
		}
		require.True(t, governance.MatchPattern("*"+pattern, "x"+pattern))
	})
}

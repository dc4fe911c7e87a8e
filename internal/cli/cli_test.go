package cli

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/console"
	"github.com/tollgate-gateway/tollgate/governance/pgstore"
	"github.com/tollgate-gateway/tollgate/internal/pgtest"
	"github.com/tollgate-gateway/tollgate/internal/seal"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

const adminToken = "cli-test-admin-token-of-more-than-32-characters"

// terminal runs commands against a control plane of its own.
type terminal struct {
	tb  testing.TB
	url string
}

func newTerminal(tb testing.TB) terminal {
	tb.Helper()
	pool := pgtest.New(tb)
	keys, err := seal.ParseKeys(seal.Generate("k1"))
	require.NoError(tb, err)
	peppers, err := seal.ParsePeppers(seal.Generate("p1"))
	require.NoError(tb, err)
	spend := pgstore.NewSpend(pool)
	handler, err := console.New(console.Options{
		Organizations: pgstore.NewOrganizations(pool), Teams: pgstore.NewTeams(pool), Users: pgstore.NewUsers(pool),
		Memberships: pgstore.NewMemberships(pool), Keys: pgstore.NewKeys(pool, peppers), Providers: pgstore.NewProviders(pool, keys),
		Models: pgstore.NewModels(pool), Targets: pgstore.NewTargets(pool), Limits: pgstore.NewLimits(pool), Guardrails: pgstore.NewGuardrails(pool, keys),
		Prices: pgstore.NewPrices(pool), Spend: spend, Decisions: spend, Audit: pgstore.NewAudit(pool),
		AdminToken: secret.New(adminToken), ProviderKinds: []console.ProviderKind{
			{Kind: "openai", Title: "OpenAI"},
			{Kind: "groq", Title: "Groq", BaseURL: "https://api.groq.com/openai/v1", Dialects: []string{"openai/chat"}, PriceProvider: "groq"},
		}, Log: zerolog.Nop(),
	})
	require.NoError(tb, err)
	server := httptest.NewServer(handler)
	tb.Cleanup(server.Close)
	return terminal{tb, server.URL}
}

func (t terminal) run(args ...string) (out, errs string, err error) {
	t.tb.Helper()
	return run(t.tb, append(args, "--url", t.url, "--token", adminToken)...)
}

// ok runs a command that has to succeed.
func (t terminal) ok(args ...string) string {
	t.tb.Helper()
	out, errs, err := t.run(args...)
	require.NoError(t.tb, err, "%s\n%s", out, errs)
	require.NotContains(t.tb, out+errs, adminToken)
	return out
}

// object runs a command with JSON as its result.
func (t terminal) object(args ...string) object {
	t.tb.Helper()
	var o object
	require.NoError(t.tb, json.Unmarshal([]byte(t.ok(append(args, "-o", "json")...)), &o))
	return o
}

func TestCommands_ManageEverythingByName(t *testing.T) {
	t.Parallel()
	c := newTerminal(t)
	c.ok("orgs", "create", "acme", "--budget-status", "402")
	c.ok("orgs", "update", "acme", "--require-budget")
	team := c.ok("teams", "create", "research", "--org", "acme", "--budget", "500/month", "--rate", "600/1m", "--models", "gpt-*")
	require.Contains(t, team, "budget")
	require.Contains(t, team, "500")

	created := c.ok("keys", "create", "ci", "--team", "research", "--budget", "20/day")
	require.Contains(t, created, "sk-tg-")
	key := c.object("keys", "create", "robot", "--team", "research", "--models", "none", "--expires-at", "2030-01-01T00:00:00Z")
	require.Equal(t, []any{}, key["models"])
	list := c.ok("keys", "list", "--team", "research")
	require.NotContains(t, list, key["key"])
	require.Contains(t, list, "robot")
	effective := c.ok("keys", "limits", "ci")
	require.Contains(t, effective, "team:research")
	require.Contains(t, effective, "TIGHTEST")
	require.Nil(t, c.object("keys", "update", "robot", "--expires-at", "never", "--models", "all")["expires_at"])
	require.Equal(t, "blocked", c.object("keys", "update", "robot", "--blocked")["status"])
	require.Equal(t, "active", c.object("keys", "update", "robot", "--no-blocked")["status"])
	require.NotEqual(t, key["key"], c.object("keys", "rotate", "robot", "--grace", "1h")["key"])
	require.Equal(t, "revoked", c.object("keys", "revoke", "robot")["status"])

	c.ok("users", "create", "Ada", "--org", "acme", "--email", "ada@example.com")
	require.Contains(t, c.ok("users", "list", "--org", "acme"), "ada@example.com")

	path := filepath.Join(t.TempDir(), "credential")
	require.NoError(t, os.WriteFile(path, []byte("sk-upstream\n"), 0o600))
	require.Contains(t, c.ok("providers", "kinds"), "https://api.groq.com/openai/v1  openai/chat")
	require.Equal(t, "https://api.groq.com/openai/v1", c.object("providers", "create", "fast", "--kind", "groq")["base_url"])
	c.ok("providers", "create", "openai", "--base-url", "https://api.openai.com/v1", "--credential", "file:"+path)
	require.NotContains(t, c.ok("providers", "get", "openai"), "sk-upstream")
	c.ok("models", "create", "gpt-4o", "--target", "openai=gpt-4o", "--target", "openai=gpt-4o-mini,weight=2,priority=1")
	require.Contains(t, c.ok("models", "list"), "openai=gpt-4o, openai=gpt-4o-mini")
	c.ok("prices", "add", "openai", "gpt-4o", "--usd", "2.5")
	c.ok("prices", "add", "openai", "gpt-4o", "--unit", "output", "--usd", "10")
	require.Contains(t, c.ok("prices", "list"), "input 2.5, output 10")

	limit := c.object("limits", "create", "--scope", "end_user:*", "--org", "acme", "--kind", "budget", "--metric", "cost", "--amount", "2", "--window", "day", "--mode", "log")
	id, _ := limit["id"].(string)
	require.Equal(t, "3", c.object("limits", "update", id, "--amount", "3")["amount"])
	require.Nil(t, c.object("limits", "update", id, "--amount", "unlimited")["amount"])
	require.Contains(t, c.ok("limits", "list"), "end_user:*")
	require.Contains(t, c.ok("limits", "state", id), "MAY EXCEED BY  0")
	c.ok("limits", "delete", id)

	c.ok("guardrails", "create", "no-codename", "--keywords", "bluebird", "--action", "mask")
	c.ok("guardrails", "create", "no-cards", "--scope", "team:research", "--pii", "credit_card,iban", "--models", "gpt-*")
	require.Contains(t, c.ok("guardrails", "list"), "team:research")
	require.Contains(t, c.ok("guardrails", "list", "--scope", "platform"), "no-codename")
	require.NotContains(t, c.ok("guardrails", "list", "--scope", "platform"), "no-cards")
	require.NoError(t, os.WriteFile(path, []byte("a-secret-of-the-webhook\n"), 0o600))
	hook := c.ok("guardrails", "update", "no-codename", "--webhook", "https://guard.example.com/v1", "--secret", "file:"+path, "--no-enabled")
	require.NotContains(t, hook, "a-secret")
	require.Equal(t, true, c.object("guardrails", "get", "no-codename")["secret_set"])
	c.ok("guardrails", "delete", "no-codename")

	require.Contains(t, c.ok("spend"), "none")
	check := c.ok("ledger", "check")
	require.Contains(t, check, "clean")
	require.Contains(t, c.ok("orgs", "list", "-o", "yaml"), "name: acme\n")
	require.Equal(t, true, c.object("teams", "delete", "research")["deleted"])
}

func TestCommands_FailuresTeach(t *testing.T) {
	t.Parallel()
	c := newTerminal(t)
	for _, f := range []struct {
		args []string
		want string
	}{
		{[]string{"teams", "create", "x", "--org", "nobody"}, `no organization named "nobody"`},
		{[]string{"orgs", "update", "nobody", "--blocked"}, "tollgate orgs list"},
		{[]string{"orgs", "create", " "}, "name: must not be empty"},
		{[]string{"limits", "create", "--scope", "organization", "--kind", "rate", "--amount", "1"}, "TYPE:ID"},
		{[]string{"limits", "create", "--scope", "key:*", "--kind", "rate", "--amount", "-1"}, "flag"},
		{[]string{"limits", "create", "--scope", "key:*", "--kind", "rate", "--amount=x", "--per", "1m"}, "amount: "},
		{[]string{"limits", "create", "--scope", "key:*", "--kind", "rate", "--amount", "5"}, "per"},
		{[]string{"providers", "create", "x", "--base-url", "https://x.example", "--credential", "sk-secret"}, "env:NAME"},
		{[]string{"guardrails", "create", "x"}, "--regex"},
		{[]string{"guardrails", "create", "x", "--secrets", "--keywords", "w"}, "one of"},
		{[]string{"guardrails", "create", "x", "--regex", "(bad"}, "rule.patterns[0]"},
		{[]string{"guardrails", "create", "x", "--webhook", "https://x.example", "--secret", "plain"}, "--secret takes env:NAME"},
		{[]string{"spend", "--since", "yesterday"}, "30d"},
		{[]string{"models", "create", "m", "--target", "gpt"}, "PROVIDER=MODEL"},
		{[]string{"keys", "get", "key_000000000000"}, "no such key"},
	} {
		_, _, err := c.run(f.args...)
		require.ErrorContains(t, err, f.want, f.args)
	}
	_, _, err := run(t, "orgs", "list", "--url", c.url, "--token", "wrong")
	require.ErrorContains(t, err, "TOLLGATE_ADMIN_TOKEN")
	_, _, err = run(t, "orgs", "list", "--url", "http://127.0.0.1:1", "--token", "x")
	require.ErrorContains(t, err, "nothing answers at http://127.0.0.1:1")
}

const acme = `
organizations:
  - name: acme
    require: [end_user]
    limits:
      - {kind: budget, metric: cost, amount: 1000, window: {type: calendar, period: month, time_zone: Europe/Paris}}
    users:
      - {name: Ada, email: ada@example.com}
    teams:
      - name: research
        models: ["gpt-*"]
        limits:
          - {kind: rate, metric: requests, amount: 600, per: 1m}
        keys:
          - name: ci
            expires_at: 2030-01-01T01:00:00+01:00
            limits:
              - {kind: budget, metric: cost, amount: "20.50", window: {type: fixed, duration: 24h}}
    keys:
      - name: own
providers:
  - {name: openai, base_url: "https://api.openai.com/v1", credential: "${CLI_TEST_CREDENTIAL}"}
  - {name: fast, kind: groq}
models:
  - name: gpt-4o
    targets: [{provider: openai, upstream_model: gpt-4o}]
limits:
  - {scope: {type: key, name: "*"}, kind: concurrency, amount: 50}
  - {scope: {type: end_user, name: "*"}, organization: acme, kind: budget, metric: cost, amount: 2, window: {type: calendar, period: day}}
guardrails:
  - {name: no-codename, rule: {type: keywords, words: [bluebird]}, action: mask}
  - {name: short, scope: {type: organization, name: acme}, rule: {type: max_tokens, tokens: 4096}, action: mask, on_error: allow}
  - {name: ask, rule: {type: webhook, url: "https://guard.example.com/v1"}, action: block, secret: "${CLI_TEST_CREDENTIAL}-of-the-webhook"}
prices:
  - {provider: openai, upstream_model: gpt-4o, usd_per_million: {input: 2.50, output: 10}}
`

func write(tb testing.TB, text string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "tollgate.yaml")
	require.NoError(tb, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestApply_MakesItSoAndThenChangesNothing(t *testing.T) {
	t.Setenv("CLI_TEST_CREDENTIAL", "sk-canary-credential")
	c := newTerminal(t)
	path := write(t, acme)

	out, _, err := c.run("apply", "-f", path, "--dry-run")
	var differs *DifferenceError
	require.ErrorAs(t, err, &differs)
	require.Contains(t, out, "+ organization acme\n")
	require.Contains(t, out, "+ key acme/research/ci\n")
	require.Contains(t, c.ok("orgs", "list"), "none", "a dry run changes nothing")

	done := c.ok("apply", "-f", path)
	require.Contains(t, done, "Done: ")
	require.Contains(t, done, "sk-tg-")
	require.NotContains(t, done, "sk-canary")
	require.Contains(t, c.ok("apply", "-f", path), "Nothing to change.")
	require.Contains(t, c.ok("apply", "-f", path, "--dry-run", "--prune"), "Nothing to change.")

	changed := write(t, strings.NewReplacer("amount: 600", "amount: 900", `["gpt-*"]`, `["gpt-*", "claude-*"]`, "2.50", "3", "[bluebird]", "[bluebird, greenfinch]", "      - name: own", "      - name: other").Replace(acme))
	out, _, err = c.run("apply", "-f", changed, "--dry-run", "--prune", "-o", "json")
	require.ErrorAs(t, err, &differs)
	var plan struct {
		Changes []struct{ Action, Kind, Name string }
	}
	require.NoError(t, json.Unmarshal([]byte(out), &plan))
	require.ElementsMatch(t, []struct{ Action, Kind, Name string }{
		{"change", "team", "acme/research"},
		{"change", "limit", "acme/research/rate requests per 1m"},
		{"create", "key", "acme/other"},
		{"delete", "key", "acme/own"},
		{"change", "guardrail", "no-codename"},
		{"change", "price", "openai/gpt-4o"},
	}, plan.Changes)
	kept := c.ok("apply", "-f", changed)
	require.Contains(t, kept, "amount: 600 → 900")
	require.Contains(t, c.ok("keys", "list"), "own", "without --prune nothing is deleted")
	c.ok("apply", "-f", changed, "--prune")
	require.NotContains(t, c.ok("keys", "list"), " own ")
	require.Contains(t, c.ok("apply", "-f", changed, "--prune"), "Nothing to change.")
	require.Equal(t, "900", c.object("teams", "get", "research")["limits"].([]any)[0].(object)["amount"])

	require.Contains(t, c.ok("apply", "-f", changed, "--credentials"), "credential: stored → (new)")
}

func TestApply_FaultsOfTheFileNameTheirLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"organizations:\n  - name: acme\n    budgett: 5\n":           "line 3: unknown member budgett",
		"organizations:\n  - name: acme\n    name: other\n":          "line 3",
		"organizations:\n  - {name: acme}\n---\norganizations: []\n": "more than one document",
		"organizations: 5\n": "line 1",
		"providers:\n  - name: p\n    base_url: x\n    credential: ${CLI_TEST_UNSET}\n":        "line 4: the environment variable CLI_TEST_UNSET is not set",
		"providers:\n  - name: p\n    base_url: x\n    credential: file:/does/not/exist\n":     "line 4: read credential",
		"organizations:\n  - name: acme\n    teams:\n      - name: t\n        models: [[a]]\n": "line 5",
		"organizations: [\n": "line",
		"organizations:\n  - name: a\n    limits:\n      - {kind: budget, metric: cost,\n         amount: .nan}\n": `line 5: amount: ".nan" is not a plain decimal`,
		"organizations:\n  - name: a\n    limits: [{kind: budget, amount: 1e3, metric: cost}]\n":                   `line 3: amount: "1e3"`,
		"limits:\n  - {kind: rate, metric: cost, amount: 5, burst: -1}\n":                                          `line 2: burst: "-1"`,
		"limits:\n  - {kind: rate, metric: requests, amount: 1.5}\n":                                               `line 2: amount: "1.5" is not a whole number`,
		"prices:\n  - provider: p\n    usd_per_million: {input: 1, output: .inf}\n":                                `line 3: output: ".inf"`,
	} {
		_, err := parseDocument([]byte(text), t.TempDir())
		require.ErrorContains(t, err, want, text)
		require.NotContains(t, err.Error(), "cli.", text)
	}
	_, err := parseDocument([]byte("limits: [{kind: budget, metric: cost, amount: 12.5}, {kind: budget, metric: cost, amount: unlimited}, {kind: rate, metric: requests, amount: null}]"), t.TempDir())
	require.NoError(t, err)
	doc, err := parseDocument(nil, t.TempDir())
	require.NoError(t, err)
	require.Equal(t, &document{}, doc)
}

func TestApply_ReportsWhereItStopped(t *testing.T) {
	t.Parallel()
	c := newTerminal(t)
	_, _, err := c.run("apply", "-f", write(t, "organizations:\n  - name: acme\n    teams:\n      - name: t\n        limits: [{kind: rate, metric: requests, amount: 15, per: 7m}]\n"))
	require.ErrorContains(t, err, "create team acme/t (step 2 of 2)")
	require.ErrorContains(t, err, "limits[0].per")
}

func TestCompletion_KnowsEveryCommand(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish"} {
		out, _, err := run(t, "completion", shell)
		require.NoError(t, err)
		for _, word := range []string{"orgs", "rotate", "apply", "dry-run"} {
			require.Contains(t, out, word, shell)
		}
	}
}

func TestCells_AreNotTakenOverByNames(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a?[31mred?b", cell("a\x1b[31mred\nb"))
	require.Equal(t, "-", cell(nil))
	require.Equal(t, "2026-01-31 09:00:00Z", cell("2026-01-31T10:00:00+01:00"))
	require.True(t, same("12.50", "12.5"))
	require.True(t, same("2026-01-31T10:00:00+01:00", "2026-01-31T09:00:00Z"))
	require.False(t, same(nil, "null"))
}

// Every command that the documentation shows is one that there is.
func TestDocs_CommandsExist(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	pages = append(pages, "../../README.md")
	shown := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		require.NoError(t, err)
		for _, line := range regexp.MustCompile(`(?m)^\s*tollgate ([a-z].*)$`).FindAllStringSubmatch(string(text), -1) {
			words := strings.Fields(strings.ReplaceAll(line[1], "'", ""))
			if i := slices.Index(words, "#"); i >= 0 {
				words = words[:i]
			}
			parser, err := kong.New(&struct{ Commands }{})
			require.NoError(t, err)
			if !slices.ContainsFunc(parser.Model.Children, func(n *kong.Node) bool { return n.Name == words[0] }) {
				continue // a command that runs a process
			}
			shown++
			_, err = parser.Parse(words)
			require.NoError(t, err, "%s: tollgate %s", page, line[1])
		}
	}
	require.Positive(t, shown)
}

func TestSpend_GroupsOfOneNameAreToldApart(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	k := &kong.Context{Kong: &kong.Kong{Stdout: &out}}
	c := &spendCommand{GroupBy: []string{"team"}}
	c.Output = "table"
	require.NoError(t, c.sums(k, []object{
		{"group": object{"team": "team_A", "team_name": "research"}}, {"group": object{"team": "team_B", "team_name": "research"}},
	}))
	require.Contains(t, out.String(), "team_A")
	require.Contains(t, out.String(), "team_B")
}

// A number that means nothing is refused with its value, before anything is asked.
func TestLists_RefuseNegativeNumbers(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"keys", "list"}, {"prices", "list"}, {"spend", "--rows"}} {
		_, _, err := run(t, append(args, "--max=-1")...)
		require.ErrorContains(t, err, "--max: -1 is negative", args)
	}
}

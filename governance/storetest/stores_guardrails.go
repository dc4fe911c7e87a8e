package storetest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// keywords is a guardrail of the platform that blocks a word.
func keywords(name string) governance.Guardrail {
	return governance.Guardrail{
		Name: name, Stage: governance.StageBoth, Action: governance.ActionBlock,
		Rule: governance.GuardrailRule{Type: governance.RuleKeywords, Words: []string{"sesame"}},
	}
}

// webhook is a guardrail of the platform that asks somebody.
func webhook(name string) governance.Guardrail {
	g := keywords(name)
	g.Rule = governance.GuardrailRule{Type: governance.RuleWebhook, URL: "https://guard.example.com/check", Timeout: 500}
	g.Secret = secret.New("a secret of the webhook")
	return g
}

func guardrailsFollowTheContract(t *testing.T, s Stores) {
	home, foreign := newOrganization(t, s, "home"), newOrganization(t, s, "foreign")
	follow(t, aggregate[governance.Guardrail]{
		store: s.Guardrails, kind: ids.Guardrail, home: home, foreign: foreign,
		row: func(n int) governance.Guardrail {
			g := keywords(fmt.Sprint("guardrail ", n))
			g.Organization, g.Models, g.AllowOnError = ref(home.Meta), []string{"gpt-*"}, true
			return g
		},
		meta: func(g *governance.Guardrail) *governance.Meta { return &g.Meta },
		change: func(g *governance.Guardrail) {
			g.Name, g.Models, g.Stage, g.Action, g.AllowOnError, g.Disabled = "other", []string{}, governance.StageRequest, governance.ActionLog, false, true
			g.Rule = governance.GuardrailRule{Type: governance.RuleRegex, Patterns: []string{`\bses[a4]me\b`}}
		},
		same: func(t *testing.T, want, got governance.Guardrail) {
			want.Meta, got.Meta = governance.Meta{}, governance.Meta{}
			require.Equal(t, want, got)
		},
	})
	_, err := s.Guardrails.Create(t.Context(), platform, keywords("twice"))
	require.NoError(t, err)
	_, err = s.Guardrails.Create(t.Context(), platform, keywords("twice"))
	require.ErrorIs(t, err, governance.ErrExists)
}

func aGuardrailLiesInOneOrganization(t *testing.T, s Stores) {
	o, foreign := newOrganization(t, s, "o"), newOrganization(t, s, "foreign")
	team := newTeam(t, s, o, "team")
	key := newKey(t, s, team, "key")
	g := keywords("of the team")
	g.Team = ref(team.Meta)
	ofTeam, err := s.Guardrails.Create(t.Context(), platform, g)
	require.NoError(t, err)
	require.Equal(t, o.ID, ofTeam.Organization.ID, "it follows from the team")
	require.Equal(t, governance.Ref{Num: team.Num, ID: team.ID, Name: "team"}, ofTeam.Team)
	g = keywords("of the key")
	g.Key = governance.Ref{ID: key.ID}
	ofKey, err := s.Guardrails.Create(t.Context(), bound(o), g)
	require.NoError(t, err)
	require.Equal(t, []string{o.ID, key.ID}, []string{ofKey.Organization.ID, ofKey.Key.ID})
	_, err = s.Guardrails.Create(t.Context(), bound(foreign), g)
	requireField(t, err, "scope.id")
	g.Organization = ref(foreign.Meta)
	_, err = s.Guardrails.Create(t.Context(), platform, g)
	requireField(t, err, "scope.id")

	own, err := s.Guardrails.Create(t.Context(), bound(o), keywords("of the organization"))
	require.NoError(t, err)
	require.Equal(t, o.ID, own.Organization.ID, "a bound actor makes its own")
	all, err := s.Guardrails.Create(t.Context(), platform, keywords("of all"))
	require.NoError(t, err)
	_, err = s.Guardrails.Get(t.Context(), bound(o), all.ID)
	require.ErrorIs(t, err, governance.ErrNotFound, "the platform's are not an organization's to see")
	for _, c := range []struct {
		filter governance.ListFilter
		want   string
	}{
		{governance.ListFilter{ScopeType: "platform"}, all.ID},
		{governance.ListFilter{ScopeType: governance.ScopeOrganization, ScopeID: o.ID}, own.ID},
		{governance.ListFilter{ScopeType: governance.ScopeTeam, ScopeID: team.ID}, ofTeam.ID},
		{governance.ListFilter{ScopeType: governance.ScopeKey}, ofKey.ID},
		{governance.ListFilter{Name: "of all"}, all.ID},
	} {
		rows, _, err := s.Guardrails.List(t.Context(), platform, c.filter, governance.Page{Limit: 9})
		require.NoError(t, err)
		require.Len(t, rows, 1, "%+v", c.filter)
		require.Equal(t, c.want, rows[0].ID)
	}
	for field, move := range map[string]func(*governance.Guardrail){
		"scope":           func(g *governance.Guardrail) { g.Team = governance.Ref{ID: ids.NewPublic(ids.Team)} },
		"organization_id": func(g *governance.Guardrail) { g.Organization = ref(foreign.Meta) },
	} {
		moved := ofTeam
		move(&moved)
		_, err = s.Guardrails.Update(t.Context(), platform, moved)
		requireField(t, err, field)
	}
}

func aWebhooksSecretIsWriteOnly(t *testing.T, s Stores) {
	g := webhook("hook")
	g.Secret = secret.String{}
	_, err := s.Guardrails.Create(t.Context(), platform, g)
	requireField(t, err, "secret")
	g, err = s.Guardrails.Create(t.Context(), platform, webhook("hook"))
	require.NoError(t, err)
	require.True(t, g.SecretOK)
	require.True(t, g.Secret.IsZero())
	g.Rule.URL = "https://GUARD.example.com/other"
	g, err = s.Guardrails.Update(t.Context(), platform, g)
	require.NoError(t, err)
	require.True(t, g.SecretOK, "a zero secret keeps the stored one")
	moved := g
	moved.Rule.URL = "https://evil.example.com/check"
	_, err = s.Guardrails.Update(t.Context(), platform, moved)
	requireField(t, err, "secret")
	moved.Secret = secret.New("another secret of it")
	g, err = s.Guardrails.Update(t.Context(), platform, moved)
	require.NoError(t, err)
	require.True(t, g.SecretOK)
	g.Rule = keywords("").Rule
	g, err = s.Guardrails.Update(t.Context(), platform, g)
	require.NoError(t, err)
	require.False(t, g.SecretOK, "nothing else has one")
	g.Secret = secret.New("a secret for nobody")
	_, err = s.Guardrails.Update(t.Context(), platform, g)
	requireField(t, err, "secret")
	rows, _, err := s.Audit.Rows(t.Context(), platform, governance.AuditFilter{ResourceID: g.ID}, governance.Page{Limit: 9})
	require.NoError(t, err)
	require.Len(t, rows, 4)
	for _, r := range rows {
		require.NotContains(t, string(r.Before)+string(r.After), `"secret"`)
	}
}

func guardrailsRefuseWhatCannotBeJudged(t *testing.T, s Stores) {
	for field, edit := range map[string]func(*governance.Guardrail){
		"name":  func(g *governance.Guardrail) { g.Name = "" },
		"stage": func(g *governance.Guardrail) { g.Stage = "later" },
		"rule.patterns[1]": func(g *governance.Guardrail) {
			g.Rule = governance.GuardrailRule{Type: governance.RuleRegex, Patterns: []string{"fine", "(bad"}}
		},
		"rule.words": func(g *governance.Guardrail) { g.Rule.Words = nil },
		"rule.url": func(g *governance.Guardrail) {
			*g = webhook("x")
			g.Rule.URL = "ftp://guard.example.com"
		},
	} {
		g := keywords("bad")
		edit(&g)
		_, err := s.Guardrails.Create(t.Context(), platform, g)
		requireField(t, err, field)
	}
}

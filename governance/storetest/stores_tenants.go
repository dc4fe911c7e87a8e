package storetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

func organizationsFollowTheContract(t *testing.T, s Stores) {
	foreign := newOrganization(t, s, "foreign")
	first, err := s.Organizations.Create(t.Context(), platform, governance.Organization{
		Name: "home", BudgetStatus: 402, RequireBudget: true, Require: []string{"end_user", "tags.project"},
	})
	require.NoError(t, err)
	first.Name, first.Blocked, first.Require = "renamed", true, []string{}
	after, err := s.Organizations.Update(t.Context(), bound(first), first)
	require.NoError(t, err)
	require.Equal(t, "renamed", after.Name)
	require.True(t, after.Blocked)
	require.Equal(t, 402, after.BudgetStatus)
	require.Empty(t, after.Require)
	_, err = s.Organizations.Update(t.Context(), platform, first)
	require.ErrorIs(t, err, governance.ErrConflict)

	_, err = s.Organizations.Create(t.Context(), platform, governance.Organization{Name: "renamed"})
	require.ErrorIs(t, err, governance.ErrExists)
	_, err = s.Organizations.Create(t.Context(), bound(first), governance.Organization{Name: "another"})
	require.ErrorIs(t, err, governance.ErrNotFound)
	_, err = s.Organizations.Get(t.Context(), bound(foreign), first.ID)
	require.ErrorIs(t, err, governance.ErrNotFound)
	rows, next, err := s.Organizations.List(t.Context(), bound(foreign), governance.ListFilter{}, governance.Page{Limit: 50})
	require.NoError(t, err)
	require.Empty(t, next)
	require.Len(t, rows, 1)
	require.NoError(t, s.Organizations.Delete(t.Context(), platform, first.ID, after.Version))
	_, err = s.Organizations.Get(t.Context(), platform, first.ID)
	require.ErrorIs(t, err, governance.ErrNotFound)
	_, err = s.Organizations.Create(t.Context(), platform, governance.Organization{Name: "renamed"})
	require.NoError(t, err, "the name of a deleted one is free")
}

func organizationsHaveDefaults(t *testing.T, s Stores) {
	o := newOrganization(t, s, "o")
	require.Equal(t, 429, o.BudgetStatus)
	require.True(t, ids.IsPublic(ids.Organization, o.ID))
	for name, bad := range map[string]governance.Organization{
		"name":          {Name: ""},
		"budget_status": {Name: "x", BudgetStatus: 500},
	} {
		_, err := s.Organizations.Create(t.Context(), platform, bad)
		requireField(t, err, name)
	}
	_, err := s.Organizations.Create(t.Context(), platform, governance.Organization{Name: strings.Repeat("x", 201)})
	requireField(t, err, "name")
}

func teamsFollowTheContract(t *testing.T, s Stores) {
	home, foreign := newOrganization(t, s, "home"), newOrganization(t, s, "foreign")
	follow(t, aggregate[governance.Team]{
		store: s.Teams, kind: ids.Team, home: home, foreign: foreign,
		row: func(n int) governance.Team {
			return governance.Team{Organization: ref(home.Meta), Name: fmt.Sprint("team ", n), Models: []string{"gpt-*"}}
		},
		meta:   func(t *governance.Team) *governance.Meta { return &t.Meta },
		change: func(t *governance.Team) { t.Name, t.Blocked, t.Models = "other", true, []string{} },
		same: func(t *testing.T, want, got governance.Team) {
			want.Meta, got.Meta = governance.Meta{}, governance.Meta{}
			require.Equal(t, want, got)
		},
	})
	_, err := s.Teams.Create(t.Context(), platform, governance.Team{Name: "homeless"})
	requireField(t, err, "organization_id")
	_, err = s.Teams.Create(t.Context(), bound(foreign), governance.Team{Organization: ref(home.Meta), Name: "intruder"})
	requireField(t, err, "organization_id")
	own, err := s.Teams.Create(t.Context(), bound(foreign), governance.Team{Name: "own"})
	require.NoError(t, err)
	require.Equal(t, foreign.ID, own.Organization.ID)
	own.Organization = ref(home.Meta)
	_, err = s.Teams.Update(t.Context(), platform, own)
	requireField(t, err, "organization_id")
	_, err = s.Teams.Create(t.Context(), platform, governance.Team{Organization: ref(foreign.Meta), Name: "own"})
	require.ErrorIs(t, err, governance.ErrExists)
	rows, _, err := s.Teams.List(t.Context(), platform, governance.ListFilter{Organization: foreign.ID, Name: "own"}, governance.Page{Limit: 9})
	require.NoError(t, err)
	require.Len(t, rows, 1)
}

func usersFollowTheContract(t *testing.T, s Stores) {
	home, foreign := newOrganization(t, s, "home"), newOrganization(t, s, "foreign")
	follow(t, aggregate[governance.User]{
		store: s.Users, kind: ids.User, home: home, foreign: foreign,
		row: func(n int) governance.User {
			return governance.User{Organization: ref(home.Meta), Name: "name", Email: fmt.Sprintf("u%d@example.com", n)}
		},
		meta:   func(u *governance.User) *governance.Meta { return &u.Meta },
		change: func(u *governance.User) { u.Name, u.Email, u.Blocked = "other", "other@example.com", true },
		same: func(t *testing.T, want, got governance.User) {
			want.Meta, got.Meta = governance.Meta{}, governance.Meta{}
			require.Equal(t, want, got)
		},
	})
	newUser(t, s, home, "twice")
	_, err := s.Users.Create(t.Context(), platform, governance.User{Organization: ref(home.Meta), Name: "n", Email: "TWICE@example.com"})
	require.ErrorIs(t, err, governance.ErrExists)
}

func membershipsFollowTheContract(t *testing.T, s Stores) {
	home, foreign := newOrganization(t, s, "home"), newOrganization(t, s, "foreign")
	team := newTeam(t, s, home, "team")
	follow(t, aggregate[governance.Membership]{
		store: s.Memberships, kind: ids.Membership, home: home, foreign: foreign,
		row: func(n int) governance.Membership {
			u := newUser(t, s, home, fmt.Sprint("user", n))
			return governance.Membership{User: ref(u.Meta), Team: ref(team.Meta), Role: governance.RoleDeveloper}
		},
		meta:   func(m *governance.Membership) *governance.Meta { return &m.Meta },
		change: func(m *governance.Membership) { m.Role = governance.RoleTeamAdmin },
		same: func(t *testing.T, want, got governance.Membership) {
			want.Meta, got.Meta = governance.Meta{}, governance.Meta{}
			require.Equal(t, want, got)
		},
	})
}

func membersAreOfOneOrganization(t *testing.T, s Stores) {
	home, foreign := newOrganization(t, s, "home"), newOrganization(t, s, "foreign")
	team, user, stranger := newTeam(t, s, home, "team"), newUser(t, s, home, "user"), newUser(t, s, foreign, "stranger")
	join := func(by governance.Actor, u governance.User, role governance.Role) error {
		_, err := s.Memberships.Create(t.Context(), by, governance.Membership{User: ref(u.Meta), Team: ref(team.Meta), Role: role})
		return err
	}
	requireField(t, join(platform, stranger, governance.RoleOwner), "team_id")
	requireField(t, join(bound(foreign), user, governance.RoleOwner), "user_id")
	requireField(t, join(platform, user, "king"), "role")
	require.NoError(t, join(bound(home), user, governance.RoleFinance))
	require.ErrorIs(t, join(platform, user, governance.RoleOwner), governance.ErrExists)
	users, _, err := s.Users.List(t.Context(), platform, governance.ListFilter{Team: team.ID}, governance.Page{Limit: 9})
	require.NoError(t, err)
	require.Len(t, users, 1)
	require.Equal(t, user.ID, users[0].ID)
}

func aTeamMayBeginWithLimits(t *testing.T, s Stores) {
	o := newOrganization(t, s, "o")
	team, limits, err := s.Teams.CreateWithLimits(t.Context(), platform, governance.Team{Organization: ref(o.Meta), Name: "team"},
		[]governance.Limit{budget("", "", 5), rate("", "", 60)})
	require.NoError(t, err)
	require.Len(t, limits, 2)
	for _, l := range limits {
		require.Equal(t, governance.ScopeTeam, l.Scope.Type)
		require.Equal(t, team.ID, l.Scope.Subject.ID)
		require.Equal(t, team.Num, l.Scope.Subject.Num)
		require.Equal(t, o.ID, l.Organization.ID)
	}
	_, _, err = s.Teams.CreateWithLimits(t.Context(), platform, governance.Team{Organization: ref(o.Meta), Name: "failed"},
		[]governance.Limit{budget("", "", 5), {Kind: "nonsense"}})
	requireField(t, err, "limits[1].metric")
	rows, _, err := s.Teams.List(t.Context(), platform, governance.ListFilter{Name: "failed"}, governance.Page{Limit: 9})
	require.NoError(t, err)
	require.Empty(t, rows, "both or neither")
}

func aPatternListIsAbsentOrEmpty(t *testing.T, s Stores) {
	o := newOrganization(t, s, "o")
	for _, models := range [][]string{nil, {}, {"gpt-*", "claude-*"}} {
		team, err := s.Teams.Create(t.Context(), platform, governance.Team{
			Organization: ref(o.Meta), Name: fmt.Sprint(models == nil, len(models)), Models: models,
		})
		require.NoError(t, err)
		require.Equal(t, models, team.Models)
		k, _, err := s.Keys.Issue(t.Context(), platform, governance.VirtualKey{Team: ref(team.Meta), Name: "k", Models: models}, nil)
		require.NoError(t, err)
		require.Equal(t, models, k.Models)
		found := find(t, s, k)
		require.Equal(t, models, found.Principal.KeyModels)
		require.Equal(t, models, found.Principal.TeamModels)
	}
}

func aBudgetMayBeRequired(t *testing.T, s Stores) {
	o, err := s.Organizations.Create(t.Context(), platform, governance.Organization{Name: "o", RequireBudget: true})
	require.NoError(t, err)
	_, err = s.Teams.Create(t.Context(), platform, governance.Team{Organization: ref(o.Meta), Name: "team"})
	requireField(t, err, "limits")
	_, _, err = s.Keys.Issue(t.Context(), platform, governance.VirtualKey{Organization: ref(o.Meta), Name: "key"}, []governance.Limit{rate("", "", 9)})
	requireField(t, err, "limits")
	_, _, err = s.Keys.Issue(t.Context(), platform, governance.VirtualKey{Organization: ref(o.Meta), Name: "key"}, []governance.Limit{budget("", "", 9)})
	require.NoError(t, err, "its own")
	team, _, err := s.Teams.CreateWithLimits(t.Context(), platform, governance.Team{Organization: ref(o.Meta), Name: "team"},
		[]governance.Limit{budget("", "", 9)})
	require.NoError(t, err)
	_, _, err = s.Keys.Issue(t.Context(), platform, governance.VirtualKey{Team: ref(team.Meta), Name: "of team"}, nil)
	require.NoError(t, err, "its team's")
	each := budget(governance.ScopeKey, "*", 9)
	each.Organization = ref(o.Meta)
	_, err = s.Limits.Create(t.Context(), platform, each)
	require.NoError(t, err)
	_, _, err = s.Keys.Issue(t.Context(), platform, governance.VirtualKey{Organization: ref(o.Meta), Name: "each"}, nil)
	require.NoError(t, err, "that of each key")
}

func aRequiredBudgetStays(t *testing.T, s Stores) {
	o, err := s.Organizations.Create(t.Context(), platform, governance.Organization{Name: "o", RequireBudget: true})
	require.NoError(t, err)
	team, limits, err := s.Teams.CreateWithLimits(t.Context(), platform, governance.Team{Organization: ref(o.Meta), Name: "team"},
		[]governance.Limit{budget("", "", 9)})
	require.NoError(t, err)
	_, _, err = s.Keys.Issue(t.Context(), platform, governance.VirtualKey{Team: ref(team.Meta), Name: "key"}, nil)
	require.NoError(t, err)
	only := limits[0]
	for name, weaken := range map[string]func(*governance.Limit){
		"unlimited": func(l *governance.Limit) { l.Unlimited = true },
		"log":       func(l *governance.Limit) { l.Mode = governance.ModeLog },
		"expires":   func(l *governance.Limit) { l.ExpiresAt = time.Now().Add(time.Hour) },
		"later":     func(l *governance.Limit) { l.StartsAt = time.Now().Add(time.Hour) },
	} {
		changed := only
		weaken(&changed)
		_, err = s.Limits.Update(t.Context(), platform, changed)
		requireRefused(t, err, name)
	}
	requireRefused(t, s.Limits.Delete(t.Context(), platform, only.ID, 0), "delete")
	only.Amount = 3
	only, err = s.Limits.Update(t.Context(), platform, only)
	require.NoError(t, err, "another amount is a budget still")
	above, err := s.Limits.Create(t.Context(), platform, budget(governance.ScopeOrganization, o.ID, 100))
	require.NoError(t, err)
	require.NoError(t, s.Limits.Delete(t.Context(), platform, only.ID, 0), "there is one above")
	requireRefused(t, s.Limits.Delete(t.Context(), platform, above.ID, 0), "the one above is the last")
	require.NoError(t, s.Teams.Delete(t.Context(), platform, team.ID, 0))
	require.NoError(t, s.Limits.Delete(t.Context(), platform, above.ID, 0), "nobody needs it")
}

func requireRefused(t *testing.T, err error, what string) {
	t.Helper()
	var refused *governance.RefusedError
	require.ErrorAs(t, err, &refused, what)
}

func aCursorThatNobodyReturnedIsRefused(t *testing.T, s Stores) {
	for _, cursor := range []string{"x", "1", "AAAA", "'; --"} {
		_, _, err := s.Organizations.List(t.Context(), platform, governance.ListFilter{}, governance.Page{Limit: 1, Cursor: cursor})
		requireField(t, err, "cursor")
		_, _, err = s.Prices.List(t.Context(), "", "", governance.Page{Limit: 1, Cursor: cursor})
		requireField(t, err, "cursor")
		_, _, err = s.Audit.Rows(t.Context(), platform, governance.AuditFilter{}, governance.Page{Limit: 1, Cursor: cursor})
		requireField(t, err, "cursor")
	}
	for _, name := range []string{"a", "b"} {
		newOrganization(t, s, name)
	}
	_, next, err := s.Organizations.List(t.Context(), platform, governance.ListFilter{}, governance.Page{Limit: 1})
	require.NoError(t, err)
	require.NotEmpty(t, next)
	_, _, err = s.Teams.List(t.Context(), platform, governance.ListFilter{}, governance.Page{Limit: 1, Cursor: next})
	requireField(t, err, "cursor")
	_, _, err = s.Audit.Rows(t.Context(), platform, governance.AuditFilter{}, governance.Page{Limit: 1, Cursor: next})
	requireField(t, err, "cursor")
}

func textThatCannotBeStored(t *testing.T, s Stores) {
	for _, name := range []string{"a\x00b", "a\xffb"} {
		_, err := s.Organizations.Create(t.Context(), platform, governance.Organization{Name: name})
		var invalid *governance.InvalidError
		require.ErrorAs(t, err, &invalid)
	}
}

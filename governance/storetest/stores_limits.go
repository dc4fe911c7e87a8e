package storetest

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

func limitsFollowTheContract(t *testing.T, s Stores) {
	home, foreign := newOrganization(t, s, "home"), newOrganization(t, s, "foreign")
	team := newTeam(t, s, home, "team")
	follow(t, aggregate[governance.Limit]{
		store: s.Limits, kind: ids.Limit, home: home, foreign: foreign,
		row: func(n int) governance.Limit {
			l := rate(governance.ScopeTeam, team.ID, 600)
			l.Models = []string{fmt.Sprint("model-", n), "gpt-*"}
			return l
		},
		meta: func(l *governance.Limit) *governance.Meta { return &l.Meta },
		change: func(l *governance.Limit) {
			l.Amount, l.Burst, l.Mode, l.Enforcement = 700, 800, governance.ModeLog, governance.EnforceAdvisory
			l.Thresholds, l.Reserve, l.Reason = []int{90}, governance.ReserveMaximum, "clamp"
			l.StartsAt, l.ExpiresAt = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)
		},
		same: func(t *testing.T, want, got governance.Limit) {
			want.Meta, got.Meta = governance.Meta{}, governance.Meta{}
			require.Equal(t, want, got)
		},
	})
	rows, _, err := s.Limits.List(t.Context(), platform, governance.ListFilter{
		Organization: home.ID, ScopeType: governance.ScopeTeam, ScopeID: team.ID,
	}, governance.Page{Limit: 250})
	require.NoError(t, err)
	require.Len(t, rows, 3)
}

// Ruling 2: the identity of a limit.
func aLimitsIdentityIsUnique(t *testing.T, s Stores) {
	o := newOrganization(t, s, "o")
	l := rate(governance.ScopeOrganization, o.ID, 60)
	l.Models = []string{"b", "a", "b"}
	first, err := s.Limits.Create(t.Context(), platform, l)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, first.Models)
	require.EqualValues(t, 60, first.Burst, "the capacity is the amount where it is not said")
	require.Equal(t, governance.EnforceExact, first.Enforcement)
	require.Equal(t, governance.ModeEnforce, first.Mode)
	require.Equal(t, governance.ReserveExpected, first.Reserve)
	require.Equal(t, []int{50, 80, 100}, first.Thresholds)
	l.Models, l.Amount = []string{"a", "b"}, 70
	_, err = s.Limits.Create(t.Context(), platform, l)
	require.ErrorIs(t, err, governance.ErrExists, "neither order nor amount makes another limit")
	for name, change := range map[string]func(*governance.Limit){
		"models": func(l *governance.Limit) { l.Models = []string{"a"} },
		"routes": func(l *governance.Limit) { l.Routes = []string{"chat.completions"} },
		"metric": func(l *governance.Limit) { l.Metric = governance.MetricTokens },
		"per":    func(l *governance.Limit) { l.Per = time.Hour },
		"scope": func(l *governance.Limit) {
			l.Scope.Subject.ID, l.Organization = "*", ref(o.Meta)
		},
	} {
		other := l
		change(&other)
		_, err := s.Limits.Create(t.Context(), platform, other)
		require.NoError(t, err, name)
	}
}

func aDeletedLimitComesBack(t *testing.T, s Stores) {
	o := newOrganization(t, s, "o")
	first, err := s.Limits.Create(t.Context(), platform, budget(governance.ScopeOrganization, o.ID, 5))
	require.NoError(t, err)
	require.NoError(t, s.Limits.Delete(t.Context(), platform, first.ID, 0))
	again, err := s.Limits.Create(t.Context(), platform, budget(governance.ScopeOrganization, o.ID, 7))
	require.NoError(t, err)
	require.Equal(t, first.ID, again.ID)
	require.Equal(t, first.Num, again.Num, "its meters and its debt hang on the number")
	require.EqualValues(t, 7, again.Amount)
	require.Greater(t, again.Version, first.Version)
	require.True(t, again.DeletedAt.IsZero())

	again.ExpiresAt = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	_, err = s.Limits.Update(t.Context(), platform, again)
	require.NoError(t, err)
	renewed, err := s.Limits.Create(t.Context(), platform, budget(governance.ScopeOrganization, o.ID, 9))
	require.NoError(t, err, "an expired one is no longer live")
	require.Equal(t, first.ID, renewed.ID)
	require.True(t, renewed.ExpiresAt.IsZero())
}

func aLimitsIdentityIsImmutable(t *testing.T, s Stores) {
	o := newOrganization(t, s, "o")
	team := newTeam(t, s, o, "team")
	r, err := s.Limits.Create(t.Context(), platform, rate(governance.ScopeTeam, team.ID, 60))
	require.NoError(t, err)
	b, err := s.Limits.Create(t.Context(), platform, budget(governance.ScopeTeam, team.ID, 60))
	require.NoError(t, err)
	for field, c := range map[string]struct {
		of     governance.Limit
		change func(*governance.Limit)
	}{
		"scope": {r, func(l *governance.Limit) {
			l.Scope = governance.Scope{Type: governance.ScopeOrganization, Subject: ref(o.Meta)}
		}},
		"models": {r, func(l *governance.Limit) { l.Models = []string{"a"} }},
		"routes": {r, func(l *governance.Limit) { l.Routes = []string{"a"} }},
		"metric": {r, func(l *governance.Limit) { l.Metric = governance.MetricTokens }},
		"per":    {r, func(l *governance.Limit) { l.Per = time.Hour }},
		"kind": {b, func(l *governance.Limit) {
			l.Kind, l.Per, l.Burst, l.Window = governance.KindRate, time.Minute, 1, governance.Window{}
		}},
		"window": {b, func(l *governance.Limit) { l.Window.Period = "day" }},
	} {
		changed := c.of
		c.change(&changed)
		_, err := s.Limits.Update(t.Context(), platform, changed)
		requireField(t, err, field)
	}
	r.Amount = 0
	_, err = s.Limits.Update(t.Context(), platform, r)
	require.NoError(t, err, "an amount of 0 lets nothing through")
}

func limitsOfEverySubject(t *testing.T, s Stores) {
	o, foreign := newOrganization(t, s, "o"), newOrganization(t, s, "foreign")
	team, user := newTeam(t, s, o, "team"), newUser(t, s, o, "user")
	key := newKey(t, s, team, "key")
	p := newProvider(t, s, governance.Ref{}, "p")
	model, err := s.Models.Create(t.Context(), platform, governance.Model{
		Name: "m", Targets: []governance.ModelTarget{{Provider: ref(p.Meta), Upstream: "up"}},
	})
	require.NoError(t, err)
	for scope, id := range map[governance.ScopeType]string{
		governance.ScopeModel: model.ID, governance.ScopeTarget: model.Targets[0].Target.ID, governance.ScopeOrganization: o.ID,
		governance.ScopeTeam: team.ID, governance.ScopeKey: key.ID, governance.ScopeUser: user.ID,
	} {
		l, err := s.Limits.Create(t.Context(), platform, budget(scope, id, 5))
		require.NoError(t, err, scope)
		require.Equal(t, id, l.Scope.Subject.ID)
		require.NotZero(t, l.Scope.Subject.Num)
		require.NotEmpty(t, l.Scope.Subject.Name)
		if scope == governance.ScopeModel || scope == governance.ScopeTarget {
			require.True(t, l.Organization.IsZero(), "it counts the whole platform")
		} else {
			require.Equal(t, o.ID, l.Organization.ID)
			_, err = s.Limits.Create(t.Context(), bound(foreign), budget(scope, id, 5))
			requireField(t, err, "scope.id")
			_, err = s.Limits.Get(t.Context(), bound(foreign), l.ID)
			require.ErrorIs(t, err, governance.ErrNotFound)
		}
		each := budget(scope, "*", 5)
		l, err = s.Limits.Create(t.Context(), bound(o), each)
		require.NoError(t, err, scope)
		require.True(t, l.Scope.Each())
		require.Zero(t, l.Scope.Subject.Num)
		require.Equal(t, o.ID, l.Organization.ID)
	}
	named := budget(governance.ScopeEndUser, "", 5)
	named.Scope.EndUser = "alice"
	_, err = s.Limits.Create(t.Context(), platform, named)
	requireField(t, err, "organization_id")
	named.Organization = ref(o.Meta)
	l, err := s.Limits.Create(t.Context(), platform, named)
	require.NoError(t, err)
	num, err := s.EndUsers.EndUser(t.Context(), 1, o.Num, "alice")
	require.NoError(t, err)
	require.Equal(t, num, l.Scope.Subject.Num)
	require.Equal(t, "alice", l.Scope.EndUser)

	within := budget(governance.ScopeKey, "*", 5)
	within.Scope.WithinType, within.Scope.Within = governance.ScopeTeam, ref(team.Meta)
	l, err = s.Limits.Create(t.Context(), platform, within)
	require.NoError(t, err)
	require.Equal(t, team.Num, l.Scope.Within.Num)
	require.Equal(t, o.ID, l.Organization.ID)
	within.Organization = ref(foreign.Meta)
	_, err = s.Limits.Create(t.Context(), platform, within)
	requireField(t, err, "scope.within.id")
}

// Rulings 1 and 22.
func limitsRefuseWhatCannotBeCounted(t *testing.T, s Stores) {
	o := newOrganization(t, s, "o")
	for _, c := range []struct {
		field  string
		of     governance.Limit
		change func(*governance.Limit)
	}{
		{"scope.type", rate("", o.ID, 1), func(*governance.Limit) {}},
		{"scope.id", rate(governance.ScopeTeam, "", 1), func(*governance.Limit) {}},
		{"scope.id", rate(governance.ScopeTeam, ids.NewPublic(ids.Team), 1), func(*governance.Limit) {}},
		{"scope.within.type", rate(governance.ScopeKey, "*", 1), func(l *governance.Limit) {
			l.Scope.WithinType, l.Scope.Within = governance.ScopeModel, ref(o.Meta)
		}},
		{"kind", rate(governance.ScopeOrganization, o.ID, 1), func(l *governance.Limit) { l.Kind = "speed" }},
		{"metric", rate(governance.ScopeOrganization, o.ID, 1), func(l *governance.Limit) { l.Metric = "watts" }},
		{"metric", budget(governance.ScopeOrganization, o.ID, 1), func(l *governance.Limit) { l.Metric = governance.MetricRequests }},
		{"metric", governance.Limit{
			Scope: governance.Scope{Type: governance.ScopeOrganization, Subject: ref(o.Meta)},
			Kind:  governance.KindConcurrency, Metric: governance.MetricTokens, Amount: 1,
		}, func(*governance.Limit) {}},
		{"enforcement", governance.Limit{
			Scope: governance.Scope{Type: governance.ScopeOrganization, Subject: ref(o.Meta)},
			Kind:  governance.KindConcurrency, Metric: governance.MetricRequests, Amount: 1, Enforcement: governance.EnforceConvergent,
		}, func(*governance.Limit) {}},
		{"enforcement", budget(governance.ScopeOrganization, o.ID, 1), func(l *governance.Limit) { l.Enforcement = governance.EnforceAdvisory }},
		{"enforcement", rate(governance.ScopeOrganization, o.ID, 1), func(l *governance.Limit) {
			l.Metric, l.Enforcement = governance.MetricTokens, governance.EnforceAdvisory
		}},
		{"enforcement", rate(governance.ScopeOrganization, o.ID, 1), func(l *governance.Limit) { l.Enforcement = "hope" }},
		{"mode", rate(governance.ScopeOrganization, o.ID, 1), func(l *governance.Limit) { l.Mode = "maybe" }},
		{"amount", rate(governance.ScopeOrganization, o.ID, -1), func(*governance.Limit) {}},
		{"amount", rate(governance.ScopeOrganization, o.ID, math.MaxInt64), func(l *governance.Limit) { l.Burst = 1 }},
		{"burst", rate(governance.ScopeOrganization, o.ID, 1), func(l *governance.Limit) { l.Burst = math.MaxInt64 / 1000 }},
		{"per", rate(governance.ScopeOrganization, o.ID, 1), func(l *governance.Limit) { l.Per = 2 * time.Minute }},
		{"per", rate(governance.ScopeOrganization, o.ID, 1), func(l *governance.Limit) {
			l.Metric, l.Per = governance.MetricCost, 24*time.Hour
		}},
		{"per", budget(governance.ScopeOrganization, o.ID, 1), func(l *governance.Limit) { l.Per = time.Hour }},
		{"window.period", budget(governance.ScopeOrganization, o.ID, 1), func(l *governance.Limit) { l.Window.Period = "moon" }},
		{"window.time_zone", budget(governance.ScopeOrganization, o.ID, 1), func(l *governance.Limit) { l.Window.TimeZone = "Mars/Olympus" }},
		{"window.duration", budget(governance.ScopeOrganization, o.ID, 1), func(l *governance.Limit) {
			l.Window = governance.Window{Type: governance.WindowFixed, Duration: time.Millisecond}
		}},
		{"window.type", budget(governance.ScopeOrganization, o.ID, 1), func(l *governance.Limit) { l.Window = governance.Window{} }},
		{"thresholds", budget(governance.ScopeOrganization, o.ID, 1), func(l *governance.Limit) { l.Thresholds = []int{0} }},
		{"expires_at", budget(governance.ScopeOrganization, o.ID, 1), func(l *governance.Limit) {
			l.StartsAt = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
			l.ExpiresAt = l.StartsAt
		}},
	} {
		l := c.of
		c.change(&l)
		_, err := s.Limits.Create(t.Context(), platform, l)
		requireField(t, err, c.field)
	}
}

func limitsMayBeUnlimited(t *testing.T, s Stores) {
	o := newOrganization(t, s, "o")
	for _, l := range []governance.Limit{rate(governance.ScopeOrganization, o.ID, 0), budget(governance.ScopeOrganization, o.ID, 0)} {
		l.Unlimited = true
		created, err := s.Limits.Create(t.Context(), platform, l)
		require.NoError(t, err)
		require.True(t, created.Unlimited)
		created.Unlimited, created.Amount, created.Burst = false, 5, 0
		if created.Kind == governance.KindRate {
			created.Burst = 6
		}
		limited, err := s.Limits.Update(t.Context(), platform, created)
		require.NoError(t, err)
		require.False(t, limited.Unlimited)
		require.EqualValues(t, 5, limited.Amount)
	}
	fixed := budget(governance.ScopeOrganization, o.ID, 5)
	fixed.Window = governance.Window{Type: governance.WindowFixed, Duration: time.Hour}
	created, err := s.Limits.Create(t.Context(), platform, fixed)
	require.NoError(t, err)
	require.False(t, created.Window.Anchor.IsZero(), "it begins with its limit")
	created.Amount, created.Window.Anchor = 6, time.Time{}
	_, err = s.Limits.Update(t.Context(), platform, created)
	require.NoError(t, err)
}

package governance_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
)

func caller() *governance.Caller {
	return &governance.Caller{
		Model: 6, Target: 7, Organization: 1, Team: 2, Key: 3, User: 4, EndUser: 5,
		ModelName: "gpt-4o", Route: governance.RouteChat,
	}
}

func noon() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) }

// rule makes a budget of dollars a month; subject 0 is "*".
func rule(num int64, scope governance.ScopeType, subject int64, edit ...func(*governance.Limit)) *governance.Limit {
	l := &governance.Limit{
		Meta: governance.Meta{Num: num}, Kind: governance.KindBudget, Metric: governance.MetricCost, Amount: 1,
		Scope:  governance.Scope{Type: scope, Subject: governance.Ref{Num: subject}},
		Window: governance.Window{Type: governance.WindowCalendar, Period: "month"},
	}
	if subject == 0 {
		l.Scope.Subject.ID = "*"
	}
	for _, e := range edit {
		e(l)
	}
	return l
}

func applied(c *governance.Caller, at time.Time, limits ...*governance.Limit) []string {
	var all []string
	for _, a := range governance.NewLimitIndex(limits).Applied(governance.KindBudget, c, at) {
		all = append(all, fmt.Sprintf("%d of %s %d", a.Limit.Num, a.Limit.Scope.Type, a.Subject))
	}
	return all
}

func TestAppliedInChainOrder(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{
		"16 of model 6", "15 of target 7", "11 of organization 1", "21 of organization 1", "14 of team 2",
		"10 of key 3", "12 of user 4", "13 of end_user 5",
	}, applied(caller(), noon(),
		rule(10, governance.ScopeKey, 3), rule(11, governance.ScopeOrganization, 1), rule(12, governance.ScopeUser, 0),
		rule(13, governance.ScopeEndUser, 5), rule(14, governance.ScopeTeam, 2), rule(15, governance.ScopeTarget, 7),
		rule(16, governance.ScopeModel, 0),
		rule(21, governance.ScopeOrganization, 1, func(l *governance.Limit) { l.Window.Period = "day" }),
		rule(22, governance.ScopeKey, 33), rule(23, governance.ScopeKey, 3, func(l *governance.Limit) { l.Kind = governance.KindRate }),
	))
	require.Empty(t, applied(&governance.Caller{Organization: 1}, noon(), rule(10, governance.ScopeTeam, 0), rule(11, governance.ScopeEndUser, 0)),
		"a call without a team or an end user moves no meter of theirs")
}

func TestAppliedFilters(t *testing.T) {
	t.Parallel()
	key := func(edit func(*governance.Limit)) *governance.Limit { return rule(10, governance.ScopeKey, 3, edit) }
	for name, tc := range map[string]struct {
		limit *governance.Limit
		want  bool
	}{
		"models that match":             {key(func(l *governance.Limit) { l.Models = []string{"x", "gpt-*"} }), true},
		"models that do not":            {key(func(l *governance.Limit) { l.Models = []string{"claude-*"} }), false},
		"routes that match":             {key(func(l *governance.Limit) { l.Routes = []string{governance.RouteChat} }), true},
		"routes that do not":            {key(func(l *governance.Limit) { l.Routes = []string{governance.RouteEmbeddings} }), false},
		"not yet":                       {key(func(l *governance.Limit) { l.StartsAt = noon().Add(1) }), false},
		"just begun":                    {key(func(l *governance.Limit) { l.StartsAt = noon() }), true},
		"over":                          {key(func(l *governance.Limit) { l.ExpiresAt = noon() }), false},
		"not over":                      {key(func(l *governance.Limit) { l.ExpiresAt = noon().Add(1) }), true},
		"own organization's":            {key(func(l *governance.Limit) { l.Organization = governance.Ref{Num: 1} }), true},
		"another organization's":        {rule(10, governance.ScopeModel, 6, func(l *governance.Limit) { l.Organization = governance.Ref{Num: 9} }), false},
		"log mode":                      {key(func(l *governance.Limit) { l.Mode = governance.ModeLog }), true},
		"convergent is decided as well": {key(func(l *governance.Limit) { l.Enforcement = governance.EnforceConvergent }), true},
		"within the caller's team": {rule(10, governance.ScopeKey, 0, func(l *governance.Limit) {
			l.Scope.WithinType, l.Scope.Within = governance.ScopeTeam, governance.Ref{Num: 2}
		}), true},
		"within another team": {rule(10, governance.ScopeKey, 0, func(l *governance.Limit) {
			l.Scope.WithinType, l.Scope.Within = governance.ScopeTeam, governance.Ref{Num: 22}
		}), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, len(applied(caller(), noon(), tc.limit)) == 1)
		})
	}
}

func TestNamedLimitReplacesTheDefaultOfTheSameIdentity(t *testing.T) {
	t.Parallel()
	named := rule(10, governance.ScopeEndUser, 5)
	require.Equal(t, []string{"10 of end_user 5"}, applied(caller(), noon(), named, rule(11, governance.ScopeEndUser, 0)))
	require.Equal(t, []string{"10 of end_user 5"}, applied(caller(), noon(),
		rule(10, governance.ScopeEndUser, 5, func(l *governance.Limit) { l.Unlimited = true; l.Window.TimeZone = "UTC" }),
		rule(11, governance.ScopeEndUser, 0)), "an unlimited one exempts its subject")
	require.Equal(t, []string{"11 of end_user 6"}, applied(
		&governance.Caller{Organization: 1, EndUser: 6}, noon(), named, rule(11, governance.ScopeEndUser, 0)))
	for name, edit := range map[string]func(*governance.Limit){
		"metric":       func(l *governance.Limit) { l.Metric = governance.MetricTokens },
		"period":       func(l *governance.Limit) { l.Window.Period = "day" },
		"zone":         func(l *governance.Limit) { l.Window.TimeZone = "Asia/Tokyo" },
		"models":       func(l *governance.Limit) { l.Models = []string{"gpt-*"} },
		"routes":       func(l *governance.Limit) { l.Routes = []string{governance.RouteChat} },
		"organization": func(l *governance.Limit) { l.Organization = governance.Ref{Num: 1} },
	} {
		require.Len(t, applied(caller(), noon(), named, rule(11, governance.ScopeEndUser, 0, edit)), 2, "another %s is another rule", name)
	}
	require.Equal(t, []string{"11 of end_user 5"}, applied(caller(), noon(),
		rule(10, governance.ScopeEndUser, 5, func(l *governance.Limit) { l.ExpiresAt = noon() }),
		rule(11, governance.ScopeEndUser, 0)), "one that is over replaces nothing")
	fixed := func(anchor time.Time) func(*governance.Limit) {
		return func(l *governance.Limit) {
			l.Window = governance.Window{Type: governance.WindowFixed, Duration: time.Hour, Anchor: anchor}
		}
	}
	require.Equal(t, []string{"10 of key 3"}, applied(caller(), noon(),
		rule(10, governance.ScopeKey, 3, fixed(noon())), rule(11, governance.ScopeKey, 0, fixed(noon().Add(time.Minute)))))
}

func TestF026_EveryLimitInTheChainApplies(t *testing.T) {
	t.Parallel()
	scopes := []struct {
		scope   governance.ScopeType
		subject int64
	}{{governance.ScopeOrganization, 1}, {governance.ScopeTeam, 2}, {governance.ScopeKey, 3}, {governance.ScopeUser, 4}, {governance.ScopeEndUser, 5}}
	for combination := range 1 << len(scopes) {
		var limits []*governance.Limit
		var want []string
		for i, s := range scopes {
			if combination&(1<<i) != 0 {
				limits = append(limits, rule(int64(10+i), s.scope, s.subject))
				want = append(want, fmt.Sprintf("%d of %s %d", 10+i, s.scope, s.subject))
			}
		}
		require.Equal(t, want, applied(caller(), noon(), limits...))
	}
}

func BenchmarkApplied(b *testing.B) {
	var limits []*governance.Limit
	for i := range int64(10_000) {
		limits = append(limits, rule(100+i, governance.ScopeKey, 100+i))
	}
	limits = append(limits, rule(10, governance.ScopeKey, 3), rule(11, governance.ScopeOrganization, 1), rule(12, governance.ScopeEndUser, 0))
	x := governance.NewLimitIndex(limits)
	c := caller()
	b.ReportAllocs()
	for b.Loop() {
		x.Applied(governance.KindBudget, c, noon())
	}
}

package storetest

import (
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// everyChangeIsAudited also checks F139: no row of the audit has a secret in any form.
func everyChangeIsAudited(t *testing.T, s Stores) {
	o := newOrganization(t, s, "o")
	team := newTeam(t, s, o, "team")
	k, _, err := s.Keys.Issue(t.Context(), platform, governance.VirtualKey{Team: ref(team.Meta), Name: "key"}, []governance.Limit{rate("", "", 9)})
	require.NoError(t, err)
	rotated, err := s.Keys.Rotate(t.Context(), platform, k.ID, time.Hour)
	require.NoError(t, err)
	_, err = s.Keys.Revoke(t.Context(), platform, k.ID)
	require.NoError(t, err)
	require.NoError(t, s.Keys.Delete(t.Context(), platform, k.ID, 0))
	newProvider(t, s, ref(o.Meta), "p")
	team.Name = "renamed"
	_, err = s.Teams.Update(t.Context(), platform, team)
	require.NoError(t, err)
	_, err = s.Teams.Update(t.Context(), platform, team)
	require.Error(t, err, "a refused change leaves no row")

	rows, next, err := s.Audit.Rows(t.Context(), platform, governance.AuditFilter{}, governance.Page{Limit: 50})
	require.NoError(t, err)
	require.Empty(t, next)
	var changes []string
	for _, r := range rows {
		changes = append(changes, r.Action+" "+r.Resource)
		require.Equal(t, platform, r.Actor)
		require.Equal(t, o.ID, r.Organization)
		require.NotEmpty(t, r.ResourceID)
		require.False(t, r.At.IsZero())
		for _, marker := range []string{k.Secret.Reveal()[18:61], rotated.Secret.Reveal()[18:61], "sk-upstream", `_num"`, "hash"} {
			require.NotContains(t, string(r.Before)+string(r.After), marker)
		}
	}
	require.Equal(t, []string{
		"update teams", "create providers", "delete keys", "revoke keys", "rotate keys", "create limits", "create keys",
		"create teams", "create organizations",
	}, changes)
	var before, after struct{ ID, Name string }
	require.NoError(t, json.Unmarshal(rows[0].Before, &before))
	require.NoError(t, json.Unmarshal(rows[0].After, &after))
	require.Equal(t, []string{"team", "renamed"}, []string{before.Name, after.Name})
	require.Equal(t, team.ID, after.ID)
	require.Empty(t, rows[1].Before)
	require.Empty(t, rows[2].After)
}

func auditIsBoundedAndNarrowed(t *testing.T, s Stores) {
	home, foreign := newOrganization(t, s, "home"), newOrganization(t, s, "foreign")
	team := newTeam(t, s, home, "team")
	newTeam(t, s, foreign, "team")
	all := func(by governance.Actor, f governance.AuditFilter) []governance.AuditRow {
		rows, _, err := s.Audit.Rows(t.Context(), by, f, governance.Page{Limit: 50})
		require.NoError(t, err)
		return rows
	}
	require.Len(t, all(platform, governance.AuditFilter{}), 4)
	require.Len(t, all(bound(home), governance.AuditFilter{}), 2)
	require.Empty(t, all(bound(home), governance.AuditFilter{Organization: foreign.ID}))
	require.Len(t, all(platform, governance.AuditFilter{Organization: foreign.ID}), 2)
	require.Len(t, all(platform, governance.AuditFilter{Resource: "teams"}), 2)
	narrow := all(platform, governance.AuditFilter{ResourceID: team.ID, ActorID: platform.ID})
	require.Len(t, narrow, 1)
	require.Empty(t, all(platform, governance.AuditFilter{ActorID: "nobody"}))
	require.Empty(t, all(platform, governance.AuditFilter{To: all(platform, governance.AuditFilter{})[3].At}))
	require.Len(t, all(platform, governance.AuditFilter{From: narrow[0].At}), 2)
	first, next, err := s.Audit.Rows(t.Context(), platform, governance.AuditFilter{}, governance.Page{Limit: 3})
	require.NoError(t, err)
	require.Len(t, first, 3)
	rest, next, err := s.Audit.Rows(t.Context(), platform, governance.AuditFilter{}, governance.Page{Limit: 3, Cursor: next})
	require.NoError(t, err)
	require.Empty(t, next)
	require.Len(t, rest, 1)
	require.Less(t, rest[0].Num, first[2].Num)
}

func endUsersHaveANumber(t *testing.T, s Stores) {
	home, foreign := newOrganization(t, s, "home"), newOrganization(t, s, "foreign")
	var seen sync.Map
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			num, err := s.EndUsers.EndUser(t.Context(), 1, home.Num, "alice")
			if err != nil {
				t.Error(err)
			}
			seen.Store(num, true)
		})
	}
	all.Wait()
	count := 0
	seen.Range(func(any, any) bool { count++; return true })
	require.Equal(t, 1, count, "one number, whoever was first")
	num, err := s.EndUsers.EndUser(t.Context(), 1, home.Num, "alice")
	require.NoError(t, err)
	other, err := s.EndUsers.EndUser(t.Context(), 1, foreign.Num, "alice")
	require.NoError(t, err)
	require.NotEqual(t, num, other)
	_, err = s.EndUsers.EndUser(t.Context(), 1, home.Num, "")
	requireField(t, err, "name")
}

func responsesAreTheirOrganizations(t *testing.T, s Stores) {
	home, foreign := newOrganization(t, s, "home"), newOrganization(t, s, "foreign")
	p := newProvider(t, s, governance.Ref{}, "p")
	m, err := s.Models.Create(t.Context(), platform, governance.Model{Name: "m", Targets: []governance.ModelTarget{
		{Provider: ref(p.Meta), Upstream: "one"}, {Provider: ref(p.Meta), Upstream: "two"},
	}})
	require.NoError(t, err)
	one, two := m.Targets[0].Target.Num, m.Targets[1].Target.Num
	require.NoError(t, s.Responses.Remember(t.Context(), home.Num, one, "resp_1", "sealed"))
	require.NoError(t, s.Responses.Remember(t.Context(), home.Num, one, "resp_1"), "a repeat")
	require.NoError(t, s.Responses.Remember(t.Context(), foreign.Num, two, "resp_1"), "another account may use the same id")
	for _, id := range []string{"resp_1", "sealed"} {
		got, err := s.Responses.Target(t.Context(), home.Num, id)
		require.NoError(t, err)
		require.Equal(t, one, got)
	}
	got, err := s.Responses.Target(t.Context(), foreign.Num, "resp_1")
	require.NoError(t, err)
	require.Equal(t, two, got)
	for _, id := range []string{"resp_2", "resp_1 ", "RESP_1", "resp_\x00"} {
		_, err = s.Responses.Target(t.Context(), home.Num, id)
		require.ErrorIs(t, err, governance.ErrNotFound, "%q", id)
	}
}

func idempotencyKeysAreClaimed(t *testing.T, s Stores) {
	o := newOrganization(t, s, "o")
	k := newKey(t, s, newTeam(t, s, o, "team"), "key")
	first, second := ids.New(time.Now()), ids.New(time.Now())
	body, other := [32]byte{1}, [32]byte{2}
	seen, err := s.Idempotency.Begin(t.Context(), k.Num, "once", body, first)
	require.NoError(t, err)
	require.False(t, seen)
	_, err = s.Idempotency.Begin(t.Context(), k.Num, "once", body, second)
	require.ErrorIs(t, err, governance.ErrConflict)
	_, err = s.Idempotency.Begin(t.Context(), k.Num, "once", other, second)
	require.ErrorIs(t, err, governance.ErrExists)
	require.NoError(t, s.Idempotency.Finish(t.Context(), k.Num, "once", second), "not its claim")
	_, err = s.Idempotency.Begin(t.Context(), k.Num, "once", body, second)
	require.ErrorIs(t, err, governance.ErrConflict)
	require.NoError(t, s.Idempotency.Finish(t.Context(), k.Num, "once", first))
	seen, err = s.Idempotency.Begin(t.Context(), k.Num, "once", body, second)
	require.NoError(t, err)
	require.True(t, seen)
	seen, err = s.Idempotency.Begin(t.Context(), k.Num, "twice", body, first)
	require.NoError(t, err)
	require.False(t, seen)
}

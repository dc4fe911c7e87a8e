package storetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/apikey"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// find looks up what authentication needs to know of an issued key.
func find(t *testing.T, s Stores, k governance.IssuedKey) governance.KeyRecord {
	t.Helper()
	publicID, err := apikey.Parse(k.Secret)
	require.NoError(t, err)
	found, err := s.Finder.FindKey(t.Context(), publicID)
	require.NoError(t, err)
	return found
}

func requireGone(t *testing.T, s Stores, k governance.IssuedKey) {
	t.Helper()
	publicID, err := apikey.Parse(k.Secret)
	require.NoError(t, err)
	_, err = s.Finder.FindKey(t.Context(), publicID)
	require.ErrorIs(t, err, governance.ErrNotFound)
}

func keysFollowTheContract(t *testing.T, s Stores) {
	home, foreign := newOrganization(t, s, "home"), newOrganization(t, s, "foreign")
	team, user := newTeam(t, s, home, "team"), newUser(t, s, home, "user")
	expiry := time.Date(2040, 1, 2, 3, 4, 5, 0, time.UTC)
	follow(t, aggregate[governance.VirtualKey]{
		store: s.Keys, kind: ids.Key, home: home, foreign: foreign,
		row: func(n int) governance.VirtualKey {
			return governance.VirtualKey{Team: ref(team.Meta), User: ref(user.Meta), Name: fmt.Sprint("key ", n)}
		},
		meta: func(k *governance.VirtualKey) *governance.Meta { return &k.Meta },
		change: func(k *governance.VirtualKey) {
			k.Name, k.Blocked, k.Models, k.ExpiresAt, k.BudgetStatus = "other", true, []string{"a"}, expiry, 402
		},
		same: func(t *testing.T, want, got governance.VirtualKey) {
			want.Meta, got.Meta = governance.Meta{}, governance.Meta{}
			require.Equal(t, want, got)
			require.Equal(t, home.ID, got.Organization.ID)
		},
	})
	rows, _, err := s.Keys.List(t.Context(), platform, governance.ListFilter{Team: team.ID, ScopeID: user.ID}, governance.Page{Limit: 250})
	require.NoError(t, err)
	require.Len(t, rows, 3)
}

func aKeyIsFoundByItsPublicPart(t *testing.T, s Stores) {
	o, err := s.Organizations.Create(t.Context(), platform, governance.Organization{Name: "o", BudgetStatus: 402, Require: []string{"end_user"}})
	require.NoError(t, err)
	team, user := newTeam(t, s, o, "team"), newUser(t, s, o, "user")
	k, _, err := s.Keys.Issue(t.Context(), platform, governance.VirtualKey{Team: ref(team.Meta), User: ref(user.Meta), Name: "key"}, nil)
	require.NoError(t, err)
	text := k.Secret.Reveal()
	require.Equal(t, "sk-tg-"+text[6:10]+"…"+text[len(text)-4:], k.Hint)
	found := find(t, s, k)
	require.Equal(t, k.Num, found.Key.Num)
	require.Equal(t, text[6:18], found.Secret.PublicID)
	require.Equal(t, text[len(text)-4:], found.Secret.Last4)
	require.NotZero(t, found.Secret.Hash)
	require.NotEmpty(t, found.Secret.PepperID)
	require.True(t, found.Secret.ExpiresAt.IsZero())
	require.Empty(t, found.BlockedBy)
	require.Positive(t, found.Principal.ConfigVersion, "that of the moment at which it was read")
	found.Principal.ConfigVersion = 0
	require.Equal(t, governance.Principal{
		Organization: governance.Ref{Num: o.Num, ID: o.ID, Name: "o"}, Team: governance.Ref{Num: team.Num, ID: team.ID, Name: "team"},
		Key: governance.Ref{Num: k.Num, ID: k.ID, Name: "key"}, User: governance.Ref{Num: user.Num, ID: user.ID, Name: "user"},
		BudgetStatus: 402, Require: []string{"end_user"},
	}, found.Principal)
	_, err = s.Finder.FindKey(t.Context(), "000000000000")
	require.ErrorIs(t, err, governance.ErrNotFound)

	k.BudgetStatus = 429
	_, err = s.Keys.Update(t.Context(), platform, k.VirtualKey)
	require.NoError(t, err)
	require.Equal(t, 429, find(t, s, k).Principal.BudgetStatus, "the key's own status")
}

func aKeyMayBelongToTheOrganizationItself(t *testing.T, s Stores) {
	o := newOrganization(t, s, "o")
	k, _, err := s.Keys.Issue(t.Context(), platform, governance.VirtualKey{Organization: ref(o.Meta), Name: "key"}, nil)
	require.NoError(t, err)
	require.True(t, k.Team.IsZero())
	require.Equal(t, o.ID, find(t, s, k).Principal.Organization.ID)
	own, _, err := s.Keys.Issue(t.Context(), bound(o), governance.VirtualKey{Name: "key"}, nil)
	require.NoError(t, err)
	require.Equal(t, o.ID, own.Organization.ID)
}

func aKeyStaysWithinItsOrganization(t *testing.T, s Stores) {
	home, foreign := newOrganization(t, s, "home"), newOrganization(t, s, "foreign")
	team, user, stranger := newTeam(t, s, home, "team"), newUser(t, s, home, "user"), newUser(t, s, foreign, "stranger")
	for field, c := range map[string]struct {
		by governance.Actor
		k  governance.VirtualKey
	}{
		"organization_id": {platform, governance.VirtualKey{Team: ref(team.Meta), Organization: ref(foreign.Meta), Name: "k"}},
		"team_id":         {bound(foreign), governance.VirtualKey{Team: ref(team.Meta), Name: "k"}},
		"user_id":         {platform, governance.VirtualKey{Team: ref(team.Meta), User: ref(stranger.Meta), Name: "k"}},
	} {
		_, _, err := s.Keys.Issue(t.Context(), c.by, c.k, nil)
		requireField(t, err, field)
	}
	_, _, err := s.Keys.Issue(t.Context(), platform, governance.VirtualKey{Name: "k"}, nil)
	requireField(t, err, "organization_id")
	k := newKey(t, s, team, "k")
	for field, change := range map[string]func(*governance.VirtualKey){
		"organization_id": func(k *governance.VirtualKey) { k.Organization = ref(foreign.Meta) },
		"team_id":         func(k *governance.VirtualKey) { k.Team = ref(newTeam(t, s, home, "second").Meta) },
		"user_id":         func(k *governance.VirtualKey) { k.User = ref(user.Meta) },
	} {
		changed := k.VirtualKey
		change(&changed)
		_, err := s.Keys.Update(t.Context(), platform, changed)
		requireField(t, err, field)
	}
	_, err = s.Keys.Rotate(t.Context(), bound(foreign), k.ID, 0)
	require.ErrorIs(t, err, governance.ErrNotFound)
	_, err = s.Keys.Revoke(t.Context(), bound(foreign), k.ID)
	require.ErrorIs(t, err, governance.ErrNotFound)
}

func issuingIsOneTransaction(t *testing.T, s Stores) {
	o := newOrganization(t, s, "o")
	team := newTeam(t, s, o, "team")
	k, limits, err := s.Keys.Issue(t.Context(), platform, governance.VirtualKey{Team: ref(team.Meta), Name: "key"},
		[]governance.Limit{rate("", "", 10), budget("", "", 5)})
	require.NoError(t, err)
	require.Len(t, limits, 2)
	require.Equal(t, k.Num, limits[0].Scope.Subject.Num)
	require.Equal(t, governance.ScopeKey, limits[1].Scope.Type)
	_, _, err = s.Keys.Issue(t.Context(), platform, governance.VirtualKey{Team: ref(team.Meta), Name: "failed"},
		[]governance.Limit{rate("", "", 10), rate("", "", 10)})
	require.ErrorIs(t, err, governance.ErrExists)
	rows, _, err := s.Keys.List(t.Context(), platform, governance.ListFilter{Name: "failed"}, governance.Page{Limit: 9})
	require.NoError(t, err)
	require.Empty(t, rows)
}

func rotationHasAGrace(t *testing.T, s Stores) {
	o := newOrganization(t, s, "o")
	first := newKey(t, s, newTeam(t, s, o, "team"), "key")
	second, err := s.Keys.Rotate(t.Context(), platform, first.ID, time.Hour)
	require.NoError(t, err)
	require.NotEqual(t, first.Secret.Reveal(), second.Secret.Reveal())
	require.Equal(t, first.ID, second.ID)
	require.Greater(t, second.Version, first.Version)
	require.True(t, strings.HasSuffix(second.Hint, apikey.Last4(second.Secret)))
	require.True(t, find(t, s, second).Secret.ExpiresAt.IsZero())
	end := find(t, s, first).Secret.ExpiresAt
	require.False(t, end.IsZero(), "both work during the grace")

	third, err := s.Keys.Rotate(t.Context(), platform, first.ID, 2*time.Hour)
	require.NoError(t, err)
	require.Equal(t, end, find(t, s, first).Secret.ExpiresAt, "a later rotation does not prolong it")
	_, err = s.Keys.Rotate(t.Context(), platform, first.ID, 0)
	require.NoError(t, err)
	for _, old := range []governance.IssuedKey{first, second, third} {
		requireGone(t, s, old)
	}
	_, err = s.Keys.Rotate(t.Context(), platform, first.ID, -time.Second)
	requireField(t, err, "grace")
	_, err = s.Keys.Rotate(t.Context(), platform, first.ID, 91*24*time.Hour)
	requireField(t, err, "grace")
}

func revocationIsForGood(t *testing.T, s Stores) {
	o := newOrganization(t, s, "o")
	k := newKey(t, s, newTeam(t, s, o, "team"), "key")
	revoked, err := s.Keys.Revoke(t.Context(), bound(o), k.ID)
	require.NoError(t, err)
	require.False(t, revoked.RevokedAt.IsZero())
	require.Equal(t, revoked.RevokedAt, find(t, s, k).Key.RevokedAt, "it is found, so that the answer can say why")
	again, err := s.Keys.Revoke(t.Context(), platform, k.ID)
	require.NoError(t, err)
	require.Equal(t, revoked.RevokedAt, again.RevokedAt)
	again.RevokedAt = time.Time{}
	still, err := s.Keys.Update(t.Context(), platform, again)
	require.NoError(t, err)
	require.Equal(t, revoked.RevokedAt, still.RevokedAt)
	_, err = s.Keys.Rotate(t.Context(), platform, k.ID, 0)
	requireField(t, err, "id")
}

func whatStopsAKeyIsNamed(t *testing.T, s Stores) {
	o := newOrganization(t, s, "o")
	team, user := newTeam(t, s, o, "team"), newUser(t, s, o, "user")
	k, _, err := s.Keys.Issue(t.Context(), platform, governance.VirtualKey{Team: ref(team.Meta), User: ref(user.Meta), Name: "key"}, nil)
	require.NoError(t, err)
	user.Blocked = true
	_, err = s.Users.Update(t.Context(), platform, user)
	require.NoError(t, err)
	require.Equal(t, "user", find(t, s, k).BlockedBy)
	team.Blocked = true
	_, err = s.Teams.Update(t.Context(), platform, team)
	require.NoError(t, err)
	require.Equal(t, "team", find(t, s, k).BlockedBy)
	o.Blocked = true
	_, err = s.Organizations.Update(t.Context(), platform, o)
	require.NoError(t, err)
	require.Equal(t, "organization", find(t, s, k).BlockedBy)
	k.Blocked = true
	_, err = s.Keys.Update(t.Context(), platform, k.VirtualKey)
	require.NoError(t, err)
	require.True(t, find(t, s, k).Key.Blocked)
}

func aDeletedParentStopsItsKeys(t *testing.T, s Stores) {
	o := newOrganization(t, s, "o")
	team := newTeam(t, s, o, "team")
	ofTeam, second := newKey(t, s, team, "key"), newTeam(t, s, o, "second")
	ofSecond := newKey(t, s, second, "key")
	require.NoError(t, s.Teams.Delete(t.Context(), platform, team.ID, 0))
	requireGone(t, s, ofTeam)
	_, err := s.Keys.Get(t.Context(), platform, ofTeam.ID)
	require.ErrorIs(t, err, governance.ErrNotFound)
	_, _, err = s.Keys.Issue(t.Context(), platform, governance.VirtualKey{Team: ref(team.Meta), Name: "late"}, nil)
	requireField(t, err, "team_id")
	find(t, s, ofSecond)
	require.NoError(t, s.Organizations.Delete(t.Context(), platform, o.ID, 0))
	requireGone(t, s, ofSecond)
	_, err = s.Teams.Create(t.Context(), platform, governance.Team{Organization: ref(o.Meta), Name: "late"})
	requireField(t, err, "organization_id")
}

func rehashReplacesWhatWasRead(t *testing.T, s Stores) {
	o := newOrganization(t, s, "o")
	team := newTeam(t, s, o, "team")
	one, two := newKey(t, s, team, "one"), newKey(t, s, team, "two")
	was, other := find(t, s, one).Secret, find(t, s, two).Secret
	stale := other
	stale.Hash[0]++
	require.NoError(t, s.Finder.Rehash(t.Context(), []governance.Rehash{
		{Was: was, Hash: [32]byte{1}, PepperID: "newer"},
		{Was: stale, Hash: [32]byte{2}, PepperID: "newer"},
	}))
	require.NoError(t, s.Finder.Rehash(t.Context(), nil))
	got := find(t, s, one).Secret
	require.Equal(t, [32]byte{1}, got.Hash)
	require.Equal(t, "newer", got.PepperID)
	require.Equal(t, other, find(t, s, two).Secret, "what was not read as it is stays")
}

func touchNotesUse(t *testing.T, s Stores) {
	o := newOrganization(t, s, "o")
	team := newTeam(t, s, o, "team")
	used, unused := newKey(t, s, team, "used"), newKey(t, s, team, "unused")
	require.NoError(t, s.Finder.Touch(t.Context(), []int64{used.Num, used.Num, 999_999}))
	require.NoError(t, s.Finder.Touch(t.Context(), nil))
	read, err := s.Keys.Get(t.Context(), platform, used.ID)
	require.NoError(t, err)
	require.False(t, read.LastUsedAt.IsZero())
	require.Equal(t, used.Version, read.Version, "use is no change")
	read, err = s.Keys.Get(t.Context(), platform, unused.ID)
	require.NoError(t, err)
	require.True(t, read.LastUsedAt.IsZero())
}

package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// Stores is one implementation of everything that an admin manages, on data of its own.
type Stores struct {
	Organizations governance.Store[governance.Organization]
	Teams         governance.TeamStore
	Users         governance.Store[governance.User]
	Memberships   governance.Store[governance.Membership]
	Keys          governance.KeyStore
	Finder        governance.KeyFinder
	Providers     governance.Store[governance.Provider]
	Models        governance.Store[governance.Model]
	Targets       governance.TargetStore
	Limits        governance.Store[governance.Limit]
	Guardrails    governance.Store[governance.Guardrail]
	Prices        governance.PriceStore
	Audit         governance.AuditStore
	EndUsers      governance.EndUsers
	Idempotency   governance.IdempotencyStore
	Responses     governance.StoredResponses
}

// RunStores checks an implementation. open returns empty stores, new ones with each call.
func RunStores(t *testing.T, open func(*testing.T) Stores) {
	for name, check := range map[string]func(*testing.T, Stores){
		"OrganizationsFollowTheContract":        organizationsFollowTheContract,
		"TeamsFollowTheContract":                teamsFollowTheContract,
		"UsersFollowTheContract":                usersFollowTheContract,
		"MembershipsFollowTheContract":          membershipsFollowTheContract,
		"KeysFollowTheContract":                 keysFollowTheContract,
		"ProvidersFollowTheContract":            providersFollowTheContract,
		"ModelsFollowTheContract":               modelsFollowTheContract,
		"LimitsFollowTheContract":               limitsFollowTheContract,
		"GuardrailsFollowTheContract":           guardrailsFollowTheContract,
		"AGuardrailLiesInOneOrganization":       aGuardrailLiesInOneOrganization,
		"AWebhooksSecretIsWriteOnly":            aWebhooksSecretIsWriteOnly,
		"GuardrailsRefuseWhatCannotBeJudged":    guardrailsRefuseWhatCannotBeJudged,
		"OrganizationsHaveDefaults":             organizationsHaveDefaults,
		"ATeamMayBeginWithLimits":               aTeamMayBeginWithLimits,
		"APatternListIsAbsentOrEmpty":           aPatternListIsAbsentOrEmpty,
		"ABudgetMayBeRequired":                  aBudgetMayBeRequired,
		"ARequiredBudgetStays":                  aRequiredBudgetStays,
		"MembersAreOfOneOrganization":           membersAreOfOneOrganization,
		"AKeyIsFoundByItsPublicPart":            aKeyIsFoundByItsPublicPart,
		"AKeyMayBelongToTheOrganizationItself":  aKeyMayBelongToTheOrganizationItself,
		"AKeyStaysWithinItsOrganization":        aKeyStaysWithinItsOrganization,
		"IssuingIsOneTransaction":               issuingIsOneTransaction,
		"RotationHasAGrace":                     rotationHasAGrace,
		"RevocationIsForGood":                   revocationIsForGood,
		"WhatStopsAKeyIsNamed":                  whatStopsAKeyIsNamed,
		"ADeletedParentStopsItsKeys":            aDeletedParentStopsItsKeys,
		"TouchNotesUse":                         touchNotesUse,
		"RehashReplacesWhatWasRead":             rehashReplacesWhatWasRead,
		"CredentialsAreWriteOnly":               credentialsAreWriteOnly,
		"AChangedURLDoesNotDecrypt":             aChangedURLDoesNotDecrypt,
		"ModelsMakeAndShareTargets":             modelsMakeAndShareTargets,
		"ThePlatformOffersToAll":                thePlatformOffersToAll,
		"TargetsMayBePatched":                   targetsMayBePatched,
		"ALimitsIdentityIsUnique":               aLimitsIdentityIsUnique,
		"ADeletedLimitComesBack":                aDeletedLimitComesBack,
		"ALimitsIdentityIsImmutable":            aLimitsIdentityIsImmutable,
		"LimitsOfEverySubject":                  limitsOfEverySubject,
		"LimitsRefuseWhatCannotBeCounted":       limitsRefuseWhatCannotBeCounted,
		"LimitsMayBeUnlimited":                  limitsMayBeUnlimited,
		"PricesAreOnlyAdded":                    pricesAreOnlyAdded,
		"PricesRefuseWhatHasNoPrice":            pricesRefuseWhatHasNoPrice,
		"EveryChangeIsAudited":                  everyChangeIsAudited,
		"AuditIsBoundedAndNarrowed":             auditIsBoundedAndNarrowed,
		"EndUsersHaveANumber":                   endUsersHaveANumber,
		"IdempotencyKeysAreClaimed":             idempotencyKeysAreClaimed,
		"ResponsesAreTheirOrganizations":        responsesAreTheirOrganizations,
		"ACursorThatNobodyReturnedIsRefused":    aCursorThatNobodyReturnedIsRefused,
		"TextThatCannotBeStoredIsTheCallersErr": textThatCannotBeStored,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, open(t))
		})
	}
}

// platform is an actor who may touch everything.
var platform = governance.Actor{Kind: "admin_token", ID: "token", Name: "admin", IP: "192.0.2.1", RequestID: "req-1", Reason: "test"}

// bound is an actor of one organization.
func bound(organization governance.Organization) governance.Actor {
	return governance.Actor{Kind: "user", ID: "user_of", Name: "someone", Organization: organization.Num}
}

func ref(m governance.Meta) governance.Ref { return governance.Ref{ID: m.ID} }

func newOrganization(t *testing.T, s Stores, name string) governance.Organization {
	t.Helper()
	o, err := s.Organizations.Create(t.Context(), platform, governance.Organization{Name: name})
	require.NoError(t, err)
	return o
}

func newTeam(t *testing.T, s Stores, o governance.Organization, name string) governance.Team {
	t.Helper()
	team, err := s.Teams.Create(t.Context(), platform, governance.Team{Organization: ref(o.Meta), Name: name})
	require.NoError(t, err)
	return team
}

func newUser(t *testing.T, s Stores, o governance.Organization, name string) governance.User {
	t.Helper()
	u, err := s.Users.Create(t.Context(), platform, governance.User{Organization: ref(o.Meta), Name: name, Email: name + "@example.com"})
	require.NoError(t, err)
	return u
}

func newKey(t *testing.T, s Stores, team governance.Team, name string) governance.IssuedKey {
	t.Helper()
	k, _, err := s.Keys.Issue(t.Context(), platform, governance.VirtualKey{Team: ref(team.Meta), Name: name}, nil)
	require.NoError(t, err)
	return k
}

func newProvider(t *testing.T, s Stores, owner governance.Ref, name string) governance.Provider {
	t.Helper()
	p, err := s.Providers.Create(t.Context(), platform, governance.Provider{
		Organization: owner, Name: name, Kind: "openai", BaseURL: "https://api.example.com/v1", Credential: secret.New("sk-upstream"),
	})
	require.NoError(t, err)
	return p
}

// budget is a limit of cost per month.
func budget(scope governance.ScopeType, id string, nano int64) governance.Limit {
	return governance.Limit{
		Scope: governance.Scope{Type: scope, Subject: governance.Ref{ID: id}},
		Kind:  governance.KindBudget, Metric: governance.MetricCost, Amount: nano,
		Window: governance.Window{Type: governance.WindowCalendar, Period: "month"}, CarryDebt: true,
	}
}

// rate is a limit of requests per minute.
func rate(scope governance.ScopeType, id string, amount int64) governance.Limit {
	return governance.Limit{
		Scope: governance.Scope{Type: scope, Subject: governance.Ref{ID: id}},
		Kind:  governance.KindRate, Metric: governance.MetricRequests, Amount: amount, Per: time.Minute, CarryDebt: true,
	}
}

// requireField checks that err refuses one member of a write.
func requireField(t *testing.T, err error, field string) {
	t.Helper()
	var invalid *governance.InvalidError
	require.ErrorAs(t, err, &invalid)
	require.Equal(t, field, invalid.Field)
	require.NotEmpty(t, invalid.Reason)
}

// aggregate is what the contract of Store is checked on.
type aggregate[T any] struct {
	store governance.Store[T]
	kind  ids.Kind
	// row returns a row that does not exist yet; each call another.
	row    func(n int) T
	meta   func(*T) *governance.Meta
	change func(*T)                        // makes a visible change
	same   func(t *testing.T, want, got T) // compares all but Meta
	// home and foreign are the organization of the rows and another one.
	home, foreign governance.Organization
}

// follow checks what every store promises.
func follow[T any](t *testing.T, a aggregate[T]) {
	ctx := t.Context()
	created, err := a.store.Create(ctx, platform, a.row(0))
	require.NoError(t, err)
	m := *a.meta(&created)
	require.NotZero(t, m.Num)
	require.True(t, ids.IsPublic(a.kind, m.ID), m.ID)
	require.EqualValues(t, 1, m.Version)
	require.False(t, m.CreatedAt.IsZero())
	require.True(t, m.DeletedAt.IsZero())

	read, err := a.store.Get(ctx, platform, m.ID)
	require.NoError(t, err)
	require.Equal(t, m, *a.meta(&read))
	a.same(t, created, read)

	_, err = a.store.Get(ctx, platform, ids.NewPublic(a.kind))
	require.ErrorIs(t, err, governance.ErrNotFound)
	_, err = a.store.Get(ctx, platform, "no id; DROP TABLE")
	require.ErrorIs(t, err, governance.ErrNotFound)
	_, err = a.store.Get(ctx, bound(a.foreign), m.ID)
	require.ErrorIs(t, err, governance.ErrNotFound, "what is another's is not found")
	_, err = a.store.Get(ctx, bound(a.home), m.ID)
	require.NoError(t, err)

	changed := read
	a.change(&changed)
	_, err = a.store.Update(ctx, bound(a.foreign), changed)
	require.ErrorIs(t, err, governance.ErrNotFound)
	after, err := a.store.Update(ctx, platform, changed)
	require.NoError(t, err)
	require.EqualValues(t, 2, a.meta(&after).Version)
	require.Equal(t, m.CreatedAt, a.meta(&after).CreatedAt)
	a.same(t, changed, after)
	_, err = a.store.Update(ctx, platform, changed)
	require.ErrorIs(t, err, governance.ErrConflict, "the version is no longer 1")

	all := []string{m.ID}
	for n := 1; n < 5; n++ {
		more, err := a.store.Create(ctx, platform, a.row(n))
		require.NoError(t, err)
		all = append(all, a.meta(&more).ID)
	}
	var seen []string
	for page := (governance.Page{Limit: 2}); ; {
		rows, next, err := a.store.List(ctx, bound(a.home), governance.ListFilter{}, page)
		require.NoError(t, err)
		require.LessOrEqual(t, len(rows), 2)
		for i := range rows {
			seen = append(seen, a.meta(&rows[i]).ID)
		}
		if next == "" {
			break
		}
		page.Cursor = next
	}
	require.Subset(t, seen, all)
	unique := make(map[string]bool)
	for _, id := range seen {
		require.False(t, unique[id], "a row stands on two pages")
		unique[id] = true
	}
	rows, _, err := a.store.List(ctx, platform, governance.ListFilter{}, governance.Page{})
	require.NoError(t, err)
	require.Len(t, rows, 1, "a page has at least one row")
	rows, _, err = a.store.List(ctx, bound(a.foreign), governance.ListFilter{}, governance.Page{Limit: 250})
	require.NoError(t, err)
	for i := range rows {
		require.NotContains(t, all, a.meta(&rows[i]).ID)
	}

	require.ErrorIs(t, a.store.Delete(ctx, bound(a.foreign), m.ID, 0), governance.ErrNotFound)
	require.ErrorIs(t, a.store.Delete(ctx, platform, m.ID, 1), governance.ErrConflict)
	require.NoError(t, a.store.Delete(ctx, platform, m.ID, 2))
	require.ErrorIs(t, a.store.Delete(ctx, platform, m.ID, 0), governance.ErrNotFound)
	_, err = a.store.Get(ctx, platform, m.ID)
	require.ErrorIs(t, err, governance.ErrNotFound)
	_, err = a.store.Update(ctx, platform, after)
	require.ErrorIs(t, err, governance.ErrNotFound)
	require.NoError(t, a.store.Delete(ctx, bound(a.home), all[1], 0), "any version")
	rows, _, err = a.store.List(ctx, platform, governance.ListFilter{Deleted: true}, governance.Page{Limit: 250})
	require.NoError(t, err)
	found := false
	for i := range rows {
		if k := a.meta(&rows[i]); k.ID == m.ID {
			found = true
			require.False(t, k.DeletedAt.IsZero())
		}
	}
	require.True(t, found, "history keeps what was deleted")
}

package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

func providersFollowTheContract(t *testing.T, s Stores) {
	home, foreign := newOrganization(t, s, "home"), newOrganization(t, s, "foreign")
	follow(t, aggregate[governance.Provider]{
		store: s.Providers, kind: ids.Provider, home: home, foreign: foreign,
		row: func(n int) governance.Provider {
			return governance.Provider{
				Organization: ref(home.Meta), Name: fmt.Sprint("provider ", n), Kind: "openai", BaseURL: "https://api.example.com/v1",
			}
		},
		meta: func(p *governance.Provider) *governance.Meta { return &p.Meta },
		change: func(p *governance.Provider) {
			p.Name, p.BaseURL, p.PriceProvider = "other", "https://other.example.com", "openai"
		},
		same: func(t *testing.T, want, got governance.Provider) {
			want.Meta, got.Meta = governance.Meta{}, governance.Meta{}
			require.Equal(t, want, got)
		},
	})
	for _, url := range []string{"", "api.example.com", "ftp://x", "https://user:pw@x", "https://x/?key=y", "https://x/#y", "https://"} {
		_, err := s.Providers.Create(t.Context(), platform, governance.Provider{Name: "bad", Kind: "openai", BaseURL: url})
		requireField(t, err, "base_url")
	}
}

func credentialsAreWriteOnly(t *testing.T, s Stores) {
	o := newOrganization(t, s, "o")
	p := newProvider(t, s, ref(o.Meta), "p")
	require.True(t, p.CredentialOK)
	require.True(t, p.Credential.IsZero())
	p.Name = "renamed"
	p, err := s.Providers.Update(t.Context(), platform, p)
	require.NoError(t, err)
	require.True(t, p.CredentialOK, "a zero credential keeps the stored one")
	rows, _, err := s.Providers.List(t.Context(), platform, governance.ListFilter{}, governance.Page{Limit: 9})
	require.NoError(t, err)
	require.True(t, rows[0].CredentialOK)
	require.True(t, rows[0].Credential.IsZero())
	without, err := s.Providers.Create(t.Context(), platform, governance.Provider{Name: "without", Kind: "openai", BaseURL: "http://localhost:1"})
	require.NoError(t, err)
	require.False(t, without.CredentialOK)
}

func aChangedURLDoesNotDecrypt(t *testing.T, s Stores) {
	p := newProvider(t, s, governance.Ref{}, "p")
	p.BaseURL = "https://API.example.com/v2"
	p, err := s.Providers.Update(t.Context(), platform, p)
	require.NoError(t, err)
	require.True(t, p.CredentialOK, "the path is no part of where a credential goes")
	for _, url := range []string{"http://api.example.com/v2", "https://evil.example.com/v2", "https://api.example.com:444/v2"} {
		moved := p
		moved.BaseURL = url
		_, err = s.Providers.Update(t.Context(), platform, moved)
		requireField(t, err, "credential")
		kept, err := s.Providers.Get(t.Context(), platform, p.ID)
		require.NoError(t, err)
		require.Equal(t, p, kept, "a refused move changes nothing")
	}
	p.BaseURL, p.Credential = "https://other.example.com", secret.New("sk-new")
	p, err = s.Providers.Update(t.Context(), platform, p)
	require.NoError(t, err)
	require.True(t, p.CredentialOK)
	p.BaseURL, p.DropCredential = "http://localhost:1", true
	p, err = s.Providers.Update(t.Context(), platform, p)
	require.NoError(t, err)
	require.False(t, p.CredentialOK)
	p.BaseURL, p.DropCredential = "http://localhost:2", false
	_, err = s.Providers.Update(t.Context(), platform, p)
	require.NoError(t, err, "where there is no credential, none is lost")
}

func modelsFollowTheContract(t *testing.T, s Stores) {
	home, foreign := newOrganization(t, s, "home"), newOrganization(t, s, "foreign")
	own := newProvider(t, s, ref(home.Meta), "own")
	follow(t, aggregate[governance.Model]{
		store: s.Models, kind: ids.Model, home: home, foreign: foreign,
		row: func(n int) governance.Model {
			return governance.Model{
				Organization: ref(home.Meta), Name: fmt.Sprint("model-", n),
				Targets: []governance.ModelTarget{{Provider: ref(own.Meta), Upstream: fmt.Sprint("up-", n), Weight: 3, Priority: 1}},
			}
		},
		meta: func(m *governance.Model) *governance.Meta { return &m.Meta },
		change: func(m *governance.Model) {
			m.Name = "other"
			m.Targets = append([]governance.ModelTarget{{Provider: ref(own.Meta), Upstream: "first", Weight: 1}}, m.Targets...)
		},
		same: func(t *testing.T, want, got governance.Model) {
			require.Equal(t, want.Name, got.Name)
			require.Equal(t, want.Organization, got.Organization)
			require.Len(t, got.Targets, len(want.Targets))
			for i, w := range want.Targets {
				require.Equal(t, w.Upstream, got.Targets[i].Upstream)
				require.Equal(t, own.Num, got.Targets[i].Provider.Num)
				require.Equal(t, []int{w.Weight, w.Priority}, []int{got.Targets[i].Weight, got.Targets[i].Priority})
			}
		},
	})
}

func modelsMakeAndShareTargets(t *testing.T, s Stores) {
	p := newProvider(t, s, governance.Ref{}, "p")
	first, err := s.Models.Create(t.Context(), platform, governance.Model{
		Name: "a", Targets: []governance.ModelTarget{{Provider: ref(p.Meta), Upstream: "up"}},
	})
	require.NoError(t, err)
	require.Equal(t, 1, first.Targets[0].Weight, "where none is said")
	second, err := s.Models.Create(t.Context(), platform, governance.Model{
		Name: "b", Targets: []governance.ModelTarget{{Target: governance.Ref{ID: first.Targets[0].Target.ID}, Weight: 2}},
	})
	require.NoError(t, err)
	require.Equal(t, first.Targets[0].Target.Num, second.Targets[0].Target.Num)
	for field, targets := range map[string][]governance.ModelTarget{
		"targets[1]":                {{Provider: ref(p.Meta), Upstream: "up"}, {Provider: ref(p.Meta), Upstream: "up"}},
		"targets[0].provider_id":    {{Upstream: "up"}},
		"targets[0].upstream_model": {{Provider: ref(p.Meta)}},
		"targets[0].target_id":      {{Target: governance.Ref{ID: ids.NewPublic(ids.Target)}}},
		"weight":                    {{Provider: ref(p.Meta), Upstream: "up", Weight: -1}},
	} {
		_, err := s.Models.Create(t.Context(), platform, governance.Model{Name: "bad", Targets: targets})
		requireField(t, err, field)
	}
	_, err = s.Models.Create(t.Context(), platform, governance.Model{Name: "a"})
	require.ErrorIs(t, err, governance.ErrExists)
	require.NoError(t, s.Providers.Delete(t.Context(), platform, p.ID, 0))
	again, err := s.Models.Get(t.Context(), platform, first.ID)
	require.NoError(t, err)
	require.Empty(t, again.Targets, "a deleted provider serves nothing")
}

func thePlatformOffersToAll(t *testing.T, s Stores) {
	o, foreign := newOrganization(t, s, "o"), newOrganization(t, s, "foreign")
	p, theirs := newProvider(t, s, governance.Ref{}, "p"), newProvider(t, s, ref(foreign.Meta), "theirs")
	shared, err := s.Models.Create(t.Context(), platform, governance.Model{
		Name: "m", Targets: []governance.ModelTarget{{Provider: ref(p.Meta), Upstream: "up"}},
	})
	require.NoError(t, err)
	_, err = s.Models.Get(t.Context(), bound(o), shared.ID)
	require.NoError(t, err)
	_, err = s.Models.Update(t.Context(), bound(o), shared)
	require.ErrorIs(t, err, governance.ErrNotFound)
	require.ErrorIs(t, s.Models.Delete(t.Context(), bound(o), shared.ID, 0), governance.ErrNotFound)
	require.ErrorIs(t, s.Providers.Delete(t.Context(), bound(o), p.ID, 0), governance.ErrNotFound)
	own, err := s.Models.Create(t.Context(), bound(o), governance.Model{
		Name: "m", Targets: []governance.ModelTarget{{Provider: ref(p.Meta), Upstream: "up"}},
	})
	require.NoError(t, err, "its own model shadows the platform's")
	require.Equal(t, o.ID, own.Organization.ID)
	_, err = s.Models.Create(t.Context(), platform, governance.Model{
		Name: "x", Organization: ref(o.Meta), Targets: []governance.ModelTarget{{Provider: ref(theirs.Meta), Upstream: "up"}},
	})
	requireField(t, err, "targets[0].provider_id")
	_, err = s.Models.Create(t.Context(), platform, governance.Model{
		Name: "x", Targets: []governance.ModelTarget{{Provider: ref(theirs.Meta), Upstream: "up"}},
	})
	requireField(t, err, "targets[0].provider_id")
}

func targetsMayBePatched(t *testing.T, s Stores) {
	o := newOrganization(t, s, "o")
	p := newProvider(t, s, governance.Ref{}, "p")
	model, err := s.Models.Create(t.Context(), platform, governance.Model{
		Name: "m", Targets: []governance.ModelTarget{{Provider: ref(p.Meta), Upstream: "up"}},
	})
	require.NoError(t, err)
	target, err := s.Targets.Get(t.Context(), platform, model.Targets[0].Target.ID)
	require.NoError(t, err)
	require.Equal(t, governance.DisconnectAbort, target.OnDisconnect)
	require.EqualValues(t, 4096, target.ExpectedOutput)
	require.True(t, target.Credential.IsZero())
	require.Nil(t, target.Price)
	added, err := s.Prices.Add(t.Context(), platform, []governance.PriceVersion{
		{Provider: "p", UpstreamModel: "up", Free: true}, {Provider: "p", UpstreamModel: "up", Free: true, EffectiveFrom: time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)},
	})
	require.NoError(t, err)
	drain, yes, most := governance.DisconnectDrain, true, int64(5)
	patched, err := s.Targets.Patch(t.Context(), platform, target.ID, target.Version, governance.TargetPatch{
		OnDisconnect: &drain, NoStreamOptions: &yes, MaxOutput: &most, Drop: &[]string{"temperature", "seed"},
	})
	require.NoError(t, err)
	require.Equal(t, governance.DisconnectDrain, patched.OnDisconnect)
	require.True(t, patched.NoStreamOptions)
	require.EqualValues(t, 5, patched.MaxOutput)
	require.Equal(t, added[0].ID, patched.Price.ID)
	_, err = s.Targets.Patch(t.Context(), platform, target.ID, target.Version, governance.TargetPatch{})
	require.ErrorIs(t, err, governance.ErrConflict)
	_, err = s.Targets.Patch(t.Context(), bound(o), target.ID, 0, governance.TargetPatch{})
	require.ErrorIs(t, err, governance.ErrNotFound)
	require.Equal(t, []string{"temperature", "seed"}, patched.Drop)
	for _, names := range [][]string{{"top_p", "model"}, {"top_p", "Temperature"}, {"top_p", "top_p"}, {"top_p", ""}} {
		_, err = s.Targets.Patch(t.Context(), platform, target.ID, 0, governance.TargetPatch{Drop: &names})
		requireField(t, err, "drop[1]")
	}
	minus := int64(-1)
	_, err = s.Targets.Patch(t.Context(), platform, target.ID, 0, governance.TargetPatch{MaxOutput: &minus})
	requireField(t, err, "max_output")
	unchanged, err := s.Targets.Patch(t.Context(), platform, target.ID, 0, governance.TargetPatch{})
	require.NoError(t, err)
	require.EqualValues(t, 5, unchanged.MaxOutput)
	require.Equal(t, []string{"temperature", "seed"}, unchanged.Drop)
	list, _, err := s.Targets.List(t.Context(), platform, governance.ListFilter{Provider: p.ID}, governance.Page{Limit: 9})
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, added[0].ID, list[0].Price.ID)
}

func price(model string, from time.Time) governance.PriceVersion {
	return governance.PriceVersion{
		Provider: "openai", UpstreamModel: model, EffectiveFrom: from, Source: "test",
		Tiers: []governance.PriceTier{
			{Prices: governance.UnitPrices{governance.UnitInput: 2_500_000_000, governance.UnitOutput: 10_000_000_000}},
			{FromInput: 200_001, Prices: governance.UnitPrices{governance.UnitInput: 5_000_000_000}},
			{ServiceTier: "flex", Prices: governance.UnitPrices{}},
		},
	}
}

func pricesAreOnlyAdded(t *testing.T, s Stores) {
	empty, err := s.Prices.Empty(t.Context())
	require.NoError(t, err)
	require.True(t, empty)
	later := time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)
	added, err := s.Prices.Add(t.Context(), platform, []governance.PriceVersion{price("a", later), price("b", time.Time{})})
	require.NoError(t, err)
	require.Len(t, added, 2)
	require.Equal(t, []string{"a", "b"}, []string{added[0].UpstreamModel, added[1].UpstreamModel})
	require.Equal(t, later, added[0].EffectiveFrom)
	require.False(t, added[1].EffectiveFrom.IsZero(), "active at once")
	require.Equal(t, price("a", later).Tiers, added[0].Tiers)
	empty, err = s.Prices.Empty(t.Context())
	require.NoError(t, err)
	require.False(t, empty)
	read, err := s.Prices.Get(t.Context(), added[0].ID)
	require.NoError(t, err)
	require.Equal(t, added[0], read)
	for _, id := range []string{"", ids.NewPublic(ids.Price), "x"} {
		_, err = s.Prices.Get(t.Context(), id)
		require.ErrorIs(t, err, governance.ErrNotFound)
	}
	_, err = s.Prices.Add(t.Context(), platform, []governance.PriceVersion{price("c", later), price("a", later)})
	require.ErrorIs(t, err, governance.ErrExists)
	list, next, err := s.Prices.List(t.Context(), "openai", "", governance.Page{Limit: 1})
	require.NoError(t, err)
	require.Equal(t, added[1].ID, list[0].ID, "newest first, and nothing of a failed change")
	list, next, err = s.Prices.List(t.Context(), "openai", "", governance.Page{Limit: 1, Cursor: next})
	require.NoError(t, err)
	require.Empty(t, next)
	require.Equal(t, added[0].ID, list[0].ID)
	list, _, err = s.Prices.List(t.Context(), "openai", "nothing", governance.Page{Limit: 1})
	require.NoError(t, err)
	require.Empty(t, list)
}

func pricesRefuseWhatHasNoPrice(t *testing.T, s Stores) {
	for field, bad := range map[string]governance.PriceVersion{
		"provider":       {UpstreamModel: "m", Free: true},
		"upstream_model": {Provider: "p", Free: true},
		"free":           {Provider: "p", UpstreamModel: "m", Tiers: []governance.PriceTier{{}}},
		"tiers": {Provider: "p", UpstreamModel: "m", Tiers: []governance.PriceTier{
			{FromInput: 5, Prices: governance.UnitPrices{governance.UnitInput: 1}},
		}},
		"usd_per_million": {Provider: "p", UpstreamModel: "m", Tiers: []governance.PriceTier{{Prices: governance.UnitPrices{-1}}}},
	} {
		_, err := s.Prices.Add(t.Context(), platform, []governance.PriceVersion{bad})
		requireField(t, err, field)
	}
	free, err := s.Prices.Add(t.Context(), platform, []governance.PriceVersion{{Provider: "p", UpstreamModel: "m", Free: true}})
	require.NoError(t, err)
	require.True(t, free[0].Free)
	require.Len(t, free[0].Tiers, 1)
}

package pgstore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/storetest"
	"github.com/tollgate-gateway/tollgate/internal/pgtest"
	"github.com/tollgate-gateway/tollgate/internal/seal"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

const (
	soon = 20 * time.Second // for what has no bound of its own
	tick = 2 * time.Millisecond
)

// fleet is one database with stores that change it and any number of replicas that look at it.
type fleet struct {
	storetest.Stores
	super *pgxpool.Pool
	keys  *seal.Keys
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{super: pgtest.New(t), keys: newKeys(t)}
	f.Stores = stores(as(t, f.super, "tollgate_control"), as(t, f.super, "tollgate_gateway"), f.keys, newPeppers(t))
	return f
}

// replica runs a picture with the privileges of the data plane until the test ends.
func (f *fleet) replica(t *testing.T, o CatalogOptions) *Catalogs {
	t.Helper()
	c := NewCatalogs(as(t, f.super, "tollgate_gateway"), f.keys, o)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	require.NoError(t, c.Refresh(t.Context(), 0))
	return c
}

func (f *fleet) direct(t *testing.T) Options {
	t.Helper()
	return Options{DSN: secret.New(pgtest.RoleDSN(t, f.super, "tollgate_gateway")), TimeoutsOnRole: true}
}

func (f *fleet) model(t *testing.T) governance.Model {
	t.Helper()
	p, err := f.Providers.Create(t.Context(), admin, governance.Provider{
		Name: "openai", Kind: "openai", BaseURL: "https://api.example.com", Credential: secret.New("sk-upstream"),
	})
	require.NoError(t, err)
	m, err := f.Models.Create(t.Context(), admin, governance.Model{
		Name: "gpt", Targets: []governance.ModelTarget{{Provider: governance.Ref{ID: p.ID}, Upstream: "gpt-4o"}},
	})
	require.NoError(t, err)
	return m
}

// listening waits until so many sessions listen.
func (f *fleet) listening(t *testing.T, want int) {
	t.Helper()
	require.Eventually(t, func() bool {
		var n int
		err := f.super.QueryRow(t.Context(),
			"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'").Scan(&n)
		return err == nil && n == want
	}, soon, tick)
}

func TestCatalogs_ReadEverything(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.model(t)
	_, err := f.Prices.Add(t.Context(), admin, []governance.PriceVersion{{
		Provider: "openai", UpstreamModel: "gpt-4o",
		Tiers: []governance.PriceTier{{Prices: governance.UnitPrices{governance.UnitInput: 7}}},
	}})
	require.NoError(t, err)
	o, err := f.Organizations.Create(t.Context(), admin, governance.Organization{Name: "o"})
	require.NoError(t, err)
	l, err := f.Limits.Create(t.Context(), admin, governance.Limit{
		Scope: governance.Scope{Type: governance.ScopeOrganization, Subject: governance.Ref{ID: o.ID}},
		Kind:  governance.KindRate, Metric: governance.MetricTokens, Amount: 5, Per: time.Minute, CarryDebt: true,
	})
	require.NoError(t, err)
	_, err = f.super.Exec(t.Context(), "INSERT INTO tollgate.output_statistics (target_id, p99_output, p95_rate) VALUES ($1, 2000, 50)", m.Targets[0].Target.Num)
	require.NoError(t, err)

	c, err := f.replica(t, CatalogOptions{}).Current()
	require.NoError(t, err)
	got := c.Model(o.Num, "gpt")
	require.NotNil(t, got)
	require.Equal(t, m.ID, got.ID)
	target := c.Target(got.Targets[0].Target.Num)
	require.NotNil(t, target)
	require.Equal(t, "sk-upstream", target.Credential.Reveal())
	require.Equal(t, "https://api.example.com", target.BaseURL)
	require.Equal(t, "openai", target.ProviderKind)
	require.EqualValues(t, 7, target.Price.Tiers[0].Prices[governance.UnitInput])
	require.EqualValues(t, 2000, target.ExpectedOutput)
	require.EqualValues(t, 50, target.OutputRate)
	require.Equal(t, []*governance.Limit{&l}, c.Limits.Named(governance.ScopeOrganization, o.Num))
}

// What is changed through one replica is in force on the others within a second, whether they are told or have to look.
func TestF136_F137_F173_AChangeIsInForceEverywhereWithinASecond(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		options func(*testing.T, *fleet) CatalogOptions
	}{
		{"told", func(t *testing.T, f *fleet) CatalogOptions {
			return CatalogOptions{Direct: f.direct(t), Poll: time.Hour}
		}},
		{"looking", func(*testing.T, *fleet) CatalogOptions { return CatalogOptions{} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			first, second := f.replica(t, c.options(t, f)), f.replica(t, c.options(t, f))
			if c.name == "told" {
				f.listening(t, 2)
			}
			told := make(chan int64, 100)
			second.Changed(func(kind string, num int64) {
				if kind == "key" {
					told <- num
				}
			})
			o, err := f.Organizations.Create(t.Context(), admin, governance.Organization{Name: "o"})
			require.NoError(t, err)
			k, limits, err := f.Keys.Issue(t.Context(), admin, governance.VirtualKey{Organization: governance.Ref{ID: o.ID}, Name: "k"},
				[]governance.Limit{{Kind: governance.KindConcurrency, Metric: governance.MetricRequests, Amount: 50, CarryDebt: true}})
			require.NoError(t, err)
			var waits []time.Duration
			for amount := range int64(5) {
				limits[0].Amount = amount
				limits[0], err = f.Limits.Update(t.Context(), admin, limits[0])
				require.NoError(t, err)
				at := time.Now()
				for _, replica := range []*Catalogs{first, second} {
					require.Eventually(t, func() bool {
						picture, err := replica.Current()
						if err != nil {
							return false
						}
						named := picture.Limits.Named(governance.ScopeKey, k.Num)
						return len(named) == 1 && named[0].Amount == amount
					}, soon, tick)
				}
				waits = append(waits, time.Since(at))
			}
			slices.Sort(waits)
			require.LessOrEqual(t, waits[len(waits)/2], time.Second, "the median, since other work may hold up the machine: %v", waits)

			_, err = f.Keys.Revoke(t.Context(), admin, k.ID)
			require.NoError(t, err)
			deadline := time.NewTimer(soon)
			defer deadline.Stop()
			for range 2 { // issued, revoked
				select {
				case num := <-told:
					require.Equal(t, k.Num, num)
				case <-deadline.C:
					t.Fatal("caches were not told of the revoked key")
				}
			}
		})
	}
}

// Neither notified nor looking by itself, a process still follows the version that its traffic names.
func TestCatalogs_FollowAVersionThatIsNoticed(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	c := f.replica(t, CatalogOptions{Poll: time.Hour})
	seen := c.state.Load().catalog.Version
	m, err := f.Models.Create(t.Context(), admin, governance.Model{Name: "m"})
	require.NoError(t, err)
	c.Notice(seen + 1)
	require.Eventually(t, func() bool { return c.state.Load().catalog.Model(0, m.Name) != nil }, soon, tick)
}

func TestF136_ALostListenerIsReplaced(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	c := f.replica(t, CatalogOptions{Direct: f.direct(t), Poll: time.Hour})
	for n := range 2 {
		f.listening(t, 1)
		m, err := f.Models.Create(t.Context(), admin, governance.Model{Name: fmt.Sprint("m", n)})
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			s := c.state.Load()
			return s.catalog.Model(0, m.Name) != nil
		}, soon, tick)
		_, err = f.super.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'")
		require.NoError(t, err)
		f.listening(t, 0)
	}
	m, err := f.Models.Create(t.Context(), admin, governance.Model{Name: "while deaf"})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return c.state.Load().catalog.Model(0, m.Name) != nil }, soon, tick)
}

func TestCatalogs_GrowStaleAndRecover(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	unread := NewCatalogs(f.super, f.keys, CatalogOptions{})
	_, err := unread.Current()
	require.ErrorIs(t, err, governance.ErrStale)
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, unread.Refresh(short, 1), context.DeadlineExceeded)

	c := f.replica(t, CatalogOptions{Poll: 20 * time.Millisecond, MaxAge: 300 * time.Millisecond})
	_, err = c.Current()
	require.NoError(t, err)
	elsewhere := f.super.Config().ConnConfig.Copy()
	name := elsewhere.Database
	elsewhere.Database = "postgres"
	other, err := pgx.ConnectConfig(t.Context(), elsewhere)
	require.NoError(t, err)
	t.Cleanup(func() { _ = other.Close(context.WithoutCancel(t.Context())) })
	database := pgx.Identifier{name}.Sanitize()
	_, err = other.Exec(t.Context(), "ALTER DATABASE "+database+" ALLOW_CONNECTIONS false")
	require.NoError(t, err)
	_, err = other.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
	require.NoError(t, err)
	require.Eventually(t, func() bool { _, err := c.Current(); return err != nil }, soon, tick)
	_, err = c.Current()
	require.ErrorIs(t, err, governance.ErrStale)
	_, err = other.Exec(t.Context(), "ALTER DATABASE "+database+" ALLOW_CONNECTIONS true")
	require.NoError(t, err)
	require.Eventually(t, func() bool { _, err := c.Current(); return err == nil }, soon, tick)
}

// A change reads only the limits that it touched; the others stay as they are.
func TestCatalogs_TakeOverUntouchedLimits(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	o, err := f.Organizations.Create(t.Context(), admin, governance.Organization{Name: "o"})
	require.NoError(t, err)
	var limits []governance.Limit
	for n := range 3 {
		l, err := f.Limits.Create(t.Context(), admin, governance.Limit{
			Scope: governance.Scope{Type: governance.ScopeOrganization, Subject: governance.Ref{ID: o.ID}}, Routes: []string{fmt.Sprint(n)},
			Kind: governance.KindConcurrency, Metric: governance.MetricRequests, Amount: 5, CarryDebt: true,
		})
		require.NoError(t, err)
		limits = append(limits, l)
	}
	c := NewCatalogs(f.super, f.keys, CatalogOptions{})
	require.NoError(t, c.look(t.Context()))
	before, err := c.Current()
	require.NoError(t, err)
	require.NoError(t, f.Limits.Delete(t.Context(), admin, limits[0].ID, 0))
	limits[1].Amount = 6
	_, err = f.Limits.Update(t.Context(), admin, limits[1])
	require.NoError(t, err)
	require.NoError(t, c.look(t.Context()))
	after, err := c.Current()
	require.NoError(t, err)
	require.Greater(t, after.Version, before.Version)
	require.Nil(t, after.Limits.Limit(limits[0].Num))
	require.EqualValues(t, 6, after.Limits.Limit(limits[1].Num).Amount)
	require.Same(t, before.Limits.Limit(limits[2].Num), after.Limits.Limit(limits[2].Num))
	require.NotNil(t, before.Limits.Limit(limits[0].Num), "a picture never changes")

	_, err = f.super.Exec(t.Context(), "DELETE FROM tollgate.config_changes")
	require.NoError(t, err)
	require.NoError(t, f.Limits.Delete(t.Context(), admin, limits[1].ID, 0))
	_, err = f.super.Exec(t.Context(), "UPDATE tollgate.config_state SET version = version + 20000")
	require.NoError(t, err)
	_, err = f.Organizations.Create(t.Context(), admin, governance.Organization{Name: "far ahead"})
	require.NoError(t, err)
	require.NoError(t, c.look(t.Context()))
	after, err = c.Current()
	require.NoError(t, err)
	require.Nil(t, after.Limits.Limit(limits[1].Num), "what is not listed is read")
	require.NotNil(t, after.Limits.Limit(limits[2].Num))
}

// Prices and limits begin and end at their instants, though nobody changes anything then.
func TestCatalogs_FollowTheClock(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.model(t)
	c := f.replica(t, CatalogOptions{Poll: 20 * time.Millisecond})
	var now time.Time
	require.NoError(t, f.super.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&now))
	begin, end := now.Add(time.Second), now.Add(1500*time.Millisecond)
	_, err := f.Prices.Add(t.Context(), admin, []governance.PriceVersion{
		{Provider: "openai", UpstreamModel: "gpt-4o", Free: true},
		{Provider: "openai", UpstreamModel: "gpt-4o", EffectiveFrom: begin, Tiers: []governance.PriceTier{{Prices: governance.UnitPrices{9}}}},
	})
	require.NoError(t, err)
	_, err = f.Limits.Create(t.Context(), admin, governance.Limit{
		Scope: governance.Scope{Type: governance.ScopeModel, Subject: governance.Ref{ID: m.ID}},
		Kind:  governance.KindConcurrency, Metric: governance.MetricRequests, Amount: 5, StartsAt: begin, ExpiresAt: end,
	})
	require.NoError(t, err)
	require.NoError(t, c.Refresh(t.Context(), 5))
	look := func() (free, limited bool) {
		picture, err := c.Current()
		require.NoError(t, err)
		target := picture.Target(m.Targets[0].Target.Num)
		return target.Price.Free, len(picture.Limits.Named(governance.ScopeModel, m.Num)) > 0
	}
	free, limited := look()
	require.True(t, free)
	require.False(t, limited)
	require.Eventually(t, func() bool { free, limited := look(); return !free && limited }, soon, tick)
	require.Eventually(t, func() bool { _, limited := look(); return !limited }, soon, tick)
}

// Who can only write to the database cannot send a credential elsewhere.
func TestCatalogs_LeaveOutWhatDoesNotDecrypt(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.model(t)
	_, err := f.super.Exec(t.Context(), "UPDATE tollgate.providers SET base_url = 'https://evil.example.com'")
	require.NoError(t, err)
	picture, err := f.replica(t, CatalogOptions{}).Current()
	require.NoError(t, err)
	require.NotNil(t, picture.Model(0, m.Name))
	require.Nil(t, picture.Target(m.Targets[0].Target.Num))
}

// A guardrail is never lost: one whose secret does not open stays in force, without the secret.
func TestCatalogs_KeepGuardrailsInForce(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	replica := f.replica(t, CatalogOptions{})
	inForce := func(holds func(*governance.Guardrail) bool) {
		t.Helper()
		require.Eventually(t, func() bool {
			picture, err := replica.Current()
			return err == nil && len(picture.Guardrails) == 1 && holds(picture.Guardrails[0])
		}, soon, tick)
	}
	g, err := f.Guardrails.Create(t.Context(), admin, governance.Guardrail{
		Name: "ask", Stage: governance.StageBoth, Action: governance.ActionBlock, Secret: secret.New("a secret of the webhook"),
		Rule: governance.GuardrailRule{Type: governance.RuleWebhook, URL: "https://guard.example.com"},
	})
	require.NoError(t, err)
	inForce(func(g *governance.Guardrail) bool {
		return g.Secret.Reveal() == "a secret of the webhook" && g.SecretOK
	})
	_, err = f.super.Exec(t.Context(), `UPDATE tollgate.guardrails SET rule = jsonb_set(rule, '{url}', '"https://evil.example.com"')`)
	require.NoError(t, err)
	_, err = f.super.Exec(t.Context(), "UPDATE tollgate.config_state SET version = version + 1")
	require.NoError(t, err)
	inForce(func(g *governance.Guardrail) bool { return g.Secret.IsZero() && !g.SecretOK })
	require.NoError(t, f.Guardrails.Delete(t.Context(), admin, g.ID, 0))
	require.Eventually(t, func() bool {
		picture, err := replica.Current()
		return err == nil && len(picture.Guardrails) == 0
	}, soon, tick)
}

// A replica that has missed more changes than are listed tells its caches that everything changed.
func TestCatalogs_TellOfEverythingWhenTheListIsTooShort(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	changes := func(seen, loaded int64) []changeRow {
		rows, err := changesSince(t.Context(), f.super, seen, loaded)
		require.NoError(t, err)
		return rows
	}
	require.Len(t, changes(0, 1), len(changeKinds), "nothing is listed")
	o, err := f.Organizations.Create(t.Context(), admin, governance.Organization{Name: "o"})
	require.NoError(t, err)
	require.Equal(t, []changeRow{{"organization", o.Num}}, changes(1, 2))
	require.Len(t, changes(5, 2), len(changeKinds), "the database was restored")
	_, err = f.super.Exec(t.Context(), "UPDATE tollgate.config_state SET version = 20000")
	require.NoError(t, err)
	_, err = f.Organizations.Create(t.Context(), admin, governance.Organization{Name: "p"})
	require.NoError(t, err)
	require.Len(t, changes(1, 20001), len(changeKinds), "old entries are gone")
}

func TestF173_ConfirmSeesWhatWasThereBefore(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	replica := f.replica(t, CatalogOptions{Poll: time.Hour})
	for i := range 5 {
		name := "model " + string(rune('a'+i))
		p, err := f.Providers.Create(t.Context(), admin, governance.Provider{Name: name, Kind: "openai", BaseURL: "https://example.com/v1"})
		require.NoError(t, err)
		_, err = f.Models.Create(t.Context(), admin, governance.Model{Name: name, Targets: []governance.ModelTarget{
			{Provider: governance.Ref{ID: p.ID}, Upstream: name, Weight: 1},
		}})
		require.NoError(t, err)
		require.NoError(t, replica.Confirm(t.Context()))
		c, err := replica.Current()
		require.NoError(t, err)
		require.NotNil(t, c.Model(0, name))
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, replica.Confirm(over), context.Canceled)
}

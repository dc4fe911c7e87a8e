package virtualkey_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/apikey"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/plugins"
	"github.com/tollgate-gateway/tollgate/plugins/plugintest"
	"github.com/tollgate-gateway/tollgate/plugins/virtualkey"
)

type fixture struct {
	*plugintest.Env
	plugin plugins.Authenticator
	t      *testing.T
}

func start(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{Env: plugintest.NewEnv(), t: t}
	p, err := virtualkey.Module().New(f.Env.Plugins(t), plugintest.Config(""))
	require.NoError(t, err)
	f.plugin = p.(plugins.Authenticator)
	return f
}

// issue puts a key into the store.
func (f *fixture) issue(edit ...func(*governance.KeyRecord)) secret.String {
	key, publicID := apikey.New()
	f.store(key, publicID, edit...)
	return key
}

func (f *fixture) store(key secret.String, publicID string, edit ...func(*governance.KeyRecord)) {
	hash, _ := f.Peppers.Sum("p1", key)
	r := governance.KeyRecord{
		Secret:    governance.KeySecret{PublicID: publicID, Hash: hash, PepperID: "p1"},
		Key:       governance.VirtualKey{Meta: governance.Meta{Num: 3}},
		Principal: governance.Principal{Organization: governance.Ref{Num: 1}, Team: governance.Ref{Num: 2}, Key: governance.Ref{Num: 3}, User: governance.Ref{Num: 4}},
	}
	for _, e := range edit {
		e(&r)
	}
	f.Keys.Put(publicID, r)
}

func publicID(t *testing.T, key secret.String) string {
	t.Helper()
	id, err := apikey.Parse(key)
	require.NoError(t, err)
	return id
}

func (f *fixture) try(key secret.String) (governance.Principal, error) {
	return f.from("192.0.2.1", key)
}

func (f *fixture) from(ip string, key secret.String) (governance.Principal, error) {
	return f.plugin.Authenticate(f.t.Context(), &plugins.Call{Credential: key, RemoteIP: ip})
}

func (f *fixture) code(key secret.String) governance.Code {
	_, err := f.try(key)
	if err == nil {
		return ""
	}
	return governance.CodeOf(err)
}

func TestGenuineKey(t *testing.T) {
	t.Parallel()
	f := start(t)
	key := f.issue()
	for range 100 {
		p, err := f.try(key)
		require.NoError(t, err)
		require.Equal(t, int64(3), p.Key.Num)
	}
	require.Equal(t, 1, f.Keys.Lookups())
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	f := start(t)
	past, future := time.Now().Add(-time.Second), time.Now().Add(time.Hour)
	for name, tc := range map[string]struct {
		edit func(*governance.KeyRecord)
		want governance.Code
	}{
		"not yet expired":          {func(r *governance.KeyRecord) { r.Key.ExpiresAt, r.Secret.ExpiresAt = future, future }, ""},
		"expired":                  {func(r *governance.KeyRecord) { r.Key.ExpiresAt = past }, governance.CodeKeyExpired},
		"grace of a rotation over": {func(r *governance.KeyRecord) { r.Secret.ExpiresAt = past }, governance.CodeKeyExpired},
		"revoked":                  {func(r *governance.KeyRecord) { r.Key.RevokedAt = past; r.Key.Blocked = true }, governance.CodeKeyRevoked},
		"deleted":                  {func(r *governance.KeyRecord) { r.Key.DeletedAt = past }, governance.CodeKeyRevoked},
		"blocked":                  {func(r *governance.KeyRecord) { r.Key.Blocked = true }, governance.CodeKeyBlocked},
		"team":                     {func(r *governance.KeyRecord) { r.BlockedBy = "team" }, governance.CodeTeamBlocked},
		"user":                     {func(r *governance.KeyRecord) { r.BlockedBy = "user" }, governance.CodeUserBlocked},
		"organization":             {func(r *governance.KeyRecord) { r.BlockedBy = "organization" }, governance.CodeOrganizationBlocked},
		"wrong secret":             {func(r *governance.KeyRecord) { r.Secret.Hash[0] ^= 1; r.Key.Blocked = true }, governance.CodeInvalidAPIKey},
		"pepper that is not here":  {func(r *governance.KeyRecord) { r.Secret.PepperID = "p9" }, governance.CodeDataStoreUnavailable},
	} {
		require.Equal(t, tc.want, f.code(f.issue(tc.edit)), name)
	}
	unknown, _ := apikey.New()
	require.Equal(t, governance.CodeInvalidAPIKey, f.code(unknown))
	require.InDelta(t, 2, f.Metrics.Value("tollgate_authentication_refusals_total", "invalid_api_key"), 0)
	_, err := f.try(secret.New("sk-proj-something"))
	require.ErrorIs(t, err, plugins.ErrNotMine)
	_, err = f.try(secret.String{})
	require.ErrorIs(t, err, plugins.ErrNotMine)
}

func TestF148_MistypedKeyCostsNoLookup(t *testing.T) {
	t.Parallel()
	f := start(t)
	text := f.issue().Reveal()
	for i := len(apikey.Prefix); i < len(text); i++ {
		digit := "A"
		if text[i] == 'A' {
			digit = "B"
		}
		require.Equal(t, governance.CodeInvalidAPIKey, f.code(secret.New(text[:i]+digit+text[i+1:])))
	}
	require.Zero(t, f.Keys.Lookups())
}

func TestF139_RefusalsShowNothingOfTheKey(t *testing.T) {
	t.Parallel()
	f := start(t)
	f.Keys.Find = func(context.Context, string) (governance.KeyRecord, error) {
		return governance.KeyRecord{}, errors.New("dial tcp 10.0.0.7:5432: refused")
	}
	key, id := apikey.New()
	for _, k := range []secret.String{key, secret.New(key.Reveal() + "x"), secret.New("sk-tg-MARK")} {
		_, err := f.try(k)
		e, ok := errors.AsType[*governance.Error](err)
		require.True(t, ok)
		for _, text := range []string{e.Public, fmt.Sprint(err), fmt.Sprintf("%+v", e.Details)} {
			require.NotContains(t, text, key.Reveal()[20:60])
			require.NotContains(t, text, id)
			require.NotContains(t, text, "MARK")
		}
		require.NotContains(t, e.Public, "10.0.0.7")
	}
}

func TestStoreThatCannotBeRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		key := f.issue()
		require.Empty(t, f.code(key))
		f.Keys.Find = func(context.Context, string) (governance.KeyRecord, error) {
			return governance.KeyRecord{}, governance.ErrStoreAway
		}
		time.Sleep(5*time.Second - time.Nanosecond)
		require.Empty(t, f.code(key), "a warm entry serves until its age")
		time.Sleep(time.Nanosecond)
		_, err := f.try(key)
		require.Equal(t, governance.CodeDataStoreUnavailable, governance.CodeOf(err))
		require.ErrorIs(t, err, governance.ErrStoreAway)
		e, _ := errors.AsType[*governance.Error](err)
		require.Positive(t, e.RetryAfter)
		f.Keys.Find = nil
		require.Empty(t, f.code(key), "a failure is not remembered")
	})
}

func TestF136_AgeIsHardUnderConstantTraffic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		key := f.issue()
		require.Empty(t, f.code(key))
		f.store(key, publicID(t, key), func(r *governance.KeyRecord) { r.Key.Blocked = true })
		began := time.Now()
		for f.code(key) == "" {
			require.LessOrEqual(t, time.Since(began), 5*time.Second)
			time.Sleep(20 * time.Millisecond)
		}
		require.Equal(t, governance.CodeKeyBlocked, f.code(key))
	})
}

func TestAgeCountsFromBeforeTheLookup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		key := f.issue()
		found, err := f.Keys.FindKey(t.Context(), publicID(t, key))
		require.NoError(t, err)
		f.Keys.Find = func(context.Context, string) (governance.KeyRecord, error) {
			time.Sleep(3 * time.Second)
			return found, nil
		}
		require.Empty(t, f.code(key))
		before := f.Keys.Lookups()
		time.Sleep(2*time.Second - time.Nanosecond)
		require.Empty(t, f.code(key))
		require.Equal(t, before, f.Keys.Lookups())
		time.Sleep(time.Nanosecond)
		require.Empty(t, f.code(key))
		require.Equal(t, before+1, f.Keys.Lookups())
	})
}

func TestChangesAreInForceAtOnce(t *testing.T) {
	t.Parallel()
	for kind, num := range map[string]int64{"key": 3, "team": 2, "organization": 1, "user": 4} {
		f := start(t)
		key := f.issue()
		require.Empty(t, f.code(key))
		f.store(key, publicID(t, key), func(r *governance.KeyRecord) { r.Key.RevokedAt = time.Now() })
		f.Change("limit", num)
		f.Change(kind, num+100)
		require.Empty(t, f.code(key), "changes of others leave it")
		f.Change(kind, num)
		require.Equal(t, governance.CodeKeyRevoked, f.code(key), kind)
		f.store(key, publicID(t, key))
		f.Change(kind, 0)
		require.Empty(t, f.code(key), "0 stands for all")
	}
	f := start(t)
	key, id := apikey.New()
	require.Equal(t, governance.CodeInvalidAPIKey, f.code(key))
	f.store(key, id)
	f.Change("key", 77)
	require.Empty(t, f.code(key), "what was unknown may have come into being")
}

func TestF137_LookupFromBeforeAChangeIsNotKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		key := f.issue()
		old, err := f.Keys.FindKey(t.Context(), publicID(t, key))
		require.NoError(t, err)
		revoked := old
		revoked.Key.RevokedAt = time.Now()
		var lookups atomic.Int64
		release := make(chan struct{})
		f.Keys.Find = func(context.Context, string) (governance.KeyRecord, error) {
			if lookups.Add(1) == 1 {
				<-release
				return old, nil
			}
			return revoked, nil
		}
		first := make(chan governance.Code)
		go func() { first <- f.code(key) }()
		synctest.Wait()
		f.Change("key", 3)
		require.Equal(t, governance.CodeKeyRevoked, f.code(key), "who comes after the change does not wait for the old look-up")
		close(release)
		require.Empty(t, <-first)
		require.Equal(t, governance.CodeKeyRevoked, f.code(key), "the old look-up does not write itself back")
	})
}

func TestOneLookupServesAllWhoWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		key := f.issue()
		found, err := f.Keys.FindKey(t.Context(), publicID(t, key))
		require.NoError(t, err)
		release := make(chan struct{})
		before := f.Keys.Lookups()
		f.Keys.Find = func(ctx context.Context, _ string) (governance.KeyRecord, error) {
			<-release
			return found, ctx.Err()
		}
		ctx, leave := context.WithCancel(t.Context())
		gone := make(chan error)
		go func() {
			_, err := f.plugin.Authenticate(ctx, &plugins.Call{Credential: key})
			gone <- err
		}()
		synctest.Wait()
		var group sync.WaitGroup
		for range 100 {
			group.Go(func() {
				if code := f.code(key); code != "" {
					t.Errorf("refused: %s", code)
				}
			})
		}
		synctest.Wait()
		leave()
		require.ErrorIs(t, <-gone, context.Canceled)
		close(release)
		group.Wait()
		require.Equal(t, before+1, f.Keys.Lookups())
	})
}

func TestLookupHasItsOwnTimeLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.Keys.Find = func(ctx context.Context, _ string) (governance.KeyRecord, error) {
			<-ctx.Done()
			return governance.KeyRecord{}, ctx.Err()
		}
		began := time.Now()
		require.Equal(t, governance.CodeDataStoreUnavailable, f.code(f.issue()))
		require.Equal(t, 6*time.Second, time.Since(began))
	})
}

// A key in use is read anew before it is too old, so that its age makes nobody wait: not for a slow store, and not for one
// that has fallen silent meanwhile.
func TestKeysInUseAreRenewedAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		key := f.issue()
		require.Empty(t, f.code(key))
		found, err := f.Keys.FindKey(t.Context(), publicID(t, key))
		require.NoError(t, err)
		var silent atomic.Bool
		f.Keys.Find = func(ctx context.Context, _ string) (governance.KeyRecord, error) {
			if silent.Load() {
				<-ctx.Done()
				return governance.KeyRecord{}, ctx.Err()
			}
			time.Sleep(2 * time.Second)
			return found, nil
		}
		use := func(until time.Duration, code governance.Code) {
			for began := time.Now(); time.Since(began) < until; time.Sleep(100 * time.Millisecond) {
				at := time.Now()
				require.Equal(t, code, f.code(key))
				require.Zero(t, time.Since(at), "a caller waited for the store")
			}
		}
		use(time.Minute, "")
		silent.Store(true)
		for f.code(key) == "" {
			time.Sleep(100 * time.Millisecond)
		}
		use(time.Second, governance.CodeDataStoreUnavailable)
		time.Sleep(10 * time.Second) // until the last look-up has given up
	})
}

// Who comes while the store is known to be silent does not wait for it, whosever key he has; one look-up at a time goes on
// asking, and the first answer lets everybody in again.
func TestNobodyWaitsForASilentStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		first, second := f.issue(), f.issue()
		silent := f.Keys.Find
		f.Keys.Find = func(ctx context.Context, _ string) (governance.KeyRecord, error) {
			<-ctx.Done()
			return governance.KeyRecord{}, ctx.Err()
		}
		const unavailable = governance.CodeDataStoreUnavailable
		var asking sync.WaitGroup
		for range 2 { // the second time the store is known to have failed
			asking.Go(func() { f.code(first) })
			time.Sleep(250 * time.Millisecond)
			synctest.Wait()
			began := time.Now()
			require.Equal(t, unavailable, f.code(first))
			require.Equal(t, unavailable, f.code(second))
			require.Zero(t, time.Since(began))
			asking.Wait()
		}
		asking.Go(func() { f.code(first) })
		synctest.Wait()
		began := time.Now()
		require.Equal(t, unavailable, f.code(second))
		require.Zero(t, time.Since(began))
		asking.Wait()
		f.Keys.Find = silent
		require.Empty(t, f.code(first))
		require.Empty(t, f.code(second))
	})
}

func TestPanicOfTheStoreIsAFailure(t *testing.T) {
	t.Parallel()
	f := start(t)
	f.Keys.Find = func(context.Context, string) (governance.KeyRecord, error) { panic("boom") }
	require.Equal(t, governance.CodeDataStoreUnavailable, f.code(f.issue()))
}

func TestF148_InventedKeysLoadNeitherStoreNorGoodKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		good := f.issue()
		require.Empty(t, f.code(good))
		const seconds, rate = 5, 5_000
		before := f.Keys.Lookups()
		for range seconds * rate {
			key, _ := apikey.New()
			code := f.code(key)
			require.Contains(t, []governance.Code{governance.CodeInvalidAPIKey, governance.CodeRateLimitExceeded}, code)
			require.Empty(t, f.code(good))
			time.Sleep(time.Second / rate)
		}
		require.Less(t, f.Keys.Lookups()-before, 50*seconds)
		other := f.issue()
		_, err := f.from("192.0.2.77", other)
		require.NoError(t, err, "another source is not concerned")
		time.Sleep(time.Second)
		require.Empty(t, f.code(f.issue()), "and this one recovers")
	})
}

func TestF148_SourceWithoutFailuresIsNotBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		for range 1_000 {
			require.Empty(t, f.code(f.issue()))
		}
		unknown, _ := apikey.New()
		require.Equal(t, governance.CodeInvalidAPIKey, f.code(unknown))
		for range 1_000 {
			require.Empty(t, f.code(f.issue()), "a single failure costs good keys nothing")
		}
	})
}

func TestF148_NetworkOfOneClientIsOneSource(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		exhaust := func(ip func(i int) string) (refused int) {
			for i := range 200 {
				key, _ := apikey.New()
				if _, err := f.from(ip(i), key); governance.CodeOf(err) == governance.CodeRateLimitExceeded {
					refused++
				}
			}
			return refused
		}
		require.Positive(t, exhaust(func(i int) string { return fmt.Sprintf("2001:db8:1:2::%x", i) }))
		require.Zero(t, exhaust(func(i int) string { return fmt.Sprintf("2001:db8:1:%x::1", i+100) }))
		require.Zero(t, exhaust(func(i int) string { return fmt.Sprintf("198.51.100.%d", i) }))
		require.Positive(t, exhaust(func(i int) string { return fmt.Sprintf("::ffff:203.0.113.%d", i%2) }))
		require.Positive(t, exhaust(func(int) string { return "no address" }))
	})
}

func TestUnknownKeysAreRememberedShortly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		unknown, _ := apikey.New()
		for range 100 {
			require.Equal(t, governance.CodeInvalidAPIKey, f.code(unknown))
		}
		require.Equal(t, 1, f.Keys.Lookups())
		time.Sleep(5 * time.Second)
		require.Equal(t, governance.CodeInvalidAPIKey, f.code(unknown))
		require.Equal(t, 2, f.Keys.Lookups())
	})
}

func TestUseIsNotedOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		one := f.issue(func(r *governance.KeyRecord) { r.Key.Num = 9 })
		two := f.issue()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.plugin.(plugins.Runner).Run(ctx) }()
		for range 59 {
			require.Empty(t, f.code(one))
			require.Empty(t, f.code(two))
			time.Sleep(time.Second)
		}
		require.Empty(t, f.Keys.Touched())
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, [][]int64{{3, 9}}, f.Keys.Touched())
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Len(t, f.Keys.Touched(), 1, "nothing was used")
		require.Empty(t, f.code(two))
		cancel()
		require.NoError(t, <-ended)
		require.Equal(t, [][]int64{{3, 9}, {3}}, f.Keys.Touched(), "what is left is noted at the end")
	})
}

// A key that is stored under an old pepper is stored under the current one after its next use.
func TestKeysMoveToTheCurrentPepper(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		key := f.issue()
		f.Peppers["p2"] = "newer pepper"
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.plugin.(plugins.Runner).Run(ctx) }()
		require.Empty(t, f.code(key))
		cancel()
		require.NoError(t, <-ended)
		all := f.Keys.Rehashed()
		require.Len(t, all, 1)
		want, _ := f.Peppers.Sum("p2", key)
		require.Equal(t, "p2", all[0].PepperID)
		require.Equal(t, want, all[0].Hash)
		was, _ := f.Peppers.Sum("p1", key)
		require.Equal(t, was, all[0].Was.Hash)
	})
}

func TestTheOperatorsAgeHoldsForKeysToo(t *testing.T) {
	t.Parallel()
	f := &fixture{Env: plugintest.NewEnv(), t: t}
	env := f.Plugins(t)
	env.MaxAge = time.Nanosecond
	p, err := virtualkey.Module().New(env, plugintest.Config(""))
	require.NoError(t, err)
	f.plugin = p.(plugins.Authenticator)
	key := f.issue()
	for range 2 {
		_, err = f.try(key)
		require.NoError(t, err)
	}
	require.Equal(t, 2, f.Keys.Lookups())
}

func TestSettings(t *testing.T) {
	t.Parallel()
	for section, want := range map[plugintest.Config]string{
		"max_age: 6s": "max_age", "max_age: 0s": "max_age", "max_age: -1s": "max_age", "max_entries: 0": "max_entries",
		"max_age: 10s\nmax_entries: 9999999": "max_entries", "max_age: soon": "decode",
	} {
		_, err := virtualkey.Module().New(plugintest.NewEnv().Plugins(t), section)
		require.Error(t, err, section)
		require.True(t, strings.Contains(err.Error(), want), err)
	}
}

func BenchmarkWarmKey(b *testing.B) {
	env := plugintest.NewEnv()
	p, err := virtualkey.Module().New(env.Plugins(b), plugintest.Config(""))
	require.NoError(b, err)
	key, id := apikey.New()
	hash, _ := env.Peppers.Sum("p1", key)
	env.Keys.Put(id, governance.KeyRecord{Secret: governance.KeySecret{Hash: hash, PepperID: "p1"}})
	c := &plugins.Call{Credential: key, RemoteIP: "192.0.2.1"}
	a := p.(plugins.Authenticator)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := a.Authenticate(b.Context(), c); err != nil {
			b.Fatal(err)
		}
	}
}

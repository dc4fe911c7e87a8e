package pgstore

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/pgtest"
	"github.com/tollgate-gateway/tollgate/internal/pricebook"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// Of many changes of one version one happens, and the audit has each change once with its exact before-image.
func TestChanges_FollowEachOther(t *testing.T) {
	t.Parallel()
	super := pgtest.New(t)
	s := NewOrganizations(as(t, super, "tollgate_control"))
	o, err := s.Create(t.Context(), admin, governance.Organization{Name: "o"})
	require.NoError(t, err)
	var won atomic.Int64
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			changed := o
			changed.Name = fmt.Sprint("o", n)
			switch _, err := s.Update(t.Context(), admin, changed); {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, governance.ErrConflict):
				t.Error(err)
			}
		})
		all.Go(func() {
			if _, err := s.Create(t.Context(), admin, governance.Organization{Name: "same"}); err != nil && !errors.Is(err, governance.ErrExists) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 1, won.Load())
	var version, changes, audited, organizations int
	err = super.QueryRow(t.Context(), `SELECT (SELECT version FROM tollgate.config_state), (SELECT count(*) FROM tollgate.config_changes),
		(SELECT count(*) FROM tollgate.audit_log), (SELECT count(*) FROM tollgate.organizations)`).Scan(&version, &changes, &audited, &organizations)
	require.NoError(t, err)
	require.Equal(t, []int{4, 3, 3, 2}, []int{version, changes, audited, organizations})
}

// The whole public book goes in as one change, in less time than a session may take for a statement, and once.
func TestPrices_TakeTheWholeBook(t *testing.T) {
	t.Parallel()
	super := pgtest.New(t)
	s := NewPrices(as(t, super, "tollgate_control"))
	book, err := pricebook.Load(time.Now())
	require.NoError(t, err)
	var all sync.WaitGroup
	var filled atomic.Pointer[[]governance.PriceVersion]
	for range 3 {
		all.Go(func() {
			switch added, err := s.Fill(t.Context(), governance.Actor{Kind: "system", ID: "system"}, book); {
			case err == nil && !filled.CompareAndSwap(nil, &added):
				t.Error("the book was filled twice")
			case err != nil && !errors.Is(err, governance.ErrExists) && !errors.Is(err, governance.ErrStoreAway):
				t.Error(err) // one that had to wait too long for the others tries again
			}
		})
	}
	all.Wait()
	added := *filled.Load()
	require.Len(t, added, len(book))
	for i, v := range added {
		require.Equal(t, book[i].UpstreamModel, v.UpstreamModel)
		require.Equal(t, book[i].Tiers, v.Tiers, "%s %s", v.Provider, v.UpstreamModel)
	}
	changes, err := many[changeRow](t.Context(), super, "changes_since", args{"seen": int64(0), "loaded": int64(2)})
	require.NoError(t, err)
	require.Equal(t, []changeRow{{"price", 0}}, changes, "too many to list: all of them")
}

// A claim that its gateway never finished ends, and what is older than a day is as if it had never been.
func TestIdempotency_ClaimsEnd(t *testing.T) {
	t.Parallel()
	super := pgtest.New(t)
	o, err := NewOrganizations(super).Create(t.Context(), admin, governance.Organization{Name: "o"})
	require.NoError(t, err)
	k, err := NewKeys(super, newPeppers(t)).Create(t.Context(), admin, governance.VirtualKey{Organization: governance.Ref{ID: o.ID}, Name: "k"})
	require.NoError(t, err)
	s := NewIdempotency(as(t, super, "tollgate_gateway"))
	request, body := ids.New(time.Now()), [32]byte{1}
	_, err = s.Begin(t.Context(), k.Num, "x", body, request)
	require.NoError(t, err)
	_, err = super.Exec(t.Context(), "UPDATE tollgate.idempotency_keys SET claimed_until = clock_timestamp()")
	require.NoError(t, err)
	seen, err := s.Begin(t.Context(), k.Num, "x", body, request)
	require.NoError(t, err)
	require.True(t, seen)
	_, err = super.Exec(t.Context(), "UPDATE tollgate.idempotency_keys SET expires_at = clock_timestamp()")
	require.NoError(t, err)
	seen, err = s.Begin(t.Context(), k.Num, "x", [32]byte{2}, request)
	require.NoError(t, err)
	require.False(t, seen)
	_, err = super.Exec(t.Context(), "UPDATE tollgate.idempotency_keys SET expires_at = clock_timestamp()")
	require.NoError(t, err)
	pruned, err := s.Prune(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, pruned)
}

// F139: nothing in the database is, or leads without the pepper to, a key or a credential.
func TestF139_NoSecretInTheDatabase(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.model(t)
	o, err := f.Organizations.Create(t.Context(), admin, governance.Organization{Name: "o"})
	require.NoError(t, err)
	k, _, err := f.Keys.Issue(t.Context(), admin, governance.VirtualKey{Organization: governance.Ref{ID: o.ID}, Name: "k"}, nil)
	require.NoError(t, err)
	tables, err := f.super.Query(t.Context(), "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname IN ('tollgate', 'ledger')")
	require.NoError(t, err)
	names, err := pgx.CollectRows(tables, pgx.RowTo[string])
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range names {
		rows, err := f.super.Query(t.Context(), "SELECT t::text FROM "+name+" AS t")
		require.NoError(t, err)
		texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		dump := strings.Join(texts, "\n")
		require.NotContains(t, dump, k.Secret.Reveal()[18:61], name)
		require.NotContains(t, dump, "sk-upstream", name)
		require.NotContains(t, dump, fmt.Sprintf("%x", "sk-upstream"), name)
	}
}

// Lists and look-ups find their rows by an index, however many there are.
func TestF161_ListsUseIndexes(t *testing.T) {
	t.Parallel()
	super := pgtest.New(t)
	_, err := super.Exec(t.Context(), `
		WITH o AS (
			INSERT INTO tollgate.organizations (public_id, name) SELECT 'org_' || lpad(n::text, 12, '0'), 'o' || n FROM generate_series(1, 200) AS n
			RETURNING id
		), k AS (
			INSERT INTO tollgate.virtual_keys (public_id, organization_id, name)
			SELECT 'key_' || lpad((o.id * 1000 + n)::text, 12, '0'), o.id, 'k' || n FROM o, generate_series(1, 250) AS n
			RETURNING id, organization_id
		), s AS (
			INSERT INTO tollgate.key_secrets (public_id, key_id, hash, pepper_id, last4)
			SELECT lpad(id::text, 12, '0'), id, sha256('x'), 'p', 'xxxx' FROM k
		), l AS (
			INSERT INTO tollgate.limits (public_id, organization_id, scope_type, scope_id, kind, metric, amount, per_seconds, burst)
			SELECT 'lim_' || lpad(id::text, 12, '0'), organization_id, 'key', id, 'rate', 'requests', 5, 60, 5 FROM k
		)
		INSERT INTO tollgate.audit_log (actor_kind, actor_id, actor_name, ip, request_id, reason, action, resource, resource_id, organization_id)
		SELECT '', '', '', '', '', '', 'create', 'keys', 'key_' || lpad(id::text, 12, '0'), organization_id FROM k`)
	require.NoError(t, err)
	_, err = super.Exec(t.Context(), "VACUUM ANALYZE")
	require.NoError(t, err)
	pool := openPool(t, Options{DSN: secret.New(super.Config().ConnString())})
	narrowed := func(change func(args)) args {
		a := filter(governance.Actor{})
		a["count"] = int64(51)
		change(a)
		return a
	}
	everything := args{
		"bound": int64(0), "organization": "", "resource": "", "resource_id": "", "actor_id": "",
		"from": (*time.Time)(nil), "to": (*time.Time)(nil), "after": int64(0), "count": int64(51),
	}
	for _, c := range []struct {
		name string
		args args
	}{
		{"key_find", args{"public_id": "000000000077"}},
		{"keys_touch", args{"nums": []int64{1, 2, 3}}},
		{"keys_read", narrowed(func(args) {})},
		{"keys_read", narrowed(func(a args) { a["after"] = int64(40_000) })},
		{"keys_read", narrowed(func(a args) { a["bound"] = int64(7) })},
		{"keys_read", narrowed(func(a args) { a["organization"] = "org_000000000007" })},
		{"keys_read", narrowed(func(a args) { a["id"] = "key_000000007007" })},
		{"limits_read", narrowed(func(args) {})},
		{"limits_read", narrowed(func(a args) { a["bound"] = int64(7) })},
		{"limits_read", narrowed(func(a args) { a["organization"] = "org_000000000007" })},
		{"audit_rows", everything},
	} {
		text, named := prepare(c.name, c.args)
		rows, err := pool.Query(t.Context(), "EXPLAIN "+text, named)
		require.NoError(t, err, c.name)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err, c.name)
		plan := strings.Join(lines, "\n")
		for _, table := range []string{"virtual_keys", "key_secrets", "limits", "audit_log"} {
			require.NotContains(t, plan, "Seq Scan on "+table, "%s %v:\n%s", c.name, c.args, plan)
		}
	}
}

// Ruling 27: a key may bring so many unseen end users and no more for the moment; those that are known go on.
func TestEndUsers_NewOnesAreLimitedPerKey(t *testing.T) {
	t.Parallel()
	super := pgtest.New(t)
	o, err := NewOrganizations(super).Create(t.Context(), admin, governance.Organization{Name: "o"})
	require.NoError(t, err)
	s := NewEndUsers(as(t, super, "tollgate_gateway"))
	made := 0
	for i := range 4 * newEndUsersBurst {
		_, err := s.EndUser(t.Context(), 1, o.Num, fmt.Sprintf("person %d", i))
		if err != nil {
			require.Equal(t, governance.CodeRateLimitExceeded, governance.CodeOf(err))
			break
		}
		made++
	}
	require.GreaterOrEqual(t, made, newEndUsersBurst)
	require.Less(t, made, 4*newEndUsersBurst, "nobody was refused")
	_, err = s.EndUser(t.Context(), 1, o.Num, "person 0")
	require.NoError(t, err, "who is known goes on")
	_, err = s.EndUser(t.Context(), 2, o.Num, "another key's person")
	require.NoError(t, err)
}

package pgstore

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/pgtest"
	"github.com/tollgate-gateway/tollgate/internal/seal"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

var admin = governance.Actor{Kind: "admin_token", ID: "token"}

// as opens a pool as production does, with the privileges of a role.
func as(t *testing.T, admin *pgxpool.Pool, role string) *pgxpool.Pool {
	t.Helper()
	return openPool(t, Options{DSN: secret.New(pgtest.RoleDSN(t, admin, role)), MaxConns: 4, TimeoutsOnRole: true})
}

func openPool(t *testing.T, o Options) *pgxpool.Pool {
	t.Helper()
	pool, err := Open(context.WithoutCancel(t.Context()), o)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func TestOpen_ConnectsAtFirstUse(t *testing.T) {
	t.Parallel()
	pool := openPool(t, Options{DSN: secret.New("postgres://nobody@127.0.0.1:1/nothing?sslmode=disable")})
	require.Zero(t, pool.Stat().TotalConns())
	_, err := NewOrganizations(pool).Get(t.Context(), admin, ids.NewPublic(ids.Organization))
	require.ErrorIs(t, err, governance.ErrStoreAway)
	_, err = Open(t.Context(), Options{DSN: secret.New("postgres://user:hunter2@host:port")})
	require.Error(t, err)
	require.NotContains(t, err.Error(), "hunter2")
}

func TestOpen_ReplacesConnectionsByAge(t *testing.T) {
	t.Parallel()
	dsn := secret.New("postgres://nobody@127.0.0.1:1/nothing?sslmode=disable&pool_max_conn_lifetime=1s")
	require.Equal(t, 15*time.Minute, openPool(t, Options{DSN: dsn}).Config().MaxConnLifetime)
	require.Equal(t, time.Hour, openPool(t, Options{DSN: dsn, ConnLife: time.Hour}).Config().MaxConnLifetime)
}

func TestOpen_ReadsThePasswordForEachConnection(t *testing.T) {
	t.Parallel()
	dsn := secret.New(pgtest.DSN(t))
	var asked atomic.Int64
	pool := openPool(t, Options{DSN: dsn, Password: func(context.Context) (secret.String, error) {
		asked.Add(1)
		return secret.New("any"), nil
	}})
	for n := range int64(3) {
		require.NoError(t, pool.Ping(t.Context()))
		require.Equal(t, n+1, asked.Load())
		pool.Reset()
	}
	gone := errors.New("no password")
	failing := openPool(t, Options{DSN: dsn, Password: func(context.Context) (secret.String, error) { return secret.String{}, gone }})
	require.ErrorIs(t, failing.Ping(t.Context()), gone)
}

func TestPasswordSources(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(path, []byte("one\n"), 0o600))
	file := PasswordFile(path)
	password, err := file(t.Context())
	require.NoError(t, err)
	require.Equal(t, "one", password.Reveal())
	require.NoError(t, os.WriteFile(path, []byte("two"), 0o600))
	password, err = file(t.Context())
	require.NoError(t, err)
	require.Equal(t, "two", password.Reveal())
	_, err = PasswordFile(path + "x")(t.Context())
	require.Error(t, err)
	password, err = PasswordCommand("printf", "three\\n")(t.Context())
	require.NoError(t, err)
	require.Equal(t, "three", password.Reveal())
	_, err = PasswordCommand("false")(t.Context())
	require.Error(t, err)
}

func TestOpen_RefusesSessionsWithoutTimeouts(t *testing.T) {
	t.Parallel()
	dsn := secret.New(pgtest.DSN(t))
	pool := openPool(t, Options{DSN: dsn, TimeoutsOnRole: true})
	err := pool.Ping(t.Context())
	require.ErrorIs(t, err, ErrTimeouts)
	require.ErrorContains(t, err, "ALTER ROLE")
	pool = openPool(t, Options{DSN: dsn, StatementTimeout: time.Hour})
	require.ErrorIs(t, pool.Ping(t.Context()), ErrTimeouts)

	pool = openPool(t, Options{DSN: dsn})
	var lock, statement string
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')").Scan(&lock, &statement))
	require.Equal(t, []string{"2s", "3s"}, []string{lock, statement})
}

// Everything that means "ask again later" is one error, whichever way the store fails.
func TestErrors_TheStoreIsAway(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	create := func(ctx context.Context, o Options) error {
		o.DSN = secret.New(dsn)
		pool := openPool(t, o)
		_, err := NewOrganizations(pool).Create(ctx, admin, governance.Organization{Name: "o"})
		return err
	}
	other := connect(t, dsn)
	tx, err := other.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT FROM tollgate.config_state FOR UPDATE")
	require.NoError(t, err)
	require.ErrorIs(t, create(t.Context(), Options{LockTimeout: 20 * time.Millisecond}), governance.ErrStoreAway, "locked")
	require.ErrorIs(t, create(t.Context(), Options{StatementTimeout: 20 * time.Millisecond}), governance.ErrStoreAway, "too slow")
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, create(short, Options{}), governance.ErrStoreAway, "no time left")
	left, leave := context.WithCancel(t.Context())
	leave()
	err = create(left, Options{})
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, governance.ErrStoreAway, "the caller left")
	require.NoError(t, tx.Rollback(t.Context()))

	pool := openPool(t, Options{DSN: secret.New(dsn), MaxConns: 1})
	held, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	short, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = NewOrganizations(pool).Get(short, admin, ids.NewPublic(ids.Organization))
	require.ErrorIs(t, err, governance.ErrStoreAway, "no connection is free")
	_, err = other.Exec(t.Context(), "SELECT pg_terminate_backend($1)", held.Conn().PgConn().PID())
	require.NoError(t, err)
	err = within(t.Context(), pool, pgx.TxOptions{}, func(context.Context, pgx.Tx) error { return nil })
	require.ErrorIs(t, err, governance.ErrStoreAway, "still none")
	held.Release()

	_, err = other.Exec(t.Context(), "ALTER DATABASE "+pgx.Identifier{other.Config().Database}.Sanitize()+" SET default_transaction_read_only = on")
	require.NoError(t, err)
	require.ErrorIs(t, create(t.Context(), Options{}), governance.ErrStoreAway, "a standby")
}

// the data plane's role reads what it needs, and what it could do beyond that is told.
func TestPrivileges(t *testing.T) {
	t.Parallel()
	super := pgtest.New(t)
	gateway, control := as(t, super, "tollgate_gateway"), as(t, super, "tollgate_control")
	p, err := ReadPrivileges(t.Context(), gateway)
	require.NoError(t, err)
	require.Equal(t, "tollgate_gateway", p.Role)
	require.Empty(t, p.Excess)
	p, err = ReadPrivileges(t.Context(), control)
	require.NoError(t, err)
	require.True(t, p.OverPrivileged())
	require.Contains(t, p.Excess, "may write tollgate.key_secrets")
	p, err = ReadPrivileges(t.Context(), super)
	require.NoError(t, err)
	require.Contains(t, p.Excess, "is superuser")
	require.Contains(t, p.Excess, "owns tollgate.limits")

	for _, c := range []struct {
		pool *pgxpool.Pool
		sql  string
	}{
		{gateway, "INSERT INTO tollgate.key_secrets VALUES ('x', 1, '', '', '')"},
		{gateway, "UPDATE tollgate.key_secrets SET hash = ''"},
		{gateway, "UPDATE tollgate.virtual_keys SET revoked_at = NULL"},
		{gateway, "UPDATE tollgate.limits SET amount = NULL"},
		{gateway, "UPDATE tollgate.config_state SET version = 0"},
		{gateway, "DELETE FROM tollgate.providers"},
		{gateway, "SELECT FROM tollgate.audit_log"},
		{gateway, "INSERT INTO tollgate.price_versions (public_id) VALUES ('x')"},
		{control, "UPDATE tollgate.audit_log SET reason = ''"},
		{control, "DELETE FROM tollgate.audit_log"},
		{control, "UPDATE tollgate.price_units SET per_million = 0"},
		{control, "DELETE FROM tollgate.virtual_keys"},
	} {
		_, err := c.pool.Exec(t.Context(), c.sql)
		require.Equal(t, "42501", faultCode(err), c.sql)
	}
}

// Where one role does all, records still cannot be changed by an ordinary statement.
func TestRecordsAreKept(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	_, err := NewPrices(pool).Add(t.Context(), admin, []governance.PriceVersion{{Provider: "p", UpstreamModel: "m", Free: true}})
	require.NoError(t, err)
	for _, table := range []string{"audit_log", "price_versions", "price_units"} {
		for _, sql := range []string{"UPDATE tollgate." + table + " SET id = id", "DELETE FROM tollgate." + table, "TRUNCATE tollgate." + table + " CASCADE"} {
			if table == "price_units" && sql[0] == 'U' {
				sql = "UPDATE tollgate.price_units SET unit = unit"
			}
			if sql == "UPDATE tollgate.price_versions SET id = id" {
				sql = "UPDATE tollgate.price_versions SET free = free"
			}
			if sql == "UPDATE tollgate.audit_log SET id = id" {
				sql = "UPDATE tollgate.audit_log SET reason = reason"
			}
			_, err := pool.Exec(t.Context(), sql)
			require.ErrorContains(t, err, "only ever added", sql)
		}
	}
}

func TestSchemaVersion(t *testing.T) {
	t.Parallel()
	latest, err := LatestMigration()
	require.NoError(t, err)
	version, dirty, err := SchemaVersion(t.Context(), as(t, pgtest.New(t), "tollgate_gateway"))
	require.NoError(t, err)
	require.Equal(t, latest, version)
	require.False(t, dirty)
	version, _, err = SchemaVersion(t.Context(), openPool(t, Options{DSN: secret.New(pgtest.EmptyDSN(t))}))
	require.NoError(t, err)
	require.Zero(t, version)
}

// Ruling 47.
func TestVerifySecrets(t *testing.T) {
	t.Parallel()
	super := pgtest.New(t)
	control, gateway := as(t, super, "tollgate_control"), as(t, super, "tollgate_gateway")
	keys, peppers := newKeys(t), newPeppers(t)
	checks := append(keys.Checks(), peppers.Checks()...)
	require.NoError(t, VerifySecrets(t.Context(), gateway, checks...), "nothing is known yet, and it may not add")
	require.NoError(t, VerifySecrets(t.Context(), gateway, newKeys(t).Checks()...))
	require.NoError(t, VerifySecrets(t.Context(), control, checks...))
	require.NoError(t, VerifySecrets(t.Context(), gateway, checks...))
	for _, pool := range []*pgxpool.Pool{control, gateway} {
		err := VerifySecrets(t.Context(), pool, newKeys(t).Checks()...)
		require.ErrorIs(t, err, ErrWrongSecret)
		require.ErrorContains(t, err, `encryption "k1"`)
		require.ErrorIs(t, VerifySecrets(t.Context(), pool, newPeppers(t).Checks()...), ErrWrongSecret)
	}
	rotated, err := seal.ParsePeppers(seal.Generate("p2"))
	require.NoError(t, err)
	require.NoError(t, VerifySecrets(t.Context(), control, rotated.Checks()...), "a new one is added")
}

// Ruling 47: what is stored must be of use to whoever starts.
func TestVerifySecrets_RingsHaveWhatIsInUse(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	gateway := as(t, f.super, "tollgate_gateway")
	otherPeppers, err := seal.ParsePeppers(seal.Generate("p9"))
	require.NoError(t, err)
	otherKeys, err := seal.ParseKeys(seal.Generate("k9"))
	require.NoError(t, err)
	others := append(otherPeppers.Checks(), otherKeys.Checks()...)
	require.NoError(t, VerifySecrets(t.Context(), gateway, others...), "nothing is stored yet")

	o, err := f.Organizations.Create(t.Context(), admin, governance.Organization{Name: "o"})
	require.NoError(t, err)
	k, _, err := f.Keys.Issue(t.Context(), admin, governance.VirtualKey{Organization: governance.Ref{ID: o.ID}, Name: "k"}, nil)
	require.NoError(t, err)
	err = VerifySecrets(t.Context(), gateway, others...)
	require.ErrorIs(t, err, ErrMissingSecret)
	require.ErrorContains(t, err, `pepper "p1"`)
	require.NoError(t, VerifySecrets(t.Context(), gateway, append(newPeppers(t).Checks(), others...)...), "a rotation has both")

	f.model(t)
	err = VerifySecrets(t.Context(), gateway, append(newPeppers(t).Checks(), others...)...)
	require.ErrorIs(t, err, ErrMissingSecret)
	require.ErrorContains(t, err, `encryption "k1"`)
	require.NoError(t, VerifySecrets(t.Context(), gateway, append(append(newPeppers(t).Checks(), f.keys.Checks()...), others...)...))

	_, err = f.Keys.Revoke(t.Context(), admin, k.ID)
	require.NoError(t, err)
	require.NoError(t, VerifySecrets(t.Context(), gateway, append(f.keys.Checks(), otherPeppers.Checks()...)...), "a revoked key needs no pepper")
}

func TestPrivileges_AreSummedUp(t *testing.T) {
	t.Parallel()
	p := Privileges{Excess: []string{"is superuser", "may write tollgate.limits", "may write tollgate.teams", "owns ledger.meters"}}
	require.Equal(t, "may write 2 tables and views of Tollgate, owns 1 table or view of Tollgate, is superuser", p.Summary())
}

// F205: a session that was ended while it was idle costs no caller anything.
func TestF205_StoresOutliveACutOfIdleConnections(t *testing.T) {
	t.Parallel()
	superuser := pgtest.New(t)
	pool := openPool(t, Options{DSN: secret.New(superuser.Config().ConnString())})
	store := NewOrganizations(pool)
	made, err := store.Create(t.Context(), admin, governance.Organization{Name: "one"})
	require.NoError(t, err)
	cut := func() {
		_, err := superuser.Exec(t.Context(), `
			SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'tollgate'`)
		require.NoError(t, err)
	}
	cut()
	_, err = store.Get(t.Context(), admin, made.ID)
	require.NoError(t, err)
	cut()
	_, err = store.Create(t.Context(), admin, governance.Organization{Name: "two"})
	require.NoError(t, err)
}

package pgstore

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/source"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/pgtest"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/migrations"
)

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return conn
}

func up(m *migrate.Migrate, d *stepwise, files source.Driver) error {
	if err := d.recover(files); err != nil {
		return err
	}
	if err := m.Up(); err != nil && !errors.Is(err, migrate.ErrNoChange) {
		return err
	}
	return nil
}

// Replicas and jobs that migrate at once wait for each other, and each step runs once.
func TestF158_F169_SixRunnersOnAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	o := Options{DSN: secret.New(pgtest.EmptyDSN(t))}
	before, err := ReadMigrationStatus(t.Context(), o)
	require.NoError(t, err)
	require.Zero(t, before.Version)
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			status, err := Migrate(t.Context(), o)
			if err != nil || status.Version != status.Latest || status.Interrupted {
				t.Errorf("%+v: %v", status, err)
			}
		})
	}
	all.Wait()
	after, err := ReadMigrationStatus(t.Context(), o)
	require.NoError(t, err)
	latest, err := LatestMigration()
	require.NoError(t, err)
	require.Equal(t, MigrationStatus{Version: latest, Latest: latest}, after)
	again, err := Migrate(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, after, again)
}

// A step that was cut off has left nothing but the mark, and the next run goes on before it.
func TestF166_AnInterruptedStepIsRepeated(t *testing.T) {
	t.Parallel()
	dsn := pgtest.EmptyDSN(t)
	o := Options{DSN: secret.New(dsn)}
	files := func(second string) fstest.MapFS {
		return fstest.MapFS{
			"000001_first.up.sql":  {Data: []byte("CREATE TABLE first (n int);")},
			"000002_second.up.sql": {Data: []byte("CREATE TABLE second (n int); " + second)},
			"000003_third.up.sql":  {Data: []byte("CREATE TABLE third (n int)")},
		}
	}
	killed := "SELECT pg_terminate_backend(pg_backend_pid());"
	broken := files(killed)
	delete(broken, "000003_third.up.sql") // golang-migrate leaves the goroutine that reads ahead behind
	require.Error(t, migrator{broken, time.Minute}.run(t.Context(), o, up))
	status, err := ReadMigrationStatus(t.Context(), o)
	require.NoError(t, err)
	require.EqualValues(t, 2, status.Version)
	require.True(t, status.Interrupted)
	conn := connect(t, dsn)
	var first, second bool
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT to_regclass('first') IS NOT NULL, to_regclass('second') IS NOT NULL").Scan(&first, &second))
	require.True(t, first)
	require.False(t, second, "the step happened as a whole or not at all")

	require.NoError(t, migrator{files(""), time.Minute}.run(t.Context(), o, up))
	status, err = ReadMigrationStatus(t.Context(), o)
	require.NoError(t, err)
	require.EqualValues(t, 3, status.Version)
	require.False(t, status.Interrupted)
}

func TestF166_AnInterruptedFirstStepIsRepeated(t *testing.T) {
	t.Parallel()
	o := Options{DSN: secret.New(pgtest.EmptyDSN(t))}
	files := func(text string) fstest.MapFS { return fstest.MapFS{"000001_first.up.sql": {Data: []byte(text)}} }
	require.Error(t, migrator{files("SELECT 1 / 0"), time.Minute}.run(t.Context(), o, up))
	require.NoError(t, migrator{files("SELECT 1"), time.Minute}.run(t.Context(), o, up))
}

// Whoever holds the lock too long does not stop a deployment without end.
func TestF169_TheLockIsWaitedForInBounds(t *testing.T) {
	t.Parallel()
	dsn := pgtest.EmptyDSN(t)
	o := Options{DSN: secret.New(dsn)}
	holding, release := make(chan struct{}), make(chan struct{})
	var holder sync.WaitGroup
	holder.Go(func() {
		err := migrator{migrations.FS, time.Minute}.run(t.Context(), o, func(_ *migrate.Migrate, d *stepwise, _ source.Driver) error {
			if err := d.Lock(); err != nil {
				return err
			}
			close(holding)
			<-release
			return d.Unlock()
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-holding
	err := migrator{migrations.FS, 50 * time.Millisecond}.run(t.Context(), o, up)
	require.ErrorIs(t, err, governance.ErrStoreAway)
	close(release)
	holder.Wait()
}

// An advisory lock through a transaction pooler locks nothing, so such a connection is refused. The proxy does to start-up
// parameters what a pooler does.
func TestF166_ATransactionPoolerIsRefused(t *testing.T) {
	t.Parallel()
	dsn, err := url.Parse(pgtest.EmptyDSN(t))
	require.NoError(t, err)
	query := dsn.Query()
	socket := query.Get("host") + "/.s.PGSQL." + query.Get("port")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { dropTimeouts(client, socket) })
		}
	})
	t.Cleanup(func() { _ = listener.Close(); serving.Wait() })
	host, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	query.Set("host", host)
	query.Set("port", port)
	dsn.RawQuery = query.Encode()
	_, err = Migrate(t.Context(), Options{DSN: secret.New(dsn.String())})
	require.ErrorIs(t, err, ErrPooled)
	require.ErrorContains(t, err, "TOLLGATE_DATABASE_DIRECT_URL")
	pool := openPool(t, Options{DSN: secret.New(dsn.String())})
	_, err = NewOrganizations(pool).Get(t.Context(), governance.Actor{}, "org_000000000000")
	require.ErrorIs(t, err, ErrTimeouts, "a session whose time-outs were dropped is refused")
}

// dropTimeouts passes a connection on to a Unix socket and puts zeros for the time-outs of its start-up message.
func dropTimeouts(client net.Conn, socket string) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	start := make([]byte, 4096)
	n, err := client.Read(start)
	if err != nil {
		_ = server.Close()
		return
	}
	start = start[:n]
	for _, value := range []string{"120000ms", "2000ms", "3000ms"} {
		start = bytes.ReplaceAll(start, []byte(value), bytes.Repeat([]byte("0"), len(value)))
	}
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(client, server)
		_ = client.Close()
	})
	_, _ = server.Write(start)
	_, _ = io.Copy(server, client)
	_ = server.Close()
	both.Wait()
}

// Up, down and up again gives the same schema.
func TestMigrationsGoDownAndUpAgain(t *testing.T) {
	t.Parallel()
	dsn := pgtest.EmptyDSN(t)
	o := Options{DSN: secret.New(dsn)}
	_, err := Migrate(t.Context(), o)
	require.NoError(t, err)
	conn := connect(t, dsn)
	first := describe(t, conn)
	require.NotEmpty(t, first)
	require.NoError(t, migrator{migrations.FS, time.Minute}.run(t.Context(), o, func(m *migrate.Migrate, _ *stepwise, _ source.Driver) error {
		return m.Down()
	}))
	require.Empty(t, describe(t, conn))
	_, err = Migrate(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, first, describe(t, conn))
}

// describe lists columns, indexes, constraints, triggers, functions and grants of the product's schemas.
func describe(t *testing.T, conn *pgx.Conn) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), `
		WITH ours AS (SELECT oid, nspname FROM pg_namespace WHERE nspname IN ('tollgate', 'ledger', 'audit'))
		SELECT format('%s %s %s %s %s', c.oid::regclass, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, c.relacl)
		FROM pg_class AS c JOIN ours ON ours.oid = c.relnamespace
		JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
		WHERE c.relkind IN ('r', 'p', 'v')
		UNION ALL
		SELECT indexdef FROM pg_indexes WHERE schemaname IN (SELECT nspname FROM ours)
		UNION ALL
		SELECT format('%s %s', conrelid::regclass, pg_get_constraintdef(con.oid))
		FROM pg_constraint AS con JOIN ours ON ours.oid = con.connamespace
		UNION ALL
		SELECT pg_get_triggerdef(tr.oid) FROM pg_trigger AS tr JOIN pg_class AS c ON c.oid = tr.tgrelid
		JOIN ours ON ours.oid = c.relnamespace WHERE NOT tr.tgisinternal
		UNION ALL
		SELECT CASE p.prokind WHEN 'a' THEN p.oid::regprocedure::text ELSE pg_get_functiondef(p.oid) END || coalesce(p.proacl::text, '')
		FROM pg_proc AS p JOIN ours ON ours.oid = p.pronamespace
		ORDER BY 1`)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return lines
}

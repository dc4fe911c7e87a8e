package pgtest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEachTestHasADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			pool := New(t)
			_, err := pool.Exec(t.Context(), "CREATE TABLE of_this_test (n int)")
			require.NoError(t, err)
		})
	}
}

func TestDatabaseGoesAwayWithTheTest(t *testing.T) {
	t.Parallel()
	var dsn string
	t.Run("inner", func(t *testing.T) { dsn = DSN(t) })
	_, err := pgx.Connect(t.Context(), dsn)
	require.ErrorContains(t, err, "does not exist")
}

func TestDatabaseGoesAwayThoughASessionIsLeft(t *testing.T) {
	t.Parallel()
	var left *pgx.Conn
	t.Run("inner", func(t *testing.T) {
		var err error
		left, err = pgx.Connect(context.Background(), DSN(t))
		require.NoError(t, err)
	})
	require.Error(t, left.Ping(t.Context()))
}

func TestRoleHasItsPrivilegesOnly(t *testing.T) {
	t.Parallel()
	pool := New(t)
	_, err := pool.Exec(t.Context(), "CREATE TABLE of_owner (n int)")
	require.NoError(t, err)

	other := Role(t, pool, "pg_monitor") // a role that every cluster has and that cannot log in
	_, err = other.Exec(t.Context(), "SELECT n FROM of_owner")
	require.ErrorContains(t, err, "permission denied")

	var role, database, expected string
	require.NoError(t, other.QueryRow(t.Context(), "SELECT current_user, current_database()").Scan(&role, &database))
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT current_database()").Scan(&expected))
	require.Equal(t, "pg_monitor", role)
	require.Equal(t, expected, database)
}

func TestEmptyHasNoSchema(t *testing.T) {
	t.Parallel()
	pool := open(t, EmptyDSN(t))
	var tables int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").Scan(&tables))
	require.Zero(t, tables)
}

func TestManyProcessesMakeOneTemplate(t *testing.T) {
	t.Parallel()
	marker := strings.TrimPrefix(t.Name(), "Test")
	files := fstest.MapFS{
		"000001_first.up.sql":    {Data: []byte("CREATE TABLE first (n int); INSERT INTO first VALUES (1); -- " + marker)},
		"000002_second.up.sql":   {Data: []byte("INSERT INTO first VALUES (2);")},
		"000002_second.down.sql": {Data: []byte("this is never run")},
	}
	admin, err := pgx.Connect(t.Context(), EmptyDSN(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, admin.Close(context.WithoutCancel(t.Context()))) })
	_, sum, err := read(files)
	require.NoError(t, err)
	dropTemplate := func() {
		ready, err := isTemplate(context.WithoutCancel(t.Context()), admin, templatePrefix+sum)
		require.NoError(t, err)
		if ready {
			_, err = admin.Exec(context.WithoutCancel(t.Context()), "ALTER DATABASE "+templatePrefix+sum+" IS_TEMPLATE false")
			require.NoError(t, err)
		}
		_, err = admin.Exec(context.WithoutCancel(t.Context()), "DROP DATABASE IF EXISTS "+templatePrefix+sum)
		require.NoError(t, err)
	}
	dropTemplate()
	t.Cleanup(dropTemplate)

	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			pool := open(t, create(t, files))
			var rows, version int
			err := pool.QueryRow(t.Context(), "SELECT count(*), max(version) FROM first, schema_migrations").Scan(&rows, &version)
			require.NoError(t, err)
			require.Equal(t, []int{2, 2}, []int{rows, version})
		})
	}
}

func TestFaultyMigrationNamesItsLine(t *testing.T) {
	t.Parallel()
	err := migrate(t.Context(), EmptyDSN(t), []step{{file: "000001_bad.up.sql", version: 1, sql: "SELECT 1;\nSELECT nothing;\n"}})
	require.ErrorContains(t, err, "000001_bad.up.sql: line 2:")
}

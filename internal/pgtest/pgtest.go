// Package pgtest gives each test a PostgreSQL database of its own, cloned in milliseconds from a template that is
// migrated once for each state of the migrations.
//
// The server is a scratch cluster that TOLLGATE_TEST_DSN names, reached as a superuser. Without it a test fails: a
// suite that skips its database proves nothing.
package pgtest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/migrations"
)

const (
	dsnVariable    = "TOLLGATE_TEST_DSN"
	clonePrefix    = "tollgate_test_"
	templatePrefix = "tollgate_template_"

	// setupTimeout bounds making or dropping one database, the wait for another process that migrates the template included.
	setupTimeout = 2 * time.Minute
	// poolSize suits a test with a few concurrent callers; the cluster's connections are shared by all packages that run at once.
	poolSize = 10
)

// New returns a pool, as superuser, on a fresh migrated database. Pool and database go away with the test.
// Its DSN, for processes that the test starts, is pool.Config().ConnString().
func New(tb testing.TB) *pgxpool.Pool {
	tb.Helper()
	return open(tb, DSN(tb))
}

// DSN makes a fresh migrated database that goes away with the test and returns its URL, as superuser.
func DSN(tb testing.TB) string {
	tb.Helper()
	return create(tb, migrations.FS)
}

// EmptyDSN makes a fresh database without any schema, for tests of the migrations themselves, and returns its URL.
func EmptyDSN(tb testing.TB) string {
	tb.Helper()
	return create(tb, nil)
}

// Role returns a pool on the database of pool whose sessions act as role, with exactly its privileges. A role that may
// log in does so, and gets the settings that are kept on it; another one is taken by SET ROLE as the session starts.
// The pool goes away with the test.
func Role(tb testing.TB, pool *pgxpool.Pool, role string) *pgxpool.Pool {
	tb.Helper()
	return open(tb, RoleDSN(tb, pool, role))
}

// RoleDSN returns the URL of Role's pool, for processes that the test starts.
func RoleDSN(tb testing.TB, pool *pgxpool.Pool, role string) string {
	tb.Helper()
	var mayLogin bool
	err := pool.QueryRow(tb.Context(), "SELECT rolcanlogin FROM pg_roles WHERE rolname = $1", role).Scan(&mayLogin)
	check(tb, "look for role "+role, err)
	dsn, err := url.Parse(pool.Config().ConnString())
	check(tb, "parse database URL", err)
	if mayLogin {
		dsn.User = url.User(role) // the scratch server trusts its socket
		return dsn.String()
	}
	query := dsn.Query()
	query.Set("options", "-c role="+role)
	dsn.RawQuery = encode(query)
	return dsn.String()
}

func open(tb testing.TB, dsn string) *pgxpool.Pool {
	tb.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	check(tb, "parse database URL", err)
	config.MaxConns = poolSize
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(tb.Context()), config)
	check(tb, "open pool", err)
	tb.Cleanup(pool.Close)
	return pool
}

// create clones a database from the template of the migrations in files, or from an empty one where files is nil.
func create(tb testing.TB, files fs.FS) string {
	tb.Helper()
	server := os.Getenv(dsnVariable)
	if server == "" {
		tb.Fatalf("%s is not set: `make test` starts a scratch PostgreSQL and sets it", dsnVariable)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), setupTimeout)
	defer cancel()
	admin, err := pgx.Connect(ctx, server)
	check(tb, "connect to the scratch server of "+dsnVariable, err)
	defer func() { check(tb, "close connection", admin.Close(ctx)) }()

	template := "template0"
	if files != nil {
		template, err = ensureTemplate(ctx, admin, files)
		check(tb, "make migrated template", err)
	}
	name := clonePrefix + strings.ToLower(rand.Text())
	// A copy of the files needs no WAL for each page, and the server is a scratch one: the fastest strategy is safe.
	_, err = admin.Exec(ctx, "CREATE DATABASE "+name+" TEMPLATE "+template+" STRATEGY file_copy")
	check(tb, "clone template", err)
	tb.Cleanup(func() { drop(tb, server, name) })
	return databaseURL(admin.Config(), name)
}

// drop removes a database together with the sessions of processes that outlive their test.
func drop(tb testing.TB, server, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	admin, err := pgx.Connect(ctx, server)
	check(tb, "connect to drop database", err)
	_, err = admin.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
	check(tb, "drop database", errors.Join(err, admin.Close(ctx)))
}

// ensureTemplate returns the name of the migrated template. Whichever process comes first makes it; the others wait.
func ensureTemplate(ctx context.Context, admin *pgx.Conn, files fs.FS) (string, error) {
	steps, sum, err := read(files)
	if err != nil {
		return "", err
	}
	name := templatePrefix + sum
	if ready, err := isTemplate(ctx, admin, name); err != nil || ready {
		return name, err
	}
	// One lock for all templates of the server, because the roles that migrations create belong to the whole cluster.
	if _, err := admin.Exec(ctx, "SELECT pg_advisory_lock(hashtext($1))", templatePrefix); err != nil {
		return "", fmt.Errorf("lock templates: %w", err)
	}
	// The lock ends with the connection, whose life is one call of create.
	if ready, err := isTemplate(ctx, admin, name); err != nil || ready {
		return name, err
	}
	if err := dropLeftOvers(ctx, admin); err != nil {
		return "", err
	}
	// A process that died half-way has left a database that is no template.
	if _, err := admin.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
		return "", fmt.Errorf("drop unfinished template: %w", err)
	}
	if _, err := admin.Exec(ctx, "CREATE DATABASE "+name+" TEMPLATE template0"); err != nil {
		return "", fmt.Errorf("create template: %w", err)
	}
	if err := migrate(ctx, databaseURL(admin.Config(), name), steps); err != nil {
		return "", err
	}
	// Nobody may connect any more, since a session on the template would make each CREATE DATABASE fail.
	if _, err := admin.Exec(ctx, "ALTER DATABASE "+name+" IS_TEMPLATE true ALLOW_CONNECTIONS false"); err != nil {
		return "", fmt.Errorf("seal template: %w", err)
	}
	return name, nil
}

func isTemplate(ctx context.Context, admin *pgx.Conn, name string) (bool, error) {
	var ready bool
	err := admin.QueryRow(ctx, "SELECT count(*) > 0 FROM pg_database WHERE datname = $1 AND datistemplate", name).Scan(&ready)
	if err != nil {
		return false, fmt.Errorf("look for template: %w", err)
	}
	return ready, nil
}

// dropLeftOvers removes what killed runs and earlier states of the migrations have left: databases of this package that
// were made more than an hour ago and have no session. It finds their age in their files, since the catalogue has none.
func dropLeftOvers(ctx context.Context, admin *pgx.Conn) error {
	rows, err := admin.Query(ctx, `
		SELECT datname
		FROM pg_database AS d
		WHERE (starts_with(datname, $1) OR starts_with(datname, $2))
		  AND (pg_stat_file('base/' || d.oid || '/PG_VERSION', true)).modification < now() - interval '1 hour'
		  AND NOT EXISTS (SELECT FROM pg_stat_activity AS a WHERE a.datid = d.oid)`, clonePrefix, templatePrefix)
	if err != nil {
		return fmt.Errorf("list left-over databases: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("list left-over databases: %w", err)
	}
	for _, name := range names {
		if strings.HasPrefix(name, templatePrefix) {
			if _, err := admin.Exec(ctx, "ALTER DATABASE "+name+" IS_TEMPLATE false"); err != nil {
				return fmt.Errorf("unseal left-over template: %w", err)
			}
		}
		if _, err := admin.Exec(ctx, "DROP DATABASE IF EXISTS "+name); err != nil {
			return fmt.Errorf("drop left-over database: %w", err)
		}
	}
	return nil
}

// step is one migration.
type step struct {
	file    string
	version int64
	sql     string
}

// read returns the upward migrations in order, and a short hash of their names and bytes.
func read(files fs.FS) ([]step, string, error) {
	names, err := fs.Glob(files, "*.up.sql")
	if err != nil {
		return nil, "", fmt.Errorf("list migrations: %w", err)
	}
	sum := sha256.New()
	steps := make([]step, 0, len(names))
	for _, name := range names {
		body, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, "", fmt.Errorf("read migration: %w", err)
		}
		number, _, _ := strings.Cut(name, "_")
		version, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return nil, "", fmt.Errorf("read number of migration %s: %w", name, err)
		}
		fmt.Fprintf(sum, "%s %d\n", name, len(body))
		sum.Write(body)
		steps = append(steps, step{file: name, version: version, sql: string(body)})
	}
	return steps, hex.EncodeToString(sum.Sum(nil))[:16], nil
}

// migrate runs each step in one transaction, as `tollgate migrate up` does, and records the version in the same table.
func migrate(ctx context.Context, dsn string, steps []step) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return fmt.Errorf("connect to template: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }() // all is committed or failed before
	if _, err := conn.Exec(ctx, "CREATE TABLE schema_migrations (version bigint PRIMARY KEY, dirty boolean NOT NULL)"); err != nil {
		return fmt.Errorf("create table of versions: %w", err)
	}
	for _, s := range steps {
		// A file holds many statements, which only a simple query can carry; it is one transaction by itself.
		if _, err := conn.PgConn().Exec(ctx, s.sql).ReadAll(); err != nil {
			return fmt.Errorf("run %s: %w", s.file, withPosition(err, s.sql))
		}
	}
	if len(steps) == 0 {
		return nil
	}
	if _, err := conn.Exec(ctx, "INSERT INTO schema_migrations VALUES ($1, false)", steps[len(steps)-1].version); err != nil {
		return fmt.Errorf("record version: %w", err)
	}
	return nil
}

// withPosition adds the line of the fault, which PostgreSQL tells as an offset in characters.
func withPosition(err error, sql string) error {
	var fault *pgconn.PgError
	if !errors.As(err, &fault) || fault.Position == 0 {
		return err
	}
	before := []rune(sql)
	if n := int(fault.Position); n <= len(before) {
		before = before[:n]
	}
	return fmt.Errorf("line %d: %w", 1+strings.Count(string(before), "\n"), err)
}

// databaseURL names another database of the server of config, in the one form that every driver and tool reads.
func databaseURL(config *pgx.ConnConfig, database string) string {
	query := url.Values{"host": {config.Host}, "port": {strconv.Itoa(int(config.Port))}}
	if config.TLSConfig == nil {
		query.Set("sslmode", "disable")
	}
	dsn := url.URL{Scheme: "postgres", User: url.User(config.User), Path: "/" + database, RawQuery: encode(query)}
	if config.Password != "" {
		dsn.User = url.UserPassword(config.User, config.Password)
	}
	return dsn.String()
}

// encode writes blanks as %20: libpq takes a plus sign as itself.
func encode(query url.Values) string { return strings.ReplaceAll(query.Encode(), "+", "%20") }

func check(tb testing.TB, what string, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatalf("%s: %v", what, err)
	}
}

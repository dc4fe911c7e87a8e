package pgstore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/source"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/migrations"
)

// migrationLockWait bounds the wait for another process that migrates. The lock itself would wait for ever.
const migrationLockWait = 2 * time.Minute

// ErrPooled says that the connection leads through a transaction pooler, where the lock of migrations locks nothing.
var ErrPooled = errors.New("migrations need a direct connection (TOLLGATE_DATABASE_DIRECT_URL), not one through a transaction pooler")

// MigrationStatus is where a schema stands.
type MigrationStatus struct {
	Version int64 // the last migration; 0: none
	Latest  int64 // the newest that this program has
	// Interrupted says that the step to Version was cut off. It was rolled back as a whole; Migrate repeats it.
	Interrupted bool
}

// Migrate brings the schema up to date, on a direct connection. Processes that come together wait for each other, at most
// two minutes. Each file is one transaction, in which its success is recorded too: whatever ends the process, a step has
// happened or it has not, and the next run goes on from there.
func Migrate(ctx context.Context, o Options) (MigrationStatus, error) {
	var status MigrationStatus
	err := migrator{migrations.FS, migrationLockWait}.run(ctx, o, func(m *migrate.Migrate, d *stepwise, files source.Driver) error {
		if err := d.recover(files); err != nil {
			return err
		}
		if err := m.Up(); err != nil && !errors.Is(err, migrate.ErrNoChange) {
			return fmt.Errorf("migrate up: %w", err)
		}
		var err error
		status, err = d.status(files)
		return err
	})
	return status, err
}

// ReadMigrationStatus looks where a schema stands and changes nothing.
func ReadMigrationStatus(ctx context.Context, o Options) (MigrationStatus, error) {
	latest, err := latestMigration(migrations.FS)
	if err != nil {
		return MigrationStatus{}, err
	}
	pool, err := Open(ctx, o)
	if err != nil {
		return MigrationStatus{}, err
	}
	defer pool.Close()
	version, dirty, err := SchemaVersion(ctx, pool)
	return MigrationStatus{Version: version, Latest: latest, Interrupted: dirty}, err
}

// LatestMigration is the number of the newest migration that this program has, which is what its statements need.
func LatestMigration() (int64, error) { return latestMigration(migrations.FS) }

func latestMigration(files fs.FS) (int64, error) {
	d, err := iofs.New(files, ".")
	if err != nil {
		return 0, fmt.Errorf("read migrations: %w", err)
	}
	defer func() { _ = d.Close() }() // files of the program itself
	return last(d)
}

func last(files source.Driver) (int64, error) {
	version, err := files.First()
	for err == nil {
		var next uint
		if next, err = files.Next(version); err == nil {
			version = next
		}
	}
	if !errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("read migrations: %w", err)
	}
	return int64(version), nil // six digits
}

// migrator runs steps from files and waits for others at most so long.
type migrator struct {
	files fs.FS
	wait  time.Duration
}

func (r migrator) run(ctx context.Context, o Options, do func(*migrate.Migrate, *stepwise, source.Driver) error) error {
	config, err := pgx.ParseConfig(o.DSN.Reveal())
	if err != nil {
		return errors.New("parse database URL: want postgres://user@host/database or key=value pairs")
	}
	// The session's lock_timeout is what bounds the wait for the advisory lock. Files set their own, shorter one.
	config.ConnectTimeout = connectTimeout
	config.RuntimeParams["application_name"] = "tollgate migrate"
	config.RuntimeParams["lock_timeout"] = fmt.Sprintf("%dms", r.wait.Milliseconds())
	config.RuntimeParams["statement_timeout"] = "0"
	if err := o.beforeConnect(ctx, config); err != nil {
		return err
	}
	db := stdlib.OpenDB(*config)
	db.SetMaxOpenConns(1)
	defer func() { _ = db.Close() }() // everything is committed or failed before
	if err := r.refusePooled(ctx, db); err != nil {
		return err
	}
	postgres, err := migratepgx.WithInstance(db, &migratepgx.Config{})
	if err != nil {
		return translate(fmt.Errorf("prepare migrations: %w", cause(err)))
	}
	defer func() { _ = postgres.Close() }()
	from, err := iofs.New(r.files, ".")
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	driver := &stepwise{Postgres: postgres.(*migratepgx.Postgres)}
	m, err := migrate.NewWithInstance("iofs", from, "postgres", driver)
	if err != nil {
		return fmt.Errorf("prepare migrations: %w", err)
	}
	m.LockTimeout = r.wait + connectTimeout
	return translate(cause(do(m, driver, from)))
}

// cause adds to an error of golang-migrate the driver's, which it hides.
func cause(err error) error {
	if fault, ok := errors.AsType[*database.Error](err); ok {
		return fmt.Errorf("%w: %w", err, fault.OrigErr)
	}
	if fault, ok := errors.AsType[database.Error](err); ok {
		return fmt.Errorf("%w: %w", err, fault.OrigErr)
	}
	if errors.Is(err, migrate.ErrLockTimeout) {
		return fmt.Errorf("%w: %w", governance.ErrStoreAway, err)
	}
	return err
}

// refusePooled finds a pooler by what it does to start-up parameters: it refuses them, or it drops them.
func (r migrator) refusePooled(ctx context.Context, db *sql.DB) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var wait int64
	err := db.QueryRowContext(ctx, statements["migration_lock_wait"].text).Scan(&wait)
	if code := faultCode(err); code == "08P01" {
		return fmt.Errorf("%w: %w", ErrPooled, err)
	}
	if err != nil {
		return translate(fmt.Errorf("connect: %w", err))
	}
	if wait != r.wait.Milliseconds() {
		return ErrPooled
	}
	return nil
}

// stepwise records the success of a step in the step's own transaction.
type stepwise struct{ *migratepgx.Postgres }

// Run runs one file. Its statements and the record are sent together, which makes them one transaction.
func (d *stepwise) Run(file io.Reader) error {
	text, err := io.ReadAll(file)
	if err != nil {
		return fmt.Errorf("read migration: %w", err)
	}
	text = append(append(text, "\n;\n"...), statements["migration_done"].text...)
	return d.Postgres.Run(bytes.NewReader(text))
}

// recover goes back to the step before one that was cut off. The record being in the transaction, that step has left no
// trace. It looks and writes under the lock: before it, another process may be running the step.
func (d *stepwise) recover(files source.Driver) (err error) {
	if err := d.Lock(); err != nil {
		return fmt.Errorf("lock migrations: %w", err)
	}
	defer func() { err = errors.Join(err, d.Unlock()) }()
	version, dirty, err := d.Version()
	if err != nil || !dirty {
		return err
	}
	before, err := files.Prev(uint(version)) // six digits
	switch {
	case errors.Is(err, os.ErrNotExist):
		return d.SetVersion(-1, false)
	case err != nil:
		return fmt.Errorf("read migrations: %w", err)
	}
	return d.SetVersion(int(before), false) // six digits
}

func (d *stepwise) status(files source.Driver) (MigrationStatus, error) {
	version, dirty, err := d.Version()
	if err != nil {
		return MigrationStatus{}, fmt.Errorf("read schema version: %w", err)
	}
	latest, err := last(files)
	return MigrationStatus{Version: int64(max(0, version)), Latest: latest, Interrupted: dirty}, err
}

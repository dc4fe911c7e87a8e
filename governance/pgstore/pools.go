package pgstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	command "os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/internal/secret"
)

const (
	connectTimeout  = 5 * time.Second
	defaultConnLife = 15 * time.Minute
	idleLife        = 5 * time.Second
	defaultMaxConns = 8

	// DefaultLockTimeout and DefaultStatementTimeout are what sessions ask for unless their role has settings of its own.
	DefaultLockTimeout      = 2 * time.Second
	DefaultStatementTimeout = 3 * time.Second
	// Sessions whose time-outs are longer than these would let one lock stop a gateway.
	longestLockTimeout      = 10 * time.Second
	longestStatementTimeout = time.Minute
)

// PasswordSource reads the current password. It is asked anew for each connection, so that a rotated one needs no restart.
type PasswordSource func(context.Context) (secret.String, error)

// PasswordFile reads the password from a file, without the newline at its end.
func PasswordFile(path string) PasswordSource {
	return func(context.Context) (secret.String, error) {
		text, err := os.ReadFile(path) //nolint:gosec // the operator names it
		if err != nil {
			return secret.String{}, fmt.Errorf("read database password: %w", err)
		}
		return secret.New(strings.TrimRight(string(text), "\r\n")), nil
	}
}

// PasswordCommand takes the password from what a command prints, such as a cloud's token tool.
func PasswordCommand(name string, arguments ...string) PasswordSource {
	return func(ctx context.Context) (secret.String, error) {
		text, err := command.CommandContext(ctx, name, arguments...).Output() //nolint:gosec // the operator names it
		if err != nil {
			return secret.String{}, fmt.Errorf("run command for the database password: %w", err)
		}
		return secret.New(strings.TrimRight(string(text), "\r\n")), nil
	}
}

// Options says how to reach the database.
type Options struct {
	DSN secret.String
	// Password overrides that of the DSN. Nil: the DSN's.
	Password PasswordSource
	// MaxConns bounds the pool; 0: 8.
	MaxConns int32
	// ConnLife is the age at which a connection is replaced, so that a rotated password is soon the only one in use; 0: 15
	// minutes.
	ConnLife time.Duration
	// TimeoutsOnRole says that lock_timeout and statement_timeout are set on the role and need not be sent as start-up
	// parameters. They are verified either way.
	TimeoutsOnRole bool
	// LockTimeout and StatementTimeout are sent at the start of sessions; 0: the defaults. The DSN's own win.
	LockTimeout, StatementTimeout time.Duration
}

// Open builds a pool. No connection is made before the first use, and one that was idle for five seconds is closed by the next check.
// Statements go in exec mode, which leaves nothing on the server between round trips: transaction poolers may stand between.
// One that refuses time-outs as start-up parameters gets none; then the role must have them.
func Open(ctx context.Context, o Options) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(o.DSN.Reveal())
	if err != nil {
		return nil, errors.New("parse database URL: want postgres://user@host/database or key=value pairs")
	}
	config.MinConns, config.MinIdleConns = 0, 0
	config.MaxConns = defaultMaxConns
	if o.MaxConns > 0 {
		config.MaxConns = o.MaxConns
	}
	config.MaxConnLifetime = defaultConnLife
	if o.ConnLife > 0 {
		config.MaxConnLifetime = o.ConnLife
	}
	config.MaxConnLifetimeJitter = config.MaxConnLifetime / 15 // not all at once
	// Each check makes the pool hand out all idle connections in turn once; were the next one due within their idle life, an
	// idle process would never close its second connection.
	config.MaxConnIdleTime, config.HealthCheckPeriod = idleLife, 2*idleLife
	o.configure(config.ConnConfig)
	var refused atomic.Bool
	var opened atomic.Pointer[pgxpool.Pool]
	onPgError := config.ConnConfig.OnPgError
	config.ConnConfig.OnPgError = func(conn *pgconn.PgConn, fault *pgconn.PgError) bool {
		switch {
		case refusesParameter(fault):
			refused.Store(true)
		case fault.Code == "25006": // read_only_sql_transaction: what was a primary is none any more
			if pool := opened.Load(); pool != nil {
				pool.Reset() // the sessions that only read must not stay with it either
			}
			return false
		}
		return onPgError(conn, fault)
	}
	config.BeforeConnect = func(ctx context.Context, config *pgx.ConnConfig) error {
		if refused.Load() {
			leaveTimeoutsOut(config)
		}
		return o.beforeConnect(ctx, config)
	}
	config.AfterConnect = verifyTimeouts
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	opened.Store(pool)
	return pool, nil
}

// connect opens one connection outside of any pool.
func (o Options) connect(ctx context.Context) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(o.DSN.Reveal())
	if err != nil {
		return nil, errors.New("parse database URL: want postgres://user@host/database or key=value pairs")
	}
	o.configure(config)
	if err := o.beforeConnect(ctx, config); err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if refusesParameter(err) {
		leaveTimeoutsOut(config)
		conn, err = pgx.ConnectConfig(ctx, config)
	}
	if err != nil {
		return nil, translate(fmt.Errorf("connect: %w", err))
	}
	return conn, nil
}

func (o Options) configure(config *pgx.ConnConfig) {
	config.ConnectTimeout = connectTimeout
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.StatementCacheCapacity, config.DescriptionCacheCapacity = 0, 0
	setDefault(config.RuntimeParams, "application_name", "tollgate")
	if o.TimeoutsOnRole {
		return
	}
	lock, statement := DefaultLockTimeout, DefaultStatementTimeout
	if o.LockTimeout > 0 {
		lock = o.LockTimeout
	}
	if o.StatementTimeout > 0 {
		statement = o.StatementTimeout
	}
	setDefault(config.RuntimeParams, "lock_timeout", fmt.Sprintf("%dms", lock.Milliseconds()))
	setDefault(config.RuntimeParams, "statement_timeout", fmt.Sprintf("%dms", statement.Milliseconds()))
}

// refusesParameter reports whether a pooler let nobody in because of what was sent at the start of the session.
func refusesParameter(err error) bool {
	fault, ok := errors.AsType[*pgconn.PgError](err)
	return ok && fault.Code == "08P01" && strings.Contains(fault.Message, "startup parameter")
}

func leaveTimeoutsOut(config *pgx.ConnConfig) {
	delete(config.RuntimeParams, "lock_timeout")
	delete(config.RuntimeParams, "statement_timeout")
}

func setDefault(m map[string]string, key, value string) {
	if _, ok := m[key]; !ok {
		m[key] = value
	}
}

func (o Options) beforeConnect(ctx context.Context, config *pgx.ConnConfig) error {
	if o.Password == nil {
		return nil
	}
	password, err := o.Password(ctx)
	if err != nil {
		return err
	}
	config.Password = password.Reveal()
	return nil
}

// ErrTimeouts says that a session has no, or no short enough, lock_timeout or statement_timeout.
var ErrTimeouts = errors.New("session has no sufficient time-outs")

// verifyTimeouts refuses a session in which a lock could be waited for without end: a pooler may have dropped what was sent,
// and a role may lack what should be on it.
func verifyTimeouts(ctx context.Context, conn *pgx.Conn) error {
	is, err := one[struct {
		Lock      int64 `db:"lock_ms"`
		Statement int64 `db:"statement_ms"`
	}](ctx, conn, "session_timeouts", nil)
	if err != nil {
		return err
	}
	for _, t := range []struct {
		name    string
		ms      int64
		longest time.Duration
		example string
	}{
		{"lock_timeout", is.Lock, longestLockTimeout, "2s"},
		{"statement_timeout", is.Statement, longestStatementTimeout, "3s"},
	} {
		if t.ms == 0 || t.ms > t.longest.Milliseconds() {
			return fmt.Errorf("%w: %s is %d ms, want 1 to %d; run ALTER ROLE %s SET %s = '%s'",
				ErrTimeouts, t.name, t.ms, t.longest.Milliseconds(), conn.Config().User, t.name, t.example)
		}
	}
	return nil
}

// Privileges tells what a role may do beyond what the data plane needs.
type Privileges struct {
	Role string
	// Excess lists in words what the role may do and the data plane's must not; empty: least privilege.
	Excess []string
}

// OverPrivileged reports whether the role may do more than the data plane needs.
func (p *Privileges) OverPrivileged() bool { return len(p.Excess) > 0 }

// Summary says the excess in a few words: tables of one sort are counted.
func (p *Privileges) Summary() string {
	var said []string
	for _, verb := range []string{"may write", "owns"} {
		of := 0
		for _, e := range p.Excess {
			if strings.HasPrefix(e, verb+" ") {
				of++
			}
		}
		switch of {
		case 0:
		case 1:
			said = append(said, verb+" 1 table or view of Tollgate")
		default:
			said = append(said, fmt.Sprintf("%s %d tables and views of Tollgate", verb, of))
		}
	}
	for _, e := range p.Excess {
		if !strings.HasPrefix(e, "may write ") && !strings.HasPrefix(e, "owns ") {
			said = append(said, e)
		}
	}
	return strings.Join(said, ", ")
}

// ReadPrivileges looks at what the role of the pool may do.
func ReadPrivileges(ctx context.Context, pool *pgxpool.Pool) (Privileges, error) {
	return read(ctx, pool, func(ctx context.Context, q querier) (Privileges, error) {
		rows, err := many[struct {
			Role   string `db:"role"`
			Excess string `db:"excess"`
		}](ctx, q, "privileges", nil)
		if err != nil {
			return Privileges{}, err
		}
		var p Privileges
		for _, r := range rows {
			p.Role = r.Role
			if r.Excess != "" {
				p.Excess = append(p.Excess, r.Excess)
			}
		}
		slices.Sort(p.Excess)
		return p, nil
	})
}

// SchemaVersion returns the number of the last migration, 0 where none has run, and whether it was left half-way.
func SchemaVersion(ctx context.Context, pool *pgxpool.Pool) (version int64, dirty bool, err error) {
	type row struct {
		Version int64 `db:"version"`
		Dirty   bool  `db:"dirty"`
	}
	r, err := read(ctx, pool, func(ctx context.Context, q querier) (row, error) {
		exists, err := scalar[bool](ctx, q, "schema_exists", nil)
		if err != nil || !exists {
			return row{}, err
		}
		rows, err := many[row](ctx, q, "schema_version", nil)
		if err != nil || len(rows) == 0 {
			return row{}, err
		}
		return rows[0], nil
	})
	return r.Version, r.Dirty, err
}

package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tollgate-gateway/tollgate/internal/devdb"
)

const (
	databaseName = "tollgate"
	standbyPoll  = 50 * time.Millisecond
	// recoveryWait bounds the return of a database, crash recovery included.
	recoveryWait = 90 * time.Second
)

// database is the private PostgreSQL of a run: a primary, and where failovers are to come a synchronous standby. The two
// have a place each, which is what proxies point to; after a failover the standby's place is the primary's.
type database struct {
	dir string

	mu      sync.Mutex
	servers [2]*devdb.Cluster
	primary int // its place
	made    int // clusters so far
	proxies [2][]*proxy
	link    *proxy // between primary and standby; nil: there is no standby

	outages []outage

	crashes, failovers atomic.Int64
}

// outage is a time without a database.
type outage struct{ began, over time.Time }

// away notes an outage that is over now.
func (d *database) away(began time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.outages = append(d.outages, outage{began, time.Now()})
}

// settings make recovery and followers quick; durability is left as it is.
func settings() map[string]string {
	return map[string]string{
		"wal_level": "replica", "max_wal_senders": "8", "wal_keep_size": "256MB", "max_wal_size": "512MB",
		"wal_retrieve_retry_interval": "200ms", "wal_sender_timeout": "10s", "shared_buffers": "64MB",
		"log_min_messages": "warning", "track_functions": "none",
	}
}

func startDatabase(ctx context.Context, dir string) (*database, error) {
	d := &database{dir: dir}
	c, err := devdb.Start(ctx, devdb.Options{DataDir: d.folder(), Database: databaseName, Settings: settings()})
	if err != nil {
		return nil, err
	}
	d.servers[0] = c
	return d, nil
}

// folder names the data directory of the next cluster.
func (d *database) folder() string {
	d.made++
	return filepath.Join(d.dir, "postgres-"+strconv.Itoa(d.made))
}

// address is the socket of a cluster.
func address(c *devdb.Cluster) (net.Addr, error) {
	u, err := url.Parse(c.DSN(devdb.Superuser, databaseName))
	if err != nil {
		return nil, fmt.Errorf("find socket of the database: %w", err)
	}
	q := u.Query()
	return &net.UnixAddr{Net: "unix", Name: filepath.Join(q.Get("host"), ".s.PGSQL."+q.Get("port"))}, nil
}

// proxy makes a proxy for each place that has a server.
func (d *database) proxy(ctx context.Context) ([]*proxy, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var made []*proxy
	for place, c := range d.servers {
		if c == nil {
			continue
		}
		to, err := address(c)
		if err != nil {
			return made, err
		}
		p, err := listenProxy(ctx, to)
		if err != nil {
			return made, err
		}
		d.proxies[place] = append(d.proxies[place], p)
		made = append(made, p)
	}
	return made, nil
}

// proxyDSN is the URL of the database behind proxies for a role, with all of their hosts.
func proxyDSN(role string, proxies []*proxy) string {
	var hosts, ports string
	for i, p := range proxies {
		if i > 0 {
			hosts, ports = hosts+",", ports+","
		}
		hosts, ports = hosts+"127.0.0.1", ports+strconv.Itoa(p.port())
	}
	query := url.Values{"host": {hosts}, "port": {ports}, "sslmode": {"disable"}}
	if len(proxies) > 1 {
		query.Set("target_session_attrs", "read-write")
	}
	u := url.URL{Scheme: "postgres", User: url.User(role), Path: "/" + databaseName, RawQuery: query.Encode()}
	return u.String()
}

// dsn is the superuser's URL of the present primary.
func (d *database) dsn() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.servers[d.primary].DSN(devdb.Superuser, databaseName)
}

// do runs a function on a session of its own as superuser, once. Where the database is away it fails.
func (d *database) do(ctx context.Context, run func(context.Context, *pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, d.dsn())
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // what it did is committed
	return run(ctx, conn)
}

// insist repeats do until it succeeds, while the database comes and goes.
func (d *database) insist(ctx context.Context, run func(context.Context, *pgx.Conn) error) error {
	for {
		err := d.do(ctx, run)
		if err == nil || !sleep(ctx, standbyPoll) {
			return err
		}
	}
}

// crash ends the primary as a power cut would, waits for down and starts it again.
func (d *database) crash(ctx context.Context, immediate bool, down time.Duration) error {
	d.mu.Lock()
	c := d.servers[d.primary]
	d.mu.Unlock()
	began := time.Now()
	if err := end(ctx, c, immediate); err != nil {
		return err
	}
	d.crashes.Add(1)
	sleep(ctx, down)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recoveryWait)
	defer cancel()
	if err := c.Restart(ctx); err != nil {
		return err
	}
	d.away(began)
	return nil
}

func end(ctx context.Context, c *devdb.Cluster, immediate bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recoveryWait)
	defer cancel()
	if immediate {
		return c.StopImmediately(ctx)
	}
	return c.Kill(ctx)
}

// follow gives the primary a synchronous standby in the other place, and returns when everything that was acknowledged is
// on both.
func (d *database) follow(ctx context.Context) error {
	d.mu.Lock()
	primary, place := d.servers[d.primary], 1-d.primary
	folder := d.folder()
	name := "standby_" + strconv.Itoa(d.made)
	d.mu.Unlock()
	from, err := address(primary)
	if err != nil {
		return err
	}
	if d.link, err = listenProxy(ctx, from); err != nil {
		return err
	}
	standby, err := primary.StartStandby(ctx, devdb.StandbyOptions{DataDir: folder, Name: name, Via: d.link.port()})
	if err != nil {
		return err
	}
	to, err := address(standby)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.servers[place] = standby
	for _, p := range d.proxies[place] {
		p.retarget(to)
	}
	d.mu.Unlock()
	if err := d.configure(ctx, "follow"); err != nil {
		return fmt.Errorf("make the standby synchronous: %w", err)
	}
	return d.caughtUp(ctx)
}

// caughtUp waits until the standby is synchronous and has all that was written so far. A commit whose wait for the standby
// was cut short by statement_timeout is acknowledged all the same, and only then safe.
func (d *database) caughtUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, recoveryWait)
	defer cancel()
	return d.insist(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		var target string
		if err := conn.QueryRow(ctx, statement("position")).Scan(&target); err != nil {
			return err
		}
		for {
			var there bool
			if err := conn.QueryRow(ctx, statement("caught_up"), pgx.StrictNamedArgs{"target": target}).Scan(&there); err != nil {
				return err
			}
			if there {
				return nil
			}
			if !sleep(ctx, standbyPoll) {
				return ctx.Err()
			}
		}
	})
}

// failOver ends the primary for good, promotes the standby, and gives it a standby in turn. For the last moments before that
// the standby hears nothing any more, so that what is acknowledged meanwhile is lost.
func (d *database) failOver(ctx context.Context, immediate bool, deaf time.Duration) error {
	if err := d.caughtUp(ctx); err != nil {
		return fmt.Errorf("wait for the standby: %w", err)
	}
	d.link.stall()
	sleep(ctx, deaf)
	d.mu.Lock()
	old, oldPlace := d.servers[d.primary], d.primary
	standby := d.servers[1-d.primary]
	d.mu.Unlock()
	began := time.Now()
	if err := end(ctx, old, immediate); err != nil {
		return err
	}
	d.crashes.Add(1)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*recoveryWait)
	defer cancel()
	d.link.close()
	if err := standby.Promote(ctx); err != nil {
		return err
	}
	d.failovers.Add(1)
	d.away(began)
	d.mu.Lock()
	d.primary, d.servers[oldPlace] = 1-oldPlace, nil
	d.mu.Unlock()
	// Nobody follows the new primary yet: its commits must not wait.
	if err := d.configure(ctx, "write_alone"); err != nil {
		return fmt.Errorf("let the new primary write alone: %w", err)
	}
	if err := old.Stop(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(filepath.Dir(old.LogFile()), "postgres")); err != nil {
		return fmt.Errorf("remove the old primary: %w", err)
	}
	return d.follow(ctx)
}

// configure changes a setting of the primary by a statement.
func (d *database) configure(ctx context.Context, name string) error {
	return d.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, statement(name)); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, statement("reload"))
		return err
	})
}

// stop ends the servers that run.
func (d *database) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recoveryWait)
	defer cancel()
	var faults []error
	// A primary that waits for its standby would not stop.
	for _, place := range []int{1 - d.primary, d.primary} {
		if c := d.servers[place]; c != nil {
			faults = append(faults, c.StopImmediately(ctx), c.Stop(ctx))
		}
	}
	if d.link != nil {
		d.link.close()
	}
	return errors.Join(faults...)
}

// sleep waits; false: ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// newDir makes a folder below parent that the database's user may enter. It is always a new one: what an earlier run of the
// same seed has left is evidence, and its database has other secrets.
func newDir(parent, prefix string) (string, error) {
	if parent != "" {
		if err := os.MkdirAll(parent, 0o755); err != nil {
			return "", fmt.Errorf("make folder of the runs: %w", err)
		}
	}
	dir, err := os.MkdirTemp(parent, prefix)
	if err != nil {
		return "", fmt.Errorf("make folder of the run: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // the database's user has to get through
		return "", fmt.Errorf("open folder of the run: %w", err)
	}
	return dir, nil
}

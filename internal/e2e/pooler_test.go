package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/devdb"
)

// pooler is PgBouncer in transaction mode, configured as docs/operators.md says, before a cluster.
type pooler struct {
	t    *testing.T
	dir  string
	as   *syscall.SysProcAttr
	cmd  *exec.Cmd
	log  *lockedBuffer
	gone chan struct{}
}

const poolerPort = "6432"

// startPooler lets size sessions of each role through to the cluster.
func startPooler(t *testing.T, cluster *devdb.Cluster, size int) *pooler {
	t.Helper()
	dir, err := os.MkdirTemp("", "tg-pool") //nolint:usetesting // a short path, since a socket lies in it
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &pooler{t: t, dir: dir, log: &lockedBuffer{}}
	server, err := pgx.ParseConfig(cluster.DSN(devdb.Superuser, "tollgate"))
	require.NoError(t, err)
	p.write("pgbouncer.ini", fmt.Sprintf(`
[databases]
tollgate = host=%s port=%d
[pgbouncer]
unix_socket_dir = %s
listen_port = %s
auth_type = trust
auth_file = %s/users
pool_mode = transaction
default_pool_size = %d
max_client_conn = 200
`, server.Host, server.Port, dir, poolerPort, dir, size))
	p.write("users", "\"tollgate_gateway\" \"\"\n\"tollgate_control\" \"\"\n")
	if os.Geteuid() == 0 { // it refuses to run as root, and only the server's user reaches its socket
		owner, err := user.Lookup("postgres")
		if err != nil {
			owner, err = user.Lookup("nobody")
		}
		require.NoError(t, err)
		uid, err := strconv.ParseUint(owner.Uid, 10, 32)
		require.NoError(t, err)
		gid, err := strconv.ParseUint(owner.Gid, 10, 32)
		require.NoError(t, err)
		require.NoError(t, os.Chown(dir, int(uid), int(gid)))
		p.as = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	p.start()
	t.Cleanup(func() { p.kill() })
	return p
}

func (p *pooler) write(name, text string) {
	p.t.Helper()
	require.NoError(p.t, os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o644))
}

func (p *pooler) start() {
	p.t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program = "/usr/sbin/pgbouncer" // where only root looks by itself
	}
	p.cmd = exec.Command(program, filepath.Join(p.dir, "pgbouncer.ini"))
	p.cmd.SysProcAttr, p.cmd.Stdout, p.cmd.Stderr = p.as, p.log, p.log
	require.NoError(p.t, p.cmd.Start(), "the package pgbouncer is needed: .ci/install test")
	p.gone = make(chan struct{})
	go func() {
		_ = p.cmd.Wait()
		close(p.gone)
	}()
	require.Eventually(p.t, func() bool {
		_, err := os.Stat(filepath.Join(p.dir, ".s.PGSQL."+poolerPort))
		return err == nil
	}, 30*time.Second, 10*time.Millisecond, "the pooler listens: %s", p.log)
}

// kill ends the pooler and with it every session through it.
func (p *pooler) kill() {
	_ = p.cmd.Process.Kill()
	<-p.gone
	_ = os.Remove(filepath.Join(p.dir, ".s.PGSQL."+poolerPort))
	_ = os.Remove(filepath.Join(p.dir, ".s.PGSQL."+poolerPort+".lock"))
}

// dsn is the URL of the cluster through the pooler.
func (p *pooler) dsn() string {
	return "postgres://tollgate_gateway@/tollgate?" + url.Values{"host": {p.dir}, "port": {poolerPort}, "sslmode": {"disable"}}.Encode()
}

// sessions samples how many sessions ordinary roles have with a cluster, until the test stops it, and returns the most.
func sessions(t *testing.T, cluster *devdb.Cluster) (most func() int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), cluster.DSN(devdb.Superuser, "tollgate"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var seen atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			var n int64
			if err := conn.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE usename LIKE 'tollgate_%'").Scan(&n); err == nil {
				seen.Store(max(seen.Load(), n))
			}
			<-tick.C
		}
	}()
	return func() int {
		cancel()
		<-done
		_ = conn.Close(context.WithoutCancel(ctx))
		return int(seen.Load())
	}
}

// F157: everything goes through a transaction pooler that lets five sessions of a role through, four gateways included. The
// pooler refuses the time-outs that sessions ask for; those on the roles are in force. Where notifications cannot arrive,
// since they do not pass a pooler, changes do all the same (F173). The end of the pooler is an outage like any other.
func TestF157_F173_ThroughATransactionPooler(t *testing.T) {
	t.Parallel()
	const size = 5
	cluster := startDatabase(t)
	pool := startPooler(t, cluster, size)
	f := startFleet(t, fleetOptions{
		gateways: 3, dsn: cluster.DSN(devdb.Superuser, "tollgate"), through: pool.dsn(),
	})
	deaf := f.addGateway("TOLLGATE_DATABASE_DIRECT_URL=postgres://tollgate_gateway@127.0.0.1:1/tollgate")
	most := sessions(t, cluster)
	key, keyID := f.issue(forever("cost", "100"), perDay("requests", "100000"))
	f.awaitAnswers(key)
	before := f.goroutines()
	outcomes := f.closedLoop(16, 400, chat(key, helloChat))
	requireDecided(t, outcomes)

	// What the pooler lets through of both roles, and a session for notifications of each process that has one.
	require.LessOrEqual(t, most(), 2*size+len(f.gateways)+1)
	f.patch("limits/"+f.limitsOf(keyID)[1], object{"amount": "1"})
	for _, g := range []*process{deaf, f.gateways[0]} {
		f.eventually(10*time.Second, "a change arrives", func() bool {
			a, err := g.call(t.Context(), key, "/v1/chat/completions", helloChat)
			return err == nil && a.status == http.StatusTooManyRequests
		})
	}
	fresh, _ := f.issue(forever("cost", "100"))
	f.eventually(10*time.Second, "a key that was just made is served", func() bool {
		a := must(t)(deaf.call(t.Context(), fresh, "/v1/chat/completions", helloChat))
		require.NotEqual(t, http.StatusUnauthorized, a.status, "a key that was just made is unknown")
		return a.status == http.StatusOK
	})

	says := spawn(t, append(f.env, "DATABASE_URL="+as(pool.dsn(), "tollgate_gateway")), "doctor", "--planes", "gateway")
	says.exitCode(t, 60*time.Second)
	require.Contains(t, says.stdout.String(), "a pooler stands between")

	seen := f.forwarded()
	pool.kill()
	for _, o := range f.closedLoop(4, 16, chat(fresh, helloChat)) {
		require.NoError(t, o.err)
		require.Equal(t, http.StatusServiceUnavailable, o.status, "%s", o.body)
	}
	require.Equal(t, seen, f.forwarded(), "something was forwarded undecided")
	pool.start()
	f.awaitAnswers(fresh)
	for _, p := range append([]*process{f.control}, f.gateways...) {
		require.NotContains(t, p.out.String(), "prepared statement")
	}
	f.requireBooksBalance()
	f.requireOneRowPerForward()
	f.requireNoLeak(before)
}

// requireDecided asserts that most calls of a load were answered 200, and the rest by the 503 of a store that could not decide
// in time, as a busy machine may bring about.
func requireDecided(t *testing.T, outcomes []outcome) {
	t.Helper()
	counts := tally(outcomes)
	require.Equal(t, len(outcomes), counts["200"]+undecided(counts)+counts["503 data_store_unavailable"], "%v", counts)
	require.Greater(t, counts["200"], len(outcomes)/2, "%v", counts)
}

// goroutines counts those of all gateways that are in Tollgate's own code: connections that wait for their next use are not.
func (f *fleet) goroutines() int {
	f.t.Helper()
	n := 0
	for _, g := range f.gateways {
		a, err := probe(f.t, g.ops, "/debug/pprof/goroutine?debug=1")
		require.NoError(f.t, err)
		for block := range strings.SplitSeq(string(a.body), "\n\n") {
			count, stack, ok := strings.Cut(block, " @ ")
			if !ok || !strings.Contains(stack, "tollgate-gateway/tollgate/") {
				continue
			}
			same, err := strconv.Atoi(count[strings.LastIndexByte(count, '\n')+1:])
			require.NoError(f.t, err)
			n += same
		}
	}
	return n
}

// requireNoLeak waits until the gateways have no more goroutines than before, but for a few that come and go.
func (f *fleet) requireNoLeak(before int) {
	f.t.Helper()
	f.eventually(15*time.Second, "goroutines end", func() bool { return f.goroutines() <= before+4*len(f.gateways) })
}

// F154: PostgreSQL has few connections. Processes whose pools fit never meet its bound, whatever the load; those whose pools
// may not fit say so at their start. A role without any connection left is an outage like any other.
func TestF154_FewConnections(t *testing.T) {
	t.Parallel()
	const conns, gateways = 3, 4
	cluster := startDatabaseWith(t, devdb.Options{MaxConnections: 30})
	f := startFleet(t, fleetOptions{
		gateways: gateways, dsn: cluster.DSN(devdb.Superuser, "tollgate"),
		env: []string{"TOLLGATE_DATABASE_CONNS=" + strconv.Itoa(conns)},
	})
	const most = gateways*(conns+1) + (conns + 4 + 2 + 1) // the control plane's pools, too
	for _, g := range f.gateways {
		require.NotContains(t, g.out.String(), "may run out of connections")
	}
	count := sessions(t, cluster)
	var keys []string
	for range 40 { // each gateway has to look each of them up
		key, _ := f.issue(forever("cost", "100"))
		keys = append(keys, key)
	}
	outcomes := f.closedLoop(64, 1200, func(ctx context.Context, g *process, i int) (answer, error) {
		return g.call(ctx, keys[i/gateways%len(keys)], "/v1/chat/completions", helloChat)
	})
	requireDecided(t, outcomes)
	require.LessOrEqual(t, count(), most)
	logged, err := os.ReadFile(cluster.LogFile())
	require.NoError(t, err)
	require.NotContains(t, string(logged), "too many clients")
	require.NotContains(t, string(logged), "remaining connection slots")

	greedy := f.addGateway("TOLLGATE_DATABASE_CONNS=8")
	require.Contains(t, greedy.out.String(), "may run out of connections")
	f.gateways = f.gateways[:gateways]

	before, seen := f.goroutines(), f.forwarded()
	f.besides("ALTER ROLE tollgate_gateway CONNECTION LIMIT 0",
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'tollgate_gateway'")
	refused := f.closedLoop(8, 32, chat(keys[0], helloChat))
	for _, o := range refused {
		require.NoError(t, o.err)
		require.Equal(t, http.StatusServiceUnavailable, o.status, "%s", o.body)
		requireRedacted(t, o, cluster)
	}
	require.Equal(t, seen, f.forwarded(), "something was forwarded undecided")
	f.besides("ALTER ROLE tollgate_gateway CONNECTION LIMIT -1")
	f.awaitAnswers(keys[0])
	f.requireBooksBalance()
	f.requireOneRowPerForward()
	f.requireNoLeak(before)
}

// F170: somebody holds a row that a part of the calls needs. Those are refused in time, all others are answered; connections
// do not pile up behind it, and once the row is free nothing is left of it.
func TestF170_AHeldRowStopsNobodyElse(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{gateways: 2})
	stuck, stuckID := f.issue(forever("cost", "100"))
	free, _ := f.issue(forever("cost", "100"))
	f.awaitAnswers(stuck)
	f.awaitAnswers(free)
	before := f.goroutines()
	conn, err := pgx.Connect(t.Context(), f.dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	var held int64
	require.NoError(t, tx.QueryRow(t.Context(), `
		WITH held AS (SELECT FROM ledger.meters AS m JOIN tollgate.limits AS l ON l.id = m.limit_id WHERE l.public_id = $1 FOR UPDATE OF m)
		SELECT count(*) FROM held`, f.limitsOf(stuckID)[0]).Scan(&held))
	require.EqualValues(t, 1, held)
	seen := f.forwarded()
	const each = 20 // one in twenty needs the row
	outcomes := f.openLoop(60, 480, func(ctx context.Context, g *process, i int) (answer, error) {
		key := free
		if i%each == 0 {
			key = stuck
		}
		return g.call(ctx, key, "/v1/chat/completions", helloChat)
	})
	ok := 0
	for i, o := range outcomes {
		require.NoError(t, o.err)
		switch {
		case i%each == 0:
			require.Equal(t, http.StatusServiceUnavailable, o.status, "%s", o.body)
		case o.status == http.StatusOK:
			ok++
		default:
			require.Equal(t, http.StatusServiceUnavailable, o.status, "%s", o.body)
		}
	}
	require.Greater(t, ok, len(outcomes)/2, "%v", tally(outcomes))
	require.EqualValues(t, ok, f.forwarded()-seen, "something was forwarded undecided")
	require.NoError(t, tx.Rollback(t.Context()))
	f.awaitAnswers(stuck)
	f.eventually(20*time.Second, "no connection is in use", func() bool { return f.metric("tollgate_database_connections_used", "") == 0 })
	f.requireBooksBalance()
	f.requireOneRowPerForward()
	f.requireNoLeak(before)
}

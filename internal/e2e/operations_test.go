package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/devdb"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/mock"
	"github.com/tollgate-gateway/tollgate/internal/pgtest"
)

// running is a command of the binary that runs, with its output kept apart from its log.
type running struct {
	process

	stdout *lockedBuffer
}

// spawn runs a command of the binary without waiting for anything.
func spawn(t *testing.T, env []string, args ...string) *running {
	t.Helper()
	r := &running{process{out: &lockedBuffer{}, done: make(chan struct{})}, &lockedBuffer{}}
	r.cmd = exec.Command(binary, args...)
	r.cmd.Env = append([]string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH"), "NO_COLOR=1"}, env...)
	r.cmd.Stdout, r.cmd.Stderr = r.stdout, r.out
	require.NoError(t, r.cmd.Start())
	go func() {
		r.exit = r.cmd.Wait()
		close(r.done)
	}()
	t.Cleanup(func() {
		r.kill()
		if t.Failed() {
			t.Logf("output of %v:\n%s\n%s", args, tail(r.stdout.String(), 2000), tail(r.out.String(), 4000))
		}
		require.NotContains(t, r.out.String(), "DATA RACE")
		require.NotContains(t, r.out.String(), "panic:")
	})
	return r
}

// waitFor waits until the command has written text to its standard output.
func (r *running) waitFor(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool {
		select {
		case <-r.done:
			return true
		default:
			return strings.Contains(r.stdout.String(), text)
		}
	}, 60*time.Second, 10*time.Millisecond, "%q is written", text)
	require.Contains(t, r.stdout.String(), text, "the command has ended: %s", r.out)
}

// exitCode waits for the end of the command.
func (r *running) exitCode(t *testing.T, within time.Duration) int {
	t.Helper()
	select {
	case <-r.done:
		return r.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		require.Fail(t, "command did not end", "%s\n%s", r.stdout, r.out)
		return -1
	}
}

// freeAddress is a loopback address that nobody listens on, for processes that say nothing before they are ready.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// probe reads one of the operations endpoints.
func probe(t *testing.T, ops, path string) (answer, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, ops+path, nil)
	require.NoError(t, err)
	return do(req)
}

// waitUntilReady waits for the status and text of /readyz.
func waitUntilReady(t *testing.T, ops string, status int, text string) {
	t.Helper()
	require.Eventually(t, func() bool {
		a, err := probe(t, ops, "/readyz")
		return err == nil && a.status == status && strings.Contains(string(a.body), text)
	}, 30*time.Second, 20*time.Millisecond, "readiness becomes %d %q", status, text)
}

// stream is one streamed chat that a test holds in its hand.
type stream struct {
	status int
	header http.Header
	lines  *bufio.Reader
	close  func()
}

// stream opens a streamed chat and reads up to its first event.
func (f *fleet) stream(g *process, key string) *stream {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, g.baseURL+"/v1/chat/completions",
		strings.NewReader(strings.Replace(helloChat, "{", `{"stream":true,`, 1)))
	require.NoError(f.t, err)
	req.Header.Set("Authorization", "Bearer "+key)
	r, err := client.Do(req)
	require.NoError(f.t, err)
	s := &stream{r.StatusCode, r.Header, bufio.NewReader(r.Body), func() { _ = r.Body.Close() }}
	f.t.Cleanup(s.close)
	require.Equal(f.t, http.StatusOK, s.status)
	line, err := s.lines.ReadString('\n')
	require.NoError(f.t, err)
	require.Contains(f.t, line, "data: ")
	return s
}

// rest reads a stream to its end, whatever that is.
func (s *stream) rest() string {
	var b strings.Builder
	_, _ = s.lines.WriteTo(&b) // a cut is seen in the text
	return b.String()
}

// F190: a process that is told to end finishes what it has begun, takes nothing new, and loses no row.
func TestF190_TerminationDrainsStreams(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	g := f.gateways[0]
	key, _ := f.issue()
	require.NoError(t, f.mock.SetScript(mock.Rule{Script: "confirm"}))
	const streams = 24
	var open []*stream
	for range streams {
		open = append(open, f.stream(g, key))
	}
	require.NoError(t, g.cmd.Process.Signal(syscall.SIGTERM))
	waitUntilReady(t, g.ops, http.StatusServiceUnavailable, "draining")
	live, err := probe(t, g.ops, "/livez")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, live.status, "a process that drains is alive")
	f.eventually(20*time.Second, "new calls are refused", func() bool {
		refused, err := g.call(t.Context(), key, "/v1/chat/completions", helloChat)
		return err != nil || refused.status == http.StatusServiceUnavailable
	})
	forwarded := f.mock.Counts().Count
	require.EqualValues(t, streams, forwarded)

	f.mock.Release(0, 1000)
	for _, s := range open {
		require.True(t, strings.HasSuffix(s.rest(), "data: [DONE]\n\n"), "no stream is cut")
	}
	select {
	case <-g.done:
	case <-time.After(20 * time.Second):
		require.Fail(t, "process did not end")
	}
	require.Equal(t, 0, g.cmd.ProcessState.ExitCode(), g.out.String())
	rows := f.rows()
	require.Len(t, rows, streams)
	for _, r := range rows {
		require.Equal(t, "complete", r["outcome"])
		require.Equal(t, "provider", r["usage_source"])
	}
	f.requireBooksBalance()
}

// A drain that is too short for its streams ends them with an error that clients understand, and settles them.
func TestF190_ShortDrainCutsWithAnErrorAndSettles(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{env: []string{"TOLLGATE_DRAIN_TIMEOUT=1s"}})
	g := f.gateways[0]
	key, _ := f.issue()
	require.NoError(t, f.mock.SetScript(mock.Rule{Script: "freeze_after(3)"}))
	const streams = 5
	var open []*stream
	for range streams {
		open = append(open, f.stream(g, key))
	}
	require.Equal(t, 0, g.terminate(t, 20*time.Second), g.out.String())
	for _, s := range open {
		text := s.rest()
		require.NotContains(t, text, "[DONE]")
		events := strings.Split(strings.TrimSuffix(text, "\n\n"), "\n\n")
		last, ok := strings.CutPrefix(events[len(events)-1], "data: ")
		require.True(t, ok, text)
		require.NotEmpty(t, answer{body: []byte(last)}.code(), "the last event says why: %s", text)
	}
	rows := f.rows()
	require.Len(t, rows, streams)
	for _, r := range rows {
		require.Equal(t, "usage", r["kind"], "settled by the process itself, not by expiry")
		require.NotEqual(t, "0.000000000", r["cost_usd"])
	}
	f.requireBooksBalance()
}

// Who asks twice means it.
func TestTermination_SecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	g := f.gateways[0]
	key, _ := f.issue()
	require.NoError(t, f.mock.SetScript(mock.Rule{Script: "freeze_after(3)"}))
	f.stream(g, key)
	require.NoError(t, g.cmd.Process.Signal(syscall.SIGTERM))
	waitUntilReady(t, g.ops, http.StatusServiceUnavailable, "draining")
	asked := time.Now()
	require.NoError(t, g.cmd.Process.Signal(syscall.SIGTERM))
	<-g.done
	require.Less(t, time.Since(asked), 5*time.Second, "though a stream and ten minutes of drain were left")
	require.NotEqual(t, 0, g.cmd.ProcessState.ExitCode())
}

// C-01, F191: probes answer from memory while every worker waits for an upstream and the database is away. They live on a
// listener of their own, as the control plane does.
func TestF191_ProbesAnswerUnderSaturation(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	g := f.gateways[0]
	key, _ := f.issue()
	require.NoError(t, f.mock.SetScript(mock.Rule{Script: "hold"}))
	const stalled = 500
	var calls sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for n := 1; n <= stalled; n++ {
		calls.Go(func() { _, _ = g.call(t.Context(), key, "/v1/chat/completions", helloChat) }) // their end is that of the gateway
		if n%50 == 0 {
			require.NoError(t, f.mock.Wait(ctx, func(c mock.Counts) bool { return c.InFlight == n }))
		}
	}
	f.closeDatabase()
	defer f.openDatabase()

	var times []time.Duration
	for range 40 {
		for _, path := range []string{"/readyz", "/livez"} {
			began := time.Now()
			a, err := probe(t, g.ops, path)
			times = append(times, time.Since(began))
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, a.status, "%s: %s", path, a.body)
		}
	}
	slices.Sort(times)
	p99 := times[len(times)*99/100-1]
	t.Logf("probes with %d stalled calls and no database: median %s, p99 %s", stalled, times[len(times)/2], p99)
	require.Less(t, p99, 500*time.Millisecond)

	for path, wantOnTraffic := range map[string]int{"/livez": 404, "/readyz": 404, "/metrics": 404, "/debug/pprof/": 404, "/admin/v1/keys": 404, "/console/": 404, "/": 200} {
		a := must(t)(g.get(t.Context(), key, path))
		require.Equal(t, wantOnTraffic, a.status, "%s on the traffic listener", path)
		if wantOnTraffic == http.StatusNotFound {
			require.NotEmpty(t, a.code(), "%s: %s", path, a.body)
		}
	}
	g.kill()
	calls.Wait()
}

// serveGateway is the command line of a data plane whose operations listener is known from the start.
func serveGateway(ops string, more ...string) []string {
	return append([]string{"serve", "--planes", "gateway", "--listen", "127.0.0.1:0", "--ops-listen", ops, "--output", "json"}, more...)
}

// a data plane whose role could change what it is governed by is not ready and says why, unless it is told to accept
// that. Ruling 47: wrong secrets end the process before it answers, without showing them.
func TestA21_GatewayRefusesPrivilegedRolesAndWrongSecrets(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	for _, role := range []string{"tollgate_control", "postgres"} {
		ops, traffic := freeAddress(t), freeAddress(t)
		r := spawn(t, append(f.env, "DATABASE_URL="+as(f.dsn, role)), serveGateway(ops, "--listen", traffic)...)
		waitUntilReady(t, "http://"+ops, http.StatusServiceUnavailable, "role "+role+" may do more than the data plane needs")
		early := &process{baseURL: "http://" + traffic}
		refused := must(t)(early.call(t.Context(), "sk-tg-any", "/v1/chat/completions", helloChat))
		require.Equal(t, http.StatusServiceUnavailable, refused.status, "whoever calls all the same is not left waiting")
		require.Equal(t, "data_store_unavailable", refused.code())
		require.Empty(t, r.stdout.String(), "it does not say that it serves")
		require.Equal(t, 0, r.terminate(t, 20*time.Second), r.out.String())
	}
	ops := freeAddress(t)
	allowed := spawn(t, append(f.env, "DATABASE_URL="+as(f.dsn, "tollgate_control")), serveGateway(ops, "--allow-privileged-role")...)
	waitUntilReady(t, "http://"+ops, http.StatusOK, "ready")
	require.Contains(t, allowed.out.String(), "may do more than it needs", "and warns")

	for name, id := range map[string]string{"TOLLGATE_KEY_PEPPERS": "p1", "TOLLGATE_ENCRYPTION_KEYS": "k1"} {
		wrong := random32()
		r := spawn(t, append(f.env, "DATABASE_URL="+as(f.dsn, "tollgate_gateway"), name+"="+id+":"+wrong), serveGateway(freeAddress(t))...)
		require.Equal(t, 1, r.exitCode(t, 30*time.Second))
		require.Contains(t, r.out.String(), `"`+id+`": secret differs`, name)
		require.NotContains(t, r.out.String(), wrong)

		short := spawn(t, append(f.env, "DATABASE_URL="+as(f.dsn, "tollgate_gateway"), name+"="+id+":c2hvcnQtbWFya2Vy"), serveGateway(freeAddress(t))...)
		require.Equal(t, 1, short.exitCode(t, 30*time.Second))
		require.Contains(t, short.out.String(), name, "a secret that is too short is named")
		require.NotContains(t, short.out.String(), "c2hvcnQtbWFya2Vy")
	}
}

// F158, F169: many migrate at once and all succeed; a gateway that came first waits, says for what, and becomes ready.
func TestF158_MigrationsInCompanyAndAGatewayThatWaits(t *testing.T) {
	t.Parallel()
	dsn := pgtest.EmptyDSN(t)
	env := []string{
		"TOLLGATE_ADMIN_TOKEN=" + adminToken, "TOLLGATE_KEY_PEPPERS=p1:" + random32(), "TOLLGATE_ENCRYPTION_KEYS=k1:" + random32(),
		"DATABASE_URL=" + as(dsn, "tollgate_gateway"), "TOLLGATE_LOG_LEVEL=warn",
	}
	owner := []string{"TOLLGATE_DATABASE_DIRECT_URL=" + dsn}
	type status struct{ Current, Newest int64 }
	stand := func() (s status) {
		out := succeed(t, owner, "migrate", "status", "--output", "json")
		require.NoError(t, json.Unmarshal([]byte(out), &s), out)
		return s
	}
	before := stand()
	require.Zero(t, before.Current)
	require.Positive(t, before.Newest)

	ops := freeAddress(t)
	spawn(t, env, serveGateway(ops)...)
	waitUntilReady(t, "http://"+ops, http.StatusServiceUnavailable,
		fmt.Sprintf("schema is at 0, this binary needs %d: run `tollgate migrate up`", before.Newest))

	var all []*running
	for range 5 {
		all = append(all, spawn(t, owner, "migrate", "up"))
	}
	for _, r := range all {
		require.Equal(t, 0, r.exitCode(t, 60*time.Second), r.out.String())
		require.Contains(t, r.stdout.String(), fmt.Sprintf("schema is at version %d", before.Newest))
	}
	require.Equal(t, status{before.Newest, before.Newest}, stand())
	waitUntilReady(t, "http://"+ops, http.StatusOK, "ready")
}

// succeed runs a command to its end and returns what it printed.
func succeed(t *testing.T, env []string, args ...string) string {
	t.Helper()
	r := spawn(t, env, args...)
	require.Equal(t, 0, r.exitCode(t, 60*time.Second), "tollgate %v: %s", args, r.out)
	return r.stdout.String()
}

// fail runs a command that must fail with a code, and returns what it complained about.
func fail(t *testing.T, code int, env []string, args ...string) string {
	t.Helper()
	r := spawn(t, env, args...)
	require.Equal(t, code, r.exitCode(t, 60*time.Second), "tollgate %v: %s%s", args, r.stdout, r.out)
	return r.out.String()
}

// Passwords change while calls run, and PostgreSQL never sees an old one, since each connection reads the file anew. The
// test runs alone; even so, a machine without a free core may have a call or two refused for want of time, as it would
// without any rotation.
func TestPasswordRotation_NoCallMeetsAnOldPassword(t *testing.T) {
	dir := t.TempDir()
	rules := filepath.Join("/tmp", "tollgate-hba-"+ids.Random62(8))                                                   // where the server's own user can read it
	require.NoError(t, os.WriteFile(rules, []byte("local all postgres trust\nlocal all all scram-sha-256\n"), 0o644)) // no secret
	t.Cleanup(func() { _ = os.Remove(rules) })
	cluster, err := devdb.StartScratch(t.Context(), devdb.Options{Fast: true, Settings: map[string]string{"hba_file": rules}})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		require.NoError(t, cluster.Stop(ctx))
	})
	dsn := cluster.DSN(devdb.Superuser, "tollgate")
	succeed(t, []string{"DATABASE_URL=" + dsn}, "migrate", "up")
	super, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = super.Close(context.Background()) })
	file := filepath.Join(dir, "password")
	rotate := func() {
		password := ids.Random62(24)
		require.NoError(t, os.WriteFile(file+".new", []byte(password+"\n"), 0o600))
		for _, role := range []string{"tollgate_control", "tollgate_gateway"} {
			_, err := super.Exec(t.Context(), "ALTER ROLE "+role+" PASSWORD '"+password+"'")
			require.NoError(t, err)
		}
		require.NoError(t, os.Rename(file+".new", file))
	}
	rotate()
	f := startFleet(t, fleetOptions{dsn: dsn, env: []string{
		"TOLLGATE_DATABASE_PASSWORD_FILE=" + file, "TOLLGATE_DATABASE_CONN_LIFE=2s",
	}})
	key, _ := f.issue()
	const rate, seconds, rotations = 100, 12, 4
	var calls sync.WaitGroup
	var mu sync.Mutex
	var failures []string
	answered := 0
	tick := time.NewTicker(time.Second / rate)
	defer tick.Stop()
	for i := range rate * seconds {
		<-tick.C
		if i%(rate*seconds/rotations) == rate { // a second into each quarter
			rotate()
		}
		calls.Go(func() {
			a, err := f.gateways[0].call(t.Context(), key, "/v1/chat/completions", helloChat)
			mu.Lock()
			defer mu.Unlock()
			if err != nil || a.status != http.StatusOK {
				failures = append(failures, fmt.Sprintf("%d %s %v", a.status, a.body, err))
			}
			answered++
		})
	}
	calls.Wait()
	require.Equal(t, rate*seconds, answered)
	t.Logf("%d calls over %d rotations, %d refused", answered, rotations, len(failures))
	require.LessOrEqual(t, len(failures), answered/20, "%q", failures)
	for _, refusal := range failures {
		require.Contains(t, refusal, "503", "with a typed answer")
	}
	log, err := os.ReadFile(cluster.LogFile())
	require.NoError(t, err)
	// A connection that is being made while the password changes reads the one before; the next one does not.
	require.LessOrEqual(t, strings.Count(string(log), "password authentication failed"), rotations)
	var connections int
	require.NoError(t, super.QueryRow(t.Context(), `
		SELECT count(*) FROM pg_stat_activity WHERE usename = 'tollgate_gateway' AND backend_start < now() - interval '5 seconds' AND query NOT LIKE '%LISTEN%'`).Scan(&connections))
	require.Zero(t, connections, "old connections were replaced, so that new passwords were in use")
	f.requireBooksBalance()
}

// C-07: the pools of processes that nobody calls hold at most one connection each. (A process has one more outside of any
// pool, on which it listens.)
func TestC07_IdleProcessesHoldOneConnection(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{gateways: 6})
	conn, err := pgx.Connect(t.Context(), f.dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	var pooled int
	ok := assert.Eventually(t, func() bool { // the start needed more, which a pool closes once they were idle for some seconds
		err := conn.QueryRow(t.Context(), `
			SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND usename = 'tollgate_gateway' AND query NOT LIKE '%LISTEN%' AND query <> '-- ping'`).Scan(&pooled)
		return err == nil && pooled <= len(f.gateways)
	}, 90*time.Second, 500*time.Millisecond, "at most one connection for each idle gateway")
	t.Logf("the pools of %d idle gateways hold %d connections", len(f.gateways), pooled)
	require.True(t, ok)
}

// Where it is asked for, readiness follows the database, both ways.
func TestReadiness_MayRequireTheDatabase(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{env: []string{"TOLLGATE_READINESS_REQUIRE_DATABASE=true"}})
	key, _ := f.issue()
	g := f.gateways[0]
	require.Equal(t, http.StatusOK, must(t)(g.call(t.Context(), key, "/v1/chat/completions", helloChat)).status)
	f.closeDatabase()
	f.eventually(30*time.Second, "the gateway is unready", func() bool {
		_, _ = g.call(t.Context(), key, "/v1/chat/completions", helloChat) // what a balancer would still send
		a, err := probe(t, g.ops, "/readyz")
		return err == nil && a.status == http.StatusServiceUnavailable && strings.Contains(string(a.body), "the database is away")
	})
	f.openDatabase()
	waitUntilReady(t, g.ops, http.StatusOK, "ready")
}

// A demonstration may count limits in memory: each process grants them on its own, and says so.
func TestLimitStoreInMemory_CountsPerProcessAndSaysSo(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{gateways: 1, env: []string{"TOLLGATE_LIMIT_STORE=memory"}})
	f.addGateway("CP_GATEWAY_LIMIT_STORE=memory")
	key, _ := f.issue(object{"kind": "rate", "metric": "requests", "amount": "3", "per": "24h", "burst": "3"})
	admitted := 0
	for _, g := range f.gateways {
		for i := range 8 {
			a := must(t)(g.call(t.Context(), key, "/v1/chat/completions", helloChat))
			if i < 3 {
				require.Equal(t, http.StatusOK, a.status, "%s", a.body)
				admitted++
				continue
			}
			require.Equal(t, http.StatusTooManyRequests, a.status, "%s", a.body)
			require.Equal(t, "rate_limit_exceeded", a.code())
		}
		require.Contains(t, g.out.String(), "N processes grant N times each limit")
	}
	require.EqualValues(t, admitted, f.mock.Counts().Count)
	require.Len(t, f.rows(), admitted, "rows of spend are in PostgreSQL all the same")
	f.requireBooksBalance()
}

// F206: what clients make up creates no metric series.
func TestF206_MetricsAreBounded(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	g := f.gateways[0]
	key, _ := f.issue()
	require.Equal(t, http.StatusOK, must(t)(g.call(t.Context(), key, "/v1/chat/completions", helloChat)).status)
	nonsense := func(i int) {
		var err error
		if i%2 == 0 {
			_, err = g.call(t.Context(), key, "/v1/chat/completions", strings.Replace(helloChat, "plain", fmt.Sprintf("made-up-%d", i), 1))
		} else {
			_, err = g.get(t.Context(), key, fmt.Sprintf("/wp-%d/admin%d.php", i, i))
		}
		if err != nil {
			t.Error(err)
		}
	}
	nonsense(0)
	nonsense(1)
	series := func() (map[string]bool, time.Duration) {
		began := time.Now()
		a, err := probe(t, g.ops, "/metrics")
		took := time.Since(began)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, a.status)
		found := map[string]bool{}
		for line := range strings.Lines(string(a.body)) {
			if strings.HasPrefix(line, "tollgate_") {
				found[line[:strings.LastIndexByte(line, ' ')]] = true
			}
		}
		return found, took
	}
	before, _ := series()
	const requests, workers = 20_000, 32
	next := make(chan int)
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for i := range next {
				nonsense(i)
			}
		})
	}
	for i := range requests {
		next <- i
	}
	close(next)
	all.Wait()
	after, took := series()
	t.Logf("%d series before, %d after %d requests of made-up models and paths; a scrape took %s", len(before), len(after), requests, took)
	require.Less(t, len(after)-len(before), 5)
	for _, name := range []string{
		"tollgate_build_info", "tollgate_gateway_requests_total", "tollgate_requests_total", "tollgate_attempts_total",
		"tollgate_request_duration_seconds_count", "tollgate_first_byte_seconds_count", "tollgate_overhead_seconds_count", "tollgate_tokens_sum",
		"tollgate_cost_usd_sum", "tollgate_gateway_admission_seconds_bucket", "tollgate_ledger_batch_seconds_bucket",
		"tollgate_ledger_failures_total", "tollgate_ledger_queue_length", "tollgate_ledger_outbox_length", "tollgate_store_up",
	} {
		require.True(t, slices.ContainsFunc(slices.Collect(maps.Keys(after)), func(s string) bool {
			return s == name || strings.HasPrefix(s, name+"{")
		}), "%s is missing", name)
	}
}

// Settings come with their faults named where they stand.
func TestSettings_FaultsAreNamed(t *testing.T) {
	t.Parallel()
	good := []string{
		"DATABASE_URL=postgres://tollgate_gateway:hunter2-marker@127.0.0.1:1/nothing", "TOLLGATE_ADMIN_TOKEN=" + adminToken,
		"TOLLGATE_KEY_PEPPERS=p1:" + random32(), "TOLLGATE_ENCRYPTION_KEYS=k1:" + random32(),
	}
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "tollgate.yaml")
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	require.Contains(t, succeed(t, good, "config", "check"), "valid")
	require.Contains(t, fail(t, 1, good, "serve", "--no-such-flag"), "unknown flag --no-such-flag")
	says := fail(t, 1, good, "config", "check", "--config", file("listen: :1\ndrain_timeout: 5s\nno_such_key: 1\n"))
	require.Contains(t, says, "line 3: unknown setting no-such-key")
	require.Contains(t, fail(t, 1, good, "config", "check", "--config", file("database:\n  conns: 1\n")), "TOLLGATE_DATABASE_CONNS: at least 2, not 1")
	says = fail(t, 1, good[:1], "config", "check")
	for _, name := range []string{"TOLLGATE_ADMIN_TOKEN", "TOLLGATE_KEY_PEPPERS", "TOLLGATE_ENCRYPTION_KEYS"} {
		require.Contains(t, says, name, "all faults at once")
	}
	shown := succeed(t, good, "config", "show")
	for _, e := range good {
		_, value, _ := strings.Cut(e, "=")
		require.NotContains(t, shown, value, "secrets are masked")
	}
	require.NotContains(t, shown, "hunter2-marker")

	// The flag wins over the environment, the environment over the file, the file over the default.
	inForce := func(env []string, args ...string) string {
		for line := range strings.Lines(succeed(t, append(good, env...), append([]string{"config", "show"}, args...)...)) {
			if f := strings.Fields(line); f[0] == "max-attempts" {
				return f[len(f)-1]
			}
		}
		return ""
	}
	settings := []string{"--config", file("max_attempts: 5\n")}
	require.Equal(t, "3", inForce(nil))
	require.Equal(t, "5", inForce(nil, settings...))
	require.Equal(t, "6", inForce([]string{"TOLLGATE_MAX_ATTEMPTS=6"}, settings...))
	require.Equal(t, "7", inForce([]string{"TOLLGATE_MAX_ATTEMPTS=6"}, append(settings, "--max-attempts", "7")...))

	chain := succeed(t, good, "serve", "--print-chain")
	at := -1
	for _, id := range []string{"virtualkey", "modelroute", "guardrail", "ratelimit", "budget", "concurrency"} {
		i := strings.Index(chain, id)
		require.Greater(t, i, at, "%s has its place in\n%s", id, chain)
		at = i
	}
	says = fail(t, 1, good, "serve", "--print-chain", "--config", file("plugins:\n  - id: virtualkey\n  - id: modelroute\n"))
	require.Contains(t, says, "ungoverned", "a chain without limits is refused")
	says = fail(t, 1, good, "serve", "--print-chain", "--config", file("plugins:\n  - id: virtualkey\n    no_such_member: 1\n"))
	require.Contains(t, says, "no_such_member")
	require.Contains(t, fail(t, 1, good, "doctor"), "needs attention")
	require.NotContains(t, fail(t, 1, good, "doctor"), "hunter2-marker")
}

// finding is one line of the doctor.
type finding struct {
	Name, Says, Advice string
	OK                 bool
}

// doctor examines the settings of one plane with a role.
func (f *fleet) doctor(t *testing.T, role, plane string) []finding {
	t.Helper()
	r := spawn(t, append(f.env, "DATABASE_URL="+as(f.dsn, role)), "doctor", "--planes", plane, "--output", "json")
	r.exitCode(t, 60*time.Second)
	var found []finding
	require.NoError(t, json.Unmarshal([]byte(r.stdout.String()), &found), r.stdout.String())
	return found
}

// The command line manages a running product; its exit codes are 0, 1 and 2.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	env := []string{"TOLLGATE_ADMIN_URL=" + f.control.admin, "TOLLGATE_ADMIN_TOKEN=" + adminToken}
	read := func(args ...string) object {
		var o object
		out := succeed(t, env, append(args, "-o", "json")...)
		require.NoError(t, json.Unmarshal([]byte(out), &o), out)
		return o
	}
	org := read("orgs", "create", "Globex")
	require.Contains(t, succeed(t, env, "orgs", "list"), "Globex")
	key := read("keys", "create", "ci", "--org", "Globex", "--budget", "1/month", "--rate", "600/1m")
	require.True(t, strings.HasPrefix(text(key["key"]), "sk-tg-"))
	require.Equal(t, http.StatusOK, must(t)(f.gateways[0].call(t.Context(), text(key["key"]), "/v1/chat/completions", helloChat)).status)

	limit := read("limits", "create", "--scope", "organization:"+text(org["id"]), "--kind", "concurrency", "--amount", "50")
	require.Equal(t, "50", limit["amount"])
	require.Contains(t, succeed(t, env, "keys", "limits", text(key["id"])), "budget")
	require.Contains(t, succeed(t, env, "spend", "--group-by", "organization,model"), "Globex")
	require.Contains(t, succeed(t, env, "ledger", "check"), "clean")
	for plane, role := range map[string]string{"gateway": "tollgate_gateway", "control": "tollgate_control"} {
		findings := f.doctor(t, role, plane)
		require.Greater(t, len(findings), 3)
		for _, found := range findings {
			switch found.Name {
			case "durability": // which the scratch server gives up, and the doctor has to notice
				require.NotEmpty(t, found.Advice)
			case "connections": // there are few, where many tests run at once
			default:
				require.True(t, found.OK && found.Advice == "", "%s: %+v", plane, found)
			}
		}
	}
	require.Contains(t, f.doctor(t, "tollgate_gateway", "control"), finding{
		Name: "control role", Says: "tollgate_gateway may not write what admins change",
		Advice: "point TOLLGATE_DATABASE_CONTROL_URL at the role tollgate_control",
	})

	require.Contains(t, fail(t, 1, env, "orgs", "get", "nobody"), "Hint: ")
	require.Contains(t, fail(t, 1, []string{env[0], "TOLLGATE_ADMIN_TOKEN=wrong"}, "orgs", "list"), "Hint: ")
	require.Contains(t, fail(t, 1, []string{"TOLLGATE_ADMIN_URL=http://" + freeAddress(t), env[1]}, "orgs", "list"), "nothing answers")

	wanted := filepath.Join(t.TempDir(), "wanted.yaml")
	require.NoError(t, os.WriteFile(wanted, []byte(`
organizations:
  - name: Globex
    teams:
      - name: research
        limits:
          - {kind: rate, metric: requests, amount: 600, per: 1m}
        keys:
          - name: notebook
`), 0o600))
	require.Contains(t, fail(t, 2, env, "apply", "-f", wanted, "--dry-run"), "not applied")
	require.Equal(t, 404, func() int { s, _ := f.admin(http.MethodGet, "teams/team_000000000000", nil); return s }())
	applied := succeed(t, env, "apply", "-f", wanted)
	require.Contains(t, applied, "sk-tg-", "the secret of a new key is printed once")
	require.Contains(t, succeed(t, env, "apply", "-f", wanted, "--dry-run"), "Nothing to change")

	conn, err := pgx.Connect(t.Context(), f.dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	// A forger with the database's superuser, who switches the triggers off.
	_, err = conn.Exec(t.Context(), "SET session_replication_role = replica; UPDATE ledger.rows SET cost = cost + 1", pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	require.Contains(t, fail(t, 1, env, "ledger", "check"), "does not agree")
}

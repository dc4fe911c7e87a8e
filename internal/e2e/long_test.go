//go:build full

package e2e

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/devdb"
)

// The tests of this file take minutes or need the right to mount: `make long` and `make test-full` run them.

// smallDisk mounts a file system of its own, which the test may fill.
func smallDisk(t *testing.T, megabytes int) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tg-disk") //nolint:usetesting // it is unmounted before it goes
	require.NoError(t, err)
	require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755,size="+strconv.Itoa(megabytes)+"m"),
		"this test needs root and the right to mount")
	t.Cleanup(func() {
		require.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH))
		require.NoError(t, os.Remove(dir))
	})
	return dir
}

// fill takes all that is left of a disk; the returned function gives it back.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	name := filepath.Join(dir, "ballast")
	file, err := os.Create(name)
	require.NoError(t, err)
	block := make([]byte, 64<<10)
	for size := len(block); size > 0; {
		if _, err := file.Write(block[:size]); err != nil {
			require.ErrorIs(t, err, syscall.ENOSPC)
			size /= 2
		}
	}
	require.NoError(t, file.Close())
	return func() { _ = os.Remove(name) }
}

// PostgreSQL's disk is full. As long as rows cannot be written, nothing is forwarded; when even its log cannot, it ends, and
// that is an outage. In both cases there are answers soon after there is room, nothing is lost, and the books balance.
func TestLong_DiskFull(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, 300)
	cluster := startDatabaseWith(t, devdb.Options{DataDir: disk, Settings: map[string]string{
		"min_wal_size": "32MB", "max_wal_size": "64MB", "wal_init_zero": "on",
	}})
	f := startFleet(t, fleetOptions{gateways: 2, dsn: cluster.DSN(devdb.Superuser, "tollgate")})
	key, _ := f.issue(forever("cost", "1000"))
	f.awaitAnswers(key)
	before := f.goroutines()
	refused := func() {
		f.eventually(60*time.Second, "there is no room for another row", func() bool {
			counts := tally(f.closedLoop(8, 64, chat(key, helloChat)))
			require.Equal(t, 64, counts["200"]+undecided(counts)+counts["503 data_store_unavailable"], "%v", counts)
			return counts["200"] == 0
		})
		seen := f.forwarded()
		outcomes := f.closedLoop(4, 32, chat(key, helloChat))
		require.Zero(t, tally(outcomes)["200"])
		for _, o := range outcomes {
			require.Equal(t, http.StatusServiceUnavailable, o.status, "%v %s", o.err, o.body)
		}
		require.Equal(t, seen, f.forwarded(), "something was forwarded undecided")
	}

	free := fill(t, disk)
	refused()
	free()
	f.awaitAnswers(key)
	f.requireBooksBalance()

	free = fill(t, disk)
	conn, err := pgx.Connect(t.Context(), cluster.DSN(devdb.Superuser, "tollgate"))
	require.NoError(t, err)
	for err == nil { // until the next segment of the log finds no room
		_, err = conn.Exec(t.Context(), "SELECT pg_logical_emit_message(false, 'fill', repeat('x', 8000000))")
	}
	_ = conn.Close(context.WithoutCancel(t.Context()))
	refused()
	free()
	f.eventually(60*time.Second, "PostgreSQL is back", func() bool {
		select {
		case <-cluster.Done():
			return cluster.Restart(t.Context()) == nil
		default: // it has come back by itself
			conn, err := pgx.Connect(t.Context(), cluster.DSN(devdb.Superuser, "tollgate"))
			if err == nil {
				_ = conn.Close(t.Context())
			}
			return err == nil
		}
	})
	f.awaitAnswers(key)
	f.requireBooksBalance()
	f.requireOneRowPerForward()
	f.requireNoLeak(before)
}

// A standby takes over while gateways work. Their DSN names both servers and asks for the one that takes writes: they are back
// without a restart, and since the standby is synchronous no row is lost.
func TestLong_Failover(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "tg-standby") //nolint:usetesting // the server's user has to get there
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755)) // the server's user has to get through
	cluster := startDatabaseWith(t, devdb.Options{})
	standby, err := cluster.StartStandby(t.Context(), devdb.StandbyOptions{DataDir: dir, Name: "standby"})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		require.NoError(t, standby.Stop(ctx))
	})
	conn, err := pgx.Connect(t.Context(), cluster.DSN(devdb.Superuser, "postgres"))
	require.NoError(t, err)
	for _, s := range []string{"ALTER SYSTEM SET synchronous_standby_names = 'standby'", "SELECT pg_reload_conf()"} {
		_, err = conn.Exec(t.Context(), s)
		require.NoError(t, err)
	}
	require.NoError(t, conn.Close(t.Context()))
	one, err := pgx.ParseConfig(cluster.DSN(devdb.Superuser, "tollgate"))
	require.NoError(t, err)
	two, err := pgx.ParseConfig(standby.DSN(devdb.Superuser, "tollgate"))
	require.NoError(t, err)
	both := "postgres://postgres@/tollgate?sslmode=disable&target_session_attrs=read-write&host=" + one.Host + "," + two.Host + "&port=5432,5432"
	f := startFleet(t, fleetOptions{gateways: 2, dsn: both})
	key, _ := f.issue(forever("cost", "1000"), perDay("requests", "100000"))
	f.awaitAnswers(key)
	ctx, cancel := context.WithCancel(t.Context())
	load := make(chan []outcome, 1)
	go func() { load <- f.steadyLoad(ctx, 40, chat(key, helloChat)) }()
	f.eventually(10*time.Second, "load runs", func() bool { return f.forwarded() > 80 })
	require.NoError(t, cluster.Kill(t.Context()))
	require.NoError(t, standby.Promote(t.Context()))
	promoted, err := pgx.Connect(t.Context(), standby.DSN(devdb.Superuser, "postgres"))
	require.NoError(t, err)
	for _, s := range []string{"ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"} {
		_, err = promoted.Exec(t.Context(), s)
		require.NoError(t, err)
	}
	require.NoError(t, promoted.Close(t.Context()))
	f.awaitAnswers(key)
	cancel()
	for _, o := range <-load {
		require.NoError(t, o.err)
		require.Contains(t, []int{http.StatusOK, http.StatusServiceUnavailable}, o.status, "%s", o.body)
	}
	f.requireBooksBalance()
	f.requireOneRowPerForward()
}

// F205: every session is ended each second for a minute. Next to nobody notices, and nothing is counted twice.
func TestLong_F205_EverySessionIsEndedEachSecond(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{gateways: 2})
	key, _ := f.issue(forever("cost", "1000"), perDay("requests", "1000000"))
	f.awaitAnswers(key)
	before := f.goroutines()
	ctx, cancel := context.WithCancel(t.Context())
	load := make(chan []outcome, 1)
	go func() { load <- f.steadyLoad(ctx, 50, chat(key, helloChat)) }()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for range 60 {
		<-tick.C
		f.besides("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '" + f.database() + "'")
	}
	cancel()
	outcomes := <-load
	counts := tally(outcomes)
	t.Logf("%v", counts)
	for code := range counts {
		require.True(t, code == "200" || strings.HasPrefix(code, "503 "), "%v", counts)
	}
	require.GreaterOrEqual(t, counts["200"], len(outcomes)*9/10, "%v", counts)
	f.awaitAnswers(key)
	f.requireBooksBalance()
	f.requireOneRowPerForward()
	f.requireNoLeak(before)
}

// F200, F203: five minutes of load, half of it abandoned streams. Memory does not grow with the calls.
func TestLong_F200_F203_FiveMinutesOfLoad(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	key, _ := f.issue(forever("cost", "100000"))
	f.addModel("steps", "steps")
	f.addModel("broken", "broken")
	f.awaitModels(key, "steps", "broken")
	f.script("steps", "frame_gap(2ms)")
	f.script("broken", "status(500)")
	f.wave(key, 1000)
	g, start := f.gateways[0], time.Now()
	goroutines, heap := f.goroutines(), g.heap(t)
	for time.Since(start) < 5*time.Minute {
		f.wave(key, 500)
	}
	f.requireNoLeak(goroutines)
	require.Less(t, g.heap(t), heap+mayGrow)
	f.requireBooksBalance()
}

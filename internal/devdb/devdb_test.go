package devdb

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// parentVariable makes the test binary a process that starts a cluster and waits to be killed.
const parentVariable = "TOLLGATE_DEVDB_PARENT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(parentVariable); dir != "" {
		c, err := Start(context.Background(), Options{DataDir: dir, Fast: true})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(c.Pid())
		<-c.Done()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// dataDir returns a folder that every user may enter, as t.TempDir is none for root.
func dataDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tollgate-devdb-") //nolint:usetesting // see above
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func start(t *testing.T, o Options) *Cluster {
	t.Helper()
	o.Fast = true
	c, err := Start(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop(context.WithoutCancel(t.Context()))) })
	return c
}

func ask(t *testing.T, c *Cluster, query string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), c.DSN(Superuser, "tollgate"))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) }()
	var answer string
	require.NoError(t, conn.QueryRow(t.Context(), query).Scan(&answer))
	return answer
}

func execute(t *testing.T, c *Cluster, statement string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), c.DSN(Superuser, "tollgate"))
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), statement)
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
}

func TestLifeOfACluster(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	c, err := Start(t.Context(), Options{DataDir: dir})
	require.NoError(t, err)
	require.Equal(t, "", ask(t, c, "SHOW listen_addresses"))
	require.Equal(t, "on", ask(t, c, "SHOW fsync"))
	require.Equal(t, "on", ask(t, c, "SHOW synchronous_commit"))
	require.Equal(t, "on", ask(t, c, "SHOW data_checksums"))
	require.Equal(t, "UTF8", ask(t, c, "SHOW server_encoding"))

	info, err := os.Stat(c.socketDir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	require.NotZero(t, info.Sys().(*syscall.Stat_t).Uid, "the server runs as root")

	execute(t, c, "CREATE TABLE kept AS SELECT 'still there' AS text")
	dsn := c.DSN(Superuser, "tollgate")
	require.NoError(t, c.Stop(t.Context()))
	require.NoError(t, c.Err())
	require.NoDirExists(t, c.socketDir)

	begun := time.Now()
	c, err = Start(t.Context(), Options{DataDir: dir})
	require.NoError(t, err)
	t.Logf("the second start took %s", time.Since(begun).Round(time.Millisecond))
	require.Equal(t, dsn, c.DSN(Superuser, "tollgate"), "a DSN stays valid from start to start")
	require.Equal(t, "still there", ask(t, c, "SELECT text FROM kept"))
	require.NoError(t, c.Stop(t.Context()))
}

// TestAsOrdinaryUser runs the life of a cluster as nobody where the tests run as root; elsewhere the other tests show it.
func TestAsOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		require.False(t, start(t, Options{DataDir: dataDir(t)}).owner.foreign)
		return
	}
	const nobody = 65534
	home := dataDir(t)
	require.NoError(t, os.Chown(home, nobody, nobody))
	program, err := os.Executable()
	require.NoError(t, err)
	reachable := filepath.Join(home, "devdb.test")
	// Copied by another process: one that a test starts meanwhile would have the file open for writing, too, and it could not run.
	copied, err := exec.CommandContext(t.Context(), "cp", program, reachable).CombinedOutput()
	require.NoError(t, err, string(copied))

	cmd := exec.CommandContext(t.Context(), reachable, "-test.run", "^(TestLifeOfACluster|TestKilledParentLeavesNoTrace)$", "-test.v")
	cmd.Dir = home
	cmd.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home, "XDG_RUNTIME_DIR=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, 2, strings.Count(string(out), "--- PASS"), string(out))
}

// parentOf starts a process that has a cluster on dir, and returns it with the pid of its server.
func parentOf(t *testing.T, dir string) (parent *exec.Cmd, server int) {
	t.Helper()
	parent = exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), parentVariable+"="+dir)
	out, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	server, err = strconv.Atoi(strings.TrimSpace(line))
	require.NoError(t, err, line)
	return parent, server
}

func TestKilledParentLeavesNoTrace(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	made, err := Start(t.Context(), Options{DataDir: dir, Fast: true})
	require.NoError(t, err)
	require.NoError(t, made.Stop(t.Context()))
	parent, orphan := parentOf(t, dir)
	require.NoError(t, parent.Process.Kill())
	require.Error(t, parent.Wait())
	require.True(t, alive(orphan), "the server outlives its killed parent")

	begun := time.Now()
	c := start(t, Options{DataDir: dir})
	t.Logf("the start beside an orphan took %s", time.Since(begun).Round(time.Millisecond))
	require.False(t, alive(orphan))
	require.Equal(t, "1", ask(t, c, "SELECT 1::text"))
}

func TestKilledServerIsSeenAndRecovers(t *testing.T) {
	t.Parallel()
	c := start(t, Options{DataDir: dataDir(t), Settings: map[string]string{"synchronous_commit": "on"}})
	execute(t, c, "CREATE TABLE kept AS SELECT 'still there' AS text")
	require.NoError(t, syscall.Kill(c.Pid(), syscall.SIGKILL))
	<-c.Done()
	require.ErrorContains(t, c.Err(), "signal: killed")

	require.NoError(t, c.Restart(t.Context()))
	require.NoError(t, c.Err())
	require.Equal(t, "still there", ask(t, c, "SELECT text FROM kept"))

	require.NoError(t, c.Kill(t.Context()))
	require.NoError(t, c.Err(), "an end that was asked for")
	require.NoError(t, c.Restart(t.Context()))
	require.NoError(t, c.StopImmediately(t.Context()))
	require.NoError(t, c.Restart(t.Context()))
	require.Error(t, c.Restart(t.Context()), "it runs")
	require.Equal(t, "still there", ask(t, c, "SELECT text FROM kept"))
}

func TestBusyBackendsOfAKilledServerAreWaitedFor(t *testing.T) {
	t.Parallel()
	c := start(t, Options{DataDir: dataDir(t)})
	conn, err := pgx.Connect(t.Context(), c.DSN(Superuser, "tollgate"))
	require.NoError(t, err)
	var backend int
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&backend))
	require.NoError(t, syscall.Kill(backend, syscall.SIGSTOP)) // it cannot notice the death of its parent
	require.NoError(t, c.Kill(t.Context()))

	restarted := make(chan error, 1)
	go func() { restarted <- c.Restart(t.Context()) }()
	require.Eventually(t, func() bool {
		log, err := os.ReadFile(c.LogFile())
		return err == nil && strings.Contains(string(log), "still in use")
	}, 10*time.Second, pollInterval)
	require.NoError(t, syscall.Kill(backend, syscall.SIGKILL))
	require.NoError(t, <-restarted)
	_ = conn.Close(t.Context()) // its server is gone
}

func TestStalePidOfAnotherProcess(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	c, err := Start(t.Context(), Options{DataDir: dir, Fast: true})
	require.NoError(t, err)
	file, err := readPidFile(c.dir)
	require.NoError(t, err)
	require.NoError(t, c.Kill(t.Context()))
	require.NoError(t, c.Stop(t.Context()))

	other := exec.Command("sleep", "1000")
	other.SysProcAttr = c.owner.attributes()
	require.NoError(t, other.Start())
	defer func() {
		require.NoError(t, other.Process.Kill())
		require.Error(t, other.Wait())
	}()
	require.NoError(t, file.replacePid(c.dir, other.Process.Pid))
	again := start(t, Options{DataDir: dir})
	require.Equal(t, "1", ask(t, again, "SELECT 1::text"))
	require.True(t, alive(other.Process.Pid), "a process that only has the pid was stopped")
}

func TestUnfinishedInitializationIsRepeated(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "postgres.new", "base"), 0o700))
	require.Equal(t, "1", ask(t, start(t, Options{DataDir: dir}), "SELECT 1::text"))
}

func TestOneProcessADirectory(t *testing.T) {
	t.Parallel()
	c := start(t, Options{DataDir: dataDir(t)})
	_, err := Start(t.Context(), Options{DataDir: c.options.DataDir})
	require.ErrorContains(t, err, "in use by another process")
	require.Equal(t, "1", ask(t, c, "SELECT 1::text"))
}

func TestUnreachableDirectoryIsAClearError(t *testing.T) {
	t.Parallel()
	o := owner{uid: 12345, gid: 12345, name: "user someone", foreign: true}
	closed := filepath.Join(dataDir(t), "closed")
	require.NoError(t, os.MkdirAll(filepath.Join(closed, "inner"), 0o700))
	require.ErrorContains(t, o.reaches(filepath.Join(closed, "inner")), "runs as user someone, which may not enter "+closed)
	if os.Geteuid() == 0 {
		_, err := Start(t.Context(), Options{DataDir: filepath.Join(closed, "inner")})
		require.ErrorContains(t, err, "allow it (chmod a+x "+closed)
	}
	require.NoError(t, os.Chmod(closed, 0o711))
	require.NoError(t, os.Chmod(filepath.Join(closed, "inner"), 0o711))
	require.NoError(t, o.reaches(filepath.Join(closed, "inner")))
}

func TestLongDirectoriesHaveShortSockets(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(dataDir(t), strings.Repeat("long", 40), strings.Repeat("path", 20))
	c := start(t, Options{DataDir: dir})
	require.LessOrEqual(t, len(c.socketDir), socketPathMax)
	require.Equal(t, "1", ask(t, c, "SELECT 1::text"))
}

func TestListenAndSettings(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"0.0.0.0:5432", "example.com:5432", "127.0.0.1:0", "127.0.0.1"} {
		_, err := loopbackPort(address)
		require.Error(t, err, address)
	}
	port, err := loopbackPort("[::1]:5433")
	require.NoError(t, err)
	require.Equal(t, 5433, port)
	c := start(t, Options{DataDir: dataDir(t), MaxConnections: 37, Settings: map[string]string{"work_mem": "7MB", "fsync": "on"}})
	require.Equal(t, "37", ask(t, c, "SHOW max_connections"))
	require.Equal(t, "7MB", ask(t, c, "SHOW work_mem"))
	require.Equal(t, "on", ask(t, c, "SHOW fsync"))
}

func TestFaultsOfTheServerAreTold(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	_, err := Start(t.Context(), Options{DataDir: dir, Fast: true, Settings: map[string]string{"no_such_setting": "1"}})
	require.ErrorContains(t, err, `unrecognized configuration parameter "no_such_setting"`)
	require.Equal(t, "1", ask(t, start(t, Options{DataDir: dir}), "SELECT 1::text"), "the directory is free again")

	_, err = find(t.Context(), t.TempDir(), dir)
	require.ErrorContains(t, err, "install it (Debian: apt-get install postgresql)")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "old"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "old", "PG_VERSION"), []byte("9\n"), 0o600))
	_, err = find(t.Context(), "", filepath.Join(dir, "old"))
	require.ErrorContains(t, err, "was made by 9")
}

func TestStopIsBoundedByItsContext(t *testing.T) {
	t.Parallel()
	c, err := Start(t.Context(), Options{DataDir: dataDir(t), Fast: true})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = c.Stop(ctx) // whether it counts as in time is a matter of luck
	<-c.Done()
	require.NoDirExists(t, c.socketDir)
}

func TestScratchGoesAway(t *testing.T) {
	t.Parallel()
	c, err := StartScratch(t.Context(), Options{Fast: true})
	require.NoError(t, err)
	require.Equal(t, "1", ask(t, c, "SELECT 1::text"))
	require.NoError(t, discard(t.Context(), c.options.DataDir), "it belongs to a living process")
	require.Equal(t, "1", ask(t, c, "SELECT 1::text"))
	require.NoError(t, c.Stop(t.Context()))
	require.NoDirExists(t, c.options.DataDir)
	require.NoDirExists(t, c.socketDir)
}

func TestScratchOfAKilledProcessIsRemoved(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	parent, orphan := parentOf(t, dir)
	file, err := readPidFile(filepath.Join(dir, "postgres"))
	require.NoError(t, err)
	require.NoError(t, parent.Process.Kill())
	require.Error(t, parent.Wait())

	require.NoError(t, discard(t.Context(), dir))
	require.False(t, alive(orphan))
	require.NoDirExists(t, dir)
	require.NoDirExists(t, file.lines[4])
}

// Package devdb runs a private PostgreSQL: its own data directory, reached through a Unix socket that only its user (and
// root) can open, stopped with the process that started it. `tollgate dev`, the drills and the tests use it.
//
// The server never runs as root. Whoever starts it as root gets the user postgres, or nobody where that one is missing.
package devdb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Superuser is the role that owns the cluster.
const Superuser = "postgres"

// Options of a cluster.
type Options struct {
	// DataDir is made if it is missing; default DefaultDataDir(). The cluster is its folder postgres, the server's log
	// its file postgres.log; the rest is the caller's.
	DataDir string
	// Binaries is the folder of initdb and postgres. Default: TOLLGATE_POSTGRES_BIN, else the newest supported version
	// of the distribution or of PATH, for an existing cluster the one that made it.
	Binaries string
	// Database is made together with the cluster; default tollgate.
	Database string
	// User runs the server where the caller is root; default postgres, else nobody.
	User string
	// Listen is a loopback host:port to listen on besides the socket; every process of the machine may then log in.
	// Empty: no TCP.
	Listen string
	// MaxConnections; default 100.
	MaxConnections int
	// Fast gives up durability: for tests only.
	Fast bool
	// Settings are further settings of the server by name; they win.
	Settings map[string]string
	// Environment are further variables of the server, NAME=value; for tests alone, such as of its clock.
	Environment []string
}

// Cluster is a PostgreSQL server that this process has started. Its methods may be called from any goroutine, but only
// one of Stop, StopImmediately, Kill and Restart at a time.
type Cluster struct {
	options   Options
	install   installation
	owner     owner
	dir       string // of the cluster
	socketDir string
	port      int
	lock      *os.File
	scratch   bool // the data directory goes away with Stop

	mu  sync.Mutex
	run *run
}

// run is the life of one server process.
type run struct {
	process *os.Process
	done    chan struct{} // closed when the process has ended
	asked   bool          // its end was asked for
	state   *os.ProcessState
}

const (
	readyTimeout = 60 * time.Second // crash recovery included
	pollInterval = 10 * time.Millisecond
	// socketPathMax is the longest path of a Unix socket, 107 bytes, less the name of PostgreSQL's socket in its folder.
	socketPathMax = 107 - len("/.s.PGSQL.65535")
	socketPort    = 5432
)

// Start makes the cluster if it is missing and starts its server. A server that a killed process has left on the same
// data directory is stopped first. The server runs until Stop, not until the end of ctx.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	c, err := prepare(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := c.begin(ctx); err != nil {
		return nil, errors.Join(err, c.release())
	}
	return c, nil
}

func (c *Cluster) begin(ctx context.Context) error {
	if err := c.takeLock(); err != nil {
		return err
	}
	if err := c.initialize(ctx); err != nil {
		return err
	}
	if err := c.endOrphan(ctx); err != nil {
		return err
	}
	socketDir, err := c.owner.socketDir(c.dir)
	if err != nil {
		return err
	}
	c.socketDir = socketDir
	return c.launch(ctx)
}

// prepare decides about everything that needs no server yet.
func prepare(ctx context.Context, o Options) (*Cluster, error) {
	if o.DataDir == "" {
		dir, err := DefaultDataDir()
		if err != nil {
			return nil, err
		}
		o.DataDir = dir
	}
	if err := os.MkdirAll(o.DataDir, 0o755); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	dataDir, err := filepath.Abs(o.DataDir)
	if err != nil {
		return nil, fmt.Errorf("find data directory: %w", err)
	}
	// The kernel names the working directory of a server left behind without links.
	if o.DataDir, err = filepath.EvalSymlinks(dataDir); err != nil {
		return nil, fmt.Errorf("find data directory: %w", err)
	}
	if o.Database == "" {
		o.Database = "tollgate"
	}
	if o.MaxConnections == 0 {
		o.MaxConnections = 100
	}
	c := &Cluster{options: o, dir: filepath.Join(o.DataDir, "postgres"), port: socketPort}
	if o.Listen != "" {
		if c.port, err = loopbackPort(o.Listen); err != nil {
			return nil, err
		}
	}
	if c.install, err = find(ctx, o.Binaries, c.dir); err != nil {
		return nil, err
	}
	if c.owner, err = ownerOf(o.User); err != nil {
		return nil, err
	}
	if err := c.owner.reaches(o.DataDir); err != nil {
		return nil, err
	}
	return c, nil
}

func loopbackPort(address string) (int, error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return 0, fmt.Errorf("read address to listen on: %w", err)
	}
	port, err := strconv.Atoi(text)
	if err != nil || port < 1 || port > 65535 {
		return 0, fmt.Errorf("read address to listen on: port %q is not within 1 … 65535", text)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return 0, fmt.Errorf("read address to listen on: %s is no loopback address, and the private database asks nobody for a password", host)
	}
	return port, nil
}

// DefaultDataDir is where `tollgate dev` keeps its data: /var/lib/tollgate for root, else ~/.local/share/tollgate (or
// below XDG_DATA_HOME).
func DefaultDataDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/tollgate", nil
	}
	if base := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(base) {
		return filepath.Join(base, "tollgate"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find data directory: %w; name one", err)
	}
	return filepath.Join(home, ".local", "share", "tollgate"), nil
}

// DSN returns the URL of a database of the cluster for a role, which needs no password.
func (c *Cluster) DSN(role, database string) string {
	query := url.Values{"host": {c.socketDir}, "port": {strconv.Itoa(c.port)}, "sslmode": {"disable"}}
	dsn := url.URL{Scheme: "postgres", User: url.User(role), Path: "/" + database, RawQuery: query.Encode()}
	return dsn.String()
}

// LogFile is where the server logs.
func (c *Cluster) LogFile() string { return filepath.Join(c.options.DataDir, "postgres.log") }

// Pid is the server's process, for those who want to pause it (SIGSTOP stops no backend that runs already).
func (c *Cluster) Pid() int {
	return c.current().process.Pid
}

// Done is closed when the server that runs now has ended, for whatever reason; Restart makes another one.
func (c *Cluster) Done() <-chan struct{} { return c.current().done }

// Err tells how the server ended: nil while it runs and where its end was asked for.
func (c *Cluster) Err() error {
	if !c.ended() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.run.asked {
		return nil
	}
	return fmt.Errorf("database server ended by itself (%s):\n%s", c.run.state, c.logSince(0))
}

func (c *Cluster) current() *run {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.run
}

// Stop ends the server as a fast shutdown does: sessions are ended, everything is written. If that takes longer than
// ctx, it is stopped at once, and recovers at its next start. The data directory is then free for another process.
func (c *Cluster) Stop(ctx context.Context) error {
	err := c.end(ctx, syscall.SIGINT)
	if ctx.Err() != nil {
		atOnce, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, c.end(atOnce, syscall.SIGQUIT))
	}
	return errors.Join(err, c.release())
}

// StopImmediately ends the server without writing anything, as an immediate shutdown does; Restart recovers.
func (c *Cluster) StopImmediately(ctx context.Context) error { return c.end(ctx, syscall.SIGQUIT) }

// Kill ends the server's main process by SIGKILL, whereupon its backends end too; Restart recovers.
func (c *Cluster) Kill(ctx context.Context) error { return c.end(ctx, syscall.SIGKILL) }

// Restart starts the server again after StopImmediately, Kill or an end of its own.
func (c *Cluster) Restart(ctx context.Context) error {
	if !c.ended() {
		return errors.New("restart database server: it still runs")
	}
	return c.launch(ctx)
}

func (c *Cluster) end(ctx context.Context, signal syscall.Signal) error {
	c.mu.Lock()
	r := c.run
	r.asked = true
	c.mu.Unlock()
	if err := r.process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop database server: %w", err)
	}
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of the database server: %w", ctx.Err())
	}
}

// release gives up the lock, and the socket's folder unless a server that could not be stopped still uses it.
func (c *Cluster) release() error {
	var err error
	if c.socketDir != "" && c.ended() {
		if removal := os.RemoveAll(c.socketDir); removal != nil {
			err = fmt.Errorf("remove folder of the socket: %w", removal)
		}
	}
	if c.lock != nil {
		err = errors.Join(err, c.lock.Close())
		c.lock = nil
	}
	if c.scratch && c.ended() {
		if removal := os.RemoveAll(c.options.DataDir); removal != nil {
			err = errors.Join(err, fmt.Errorf("remove scratch data directory: %w", removal))
		}
	}
	return err
}

func (c *Cluster) ended() bool {
	r := c.current()
	if r == nil {
		return true
	}
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

var errInUse = errors.New("is in use by another process")

// takeLock keeps a second process from the data directory. The kernel frees it however this process ends.
func (c *Cluster) takeLock() error {
	file, err := os.OpenFile(filepath.Join(c.options.DataDir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("lock data directory: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close() // nothing was written
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return fmt.Errorf("data directory %s %w: stop that one or name another directory", c.options.DataDir, errInUse)
		}
		return fmt.Errorf("lock data directory: %w", err)
	}
	c.lock = file
	return nil
}

// initialize makes the cluster in a folder of another name first, so that a killed initdb leaves nothing that looks ready.
// Each try has a name of its own: an initdb whose parent was killed may still be writing into the one before.
func (c *Cluster) initialize(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(c.dir, "PG_VERSION")); err == nil {
		return nil
	}
	unfinished, err := filepath.Glob(c.dir + ".new*")
	if err != nil {
		return fmt.Errorf("look for unfinished clusters: %w", err)
	}
	for _, dir := range unfinished {
		_ = os.RemoveAll(dir) // what is still being written goes with the next try
	}
	fresh, err := os.MkdirTemp(filepath.Dir(c.dir), filepath.Base(c.dir)+".new")
	if err != nil {
		return fmt.Errorf("make folder of the cluster: %w", err)
	}
	if err := c.owner.take(fresh); err != nil {
		return err
	}
	// Locale C is everywhere, and sorts as the product compares: by bytes.
	args := []string{"-D", fresh, "-U", Superuser, "--auth=trust", "--encoding=UTF8", "--locale=C", "--data-checksums"}
	if c.options.Fast {
		args = append(args, "--no-sync")
	}
	if err := c.tool(ctx, fresh, "", "initdb", args...); err != nil {
		return err
	}
	create := "CREATE DATABASE " + quoteIdentifier(c.options.Database) + ";\n"
	if err := c.tool(ctx, fresh, create, "postgres", "--single", "-D", fresh, "postgres"); err != nil {
		return err
	}
	if err := os.Rename(fresh, c.dir); err != nil {
		return fmt.Errorf("put cluster in its place: %w", err)
	}
	return nil
}

func quoteIdentifier(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// tool runs a program of the installation to its end.
func (c *Cluster) tool(ctx context.Context, dir, input, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(c.install.bin, name), args...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = dir, c.environment(), c.owner.attributes()
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run %s: %w:\n%s", name, err, bytes.TrimSpace(out))
	}
	return nil
}

// environment is all that the server's programs see: variables of the caller (PGPORT, LC_ALL …) must not change the cluster.
func (c *Cluster) environment() []string {
	return []string{"PATH=" + c.install.bin + ":/usr/bin:/bin", "LC_ALL=C", "HOME=" + c.dir}
}

func (c *Cluster) arguments() []string {
	durable := "on"
	if c.options.Fast {
		durable = "off"
	}
	settings := map[string]string{
		"unix_socket_directories": c.socketDir, "port": strconv.Itoa(c.port), "listen_addresses": "",
		"max_connections": strconv.Itoa(c.options.MaxConnections), "shared_buffers": "128MB", "cluster_name": "tollgate",
		"fsync": durable, "synchronous_commit": durable, "full_page_writes": durable,
		"log_line_prefix": "%m [%p] %q%u@%d ", "log_timezone": "UTC", "timezone": "UTC",
	}
	if c.options.Listen != "" {
		host, _, _ := net.SplitHostPort(c.options.Listen) // was read before
		settings["listen_addresses"] = host
	}
	for name, value := range c.options.Settings {
		settings[name] = value
	}
	args := []string{"-D", c.dir}
	for name, value := range settings {
		args = append(args, "-c", name+"="+value)
	}
	return args
}

// launch starts the server and waits until it takes connections.
func (c *Cluster) launch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		err := c.launchOnce(ctx)
		// The backends of a killed server need a moment to notice; until then its memory is in use.
		if errors.Is(err, errMemoryInUse) && wait(ctx) {
			continue
		}
		return err
	}
}

var errMemoryInUse = errors.New("backends of the server before still run")

func (c *Cluster) launchOnce(ctx context.Context) error {
	log, from, err := c.openLog()
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the server has its own descriptor

	cmd := exec.Command(filepath.Join(c.install.bin, "postgres"), c.arguments()...) //nolint:noctx // it outlives whoever starts it; Stop ends it
	cmd.Dir, cmd.Env, cmd.SysProcAttr = c.dir, append(c.environment(), c.options.Environment...), c.owner.attributes()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start database server: %w", err)
	}
	r := &run{process: cmd.Process, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // its fault is in the state
		r.state = cmd.ProcessState
		close(r.done)
	}()
	c.mu.Lock()
	c.run = r
	c.mu.Unlock()

	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		if file, err := readPidFile(c.dir); err == nil && file.pid == cmd.Process.Pid && file.ready {
			return nil
		}
		select {
		case <-ticker.C:
		case <-r.done:
			said := c.logSince(from)
			if strings.Contains(said, "shared memory block") && strings.Contains(said, "still in use") {
				return errMemoryInUse
			}
			return fmt.Errorf("start database server: it ended at once (%s):\n%s", r.state, said)
		case <-ctx.Done():
			_ = r.process.Signal(syscall.SIGQUIT) // it may have ended by itself
			<-r.done
			return fmt.Errorf("start database server: %w:\n%s", ctx.Err(), c.logSince(from))
		}
	}
}

// logMax is the size at which the log makes room; one older log is kept.
const logMax = 16 << 20

func (c *Cluster) openLog() (log *os.File, size int64, err error) {
	name := c.LogFile()
	if info, err := os.Stat(name); err == nil && info.Size() > logMax {
		if err := os.Rename(name, name+".1"); err != nil {
			return nil, 0, fmt.Errorf("rotate log of the database server: %w", err)
		}
	}
	log, err = os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("open log of the database server: %w", err)
	}
	info, err := log.Stat()
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("open log of the database server: %w", err), log.Close())
	}
	return log, info.Size(), nil
}

// logSince returns the last lines of the log from an offset on, for messages.
func (c *Cluster) logSince(from int64) string {
	b, err := os.ReadFile(c.LogFile())
	if err != nil || int64(len(b)) < from {
		return "its log is " + c.LogFile()
	}
	lines := strings.Split(strings.TrimSpace(string(b[from:])), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// endOrphan stops a server that a killed process has left behind, and clears up after one whose pid another process has.
func (c *Cluster) endOrphan(ctx context.Context) error {
	file, err := readPidFile(c.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for a server left behind: %w", err)
	}
	if !alive(file.pid) {
		return nil // PostgreSQL checks what is left of it
	}
	// A server works in its data directory. A process whose directory cannot be read is another user's.
	if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", file.pid)); err != nil || cwd != c.dir {
		// PostgreSQL would refuse to start beside a living process of this pid. The pid of its parent it takes as stale,
		// and still checks the shared memory that the file names.
		if err := file.replacePid(c.dir, os.Getpid()); err != nil {
			return fmt.Errorf("clear up after a server whose pid is taken: %w", err)
		}
		return nil
	}
	for _, attempt := range []struct {
		signal syscall.Signal
		limit  time.Duration
	}{{syscall.SIGINT, 20 * time.Second}, {syscall.SIGQUIT, 10 * time.Second}} {
		if err := syscall.Kill(file.pid, attempt.signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stop the server left behind (pid %d): %w", file.pid, err)
		}
		limit, cancel := context.WithTimeout(ctx, attempt.limit)
		for alive(file.pid) && wait(limit) {
		}
		cancel()
		if !alive(file.pid) {
			return nil
		}
	}
	return fmt.Errorf("stop the server left behind: pid %d still runs on %s", file.pid, c.dir)
}

func alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) && !zombie(pid) }

// zombie tells a process that has ended and that nobody has waited for, as an orphan is in a container without an init.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(after, "Z")
}

// wait pauses for a moment; false: ctx has ended.
func wait(ctx context.Context) bool {
	timer := time.NewTimer(pollInterval)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// pidFile is postmaster.pid: pid, data directory, start, port, socket directory, address, shared memory, state.
type pidFile struct {
	lines []string
	pid   int
	ready bool
}

func readPidFile(dir string) (pidFile, error) {
	b, err := os.ReadFile(filepath.Join(dir, "postmaster.pid"))
	if err != nil {
		return pidFile{}, err
	}
	lines := strings.Split(string(b), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil || pid <= 0 {
		return pidFile{}, fmt.Errorf("read postmaster.pid: %q is no pid", lines[0])
	}
	const state = 7
	return pidFile{lines: lines, pid: pid, ready: len(lines) > state && strings.TrimSpace(lines[state]) == "ready"}, nil
}

func (f pidFile) replacePid(dir string, pid int) error {
	lines := slices.Clone(f.lines)
	lines[0] = strconv.Itoa(pid)
	return os.WriteFile(filepath.Join(dir, "postmaster.pid"), []byte(strings.Join(lines, "\n")), 0o600)
}

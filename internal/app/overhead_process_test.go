package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/http/pprof"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollgate-gateway/tollgate/gateway"
	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/memstore"
	"github.com/tollgate-gateway/tollgate/internal/config"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/plugins"
	"github.com/tollgate-gateway/tollgate/plugins/modelroute"
)

// contestant is what one process of the comparison does with a request.
type contestant string

// The contestants, each with all that the one before it does.
const (
	proxied  contestant = "proxy"    // httputil.ReverseProxy: no governance, nothing read
	routed   contestant = "routed"   // the gateway without governance: a chain of modelroute alone
	inMemory contestant = "memory"   // the whole chain, limits in this process, no rows of spend
	durable  contestant = "postgres" // the product
)

func contestants() []contestant { return []contestant{proxied, routed, inMemory, durable} }

// task is what a process of the comparison is started with, in its environment.
type task struct {
	Contestant contestant
	Upstream   string
	Database   string
	Peppers    string
	Keys       string
}

const taskVariable = "OVERHEAD_TASK"

// TestMain runs the tests, or one process of the comparison.
func TestMain(m *testing.M) {
	text, ok := os.LookupEnv(taskVariable)
	if !ok {
		goleak.VerifyTestMain(m)
		return
	}
	var t task
	err := json.Unmarshal([]byte(text), &t)
	if err == nil {
		err = t.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, t.Contestant, err)
		os.Exit(1)
	}
}

// places is what a process says once it answers.
type places struct{ Traffic, Usage string }

// run serves until standard input ends.
func (t *task) run() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /usage", tellUsage)
	mux.HandleFunc("GET /profile", pprof.Profile)
	mux.Handle("GET /allocs", pprof.Handler("allocs"))
	mux.Handle("GET /heap", pprof.Handler("heap"))
	mux.Handle("GET /goroutine", pprof.Handler("goroutine"))
	own := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { _ = own.Serve(l) }()
	defer func() { _ = own.Close() }()
	at := places{Usage: "http://" + l.Addr().String()}
	announce := func(traffic string) error {
		at.Traffic = traffic
		return json.NewEncoder(os.Stdout).Encode(at)
	}
	if t.Contestant == proxied {
		return t.proxy(ctx, announce)
	}
	a, err := t.app(ctx)
	if err != nil {
		return err
	}
	if err := a.listen(ctx); err != nil {
		return err
	}
	return a.Run(ctx, func() error { return announce(a.Addresses().Traffic) })
}

func (t *task) proxy(ctx context.Context, announce func(string) error) error {
	to, err := url.Parse(t.Upstream)
	if err != nil {
		return err
	}
	p := httputil.NewSingleHostReverseProxy(to)
	p.Transport = &http.Transport{MaxIdleConns: 256, MaxIdleConnsPerHost: 256, DisableCompression: true}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: p, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleConnection}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := announce("http://" + l.Addr().String()); err != nil {
		return err
	}
	_ = server.Serve(l)
	return nil
}

// app builds the product with its configuration in the database. What is less than the product gets another data plane.
func (t *task) app(ctx context.Context) (*App, error) {
	cfg := config.Default()
	cfg.Listen, cfg.OpsListen, cfg.Planes = "127.0.0.1:0", "127.0.0.1:0", []string{config.PlaneGateway}
	cfg.DatabaseURL, cfg.KeyPeppers, cfg.EncryptionKeys = secret.New(t.Database), secret.New(t.Peppers), secret.New(t.Keys)
	cfg.AllowPrivateProviders = true
	logTo, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0) // lines are made and written, as they are in production
	if err != nil {
		return nil, err
	}
	a, err := build(ctx, &cfg, logTo)
	if err != nil || t.Contestant == durable {
		return a, err
	}
	a.metrics = newMetrics()
	kept := a.runners[:0]
	for _, r := range a.runners {
		if r.name == "ledger" || r.name == "configuration" {
			kept = append(kept, r)
		}
	}
	a.runners = kept
	if t.Contestant == inMemory {
		a.limits = memstore.New(memstore.Options{Limits: a.limitNow})
		return a, a.openGateway()
	}
	route, err := modelroute.Module().New(plugins.Env{}, section{})
	if err != nil {
		return nil, err
	}
	a.gateway, err = gateway.New(gateway.Options{
		Config: gateway.DefaultConfig(), Chain: []gateway.Link{{Plugin: anyone{}}, {Plugin: route}}, Providers: builtinProviders(),
		Ledger: admitAll{}, Catalogs: a.catalogs, Now: time.Now, Log: a.log, Metrics: a.metrics,
	})
	return a, err
}

// anyone lets everybody in.
type anyone struct{}

func (anyone) ID() string { return "anyone" }

func (anyone) Authenticate(context.Context, *plugins.Call) (governance.Principal, error) {
	return governance.Principal{}, nil
}

// admitAll is a ledger that keeps nothing.
type admitAll struct{}

func (admitAll) Reserve(_ context.Context, r governance.ReserveRequest) (governance.Reservation, error) {
	return governance.Reservation{ID: r.ID}, nil
}
func (admitAll) Settle(context.Context, governance.Settlement) error { return nil }
func (admitAll) Expire(context.Context, int) (int, error)            { return 0, nil }

// usage is what a process has used since it began, or holds now.
type usage struct {
	CPU     time.Duration // of getrusage, user and system
	Mallocs uint64
	Bytes   uint64 // allocated
	RSS     int64  // bytes
	Heap    uint64 // bytes that the garbage collector found alive
	Stacks  uint64 // bytes of goroutines' stacks
}

func tellUsage(w http.ResponseWriter, r *http.Request) {
	if r.FormValue("gc") != "" {
		runtime.GC()
		debug.FreeOSMemory()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	_ = json.NewEncoder(w).Encode(usage{ //nolint:errchkjson // of numbers
		CPU: time.Duration(u.Utime.Nano() + u.Stime.Nano()), Mallocs: m.Mallocs, Bytes: m.TotalAlloc,
		RSS: residentSet(), Heap: m.HeapAlloc, Stacks: m.StackInuse,
	})
}

func residentSet() int64 {
	text, _ := os.ReadFile("/proc/self/statm")
	if fields := strings.Fields(string(text)); len(fields) > 1 {
		pages, _ := strconv.ParseInt(fields[1], 10, 64)
		return pages * int64(os.Getpagesize())
	}
	return 0
}

// subject is a running process of the comparison.
type subject struct {
	places
	contestant
}

// startSubject runs this test binary as a process of the comparison, which ends with b.
func startSubject(b *testing.B, t task) subject {
	b.Helper()
	text, err := json.Marshal(t)
	require.NoError(b, err)
	self, err := os.Executable()
	require.NoError(b, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), taskVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(b, err)
	out, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	s := subject{contestant: t.Contestant}
	require.NoError(b, json.NewDecoder(out).Decode(&s.places))
	return s
}

func (s subject) usage(b *testing.B, query string) usage {
	b.Helper()
	var u usage
	text := s.fetch(b, "/usage"+query)
	require.NoError(b, json.Unmarshal(text, &u))
	return u
}

func (s subject) fetch(b *testing.B, path string) []byte {
	b.Helper()
	r, err := http.Get(s.Usage + path)
	require.NoError(b, err)
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	require.NoError(b, err)
	return text
}

// parent returns the process that started another one.
func parent(b *testing.B, process int) string {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", process))
	require.NoError(b, err)
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.Fields(rest)[1]
}

// postgresCPU sums what the server's processes have used: those of one database, and those that serve all.
type postgresCPU struct {
	postmaster string
	database   string
}

func (p postgresCPU) used(b *testing.B) time.Duration {
	b.Helper()
	tasks, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(b, err)
	const tick = 10 * time.Millisecond // of the kernel's accounting
	var sum time.Duration
	for _, file := range tasks {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest)
		if len(fields) < 13 || fields[1] != p.postmaster {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
		if name := string(line); strings.Contains(name, "tollgate_test_") && !strings.Contains(name, p.database) {
			continue
		}
		user, _ := strconv.ParseInt(fields[11], 10, 64)
		system, _ := strconv.ParseInt(fields[12], 10, 64)
		sum += time.Duration(user+system) * tick
	}
	return sum
}

// Package e2e tests the product as its users meet it: the real binary as processes, a real PostgreSQL, the scripted
// upstream as oracle, and nothing but HTTP and signals between them.
package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/mock"
	"github.com/tollgate-gateway/tollgate/internal/pgtest"
)

// binary is the product, built once for all tests of the package.
var binary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

// run builds the race-detecting binary unless TOLLGATE_BIN names one.
func run(m *testing.M) int {
	if binary = os.Getenv("TOLLGATE_BIN"); binary != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "tollgate-e2e")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "tollgate")
	build := exec.Command("go", "build", "-race", "-tags", "faultpoint", "-o", binary, "github.com/tollgate-gateway/tollgate/cmd/tollgate")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build the binary:", err)
		return 1
	}
	return m.Run()
}

// fleet is a running product: one control plane, some gateways, one database, one scripted upstream.
type fleet struct {
	t        *testing.T
	mock     *mock.Server
	upstream string // base URL of the mock
	dsn      string // superuser
	through  string // what DATABASE_URL leads through instead, if anything
	env      []string
	control  *process
	gateways []*process

	org, provider string // public ids of what setUp makes
}

type fleetOptions struct {
	gateways int
	dsn      string   // default: a fresh database of the scratch server
	through  string   // the same database through something that stands before it
	env      []string // more settings for all processes
}

const adminToken = "e2e-admin-token-of-at-least-32-bytes"

// prices of the model "plain", in USD per million tokens.
const (
	inputPrice  = "2"
	outputPrice = "10"
)

// startFleet starts a product with one model, "plain", on the mock.
func startFleet(t *testing.T, o fleetOptions) *fleet {
	t.Helper()
	f := &fleet{t: t, dsn: o.dsn, through: o.through}
	var err error
	f.mock, err = mock.New(mock.Options{})
	require.NoError(t, err)
	server := httptest.NewServer(f.mock)
	t.Cleanup(server.Close)
	f.upstream = server.URL
	if f.dsn == "" {
		f.dsn = pgtest.DSN(t)
	}
	f.env = append([]string{
		"TOLLGATE_ADMIN_TOKEN=" + adminToken,
		"TOLLGATE_KEY_PEPPERS=p1:" + random32(),
		"TOLLGATE_ENCRYPTION_KEYS=k1:" + random32(),
		"TOLLGATE_DATABASE_DIRECT_URL=" + as(f.dsn, "tollgate_control"),
		"TOLLGATE_ALLOW_PRIVATE_PROVIDERS=true",
		"TOLLGATE_LOG_LEVEL=warn",
	}, o.env...)
	f.control = f.start("control", "DATABASE_URL="+as(f.way(), "tollgate_control"))
	f.setUp()
	for range max(o.gateways, 1) {
		f.addGateway()
	}
	return f
}

// addGateway starts one more data plane.
func (f *fleet) addGateway(env ...string) *process {
	p := f.start("gateway", append([]string{"DATABASE_URL=" + as(f.way(), "tollgate_gateway")}, env...)...)
	f.gateways = append(f.gateways, p)
	return p
}

// way is what DATABASE_URL of the processes leads through.
func (f *fleet) way() string {
	if f.through != "" {
		return f.through
	}
	return f.dsn
}

func random32() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b)
	return base64.StdEncoding.EncodeToString(b)
}

// as returns the same database for another role; the scratch server trusts its socket.
func as(dsn, role string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		panic(err)
	}
	u.User = url.User(role)
	return u.String()
}

// process is one running binary.
type process struct {
	cmd     *exec.Cmd
	out     *lockedBuffer
	done    chan struct{}
	exit    error
	baseURL string
	admin   string
	ops     string
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start runs `tollgate serve` with one plane and waits until it listens and is ready.
func (f *fleet) start(plane string, env ...string) *process {
	f.t.Helper()
	p := &process{out: &lockedBuffer{}, done: make(chan struct{})}
	p.cmd = exec.Command(binary, "serve", "--planes", plane, "--output", "json",
		"--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0")
	p.cmd.Env = append(append([]string{"HOME=" + f.t.TempDir(), "PATH=" + os.Getenv("PATH")}, f.env...), env...)
	p.cmd.Stderr = p.out
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(f.t, err)
	require.NoError(f.t, p.cmd.Start())
	lines := bufio.NewReader(stdout)
	first := make(chan []byte, 1)
	go func() {
		line, _ := lines.ReadBytes('\n')
		first <- line
		_, _ = io.Copy(p.out, lines)
		p.exit = p.cmd.Wait()
		close(p.done)
	}()
	f.t.Cleanup(func() {
		p.kill()
		if f.t.Failed() {
			f.t.Logf("log of %s %d:\n%s", plane, p.cmd.Process.Pid, tail(p.out.String(), 8000))
		}
		require.NotContains(f.t, p.out.String(), "DATA RACE")
		require.NotContains(f.t, p.out.String(), "panic:")
	})
	select {
	case line := <-first:
		var said struct {
			BaseURL  string `json:"base_url"`
			AdminURL string `json:"admin_url"`
			OpsURL   string `json:"ops_url"`
		}
		require.NoError(f.t, json.Unmarshal(line, &said), "process said %q and logged:\n%s", line, p.out)
		p.baseURL, p.admin, p.ops = said.BaseURL, said.AdminURL, said.OpsURL
	case <-time.After(2 * time.Minute):
		require.Fail(f.t, "process did not say that it listens", p.out.String())
	}
	f.eventually(30*time.Second, "process is ready", func() bool {
		r, err := http.Get(p.ops + "/readyz")
		if err != nil {
			return false
		}
		_ = r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
	return p
}

func tail(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}

// kill ends the process as a crash would.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// terminate sends SIGTERM and returns the exit code.
func (p *process) terminate(t *testing.T, within time.Duration) int {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		require.Fail(t, "process did not end", p.out.String())
		return -1
	}
}

// eventually polls a condition of another process. A busy machine gets four times as long as an idle one needs; what is a
// promise is measured by its own test.
func (f *fleet) eventually(within time.Duration, what string, ok func() bool) {
	f.t.Helper()
	require.Eventually(f.t, ok, 4*within, 10*time.Millisecond, what)
}

// object is a decoded JSON object.
type object = map[string]any

// admin calls the admin API and returns the status and the decoded body.
func (f *fleet) admin(method, path string, body any) (int, object) {
	f.t.Helper()
	var payload io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		require.NoError(f.t, err)
		payload = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(f.t.Context(), method, f.control.admin+"/admin/v1/"+path, payload)
	require.NoError(f.t, err)
	req.Header.Set("Authorization", "Bearer "+adminToken)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	r, err := http.DefaultClient.Do(req)
	require.NoError(f.t, err)
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	require.NoError(f.t, err)
	var o object
	if len(text) > 0 {
		require.NoError(f.t, json.Unmarshal(text, &o), "%s", text)
	}
	return r.StatusCode, o
}

// create posts a resource and returns it.
func (f *fleet) create(path string, body object) object {
	f.t.Helper()
	status, o := f.admin(http.MethodPost, path, body)
	require.Equal(f.t, http.StatusCreated, status, "POST %s: %v", path, o)
	return o
}

func (f *fleet) setUp() {
	f.t.Helper()
	f.org = text(f.create("organizations", object{"name": "Acme"})["id"])
	f.provider = text(f.create("providers", object{"name": "mock", "kind": "openai", "base_url": f.upstream + "/v1", "credential": "sk-upstream-marker"})["id"])
	f.addModel("plain", "plain")
}

// addModel offers an upstream model under a public name and prices it.
func (f *fleet) addModel(name, upstream string) object {
	f.t.Helper()
	for unit, price := range map[string]string{"input": inputPrice, "output": outputPrice} {
		f.create("prices", object{
			"provider": "mock", "upstream_model": upstream, "unit": unit, "usd_per_million": price,
			"effective_from": "2026-01-01T00:00:00Z",
		})
	}
	return f.create("models", object{"name": name, "targets": []object{
		{"provider_id": f.provider, "upstream_model": upstream, "weight": 1, "priority": 0},
	}})
}

// issue makes a virtual key with limits and returns its text and id.
func (f *fleet) issue(limits ...object) (key, id string) {
	f.t.Helper()
	o := f.create("keys", object{"organization_id": f.org, "name": "key " + ids.Random62(6), "limits": limits})
	return text(o["key"]), text(o["id"])
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

// answer is what a client got.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) json(t *testing.T) object {
	t.Helper()
	var o object
	require.NoError(t, json.Unmarshal(a.body, &o), "%s", a.body)
	return o
}

// code returns error.code.
func (a answer) code() string {
	var o struct {
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	_ = json.Unmarshal(a.body, &o)
	return o.Error.Code
}

// call posts a body to a gateway and reads the whole answer.
func (p *process) call(ctx context.Context, key, path, body string, headers ...string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.baseURL+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return do(req)
}

// get reads one of the gateway's own resources.
func (p *process) get(ctx context.Context, key, path string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.baseURL+path, nil)
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	return do(req)
}

// client keeps enough idle connections for load from many goroutines.
var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}

func do(req *http.Request) (answer, error) {
	r, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = r.Body.Close() }()
	body, err := io.ReadAll(r.Body)
	return answer{r.StatusCode, r.Header, body}, err
}

// must returns the answer of a call that has to come through.
func must(t *testing.T) func(answer, error) answer {
	return func(a answer, err error) answer {
		t.Helper()
		require.NoError(t, err)
		return a
	}
}

const helloChat = `{"model":"plain","messages":[{"role":"user","content":"hello"}]}`

// rows lists all spend rows of the organization, newest first.
func (f *fleet) rows() []object {
	f.t.Helper()
	var all []object
	for cursor := ""; ; {
		status, page := f.admin(http.MethodGet, "spend?limit=250&cursor="+url.QueryEscape(cursor), nil)
		require.Equal(f.t, http.StatusOK, status, "%v", page)
		items, _ := page["items"].([]any)
		for _, i := range items {
			o, _ := i.(object)
			all = append(all, o)
		}
		if cursor = text(page["next_cursor"]); cursor == "" {
			return all
		}
	}
}

// requireBooksBalance waits until nothing is open and asks the ledger to check itself.
func (f *fleet) requireBooksBalance() {
	f.t.Helper()
	var last object
	f.eventually(20*time.Second, "no reservation is open", func() bool {
		_, last = f.admin(http.MethodGet, "reservations?state=open", nil)
		items, _ := last["items"].([]any)
		return len(items) == 0
	})
	status, report := f.admin(http.MethodGet, "ledger/check", nil)
	require.Equal(f.t, http.StatusOK, status, "%v", report)
	require.Equal(f.t, true, report["clean"], "%v", report)
}

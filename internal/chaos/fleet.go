package chaos

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
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// lease is the silence after which a gateway counts as dead. Heartbeats come three times as often.
	lease = 4 * time.Second
	// startWait bounds the start of a process, on a machine that is busy with other things too.
	startWait = 60 * time.Second
	// drainWait bounds the orderly end of one.
	drainWait = 30 * time.Second
	// upstreamWait is the longest that gateways wait for the upstream, and longer than any stall of it.
	upstreamWait = "20s"
)

// process is a running tollgate. Its output goes to a log that outlives it.
type process struct {
	cmd     *exec.Cmd
	done    chan struct{}
	baseURL string
	admin   string
}

// startProcess runs `tollgate serve` with one plane and waits until it listens.
func startProcess(ctx context.Context, binary, log, plane string, env []string) (*process, error) {
	p := &process{done: make(chan struct{})}
	p.cmd = exec.Command(binary, "serve", "--planes", plane, "--output", "json", //nolint:noctx // kill and terminate end it
		"--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0")
	p.cmd.Env = env
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", plane, err)
	}
	defer func() { _ = file.Close() }() // the process has its own descriptor
	p.cmd.Stderr = file
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("read output of %s: %w", plane, err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", plane, err)
	}
	lines := bufio.NewReader(stdout)
	first := make(chan []byte, 1)
	go func() {
		defer close(p.done)
		line, _ := lines.ReadBytes('\n')
		first <- line
		_, _ = io.Copy(io.Discard, lines)
		_ = p.cmd.Wait() // its state is looked at where it matters
	}()
	timer := time.NewTimer(startWait)
	defer timer.Stop()
	var said struct {
		BaseURL  string `json:"base_url"`
		AdminURL string `json:"admin_url"`
	}
	select {
	case line := <-first:
		if err = json.Unmarshal(line, &said); err != nil {
			err = fmt.Errorf("start %s: it said %q and logged to %s", plane, line, log)
		}
	case <-timer.C:
		err = fmt.Errorf("start %s: it did not say that it listens within %s", plane, startWait)
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		p.kill()
		return nil, err
	}
	p.baseURL, p.admin = said.BaseURL, said.AdminURL
	return p, nil
}

// kill ends the process as a crash would.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.done
}

// terminate ends the process in order, and reports whether it did so by itself.
func (p *process) terminate() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("terminate gateway: %w", err)
	}
	timer := time.NewTimer(drainWait)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.kill()
		return fmt.Errorf("terminate gateway: it did not end within %s", drainWait)
	}
	if !p.cmd.ProcessState.Success() {
		return fmt.Errorf("terminate gateway: %s", p.cmd.ProcessState)
	}
	return nil
}

// gateway is one replica: a process that comes and goes behind proxies that stay.
type gateway struct {
	number  int
	log     string
	env     []string
	binary  string
	proxies []*proxy

	trouble sync.Mutex // held by who makes trouble for longer than a moment

	mu      sync.Mutex
	process *process // nil: between two lives
}

func (g *gateway) start(ctx context.Context) error {
	p, err := startProcess(ctx, g.binary, g.log, "gateway", g.env)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.process = p
	return nil
}

// take hands the process over to who ends it; nil: there is none.
func (g *gateway) take() *process {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.process
	g.process = nil
	return p
}

// url is where the gateway listens; empty: it does not.
func (g *gateway) url() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.process == nil {
		return ""
	}
	return g.process.baseURL
}

// signal stops or continues the process, if there is one.
func (g *gateway) signal(s syscall.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.process != nil {
		_ = g.process.cmd.Process.Signal(s) // it may just have ended
	}
}

// fleet is the product under test: a control plane and some gateways on one database.
type fleet struct {
	dir      string
	binary   string
	common   []string // environment of all processes
	token    string
	database *database
	control  *process
	gateways []*gateway
	proxies  []*proxy // of the control plane
	client   *http.Client

	organization string
}

func random32() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return base64.StdEncoding.EncodeToString(b)
}

// startFleet brings a product up whose only model is answered by an upstream.
func startFleet(ctx context.Context, dir, binary, upstream string, d *database, gateways int) (*fleet, error) {
	f := &fleet{dir: dir, binary: binary, token: random32(), database: d, client: &http.Client{Timeout: 30 * time.Second}}
	f.common = []string{
		"HOME=" + dir, "PATH=" + os.Getenv("PATH"),
		"TOLLGATE_ADMIN_TOKEN=" + f.token,
		"TOLLGATE_KEY_PEPPERS=p1:" + random32(),
		"TOLLGATE_ENCRYPTION_KEYS=k1:" + random32(),
		"TOLLGATE_ALLOW_PRIVATE_PROVIDERS=true",
		"TOLLGATE_LOG_LEVEL=warn",
		"TOLLGATE_PROCESS_LEASE=" + lease.String(),
		"TOLLGATE_UNARY_TIMEOUT=" + upstreamWait, "TOLLGATE_FIRST_BYTE_TIMEOUT=" + upstreamWait, "TOLLGATE_IDLE_STREAM_TIMEOUT=" + upstreamWait,
		"TOLLGATE_DRAIN_TIMEOUT=10s",
	}
	migrate := exec.CommandContext(ctx, binary, "migrate", "up")
	migrate.Env = append(f.common[:len(f.common):len(f.common)], "DATABASE_URL="+d.dsn())
	if out, err := migrate.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("make the schema: %w:\n%s", err, out)
	}
	var err error
	if f.proxies, err = d.proxy(ctx); err != nil {
		return nil, err
	}
	url := proxyDSN("tollgate_control", f.proxies)
	f.control, err = startProcess(ctx, binary, filepath.Join(dir, "control.log"), "control",
		append(f.common[:len(f.common):len(f.common)], "DATABASE_URL="+url, "TOLLGATE_DATABASE_DIRECT_URL="+url))
	if err != nil {
		return f, err
	}
	if err := f.offerModel(ctx, upstream); err != nil {
		return f, err
	}
	for n := range gateways {
		g := &gateway{number: n + 1, binary: binary, log: filepath.Join(dir, fmt.Sprintf("gateway-%d.log", n+1))}
		if g.proxies, err = d.proxy(ctx); err != nil {
			return f, err
		}
		url := proxyDSN("tollgate_gateway", g.proxies)
		g.env = append(f.common[:len(f.common):len(f.common)], "DATABASE_URL="+url, "TOLLGATE_DATABASE_DIRECT_URL="+url)
		f.gateways = append(f.gateways, g)
		if err := g.start(ctx); err != nil {
			return f, err
		}
	}
	return f, nil
}

// object is a decoded JSON object.
type object = map[string]any

func (f *fleet) offerModel(ctx context.Context, upstream string) error {
	organization, err := f.create(ctx, "organizations", object{"name": "Chaos"})
	if err != nil {
		return err
	}
	f.organization = text(organization["id"])
	provider, err := f.create(ctx, "providers", object{
		"name": "mock", "kind": "openai", "base_url": upstream + "/v1", "credential": "sk-upstream",
	})
	if err != nil {
		return err
	}
	for unit, price := range map[string]string{"input": "2", "output": "10"} {
		if _, err := f.create(ctx, "prices", object{
			"provider": "mock", "upstream_model": model, "unit": unit, "usd_per_million": price, "effective_from": "2026-01-01T00:00:00Z",
		}); err != nil {
			return err
		}
	}
	target := object{"provider_id": text(provider["id"]), "upstream_model": model, "weight": 1, "priority": 0}
	_, err = f.create(ctx, "models", object{"name": model, "targets": []object{target}})
	return err
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

// admin calls the admin API until it answers at all, and decodes the answer.
func (f *fleet) admin(ctx context.Context, method, path string, body, into any) (int, error) {
	var payload []byte
	if body != nil {
		var err error
		if payload, err = json.Marshal(body); err != nil {
			return 0, fmt.Errorf("write request for %s: %w", path, err)
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, f.control.admin+"/admin/v1/"+path, bytes.NewReader(payload))
	if err != nil {
		return 0, fmt.Errorf("call %s: %w", path, err)
	}
	req.Header.Set("Authorization", "Bearer "+f.token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	r, err := f.client.Do(req)
	if err != nil {
		return 0, fmt.Errorf("call %s: %w", path, err)
	}
	defer func() { _ = r.Body.Close() }()
	answer, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, fmt.Errorf("call %s: %w", path, err)
	}
	if r.StatusCode >= http.StatusBadRequest {
		return r.StatusCode, fmt.Errorf("call %s: status %d: %s", path, r.StatusCode, answer)
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return r.StatusCode, fmt.Errorf("read answer of %s: %w", path, err)
	}
	return r.StatusCode, nil
}

// create posts a resource. The control plane may not have reached the database yet.
func (f *fleet) create(ctx context.Context, path string, body object) (object, error) {
	ctx, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	for {
		var made object
		status, err := f.admin(ctx, http.MethodPost, path, body, &made)
		if err == nil || status != http.StatusServiceUnavailable || !sleep(ctx, standbyPoll) {
			return made, err
		}
	}
}

// panicked returns the lines of the processes' logs that tell of a crash of their own.
func (f *fleet) panicked() ([]string, error) {
	logs, err := filepath.Glob(filepath.Join(f.dir, "*.log"))
	if err != nil {
		return nil, fmt.Errorf("look for logs: %w", err)
	}
	var found []string
	for _, name := range logs {
		content, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read log: %w", err)
		}
		for line := range strings.Lines(string(content)) {
			if strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") || strings.Contains(line, "DATA RACE") ||
				strings.Contains(line, "this binary's arithmetic does not confirm") {
				found = append(found, filepath.Base(name)+": "+strings.TrimSpace(line))
			}
		}
	}
	return found, nil
}

// stop kills what still runs.
func (f *fleet) stop() {
	for _, g := range f.gateways {
		g.signal(syscall.SIGCONT)
		if p := g.take(); p != nil {
			p.kill()
		}
	}
	if f.control != nil {
		f.control.kill()
	}
	for _, p := range f.proxies {
		p.close()
	}
	for _, g := range f.gateways {
		for _, p := range g.proxies {
			p.close()
		}
	}
	f.client.CloseIdleConnections()
}

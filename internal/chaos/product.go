package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/fleet"
)

const (
	// lease is the silence after which a gateway counts as dead. Heartbeats come three times as often.
	lease = 4 * time.Second
	// adminWait bounds a change that the admin API is asked for, while the database may be away.
	adminWait = time.Minute
	// drainWait bounds the orderly end of a process.
	drainWait = 30 * time.Second
	// upstreamWait is the longest that gateways wait for the upstream, and longer than any stall of it.
	upstreamWait = "20s"
)

var errBadEnd = errors.New("it did not end in order")

// terminate ends a process in order, and reports whether it did so by itself.
func terminate(p *fleet.Process) error {
	if err := p.Terminate(); err != nil {
		return err
	}
	timer := time.NewTimer(drainWait)
	defer timer.Stop()
	select {
	case <-p.Done():
	case <-timer.C:
		return errors.Join(fmt.Errorf("%w within %s", errBadEnd, drainWait), p.Kill())
	}
	if code := p.ExitCode(); code != 0 {
		return fmt.Errorf("%w: exit code %d", errBadEnd, code)
	}
	return nil
}

// gateway is one replica: a process that comes and goes behind proxies that stay.
type gateway struct {
	number  int
	client  *http.Client
	spec    fleet.Spec
	proxies []*proxy

	trouble sync.Mutex // held by who makes trouble for longer than a moment

	mu      sync.Mutex
	process *fleet.Process // nil: between two lives
}

// start begins a life. It is one as soon as the process listens: that it is ready may take a database.
func (g *gateway) start(ctx context.Context) error {
	p, err := fleet.Serve(ctx, g.client, g.spec)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.process = p
	return nil
}

// take hands the process over to who ends it; nil: there is none.
func (g *gateway) take() *fleet.Process {
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
	return g.process.BaseURL
}

// pause suspends the process, if there is one.
func (g *gateway) pause() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.process != nil {
		_ = g.process.Pause() // it may just have ended
	}
}

// resume lets it go on.
func (g *gateway) resume() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.process != nil {
		_ = g.process.Resume() // it may just have ended
	}
}

// product is what is under test: a control plane and some gateways on one database.
type product struct {
	dir      string
	client   *http.Client
	database *database
	control  *fleet.Process
	proxies  []*proxy // of the control plane
	gateways []*gateway
	admin    *fleet.Admin

	organization string
}

// startProduct brings a product up whose only model is answered by an upstream.
func startProduct(ctx context.Context, dir, binary, upstream string, d *database, gateways int) (*product, error) {
	p := &product{dir: dir, client: &http.Client{Timeout: adminWait, Transport: &http.Transport{}}, database: d}
	settings, token := fleet.Settings(dir)
	settings = append(settings,
		"TOLLGATE_PROCESS_LEASE="+lease.String(),
		"TOLLGATE_UNARY_TIMEOUT="+upstreamWait, "TOLLGATE_FIRST_BYTE_TIMEOUT="+upstreamWait, "TOLLGATE_IDLE_STREAM_TIMEOUT="+upstreamWait,
		"TOLLGATE_DRAIN_TIMEOUT=10s",
	)
	if err := fleet.Migrate(ctx, binary, settings, d.dsn()); err != nil {
		return nil, err
	}
	spec := func(plane fleet.Plane, log string, proxies []*proxy) fleet.Spec {
		url := proxyDSN("tollgate_"+string(plane), proxies)
		return fleet.Spec{
			Binary: binary, Plane: plane, LogFile: filepath.Join(dir, log),
			Env: slices.Concat(settings, []string{"DATABASE_URL=" + url, "TOLLGATE_DATABASE_DIRECT_URL=" + url}),
		}
	}
	var err error
	if p.proxies, err = d.proxy(ctx); err != nil {
		return p, err
	}
	if p.control, err = fleet.Serve(ctx, p.client, spec(fleet.PlaneControl, "control.log", p.proxies)); err != nil {
		return p, err
	}
	p.admin = fleet.NewAdmin(p.client, p.control.AdminURL, token)
	p.admin.Patience = adminWait
	tenant, err := p.admin.SetUp(ctx, upstream, model)
	if err != nil {
		return p, err
	}
	p.organization = tenant.Organization
	for n := range gateways {
		g := &gateway{number: n + 1, client: p.client}
		p.gateways = append(p.gateways, g)
		if g.proxies, err = d.proxy(ctx); err != nil {
			return p, err
		}
		g.spec = spec(fleet.PlaneGateway, fmt.Sprintf("gateway-%d.log", g.number), g.proxies)
		if err := g.start(ctx); err != nil {
			return p, err
		}
	}
	return p, nil
}

// panicked returns the lines of the processes' logs that tell of a crash of their own.
func (p *product) panicked() ([]string, error) {
	logs, err := filepath.Glob(filepath.Join(p.dir, "*.log"))
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
func (p *product) stop() error {
	var faults []error
	for _, g := range p.gateways {
		if process := g.take(); process != nil {
			faults = append(faults, process.Kill())
		}
		closeAll(g.proxies)
	}
	if p.control != nil {
		faults = append(faults, p.control.Kill())
	}
	closeAll(p.proxies)
	p.client.CloseIdleConnections()
	return errors.Join(faults...)
}

func closeAll(proxies []*proxy) {
	for _, p := range proxies {
		p.close()
	}
}

// Package fleet runs the product as its users run it: the real binary as processes, a private PostgreSQL that loses
// nothing, the scripted upstream, and nothing but HTTP and signals between them. The load runs, the drills and the chaos suite
// stand on it.
package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/devdb"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// database is the name of the product's database in the private cluster.
const database = "tollgate"

// stopTimeout bounds the end of the database in Close.
const stopTimeout = 30 * time.Second

// Options of a fleet.
type Options struct {
	// Binary is the program that is run; default this process's own.
	Binary string
	// Database are the options of the private cluster. Its data directory is always a scratch one.
	Database devdb.Options
	// Env are further settings (NAME=value) of every process; they win over the fleet's own.
	Env []string
}

// Fleet is a running product: one database, one control plane, one scripted upstream, and the gateways that Start adds.
// Its methods may be called from any goroutine.
type Fleet struct {
	*Admin

	Database *devdb.Cluster
	Control  *Process
	Mock     *Mock

	client *http.Client
	binary string
	env    []string

	mu        sync.Mutex
	processes []*Process
}

// Start starts the database, brings its schema up to date, and starts the scripted upstream and a control plane. No
// gateway runs yet. Everything runs until Close, not until the end of ctx.
func Start(ctx context.Context, o Options) (f *Fleet, err error) {
	f = &Fleet{binary: o.Binary, client: &http.Client{Timeout: callTimeout, Transport: &http.Transport{}}}
	if f.binary == "" {
		if f.binary, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find own program: %w", err)
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
			f = nil
		}
	}()
	o.Database.Database = database
	if f.Database, err = devdb.StartScratch(ctx, o.Database); err != nil {
		return f, err
	}
	home := filepath.Join(filepath.Dir(f.Database.LogFile()), "home") // goes away with the database
	if err := os.Mkdir(home, 0o700); err != nil {
		return f, fmt.Errorf("make home of the processes: %w", err)
	}
	settings, token := Settings(home)
	f.env = slices.Concat(settings, []string{"TOLLGATE_DATABASE_DIRECT_URL=" + f.DSN("tollgate_control")}, o.Env)
	if err := f.Migrate(ctx, f.binary); err != nil {
		return f, err
	}
	upstream, err := start(ctx, f.client, Spec{Binary: f.binary, Env: f.env}, "mock", "--listen", "127.0.0.1:0", "--output", "json")
	f.keep(upstream)
	if err != nil {
		return f, err
	}
	f.Mock = &Mock{Process: upstream}
	if f.Control, err = f.Start(ctx, Spec{Plane: PlaneControl}); err != nil {
		return f, err
	}
	f.Admin = NewAdmin(f.client, f.Control.AdminURL, token)
	return f, nil
}

// Settings are those (NAME=value) that the processes of a product share, wherever its database is: home, secrets of their own,
// an upstream on this machine, and no more in the log than warnings. token is what Admin needs.
func Settings(home string) (env []string, token secret.String) {
	token = secret.New(ids.Random62(43))
	return []string{
		"HOME=" + home, "PATH=" + os.Getenv("PATH"),
		"TOLLGATE_ADMIN_TOKEN=" + token.Reveal(),
		"TOLLGATE_KEY_PEPPERS=p1:" + random32(),
		"TOLLGATE_ENCRYPTION_KEYS=k1:" + random32(),
		"TOLLGATE_ALLOW_PRIVATE_PROVIDERS=true",
		"TOLLGATE_LOG_LEVEL=warn",
	}, token
}

func random32() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return base64.StdEncoding.EncodeToString(b)
}

// DSN is the URL of the product's database for a role, which needs no password.
func (f *Fleet) DSN(role string) string { return f.Database.DSN(role, database) }

// Migrate brings the schema up to date with the steps that a binary knows.
func (f *Fleet) Migrate(ctx context.Context, binary string) error {
	return Migrate(ctx, binary, f.env, f.DSN(devdb.Superuser))
}

// Migrate brings the schema of a database up to date with the steps that a binary knows; dsn is that of the schema's owner.
func Migrate(ctx context.Context, binary string, env []string, dsn string) error {
	cmd := exec.CommandContext(ctx, binary, "migrate", "up")
	cmd.Env = append(slices.Clone(env), "TOLLGATE_DATABASE_DIRECT_URL="+dsn)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("bring schema up to date: %w:\n%s", err, out)
	}
	return nil
}

// Start starts a process of the product and waits until it is ready.
func (f *Fleet) Start(ctx context.Context, s Spec) (*Process, error) {
	role := "tollgate_gateway"
	if s.Plane == PlaneControl {
		role = "tollgate_control"
	}
	s.Binary = cmp.Or(s.Binary, f.binary)
	s.Env = slices.Concat(f.env, []string{"DATABASE_URL=" + f.DSN(role)}, s.Env)
	p, err := Serve(ctx, f.client, s)
	f.keep(p)
	if err != nil {
		return nil, err
	}
	if err := p.awaitReady(ctx); err != nil {
		return nil, errors.Join(err, p.Kill())
	}
	return p, nil
}

// keep remembers a process, so that Close ends it; nil: there is none.
func (f *Fleet) keep(p *Process) {
	if p == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.processes = append(f.processes, p)
}

// Processes lists what was started and has not ended, the database excepted.
func (f *Fleet) Processes() []*Process {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.processes = slices.DeleteFunc(f.processes, func(p *Process) bool {
		select {
		case <-p.Done():
			return true
		default:
			return false
		}
	})
	return slices.Clone(f.processes)
}

// Close kills the processes and removes the database.
func (f *Fleet) Close() error {
	f.client.CloseIdleConnections()
	var faults []error
	for _, p := range f.Processes() {
		faults = append(faults, p.Kill())
	}
	if f.Database != nil {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		faults = append(faults, f.Database.Stop(ctx))
	}
	return errors.Join(faults...)
}

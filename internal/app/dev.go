package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/config"
	"github.com/tollgate-gateway/tollgate/internal/devdb"
	"github.com/tollgate-gateway/tollgate/internal/mock"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// DevOptions says where `tollgate dev` keeps its data and where it listens.
type DevOptions struct {
	Settings      config.Config // of which addresses, database, planes and secrets are replaced
	DataDir       string        // default: devdb.DefaultDataDir
	Listen        string
	ControlListen string
	OpsListen     string
	Progress      io.Writer // what is being done, for people
	Quiet         bool      // no progress
}

// DevReady is what dev tells once it serves. Its JSON form is the contract's.
type DevReady struct {
	BaseURL     string `json:"base_url"`
	AdminURL    string `json:"admin_url"`
	OpsURL      string `json:"ops_url"`
	ConsoleURL  string `json:"console_url"`
	AdminToken  string `json:"admin_token"`
	VirtualKey  string `json:"virtual_key"`
	Model       string `json:"model"`
	DatabaseURL string `json:"database_url"`
	DataDir     string `json:"-"`
}

const (
	devDatabase = "tollgate"
	devModel    = "mock-small"
	stopTimeout = 20 * time.Second
)

// Dev runs everything on this machine until ctx ends: a private PostgreSQL, the scripted upstream, a demo organization, and
// a process with both planes. ready is called once all of it answers. The second start finds the first one's data.
func Dev(ctx context.Context, o DevOptions, ready func(DevReady) error) (err error) {
	say := func(format string, args ...any) {
		if !o.Quiet {
			fmt.Fprintf(o.Progress, format+"\n", args...)
		}
	}
	if o.DataDir == "" {
		if o.DataDir, err = devdb.DefaultDataDir(); err != nil {
			return err
		}
	}
	if o.DataDir, err = filepath.Abs(o.DataDir); err != nil {
		return fmt.Errorf("find data directory: %w", err)
	}
	say("Starting a private PostgreSQL in %s …", o.DataDir)
	cluster, err := devdb.Start(ctx, devdb.Options{DataDir: o.DataDir, Database: devDatabase})
	if err != nil {
		return fmt.Errorf("start database: %w", err)
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		err = errors.Join(err, cluster.Stop(stop))
	}()
	database, err := unquoted(cluster.DSN("tollgate_control", devDatabase))
	if err != nil {
		return err
	}
	owner, err := unquoted(cluster.DSN(devdb.Superuser, devDatabase))
	if err != nil {
		return err
	}
	secrets, err := loadDevSecrets(o.DataDir, database, owner)
	if err != nil {
		return err
	}
	logFile, err := os.OpenFile(filepath.Join(o.DataDir, "tollgate.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer func() { err = errors.Join(err, logFile.Close()) }()
	say("Bringing the schema up to date …")
	if _, err := Migrate(ctx, secret.New(cluster.DSN(devdb.Superuser, devDatabase))); err != nil {
		return err
	}
	upstream, err := startMock(ctx)
	if err != nil {
		return err
	}
	defer upstream.stop()

	cfg := o.Settings
	cfg.Planes = config.Default().Planes
	cfg.Listen, cfg.ControlListen, cfg.OpsListen = o.Listen, o.ControlListen, o.OpsListen
	cfg.DatabaseURL = secret.New(cluster.DSN("tollgate_gateway", devDatabase))
	cfg.DatabaseControlURL = secret.New(cluster.DSN("tollgate_control", devDatabase))
	cfg.DatabaseDirectURL = secret.String{}
	cfg.AdminToken, cfg.KeyPeppers, cfg.EncryptionKeys = secrets.AdminToken, secrets.KeyPeppers, secrets.EncryptionKeys
	cfg.AllowPrivateProviders = true
	if cfg.DrainTimeout == config.Default().DrainTimeout {
		cfg.DrainTimeout = 10 * time.Second // a developer's Ctrl-C is meant
	}
	a, err := New(ctx, &cfg, logFile)
	if err != nil {
		return err
	}
	say("Filling the price book and making the demo organization, if they are not there yet …")
	if err := a.prepare(ctx); err != nil {
		return errors.Join(err, a.Close())
	}
	if err := a.demo(ctx, secrets, upstream.url); err != nil {
		return errors.Join(fmt.Errorf("make demo: %w", err), a.Close())
	}
	// Losing the database ends dev: nobody else would start it again.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-cluster.Done():
			cancel(fmt.Errorf("the private PostgreSQL ended; see %s", cluster.LogFile()))
		case <-ctx.Done():
		}
	}()
	at := a.Addresses()
	defer context.AfterFunc(ctx, func() { say("\nStopping: calls in flight may end, then the database is stopped …") })()
	err = a.Run(ctx, func() error {
		return ready(DevReady{
			BaseURL: at.Traffic, AdminURL: at.Control, OpsURL: at.Ops, ConsoleURL: at.Control + "/",
			AdminToken: secrets.AdminToken.Reveal(), VirtualKey: secrets.DemoKey.Reveal(), Model: devModel,
			DatabaseURL: cfg.DatabaseControlURL.Reveal(), DataDir: o.DataDir,
		})
	})
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

type runningMock struct {
	url  string
	stop func()
}

// startMock serves the scripted upstream on a free loopback port until stop.
func startMock(ctx context.Context) (*runningMock, error) {
	server, err := mock.New(mock.Options{})
	if err != nil {
		return nil, fmt.Errorf("make mock provider: %w", err)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the mock provider: %w", err)
	}
	serve, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(serve, l) // ends with its context
	}()
	return &runningMock{"http://" + l.Addr().String(), func() { cancel(); <-done }}, nil
}

// Package app builds a process from its settings and runs it: pools, ledger, configuration, chain, listeners and tasks.
// It is the one place that knows every package.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/tollgate-gateway/tollgate/gateway"
	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/pgstore"
	"github.com/tollgate-gateway/tollgate/governance/pgstore/ledger"
	"github.com/tollgate-gateway/tollgate/governance/tasks"
	"github.com/tollgate-gateway/tollgate/internal/config"
	"github.com/tollgate-gateway/tollgate/internal/lognames"
	"github.com/tollgate-gateway/tollgate/internal/pricebook"
	"github.com/tollgate-gateway/tollgate/internal/seal"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/internal/version"
)

const (
	controlConns = 4
	// exportConns is how many exports one process reads for at once.
	exportConns    = 2
	contactRetry   = time.Second
	contactTimeout = 5 * time.Second
	closeTimeout   = 10 * time.Second
	ballastSize    = 64 << 20 // bytes
)

// App is one process. New builds it, Run serves until its context ends, and then drains.
type App struct {
	cfg      *config.Config
	log      zerolog.Logger
	metrics  *metrics
	data     *pgxpool.Pool
	control  *pgxpool.Pool // nil where the process has no control plane
	exports  *pgxpool.Pool // as control
	stores   stores
	peppers  *seal.Peppers
	keys     *seal.Keys
	kinds    *kinds
	catalogs *pgstore.Catalogs
	ledger   *ledger.Ledger
	limits   governance.Ledger // what admits: the ledger, or memory in front of it
	gateway  *gateway.Gateway  // nil where the process has no data plane
	tasks    *tasks.Runner
	runners  []runner // background lives, in the order in which they end
	state    state
	storeLog storeLog

	traffic, controlPlane, ops *listener
}

type runner struct {
	name string
	run  func(context.Context) error
}

// Addresses are the base URLs of the listeners; empty where the process has not got one.
type Addresses struct {
	Traffic string `json:"base_url,omitempty"`
	Control string `json:"admin_url,omitempty"`
	Ops     string `json:"ops_url"`
}

// stores are the Postgres stores of the plane that the process has.
type stores struct {
	organizations *pgstore.Organizations
	teams         *pgstore.Teams
	users         *pgstore.Users
	memberships   *pgstore.Memberships
	keys          *pgstore.Keys
	providers     *pgstore.Providers
	models        *pgstore.Models
	targets       *pgstore.Targets
	limits        *pgstore.Limits
	guardrails    *pgstore.Guardrails
	prices        *pgstore.Prices
	audit         *pgstore.Audit
	spend         *pgstore.Spend
}

// NewLogger writes JSON lines in UTC.
func NewLogger(w io.Writer, level string) zerolog.Logger {
	parsed, err := zerolog.ParseLevel(level)
	if err != nil {
		parsed = zerolog.InfoLevel // settings allow no other
	}
	return zerolog.New(w).Level(parsed).With().Timestamp().Logger()
}

// New builds everything and opens the listeners. It makes no connection to the database yet: Run does, and waits for it.
func New(ctx context.Context, cfg *config.Config, logTo io.Writer) (*App, error) {
	a, err := build(ctx, cfg, logTo)
	if err != nil {
		return nil, err
	}
	if err := a.listen(ctx); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// PrintChain writes the plugin chain of the settings in the order in which it runs.
func PrintChain(ctx context.Context, cfg *config.Config, w io.Writer) error {
	a, err := build(ctx, cfg, io.Discard)
	if err != nil {
		return err
	}
	defer func() { _ = a.Close() }() // nothing was used
	if a.gateway == nil {
		return errors.New("a process without the gateway plane has no chain")
	}
	return a.gateway.PrintChain(w)
}

func build(ctx context.Context, cfg *config.Config, logTo io.Writer) (a *App, err error) {
	a = &App{cfg: cfg, log: NewLogger(logTo, cfg.LogLevel), metrics: newMetrics()}
	a.storeLog.log = a.log
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	if a.peppers, err = seal.ParsePeppers(cfg.KeyPeppers); err != nil {
		return a, fmt.Errorf("TOLLGATE_KEY_PEPPERS: %w", err)
	}
	if a.keys, err = seal.ParseKeys(cfg.EncryptionKeys); err != nil {
		return a, fmt.Errorf("TOLLGATE_ENCRYPTION_KEYS: %w", err)
	}
	if a.kinds, err = openKinds(cfg.ProviderCatalog); err != nil {
		return a, err
	}
	if err := a.openPools(ctx); err != nil {
		return a, err
	}
	if err := a.openStores(); err != nil {
		return a, err
	}
	a.catalogs = pgstore.NewCatalogs(a.data, a.keys, pgstore.CatalogOptions{
		Direct: a.database(cfg.Direct()), MaxAge: cfg.CacheMaxAge, Log: a.log,
	})
	if err := a.openLedger(); err != nil {
		return a, err
	}
	if cfg.Serves(config.PlaneGateway) {
		if err := a.openGateway(); err != nil {
			return a, err
		}
	}
	return a, a.openTasks()
}

func (a *App) database(dsn secret.String) pgstore.Options {
	o := pgstore.Options{DSN: dsn, ConnLife: a.cfg.DatabaseConnLife}
	if a.cfg.DatabasePasswordFile != "" {
		o.Password = pgstore.PasswordFile(a.cfg.DatabasePasswordFile)
	}
	return o
}

func (a *App) openPools(ctx context.Context) (err error) {
	o := a.database(a.cfg.DatabaseURL)
	o.MaxConns = a.cfg.DatabaseConns
	if !a.cfg.Serves(config.PlaneGateway) {
		o.DSN = a.cfg.Control()
	}
	if a.data, err = pgstore.Open(ctx, o); err != nil {
		return fmt.Errorf("DATABASE_URL: %w", err)
	}
	if a.cfg.Serves(config.PlaneControl) {
		o := a.database(a.cfg.Control())
		o.MaxConns, o.StatementTimeout = controlConns, 10*time.Second
		if a.control, err = pgstore.Open(ctx, o); err != nil {
			return fmt.Errorf("TOLLGATE_DATABASE_CONTROL_URL: %w", err)
		}
		o.MaxConns = exportConns
		if a.exports, err = pgstore.Open(ctx, o); err != nil {
			return fmt.Errorf("TOLLGATE_DATABASE_CONTROL_URL: %w", err)
		}
	}
	a.observePools()
	return nil
}

func (a *App) openStores() error {
	book, err := pricebook.Open()
	if err != nil {
		return err
	}
	pool := a.control
	if pool == nil {
		pool = a.data
	}
	a.stores = stores{
		organizations: pgstore.NewOrganizations(pool),
		teams:         pgstore.NewTeams(pool),
		users:         pgstore.NewUsers(pool),
		memberships:   pgstore.NewMemberships(pool),
		keys:          pgstore.NewKeys(pool, a.peppers),
		providers:     pgstore.NewProviders(pool, a.keys),
		models:        pgstore.NewModels(pool).WithMaxOutput(book.MaxOutput).WithoutStreamOptions(a.kinds.noStreamOptions),
		targets:       pgstore.NewTargets(pool),
		limits:        pgstore.NewLimits(pool),
		guardrails:    pgstore.NewGuardrails(pool, a.keys),
		prices:        pgstore.NewPrices(pool),
		audit:         pgstore.NewAudit(pool),
		spend:         pgstore.NewSpend(pool),
	}
	return nil
}

// Addresses tells where the process listens.
func (a *App) Addresses() Addresses {
	var at Addresses
	if a.traffic != nil {
		at.Traffic = a.traffic.url()
	}
	if a.controlPlane != nil {
		at.Control = a.controlPlane.url()
	}
	at.Ops = a.ops.url()
	return at
}

func (a *App) listen(ctx context.Context) (err error) {
	if a.gateway != nil {
		if a.traffic, err = listen(ctx, "traffic", a.cfg.Listen, a.gateway.Handler(), 0); err != nil {
			return err
		}
	}
	if a.control != nil {
		admin, err := a.openConsole()
		if err != nil {
			return err
		}
		if a.controlPlane, err = listen(ctx, "control", a.cfg.ControlListen, admin, 0); err != nil {
			return err
		}
	}
	a.ops, err = listen(ctx, "operations", a.cfg.OpsListen,
		operations(a.ready, a.metrics.handler()), opsWriteTimeout)
	return err
}

// Run serves until told ends, then drains: the process becomes unready, goes on for the drain delay, lets calls in flight end
// within the drain time-out, cuts the rest with an error event, and settles everything. started is called once the process
// answers. A database that is away at the start is waited for, as are a schema and a role that fit; wrong secrets end
// the process, and so does any part of it that fails.
func (a *App) Run(told context.Context, started func() error) (err error) {
	// A gateway keeps a few megabytes alive and makes garbage fast, so the collector would run many times a second. Memory
	// that counts as alive and is never touched, so that the system never gives it, makes it wait.
	ballast := make([]byte, ballastSize)
	defer runtime.KeepAlive(ballast)
	life, end := context.WithCancel(context.WithoutCancel(told))
	defer end()
	ctx, fail := context.WithCancelCause(told)
	defer fail(nil)
	var background sync.WaitGroup
	launch := func(name string, run func() error) {
		background.Go(func() {
			if err := run(); err != nil {
				fail(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	ended := func() error {
		if told.Err() != nil {
			return nil //nolint:nilerr // it was told to end
		}
		return context.Cause(ctx)
	}
	launch("operations", a.ops.serve)
	if a.traffic != nil {
		launch(a.traffic.name, a.traffic.serve) // until the configuration was read every call gets the typed 503
	}
	defer func() {
		err = errors.Join(err, a.stop())
		end()
		background.Wait()
		err = errors.Join(err, a.Close())
	}()
	if err := a.prepare(ctx); err != nil {
		if ctx.Err() != nil {
			return ended()
		}
		return err
	}
	for _, r := range a.runners {
		launch(r.name, func() error { return r.run(life) })
	}
	if err := a.firstCatalog(ctx); err != nil {
		return ended() // before it began
	}
	if a.controlPlane != nil {
		launch(a.controlPlane.name, a.controlPlane.serve)
	}
	if started != nil {
		if err := started(); err != nil {
			return fmt.Errorf("announce: %w", err)
		}
	}
	if a.cfg.LimitStore == config.StoreMemory {
		a.log.Warn().Msg("limits are counted in this process alone: N processes grant N times each limit, and a restart forgets")
	}
	a.log.Info().Str(lognames.Version, version.Version).Dur(lognames.DrainTimeout, a.cfg.DrainTimeout).Strs(lognames.Planes, a.cfg.Planes).Msg("serving")
	<-ctx.Done()
	if err := ended(); err != nil {
		return err
	}
	a.log.Info().Dur(lognames.DrainDelay, a.cfg.DrainDelay).Dur(lognames.DrainTimeout, a.cfg.DrainTimeout).Msg("draining")
	return nil
}

// stop drains the data plane, ends the background lives and closes the listeners.
func (a *App) stop() error {
	a.state.draining.Store(true)
	var faults []error
	if a.gateway != nil {
		a.gateway.Drain()
		if a.state.contacted.Load() {
			pause(a.cfg.DrainDelay)
		}
		ctx, cancel := context.WithTimeout(context.Background(), a.cfg.DrainTimeout)
		defer cancel()
		if err := a.gateway.Shutdown(ctx); err != nil {
			a.log.Warn().Err(err).Msg("cut calls at the end of the drain time-out")
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	for _, l := range []*listener{a.traffic, a.controlPlane} {
		if l == nil {
			continue
		}
		if err := l.server.Shutdown(ctx); err != nil {
			faults = append(faults, fmt.Errorf("close %s listener: %w", l.name, err), l.server.Close())
		}
	}
	if err := a.ledger.Close(ctx); err != nil {
		faults = append(faults, fmt.Errorf("flush settlements: %w", err))
	}
	faults = append(faults, a.ops.server.Close())
	return errors.Join(faults...)
}

func pause(d time.Duration) {
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		<-timer.C
	}
}

// Close releases what New opened. Run does it by itself.
func (a *App) Close() error {
	for _, l := range []*listener{a.traffic, a.controlPlane, a.ops} {
		if l != nil {
			_ = l.net.Close() // closed already where it served
		}
	}
	if a.data != nil {
		a.data.Close()
	}
	if a.control != nil {
		a.control.Close()
	}
	if a.exports != nil {
		a.exports.Close()
	}
	return nil
}

// Serve runs a process until ctx ends. announce is called once it answers.
func Serve(ctx context.Context, cfg *config.Config, logTo io.Writer, announce func(Addresses) error) error {
	a, err := New(ctx, cfg, logTo)
	if err != nil {
		return err
	}
	return a.Run(ctx, func() error { return announce(a.Addresses()) })
}

package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/pgstore"
	"github.com/tollgate-gateway/tollgate/internal/config"
	"github.com/tollgate-gateway/tollgate/internal/lognames"
	"github.com/tollgate-gateway/tollgate/internal/pricebook"
)

// state is what readiness is told from: memory alone, so that a probe waits for nothing.
type state struct {
	contacted atomic.Bool
	draining  atomic.Bool
	reason    atomic.Pointer[string] // why there was no contact yet
}

// notYetError says that contact may succeed later. Only reason is shown to probes: err may name hosts.
type notYetError struct {
	reason string
	err    error
}

func (e *notYetError) Error() string {
	if e.err == nil {
		return e.reason
	}
	return e.reason + ": " + e.err.Error()
}

func (e *notYetError) Unwrap() error { return e.err }

// prepare does what comes before the first request: contact with the database and a filled price book.
func (a *App) prepare(ctx context.Context) error {
	if a.state.contacted.Load() {
		return nil
	}
	if err := a.contact(ctx); err != nil {
		return err
	}
	a.warnOfConnections(ctx)
	a.state.contacted.Store(true)
	return nil
}

// contact waits for the database and checks what a process must not begin without: a schema that is new enough, the right
// secrets, a role that may do no more than the data plane needs.
func (a *App) contact(ctx context.Context) error {
	logged := ""
	for {
		err := a.tryContact(ctx)
		if err == nil {
			err = a.importPrices(ctx)
		}
		if err == nil {
			return nil
		}
		wait, ok := errors.AsType[*notYetError](err)
		if !ok {
			return err
		}
		a.state.reason.Store(&wait.reason)
		if text := err.Error(); text != logged {
			a.log.Warn().Err(err).Msg("not ready yet")
			logged = text
		}
		timer := time.NewTimer(contactRetry)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

func (a *App) tryContact(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, contactTimeout)
	defer cancel()
	pool := a.data
	if a.control != nil {
		pool = a.control
	}
	// Both pools, since each may lead another way.
	if _, err := pgstore.ReadServer(ctx, a.data); err != nil {
		return &notYetError{"the database cannot be reached", err}
	}
	have, dirty, err := pgstore.SchemaVersion(ctx, pool)
	if err != nil {
		return &notYetError{"the database cannot be reached", err}
	}
	need, err := pgstore.LatestMigration()
	if err != nil {
		return err
	}
	if have < need || dirty {
		return &notYetError{fmt.Sprintf("schema is at %d, this binary needs %d: run `tollgate migrate up`", have, need), nil}
	}
	if err := pgstore.VerifySecrets(ctx, pool, append(a.peppers.Checks(), a.keys.Checks()...)...); err != nil {
		if errors.Is(err, pgstore.ErrWrongSecret) || errors.Is(err, pgstore.ErrMissingSecret) {
			return err
		}
		return &notYetError{"secrets cannot be checked", err}
	}
	return a.checkRole(ctx)
}

// checkRole refuses a pure data plane whose role could change what it is governed by.
func (a *App) checkRole(ctx context.Context) error {
	if a.cfg.Serves(config.PlaneControl) {
		return nil
	}
	p, err := pgstore.ReadPrivileges(ctx, a.data)
	if err != nil {
		return &notYetError{"privileges cannot be read", err}
	}
	if !p.OverPrivileged() {
		return nil
	}
	excess := strings.Join(p.Excess, ", ")
	if a.cfg.AllowPrivilegedRole {
		a.log.Warn().Str(lognames.Role, p.Role).Str(lognames.Excess, excess).Msg("the data plane's role may do more than it needs")
		return nil
	}
	return &notYetError{fmt.Sprintf("role %s may do more than the data plane needs (%s): use tollgate_gateway, or set "+
		"TOLLGATE_ALLOW_PRIVILEGED_ROLE", p.Role, excess), nil}
}

// importPrices fills an empty price book from the embedded one. Of several replicas that try, one succeeds.
func (a *App) importPrices(ctx context.Context) error {
	if a.control == nil {
		return nil
	}
	empty, err := a.stores.prices.Empty(ctx)
	if errors.Is(err, governance.ErrStoreAway) {
		return &notYetError{"the price book cannot be read", err}
	}
	if err != nil || !empty {
		return err
	}
	book, err := pricebook.Load(time.Now())
	if err != nil {
		return err
	}
	added, err := a.stores.prices.Fill(ctx, governance.Actor{Kind: "system", ID: "price-import", Name: "first import of prices"}, book)
	switch {
	case errors.Is(err, governance.ErrExists):
		return nil
	case errors.Is(err, governance.ErrStoreAway): // another replica is at it
		return &notYetError{"the price book cannot be filled", err}
	case err != nil:
		return fmt.Errorf("import prices: %w", err)
	}
	a.log.Info().Int(lognames.Count, len(added)).Msg("filled the empty price book")
	return nil
}

// firstCatalog waits until the configuration was read once.
func (a *App) firstCatalog(ctx context.Context) error { return a.catalogs.Refresh(ctx, 0) }

// ready returns why the process should get no traffic; nil: it should.
func (a *App) ready() error {
	switch {
	case a.state.draining.Load():
		return errors.New("draining")
	case !a.state.contacted.Load():
		if reason := a.state.reason.Load(); reason != nil {
			return errors.New(*reason)
		}
		return errors.New("starting")
	case a.cfg.ReadinessRequireDatabase && a.databaseAway():
		return errors.New("the database is away")
	case a.gateway != nil:
		return a.gateway.Readiness()
	}
	return nil
}

// databaseAway tells from memory: the limit store's breaker is open, or the configuration could not be confirmed for longer
// than its hard age.
func (a *App) databaseAway() bool {
	_, err := a.catalogs.Current()
	return err != nil || a.ledger.Stats().Broken
}

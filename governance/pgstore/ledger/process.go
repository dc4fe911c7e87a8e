package ledger

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tollgate-gateway/tollgate/governance"
)

var (
	//go:embed sql/register.sql
	registerSQL string
	//go:embed sql/beat.sql
	beatSQL string
	//go:embed sql/stop.sql
	stopSQL string
	//go:embed sql/expire.sql
	expireSQL string
)

// registered returns this process's number, registering it where that is still to be done.
func (l *Ledger) registered(ctx context.Context) (int64, error) {
	if process := l.process.Load(); process != 0 {
		return process, nil
	}
	ctx, cancel := context.WithTimeout(ctx, acquireWait)
	defer cancel()
	var process int64
	err := l.pool.QueryRow(ctx, registerSQL, pgx.QueryExecModeExec, pgx.StrictNamedArgs{
		"node": l.node, "boot": l.boot, "version": l.version, "lease_seconds": int32(l.lease / time.Second),
	}).Scan(&process)
	if err != nil {
		return 0, fmt.Errorf("register process: %w", err)
	}
	l.process.Store(process)
	return process, nil
}

// heartbeat renews the lease until ctx ends.
func (l *Ledger) heartbeat(ctx context.Context) {
	every := min(beatEvery, l.lease/3)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		if err := l.beat(ctx); err != nil && ctx.Err() == nil {
			l.lose()
			if l.observer.Failure != nil {
				l.observer.Failure(err)
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// beat renews the lease once.
func (l *Ledger) beat(ctx context.Context) error {
	process, err := l.registered(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, acquireWait)
	defer cancel()
	var at time.Time
	var configVersion int64
	err = l.pool.QueryRow(ctx, beatSQL, pgx.QueryExecModeExec, pgx.StrictNamedArgs{"process": process}).Scan(&at, &configVersion)
	if errors.Is(err, pgx.ErrNoRows) {
		l.process.Store(0)
		_, err = l.registered(ctx)
	}
	if err != nil {
		return fmt.Errorf("renew lease: %w", err)
	}
	if !at.IsZero() {
		l.tick(at, configVersion)
	}
	l.mu.Lock()
	if l.contacted.IsZero() {
		l.contacted = time.Now()
	}
	l.mu.Unlock()
	return nil
}

// lose forgets the contact with the database: after the next one the grace begins anew, so that owners who were cut off as
// well beat and settle first. A standby that took over has been running for long, so its start says nothing.
func (l *Ledger) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.contacted = time.Time{}
}

// deregister gives up the lease. If that fails it runs out.
func (l *Ledger) deregister(ctx context.Context) {
	process := l.process.Load()
	if process == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, acquireWait)
	defer cancel()
	if _, err := l.pool.Exec(ctx, stopSQL, pgx.QueryExecModeExec, pgx.StrictNamedArgs{"process": process}); err != nil && l.observer.Failure != nil {
		l.observer.Failure(fmt.Errorf("give up lease: %w", err))
	}
}

// Expire closes up to limit reservations whose process is dead or whose hard expiry has passed; see governance.Ledger. It
// closes none within the grace after this process's first contact with the database.
func (l *Ledger) Expire(ctx context.Context, limit int) (int, error) {
	l.mu.Lock()
	early := l.contacted.IsZero() || time.Since(l.contacted) < l.grace
	l.mu.Unlock()
	if early {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, operationWait)
	defer cancel()
	var closed int
	err := l.pool.QueryRow(ctx, expireSQL, pgx.QueryExecModeExec, pgx.StrictNamedArgs{
		"count": int32(min(limit, maxExpire)), "grace_seconds": int32(l.grace / time.Second), // both are small
	}).Scan(&closed)
	if err != nil {
		if unavailable(err) {
			l.lose()
		}
		return 0, storeError("expire reservations", err)
	}
	return closed, nil
}

func storeError(what string, err error) error {
	if unavailable(err) {
		return fmt.Errorf("%s: %w: %w", what, governance.ErrLimitStoreUnavailable, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

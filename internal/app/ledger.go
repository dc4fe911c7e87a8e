package app

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/memstore"
	"github.com/tollgate-gateway/tollgate/governance/pgstore"
	"github.com/tollgate-gateway/tollgate/governance/pgstore/ledger"
	"github.com/tollgate-gateway/tollgate/governance/tasks"
	"github.com/tollgate-gateway/tollgate/internal/config"
	"github.com/tollgate-gateway/tollgate/internal/lognames"
	"github.com/tollgate-gateway/tollgate/internal/version"
)

// sweepBatch is how many reservations one sweep closes at most; the next sweep goes on.
const sweepBatch = 500

// sealEvery keeps what is not sealed small, since every list and sum reads it.
const sealEvery = 20 * time.Second

// openLedger builds the lane to the limit store. It runs in both planes, since both sweep.
func (a *App) openLedger() error {
	node, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("find the host's name: %w", err)
	}
	latency := []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .25, .5, 1, 3, 9}
	batch := a.metrics.Histogram("tollgate_ledger_batch_seconds", "Round trip of a batch that the limit store decided.", latency)
	items := a.metrics.Histogram("tollgate_ledger_batch_size", "Admissions and settlements of a batch.", []float64{1, 2, 4, 8, 16, 32, 64, 128, 256})
	wait := a.metrics.Histogram("tollgate_ledger_queue_wait_seconds", "Wait of an admission until its batch began.", latency)
	refused := a.metrics.Counter("tollgate_ledger_refusals_total", "Refused admissions by reason of the limit that speaks.", "reason")
	failures := a.metrics.Counter("tollgate_ledger_failures_total", "Batches and heartbeats that the limit store did not answer.")
	dropped := a.metrics.Counter("tollgate_ledger_dropped_settlements_total", "Settlements that did not fit the outbox and are left to expiry.")
	mismatches := a.metrics.Counter("tollgate_ledger_mismatches_total", "Decisions of the store that the arithmetic of this process does not confirm.")
	resets := a.metrics.Counter("tollgate_ledger_clock_resets_total", "Batches that found meters dated far ahead of the database's clock.")
	a.ledger = ledger.New(ledger.Options{
		Pool: a.data, Node: node, Version: version.Version, Lease: a.cfg.ProcessLease,
		Observer: ledger.Observer{
			Batch: func(settlements, admissions int, took time.Duration) {
				batch(took.Seconds())
				items(float64(settlements + admissions))
			},
			QueueWait: func(d time.Duration) { wait(d.Seconds()) },
			Refused:   func(d *governance.Denial) { refused(string(d.Refusals[0].Reason)) },
			Failure: func(err error) {
				failures()
				a.storeLog.failed(err)
			},
			Dropped: func() {
				dropped()
				a.log.Error().Msg("the outbox is full: a settlement is left to expiry")
			},
			Mismatch: func() {
				mismatches()
				a.log.Error().Msg("the limit store decided what this binary's arithmetic does not confirm")
			},
			Reset: func(n int) {
				resets()
				a.log.Warn().Int(lognames.Count, n).Msg("meters were dated ahead of the database's clock and were set back")
			},
		},
	})
	a.limits = a.ledger
	if a.cfg.LimitStore == config.StoreMemory {
		a.limits = memstore.New(memstore.Options{Rows: a.ledger, Limits: a.limitNow, Clock: a.ledger.Clock})
	}
	a.runners = append(a.runners, runner{"ledger", a.ledger.Run}, runner{"configuration", a.catalogs.Run}, runner{"store log", a.storeLog.run})
	a.metrics.gauge("tollgate_ledger_queue_length", "Admissions that wait for the limit store.", func() float64 { return float64(a.ledger.Stats().Queued) })
	a.metrics.gauge("tollgate_ledger_outbox_length", "Settlements that wait for the limit store.", func() float64 { return float64(a.ledger.Stats().Outbox) })
	a.metrics.gauge("tollgate_ledger_locked_waiting", "Requests that wait for a meter which another session has locked.", func() float64 { return float64(a.ledger.Stats().Locked) })
	a.metrics.gauge("tollgate_store_up", "1 while the limit store answers, 0 while its breaker is open.", func() float64 {
		if a.ledger.Stats().Broken {
			return 0
		}
		return 1
	})
	return nil
}

// limitNow is what the memory store reads a limit from.
func (a *App) limitNow(num int64) *governance.Limit {
	catalog, err := a.catalogs.Current()
	if err != nil {
		return nil
	}
	return catalog.Limits.Limit(num)
}

// openTasks builds the background work. Every replica has all of it; a conditional write gives each due run to one.
func (a *App) openTasks() error {
	pool := a.control
	if pool == nil {
		pool = a.data
	}
	up := pgstore.NewUpkeep(pool)
	all := []tasks.Task{
		{Name: "partitions", Every: 6 * time.Hour, Timeout: time.Minute, Run: up.EnsurePartitions},
		{Name: "prune", Every: 5 * time.Minute, Timeout: 2 * time.Minute, Run: up.Prune},
		{Name: "open_windows", Every: 2 * time.Minute, Timeout: time.Minute, Run: up.OpenWindows},
		{Name: "measure_outputs", Every: 5 * time.Minute, Timeout: 2 * time.Minute, Run: up.MeasureOutputs},
		{Name: "resolve_provisional", Every: 10 * time.Minute, Timeout: 2 * time.Minute, Run: func(ctx context.Context) error {
			return up.ResolveProvisional(ctx, governance.ResolveEstimate)
		}},
		{Name: "seal", Every: sealEvery, Timeout: 5 * time.Minute, Run: func(ctx context.Context) error { return a.seal(ctx, up) }},
	}
	if a.cfg.LedgerRetention > 0 && a.control != nil { // the data plane's role may not drop anything
		all = append(all, tasks.Task{Name: "retention", Every: time.Hour, Timeout: 20 * time.Minute, Run: func(ctx context.Context) error {
			return a.dropMonths(ctx, up)
		}})
	}
	if a.gateway != nil {
		all = append(all, tasks.Task{Name: "batches", Every: 2 * time.Second, Timeout: 2 * time.Hour, Run: a.gateway.LookAfterBatches})
	}
	var err error
	if a.tasks, err = tasks.New(pgstore.NewClaims(pool), a.log, all...); err != nil {
		return err
	}
	a.runners = append(a.runners, runner{"tasks", a.tasks.Run}, runner{"sweeper", a.sweep})
	return nil
}

// seal seals the rows that can be sealed. The hashes go to the log, where whoever can write to the database cannot change them.
func (a *App) seal(ctx context.Context, up *pgstore.Upkeep) error {
	blocks, err := up.Seal(ctx)
	for _, b := range blocks {
		a.log.Info().Int64(lognames.Block, b.Number).Int64(lognames.Rows, b.Rows).Hex(lognames.Hash, b.Hash).Msg("sealed ledger rows")
	}
	return err
}

// dropMonths drops what is older than the ledger's retention.
func (a *App) dropMonths(ctx context.Context, up *pgstore.Upkeep) error {
	months, err := up.DropMonths(ctx, a.cfg.LedgerRetention)
	for _, m := range months {
		a.log.Warn().Str(lognames.Month, m.Format("2006-01")).Msg("dropped a month of the ledger, behind openings")
	}
	return err
}

// sweep expires reservations of dead processes. It runs on every replica without a claim: expiry is a conditional write
// itself, and a replica that died with the claim must not keep the others from it. It begins at a moment of its own: in step
// with the heartbeat, an idle process would need two connections instead of one.
func (a *App) sweep(ctx context.Context) error {
	every := min(a.cfg.ProcessLease/9, 5*time.Second)
	timer := time.NewTimer(rand.N(every)) //nolint:gosec // jitter, no secret
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			timer.Reset(every)
		}
		for closed := sweepBatch; closed == sweepBatch; {
			var err error
			if closed, err = a.limits.Expire(ctx, sweepBatch); err != nil {
				a.storeLog.failed(err)
				break
			}
			if closed > 0 {
				a.log.Info().Int(lognames.Count, closed).Msg("expired reservations of dead processes")
			}
		}
	}
}

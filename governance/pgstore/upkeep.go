package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/governance"
)

const (
	// upkeepBatch is how many rows one step of upkeep touches, so that it never holds many locks.
	upkeepBatch = 1000
	// provisionalFor is how long people have to resolve a provisional row before a policy does.
	provisionalFor = 24 * time.Hour
	// windowsAhead is how long before their start windows are made.
	windowsAhead = 10 * time.Minute
	// statisticsRows bounds what output statistics look at: the newest rows.
	statisticsRows = 200_000
)

// Upkeep is the work that no request asks for. Every method may run on every replica at any time, and a repeat is harmless.
type Upkeep struct{ pool *pgxpool.Pool }

// NewUpkeep works through pool.
func NewUpkeep(pool *pgxpool.Pool) *Upkeep { return &Upkeep{pool: pool} }

// EnsurePartitions makes the ledger's partitions of this month and the next ones. Run it daily.
func (u *Upkeep) EnsurePartitions(ctx context.Context) error {
	_, err := read(ctx, u.pool, func(ctx context.Context, q querier) (int, error) {
		return scalar[int](ctx, q, "upkeep_partitions", nil)
	})
	return err
}

// Prune removes what nobody needs any more: released reservations after a day, idle meters of end users after seven days,
// dead processes, idempotency keys that have ended, and where responses were that no provider keeps any more. Run it each few minutes.
func (u *Upkeep) Prune(ctx context.Context) error {
	for _, statement := range []string{"upkeep_clean", "upkeep_idempotency_keys", "upkeep_stored_responses"} {
		for removed := int64(upkeepBatch); removed >= upkeepBatch; {
			var err error
			removed, err = read(ctx, u.pool, func(ctx context.Context, q querier) (int64, error) {
				return scalar[int64](ctx, q, statement, args{"count": upkeepBatch})
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// OpenWindows makes the next windows of budgets that are in use, a few minutes before they begin, so that midnight is no
// storm. A window that has to begin with its predecessor's debt cannot be made before that has ended, and is made by the
// first admission in it. Run it each few minutes.
func (u *Upkeep) OpenWindows(ctx context.Context) error {
	for made := int64(upkeepBatch); made == upkeepBatch; {
		var err error
		made, err = read(ctx, u.pool, func(ctx context.Context, q querier) (int64, error) {
			return scalar[int64](ctx, q, "upkeep_windows", args{"ahead": windowsAhead, "count": upkeepBatch})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// MeasureOutputs renews the p99 of each target's output and the p95 of its speed from its newest complete answers. Targets
// without any keep what they have. Run it hourly.
func (u *Upkeep) MeasureOutputs(ctx context.Context) error {
	return atLeisure(ctx, u.pool, pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := exec(ctx, tx, "upkeep_outputs", args{"count": statisticsRows})
		return err
	})
}

// ResolveProvisional resolves by policy what people have left provisional for a day, each row in a transaction of its own.
// Run it each few minutes.
func (u *Upkeep) ResolveProvisional(ctx context.Context, policy governance.ResolvePolicy) error {
	by := governance.Actor{Kind: "system", Reason: "provisional for a day, resolved by policy " + string(policy)}
	for {
		due, err := read(ctx, u.pool, func(ctx context.Context, q querier) ([]provisionalColumns, error) {
			return many[provisionalColumns](ctx, q, "provisional_due", args{"after": provisionalFor, "count": upkeepBatch})
		})
		if err != nil || len(due) == 0 {
			return err
		}
		for i := range due {
			// That another replica was faster is as good.
			err := within(ctx, u.pool, pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
				_, err := due[i].apply(ctx, tx, by, governance.Resolution{Policy: policy})
				return err
			})
			if err != nil {
				return err
			}
		}
	}
}

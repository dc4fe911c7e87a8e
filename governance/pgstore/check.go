package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/governance"
)

// leisureTimeout bounds one statement that reads much, so that a forgotten one does not keep an old snapshot alive.
const leisureTimeout = 5 * time.Minute

// checks are the invariants that need no oracle, in the order in which they are reported. Each reads one view.
var checks = []struct{ id, name, statement string }{
	{"I01", "spent of a budget window = sum of its rows", "check_window_spent"},
	{"I02", "held of a meter = sum of open reservations", "check_held"},
	{"I03", "nothing is open past its expiry", "check_open_past_expiry"},
	{"I06", "an attempt has a reservation or a row, and an adjustment has its row", "check_reservation_and_row"},
	{"I10", "budgets are charged what the row books", "check_charged_as_booked"},
	{"I11", "a bucket admits at most its capacity and refill, in any interval", "check_bucket_rate"},
	{"I12", "replaying a bucket's history gives its level, and nothing is admitted in debt", "check_bucket_level"},
	{"I13", "a budget is overspent by no more than its overshoots", "check_budget_overshoot"},
	{"I15", "no negative or absurd amount", "check_amounts"},
	{"one-row", "an attempt has one row of usage or expiry", "check_one_row_per_attempt"},
	{"cost", "cost of a row = its quantities at its unit prices", "check_row_cost"},
}

// Check recomputes every counter from the ledger and verifies the invariants, each in a snapshot of its own.
func (s *Spend) Check(ctx context.Context) (governance.CheckReport, error) {
	began := time.Now()
	report := governance.CheckReport{Checks: make([]governance.CheckResult, 0, len(checks))}
	for _, c := range checks {
		result := governance.CheckResult{ID: c.id, Name: c.name}
		err := atLeisure(ctx, s.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(ctx context.Context, tx pgx.Tx) error {
			type sample struct {
				Violations int64  `db:"violations"`
				Sample     string `db:"sample"`
			}
			samples, err := many[sample](ctx, tx, c.statement, nil)
			for _, v := range samples {
				result.Violations = v.Violations
				result.Samples = append(result.Samples, v.Sample)
			}
			return err
		})
		if err != nil {
			return governance.CheckReport{}, fmt.Errorf("check %s: %w", c.id, err)
		}
		report.Checks = append(report.Checks, result)
	}
	err := atLeisure(ctx, s.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(ctx context.Context, tx pgx.Tx) (err error) {
		report.Rows, err = scalar[int64](ctx, tx, "check_rows", nil)
		return err
	})
	if err != nil {
		return governance.CheckReport{}, fmt.Errorf("count rows: %w", err)
	}
	report.Duration = time.Since(began)
	return report, nil
}

// atLeisure runs do in a transaction whose statements may take longer than those of requests, whatever the role's settings.
func atLeisure(ctx context.Context, pool *pgxpool.Pool, o pgx.TxOptions, do func(context.Context, pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, leisureTimeout+acquireTimeout)
	defer cancel()
	conn, err := acquire(ctx, pool)
	if err != nil {
		return err
	}
	defer conn.Release()
	err = pgx.BeginTxFunc(ctx, conn, o, func(tx pgx.Tx) error {
		timeout := fmt.Sprintf("%dms", leisureTimeout.Milliseconds())
		if _, err := exec(ctx, tx, "leisure", args{"timeout": timeout}); err != nil {
			return err
		}
		return do(ctx, tx)
	})
	return translate(err)
}

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

// samplesMax is how many differing rows a check shows.
const samplesMax = 10

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

const (
	// checkRows is of about how many rows one statement of a check reads the blocks, so that none holds an old snapshot for long.
	checkRows = 4 * blockRows
	// checkBlocks is how many blocks these are at most.
	checkBlocks = 1000
)

// sample is one row of a check: something that breaks it, and how many there are.
type sample struct {
	Violations int64  `db:"violations"`
	Sample     string `db:"sample"`
}

// Check recomputes every counter from the ledger and verifies the invariants, the seals and the roll-ups, in as many snapshots
// as there are checks, blocks and days.
func (s *Spend) Check(ctx context.Context) (governance.CheckReport, error) {
	began := time.Now()
	report := governance.CheckReport{Checks: make([]governance.CheckResult, 0, len(checks)+2)}
	for _, c := range checks {
		result := governance.CheckResult{ID: c.id, Name: c.name}
		if err := s.sample(ctx, &result, c.statement, nil); err != nil {
			return governance.CheckReport{}, err
		}
		report.Checks = append(report.Checks, result)
	}
	seals := governance.CheckResult{ID: "I14", Name: "sealed rows are those that were sealed, and their blocks an unbroken chain"}
	if err := s.checkSeals(ctx, &report, &seals); err != nil {
		return governance.CheckReport{}, err
	}
	rollups := governance.CheckResult{ID: "I17", Name: "roll-ups are the sums of the rows"}
	if err := s.checkRollups(ctx, &rollups); err != nil {
		return governance.CheckReport{}, err
	}
	report.Checks = append(report.Checks, seals, rollups)
	report.Duration = time.Since(began)
	return report, nil
}

// sample adds to a result what a statement finds.
func (s *Spend) sample(ctx context.Context, result *governance.CheckResult, statement string, a args) error {
	err := atLeisure(ctx, s.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(ctx context.Context, tx pgx.Tx) error {
		if a != nil { // it is narrowed to a part of the ledger
			if _, err := exec(ctx, tx, "spend_plans", nil); err != nil {
				return err
			}
		}
		found, err := many[sample](ctx, tx, statement, a)
		if len(found) > 0 {
			result.Violations += found[0].Violations
		}
		for _, v := range found[:min(len(found), samplesMax-len(result.Samples))] {
			result.Samples = append(result.Samples, v.Sample)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("check %s: %w", result.ID, err)
	}
	return nil
}

// checkSeals counts all rows, and compares the sealed ones with their blocks.
func (s *Spend) checkSeals(ctx context.Context, report *governance.CheckReport, result *governance.CheckResult) error {
	type counts struct {
		Rows     int64  `db:"rows"`
		Sealed   int64  `db:"sealed"`
		InBlocks int64  `db:"in_blocks"`
		Number   int64  `db:"number"`
		Hash     []byte `db:"hash"`
		Waits    int64  `db:"waits"`
		Chained  bool   `db:"chained"`
	}
	var n counts
	err := atLeisure(ctx, s.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(ctx context.Context, tx pgx.Tx) (err error) {
		n, err = one[counts](ctx, tx, "check_rows", nil)
		return err
	})
	if err != nil {
		return fmt.Errorf("count rows: %w", err)
	}
	report.Rows = n.Rows
	report.Sealed = governance.Block{Number: n.Number, Rows: n.Sealed, Hash: n.Hash}
	report.Unsealed = time.Duration(n.Waits) * time.Second
	if n.Sealed != n.InBlocks {
		result.Violations++
		result.Samples = append(result.Samples, fmt.Sprintf("%d rows lie below the mark of the seals, and the blocks have %d", n.Sealed, n.InBlocks))
	}
	if !n.Chained {
		result.Violations++
		result.Samples = append(result.Samples, fmt.Sprintf("the mark names block %d with another hash than the block, or it is not the last", n.Number))
	}
	for first := int64(1); first <= n.Number; {
		last, err := read(ctx, s.pool, func(ctx context.Context, q querier) (int64, error) {
			return scalar[int64](ctx, q, "check_run", args{"first": first, "count": checkRows, "most": checkBlocks})
		})
		if err != nil {
			return fmt.Errorf("choose blocks: %w", err)
		}
		last = min(last, n.Number)
		if err := s.sample(ctx, result, "check_blocks", args{"first": first, "last": last}); err != nil {
			return err
		}
		first = last + 1
	}
	return nil
}

// checkRollups compares the sums of hours with the rows, those of days with the hours, and those of months with the blocks.
func (s *Spend) checkRollups(ctx context.Context, result *governance.CheckResult) error {
	days, err := read(ctx, s.pool, func(ctx context.Context, q querier) ([]time.Time, error) {
		return collect(ctx, q, "check_rollup_days", nil, pgx.RowTo[time.Time])
	})
	if err != nil {
		return fmt.Errorf("list days: %w", err)
	}
	for _, day := range days {
		if err := s.sample(ctx, result, "check_rollups", args{"day": day}); err != nil {
			return err
		}
	}
	return s.sample(ctx, result, "check_rollup_totals", nil)
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

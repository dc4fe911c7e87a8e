package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

var _ governance.SpendDecisions = (*Spend)(nil)

// provisionalColumns are what resolving a row needs to know of it.
type provisionalColumns struct {
	AttemptID      ids.ID    `db:"attempt_id"`
	OrganizationID int64     `db:"organization_id"`
	Quantities     []int64   `db:"quantities"`
	UnitPrices     []int64   `db:"unit_prices"`
	Cost           int64     `db:"cost"`
	AdmittedAt     time.Time `db:"admitted_at"`
	LastSeenAt     time.Time `db:"last_seen_at"` // until when the target can have worked for it
	OutputRate     int64     `db:"output_rate"`  // p95 in tokens per second; 0: not measured
}

// resolved is what a provisional row is taken for.
type resolved struct {
	source     governance.UsageSource
	quantities governance.Quantities
	prices     governance.UnitPrices
	cost       money.Nano
}

// resolve applies a resolution. The settlement matrix says what an estimate is: the prompt's estimate and what the target
// may have written in the time it had, at most what was reserved.
func (c *provisionalColumns) resolve(r governance.Resolution) (resolved, error) {
	reserved := quantities(c.Quantities)
	out := resolved{source: governance.UsageEstimate, prices: unitPrices(c.UnitPrices)}
	switch r.Policy {
	case governance.ResolveKeep:
		out.source, out.quantities, out.cost = governance.UsageReservation, reserved, money.Nano(c.Cost)
		return out, nil
	case governance.ResolveZero:
		out.source = governance.UsageZero
		return out, nil
	case governance.ResolveEstimate:
		written := governance.Generated(c.OutputRate, c.LastSeenAt.Sub(c.AdmittedAt))
		out.quantities[governance.UnitInput] = reserved.InputTokens()
		out.quantities[governance.UnitOutput] = min(written, reserved.OutputTokens())
		out.quantities[governance.UnitRequest] = min(1, reserved[governance.UnitRequest])
	case "":
		for unit, n := range r.Quantities {
			if n < 0 || n > governance.MaxTokens {
				return out, invalid("quantities", fmt.Sprintf("has an impossible number of unit %d", unit))
			}
		}
		out.source, out.quantities = governance.UsageProvider, r.Quantities
		if r.Quantities == (governance.Quantities{}) {
			out.source = governance.UsageZero
		}
	default:
		return out, invalid("policy", "knows keep, estimate and zero")
	}
	var err error
	if out.cost, err = governance.CostAt(&out.quantities, &out.prices); err != nil {
		return out, invalid("quantities", "cost more than an amount can be")
	}
	return out, nil
}

// Resolve ends a provisional row by a late adjustment, which changes the budgets that the row was charged to.
func (s *Spend) Resolve(ctx context.Context, by governance.Actor, attempt ids.ID, r governance.Resolution) (governance.SpendRow, error) {
	return s.decide(ctx, by, "resolve", func(ctx context.Context, tx pgx.Tx) (spendKey, error) {
		row, err := one[provisionalColumns](ctx, tx, "provisional_row", args{
			"attempt": attempt.String(), "organization": by.Organization,
		})
		if err != nil {
			return spendKey{}, err
		}
		done, err := row.apply(ctx, tx, by, r)
		if err == nil && !done {
			err = governance.ErrConflict
		}
		return spendKey{AttemptID: attempt, Kind: string(governance.RowLateAdjustment)}, err
	})
}

// apply writes the late adjustment. False: somebody else has resolved the row.
func (c *provisionalColumns) apply(ctx context.Context, q querier, by governance.Actor, r governance.Resolution) (bool, error) {
	truth, err := c.resolve(r)
	if err != nil {
		return false, err
	}
	return scalar[bool](ctx, q, "provisional_resolve", args{
		"attempt": c.AttemptID.String(), "source": string(truth.source),
		"quantities": truth.quantities[:], "prices": storedPrices(truth.prices), "cost": int64(truth.cost),
		"actor": signature(by), "reason": by.Reason,
	})
}

// Correct adds differences to a row, as a row of its own, and to the budgets that the row was charged to.
func (s *Spend) Correct(ctx context.Context, by governance.Actor, rowID string, c governance.Correction) (governance.SpendRow, error) {
	corrected, kind, err := governance.ParseSpendRowID(rowID)
	if err != nil || kind != governance.RowUsage && kind != governance.RowExpiry {
		return governance.SpendRow{}, governance.ErrNotFound
	}
	if c == (governance.Correction{}) {
		return governance.SpendRow{}, invalid("cost", "changes nothing")
	}
	return s.decide(ctx, by, "correct", func(ctx context.Context, tx pgx.Tx) (spendKey, error) {
		now, err := scalar[time.Time](ctx, tx, "row_instant", args{
			"attempt": corrected.String(), "kind": string(kind), "organization": by.Organization,
		})
		if err != nil {
			return spendKey{}, err
		}
		added := spendKey{AttemptID: ids.New(now), Kind: string(governance.RowCorrection)}
		done, err := scalar[bool](ctx, tx, "row_correct", args{
			"new": added.AttemptID.String(), "attempt": corrected.String(), "kind": string(kind),
			"quantities": c.Quantities[:], "cost": int64(c.Cost), "actor": signature(by), "reason": by.Reason,
		})
		if err == nil && !done {
			err = invalid("cost", "takes more away than is left of the row")
		}
		return added, err
	})
}

// Credit gives an organization money back. The row's cost is negative.
func (s *Spend) Credit(ctx context.Context, by governance.Actor, c governance.Credit) (governance.SpendRow, error) {
	if c.Amount <= 0 {
		return governance.SpendRow{}, invalid("amount", "must be above 0")
	}
	return s.decide(ctx, by, "credit", func(ctx context.Context, tx pgx.Tx) (spendKey, error) {
		type account struct {
			Now          time.Time `db:"now"`
			Organization int64     `db:"organization"`
			Team         int64     `db:"team"`
			Key          int64     `db:"key"`
		}
		to, err := one[account](ctx, tx, "credit_account", args{
			"organization": c.Organization, "team": c.Team, "key": c.Key, "bound": by.Organization,
		})
		if err != nil {
			return spendKey{}, err
		}
		added := spendKey{AttemptID: ids.New(to.Now), Kind: string(governance.RowCredit)}
		done, err := scalar[bool](ctx, tx, "row_credit", args{
			"new": added.AttemptID.String(), "organization": to.Organization, "team": to.Team, "key": to.Key,
			"units": int(governance.UnitCount), "cost": int64(c.Amount), "actor": signature(by), "reason": by.Reason,
		})
		if err == nil && !done {
			err = invalid("team", "is not one of the organization")
		}
		return added, err
	})
}

// decide runs one decision with its audit row and returns the row that it has added.
func (s *Spend) decide(ctx context.Context, by governance.Actor, action string, do func(context.Context, pgx.Tx) (spendKey, error)) (governance.SpendRow, error) {
	if by.Reason == "" {
		return governance.SpendRow{}, invalid("reason", "is missing")
	}
	var row governance.SpendRow
	err := within(ctx, s.pool, pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		added, err := do(ctx, tx)
		if err != nil {
			return err
		}
		rows, err := spendRows(ctx, tx, []spendKey{added})
		if err != nil {
			return err
		}
		row = rows[0]
		_, err = exec(ctx, tx, "decision_audit", args{
			"actor_kind": by.Kind, "actor_id": by.ID, "actor_name": by.Name, "ip": by.IP, "request_id": by.RequestID,
			"reason": by.Reason, "action": action, "id": row.ID(), "organization": row.Origin.Organization.Num,
			"attempt": added.AttemptID.String(), "kind": added.Kind,
		})
		return err
	})
	if err != nil {
		return governance.SpendRow{}, err
	}
	return row, nil
}

// signature names an actor in a ledger row.
func signature(by governance.Actor) string {
	if by.ID == "" {
		return by.Kind
	}
	return by.Kind + " " + by.ID
}

// storedPrices are unit prices as they are stored.
func storedPrices(prices governance.UnitPrices) []int64 {
	stored := make([]int64, len(prices))
	for i, p := range prices {
		stored[i] = int64(p)
	}
	return stored
}

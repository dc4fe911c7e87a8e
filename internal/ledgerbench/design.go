package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/pgstore/ledger"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

var (
	//go:embed sql/take_one.sql
	takeOneSQL string
	//go:embed sql/take_all.sql
	takeAllSQL string
	//go:embed sql/hold.sql
	holdSQL string
	//go:embed sql/lift.sql
	liftSQL string
	//go:embed sql/spend_one.sql
	spendOneSQL string
	//go:embed sql/spend_all.sql
	spendAllSQL string
	//go:embed sql/book.sql
	bookSQL string
)

// A design of a ledger, by the round trips and transactions of one attempt.
const (
	perStep   = "a statement per step"
	pipelined = "three pipelined statements"
	perCall   = "a call per request"
	coalesced = "coalesced"
)

// errRefused says that a limit was reached.
var errRefused = errors.New("limit reached")

// book admits and settles attempts of one unit.
type book interface {
	reserve(ctx context.Context, subject int64) (ids.ID, error)
	settle(ctx context.Context, id ids.ID, subject int64) error
}

// steps sends each statement alone.
type steps struct {
	pool   *pgxpool.Pool
	limits []int64
}

func (b steps) reserve(ctx context.Context, subject int64) (ids.ID, error) {
	id := ids.New(time.Now())
	return id, pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
		for _, limit := range b.limits {
			tag, err := tx.Exec(ctx, takeOneSQL, limit, subject)
			if err != nil {
				return fmt.Errorf("take from meter: %w", err)
			}
			if tag.RowsAffected() != 1 {
				return errRefused
			}
		}
		_, err := tx.Exec(ctx, holdSQL, id, b.limits, subject)
		return err
	})
}

func (b steps) settle(ctx context.Context, id ids.ID, subject int64) error {
	return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, liftSQL, id); err != nil {
			return fmt.Errorf("lift hold: %w", err)
		}
		for _, limit := range b.limits {
			if _, err := tx.Exec(ctx, spendOneSQL, limit, subject); err != nil {
				return fmt.Errorf("spend: %w", err)
			}
		}
		_, err := tx.Exec(ctx, bookSQL, id, b.limits, subject)
		return err
	})
}

// pipeline sends the statements of a transaction in one round trip.
type pipeline struct {
	pool   *pgxpool.Pool
	limits []int64
}

const divisionByZero = "22012"

func (b pipeline) reserve(ctx context.Context, subject int64) (ids.ID, error) {
	id := ids.New(time.Now())
	var all pgx.Batch
	all.Queue(takeAllSQL, b.limits, subject)
	all.Queue(holdSQL, id, b.limits, subject)
	err := b.pool.SendBatch(ctx, &all).Close()
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == divisionByZero {
		return id, errRefused
	}
	return id, err
}

func (b pipeline) settle(ctx context.Context, id ids.ID, subject int64) error {
	var all pgx.Batch
	all.Queue(liftSQL, id)
	all.Queue(spendAllSQL, b.limits, subject)
	all.Queue(bookSQL, id, b.limits, subject)
	return b.pool.SendBatch(ctx, &all).Close()
}

// product is the ledger that ships.
type product struct {
	ledger *ledger.Ledger
	limits []*governance.Limit
}

func (b product) reserve(ctx context.Context, subject int64) (ids.ID, error) {
	r := governance.ReserveRequest{
		ID: ids.New(b.ledger.Clock()),
		Origin: governance.Origin{
			RequestID: ids.New(b.ledger.Clock()), Attempt: 1,
			Organization: governance.Ref{Num: subject, ID: "org_01k9z3v6w8e4t5a7b9c1d3f5g7", Name: "Research"},
			Team:         governance.Ref{Num: subject, ID: "team_01k9z3v6w8e4t5a7b9c1d3f5g7", Name: "Assistants"},
			Key:          governance.Ref{Num: subject, ID: "key_01k9z3v6w8e4t5a7b9c1d3f5g7", Name: "Production"},
			Route:        "chat.completions", Model: "gpt-4o-mini", ModelNum: 1, Provider: "openai", UpstreamModel: "gpt-4o-mini", TargetNum: 1,
		},
		Holds: make([]governance.Hold, len(b.limits)), HardExpiry: time.Hour,
	}
	for i, l := range b.limits {
		r.Holds[i] = governance.Hold{Limit: l, Subject: subject, Amount: 1}
	}
	_, err := b.ledger.Reserve(ctx, r)
	if denial := (*governance.Denial)(nil); errors.As(err, &denial) {
		err = errRefused
	}
	return r.ID, err
}

func (b product) settle(ctx context.Context, id ids.ID, _ int64) error {
	s := governance.Settlement{
		ID: id, Outcome: governance.OutcomeComplete, Source: governance.UsageProvider,
		Requests: governance.BasisHold, Rate: governance.BasisActual, Budget: governance.BasisActual, Cost: 1,
	}
	s.Quantities[governance.UnitInput], s.Quantities[governance.UnitRequest] = 1, 1
	return b.ledger.Settle(ctx, s)
}

// limit makes the rule of the nth meter of every attempt: of each kind there is one among the first four.
func limit(n int) *governance.Limit {
	kinds := []struct {
		kind   governance.Kind
		metric governance.Metric
	}{
		{governance.KindRate, governance.MetricRequests},
		{governance.KindRate, governance.MetricTokens},
		{governance.KindBudget, governance.MetricCost},
		{governance.KindConcurrency, governance.MetricRequests},
		{governance.KindBudget, governance.MetricTokens},
		{governance.KindRate, governance.MetricInputTokens},
	}
	k := kinds[n%len(kinds)]
	l := &governance.Limit{
		Kind: k.kind, Metric: k.metric, Amount: plenty, Scope: governance.Scope{Type: governance.ScopeKey},
		Mode: governance.ModeEnforce, Enforcement: governance.EnforceExact,
	}
	switch k.kind {
	case governance.KindRate:
		l.Per, l.Burst = time.Minute, plenty
	case governance.KindBudget:
		l.Window.Type = governance.WindowTotal
	}
	return l
}

// numbers are the row numbers of limits.
func numbers(limits []*governance.Limit) []int64 {
	all := make([]int64, len(limits))
	for i, l := range limits {
		all[i] = l.Num
	}
	return all
}

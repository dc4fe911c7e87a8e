package ledger_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/pgstore/ledger"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/money"
	"github.com/tollgate-gateway/tollgate/internal/pgtest"
)

// start runs a ledger on pool until the test ends.
func start(tb testing.TB, o ledger.Options) *ledger.Ledger {
	tb.Helper()
	if o.Node == "" {
		o.Node = "test"
	}
	l := ledger.New(o)
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		require.NoError(tb, <-ended)
	})
	return l
}

// database is a fresh one, and what tests do to it behind the ledger's back.
type database struct {
	*pgxpool.Pool
}

func newDatabase(tb testing.TB) database {
	tb.Helper()
	return database{pgtest.New(tb)}
}

// limit makes a limit; what Store methods would fill in is filled in.
func (d database) limit(tb testing.TB, l governance.Limit) *governance.Limit {
	tb.Helper()
	if l.Scope.Type == "" {
		l.Scope.Type = governance.ScopeKey
	}
	if l.ID == "" {
		l.ID = ids.NewPublic(ids.Limit)
	}
	if l.Mode == "" {
		l.Mode = governance.ModeEnforce
	}
	if l.Enforcement == "" {
		l.Enforcement = governance.EnforceExact
	}
	var amount, burst, windowSeconds *int64
	var per *int32
	var windowType, period, zone *string
	var anchor, starts, expires *time.Time
	if !l.Unlimited {
		amount = &l.Amount
	}
	switch l.Kind {
	case governance.KindRate:
		if l.Per == 0 {
			l.Per = time.Minute
		}
		if l.Burst == 0 {
			l.Burst = l.Amount
		}
		seconds := int32(l.Per / time.Second)
		per = &seconds
		if !l.Unlimited {
			burst = &l.Burst
		}
	case governance.KindBudget:
		if l.Window.Type == "" {
			l.Window.Type = governance.WindowTotal
		}
		w := string(l.Window.Type)
		windowType = &w
		if l.Window.Type == governance.WindowCalendar {
			period = &l.Window.Period
			if l.Window.TimeZone != "" {
				zone = &l.Window.TimeZone
			}
		}
		if l.Window.Type == governance.WindowFixed {
			seconds := int64(l.Window.Duration / time.Second)
			windowSeconds = &seconds
			if !l.Window.Anchor.IsZero() {
				anchor = &l.Window.Anchor
			}
		}
	}
	if !l.StartsAt.IsZero() {
		starts = &l.StartsAt
	}
	if !l.ExpiresAt.IsZero() {
		expires = &l.ExpiresAt
	}
	err := d.QueryRow(tb.Context(), `
		INSERT INTO tollgate.limits (public_id, scope_type, scope_id, kind, metric, amount, per_seconds, burst, window_type,
			window_period, window_zone, window_seconds, window_anchor, carry_debt, enforcement, mode, starts_at, expires_at, models)
		VALUES ($1, $2, 1, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, ARRAY[$1])
		RETURNING id, created_at`,
		l.ID, l.Scope.Type, l.Kind, l.Metric, amount, per, burst, windowType, period, zone, windowSeconds, anchor, l.CarryDebt,
		l.Enforcement, l.Mode, starts, expires).Scan(&l.Num, &l.CreatedAt)
	require.NoError(tb, err)
	return &l
}

// count returns a number from the database.
func (d database) count(tb testing.TB, sql string, args ...any) int64 {
	tb.Helper()
	var n int64
	require.NoError(tb, d.QueryRow(tb.Context(), sql, args...).Scan(&n))
	return n
}

func (d database) exec(tb testing.TB, sql string, args ...any) {
	tb.Helper()
	_, err := d.Exec(tb.Context(), sql, args...)
	require.NoError(tb, err)
}

// request asks for one unit of each hold given.
func request(l *ledger.Ledger, holds ...governance.Hold) governance.ReserveRequest {
	return governance.ReserveRequest{
		ID: ids.New(l.Clock()),
		Origin: governance.Origin{
			RequestID: ids.New(l.Clock()), Attempt: 1,
			Organization: governance.Ref{Num: 1, ID: "org_1", Name: "Org"}, Key: governance.Ref{Num: 1, ID: "key_1", Name: "Key"},
			Route: "chat.completions", Model: "m", ModelNum: 1, Provider: "p", UpstreamModel: "u", TargetNum: 1,
		},
		Holds: holds, HardExpiry: time.Hour,
	}
}

func hold(l *governance.Limit, subject, amount int64) governance.Hold {
	return governance.Hold{Limit: l, Subject: subject, Amount: amount}
}

// used settles to what the provider reported.
func used(id ids.ID, input, output, cost int64) governance.Settlement {
	s := governance.Settlement{
		ID: id, Outcome: governance.OutcomeComplete, Source: governance.UsageProvider,
		Requests: governance.BasisHold, Rate: governance.BasisActual, Budget: governance.BasisActual,
	}
	s.Quantities[governance.UnitInput], s.Quantities[governance.UnitOutput] = input, output
	s.Quantities[governance.UnitRequest] = 1
	s.Cost = money.Nano(cost)
	return s
}

// change writes the members of a limit that may change.
func (d database) change(tb testing.TB, l *governance.Limit) {
	tb.Helper()
	var amount, burst *int64
	var starts, expires *time.Time
	if !l.Unlimited {
		amount = &l.Amount
		if l.Kind == governance.KindRate {
			burst = &l.Burst
		}
	}
	if !l.StartsAt.IsZero() {
		starts = &l.StartsAt
	}
	if !l.ExpiresAt.IsZero() {
		expires = &l.ExpiresAt
	}
	d.exec(tb, "UPDATE tollgate.limits SET amount = $2, burst = $3, mode = $4, enforcement = $5, starts_at = $6, expires_at = $7 WHERE id = $1",
		l.Num, amount, burst, l.Mode, l.Enforcement, starts, expires)
}

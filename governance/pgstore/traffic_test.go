package pgstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/pgstore/ledger"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// What the ledger writes under load breaks no invariant: admissions, refusals, overshoots, releases, expiries, late
// settlements and resolutions over every kind of meter.
func TestCheck_FindsNothingInWhatTheLedgerWrites(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	key := b.accounts[0].key.Num
	limits := []*governance.Limit{
		b.limit("kind, metric, amount, burst, per_seconds", "'rate', 'tokens', 50000, 30000, 1"),
		b.limit("kind, metric, amount, burst, per_seconds", "'rate', 'requests', 6000, 300, 60"),
		b.limit("kind, metric, amount, window_type, window_seconds, window_anchor", "'budget', 'cost', 20000000, 'fixed', 1, '2026-01-01Z'"),
		b.limit("kind, metric, amount, window_type", "'budget', 'tokens', 200000, 'total'"),
		b.limit("kind, metric, amount, window_type, window_period, mode", "'budget', 'output_tokens', 5000, 'calendar', 'day', 'log'"),
		b.limit("kind, metric, amount", "'concurrency', 'requests', 20"),
	}
	b.exec("UPDATE tollgate.limits SET created_at = now()") // so that buckets have their whole history
	l := ledger.New(ledger.Options{Pool: b.pool, Node: "test"})
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})

	var clients errgroup.Group
	for seed := range 24 {
		clients.Go(func() error {
			random := rand.New(rand.NewPCG(uint64(seed), 1))
			for range 40 {
				if err := attempt(t.Context(), l, random, b, key, limits); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, clients.Wait())
	b.clean()

	level := b.violatedBy("UPDATE ledger.meters SET level = level - 1 WHERE limit_id = $1", limits[0].Num)
	require.Equal(t, []string{"I12"}, level, "a level that history does not explain")
	b.exec("UPDATE ledger.meters SET level = level + 1 WHERE limit_id = $1", limits[0].Num)
	b.exec("ALTER TABLE tollgate.limits DISABLE TRIGGER refill_at_old_rate") // as if the limit had always been another one
	tight := b.violatedBy("UPDATE tollgate.limits SET burst = burst / 10, amount = 1 WHERE id = $1", limits[0].Num)
	require.Equal(t, []string{"I11", "I12"}, tight, "more than such a bucket could have admitted")
	b.exec("UPDATE tollgate.limits SET burst = burst * 10, amount = 50000 WHERE id = $1", limits[0].Num)
	b.exec("ALTER TABLE tollgate.limits ENABLE TRIGGER refill_at_old_rate")

	var open, rows int
	b.scan("SELECT count(*) FROM ledger.reservations WHERE state = 'open'", &open)
	b.scan("SELECT count(*) FROM ledger.rows", &rows)
	require.Positive(t, open, "some clients have left their reservations to expiry")
	require.Greater(t, rows, 50, "too little happened to prove anything")

	var expired int
	b.exec("UPDATE ledger.reservations SET expires_at = now() WHERE state = 'open'")
	b.scan("SELECT ledger.expire(10000, 0)", &expired)
	require.Equal(t, open, expired)
	b.clean()

	provisional, _, err := b.Reservations(t.Context(), governance.ReservationFilter{State: stateProvisional}, governance.Page{Limit: 250})
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(provisional), open)
	for i := range provisional {
		switch p := &provisional[i]; i % 3 {
		case 0: // its gateway comes back late
			err = l.Settle(t.Context(), settlement(p.ID, governance.OutcomeComplete, 10, 20, p.Estimate.Prices))
		case 1:
			_, err = b.Resolve(t.Context(), finance, p.ID, governance.Resolution{Policy: governance.ResolveEstimate})
		default:
			err = l.Settle(t.Context(), governance.Settlement{
				ID: p.ID, Outcome: governance.OutcomeUpstreamError, Source: governance.UsageZero, Release: true,
				Requests: governance.BasisZero, Rate: governance.BasisZero, Budget: governance.BasisZero, Prices: p.Estimate.Prices,
			})
		}
		require.NoError(t, err)
	}
	b.clean()
	all := b.allRows(t.Context(), governance.SpendFilter{}, 250)
	require.Len(t, all, rows+expired+len(provisional))
}

// attempt runs one attempt as a gateway would: some use more than they have reserved, some less, and some never come back.
func attempt(ctx context.Context, l *ledger.Ledger, random *rand.Rand, b *book, key int64, limits []*governance.Limit) error {
	input, output := random.Int64N(200), 1+random.Int64N(400)
	q, p := tokens(input, output)
	cost, err := governance.CostAt(&q, &p)
	if err != nil {
		return err
	}
	a := b.accounts[0]
	r := governance.ReserveRequest{
		ID: ids.New(l.Clock()), HardExpiry: time.Hour,
		Origin: governance.Origin{
			RequestID: ids.New(l.Clock()), Attempt: 1, Organization: a.organization, Team: a.team, Key: a.key,
			Route: "chat.completions", Model: "m", ModelNum: 1, Provider: "p", UpstreamModel: "u", TargetNum: 1,
		},
		Estimate: governance.Estimate{Quantities: q, Prices: p, Cost: cost},
	}
	amounts := []int64{input + output, 1, int64(cost), input + output, output, 1}
	for i, limit := range limits {
		r.Holds = append(r.Holds, governance.Hold{Limit: limit, Subject: key, Amount: amounts[i]})
	}
	_, err = l.Reserve(ctx, r)
	if denial, refused := errors.AsType[*governance.Denial](err); refused && denial != nil {
		return nil //nolint:nilerr // a refusal is an answer
	}
	if err != nil {
		return err
	}
	switch random.IntN(30) {
	case 0:
		return nil
	case 1:
		return l.Settle(ctx, governance.Settlement{
			ID: r.ID, Outcome: governance.OutcomeUpstreamError, Source: governance.UsageZero, Release: true,
			Requests: governance.BasisZero, Rate: governance.BasisZero, Budget: governance.BasisZero, Prices: p,
		})
	case 2:
		return l.Settle(ctx, governance.Settlement{
			ID: r.ID, Outcome: governance.OutcomeUpstreamTimeout, Source: governance.UsageReservation, Quantities: q, Prices: p, Cost: cost,
			Requests: governance.BasisHold, Rate: governance.BasisHold, Budget: governance.BasisHold,
		})
	}
	return l.Settle(ctx, settlement(r.ID, governance.OutcomeComplete, random.Int64N(300), random.Int64N(500), p))
}

// settlement settles to what the provider reported.
func settlement(id ids.ID, o governance.Outcome, input, output int64, p governance.UnitPrices) governance.Settlement {
	q, _ := tokens(input, output)
	s := governance.Settlement{
		ID: id, Outcome: o, Source: governance.UsageProvider, Quantities: q, Prices: p,
		Requests: governance.BasisHold, Rate: governance.BasisActual, Budget: governance.BasisActual,
	}
	s.Cost, _ = governance.CostAt(&s.Quantities, &s.Prices) // far below what overflows
	return s
}

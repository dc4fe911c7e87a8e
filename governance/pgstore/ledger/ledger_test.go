package ledger_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/pgstore/ledger"
)

func TestReserveAndSettle(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	l := start(t, ledger.Options{Pool: db.Pool})
	rate := db.limit(t, governance.Limit{Kind: governance.KindRate, Metric: governance.MetricRequests, Amount: 60})
	tokens := db.limit(t, governance.Limit{Kind: governance.KindRate, Metric: governance.MetricTokens, Amount: 1000})
	budget := db.limit(t, governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricCost, Amount: 1_000_000, CarryDebt: true})
	slots := db.limit(t, governance.Limit{Kind: governance.KindConcurrency, Metric: governance.MetricRequests, Amount: 1})

	r := request(l, hold(rate, 1, 1), hold(tokens, 1, 300), hold(budget, 1, 400_000), hold(slots, 1, 1))
	got, err := l.Reserve(t.Context(), r)
	require.NoError(t, err)
	require.Len(t, got.Levels, 4)
	require.Equal(t, int64(59), got.Levels[0].Remaining)
	require.Equal(t, int64(700), got.Levels[1].Remaining)
	require.Equal(t, int64(400_000), got.Levels[2].Held)
	require.Equal(t, int64(600_000), got.Levels[2].Remaining)
	require.Equal(t, int64(0), got.Levels[3].Remaining)

	_, err = l.Reserve(t.Context(), request(l, hold(slots, 1, 1)))
	var denial *governance.Denial
	require.ErrorAs(t, err, &denial)
	require.Equal(t, governance.RefusedConcurrency, denial.Refusals[0].Reason)

	require.NoError(t, l.Settle(t.Context(), used(r.ID, 10, 20, 150_000)))
	require.ErrorIs(t, l.Settle(t.Context(), used(r.ID, 10, 20, 150_000)), governance.ErrAlreadyClosed)
	require.Equal(t, int64(150_000), db.count(t, "SELECT cost FROM ledger.rows WHERE attempt_id = $1", r.ID))
	require.Equal(t, int64(150_000), db.count(t, "SELECT spent FROM ledger.meters WHERE limit_id = $1", budget.Num))
	require.Equal(t, int64(0), db.count(t, "SELECT held FROM ledger.meters WHERE limit_id = $1", budget.Num))
	require.Equal(t, int64(0), db.count(t, "SELECT count(*) FROM ledger.reservations"))
}

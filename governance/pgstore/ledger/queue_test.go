package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

func TestEnqueue_FullQueueIsOverloadOrOutage(t *testing.T) {
	t.Parallel()
	fill := func(l *Ledger) error {
		for range maxQueue {
			a, err := newAdmission(&governance.ReserveRequest{ID: ids.New(time.Now())})
			require.NoError(t, err)
			if err := l.enqueue(a); err != nil {
				return err
			}
		}
		a, err := newAdmission(&governance.ReserveRequest{ID: ids.New(time.Now())})
		require.NoError(t, err)
		return l.enqueue(a)
	}
	require.ErrorIs(t, fill(New(Options{})), governance.ErrOverloaded, "batches commit")
	stuck := New(Options{})
	stuck.inFlight = time.Now().Add(-time.Second)
	require.ErrorIs(t, fill(stuck), governance.ErrLimitStoreUnavailable, "they do not")
	failing := New(Options{})
	failing.failures = 1
	require.ErrorIs(t, fill(failing), governance.ErrLimitStoreUnavailable)

	slow := New(Options{})
	a, err := newAdmission(&governance.ReserveRequest{ID: ids.New(time.Now())})
	require.NoError(t, err)
	require.NoError(t, slow.enqueue(a))
	a.queued = a.queued.Add(-time.Second)
	b, err := newAdmission(&governance.ReserveRequest{ID: ids.New(time.Now())})
	require.NoError(t, err)
	require.ErrorIs(t, slow.enqueue(b), governance.ErrOverloaded, "who came first has waited too long")
}

func TestSettle_RefusesAbsurdAmounts(t *testing.T) {
	t.Parallel()
	l := New(Options{})
	for _, spoil := range []func(*governance.Settlement){
		func(s *governance.Settlement) { s.Cost = -1 },
		func(s *governance.Settlement) { s.Cost = 1 << 60 },
		func(s *governance.Settlement) { s.Quantities[0] = -1 },
		func(s *governance.Settlement) { s.Quantities[3] = 1 << 60 },
		func(s *governance.Settlement) { s.Prices[0] = -1 },
	} {
		s := governance.Settlement{ID: ids.New(time.Now())}
		spoil(&s)
		require.ErrorIs(t, l.Settle(t.Context(), s), errAbsurd)
	}
	limit := &governance.Limit{}
	for _, holds := range [][]governance.Hold{
		{{Amount: 1}},
		{{Limit: limit, Amount: -1}},
		{{Limit: limit, Amount: 1}, {Limit: limit, Amount: 1}},
		{{Limit: limit, Amount: 1 << 60}},
	} {
		_, err := l.Reserve(t.Context(), governance.ReserveRequest{ID: ids.New(time.Now()), Holds: holds})
		require.Error(t, err)
		require.NotErrorIs(t, err, governance.ErrLimitStoreUnavailable)
	}
}

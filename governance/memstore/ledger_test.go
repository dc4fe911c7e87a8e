package memstore_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/memstore"
	"github.com/tollgate-gateway/tollgate/governance/storetest"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// TestLedger_KeepsRowsBehindIt lets one ledger in memory stand for the one that keeps rows.
func TestLedger_KeepsRowsBehindIt(t *testing.T) {
	t.Parallel()
	purse := &governance.Limit{
		Meta: governance.Meta{Num: 1}, Kind: governance.KindBudget, Metric: governance.MetricTokens, Amount: 10,
		Enforcement: governance.EnforceExact, Window: governance.Window{Type: governance.WindowTotal},
	}
	rows := memstore.New(memstore.Options{})
	l := memstore.New(memstore.Options{Rows: rows, Limits: func(int64) *governance.Limit { return purse }})
	request := func() governance.ReserveRequest {
		return governance.ReserveRequest{
			ID: ids.New(time.Now()), Holds: []governance.Hold{{Limit: purse, Subject: 1, Amount: 10}}, HardExpiry: time.Hour,
		}
	}
	first := request()
	_, err := l.Reserve(t.Context(), first)
	require.NoError(t, err)
	next := request()
	next.Closes = &governance.Settlement{ID: first.ID, Source: governance.UsageZero, Budget: governance.BasisZero}
	_, err = l.Reserve(t.Context(), next)
	require.NoError(t, err)
	require.ErrorIs(t, rows.Settle(t.Context(), *next.Closes), governance.ErrAlreadyClosed)

	refused := request()
	refused.Closes = &governance.Settlement{ID: next.ID, Source: governance.UsageProvider, Budget: governance.BasisHold}
	_, err = l.Reserve(t.Context(), refused)
	var d *governance.Denial
	require.ErrorAs(t, err, &d)
	require.ErrorIs(t, rows.Settle(t.Context(), *refused.Closes), governance.ErrAlreadyClosed, "what closes is closed all the same")
	require.ErrorIs(t, l.Settle(t.Context(), *refused.Closes), governance.ErrAlreadyClosed)
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLedger_Conforms(t *testing.T) {
	t.Parallel()
	storetest.TestLedger(t, func(testing.TB) storetest.Ledger {
		var mu sync.Mutex
		limits := map[int64]*governance.Limit{}
		set := func(l *governance.Limit) {
			mu.Lock()
			defer mu.Unlock()
			limits[l.Num] = l
		}
		return storetest.Ledger{
			Ledger: memstore.New(memstore.Options{Limits: func(num int64) *governance.Limit {
				mu.Lock()
				defer mu.Unlock()
				return limits[num]
			}}),
			Clock: time.Now,
			Add: func(_ testing.TB, l governance.Limit) *governance.Limit {
				mu.Lock()
				l.Num = int64(len(limits) + 1)
				mu.Unlock()
				l.CreatedAt = time.Now()
				if l.Enforcement == "" {
					l.Enforcement = governance.EnforceExact
				}
				set(&l)
				return &l
			},
			Change: func(_ testing.TB, l *governance.Limit) {
				after := *l
				set(&after)
			},
			Remove: func(_ testing.TB, l *governance.Limit) {
				mu.Lock()
				defer mu.Unlock()
				limits[l.Num] = nil
			},
		}
	})
}

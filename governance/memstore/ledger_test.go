package memstore_test

import (
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/memstore"
	"github.com/tollgate-gateway/tollgate/governance/storetest"
)

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

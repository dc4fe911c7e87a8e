package ledger_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/pgstore/ledger"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// BenchmarkPairs measures admissions with their settlements through four ledgers on four meters that all of them want.
// A figure from a server without fsync says little.
func BenchmarkPairs(b *testing.B) {
	db := newDatabase(b)
	const plenty = 1_000_000_000
	holds := func(subject int64, limits ...*governance.Limit) []governance.Hold {
		h := make([]governance.Hold, len(limits))
		for i, l := range limits {
			h[i] = hold(l, subject, 1)
		}
		return h
	}
	limits := []*governance.Limit{
		db.limit(b, governance.Limit{Kind: governance.KindRate, Metric: governance.MetricRequests, Amount: plenty}),
		db.limit(b, governance.Limit{Kind: governance.KindRate, Metric: governance.MetricTokens, Amount: plenty}),
		db.limit(b, governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricCost, Amount: plenty * 1000}),
		db.limit(b, governance.Limit{Kind: governance.KindConcurrency, Metric: governance.MetricRequests, Amount: plenty}),
	}
	var batches, items, undecided atomic.Int64
	ledgers := make([]*ledger.Ledger, 4)
	for i := range ledgers {
		ledgers[i] = start(b, ledger.Options{Pool: db.Pool, Observer: ledger.Observer{
			Batch: func(s, a int, _ time.Duration) { batches.Add(1); items.Add(int64(s + a)) },
		}})
	}
	for _, c := range []struct {
		name     string
		subjects int64
	}{{"hot", 1}, {"thousand", 1000}} {
		b.Run(c.name, func(b *testing.B) {
			batches.Store(0)
			items.Store(0)
			undecided.Store(0)
			var next atomic.Int64
			var group sync.WaitGroup
			for w := range 256 * len(ledgers) {
				l := ledgers[w%len(ledgers)]
				group.Go(func() {
					for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
						r := request(l, holds(1+n%c.subjects, limits...)...)
						_, err := l.Reserve(b.Context(), r)
						for errors.Is(err, governance.ErrOverloaded) || errors.Is(err, governance.ErrLimitStoreUnavailable) { // a machine that others share
							undecided.Add(1)
							r.ID = ids.New(l.Clock())
							_, err = l.Reserve(b.Context(), r)
						}
						if err != nil {
							b.Error(err)
							return
						}
						if err := l.Settle(b.Context(), used(r.ID, 1, 0, 1)); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			group.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
			b.ReportMetric(float64(undecided.Load()), "undecided")
			b.ReportMetric(float64(items.Load())/float64(max(batches.Load(), 1)), "items/batch")
		})
	}
	require.Zero(b, db.count(b, "SELECT count(*) FROM ledger.reservations"))
}

// BenchmarkLone measures one admission at a time, beside an empty durable transaction on the same server.
func BenchmarkLone(b *testing.B) {
	db := newDatabase(b)
	l := start(b, ledger.Options{Pool: db.Pool})
	bucket := db.limit(b, governance.Limit{Kind: governance.KindRate, Metric: governance.MetricRequests, Amount: 1_000_000_000})
	purse := db.limit(b, governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricCost, Amount: 1_000_000_000_000})
	b.Run("reserve", func(b *testing.B) {
		for b.Loop() {
			if _, err := l.Reserve(b.Context(), request(l, hold(bucket, 1, 1), hold(purse, 1, 1))); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("empty", func(b *testing.B) {
		for b.Loop() {
			db.exec(b, "SELECT pg_logical_emit_message(true, 'x', '')")
		}
	})
}

// BenchmarkRefusals measures refusals of a flood.
func BenchmarkRefusals(b *testing.B) {
	db := newDatabase(b)
	l := start(b, ledger.Options{Pool: db.Pool})
	limits := []*governance.Limit{
		db.limit(b, governance.Limit{Kind: governance.KindRate, Metric: governance.MetricRequests, Amount: 1_000_000_000}),
		db.limit(b, governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricCost, Amount: 0}),
	}
	var group sync.WaitGroup
	var next atomic.Int64
	b.ResetTimer()
	for range 512 {
		group.Go(func() {
			for next.Add(1) <= int64(b.N) {
				_, err := l.Reserve(b.Context(), request(l, hold(limits[0], 1, 1), hold(limits[1], 1, 1)))
				if err == nil {
					b.Error("admitted")
				}
			}
		})
	}
	group.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "refusals/s")
}

package pgstore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// tokens are quantities and prices of an ordinary answer: 0.15 $ and 0.6 $ a million.
func tokens(input, output int64) (q governance.Quantities, p governance.UnitPrices) {
	q[governance.UnitInput], q[governance.UnitOutput], q[governance.UnitRequest] = input, output, 1
	p[governance.UnitInput], p[governance.UnitOutput] = 150_000_000, 600_000_000
	return q, p
}

// sound opens a book in which every kind of meter is in use and everything is right.
type sound struct {
	*book
	day, total, bucket, slots *governance.Limit
	start                     time.Time // of the present day
	used                      line      // an ordinary row
	expired                   line      // a provisional row
	open                      line      // an open reservation
}

func openSound(t *testing.T) *sound {
	t.Helper()
	b := &sound{book: openBook(t)}
	b.day = b.limit("kind, metric, amount, window_type, window_period", "'budget', 'cost', 1000000000, 'calendar', 'day'")
	b.total = b.limit("kind, metric, amount, window_type", "'budget', 'tokens', 5000, 'total'")
	b.bucket = b.limit("kind, metric, amount, burst, per_seconds", "'rate', 'tokens', 6000, 6000, 60")
	b.slots = b.limit("kind, metric, amount", "'concurrency', 'requests', 4")
	key := b.accounts[0].key.Num
	b.start = b.now.UTC().Truncate(24 * time.Hour)

	legs := func(q governance.Quantities, cost, reservedTokens, reservedCost int64) []governance.Leg {
		return []governance.Leg{
			leg(b.day, key, b.start, reservedCost, cost), leg(b.total, key, time.Time{}, reservedTokens, q.Tokens()),
			leg(b.bucket, key, time.Time{}, reservedTokens, q.Tokens()), leg(b.slots, key, time.Time{}, 1, 0),
		}
	}
	q, p := tokens(1000, 500)
	b.used = b.add(line{q: q, p: p, legs: legs(q, 450_000, 2000, 900_000), admitted: b.now.Add(-time.Minute)})
	q, p = tokens(100, 1000)
	b.expired = b.add(line{
		kind: governance.RowExpiry, source: governance.UsageReservation, outcome: governance.OutcomeExpired,
		q: q, p: p, legs: legs(q, 615_000, 1100, 615_000), admitted: b.now.Add(-2 * time.Minute),
	})
	q, p = tokens(200, 800)
	b.open = b.hold(line{q: q, p: p, legs: legs(q, 0, 1000, 510_000), admitted: b.now.Add(-time.Second)})
	b.meter(b.day, key, b.start, 450_000+615_000, 510_000, 0)
	b.meter(b.total, key, time.Time{}, 1500+1100, 1000, 0)
	b.meter(b.slots, key, time.Time{}, 0, 1, 0)
	b.exec("INSERT INTO ledger.meters (limit_id, subject, level, refilled_at) VALUES ($1, $2, 5000::bigint * 60000000, now())", b.bucket.Num, key)
	return b
}

func TestCheck_FindsNothingInASoundLedger(t *testing.T) {
	t.Parallel()
	b := openSound(t)
	b.clean()
	report, err := b.Check(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(2), report.Rows)
	require.Positive(t, report.Duration)
}

// Every check must be seen to bite: one planted violation each.
func TestCheck_Bites(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		plant func(b *sound)
		red   []string
	}{
		"window that forgot a row": {
			func(b *sound) { b.plant("UPDATE ledger.meters SET spent = spent - 1 WHERE limit_id = $1", b.day.Num) }, []string{"I01"},
		},
		"window that is gone": {
			func(b *sound) { b.plant("DELETE FROM ledger.meters WHERE limit_id = $1 AND held = 1000", b.total.Num) }, []string{"I01", "I02"},
		},
		"hold that was never given back": {
			func(b *sound) { b.plant("UPDATE ledger.meters SET held = held + 7 WHERE limit_id = $1", b.day.Num) }, []string{"I02"},
		},
		"slot that was never given back": {
			func(b *sound) { b.plant("UPDATE ledger.meters SET held = held + 1 WHERE limit_id = $1", b.slots.Num) }, []string{"I02"},
		},
		"reservation past its expiry": {
			func(b *sound) { b.plant("UPDATE ledger.reservations SET expires_at = now() - interval '2 minutes'") }, []string{"I03"},
		},
		"reservation of a dead process": {
			func(b *sound) { b.plant("UPDATE ledger.processes SET beat_at = now() - interval '5 minutes'") }, []string{"I03"},
		},
		"reservation below the low water": {
			func(b *sound) {
				b.plant("UPDATE ledger.state SET low_water = ledger.id_at(now() + interval '1 hour')")
			}, []string{"I03"},
		},
		"settled without closing the reservation": {
			func(b *sound) {
				b.plant("UPDATE ledger.rows SET attempt_id = $1 WHERE attempt_id = $2", b.open.id, b.used.id)
			}, []string{"I06"},
		},
		"adjustment of nothing": {
			func(b *sound) {
				b.plant("UPDATE ledger.rows SET kind = 'late_adjustment' WHERE attempt_id = $1", b.used.id)
			},
			[]string{"I06"},
		},
		"budget charged with the estimate": {
			func(b *sound) {
				b.plant("UPDATE ledger.rows SET leg_actual[1] = leg_reserved[1] WHERE attempt_id = $1", b.used.id)
				b.plant("UPDATE ledger.meters SET spent = spent + 450000 WHERE limit_id = $1", b.day.Num)
			}, []string{"I10"},
		},
		"admitted beyond the bucket": {
			func(b *sound) {
				b.plant("UPDATE ledger.rows SET leg_reserved[3] = 12001, leg_actual[3] = 12001 WHERE attempt_id = $1", b.used.id)
			}, []string{"I11"},
		},
		"budget admitted beyond its amount": {
			func(b *sound) {
				q, p := tokens(3000, 0)
				key := b.accounts[0].key.Num
				b.add(line{q: q, p: p, legs: []governance.Leg{leg(b.total, key, time.Time{}, 3000, 3000)}})
				b.meter(b.total, key, time.Time{}, 2600+3000, 1000, 0)
			}, []string{"I13"},
		},
		"negative quantity": {
			func(b *sound) {
				b.exec("ALTER TABLE ledger.rows DROP CONSTRAINT rows_check")
				b.plant("UPDATE ledger.rows SET quantities[13] = -1 WHERE attempt_id = $1", b.used.id)
			}, []string{"I15"},
		},
		"expired and used": {
			func(b *sound) {
				b.plant(`INSERT INTO ledger.rows SELECT (jsonb_populate_record(r, '{"kind": "usage"}')).* FROM ledger.rows AS r
					WHERE r.attempt_id = $1`, b.expired.id)
				b.plant("UPDATE ledger.meters SET spent = spent * 2 - 450000 WHERE limit_id = $1", b.day.Num)
				b.plant("UPDATE ledger.meters SET spent = spent + 1100 WHERE limit_id = $1", b.total.Num)
			}, []string{"one-row"},
		},
		"F005 cost of an earlier usage": {
			func(b *sound) {
				b.plant("UPDATE ledger.rows SET cost = 1, leg_actual[1] = 1 WHERE attempt_id = $1", b.used.id)
				b.plant("UPDATE ledger.meters SET spent = spent - 449999 WHERE limit_id = $1", b.day.Num)
			}, []string{"cost"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := openSound(t)
			c.plant(b)
			require.Equal(t, c.red, b.violated())
		})
	}
}

// F005: the views' arithmetic is that of settlements, half-even included.
func TestF005_RowCostIsRecomputedHalfEven(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	for _, quantity := range []int64{1, 3, 5, 7, 999_999, 1_000_001} {
		var q governance.Quantities
		var p governance.UnitPrices
		q[governance.UnitCacheRead], p[governance.UnitCacheRead] = quantity, 500_000
		b.add(line{q: q, p: p})
	}
	b.clean()
	b.plant("UPDATE ledger.rows SET cost = cost + 1 WHERE quantities[2] = 3")
	require.Equal(t, []string{"cost"}, b.violated())
}

// A bucket may admit its capacity at once and its refill after, and what was given back again; not one token more.
func TestI11_HoldsAtItsVeryBound(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	bucket := b.limit("kind, metric, amount, burst, per_seconds", "'rate', 'tokens', 60, 100, 60")
	key := b.accounts[0].key.Num
	at := b.now.Add(-time.Hour)
	admit := func(after time.Duration, reserved, actual int64) line {
		q, p := tokens(actual, 0)
		return b.add(line{
			q: q, p: p, admitted: at.Add(after), settled: at.Add(after + 2*time.Second),
			legs: []governance.Leg{leg(bucket, key, time.Time{}, reserved, actual)},
		})
	}
	admit(0, 100, 40)             // empty, and 60 come back at 2 s
	admit(2*time.Second, 62, 62)  // what came back and 2 s of refill
	admit(12*time.Second, 10, 50) // 40 are debt, which is no admission
	b.clean()
	last := admit(52*time.Second, 40, 40)
	b.clean()
	b.plant("UPDATE ledger.rows SET leg_reserved[1] = 41, leg_actual[1] = 41 WHERE attempt_id = $1", last.id)
	require.Equal(t, []string{"I11"}, b.violated())
	require.NotEqual(t, ids.ID{}, last.id)
}

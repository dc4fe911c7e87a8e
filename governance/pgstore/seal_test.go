package pgstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/pgtest"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// unsealed counts the rows above the mark.
func (b *book) unsealed() (n int64) {
	b.t.Helper()
	b.scan("SELECT count(*) FROM ledger.rows AS r, ledger.seal_mark AS m WHERE (r.epoch, r.xid) >= (m.epoch, m.until_xid)", &n)
	return n
}

// Whatever is sealed and whatever is not, lists and sums say the same.
func TestRollups_TellWhatTheRowsTell(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	var person int64
	b.scan("INSERT INTO tollgate.end_users (organization_id, name) VALUES ($1, 'ann') RETURNING id", &person, b.accounts[0].organization.Num)
	first := b.now.Add(-60 * 24 * time.Hour)
	add := func(n int) {
		for i := range n {
			q, p := tokens(int64(i%7+1), int64(i%5))
			at := first.Add(time.Duration(i*i%977) * 37 * time.Minute)
			l := b.add(line{
				account: i % 2, q: q, p: p, model: []string{"gpt-4o", "claude", "mistral"}[i%3], provider: []string{"openai", "azure"}[i/5%2],
				admitted: at, endUser: []int64{0, 0, person}[i%3],
			})
			if i%10 == 0 { // a row of an old month that comes late
				b.add(line{id: l.id, request: l.request, account: i % 2, kind: governance.RowLateAdjustment, q: q, p: p, admitted: at, settled: b.now})
			}
		}
	}
	a := b.accounts[0]
	day := first.UTC().Truncate(24 * time.Hour)
	filters := map[string]governance.SpendFilter{
		"everything": {}, "organization": {Organization: a.organization.ID}, "team": {Team: a.team.ID}, "key": {Key: a.key.ID},
		"user": {User: a.user.ID}, "model": {Model: "claude"}, "provider": {Organization: a.organization.ID, Provider: "azure"},
		"end user": {EndUser: "ann"}, "nobody": {Model: "none"},
		"whole days": {From: day.AddDate(0, 0, 3), To: day.AddDate(0, 0, 9)},
		"ragged":     {From: day.Add(55*time.Hour + 13*time.Minute), To: day.Add(301*time.Hour + 47*time.Minute)},
		"in an hour": {From: day.Add(55*time.Hour + 13*time.Minute), To: day.Add(55*time.Hour + 47*time.Minute)},
		"from":       {From: day.Add(200 * time.Hour), Key: a.key.ID}, "to": {To: day.Add(200*time.Hour + time.Second)},
	}
	type answer struct {
		rows map[string][]ids.ID
		sums map[string][]governance.SpendSum
	}
	ask := func() answer {
		got := answer{make(map[string][]ids.ID), make(map[string][]governance.SpendSum)}
		for name, f := range filters {
			for _, r := range b.allRows(t.Context(), f, 20) {
				got.rows[name] = append(got.rows[name], r.AttemptID)
			}
			for _, zone := range []string{"UTC", "Asia/Kolkata", "America/Los_Angeles"} {
				for _, by := range [][]string{nil, {"organization", "model"}, {"key", "provider"}, {"day"}, {"hour", "team"}, {"user", "day"}} {
					f.TimeZone = zone
					sums, err := b.Summary(t.Context(), f, by)
					require.NoError(t, err)
					got.sums[fmt.Sprint(name, zone, by)] = sums
				}
			}
		}
		return got
	}
	add(150)
	before := ask()
	require.Len(t, before.rows["everything"], 165)
	b.seal()
	require.Empty(t, cmp.Diff(before.rows, ask().rows))
	require.Empty(t, cmp.Diff(before.sums, ask().sums))
	b.clean()
	add(60) // above the mark, and between what is sealed
	half := ask()
	require.Len(t, half.rows["everything"], 231)
	b.seal()
	whole := ask()
	require.Empty(t, cmp.Diff(half.rows, whole.rows))
	require.Empty(t, cmp.Diff(half.sums, whole.sums))
	b.clean()
}

// A transaction that commits late is sealed later, however many came and were sealed after it began.
func TestSeal_NeverSkipsALateCommit(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	q, p := tokens(1, 1)
	early := b.add(line{q: q, p: p})
	b.seal()
	late, err := b.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = late.Rollback(context.WithoutCancel(t.Context())) }() // after a failure only
	_, err = late.Exec(t.Context(), `INSERT INTO ledger.rows SELECT (jsonb_populate_record(r, jsonb_build_object('attempt_id', $1::uuid,
		'xid', pg_current_xact_id()::text, 'seq', nextval('ledger.row_seq')))).* FROM ledger.rows AS r WHERE r.attempt_id = $2`, ids.New(b.now), early.id)
	require.NoError(t, err)
	u := NewUpkeep(b.pool)
	for range 5 {
		b.add(line{q: q, p: p})
		_, err := u.Seal(t.Context())
		require.NoError(t, err)
	}
	require.Equal(t, int64(5), b.unsealed(), "all that began after the open transaction wait for it")
	require.Len(t, b.allRows(t.Context(), governance.SpendFilter{}, 3), 6)
	require.NoError(t, late.Commit(t.Context()))
	require.Equal(t, int64(6), b.unsealed())
	require.Len(t, b.allRows(t.Context(), governance.SpendFilter{}, 3), 7)
	b.seal()
	require.Len(t, b.allRows(t.Context(), governance.SpendFilter{}, 3), 7)
	b.clean()
}

// Rows of a transaction that is running while numbers are noted are not taken for sealed, though its id lies beyond the end
// of what a snapshot sees: that end is the last transaction that is over.
func TestSeal_NeverSkipsTheLatestTransaction(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	q, p := tokens(1, 1)
	early := b.add(line{q: q, p: p})
	b.seal()
	latest, err := b.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = latest.Rollback(context.WithoutCancel(t.Context())) }() // after a failure only
	_, err = latest.Exec(t.Context(), `INSERT INTO ledger.rows SELECT (jsonb_populate_record(r, jsonb_build_object('attempt_id', $1::uuid,
		'xid', pg_current_xact_id()::text, 'seq', nextval('ledger.row_seq')))).* FROM ledger.rows AS r WHERE r.attempt_id = $2`, ids.New(b.now), early.id)
	require.NoError(t, err)
	u := NewUpkeep(b.pool)
	for range 3 {
		_, err := u.Seal(t.Context())
		require.NoError(t, err)
	}
	require.NoError(t, latest.Commit(t.Context()))
	b.add(line{q: q, p: p})
	b.seal()
	require.Zero(t, b.unsealed())
	b.clean()
}

// A sequence that was never drawn from says 1, which is no number that anybody has drawn.
func TestSeal_OfAnIdleLedgerPassesOverNothing(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	u := NewUpkeep(b.pool)
	for range 5 {
		_, err := u.Seal(t.Context())
		require.NoError(t, err)
	}
	q, p := tokens(1, 1)
	for range 3 {
		b.add(line{q: q, p: p})
	}
	b.seal()
	require.Zero(t, b.unsealed())
	require.Len(t, b.allRows(t.Context(), governance.SpendFilter{}, 3), 3)
	b.clean()
}

// Whatever transactions do at the same time, every row comes into one block, and the chain holds.
func TestSeal_OneReplicaMakesEachBlock(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	q, p := tokens(1, 1)
	seed := b.add(line{q: q, p: p})
	u := NewUpkeep(pgtest.Role(t, b.pool, "tollgate_gateway"))
	var all errgroup.Group
	for range 4 {
		all.Go(func() error {
			for range 25 {
				_, err := b.pool.Exec(t.Context(), `INSERT INTO ledger.rows SELECT (jsonb_populate_record(r, jsonb_build_object(
					'attempt_id', gen_random_uuid(), 'xid', pg_current_xact_id()::text, 'seq', nextval('ledger.row_seq')))).*
					FROM ledger.rows AS r WHERE r.attempt_id = $1`, seed.id)
				if err != nil {
					return err
				}
			}
			return nil
		})
		all.Go(func() error {
			for range 25 {
				if _, err := u.Seal(t.Context()); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
	b.seal()
	var rows, blocks, numbers int64
	b.scan("SELECT sum(rows) FROM ledger.blocks", &rows)
	b.scan("SELECT count(*) FROM ledger.blocks", &blocks)
	b.scan("SELECT max(number) FROM ledger.blocks", &numbers)
	require.Equal(t, int64(101), rows)
	require.Equal(t, blocks, numbers)
	b.clean()
}

// Rows that come while others are sealed are left to the next call: under load there are always some, and a call that went on
// for them would never end.
func TestSeal_EndsUnderLoad(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	q, p := tokens(1, 1)
	seed := b.add(line{q: q, p: p})
	ctx, cancel := context.WithCancel(t.Context())
	var load errgroup.Group
	for range 2 {
		load.Go(func() error {
			for ctx.Err() == nil {
				_, err := b.pool.Exec(t.Context(), `INSERT INTO ledger.rows SELECT (jsonb_populate_record(r, jsonb_build_object(
					'attempt_id', gen_random_uuid(), 'xid', pg_current_xact_id()::text, 'seq', nextval('ledger.row_seq')))).*
					FROM ledger.rows AS r WHERE r.attempt_id = $1`, seed.id)
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	u := NewUpkeep(b.pool)
	for range 10 {
		blocks, err := u.Seal(t.Context())
		require.NoError(t, err)
		require.LessOrEqual(t, len(blocks), 1)
	}
	cancel()
	require.NoError(t, load.Wait())
	b.seal()
	b.clean()
}

// Blocks have a size, and a transaction is never divided between two.
func TestSeal_DividesLongHistoriesBetweenTransactions(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	q, p := tokens(1, 1)
	seed := b.add(line{q: q, p: p})
	for _, n := range []int{3, 50, 4, 4, 1} {
		b.exec(`INSERT INTO ledger.rows SELECT (jsonb_populate_record(r, jsonb_build_object('attempt_id', gen_random_uuid(),
			'xid', pg_current_xact_id()::text, 'seq', nextval('ledger.row_seq')))).*
			FROM ledger.rows AS r CROSS JOIN generate_series(1, $2::int) WHERE r.attempt_id = $1`, seed.id, n)
	}
	require.Eventually(t, func() bool {
		b.exec("SELECT ledger.seal(5)")
		return b.unsealed() == 0
	}, 5*time.Minute, 10*time.Millisecond)
	rows, err := b.pool.Query(t.Context(), "SELECT rows FROM ledger.blocks ORDER BY number")
	require.NoError(t, err)
	sizes, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	require.NoError(t, err)
	require.Equal(t, []int64{4, 50, 4, 5}, sizes)
	b.clean()
}

// A database that was restored elsewhere counts its transactions anew. What was written before is sealed first, also where the
// same happened again before anything was sealed.
func TestSeal_GoesOnInANewEpoch(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	q, p := tokens(1, 1)
	b.add(line{q: q, p: p})
	b.seal()
	b.exec("UPDATE ledger.seal_mark SET until_xid = '900000000', next_xmax = '900000000'")
	old := b.add(line{q: q, p: p})
	b.plant("UPDATE ledger.rows SET xid = '900000005' WHERE attempt_id = $1", old.id)
	between := b.add(line{q: q, p: p})
	b.plant("UPDATE ledger.rows SET epoch = 3, xid = '800000000' WHERE attempt_id = $1", between.id)
	b.exec("UPDATE ledger.state SET epoch = 4")
	fresh := b.add(line{q: q, p: p})
	b.plant("UPDATE ledger.rows SET epoch = 4 WHERE attempt_id = $1", fresh.id)
	b.seal()
	var epochs string
	b.scan("SELECT string_agg(epoch::text, ' ' ORDER BY number) FROM ledger.blocks", &epochs)
	require.Equal(t, "1 1 3 4", epochs)
	require.Len(t, b.allRows(t.Context(), governance.SpendFilter{}, 2), 4)
	sums, err := b.Summary(t.Context(), governance.SpendFilter{}, nil)
	require.NoError(t, err)
	require.Equal(t, int64(4), sums[0].Requests, "none is below the mark and in no roll-up")
}

// I14, I17: whoever changes what was sealed is found, also one who owns the database and switches its triggers off.
func TestCheck_FindsWhatWasDoneToSealedRows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		plant func(b *sound)
		red   []string
	}{
		"text of a row": {
			func(b *sound) {
				b.plant("UPDATE ledger.rows SET key_name = 'another' WHERE attempt_id = $1", b.used.id)
			}, []string{"I14"},
		},
		"time of a row": {
			func(b *sound) {
				b.plant("UPDATE ledger.rows SET settled_at = settled_at + interval '1 microsecond' WHERE attempt_id = $1", b.used.id)
			},
			[]string{"I14"},
		},
		"row that is gone, with what it had spent": {
			func(b *sound) {
				b.plant("DELETE FROM ledger.rows WHERE attempt_id = $1", b.used.id)
				b.plant("UPDATE ledger.meters SET spent = 615000 WHERE limit_id = $1", b.day.Num)
				b.plant("UPDATE ledger.meters SET spent = 1100 WHERE limit_id = $1", b.total.Num)
			},
			[]string{"I14", "I17"},
		},
		"row that was slipped in": {
			func(b *sound) {
				b.plant(`INSERT INTO ledger.rows SELECT (jsonb_populate_record(r, jsonb_build_object('attempt_id', gen_random_uuid(), 'kind', 'credit',
					'cost', -5, 'quantities', '[]'::jsonb, 'leg_limits', '[]'::jsonb, 'leg_subjects', '[]'::jsonb, 'leg_windows', '[]'::jsonb,
					'leg_classes', '[]'::jsonb, 'leg_reserved', '[]'::jsonb, 'leg_actual', '[]'::jsonb,
					'settled_at', r.settled_at - interval '400 days', 'admitted_at', r.admitted_at - interval '400 days'))).*
					FROM ledger.rows AS r WHERE r.attempt_id = $1`, b.used.id)
			},
			[]string{"I14"},
		},
		"row that was slipped in behind its block": {
			func(b *sound) {
				b.plant(`INSERT INTO ledger.rows SELECT (jsonb_populate_record(r, jsonb_build_object('attempt_id', gen_random_uuid(), 'kind', 'credit',
					'cost', -5, 'seq', 1000000, 'quantities', '[]'::jsonb, 'leg_limits', '[]'::jsonb, 'leg_subjects', '[]'::jsonb, 'leg_windows', '[]'::jsonb,
					'leg_classes', '[]'::jsonb, 'leg_reserved', '[]'::jsonb, 'leg_actual', '[]'::jsonb,
					'settled_at', r.settled_at - interval '400 days', 'admitted_at', r.admitted_at - interval '400 days'))).*
					FROM ledger.rows AS r WHERE r.attempt_id = $1`, b.used.id)
			},
			[]string{"I14"},
		},
		"block that is gone":     {func(b *sound) { b.plant("DELETE FROM ledger.blocks WHERE number = 1") }, []string{"I14"}},
		"hash that was changed":  {func(b *sound) { b.plant("UPDATE ledger.blocks SET hash = sha256('x')") }, []string{"I14"}},
		"mark that was moved":    {func(b *sound) { b.plant("UPDATE ledger.seal_mark SET number = number - 1") }, []string{"I14"}},
		"sum of an hour":         {func(b *sound) { b.plant("UPDATE ledger.hours SET cost = cost + 1 WHERE requests > 0") }, []string{"I17"}},
		"sum of a day":           {func(b *sound) { b.plant("UPDATE ledger.days SET output_tokens = output_tokens - 1") }, []string{"I17"}},
		"sum of a tenant's hour": {func(b *sound) { b.plant("UPDATE ledger.tenant_hours SET cost = cost + 1") }, []string{"I17"}},
		"hour that is gone":      {func(b *sound) { b.plant("DELETE FROM ledger.hours") }, []string{"I17"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := openSound(t)
			b.seal()
			b.clean()
			c.plant(b)
			require.Equal(t, c.red, b.violated())
		})
	}
}

// Sums and checks start at what dropped months have left, and everything else stays as it was.
func TestDropMonths_LeavesOpeningsHashesAndRollups(t *testing.T) {
	t.Parallel()
	b := openSound(t)
	key := b.accounts[0].key.Num
	var old time.Time
	b.scan("SELECT date_trunc('month', now(), 'UTC') - interval '6 months' + interval '3 days'", &old)
	for m := range 7 {
		b.exec("SELECT ledger.add_month(($1::timestamptz + make_interval(months => $2::int))::date)", old, m)
	}
	total := int64(0)
	for m := range 5 {
		q, p := tokens(10, 10)
		b.add(line{
			q: q, p: p, admitted: old.AddDate(0, m, 0),
			legs: []governance.Leg{leg(b.total, key, time.Time{}, 15, 20), leg(b.day, key, b.start, 7500, 7500)},
		})
		total += 20
	}
	b.meter(b.total, key, time.Time{}, 1500+1100+total, 1000, 0)
	b.meter(b.day, key, b.start, 450_000+615_000+5*7500, 510_000, 0)
	b.clean()
	u := NewUpkeep(pgtest.Role(t, b.pool, "tollgate_control"))
	none, err := u.DropMonths(t.Context(), 92*24*time.Hour)
	require.NoError(t, err)
	require.Empty(t, none, "what is not sealed stays")
	b.seal()
	before, err := b.Summary(t.Context(), governance.SpendFilter{}, []string{"day", "key"})
	require.NoError(t, err)

	var all errgroup.Group
	var dropped [3][]time.Time
	for i := range dropped {
		all.Go(func() (err error) {
			dropped[i], err = u.DropMonths(t.Context(), time.Hour) // 92 days at least are kept
			return err
		})
	}
	require.NoError(t, all.Wait())
	months := 0
	require.Eventually(t, func() bool {
		_, err := u.DropMonths(t.Context(), time.Hour)
		require.NoError(t, err)
		b.scan("SELECT count(*) FROM ledger.dropped_months", &months)
		return months >= 2
	}, 5*time.Minute, 20*time.Millisecond)
	require.Contains(t, []int{2, 3}, months)
	var left int64
	b.scan("SELECT count(*) FROM ledger.rows", &left)
	require.Equal(t, int64(7-months), left)
	b.clean()
	after, err := b.Summary(t.Context(), governance.SpendFilter{}, []string{"day", "key"})
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(before, after), "roll-ups outlive their rows")
	require.Len(t, b.allRows(t.Context(), governance.SpendFilter{}, 50), int(left))
	done, err := NewExports(b.pool).Export(t.Context(), governance.SpendFilter{}, func([]governance.SpendRow) error { return nil })
	require.NoError(t, err)
	require.Equal(t, []int64{left, int64(months)}, []int64{done.Rows, done.Dropped}, "an export says what it lacks")
	require.Equal(t, []string{"I01"}, b.violatedBy("UPDATE ledger.openings SET spent = spent + 1 WHERE limit_id = $1", b.total.Num))
}

func TestDropMonths_KeepsWhatIsNotOver(t *testing.T) {
	t.Parallel()
	for name, plant := range map[string]func(b *sound, old time.Time){
		"an attempt in flight": func(b *sound, old time.Time) { b.hold(line{admitted: old}) },
		"a provisional row": func(b *sound, old time.Time) {
			b.add(line{admitted: old, kind: governance.RowExpiry, source: governance.UsageReservation})
		},
		"another sealer at work": func(b *sound, _ time.Time) {
			tx, err := b.pool.Begin(b.t.Context())
			require.NoError(b.t, err)
			_, err = tx.Exec(b.t.Context(), "SELECT FROM ledger.seal_mark FOR UPDATE")
			require.NoError(b.t, err)
			b.t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(b.t.Context())) }) // it only held a lock
		},
		"a long reader": func(b *sound, _ time.Time) {
			tx, err := b.pool.Begin(b.t.Context())
			require.NoError(b.t, err)
			_, err = tx.Exec(b.t.Context(), "SELECT count(*) FROM ledger.rows")
			require.NoError(b.t, err)
			b.t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(b.t.Context())) }) // it only read
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := openSound(t)
			var old time.Time
			b.scan("SELECT date_trunc('month', now(), 'UTC') - interval '6 months' + interval '3 days'", &old)
			b.exec("SELECT ledger.add_month($1::timestamptz::date)", old)
			b.add(line{admitted: old})
			b.seal()
			plant(b, old)
			if name != "another sealer at work" && name != "a long reader" {
				b.seal()
			}
			dropped, err := NewUpkeep(b.pool).DropMonths(t.Context(), 92*24*time.Hour)
			require.NoError(t, err)
			require.Empty(t, dropped)
		})
	}
	b := openSound(t)
	_, err := NewUpkeep(pgtest.Role(t, b.pool, "tollgate_gateway")).DropMonths(t.Context(), 0)
	require.Error(t, err, "the data plane drops nothing")
}

// A month is read in steps, and from the beginning where a row has come late. What it leaves is what it had booked, once.
func TestDropMonths_ReadsInSteps(t *testing.T) {
	t.Parallel()
	b := openSound(t)
	key := b.accounts[0].key.Num
	var old time.Time
	b.scan("SELECT date_trunc('month', now(), 'UTC') - interval '6 months' + interval '3 days'", &old)
	b.exec("SELECT ledger.add_month($1::timestamptz::date)", old)
	spent := int64(1500 + 1100)
	add := func(n int) {
		for range n {
			q, p := tokens(10, 10)
			b.add(line{q: q, p: p, admitted: old, legs: []governance.Leg{leg(b.total, key, time.Time{}, 15, 20)}})
			spent += 20
		}
		b.meter(b.total, key, time.Time{}, spent, 1000, 0)
	}
	step := func() (outcome string) {
		b.scan("SELECT coalesce(outcome, '') FROM ledger.drop_month(92, 2)", &outcome)
		return outcome
	}
	until := func(want string) {
		require.Eventually(t, func() bool { return step() == want }, 5*time.Minute, time.Millisecond) // locks may be in the way
	}
	add(5)
	b.seal()
	until("read")
	until("read")
	b.clean()
	add(1)
	until("")
	b.seal()
	var dropped string
	for range 4 { // three of two rows each, and one that finds no more
		until("read")
	}
	b.clean()
	until("dropped")
	b.scan("SELECT concat_ws(' ', rows, (SELECT spent FROM ledger.openings), (SELECT count(*) FROM ledger.dropping_openings)) FROM ledger.dropped_months", &dropped)
	require.Equal(t, "6 120 0", dropped)
	b.clean()
}

func TestDropMonths_KeepsWhatIsNotAsSealed(t *testing.T) {
	t.Parallel()
	b := openSound(t)
	var old time.Time
	b.scan("SELECT date_trunc('month', now(), 'UTC') - interval '6 months' + interval '3 days'", &old)
	b.exec("SELECT ledger.add_month($1::timestamptz::date)", old)
	b.add(line{admitted: old})
	gone := b.add(line{admitted: old})
	b.seal()
	b.plant("DELETE FROM ledger.rows WHERE attempt_id = $1", gone.id)
	u := NewUpkeep(b.pool)
	require.Eventually(t, func() bool {
		dropped, err := u.DropMonths(t.Context(), 0)
		require.Empty(t, dropped)
		return errors.Is(err, ErrNotAsSealed)
	}, 5*time.Minute, time.Millisecond)
}

// The books of a seed are whole, whatever its size.
func TestSeed_MakesWholeBooksAndRefusesOthers(t *testing.T) {
	t.Parallel()
	b := &book{t: t, pool: pgtest.New(t)}
	b.Spend = NewSpend(b.pool)
	last := int64(0)
	for range 2 {
		require.NoError(t, Seed(t.Context(), b.pool, 3000, 40*24*time.Hour, func(done int64) { last = done }))
		require.Equal(t, int64(3000), last)
	}
	b.seal()
	b.clean()
	sums, err := b.Summary(t.Context(), governance.SpendFilter{}, nil)
	require.NoError(t, err)
	require.Equal(t, int64(6000), sums[0].Requests)
	other := openSound(t)
	require.ErrorIs(t, Seed(t.Context(), other.pool, 1, time.Hour, nil), ErrForeignRows)
	other.seal()
	require.ErrorIs(t, Seed(t.Context(), other.pool, 1, time.Hour, nil), ErrForeignRows)
	control := pgtest.Role(t, other.pool, "tollgate_control")
	require.ErrorIs(t, Seed(t.Context(), control, 1, time.Hour, nil), ErrNotOwner)
	empty := openPool(t, Options{DSN: secret.New(pgtest.EmptyDSN(t))})
	require.ErrorIs(t, Seed(t.Context(), empty, 1, time.Hour, nil), ErrNoSchema)
}

// The spans that a list looks at hold what it needs, or are all that there are.
func TestEnough_CountsWholeSpans(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		var spans []span
		for i, n := range rapid.SliceOfN(rapid.Int64Range(1, 50), 1, 20).Draw(t, "rows") {
			spans = append(spans, span{start.Add(-time.Duration(i) * time.Hour), n})
		}
		count := rapid.IntRange(1, 200).Draw(t, "count")
		got, sum := enough(spans, count), int64(0)
		for _, s := range spans[1:] {
			if !s.Start.Before(got) {
				sum += s.Rows
			}
		}
		if sum < int64(count) && got != spans[len(spans)-1].Start {
			t.Fatalf("%v has %d of %d rows and is not the last", got, sum, count)
		}
	})
}

// Where blocks are small many are read at once, in their order, and a big one in pieces.
func TestExport_ReadsSmallBlocksTogether(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	q, p := tokens(1, 1)
	seed := b.add(line{q: q, p: p})
	add := func(n int) {
		b.exec(`INSERT INTO ledger.rows SELECT n.*
			FROM ledger.rows AS r
			CROSS JOIN generate_series(1, $2::int) AS k
			CROSS JOIN LATERAL jsonb_populate_record(r, jsonb_build_object('attempt_id', gen_random_uuid(), 'attempt', k,
				'xid', pg_current_xact_id()::text, 'seq', nextval('ledger.row_seq'))) AS n
			WHERE r.attempt_id = $1`, seed.id, n)
		b.seal()
	}
	b.seal()
	for range 99 {
		add(2)
	}
	add(exportRows + 100)
	var blocks int64
	b.scan("SELECT count(*) FROM ledger.blocks", &blocks)
	require.Equal(t, int64(101), blocks)
	var order, got []ids.ID
	found, err := b.pool.Query(t.Context(), "SELECT attempt_id FROM ledger.rows ORDER BY seq")
	require.NoError(t, err)
	order, err = pgx.CollectRows(found, pgx.RowTo[ids.ID])
	require.NoError(t, err)
	pages := 0
	done, err := NewExports(b.pool).Export(t.Context(), governance.SpendFilter{}, func(rows []governance.SpendRow) error {
		pages++
		for i := range rows {
			got = append(got, rows[i].AttemptID)
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, order, got)
	require.Equal(t, int64(101), done.Block.Number)
	require.Equal(t, 2+2, pages, "a hundred blocks of a few rows, and one of many")
}

// Exports have every sealed row once, in the order of the seals, and say what is missing.
func TestExport_HasWhatIsSealed(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	b.fillRows(5000)
	b.seal()
	b.exec("SELECT setval('ledger.row_seq', (SELECT max(seq) + 10000 FROM ledger.rows))")
	b.fillRows(400)
	b.seal()
	q, p := tokens(1, 1)
	late := b.add(line{q: q, p: p})
	e := NewExports(b.pool)
	for name, f := range map[string]governance.SpendFilter{
		"everything": {}, "key": {Key: b.accounts[0].key.ID}, "model of nobody": {Model: "none"},
		"half an hour": {From: b.now.Add(-time.Hour), To: b.now.Add(-30 * time.Minute)}, "request": {RequestID: late.request},
	} {
		want := make(map[string]bool)
		for _, r := range b.allRows(t.Context(), f, 250) {
			if r.AttemptID != late.id {
				want[r.ID()] = true
			}
		}
		got, cost := make(map[string]bool), int64(0)
		done, err := e.Export(t.Context(), f, func(rows []governance.SpendRow) error {
			require.LessOrEqual(t, len(rows), exportRows)
			for i := range rows {
				require.False(t, got[rows[i].ID()], "%s comes twice", rows[i].ID())
				got[rows[i].ID()] = true
				cost += int64(rows[i].Cost)
			}
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, want, got, name)
		require.Equal(t, int64(len(want)), done.Rows)
		require.Equal(t, cost, int64(done.Cost))
		if name == "everything" || name == "request" {
			require.Equal(t, int64(1), done.Unsealed, name)
		}
	}
	_, err := e.Export(t.Context(), governance.SpendFilter{}, func([]governance.SpendRow) error { return context.Canceled })
	require.ErrorIs(t, err, context.Canceled)
}

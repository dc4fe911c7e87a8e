package pgstore

import (
	"crypto/sha256"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/pgtest"
)

// monthCost is what the two rows of a month cost, in nano-dollars.
const monthCost = 2 * 7500

// shelved is a sound ledger with rows of the five months from six months ago on: one of each is sealed with the others' in one
// block, one in a block of its own.
type shelved struct {
	*sound

	months  []time.Time
	lines   []line
	archive *Archive
}

func openShelved(t *testing.T) *shelved {
	t.Helper()
	b := &shelved{sound: openSound(t)}
	b.archive = NewArchive(b.pool)
	var first time.Time
	b.scan("SELECT date_trunc('month', now(), 'UTC') - interval '6 months'", &first)
	first = first.UTC()
	key := b.accounts[0].key.Num
	for m := range 7 {
		b.exec("SELECT ledger.add_month(($1::timestamptz + make_interval(months => $2::int, days => 1))::date)", first, m)
	}
	total := int64(0)
	add := func(month int, day int) {
		q, p := tokens(10, 10)
		b.lines = append(b.lines, b.add(line{
			q: q, p: p, admitted: first.AddDate(0, month, day),
			legs: []governance.Leg{leg(b.total, key, time.Time{}, 15, 20), leg(b.day, key, b.start, 7500, 7500)},
		}))
		total += 20
	}
	for m := range 5 {
		b.months = append(b.months, first.AddDate(0, m, 0))
		add(m, 3)
	}
	b.seal()
	for m := range 5 {
		add(m, 20)
		b.seal()
	}
	b.meter(b.total, key, time.Time{}, 1500+1100+total, 1000, 0)
	b.meter(b.day, key, b.start, 450_000+615_000+10*7500, 510_000, 0)
	return b
}

// What is handed over makes the hashes that were sealed, and every row can be had again of it, to the last column.
func TestArchive_ReadsWhatWasSealed(t *testing.T) {
	t.Parallel()
	b := openShelved(t)
	b.exec(`INSERT INTO ledger.attribution (attempt_id, request_id, tags, metadata) VALUES ($1, $2, '{"team": "<&>"}', '\x00ff')`,
		b.lines[0].id, b.lines[0].request)
	var last int64
	b.scan("SELECT max(number) FROM ledger.blocks", &last)
	for m, month := range b.months {
		var blocks []ArchiveBlock
		var rows []ArchiveRow
		counts := make(map[int64]int)
		digests := make(map[int64][]byte)
		require.NoError(t, b.archive.Read(t.Context(), month, func(block ArchiveBlock) error {
			blocks = append(blocks, block)
			return nil
		}, func(r ArchiveRow) error {
			at := blocks[len(blocks)-1].Number
			rows, counts[at], digests[at] = append(rows, r), counts[at]+1, append(digests[at], r.Digest...)
			return nil
		}))
		require.Len(t, blocks, 2)
		require.Len(t, rows, 2)
		for _, block := range blocks {
			var own ArchivePart
			for _, p := range block.Parts {
				if p.Month.Equal(month) {
					own = p
				}
			}
			hash := sha256.Sum256(digests[block.Number])
			require.Equal(t, hash[:], own.Hash)
			require.EqualValues(t, counts[block.Number], own.Rows)
			var stored []byte
			b.scan("SELECT ledger.block_hash($1, $2, $3, $4::text::xid8, $5::text::xid8, $6)", &stored,
				block.Previous, block.Number, block.Epoch, block.FromXID, block.UntilXID, joined(block.Parts))
			require.Equal(t, stored, block.Hash)
		}
		require.Equal(t, m == 0, rows[0].Attribution != nil)
		if m == 0 {
			require.Contains(t, string(rows[0].Attribution), `"metadata": "\\x00ff"`)
		}
		for _, r := range rows {
			var same bool
			b.scan(`SELECT ledger.row_digest(w) = $2 AND w = r
				FROM (SELECT (jsonb_populate_record(NULL::ledger.rows, $1::text::jsonb)).*) AS w JOIN ledger.rows AS r USING (attempt_id, kind)`,
				&same, string(r.Row), r.Digest)
			require.True(t, same, string(r.Row))
		}
	}
	months, err := b.archive.Months(t.Context(), b.months[2])
	require.NoError(t, err)
	require.Len(t, months, 2)
	for i, m := range months {
		require.True(t, m.Month.Equal(b.months[i]))
		require.Equal(t, int64(2), m.Rows)
		require.Equal(t, int64(monthCost), m.Cost)
		require.Positive(t, m.Bytes)
		require.Equal(t, last-4+int64(i), m.Block)
		require.Len(t, m.BlockHash, sha256.Size)
	}
}

func joined(parts []ArchivePart) (all []byte) {
	for _, p := range parts {
		all = append(all, p.Hash...)
	}
	return all
}

// drop goes on until a month is gone, or cannot go.
func (b *shelved) drop(month time.Time, rows, cost int64) (err error) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		var progress DropProgress
		progress, err = b.archive.Drop(b.t.Context(), month, rows, cost)
		return err != nil || progress == DropDone
	}, time.Minute, time.Millisecond)
	return err
}

// Months go the oldest first, one that has something else than what was archived stays, and the books are whole afterwards.
func TestArchive_DropsWhatWasArchived(t *testing.T) {
	t.Parallel()
	b := openShelved(t)
	before, err := b.Summary(t.Context(), governance.SpendFilter{}, []string{"day", "key"})
	require.NoError(t, err)
	require.EqualError(t, b.drop(b.months[0], 3, monthCost), b.months[0].Format(monthForm)+" had 2 rows, and 3 were archived")
	require.ErrorContains(t, b.drop(b.months[1], 2, monthCost), "stands before")
	b.clean()

	gone, err := b.archive.Dropped(t.Context(), b.months[0])
	require.NoError(t, err)
	require.False(t, gone)
	require.NoError(t, b.drop(b.months[0], 2, monthCost))
	gone, err = b.archive.Dropped(t.Context(), b.months[0])
	require.NoError(t, err)
	require.True(t, gone)
	require.NoError(t, b.drop(b.months[0], 2, monthCost), "a repeat is harmless")
	require.Error(t, b.drop(b.months[0], 2, monthCost+1), "it is gone, and had something else")
	require.NoError(t, b.drop(b.months[1], 2, monthCost))
	b.clean()
	after, err := b.Summary(t.Context(), governance.SpendFilter{}, []string{"day", "key"})
	require.NoError(t, err)
	require.Equal(t, before, after)
	require.NoError(t, b.archive.FollowChain(t.Context(), func(int64, int64) {}), "the hashes of dropped months stay")
	open, young, err := b.archive.Horizon(t.Context())
	require.NoError(t, err)
	require.True(t, open.Equal(b.months[0].AddDate(0, 6, 0)))
	require.True(t, young.Equal(open.AddDate(0, -2, 0)) || young.Equal(open.AddDate(0, -3, 0)) || young.Equal(open.AddDate(0, -4, 0)), young)
	_, err = b.archive.Drop(t.Context(), b.months[4], 2, monthCost)
	require.NoError(t, err)
	months, err := b.archive.Months(t.Context(), open)
	require.NoError(t, err)
	require.True(t, months[len(months)-1].Month.Equal(open.AddDate(0, -1, 0)), "what is young stays, whatever is asked for")
}

// A chain that is broken anywhere is found without reading a row.
func TestArchive_FollowsTheChain(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	for range 3 {
		q, p := tokens(1, 1)
		b.add(line{q: q, p: p})
		b.seal()
	}
	tables := []string{"blocks", "block_parts", "seal_mark"}
	for _, table := range tables {
		b.exec("CREATE TABLE public." + table + " AS TABLE ledger." + table)
	}
	archive := NewArchive(b.pool)
	for name, plant := range map[string]string{
		"block that is gone":       "DELETE FROM ledger.blocks WHERE number = 2",
		"first block that is gone": "DELETE FROM ledger.blocks WHERE number = 1",
		"hash of a block":          "UPDATE ledger.blocks SET hash = sha256('x') WHERE number = 3",
		"hash of a part":           "UPDATE ledger.block_parts SET hash = sha256('x') WHERE block = 1",
		"part that is gone":        "DELETE FROM ledger.block_parts WHERE block = 2",
		"sum of a block":           "UPDATE ledger.blocks SET cost = cost + 1 WHERE number = 2",
		"bound of a block":         "UPDATE ledger.blocks SET until_xid = (until_xid::text::bigint + 1)::text::xid8 WHERE number = 2",
		"mark":                     "UPDATE ledger.seal_mark SET hash = sha256('x')",
		"last block that is gone":  "DELETE FROM ledger.blocks WHERE number = 3",
	} {
		require.NoError(t, archive.FollowChain(t.Context(), func(int64, int64) {}), name)
		b.plant(plant)
		require.ErrorIs(t, archive.FollowChain(t.Context(), func(int64, int64) {}), ErrChain, name)
		for _, table := range tables {
			b.plant("DELETE FROM ledger." + table)
			b.plant("INSERT INTO ledger." + table + " SELECT * FROM public." + table)
		}
	}
}

// A month is closed when nothing of it can still change.
func TestArchive_NamesWhatKeepsAMonthOpen(t *testing.T) {
	t.Parallel()
	b := openShelved(t)
	month := b.months[0]
	said := func() string {
		text, err := b.archive.Obstacles(t.Context(), month)
		require.NoError(t, err)
		return text
	}
	require.Empty(t, said())
	q, p := tokens(1, 1)
	late := b.add(line{q: q, p: p, admitted: month.Add(time.Hour), source: governance.UsageReservation, kind: governance.RowExpiry, outcome: governance.OutcomeExpired})
	b.hold(line{q: q, p: p, admitted: month.Add(2 * time.Hour)})
	require.Equal(t, "1 rows that are not sealed, 1 calls in flight, 1 provisional rows", said())
	b.seal()
	require.Equal(t, "1 calls in flight, 1 provisional rows", said())
	b.add(line{id: late.id, request: late.request, kind: governance.RowLateAdjustment, q: q, p: p, admitted: month.Add(time.Hour)})
	b.seal()
	require.Equal(t, "1 calls in flight", said())
}

// What the data plane's and the control plane's roles may do is not enough.
func TestArchive_IsTheOwners(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for _, role := range []string{"tollgate_gateway", "tollgate_control"} {
		_, _, err := NewArchive(pgtest.Role(t, pool, role)).Horizon(t.Context())
		require.ErrorIs(t, err, ErrNotOwner)
		require.ErrorContains(t, err, role)
	}
}

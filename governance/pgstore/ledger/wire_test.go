package ledger

import (
	"math"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// TestParams_EqualTheDriversOwn compares what is written by hand with what the driver would write.
func TestParams_EqualTheDriversOwn(t *testing.T) {
	t.Parallel()
	types := pgtype.NewMap()
	rapid.Check(t, func(t *rapid.T) {
		ints := rapid.SliceOf(rapid.Int64()).Draw(t, "ints")
		small := rapid.SliceOf(rapid.Int32()).Draw(t, "small")
		texts := rapid.SliceOf(rapid.String()).Draw(t, "texts")
		flags := rapid.SliceOf(rapid.Bool()).Draw(t, "flags")
		uuids := make([]ids.ID, rapid.IntRange(0, 3).Draw(t, "uuids"))
		for i := range uuids {
			uuids[i] = ids.New(time.Now())
		}
		var p params
		for range 2 { // buffers are used again
			p.reset()
			p.int8s(ints)
			p.int4s(small)
			p.texts(texts)
			p.bools(flags)
			p.uuids(uuids)
			p.int8(math.MinInt64)
			p.bool(true)
		}
		for i, v := range []any{ints, small, texts, flags, uuids, int64(math.MinInt64), true} {
			want, err := types.Encode(p.oids[i], pgtype.BinaryFormatCode, v, nil)
			require.NoError(t, err)
			if want == nil || len(p.values[i]) == 12 {
				continue // without elements: NULL, or of one dimension, to the driver; of none here
			}
			require.Equal(t, want, p.values[i])
		}
		got := (&reader{columns: [][]byte{p.values[0], p.values[1], p.values[3]}})
		require.Equal(t, append([]int64{}, ints...), got.ints(0))
		require.Len(t, got.ints(0), len(small))
		require.Len(t, got.ints(0), len(flags))
		require.NoError(t, got.err)
	})
}

func FuzzReader_SurvivesAnything(f *testing.F) {
	var p params
	p.int8s([]int64{1, 2, 3})
	f.Add(p.values[0])
	f.Add([]byte{0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 20, 255, 255, 255, 255, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, column []byte) {
		columns := make([][]byte, 19)
		for i := range columns {
			columns[i] = column
		}
		d, err := decode(columns)
		require.True(t, err == nil || d == nil)
	})
}

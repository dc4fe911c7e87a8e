package ids_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/internal/ids"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// instant draws any millisecond that an id can carry: 48 bits since 1970.
func instant(t *rapid.T, label string) time.Time {
	return time.UnixMilli(rapid.Int64Range(0, 1<<48-1).Draw(t, label)).UTC()
}

func TestID_CarriesItsTimeAndSortsByIt(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := instant(t, "a"), instant(t, "b")
		x, y := ids.New(a.Add(999_999)), ids.New(b)
		require.Equal(t, a, ids.Time(x), "whole milliseconds")
		require.EqualValues(t, 7, x.Version())
		require.Equal(t, "RFC4122", x.Variant().String())
		if order := a.Compare(b); order != 0 {
			require.Equal(t, order, bytes.Compare(x[:], y[:]))
			require.Equal(t, order, strings.Compare(x.String(), y.String()))
		}
		parsed, err := ids.Parse(x.String())
		require.NoError(t, err)
		require.Equal(t, x, parsed)
	})
}

func TestID_IsUniqueWithinAMillisecond(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1_800_000_000_000)
	seen := make(map[ids.ID]bool)
	for range 10_000 {
		seen[ids.New(at)] = true
	}
	require.Len(t, seen, 10_000)
}

func TestParse_RefusesOtherForms(t *testing.T) {
	t.Parallel()
	id := ids.New(time.UnixMilli(1)).String()
	for _, s := range []string{
		"", "x", id[1:], id + "0", "{" + id + "}", "urn:uuid:" + id, strings.ReplaceAll(id, "-", ""), strings.ReplaceAll(id, "-", "_"),
		"g" + id[1:], " " + id[1:], id[:35] + "\x00",
	} {
		_, err := ids.Parse(s)
		require.ErrorIs(t, err, ids.ErrMalformed, "%q", s)
	}
}

func TestPublic_ShowsItsKind(t *testing.T) {
	t.Parallel()
	kinds := []ids.Kind{ids.Organization, ids.Team, ids.Key, ids.User, ids.Provider, ids.Model, ids.Target, ids.Limit, ids.Price}
	for _, kind := range kinds {
		id := ids.NewPublic(kind)
		require.Regexp(t, "^"+string(kind)+"_[0-9A-Za-z]{12}$", id)
		for _, other := range kinds {
			require.Equal(t, kind == other, ids.IsPublic(other, id))
		}
		require.NotEqual(t, id, ids.NewPublic(kind))
	}
	for _, s := range []string{"", "key", "key_", "key_12345678901", "key_1234567890123", "key-123456789012", "key_12345678901_", "key_12345678901é", "KEY_123456789012"} {
		require.False(t, ids.IsPublic(ids.Key, s), s)
	}
}

func TestRandom62_UsesEveryDigitEvenly(t *testing.T) {
	t.Parallel()
	const each = 2_000
	counts := make(map[rune]int)
	for _, digit := range ids.Random62(each * 62) {
		counts[digit]++
	}
	require.Len(t, counts, 62)
	for digit, n := range counts {
		require.Contains(t, ids.Base62, string(digit))
		require.InDelta(t, each, n, 8*45, "eight standard deviations") // biased digits would differ by a quarter
	}
	require.True(t, slices.IsSorted([]byte(ids.Base62)))
	require.Empty(t, ids.Random62(0))
}

package money_test

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/internal/money"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// extreme draws a non-negative number: any, a small one, or one at an edge.
func extreme() *rapid.Generator[int64] {
	return rapid.OneOf(
		rapid.Int64Min(0),
		rapid.Int64Range(0, 10_000_000),
		rapid.SampledFrom([]int64{0, 1, 499_999, 500_000, 500_001, 1_000_000, 1_500_000, 2_500_000, math.MaxInt64 - 1, math.MaxInt64}),
	)
}

func TestSum_EqualsBigArithmetic(t *testing.T) {
	t.Parallel()
	million := big.NewInt(1_000_000)
	rapid.Check(t, func(t *rapid.T) {
		var sum money.Sum
		exact := new(big.Int)
		for range rapid.IntRange(0, 4).Draw(t, "terms") {
			quantity, price := extreme().Draw(t, "quantity"), extreme().Draw(t, "price")
			require.NoError(t, sum.Add(quantity, money.PerMillion(price)))
			exact.Add(exact, new(big.Int).Mul(big.NewInt(quantity), big.NewInt(price)))
		}
		floor, rest := new(big.Int).QuoRem(exact, million, new(big.Int))
		up, even := new(big.Int).Set(floor), new(big.Int).Set(floor)
		if rest.Sign() > 0 {
			up.Add(up, big.NewInt(1))
		}
		if half := rest.Cmp(big.NewInt(500_000)); half > 0 || half == 0 && floor.Bit(0) == 1 {
			even.Add(even, big.NewInt(1))
		}
		requireNano(t, up, sum.Up)
		requireNano(t, even, sum.HalfEven)
	})
}

// requireNano checks a result of a sum against the exact one, which may not fit.
func requireNano(t require.TestingT, want *big.Int, got func() (money.Nano, error)) {
	n, err := got()
	if !want.IsInt64() {
		require.ErrorIs(t, err, money.ErrOverflow)
		return
	}
	require.NoError(t, err)
	require.Equal(t, money.Nano(want.Int64()), n)
}

// TestSum_DoesNotWrapToZero adds up to just below 2^64 nano-dollars, where rounding up passes 64 bits.
func TestSum_DoesNotWrapToZero(t *testing.T) {
	t.Parallel()
	var sum money.Sum
	require.NoError(t, sum.Add(math.MaxInt64, 2_000_000)) // 2^64 - 2
	require.NoError(t, sum.Add(1, 1_999_999))             // + 1.999999
	_, err := sum.Up()
	require.ErrorIs(t, err, money.ErrOverflow)
	_, err = sum.HalfEven()
	require.ErrorIs(t, err, money.ErrOverflow)
}

func TestSum_RefusesWhatIsNegativeOrPast128Bits(t *testing.T) {
	t.Parallel()
	var sum money.Sum
	require.ErrorIs(t, sum.Add(-1, 1), money.ErrNegative)
	require.ErrorIs(t, sum.Add(1, -1), money.ErrNegative)
	for range 4 {
		require.NoError(t, sum.Add(math.MaxInt64, math.MaxInt64))
	}
	require.ErrorIs(t, sum.Add(math.MaxInt64, math.MaxInt64), money.ErrOverflow)
}

func TestSum_RoundsOnceHalfToEven(t *testing.T) {
	t.Parallel()
	for micro, want := range map[int64]struct{ even, up money.Nano }{
		0: {0, 0}, 1: {0, 1}, 500_000: {0, 1}, 500_001: {1, 1}, 1_500_000: {2, 2}, 2_500_000: {2, 3}, 3_000_000: {3, 3},
	} {
		var sum money.Sum
		for range 2 { // two halves of a unit make a whole one: no rounding in between
			require.NoError(t, sum.Add(1, money.PerMillion(micro/2)))
		}
		require.NoError(t, sum.Add(micro%2, 1))
		even, err := sum.HalfEven()
		require.NoError(t, err)
		up, err := sum.Up()
		require.NoError(t, err)
		require.Equal(t, want.even, even, micro)
		require.Equal(t, want.up, up, micro)
	}
}

func TestScaled_RoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n, digits := extreme().Draw(t, "n"), rapid.IntRange(0, 18).Draw(t, "digits")
		text := money.FormatScaled(n, digits)
		require.Regexp(t, `^(0|[1-9]\d*)(\.\d*[1-9])?$`, text, "the shortest plain decimal")
		back, err := money.ParseScaled(text, digits)
		require.NoError(t, err)
		require.Equal(t, n, back)

		exact, ok := new(big.Rat).SetString(text)
		require.True(t, ok)
		scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(digits)), nil)
		require.Zero(t, exact.Cmp(new(big.Rat).SetFrac(big.NewInt(n), scale)))
		if n > 0 {
			require.Equal(t, "-"+text, money.FormatScaled(-n, digits))
		}
	})
}

func TestParse_EqualsBigArithmetic(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`(0|[1-9][0-9]{0,11})(\.[0-9]{1,9})?`).Draw(t, "text")
		exact, ok := new(big.Rat).SetString(text)
		require.True(t, ok)
		exact.Mul(exact, big.NewRat(1_000_000_000, 1))
		require.True(t, exact.IsInt())
		n, err := money.Parse(text)
		if !exact.Num().IsInt64() {
			require.ErrorIs(t, err, money.ErrOverflow)
			return
		}
		require.NoError(t, err)
		require.Equal(t, exact.Num().Int64(), int64(n))
	})
}

func TestParse_RefusesOtherForms(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"", ".", "1.", ".5", "-1", "+1", "00", "01", "00.5", "1e3", "1E3", "1,5", "1_000", "0x1", " 1", "1 ", "1.0.0", "1.-5",
		"1.1234567890", "1.0000000000", "٣", "1\x00", "NaN", "Infinity", "1/2", "$1",
	} {
		_, err := money.Parse(s)
		require.ErrorIs(t, err, money.ErrMalformed, "%q", s)
	}
	for _, s := range []string{"9223372036.854775808", "10000000000", strings.Repeat("9", 400)} {
		_, err := money.Parse(s)
		require.ErrorIs(t, err, money.ErrOverflow, s)
	}
}

func TestNano_String(t *testing.T) {
	t.Parallel()
	for n, want := range map[money.Nano]string{
		0: "0", 1: "0.000000001", 150_000: "0.00015", 1_000_000_000: "1", 1_500_000_000: "1.5", -1: "-0.000000001",
		100_000_000_000: "100", math.MaxInt64: "9223372036.854775807", math.MinInt64: "-9223372036.854775808",
	} {
		require.Equal(t, want, n.String())
	}
	require.Equal(t, "-"+strconv.FormatUint(1<<63, 10), money.FormatScaled(math.MinInt64, 0))
}

func FuzzParseScaled(f *testing.F) {
	f.Add("12.5", 9)
	f.Add("0", 0)
	f.Add("9223372036854775807", 0)
	f.Fuzz(func(t *testing.T, s string, digits int) {
		if digits < 0 || digits > 18 {
			return
		}
		n, err := money.ParseScaled(s, digits)
		if err != nil {
			return
		}
		back, err := money.ParseScaled(money.FormatScaled(n, digits), digits)
		require.NoError(t, err)
		require.Equal(t, n, back)
	})
}

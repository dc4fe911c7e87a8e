package apikey

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/internal/secret"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNewKeyParses(t *testing.T) {
	t.Parallel()
	key, publicID := New()
	require.Len(t, key.Reveal(), 67)
	parsed, err := Parse(key)
	require.NoError(t, err)
	require.Equal(t, publicID, parsed)
	require.Equal(t, key.Reveal()[63:], Last4(key))
}

func TestParse_RefusesWithoutLookUp(t *testing.T) {
	t.Parallel()
	key, _ := New()
	text := key.Reveal()
	for name, c := range map[string]struct {
		text string
		err  error
	}{
		"empty":        {"", ErrForeign},
		"of others":    {"sk-proj-abc", ErrForeign},
		"prefix alone": {Prefix, ErrChecksum},
		"too short":    {text[:66], ErrChecksum},
		"too long":     {text + "0", ErrChecksum},
		"not base62":   {text[:30] + "-" + text[31:], ErrChecksum},
		"upper case":   {strings.ToUpper(text), ErrForeign},
	} {
		_, err := Parse(secret.New(c.text))
		require.ErrorIs(t, err, c.err, name)
	}
}

// CRC-32 finds every single changed character, wherever it is.
func TestParse_FindsEachChangedCharacter(t *testing.T) {
	t.Parallel()
	key, _ := New()
	rapid.Check(t, func(t *rapid.T) {
		text := []byte(key.Reveal())
		at := rapid.IntRange(len(Prefix), len(text)-1).Draw(t, "at")
		text[at] = rapid.SampledFrom([]byte("0123456789ABCDEFabcdef")).
			Filter(func(b byte) bool { return b != text[at] }).Draw(t, "digit")
		_, err := Parse(secret.New(string(text)))
		require.ErrorIs(t, err, ErrChecksum)
	})
}

func TestEqual(t *testing.T) {
	t.Parallel()
	require.True(t, Equal([32]byte{1}, [32]byte{1}))
	require.False(t, Equal([32]byte{1}, [32]byte{2}))
}

func FuzzParse(f *testing.F) {
	key, _ := New()
	f.Add(key.Reveal())
	f.Add(Prefix)
	f.Add("Bearer \x00")
	f.Fuzz(func(t *testing.T, text string) {
		publicID, err := Parse(secret.New(text))
		if err != nil {
			require.Empty(t, publicID)
			return
		}
		require.Equal(t, text, text[:61]+checksum(text[:61]))
		require.Equal(t, publicID, text[6:18])
	})
}

package seal

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/internal/secret"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func keys(t *testing.T, parts ...secret.String) *Keys {
	t.Helper()
	texts := make([]string, 0, len(parts))
	for _, p := range parts {
		texts = append(texts, p.Reveal())
	}
	k, err := ParseKeys(secret.New(strings.Join(texts, ",")))
	require.NoError(t, err)
	return k
}

func TestSealedOpensOnlyInItsContext(t *testing.T) {
	t.Parallel()
	k := keys(t, Generate("a"))
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.String().Draw(rt, "text")
		context := rapid.SliceOfN(rapid.String(), 1, 4).Draw(rt, "context")
		other := rapid.SliceOfN(rapid.String(), 1, 4).
			Filter(func(o []string) bool { return !equal(o, context) }).Draw(rt, "other")
		sealed, err := k.Seal(secret.New(text), context...)
		require.NoError(t, err)
		plain, err := k.Open(sealed, context...)
		require.NoError(t, err)
		require.Equal(t, text, plain.Reveal())
		_, err = k.Open(sealed, other...)
		require.ErrorIs(t, err, ErrUnreadable)
	})
}

func equal(a, b []string) bool {
	return strings.Join(a, "\xff") == strings.Join(b, "\xff") && len(a) == len(b)
}

func TestFirstKeySealsAllOpen(t *testing.T) {
	t.Parallel()
	older, newer := Generate("old"), Generate("new")
	before, both, after := keys(t, older), keys(t, newer, older), keys(t, newer)
	sealed, err := before.Seal(secret.New("x"), "c")
	require.NoError(t, err)
	plain, err := both.Open(sealed, "c")
	require.NoError(t, err)
	require.Equal(t, "x", plain.Reveal())
	_, err = after.Open(sealed, "c")
	require.ErrorIs(t, err, ErrUnreadable)
	again, err := both.Seal(secret.New("x"), "c")
	require.NoError(t, err)
	_, err = after.Open(again, "c")
	require.NoError(t, err)
}

func TestSealedIsNeverTwiceTheSame(t *testing.T) {
	t.Parallel()
	k := keys(t, Generate("a"))
	one, err := k.Seal(secret.New("x"))
	require.NoError(t, err)
	two, err := k.Seal(secret.New("x"))
	require.NoError(t, err)
	require.NotEqual(t, one, two)
}

func TestRingsRefuseWeakKeys(t *testing.T) {
	t.Parallel()
	encode := base64.StdEncoding.EncodeToString
	ascending := make([]byte, 32)
	for i := range ascending {
		ascending[i] = byte(i)
	}
	good := Generate("a").Reveal()
	for name, text := range map[string]string{
		"none":         "",
		"no id":        strings.TrimPrefix(good, "a"),
		"no colon":     "a",
		"bad id":       "a b" + good[1:],
		"twice":        good + "," + good,
		"not base64":   "a:§",
		"short":        "a:" + encode(ascending[:16]),
		"zeros":        "a:" + encode(make([]byte, 32)),
		"one byte":     "a:" + encode(bytes.Repeat([]byte{7}, 32)),
		"two bytes":    "a:" + encode(bytes.Repeat([]byte{7, 200}, 16)),
		"ascending":    "a:" + encode(ascending),
		"text":         "a:" + encode([]byte("correct horse battery staple 123")),
		"empty member": good + ",",
	} {
		_, err := ParseKeys(secret.New(text))
		require.Error(t, err, name)
		_, err = ParsePeppers(secret.New(text))
		require.Error(t, err, name)
		if text != "" {
			require.NotContains(t, err.Error(), encode(ascending)[:10], name)
		}
	}
	_, err := ParseKeys(secret.New("a:" + encode(append(ascending[:1:1], bytes.Repeat([]byte(good), 2)...))))
	require.Error(t, err, "an encryption key has exactly 32 bytes")
}

func TestPepperSum(t *testing.T) {
	t.Parallel()
	ring := Generate("p2").Reveal() + "," + Generate("p1").Reveal()
	p, err := ParsePeppers(secret.New(ring))
	require.NoError(t, err)
	require.Equal(t, "p2", p.Current())
	key := secret.New("sk-tg-x")
	_, encoded, _ := strings.Cut(strings.Split(ring, ",")[1], ":")
	pepper, err := base64.StdEncoding.DecodeString(encoded)
	require.NoError(t, err)
	digest := sha256.Sum256([]byte("sk-tg-x"))
	h := hmac.New(sha256.New, pepper)
	h.Write(digest[:])
	sum, ok := p.Sum("p1", key)
	require.True(t, ok)
	require.Equal(t, h.Sum(nil), sum[:])
	_, ok = p.Sum("p3", key)
	require.False(t, ok)
}

func TestChecksTellKeysAndKindsApart(t *testing.T) {
	t.Parallel()
	text := Generate("a")
	k, err := ParseKeys(text)
	require.NoError(t, err)
	p, err := ParsePeppers(text)
	require.NoError(t, err)
	require.Equal(t, k.Checks(), keys(t, text).Checks())
	require.NotEqual(t, k.Checks()[0].Proof, p.Checks()[0].Proof)
	require.NotEqual(t, k.Checks()[0].Proof, keys(t, Generate("a")).Checks()[0].Proof)
}

func FuzzOpen(f *testing.F) {
	k, err := ParseKeys(Generate("a"))
	if err != nil {
		f.Fatal(err)
	}
	sealed, err := k.Seal(secret.New("x"), "c")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sealed)
	f.Add([]byte{1, 1, 'a'})
	f.Fuzz(func(t *testing.T, data []byte) {
		plain, err := k.Open(data, "c")
		if bytes.Equal(data, sealed) {
			require.Equal(t, "x", plain.Reveal())
			return
		}
		require.ErrorIs(t, err, ErrUnreadable)
	})
}

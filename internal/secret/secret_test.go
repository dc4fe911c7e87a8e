package secret_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollgate-gateway/tollgate/internal/secret"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const canary = "canary-5f3a"

// holder carries a secret in every way in which a struct can.
type holder struct {
	Exported secret.String
	hidden   secret.String
	Pointer  *secret.String
	List     []secret.String
	Map      map[string]secret.String
	Any      any
}

func newHolder() holder {
	s := secret.New(canary)
	return holder{s, s, &s, []secret.String{s}, map[string]secret.String{"k": s}, s}
}

// requireSilent checks that out has no trace of the canary: plain, quoted, in hex or as a list of bytes.
func requireSilent(t *testing.T, out string) {
	t.Helper()
	for _, form := range []string{"%s", "%x", "%X", "% x", "%d", "%q"} {
		trace := fmt.Sprintf(form, []byte(canary))
		require.NotContains(t, out, trace)
	}
}

func TestString_NoVerbShowsIt(t *testing.T) {
	t.Parallel()
	s := secret.New(canary)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%#x", "%d", "%c", "%U", "%t", "%20s", "%-20v", "%.3s", "%T %[1]v"} {
		require.Contains(t, fmt.Sprintf(verb, s), "[secret]", verb)
		for _, value := range []any{s, &s, newHolder(), []any{s, newHolder()}, struct{ in holder }{newHolder()}, map[string]any{"a": s}} {
			requireSilent(t, fmt.Sprintf(verb, value))
		}
	}
	requireSilent(t, fmt.Sprint(s, &s, newHolder()))
	requireSilent(t, fmt.Sprintf("%p", s)) // fmt asks no method about this one
	requireSilent(t, fmt.Errorf("dial %v: %w", s, errors.New("refused")).Error())
}

func TestString_NoEncoderShowsIt(t *testing.T) {
	t.Parallel()
	s := secret.New(canary)
	out, err := json.Marshal(map[string]any{"a": s, "b": newHolder(), "c": &s})
	require.NoError(t, err)
	require.Contains(t, string(out), `"a":"[secret]"`)
	requireSilent(t, string(out))
	type element struct{ S secret.String }
	out, err = xml.Marshal(element{s})
	require.NoError(t, err)
	require.Contains(t, string(out), "[secret]")
	requireSilent(t, string(out))
}

func TestString_NoLoggerShowsIt(t *testing.T) {
	t.Parallel()
	s := secret.New(canary)
	var out bytes.Buffer
	logger := zerolog.New(&out)
	logger.Info().Stringer("a", s).Interface("b", s).Any("c", newHolder()).Fields(map[string]any{"d": s, "e": newHolder()}).
		Err(fmt.Errorf("use %v", s)).Msgf("%v %+v", s, newHolder())
	slog.New(slog.NewTextHandler(&out, nil)).Info("m", "a", s, "b", newHolder())
	slog.New(slog.NewJSONHandler(&out, nil)).Info("m", "a", s, "b", newHolder())
	log.New(&out, "", 0).Printf("%v %+v %#v", s, newHolder(), &s)
	require.Contains(t, out.String(), `"a":"[secret]","b":"[secret]"`)
	requireSilent(t, out.String())
}

func TestString_RevealsOnlyOnRequest(t *testing.T) {
	t.Parallel()
	require.Equal(t, canary, secret.New(canary).Reveal())
	require.False(t, secret.New(canary).IsZero())
	for _, none := range []secret.String{{}, secret.New("")} {
		require.Empty(t, none.Reveal())
		require.True(t, none.IsZero())
		require.True(t, none.Equal(secret.String{}))
		require.Equal(t, "[secret]", none.String())
	}
	require.True(t, secret.New(canary).Equal(secret.New(canary)))
	require.False(t, secret.New(canary).Equal(secret.New("other")))
	require.False(t, secret.New(canary).Equal(secret.String{}))
}

func TestString_ReadsTextButNotItsPlaceholder(t *testing.T) {
	t.Parallel()
	var s secret.String
	require.NoError(t, json.Unmarshal([]byte(`"`+canary+`"`), &s))
	require.Equal(t, canary, s.Reveal())
	shown, err := json.Marshal(s)
	require.NoError(t, err)
	require.ErrorIs(t, json.Unmarshal(shown, &s), secret.ErrMasked)
	require.Equal(t, canary, s.Reveal(), "what was there stays")
}

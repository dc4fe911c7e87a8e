package gateway

import (
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
)

// ward is breakers whose clock a test turns, and what they told.
type ward struct {
	*breakers
	at   time.Time
	told []string
}

func newWard() *ward {
	w := &ward{at: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)}
	cfg := DefaultConfig()
	cfg.BreakerFailures, cfg.BreakerCooldown = 3, 10*time.Second
	w.breakers = newBreakers(cfg, func() time.Time { return w.at }, zerolog.Nop(), func(values ...string) { w.told = append(w.told, values[0]+" "+values[1]) })
	return w
}

func target(num int64, id string) *governance.Target {
	return &governance.Target{Meta: governance.Meta{Num: num, ID: id}}
}

// names lists targets in the order of a ward, with a bar behind those that are well.
func (w *ward) names(targets ...*governance.Target) string {
	ordered, well := w.order(targets)
	s := ""
	for i, t := range ordered {
		if i == well {
			s += "|"
		}
		s += t.ID
	}
	return s
}

func TestF218_ATargetThatFailsIsPutAsideAndProbed(t *testing.T) {
	t.Parallel()
	w := newWard()
	a, b, c := target(1, "a"), target(2, "b"), target(3, "c")
	for range 2 {
		w.leave(a, isIll, false, 0)
	}
	w.leave(a, isWell, false, 0) // in a row, that is
	for range 2 {
		w.leave(a, isIll, false, 0)
		w.leave(a, saysNothing, false, 0)
	}
	require.Equal(t, "abc", w.names(a, b, c))
	w.leave(a, isIll, false, 0)
	require.Equal(t, "bc|a", w.names(a, b, c))
	require.Equal(t, []string{"a open"}, w.told)
	ok, _ := w.enter(a)
	require.False(t, ok)

	w.at = w.at.Add(10 * time.Second)
	require.Equal(t, "abc", w.names(a, b, c))
	ok, probe := w.enter(a)
	require.True(t, ok)
	require.True(t, probe)
	ok, _ = w.enter(a)
	require.False(t, ok, "one probe at a time")
	w.leave(a, isIll, true, 0)
	w.at = w.at.Add(10 * time.Second)
	require.Equal(t, "bc|a", w.names(a, b, c), "the cool-down has doubled")
	w.at = w.at.Add(10 * time.Second)
	_, probe = w.enter(a)
	require.True(t, probe)
	w.leave(a, isWell, true, 0)
	require.Equal(t, []string{"a open", "a closed"}, w.told)
	ok, probe = w.enter(a)
	require.True(t, ok)
	require.False(t, probe)
	require.Empty(t, w.targets, "who is well is not remembered")
}

// TestF218_AProbeThatShowsNothingIsGivenBack: a caller that its own limits refuse, or that leaves, keeps no target aside.
func TestF218_AProbeThatShowsNothingIsGivenBack(t *testing.T) {
	t.Parallel()
	w := newWard()
	a, b := target(1, "a"), target(2, "b")
	for range 3 {
		w.leave(a, isIll, false, 0)
	}
	w.at = w.at.Add(10 * time.Second)
	for range 5 {
		ok, probe := w.enter(a)
		require.True(t, ok)
		require.True(t, probe)
		require.Equal(t, "b|a", w.names(a, b))
		w.leave(a, saysNothing, probe, 0)
		require.Equal(t, "ab", w.names(a, b))
	}
}

func TestF218_TheLastTargetIsNeverPutAside(t *testing.T) {
	t.Parallel()
	w := newWard()
	a, b := target(1, "a"), target(2, "b")
	for range 3 {
		w.leave(a, isIll, false, 0)
	}
	require.Equal(t, "|a", w.names(a), "is tried without being asked")
	w.at = w.at.Add(time.Second)
	for range 3 {
		w.leave(b, isIll, false, 0)
	}
	require.Equal(t, "|ab", w.names(b, a), "the one that comes back first is tried first")
}

func TestF218_AProvidersHintIsHeeded(t *testing.T) {
	t.Parallel()
	w := newWard()
	a, b := target(1, "a"), target(2, "b")
	w.leave(a, isBusy, false, 30*time.Second)
	require.Equal(t, "b|a", w.names(a, b))
	require.Empty(t, w.told, "to be busy is not to be ill")
	w.at = w.at.Add(30 * time.Second)
	require.Equal(t, "ab", w.names(a, b))
	w.leave(a, isBusy, false, 24*time.Hour)
	w.at = w.at.Add(time.Minute)
	require.Equal(t, "ab", w.names(a, b), "within bounds")
	for range 3 {
		w.leave(b, isIll, false, 40*time.Second)
	}
	w.at = w.at.Add(30 * time.Second)
	require.Equal(t, "a|b", w.names(a, b), "longer than the cool-down")
}

func TestBreakersCanBeSwitchedOff(t *testing.T) {
	t.Parallel()
	w := newWard()
	w.failures = 0
	for range 30 {
		w.leave(target(1, "a"), isIll, false, 0)
	}
	require.Equal(t, "ab", w.names(target(1, "a"), target(2, "b")))
}

package gateway_test

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/gateway"
	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/plugins"
)

// memory is an answer cache that takes calls with the same body and policy for equal.
type memory struct {
	mu   sync.Mutex
	room int
	err  error
	kept map[string]plugins.Answer
}

func (*memory) ID() string { return "memory" }

func (m *memory) Lookup(_ context.Context, c *plugins.Call) (*plugins.Answer, plugins.Slot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := string(c.Body.Bytes()) + c.Policy
	slot := plugins.Slot{Room: m.room, Keep: func(a plugins.Answer) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.kept[key] = a
	}}
	if m.kept == nil {
		m.kept = make(map[string]plugins.Answer)
	}
	if a, ok := m.kept[key]; ok && m.err == nil {
		return &a, slot, nil
	}
	return nil, slot, m.err
}

func (m *memory) answers() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.kept)
}

func cached(m *memory) func(*setup) {
	return func(s *setup) { s.chain = append(s.chain, gateway.Link{Plugin: m}) }
}

// TestAnEqualCallIsAnsweredAgain: the bytes are the first answer's, one request is charged, and nothing is forwarded.
func TestAnEqualCallIsAnsweredAgain(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{"whole": chatBody, "stream": streamBody} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &memory{room: 1 << 20}
			b := start(t, cached(m), func(s *setup) {
				s.model("m", "small")
				s.limit(governance.KindRate, governance.MetricRequests, 10)
				s.limit(governance.KindBudget, governance.MetricCost, 1_000_000_000)
				s.limit(governance.KindConcurrency, governance.MetricRequests, 5)
			})
			first := b.post("/v1/chat/completions", body)
			require.Equal(t, http.StatusOK, first.StatusCode, first.text())
			require.Equal(t, "miss", first.Header.Get("X-Tollgate-Cache"))
			b.idle()
			again := b.post("/v1/chat/completions", body)
			require.Equal(t, http.StatusOK, again.StatusCode, again.text())
			require.Equal(t, first.text(), again.text())
			require.Equal(t, first.Header.Get("Content-Type"), again.Header.Get("Content-Type"))
			require.Equal(t, "hit", again.Header.Get("X-Tollgate-Cache"))
			require.Equal(t, "0", again.Header.Get("Age"))
			require.NotEqual(t, first.Header.Get("X-Request-Id"), again.Header.Get("X-Request-Id"))
			require.Equal(t, int64(1), b.mock.Counts().Count)
			settled := b.settled(2)
			require.Equal(t, governance.OutcomeComplete, settled[0].Outcome)
			require.Equal(t, governance.OutcomeCacheHit, settled[1].Outcome)
			require.Equal(t, governance.UsageCache, settled[1].Source)
			require.Equal(t, governance.BasisHold, settled[1].Requests)
			require.Zero(t, settled[1].Cost)
			require.Zero(t, settled[1].Quantities)
			require.Zero(t, b.ledger.held())
		})
	}
}

func TestAnAnswerFromTheCacheNeedsARequest(t *testing.T) {
	t.Parallel()
	b := start(t, cached(&memory{room: 1 << 20}), func(s *setup) {
		s.model("m", "small")
		s.limit(governance.KindRate, governance.MetricRequests, 2)
	})
	require.Equal(t, http.StatusOK, b.chat().StatusCode)
	b.idle()
	require.Equal(t, "hit", b.chat().Header.Get("X-Tollgate-Cache"))
	refused := b.chat()
	require.Equal(t, http.StatusTooManyRequests, refused.StatusCode, refused.text())
	require.Equal(t, int64(1), b.mock.Counts().Count)
}

// TestWhatIsNotKept: nothing but a whole, successful answer with the provider's own usage, and none that is too long.
func TestWhatIsNotKept(t *testing.T) {
	t.Parallel()
	for _, script := range []string{"status(500)", "status(400)", "ok_no_usage", "reset_before_bytes", "200_with_error_body", "200_first_event_error"} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			m := &memory{room: 1 << 20}
			b := start(t, cached(m), func(s *setup) { s.model("m", script) })
			b.chat()
			b.stream()
			b.idle()
			require.Zero(t, m.answers())
		})
	}
	t.Run("without its last event", func(t *testing.T) {
		t.Parallel()
		m := &memory{room: 1 << 20}
		b := start(t, cached(m), func(s *setup) { s.model("m", "clean_close_without_done(12)") })
		a := b.stream()
		require.NotContains(t, a.text(), "[DONE]")
		b.idle()
		require.Zero(t, m.answers())
	})
	t.Run("too long", func(t *testing.T) {
		t.Parallel()
		m := &memory{room: 20}
		b := start(t, cached(m), func(s *setup) { s.model("m", "small") })
		require.Equal(t, http.StatusOK, b.chat().StatusCode)
		b.idle()
		require.Zero(t, m.answers())
	})
	t.Run("of a target that serves the model no more", func(t *testing.T) {
		t.Parallel()
		m := &memory{room: 1 << 20}
		b := start(t, cached(m), func(s *setup) { s.model("m", "small") })
		require.Equal(t, http.StatusOK, b.chat().StatusCode)
		b.idle()
		m.mu.Lock()
		for key, a := range m.kept {
			a.TargetNum = 99
			m.kept[key] = a
		}
		m.mu.Unlock()
		require.Equal(t, "miss", b.chat().Header.Get("X-Tollgate-Cache"))
	})
}

func TestACacheThatFailsKnowsNothing(t *testing.T) {
	t.Parallel()
	b := start(t, cached(&memory{err: errors.New("broken")}), func(s *setup) { s.model("m", "small") })
	require.Equal(t, http.StatusOK, b.chat().StatusCode)
	require.Equal(t, http.StatusOK, b.chat().StatusCode)
	require.Equal(t, int64(2), b.mock.Counts().Count)
}

// strict is a guard of events. With a policy it says what that is.
type strict struct{ id string }

func (s strict) ID() string { return s.id }

func (strict) GuardAnswer(*plugins.Call) plugins.AnswerJudge { return nil }

type policied struct{ strict }

func (policied) Policy(c *plugins.Call) string { return c.Principal.Team.Name }

// TestT19_AnswersStayUnderTheirPolicy: two keys of a team meet under one policy, and never where a guard cannot tell its own.
func TestT19_AnswersStayUnderTheirPolicy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		guard plugins.Plugin
		want  string
	}{
		{"told", policied{strict{"told"}}, "hit"},
		{"untold", strict{"untold"}, "miss"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := start(t, cached(&memory{room: 1 << 20}), func(s *setup) {
				s.model("m", "small")
				s.chain = append(s.chain, gateway.Link{Plugin: c.guard})
				s.colleague = s.principal
				s.colleague.Key.Num = 4
			})
			require.Equal(t, http.StatusOK, b.chat().StatusCode)
			b.idle()
			require.Equal(t, "hit", b.chat().Header.Get("X-Tollgate-Cache"))
			require.Equal(t, c.want, b.chat("Authorization", "Bearer "+otherKey).Header.Get("X-Tollgate-Cache"))
		})
	}
}

package gateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
)

// shelf keeps in memory where responses are.
type shelf struct {
	mu   sync.Mutex
	at   map[string]int64
	fail error
}

func (s *shelf) Remember(_ context.Context, organization, target int64, responses ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil {
		s.at = make(map[string]int64)
	}
	for _, response := range responses {
		s.at[fmt.Sprint(organization, response)] = target
	}
	return s.fail
}

func (s *shelf) Target(_ context.Context, organization int64, response string) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return 0, s.fail
	}
	num, ok := s.at[fmt.Sprint(organization, response)]
	if !ok {
		return 0, governance.ErrNotFound
	}
	return num, nil
}

func (s *shelf) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.at)
}

// responseID reads the id of a whole response, or of one that was streamed.
func responseID(t *testing.T, text string) string {
	t.Helper()
	_, rest, _ := strings.Cut(text, `"id":"resp`)
	id, _, ok := strings.Cut(rest, `"`)
	require.True(t, ok, text)
	return "resp" + id
}

// TestF110_WhoGoesOnFromAResponseGoesToItsTarget, whatever is tried first, and to no other one: that has not got it.
func TestF110_WhoGoesOnFromAResponseGoesToItsTarget(t *testing.T) {
	t.Parallel()
	for _, stream := range []string{"false", "true"} {
		s2 := &shelf{}
		b := start(t, func(s *setup) {
			s.responses = s2
			s.config.BreakerFailures = 1
			s.model("first", "small")
			s.model("m", "status(500)", "small")
		})
		first := b.post("/v1/responses", `{"model":"m","stream":`+stream+`,"input":"hi"}`)
		require.Equal(t, http.StatusOK, first.StatusCode, first.text())
		id := responseID(t, first.text())
		require.Equal(t, 1, s2.len())
		sent := len(b.sent())
		for range 20 {
			a := b.post("/v1/responses", `{"model":"m","previous_response_id":"`+id+`","input":"go on"}`)
			require.Equal(t, http.StatusOK, a.StatusCode, a.text())
		}
		for _, r := range b.sent()[sent:] {
			var body struct{ Model string }
			require.NoError(t, json.Unmarshal(r.Body, &body))
			require.Equal(t, "mock-small", body.Model)
		}
		require.Len(t, b.sent(), sent+20)

		a := b.post("/v1/responses", `{"model":"first","previous_response_id":"`+id+`","input":"go on"}`)
		require.Equal(t, http.StatusBadRequest, a.StatusCode, "another model, which that target does not serve")
		require.Equal(t, "previous_response_id", *a.failure(t).Param)
	}
}

// TestF110_EncryptedReasoningGoesBackToItsProvider: no other one can read it. What keeps no response sends its reasoning along.
func TestF110_EncryptedReasoningGoesBackToItsProvider(t *testing.T) {
	t.Parallel()
	for _, stream := range []string{"false", "true"} {
		known := &shelf{}
		b := start(t, func(s *setup) {
			s.responses = known
			s.config.BreakerFailures = 0
			s.model("m", "status(500)", "small", "twin", "other")
			s.targets[2].Provider = s.targets[1].Provider
			s.model("others", "small", "small")
			s.model("alone", "small")
		})
		ask := func(model, input string) answer {
			return b.post("/v1/responses", `{"model":"`+model+`","store":false,"stream":`+stream+`,"include":["reasoning.encrypted_content"],"input":`+input+`}`)
		}
		item := func(content string) string {
			return `[{"role":"user","content":"hi"},{"type":"reasoning","summary":[],"encrypted_content":"stale"},` +
				`{"type":"reasoning","summary":[],"encrypted_content":` + content + `},{"role":"user","content":"go on"}]`
		}
		first := ask("m", `"hi"`)
		require.Equal(t, http.StatusOK, first.StatusCode, first.text())
		_, rest, _ := strings.Cut(first.text(), `"encrypted_content":"sealed-`)
		number, _, ok := strings.Cut(rest, `"`)
		require.True(t, ok, first.text())
		require.Equal(t, 1, known.len(), "the reasoning, and not the response")
		for range 5 {
			sent := len(b.sent())
			require.Equal(t, http.StatusOK, ask("m", item(`"sealed-`+number+`"`)).StatusCode)
			require.Contains(t, string(b.sent()[sent].Body), `"mock-small"`)
			require.Len(t, b.sent(), sent+1)
		}

		a := ask("others", item(`"sealed-`+number+`"`))
		require.Equal(t, http.StatusBadRequest, a.StatusCode, a.text())
		require.Equal(t, "input", *a.failure(t).Param)
		for _, odd := range []string{`"of somebody else"`, `""`, "null", "7"} {
			require.Equal(t, http.StatusOK, ask("others", item(odd)).StatusCode, odd)
		}
		kept := known.len()
		require.Equal(t, http.StatusOK, ask("alone", `"hi"`).StatusCode)
		require.Equal(t, kept, known.len(), "where there is one target there is nothing to remember")
	}
}

func TestF110_ResponsesOfOthersAreUnknown(t *testing.T) {
	t.Parallel()
	known := &shelf{at: map[string]int64{"9resp_theirs": 1}}
	b := start(t, func(s *setup) {
		s.responses = known
		s.model("m", "small")
	})
	for _, id := range []string{"resp_theirs", "resp_nobodys"} {
		a := b.post("/v1/responses", `{"model":"m","previous_response_id":"`+id+`","input":"go on"}`)
		require.Equal(t, http.StatusNotFound, a.StatusCode, a.text())
		require.Equal(t, "previous_response_id", *a.failure(t).Param)
	}
	require.Zero(t, b.mock.Counts().Count)
	require.Empty(t, b.ledger.admitted())
}

func TestF110_WhatIsNotStoredIsNotRemembered(t *testing.T) {
	t.Parallel()
	known := &shelf{}
	b := start(t, func(s *setup) {
		s.responses = known
		s.model("m", "small")
		s.model("refuses", "status(400)")
	})
	for _, body := range []string{`{"model":"m","store":false,"input":"hi"}`, `{"model":"m","store":false,"stream":true,"input":"hi"}`, `{"model":"refuses","input":"hi"}`} {
		b.post("/v1/responses", body)
	}
	require.Equal(t, http.StatusOK, b.chat().StatusCode)
	b.idle()
	require.Zero(t, known.len())
	require.Equal(t, http.StatusBadRequest, b.post("/v1/responses", `{"model":"m","previous_response_id":7,"input":"hi"}`).StatusCode)
}

// TestResponsesThatGoOnElsewhereAreRefused: what they use later nobody would learn here, and whose a conversation is nobody knows.
func TestResponsesThatGoOnElsewhereAreRefused(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.model("m", "small") })
	for member, bad := range map[string][]string{
		"background": {"true", "7"}, "conversation": {`"conv_1"`, `{"id":"conv_1"}`},
	} {
		for _, value := range bad {
			a := b.post("/v1/responses", `{"model":"m","input":"hi","`+member+`":`+value+`}`)
			require.Equal(t, http.StatusBadRequest, a.StatusCode, a.text())
			require.Equal(t, member, *a.failure(t).Param)
		}
	}
	require.Zero(t, b.mock.Counts().Count)
	require.Empty(t, b.ledger.admitted())
	require.Equal(t, http.StatusOK, b.post("/v1/responses", `{"model":"m","input":"hi","background":false,"conversation":null}`).StatusCode)
}

// TestF110_AStoreThatIsAwayHoldsUpNoAnswer, and sends nobody to where the response may not be.
func TestF110_AStoreThatIsAwayHoldsUpNoAnswer(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.responses = &shelf{fail: errors.Join(governance.ErrStoreAway, errors.New("gone"))}
		s.model("m", "small")
	})
	require.Equal(t, http.StatusOK, b.post("/v1/responses", `{"model":"m","input":"hi"}`).StatusCode)
	a := b.post("/v1/responses", `{"model":"m","previous_response_id":"resp_1","input":"hi"}`)
	require.Equal(t, http.StatusServiceUnavailable, a.StatusCode, a.text())
	require.Equal(t, int64(1), b.mock.Counts().Count)
}

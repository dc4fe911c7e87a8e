package e2e

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// inForce is how long a change may take until it holds on every replica.
const inForce = time.Second

// requireSoon asserts that within a second every gateway answers as it should.
func (f *fleet) requireSoon(what, key, body string, right func(answer) bool) {
	f.t.Helper()
	start := time.Now()
	for i, g := range f.gateways {
		var last answer
		f.eventually(10*time.Second, what, func() bool {
			var err error
			last, err = g.call(f.t.Context(), key, "/v1/chat/completions", body)
			return err == nil && right(last)
		})
		require.LessOrEqual(f.t, time.Since(start), inForce, "%s: gateway %d took too long", what, i)
	}
}

func answers(status int, code string) func(answer) bool {
	return func(a answer) bool { return a.status == status && a.code() == code }
}

// metric sums the samples of a metric, over all gateways, whose labels contain a text.
func (f *fleet) metric(name, label string) int {
	f.t.Helper()
	sum := 0
	for _, g := range f.gateways {
		r, err := http.Get(g.ops + "/metrics")
		require.NoError(f.t, err)
		text, err := io.ReadAll(r.Body)
		require.NoError(f.t, err)
		require.NoError(f.t, r.Body.Close())
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, name) && strings.Contains(line, label) {
				n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
				require.NoError(f.t, err)
				sum += int(n)
			}
		}
	}
	return sum
}

// Whatever an admin changes holds on every replica within a second, under steady load and without a restart: amounts
// (F137), modes (F068), a new secret for a key, whose meters stay (F038), and what is blocked (F136). No call of the load
// fails, and no stream is cut, for any of it (F178).
func TestF038_F068_F136_F137_F178_ChangesUnderLoad(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{gateways: 2})
	team := text(f.create("teams", object{"organization_id": f.org, "name": "Team"})["id"])
	other := text(f.create("organizations", object{"name": "Other"})["id"])
	issue := func(owner object, limits ...object) (key, id string) {
		owner["name"], owner["limits"] = "key of changes", limits
		o := f.create("keys", owner)
		return text(o["key"]), text(o["id"])
	}
	busy, _ := f.issue(forever("cost", "1000"), perDay("requests", "1000000"))
	f.addModel("long", "long")
	f.awaitModels(busy, "long")
	f.script("long", "confirm")

	stream, err := f.gateways[0].open(t.Context(), busy, streaming(named("long")))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	load := make(chan []outcome, 1)
	go func() { load <- f.steadyLoad(ctx, 40, chat(busy, helloChat)) }()

	// The store reads amounts in each decision: the very next call obeys, whatever its gateway has cached.
	key, id := f.issue(perDay("requests", "100"))
	limit := f.limitsOf(id)[0]
	require.Equal(t, map[string]int{"200": 6}, tally(f.closedLoop(2, 6, chat(key, helloChat))))
	f.patch("limits/"+limit, object{"amount": "5"})
	require.Equal(t, map[string]int{"200": 5, "429 rate_limit_exceeded": 7}, tally(f.closedLoop(2, 12, chat(key, helloChat))), "a smaller bucket holds less")
	f.patch("limits/"+limit, object{"amount": "50"})
	require.Equal(t, map[string]int{"429 rate_limit_exceeded": 4}, tally(f.closedLoop(2, 4, chat(key, helloChat))), "a larger bucket was filled for nothing")
	f.patch("limits/"+limit, object{"amount": "86400000"}) // which refills by a thousand a second
	f.requireSoon("a raised rate", key, helloChat, func(a answer) bool { return a.status == http.StatusOK })

	budget, budgetID := f.issue(forever("cost", "1"))
	limit = f.limitsOf(budgetID)[0]
	require.Equal(t, map[string]int{"200": 2}, tally(f.closedLoop(2, 2, chat(budget, helloChat))))
	f.patch("limits/"+limit, object{"amount": "0.000001"})
	f.requireSoon("a lowered budget", budget, helloChat, answers(http.StatusTooManyRequests, "budget_exceeded"))

	// A key's new secret changes nothing of what was spent, and the old one ends as it was told to.
	status, rotated := f.admin(http.MethodPost, "keys/"+budgetID+"/rotate", object{"grace": "0s"})
	require.Contains(t, []int{http.StatusOK, http.StatusCreated}, status, "%v", rotated)
	fresh := text(rotated["key"])
	require.NotEmpty(t, fresh)
	require.NotEqual(t, budget, fresh)
	f.requireSoon("a rotated key still without budget", fresh, helloChat, answers(http.StatusTooManyRequests, "budget_exceeded"))
	f.requireSoon("the old secret", budget, helloChat, func(a answer) bool { return a.status == http.StatusUnauthorized })
	f.patch("limits/"+limit, object{"amount": "1"})
	f.requireSoon("a raised budget", fresh, helloChat, func(a answer) bool { return a.status == http.StatusOK })
	for _, row := range f.rowsOf("key_id", budgetID) {
		require.Equal(t, budgetID, row["key"].(object)["id"])
	}

	// Log mode counts and never refuses; enforcement begins and ends within a second.
	logged := perDay("requests", "5")
	logged["mode"] = "log"
	trial, trialID := f.issue(logged)
	limit = f.limitsOf(trialID)[0]
	outcomes := f.closedLoop(4, 20, chat(trial, helloChat))
	require.Equal(t, map[string]int{"200": 20}, tally(outcomes))
	for _, o := range outcomes {
		require.Empty(t, o.header.Get("x-ratelimit-limit-requests"), "a limit in log mode shows in headers")
	}
	require.Equal(t, 15, f.metric("tollgate_gateway_would_refuse_total", limit))
	f.patch("limits/"+limit, object{"mode": "enforce"})
	f.requireSoon("enforcement", trial, helloChat, answers(http.StatusTooManyRequests, "rate_limit_exceeded"))
	f.patch("limits/"+limit, object{"mode": "log"})
	f.requireSoon("log mode", trial, helloChat, func(a answer) bool { return a.status == http.StatusOK })

	// Blocked and let in again: a key, its team, its organization.
	teamKey, teamKeyID := issue(object{"team_id": team})
	otherKey, _ := issue(object{"organization_id": other})
	for range 10 {
		for _, c := range []struct{ path, key, code string }{
			{"keys/" + teamKeyID, teamKey, "key_blocked"},
			{"teams/" + team, teamKey, "team_blocked"},
			{"organizations/" + other, otherKey, "organization_blocked"},
		} {
			f.requireSoon("a key that nothing blocks", c.key, helloChat, func(a answer) bool { return a.status == http.StatusOK })
			f.patch(c.path, object{"blocked": true})
			f.requireSoon(c.code, c.key, helloChat, answers(http.StatusForbidden, c.code))
			f.patch(c.path, object{"blocked": false})
			f.requireSoon("unblocked", c.key, helloChat, func(a answer) bool { return a.status == http.StatusOK })
		}
	}

	cancel()
	outcomes = <-load
	counts := tally(outcomes)
	t.Logf("load: %v, p50 %v, p95 %v", counts, percentile(outcomes, 50), percentile(outcomes, 95))
	require.Equal(t, map[string]int{"200": len(outcomes)}, counts)
	require.Greater(t, len(outcomes), 40)
	f.mock.Release(0, 100)
	last := ""
	for {
		event, err := stream.event()
		if err != nil {
			break
		}
		last = event
	}
	require.Equal(t, "data: [DONE]\n\n", last, "a stream was cut by a change")
	f.requireBooksBalance()
	f.requireOneRowPerForward()
}

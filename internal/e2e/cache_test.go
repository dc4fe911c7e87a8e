package e2e

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestResponseCache follows an answer to everyone who may share it, and to nobody else. Each who gets it pays a request and
// no money, has a row that says so, and is refused when its requests are gone.
func TestResponseCache(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{env: []string{"TOLLGATE_RESPONSE_CACHE=organization"}})
	budget := object{"kind": "budget", "metric": "cost", "amount": "1", "window": object{"type": "calendar", "period": "day"}}
	first, _ := f.issue(budget)
	second, _ := f.issue(budget, object{"kind": "rate", "metric": "requests", "amount": "2", "per": "24h"})
	other := text(f.create("organizations", object{"name": "Other"})["id"])
	foreign := text(f.create("keys", object{"organization_id": other, "name": "foreign"})["key"])
	g := f.gateways[0]
	ask := func(key, body string, headers ...string) answer {
		return must(t)(g.call(t.Context(), key, "/v1/chat/completions", body, headers...))
	}
	// An answer is there once its call has ended, a moment after the client has it all; and the configuration may still be
	// about to change.
	warm := func(key, body string) answer {
		var a answer
		f.eventually(20*time.Second, "an answer from the cache", func() bool {
			a = ask(key, body)
			require.Equal(t, http.StatusOK, a.status, "%s", a.body)
			return a.header.Get("X-Tollgate-Cache") == "hit"
		})
		return a
	}
	const plain = `{"model":"plain","messages":[{"role":"user","content":"again and again"}]}`
	const stream = `{"model":"plain","stream":true,"messages":[{"role":"user","content":"again and again"}]}`
	for _, body := range []string{plain, stream} {
		told := warm(first, body)
		sent := f.mock.Counts().Count
		again := ask(second, body)
		require.Equal(t, http.StatusOK, again.status, "%s", again.body)
		require.Equal(t, "hit", again.header.Get("X-Tollgate-Cache"))
		require.Equal(t, string(told.body), string(again.body))
		require.Equal(t, told.header.Get("Content-Type"), again.header.Get("Content-Type"))
		require.Equal(t, sent, f.mock.Counts().Count)

		require.Equal(t, "miss", ask(foreign, body).header.Get("X-Tollgate-Cache"), "another organization")
		require.Empty(t, ask(first, body, "Cache-Control", "no-store").header.Get("X-Tollgate-Cache"))
		require.Equal(t, "miss", ask(first, body, "Cache-Control", "no-cache").header.Get("X-Tollgate-Cache"))
		require.Equal(t, sent+3, f.mock.Counts().Count)
	}
	refused := ask(second, plain)
	require.Equal(t, http.StatusTooManyRequests, refused.status, "its two requests were answered from the cache: %s", refused.body)

	f.requireBooksBalance()
	f.eventually(20*time.Second, "what was saved", func() bool {
		hits, saved := 0, 0
		for _, row := range f.rows() {
			if row["outcome"] != "cache_hit" {
				continue
			}
			hits++
			require.Equal(t, "cache", row["usage_source"])
			require.Equal(t, "0", row["cost_usd"])
			if tags, _ := row["tags"].(object); tags["tollgate.cache_saved_usd"] != nil { // is written behind the row
				saved++
				require.NotEqual(t, "0", tags["tollgate.cache_saved_usd"])
			}
		}
		return hits >= 4 && saved == hits
	})

	f.issue() // any change of the configuration ends all answers
	f.eventually(20*time.Second, "a new answer", func() bool { return ask(first, plain).header.Get("X-Tollgate-Cache") == "miss" })
}

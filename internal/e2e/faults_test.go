package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// F025: a window of every scope begins by itself; no job resets it, and none is needed.
func TestF025_WindowsOfEveryScopeBeginByThemselves(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	team := text(f.create("teams", object{"organization_id": f.org, "name": "team"})["id"])
	user := text(f.create("users", object{"organization_id": f.org, "name": "user", "email": "u@example.com"})["id"])
	made := f.create("keys", object{"team_id": team, "user_id": user, "name": "key"})
	key, keyID := text(made["key"]), text(made["id"])
	for _, scope := range []object{
		{"type": "organization", "id": f.org},
		{"type": "team", "id": team},
		{"type": "key", "id": keyID},
		{"type": "user", "id": user},
		{"type": "end_user", "id": "*"},
	} {
		// One call of the mock takes at most its estimate; with max_tokens 9 that is what the window holds.
		limit := f.create("limits", object{
			"organization_id": f.org, "scope": scope, "kind": "budget", "metric": "output_tokens", "amount": "9",
			"window": object{"type": "fixed", "duration": "3s"}, "carry_debt": false,
		})
		call := func() answer {
			return must(t)(f.gateways[0].call(t.Context(), key, "/v1/chat/completions",
				strings.Replace(helloChat, "{", `{"max_tokens":9,"user":"somebody",`, 1)))
		}
		f.eventually(10*time.Second, "the limit is in force", func() bool { return call().status == http.StatusTooManyRequests })
		f.eventually(10*time.Second, "the next window has begun", func() bool { return call().status == http.StatusOK })
		status, o := f.admin(http.MethodDelete, "limits/"+text(limit["id"]), nil)
		require.Equal(t, http.StatusNoContent, status, "%v: %v", scope, o)
		f.eventually(10*time.Second, "the limit is gone", func() bool { return call().status == http.StatusOK })
	}
	f.requireBooksBalance()
}

// F029: a row that cannot be written for a while is not dropped.
func TestF029_RowsSurviveFailedInserts(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	key, _ := f.issue()
	db, err := pgx.Connect(t.Context(), f.dsn)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(t.Context())) }()
	_, err = db.Exec(t.Context(), `
		CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = '53100'; END $$;
		CREATE TRIGGER fail BEFORE INSERT ON ledger.rows FOR EACH ROW EXECUTE FUNCTION public.fail()`)
	require.NoError(t, err)
	const calls = 5
	ok := 0
	for range calls {
		if must(t)(f.gateways[0].call(t.Context(), key, "/v1/chat/completions", helloChat)).status == http.StatusOK {
			ok++
		}
	}
	require.Positive(t, ok, "the first call was admitted before any row had to be written")
	require.Equal(t, int64(ok), f.mock.Counts().Count)
	_, err = db.Exec(t.Context(), "DROP TRIGGER fail ON ledger.rows")
	require.NoError(t, err)
	f.eventually(30*time.Second, "every row is there", func() bool { return len(f.rows()) == ok })
	f.requireBooksBalance()
}

// F037, F044, F065: every way to a provider leaves a row, sockets are refused, and unknown policy headers are named.
func TestF037_F044_F065_NoWayRoundGovernance(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	key, _ := f.issue()
	g := f.gateways[0]
	bodies := map[string]string{
		"/v1/chat/completions": helloChat,
		"/v1/completions":      `{"model":"plain","prompt":"hello"}`,
		"/v1/embeddings":       `{"model":"plain","input":"hello"}`,
		"/v1/responses":        `{"model":"plain","input":"hello"}`,
		"/v1/moderations":      `{"model":"plain","input":"hello"}`,
		"/v1/messages":         `{"model":"plain","max_tokens":9,"messages":[{"role":"user","content":"hello"}]}`,
	}
	for path, body := range bodies {
		a := must(t)(g.call(t.Context(), key, path, body, "Anthropic-Version", "2023-06-01"))
		require.Equal(t, http.StatusOK, a.status, "%s: %s", path, a.body)
	}
	require.Len(t, f.rows(), len(bodies))
	seen := f.mock.Counts().Count

	socket := must(t)(g.call(t.Context(), key, "/v1/responses", bodies["/v1/responses"], "Connection", "Upgrade", "Upgrade", "websocket"))
	require.Equal(t, http.StatusNotImplemented, socket.status)
	misspelt := must(t)(g.call(t.Context(), key, "/v1/chat/completions", helloChat, "X-Tollgate-Max-Cots", "1"))
	require.Equal(t, http.StatusBadRequest, misspelt.status)
	require.Contains(t, strings.ToLower(string(misspelt.body)), "x-tollgate-max-cots")
	require.Equal(t, seen, f.mock.Counts().Count, "neither reached the provider")
}

// F028: gateways that settle the same meters at once never deadlock. F076: a long answer that is no JSON goes through, and
// the log has nothing to say about it.
func TestF028_F076_NoDeadlocksAndNoLogSpam(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{gateways: 2})
	var keys []string
	for range 6 {
		key, _ := f.issue(
			object{"kind": "rate", "metric": "requests", "amount": "100000", "per": "1m", "burst": "100000"},
			object{"kind": "budget", "metric": "cost", "amount": "100", "window": object{"type": "total"}},
		)
		keys = append(keys, key)
	}
	done := make(chan int)
	const workers, each = 8, 40
	for w := range workers {
		go func() {
			bad := 0
			for i := range each {
				a, err := f.gateways[(w+i)%2].call(t.Context(), keys[(w*7+i)%len(keys)], "/v1/chat/completions", helloChat)
				if err != nil || a.status != http.StatusOK {
					bad++
				}
			}
			done <- bad
		}()
	}
	for range workers {
		require.Zero(t, <-done)
	}
	db, err := pgx.Connect(t.Context(), f.dsn)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(t.Context())) }()
	var deadlocks int64
	require.NoError(t, db.QueryRow(t.Context(), "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").Scan(&deadlocks))
	require.Zero(t, deadlocks)
	require.Len(t, f.rows(), workers*each)
	f.requireBooksBalance()

	f.addModel("html", "mock-status(400,html)")
	f.eventually(20*time.Second, "the model is offered", func() bool {
		a := must(t)(f.gateways[0].call(t.Context(), keys[0], "/v1/chat/completions", strings.Replace(helloChat, "plain", "html", 1)))
		return a.status == http.StatusBadRequest
	})
	require.NotContains(t, f.gateways[0].out.String(), `"level":"error"`)
}

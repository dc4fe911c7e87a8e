package e2e

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/apikey"
)

var heapAlloc = regexp.MustCompile(`(?m)^# HeapAlloc = (\d+)$`)

// heap is how many bytes of a gateway's memory are in use after a collection.
func (p *process) heap(t *testing.T) int {
	t.Helper()
	least := 0
	for range 3 { // what was just let go is found by the next one
		a, err := probe(t, p.ops, "/debug/pprof/heap?gc=1&debug=1")
		require.NoError(t, err)
		found := heapAlloc.FindSubmatch(a.body)
		require.NotNil(t, found)
		n, err := strconv.Atoi(string(found[1]))
		require.NoError(t, err)
		if least == 0 || n < least {
			least = n
		}
	}
	return least
}

// wave sends so many calls by few workers: whole and abandoned streams, unary calls, and some that the upstream fails.
func (f *fleet) wave(key string, n int) {
	f.t.Helper()
	f.closedLoop(16, n, func(ctx context.Context, g *process, i int) (answer, error) {
		switch i % 5 {
		case 0, 1: // left after its first event
			ctx, leave := context.WithCancel(ctx)
			defer leave()
			r, err := g.open(ctx, key, streaming(named("steps")))
			if err == nil {
				_, err = r.event()
			}
			return answer{}, err
		case 2:
			return g.call(ctx, key, "/v1/chat/completions", streaming(helloChat))
		case 3:
			return g.call(ctx, key, "/v1/chat/completions", named("broken"))
		}
		return g.call(ctx, key, "/v1/chat/completions", helloChat)
	})
}

// mayGrow is by how much memory may differ between two waves of the same load: rings, pools and the race detector's own.
const mayGrow = 16 << 20

// F200, F203: load leaves nothing behind. After any number of calls, of which two in five are streams that their clients
// abandon, a gateway has the goroutines, descriptors and memory that it had before.
func TestF200_F203_LoadLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	key, _ := f.issue(forever("cost", "1000"))
	f.addModel("steps", "steps")
	f.addModel("broken", "broken")
	f.awaitModels(key, "steps", "broken")
	f.script("steps", "frame_gap(2ms)")
	f.script("broken", "status(500)")
	g := f.gateways[0]
	settle := func() {
		f.eventually(20*time.Second, "nothing is open", func() bool {
			_, page := f.admin(http.MethodGet, "reservations?state=open", nil)
			return len(items(page["items"])) == 0
		})
		client.CloseIdleConnections()
	}
	const calls, waves = 200, 3
	f.wave(key, calls)
	settle()
	goroutines, heap, files := f.goroutines(), g.heap(t), f.metric("process_open_fds", "")
	for range waves {
		f.wave(key, calls)
	}
	settle()
	f.requireNoLeak(goroutines)
	require.Less(t, g.heap(t), heap+mayGrow)
	// Connections to upstream and of clients are kept for a while, as many as were in use at once.
	f.eventually(10*time.Second, "descriptors are closed", func() bool { return f.metric("process_open_fds", "") <= files+64 })
	f.requireBooksBalance()
}

// F202: whatever clients make up is kept for a bounded number of them: keys that do not exist, models, end users, paths.
func TestF202_WhatClientsMakeUpIsBounded(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	key, _ := f.issue(forever("cost", "1000"))
	g := f.gateways[0]
	const calls = 800
	wave := func(n int) {
		f.closedLoop(16, calls, func(ctx context.Context, g *process, i int) (answer, error) {
			unique := fmt.Sprintf("made-up-%d-%d-%s", n, i, strings.Repeat("x", 200))
			switch i % 4 {
			case 0:
				made, _ := apikey.New()
				return g.call(ctx, made.Reveal(), "/v1/chat/completions", helloChat)
			case 1:
				return g.call(ctx, key, "/v1/chat/completions", named(unique))
			case 2:
				return g.call(ctx, key, "/v1/"+unique, helloChat, "X-Request-Id", unique)
			}
			return g.call(ctx, key, "/v1/estimate", `{"user":`+string(quoted(unique))+","+helloChat[1:], "X-Tollgate-Tags", unique[:60])
		})
	}
	wave(0)
	wave(1)
	before, heap := f.goroutines(), g.heap(t)
	for n := 2; n < 5; n++ {
		wave(n)
	}
	require.Less(t, g.heap(t), heap+mayGrow)
	f.requireNoLeak(before)
	f.requireBooksBalance()
}

// F209: the configuration changes ten times a second under load of all sorts, in a binary that looks for races: nothing is
// refused for it, and no race is found, which the end of each process checks.
func TestF209_ConfigurationChangesUnderLoad(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{gateways: 2})
	key, id := f.issue(forever("cost", "1000"), perDay("requests", "1000000"))
	limit := f.limitsOf(id)[1]
	team := text(f.create("teams", object{"organization_id": f.org, "name": "Team"})["id"])
	f.awaitAnswers(key)
	ctx, cancel := context.WithCancel(t.Context())
	load := make(chan []outcome, 1)
	go func() {
		load <- f.steadyLoad(ctx, 40, func(ctx context.Context, g *process, i int) (answer, error) {
			switch i % 4 {
			case 0:
				return g.call(ctx, key, "/v1/chat/completions", streaming(helloChat))
			case 1:
				return g.get(ctx, key, "/v1/models")
			case 2:
				return g.get(ctx, key, "/v1/key")
			}
			return g.call(ctx, key, "/v1/chat/completions", helloChat)
		})
	}()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := range 40 {
		<-tick.C
		switch i % 5 {
		case 0:
			f.patch("limits/"+limit, object{"amount": strconv.Itoa(1_000_000 + i)})
		case 1:
			f.patch("teams/"+team, object{"blocked": i%2 == 0})
		case 2:
			f.addModel(fmt.Sprintf("model-%d", i), "plain-"+strconv.Itoa(i))
		case 3:
			f.issue(perMinute("10"))
		case 4:
			f.patch("keys/"+id, object{"name": fmt.Sprintf("key %d", i)})
		}
	}
	cancel()
	requireDecided(t, <-load)
	f.requireBooksBalance()
}

// F167: rows of spend carry nothing of what was said. However long a prompt is and however much a client adds to it, a row
// has a few hundred bytes, and a page of them some kilobytes.
func TestF167_RowsCarryNoPayload(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	key, _ := f.issue(forever("cost", "1000"))
	long := strings.Replace(helloChat, "hello", strings.Repeat("long ", 200_000), 1)
	requireDecided(t, f.closedLoop(1, 5, chat(key, long,
		"X-Tollgate-Tags", "project=alpha", "X-Tollgate-Metadata", `{"note":"`+strings.Repeat("m", 3000)+`"}`)))
	f.requireOneRowPerForward()
	db, err := pgx.Connect(t.Context(), f.dsn)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(t.Context())) }()
	var widest int
	require.NoError(t, db.QueryRow(t.Context(), "SELECT max(pg_column_size(r.*)) FROM ledger.rows AS r").Scan(&widest))
	require.Less(t, widest, 2048)
	f.requireBooksBalance()
}

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/devdb"
)

// clock is the wall clock of a PostgreSQL server, which a preloaded library sets. Gateways cannot be treated so, since Go
// asks the kernel and no library; but how far theirs is from the server's is all that could matter.
type clock struct {
	t    *testing.T
	file string
}

func newClock(t *testing.T) *clock {
	t.Helper()
	dir, err := os.MkdirTemp("", "tg-clock") //nolint:usetesting // the server's user has to get there
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	c := &clock{t, filepath.Join(dir, "offset")}
	c.set(0)
	return c
}

// set makes the server's clock differ from the true one.
func (c *clock) set(ahead time.Duration) {
	c.t.Helper()
	next := c.file + ".new" // it is read at any moment, so it is never half-written
	require.NoError(c.t, os.WriteFile(next, fmt.Appendf(nil, "%+d\n", int64(ahead/time.Second)), 0o644))
	require.NoError(c.t, os.Rename(next, c.file))
}

func (c *clock) environment() []string {
	c.t.Helper()
	found, err := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	require.NoError(c.t, err)
	require.NotEmpty(c.t, found, "the package libfaketime is needed: .ci/install test")
	return []string{
		"LD_PRELOAD=" + found[0], "FAKETIME_TIMESTAMP_FILE=" + c.file, "FAKETIME_NO_CACHE=1",
		"DONT_FAKE_MONOTONIC=1", "FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_DISABLE_SHM=1",
	}
}

// The database's clock is set forward, across the end of a window, and back again. Buckets and windows follow it, forwards;
// set back, nobody is given anything twice: what a bucket had given out is gone, and a window that was full is full. A stream
// that was open all the while is booked as what it is. Attempts carry ids of the database's time.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	wall := newClock(t)
	cluster := startDatabaseWith(t, devdb.Options{Environment: wall.environment()})
	f := startFleet(t, fleetOptions{gateways: 2, dsn: cluster.DSN(devdb.Superuser, "tollgate")})
	const burst = 40
	bucket, _ := f.issue(object{"kind": "rate", "metric": "requests", "amount": fmt.Sprint(burst), "per": "1h", "burst": fmt.Sprint(burst)})
	window, _ := f.issue(object{
		"kind": "budget", "metric": "output_tokens", "amount": "9",
		"window": object{"type": "calendar", "period": "month"}, "carry_debt": false,
	})
	plain, _ := f.issue(forever("cost", "100"))
	flying, flyingID := f.issue(forever("cost", "100"))
	f.addModel("flying", "flying")
	f.awaitModels(plain, "flying")
	f.script("flying", "confirm")
	stream, err := f.gateways[0].open(t.Context(), flying, streaming(named("flying")))
	require.NoError(t, err)
	_, err = stream.event()
	require.NoError(t, err)

	// jump sets the clock and waits until both gateways have noticed, as each does with its next answer from the store.
	jump := func(ahead time.Duration) {
		wall.set(ahead)
		for _, o := range f.closedLoop(2, 4, chat(plain, helloChat)) {
			require.NoError(t, o.err)
			require.Contains(t, []int{200, 503}, o.status, "%s", o.body)
		}
		f.awaitAnswers(plain)
	}
	admitted := func(key, body string, n int) int {
		counts := tally(f.closedLoop(4, n, chat(key, body)))
		refused := counts["429 rate_limit_exceeded"] + counts["429 budget_exceeded"] + counts["429 reservation_too_large"] + counts["429 budget_held"]
		require.Equal(t, n, counts["200"]+refused+undecided(counts)+counts["503 data_store_unavailable"], "%v", counts)
		return counts["200"]
	}
	nine := `{"max_tokens":9,` + helloChat[1:]
	// The mock answers nine words, so that a window is full after one call. Undecided calls are repeated.
	full := func() {
		f.eventually(20*time.Second, "the bucket is empty", func() bool { return admitted(bucket, helloChat, 2*burst) == 0 })
		f.eventually(20*time.Second, "the window is full", func() bool { return admitted(window, nine, 4) == 0 })
	}
	// A bucket gets one call each 90 s of the server's time by itself.
	const slack = 2

	require.LessOrEqual(t, admitted(bucket, helloChat, burst+10), burst+slack)
	require.LessOrEqual(t, admitted(window, nine, 6), 1)
	full()

	jump(30 * time.Minute)
	n := admitted(bucket, helloChat, burst)
	require.LessOrEqual(t, n, burst/2+slack)
	require.Positive(t, n)
	full()

	jump(32 * 24 * time.Hour) // into the next month
	n = admitted(bucket, helloChat, burst+10)
	require.LessOrEqual(t, n, burst+slack)
	require.Greater(t, n, slack)
	require.LessOrEqual(t, admitted(window, nine, 6), 1)
	full()

	jump(0) // as if it had never been
	require.LessOrEqual(t, admitted(bucket, helloChat, burst), slack, "a clock that is set back refills nothing")
	require.Zero(t, admitted(window, nine, 4), "the window before is as it was")
	require.Positive(t, f.metric("tollgate_ledger_clock_resets_total", ""))

	jump(-2 * time.Minute) // less than what counts as a fault of the clock
	require.LessOrEqual(t, admitted(bucket, helloChat, burst), slack)
	jump(0)
	require.LessOrEqual(t, admitted(bucket, helloChat, burst), slack)
	require.Zero(t, admitted(window, nine, 4))

	f.mock.Release(0, 100)
	last := ""
	for {
		event, err := stream.event()
		if err != nil {
			break
		}
		last = event
	}
	require.Equal(t, "data: [DONE]\n\n", last)
	f.requireBooksBalance()
	cost := int64(0)
	for _, row := range f.rowsOf("key_id", flyingID) {
		cost += nano(t, row["cost_usd"])
	}
	require.EqualValues(t, 94_000, cost, "of the stream, with its adjustment if it was taken for dead")

	db, err := pgx.Connect(t.Context(), cluster.DSN(devdb.Superuser, "tollgate"))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(t.Context())) }()
	var wrong int
	require.NoError(t, db.QueryRow(t.Context(), `
		SELECT count(*) FROM ledger.rows,
		    to_timestamp(('x' || substr(replace(attempt_id::text, '-', ''), 1, 12))::bit(48)::bigint / 1000.0) AS made
		WHERE made NOT BETWEEN admitted_at - interval '1 hour' AND admitted_at + interval '1 minute'`).Scan(&wrong))
	require.Zero(t, wrong, "attempts whose ids are not of their time")
}

package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// TestMain lets this program pass for one that a drill can start.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "version" {
		fmt.Println("tollgate test")
		return
	}
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0") // else each of these would end a second later; it cannot fail
	goleak.VerifyTestMain(m)
}

// server is a handler that tests call through a client of their own.
func server(t *testing.T, h http.HandlerFunc) (base string, c *client) {
	t.Helper()
	s := httptest.NewServer(h)
	c = newClient()
	t.Cleanup(func() {
		c.http.CloseIdleConnections()
		s.Close()
	})
	return s.URL, c
}

func TestTally_CountsWhatCameBack(t *testing.T) {
	t.Parallel()
	refusal := answer{status: 503, body: []byte(`{"error":{"code":"limit_store_unavailable"}}`)}
	require.Equal(t, "none", tally(nil))
	require.Equal(t, "2 × 200, 1 × 502, 1 × 503 limit_store_unavailable, 1 × no answer", tally([]answer{
		{status: 200}, refusal, {status: 502, body: []byte("<html>")}, {status: 200}, {err: errors.New("cut")},
	}))
	require.Equal(t, "1 × no answer", tally([]answer{{status: 200, err: errors.New("cut in the body")}}))
}

func TestStream_OnlyTheTerminalEventIsAnEnd(t *testing.T) {
	t.Parallel()
	for text, whole := range map[string]bool{
		"data: 1\n\ndata: 2\n\ndata: [DONE]\n\n":     true,
		"data: 1\n\ndata: 2\n\n":                     false,
		"data: 1\n\ndata: [DONE]\n\ndata: more\n\n":  false,
		"data: 1\n\ndata: {\"error\":{}}\n\n":        false,
		"data: 1\n\n: a comment\n\ndata: [DONE]\n\n": true,
	} {
		base, c := server(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) })
		s, err := c.open(t.Context(), base, "key", plainModel)
		require.NoError(t, err)
		require.Equal(t, whole, s.rest(), text)
	}
	base, c := server(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "data: 1\n\ndata: [DONE]\n\n")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler) // the connection breaks
	})
	s, err := c.open(t.Context(), base, "key", plainModel)
	require.NoError(t, err)
	require.False(t, s.rest(), "a broken connection is no end, whatever came before")
}

func TestOpenAll_TellsFromTheStreamsThatDidNotBegin(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	base, c := server(t, func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1)%2 == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, "data: 1\n\ndata: [DONE]\n\n")
	})
	streams, err := c.openAll(t.Context(), 40, []string{base}, "key", plainModel)
	require.ErrorContains(t, err, "status 503")
	require.Len(t, streams, 20)
	require.Equal(t, 20, each(streams, (*stream).rest))
}

// A gateway whose readiness fails gets no more calls, and what fails all the same is not hidden by a retry.
func TestBalancer_FollowsReadinessAndHidesNothing(t *testing.T) {
	t.Parallel()
	type gateway struct {
		ready  atomic.Bool
		calls  atomic.Int64
		base   string
		status int
	}
	gateways := []*gateway{{status: http.StatusOK}, {status: http.StatusBadGateway}}
	c := newClient()
	b := newBalancer(c)
	for _, g := range gateways {
		g.ready.Store(true)
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path != "/readyz":
				g.calls.Add(1)
				w.WriteHeader(g.status)
			case !g.ready.Load():
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}))
		t.Cleanup(s.Close)
		g.base = s.URL
		b.add(s.URL, s.URL)
	}
	require.Equal(t, "503 no gateway is ready", brief(b.call(t.Context(), "key", "{}")), "nobody was probed yet")

	ctx, cancel := context.WithCancel(t.Context())
	var background sync.WaitGroup
	background.Go(func() { b.run(ctx) })
	t.Cleanup(func() {
		cancel()
		background.Wait()
		c.http.CloseIdleConnections()
	})
	serving := func(g *gateway) func() bool { return func() bool { return b.serving(g.base) } }
	for _, g := range gateways {
		require.Eventually(t, serving(g), time.Minute, time.Millisecond)
	}
	seen := make(map[string]int)
	for range 10 {
		seen[brief(b.call(t.Context(), "key", "{}"))]++
	}
	require.Equal(t, map[string]int{"200": 5, "502": 5}, seen)

	gateways[1].ready.Store(false)
	require.Eventually(t, func() bool { return !b.serving(gateways[1].base) }, time.Minute, time.Millisecond)
	before := gateways[1].calls.Load()
	stop := make(chan struct{})
	var answers []answer
	var load sync.WaitGroup
	load.Go(func() { answers = b.traffic(ctx, 500, "key", "{}", stop) })
	require.Eventually(t, func() bool { return gateways[0].calls.Load() >= 15 }, time.Minute, time.Millisecond)
	close(stop)
	load.Wait()
	require.Equal(t, times(len(answers), "200"), tally(answers))
	require.Equal(t, before, gateways[1].calls.Load())
}

func brief(a answer) string { return a.brief() }

func TestLeft_DiscountsTheCallBefore(t *testing.T) {
	t.Parallel()
	usage, expiry := object{"kind": "usage"}, object{"kind": "expiry"}
	require.Equal(t, nothing, left(false, []object{usage}))
	require.Equal(t, reserved, left(false, []object{expiry, usage}))
	require.Equal(t, expired, left(true, []object{usage, expiry}))
	require.Equal(t, booked, left(true, []object{usage, usage}))
	require.Equal(t, "forwarded, 1 × expiry, 1 × usage", left(true, []object{usage, usage, expiry}), "which nothing allows")
	require.Equal(t, "forwarded, no row", left(true, []object{usage}))
	require.Equal(t, "forwarded, -1 × usage", left(true, nil), "the call before is missing, too")
	require.Equal(t, "1: "+expired+"; 2: "+booked, summary([]string{booked, expired, booked}))
	require.Equal(t, booked, summary([]string{booked}))
}

func TestSwept_CoversTheLifeOfACallAndALittleMore(t *testing.T) {
	t.Parallel()
	deaths := swept(80 * time.Millisecond)
	require.Len(t, deaths, sweptKills)
	for i, d := range deaths {
		require.Positive(t, d.after)
		require.Less(t, d.after, 101*time.Millisecond)
		if i > 0 {
			require.Greater(t, d.after, deaths[i-1].after)
		}
		require.Equal(t, deaths[0].name, d.name, "one line of the report")
	}
	require.Greater(t, deaths[sweptKills-1].after, 80*time.Millisecond)
}

func TestHasFaultPoints_ReadsTheBuild(t *testing.T) {
	t.Parallel()
	own, err := os.Executable()
	require.NoError(t, err)
	require.False(t, hasFaultPoints(own), "tests are built without the tag")
	require.False(t, hasFaultPoints("/bin/sh"), "not a Go program")
	require.False(t, hasFaultPoints("/nonexistent"))
}

func TestReport_SaysWhatFailed(t *testing.T) {
	t.Parallel()
	r := Report{Drill: "outage"}
	require.False(t, r.allPassed(), "a drill that checked nothing has shown nothing")
	r.note("Done in %d ways.", 2)
	r.expect("before", "requests", "2 × 200", "2 × 200")
	require.True(t, r.allPassed())
	r.judge("after", "rows", "2", "3", false)
	require.False(t, r.allPassed())
	r.Logs = []string{`{"level":"error"}`}
	var b strings.Builder
	require.NoError(t, r.WriteTable(&b))
	for _, line := range []string{"Done in 2 ways.", "ok      before", "FAILED  after", `{"level":"error"}`, "drill outage FAILED: 1 of 2 checks"} {
		require.Contains(t, b.String(), line)
	}

	cut := Report{Drill: "crash"}
	cut.expect("before", "requests", "1", "1")
	b.Reset()
	require.NoError(t, cut.WriteTable(&b))
	require.Contains(t, b.String(), "drill crash FAILED: it did not come to its end")
	cut.Passed = true
	b.Reset()
	require.NoError(t, cut.WriteTable(&b))
	require.Contains(t, b.String(), "drill crash passed in")
}

// A program that cannot be run, or is another one, is noticed before anything has started.
func TestRun_LooksAtItsProgramsFirst(t *testing.T) {
	t.Parallel()
	good, err := os.Executable()
	require.NoError(t, err)
	file := func(text string, mode os.FileMode) string {
		path := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(path, []byte(text), mode))
		return path
	}
	for want, o := range map[string]Options{
		"the binary cannot be run":                     {Binary: "/nonexistent/tollgate"},
		"the old binary cannot be run":                 {OldBinary: file("#!/bin/sh\n", 0o644)},
		"the binary with fault points cannot be run":   {FaultBinary: file("#!/nonexistent/sh\n", 0o755)},
		"the old binary cannot be run: exit status 1":  {OldBinary: "/bin/false"},
		`/bin/echo is not tollgate: it says "version"`: {OldBinary: "/bin/echo"},
		" has no fault points: build it with":          {FaultBinary: good},
	} {
		if o.Binary == "" {
			o.Binary = good
		}
		o.Progress = func(text string) { t.Errorf("%s: it has begun: %s", want, text) }
		r, err := Crash(t.Context(), o)
		require.ErrorContains(t, err, want)
		require.Nil(t, r)
	}
}

// What a drill that is told to end still sees is its own doing, and no failure of the product.
func TestRun_InterruptedIsNotFailed(t *testing.T) {
	t.Parallel()
	good, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	r, err := run(ctx, "outage", Options{Binary: good}, func(ctx context.Context, d *drill) error {
		d.report.expect("before", "requests", "1", "1")
		cancel()
		d.report.expect("after", "requests", "1", "0")
		return ctx.Err()
	})
	require.ErrorIs(t, err, ErrInterrupted)
	require.EqualError(t, err, "drill outage: interrupted")
	require.True(t, r.Interrupted)
	require.False(t, r.Passed)
	require.Len(t, r.Checks, 1)
	var b strings.Builder
	require.NoError(t, r.WriteTable(&b))
	require.Contains(t, b.String(), "drill outage interrupted after")
	require.NotContains(t, b.String(), "FAILED")

	r, err = run(ctx, "outage", Options{Binary: good}, nil)
	require.ErrorIs(t, err, ErrInterrupted)
	require.Nil(t, r, "nothing was begun")
}

package loadtest

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/secret"
)

func loadOf(t *testing.T, handlers ...http.HandlerFunc) *load {
	t.Helper()
	l := &load{timeout: time.Minute, caller: func(n int) int { return n % 2 }}
	for _, h := range handlers {
		to := targetOf(t, h)
		l.targets = append(l.targets, to)
		l.requests = append(l.requests, [][]byte{to.request(secret.New("even"), nil), to.request(secret.New("odd"), nil)})
	}
	return l
}

func ok(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }

// A single connection cannot keep calls from being due: they wait, and their times count from the due moment.
func TestOpenLoop_CountsFromTheDueMoment(t *testing.T) {
	t.Parallel()
	const calls, rate = 50, 1_000_000
	observed := loadOf(t, ok).open(t.Context(), rate, calls, 1)
	var s Sample
	s.summarize(observed)
	require.Equal(t, calls, s.Admitted)
	require.Equal(t, calls, s.Observations)
	require.Equal(t, 1, s.InFlight-overlaps(observed))
	for i := range observed {
		o := &observed[i]
		require.Equal(t, time.Duration(i)*time.Second/rate, o.due)
		require.GreaterOrEqual(t, o.dispatched, o.due)
		require.GreaterOrEqual(t, o.sent, o.dispatched)
		require.GreaterOrEqual(t, o.firstByte, o.sent)
		require.GreaterOrEqual(t, o.done, o.firstByte)
		if i > 0 {
			require.GreaterOrEqual(t, o.sent, observed[i-1].done, "one connection, first come first served")
		}
	}
	require.Greater(t, s.Queue.Max, 0.0)
}

// overlaps is 1 where a call was sent at the very moment at which the one before ended, as coarse clocks may tell.
func overlaps(observed []observation) int {
	for i := 1; i < len(observed); i++ {
		if observed[i].sent == observed[i-1].done {
			return 1
		}
	}
	return 0
}

// Calls go to all targets in turn, as all callers, and every one is observed, whatever becomes of it.
func TestOpenLoop_ObservesEveryCall(t *testing.T) {
	t.Parallel()
	var first, second, odd atomic.Int64
	count := func(n *atomic.Int64, then http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			n.Add(1)
			if r.Header.Get("Authorization") == "Bearer odd" {
				odd.Add(1)
			}
			then(w, r)
		}
	}
	l := loadOf(t, count(&first, ok), count(&second, func(w http.ResponseWriter, _ *http.Request) {
		if second.Load()%3 == 0 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	var told atomic.Int64
	l.observed = func() { told.Add(1) }
	var s Sample
	s.summarize(l.open(t.Context(), 10_000, 300, 16))
	require.Equal(t, 300, s.Observations)
	require.Equal(t, 150, s.Admitted)
	require.Equal(t, 150, s.ServerErrors+s.TransportErrors)
	require.Positive(t, s.TransportErrors)
	require.NotEmpty(t, s.Errors)
	require.EqualValues(t, 150, first.Load())
	require.EqualValues(t, 150, second.Load())
	require.EqualValues(t, 150, odd.Load())
	require.EqualValues(t, 300, told.Load())
}

// Whoever ends a run early gets what was observed by then.
func TestOpenLoop_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	l := loadOf(t, func(w http.ResponseWriter, r *http.Request) {
		cancel()
		ok(w, r)
	})
	observed := l.open(ctx, 100, 1_000_000, 4)
	require.Len(t, observed, 1_000_000)
	var s Sample
	s.summarize(observed)
	require.Less(t, s.Observations, 1_000_000)
}

func TestClosedLoop_KeepsEachConnectionBusy(t *testing.T) {
	t.Parallel()
	const connections, calls = 8, 100
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var arrived atomic.Int64
	full := make(chan struct{})
	l := loadOf(t, func(w http.ResponseWriter, r *http.Request) {
		switch arrived.Add(1) {
		case connections:
			close(full)
		case calls:
			cancel()
		}
		<-full // nobody is answered before so many are in flight at once
		ok(w, r)
	})
	observed := l.closed(ctx, connections, time.Hour)
	require.LessOrEqual(t, int(arrived.Load()), len(observed)) // the end may keep a call of each connection from being sent
	var s Sample
	s.summarize(observed)
	require.Equal(t, s.Admitted, s.Observations)
	require.GreaterOrEqual(t, s.Admitted, calls-connections) // the end may cut one call of each connection
}

// silent accepts connections and never answers.
func silent(t *testing.T) (base string, accepted <-chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	some := make(chan struct{}, 1000)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var all []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				break
			}
			all = append(all, c)
			some <- struct{}{}
		}
		for _, c := range all {
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		<-ended
	})
	return "http://" + l.Addr().String(), some
}

// Whoever takes calls and never answers them holds a sample up for no longer than a call may take, and the report says why
// nothing came of it.
func TestRunTargets_EndsWhereNobodyAnswers(t *testing.T) {
	t.Parallel()
	base, _ := silent(t)
	for _, o := range []Options{
		{Rates: []float64{200}, InFlight: 4},
		{Connections: 4},
	} {
		o.Duration, o.Words, o.PromptBytes, o.CallTimeout = 100*time.Millisecond, 1, 1, 200*time.Millisecond
		report, err := RunTargets(t.Context(), TargetOptions{Options: o, URLs: []string{base}, Key: secret.New("sk"), Model: "m"})
		require.NoError(t, err)
		s := &report.Samples[0]
		require.Equal(t, Failed, s.Verdict)
		require.Positive(t, s.Requests)
		require.Equal(t, s.Observations, s.TransportErrors)
		require.Positive(t, s.TransportErrors)
		require.Equal(t, []string{"no whole answer within 200ms"}, s.Errors)
		require.InDelta(t, 0.2, s.CallTimeout, 0)
		require.False(t, report.Pass)
	}
}

// Ctrl-C does not wait for an answer that never comes.
func TestRunTargets_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	base, accepted := silent(t)
	for _, o := range []Options{{Rates: []float64{1}, InFlight: 1}, {Connections: 1}} {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-accepted
			cancel()
		}()
		o.Duration, o.Words, o.PromptBytes, o.CallTimeout = time.Hour, 1, 1, time.Hour
		_, err := RunTargets(ctx, TargetOptions{Options: o, URLs: []string{base}, Key: secret.New("sk"), Model: "m"})
		require.ErrorIs(t, err, context.Canceled)
	}
}

func TestOptions_CallTimeoutFollowsTheDuration(t *testing.T) {
	t.Parallel()
	for duration, want := range map[time.Duration]time.Duration{
		time.Second: 10 * time.Second, 10 * time.Second: 30 * time.Second, time.Hour: time.Minute,
	} {
		require.Equal(t, want, (&Options{Duration: duration}).callTimeout())
	}
	require.Equal(t, time.Hour, (&Options{Duration: time.Second, CallTimeout: time.Hour}).callTimeout())
}

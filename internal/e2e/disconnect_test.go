package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/mock"
)

// reader is a client that reads a stream bit by bit.
type reader struct {
	events *bufio.Reader
}

// open asks for a stream and returns once its status is there. The end of ctx is the client's leaving.
func (p *process) open(ctx context.Context, key, body string) (*reader, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.baseURL+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	r, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = r.Body.Close() }) // it is broken off
	if r.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(r.Body)
		return nil, fmt.Errorf("open stream: %s: %s", r.Status, text)
	}
	return &reader{bufio.NewReader(r.Body)}, nil
}

// event reads one event with its blank line.
func (r *reader) event() (string, error) {
	var b strings.Builder
	for {
		line, err := r.events.ReadString('\n')
		b.WriteString(line)
		if err != nil || line == "\n" {
			return b.String(), err
		}
	}
}

// ending is one way in which a stream ends early, and what the settlement matrix of the contract says about it. The whole
// answer has eleven frames ahead of its usage frame: the role, nine words, the finish reason; behind it comes [DONE].
type ending struct {
	name   string
	script string // of the upstream
	events int    // that the client reads before it leaves; readsAll: it stays
	bytes  int    // and so many more of the next event

	outcome, source string
	words           int64 // that came over the wire: what is booked is never below them
	output          int64 // exact output that is booked where it is known; the input is then 2
	keeps           bool  // the token bucket keeps the reservation
}

const readsAll = -1

// Steps of a scripted answer come one by one, and slowly enough for a client's leaving to be noticed in between.
const stepwise = "confirm,frame_gap(100ms)"

func endings() []ending {
	const left, aborted = "client_left", "upstream_aborted"
	return []ending{
		{name: "ClientLeavesBeforeTheFirstByte", script: "hold,frame_gap(100ms)", outcome: left, source: "estimate"},
		{name: "ClientLeavesAfterOneByte", script: stepwise, bytes: 1, outcome: left, source: "estimate"},
		{name: "ClientLeavesInTheMiddleOfAnEvent", script: stepwise, events: 4, bytes: 40, outcome: left, source: "estimate", words: 4},
		{name: "ClientLeavesBetweenEvents", script: stepwise, events: 5, outcome: left, source: "estimate", words: 4},
		{name: "ClientLeavesBeforeTheUsageFrame", script: stepwise, events: 11, outcome: left, source: "estimate", words: 9},
		{name: "ClientLeavesAfterCumulativeUsage", script: stepwise + ",usage_each_frame_cumulative", events: 6, outcome: left, source: "estimate", words: 5, output: 5},
		{name: "ClientReadsAll", events: readsAll, outcome: "complete", source: "provider", words: 9, output: 9},
		{name: "UpstreamResetsBeforeTheFirstByte", script: "reset_after(0)", events: readsAll, outcome: "upstream_error", source: "zero"},
		{name: "UpstreamResets", script: "reset_after(4)", events: readsAll, outcome: aborted, source: "estimate", words: 3, keeps: true},
		{name: "UpstreamResetsAfterCumulativeUsage", script: "reset_after(6),usage_each_frame_cumulative", events: readsAll, outcome: aborted, source: "provider", words: 5, output: 5, keeps: true},
		{name: "UpstreamResetsBehindTheUsageFrame", script: "reset_after(12)", events: readsAll, outcome: aborted, source: "provider", words: 9, output: 9, keeps: true},
		{name: "UpstreamClosesWithoutAnEnd", script: "clean_close_without_done(5)", events: readsAll, outcome: aborted, source: "estimate", words: 4, keeps: true},
		{name: "UpstreamClosesBehindTheFinishReason", script: "clean_close_without_done(11)", events: readsAll, outcome: "complete", source: "estimate", words: 9, keeps: true},
		{name: "UpstreamFreezes", script: "freeze_after(5)", events: readsAll, outcome: aborted, source: "estimate", words: 4, keeps: true},
		{name: "UpstreamSaysNothing", script: "freeze_after(0)", events: readsAll, outcome: "upstream_timeout", source: "reservation", keeps: true},
	}
}

// early is an ending on its way: one stream of a model and a key of its own.
type early struct {
	ending
	drain      bool
	model      string
	key, keyID string
	answered   chan error
}

// However a stream ends early, on either side, and whether its target is aborted or drained: the upstream's one call has
// exactly one row, which says what the settlement matrix says; its slot is free for the next call (F050), nothing stays
// held (F007, F008), and what is booked is never below what was relayed (F004) and never above what was reserved.
func TestF004_F007_F008_F050_StreamsThatEndEarly(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{env: []string{"TOLLGATE_FIRST_BYTE_TIMEOUT=6s", "TOLLGATE_IDLE_STREAM_TIMEOUT=6s"}})
	var cases []*early
	for i, e := range endings() {
		for _, drain := range []bool{false, true} {
			c := &early{ending: e, drain: drain, model: fmt.Sprintf("early-%d-%t", i, drain), answered: make(chan error, 1)}
			offered := f.addModel(c.model, c.model)
			if drain {
				f.patch("targets/"+text(items(offered["targets"])[0]["target_id"]), object{"on_disconnect": "drain"})
				if e.outcome == "client_left" { // and its answer is read to the end
					c.source, c.output = "provider", 9
				}
			}
			if e.script != "" {
				require.NoError(t, f.mock.SetScript(mock.Rule{Script: e.script, Times: 1, Match: map[string]string{"model": c.model}}))
			}
			c.key, c.keyID = f.issue(object{"kind": "concurrency", "amount": "1"}, forever("cost", "1"), perDay("tokens", "10000"))
			cases = append(cases, c)
		}
	}
	f.addModel("last", "last")
	f.awaitModels(cases[0].key, "last")

	for _, c := range cases {
		go func() { c.answered <- f.play(c) }() // each waits for somebody; they do so together
	}
	for _, c := range cases {
		t.Run(fmt.Sprintf("%s/drain=%t", c.name, c.drain), func(t *testing.T) {
			select {
			case err := <-c.answered:
				require.NoError(t, err)
			case <-time.After(30 * time.Second):
				require.Fail(t, "the stream has no end")
			}
			f.requireSettled(t, c)
		})
	}
	f.requireBooksBalance()
	f.requireOneRowPerForward()
	require.Zero(t, f.mock.Counts().InFlight, "upstreams of clients that left go on")
}

// play is the client of one ending.
func (f *fleet) play(c *early) error {
	ctx, cancel := context.WithTimeout(f.t.Context(), 25*time.Second)
	defer cancel()
	body, g := streaming(bounded(named(c.model))), f.gateways[0]
	if c.events == readsAll {
		_, err := g.call(ctx, c.key, "/v1/chat/completions", body)
		if errors.Is(err, io.ErrUnexpectedEOF) || ctx.Err() == nil && err != nil {
			return nil // cut off, as is right where an answer is not whole
		}
		return err
	}
	leaving, leave := context.WithCancel(ctx)
	defer leave()
	began := make(chan error, 1)
	var r *reader
	go func() {
		var err error
		r, err = g.open(leaving, c.key, body)
		began <- err
	}()
	id, err := f.arrived(ctx, c.model)
	if err != nil {
		return err
	}
	if c.events+c.bytes > 0 {
		if err := <-began; err != nil {
			return err
		}
		for range c.events {
			if _, err := r.event(); err != nil {
				return err
			}
			f.mock.Release(id, 1)
		}
		if _, err := io.CopyN(io.Discard, r.events, int64(c.bytes)); err != nil {
			return err
		}
	}
	leave()
	if !c.drain {
		return f.aborted(ctx, id)
	}
	f.mock.Release(id, 100)
	return nil
}

// arrived waits for a request for an upstream model and returns its number in the upstream's log.
func (f *fleet) arrived(ctx context.Context, model string) (id int64, err error) {
	for {
		log := f.mock.Log()
		for i := range log.Requests {
			if strings.Contains(string(log.Requests[i].Body), string(quoted(model))) {
				return log.Requests[i].ID, nil
			}
		}
		if err := f.mock.Wait(ctx, func(c mock.Counts) bool { return c.Count > log.Count }); err != nil {
			return 0, err
		}
	}
}

// aborted waits until the upstream has seen its client leave.
func (f *fleet) aborted(ctx context.Context, id int64) error {
	for {
		log := f.mock.Log()
		for i := range log.Requests {
			if log.Requests[i].ID == id && log.Requests[i].AbortedAt != nil {
				return nil
			}
		}
		if err := f.mock.Wait(ctx, func(c mock.Counts) bool { return c.Aborted > log.Aborted }); err != nil {
			return fmt.Errorf("wait for the upstream's side to be aborted: %w", err)
		}
	}
}

// requireSettled asserts what the books say about an early ending.
func (f *fleet) requireSettled(t *testing.T, c *early) {
	t.Helper()
	var rows []object
	require.Eventually(t, func() bool {
		rows = f.rowsOf("key_id", c.keyID)
		return len(rows) > 0
	}, 10*time.Second, 20*time.Millisecond, "the attempt has no row")
	require.Len(t, rows, 1)
	row := rows[0]
	require.Equal(t, "usage", row["kind"])
	require.Equal(t, c.outcome, row["outcome"], "%v", row)
	require.Equal(t, c.source, row["usage_source"], "%v", row)

	quantities, _ := row["quantities"].(object)
	input, output := max(number(quantities["input"]), 0), max(number(quantities["output"]), 0)
	require.Equal(t, 2000*input+10000*output, nano(t, row["cost_usd"]), "a row's cost follows from the row")
	estimate := f.estimate(c.key, bounded(named(c.model)))
	reservedIn, reservedOut := number(estimate["input_tokens"]), number(estimate["output_tokens"])
	switch {
	case c.output > 0:
		require.EqualValues(t, 2, input)
		require.Equal(t, c.output, output)
	case c.source == "zero":
		require.Zero(t, input+output)
	case c.source == "reservation":
		require.Equal(t, []int64{reservedIn, reservedOut}, []int64{input, output})
	default:
		require.Equal(t, reservedIn, input)
		require.LessOrEqual(t, output, reservedOut)
	}
	require.GreaterOrEqual(t, output, c.words)

	last := must(t)(f.gateways[0].call(t.Context(), c.key, "/v1/chat/completions", named("last")))
	require.Equal(t, http.StatusOK, last.status, "the slot is not free: %s", last.body)

	for _, limit := range f.limitsOf(c.keyID) {
		state := f.state(limit)
		require.Zero(t, nano(t, state["held"]), "%v", state)
		switch {
		case state["kind"] == "budget":
			require.Equal(t, nano(t, row["cost_usd"])+94000, nano(t, state["spent"]), "%v", state)
		case state["kind"] == "rate":
			taken := input + output
			if c.keeps {
				taken = reservedIn + reservedOut
			}
			require.InDelta(t, 10000-taken-11, number(state["remaining"]), 5, "%v", state) // it refills by one in 8.6 s
		}
	}
}

// Streams whose upstream refuses or is not there at all, a hundred times on each route, hold nothing afterwards: what they
// had reserved is back at once, and a call that needs all of it passes (F008). So do fifty streams that their clients cut
// (F007).
func TestF007_F008_NothingIsHeldByWhatFailed(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	g := f.gateways[0]
	gone := text(f.create("providers", object{"name": "gone", "kind": "openai", "base_url": "http://127.0.0.1:1/v1", "credential": "sk-upstream-marker"})["id"])
	for unit, price := range map[string]string{"input": inputPrice, "output": outputPrice} {
		f.create("prices", object{"provider": "gone", "upstream_model": "nowhere", "unit": unit, "usd_per_million": price, "effective_from": "2026-01-01T00:00:00Z"})
	}
	f.create("models", object{"name": "nowhere", "targets": []object{{"provider_id": gone, "upstream_model": "nowhere"}}})
	for _, model := range []string{"fails", "denies", "cut"} {
		f.addModel(model, model)
	}
	f.script("fails", "status(500)")
	f.script("denies", "status(401)")
	f.script("cut", "confirm")
	probe, _ := f.issue()
	f.awaitModels(probe, "nowhere", "fails", "denies", "cut")
	reserved := nano(t, f.estimate(probe, named("plain"))["cost_usd"])

	key, id := f.issue(forever("cost", dollars(11*reserved)), object{"kind": "concurrency", "amount": "10"})
	for _, route := range []struct{ path, input string }{
		{"/v1/chat/completions", `"messages":[{"role":"user","content":"hello"}]`},
		{"/v1/responses", `"input":"hello"`},
		{"/v1/messages", `"max_tokens":4096,"messages":[{"role":"user","content":"hello"}]`},
	} {
		counts := tally(f.closedLoop(10, 100, func(ctx context.Context, g *process, i int) (answer, error) {
			model := []string{"nowhere", "fails", "denies"}[i%3]
			return g.call(ctx, key, route.path, fmt.Sprintf(`{"model":%q,"stream":true,%s}`, model, route.input), "Anthropic-Version", "2023-06-01")
		}))
		require.Zero(t, counts["200"], "%v", counts)
		for what, n := range counts {
			require.NotContains(t, what, "429", "%d calls were refused for what the failed ones hold: %v", n, counts)
		}
	}
	for range 5 {
		ctx, leave := context.WithCancel(t.Context())
		for range 10 {
			r, err := g.open(ctx, key, streaming(named("cut")))
			require.NoError(t, err)
			_, err = r.event()
			require.NoError(t, err)
		}
		leave()
		f.eventually(10*time.Second, "the cut streams' slots are free", func() bool { return text(f.state(f.limitsOf(id)[1])["held"]) == "0" })
	}
	f.requireBooksBalance()
	state := f.state(f.limitsOf(id)[0])
	require.Zero(t, nano(t, state["held"]), "%v", state)
	require.Less(t, nano(t, state["spent"]), 10*reserved, "%v", state)
	a := must(t)(g.call(t.Context(), key, "/v1/chat/completions", helloChat))
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
}

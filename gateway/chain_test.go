package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/gateway"
	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/mock"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/plugins"
)

// witness is a plugin of every later stage that notes what happens to it and can be made to fail.
type witness struct {
	id    string
	guard func(context.Context) (plugins.Verdict, error)
	event func(sse.Event) (plugins.Verdict, error)

	mu       sync.Mutex
	began    int
	ends     []error
	events   int
	records  []plugins.Record
	finishes *[]string // shared by the witnesses of a chain
}

func (w *witness) ID() string { return w.id }

func (w *witness) Guard(ctx context.Context, _ *plugins.Call) (plugins.Verdict, error) {
	w.mu.Lock()
	w.began++
	w.mu.Unlock()
	if w.guard != nil {
		return w.guard(ctx)
	}
	return plugins.Verdict{}, nil
}

func (w *witness) Observe(_ *plugins.Call, _ sse.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events++
}

func (w *witness) Record(_ context.Context, r plugins.Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.records = append(w.records, r)
}

func (w *witness) Finish(_ *plugins.Call, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ends = append(w.ends, err)
	if w.finishes != nil {
		*w.finishes = append(*w.finishes, w.id)
	}
}

func (w *witness) count() (began, ended int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.began, len(w.ends)
}

func (w *witness) told(t *testing.T) plugins.Record {
	t.Helper()
	var r plugins.Record
	require.Eventually(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.records) > 0 {
			r = w.records[0]
		}
		return len(w.records) > 0
	}, 10*time.Second, time.Millisecond)
	return r
}

// filter is a witness that may stop events.
type filter struct{ *witness }

func (f filter) GuardAnswer(*plugins.Call) plugins.AnswerJudge { return f }

func (f filter) Whole(_ context.Context, body []byte) (plugins.Verdict, error) {
	return f.event(sse.Event{Raw: body, Data: body})
}

func (f filter) Event(_ context.Context, ev sse.Event) (plugins.StreamVerdict, error) {
	v, err := f.event(ev)
	if v.Body == nil {
		return plugins.StreamVerdict{Deny: v.Deny, Pass: true}, err
	}
	return plugins.StreamVerdict{Events: []sse.Event{{Name: ev.Name, Data: v.Body}}}, err
}

func (filter) End(context.Context) (plugins.StreamVerdict, error) {
	return plugins.StreamVerdict{}, nil
}

// TestF220_EveryPluginThatBeganIsFinishedOnce puts a failing plugin at each place of a chain of three.
func TestF220_EveryPluginThatBeganIsFinishedOnce(t *testing.T) {
	t.Parallel()
	ways := map[string]func(context.Context) (plugins.Verdict, error){
		"passes": nil,
		"errs":   func(context.Context) (plugins.Verdict, error) { return plugins.Verdict{}, errors.New("broken") },
		"denies": func(context.Context) (plugins.Verdict, error) {
			return plugins.Verdict{Deny: &governance.Error{Code: governance.CodeContentBlocked, Public: "Blocked."}}, nil
		},
		"panics": func(context.Context) (plugins.Verdict, error) { panic("broken") },
		"hangs": func(ctx context.Context) (plugins.Verdict, error) {
			<-ctx.Done()
			return plugins.Verdict{}, ctx.Err()
		},
	}
	for name, way := range ways {
		for at := range 3 {
			for _, body := range []string{chatBody, streamBody} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					var finishes []string
					var all []*witness
					b := start(t, func(s *setup) {
						for i := range 3 {
							w := &witness{id: string(rune('a' + i)), finishes: &finishes}
							link := gateway.Link{Plugin: w}
							if i == at {
								w.guard = way
							}
							if i == at && name == "hangs" {
								link.Timeout = 20 * time.Millisecond
							}
							all = append(all, w)
							s.chain = append(s.chain, link)
						}
						s.model("m", "small")
					})
					a := b.post("/v1/chat/completions", body)
					b.idle()
					var want []string
					for _, w := range all {
						began, ended := w.count()
						require.Equal(t, began, ended)
						if began > 0 {
							want = append(want, w.id)
						}
					}
					slices.Reverse(want)
					require.Equal(t, want, finishes, "in reverse order")
					require.Zero(t, b.ledger.held())
					switch name {
					case "passes":
						require.Equal(t, http.StatusOK, a.StatusCode)
						require.Len(t, want, 3)
					case "denies":
						require.Equal(t, http.StatusBadRequest, a.StatusCode)
						require.Equal(t, "content_blocked", a.failure(t).Code)
					default:
						require.Equal(t, http.StatusServiceUnavailable, a.StatusCode)
						require.Equal(t, "plugin_unavailable", a.failure(t).Code)
						require.NotContains(t, a.text(), "broken")
						require.Len(t, want, at+1)
						require.Contains(t, b.log.String(), `"plugin":"`+all[at].id+`"`)
					}
					if name != "passes" {
						require.Zero(t, b.mock.Counts().Count)
					}
				})
			}
		}
	}
}

func TestF220_AClientThatLeavesFinishesThePlugins(t *testing.T) {
	t.Parallel()
	w := &witness{id: "w"}
	b := start(t, func(s *setup) {
		s.model("m", "confirm")
		s.chain = []gateway.Link{{Plugin: w}}
	})
	o := b.open(streamBody)
	b.mock.Release(0, 1)
	o.event(t)
	o.leave()
	b.idle()
	began, ended := w.count()
	require.Equal(t, 1, began)
	require.Equal(t, 1, ended)
}

func TestF221_TheFailureModeIsTheChains(t *testing.T) {
	t.Parallel()
	broken := func(context.Context) (plugins.Verdict, error) { return plugins.Verdict{}, errors.New("broken") }
	b := start(t, func(s *setup) {
		s.chain = []gateway.Link{{Plugin: &witness{id: "w", guard: broken}, OnError: gateway.Allow}}
		s.model("m", "small")
	})
	require.Equal(t, http.StatusOK, b.chat().StatusCode)
	require.Equal(t, 1, b.metrics.all()["tollgate_plugin_failures_total{w}"])

	denies := func(context.Context) (plugins.Verdict, error) {
		return plugins.Verdict{Deny: &governance.Error{Code: governance.CodeContentBlocked, Public: "Blocked."}}, nil
	}
	b = start(t, func(s *setup) {
		s.chain = []gateway.Link{{Plugin: &witness{id: "w", guard: denies}, Mode: governance.ModeLog}}
		s.model("m", "small")
	})
	require.Equal(t, http.StatusOK, b.chat().StatusCode)
	require.Equal(t, 1, b.metrics.all()["tollgate_plugin_would_deny_total{w}"])
}

func TestF223_TheEndIsTheEndOfTheStream(t *testing.T) {
	t.Parallel()
	w := &witness{id: "w"}
	b := start(t, func(s *setup) {
		s.model("m", "confirm")
		s.chain = []gateway.Link{{Plugin: w}}
	})
	o := b.open(streamBody)
	b.mock.Release(0, 2)
	o.event(t)
	_, ended := w.count()
	require.Zero(t, ended)
	require.Eventually(t, func() bool { b.mock.Release(0, 1); return b.mock.Counts().Ended == 1 }, 10*time.Second, time.Millisecond)
	r := w.told(t)
	_, ended = w.count()
	require.Equal(t, 1, ended)
	require.NoError(t, r.Err)
	require.Equal(t, http.StatusOK, r.Status)
	require.Len(t, r.Attempts, 1)
	require.Equal(t, governance.OutcomeComplete, r.Attempts[0].Settlement.Outcome)
	require.Contains(t, string(r.Attempts[0].RawUsage), "prompt_tokens")
	require.Nil(t, r.Call.Body)
	require.True(t, r.Call.Credential.IsZero())
	require.Greater(t, w.events, 5)
	require.Positive(t, r.BytesOut)
}

func TestAVerdictMayReplaceTheBodyAndAddTags(t *testing.T) {
	t.Parallel()
	w := &witness{id: "w", guard: func(context.Context) (plugins.Verdict, error) {
		return plugins.Verdict{Body: []byte(`{"model":"m","messages":[{"role":"user","content":"masked"}]}`), Tags: map[string]string{"masked": "1"}}, nil
	}}
	b := start(t, func(s *setup) { s.chain = []gateway.Link{{Plugin: w}}; s.model("m", "small") })
	require.Equal(t, http.StatusOK, b.chat("X-Tollgate-Tags", "a=b", "X-Tollgate-Metadata", `{"x":1}`).StatusCode)
	require.Contains(t, string(b.sent()[0].Body), "masked")
	r := w.told(t)
	require.Equal(t, map[string]string{"a": "b", "masked": "1"}, r.Call.Tags)
	require.JSONEq(t, `{"x":1}`, string(r.Call.Metadata))
}

func TestF146_StreamGuardsSeeStreamsAndWholeAnswers(t *testing.T) {
	t.Parallel()
	stops := func(word string) func(sse.Event) (plugins.Verdict, error) {
		return func(ev sse.Event) (plugins.Verdict, error) {
			if bytes.Contains(ev.Data, []byte(word)) {
				return plugins.Verdict{Deny: &governance.Error{Code: governance.CodeContentBlocked, Public: "Blocked."}}, nil
			}
			return plugins.Verdict{}, nil
		}
	}
	guarded := func(word string) *bench {
		return start(t, func(s *setup) {
			s.model("m", "text(one two SECRET four)")
			s.chain = []gateway.Link{{Plugin: filter{&witness{id: "w", event: stops(word)}}}}
		})
	}
	b := guarded("mock-text") // the model's name, which is in the first event
	a := b.stream()
	require.Equal(t, http.StatusBadRequest, a.StatusCode, "nothing has been said yet")
	require.Equal(t, "content_blocked", a.failure(t).Code)

	b = guarded(`SECRET `)
	require.Equal(t, http.StatusBadRequest, b.chat().StatusCode)
	b = guarded(`"content":"SECRET `)
	a = b.stream()
	require.Equal(t, http.StatusOK, a.StatusCode)
	require.NotContains(t, a.text(), `"content":"SECRET `)
	require.Contains(t, a.text(), `"code":"content_blocked"`)
	require.NotContains(t, a.text(), "[DONE]")
	for _, s := range b.settled(1) {
		require.Equal(t, governance.OutcomeBlocked, s.Outcome)
		require.Positive(t, s.Cost, "the provider did the work")
	}
}

func TestChainsThatCannotBe(t *testing.T) {
	t.Parallel()
	base := []gateway.Link{{Plugin: keys{}}, {Plugin: router{}}}
	for name, links := range map[string][]gateway.Link{
		"none":                   {},
		"no resolver":            base[:1],
		"twice":                  append(slices.Clone(base), gateway.Link{Plugin: router{}}),
		"an open door":           {{Plugin: keys{}, OnError: gateway.Allow}, base[1]},
		"a charger in log mode":  append(slices.Clone(base), gateway.Link{Plugin: charger{}, Mode: governance.ModeLog}),
		"takes part in no stage": append(slices.Clone(base), gateway.Link{Plugin: idle{}}),
	} {
		_, err := gateway.New(gateway.Options{Config: gateway.DefaultConfig(), Chain: links, Metrics: &counters{seen: map[string]int{}}, Log: zerolog.Nop()})
		require.Error(t, err, name)
	}
	_, err := gateway.New(gateway.Options{Chain: base, Metrics: &counters{seen: map[string]int{}}})
	require.ErrorContains(t, err, "check gateway settings")
}

type idle struct{}

func (idle) ID() string { return "idle" }

func TestPrintChain(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.chain = []gateway.Link{{Plugin: &witness{id: "w"}, OnError: gateway.Allow}}
		s.model("m", "small")
	})
	var out strings.Builder
	require.NoError(t, b.gw.PrintChain(&out))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Equal(t, []string{"authenticate", "resolve", "guard", "charge", "observe", "record"}, firstWords(lines))
	require.Contains(t, lines[2], "on_error=allow")
}

func firstWords(lines []string) []string {
	var words []string
	for _, l := range lines {
		words = append(words, strings.Fields(l)[0])
	}
	return words
}

func TestRoutesAndDefaultsAreSound(t *testing.T) {
	t.Parallel()
	c := gateway.DefaultConfig()
	require.NoError(t, c.Validate())
	c.Idle, c.Attempts, c.Connect = 48*time.Hour, 0, time.Hour
	err := c.Validate()
	require.ErrorContains(t, err, "idle")
	require.ErrorContains(t, err, "attempts")
	require.ErrorContains(t, err, "connect")
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.model("m", "small") })
	require.NoError(t, b.gw.Readiness())
	b.catalogs.mu.Lock()
	b.catalogs.err = governance.ErrStale
	b.catalogs.mu.Unlock()
	require.NoError(t, b.gw.Readiness(), "a store that is away makes no pod unready")
	b.gw.Drain()
	require.Error(t, b.gw.Readiness())
}

func TestF24_ShutdownLetsStreamsFinish(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.model("m", "confirm") })
	o := b.open(streamBody)
	b.mock.Release(0, 1)
	o.event(t)
	over := make(chan error, 1)
	go func() { over <- b.gw.Shutdown(t.Context()) }()
	require.Eventually(t, func() bool { return b.gw.Readiness() != nil }, 10*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return b.chat().StatusCode == http.StatusServiceUnavailable }, 10*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { b.mock.Release(0, 1); return b.mock.Counts().Ended == 1 }, 10*time.Second, time.Millisecond)
	for o.event(t) != "[DONE]" {
	}
	require.NoError(t, <-over)
	require.Equal(t, governance.OutcomeComplete, b.settled(1)[0].Outcome)
}

func TestF24_ShutdownCutsWhatIsLeftAndSettlesIt(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.model("m", "confirm"); s.model("u", "hold") })
	o := b.open(streamBody)
	b.mock.Release(0, 2)
	o.event(t)
	unary := make(chan answer, 1)
	go func() { unary <- b.post("/v1/chat/completions", strings.Replace(chatBody, `"m"`, `"u"`, 1)) }()
	b.sums(func(c mock.Counts) bool { return c.InFlight == 2 })
	now, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorContains(t, b.gw.Shutdown(now), "cut 2 calls")
	require.Zero(t, b.ledger.held())
	for {
		if e := o.event(t); strings.Contains(e, `"code":"gateway_overloaded"`) {
			break
		}
	}
	require.Equal(t, http.StatusServiceUnavailable, (<-unary).StatusCode)
	for _, s := range b.settled(2) {
		require.Equal(t, governance.OutcomeCut, s.Outcome)
	}
}

// reader is a guard that notes where the body lies that it is shown.
type reader struct {
	id string
	at **byte
}

func (r reader) ID() string { return r.id }

func (r reader) Guard(_ context.Context, c *plugins.Call) (plugins.Verdict, error) {
	*r.at = unsafe.SliceData(c.Body.Bytes())
	return plugins.Verdict{}, nil
}

// TestF107_EveryPluginReadsTheOneBody: it was taken from the client once, and nobody is given a copy.
func TestF107_EveryPluginReadsTheOneBody(t *testing.T) {
	t.Parallel()
	var first, second *byte
	b := start(t, func(s *setup) {
		s.model("m", "small")
		s.chain = []gateway.Link{{Plugin: reader{"first", &first}}, {Plugin: reader{"second", &second}}}
	})
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 20<<20) + `"}]}`
	require.Equal(t, http.StatusOK, b.post("/v1/chat/completions", body).StatusCode)
	require.NotNil(t, first)
	require.Same(t, first, second)
	require.Len(t, b.sent()[0].Body, len(body)+len("mock-small")-len("m"))
}

// TestF146_APingThatSaysSomethingIsJudged: what an event calls itself is the provider's word.
func TestF146_APingThatSaysSomethingIsJudged(t *testing.T) {
	t.Parallel()
	const word = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"one\"}}]}\n\n"
	const ping = "event: ping\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"SECRET\"}}]}\n\n"
	for _, stream := range []string{word + ping, ping + word} {
		requireJudged(t, stream+"data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
	}
}

// requireJudged wants a guard to find a word in an upstream's stream.
func requireJudged(t *testing.T, stream string) {
	t.Helper()
	b := hostile(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, stream)
	}, func(s *setup) {
		s.chain = []gateway.Link{{Plugin: filter{&witness{id: "w", event: func(ev sse.Event) (plugins.Verdict, error) {
			if bytes.Contains(ev.Data, []byte("SECRET")) {
				return plugins.Verdict{Deny: &governance.Error{Code: governance.CodeContentBlocked, Public: "Blocked."}}, nil
			}
			return plugins.Verdict{}, nil
		}}}}}
	})
	a := b.stream()
	require.NotContains(t, a.text(), "SECRET")
	require.Contains(t, a.text(), "content_blocked")
}

package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/fleet"
)

// The size of the outage drill (contract, section 9).
const (
	outageGateways = 4
	outageRequests = 32 // in each phase, over all gateways
	outageAtATime  = 8
)

// Outage stops PostgreSQL under four gateways and starts it again. Nothing may be forwarded that the store has not
// decided, the refusals say what is away, streams in flight end as if nothing had happened, and what ended meanwhile is
// settled afterwards.
func Outage(ctx context.Context, o Options) (*Report, error) {
	return run(ctx, "outage", o, func(ctx context.Context, d *drill) error {
		s := outage{drill: d}
		for _, phase := range []func(context.Context) error{s.prepare, s.before, s.warm, s.expired, s.recovery, s.books} {
			if err := phase(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// outage is the state of one outage drill.
type outage struct {
	*drill

	bases     []string // of the gateways
	key       string   // of most requests
	flyingKey string   // of the streams in flight
	flyingID  string
	streams   []*stream
	reached   int64 // requests that had reached the upstream when the database was stopped
}

func (s *outage) prepare(ctx context.Context) error {
	if err := s.begin(ctx, s.options.Binary); err != nil {
		return err
	}
	for range outageGateways {
		g, err := s.Start(ctx, fleet.Spec{})
		if err != nil {
			return err
		}
		s.bases = append(s.bases, g.BaseURL)
	}
	return nil
}

// before opens the streams and then lets all gateways learn a new key, so that what they know is as young as can be when
// the database goes.
func (s *outage) before(ctx context.Context) error {
	s.say("before: %d requests over %d gateways", outageRequests, outageGateways)
	var err error
	if s.flyingKey, s.flyingID, err = s.issue(ctx, budget("100")); err != nil {
		return err
	}
	if s.streams, err = s.client.openAll(ctx, outageGateways, s.bases, s.flyingKey, flyingModel); err != nil {
		return err
	}
	if s.key, _, err = s.issue(ctx, budget("100"), perDay("requests", "100000")); err != nil {
		return err
	}
	if err := s.heard(ctx); err != nil {
		return err
	}
	answers := s.client.spread(ctx, outageRequests, outageAtATime, s.bases, s.key, chat(plainModel, false))
	s.report.expect("before", s.requests(), times(outageRequests, "200"), tally(answers))
	if s.reached, err = s.forwarded(ctx); err != nil {
		return err
	}
	return nil
}

// heard waits until every gateway has heard of all changes so far, by a last one: a gateway forgets what it knows of a key
// when it hears of its making, and must not do so after the first phase.
func (s *outage) heard(ctx context.Context) error {
	const newest = "newest"
	if _, err := s.AddModel(ctx, s.tenant.Provider, newest, newest); err != nil {
		return err
	}
	for _, base := range s.bases {
		if !s.await(ctx, time.Minute, func() bool { return s.client.offers(ctx, base, s.flyingKey, newest) }) {
			return errors.New("a gateway has not heard of a new model within a minute")
		}
	}
	return nil
}

func (s *outage) requests() string {
	return fmt.Sprintf("%d requests over %d gateways", outageRequests, outageGateways)
}

func (s *outage) warm(ctx context.Context) error {
	const phase = "outage, caches warm"
	s.say("outage: the database is stopped")
	if err := s.Database.StopImmediately(ctx); err != nil {
		return err
	}
	// All at once: what they need to know is getting older.
	answers := s.client.spread(ctx, outageRequests, outageRequests, s.bases, s.key, chat(plainModel, false))
	s.report.expect(phase, s.requests(), times(outageRequests, "503 limit_store_unavailable"), tally(answers))
	s.discreet(phase, answers)
	if err := s.nothingForwarded(ctx, phase); err != nil {
		return err
	}
	// Their rest comes while there is no database to settle in.
	if err := s.release(ctx, allFrames); err != nil {
		return err
	}
	whole := each(s.streams, (*stream).rest)
	s.report.expect(phase, "streams in flight end whole", times(outageGateways, "[DONE]"), times(whole, "[DONE]"))
	return nil
}

func (s *outage) expired(ctx context.Context) error {
	const phase = "outage, caches expired"
	s.say("outage: caches expire")
	for _, base := range s.bases {
		// That they do expire is told by the tally below.
		s.await(ctx, time.Minute, func() bool {
			a := s.client.call(ctx, base, s.key, chat(plainModel, false))
			return a.code() == "data_store_unavailable"
		})
	}
	answers := s.client.spread(ctx, outageRequests, outageAtATime, s.bases, s.key, chat(plainModel, false))
	s.report.expect(phase, s.requests(), times(outageRequests, "503 data_store_unavailable"), tally(answers))
	s.discreet(phase, answers)
	return s.nothingForwarded(ctx, phase)
}

// nothingForwarded checks the upstream's own counter, which no outage may have moved.
func (s *outage) nothingForwarded(ctx context.Context, phase string) error {
	now, err := s.forwarded(ctx)
	if err != nil {
		return err
	}
	s.report.expect(phase, "requests that reached the upstream", "0", strconv.FormatInt(now-s.reached, 10))
	return nil
}

// discreet checks that each refusal says when to come back and which request it was, and nothing about the store.
func (s *outage) discreet(phase string, answers []answer) {
	telling := []string{"postgres", "tollgate_gateway", "pgx", "sqlstate", "dial", "socket", "/tmp", "goroutine", ".go:"}
	proper := 0
	for i := range answers {
		a := &answers[i]
		text := strings.ToLower(fmt.Sprint(string(a.body), a.header))
		seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
		tells := false
		for _, word := range telling {
			tells = tells || strings.Contains(text, word)
		}
		if err == nil && seconds >= 2 && seconds <= 10 && a.header.Get("X-Request-Id") != "" && !tells {
			proper++
		}
	}
	s.report.expect(phase, "Retry-After of 2 to 10 s, a request id, no word of the store",
		of(len(answers), len(answers)), of(proper, len(answers)))
}

func (s *outage) recovery(ctx context.Context) error {
	s.say("recovery: the database is started")
	if err := s.Database.Restart(ctx); err != nil {
		return err
	}
	const within = 30 * time.Second
	began := time.Now()
	back := 0
	for _, base := range s.bases {
		if s.await(ctx, within, func() bool {
			a := s.client.call(ctx, base, s.key, chat(plainModel, false))
			return a.status == http.StatusOK
		}) {
			back++
		}
	}
	s.report.judge("recovery", "gateways that answer again by themselves", of(outageGateways, outageGateways),
		fmt.Sprintf("%d of %d, the last after %.1f s", back, outageGateways, time.Since(began).Seconds()), back == outageGateways)
	answers := s.client.spread(ctx, outageRequests, outageAtATime, s.bases, s.key, chat(plainModel, false))
	s.report.expect("recovery", s.requests(), times(outageRequests, "200"), tally(answers))
	return nil
}

func (s *outage) books(ctx context.Context) error {
	if err := s.checkSettled(ctx, 0); err != nil {
		return err
	}
	if err := s.checkStreams(ctx, s.flyingID, outageGateways); err != nil {
		return err
	}
	return s.checkLedger(ctx)
}

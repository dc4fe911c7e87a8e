package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/fleet"
)

// The size of the roll-out drill (contract, section 9; requirement A-28).
const (
	rolloutGateways = 2
	rolloutStreams  = 200 // in flight when the first gateway is told to end, over all old ones
	rolloutRate     = 50  // further calls a second through the balancer, from before the first step until after the last
	drainDelay      = 5 * time.Second
	sharedBudget    = 40 // requests that both versions may admit together, of sharedCalls
	sharedCalls     = 60
	slowPercent     = 5 // of the further calls may be refused undecided
)

// Rollout replaces two gateways of the old binary by two of the new one, as a rolling update does, with streams in flight
// and traffic through a balancer. No stream may be cut and no call may fail, and both versions share one exact limit.
func Rollout(ctx context.Context, o Options) (*Report, error) {
	return run(ctx, "rollout", o, func(ctx context.Context, d *drill) error {
		s := rollout{drill: d, balancer: newBalancer(d.client)}
		var background sync.WaitGroup
		life, end := context.WithCancel(ctx)
		defer background.Wait()
		defer end()
		background.Go(func() { s.balancer.run(life) })
		if err := s.prepare(ctx); err != nil {
			return err
		}
		stop := make(chan struct{})
		var answers []answer
		var load sync.WaitGroup
		load.Go(func() { answers = s.balancer.traffic(life, rolloutRate, s.key, chat(plainModel, false), stop) })
		err := s.replace(ctx)
		close(stop)
		load.Wait()
		if err != nil {
			return err
		}
		s.checkTraffic(answers)
		return s.books(ctx)
	})
}

// rollout is the state of one roll-out drill.
type rollout struct {
	*drill

	balancer              *balancer
	old                   []*fleet.Process
	key                   string // of the calls through the balancer
	streamsKey, streamsID string
	streams               []*stream
}

func (s *rollout) prepare(ctx context.Context) (err error) {
	if s.options.OldBinary == s.options.Binary {
		s.report.note("Old and new version are the same binary; --old-binary takes another one.")
	} else {
		s.report.note("The old version is the binary of --old-binary; it made the schema, and the new one migrates it under load.")
	}
	if err := s.begin(ctx, s.options.OldBinary); err != nil {
		return err
	}
	for range rolloutGateways {
		g, err := s.join(ctx, s.options.OldBinary)
		if err != nil {
			return err
		}
		s.old = append(s.old, g)
	}
	if s.key, _, err = s.issue(ctx, budget("1000")); err != nil {
		return err
	}
	if s.streamsKey, s.streamsID, err = s.issue(ctx, budget("1000"), perDay("requests", "100000")); err != nil {
		return err
	}
	s.say("before: %d streams over %d old gateways", rolloutStreams, rolloutGateways)
	if s.streams, err = s.client.openAll(ctx, rolloutStreams, bases(s.old), s.streamsKey, flyingModel); err != nil {
		return err
	}
	return nil
}

func bases(gateways []*fleet.Process) []string {
	all := make([]string, len(gateways))
	for i, g := range gateways {
		all[i] = g.BaseURL
	}
	return all
}

// join starts a gateway and waits until the balancer sends it calls.
func (s *rollout) join(ctx context.Context, binary string) (*fleet.Process, error) {
	g, err := s.Start(ctx, fleet.Spec{Binary: binary, Env: []string{"TOLLGATE_DRAIN_DELAY=" + drainDelay.String()}})
	if err != nil {
		return nil, err
	}
	s.balancer.add(g.BaseURL, g.OpsURL)
	if !s.await(ctx, time.Minute, func() bool { return s.balancer.serving(g.BaseURL) }) {
		return nil, errors.New("the balancer sees no ready gateway")
	}
	return g, nil
}

// replace is the rolling update: for each old gateway a new one joins first, then the old one is told to end.
func (s *rollout) replace(ctx context.Context) error {
	if err := s.Migrate(ctx, s.options.Binary); err != nil {
		return err
	}
	for i, old := range s.old {
		s.say("gateway %d of %d is replaced", i+1, len(s.old))
		fresh, err := s.join(ctx, s.options.Binary)
		if err != nil {
			return err
		}
		if i == 0 {
			if err := s.sideBySide(ctx, []string{old.BaseURL, fresh.BaseURL}); err != nil {
				return err
			}
		}
		if err := s.retire(ctx, fmt.Sprintf("old gateway %d ends", i+1), old); err != nil {
			return err
		}
	}
	fresh, err := s.Start(ctx, fleet.Spec{Binary: s.options.Binary, Plane: fleet.PlaneControl})
	if err != nil {
		return err
	}
	end, err := s.end(ctx, s.Control)
	if err != nil {
		return err
	}
	s.report.expect("control plane", "end of the old one, beside a new one", "exit 0", end)
	s.Control, s.Admin.URL = fresh, fresh.AdminURL
	return s.drained(ctx)
}

// sideBySide lets both versions admit calls of one limit at the same time.
func (s *rollout) sideBySide(ctx context.Context, both []string) error {
	key, _, err := s.issue(ctx, perDay("requests", strconv.Itoa(sharedBudget)))
	if err != nil {
		return err
	}
	answers := s.client.spread(ctx, sharedCalls, sharedCalls, both, key, chat(plainModel, false))
	admitted, refused := count(answers, "200"), count(answers, "429 rate_limit_exceeded")
	late := undecided(answers)
	s.report.judge("both versions", fmt.Sprintf("%d calls at once, half to each, of a limit of %d", sharedCalls, sharedBudget),
		times(sharedBudget, "200")+", "+times(sharedCalls-sharedBudget, "429 rate_limit_exceeded"), tally(answers),
		admitted <= sharedBudget && admitted+late >= sharedBudget && admitted+refused+late == sharedCalls)
	return nil
}

// retire tells a gateway to end and watches the order of things: first it is unready, while it still takes calls.
func (s *rollout) retire(ctx context.Context, phase string, g *fleet.Process) error {
	if err := g.Terminate(); err != nil {
		return err
	}
	unready := s.await(ctx, time.Minute, func() bool { return !s.balancer.probe(ctx, g.OpsURL) })
	late := s.client.call(ctx, g.BaseURL, s.key, chat(plainModel, false))
	seen := "ready"
	if unready {
		seen = "unready"
	}
	s.report.expect(phase, "readiness, and a call that comes all the same", "unready, 200", seen+", "+late.brief())
	return nil
}

// drained waits until the old gateways take no calls any more, and only then lets their streams go on.
func (s *rollout) drained(ctx context.Context) error {
	const phase = "drain"
	s.say("drain: %d streams go on", len(s.streams))
	closed := 0
	for _, g := range s.old {
		if s.await(ctx, time.Minute, func() bool {
			a := s.client.call(ctx, g.BaseURL, s.key, chat(plainModel, false))
			return a.err != nil || a.status == http.StatusServiceUnavailable
		}) {
			closed++
		}
	}
	s.report.expect(phase, "old gateways that take no new call after the delay", strconv.Itoa(len(s.old)), strconv.Itoa(closed))
	if err := s.release(ctx, 1); err != nil {
		return err
	}
	further := each(s.streams, func(s *stream) bool { return s.next() == nil })
	s.report.expect(phase, "streams that get their next event", strconv.Itoa(rolloutStreams), strconv.Itoa(further))
	if err := s.release(ctx, allFrames); err != nil {
		return err
	}
	whole := each(s.streams, (*stream).rest)
	s.report.expect(phase, "streams end whole", times(rolloutStreams, "[DONE]"), times(whole, "[DONE]"))
	for i, g := range s.old {
		s.report.expect(phase, fmt.Sprintf("end of old gateway %d", i+1), "exit 0", s.ended(ctx, g))
	}
	return nil
}

// checkTraffic looks at the calls through the balancer. A store that was too slow for some, on a machine that has other
// things to do, is no fault of the roll-out; it must stay rare.
func (s *rollout) checkTraffic(answers []answer) {
	s.report.judge("whole", fmt.Sprintf("calls through the balancer, %d a second", rolloutRate),
		fmt.Sprintf("200; undecided for want of time: at most %d %%", slowPercent), tally(answers),
		len(answers) > 0 && count(answers, "200")+undecided(answers) == len(answers) && undecided(answers)*100 <= slowPercent*len(answers))
}

func (s *rollout) books(ctx context.Context) error {
	if err := s.checkSettled(ctx, 0); err != nil {
		return err
	}
	if err := s.checkStreams(ctx, s.streamsID, rolloutStreams); err != nil {
		return err
	}
	if err := s.checkDeadlocks(); err != nil {
		return err
	}
	return s.checkLedger(ctx)
}

package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"github.com/rs/zerolog"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/lognames"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/plugins"
	"github.com/tollgate-gateway/tollgate/providers"
)

// OnError says what the chain does when a plugin itself fails: returns an error, panics or takes too long.
type OnError string

// The two ways.
const (
	Deny  OnError = "deny"  // the call is refused with 503 plugin_unavailable
	Allow OnError = "allow" // the failure is counted and logged, and the call goes on
)

// Link is a plugin's place in the chain together with its failure mode, which is the configuration's and not the plugin's.
type Link struct {
	Plugin  plugins.Plugin
	OnError OnError         // "" is Deny
	Mode    governance.Mode // "" is ModeEnforce; ModeLog lets pass what a guard denies, and counts it
	Timeout time.Duration   // of one stage; 0: five seconds
}

const defaultPluginTimeout = 5 * time.Second

// sampled keeps repeating warnings from filling the log: ten a second, then one of a hundred.
func sampled() zerolog.Sampler {
	return &zerolog.BurstSampler{Burst: 10, Period: time.Second, NextSampler: &zerolog.BasicSampler{N: 100}}
}

// stage is one plugin's part in one stage.
type stage[T any] struct {
	at int // index of the link
	do T
}

// chain is the one order in which plugins run: by stage, and within a stage as configured.
type chain struct {
	links          []Link
	authenticators []stage[plugins.Authenticator]
	resolvers      []stage[plugins.Resolver]
	guards         []stage[plugins.Guard]
	chargers       []stage[plugins.Charger]
	observers      []stage[plugins.StreamObserver]
	answerGuards   []stage[plugins.AnswerGuard]
	caches         []stage[plugins.AnswerCache]
	recorders      []stage[plugins.Recorder]

	log       zerolog.Logger
	sampler   zerolog.Sampler
	failed    func(values ...string) // counts failures by plugin
	wouldDeny func(values ...string) // counts what log mode let pass, by plugin
}

func newChain(links []Link, log zerolog.Logger, metrics plugins.Registry) (*chain, error) {
	ch := &chain{
		log:       log,
		sampler:   sampled(),
		failed:    metrics.Counter("tollgate_plugin_failures_total", "Failures of plugins themselves, by plugin.", "plugin"),
		wouldDeny: metrics.Counter("tollgate_plugin_would_deny_total", "Calls that a plugin in log mode would have denied.", "plugin"),
	}
	ids := make(map[string]bool)
	for i, l := range links {
		if l.OnError == "" {
			l.OnError = Deny
		}
		if l.Mode == "" {
			l.Mode = governance.ModeEnforce
		}
		if l.Timeout == 0 {
			l.Timeout = defaultPluginTimeout
		}
		id := l.Plugin.ID()
		if ids[id] {
			return nil, fmt.Errorf("plugin %s is in the chain twice", id)
		}
		ids[id] = true
		stages := add(&ch.authenticators, i, l.Plugin) + add(&ch.resolvers, i, l.Plugin)
		if stages > 0 && l.OnError == Allow {
			return nil, fmt.Errorf("plugin %s decides who may call what: it cannot have on_error allow", id)
		}
		chargers := add(&ch.chargers, i, l.Plugin)
		if stages+chargers > 0 && l.Mode == governance.ModeLog {
			return nil, fmt.Errorf("plugin %s has no log mode: only guards have one, and each limit its own", id)
		}
		stages += chargers
		stages += add(&ch.guards, i, l.Plugin)
		stages += add(&ch.observers, i, l.Plugin)
		stages += add(&ch.answerGuards, i, l.Plugin)
		stages += add(&ch.caches, i, l.Plugin)
		stages += add(&ch.recorders, i, l.Plugin)
		if stages == 0 {
			return nil, fmt.Errorf("plugin %s takes part in no stage", id)
		}
		ch.links = append(ch.links, l)
	}
	if len(ch.caches) > 1 {
		return nil, errors.New("the chain has two caches of answers")
	}
	if len(ch.authenticators) == 0 || len(ch.resolvers) == 0 {
		return nil, errors.New("the chain needs an authenticator and a resolver")
	}
	return ch, nil
}

func add[T any](to *[]stage[T], at int, p plugins.Plugin) int {
	do, ok := p.(T)
	if !ok {
		return 0
	}
	*to = append(*to, stage[T]{at, do})
	return 1
}

// print writes the chain in the order in which it runs.
func (ch *chain) print(w io.Writer) error {
	p := &printer{w: w, links: ch.links}
	line(p, "authenticate", ch.authenticators)
	line(p, "resolve", ch.resolvers)
	line(p, "guard", ch.guards)
	line(p, "cache answers", ch.caches)
	line(p, "charge", ch.chargers)
	line(p, "guard answers", ch.answerGuards)
	line(p, "observe events", ch.observers)
	line(p, "record", ch.recorders)
	return p.err
}

type printer struct {
	w     io.Writer
	links []Link
	err   error
}

func line[T any](p *printer, name string, stages []stage[T]) {
	for _, s := range stages {
		l := p.links[s.at]
		if _, err := fmt.Fprintf(p.w, "%-14s %-16s on_error=%s mode=%s timeout=%s\n", name, l.Plugin.ID(), l.OnError, l.Mode, l.Timeout); err != nil {
			p.err = err
		}
	}
}

// run lets one plugin act in one stage. From here on the plugin has taken part in the call and will be told of its end. A
// panic is an error like any other.
func (ch *chain) run(ctx context.Context, c *call, at int, act func(context.Context) error) (err error) {
	c.takesPart(at)
	bounded := within(ctx, ch.links[at].Timeout)
	defer bounded.end()
	defer func() {
		if p := recover(); p != nil {
			err = panicked(p)
		}
	}()
	if err := act(bounded); err != nil {
		return err
	}
	if err := bounded.Err(); errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

func panicked(p any) error { return fmt.Errorf("panic: %v\n%s", p, debug.Stack()) }

// failure applies the failure mode of a plugin that failed: nil, or the error that ends the call.
func (ch *chain) failure(ctx context.Context, at int, err error) error {
	l := ch.links[at]
	if ctx.Err() != nil {
		return ctx.Err() // the client left: that is no failure of the plugin
	}
	if l.OnError == Deny && (errors.Is(err, governance.ErrStoreAway) || errors.Is(err, governance.ErrStale)) {
		return orUnavailable(err)
	}
	ch.failed(l.Plugin.ID())
	log := zerolog.Ctx(ctx).Sample(ch.sampler)
	log.Error().Err(err).Str(lognames.Plugin, l.Plugin.ID()).Msg("plugin failed")
	if l.OnError == Allow {
		return nil
	}
	return &governance.Error{
		Code: governance.CodePluginUnavailable, Public: "A part of the gateway that must agree to each request is unavailable.", Err: err,
	}
}

// decided reports whether err is a plugin's decision and no failure of its own.
func decided(err error) bool {
	_, ok := errors.AsType[*governance.Error](err)
	return ok
}

func (ch *chain) authenticate(ctx context.Context, c *call) error {
	for _, s := range ch.authenticators {
		var p governance.Principal
		err := ch.run(ctx, c, s.at, func(ctx context.Context) (err error) {
			p, err = s.do.Authenticate(ctx, &c.Call)
			return err
		})
		switch {
		case errors.Is(err, plugins.ErrNotMine):
			continue
		case err != nil && decided(err):
			return err
		case err != nil:
			return ch.failure(ctx, s.at, err)
		}
		c.Principal = p
		return nil
	}
	return fault(governance.CodeInvalidAPIKey, "The API key is unknown.")
}

// resolve asks each resolver until one has targets.
func (ch *chain) resolve(ctx context.Context, c *call) (governance.Route, error) {
	for _, s := range ch.resolvers {
		var route governance.Route
		err := ch.run(ctx, c, s.at, func(ctx context.Context) (err error) {
			route, err = s.do.Resolve(ctx, &c.Call)
			return err
		})
		switch {
		case err != nil && decided(err):
			return governance.Route{}, err
		case err != nil:
			return governance.Route{}, ch.failure(ctx, s.at, err)
		case len(route.Targets) > 0:
			return route, nil
		}
	}
	return governance.Route{}, &governance.Error{
		Code: governance.CodeModelNotFound, Public: "The model is unknown, or nothing serves it.", Param: "model",
	}
}

// guard asks every guard. A new body is indexed anew, so that later stages read what will be sent.
func (ch *chain) guard(ctx context.Context, c *call) error {
	for _, s := range ch.guards {
		var v plugins.Verdict
		err := ch.run(ctx, c, s.at, func(ctx context.Context) (err error) {
			v, err = s.do.Guard(ctx, &c.Call)
			return err
		})
		if err != nil {
			if err := ch.failure(ctx, s.at, err); err != nil {
				return err
			}
			continue
		}
		c.tag(v.Tags)
		if v.Deny != nil && !ch.onlyLogs(ctx, s.at, v.Deny) {
			return v.Deny
		}
		if ch.links[s.at].Mode == governance.ModeLog {
			continue
		}
		c.warnings = append(c.warnings, v.Warnings...)
		if v.Body != nil {
			doc, err := jsonedit.Parse(v.Body)
			if err != nil {
				return ch.failure(ctx, s.at, fmt.Errorf("parse the body of a verdict: %w", err))
			}
			c.Body = doc
		}
	}
	return nil
}

// unseen refuses what the guards of the chain cannot see, requests or answers, and names it (F224). Guards that have nothing to
// do for the caller mind nothing.
func (ch *chain) unseen(c *call, what string, requests, answers bool) error {
	var see []int
	if requests {
		for _, s := range ch.guards {
			see = append(see, s.at)
		}
	}
	if answers {
		for _, s := range ch.answerGuards {
			see = append(see, s.at)
		}
	}
	for _, at := range see {
		if idler, ok := ch.links[at].Plugin.(plugins.Idler); ok && idler.Idle(&c.Call) {
			continue
		}
		return &governance.Error{
			Code: governance.CodePluginUnsupported, Public: "A guardrail applies to this key, and guardrails cannot see into " + what + ".",
		}
	}
	return nil
}

// seesAll refuses calls whose body or answer is nothing that guards can read.
func (ch *chain) seesAll(c *call) error {
	if c.Form != nil {
		return ch.unseen(c, "forms", true, false)
	}
	if c.route.dialect == providers.OpenAISpeech {
		return ch.unseen(c, "sound", false, true)
	}
	return nil
}

// onlyLogs reports whether a denial is merely counted.
func (ch *chain) onlyLogs(ctx context.Context, at int, deny *governance.Error) bool {
	l := ch.links[at]
	if l.Mode != governance.ModeLog {
		return false
	}
	ch.wouldDeny(l.Plugin.ID())
	log := zerolog.Ctx(ctx).Sample(ch.sampler)
	log.Info().Str(lognames.Plugin, l.Plugin.ID()).Str(lognames.Code, string(deny.Code)).Msg("plugin in log mode would have denied")
	return true
}

// charge collects what an attempt must reserve. Its decisions are about the target: another one may be affordable.
func (ch *chain) charge(ctx context.Context, c *call) ([]governance.Hold, error) {
	var holds []governance.Hold
	for _, s := range ch.chargers {
		var mine []governance.Hold
		err := ch.run(ctx, c, s.at, func(context.Context) (err error) {
			mine, err = s.do.Charge(&c.Call)
			return err
		})
		switch {
		case err != nil && decided(err):
			return nil, err
		case err != nil:
			if err := ch.failure(ctx, s.at, err); err != nil {
				return nil, err
			}
		}
		holds = append(holds, mine...)
	}
	return holds, nil
}

// observe shows an event to the observers, which cannot change anything: their failures are counted and nothing else.
func (ch *chain) observe(c *call, ev sse.Event) {
	for _, s := range ch.observers {
		if p := protect(func() { s.do.Observe(&c.Call, ev) }); p != nil {
			ch.failed(ch.links[s.at].Plugin.ID())
		}
		c.takesPart(s.at)
	}
}

// finish tells every plugin that took part that the call is over: once, in reverse order, whatever another one does.
func (ch *chain) finish(c *call, outcome error) {
	for i := len(c.took) - 1; i >= 0; i-- {
		p := ch.links[c.took[i]].Plugin
		f, ok := p.(plugins.Finisher)
		if !ok {
			continue
		}
		if err := protect(func() { f.Finish(&c.Call, outcome) }); err != nil {
			ch.failed(p.ID())
			c.log.Error().Err(err).Str(lognames.Plugin, p.ID()).Msg("plugin failed")
		}
	}
	c.took = nil
}

// record hands a finished call to the recorders.
func (ch *chain) record(ctx context.Context, r plugins.Record) {
	for _, s := range ch.recorders {
		l := ch.links[s.at]
		bounded := within(ctx, l.Timeout)
		if err := protect(func() { s.do.Record(bounded, r) }); err != nil {
			ch.failed(l.Plugin.ID())
			ch.log.Error().Err(err).Str(lognames.Plugin, l.Plugin.ID()).Msg("plugin failed")
		}
		bounded.end()
	}
}

// protect turns a panic into an error.
func protect(do func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicked(p)
		}
	}()
	do()
	return nil
}

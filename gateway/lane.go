package gateway

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
)

// lane is the way between the client's dialect and its target's.
type lane struct {
	dialect    providers.Dialect    // what the target is asked in
	translator providers.Translator // nil on a native lane: the client's bytes go on as they are
}

// lanes are the translators by the client's dialect, in the order in which they are preferred.
type lanes map[providers.Dialect][]providers.Translator

func newLanes(all []providers.Translator) (lanes, error) {
	l := make(lanes)
	for _, t := range all {
		if slices.ContainsFunc(l[t.From()], func(other providers.Translator) bool { return other.To() == t.To() }) {
			return nil, fmt.Errorf("there are two translators from %s to %s", t.From(), t.To())
		}
		l[t.From()] = append(l[t.From()], t)
	}
	return l, nil
}

// to finds the lane to a provider; native ones come first. ok is false where there is none.
func (l lanes) to(p providers.Provider, from providers.Dialect) (way lane, ok bool) {
	if p == nil {
		return lane{}, false
	}
	spoken := p.Speaks()
	if slices.Contains(spoken, from) {
		return lane{dialect: from}, true
	}
	for _, t := range l[from] {
		if slices.Contains(spoken, t.To()) {
			return lane{t.To(), t}, true
		}
	}
	return lane{}, false
}

// noLane refuses a target that cannot be reached from the call's route. Clients of a route that counts tokens count by
// themselves where there is nothing to ask (F128).
func (c *call) noLane() error {
	e := &governance.Error{Code: governance.CodeModelNotAllowed, Public: "The model cannot be called by this path.", Param: "model"}
	if c.route.dialect == providers.AnthropicCountTokens {
		e.Code, e.Public = governance.CodeNotFound, "The model's provider does not count tokens."
	}
	return &failure{cause: e, next: true}
}

const (
	maxWarnings = 32  // parameters that a header names
	maxWarning  = 200 // bytes about one of them
)

// translate puts the client's body into the dialect of an attempt's lane. The copy counts as a body in flight.
func (c *call) translate(a *attempt) error {
	text, warnings, err := a.lane.translator.Request(c.Body, a.target.UpstreamModel)
	if err != nil {
		return &failure{cause: asFailure(err).cause, next: true}
	}
	if !c.g.bodies.take(int64(len(text))) {
		return fault(governance.CodeGatewayOverloaded, "Too many large requests are in flight.")
	}
	c.bodyBytes += int64(len(text))
	if a.translated, err = jsonedit.Parse(text); err != nil {
		return fmt.Errorf("read translated body: %w", err)
	}
	for _, w := range warnings[:min(len(warnings), maxWarnings)] {
		if c.limited(a) && isOutputLimit(w.Param) {
			continue // of a default that is not the limit in the end
		}
		said := headerText(w.Param + ": " + w.Reason)
		a.warnings = append(a.warnings, said[:min(len(said), maxWarning)])
	}
	return nil
}

// limited reports whether the target's own maximum takes the place of an output limit that the client has not set and the
// lane's dialect wants.
func (c *call) limited(a *attempt) bool {
	return a.lane.dialect == providers.AnthropicMessages && a.lane.translator != nil && c.Demand.Declared == 0 && a.target.MaxOutput > 0
}

func isOutputLimit(param string) bool {
	return param == "max_tokens" || param == "max_completion_tokens" || param == "max_output_tokens"
}

// answerBody returns a whole answer in the client's dialect.
func (a *attempt) answerBody(upstream []byte) ([]byte, error) {
	if a.answer == nil {
		return upstream, nil
	}
	body, err := a.answer.Body(upstream)
	if err != nil {
		return nil, untranslatable(err)
	}
	return body, nil
}

func untranslatable(err error) *failure {
	return &failure{
		cause: &governance.Error{Code: governance.CodeUpstreamInvalid, Public: invalidMessage, Err: fmt.Errorf("translate answer: %w", err)},
		next:  true, shouldRetry: "false",
	}
}

// clientEvents returns what an event of the upstream is to the client of a translated lane: none, one or many events, which
// are valid until the next call.
func (c *call) clientEvents(a *attempt, s *stream, ev sse.Event, response *http.Response, facts *providers.Facts) ([]byte, error) {
	a.out.Reset()
	switch {
	case s.said || !hasContent(ev): // an error was the last word, and a comment is for whoever asked
		return nil, nil
	case facts.ErrorBody != nil:
		s.said = true
		return c.errorEvent(asFailure(c.saidInside(a, response, facts.ErrorBody)), s.told), nil
	}
	if s.sent == 0 && a.oweUsage {
		s.head = bytes.Clone(ev.Data)
	}
	if isLast(a.lane.dialect, ev, *facts) {
		if err := c.giveUsage(a, s, facts); err != nil {
			return nil, err
		}
	}
	if err := a.answer.Event(&a.out, ev); err != nil {
		return nil, untranslatable(err)
	}
	if s.sent == 0 && a.keeper != nil && !a.oweUsage {
		s.head = bytes.Clone(firstData(a.out.Bytes()))
	}
	return c.inspect(a, a.out.Bytes())
}

// lastEvents returns what the client of a translated lane has still to be told when its upstream's stream has ended in order.
func (c *call) lastEvents(a *attempt, s *stream, facts *providers.Facts) ([]byte, error) {
	if a.answer == nil || s.said {
		return nil, nil
	}
	a.out.Reset()
	if c.open == a {
		if err := c.giveUsage(a, s, facts); err != nil {
			return nil, err
		}
	}
	if err := a.answer.End(&a.out); err != nil {
		return nil, untranslatable(err)
	}
	return c.inspect(a, a.out.Bytes())
}

// giveUsage gives the translator the usage frame that the upstream cannot send (F115), estimated from what is known so far.
func (c *call) giveUsage(a *attempt, s *stream, facts *providers.Facts) error {
	if !a.oweUsage || facts.HasUsage {
		return nil
	}
	a.look(*facts)
	a.ending.Terminal = true
	booked := a.settlement()
	frame := usageFrame(s.head, &booked)
	if frame == nil {
		return nil
	}
	if err := a.answer.Event(&a.out, sse.Event{Raw: event(nil, frame), Data: frame}); err != nil {
		return untranslatable(err)
	}
	return nil
}

// inspect lets the chain see events of a translated lane in the client's dialect, and returns them as its guards leave them.
func (c *call) inspect(a *attempt, events []byte) ([]byte, error) {
	if len(events) == 0 || len(c.g.chain.observers)+len(a.judges) == 0 {
		return events, nil
	}
	var left []byte
	for ev := range eventsOf(events) {
		c.g.chain.observe(c, ev)
		raw, err := c.judged(a, ev)
		if err != nil {
			return nil, err
		}
		left = append(left, raw...)
	}
	return left, nil
}

// eventsOf splits whole events that a translator wrote.
func eventsOf(events []byte) func(yield func(sse.Event) bool) {
	return func(yield func(sse.Event) bool) {
		r := sse.NewReader(bytes.NewReader(events))
		for {
			ev, err := r.Next()
			if err != nil || !yield(ev) {
				return
			}
		}
	}
}

// firstData returns the data of the first of some events.
func firstData(events []byte) []byte {
	for ev := range eventsOf(events) {
		return ev.Data
	}
	return nil
}

// translatedError puts an upstream's error into the client's dialect. Clients of Anthropic find the request's id in it.
func (c *call) translatedError(a *attempt, status int, body []byte) []byte {
	body = a.answer.Error(status, body)
	if !isAnthropic(c.route.dialect) {
		return body
	}
	doc, err := jsonedit.Parse(body)
	if err != nil {
		return body
	}
	withID, err := doc.With(jsonedit.At("request_id").String(c.ID.String()))
	if err != nil {
		return body
	}
	return withID
}

// isAnthropic reports whether a dialect is one of Anthropic's.
func isAnthropic(d providers.Dialect) bool {
	return d == providers.AnthropicMessages || d == providers.AnthropicCountTokens
}

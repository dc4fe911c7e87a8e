package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/lognames"
	"github.com/tollgate-gateway/tollgate/plugins"
	"github.com/tollgate-gateway/tollgate/providers"
)

const (
	maxErrorBody = 1 << 20 // bytes of an upstream's error that are read
	// tagUsage is the tag of a spend row whose usage the provider reported in a shape that makes no sense to its meter. What it
	// said is kept beside the row.
	tagUsage = ownTag + "usage_shape"
	// tagTier is the tag of a spend row whose provider served it in a tier that has no price of its own, so that it was charged
	// at the ordinary one. Its value is the tier.
	tagTier = ownTag + "unpriced_tier"
)

// attempt is one call to one target, from its reservation to its settlement.
type attempt struct {
	id       ids.ID
	number   int // from 1
	target   *governance.Target
	provider providers.Provider
	lane     lane
	meter    providers.Meter // of the lane's dialect
	holds    []governance.Hold
	ending   governance.Ending
	sending  sending
	body     sendBody
	keeper   *keeper // nil: no keep-alives

	// Of a translated lane.
	translated *jsonedit.Document // the client's body, until it is sent
	answer     providers.Answer
	out        bytes.Buffer // what an event of the upstream is to the client
	judges     judges       // guards of the answer
	warnings   []string     // about parameters that did not come through

	// The life of the upstream's side. timer ends it when the upstream is silent or the call's time is over; watchers end it
	// when others do.
	cancel   context.CancelCauseFunc
	ctx      context.Context
	silence  *silence
	leaving  sync.Once
	left     atomic.Bool // the client has left and the answer is read on for its usage
	askUsage bool        // the usage frame of a stream is there because we asked for it
	oweUsage bool        // the client waits for one, and the upstream could not be asked
}

// forward tries the targets in their order until one answers. Every attempt is reserved on its own, under one deadline and
// one budget of attempts. It returns nil once an answer has been sent.
func (c *call) forward() error {
	c.until = c.deadline()
	var last error
	bought := false // an attempt may have cost something and gave nothing: nobody must ask for the same again by itself
	targets, well := c.g.breakers.order(c.Resolved.Targets)
	for i := 0; i < len(targets) && c.Attempt < c.g.cfg.Attempts; i++ {
		if i > 0 && c.atMost(1) <= 0 {
			break // nothing could answer in time any more
		}
		t := targets[i]
		probe := false
		if i < well {
			var ok bool
			if ok, probe = c.g.breakers.enter(t); !ok && i+1 < len(targets) {
				continue // somebody else probes it, or it fell ill a moment ago
			}
		}
		if renewed := c.Catalog.Target(t.Num); renewed != nil {
			t = renewed
		}
		a, err := c.reserve(t)
		if err != nil {
			c.g.breakers.leave(t, saysNothing, probe, 0)
			if !passesOn(err) {
				return final(err, bought)
			}
			if last == nil {
				last = err
			}
			continue
		}
		more := i+1 < len(targets) && a.number < c.g.cfg.Attempts
		err = c.try(a, more)
		shown, wait := a.shows(err)
		c.g.breakers.leave(t, shown, probe, wait)
		bought = bought || a.ending.Written && !a.ending.Refused
		if err == nil || !more || c.status != 0 || !passesOn(err) {
			return final(err, bought)
		}
		zerolog.Ctx(c.ctx()).Info().Str(lognames.Code, string(governance.CodeOf(err))).Int(lognames.Attempt, a.number).Str(lognames.Target, a.target.ID).Msg("attempt failed, trying the next target")
		last = err
	}
	return final(last, bought)
}

// final makes sure that neither an SDK nor a mesh buys again what an attempt may have cost already, whichever attempt's error
// the caller is told.
func final(err error, bought bool) error {
	if f, ok := errors.AsType[*failure](err); ok && bought {
		f.shouldRetry, f.meshFinal = "false", true
	}
	return err
}

// deadline bounds the upstream's time of a call that does not stream. Streams end by silence alone.
func (c *call) deadline() time.Time {
	if c.Stream {
		return time.Now().Add(c.g.cfg.StreamExpiry)
	}
	return time.Now().Add(c.g.cfg.Unary)
}

// atMost bounds a wait for the upstream by what is left of the call's time.
func (c *call) atMost(d time.Duration) time.Duration { return min(d, time.Until(c.until)) }

// passesOn reports whether another target may do better.
func passesOn(err error) bool {
	f, ok := errors.AsType[*failure](err)
	return ok && f.next
}

// reserve admits one attempt at a target: access and price of the target that really runs, and every limit, in one
// transaction that closes the attempt before it (ruling 17).
func (c *call) reserve(t *governance.Target) (*attempt, error) {
	for renewed := false; ; renewed = true {
		c.Target = t
		plan := c.plan
		if c.hit != nil {
			plan = c.planAgain
		}
		a, request, err := plan()
		if err != nil {
			return nil, err
		}
		began := time.Now()
		reservation, err := c.g.ledger.Reserve(c.ctx(), request)
		spent := time.Since(began)
		c.admission += spent
		took := spent.Seconds()
		if err == nil {
			c.g.metrics.admission(took, "admitted")
			c.g.catalogs.Notice(reservation.ConfigVersion)
			c.closed(request.Closes)
			c.open, c.levels, c.Attempt = a, reservation.Levels, a.number
			c.countWouldRefuse()
			return a, nil
		}
		if d, ok := errors.AsType[*governance.Denial](err); ok {
			c.g.metrics.admission(took, "refused")
			c.g.catalogs.Notice(d.ConfigVersion)
			c.closed(request.Closes)
			f := denied(d, &c.Call, c.g.now())
			f.next = onlyTarget(d)
			return nil, f
		}
		if e, ok := errors.AsType[*governance.Error](err); ok { // the request itself cannot be held
			c.g.metrics.admission(took, "refused")
			return nil, e
		}
		c.g.metrics.admission(took, "undecided")
		switch {
		case errors.Is(err, governance.ErrStaleChain) && !renewed:
			if t, err = c.renew(t); err != nil {
				return nil, err
			}
			continue
		case errors.Is(err, governance.ErrOverloaded):
			return nil, &governance.Error{Code: governance.CodeGatewayOverloaded, Public: "Too many requests wait for admission.", Err: err}
		case c.gone():
			return nil, errClientLeft // the ledger itself releases what nobody waited for
		}
		return nil, &governance.Error{
			Code: governance.CodeLimitStoreUnavailable, Public: "The limits cannot be checked at the moment, so nothing was forwarded.", Err: err,
		}
	}
}

// countWouldRefuse counts the limits in log mode that would have refused the attempt.
func (c *call) countWouldRefuse() {
	for i := range c.levels {
		if c.levels[i].WouldRefuse {
			c.g.metrics.wouldRefuse(c.levels[i].Limit.ID)
		}
	}
}

// onlyTarget reports whether nothing but limits of the target refused: another target may have room.
func onlyTarget(d *governance.Denial) bool {
	for i := range d.Refusals {
		if d.Refusals[i].Limit.Scope.Type != governance.ScopeTarget {
			return false
		}
	}
	return true
}

// plan prepares the next attempt at c.Target.
func (c *call) plan() (*attempt, governance.ReserveRequest, error) {
	t := c.Target
	p := c.g.providers[t.ProviderKind]
	way, ok := c.g.lanes.to(p, c.route.dialect)
	if !ok {
		return nil, governance.ReserveRequest{}, c.noLane()
	}
	a := &attempt{target: t, provider: p, lane: way, meter: p.Meter(way.dialect)}
	if way.translator != nil {
		if err := c.translate(a); err != nil { // before anything is held for it
			return nil, governance.ReserveRequest{}, err
		}
	}
	c.Attempt++ // what plugins see is the number of the attempt they charge
	number := c.Attempt
	holds, err := c.g.chain.charge(c.ctx(), c)
	c.Attempt--
	if err != nil {
		return nil, governance.ReserveRequest{}, aboutTarget(err)
	}
	estimate, err := c.Demand.Estimate(t, holds)
	if err != nil {
		return nil, governance.ReserveRequest{}, err
	}
	if err := c.affords(t, estimate); err != nil {
		return nil, governance.ReserveRequest{}, aboutTarget(err)
	}
	a.id, a.number, a.holds = ids.New(c.g.now()), number, holds
	a.ending = governance.Ending{ID: a.id, Reserved: estimate, Price: t.Price, OutputRate: t.OutputRate}
	a.expect(&c.Demand)
	request := governance.ReserveRequest{
		ID: a.id, Estimate: estimate, Holds: holds, HardExpiry: c.g.cfg.Unary + c.g.cfg.ExpiryMargin,
		Origin: c.origin(t, number),
	}
	if c.Stream {
		request.HardExpiry = c.g.cfg.StreamExpiry
	}
	if c.open != nil {
		s := c.open.settlement()
		s.Carry = c.open.carrySlots(holds, s)
		request.Closes = &s
		c.keep(c.open, s)
	}
	carryRequests(c.kept, holds)
	return a, request, nil
}

// origin says whose attempt it is.
func (c *call) origin(t *governance.Target, number int) governance.Origin {
	o := governance.Origin{
		RequestID: c.ID, Attempt: number,
		Organization: c.Principal.Organization, Team: c.Principal.Team, Key: c.Principal.Key, User: c.Principal.User,
		EndUser: c.EndUserNum, Route: c.Route, Model: c.Model, Provider: t.Provider.Name,
		UpstreamModel: t.UpstreamModel, TargetNum: t.Num, Unpriced: c.Demand.Unpriced(t),
	}
	if c.Resolved.Model != nil {
		o.ModelNum = c.Resolved.Model.Num
	}
	if t.Price != nil {
		o.PriceNum = t.Price.Num
	}
	return o
}

// aboutTarget lets another target be tried where a plugin refused this one for its price.
func aboutTarget(err error) error {
	e, ok := errors.AsType[*governance.Error](err)
	if ok && (e.Code == governance.CodeModelUnpriced || e.Code == governance.CodeMaxCostExceeded) {
		return &failure{cause: e, next: true}
	}
	return err
}

// affords checks the client's own bound on the cost of the call.
func (c *call) affords(t *governance.Target, e governance.Estimate) error {
	if c.wishes.maxCost == nil {
		return nil
	}
	cost, err := c.Demand.Cost(t, governance.ReserveDeclared)
	if err != nil {
		return err
	}
	if cost = max(cost, e.Cost); cost > *c.wishes.maxCost {
		return &governance.Error{
			Code: governance.CodeMaxCostExceeded, Param: headerMaxCost,
			Public: "The request may cost up to " + cost.String() + " US dollars, more than its header " + headerMaxCost + " allows.",
		}
	}
	return nil
}

// carrySlots marks the slots that an attempt hands to the one that closes it, and reports whether there are any. A target's
// own count per attempt (ruling 17), and what was released must be asked for again.
func (a *attempt) carrySlots(next []governance.Hold, s governance.Settlement) bool {
	carried := false
	for i := range next {
		slot := next[i].Limit.Kind == governance.KindConcurrency && next[i].Limit.Scope.Type != governance.ScopeTarget
		if slot && !s.Release && holdsSame(a.holds, &next[i]) {
			next[i].Carried, carried = true, true
		}
	}
	return carried
}

// keep notes the requests that an attempt has taken for good, for the attempts after it.
func (c *call) keep(a *attempt, s governance.Settlement) {
	if s.Requests != governance.BasisZero {
		c.kept = append(c.kept, a.holds...)
	}
}

// carryRequests marks the requests that an earlier attempt of the same call has taken for good.
func carryRequests(kept, next []governance.Hold) {
	for i := range next {
		next[i].Carried = next[i].Carried || isRequest(&next[i]) && holdsSame(kept, &next[i])
	}
}

// isRequest reports whether a hold is of the kind that a client's call takes once, over all its attempts.
func isRequest(h *governance.Hold) bool {
	return h.Limit.Kind == governance.KindRate && h.Limit.Metric == governance.MetricRequests && h.Limit.Scope.Type != governance.ScopeTarget
}

func holdsSame(all []governance.Hold, h *governance.Hold) bool {
	for i := range all {
		if all[i].Limit.Num == h.Limit.Num && all[i].Subject == h.Subject {
			return true
		}
	}
	return false
}

// closed notes that the attempt before was settled together with an admission, or with its refusal.
func (c *call) closed(s *governance.Settlement) {
	if s == nil || c.open == nil {
		return
	}
	c.conclude(c.open, *s)
}

// renew gets newer limits after the store said that ours are old, and finds the target in them, if it is still offered.
func (c *call) renew(t *governance.Target) (*governance.Target, error) {
	ctx, cancel := context.WithTimeout(c.ctx(), c.g.cfg.CatalogWait)
	defer cancel()
	if err := c.g.catalogs.Refresh(ctx, c.Catalog.Version+1); err != nil && c.gone() {
		return nil, errClientLeft
	}
	var err error
	if c.Catalog, err = c.g.catalogs.Current(); err != nil {
		return nil, orUnavailable(err)
	}
	resolved, err := c.g.chain.resolve(c.ctx(), c)
	if err != nil {
		return nil, err
	}
	c.Resolved.Model = resolved.Model
	for _, offered := range resolved.Targets {
		if offered.Num == t.Num {
			return offered, nil
		}
	}
	return nil, &failure{cause: fault(governance.CodeModelNotFound, "The model is no longer served by this target."), next: true}
}

// try makes one attempt. It returns nil once its answer has been sent.
func (c *call) try(a *attempt, more bool) error {
	body, err := c.upstreamBody(a)
	if err != nil {
		return err
	}
	a.ctx, a.cancel = context.WithCancelCause(context.WithoutCancel(c.ctx()))
	defer a.cancel(errOver)
	a.silence = newSilence(c.atMost(c.patience(more)), func() { a.cancel(errSilent) })
	defer a.silence.stop()
	defer context.AfterFunc(a.ctx, a.sending.end)()
	defer context.AfterFunc(c.ctx(), func() { c.left(a) })()
	defer context.AfterFunc(c.g.life.cut, func() { a.cancel(errCut) })()

	up := providers.Upstream{
		BaseURL: a.target.BaseURL, Model: a.target.UpstreamModel, Credential: a.target.Credential,
		Stream: c.Stream, ClientQuery: c.r.URL.RawQuery, ContentType: c.form.contentType(),
	}
	request, err := a.provider.NewRequest(a.sending.watch(a.ctx), up, a.lane.dialect, c.r.Header, body)
	if err != nil {
		return &failure{cause: &governance.Error{
			Code: governance.CodeUpstreamUnreachable, Public: "The provider cannot be called as it is configured.", Err: err,
		}, next: true}
	}
	request.Header.Set("Accept-Encoding", "identity")
	if c.Form != nil {
		if err := c.sendForm(a, request); err != nil {
			return err
		}
	}
	if len(body) > smallBody {
		a.body.text, a.body.size = body, len(body)
		request.Body, _ = a.body.open()
		request.GetBody = a.body.open
	}
	if c.keepsAlive() {
		a.keeper = c.keepAlive(a)
		defer a.keeper.stop()
	}
	began := time.Now()
	var response *http.Response
	a.keeper.wait(func() { response, err = c.g.upstreams.of(a.target.Provider.Num).RoundTrip(request) }) //nolint:bodyclose // below, by a defer
	c.notOurs += time.Since(began)
	a.ending.Written = a.sending.written()
	if err != nil {
		return c.unanswered(a, err)
	}
	defer func() { _ = response.Body.Close() }()
	a.ending.Written = true
	plain, err := decoded(response)
	if err != nil {
		a.ending.Refused = response.StatusCode/100 != 2
		return &failure{cause: &governance.Error{
			Code: governance.CodeUpstreamInvalid, Public: "The provider's answer is compressed in a way that was not asked for.", Err: err,
		}, next: true}
	}
	switch {
	case response.StatusCode/100 != 2:
		return c.refused(a, response, plain)
	case isSound(c.route.dialect, response.Header):
		return c.relaySound(a, response, plain)
	case streams(response.Header, c.Stream):
		return c.relayStream(a, response, plain)
	}
	return c.relayWhole(a, response, plain)
}

// patience is how long an attempt may stay silent before its first byte. The last target gets all of the time (F212).
func (c *call) patience(more bool) time.Duration {
	wait := c.g.cfg.Unary
	if c.Stream {
		wait = c.g.cfg.FirstByte
	}
	if more && c.g.cfg.FailoverAfter > 0 {
		wait = min(wait, c.g.cfg.FailoverAfter)
	}
	return wait
}

// left is told that the client has left. The target decides whether the answer is aborted or read on for its usage.
func (c *call) left(a *attempt) {
	a.leaving.Do(func() {
		if a.target.OnDisconnect != governance.DisconnectDrain {
			a.cancel(errClientLeft)
			return
		}
		select {
		case c.g.drains <- struct{}{}:
		default:
			a.cancel(errClientLeft)
			return
		}
		a.left.Store(true)
		bound := time.AfterFunc(c.g.cfg.DrainTime, func() { a.cancel(errClientLeft) })
		context.AfterFunc(a.ctx, func() {
			bound.Stop()
			<-c.g.drains
		})
	})
}

// upstreamBody is the client's body with the members that Tollgate owns set, and every other byte as it came; on a translated
// lane, as it was translated.
func (c *call) upstreamBody(a *attempt) ([]byte, error) {
	if c.Form != nil {
		return nil, nil // it goes by itself
	}
	doc := c.Body
	edits := memberEdits(a.provider, a.lane.dialect, a.target.UpstreamModel)
	switch {
	case a.lane.translator != nil:
		doc, a.translated = a.translated, nil
		a.answer = a.lane.translator.NewAnswer(c.Body)
		if c.limited(a) {
			edits = append(edits, jsonedit.At("max_tokens").Int(a.target.MaxOutput))
		}
	case edits == nil && a.target.UpstreamModel != c.Model:
		edits = append(edits, jsonedit.At("model").String(a.target.UpstreamModel))
	}
	edits = append(edits, quirkEdits(a.provider, a.lane.dialect, doc)...)
	edits = append(edits, a.drops(doc)...)
	if hasStreamOptions(a.lane.dialect) {
		asked, _, err := doc.Bool("stream_options", "include_usage")
		_, given := doc.Get("stream_options")
		switch {
		case err != nil:
			return nil, unreadable(err)
		case a.target.NoStreamOptions:
			if given {
				edits = append(edits, jsonedit.At("stream_options").Delete())
			}
			// Whether the client of a translated lane waits for usage is its translator's to know.
			a.oweUsage = c.Stream && (asked || a.answer != nil)
		case c.Stream && !asked:
			edits = append(edits, jsonedit.At("stream_options", "include_usage").Bool(true))
			a.askUsage = true
		}
	}
	if len(edits) == 0 {
		return doc.Bytes(), nil
	}
	body, err := doc.With(edits...)
	if err != nil {
		return nil, unreadable(err)
	}
	return body, nil
}

// memberEdits returns what a provider wants otherwise in bodies of a dialect.
func memberEdits(p providers.Provider, d providers.Dialect, model string) []jsonedit.Edit {
	if editor, ok := p.(providers.MemberEditor); ok {
		return editor.Members(d, model)
	}
	return nil
}

// hasStreamOptions reports whether streams of a dialect carry usage only where it is asked for.
func hasStreamOptions(d providers.Dialect) bool {
	return d == providers.OpenAIChat || d == providers.OpenAICompletions
}

// streams reports whether an answer is a stream of events. Some upstreams label theirs as text.
func streams(h http.Header, asked bool) bool {
	media, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err == nil && media == "text/event-stream" {
		return true
	}
	return asked && (err != nil || media != "application/json" && !strings.HasSuffix(media, "+json"))
}

// unanswered explains a request that got no status: why it ended, and whether the upstream can have seen any of it.
func (c *call) unanswered(a *attempt, err error) error {
	f := &failure{next: true, shouldRetry: "true"}
	if a.ending.Written {
		f.shouldRetry, f.meshFinal = "false", true
	}
	switch cause := context.Cause(a.ctx); {
	case errors.Is(cause, errClientLeft):
		a.ending.ClientLeft = true
		return errClientLeft
	case errors.Is(cause, errCut):
		a.ending.Cut = true
		f.next = false
		f.cause = &governance.Error{Code: governance.CodeGatewayOverloaded, Public: "This gateway is shutting down.", Err: err}
	case cause != nil || isTimeout(err) && a.ending.Written:
		a.ending.TimedOut = true
		f.cause = &governance.Error{Code: governance.CodeUpstreamTimeout, Public: "The provider did not answer in time.", Err: err}
	default:
		f.cause = &governance.Error{Code: governance.CodeUpstreamUnreachable, Public: "The provider cannot be reached.", Err: err}
	}
	return f
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return ok && t.Timeout()
}

// refused passes an upstream's refusal on: untouched where it is about the caller's request, hidden where it is about our
// credential or account.
func (c *call) refused(a *attempt, response *http.Response, plain io.Reader) error {
	a.ending.Refused = true
	var body []byte
	var err error
	a.keeper.wait(func() { body, err = io.ReadAll(io.LimitReader(plain, maxErrorBody)) })
	if err != nil && errors.Is(context.Cause(a.ctx), errClientLeft) {
		a.ending.ClientLeft = true
		return errClientLeft
	}
	why := a.provider.Classify(response.StatusCode, response.Header, body)
	return c.refusal(a, response.StatusCode, response.Header, body, why)
}

func (c *call) refusal(a *attempt, status int, h http.Header, body []byte, why providers.Failure) error {
	if why.OurFault {
		// The text may name our account: it is for the operator alone.
		log := c.log.Sample(c.g.chain.sampler)
		log.Error().Int(lognames.Status, status).Str(lognames.Provider, a.target.Provider.Name).
			Str(lognames.Code, string(why.Code)).Msg("provider refused our credential or account")
		return &failure{cause: &governance.Error{
			Code: why.Code, Public: "The provider refused this gateway's own account.", Err: statusError(status),
		}, next: true}
	}
	if status < http.StatusBadRequest {
		return &failure{cause: &governance.Error{
			Code: governance.CodeUpstreamInvalid, Public: "The provider's answer is neither a success nor an error.", Err: statusError(status),
		}, next: true}
	}
	f := &failure{
		cause:  &governance.Error{Code: why.Code, Public: why.Public, Err: statusError(status)},
		status: status, next: why.TryNext, retryAfter: h.Get("Retry-After"), wait: why.RetryAfter,
	}
	if _, known := answers[f.cause.Code]; !known {
		f.cause.Code = governance.CodeUpstreamInvalid
	}
	body = c.mask(a, body)
	switch {
	case isJSON(body) && a.answer != nil:
		f.body = c.translatedError(a, status, body)
	case isJSON(body):
		f.body = body
	default:
		broken := f.cause.Code == governance.CodeUpstreamAborted
		if broken { // a whole answer, though none of the provider's API
			f.cause.Code = governance.CodeUpstreamInvalid
		}
		text := strings.ToValidUTF8(strings.TrimSpace(string(body)), "\uFFFD")
		if text != "" && (!broken || text[0] != '<') { // the page of a proxy is for browsers
			f.cause.Public = text
		}
	}
	if a.number > 1 && status >= http.StatusInternalServerError && f.retryAfter == "" {
		f.shouldRetry = "false" // it was tried again already: the SDK's retries would multiply with ours (F215)
	}
	return f
}

// isJSON reports whether an error body is an object or a list of them, in whatever shape.
func isJSON(body []byte) bool {
	body = bytes.TrimSpace(body)
	return len(body) > 0 && (body[0] == '{' || body[0] == '[') && json.Valid(body)
}

// mask hides the target's credential where an upstream's error repeats it (ruling 40).
func (c *call) mask(a *attempt, body []byte) []byte {
	if a.target.Credential.IsZero() {
		return body
	}
	return bytes.ReplaceAll(body, []byte(a.target.Credential.Reveal()), []byte("[secret]"))
}

type statusError int

func (s statusError) Error() string { return "upstream status " + http.StatusText(int(s)) }

// settlement is what the attempt's facts amount to now.
func (a *attempt) settlement() governance.Settlement {
	a.ending.Generating = a.sending.generating()
	return a.ending.Settlement()
}

// conclude takes note of a closed attempt.
func (c *call) conclude(a *attempt, s governance.Settlement) {
	c.open = nil
	if s.Outcome == governance.OutcomeComplete && s.Source == governance.UsageEstimate {
		c.g.metrics.noUsage(a.target.Provider.Name)
	}
	facts := a.meter.Facts()
	// What the provider reported is no basis of the cost.
	useless := s.Source == governance.UsageEstimate && s.Outcome == governance.OutcomeComplete && a.ending.Usage != nil
	if facts.BadUsage || useless {
		c.tag(map[string]string{tagUsage: "unknown"})
	}
	if price, tier := a.ending.Price, facts.Usage.ServiceTier; price != nil && !price.Tiered(tier) {
		c.tag(map[string]string{tagTier: headerText(tier)})
		c.g.metrics.tierUnpriced(a.target.Provider.Name)
	}
	c.attempts = append(c.attempts, plugins.Attempt{ID: a.id, Target: a.target, Settlement: s, RawUsage: facts.Usage.Raw})
}

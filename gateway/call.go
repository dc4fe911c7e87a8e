package gateway

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/formdata"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/lognames"
	"github.com/tollgate-gateway/tollgate/plugins"
	"github.com/tollgate-gateway/tollgate/providers"
)

// call is one request of a client from its arrival to its last log line. One goroutine owns it.
type call struct {
	plugins.Call
	g         *Gateway
	route     *route // nil: none was found
	param     string // the path's parameter, where the route has one
	w         http.ResponseWriter
	rc        *http.ResponseController
	r         *http.Request
	log       zerolog.Logger
	anthropic bool
	wishes    wishes
	keyFrom   string // header that the credential came in

	took       []int             // links of the chain that took part, in the order in which they began
	open       *attempt          // reserved and not closed
	attempts   []plugins.Attempt // closed ones
	kept       []governance.Hold // of closed attempts that keep their request
	levels     []governance.Level
	stores     bool     // the provider is to keep the response
	claimed    bool     // an idempotency key is in flight
	warnings   []string // for the client
	form       *spooled // nil: the body is no form
	bodyBytes  int64    // of the budget for bodies
	bodyRead   bool
	err        error // what the client was told, if not success
	status     int   // as sent; 0: nothing was
	firstByte  time.Duration
	bytesOut   int64
	notOurs    time.Duration // time that the client and the upstreams took
	overhead   time.Duration
	admission  time.Duration   // of all attempts: what the limits took
	stream     stream          // of an answer that is one
	copy       *transcript     // of the answer, for a cache; nil: none is wanted
	hit        *plugins.Answer // from the cache; nil: the call is forwarded
	until      time.Time       // end of the upstreams' time
	writeUntil time.Time       // write deadline as last set
	values     []string        // room for values of the answer's headers
	abort      bool            // the connection must end without a clean end
}

// newCall begins a call: from here on it has an id, which every answer carries.
func (g *Gateway) newCall(rt *route, w http.ResponseWriter, r *http.Request) *call {
	c := &call{g: g, route: rt, w: w, r: r, rc: http.NewResponseController(w), anthropic: speaksAnthropic(rt, r)}
	c.ID = ids.New(g.now())
	c.Received = time.Now()
	c.Header, c.Query = r.Header, r.URL.RawQuery
	c.RemoteIP = r.RemoteAddr
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		c.RemoteIP = host
	}
	name := "none"
	if rt != nil {
		name, c.Route = rt.name, rt.name
	}
	id := c.ID.String()
	c.log = g.log.With().Str(lognames.RequestID, id).Str(lognames.Route, name).Logger()
	c.header("X-Request-Id", id)
	c.header("Request-Id", id)
	return c
}

// header sets a header of the answer. name is in canonical form. The values of all share one piece of memory.
func (c *call) header(name, value string) {
	const ordinary = 20 // headers of an answer
	if len(c.values) == cap(c.values) {
		c.values = make([]string, 0, ordinary)
	}
	c.values = append(c.values, value)
	last := len(c.values) - 1
	c.w.Header()[name] = c.values[last : last+1 : last+1]
}

// serve is the life of a call. Whatever happens in it, finish runs.
func (g *Gateway) serve(rt *route, param string, w http.ResponseWriter, r *http.Request) {
	c := g.newCall(rt, w, r)
	c.param = param
	if !g.life.enter() {
		c.err = &failure{cause: fault(governance.CodeGatewayOverloaded, "This gateway is shutting down."), closing: true}
		c.finish()
		c.hangUp()
		return
	}
	defer g.life.leave()
	defer func() { g.bodies.give(c.bodyBytes) }()
	defer func() { c.form.drop() }()
	defer c.hangUp()
	defer c.finish()
	// A deadline that an earlier request on this connection left behind must not end this one.
	if err := c.rc.SetWriteDeadline(time.Time{}); err != nil {
		c.err = err
		return
	}
	c.r = r.WithContext(c.log.WithContext(r.Context()))
	if c.err = c.authenticate(); c.err == nil {
		c.err = rt.serve(c)
	}
}

func (c *call) ctx() context.Context { return c.r.Context() }

// takesPart notes that a plugin's stage has begun.
func (c *call) takesPart(at int) {
	if !slices.Contains(c.took, at) {
		c.took = append(c.took, at)
	}
}

func (c *call) tag(tags map[string]string) {
	if len(tags) == 0 {
		return
	}
	all := maps.Clone(c.Tags)
	if all == nil {
		all = make(map[string]string, len(tags))
	}
	maps.Copy(all, tags)
	c.Tags = all
}

// authenticate finds out who calls, before anything of the body is read.
func (c *call) authenticate() error {
	key, from, err := credential(c.r.Header)
	if err != nil {
		return err
	}
	if key.IsZero() {
		return fault(governance.CodeInvalidAPIKey, "No API key was sent. Send it in the header Authorization, as: Bearer KEY.")
	}
	c.Credential, c.keyFrom = key, from
	err = c.g.chain.authenticate(c.ctx(), c)
	if e, ok := errors.AsType[*governance.Error](err); ok && e.Code == governance.CodeInvalidAPIKey {
		told := *e
		told.Public = strings.TrimSuffix(e.Public, ".") + ". It was read from the header " + from + "."
		return &told
	}
	if err != nil {
		return orUnavailable(err)
	}
	c.log = c.log.With().Str(lognames.Organization, c.Principal.Organization.ID).Str(lognames.Team, c.Principal.Team.ID).
		Str(lognames.Key, c.Principal.Key.ID).Logger()
	return nil
}

// serveModel serves a call to a model: the only way from here to a provider.
func (c *call) serveModel() error {
	if isAnthropic(c.route.dialect) && c.r.Header.Get("Anthropic-Version") == "" {
		return invalid("anthropic-version", "The header anthropic-version is missing.")
	}
	if err := c.read(); err != nil {
		return err
	}
	if err := c.claim(); err != nil {
		return err
	}
	if err := c.prepare(); err != nil {
		return err
	}
	if c.wishes.dryRun {
		return c.answerDryRun()
	}
	if len(c.g.chain.caches) > 0 {
		if hit := c.lookUp(); hit != nil {
			return c.answerAgain(hit)
		}
	}
	return c.forward()
}

// read takes the body and what the headers wish.
func (c *call) read() error {
	wishes, err := readWishes(c.r.Header)
	if err != nil {
		return err
	}
	c.wishes = wishes
	if isForm, err := c.readForm(); isForm || err != nil {
		return err
	}
	began := time.Now()
	body, taken, err := c.g.readBody(c.rc, c.r)
	c.bodyBytes = taken
	c.notOurs += time.Since(began)
	if err != nil {
		return err
	}
	c.bodyRead = true
	doc, err := jsonedit.Parse(body)
	if err != nil {
		return unreadable(err)
	}
	c.Body = doc
	if c.Model, _, err = doc.String("model"); err != nil {
		return unreadable(err)
	}
	if c.Model == "" {
		return invalid("model", "The member model is missing.")
	}
	if c.Stream, err = wantsStream(c.route.dialect, doc); err != nil {
		return unreadable(err)
	}
	return nil
}

// wantsStream reports whether a request asks for a stream of events. Speech names it as a format.
func wantsStream(d providers.Dialect, body members) (bool, error) {
	if d == providers.OpenAISpeech {
		format, _, err := body.String("stream_format")
		return format == "sse", err
	}
	asked, _, err := body.Bool("stream")
	return asked, err
}

func unreadable(err error) error {
	e := &governance.Error{Code: governance.CodeInvalidRequest, Public: "The request body cannot be read: " + err.Error() + "."}
	if where, ok := errors.AsType[*jsonedit.Error](err); ok {
		e.Param = where.Param
	}
	if where, ok := errors.AsType[*formdata.Error](err); ok {
		e.Param = where.Param
	}
	return e
}

// claim takes the call's idempotency key, so that the same request is not served twice at once.
func (c *call) claim() error {
	if c.wishes.idempotency == "" || c.wishes.dryRun {
		return nil
	}
	if c.g.idem == nil {
		return invalid(headerIdempotency, "This gateway keeps no idempotency keys.")
	}
	sum, err := c.sum()
	if err != nil {
		return err
	}
	seen, err := c.g.idem.Begin(c.ctx(), c.Principal.Key.Num, c.wishes.idempotency, sum, c.ID)
	switch {
	case errors.Is(err, governance.ErrConflict):
		return &governance.Error{
			Code: governance.CodeIdempotencyInProgress, Public: "A request with this idempotency key is in flight.", RetryAfter: time.Second,
		}
	case errors.Is(err, governance.ErrExists):
		return fault(governance.CodeIdempotencyMismatch, "This idempotency key was used with another body.")
	case err != nil:
		return orUnavailable(err)
	}
	c.claimed = true
	if seen {
		c.warnings = append(c.warnings, "idempotency_key_reused")
	}
	return nil
}

// attribute finds out for whom and for what a call is.
func (c *call) attribute() error {
	if c.Form != nil {
		if err := c.wishes.namedBy(c.Form, "user"); err != nil {
			return err
		}
	}
	dropped, err := c.wishes.attribute(c.Body, c.route.dialect, c.Principal.Require)
	if err != nil {
		return err
	}
	c.warnings = append(c.warnings, dropped...)
	c.EndUser, c.Metadata = c.wishes.endUser, c.wishes.metadata
	c.tag(c.wishes.tags)
	if c.EndUser != "" {
		if c.EndUserNum, err = c.g.endUsers.EndUser(c.ctx(), c.Principal.Key.Num, c.Principal.Organization.Num, c.EndUser); err != nil {
			return orUnavailable(err)
		}
	}
	return nil
}

// prepare runs every stage that comes before the first attempt.
func (c *call) prepare() error {
	err := c.attribute()
	if err != nil {
		return err
	}
	if err = c.pickCatalog(); err != nil {
		return err
	}
	if err = c.resolve(); err != nil {
		return err
	}
	if err = c.stay(); err != nil {
		return err
	}
	if err = c.g.chain.seesAll(c); err != nil {
		return err
	}
	if c.Demand, err = c.demand(); err != nil {
		return err
	}
	before := c.Body
	if err = c.g.chain.guard(c.ctx(), c); err != nil || c.Body == before {
		return err
	}
	c.Demand, err = c.demand()
	return err
}

// pickCatalog takes the current picture of models, limits and prices. One that is older than the caller's key may lack the
// limits that were made together with it, so it is waited for.
func (c *call) pickCatalog() error {
	var err error
	if c.Catalog, err = c.g.catalogs.Current(); err != nil {
		return orUnavailable(err)
	}
	if c.Catalog.Version >= c.Principal.ConfigVersion {
		return nil
	}
	return c.waitForCatalog(func(ctx context.Context) error { return c.g.catalogs.Refresh(ctx, c.Principal.ConfigVersion) })
}

// waitForCatalog takes the picture that is current after a wait, which is bounded.
func (c *call) waitForCatalog(wait func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(c.ctx(), c.g.cfg.CatalogWait)
	defer cancel()
	if err := wait(ctx); err != nil {
		if c.gone() {
			return errClientLeft
		}
		return orUnavailable(errors.Join(governance.ErrStale, err))
	}
	var err error
	if c.Catalog, err = c.g.catalogs.Current(); err != nil {
		return orUnavailable(err)
	}
	return nil
}

// resolve finds where the call may go. A model that the picture lacks may be newer than the picture, so it is unknown only
// once the picture has been confirmed.
func (c *call) resolve() error {
	var err error
	c.Resolved, err = c.g.chain.resolve(c.ctx(), c)
	if err == nil || governance.CodeOf(err) != governance.CodeModelNotFound {
		return err
	}
	if err := c.waitForCatalog(c.g.catalogs.Confirm); err != nil {
		return err
	}
	c.Resolved, err = c.g.chain.resolve(c.ctx(), c)
	return err
}

// write sends bytes of the answer, under a deadline that moves on with each piece: a client that stops reading is dropped,
// a stream of any length is not.
func (c *call) write(b []byte) error {
	const piece = 256 << 10
	for len(b) > 0 {
		n := min(len(b), piece)
		if err := c.extend(); err != nil {
			return err
		}
		written, err := c.w.Write(b[:n]) //nolint:gosec // no page: JSON, and streams of it
		c.bytesOut += int64(written)
		c.copy.add(b[:written])
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

func (c *call) flush() error {
	if err := c.extend(); err != nil {
		return err
	}
	return c.rc.Flush()
}

// extend moves the write deadline on, at most once a second.
func (c *call) extend() error {
	now := time.Now()
	if c.writeUntil.Sub(now) > c.g.cfg.ClientWrite-time.Second {
		return nil
	}
	c.writeUntil = now.Add(c.g.cfg.ClientWrite)
	return c.rc.SetWriteDeadline(c.writeUntil)
}

// begin sends the status line and the headers.
func (c *call) begin(status int) {
	c.status = status
	c.firstByte = time.Since(c.Received)
	c.overhead = c.firstByte - c.notOurs
	h := c.w.Header()
	h.Set("X-Tollgate-Overhead-Ms", milliseconds(c.overhead))
	if c.admission > 0 {
		h.Set("X-Tollgate-Limiter-Ms", milliseconds(c.admission))
	}
	if len(c.warnings) > 0 {
		h.Set("X-Tollgate-Warnings", strings.Join(c.warnings, ", "))
	}
	c.w.WriteHeader(status)
}

// milliseconds writes a time to the microsecond.
func milliseconds(d time.Duration) string {
	return strconv.FormatFloat(float64(d.Microseconds())/1000, 'f', 3, 64)
}

// answerJSON sends a whole answer.
func (c *call) answerJSON(status int, body []byte) error {
	c.header("Content-Type", contentJSON)
	c.header("Content-Length", strconv.Itoa(len(body)))
	c.begin(status)
	return c.write(body)
}

// unreadBody is how long the server may take to read what is left of a request that was refused early.
const unreadBody = time.Second

// refuse sends c.err as the answer, or as the last event of a stream that has begun.
func (c *call) refuse() {
	f := asFailure(c.err)
	switch {
	case c.stream.open:
		c.refuseInStream(f)
		return
	case c.status != 0:
		return // a whole answer broke off: its missing end says so
	}
	status := f.statusOf(c.Principal.BudgetStatus)
	h := c.w.Header()
	if !c.bodyRead && c.r.ContentLength != 0 {
		// Before it answers, the server reads a little of a body that nobody took. A client must not delay that for ever.
		if err := c.rc.SetReadDeadline(time.Now().Add(unreadBody)); err != nil {
			c.log.Debug().Err(err).Msg("read deadline not set")
		}
		f.closing = true
	}
	f.hints(h)
	if n := len(c.attempts); n > 0 {
		c.attemptHeaders(c.attempts[n-1].Target, c.Attempt)
	}
	if f.spoken != nil {
		c.limitHeaders([]governance.Level{f.spoken.Level})
	}
	if f.closing {
		h.Set("Connection", "close")
	}
	body := f.body
	if body == nil {
		body = encode(f.cause, status, c.anthropic, c.ID.String())
	}
	if c.r.Method == http.MethodHead {
		c.begin(status)
		return
	}
	if err := c.answerJSON(status, body); err != nil {
		c.log.Debug().Err(err).Msg("error answer not sent")
	}
}

// gone reports whether the client has left.
func (c *call) gone() bool { return c.r.Context().Err() != nil }

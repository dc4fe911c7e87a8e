package gateway

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/andybalholm/brotli"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
)

const (
	maxInflated    = 8 << 20         // bytes of a whole answer that came compressed, which a few kilobytes can blow up to gigabytes
	maxAhead       = 64 << 10        // bytes of comments and blank lines that are held back while a stream's status is open
	maxCostHeader  = 1 << 20         // bytes of a unary answer up to which its cost stands in a header (ruling 37)
	afterTerminal  = 2 * time.Second // how long an upstream may keep its connection open behind the terminal event
	contentStream  = "text/event-stream"
	contentJSON    = "application/json"
	doneEvent      = "[DONE]"
	invalidMessage = "The provider's answer is not valid."
)

// decoded returns the answer's body without a coding that the upstream applied although it was asked for none. The headers
// of the coding go with it.
func decoded(response *http.Response) (io.Reader, error) {
	var plain io.Reader
	var err error
	switch coding := strings.ToLower(response.Header.Get("Content-Encoding")); coding {
	case "", "identity":
		return response.Body, nil
	case "gzip", "x-gzip":
		plain, err = gzip.NewReader(response.Body)
	case "deflate":
		plain, err = zlib.NewReader(response.Body)
	case "br":
		plain = brotli.NewReader(response.Body)
	default:
		return nil, fmt.Errorf("content coding %q", coding)
	}
	if err != nil {
		return nil, fmt.Errorf("open compressed answer: %w", err)
	}
	response.Header.Del("Content-Encoding")
	response.Header.Del("Content-Length")
	response.Uncompressed = true
	return plain, nil
}

// attemptHeaders say which attempt an answer or a refusal comes from. Of the upstream's own headers only the content type
// comes through, and its hint when to try again.
func (c *call) attemptHeaders(t *governance.Target, number int) {
	c.header("X-Tollgate-Provider", headerText(t.Provider.Name))
	c.header("X-Tollgate-Model", headerText(t.UpstreamModel))
	c.header("X-Tollgate-Attempts", strconv.Itoa(number))
	c.limitHeaders(c.levels)
}

// answerHeaders accompany an answer.
func (c *call) answerHeaders(a *attempt, contentType string) {
	c.warnings = append(c.warnings, a.warnings...)
	c.header("Content-Type", contentType)
	c.header("X-Tollgate-Tokens-Reserved", strconv.FormatInt(a.ending.Reserved.Quantities.Tokens(), 10))
	c.attemptHeaders(a.target, a.number)
}

// headerText makes a configured name fit for a header.
func headerText(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, s)
}

// relayWhole passes on an answer that is no stream. Its account is settled before its last byte goes out, so that the next
// call on any replica sees what this one used (ruling 31).
func (c *call) relayWhole(a *attempt, response *http.Response, plain io.Reader) error {
	began := time.Now()
	limit := c.g.cfg.MaxAnswer
	if response.Uncompressed {
		limit = min(limit, maxInflated)
	}
	var body []byte
	var err error
	a.keeper.wait(func() { body, err = io.ReadAll(io.LimitReader(plain, limit+1)) })
	c.notOurs += time.Since(began)
	a.ending.FirstByte = len(body) > 0
	switch {
	case err != nil:
		return c.broken(a, err)
	case int64(len(body)) > limit:
		return &failure{cause: fault(governance.CodeUpstreamInvalid, "The provider's answer is larger than this gateway accepts.")}
	case c.status != 0:
		// Keep-alives have promised a stream.
		return &failure{cause: fault(governance.CodeUpstreamInvalid, "The provider did not answer with a stream.")}
	}
	a.meter.Body(body)
	facts := a.meter.Facts()
	if !facts.Terminal && isTranscript(c.route.dialect, response.Header, body) {
		facts.Terminal, facts.OutputLen = true, int64(len(body))
	}
	if !facts.Terminal && !json.Valid(body) { // a meter that has read all of it knows that it is valid
		a.meter = a.provider.Meter(a.lane.dialect)
		return &failure{cause: fault(governance.CodeUpstreamInvalid, invalidMessage), next: true, shouldRetry: "false"}
	}
	if facts.ErrorBody != nil {
		return c.refusedInside(a, response, body)
	}
	a.look(facts)
	if body, err = a.answerBody(body); err != nil {
		return err
	}
	if a.judges, err = c.g.chain.judges(a.ctx, c); err == nil {
		body, err = c.g.chain.whole(a.ctx, c, a.judges, body)
	}
	if err != nil {
		a.ending.Blocked = true
		return err
	}
	c.remember(a, &facts)
	a.ending.ClientLeft = a.left.Load()
	settled := c.settle(a, c.g.cfg.AnswerHold)
	if a.left.Load() {
		return errClientLeft
	}
	contentType := response.Header.Get("Content-Type")
	if contentType == "" || a.answer != nil {
		contentType = contentJSON
	}
	c.answerHeaders(a, contentType)
	c.header("Content-Length", strconv.Itoa(len(body)))
	if len(body) <= maxCostHeader && !c.Demand.Unpriced(a.target) {
		c.header("X-Tollgate-Cost-Usd", settled.Cost.String())
	}
	c.begin(response.StatusCode)
	if err := c.write(body); err != nil {
		c.abort = true
		return errClientLeft
	}
	return nil
}

// look takes over what a meter has found.
func (a *attempt) look(f providers.Facts) {
	a.ending.Terminal = f.Terminal
	a.ending.OutputBytes = f.OutputLen
	a.count(&f)
	switch {
	case f.HasUsage && !f.BadUsage:
		a.ending.Usage = &f.Usage
	case f.PromptUsage:
		a.ending.Prompt = &f.Usage
	}
}

// refusedInside answers for an upstream that wrapped its refusal into a success (F077, F131): with the status that the
// error names, else with that of what it means.
func (c *call) refusedInside(a *attempt, response *http.Response, body []byte) error {
	a.ending.Refused, a.ending.FirstByte = true, false
	return c.saidInside(a, response, body)
}

// saidInside explains an error object within a success.
func (c *call) saidInside(a *attempt, response *http.Response, body []byte) error {
	why := a.provider.Classify(response.StatusCode, response.Header, body)
	status := namedStatus(body)
	if status == 0 {
		status = answers[why.Code].status
	}
	return c.refusal(a, status, response.Header, body, why)
}

// namedStatus returns the status that an error object names as its code; 0: none.
func namedStatus(body []byte) int {
	var object struct {
		Error struct {
			Code json.RawMessage `json:"code"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &object) != nil {
		return 0
	}
	n, err := strconv.Atoi(strings.Trim(string(object.Error.Code), `"`))
	if err != nil || n < http.StatusBadRequest || n > 599 {
		return 0
	}
	return n
}

// stream is the state of a relay.
type stream struct {
	events  providers.Events
	ahead   []byte // what came before the first event, held back until the status is known
	sent    int    // events of the upstream that carried data
	told    int    // events that carried data to a client of the responses dialect, which numbers them
	ragged  bool   // the last event that was sent lacks its blank line
	pending bool   // something was written and not flushed
	open    bool   // the client has its status
	begun   bool   // an event of the upstream has come
	said    bool   // the client has been told of an error, by the upstream or by us
	head    []byte // data of the first event, where frames of our own may have to be like it
}

// relayStream passes a stream on as it comes: no frame is merged, split or held back, but the terminal one until the
// account is settled. The meter and the observers look on. There is no goroutine and no queue: a client that reads slowly
// slows the upstream down.
func (c *call) relayStream(a *attempt, response *http.Response, plain io.Reader) error {
	s := &c.stream
	s.events = eventsIn(a.provider, plain)
	waiting := time.Now()
	judges, err := c.g.chain.judges(a.ctx, c)
	if err != nil {
		a.ending.Blocked = true
		return err
	}
	a.judges = judges
	for {
		var ev sse.Event
		var err error
		a.keeper.wait(func() { ev, err = s.events.Next() })
		if err != nil {
			if c.status == 0 {
				c.notOurs += time.Since(waiting)
			}
			return c.streamEnded(a, s, err)
		}
		content := hasContent(ev)
		if content {
			a.silence.reset(c.atMost(c.g.cfg.Idle))
		}
		a.meter.Event(ev)
		facts := a.meter.Facts()
		if a.answer == nil {
			c.g.chain.observe(c, ev)
		}
		if c.status == 0 {
			if !content && a.answer != nil {
				continue
			}
			if !content && len(s.ahead)+len(ev.Raw) <= maxAhead {
				raw, err := c.aside(a, ev)
				if err != nil {
					return c.withheld(a, s, err)
				}
				s.ahead = append(s.ahead, raw...)
				continue
			}
			c.notOurs += time.Since(waiting)
			if facts.ErrorBody != nil {
				return c.refusedInside(a, response, facts.ErrorBody)
			}
		}
		a.ending.FirstByte = a.ending.FirstByte || content
		raw, err := c.forClient(a, s, ev, response, &facts)
		if err != nil {
			return c.withheld(a, s, err)
		}
		if !s.begun {
			if err := c.beginStream(a, s); err != nil {
				return err
			}
		}
		if isLast(a.lane.dialect, ev, facts) && c.open == a {
			if err := c.flushStream(a, s); err != nil {
				return err
			}
			a.look(facts)
			c.remember(a, &facts)
			a.ending.ClientLeft = a.left.Load()
			settled := c.settle(a, c.g.cfg.AnswerHold)
			a.silence.reset(afterTerminal)
			a.keeper.rest()
			if a.oweUsage && !facts.HasUsage && a.answer == nil {
				if frame := usageFrame(s.head, &settled); frame != nil {
					if err := c.pass(a, s, event(nil, frame)); err != nil {
						return err
					}
				}
			}
		}
		if err := c.pass(a, s, raw); err != nil {
			return err
		}
		if content {
			s.sent++
		}
		if !s.events.Buffered() {
			if err := c.flushStream(a, s); err != nil {
				return err
			}
		}
	}
}

// eventsIn splits a stream into its events: server-sent ones, or what the provider has in their place.
func eventsIn(p providers.Provider, stream io.Reader) providers.Events {
	if framer, ok := p.(providers.Framer); ok {
		return framer.Frames(stream)
	}
	return sse.NewReader(stream)
}

// hasContent reports whether an event says anything: keep-alives do not.
func hasContent(ev sse.Event) bool { return len(ev.Data) > 0 && string(ev.Name) != "ping" }

// aside returns what a comment or a keep-alive of the upstream is to the client. What calls itself a ping may say something all
// the same.
func (c *call) aside(a *attempt, ev sse.Event) ([]byte, error) {
	if len(ev.Data) > 0 && len(a.judges) > 0 {
		return c.judged(a, ev)
	}
	return ev.Raw, nil
}

// forClient returns what an event of the upstream is to the client; nil: nothing.
func (c *call) forClient(a *attempt, s *stream, ev sse.Event, response *http.Response, facts *providers.Facts) ([]byte, error) {
	if a.answer != nil {
		return c.clientEvents(a, s, ev, response, facts)
	}
	s.said = s.said || facts.ErrorBody != nil
	if !hasContent(ev) {
		return c.aside(a, ev)
	}
	if s.sent == 0 && (a.oweUsage || a.keeper != nil) {
		s.head = bytes.Clone(ev.Data)
	}
	if a.askUsage && facts.UsageOnly {
		return nil, nil // the client did not ask for this frame (ruling 36)
	}
	if len(a.judges) == 0 {
		return ev.Raw, nil
	}
	return c.judged(a, ev)
}

// withheld ends a stream that a guard of its events or a translator has refused.
func (c *call) withheld(a *attempt, s *stream, err error) error {
	if a.ending.Blocked || s.begun {
		return c.cutOff(a, asFailure(err).cause)
	}
	a.look(a.meter.Facts())
	return err
}

// beginStream commits to the answer: from here on no other target can give one, so the request's body is let go.
func (c *call) beginStream(a *attempt, s *stream) error {
	s.begun = true
	c.streamHeaders(a)
	s.pending = true // the headers, where the event itself is nothing to the client
	c.letBodyGo(a)
	return c.pass(a, s, s.ahead)
}

// streamHeaders sends the status of a stream, if it is still unsaid.
func (c *call) streamHeaders(a *attempt) {
	if c.stream.open {
		return
	}
	c.stream.open = true
	c.answerHeaders(a, contentStream)
	c.header("Cache-Control", "no-cache")
	c.header("X-Accel-Buffering", "no")
	c.begin(http.StatusOK)
}

// isLast reports whether an event is the dialect's terminal one: nothing that counts comes behind it.
func isLast(d providers.Dialect, ev sse.Event, f providers.Facts) bool {
	if hasStreamOptions(d) {
		return string(bytes.TrimSpace(ev.Data)) == doneEvent
	}
	return f.Terminal
}

// pass writes a piece of a stream to the client, unless it has left.
func (c *call) pass(a *attempt, s *stream, raw []byte) error {
	if len(raw) == 0 || a.left.Load() {
		return nil
	}
	s.pending = true
	if c.route.dialect == providers.OpenAIResponses {
		s.told += bytes.Count(raw, []byte("\ndata:"))
		if bytes.HasPrefix(raw, []byte("data:")) {
			s.told++
		}
	}
	s.ragged = !bytes.HasSuffix(raw, []byte("\n\n")) && !bytes.HasSuffix(raw, []byte("\r\n\r\n")) && !bytes.HasSuffix(raw, []byte("\r\r"))
	return c.deliver(a, raw)
}

// deliver writes to the client. How long that takes is not the upstream's silence.
func (c *call) deliver(a *attempt, raw []byte) error {
	began := a.silence.write()
	err := c.write(raw)
	a.silence.written(began)
	return c.reached(a, err)
}

// deliverNow flushes what was written, in the same way.
func (c *call) deliverNow(a *attempt) error {
	began := a.silence.write()
	err := c.flush()
	a.silence.written(began)
	return c.reached(a, err)
}

func (c *call) flushStream(a *attempt, s *stream) error {
	if !s.pending || a.left.Load() {
		return nil
	}
	s.pending = false
	return c.deliverNow(a)
}

// reached turns a failed write into the client's leaving: it went away, or it has stopped reading for too long.
func (c *call) reached(a *attempt, err error) error {
	if err == nil || a.left.Load() {
		return nil
	}
	c.abort = true
	c.left(a)
	if a.left.Load() {
		return nil // read on for the usage
	}
	a.look(a.meter.Facts())
	a.ending.ClientLeft = true
	return errClientLeft
}

// streamEnded decides what the end of a stream was.
func (c *call) streamEnded(a *attempt, s *stream, err error) error {
	facts := a.meter.Facts()
	if c.open == a {
		a.look(facts)
	}
	clean := errors.Is(err, io.EOF)
	if c.open != a || clean && (facts.Terminal || facts.Finished) {
		rest, err := c.lastEvents(a, s, &facts)
		if err != nil {
			return c.withheld(a, s, err)
		}
		if len(a.judges) > 0 && !s.said {
			held, err := c.g.chain.end(a.ctx, c, a.judges)
			if err != nil {
				a.ending.Blocked = true
				return c.withheld(a, s, err)
			}
			rest = append(rest, held...)
		}
		if c.open == a {
			a.ending.Terminal = true
			c.copy = nil // whole as it is, it lacks its last event
			if err := c.flushStream(a, s); err != nil {
				return err
			}
			a.ending.ClientLeft = a.left.Load()
			c.settle(a, c.g.cfg.AnswerHold)
		}
		if !s.begun {
			return c.noEvents(a)
		}
		if a.left.Load() {
			return errClientLeft
		}
		if err := c.pass(a, s, rest); err != nil {
			return err
		}
		return c.flushStream(a, s)
	}
	if !s.begun {
		if clean || errors.Is(err, sse.ErrTruncated) && context.Cause(a.ctx) == nil {
			return c.noEvents(a)
		}
		return c.broken(a, err)
	}
	failed := c.broken(a, err)
	if errors.Is(failed, errClientLeft) {
		return failed
	}
	return c.cutOff(a, asFailure(failed).cause)
}

// noEvents answers for a success that had no event in it.
func (c *call) noEvents(a *attempt) error {
	a.ending.Terminal = false
	return &failure{cause: fault(governance.CodeUpstreamInvalid, invalidMessage), next: true, shouldRetry: "false"}
}

// broken explains an answer that ended before its end.
func (c *call) broken(a *attempt, err error) error {
	f := &failure{next: true, shouldRetry: "false", meshFinal: true}
	switch cause := context.Cause(a.ctx); {
	case errors.Is(cause, errClientLeft) || cause == nil && a.left.Load():
		a.ending.ClientLeft = true
		return errClientLeft
	case errors.Is(cause, errCut):
		a.ending.Cut = true
		f.next = false
		f.cause = &governance.Error{Code: governance.CodeGatewayOverloaded, Public: "This gateway is shutting down.", Err: err}
	case cause != nil:
		a.ending.TimedOut = true
		f.cause = &governance.Error{Code: governance.CodeUpstreamTimeout, Public: "The provider has fallen silent.", Err: err}
	case errors.Is(err, sse.ErrEventTooLarge) || errors.Is(err, providers.ErrFrame):
		f.cause = &governance.Error{Code: governance.CodeUpstreamInvalid, Public: invalidMessage, Err: err}
	default:
		f.cause = &governance.Error{Code: governance.CodeUpstreamAborted, Public: "The provider broke off its answer.", Err: err}
	}
	return f
}

// cutOff ends an answer before its end. The client is told by refuse, after the account is settled.
func (c *call) cutOff(a *attempt, e *governance.Error) error {
	a.look(a.meter.Facts())
	return &failure{cause: e}
}

// refuseInStream tells the client of a failure by an event in the route's dialect, and then ends the connection: a clean end
// would make the answer look whole (F083).
func (c *call) refuseInStream(f *failure) {
	c.abort = true
	s := &c.stream
	if !s.said {
		s.said = true
		raw := c.errorEvent(f, s.told)
		if s.ragged {
			raw = append([]byte("\n"), raw...)
		}
		if err := c.write(raw); err != nil {
			c.log.Debug().Err(err).Msg("error event not sent")
			return
		}
	}
	if err := c.flush(); err != nil {
		c.log.Debug().Err(err).Msg("end of stream not sent")
	}
}

// chunk is the frame of a chat stream that carries usage and nothing else. Identity and model are those of its stream.
type chunk struct {
	ID      json.RawMessage `json:"id"`
	Object  json.RawMessage `json:"object"`
	Created json.RawMessage `json:"created"`
	Model   json.RawMessage `json:"model"`
	Choices []struct{}      `json:"choices"`
	Usage   chunkUsage      `json:"usage"`
}

type chunkUsage struct {
	Prompt     int64 `json:"prompt_tokens"`
	Completion int64 `json:"completion_tokens"`
	Total      int64 `json:"total_tokens"`
	Estimated  bool  `json:"estimated"`
}

// usageFrame makes the data of the usage frame that a client asked for and its upstream cannot send (F115), from what was
// booked. It says that it is an estimate. A stream whose first frame is no object gets none: nil.
func usageFrame(head []byte, s *governance.Settlement) []byte {
	var frame chunk
	if json.Unmarshal(head, &frame) != nil || frame.ID == nil || frame.Object == nil || frame.Created == nil || frame.Model == nil {
		return nil
	}
	q := &s.Quantities
	frame.Choices = []struct{}{}
	frame.Usage = chunkUsage{q.InputTokens(), q.OutputTokens(), q.Tokens(), true}
	b, err := json.Marshal(frame)
	if err != nil {
		return nil
	}
	return b
}

type responsesError struct {
	Type           string  `json:"type"`
	Code           string  `json:"code"`
	Message        string  `json:"message"`
	Param          *string `json:"param"`
	SequenceNumber int     `json:"sequence_number"`
}

// errorEvent writes an error as a stream's dialect does. sent is the number of events that the client had before it.
func (c *call) errorEvent(f *failure, sent int) []byte {
	e := f.cause
	switch d := c.route.dialect; {
	case isAnthropic(d) && f.body != nil:
		return event([]byte("error"), f.body)
	case isAnthropic(d):
		return event([]byte("error"), encode(e, answers[e.Code].status, true, c.ID.String()))
	case f.body != nil:
		return event(nil, f.body)
	case d == providers.OpenAIResponses:
		b, _ := json.Marshal(responsesError{"error", string(e.Code), e.Public, orNull(e.Param), sent}) //nolint:errchkjson // plain data
		return event([]byte("error"), b)
	}
	return event(nil, encode(e, answers[e.Code].status, false, c.ID.String()))
}

// event writes one event. Each line of data becomes a line of its own.
func event(name, data []byte) []byte {
	var b bytes.Buffer
	if name != nil {
		b.WriteString("event: ")
		b.Write(name)
		b.WriteByte('\n')
	}
	for line := range bytes.Lines(data) {
		b.WriteString("data: ")
		b.Write(bytes.TrimRight(line, "\n"))
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
	return b.Bytes()
}

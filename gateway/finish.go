package gateway

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/lognames"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/plugins"
)

// statusClientLeft is what the access log and the metrics say where the client left before it got a status.
const statusClientLeft = 499

// settle closes an attempt in the ledger and returns what was booked. It waits no longer than wait: while the store is
// away the ledger keeps the settlement in its outbox. It does not depend on the client.
func (c *call) settle(a *attempt, wait time.Duration) governance.Settlement {
	s := a.settlement()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx()), wait)
	defer cancel()
	began := time.Now()
	if err := c.g.ledger.Settle(ctx, s); err != nil && !errors.Is(err, governance.ErrAlreadyClosed) {
		c.g.metrics.unsettled()
		log := c.log.Sample(c.g.chain.sampler)
		log.Warn().Err(err).Str(lognames.Outcome, string(s.Outcome)).Msg("settlement waits for the store")
	}
	c.g.metrics.settlement(time.Since(began).Seconds())
	c.conclude(a, s)
	return s
}

// finish ends a call, whatever became of it: panic, refusal, success, a client that left. It closes the account first, so
// that a client that reads its answer finds it settled.
func (c *call) finish() {
	if p := recover(); p != nil {
		c.err = panicked(p)
		c.abort = c.status != 0
	}
	// The server takes a failed read of the body for the client's leaving; that client may well be listening.
	f, failed := errors.AsType[*failure](c.err)
	left := errors.Is(c.err, errClientLeft) || c.gone() && !(failed && f.closing)
	if a := c.open; a != nil {
		a.ending.ClientLeft = a.ending.ClientLeft || left
		wait := c.g.cfg.AnswerHold
		if left {
			wait = c.g.cfg.Settle
		}
		c.settle(a, wait)
	}
	switch {
	case left && c.status == 0:
		c.status = statusClientLeft
		c.abort = true // net/http would say 200, and one who has only closed its half of the connection would believe it (I07)
	case c.err != nil && !left:
		c.refuse()
	}
	c.keepAnswer()
	c.g.chain.finish(c, c.err)
	if c.claimed {
		c.unclaim()
	}
	c.tell()
}

// hangUp breaks the connection off where its end must not look like that of a complete answer. It is the last thing that a
// call does.
func (c *call) hangUp() {
	if c.abort {
		panic(http.ErrAbortHandler) // the one way to do so
	}
}

func (c *call) unclaim() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx()), c.g.cfg.Settle)
	defer cancel()
	if err := c.g.idem.Finish(ctx, c.Principal.Key.Num, c.wishes.idempotency, c.ID); err != nil {
		c.log.Warn().Err(err).Msg("idempotency key left to expire")
	}
}

// tell writes the call's one log line, counts it, and queues it for the recorders.
func (c *call) tell() {
	total := time.Since(c.Received)
	code := ""
	var why error // never what the client was told: a provider's text may repeat a prompt
	if c.err != nil && !errors.Is(c.err, errClientLeft) {
		cause := asFailure(c.err).cause
		code, why = string(cause.Code), cause.Err
	}
	name := "none"
	if c.route != nil {
		name = c.route.name
	}
	c.g.metrics.requests(name, strconv.Itoa(c.status), code)
	line := c.log.Info()
	if c.status >= http.StatusInternalServerError {
		line = c.log.Error()
	}
	if why != nil {
		line = line.Err(why)
	}
	if trace := traceID(c.r.Header.Get("Traceparent")); trace != "" {
		line = line.Str(lognames.TraceID, trace)
	}
	line = line.Str(lognames.Method, c.r.Method).Int(lognames.Status, c.status).Str(lognames.Code, code).
		Str(lognames.RemoteIP, c.RemoteIP).Float64(lognames.DurationMS, ms(total)).Float64(lognames.FirstByteMS, ms(c.firstByte)).
		Float64(lognames.OverheadMS, ms(c.overhead)).Int64(lognames.Bytes, c.bytesOut)
	if c.wishes.label != "" {
		line = line.Str(lognames.ClientRequestID, c.wishes.label)
	}
	if n := len(c.attempts); n > 0 {
		last := &c.attempts[n-1]
		s := &last.Settlement
		line = line.Int(lognames.Attempts, n).Str(lognames.Model, modelID(&c.Call)).Str(lognames.Provider, last.Target.Provider.Name).
			Str(lognames.Target, last.Target.ID).Str(lognames.Outcome, string(s.Outcome)).Str(lognames.UsageSource, string(s.Source)).
			Int64(lognames.TokensIn, s.Quantities.InputTokens()).Int64(lognames.TokensOut, s.Quantities.OutputTokens()).
			Stringer(lognames.CostUSD, s.Cost)
	}
	line.Msg("call")
	c.queue(total)
}

// traceID returns the trace of a W3C traceparent; "": it is none.
func traceID(parent string) string {
	const version, digits = len("00-"), 32
	if len(parent) < version+digits+len("-b7ad6b7169203331-01") || strings.Trim(parent[version:version+digits], "0123456789abcdef") != "" {
		return ""
	}
	return parent[version : version+digits]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func modelID(c *plugins.Call) string {
	if c.Resolved.Model == nil {
		return ""
	}
	return c.Resolved.Model.ID
}

// queue gives the call to the recorders without its body and its credential. It never waits.
func (c *call) queue(total time.Duration) {
	if len(c.g.chain.recorders) == 0 || c.route == nil {
		return
	}
	told := c.Call
	told.Body, told.Form, told.Credential = nil, nil, secret.String{}
	r := plugins.Record{
		Call: &told, Status: c.status, Err: c.err, Attempts: c.attempts,
		FirstByte: c.firstByte, Total: total, Overhead: c.overhead, BytesOut: c.bytesOut,
	}
	select {
	case c.g.records <- r:
	default:
		c.g.metrics.dropped()
	}
}

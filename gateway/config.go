package gateway

import (
	"errors"
	"fmt"
	"time"
)

// Config holds the limits and time-outs of the data plane. DefaultConfig has the contract's values.
type Config struct {
	MaxBody           int64         // bytes of one request body
	MaxBodiesInFlight int64         // bytes of all request bodies in memory; above: 503 gateway_overloaded
	MaxAnswer         int64         // bytes of one unary answer
	BodyProgress      time.Duration // how long a client may pause while it sends a body
	Attempts          int           // upstream attempts of one call, fallbacks included
	Connect           time.Duration // to open a connection to an upstream, TLS included
	FirstByte         time.Duration // until the first event of a stream
	Idle              time.Duration // between two content events of a stream; comments and pings do not count
	Unary             time.Duration // whole upstream time of a call that does not stream, over all attempts
	BreakerFailures   int           // failures in a row after which a target is tried last; 0: never
	BreakerCooldown   time.Duration // for which it is, before a call may probe it
	FailoverAfter     time.Duration // silence before the first byte after which a further target is tried; 0: FirstByte
	ClientWrite       time.Duration // how long a client may stop reading
	AnswerHold        time.Duration // how long the end of an answer waits for its settlement (ruling 31)
	Settle            time.Duration // how long a settlement may take when nobody waits for it
	StreamExpiry      time.Duration // hard expiry of a stream's reservation
	ExpiryMargin      time.Duration // added to Unary for the hard expiry of other reservations
	DrainTime         time.Duration // how long an answer is read on after its client left (targets with drain)
	Drains            int           // answers that may be drained at once; the others are aborted
	CatalogWait       time.Duration // how long a call waits for newer limits when the store says that its own are old
	KeepAlive         time.Duration // silence of a chat stream after which a frame with an empty delta is sent; 0: never
	RecordQueue       int           // finished calls that may wait for the recorders; more are dropped and counted
}

// DefaultConfig returns the contract's limits and time-outs.
func DefaultConfig() Config {
	return Config{
		MaxBody:           34 << 20,
		MaxBodiesInFlight: 512 << 20,
		MaxAnswer:         128 << 20,
		BodyProgress:      30 * time.Second,
		Attempts:          3,
		Connect:           5 * time.Second,
		FirstByte:         120 * time.Second,
		Idle:              300 * time.Second,
		Unary:             600 * time.Second,
		BreakerFailures:   5,
		BreakerCooldown:   10 * time.Second,
		ClientWrite:       30 * time.Second,
		AnswerHold:        100 * time.Millisecond,
		Settle:            6 * time.Second,
		StreamExpiry:      24 * time.Hour,
		ExpiryMargin:      60 * time.Second,
		DrainTime:         30 * time.Second,
		Drains:            64,
		CatalogWait:       2 * time.Second,
		RecordQueue:       1024,
	}
}

// Validate reports every fault of c in one error. The time-outs form a chain: connect < first byte ≤ whole time, and an
// idle stream ends before its reservation does.
func (c *Config) Validate() error {
	var faults []error
	require := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	for name, d := range map[string]time.Duration{
		"body progress": c.BodyProgress, "connect": c.Connect, "first byte": c.FirstByte, "idle": c.Idle, "unary": c.Unary,
		"client write": c.ClientWrite, "answer hold": c.AnswerHold, "settle": c.Settle, "stream expiry": c.StreamExpiry,
		"expiry margin": c.ExpiryMargin, "drain time": c.DrainTime, "catalog wait": c.CatalogWait,
	} {
		require(d > 0, "%s: %v is not above 0", name, d)
	}
	require(c.KeepAlive >= 0, "keep-alive: %v is negative", c.KeepAlive)
	require(c.FailoverAfter >= 0, "failover after: %v is negative", c.FailoverAfter)
	require(c.MaxBody > 0 && c.MaxBody <= c.MaxBodiesInFlight, "body: want 0 < %d ≤ %d in flight", c.MaxBody, c.MaxBodiesInFlight)
	require(c.MaxAnswer > 0, "answer: %d is not above 0", c.MaxAnswer)
	require(c.Attempts > 0, "attempts: %d is not above 0", c.Attempts)
	require(c.BreakerFailures >= 0, "breaker failures: %d is negative", c.BreakerFailures)
	require(c.BreakerCooldown > 0, "breaker cool-down: %v is not above 0", c.BreakerCooldown)
	require(c.Drains >= 0, "drains: %d is negative", c.Drains)
	require(c.RecordQueue > 0, "record queue: %d is not above 0", c.RecordQueue)
	require(c.Connect < c.FirstByte, "connect %v must be below first byte %v", c.Connect, c.FirstByte)
	require(c.FirstByte <= c.Unary, "first byte %v must not pass unary %v", c.FirstByte, c.Unary)
	require(c.Idle < c.StreamExpiry, "idle %v must be below stream expiry %v", c.Idle, c.StreamExpiry)
	require(c.AnswerHold <= c.Settle, "answer hold %v must not pass settle %v", c.AnswerHold, c.Settle)
	return errors.Join(faults...)
}

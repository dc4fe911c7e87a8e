package governance

import (
	"cmp"
	"math"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// MaxTokens bounds every count of tokens that a client may ask for or a provider may report. What lies above is a mistake
// or an attack, and would not fit the arithmetic of money.
const MaxTokens = 1 << 40

// MaxAmount bounds what one attempt may ask of one limit, in its metric's unit: a million dollars in nano-dollars. No meter
// holds more.
const MaxAmount = 1_000_000_000_000_000

// maxReported bounds what one answer can have used of a unit: a hundred times what the largest models read and write. What lies
// above is a mistake, and would spoil what is expected of the answers after it.
const maxReported = 1 << 27

const (
	bytesPerToken = 3 // as in the estimate of prompts (ruling 19)
	// unmeasuredOutputRate, in tokens per second, stands in for a target's p95 until there is one: hidden reasoning that a
	// client walked away from is not free on a new target.
	unmeasuredOutputRate = 100
)

// Ending is all that is known of an attempt once it is over. The facts are independent of each other: what they amount to
// is decided by Settlement alone.
type Ending struct {
	ID       ids.ID
	Reserved Estimate      // of the attempt's ReserveRequest
	Price    *PriceVersion // pinned at admission; nil: unpriced

	CacheHit   bool // answered from the cache; nothing was sent
	Written    bool // a byte of the request may have reached the upstream (httptrace)
	Refused    bool // the upstream answered with an error: a status other than 2xx, or an error object in its place
	FirstByte  bool // a byte of the answer came back
	Terminal   bool // the answer is whole (ruling 30)
	ClientLeft bool
	TimedOut   bool // a time-out of ours ended the attempt
	Blocked    bool // a guardrail withheld the answer
	Cut        bool // Tollgate ended the answer, e.g. at shutdown

	Usage *Usage // last one that the provider reported; nil: none, or one that makes no sense
	// Prompt is what the provider reported of the prompt alone, ahead of an answer whose own usage never came; nil: nothing.
	Prompt *Usage
	// Counted is what is charged by the piece and was counted where it went by: characters of the request, pictures and seconds
	// of the answer. Tier is that of the price which the request has named: see Demand.EstimateTier.
	Counted     Quantities
	Tier        string
	OutputBytes int64         // of text, reasoning and tool arguments that came from the upstream
	Generating  time.Duration // from the request's last byte to the end
	OutputRate  int64         // the target's p95 in tokens per second; 0: not measured yet
}

// Settlement applies the contract's settlement matrix (section 5; rulings 18, 21, 29 and 30). It is total: whatever the
// facts, the result books no negative amount, its cost is CostAt of its quantities and prices, and what Tollgate estimates
// by itself stays within the reservation.
func (e *Ending) Settlement() Settlement {
	switch {
	case e.CacheHit:
		return Settlement{
			ID: e.ID, Outcome: OutcomeCacheHit, Source: UsageCache,
			Requests: BasisHold, Rate: BasisZero, Budget: BasisZero,
		}
	case !e.Written:
		return Settlement{
			ID: e.ID, Outcome: e.unsentOutcome(), Source: UsageZero,
			Requests: BasisZero, Rate: BasisZero, Budget: BasisZero, Release: true,
		}
	case e.Refused && !e.FirstByte:
		return e.nothing()
	}
	usage := e.usage()
	switch {
	case e.Terminal && usage != nil:
		return e.reported(e.endedBy(), usage, UsageProvider, BasisActual)
	case e.Terminal && e.ClientLeft:
		return e.estimated(OutcomeClientLeft, BasisActual)
	case e.Terminal:
		return e.estimated(e.endedBy(), BasisHold)
	}
	if usage != nil && isZero(&usage.Quantities) {
		usage = nil // some upstreams fill unfinished frames with zeros; only a whole answer makes zero a fact
	}
	switch {
	case (e.Blocked || e.Cut) && usage != nil:
		return e.reported(e.endedBy(), usage, UsageProvider, BasisActual)
	case e.Blocked || e.Cut:
		return e.estimated(e.endedBy(), BasisHold)
	case e.ClientLeft && usage != nil:
		return e.reported(OutcomeClientLeft, usage, UsageEstimate, BasisActual)
	case e.ClientLeft:
		return e.estimated(OutcomeClientLeft, BasisActual)
	case e.FirstByte && usage != nil:
		return e.reported(OutcomeUpstreamAborted, usage, UsageProvider, BasisHold)
	case e.FirstByte:
		return e.estimated(OutcomeUpstreamAborted, BasisHold)
	case e.TimedOut:
		return e.asReserved(OutcomeUpstreamTimeout)
	default:
		return e.nothing()
	}
}

// unsentOutcome names the end of an attempt that never reached its upstream, for logs: no row is written.
func (e *Ending) unsentOutcome() Outcome {
	switch {
	case e.ClientLeft:
		return OutcomeClientLeft
	case e.TimedOut:
		return OutcomeUpstreamTimeout
	default:
		return OutcomeUpstreamError
	}
}

// endedBy names who ended an answer that the provider did its work for. Some dialects end with an event that says the
// answer failed.
func (e *Ending) endedBy() Outcome {
	switch {
	case e.Blocked:
		return OutcomeBlocked
	case e.Cut:
		return OutcomeCut
	case e.ClientLeft:
		return OutcomeClientLeft
	case e.Refused:
		return OutcomeUpstreamAborted
	default:
		return OutcomeComplete
	}
}

// usage is what the answer is known to have taken: what the provider reported, completed by what was counted. Where it
// reported nothing, what was counted is all that a price by the piece asks for.
func (e *Ending) usage() *Usage {
	u := credible(e.Usage)
	if isZero(&e.Counted) {
		return u
	}
	if u == nil {
		if e.Price != nil && !e.Price.Free {
			prices := e.Price.tier(0, e.Tier)
			if !e.Counted.pricedBy(&prices) {
				return nil
			}
		}
		return &Usage{Quantities: e.Counted, ServiceTier: e.Tier}
	}
	whole := *u
	for unit, n := range e.Counted {
		if whole.Quantities[unit] == 0 {
			whole.Quantities[unit] = n
		}
	}
	if whole.ServiceTier == "" {
		whole.ServiceTier = e.Tier
	}
	return &whole
}

// credible returns a reported usage unless it has a count that no answer can have.
func credible(u *Usage) *Usage {
	if u == nil {
		return nil
	}
	for _, n := range u.Quantities {
		if n < 0 || n > maxReported {
			return nil
		}
	}
	return u
}

// nothing settles an upstream error before any byte: the request counts, nothing else does.
func (e *Ending) nothing() Settlement {
	return Settlement{
		ID: e.ID, Outcome: OutcomeUpstreamError, Source: UsageZero,
		Requests: BasisHold, Rate: BasisZero, Budget: BasisZero,
	}
}

// reported settles to what the provider said. An explicit zero is data. What it reported in units alone that have no price, or so much
// of it as no account could hold, says nothing of the cost: that is estimated.
func (e *Ending) reported(o Outcome, u *Usage, source UsageSource, rate Basis) Settlement {
	q := u.Quantities
	if isZero(&q) {
		return e.booked(o, UsageZero, q, "", rate)
	}
	if e.Price != nil && !e.Price.Free {
		if prices := e.Price.tier(q.InputTokens(), u.ServiceTier); !q.pricedBy(&prices) && e.Reserved.Cost > 0 {
			return e.estimated(o, rate)
		}
	}
	q[UnitRequest] = 1
	s := e.booked(o, source, q, u.ServiceTier, rate)
	if s.Cost > MaxAmount {
		return e.estimated(o, rate)
	}
	return s
}

// estimated settles to the prompt and what the answer must have taken so far, within the reservation. The prompt counts as
// the provider reported it, even beyond the reservation, and as estimated where it did not.
func (e *Ending) estimated(o Outcome, rate Basis) Settlement {
	output := (max(e.OutputBytes, 0) + bytesPerToken - 1) / bytesPerToken
	if !e.Terminal {
		output = max(output, Generated(e.OutputRate, e.Generating))
	}
	reserved := &e.Reserved.Quantities
	if reserved.pieces() {
		return e.booked(o, UsageEstimate, e.asked(output), e.Tier, rate)
	}
	var q Quantities
	q[UnitInput] = reserved.InputTokens()
	tier := e.Tier
	if prompt := credible(e.Prompt); prompt != nil {
		q, tier = prompt.Quantities, cmp.Or(prompt.ServiceTier, tier)
	}
	q[UnitOutput] += min(output, reserved.OutputTokens())
	q[UnitRequest] = min(1, reserved[UnitRequest])
	return e.booked(o, UsageEstimate, q, tier, rate)
}

// asked is what a request for things that are counted by the piece must have taken: what was reserved, with what is known of
// it better. The length of an answer says something only where it is text.
func (e *Ending) asked(output int64) Quantities {
	q := e.Reserved.Quantities
	if q[UnitOutput] > 0 && e.OutputBytes > 0 {
		q[UnitOutput] = min(output, q[UnitOutput])
	}
	for unit, n := range e.Counted {
		if n > 0 && e.Terminal {
			q[unit] = n
		}
	}
	return q
}

// pieces reports whether anything was counted by the piece.
func (q *Quantities) pieces() bool {
	return q[UnitImage]+q[UnitCharacter]+q[UnitSecond]+q[UnitSearch] > 0
}

// Generated is how many tokens a target may have made in a time, shown or not. rate is its p95 in tokens per second; 0: it
// was not measured yet.
func Generated(rate int64, in time.Duration) int64 {
	if rate <= 0 {
		rate = unmeasuredOutputRate
	}
	ms := max(in.Milliseconds(), 0)
	if ms > math.MaxInt64/rate-1 {
		return math.MaxInt64
	}
	return (ms*rate + 999) / 1000
}

// booked prices quantities. Where they cannot be priced in 63 bits the reservation stands.
func (e *Ending) booked(o Outcome, source UsageSource, q Quantities, serviceTier string, rate Basis) Settlement {
	s := Settlement{
		ID: e.ID, Outcome: o, Source: source, Quantities: q,
		Requests: BasisHold, Rate: rate, Budget: BasisActual,
	}
	if e.Price == nil {
		return s
	}
	var err error
	if s.Cost, s.Prices, err = e.Price.Cost(&q, serviceTier); err != nil {
		return e.asReserved(o)
	}
	return s
}

// asReserved books the reservation, provisionally: late usage writes the difference.
func (e *Ending) asReserved(o Outcome) Settlement {
	return Settlement{
		ID: e.ID, Outcome: o, Source: UsageReservation,
		Quantities: e.Reserved.Quantities, Prices: e.Reserved.Prices, Cost: e.Reserved.Cost,
		Requests: BasisHold, Rate: BasisHold, Budget: BasisHold,
	}
}

func isZero(q *Quantities) bool { return *q == Quantities{} }

package governance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

// Hold asks for an amount of one limit's meter.
type Hold struct {
	Limit   *Limit
	Subject int64 // whose meter: the row number of the model, target, organization, … that the limit counts
	Amount  int64 // in the metric's unit; > 0
	// Carried marks a slot or request that an earlier attempt of the same client request already took; it moves to this
	// attempt and is not taken again.
	Carried bool
}

// Origin is whom and what a charge belongs to, as it is copied into reservations and ledger rows.
type Origin struct {
	RequestID     ids.ID
	Attempt       int // from 1
	Organization  Ref
	Team          Ref
	Key           Ref
	User          Ref
	EndUser       int64 // row number of the mapping; 0: none was named
	Route         string
	Model         string // the public name that was asked for
	ModelNum      int64
	Provider      string
	UpstreamModel string
	TargetNum     int64
	PriceNum      int64 // price version pinned at admission; 0: unpriced
	Unpriced      bool
}

// Estimate is what an attempt may use at most: what expiry books when nobody comes back to say more.
type Estimate struct {
	Quantities Quantities
	Prices     UnitPrices
	Cost       money.Nano
}

// ReserveRequest is one admission of one attempt.
type ReserveRequest struct {
	ID       ids.ID // the attempt's id, made before the first write and kept on retry: a repeat is harmless
	Origin   Origin
	Estimate Estimate
	Holds    []Hold
	// HardExpiry is the time from admission after which the reservation expires even if its owner lives.
	HardExpiry time.Duration
	// Closes settles the previous attempt of the same client request first, in the same transaction.
	Closes *Settlement
}

// Reservation is an admitted attempt's claim on its meters.
type Reservation struct {
	ID            ids.ID
	AdmittedAt    time.Time // database clock
	Levels        []Level   // one for each hold of the request, in its order
	ConfigVersion int64     // the store's configuration version at that moment
}

// Level is the state of a meter after an admission or a refusal, in the metric's unit.
type Level struct {
	Limit     *Limit
	Subject   int64
	Amount    int64 // the limit as the store knows it: capacity of the bucket, amount of the window, number of slots
	Unlimited bool
	Spent     int64 // budgets
	Held      int64 // budgets and slots
	Debt      int64
	Remaining int64 // ≥ 0
	// ResetsAfter is how long until the meter is whole again (bucket full, window over); 0: never or at once.
	ResetsAfter time.Duration
	ResetsAt    time.Time // end of the window; zero for buckets, slots and total windows
	WouldRefuse bool      // log mode: it would have refused this attempt
	// Member is the subject's id and name, where SpendStore.Members lists it; an end user's name stands for its id.
	Member Ref
}

// WholeAt is when the meter is whole again, seen from now: its window has ended, its bucket is full. Zero: never, or it is.
func (l *Level) WholeAt(now time.Time) time.Time {
	if l.ResetsAt.IsZero() && l.ResetsAfter > 0 {
		return now.Add(l.ResetsAfter).UTC().Truncate(time.Millisecond)
	}
	return l.ResetsAt.UTC()
}

// RefusalReason says why a meter refused.
type RefusalReason string

// The reasons. Rulings 24 and 25 define when each holds.
const (
	RefusedRate                RefusalReason = "rate"                  // the bucket is short for now
	RefusedExceedsLimit        RefusalReason = "request_exceeds_limit" // more than the bucket can ever hold
	RefusedConcurrency         RefusalReason = "concurrency"
	RefusedBudgetExceeded      RefusalReason = "budget_exceeded"
	RefusedReservationTooLarge RefusalReason = "reservation_too_large"
	RefusedBudgetHeld          RefusalReason = "budget_held"
)

// Refusal is one limit's refusal.
type Refusal struct {
	Level
	Reason     RefusalReason
	Wanted     int64         // what was asked of the meter
	RetryAfter time.Duration // until the same request would fit if nothing else came; 0: unknown or never by waiting
	Forever    bool          // waiting never helps: a total window, or an amount of 0
}

// Denial is the error of a refused admission. Nothing was taken from any meter. It lists every limit that refused, in
// chain order.
type Denial struct { //nolint:errname // the glossary's word
	Refusals      []Refusal
	ConfigVersion int64
}

func (d *Denial) Error() string {
	return fmt.Sprintf("refused by %d limit(s), first %s", len(d.Refusals), d.Refusals[0].Reason)
}

// Basis says what a group of meters settles to.
type Basis uint8

// The bases.
const (
	BasisActual Basis = iota // to the settlement's quantities and cost
	BasisHold                // to what was held
	BasisZero                // everything held is given back
)

// Settlement replaces what an attempt held by what it used. The bases follow the contract's settlement matrix.
type Settlement struct {
	ID         ids.ID
	Outcome    Outcome
	Source     UsageSource
	Quantities Quantities // what the row says was used; ignored where Budget is BasisHold
	Prices     UnitPrices
	Cost       money.Nano // ignored where Budget is BasisHold
	Requests   Basis      // request buckets: BasisHold keeps the request, BasisZero gives it back
	Rate       Basis      // buckets of tokens and cost
	Budget     Basis      // windows; also decides what the row books
	// Carry keeps the attempt's slots taken: the reservation that closes this one has them as carried holds.
	Carry bool
	// Release means that no byte was written upstream: everything goes back and no row is written.
	Release bool
}

// Errors of the ledger. Everything else that Reserve returns besides *Denial means: undecided, forward nothing.
var (
	// ErrAlreadyClosed says that a reservation was settled or released before; the repeat changed nothing.
	ErrAlreadyClosed = errors.New("reservation already closed")
	// ErrStaleChain says that the store does not know a limit of the request, or knows another set: reload and retry once.
	ErrStaleChain = errors.New("limits changed since they were read")
	// ErrLimitStoreUnavailable says that the store could not decide in time.
	ErrLimitStoreUnavailable = errors.New("limit store unavailable")
	// ErrOverloaded says that the admission queue is full although the store works.
	ErrOverloaded = errors.New("admission queue full")
)

// Ledger admits attempts and accounts for them. All verbs are idempotent by the attempt's id.
type Ledger interface {
	// Reserve takes every hold or none. It returns *Denial where a meter refused.
	Reserve(ctx context.Context, r ReserveRequest) (Reservation, error)
	// Settle writes the attempt's ledger row and replaces its holds, above them as debt. After an expiry it writes one
	// late adjustment instead. A repeat returns ErrAlreadyClosed. While the store is away the settlement waits in a bounded
	// outbox and Settle returns once its context ends; it is not lost then.
	Settle(ctx context.Context, s Settlement) error
	// Expire closes up to limit reservations whose process is dead or whose hard expiry has passed, as fully used.
	// Any replica may run it at any time.
	Expire(ctx context.Context, limit int) (closed int, err error)
}

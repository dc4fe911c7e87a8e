package governance

// Usage is what a provider reported for one answer, in disjoint quantities.
type Usage struct {
	Quantities  Quantities
	ServiceTier string // as the provider named it; "" where it did not
	Raw         []byte // the provider's usage object, kept beside the row
}

// UsageSource says where the quantities of a row come from, and so how far to trust them.
type UsageSource string

// The sources of the settlement matrix.
const (
	UsageProvider    UsageSource = "provider"    // reported by the provider
	UsageEstimate    UsageSource = "estimate"    // counted by Tollgate
	UsageReservation UsageSource = "reservation" // unknown; what was held stands, provisionally
	UsageZero        UsageSource = "zero"        // nothing was used, and that is known
	UsageCache       UsageSource = "cache"       // answered from the cache
)

// Outcome says how a forwarded attempt ended.
type Outcome string

// The outcomes.
const (
	OutcomeComplete        Outcome = "complete"
	OutcomeClientLeft      Outcome = "client_left"
	OutcomeUpstreamAborted Outcome = "upstream_aborted" // died after the first byte of its answer
	OutcomeUpstreamError   Outcome = "upstream_error"   // refused or failed before any byte of an answer
	OutcomeUpstreamTimeout Outcome = "upstream_timeout" // silent after it had been written to
	OutcomeBlocked         Outcome = "blocked"          // a guardrail withheld the answer
	OutcomeCut             Outcome = "cut"              // ended by Tollgate, e.g. at shutdown
	OutcomeCacheHit        Outcome = "cache_hit"
	OutcomeExpired         Outcome = "expired" // its gateway died
)

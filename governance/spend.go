package governance

import (
	"context"
	"strings"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

// RowKind is the kind of a ledger row.
type RowKind string

// The kinds.
const (
	RowUsage          RowKind = "usage"
	RowExpiry         RowKind = "expiry"
	RowLateAdjustment RowKind = "late_adjustment"
	RowCorrection     RowKind = "correction"
	RowCredit         RowKind = "credit"
)

// Leg is what one meter was charged by an attempt.
type Leg struct {
	LimitNum    int64
	LimitID     string
	Scope       ScopeType
	Kind        Kind
	Metric      Metric
	Subject     int64
	WindowStart time.Time // zero for buckets, slots and total windows
	Reserved    int64
	Actual      int64
}

// SpendRow is one line of the ledger: what finance reads. Rows are only ever added.
type SpendRow struct {
	AttemptID  ids.ID
	Kind       RowKind
	Origin     Origin
	EndUser    string // empty where none was named or the person was erased
	Outcome    Outcome
	Source     UsageSource
	Quantities Quantities
	Prices     UnitPrices
	PriceID    string
	Cost       money.Nano // negative in adjustments, corrections and credits that give back
	Legs       []Leg
	AdmittedAt time.Time
	SettledAt  time.Time
	Corrects   string // id of the row that this one corrects; empty: none
	Tags       map[string]string
	Actor      string // corrections and credits
	Reason     string
}

// ID names the row for clients.
func (r *SpendRow) ID() string { return SpendRowID(r.AttemptID, r.Kind) }

// SpendRowID names the row of an attempt that has the given kind: an attempt has at most one of each.
func SpendRowID(attempt ids.ID, k RowKind) string { return attempt.String() + "." + string(k) }

// ParseSpendRowID reads what SpendRowID has written. ids.ErrMalformed: it has not.
func ParseSpendRowID(s string) (attempt ids.ID, k RowKind, err error) {
	id, kind, _ := strings.Cut(s, ".")
	if attempt, err = ids.Parse(id); err != nil {
		return attempt, "", err
	}
	switch k = RowKind(kind); k {
	case RowUsage, RowExpiry, RowLateAdjustment, RowCorrection, RowCredit:
		return attempt, k, nil
	}
	return ids.ID{}, "", ids.ErrMalformed
}

// Attribution is what a client said about a request. It shares no row and no transaction with money.
type Attribution struct {
	AttemptID ids.ID
	RequestID ids.ID
	Tags      map[string]string // at most 20, each at most 64 bytes
	Metadata  []byte            // JSON, at most 4 KiB
	RawUsage  []byte
}

// SpendFilter narrows lists and sums of spend. Zero members do not narrow. IDs are public.
type SpendFilter struct {
	Organization, Team, Key, User, Model, Provider string
	EndUser                                        string
	RequestID                                      ids.ID
	From, To                                       time.Time // settled in [From, To)
	TimeZone                                       string    // IANA zone whose days a summary groups by; empty: UTC
}

// SpendGroups lists the members by which a summary can group.
func SpendGroups() []string {
	return []string{"organization", "team", "key", "user", "model", "provider", "day", "hour"}
}

// SpendSum is one group of a summary.
type SpendSum struct {
	Group        map[string]string // grouping member → value, ids and names
	Cost         money.Nano
	Requests     int64
	InputTokens  int64
	OutputTokens int64
}

// Block is a run of ledger rows that was sealed: its hash covers them and the block before it.
type Block struct {
	Number int64 // from 1, without gaps
	Rows   int64
	Hash   []byte // SHA-256
}

// Page asks for one page of a list. Limit is between 1 and 250.
type Page struct {
	Limit  int
	Cursor string // opaque; empty: the first page
}

// SpendStore reads the ledger.
type SpendStore interface {
	// Rows lists rows, newest first.
	Rows(ctx context.Context, f SpendFilter, p Page) (rows []SpendRow, next string, err error)
	// Summary sums rows by some of SpendGroups.
	Summary(ctx context.Context, f SpendFilter, groupBy []string) ([]SpendSum, error)
	// Receipt returns everything about one request of one organization, or ErrNotFound.
	Receipt(ctx context.Context, organization int64, request ids.ID) (Receipt, error)
	// Levels returns the present state of the meters of limits, in the given order; a meter that was never used is whole.
	Levels(ctx context.Context, of []LevelQuery) ([]Level, error)
	// Members lists the meters of one limit, the fullest first.
	Members(ctx context.Context, limitNum int64, p Page) ([]Level, error)
	// Reservations lists open reservations and provisional rows, oldest first.
	Reservations(ctx context.Context, f ReservationFilter, p Page) ([]OpenReservation, string, error)
	// Attribute stores what clients said about their requests. It is best effort and never part of admission.
	Attribute(ctx context.Context, a []Attribution) error
	// Check recomputes every counter from the ledger and verifies the invariants.
	Check(ctx context.Context) (CheckReport, error)
}

// SpendExporter reads whole periods.
type SpendExporter interface {
	// Export hands over all sealed rows of a filter in the order in which they were sealed, some thousands at a time, and
	// says what it has handed over. An error of each ends it.
	Export(ctx context.Context, f SpendFilter, each func([]SpendRow) error) (Exported, error)
}

// Exported says what an export has.
type Exported struct {
	Rows     int64
	Cost     money.Nano
	Block    Block // the last one that was read; Number 0: none
	Unsealed int64 // rows of the filter that no block has yet, and the export neither
	Dropped  int64 // rows of these blocks, whatever the filter, that were dropped with their month, and the export has not
}

// SpendDecisions adds to the ledger what people decide. Each decision is a row of its own and an audit row, in one
// transaction; Actor.Reason says why and must not be empty.
type SpendDecisions interface {
	// Resolve ends a provisional row by a late adjustment. ErrNotFound: there is no such row; ErrConflict: it is resolved.
	Resolve(ctx context.Context, by Actor, attempt ids.ID, r Resolution) (SpendRow, error)
	// Correct adds differences to a row of usage or expiry. What is left of it is never negative.
	Correct(ctx context.Context, by Actor, rowID string, c Correction) (SpendRow, error)
	// Credit gives money back that no single row explains. It changes no meter.
	Credit(ctx context.Context, by Actor, c Credit) (SpendRow, error)
}

// ResolvePolicy says what a provisional row is taken to have used.
type ResolvePolicy string

// The policies.
const (
	ResolveKeep     ResolvePolicy = "keep"     // what was reserved
	ResolveEstimate ResolvePolicy = "estimate" // the prompt and what the target may have written in the time it had; the default
	ResolveZero     ResolvePolicy = "zero"     // nothing
)

// Resolution says what a provisional row was in truth.
type Resolution struct {
	Policy     ResolvePolicy // empty: Quantities are known
	Quantities Quantities    // priced at the row's own unit prices
}

// Correction is what to add to a row.
type Correction struct {
	Quantities Quantities // differences
	Cost       money.Nano // difference
}

// Credit is money given back to an organization, or to one of its teams or keys. IDs are public.
type Credit struct {
	Organization, Team, Key string
	Amount                  money.Nano // > 0
}

// LevelQuery names one meter.
type LevelQuery struct {
	Limit   *Limit
	Subject int64
}

// Receipt is everything about one request.
type Receipt struct {
	RequestID    ids.ID
	Status       string // "settling" while an attempt is open, else "settled"
	Rows         []SpendRow
	Reservations []OpenReservation
	Cost         money.Nano
}

// ReservationFilter narrows lists of reservations.
type ReservationFilter struct {
	Organization string
	State        string // "open" or "provisional"; empty: both
}

// OpenReservation is an attempt that is not finally settled.
type OpenReservation struct {
	ID         ids.ID
	Origin     Origin
	State      string
	Estimate   Estimate
	Legs       []Leg
	AdmittedAt time.Time
	ExpiresAt  time.Time
	Process    string
}

// CheckReport is the result of a ledger check.
type CheckReport struct {
	Checks   []CheckResult
	Rows     int64
	Sealed   Block         // the newest block; Rows counts all that are sealed
	Unsealed time.Duration // age of the oldest row that is not sealed; 0: every row is
	Duration time.Duration
}

// Clean reports whether nothing disagrees.
func (r *CheckReport) Clean() bool {
	for _, c := range r.Checks {
		if c.Violations > 0 {
			return false
		}
	}
	return true
}

// CheckResult is one invariant's result.
type CheckResult struct {
	ID         string // e.g. "I01"
	Name       string
	Violations int64
	Samples    []string // at most 10 differing rows, as text for people
}

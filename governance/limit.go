package governance

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/money"
)

// ScopeType says whose use a limit counts. The order is that of the chain.
type ScopeType string

// The scopes in chain order.
const (
	ScopeModel        ScopeType = "model"
	ScopeTarget       ScopeType = "target"
	ScopeOrganization ScopeType = "organization"
	ScopeTeam         ScopeType = "team"
	ScopeKey          ScopeType = "key"
	ScopeUser         ScopeType = "user"
	ScopeEndUser      ScopeType = "end_user"
)

// Scopes lists all scopes in chain order.
func Scopes() []ScopeType {
	return []ScopeType{ScopeModel, ScopeTarget, ScopeOrganization, ScopeTeam, ScopeKey, ScopeUser, ScopeEndUser}
}

// Kind is the form of a limit's meter.
type Kind string

// The kinds.
const (
	KindRate        Kind = "rate"        // a token bucket
	KindBudget      Kind = "budget"      // a window with a ledger
	KindConcurrency Kind = "concurrency" // a set of leased slots
)

// Metric is what a limit counts.
type Metric string

// The metrics. Tokens and input tokens include cached ones; cost is in nano-dollars.
const (
	MetricRequests     Metric = "requests"
	MetricTokens       Metric = "tokens"
	MetricInputTokens  Metric = "input_tokens"
	MetricOutputTokens Metric = "output_tokens"
	MetricCost         Metric = "cost"
)

// Text writes an amount of the metric as clients read it: US dollars for cost, else a whole number.
func (m Metric) Text(n int64) string {
	if m == MetricCost {
		return money.Nano(n).String()
	}
	return strconv.FormatInt(n, 10)
}

// Enforcement is the strength of a limit. All strengths are decided exactly for now.
type Enforcement string

// The strengths.
const (
	EnforceExact      Enforcement = "exact"
	EnforceConvergent Enforcement = "convergent"
	EnforceAdvisory   Enforcement = "advisory"
)

// Bound says how far beyond its amount a limit of any strength may be used: all are decided exactly (docs/decisions/0007).
const Bound = "0, plus debt"

// Mode says whether a limit refuses or only counts what it would have refused.
type Mode string

// The modes.
const (
	ModeEnforce Mode = "enforce"
	ModeLog     Mode = "log"
)

// ReservePolicy says what output maximum a limit reserves.
type ReservePolicy string

// The policies; see the contract, section 5.
const (
	ReserveDeclared ReservePolicy = "declared" // default of budgets
	ReserveExpected ReservePolicy = "expected" // default of token rates
	ReserveMaximum  ReservePolicy = "maximum"
)

// WindowType says how the windows of a budget follow each other.
type WindowType string

// The window types.
const (
	WindowCalendar WindowType = "calendar" // days, weeks (from Monday), months, quarters or years of a time zone
	WindowFixed    WindowType = "fixed"    // [anchor + k × duration)
	WindowTotal    WindowType = "total"    // one window without an end
)

// Window says which windows a budget counts in.
type Window struct {
	Type     WindowType
	Period   string        // calendar: day, week, month, quarter, year
	TimeZone string        // calendar: IANA name, default UTC
	Duration time.Duration // fixed: at least 1 s
	Anchor   time.Time     // fixed: default the limit's creation
}

// Scope is whose use a limit counts.
type Scope struct {
	Type    ScopeType
	Subject Ref // ID "*", Num 0: each member of the scope has a meter of its own
	// Within narrows "*" to the members of one parent.
	WithinType ScopeType
	Within     Ref
	// EndUser is the end user's name where Type is ScopeEndUser and the limit names one.
	EndUser string
}

// Each reports whether every member of the scope has a meter of its own.
func (s *Scope) Each() bool { return s.Subject.ID == "*" }

// Limit is a rule: how much of a metric one scope may use.
//
// Amount and Burst are whole requests, tokens or slots; for MetricCost they are nano-dollars.
type Limit struct {
	Meta
	Organization Ref // zero: counts the whole platform
	Scope        Scope
	Models       []string // patterns over public model names; empty: every call counts
	Routes       []string // route names such as chat.completions; empty: every call counts
	Kind         Kind
	Metric       Metric
	Unlimited    bool // amount null: still counted, refuses nothing
	Amount       int64
	Per          time.Duration // rate: 1 s, 1 m, 1 h or 24 h
	Burst        int64         // rate: capacity of the bucket
	Window       Window        // budget
	CarryDebt    bool          // budget: whether overspending is repaid by the next window (default true)
	Reserve      ReservePolicy
	Enforcement  Enforcement
	Mode         Mode
	Thresholds   []int // per cent of the amount at which alerts fire
	StartsAt     time.Time
	ExpiresAt    time.Time
	Reason       string
}

// LimitIndex finds the limits of a call without looking at the others. It is immutable.
type LimitIndex struct {
	named map[indexKey][]*Limit
	each  map[ScopeType][]*Limit
	byNum map[int64]*Limit
}

type indexKey struct {
	scope   ScopeType
	subject int64
}

// NewLimitIndex indexes live limits. For end users the subject is the mapping's row number.
func NewLimitIndex(limits []*Limit) *LimitIndex {
	x := &LimitIndex{
		named: make(map[indexKey][]*Limit),
		each:  make(map[ScopeType][]*Limit),
		byNum: make(map[int64]*Limit, len(limits)),
	}
	sorted := slices.SortedFunc(slices.Values(limits), func(a, b *Limit) int { return cmp.Compare(a.Num, b.Num) })
	for _, l := range sorted {
		x.byNum[l.Num] = l
		if l.Scope.Each() {
			x.each[l.Scope.Type] = append(x.each[l.Scope.Type], l)
		} else {
			k := indexKey{l.Scope.Type, l.Scope.Subject.Num}
			x.named[k] = append(x.named[k], l)
		}
	}
	return x
}

// Limit returns a limit by its row number. Nil: unknown.
func (x *LimitIndex) Limit(num int64) *Limit { return x.byNum[num] }

// Named lists the limits that name one subject of a scope, in the order of their row numbers.
func (x *LimitIndex) Named(s ScopeType, subject int64) []*Limit { return x.named[indexKey{s, subject}] }

// Each lists the limits that give every member of a scope a meter of its own, in the order of their row numbers.
func (x *LimitIndex) Each(s ScopeType) []*Limit { return x.each[s] }

// Routes lists the names of the routes whose calls a limit can count, in a fixed order.
func Routes() []string {
	return []string{
		RouteChat, RouteCompletions, RouteResponses, RouteEmbeddings, RouteModerations, RouteMessages, RouteCountTokens,
		RouteImages, RouteImageEdits, RouteImageVariations, RouteSpeech, RouteTranscriptions, RouteTranslations, RouteRerank,
	}
}

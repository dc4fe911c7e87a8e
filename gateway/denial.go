package gateway

import (
	"cmp"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/plugins"
)

// refusedLimit is the details of a refusal: one limit and its state. Amounts are decimal strings; cost is in US dollars.
type refusedLimit struct {
	Limit     string       `json:"limit"`
	Code      string       `json:"code,omitempty"` // of the others; the first one's is the error's
	Scope     refusedScope `json:"scope"`
	Metric    string       `json:"metric"`
	Amount    *string      `json:"amount"` // null: unlimited
	Spent     string       `json:"spent"`
	Held      string       `json:"held"`
	Debt      string       `json:"debt"`
	Remaining string       `json:"remaining"`
	Wanted    string       `json:"wanted,omitempty"`
	ResetsAt  *time.Time   `json:"resets_at"`
}

type refusedScope struct {
	Type string `json:"type"`
	ID   string `json:"id"`
}

type denialDetails struct {
	refusedLimit
	MaxAffordableTokens *int64         `json:"max_affordable_tokens,omitempty"`
	Others              []refusedLimit `json:"others"`
}

// denied turns a refusal of the ledger into the client's error. Of several limits the one that holds longest speaks; ties
// go by chain order, then by limit (ruling 25).
func denied(d *governance.Denial, c *plugins.Call, now time.Time) *failure {
	speaks := 0
	for i := range d.Refusals {
		if holdsLonger(&d.Refusals[i], &d.Refusals[speaks]) {
			speaks = i
		}
	}
	r := &d.Refusals[speaks]
	details := denialDetails{refusedLimit: describe(&r.Level, c, now), Others: []refusedLimit{}}
	details.Wanted = r.Limit.Metric.Text(r.Wanted)
	for i := range d.Refusals {
		if i != speaks {
			other := describe(&d.Refusals[i].Level, c, now)
			other.Code = string(refusalCode(&d.Refusals[i]))
			details.Others = append(details.Others, other)
		}
	}
	e := &governance.Error{Code: refusalCode(r), Public: refusalText(r, c), Err: d}
	switch e.Code {
	case governance.CodeConcurrencyExceeded:
		e.RetryAfter = time.Second
	case governance.CodeRateLimitExceeded, governance.CodeTokenLimitExceeded:
		e.RetryAfter = max(r.RetryAfter, time.Millisecond)
		if r.Forever {
			e.RetryAfter = longestWait + time.Second
		}
	case governance.CodeBudgetHeld:
		e.RetryAfter = min(max(r.RetryAfter, time.Second+rand.N(4*time.Second)), 5*time.Second) //nolint:gosec // jitter, no secret
	case governance.CodeReservationTooLarge:
		most := affordable(r, c)
		details.MaxAffordableTokens = &most
		if most > 0 {
			e.Public += " Ask for fewer output tokens."
		} else {
			e.Public += " Fewer output tokens would not help: its input alone is too large."
		}
	}
	e.Details = details
	return &failure{cause: e, spoken: r}
}

// hold is how long a refusal stands.
func hold(r *governance.Refusal) time.Duration {
	switch r.Reason {
	case governance.RefusedExceedsLimit:
		return math.MaxInt64
	case governance.RefusedBudgetExceeded, governance.RefusedReservationTooLarge:
		if r.Forever || r.ResetsAt.IsZero() {
			return math.MaxInt64
		}
		return r.ResetsAfter
	}
	if r.Forever {
		return math.MaxInt64
	}
	return r.RetryAfter
}

func holdsLonger(a, b *governance.Refusal) bool {
	order := chainOrder(b.Limit.Scope.Type) - chainOrder(a.Limit.Scope.Type)
	return cmp.Or(cmp.Compare(hold(a), hold(b)), order, cmp.Compare(b.Limit.Num, a.Limit.Num)) > 0
}

func chainOrder(s governance.ScopeType) int {
	for i, other := range governance.Scopes() {
		if s == other {
			return i
		}
	}
	return len(governance.Scopes())
}

func refusalCode(r *governance.Refusal) governance.Code {
	switch r.Reason {
	case governance.RefusedExceedsLimit:
		return governance.CodeRequestExceedsLimit
	case governance.RefusedConcurrency:
		return governance.CodeConcurrencyExceeded
	case governance.RefusedBudgetExceeded:
		return governance.CodeBudgetExceeded
	case governance.RefusedReservationTooLarge:
		return governance.CodeReservationTooLarge
	case governance.RefusedBudgetHeld:
		return governance.CodeBudgetHeld
	}
	switch r.Limit.Metric {
	case governance.MetricTokens, governance.MetricInputTokens, governance.MetricOutputTokens:
		return governance.CodeTokenLimitExceeded
	}
	return governance.CodeRateLimitExceeded
}

func refusalText(r *governance.Refusal, c *plugins.Call) string {
	whose := "The " + string(r.Limit.Metric) + " " + string(r.Limit.Kind) + " limit of the " + scopeName(r.Limit.Scope.Type)
	if id := scopeID(&r.Level, c); id != "" {
		whose += " " + id
	}
	switch r.Reason {
	case governance.RefusedExceedsLimit:
		return whose + " can never hold a request of this size."
	case governance.RefusedConcurrency:
		return whose + " is taken up by calls in flight."
	case governance.RefusedBudgetExceeded:
		return whose + " is used up."
	case governance.RefusedReservationTooLarge:
		return whose + " has less left than this request may use at most."
	case governance.RefusedBudgetHeld:
		return whose + " is held by calls in flight."
	}
	return whose + " is used up for the moment."
}

func scopeName(s governance.ScopeType) string {
	if s == governance.ScopeEndUser {
		return "end user"
	}
	return string(s)
}

// scopeID is the public id of the subject whose meter speaks.
func scopeID(l *governance.Level, c *plugins.Call) string {
	switch l.Limit.Scope.Type {
	case governance.ScopeModel:
		if c.Resolved.Model != nil {
			return c.Resolved.Model.ID
		}
	case governance.ScopeTarget:
		if c.Target != nil {
			return c.Target.ID
		}
	case governance.ScopeOrganization:
		return c.Principal.Organization.ID
	case governance.ScopeTeam:
		return c.Principal.Team.ID
	case governance.ScopeKey:
		return c.Principal.Key.ID
	case governance.ScopeUser:
		return c.Principal.User.ID
	case governance.ScopeEndUser:
		return c.EndUser
	}
	return ""
}

func describe(l *governance.Level, c *plugins.Call, now time.Time) refusedLimit {
	m := l.Limit.Metric
	d := refusedLimit{
		Limit:     l.Limit.ID,
		Scope:     refusedScope{string(l.Limit.Scope.Type), scopeID(l, c)},
		Metric:    string(m),
		Spent:     m.Text(l.Spent),
		Held:      m.Text(l.Held),
		Debt:      m.Text(l.Debt),
		Remaining: m.Text(l.Remaining),
	}
	if at := l.WholeAt(now); !at.IsZero() {
		d.ResetsAt = &at
	}
	if !l.Unlimited {
		amount := m.Text(l.Amount)
		d.Amount = &amount
	}
	return d
}

// affordable is the largest output maximum, in tokens of one answer, that would have fitted what the limit has left; 0: none.
func affordable(r *governance.Refusal, c *plugins.Call) int64 {
	fits := func(output int64) bool {
		d := c.Demand
		d.Declared = output
		limit := *r.Limit
		limit.Reserve = governance.ReserveDeclared
		wanted, err := d.Amount(&limit, c.Target)
		return err == nil && wanted <= r.Remaining
	}
	low, high := int64(0), int64(governance.MaxTokens)
	for low < high {
		if middle := low + (high-low+1)/2; fits(middle) {
			low = middle
		} else {
			high = middle - 1
		}
	}
	return low
}

// limitHeaders shows the tightest limits after a reservation, or the one that refused: OpenAI's names, its reset format.
func (c *call) limitHeaders(levels []governance.Level) {
	var all, requests, tokens *governance.Level
	for i := range levels {
		l := &levels[i]
		if l.Unlimited || l.Limit.Mode == governance.ModeLog || l.Limit.Kind == governance.KindConcurrency {
			continue
		}
		all = tighter(all, l)
		switch l.Limit.Metric {
		case governance.MetricRequests:
			requests = tighter(requests, l)
		case governance.MetricTokens, governance.MetricInputTokens, governance.MetricOutputTokens:
			tokens = tighter(tokens, l)
		}
	}
	if all != nil {
		c.header("X-Tollgate-Limit", all.Limit.ID)
	}
	if requests != nil {
		c.header("X-Ratelimit-Limit-Requests", strconv.FormatInt(requests.Amount, 10))
		c.header("X-Ratelimit-Remaining-Requests", strconv.FormatInt(requests.Remaining, 10))
		c.header("X-Ratelimit-Reset-Requests", resetText(requests.ResetsAfter))
	}
	if tokens != nil {
		c.header("X-Ratelimit-Limit-Tokens", strconv.FormatInt(tokens.Amount, 10))
		c.header("X-Ratelimit-Remaining-Tokens", strconv.FormatInt(tokens.Remaining, 10))
		c.header("X-Ratelimit-Reset-Tokens", resetText(tokens.ResetsAfter))
	}
}

// tighter returns the level with the smaller share left; the first one of equals.
func tighter(a, b *governance.Level) *governance.Level {
	if a == nil || share(b) < share(a) {
		return b
	}
	return a
}

// share is what is left of a limit, in millionths.
func share(l *governance.Level) int64 {
	if l.Amount <= 0 {
		return 0
	}
	if l.Remaining > math.MaxInt64/1_000_000 {
		return l.Remaining / max(l.Amount/1_000_000, 1)
	}
	return l.Remaining * 1_000_000 / l.Amount
}

// resetText writes a wait as OpenAI does: 12ms, 1s, 6m0s.
func resetText(d time.Duration) string {
	unit := time.Second
	if d < time.Second {
		unit = time.Millisecond
	}
	return (d + unit - 1).Truncate(unit).String()
}

package governance

import (
	"math/bits"
	"slices"
	"time"
)

// bucketUnits is the most that a bucket's level may come to: units × ticks must leave room in 63 bits for debt.
const bucketUnits = 1 << 62

// Complete fills in what a new limit leaves open: the capacity of its bucket is its amount, budgets reserve what is declared
// and rates what is expected, everything is exact and enforced, and calendar windows are those of UTC. Patterns and routes
// are sorted, so that the order in which they were written makes no other limit.
func (l *Limit) Complete() {
	if l.Kind == KindRate && l.Burst == 0 {
		l.Burst = l.Amount
	}
	if l.Reserve == "" {
		l.Reserve = ReserveDeclared
		if l.Kind == KindRate {
			l.Reserve = ReserveExpected
		}
	}
	if l.Enforcement == "" {
		l.Enforcement = EnforceExact
	}
	if l.Mode == "" {
		l.Mode = ModeEnforce
	}
	if l.Thresholds == nil {
		l.Thresholds = []int{50, 80, 100}
	}
	if l.Kind == KindBudget && l.Window.Type == WindowCalendar && l.Window.TimeZone == "" {
		l.Window.TimeZone = "UTC"
	}
	l.Models = sortedSet(l.Models)
	l.Routes = sortedSet(l.Routes)
}

func sortedSet(s []string) []string {
	sorted := append([]string{}, s...)
	slices.Sort(sorted)
	return slices.Compact(sorted)
}

// Validate refuses what cannot be counted (rulings 1 and 22), with the member at fault. It does not look at whether the
// scope's subject exists.
func (l *Limit) Validate() error {
	for _, check := range []func() error{l.checkScope, l.checkMetric, l.checkMeter, l.checkPolicy, l.checkTimes} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func fault(field, reason string) error { return &InvalidError{Field: field, Reason: reason} }

func (l *Limit) checkScope() error {
	s := &l.Scope
	switch {
	case !slices.Contains(Scopes(), s.Type):
		return fault("scope.type", "is none of model, target, organization, team, key, user, end_user")
	case s.Subject.ID == "" && s.Subject.Num == 0 && s.EndUser == "":
		return fault("scope.id", "is missing; \"*\" means each")
	case s.EndUser != "" && s.Type != ScopeEndUser:
		return fault("scope.end_user", "fits the scope end_user only")
	case s.WithinType == "" && !s.Within.IsZero(), s.WithinType != "" && s.Within.IsZero():
		return fault("scope.within", "needs both type and id")
	case s.WithinType != "" && !s.Each():
		return fault("scope.within", "fits the id \"*\" only")
	case s.WithinType != "" && !slices.Contains([]ScopeType{ScopeOrganization, ScopeTeam, ScopeKey, ScopeUser}, s.WithinType):
		return fault("scope.within.type", "is none of organization, team, key, user")
	}
	return nil
}

func (l *Limit) checkMetric() error {
	switch l.Metric {
	case MetricRequests, MetricTokens, MetricInputTokens, MetricOutputTokens, MetricCost:
	default:
		return fault("metric", "is none of requests, tokens, input_tokens, output_tokens, cost")
	}
	switch l.Kind {
	case KindRate:
	case KindBudget:
		if l.Metric == MetricRequests {
			return fault("metric", "of a budget is tokens, input_tokens, output_tokens or cost")
		}
	case KindConcurrency:
		if l.Metric != MetricRequests {
			return fault("metric", "of a concurrency limit is requests")
		}
		if l.Enforcement != EnforceExact {
			return fault("enforcement", "of a concurrency limit is exact")
		}
	default:
		return fault("kind", "is none of rate, budget, concurrency")
	}
	if l.Enforcement == EnforceAdvisory && (l.Kind != KindRate || l.Metric != MetricRequests) {
		return fault("enforcement", "advisory fits rates of requests only")
	}
	if l.Amount < 0 {
		return fault("amount", "is negative")
	}
	return nil
}

func (l *Limit) checkMeter() error {
	if l.Kind == KindRate {
		return l.checkBucket()
	}
	if l.Per != 0 {
		return fault("per", "belongs to rates only")
	}
	if l.Burst != 0 {
		return fault("burst", "belongs to rates only")
	}
	if l.Kind == KindBudget {
		return l.checkWindow()
	}
	if l.Window != (Window{}) {
		return fault("window", "belongs to budgets only")
	}
	return nil
}

func (l *Limit) checkBucket() error {
	if l.Window != (Window{}) {
		return fault("window", "belongs to budgets only")
	}
	if !slices.Contains([]time.Duration{time.Second, time.Minute, time.Hour, 24 * time.Hour}, l.Per) {
		return fault("per", "is none of 1s, 1m, 1h, 24h")
	}
	if l.Metric == MetricCost && l.Per > time.Hour {
		return fault("per", "of a rate of cost is at most 1h; use a budget")
	}
	if l.Burst < 0 {
		return fault("burst", "is negative")
	}
	if l.Amount > 0 && l.Burst == 0 {
		return fault("burst", "of 0 would never admit anything")
	}
	ticks := uint64(l.Per / time.Millisecond) // one of four positive durations
	for field, n := range map[string]int64{"amount": l.Amount, "burst": l.Burst} {
		if hi, lo := bits.Mul64(uint64(n), ticks); hi != 0 || lo > bucketUnits { // n ≥ 0
			return fault(field, "is too large for its period")
		}
	}
	return nil
}

func (l *Limit) checkWindow() error {
	w := &l.Window
	switch w.Type {
	case WindowCalendar:
		if !slices.Contains([]string{"day", "week", "month", "quarter", "year"}, w.Period) {
			return fault("window.period", "is none of day, week, month, quarter, year")
		}
		if w.TimeZone == "Local" {
			return fault("window.time_zone", "is no IANA time zone")
		}
		if _, err := time.LoadLocation(w.TimeZone); err != nil {
			return fault("window.time_zone", "is no IANA time zone")
		}
		if w.Duration != 0 || !w.Anchor.IsZero() {
			return fault("window.duration", "belongs to fixed windows only")
		}
	case WindowFixed:
		if w.Duration < time.Second || w.Duration%time.Second != 0 {
			return fault("window.duration", "is not a whole number of seconds, at least 1")
		}
		if w.Period != "" || w.TimeZone != "" {
			return fault("window.period", "belongs to calendar windows only")
		}
	case WindowTotal:
		if *w != (Window{Type: WindowTotal}) {
			return fault("window", "of type total has no other members")
		}
	default:
		return fault("window.type", "is none of calendar, fixed, total")
	}
	return nil
}

func (l *Limit) checkPolicy() error {
	if !slices.Contains([]ReservePolicy{ReserveDeclared, ReserveExpected, ReserveMaximum}, l.Reserve) {
		return fault("reserve", "is none of declared, expected, maximum")
	}
	if !slices.Contains([]Enforcement{EnforceExact, EnforceConvergent, EnforceAdvisory}, l.Enforcement) {
		return fault("enforcement", "is none of exact, convergent, advisory")
	}
	if l.Mode != ModeEnforce && l.Mode != ModeLog {
		return fault("mode", "is neither enforce nor log")
	}
	for _, percent := range l.Thresholds {
		if percent < 1 || percent > 1000 {
			return fault("thresholds", "are per cent between 1 and 1000")
		}
	}
	return nil
}

func (l *Limit) checkTimes() error {
	if !l.StartsAt.IsZero() && !l.ExpiresAt.IsZero() && !l.StartsAt.Before(l.ExpiresAt) {
		return fault("expires_at", "is not after starts_at")
	}
	return nil
}

// SameIdentity refuses a change of the members that make a limit what it is (ruling 2), with the member at fault.
func (l *Limit) SameIdentity(before *Limit) error {
	switch {
	case l.Organization.Num != before.Organization.Num:
		return fault("organization_id", unchangeable)
	case l.Scope.Type != before.Scope.Type, l.Scope.Subject.Num != before.Scope.Subject.Num,
		l.Scope.Each() != before.Scope.Each(),
		l.Scope.WithinType != before.Scope.WithinType, l.Scope.Within.Num != before.Scope.Within.Num:
		return fault("scope", unchangeable)
	case !slices.Equal(l.Models, before.Models):
		return fault("models", unchangeable)
	case !slices.Equal(l.Routes, before.Routes):
		return fault("routes", unchangeable)
	case l.Kind != before.Kind:
		return fault("kind", unchangeable)
	case l.Metric != before.Metric:
		return fault("metric", unchangeable)
	case l.Per != before.Per:
		return fault("per", unchangeable)
	case l.Window.Type != before.Window.Type, l.Window.Period != before.Window.Period,
		l.Window.TimeZone != before.Window.TimeZone, l.Window.Duration != before.Window.Duration,
		!l.Window.Anchor.Equal(before.Window.Anchor):
		return fault("window", unchangeable)
	case l.CarryDebt != before.CarryDebt:
		return fault("carry_debt", unchangeable)
	}
	return nil
}

const unchangeable = "cannot be changed; create another limit"

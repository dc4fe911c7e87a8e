package governance

import (
	"slices"
	"time"
)

// Caller is whose meters one attempt moves: a row number for each scope, 0 where the call has none.
type Caller struct {
	Model        int64
	Target       int64
	Organization int64
	Team         int64
	Key          int64
	User         int64
	EndUser      int64
	ModelName    string // public name that was asked for; empty: whatever models a limit counts
	Route        string // empty: whatever routes a limit counts
}

// subject returns the member of a scope that the call belongs to; 0: none.
func (c *Caller) subject(s ScopeType) int64 {
	switch s {
	case ScopeModel:
		return c.Model
	case ScopeTarget:
		return c.Target
	case ScopeOrganization:
		return c.Organization
	case ScopeTeam:
		return c.Team
	case ScopeKey:
		return c.Key
	case ScopeUser:
		return c.User
	case ScopeEndUser:
		return c.EndUser
	default:
		return 0
	}
}

// Applied is a limit together with the subject whose meter it moves.
type Applied struct {
	Limit   *Limit
	Subject int64
}

// Applied lists the limits of one kind that hold for a call at an instant, in chain order (contract, section 5). All of
// them apply, save that a limit which names a subject replaces the "*" one of the same identity (rulings 2 and 27), even
// where it is unlimited.
func (x *LimitIndex) Applied(kind Kind, c *Caller, at time.Time) []Applied {
	var all []Applied
	for _, scope := range Scopes() {
		subject := c.subject(scope)
		if subject == 0 {
			continue
		}
		named := len(all)
		for _, l := range x.Named(scope, subject) {
			if l.Kind == kind && l.counts(c, at) {
				all = append(all, Applied{l, subject})
			}
		}
		replacing := all[named:]
		for _, l := range x.Each(scope) {
			if l.Kind == kind && l.counts(c, at) && !slices.ContainsFunc(replacing, func(a Applied) bool { return sameRule(a.Limit, l) }) {
				all = append(all, Applied{l, subject})
			}
		}
	}
	return all
}

// counts reports whether a call of one of the limit's subjects counts into its meter.
func (l *Limit) counts(c *Caller, at time.Time) bool {
	switch {
	case !l.Organization.IsZero() && l.Organization.Num != c.Organization:
		return false
	case l.Scope.WithinType != "" && l.Scope.Within.Num != c.subject(l.Scope.WithinType):
		return false
	case !l.StartsAt.IsZero() && at.Before(l.StartsAt):
		return false
	case !l.ExpiresAt.IsZero() && !at.Before(l.ExpiresAt):
		return false
	default:
		model := c.ModelName == "" || Covers(l.Models, c.ModelName)
		route := c.Route == "" || len(l.Routes) == 0 || slices.Contains(l.Routes, c.Route)
		return model && route
	}
}

// sameRule reports whether two limits on one scope have the same identity (ruling 2), their subjects aside. The anchor of
// fixed windows is no part of it: it defaults to each limit's own creation.
func sameRule(a, b *Limit) bool {
	return a.Organization.Num == b.Organization.Num && a.Metric == b.Metric && a.Per == b.Per &&
		a.Window.Type == b.Window.Type && a.Window.Period == b.Window.Period && a.Window.Duration == b.Window.Duration &&
		a.Window.zone() == b.Window.zone() &&
		sameSet(a.Models, b.Models) && sameSet(a.Routes, b.Routes)
}

func (w *Window) zone() string {
	if w.TimeZone == "" {
		return "UTC"
	}
	return w.TimeZone
}

func sameSet(a, b []string) bool {
	within := func(these, those []string) bool {
		return !slices.ContainsFunc(these, func(s string) bool { return !slices.Contains(those, s) })
	}
	return within(a, b) && within(b, a)
}

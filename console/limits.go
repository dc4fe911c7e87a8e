package console

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// each is the id of a scope that gives every member a meter of its own.
const each = "*"

const (
	minWindow = time.Second
	maxWindow = 10 * 366 * 24 * time.Hour
)

// limitWithin narrows "*" to the members of one parent.
type limitWithin struct {
	Type string `json:"type" enum:"organization,team,key,user"`
	ID   string `json:"id" minLength:"1" maxLength:"64"`
}

// limitScope is whose use a limit counts.
type limitScope struct {
	Type   string       `json:"type" enum:"model,target,organization,team,key,user,end_user"`
	ID     string       `json:"id" minLength:"1" maxLength:"256" doc:"Public id, an end user's name, or * for a meter for each member"`
	Within *limitWithin `json:"within,omitempty" doc:"With *: only the members of this parent"`
}

// limitWindow says which windows a budget counts in.
type limitWindow struct {
	Type     string     `json:"type" enum:"calendar,fixed,total"`
	Period   string     `json:"period,omitempty" enum:"day,week,month,quarter,year" doc:"Of calendar windows"`
	TimeZone string     `json:"time_zone,omitempty" maxLength:"64" doc:"IANA zone of calendar windows; absent: UTC"`
	Duration duration   `json:"duration,omitempty" doc:"Of fixed windows, at least 1s"`
	Anchor   *time.Time `json:"anchor,omitempty" doc:"Where fixed windows begin; absent: when the limit was created"`
}

// LimitRule is a limit without the scope that it applies to.
type LimitRule struct {
	Models      []string     `json:"models,omitempty" maxItems:"200" nullable:"false" doc:"Patterns over public model names; absent: every call counts"`
	Routes      []string     `json:"routes,omitempty" maxItems:"50" nullable:"false" doc:"Names of routes, such as chat.completions; absent: every call counts"`
	Kind        string       `json:"kind" enum:"rate,budget,concurrency"`
	Metric      string       `json:"metric,omitempty" enum:"requests,tokens,input_tokens,output_tokens,cost" doc:"Absent: requests, for concurrency only"`
	Amount      *decimal     `json:"amount,omitempty" nullable:"true" doc:"US dollars for cost, else whole; null: unlimited but counted; \"0\": nothing"`
	Per         string       `json:"per,omitempty" enum:"1s,1m,1h,24h" doc:"Of rates"`
	Burst       *decimal     `json:"burst,omitempty" nullable:"true" doc:"Capacity of a rate's bucket; absent: the amount"`
	Window      *limitWindow `json:"window,omitempty" doc:"Of budgets"`
	CarryDebt   *bool        `json:"carry_debt,omitempty" nullable:"true" doc:"Of budgets: whether overspending is repaid by the next window; absent: true"`
	Reserve     string       `json:"reserve,omitempty" enum:"declared,expected,maximum" doc:"What output a call reserves; absent: declared for budgets, expected for rates"`
	Enforcement string       `json:"enforcement,omitempty" enum:"exact,convergent,advisory" doc:"Absent: exact"`
	Mode        string       `json:"mode,omitempty" enum:"enforce,log" doc:"Absent: enforce"`
	Thresholds  []int        `json:"thresholds,omitempty" maxItems:"20" minimum:"1" maximum:"1000" nullable:"false" doc:"Per cent of the amount at which alerts fire, ascending; absent: 50, 80, 100"`
	StartsAt    *time.Time   `json:"starts_at,omitempty" nullable:"true"`
	ExpiresAt   *time.Time   `json:"expires_at,omitempty" nullable:"true"`
	Reason      string       `json:"reason,omitempty" maxLength:"1000"`
}

// firstLimit is a limit that a team or key is created with. Its scope is that team or key.
type firstLimit struct{ LimitRule }

// limitBody creates a limit.
type limitBody struct {
	OrganizationID string     `json:"organization_id,omitempty" pattern:"^org_[0-9A-Za-z]{12}$" patternDescription:"an organization's id" doc:"Counts this organization only; needed for a named end user"`
	Scope          limitScope `json:"scope"`
	LimitRule
}

// Limit is a rule as it is stored.
type Limit struct {
	Stamps
	OrganizationID *string     `json:"organization_id" doc:"null: counts the whole platform"`
	Scope          limitScope  `json:"scope"`
	ScopeName      string      `json:"scope_name" doc:"The name of what the scope names, for people"`
	Models         []string    `json:"models" nullable:"false"`
	Routes         []string    `json:"routes" nullable:"false"`
	Kind           string      `json:"kind"`
	Metric         string      `json:"metric"`
	Amount         *decimal    `json:"amount" nullable:"true" doc:"null: unlimited but counted"`
	Per            *string     `json:"per"`
	Burst          *decimal    `json:"burst" nullable:"true"`
	Window         limitWindow `json:"window,omitzero"`
	CarryDebt      bool        `json:"carry_debt"`
	Reserve        string      `json:"reserve"`
	Enforcement    string      `json:"enforcement"`
	Bound          string      `json:"bound" doc:"What this enforcement may admit beyond the amount"`
	Mode           string      `json:"mode"`
	Thresholds     []int       `json:"thresholds" nullable:"false"`
	StartsAt       *time.Time  `json:"starts_at"`
	ExpiresAt      *time.Time  `json:"expires_at"`
	Reason         string      `json:"reason"`
}

// fixedLimitMembers are what identifies a limit (ruling 2).
func fixedLimitMembers() []string {
	return []string{"organization_id", "scope", "models", "routes", "kind", "metric", "per", "window", "carry_debt"}
}

func viewLimit(l governance.Limit) Limit {
	v := Limit{
		Stamps: stampsOf(l.Meta), OrganizationID: idOf(l.Organization), Scope: viewScope(l.Scope), ScopeName: l.Scope.Subject.Name,
		Models: orEmpty(l.Models), Routes: orEmpty(l.Routes), Kind: string(l.Kind), Metric: string(l.Metric),
		CarryDebt: l.CarryDebt, Reserve: string(l.Reserve), Enforcement: string(l.Enforcement), Bound: governance.Bound,
		Mode: string(l.Mode), Thresholds: l.Thresholds, StartsAt: instant(l.StartsAt), ExpiresAt: instant(l.ExpiresAt), Reason: l.Reason,
	}
	if v.Thresholds == nil {
		v.Thresholds = []int{}
	}
	if !l.Unlimited {
		amount := amountOf(l.Amount, l.Metric)
		v.Amount = &amount
	}
	switch l.Kind {
	case governance.KindRate:
		per := perOf(l.Per)
		v.Per = &per
		if !l.Unlimited {
			burst := amountOf(l.Burst, l.Metric)
			v.Burst = &burst
		}
	case governance.KindBudget:
		v.Window = viewWindow(l.Window)
	case governance.KindConcurrency:
	}
	return v
}

func viewScope(s governance.Scope) limitScope {
	v := limitScope{Type: string(s.Type), ID: s.Subject.ID}
	if s.EndUser != "" {
		v.ID = s.EndUser
	}
	if s.WithinType != "" {
		v.Within = &limitWithin{Type: string(s.WithinType), ID: s.Within.ID}
	}
	return v
}

func viewWindow(w governance.Window) limitWindow {
	v := limitWindow{Type: string(w.Type), Period: w.Period, TimeZone: w.TimeZone, Anchor: instant(w.Anchor)}
	if w.Type == governance.WindowFixed {
		v.Duration = durationOf(w.Duration)
	}
	return v
}

// idOf is nil where a reference points at nothing.
func idOf(r governance.Ref) *string {
	if r.IsZero() {
		return nil
	}
	return &r.ID
}

// perOf writes the period of a rate as clients write it.
func perOf(t time.Duration) string {
	if t == time.Minute {
		return "1m"
	}
	return string(durationOf(t))
}

func (b limitBody) row() (governance.Limit, error) {
	l, err := b.limit("")
	if err != nil {
		return l, err
	}
	if b.OrganizationID != "" {
		l.Organization = governance.Ref{ID: b.OrganizationID}
	}
	l.Scope, err = b.Scope.scope(b.OrganizationID)
	return l, err
}

// prefixOf is the id prefix of what a scope names. Empty: it has names instead of ids.
func prefixOf(t governance.ScopeType) ids.Kind {
	switch t {
	case governance.ScopeModel:
		return ids.Model
	case governance.ScopeTarget:
		return ids.Target
	case governance.ScopeOrganization:
		return ids.Organization
	case governance.ScopeTeam:
		return ids.Team
	case governance.ScopeKey:
		return ids.Key
	case governance.ScopeUser:
		return ids.User
	case governance.ScopeEndUser:
	}
	return ""
}

func (s limitScope) scope(organization string) (governance.Scope, error) {
	t := governance.ScopeType(s.Type)
	out := governance.Scope{Type: t, Subject: governance.Ref{ID: s.ID}}
	kind := prefixOf(t)
	switch {
	case s.ID == each:
	case kind != "":
		if !ids.IsPublic(kind, s.ID) {
			return out, invalidField("scope.id", fmt.Sprintf("must be an id such as %s_4Tz0aQ9LmX2b, or *", kind))
		}
	default:
		if organization == "" {
			return out, invalidField("organization_id", "is needed, since end users belong to an organization")
		}
		out.Subject, out.EndUser = governance.Ref{}, s.ID
	}
	if s.Within == nil {
		return out, nil
	}
	parent := governance.ScopeType(s.Within.Type)
	switch {
	case s.ID != each:
		return out, invalidField("scope.within", "goes with the id * only")
	case !mayHold(parent, t):
		return out, invalidField("scope.within.type", fmt.Sprintf("a %s has no %ss", parent, t))
	case !ids.IsPublic(prefixOf(parent), s.Within.ID):
		return out, invalidField("scope.within.id", fmt.Sprintf("must be an id such as %s_4Tz0aQ9LmX2b", prefixOf(parent)))
	}
	out.WithinType, out.Within = parent, governance.Ref{ID: s.Within.ID}
	return out, nil
}

// mayHold reports whether calls of one parent can belong to different members of a scope.
func mayHold(parent, member governance.ScopeType) bool {
	order := governance.Scopes()
	if member == governance.ScopeModel || member == governance.ScopeTarget {
		return true
	}
	return slices.Index(order, member) > slices.Index(order, parent)
}

// limit converts a rule. What it leaves out is filled in, and what cannot be counted is refused, by the domain; here is
// refused only what the conversion would lose. at is the path of the rule in the body, with a dot, or empty.
func (r LimitRule) limit(at string) (l governance.Limit, err error) {
	l = governance.Limit{
		Models: r.Models, Routes: r.Routes, Kind: governance.Kind(r.Kind), Metric: governance.Metric(r.Metric),
		Unlimited: r.Amount == nil, CarryDebt: r.CarryDebt == nil || *r.CarryDebt,
		Reserve: governance.ReservePolicy(r.Reserve), Enforcement: governance.Enforcement(r.Enforcement), Mode: governance.Mode(r.Mode),
		Thresholds: r.Thresholds, Reason: r.Reason,
	}
	if l.Metric == "" {
		if l.Kind != governance.KindConcurrency {
			return l, invalidField(at+"metric", "is needed")
		}
		l.Metric = governance.MetricRequests
	}
	if r.Per != "" {
		if l.Per, err = time.ParseDuration(r.Per); err != nil {
			return l, invalidField(at+"per", "must be 1s, 1m, 1h or 24h")
		}
	}
	if r.Amount != nil {
		if l.Amount, err = units(at+"amount", *r.Amount, l.Metric); err != nil {
			return l, err
		}
	}
	if r.Burst != nil {
		if l.Burst, err = burstOf(&l, at, *r.Burst); err != nil {
			return l, err
		}
	}
	if r.CarryDebt != nil && l.Kind != governance.KindBudget {
		return l, invalidField(at+"carry_debt", "belongs to budgets only")
	}
	if err := checkPatterns(at+"models", r.Models); err != nil {
		return l, err
	}
	if err := checkRoutes(at+"routes", r.Routes); err != nil {
		return l, err
	}
	if err := checkThresholds(at+"thresholds", r.Thresholds); err != nil {
		return l, err
	}
	if r.Window != nil {
		if l.Window, err = r.Window.window(at + "window."); err != nil {
			return l, err
		}
	}
	if l.StartsAt, err = checkInstant(at+"starts_at", r.StartsAt); err != nil {
		return l, err
	}
	l.ExpiresAt, err = checkInstant(at+"expires_at", r.ExpiresAt)
	return l, err
}

// burstOf reads the capacity of a rate's bucket.
func burstOf(l *governance.Limit, at string, d decimal) (int64, error) {
	switch {
	case l.Kind != governance.KindRate:
		return 0, invalidField(at+"burst", "belongs to rates only")
	case l.Unlimited:
		return 0, invalidField(at+"burst", "makes no sense without an amount")
	}
	burst, err := units(at+"burst", d, l.Metric)
	if err == nil && burst == 0 && l.Amount > 0 {
		err = invalidField(at+"burst", "of 0 would never admit anything")
	}
	return burst, err
}

func (w limitWindow) window(at string) (out governance.Window, err error) {
	out = governance.Window{Type: governance.WindowType(w.Type), Period: w.Period, TimeZone: w.TimeZone}
	if w.Duration != "" {
		if out.Duration, err = w.Duration.parse(at+"duration", minWindow, maxWindow); err != nil {
			return out, err
		}
	}
	out.Anchor, err = checkInstant(at+"anchor", w.Anchor)
	return out, err
}

// limitPatch changes what may change on a limit. Spent, held and owed amounts stay.
type limitPatch struct {
	Amount      clearable[decimal]   `json:"amount,omitzero" doc:"null: unlimited. A burst that equalled the amount follows it"`
	Burst       change[decimal]      `json:"burst,omitzero"`
	Reserve     change[string]       `json:"reserve,omitzero" enum:"declared,expected,maximum"`
	Enforcement change[string]       `json:"enforcement,omitzero" enum:"exact,convergent,advisory"`
	Mode        change[string]       `json:"mode,omitzero" enum:"enforce,log"`
	Thresholds  change[[]int]        `json:"thresholds,omitzero" maxItems:"20" minimum:"1" maximum:"1000"`
	StartsAt    clearable[time.Time] `json:"starts_at,omitzero"`
	ExpiresAt   clearable[time.Time] `json:"expires_at,omitzero"`
	Reason      change[string]       `json:"reason,omitzero" maxLength:"1000"`
}

func (p limitPatch) apply(l *governance.Limit) error {
	if err := p.applyAmounts(l); err != nil {
		return err
	}
	reserve, enforcement, mode := string(l.Reserve), string(l.Enforcement), string(l.Mode)
	p.Reserve.to(&reserve)
	p.Enforcement.to(&enforcement)
	p.Mode.to(&mode)
	l.Reserve, l.Enforcement, l.Mode = governance.ReservePolicy(reserve), governance.Enforcement(enforcement), governance.Mode(mode)
	if err := checkThresholds("thresholds", p.Thresholds.value); err != nil {
		return err
	}
	p.Thresholds.to(&l.Thresholds)
	p.Reason.to(&l.Reason)
	for _, m := range []struct {
		field string
		from  clearable[time.Time]
		to    *time.Time
	}{{"starts_at", p.StartsAt, &l.StartsAt}, {"expires_at", p.ExpiresAt, &l.ExpiresAt}} {
		if !m.from.given {
			continue
		}
		given := &m.from.value
		if m.from.null {
			given = nil
		}
		var err error
		if *m.to, err = checkInstant(m.field, given); err != nil {
			return err
		}
	}
	return nil
}

func (p limitPatch) applyAmounts(l *governance.Limit) (err error) {
	if p.Amount.given {
		follows := l.Kind == governance.KindRate && (l.Unlimited || l.Burst == l.Amount)
		l.Unlimited, l.Amount = p.Amount.null, 0
		if !l.Unlimited {
			if l.Amount, err = units("amount", p.Amount.value, l.Metric); err != nil {
				return err
			}
		}
		if follows || l.Unlimited {
			l.Burst = l.Amount
		}
	}
	if p.Burst.given {
		l.Burst, err = burstOf(l, "", p.Burst.value)
	}
	return err
}

type limitFilter struct {
	PageQuery
	Organization string `query:"organization_id" pattern:"^org_[0-9A-Za-z]{12}$" patternDescription:"an organization's id"`
	ScopeType    string `query:"scope_type" enum:"model,target,organization,team,key,user,end_user"`
	ScopeID      string `query:"scope_id" maxLength:"256" doc:"A scope's id as the limit has it"`
	Deleted      bool   `query:"deleted"`
}

func (f limitFilter) listFilter() governance.ListFilter {
	return governance.ListFilter{
		Organization: f.Organization, ScopeType: governance.ScopeType(f.ScopeType), ScopeID: f.ScopeID, Deleted: f.Deleted,
	}
}

func (s *server) limits() resource[governance.Limit, Limit] {
	return resource[governance.Limit, Limit]{
		path: "limits", singular: "limit", article: "a", kind: ids.Limit, store: currentLimits{s.Limits, s.Now},
		meta: func(l *governance.Limit) *governance.Meta { return &l.Meta }, view: viewLimit,
	}
}

// currentLimits refuses new limits that have ended already: they would count nothing.
type currentLimits struct {
	governance.Store[governance.Limit]
	now func() time.Time
}

// Create adds a limit that has not expired.
func (c currentLimits) Create(ctx context.Context, by governance.Actor, l governance.Limit) (governance.Limit, error) {
	if err := checkFuture("expires_at", l.ExpiresAt, c.now()); err != nil {
		return l, err
	}
	return c.Store.Create(ctx, by, l)
}

func (s *server) registerLimits(api huma.API) {
	limits := s.limits()
	registerList[governance.Limit, Limit, limitFilter](api, limits)
	registerCreate[governance.Limit, Limit, limitBody](api, limits)
	registerGet(api, limits)
	registerUpdate[governance.Limit, Limit, limitPatch](api, limits, fixedLimitMembers()...)
	registerDelete(api, limits)
	s.registerLimitState(api)
	s.registerPreview(api)
}

package console

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tollgate-gateway/tollgate/governance"
)

// maxChain is how many limits of one scope are looked at for one key.
const maxChain = 250

// Level is the state of one meter.
type Level struct {
	Amount    *decimal   `json:"amount" nullable:"true" doc:"null: unlimited but counted"`
	Spent     decimal    `json:"spent" doc:"Of budgets, in this window"`
	Held      decimal    `json:"held" doc:"Taken by calls that are under way"`
	Debt      decimal    `json:"debt" doc:"Used beyond the limit, repaid first"`
	Remaining *decimal   `json:"remaining" nullable:"true" doc:"null: unlimited"`
	ResetsAt  *time.Time `json:"resets_at" doc:"When the window ends, or the bucket is full again; null: never, or it is whole"`
}

func viewLevel(l governance.Level, m governance.Metric, now time.Time) Level {
	v := Level{
		Spent: amountOf(l.Spent, m), Held: amountOf(l.Held, m), Debt: amountOf(l.Debt, m), ResetsAt: instant(l.WholeAt(now)),
	}
	if !l.Unlimited {
		amount, remaining := amountOf(l.Amount, m), amountOf(l.Remaining, m)
		v.Amount, v.Remaining = &amount, &remaining
	}
	return v
}

// limitState is a limit's state. For a limit on each member of a scope, the levels are in members.
type limitState struct {
	Level
	ID          string    `json:"id"`
	Kind        string    `json:"kind"`
	Metric      string    `json:"metric"`
	AsOf        time.Time `json:"as_of"`
	Enforcement string    `json:"enforcement"`
	Bound       string    `json:"bound" doc:"What this enforcement may admit beyond the amount"`
	Mode        string    `json:"mode"`
	Members     []member  `json:"members,omitempty" nullable:"false" doc:"The fullest meters of a limit on each member"`
}

// member is the meter of one member of a scope.
type member struct {
	Level
	ID   string `json:"id" doc:"Public id, or an end user's name"`
	Name string `json:"name"`
}

type stateInput struct {
	IDInput
	Limit int `query:"limit" minimum:"1" maximum:"250" default:"50" doc:"Members at most"`
}

type stateOutput struct{ Body limitState }

func (s *server) registerLimitState(api huma.API) {
	limits := s.limits()
	op := limits.operation(http.MethodGet, "/{id}/state", "Get what is spent, held, owed and left of a limit", http.StatusNotFound)
	handle(api, op, limits.singular, func(ctx context.Context, in *stateInput) (*stateOutput, error) {
		l, err := limits.find(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		state, err := s.stateOf(ctx, &l, in.Limit)
		if err != nil {
			return nil, err
		}
		return &stateOutput{Body: state}, nil
	})
}

func (s *server) stateOf(ctx context.Context, l *governance.Limit, members int) (limitState, error) {
	now := s.Now().UTC()
	state := limitState{
		ID: l.ID, Kind: string(l.Kind), Metric: string(l.Metric), AsOf: now,
		Enforcement: string(l.Enforcement), Bound: governance.Bound, Mode: string(l.Mode),
	}
	if !l.Scope.Each() {
		levels, err := s.Spend.Levels(ctx, []governance.LevelQuery{{Limit: l, Subject: l.Scope.Subject.Num}})
		if err != nil {
			return state, err
		}
		state.Level = viewLevel(levels[0], l.Metric, now)
		return state, nil
	}
	whole := governance.Level{Limit: l, Amount: l.Amount, Unlimited: l.Unlimited, Remaining: l.Amount}
	state.Level = viewLevel(whole, l.Metric, now)
	levels, err := s.Spend.Members(ctx, l.Num, governance.Page{Limit: members})
	if err != nil {
		return state, err
	}
	for _, m := range levels {
		state.Members = append(state.Members, member{Level: viewLevel(m, l.Metric, now), ID: m.Member.ID, Name: m.Member.Name})
	}
	return state, nil
}

// ownLimits lists the limits that name one subject of a scope.
func (s *server) ownLimits(ctx context.Context, scope governance.ScopeType, id string) ([]Limit, error) {
	limits, _, err := s.Limits.List(ctx, actorOf(ctx), governance.ListFilter{ScopeType: scope, ScopeID: id}, governance.Page{Limit: maxChain})
	if err != nil {
		return nil, err
	}
	return viewLimits(limits), nil
}

// effectiveLimit is a limit that binds a key, wherever in its chain it sits.
type effectiveLimit struct {
	Limit
	State    Level     `json:"state"`
	Owner    limitRef  `json:"owner" doc:"Whose limit it is"`
	Tightest bool      `json:"tightest" doc:"Whether the least is left of it among the enforced limits of its kind and metric"`
	AsOf     time.Time `json:"as_of"`
}

type limitRef struct {
	Type string `json:"type"`
	ID   string `json:"id"`
	Name string `json:"name"`
}

type effectiveOutput struct{ Body page[effectiveLimit] }

func (s *server) registerKeyLimits(api huma.API, keys resource[governance.VirtualKey, key]) {
	op := keys.operation(http.MethodGet, "/{id}/limits", "List every limit that binds a key, its team's and organization's too, with their state",
		http.StatusNotFound)
	handle(api, op, keys.singular, func(ctx context.Context, in *IDInput) (*effectiveOutput, error) {
		k, err := keys.find(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		items, err := s.effective(ctx, k)
		if err != nil {
			return nil, err
		}
		out := &effectiveOutput{}
		out.Body.Items = items
		return out, nil
	})
}

// link is one element of a key's chain.
type link struct {
	scope governance.ScopeType
	owner governance.Ref
}

func chainOf(k governance.VirtualKey) []link {
	chain := []link{{governance.ScopeOrganization, k.Organization}}
	if !k.Team.IsZero() {
		chain = append(chain, link{governance.ScopeTeam, k.Team})
	}
	chain = append(chain, link{governance.ScopeKey, governance.Ref{Num: k.Num, ID: k.ID, Name: k.Name}})
	if !k.User.IsZero() {
		chain = append(chain, link{governance.ScopeUser, k.User})
	}
	return chain
}

// effective lists the limits of a key's chain: those that name an element of it, and those on each member of a scope that
// no named one of the same identity replaces.
func (s *server) effective(ctx context.Context, k governance.VirtualKey) ([]effectiveLimit, error) {
	now := s.Now().UTC()
	var queries []governance.LevelQuery
	var owners []link
	for _, at := range chainOf(k) {
		limits, err := s.limitsOn(ctx, at, k)
		if err != nil {
			return nil, err
		}
		for _, l := range limits {
			queries = append(queries, governance.LevelQuery{Limit: &l, Subject: at.owner.Num})
			owners = append(owners, at)
		}
	}
	items := make([]effectiveLimit, 0, len(queries))
	if len(queries) == 0 {
		return items, nil
	}
	levels, err := s.Spend.Levels(ctx, queries)
	if err != nil {
		return nil, err
	}
	for i, q := range queries {
		items = append(items, effectiveLimit{
			Limit: viewLimit(*q.Limit), State: viewLevel(levels[i], q.Limit.Metric, now), AsOf: now,
			Owner: limitRef{Type: string(owners[i].scope), ID: owners[i].owner.ID, Name: owners[i].owner.Name},
		})
	}
	markTightest(items, queries, levels)
	return items, nil
}

// limitsOn lists the live limits of one element of a key's chain.
func (s *server) limitsOn(ctx context.Context, at link, k governance.VirtualKey) ([]governance.Limit, error) {
	all := governance.Page{Limit: maxChain}
	named, _, err := s.Limits.List(ctx, actorOf(ctx), governance.ListFilter{ScopeType: at.scope, ScopeID: at.owner.ID}, all)
	if err != nil {
		return nil, err
	}
	everybody, _, err := s.Limits.List(ctx, actorOf(ctx), governance.ListFilter{ScopeType: at.scope, ScopeID: each}, all)
	if err != nil {
		return nil, err
	}
	for _, l := range everybody {
		if l.Scope.Each() && covers(l, k) && !slices.ContainsFunc(named, func(n governance.Limit) bool { return replaces(n, l) }) {
			named = append(named, l)
		}
	}
	now := s.Now()
	return slices.DeleteFunc(named, func(l governance.Limit) bool {
		return !l.ExpiresAt.IsZero() && !now.Before(l.ExpiresAt) || !l.StartsAt.IsZero() && now.Before(l.StartsAt)
	}), nil
}

// covers reports whether a limit on each member counts the calls of a key.
func covers(l governance.Limit, k governance.VirtualKey) bool {
	if !l.Organization.IsZero() && l.Organization.Num != k.Organization.Num {
		return false
	}
	switch l.Scope.WithinType {
	case "":
		return true
	case governance.ScopeOrganization:
		return l.Scope.Within.Num == k.Organization.Num
	case governance.ScopeTeam:
		return l.Scope.Within.Num == k.Team.Num
	case governance.ScopeKey:
		return l.Scope.Within.Num == k.Num
	case governance.ScopeUser:
		return l.Scope.Within.Num == k.User.Num
	}
	return false
}

// replaces reports whether a limit that names a subject stands in for one on each member: their identities are otherwise
// the same.
func replaces(named, everybody governance.Limit) bool {
	a, b := named, everybody
	a.Scope, a.Organization, a.CarryDebt, a.Window.Anchor = b.Scope, b.Organization, b.CarryDebt, b.Window.Anchor
	return a.SameIdentity(&b) == nil
}

// markTightest marks, for each kind and metric, the enforced limit of which the least is left.
func markTightest(items []effectiveLimit, queries []governance.LevelQuery, levels []governance.Level) {
	type counted struct {
		kind   governance.Kind
		metric governance.Metric
	}
	tightest := make(map[counted]int)
	for i, q := range queries {
		if levels[i].Unlimited || q.Limit.Mode == governance.ModeLog {
			continue
		}
		c := counted{q.Limit.Kind, q.Limit.Metric}
		best, ok := tightest[c]
		if !ok || cmp.Or(cmp.Compare(levels[i].Remaining, levels[best].Remaining), cmp.Compare(levels[i].Amount, levels[best].Amount)) < 0 {
			tightest[c] = i
		}
	}
	for _, i := range tightest {
		items[i].Tightest = true
	}
}

package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// Limits keeps limits.
type Limits struct {
	table[governance.Limit, limitsRow]
}

var _ governance.Store[governance.Limit] = (*Limits)(nil)

// NewLimits makes a store of limits.
func NewLimits(pool *pgxpool.Pool) *Limits { return &Limits{limitsTable(pool)} }

func limitsTable(pool *pgxpool.Pool) table[governance.Limit, limitsRow] {
	return table[governance.Limit, limitsRow]{pool: pool, resource: "limits", kind: ids.Limit}
}

type limitsRow struct {
	metaRow
	organizationRow
	ScopeType     string     `db:"scope_type"`
	SubjectNum    int64      `db:"subject_num"`
	SubjectID     string     `db:"subject_id"` // for an end user its name
	SubjectName   string     `db:"subject_name"`
	WithinType    string     `db:"within_type"`
	WithinNum     int64      `db:"within_num"`
	WithinID      string     `db:"within_id"`
	WithinName    string     `db:"within_name"`
	Models        []string   `db:"models"`
	Routes        []string   `db:"routes"`
	Kind          string     `db:"kind"`
	Metric        string     `db:"metric"`
	Amount        *int64     `db:"amount"`
	PerSeconds    int64      `db:"per_seconds"`
	Burst         int64      `db:"burst"`
	WindowType    string     `db:"window_type"`
	WindowPeriod  string     `db:"window_period"`
	WindowZone    string     `db:"window_zone"`
	WindowSeconds int64      `db:"window_seconds"`
	WindowAnchor  *time.Time `db:"window_anchor"`
	CarryDebt     bool       `db:"carry_debt"`
	Reserve       string     `db:"reserve"`
	Enforcement   string     `db:"enforcement"`
	Mode          string     `db:"mode"`
	Thresholds    []int      `db:"thresholds"`
	StartsAt      *time.Time `db:"starts_at"`
	ExpiresAt     *time.Time `db:"expires_at"`
	Reason        string     `db:"reason"`
}

func (r limitsRow) domain() governance.Limit {
	l := governance.Limit{
		Meta: r.meta(), Organization: r.organization(),
		Scope: governance.Scope{
			Type:       governance.ScopeType(r.ScopeType),
			Subject:    governance.Ref{Num: r.SubjectNum, ID: r.SubjectID, Name: r.SubjectName},
			WithinType: governance.ScopeType(r.WithinType),
			Within:     governance.Ref{Num: r.WithinNum, ID: r.WithinID, Name: r.WithinName},
		},
		Models: r.Models, Routes: r.Routes,
		Kind: governance.Kind(r.Kind), Metric: governance.Metric(r.Metric),
		Unlimited: r.Amount == nil,
		Per:       time.Duration(r.PerSeconds) * time.Second, Burst: r.Burst,
		Window: governance.Window{
			Type: governance.WindowType(r.WindowType), Period: r.WindowPeriod, TimeZone: r.WindowZone,
			Duration: time.Duration(r.WindowSeconds) * time.Second, Anchor: instant(r.WindowAnchor),
		},
		CarryDebt: r.CarryDebt, Reserve: governance.ReservePolicy(r.Reserve),
		Enforcement: governance.Enforcement(r.Enforcement), Mode: governance.Mode(r.Mode), Thresholds: r.Thresholds,
		StartsAt: instant(r.StartsAt), ExpiresAt: instant(r.ExpiresAt), Reason: r.Reason,
	}
	if r.Amount != nil {
		l.Amount = *r.Amount
	}
	if l.Scope.Type == governance.ScopeEndUser && !l.Scope.Each() {
		l.Scope.EndUser = r.SubjectID
	}
	return l
}

// Create adds a limit. One that was deleted, or that expired, comes back with its id, its meters and its debt.
func (s *Limits) Create(ctx context.Context, by governance.Actor, l governance.Limit) (governance.Limit, error) {
	var created limitsRow
	err := write(ctx, s.pool, by, func(ctx context.Context, c *change) (err error) {
		created, err = s.add(ctx, c, l)
		return err
	})
	if err != nil {
		return governance.Limit{}, err
	}
	return created.domain(), nil
}

// Update writes the after-image. What makes the limit's identity cannot change; zero members of it mean: as it is.
func (s *Limits) Update(ctx context.Context, by governance.Actor, l governance.Limit) (governance.Limit, error) {
	return s.update(ctx, by, l.Meta, func(ctx context.Context, c *change, row limitsRow) (args, error) {
		before := row.domain()
		if l.Scope.Subject.IsZero() && l.Scope.Type == "" {
			l.Scope = before.Scope
		}
		if l.Organization.IsZero() {
			l.Organization = before.Organization
		}
		l.Complete()
		if err := l.Validate(); err != nil {
			return nil, err
		}
		if err := s.resolve(ctx, c, &l); err != nil {
			return nil, err
		}
		if l.Window.Type == governance.WindowFixed && l.Window.Anchor.IsZero() {
			l.Window.Anchor = before.Window.Anchor
		}
		if err := l.SameIdentity(&before); err != nil {
			return nil, err
		}
		if isBudget(&before) && weaker(&before, &l) {
			if err := keepBudget(ctx, c, row.Num); err != nil {
				return nil, err
			}
		}
		return limitArgs(&l), nil
	})
}

// Delete marks a limit as deleted, unless it is the last budget of a team or key that has to have one. version 0 deletes
// whatever version there is.
func (s *Limits) Delete(ctx context.Context, by governance.Actor, id string, version int64) error {
	return write(ctx, s.pool, by, func(ctx context.Context, c *change) error {
		row, err := s.owned(ctx, c, id, version)
		if err != nil {
			return err
		}
		if l := row.domain(); isBudget(&l) {
			if err := keepBudget(ctx, c, row.Num); err != nil {
				return err
			}
		}
		return s.remove(ctx, c, row)
	})
}

// isBudget reports whether a limit is a budget as organizations can require one.
func isBudget(l *governance.Limit) bool {
	return l.Kind == governance.KindBudget && l.Metric == governance.MetricCost && l.Mode == governance.ModeEnforce && !l.Unlimited &&
		len(l.Models) == 0 && len(l.Routes) == 0 && (l.ExpiresAt.IsZero() || l.ExpiresAt.After(time.Now()))
}

// weaker reports whether a budget stops to be one with a change, ends earlier or begins later.
func weaker(before, after *governance.Limit) bool {
	endsEarlier := !after.ExpiresAt.IsZero() && (before.ExpiresAt.IsZero() || after.ExpiresAt.Before(before.ExpiresAt))
	return !isBudget(after) || endsEarlier || after.StartsAt.After(before.StartsAt)
}

// keepBudget refuses to lose a budget that is the last one of a team or key whose organization asks for one.
func keepBudget(ctx context.Context, c *change, num int64) error {
	last, err := scalar[bool](ctx, c.tx, "limits_budget_is_last", args{"num": num})
	if err != nil {
		return err
	}
	if last {
		return &governance.RefusedError{Reason: "a team or key would be left without a budget, and its organization requires one: " +
			"give it another enforced budget of metric cost first"}
	}
	return nil
}

// attach adds the first limits of a new row. Their scope is that row, whatever they say.
func (s *Limits) attach(ctx context.Context, c *change, scope governance.ScopeType, id string, limits []governance.Limit) ([]governance.Limit, error) {
	made := make([]governance.Limit, 0, len(limits))
	for i, l := range limits {
		l.Scope = governance.Scope{Type: scope, Subject: governance.Ref{ID: id}}
		l.Organization = governance.Ref{}
		created, err := s.add(ctx, c, l)
		if err != nil {
			if fault, ok := errors.AsType[*governance.InvalidError](err); ok {
				return nil, invalid(fmt.Sprintf("limits[%d].%s", i, fault.Field), fault.Reason)
			}
			return nil, fmt.Errorf("add limits[%d]: %w", i, err)
		}
		made = append(made, created.domain())
	}
	return made, nil
}

func (s *Limits) add(ctx context.Context, c *change, l governance.Limit) (limitsRow, error) {
	l.Complete()
	if err := l.Validate(); err != nil {
		return limitsRow{}, err
	}
	if err := s.resolve(ctx, c, &l); err != nil {
		return limitsRow{}, err
	}
	a := limitArgs(&l)
	a["public_id"] = ids.NewPublic(ids.Limit)
	twin, err := one[struct {
		Num  int64 `db:"num"`
		Live bool  `db:"live"`
	}](ctx, c.tx, "limits_twin", a)
	switch {
	case errors.Is(err, governance.ErrNotFound):
		return s.insert(ctx, c, a)
	case err != nil:
		return limitsRow{}, err
	case twin.Live:
		return limitsRow{}, fmt.Errorf("limit of the same identity: %w", governance.ErrExists)
	}
	before, err := s.at(ctx, c.tx, twin.Num)
	if err != nil {
		return limitsRow{}, err
	}
	return s.put(ctx, c, "revive", before, a)
}

// resolve finds the rows that a limit names, and the organization that follows from them.
func (s *Limits) resolve(ctx context.Context, c *change, l *governance.Limit) error {
	var home int64
	if !l.Organization.IsZero() || c.by.Organization != 0 {
		o, err := organizationOf(ctx, c, l.Organization)
		if err != nil {
			return err
		}
		home = o.Num
	}
	settle := func(of int64, field string) error {
		if of != 0 && home != 0 && of != home {
			return invalid(field, "lies in another organization")
		}
		home = max(home, of)
		return nil
	}
	scope := &l.Scope
	switch {
	case scope.Each():
		scope.Subject = governance.Ref{ID: "*"}
	case scope.Type == governance.ScopeEndUser:
		if scope.EndUser == "" {
			scope.EndUser = scope.Subject.ID
		}
		if home == 0 {
			return invalid("organization_id", "is missing: end users are those of one organization")
		}
		num, err := endUser(ctx, c.tx, home, scope.EndUser)
		if err != nil {
			return err
		}
		scope.Subject = governance.Ref{Num: num, ID: scope.EndUser}
	default:
		num, of, err := member(ctx, c, scope.Type, scope.Subject, "scope.id")
		if err != nil {
			return err
		}
		if err := settle(of, "scope.id"); err != nil {
			return err
		}
		scope.Subject.Num = num
	}
	if scope.WithinType != "" {
		num, of, err := member(ctx, c, scope.WithinType, scope.Within, "scope.within.id")
		if err != nil {
			return err
		}
		if err := settle(of, "scope.within.id"); err != nil {
			return err
		}
		scope.Within.Num = num
	}
	l.Organization = governance.Ref{Num: home}
	return nil
}

// member finds the row that a scope names, and its organization.
func member(ctx context.Context, c *change, scope governance.ScopeType, ref governance.Ref, field string) (num, of int64, err error) {
	switch scope {
	case governance.ScopeOrganization:
		t := organizationsTable(nil)
		return numbers(t.reference(ctx, c.tx, c.by, ref, field))
	case governance.ScopeTeam:
		t := teamsTable(nil)
		return numbers(t.reference(ctx, c.tx, c.by, ref, field))
	case governance.ScopeKey:
		t := keysTable(nil)
		return numbers(t.reference(ctx, c.tx, c.by, ref, field))
	case governance.ScopeUser:
		t := usersTable(nil)
		return numbers(t.reference(ctx, c.tx, c.by, ref, field))
	case governance.ScopeModel:
		t := modelsTable(nil)
		return numbers(t.reference(ctx, c.tx, c.by, ref, field))
	case governance.ScopeTarget:
		t := targetsTable(nil)
		return numbers(t.reference(ctx, c.tx, c.by, ref, field))
	}
	return 0, 0, invalid(field, "cannot be named")
}

func numbers[R interface {
	owner() int64
	key() metaRow
}](r R, err error) (num, of int64, _ error) {
	return r.key().Num, r.owner(), err
}

func limitArgs(l *governance.Limit) args {
	a := args{
		"organization_num": nullNum(l.Organization.Num),
		"scope_type":       string(l.Scope.Type), "subject_num": nullNum(l.Scope.Subject.Num),
		"within_type": nullText(string(l.Scope.WithinType)), "within_num": nullNum(l.Scope.Within.Num),
		"models": l.Models, "routes": l.Routes, "kind": string(l.Kind), "metric": string(l.Metric),
		"amount": &l.Amount, "per_seconds": nullNum(int64(l.Per / time.Second)), "burst": (*int64)(nil),
		"window_type": nullText(string(l.Window.Type)), "window_period": nullText(l.Window.Period),
		"window_zone": nullText(l.Window.TimeZone), "window_seconds": nullNum(int64(l.Window.Duration / time.Second)),
		"window_anchor": nullable(l.Window.Anchor), "carry_debt": l.CarryDebt,
		"reserve": string(l.Reserve), "enforcement": string(l.Enforcement), "mode": string(l.Mode),
		"thresholds": l.Thresholds, "starts_at": nullable(l.StartsAt), "expires_at": nullable(l.ExpiresAt),
		"reason": l.Reason,
	}
	if l.Kind == governance.KindRate {
		a["burst"] = &l.Burst
	}
	if l.Unlimited {
		a["amount"], a["burst"] = (*int64)(nil), (*int64)(nil)
	}
	return a
}

// nullText writes "" as NULL.
func nullText(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

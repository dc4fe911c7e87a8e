package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// Organizations keeps the tenants.
type Organizations struct {
	table[governance.Organization, organizationsRow]
}

var _ governance.Store[governance.Organization] = (*Organizations)(nil)

// NewOrganizations makes a store of organizations.
func NewOrganizations(pool *pgxpool.Pool) *Organizations {
	return &Organizations{organizationsTable(pool)}
}

func organizationsTable(pool *pgxpool.Pool) table[governance.Organization, organizationsRow] {
	return table[governance.Organization, organizationsRow]{pool: pool, resource: "organizations", kind: ids.Organization}
}

type organizationsRow struct {
	metaRow
	Name          string   `db:"name"`
	Blocked       bool     `db:"blocked"`
	BudgetStatus  int      `db:"budget_status"`
	RequireBudget bool     `db:"require_budget"`
	Require       []string `db:"require"`
}

func (r organizationsRow) owner() int64 { return r.Num }

func (r organizationsRow) domain() governance.Organization {
	return governance.Organization{
		Meta: r.meta(), Name: r.Name, Blocked: r.Blocked, BudgetStatus: r.BudgetStatus,
		RequireBudget: r.RequireBudget, Require: r.Require,
	}
}

// Create adds an organization. An actor who is bound to one cannot.
func (s *Organizations) Create(ctx context.Context, by governance.Actor, o governance.Organization) (governance.Organization, error) {
	if by.Organization != 0 {
		return governance.Organization{}, governance.ErrNotFound
	}
	var created organizationsRow
	err := write(ctx, s.pool, by, func(ctx context.Context, c *change) (err error) {
		created, err = s.insert(ctx, c, organizationArgs(&o))
		return err
	})
	if err != nil {
		return governance.Organization{}, err
	}
	return created.domain(), nil
}

// Update writes the after-image.
func (s *Organizations) Update(ctx context.Context, by governance.Actor, o governance.Organization) (governance.Organization, error) {
	return s.update(ctx, by, o.Meta, func(context.Context, *change, organizationsRow) (args, error) {
		return organizationArgs(&o), nil
	})
}

func organizationArgs(o *governance.Organization) args {
	if o.BudgetStatus == 0 {
		o.BudgetStatus = 429
	}
	return args{
		"name": o.Name, "blocked": o.Blocked, "budget_status": o.BudgetStatus,
		"require_budget": o.RequireBudget, "require": list(o.Require),
	}
}

// list keeps an empty list from becoming NULL.
func list(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// Teams keeps teams.
type Teams struct {
	table[governance.Team, teamsRow]
	limits *Limits
}

var _ governance.TeamStore = (*Teams)(nil)

// NewTeams makes a store of teams.
func NewTeams(pool *pgxpool.Pool) *Teams { return &Teams{teamsTable(pool), NewLimits(pool)} }

func teamsTable(pool *pgxpool.Pool) table[governance.Team, teamsRow] {
	return table[governance.Team, teamsRow]{pool: pool, resource: "teams", kind: ids.Team}
}

type teamsRow struct {
	metaRow
	organizationRow
	Name    string   `db:"name"`
	Blocked bool     `db:"blocked"`
	Models  []string `db:"models"`
}

func (r teamsRow) domain() governance.Team {
	return governance.Team{
		Meta: r.meta(), Organization: r.organization(), Name: r.Name, Blocked: r.Blocked, Models: r.Models,
	}
}

// Create adds a team without limits.
func (s *Teams) Create(ctx context.Context, by governance.Actor, t governance.Team) (governance.Team, error) {
	created, _, err := s.CreateWithLimits(ctx, by, t, nil)
	return created, err
}

// CreateWithLimits adds a team and its first limits in one transaction.
func (s *Teams) CreateWithLimits(ctx context.Context, by governance.Actor, t governance.Team, limits []governance.Limit) (governance.Team, []governance.Limit, error) {
	var created teamsRow
	var made []governance.Limit
	err := write(ctx, s.pool, by, func(ctx context.Context, c *change) error {
		o, err := organizationOf(ctx, c, t.Organization)
		if err != nil {
			return err
		}
		created, err = s.insert(ctx, c, args{
			"organization_num": o.Num, "name": t.Name, "blocked": t.Blocked, "models": t.Models,
		})
		if err != nil {
			return err
		}
		made, err = s.limits.attach(ctx, c, governance.ScopeTeam, created.ID, limits)
		if err != nil {
			return err
		}
		return requireBudget(ctx, c, o, created.Num, 0, 0)
	})
	if err != nil {
		return governance.Team{}, nil, err
	}
	return created.domain(), made, nil
}

// Update writes the after-image. A team stays in its organization.
func (s *Teams) Update(ctx context.Context, by governance.Actor, t governance.Team) (governance.Team, error) {
	return s.update(ctx, by, t.Meta, func(_ context.Context, _ *change, before teamsRow) (args, error) {
		if err := same("organization_id", t.Organization, before.organization()); err != nil {
			return nil, err
		}
		return args{"name": t.Name, "blocked": t.Blocked, "models": t.Models}, nil
	})
}

// organizationOf finds the organization that a new row goes to: the one it names, else the one that bounds the actor.
func organizationOf(ctx context.Context, c *change, ref governance.Ref) (organizationsRow, error) {
	if ref.IsZero() {
		ref = governance.Ref{Num: c.by.Organization}
	}
	organizations := organizationsTable(nil)
	return organizations.reference(ctx, c.tx, c.by, ref, "organization_id")
}

// same refuses to change a reference that is fixed once the row exists. The zero reference means: as it is.
func same(field string, wanted, is governance.Ref) error {
	if wanted.IsZero() || wanted.ID == is.ID || wanted.ID == "" && wanted.Num == is.Num {
		return nil
	}
	return invalid(field, "cannot be changed")
}

// requireBudget refuses a new team or key that would have no money budget in its chain, where its organization asks for one.
func requireBudget(ctx context.Context, c *change, o organizationsRow, team, key, user int64) error {
	if !o.RequireBudget {
		return nil
	}
	found, err := scalar[bool](ctx, c.tx, "limits_budget_in_chain", args{
		"organization": o.Num, "team": team, "key": key, "user": user,
	})
	if err != nil {
		return err
	}
	if !found {
		return invalid("limits", "the organization requires a budget of metric cost on the row or above it")
	}
	return nil
}

// Users keeps the persons of organizations.
type Users struct {
	table[governance.User, usersRow]
}

var _ governance.Store[governance.User] = (*Users)(nil)

// NewUsers makes a store of users.
func NewUsers(pool *pgxpool.Pool) *Users { return &Users{usersTable(pool)} }

func usersTable(pool *pgxpool.Pool) table[governance.User, usersRow] {
	return table[governance.User, usersRow]{pool: pool, resource: "users", kind: ids.User}
}

type usersRow struct {
	metaRow
	organizationRow
	Name    string `db:"name"`
	Email   string `db:"email"`
	Blocked bool   `db:"blocked"`
}

func (r usersRow) domain() governance.User {
	return governance.User{
		Meta: r.meta(), Organization: r.organization(), Name: r.Name, Email: r.Email, Blocked: r.Blocked,
	}
}

// Create adds a user.
func (s *Users) Create(ctx context.Context, by governance.Actor, u governance.User) (governance.User, error) {
	var created usersRow
	err := write(ctx, s.pool, by, func(ctx context.Context, c *change) error {
		o, err := organizationOf(ctx, c, u.Organization)
		if err != nil {
			return err
		}
		created, err = s.insert(ctx, c, args{
			"organization_num": o.Num, "name": u.Name, "email": u.Email, "blocked": u.Blocked,
		})
		return err
	})
	if err != nil {
		return governance.User{}, err
	}
	return created.domain(), nil
}

// Update writes the after-image. A user stays in the organization.
func (s *Users) Update(ctx context.Context, by governance.Actor, u governance.User) (governance.User, error) {
	return s.update(ctx, by, u.Meta, func(_ context.Context, _ *change, before usersRow) (args, error) {
		if err := same("organization_id", u.Organization, before.organization()); err != nil {
			return nil, err
		}
		return args{"name": u.Name, "email": u.Email, "blocked": u.Blocked}, nil
	})
}

// Memberships keeps who is in which team, and as what.
type Memberships struct {
	table[governance.Membership, membershipsRow]
}

var _ governance.Store[governance.Membership] = (*Memberships)(nil)

// NewMemberships makes a store of memberships.
func NewMemberships(pool *pgxpool.Pool) *Memberships {
	return &Memberships{table[governance.Membership, membershipsRow]{pool: pool, resource: "memberships", kind: ids.Membership}}
}

type membershipsRow struct {
	metaRow
	organizationRow
	userRow
	teamRow
	Role string `db:"role"`
}

func (r membershipsRow) domain() governance.Membership {
	return governance.Membership{Meta: r.meta(), User: r.user(), Team: r.team(), Role: governance.Role(r.Role)}
}

// Create puts a user into a team of the same organization.
func (s *Memberships) Create(ctx context.Context, by governance.Actor, m governance.Membership) (governance.Membership, error) {
	var created membershipsRow
	err := write(ctx, s.pool, by, func(ctx context.Context, c *change) error {
		users, teams := usersTable(nil), teamsTable(nil)
		u, err := users.reference(ctx, c.tx, by, m.User, "user_id")
		if err != nil {
			return err
		}
		t, err := teams.reference(ctx, c.tx, by, m.Team, "team_id")
		if err != nil {
			return err
		}
		if u.OrganizationNum != t.OrganizationNum {
			return invalid("team_id", "names nothing that exists")
		}
		created, err = s.insert(ctx, c, args{"user_num": u.Num, "team_num": t.Num, "role": string(m.Role)})
		return err
	})
	if err != nil {
		return governance.Membership{}, err
	}
	return created.domain(), nil
}

// Update changes the role. User and team are fixed.
func (s *Memberships) Update(ctx context.Context, by governance.Actor, m governance.Membership) (governance.Membership, error) {
	return s.update(ctx, by, m.Meta, func(_ context.Context, _ *change, before membershipsRow) (args, error) {
		if err := same("user_id", m.User, before.user()); err != nil {
			return nil, err
		}
		if err := same("team_id", m.Team, before.team()); err != nil {
			return nil, err
		}
		return args{"role": string(m.Role)}, nil
	})
}

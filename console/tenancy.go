package console

import (
	"net/mail"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// NameFilter is the query of lists that can only be searched by name.
type NameFilter struct {
	PageQuery
	Name    string `query:"name" doc:"Only the one of this name"`
	Deleted bool   `query:"deleted" doc:"Deleted ones too"`
}

func (f NameFilter) listFilter() governance.ListFilter {
	return governance.ListFilter{Name: f.Name, Deleted: f.Deleted}
}

// OrganizationFilter is the query of what belongs to an organization.
type OrganizationFilter struct {
	Organization string `query:"organization_id" pattern:"^org_[0-9A-Za-z]{12}$" patternDescription:"an organization's id" doc:"Only this organization's"`
	NameFilter
}

func (f OrganizationFilter) listFilter() governance.ListFilter {
	l := f.NameFilter.listFilter()
	l.Organization = f.Organization
	return l
}

type organization struct {
	Stamps
	Name          string   `json:"name"`
	Blocked       bool     `json:"blocked" doc:"Refuses every call of its keys"`
	BudgetStatus  int      `json:"budget_status" enum:"402,429" doc:"HTTP status of an exhausted budget"`
	RequireBudget bool     `json:"require_budget" doc:"Refuses keys and teams that would have no money budget in their chain"`
	Require       []string `json:"require" nullable:"false" doc:"What each request must name: end_user, or tags.NAME"`
}

func viewOrganization(o governance.Organization) organization {
	return organization{stampsOf(o.Meta), o.Name, o.Blocked, o.BudgetStatus, o.RequireBudget, orEmpty(o.Require)}
}

func orEmpty(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

type organizationBody struct {
	Name          string   `json:"name" minLength:"1" maxLength:"200"`
	Blocked       bool     `json:"blocked,omitempty"`
	BudgetStatus  int      `json:"budget_status,omitempty" enum:"402,429" doc:"HTTP status of an exhausted budget; absent: 429"`
	RequireBudget bool     `json:"require_budget,omitempty"`
	Require       []string `json:"require,omitempty" maxItems:"20" pattern:"^(end_user|tags\\.[A-Za-z0-9_.-]{1,64})$" patternDescription:"end_user or tags.NAME" nullable:"false"`
}

func (b organizationBody) row() (governance.Organization, error) {
	o := governance.Organization{
		Name: b.Name, Blocked: b.Blocked, BudgetStatus: b.BudgetStatus, RequireBudget: b.RequireBudget, Require: b.Require,
	}
	if o.BudgetStatus == 0 {
		o.BudgetStatus = 429
	}
	return o, checkName("name", b.Name, maxName)
}

type organizationPatch struct {
	Name          change[string]   `json:"name,omitzero" minLength:"1" maxLength:"200"`
	Blocked       change[bool]     `json:"blocked,omitzero"`
	BudgetStatus  change[int]      `json:"budget_status,omitzero" enum:"402,429"`
	RequireBudget change[bool]     `json:"require_budget,omitzero"`
	Require       change[[]string] `json:"require,omitzero" maxItems:"20" pattern:"^(end_user|tags\\.[A-Za-z0-9_.-]{1,64})$" patternDescription:"end_user or tags.NAME"`
}

func (p organizationPatch) apply(o *governance.Organization) error {
	p.Name.to(&o.Name)
	p.Blocked.to(&o.Blocked)
	p.BudgetStatus.to(&o.BudgetStatus)
	p.RequireBudget.to(&o.RequireBudget)
	p.Require.to(&o.Require)
	return checkName("name", o.Name, maxName)
}

func (s *server) organizations() resource[governance.Organization, organization] {
	return resource[governance.Organization, organization]{
		path: "organizations", singular: "organization", article: "an", kind: ids.Organization, store: s.Organizations,
		meta: func(o *governance.Organization) *governance.Meta { return &o.Meta }, view: viewOrganization,
	}
}

type team struct {
	Stamps
	OrganizationID   string   `json:"organization_id"`
	OrganizationName string   `json:"organization_name"`
	Name             string   `json:"name"`
	Blocked          bool     `json:"blocked"`
	Models           []string `json:"models" doc:"Patterns over public model names that narrow its keys'; null: no narrowing, []: none"`
	Limits           []Limit  `json:"limits,omitempty" nullable:"false" doc:"Its own limits; absent in lists"`
}

func viewTeam(t governance.Team) team {
	return team{
		Stamps: stampsOf(t.Meta), OrganizationID: t.Organization.ID, OrganizationName: t.Organization.Name,
		Name: t.Name, Blocked: t.Blocked, Models: t.Models,
	}
}

type teamBody struct {
	OrganizationID string       `json:"organization_id" pattern:"^org_[0-9A-Za-z]{12}$" patternDescription:"an organization's id"`
	Name           string       `json:"name" minLength:"1" maxLength:"200"`
	Blocked        bool         `json:"blocked,omitempty"`
	Models         []string     `json:"models,omitzero" maxItems:"200" doc:"Absent or null: no narrowing; []: none"`
	Limits         []firstLimit `json:"limits,omitempty" maxItems:"20" nullable:"false" doc:"Limits of the team, made in the same transaction"`
}

func (b teamBody) row() (governance.Team, error) {
	t := governance.Team{
		Organization: governance.Ref{ID: b.OrganizationID}, Name: b.Name, Blocked: b.Blocked, Models: b.Models,
	}
	if err := checkName("name", b.Name, maxName); err != nil {
		return t, err
	}
	return t, checkPatterns("models", b.Models)
}

type teamPatch struct {
	Name    change[string]      `json:"name,omitzero" minLength:"1" maxLength:"200"`
	Blocked change[bool]        `json:"blocked,omitzero"`
	Models  clearable[[]string] `json:"models,omitzero" maxItems:"200" doc:"null: no narrowing; []: none"`
}

func (p teamPatch) apply(t *governance.Team) error {
	p.Name.to(&t.Name)
	p.Blocked.to(&t.Blocked)
	p.Models.to(&t.Models)
	if err := checkName("name", t.Name, maxName); err != nil {
		return err
	}
	return checkPatterns("models", t.Models)
}

func (s *server) teams() resource[governance.Team, team] {
	return resource[governance.Team, team]{
		path: "teams", singular: "team", article: "a", kind: ids.Team, store: s.Teams,
		meta: func(t *governance.Team) *governance.Meta { return &t.Meta }, view: viewTeam,
	}
}

type user struct {
	Stamps
	OrganizationID   string `json:"organization_id"`
	OrganizationName string `json:"organization_name"`
	Name             string `json:"name"`
	Email            string `json:"email" doc:"Empty: none"`
	Blocked          bool   `json:"blocked"`
}

func viewUser(u governance.User) user {
	return user{
		Stamps: stampsOf(u.Meta), OrganizationID: u.Organization.ID, OrganizationName: u.Organization.Name,
		Name: u.Name, Email: u.Email, Blocked: u.Blocked,
	}
}

type userBody struct {
	OrganizationID string `json:"organization_id" pattern:"^org_[0-9A-Za-z]{12}$" patternDescription:"an organization's id"`
	Name           string `json:"name" minLength:"1" maxLength:"200"`
	Email          string `json:"email,omitempty" maxLength:"254"`
	Blocked        bool   `json:"blocked,omitempty"`
}

func (b userBody) row() (governance.User, error) {
	u := governance.User{Organization: governance.Ref{ID: b.OrganizationID}, Name: b.Name, Email: b.Email, Blocked: b.Blocked}
	return u, checkUser(u)
}

func checkUser(u governance.User) error {
	if err := checkName("name", u.Name, maxName); err != nil || u.Email == "" {
		return err
	}
	if a, err := mail.ParseAddress(u.Email); err != nil || a.Address != u.Email || len(u.Email) > 254 {
		return invalidField("email", "must be an address such as ada@example.com")
	}
	return nil
}

type userPatch struct {
	Name    change[string]    `json:"name,omitzero" minLength:"1" maxLength:"200"`
	Email   clearable[string] `json:"email,omitzero" maxLength:"254"`
	Blocked change[bool]      `json:"blocked,omitzero"`
}

func (p userPatch) apply(u *governance.User) error {
	p.Name.to(&u.Name)
	p.Email.to(&u.Email)
	p.Blocked.to(&u.Blocked)
	return checkUser(*u)
}

func (s *server) users() resource[governance.User, user] {
	return resource[governance.User, user]{
		path: "users", singular: "user", article: "a", kind: ids.User, store: s.Users,
		meta: func(u *governance.User) *governance.Meta { return &u.Meta }, view: viewUser,
	}
}

type membership struct {
	Stamps
	UserID   string `json:"user_id"`
	UserName string `json:"user_name"`
	TeamID   string `json:"team_id"`
	TeamName string `json:"team_name"`
	Role     string `json:"role"`
}

func viewMembership(m governance.Membership) membership {
	return membership{
		Stamps: stampsOf(m.Meta), UserID: m.User.ID, UserName: m.User.Name,
		TeamID: m.Team.ID, TeamName: m.Team.Name, Role: string(m.Role),
	}
}

type membershipBody struct {
	UserID string `json:"user_id" pattern:"^user_[0-9A-Za-z]{12}$" patternDescription:"a user's id"`
	TeamID string `json:"team_id" pattern:"^team_[0-9A-Za-z]{12}$" patternDescription:"a team's id"`
	Role   string `json:"role" enum:"owner,admin,team_admin,developer,finance,auditor"`
}

func (b membershipBody) row() (governance.Membership, error) {
	return governance.Membership{
		User: governance.Ref{ID: b.UserID}, Team: governance.Ref{ID: b.TeamID}, Role: governance.Role(b.Role),
	}, nil
}

type membershipPatch struct {
	Role change[string] `json:"role,omitzero" enum:"owner,admin,team_admin,developer,finance,auditor"`
}

func (p membershipPatch) apply(m *governance.Membership) error {
	role := string(m.Role)
	p.Role.to(&role)
	m.Role = governance.Role(role)
	return nil
}

type membershipFilter struct {
	PageQuery
	Organization string `query:"organization_id" pattern:"^org_[0-9A-Za-z]{12}$" patternDescription:"an organization's id"`
	Team         string `query:"team_id" pattern:"^team_[0-9A-Za-z]{12}$" patternDescription:"a team's id"`
	Deleted      bool   `query:"deleted"`
}

func (f membershipFilter) listFilter() governance.ListFilter {
	return governance.ListFilter{Organization: f.Organization, Team: f.Team, Deleted: f.Deleted}
}

func (s *server) memberships() resource[governance.Membership, membership] {
	return resource[governance.Membership, membership]{
		path: "memberships", singular: "membership", article: "a", kind: ids.Membership, store: s.Memberships,
		meta: func(m *governance.Membership) *governance.Meta { return &m.Meta }, view: viewMembership,
	}
}

func (s *server) registerTenancy(api huma.API) {
	organizations := s.organizations()
	registerList[governance.Organization, organization, NameFilter](api, organizations)
	registerCreate[governance.Organization, organization, organizationBody](api, organizations)
	registerGet(api, organizations)
	registerUpdate[governance.Organization, organization, organizationPatch](api, organizations)
	registerDelete(api, organizations)

	teams := s.teams()
	registerList[governance.Team, team, OrganizationFilter](api, teams)
	s.registerCreateTeam(api, teams)
	s.registerGetTeam(api, teams)
	registerUpdate[governance.Team, team, teamPatch](api, teams, "organization_id", "limits")
	registerDelete(api, teams)

	users := s.users()
	registerList[governance.User, user, OrganizationFilter](api, users)
	registerCreate[governance.User, user, userBody](api, users)
	registerGet(api, users)
	registerUpdate[governance.User, user, userPatch](api, users, "organization_id")
	registerDelete(api, users)

	memberships := s.memberships()
	registerList[governance.Membership, membership, membershipFilter](api, memberships)
	registerCreate[governance.Membership, membership, membershipBody](api, memberships)
	registerGet(api, memberships)
	registerUpdate[governance.Membership, membership, membershipPatch](api, memberships, "user_id", "team_id")
	registerDelete(api, memberships)
}

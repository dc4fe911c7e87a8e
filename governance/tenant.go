package governance

import "time"

// Ref points at a row of another aggregate. On writes ID decides and the store fills in Num and Name;
// the zero Ref points at nothing.
type Ref struct {
	Num  int64
	ID   string
	Name string
}

// IsZero reports whether r points at nothing.
func (r Ref) IsZero() bool { return r.Num == 0 && r.ID == "" }

// Meta is what every administered row carries.
type Meta struct {
	Num       int64
	ID        string
	Version   int64 // counts changes; a write is conditional on it, and it is the row's ETag
	CreatedAt time.Time
	UpdatedAt time.Time
	DeletedAt time.Time // zero while the row lives; deleting is soft, history keeps its names
}

// Organization is a tenant. Everything below it is invisible to the others.
type Organization struct {
	Meta
	Name    string
	Blocked bool
	// BudgetStatus is the HTTP status of an exhausted budget: 429 (default) or 402.
	BudgetStatus int
	// RequireBudget refuses keys and teams that would have no money budget in their chain.
	RequireBudget bool
	// Require lists what each request must name: "end_user", or "tags.NAME".
	Require []string
}

// Team groups virtual keys of one organization.
type Team struct {
	Meta
	Organization Ref
	Name         string
	Blocked      bool
	Models       []string // patterns over public model names that narrow its keys'; nil: no narrowing, empty: none
}

// User is a person of an organization. End users are named by requests and are not users.
type User struct {
	Meta
	Organization Ref
	Name         string
	Email        string
	Blocked      bool
}

// Role says what a user may do.
type Role string

// The roles, from most to least.
const (
	RoleOwner     Role = "owner"
	RoleAdmin     Role = "admin"
	RoleTeamAdmin Role = "team_admin"
	RoleDeveloper Role = "developer"
	RoleFinance   Role = "finance"
	RoleAuditor   Role = "auditor"
)

// Membership puts a user into a team with a role.
type Membership struct {
	Meta
	User Ref
	Team Ref
	Role Role
}

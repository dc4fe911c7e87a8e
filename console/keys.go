package console

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

const (
	// defaultGrace is how long the old secret of a rotated key works if the caller does not say.
	defaultGrace = 24 * time.Hour
	maxGrace     = 30 * 24 * time.Hour
)

type key struct {
	Stamps
	OrganizationID   string     `json:"organization_id"`
	OrganizationName string     `json:"organization_name"`
	TeamID           *string    `json:"team_id" doc:"null: it belongs to the organization itself"`
	TeamName         *string    `json:"team_name"`
	UserID           *string    `json:"user_id"`
	UserName         *string    `json:"user_name"`
	Name             string     `json:"name"`
	Status           string     `json:"status" enum:"active,blocked,expired,revoked,deleted"`
	Models           []string   `json:"models" doc:"Patterns over public model names; null: all that the organization is offered, []: none"`
	ExpiresAt        *time.Time `json:"expires_at"`
	Blocked          bool       `json:"blocked"`
	RevokedAt        *time.Time `json:"revoked_at"`
	BudgetStatus     *int       `json:"budget_status" doc:"null: the organization's"`
	Hint             string     `json:"hint" doc:"First and last characters of the newest secret"`
	LastUsedAt       *time.Time `json:"last_used_at"`
	Key              string     `json:"key,omitempty" doc:"The key itself: only in the answer that creates or rotates it"`
	Limits           []Limit    `json:"limits,omitempty" nullable:"false" doc:"Its own limits; absent in lists"`
}

func (s *server) viewKey(k governance.VirtualKey) key {
	v := key{
		Stamps: stampsOf(k.Meta), OrganizationID: k.Organization.ID, OrganizationName: k.Organization.Name,
		TeamID: idOf(k.Team), TeamName: nameOf(k.Team), UserID: idOf(k.User), UserName: nameOf(k.User),
		Name: k.Name, Status: "active", Models: k.Models, ExpiresAt: instant(k.ExpiresAt), Blocked: k.Blocked,
		RevokedAt: instant(k.RevokedAt), Hint: k.Hint, LastUsedAt: instant(k.LastUsedAt),
	}
	switch {
	case !k.DeletedAt.IsZero():
		v.Status = "deleted"
	case !k.RevokedAt.IsZero():
		v.Status = "revoked"
	case s.expired(k):
		v.Status = "expired"
	case k.Blocked:
		v.Status = "blocked"
	}
	if k.BudgetStatus != 0 {
		v.BudgetStatus = &k.BudgetStatus
	}
	return v
}

func (s *server) expired(k governance.VirtualKey) bool {
	return !k.ExpiresAt.IsZero() && !s.Now().Before(k.ExpiresAt)
}

// nameOf is nil where a reference points at nothing.
func nameOf(r governance.Ref) *string {
	if r.IsZero() {
		return nil
	}
	return &r.Name
}

type keyBody struct {
	OrganizationID string       `json:"organization_id,omitempty" pattern:"^org_[0-9A-Za-z]{12}$" patternDescription:"an organization's id" doc:"Or team_id"`
	TeamID         string       `json:"team_id,omitempty" pattern:"^team_[0-9A-Za-z]{12}$" patternDescription:"a team's id" doc:"Or organization_id"`
	UserID         string       `json:"user_id,omitempty" pattern:"^user_[0-9A-Za-z]{12}$" patternDescription:"a user's id"`
	Name           string       `json:"name" minLength:"1" maxLength:"200"`
	Models         []string     `json:"models,omitzero" maxItems:"200" doc:"Absent or null: all that the organization is offered; []: none"`
	ExpiresAt      *time.Time   `json:"expires_at,omitempty" nullable:"true" doc:"An instant; absent or null: never"`
	Blocked        bool         `json:"blocked,omitempty"`
	BudgetStatus   *int         `json:"budget_status,omitempty" enum:"402,429" nullable:"true" doc:"Absent or null: the organization's"`
	Limits         []firstLimit `json:"limits,omitempty" maxItems:"20" nullable:"false" doc:"Limits of the key, made in the same transaction"`
}

func (b keyBody) row() (governance.VirtualKey, error) {
	k := governance.VirtualKey{Name: b.Name, Models: b.Models, Blocked: b.Blocked}
	switch {
	case b.TeamID == "" && b.OrganizationID == "":
		return k, invalidField("team_id", "team_id or organization_id is needed")
	case b.TeamID != "" && b.OrganizationID != "":
		return k, invalidField("organization_id", "must be left out where team_id is given: the key belongs to the team's organization")
	case b.TeamID != "":
		k.Team = governance.Ref{ID: b.TeamID}
	default:
		k.Organization = governance.Ref{ID: b.OrganizationID}
	}
	if b.UserID != "" {
		k.User = governance.Ref{ID: b.UserID}
	}
	if b.BudgetStatus != nil {
		k.BudgetStatus = *b.BudgetStatus
	}
	var err error
	if k.ExpiresAt, err = checkInstant("expires_at", b.ExpiresAt); err != nil {
		return k, err
	}
	if err := checkName("name", b.Name, maxName); err != nil {
		return k, err
	}
	return k, checkPatterns("models", b.Models)
}

// firstLimits are the limits that a team or key is created with.
func firstLimits(rules []firstLimit, scope governance.ScopeType, now time.Time) ([]governance.Limit, error) {
	limits := make([]governance.Limit, 0, len(rules))
	for i, r := range rules {
		l, err := r.limit(fmt.Sprintf("limits[%d].", i))
		if err != nil {
			return nil, err
		}
		if err := checkFuture(fmt.Sprintf("limits[%d].expires_at", i), l.ExpiresAt, now); err != nil {
			return nil, err
		}
		l.Scope.Type = scope
		limits = append(limits, l)
	}
	return limits, nil
}

type keyPatch struct {
	Name         change[string]       `json:"name,omitzero" minLength:"1" maxLength:"200"`
	Models       clearable[[]string]  `json:"models,omitzero" maxItems:"200" doc:"null: all that the organization is offered; []: none"`
	ExpiresAt    clearable[time.Time] `json:"expires_at,omitzero" doc:"null: never"`
	Blocked      change[bool]         `json:"blocked,omitzero"`
	BudgetStatus clearable[int]       `json:"budget_status,omitzero" enum:"402,429" doc:"null: the organization's"`
}

func (p keyPatch) apply(k *governance.VirtualKey) error {
	p.Name.to(&k.Name)
	p.Models.to(&k.Models)
	p.Blocked.to(&k.Blocked)
	p.BudgetStatus.to(&k.BudgetStatus)
	if p.ExpiresAt.given {
		given := &p.ExpiresAt.value
		if p.ExpiresAt.null {
			given = nil
		}
		var err error
		if k.ExpiresAt, err = checkInstant("expires_at", given); err != nil {
			return err
		}
	}
	if err := checkName("name", k.Name, maxName); err != nil {
		return err
	}
	return checkPatterns("models", k.Models)
}

type keyFilter struct {
	OrganizationFilter
	Team string `query:"team_id" pattern:"^team_[0-9A-Za-z]{12}$" patternDescription:"a team's id"`
}

func (f keyFilter) listFilter() governance.ListFilter {
	l := f.OrganizationFilter.listFilter()
	l.Team = f.Team
	return l
}

func (s *server) keys() resource[governance.VirtualKey, key] {
	return resource[governance.VirtualKey, key]{
		path: "keys", singular: "key", article: "a", kind: ids.Key, store: s.Keys,
		meta: func(k *governance.VirtualKey) *governance.Meta { return &k.Meta }, view: s.viewKey,
	}
}

func viewLimits(limits []governance.Limit) []Limit {
	views := make([]Limit, 0, len(limits))
	for _, l := range limits {
		views = append(views, viewLimit(l))
	}
	return views
}

func (s *server) registerKeys(api huma.API) {
	keys := s.keys()
	registerList[governance.VirtualKey, key, keyFilter](api, keys)
	s.registerIssue(api, keys)

	get := keys.operation(http.MethodGet, "/{id}", "Get a key and its own limits", http.StatusNotFound)
	handle(api, get, keys.singular, func(ctx context.Context, in *IDInput) (*output[key], error) {
		k, err := keys.find(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		out := keys.output(k)
		out.Body.Limits, err = s.ownLimits(ctx, governance.ScopeKey, k.ID)
		return out, err
	})

	registerUpdate[governance.VirtualKey, key, keyPatch](api, keys, "organization_id", "team_id", "user_id", "limits")
	registerDelete(api, keys)
	s.registerRotate(api, keys)

	revoke := keys.operation(http.MethodPost, "/{id}/revoke", "Revoke a key for good", http.StatusNotFound)
	revoke.DefaultStatus = http.StatusOK
	handle(api, revoke, keys.singular, func(ctx context.Context, in *IDInput) (*output[key], error) {
		if !ids.IsPublic(ids.Key, in.ID) {
			return nil, governance.ErrNotFound
		}
		k, err := s.Keys.Revoke(ctx, actorOf(ctx), in.ID)
		if err != nil {
			return nil, err
		}
		return keys.output(k), nil
	})
	s.registerKeyLimits(api, keys)
}

func (s *server) registerIssue(api huma.API, keys resource[governance.VirtualKey, key]) {
	op := keys.operation(http.MethodPost, "", "Issue a key. The answer shows it once", http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	handle(api, op, keys.singular, func(ctx context.Context, in *bodyInput[keyBody]) (*output[key], error) {
		row, err := in.Body.row()
		if err != nil {
			return nil, err
		}
		if s.expired(row) {
			return nil, invalidField("expires_at", "has passed")
		}
		first, err := firstLimits(in.Body.Limits, governance.ScopeKey, s.Now())
		if err != nil {
			return nil, err
		}
		issued, limits, err := s.Keys.Issue(ctx, actorOf(ctx), row, first)
		if err != nil {
			return nil, referenceMissing(err)
		}
		out := keys.created(issued.VirtualKey)
		out.Body.Key = issued.Secret.Reveal()
		out.Body.Limits = viewLimits(limits)
		return out, nil
	})
}

type rotateBody struct {
	Grace duration `json:"grace,omitempty" doc:"How long the old secret still works, at most 720h; absent: 24h"`
}

type rotateInput struct {
	IDInput
	Body *rotateBody
}

func (s *server) registerRotate(api huma.API, keys resource[governance.VirtualKey, key]) {
	op := keys.operation(http.MethodPost, "/{id}/rotate", "Give a key a new secret. The answer shows it once", http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	op.DefaultStatus = http.StatusOK
	handle(api, op, keys.singular, func(ctx context.Context, in *rotateInput) (*output[key], error) {
		grace := defaultGrace
		if in.Body != nil && in.Body.Grace != "" {
			var err error
			if grace, err = in.Body.Grace.parse("grace", 0, maxGrace); err != nil {
				return nil, err
			}
		}
		k, err := keys.find(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		switch {
		case !k.RevokedAt.IsZero():
			return nil, newProblem(http.StatusConflict, codeConflict, "The key is revoked for good; issue another one.")
		case s.expired(k):
			return nil, newProblem(http.StatusConflict, codeConflict,
				"The key has expired: a new secret would be born expired. PATCH expires_at first.")
		}
		issued, err := s.Keys.Rotate(ctx, actorOf(ctx), in.ID, grace)
		if err != nil {
			return nil, err
		}
		out := keys.output(issued.VirtualKey)
		out.Body.Key = issued.Secret.Reveal()
		return out, nil
	})
}

func (s *server) registerCreateTeam(api huma.API, teams resource[governance.Team, team]) {
	op := teams.operation(http.MethodPost, "", "Create a team, with its limits in the same transaction", http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	handle(api, op, teams.singular, func(ctx context.Context, in *bodyInput[teamBody]) (*output[team], error) {
		row, err := in.Body.row()
		if err != nil {
			return nil, err
		}
		first, err := firstLimits(in.Body.Limits, governance.ScopeTeam, s.Now())
		if err != nil {
			return nil, err
		}
		row, limits, err := s.Teams.CreateWithLimits(ctx, actorOf(ctx), row, first)
		if err != nil {
			return nil, referenceMissing(err)
		}
		out := teams.created(row)
		out.Body.Limits = viewLimits(limits)
		return out, nil
	})
}

func (s *server) registerGetTeam(api huma.API, teams resource[governance.Team, team]) {
	op := teams.operation(http.MethodGet, "/{id}", "Get a team and its own limits", http.StatusNotFound)
	handle(api, op, teams.singular, func(ctx context.Context, in *IDInput) (*output[team], error) {
		t, err := teams.find(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		out := teams.output(t)
		out.Body.Limits, err = s.ownLimits(ctx, governance.ScopeTeam, t.ID)
		return out, err
	})
}

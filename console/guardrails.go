package console

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// guardrailScope is whose calls a guardrail is about.
type guardrailScope struct {
	Type string `json:"type" enum:"platform,organization,team,key"`
	ID   string `json:"id,omitempty" minLength:"1" maxLength:"64" doc:"Public id; absent for the platform"`
}

const scopePlatform = "platform"

// guardrailRule is what a guardrail looks for. Each type has members of its own.
type guardrailRule struct {
	Type     string   `json:"type" enum:"regex,keywords,pii,secrets,max_size,max_tokens,webhook"`
	Patterns []string `json:"patterns,omitempty" maxItems:"50" nullable:"false" doc:"Of regex: RE2 expressions of at most 1 KiB"`
	Words    []string `json:"words,omitempty" maxItems:"1000" nullable:"false" doc:"Of keywords: whole words or phrases of at most 100 bytes, whatever their case"`
	Kinds    []string `json:"kinds,omitempty" maxItems:"20" nullable:"false" doc:"Of pii: email, phone, credit_card, iban, ip_address, us_ssn"`
	Bytes    int64    `json:"bytes,omitzero" minimum:"1" doc:"Of max_size: bytes of all texts together"`
	Tokens   int64    `json:"tokens,omitzero" minimum:"1" maximum:"1000000000" doc:"Of max_tokens: the output limit that a client may ask for"`
	URL      string   `json:"url,omitempty" minLength:"1" maxLength:"2048" doc:"Of webhook: where it is asked"`
	Timeout  int64    `json:"timeout_ms,omitzero" minimum:"10" maximum:"30000" doc:"Of webhook: how long it may take; absent: the gateway's default"`
}

func (r guardrailRule) domain() governance.GuardrailRule {
	return governance.GuardrailRule{
		Type: governance.RuleType(r.Type), Patterns: r.Patterns, Words: r.Words, Kinds: r.Kinds, Bytes: r.Bytes, Tokens: r.Tokens,
		URL: r.URL, Timeout: r.Timeout,
	}
}

type guardrail struct {
	Stamps
	OrganizationID *string        `json:"organization_id" doc:"null: the platform's, in force for every organization"`
	Name           string         `json:"name" doc:"What callers are told when it blocks"`
	Scope          guardrailScope `json:"scope"`
	ScopeName      string         `json:"scope_name" doc:"The name of what the scope names, for people"`
	Models         []string       `json:"models" nullable:"false"`
	Stage          string         `json:"stage"`
	Rule           guardrailRule  `json:"rule"`
	Action         string         `json:"action"`
	OnError        string         `json:"on_error"`
	Enabled        bool           `json:"enabled"`
	SecretSet      bool           `json:"secret_set" doc:"Whether a secret is stored and can be opened; it is never shown"`
}

func viewGuardrail(g governance.Guardrail) guardrail {
	v := guardrail{
		Stamps: stampsOf(g.Meta), OrganizationID: idOf(g.Organization), Name: g.Name, Scope: guardrailScope{Type: scopePlatform},
		Models: orEmpty(g.Models), Stage: string(g.Stage), Action: string(g.Action), OnError: onErrorDeny, Enabled: !g.Disabled, SecretSet: g.SecretOK,
		Rule: guardrailRule{
			Type: string(g.Rule.Type), Patterns: g.Rule.Patterns, Words: g.Rule.Words, Kinds: g.Rule.Kinds, Bytes: g.Rule.Bytes,
			Tokens: g.Rule.Tokens, URL: g.Rule.URL, Timeout: g.Rule.Timeout,
		},
	}
	if g.AllowOnError {
		v.OnError = onErrorAllow
	}
	for _, scope := range []struct {
		kind governance.ScopeType
		of   governance.Ref
	}{{governance.ScopeOrganization, g.Organization}, {governance.ScopeTeam, g.Team}, {governance.ScopeKey, g.Key}} {
		if !scope.of.IsZero() {
			v.Scope, v.ScopeName = guardrailScope{string(scope.kind), scope.of.ID}, scope.of.Name
		}
	}
	return v
}

// What a guardrail does with a call that it cannot judge.
const (
	onErrorDeny  = "deny"
	onErrorAllow = "allow"
)

type guardrailBody struct {
	Name    string         `json:"name" minLength:"1" maxLength:"200" doc:"Callers are told it when it blocks"`
	Scope   guardrailScope `json:"scope" doc:"Whose calls it is about"`
	Models  []string       `json:"models,omitempty" maxItems:"200" nullable:"false" doc:"Patterns over public model names; absent: every model"`
	Stage   string         `json:"stage,omitempty" enum:"request,answer,both" doc:"What it looks at; absent: both, and request for max_tokens"`
	Rule    guardrailRule  `json:"rule"`
	Action  string         `json:"action" enum:"mask,block,log" doc:"mask covers what it finds, or lowers a limit; log only counts and tags"`
	OnError string         `json:"on_error,omitempty" enum:"deny,allow" doc:"What becomes of calls that it cannot judge; absent: deny"`
	Enabled *bool          `json:"enabled,omitempty" nullable:"true" doc:"Absent or null: true"`
	Secret  string         `json:"secret,omitempty" minLength:"16" maxLength:"1024" writeOnly:"true" doc:"Of webhook: signs what it is asked; never shown again"`
}

func (b guardrailBody) row() (governance.Guardrail, error) {
	g := governance.Guardrail{
		Name: b.Name, Models: b.Models, Stage: governance.GuardrailStage(b.Stage), Rule: b.Rule.domain(),
		Action: governance.GuardrailAction(b.Action), AllowOnError: b.OnError == onErrorAllow, Disabled: b.Enabled != nil && !*b.Enabled,
		Secret: secret.New(b.Secret),
	}
	if g.Stage == "" {
		g.Stage = governance.StageBoth
		if g.Rule.Type == governance.RuleMaxTokens {
			g.Stage = governance.StageRequest
		}
	}
	of := governance.Ref{ID: b.Scope.ID}
	var kind ids.Kind
	switch governance.ScopeType(b.Scope.Type) {
	case governance.ScopeOrganization:
		kind, g.Organization = ids.Organization, of
	case governance.ScopeTeam:
		kind, g.Team = ids.Team, of
	case governance.ScopeKey:
		kind, g.Key = ids.Key, of
	default:
		if of.ID != "" {
			return g, invalidField("scope.id", "does not go with the platform")
		}
		return g, nil
	}
	if !ids.IsPublic(kind, of.ID) {
		return g, invalidField("scope.id", "must be an id such as "+string(kind)+"_4Tz0aQ9LmX2b")
	}
	return g, nil
}

type guardrailPatch struct {
	Name    change[string]        `json:"name,omitzero" minLength:"1" maxLength:"200"`
	Models  change[[]string]      `json:"models,omitzero" maxItems:"200" doc:"All of them; they replace the present ones"`
	Stage   change[string]        `json:"stage,omitzero" enum:"request,answer,both"`
	Rule    change[guardrailRule] `json:"rule,omitzero" doc:"The whole rule; it replaces the present one"`
	Action  change[string]        `json:"action,omitzero" enum:"mask,block,log"`
	OnError change[string]        `json:"on_error,omitzero" enum:"deny,allow"`
	Enabled change[bool]          `json:"enabled,omitzero"`
	Secret  change[string]        `json:"secret,omitzero" minLength:"16" maxLength:"1024" writeOnly:"true" doc:"Replaces the stored one; needed again where the webhook moves to another scheme or host"`
}

func (p guardrailPatch) apply(g *governance.Guardrail) {
	p.Name.to(&g.Name)
	p.Models.to(&g.Models)
	stage, action := string(g.Stage), string(g.Action)
	p.Stage.to(&stage)
	p.Action.to(&action)
	g.Stage, g.Action = governance.GuardrailStage(stage), governance.GuardrailAction(action)
	if p.Rule.given {
		g.Rule = p.Rule.value.domain()
	}
	if p.OnError.given {
		g.AllowOnError = p.OnError.value == onErrorAllow
	}
	if p.Enabled.given {
		g.Disabled = !p.Enabled.value
	}
	if p.Secret.given {
		g.Secret = secret.New(p.Secret.value)
	}
}

// checkGuardrail refuses what could not be told apart or would ask somebody whom nobody meant.
func (u upstreams) checkGuardrail(g *governance.Guardrail) error {
	if err := checkName("name", g.Name, maxName); err != nil {
		return err
	}
	if err := checkPatterns("models", g.Models); err != nil {
		return err
	}
	if err := g.Check(); err != nil {
		return err
	}
	if g.Rule.Type != governance.RuleWebhook {
		return nil
	}
	return u.checkURL("rule.url", g.Rule.URL)
}

type guardrailFilter struct {
	PageQuery
	Organization string `query:"organization_id" pattern:"^org_[0-9A-Za-z]{12}$" patternDescription:"an organization's id"`
	Name         string `query:"name" maxLength:"200"`
	ScopeType    string `query:"scope_type" enum:"platform,organization,team,key"`
	ScopeID      string `query:"scope_id" maxLength:"64" doc:"A scope's id as the guardrail has it"`
	Deleted      bool   `query:"deleted"`
}

func (f guardrailFilter) listFilter() governance.ListFilter {
	return governance.ListFilter{
		Organization: f.Organization, Name: f.Name, ScopeType: governance.ScopeType(f.ScopeType), ScopeID: f.ScopeID, Deleted: f.Deleted,
	}
}

func (s *server) registerGuardrails(api huma.API) {
	allowed := upstreams{private: s.PrivateUpstreams}
	guardrails := resource[governance.Guardrail, guardrail]{
		path: "guardrails", singular: "guardrail", article: "a", kind: ids.Guardrail, store: s.Guardrails,
		meta: func(g *governance.Guardrail) *governance.Meta { return &g.Meta }, view: viewGuardrail,
	}
	registerList[governance.Guardrail, guardrail, guardrailFilter](api, guardrails)
	registerGet(api, guardrails)
	registerDelete(api, guardrails)

	create := guardrails.operation(http.MethodPost, "", "Create a guardrail", http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	handle(api, create, guardrails.singular, func(ctx context.Context, in *bodyInput[guardrailBody]) (*output[guardrail], error) {
		g, err := in.Body.row()
		if err != nil {
			return nil, err
		}
		if err := allowed.checkGuardrail(&g); err != nil {
			return nil, err
		}
		if g, err = s.Guardrails.Create(ctx, actorOf(ctx), g); err != nil {
			return nil, referenceMissing(err)
		}
		return guardrails.created(g), nil
	})

	update := guardrails.operation(http.MethodPatch, "/{id}", "Change a guardrail",
		http.StatusNotFound, http.StatusConflict, http.StatusPreconditionFailed, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	update.Metadata = map[string]any{fixedMembers: setOf([]string{"organization_id", "scope"})}
	handle(api, update, guardrails.singular, func(ctx context.Context, in *patchInput[guardrailPatch]) (*output[guardrail], error) {
		g, err := guardrails.update(ctx, in.ID, in.Precondition, func(g *governance.Guardrail) error {
			in.Body.apply(g)
			return allowed.checkGuardrail(g)
		})
		if err != nil {
			return nil, err
		}
		return guardrails.output(g), nil
	})
}

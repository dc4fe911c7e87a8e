package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

type provider struct {
	Stamps
	OrganizationID *string `json:"organization_id" doc:"null: the platform's, offered to every organization"`
	Name           string  `json:"name"`
	Kind           string  `json:"kind"`
	BaseURL        string  `json:"base_url"`
	PriceProvider  string  `json:"price_provider" doc:"The provider's name in the price book; empty: its own name"`
	CredentialSet  bool    `json:"credential_set" doc:"Whether a credential is stored and can be opened; it is never shown"`
}

func viewProvider(p governance.Provider) provider {
	return provider{
		Stamps: stampsOf(p.Meta), OrganizationID: idOf(p.Organization), Name: p.Name, Kind: p.Kind, BaseURL: p.BaseURL,
		PriceProvider: p.PriceProvider, CredentialSet: p.CredentialOK,
	}
}

type providerBody struct {
	OrganizationID *string `json:"organization_id,omitempty" pattern:"^org_[0-9A-Za-z]{12}$" patternDescription:"an organization's id" nullable:"true" doc:"Absent or null: the platform's"`
	Name           string  `json:"name" minLength:"1" maxLength:"200"`
	Kind           string  `json:"kind" minLength:"1" maxLength:"64" doc:"One of the provider kinds, e.g. openai"`
	BaseURL        string  `json:"base_url,omitempty" minLength:"1" maxLength:"2048" doc:"Such as https://api.openai.com/v1; absent: its kind's"`
	PriceProvider  string  `json:"price_provider,omitempty" maxLength:"200" doc:"Absent: its kind's"`
	Credential     string  `json:"credential,omitempty" maxLength:"16384" writeOnly:"true" doc:"Never shown again; absent: none is sent upstream"`
}

type providerPatch struct {
	Name          change[string]    `json:"name,omitzero" minLength:"1" maxLength:"200"`
	BaseURL       change[string]    `json:"base_url,omitzero" minLength:"1" maxLength:"2048" doc:"Another scheme or host needs the credential again"`
	PriceProvider change[string]    `json:"price_provider,omitzero" maxLength:"200"`
	Credential    clearable[string] `json:"credential,omitzero" minLength:"1" maxLength:"16384" writeOnly:"true" doc:"Replaces the stored one; null: none is sent any more"`
}

// upstreams says which providers may be configured.
type upstreams struct {
	kinds   []ProviderKind
	private bool
}

func (u upstreams) check(p governance.Provider) error {
	if err := checkName("name", p.Name, maxName); err != nil {
		return err
	}
	if err := u.checkCredential(p.Kind, p.Credential); err != nil {
		return err
	}
	return u.checkURL("base_url", p.BaseURL)
}

// checkURL refuses what could send a request, and with it the credential, to where nobody meant. What a name resolves to
// is checked when the gateway dials.
func (u upstreams) checkURL(field, text string) error {
	base, err := url.Parse(text)
	switch {
	case err != nil || base.Host == "" || base.Hostname() == "":
		return invalidField(field, "must be a URL such as https://api.openai.com/v1")
	case base.User != nil:
		return invalidField(field, "must not contain a user or password; use credential")
	case !governance.IsBaseQuery(base.RawQuery) || base.ForceQuery || base.Fragment != "" || strings.Contains(text, "#"):
		return invalidField(field, "must not have a query or fragment, but for an api-version")
	case base.Scheme != "https" && base.Scheme != "http":
		return invalidField(field, "must begin with https://")
	case strings.Contains(base.Path, "..") || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }):
		return invalidField(field, "must be a plain path in printable ASCII")
	}
	if port := base.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return invalidField(field, "has a port that does not exist")
		}
	}
	if isLinkLocal(base.Hostname()) {
		return invalidField(field, "names a link-local address, where clouds keep the credentials of machines")
	}
	if isPrivateHost(base.Hostname()) {
		if !u.private {
			return invalidField(field, "names a loopback or private address, which this server does not allow: start it with TOLLGATE_ALLOW_PRIVATE_PROVIDERS=true")
		}
		return nil
	}
	if base.Scheme == "http" && !u.private {
		return invalidField(field, "must begin with https://, since the credential travels with every request")
	}
	return nil
}

// isPrivateHost reports whether a host says by itself that it is not on the public internet.
func isPrivateHost(host string) bool {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if host == "localhost" || strings.HasSuffix(host, ".localhost") || !strings.ContainsAny(host, ".:") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	ip = ip.Unmap()
	return !ip.IsGlobalUnicast() || ip.IsPrivate() || ip.IsLoopback()
}

// isLinkLocal reports whether a host is an address on its own link, or the one of instance metadata beside these. No provider
// is there, whatever else a server allows.
func isLinkLocal(host string) bool {
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	ip = ip.WithZone("").Unmap()
	return ip.IsLinkLocalUnicast() || ip == netip.MustParseAddr("fd00:ec2::254")
}

func (s *server) providers() resource[governance.Provider, provider] {
	return resource[governance.Provider, provider]{
		path: "providers", singular: "provider", article: "a", kind: ids.Provider, store: s.Providers,
		meta: func(p *governance.Provider) *governance.Meta { return &p.Meta }, view: viewProvider,
	}
}

func (s *server) registerProviders(api huma.API) {
	providers := s.providers()
	allowed := upstreams{kinds: s.ProviderKinds, private: s.PrivateUpstreams}
	registerList[governance.Provider, provider, OrganizationFilter](api, providers)
	registerGet(api, providers)
	registerDelete(api, providers)

	create := providers.operation(http.MethodPost, "", "Create a provider", http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	handle(api, create, providers.singular, func(ctx context.Context, in *bodyInput[providerBody]) (*output[provider], error) {
		p := governance.Provider{
			Name: in.Body.Name, Kind: in.Body.Kind, BaseURL: in.Body.BaseURL, PriceProvider: in.Body.PriceProvider,
			Credential: secret.New(in.Body.Credential),
		}
		if in.Body.OrganizationID != nil {
			p.Organization = governance.Ref{ID: *in.Body.OrganizationID}
		}
		if err := allowed.complete(&p); err != nil {
			return nil, err
		}
		if err := allowed.check(p); err != nil {
			return nil, err
		}
		p, err := s.Providers.Create(ctx, actorOf(ctx), p)
		if err != nil {
			return nil, referenceMissing(err)
		}
		return providers.created(p), nil
	})

	update := providers.operation(http.MethodPatch, "/{id}", "Change a provider",
		http.StatusNotFound, http.StatusConflict, http.StatusPreconditionFailed, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	update.Metadata = map[string]any{fixedMembers: setOf([]string{"organization_id", "kind"})}
	handle(api, update, providers.singular, func(ctx context.Context, in *patchInput[providerPatch]) (*output[provider], error) {
		p, err := providers.update(ctx, in.ID, in.Precondition, func(p *governance.Provider) error {
			in.Body.Name.to(&p.Name)
			in.Body.BaseURL.to(&p.BaseURL)
			in.Body.PriceProvider.to(&p.PriceProvider)
			if in.Body.Credential.given {
				p.Credential, p.DropCredential = secret.New(in.Body.Credential.value), in.Body.Credential.null
			}
			return allowed.check(*p)
		})
		if err != nil {
			return nil, err
		}
		return providers.output(p), nil
	})
}

type modelTarget struct {
	TargetID      string `json:"target_id" readOnly:"true"`
	ProviderID    string `json:"provider_id"`
	ProviderName  string `json:"provider_name" readOnly:"true"`
	UpstreamModel string `json:"upstream_model"`
	Weight        int    `json:"weight"`
	Priority      int    `json:"priority"`
}

type model struct {
	Stamps
	OrganizationID *string       `json:"organization_id" doc:"null: the platform's, offered to every organization"`
	Name           string        `json:"name" doc:"What clients ask for"`
	Targets        []modelTarget `json:"targets" nullable:"false"`
}

func viewModel(m governance.Model) model {
	v := model{
		Stamps: stampsOf(m.Meta), OrganizationID: idOf(m.Organization), Name: m.Name,
		Targets: make([]modelTarget, 0, len(m.Targets)),
	}
	for _, t := range m.Targets {
		v.Targets = append(v.Targets, modelTarget{
			TargetID: t.Target.ID, ProviderID: t.Provider.ID, ProviderName: t.Provider.Name,
			UpstreamModel: t.Upstream, Weight: t.Weight, Priority: t.Priority,
		})
	}
	return v
}

type targetBody struct {
	ProviderID    string `json:"provider_id" pattern:"^prov_[0-9A-Za-z]{12}$" patternDescription:"a provider's id"`
	UpstreamModel string `json:"upstream_model" minLength:"1" maxLength:"300"`
	Weight        int    `json:"weight,omitempty" minimum:"1" maximum:"1000000" doc:"Share of the calls within a priority; absent: 1"`
	Priority      int    `json:"priority,omitempty" minimum:"0" maximum:"1000" doc:"Lower ones are tried first; absent: 0"`
}

type modelBody struct {
	OrganizationID *string      `json:"organization_id,omitempty" pattern:"^org_[0-9A-Za-z]{12}$" patternDescription:"an organization's id" nullable:"true" doc:"Absent or null: the platform's"`
	Name           string       `json:"name" minLength:"1" maxLength:"300"`
	Targets        []targetBody `json:"targets" minItems:"1" maxItems:"50" nullable:"false"`
}

func (b modelBody) row() (governance.Model, error) {
	m := governance.Model{Name: b.Name}
	if b.OrganizationID != nil {
		m.Organization = governance.Ref{ID: *b.OrganizationID}
	}
	if err := checkModelName(m.Name); err != nil {
		return m, err
	}
	var err error
	m.Targets, err = modelTargets(b.Targets)
	return m, err
}

// checkModelName refuses * too, which stands for anything in patterns.
func checkModelName(name string) error {
	if strings.Contains(name, "*") {
		return invalidField("name", "must not contain *")
	}
	return checkName("name", name, maxModelName)
}

func modelTargets(bodies []targetBody) ([]governance.ModelTarget, error) {
	type identity struct{ provider, model string }
	seen := make(map[identity]bool, len(bodies))
	targets := make([]governance.ModelTarget, 0, len(bodies))
	for i, b := range bodies {
		at := fmt.Sprintf("targets[%d]", i)
		if err := checkName(at+".upstream_model", b.UpstreamModel, maxModelName); err != nil {
			return nil, err
		}
		id := identity{b.ProviderID, b.UpstreamModel}
		if seen[id] {
			return nil, invalidField(at, "is given twice")
		}
		seen[id] = true
		targets = append(targets, governance.ModelTarget{
			Provider: governance.Ref{ID: b.ProviderID}, Upstream: b.UpstreamModel, Weight: max(b.Weight, 1), Priority: b.Priority,
		})
	}
	return targets, nil
}

type modelPatch struct {
	Name    change[string]       `json:"name,omitzero" minLength:"1" maxLength:"300"`
	Targets change[[]targetBody] `json:"targets,omitzero" minItems:"1" maxItems:"50" doc:"All of them; they replace the present ones"`
}

func (p modelPatch) apply(m *governance.Model) (err error) {
	p.Name.to(&m.Name)
	if p.Targets.given {
		if m.Targets, err = modelTargets(p.Targets.value); err != nil {
			return err
		}
	}
	return checkModelName(m.Name)
}

func (s *server) models() resource[governance.Model, model] {
	return resource[governance.Model, model]{
		path: "models", singular: "model", article: "a", kind: ids.Model, store: s.Models,
		meta: func(m *governance.Model) *governance.Meta { return &m.Meta }, view: viewModel,
	}
}

func (s *server) registerModels(api huma.API) {
	models := s.models()
	registerList[governance.Model, model, OrganizationFilter](api, models)
	registerCreate[governance.Model, model, modelBody](api, models)
	registerGet(api, models)
	registerUpdate[governance.Model, model, modelPatch](api, models, "organization_id")
	registerDelete(api, models)
}

type target struct {
	Stamps
	ProviderID      string   `json:"provider_id"`
	ProviderName    string   `json:"provider_name"`
	UpstreamModel   string   `json:"upstream_model"`
	OnDisconnect    string   `json:"on_disconnect"`
	NoStreamOptions bool     `json:"no_stream_options"`
	Drop            []string `json:"drop" doc:"Members of requests that it refuses: they are taken out, and clients are warned"`
	MaxOutput       int64    `json:"max_output" doc:"Tokens it can answer at most; 0: unknown"`
	ExpectedOutput  int64    `json:"expected_output" doc:"99th percentile of settled outputs, in tokens"`
	PriceID         *string  `json:"price_id" doc:"The active price version; null: unpriced"`
}

func viewTarget(t governance.Target) target {
	v := target{
		Stamps: stampsOf(t.Meta), ProviderID: t.Provider.ID, ProviderName: t.Provider.Name, UpstreamModel: t.UpstreamModel,
		OnDisconnect: string(t.OnDisconnect), NoStreamOptions: t.NoStreamOptions, MaxOutput: t.MaxOutput, ExpectedOutput: t.ExpectedOutput,
		Drop: append([]string{}, t.Drop...),
	}
	if t.Price != nil {
		v.PriceID = &t.Price.ID
	}
	return v
}

type targetPatch struct {
	OnDisconnect    change[string]   `json:"on_disconnect,omitzero" enum:"abort,drain" doc:"What happens upstream when the client leaves"`
	NoStreamOptions change[bool]     `json:"no_stream_options,omitzero" doc:"For upstreams that refuse stream_options"`
	Drop            change[[]string] `json:"drop,omitzero" maxItems:"20" doc:"Members of requests that it refuses, such as temperature: they are taken out, and clients are warned"`
	MaxOutput       change[int64]    `json:"max_output,omitzero" minimum:"0" maximum:"1000000000"`
}

type TargetFilter struct {
	Provider string `query:"provider_id" pattern:"^prov_[0-9A-Za-z]{12}$" patternDescription:"a provider's id"`
}

type targetListInput struct {
	PageQuery
	TargetFilter
}

type targetPatchInput struct {
	IDInput
	Precondition
	Body targetPatch
}

func (s *server) registerTargets(api huma.API) {
	const path, what = "/targets", "target"
	outputOf := func(t governance.Target) *output[target] {
		return &output[target]{ETag: etag(t.Version), Body: viewTarget(t)}
	}
	list := operation(http.MethodGet, path, "list-targets", "targets", "List targets")
	handle(api, list, what, func(ctx context.Context, in *targetListInput) (*pageOutput[target], error) {
		rows, next, err := s.Targets.List(ctx, actorOf(ctx), governance.ListFilter{Provider: in.Provider}, in.page())
		if err != nil {
			return nil, err
		}
		return pageOf(rows, next, viewTarget), nil
	})
	get := operation(http.MethodGet, path+"/{id}", "get-targets", "targets", "Get a target", http.StatusNotFound)
	handle(api, get, what, func(ctx context.Context, in *IDInput) (*output[target], error) {
		if !ids.IsPublic(ids.Target, in.ID) {
			return nil, governance.ErrNotFound
		}
		t, err := s.Targets.Get(ctx, actorOf(ctx), in.ID)
		if err != nil {
			return nil, err
		}
		return outputOf(t), nil
	})
	patch := operation(http.MethodPatch, path+"/{id}", "patch-targets", "targets", "Change a target",
		http.StatusNotFound, http.StatusPreconditionFailed, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	patch.Metadata = map[string]any{fixedMembers: setOf([]string{"provider_id", "upstream_model"})}
	handle(api, patch, what, func(ctx context.Context, in *targetPatchInput) (*output[target], error) {
		t, err := s.patchTarget(ctx, in)
		if err != nil {
			return nil, err
		}
		return outputOf(t), nil
	})
}

func (s *server) patchTarget(ctx context.Context, in *targetPatchInput) (governance.Target, error) {
	seen, err := in.version()
	if err != nil {
		return governance.Target{}, err
	}
	if !ids.IsPublic(ids.Target, in.ID) {
		return governance.Target{}, governance.ErrNotFound
	}
	var p governance.TargetPatch
	if in.Body.OnDisconnect.given {
		way := governance.OnDisconnect(in.Body.OnDisconnect.value)
		p.OnDisconnect = &way
	}
	if in.Body.NoStreamOptions.given {
		p.NoStreamOptions = &in.Body.NoStreamOptions.value
	}
	if in.Body.Drop.given {
		p.Drop = &in.Body.Drop.value
	}
	if in.Body.MaxOutput.given {
		p.MaxOutput = &in.Body.MaxOutput.value
	}
	t, err := s.Targets.Patch(ctx, actorOf(ctx), in.ID, seen, p)
	if errors.Is(err, governance.ErrConflict) {
		return t, stale("target")
	}
	return t, err
}

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// step is one change that a plan makes.
type step struct {
	action string // create, change or delete
	kind   string // organization, team, …
	name   string // for people
	diffs  []diff
	do     func(context.Context) error
}

// diff is one member that changes.
type diff struct {
	member   string
	from, to any
}

// planner compares a document with what the API has. Ids of what is only planned are filled in when it is made, so that
// later steps can refer to it.
type planner struct {
	api   *client
	prune bool
	// credentials sends credentials even where one is stored, since stored ones cannot be compared.
	credentials bool

	steps     []step
	deletions []step
	issued    []object // keys with their secrets, once they are made
	orgs      map[string]*string
	providers map[string]*string // by organization and name
}

func (p *planner) add(s step) { p.steps = append(p.steps, s) }

// document plans everything that a document says.
func (p *planner) document(ctx context.Context, d *document) error {
	p.orgs, p.providers = map[string]*string{}, map[string]*string{}
	existing, err := p.api.all(ctx, "/organizations", nil)
	if err != nil {
		return err
	}
	for _, o := range existing {
		id := text(o, "id")
		p.orgs[text(o, "name")] = &id
	}
	for _, o := range d.Organizations {
		if err := p.organization(ctx, o, find(existing, "name", o.Name)); err != nil {
			return fmt.Errorf("organization %s: %w", o.Name, err)
		}
	}
	if err := p.allProviders(ctx, d.Providers); err != nil {
		return err
	}
	if err := p.allModels(ctx, d.Models); err != nil {
		return err
	}
	for i, l := range d.Limits {
		if err := p.platformLimit(ctx, l); err != nil {
			return fmt.Errorf("limits[%d]: %w", i, err)
		}
	}
	if err := p.allGuardrails(ctx, d.Guardrails); err != nil {
		return err
	}
	for i, price := range d.Prices {
		if err := p.price(ctx, price); err != nil {
			return fmt.Errorf("prices[%d]: %w", i, err)
		}
	}
	slices.Reverse(p.deletions) // what was found last lies deepest
	p.steps = append(p.steps, p.deletions...)
	return nil
}

// find returns the item whose member has a value. Nil: there is none.
func find(items []object, member, value string) object {
	for _, item := range items {
		if text(item, member) == value {
			return item
		}
	}
	return nil
}

// row plans one resource and returns its id, which is empty until it is made. extra is added to the body when it is made.
func (p *planner) row(path, kind, name string, want object, have object, extra func() (object, error)) *string {
	id := ""
	if have != nil {
		id = text(have, "id")
		if diffs := compare(want, have); len(diffs) > 0 {
			p.add(step{"change", kind, name, diffs, func(ctx context.Context) error {
				body := object{}
				for _, d := range diffs {
					body[d.member] = d.to
				}
				_, err := p.api.send(ctx, http.MethodPatch, "/"+path+"/"+id, body)
				return err
			}})
		}
		return &id
	}
	p.add(step{"create", kind, name, nil, func(ctx context.Context) error {
		body := object{}
		for member, v := range want {
			body[member] = v
		}
		if extra != nil {
			more, err := extra()
			if err != nil {
				return err
			}
			for member, v := range more {
				body[member] = v
			}
		}
		answer, err := p.api.send(ctx, http.MethodPost, "/"+path, body)
		if err != nil {
			return err
		}
		var made object
		if err := decode(answer, &made); err != nil {
			return err
		}
		id = text(made, "id")
		if made["key"] != nil {
			p.issued = append(p.issued, object{"name": name, "id": id, "key": made["key"]})
		}
		return nil
	}})
	return &id
}

// drop plans to delete what the document does not name, where --prune asks for it.
func (p *planner) drop(path, kind string, have []object, owner string, keep func(object) bool) {
	if !p.prune {
		return
	}
	for _, o := range have {
		if keep(o) {
			continue
		}
		name := text(o, "name")
		if kind == "limit" {
			name = limitName(o)
		}
		id := text(o, "id")
		p.deletions = append(p.deletions, step{"delete", kind, strings.TrimPrefix(owner+"/"+name, "/"), nil, func(ctx context.Context) error {
			_, err := p.api.send(ctx, http.MethodDelete, "/"+path+"/"+id, nil)
			return err
		}})
	}
}

// below lists what belongs to a parent; nothing where that is not made yet.
func (p *planner) below(ctx context.Context, path, member string, parent *string) ([]object, error) {
	if *parent == "" {
		return nil, nil
	}
	return p.api.all(ctx, "/"+path, url.Values{member: {*parent}})
}

func (p *planner) organization(ctx context.Context, o docOrganization, have object) error {
	want, err := bodyOf(o)
	if err != nil {
		return err
	}
	id := p.row("organizations", "organization", o.Name, want, have, nil)
	p.orgs[o.Name] = id
	if err := p.rules(ctx, o.Limits, "organization", id, o.Name); err != nil {
		return err
	}
	users, err := p.below(ctx, "users", "organization_id", id)
	if err != nil {
		return err
	}
	inOrganization := func() (object, error) { return object{"organization_id": *id}, nil }
	for _, u := range o.Users {
		want, err := bodyOf(u)
		if err != nil {
			return err
		}
		p.row("users", "user", o.Name+"/"+u.Name, want, find(users, "name", u.Name), inOrganization)
	}
	if o.Users != nil {
		p.drop("users", "user", users, o.Name, func(have object) bool {
			return slices.ContainsFunc(o.Users, func(u docUser) bool { return u.Name == text(have, "name") })
		})
	}
	teams, err := p.below(ctx, "teams", "organization_id", id)
	if err != nil {
		return err
	}
	keys, err := p.below(ctx, "keys", "organization_id", id)
	if err != nil {
		return err
	}
	p.drop("teams", "team", teams, o.Name, func(have object) bool {
		return slices.ContainsFunc(o.Teams, func(t docTeam) bool { return t.Name == text(have, "name") })
	})
	for _, t := range o.Teams {
		if err := p.team(ctx, t, find(teams, "name", t.Name), keys, o.Name, inOrganization); err != nil {
			return fmt.Errorf("team %s: %w", t.Name, err)
		}
	}
	own := slices.DeleteFunc(slices.Clone(keys), func(k object) bool { return k["team_id"] != nil })
	return p.keys(ctx, o.Keys, own, o.Name, inOrganization)
}

func (p *planner) team(ctx context.Context, t docTeam, have object, keys []object, owner string, inOrganization func() (object, error)) error {
	want, err := bodyOf(t)
	if err != nil {
		return err
	}
	name := owner + "/" + t.Name
	id := p.row("teams", "team", name, want, have, p.withLimits(t.Limits, inOrganization))
	if have != nil {
		if err := p.rules(ctx, t.Limits, "team", id, name); err != nil {
			return err
		}
	}
	own := slices.DeleteFunc(slices.Clone(keys), func(k object) bool { return *id == "" || text(k, "team_id") != *id })
	return p.keys(ctx, t.Keys, own, name, func() (object, error) { return object{"team_id": *id}, nil })
}

func (p *planner) keys(ctx context.Context, want []docKey, have []object, owner string, in func() (object, error)) error {
	have = slices.DeleteFunc(have, func(k object) bool { return text(k, "status") == "revoked" })
	for _, k := range want {
		body, err := bodyOf(k)
		if err != nil {
			return err
		}
		name := owner + "/" + k.Name
		found := find(have, "name", k.Name)
		id := p.row("keys", "key", name, body, found, p.withLimits(k.Limits, in))
		if found != nil {
			if err := p.rules(ctx, k.Limits, "key", id, name); err != nil {
				return fmt.Errorf("key %s: %w", k.Name, err)
			}
		}
	}
	p.drop("keys", "key", have, owner, func(h object) bool {
		return slices.ContainsFunc(want, func(k docKey) bool { return k.Name == text(h, "name") })
	})
	return nil
}

// withLimits adds the first limits to a body, so that they are made in the same transaction.
func (p *planner) withLimits(rules []docRule, in func() (object, error)) func() (object, error) {
	return func() (object, error) {
		body, err := in()
		if err != nil {
			return nil, err
		}
		limits := make([]object, 0, len(rules))
		for _, r := range rules {
			limit, err := bodyOf(r)
			if err != nil {
				return nil, err
			}
			limits = append(limits, limit)
		}
		body["limits"] = limits
		return body, nil
	}
}

// rules plans the limits of one owner.
func (p *planner) rules(ctx context.Context, rules []docRule, scope string, owner *string, name string) error {
	var have []object
	if *owner != "" {
		var err error
		if have, err = p.api.all(ctx, "/limits", url.Values{"scope_type": {scope}, "scope_id": {*owner}}); err != nil {
			return err
		}
	}
	kept := make(map[string]bool)
	for _, r := range rules {
		want, err := bodyOf(r)
		if err != nil {
			return err
		}
		found := findLimit(have, want)
		if found != nil {
			kept[text(found, "id")] = true
		}
		p.limit(want, found, name, func() (object, error) {
			return object{"scope": object{"type": scope, "id": *owner}}, nil
		})
	}
	p.drop("limits", "limit", have, name, func(l object) bool { return kept[text(l, "id")] })
	return nil
}

func (p *planner) limit(want, found object, owner string, extra func() (object, error)) {
	if found != nil {
		for _, member := range []string{"kind", "metric", "per", "window", "models", "routes"} {
			delete(want, member) // they are what identifies it
		}
		p.row("limits", "limit", owner+"/"+limitName(found), want, found, nil)
		return
	}
	p.row("limits", "limit", owner+"/"+limitName(want), want, nil, extra)
}

// limitName tells the limits of one owner apart, for people.
func limitName(l object) string {
	parts := []string{text(l, "kind")}
	if m := text(l, "metric"); m != "-" {
		parts = append(parts, m)
	}
	if per := text(l, "per"); per != "-" {
		parts = append(parts, "per", per)
	}
	if w, ok := l["window"].(object); ok {
		for _, member := range []string{"period", "duration"} {
			if v := text(w, member); v != "-" {
				parts = append(parts, "per", v)
			}
		}
		if text(w, "type") == "total" {
			parts = append(parts, "in total")
		}
	}
	if models, ok := l["models"].([]any); ok && len(models) > 0 {
		parts = append(parts, "of", cell(models))
	}
	return strings.Join(parts, " ")
}

// findLimit finds the limit of the same identity.
func findLimit(have []object, want object) object {
	for _, l := range have {
		if limitIdentity(l) == limitIdentity(want) {
			return l
		}
	}
	return nil
}

func limitIdentity(l object) string {
	metric := text(l, "metric")
	if metric == "-" {
		metric = "requests"
	}
	window := ""
	if w, ok := l["window"].(object); ok {
		zone := text(w, "time_zone")
		if zone == "-" {
			zone = "UTC"
		}
		window = strings.Join([]string{text(w, "type"), text(w, "period"), zone, text(w, "duration")}, " ")
	}
	return strings.Join([]string{text(l, "kind"), metric, text(l, "per"), window, sorted(l["models"]), sorted(l["routes"])}, "|")
}

func sorted(list any) string {
	all, _ := list.([]any)
	names := make([]string, 0, len(all))
	for _, v := range all {
		names = append(names, fmt.Sprint(v))
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

// platformLimit plans a limit that names no owner of the document.
func (p *planner) platformLimit(ctx context.Context, l docLimit) error {
	want, err := bodyOf(l.docRule)
	if err != nil {
		return err
	}
	if l.Scope.Type == "" || l.Scope.Name == "" {
		return fmt.Errorf("scope needs type and name; * stands for each member")
	}
	var org *string
	if l.Organization != "" {
		if org = p.orgs[l.Organization]; org == nil {
			return fmt.Errorf("there is no organization %q", l.Organization)
		}
	}
	kind, id, err := p.api.scope(ctx, l.Scope.Type+":"+l.Scope.Name)
	if err != nil {
		return err
	}
	var found object
	if org == nil || *org != "" {
		query := url.Values{"scope_type": {kind}, "scope_id": {id}}
		if org != nil {
			query.Set("organization_id", *org)
		}
		have, err := p.api.all(ctx, "/limits", query)
		if err != nil {
			return err
		}
		found = findLimit(have, want)
	}
	p.limit(want, found, l.Scope.Type+":"+l.Scope.Name, func() (object, error) {
		body := object{"scope": object{"type": kind, "id": id}}
		if org != nil {
			body["organization_id"] = *org
		}
		return body, nil
	})
	return nil
}

// home returns the organization that a provider or model belongs to. Nil: the platform.
func (p *planner) home(name string) (*string, error) {
	if name == "" {
		return nil, nil
	}
	if id := p.orgs[name]; id != nil {
		return id, nil
	}
	return nil, fmt.Errorf("there is no organization %q", name)
}

// ofHome keeps what belongs to an organization, or to the platform.
func ofHome(items []object, home *string) []object {
	return slices.DeleteFunc(slices.Clone(items), func(o object) bool {
		if home == nil {
			return o["organization_id"] != nil
		}
		return *home == "" || text(o, "organization_id") != *home
	})
}

func inHome(home *string) object {
	if home == nil {
		return object{}
	}
	return object{"organization_id": *home}
}

func (p *planner) allProviders(ctx context.Context, want []docProvider) error {
	have, err := p.api.all(ctx, "/providers", nil)
	if err != nil {
		return err
	}
	for _, o := range have {
		if o["organization_id"] == nil {
			id := text(o, "id")
			p.providers["/"+text(o, "name")] = &id
		}
	}
	kept := make(map[string]bool)
	for _, w := range want {
		home, err := p.home(w.Organization)
		if err != nil {
			return fmt.Errorf("provider %s: %w", w.Name, err)
		}
		body, err := bodyOf(w)
		if err != nil {
			return err
		}
		found := find(ofHome(have, home), "name", w.Name)
		if found != nil {
			kept[text(found, "id")] = true
			delete(body, "kind")
			moved := w.BaseURL != "" && origin(w.BaseURL) != origin(text(found, "base_url"))
			if w.Credential != "" && (p.credentials || moved || found["credential_set"] != true) {
				body["credential"] = w.Credential
			}
		} else if body["kind"] == nil {
			body["kind"] = "openai"
		}
		p.providers[w.Organization+"/"+w.Name] = p.row("providers", "provider", strings.TrimPrefix(w.Organization+"/"+w.Name, "/"), body, found,
			func() (object, error) {
				more := inHome(home)
				if w.Credential != "" {
					more["credential"] = w.Credential
				}
				return more, nil
			})
	}
	if want != nil {
		p.drop("providers", "provider", ofHome(have, nil), "", func(o object) bool { return kept[text(o, "id")] })
	}
	return nil
}

func origin(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return text
	}
	return strings.ToLower(u.Scheme + "://" + u.Host)
}

func (p *planner) allModels(ctx context.Context, want []docModel) error {
	have, err := p.api.all(ctx, "/models", nil)
	if err != nil {
		return err
	}
	kept := make(map[string]bool)
	for _, w := range want {
		found, err := p.model(w, have)
		if err != nil {
			return fmt.Errorf("model %s: %w", w.Name, err)
		}
		kept[found] = true
	}
	if want != nil {
		p.drop("models", "model", ofHome(have, nil), "", func(o object) bool { return kept[text(o, "id")] })
	}
	return nil
}

// model plans a model and returns the id of the one that is there, if any.
func (p *planner) model(w docModel, have []object) (string, error) {
	home, err := p.home(w.Organization)
	if err != nil {
		return "", err
	}
	targets := make([]func() object, 0, len(w.Targets))
	served := make([]string, 0, len(w.Targets))
	for _, t := range w.Targets {
		provider := p.providers[w.Organization+"/"+t.Provider]
		if provider == nil {
			provider = p.providers["/"+t.Provider]
		}
		if provider == nil {
			return "", fmt.Errorf("there is no provider %q", t.Provider)
		}
		weight := max(t.Weight, 1)
		served = append(served, fmt.Sprintf("%s=%s,weight=%d,priority=%d", t.Provider, t.UpstreamModel, weight, t.Priority))
		targets = append(targets, func() object {
			return object{"provider_id": *provider, "upstream_model": t.UpstreamModel, "weight": weight, "priority": t.Priority}
		})
	}
	bodies := func() []object {
		all := make([]object, 0, len(targets))
		for _, target := range targets {
			all = append(all, target())
		}
		return all
	}
	name := strings.TrimPrefix(w.Organization+"/"+w.Name, "/")
	found := find(ofHome(have, home), "name", w.Name)
	if found == nil {
		p.row("models", "model", name, object{"name": w.Name}, nil, func() (object, error) {
			body := inHome(home)
			body["targets"] = bodies()
			return body, nil
		})
		return "", nil
	}
	id := text(found, "id")
	if now := servedBy(found); !slices.Equal(now, served) {
		p.add(step{"change", "model", name, []diff{{"targets", now, served}}, func(ctx context.Context) error {
			_, err := p.api.send(ctx, http.MethodPatch, "/models/"+id, object{"targets": bodies()})
			return err
		}})
	}
	return id, nil
}

func servedBy(model object) []string {
	targets, _ := model["targets"].([]any)
	served := make([]string, 0, len(targets))
	for _, t := range targets {
		if t, ok := t.(object); ok {
			served = append(served, fmt.Sprintf("%s=%s,weight=%s,priority=%s",
				text(t, "provider_name"), text(t, "upstream_model"), text(t, "weight"), text(t, "priority")))
		}
	}
	return served
}

// allGuardrails plans the guardrails of a document. One is known by its name and its scope.
func (p *planner) allGuardrails(ctx context.Context, want []docGuardrail) error {
	if want == nil {
		return nil
	}
	have, err := p.api.all(ctx, "/guardrails", nil)
	if err != nil {
		return err
	}
	kept := make(map[string]bool)
	for _, w := range want {
		found, err := p.guardrail(ctx, w, have)
		if err != nil {
			return fmt.Errorf("guardrail %s: %w", w.Name, err)
		}
		kept[found] = true
	}
	p.drop("guardrails", "guardrail", ofHome(have, nil), "", func(o object) bool { return kept[text(o, "id")] })
	return nil
}

// guardrail plans one and returns the id of the one that is there, if any.
func (p *planner) guardrail(ctx context.Context, w docGuardrail, have []object) (string, error) {
	want, err := bodyOf(w)
	if err != nil {
		return "", err
	}
	kind, id := scopePlatform, new(string)
	switch {
	case w.Scope.Type == "" || w.Scope.Type == scopePlatform:
	case w.Scope.Type == "organization":
		kind = w.Scope.Type
		if id = p.orgs[w.Scope.Name]; id == nil {
			return "", fmt.Errorf("there is no organization %q", w.Scope.Name)
		}
	default:
		if kind, *id, err = p.api.scope(ctx, w.Scope.Type+":"+w.Scope.Name); err != nil {
			return "", err
		}
	}
	i := slices.IndexFunc(have, func(o object) bool {
		scope, _ := o["scope"].(object)
		at, _ := scope["id"].(string)
		return text(o, "name") == w.Name && text(scope, "type") == kind && at == *id
	})
	var found object
	if i >= 0 {
		found = have[i]
		if w.Secret != "" && (p.credentials || found["secret_set"] != true) {
			want["secret"] = w.Secret
		}
	}
	p.row("guardrails", "guardrail", w.Name, want, found, func() (object, error) {
		body := object{"scope": object{"type": kind}}
		if *id != "" {
			body["scope"] = object{"type": kind, "id": *id}
		}
		if w.Secret != "" {
			body["secret"] = w.Secret
		}
		return body, nil
	})
	return text(found, "id"), nil
}

// price plans what differs from the newest version of a model's prices.
func (p *planner) price(ctx context.Context, w docPrice) error {
	if w.Free == (len(w.USDPerMillion) > 0) {
		return fmt.Errorf("%s %s needs either free or usd_per_million", w.Provider, w.UpstreamModel)
	}
	versions, _, err := p.api.some(ctx, "/prices", url.Values{"provider": {w.Provider}, "upstream_model": {w.UpstreamModel}}, 1)
	if err != nil {
		return err
	}
	now := object{}
	free := false
	if len(versions) > 0 {
		free = versions[0]["free"] == true
		if tiers, ok := versions[0]["tiers"].([]any); ok && len(tiers) > 0 {
			if first, ok := tiers[0].(object); ok {
				now, _ = first["usd_per_million"].(object)
			}
		}
	}
	name := w.Provider + "/" + w.UpstreamModel
	base := object{"provider": w.Provider, "upstream_model": w.UpstreamModel}
	if w.EffectiveFrom != "" {
		base["effective_from"] = w.EffectiveFrom
	}
	if w.Free {
		if !free {
			p.addPrice(base, name, diff{"free", free, true}, object{"free": true})
		}
		return nil
	}
	units := make([]string, 0, len(w.USDPerMillion))
	for unit := range w.USDPerMillion {
		units = append(units, unit)
	}
	slices.Sort(units)
	for _, unit := range units {
		price := w.USDPerMillion[unit]
		if !same(price, now[unit]) {
			p.addPrice(base, name, diff{unit, now[unit], price}, object{"unit": unit, "usd_per_million": price})
		}
	}
	return nil
}

func (p *planner) addPrice(base object, name string, d diff, with object) {
	action := "change"
	if d.from == nil {
		action = "create"
	}
	p.add(step{action, "price", name, []diff{d}, func(ctx context.Context) error {
		body := object{}
		for _, part := range []object{base, with} {
			for member, v := range part {
				body[member] = v
			}
		}
		_, err := p.api.send(ctx, http.MethodPost, "/prices", body)
		return err
	}})
}

// compare lists the members of want that have differently.
func compare(want, have object) []diff {
	var diffs []diff
	for member, to := range want {
		if from := have[member]; !same(to, from) {
			if member == "credential" || member == "secret" {
				from = "stored"
			}
			diffs = append(diffs, diff{member, from, to})
		}
	}
	slices.SortFunc(diffs, func(a, b diff) int { return strings.Compare(a.member, b.member) })
	return diffs
}

// same compares two values as the API means them: 12.50 is 12.5, and an instant is the same in each zone.
func same(a, b any) bool { return canonical(a) == canonical(b) }

func canonical(v any) string {
	switch v := v.(type) {
	case string:
		if t, err := time.Parse(time.RFC3339Nano, v); err == nil {
			return t.UTC().Format(time.RFC3339Nano)
		}
		if strings.Contains(v, ".") && strings.Trim(v, "0123456789.") == "" {
			return strings.TrimSuffix(strings.TrimRight(v, "0"), ".")
		}
		return v
	case json.Number:
		return canonical(v.String())
	case nil:
		return "\x00null"
	}
	encoded, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(encoded)
}

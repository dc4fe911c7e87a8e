package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/alecthomas/kong"
)

// resource is what the commands of one resource share.
type resource struct {
	path    string // in the API, plural
	prefix  string // of its ids
	columns []column
}

func organizations() resource {
	return resource{"organizations", "org", []column{
		{"ID", "id"},
		{"NAME", "name"},
		{"BLOCKED", "blocked"},
		{"BUDGET STATUS", "budget_status"},
		{"REQUIRES BUDGET", "require_budget"},
		{"REQUIRES", "require"},
		{"CREATED", "created_at"},
	}}
}

func teams() resource {
	return resource{"teams", "team", []column{
		{"ID", "id"}, {"NAME", "name"}, {"ORGANIZATION", "organization_name"}, {"MODELS", "models"}, {"BLOCKED", "blocked"}, {"CREATED", "created_at"},
	}}
}

func keys() resource {
	return resource{"keys", "key", []column{
		{"ID", "id"},
		{"NAME", "name"},
		{"STATUS", "status"},
		{"ORGANIZATION", "organization_name"},
		{"TEAM", "team_name"},
		{"KEY", "hint"},
		{"EXPIRES", "expires_at"},
		{"LAST USED", "last_used_at"},
	}}
}

func users() resource {
	return resource{"users", "user", []column{
		{"ID", "id"}, {"NAME", "name"}, {"EMAIL", "email"}, {"ORGANIZATION", "organization_name"}, {"BLOCKED", "blocked"}, {"CREATED", "created_at"},
	}}
}

func providers() resource {
	return resource{"providers", "prov", []column{
		{"ID", "id"}, {"NAME", "name"}, {"KIND", "kind"}, {"URL", "base_url"}, {"PRICES", "priced_as"}, {"CREDENTIAL", "credential_set"}, {"ORGANIZATION", "organization_id"},
	}}
}

func models() resource {
	return resource{"models", "model", []column{
		{"ID", "id"}, {"NAME", "name"}, {"ORGANIZATION", "organization_id"}, {"TARGETS", "served_by"}, {"CREATED", "created_at"},
	}}
}

func limits() resource {
	return resource{"limits", "lim", []column{
		{"ID", "id"},
		{"SCOPE", "counts"},
		{"KIND", "kind"},
		{"METRIC", "metric"},
		{"AMOUNT", "amount"},
		{"PER", "period"},
		{"ENFORCEMENT", "enforcement"},
		{"MODE", "mode"},
		{"EXPIRES", "expires_at"},
	}}
}

func prices() resource {
	return resource{"prices", "price", []column{
		{"ID", "id"}, {"PROVIDER", "provider"}, {"MODEL", "upstream_model"}, {"USD PER MILLION", "prices"}, {"FREE", "free"}, {"FROM", "effective_from"},
	}}
}

// ruleInShort says what a guardrail's rule looks for, as far as there is room.
func ruleInShort(rule object) string {
	const room = 60
	for _, member := range []string{"patterns", "words", "kinds", "bytes", "tokens", "url"} {
		if v := rule[member]; v != nil {
			short := []rune(text(rule, "type") + ": " + cell(v))
			if len(short) > room {
				short = append(short[:room-1], '…')
			}
			return string(short)
		}
	}
	return text(rule, "type")
}

// tell adds what a table shows but the API does not say in one member.
func tell(o object) object {
	if scope, ok := o["scope"].(object); ok {
		name := text(o, "scope_name")
		if name == "-" {
			name = text(scope, "id")
		}
		o["counts"] = text(scope, "type") + ":" + name
		o["period"] = o["per"]
		if w, ok := o["window"].(object); ok {
			o["period"] = strings.TrimPrefix(strings.TrimSuffix(text(w, "type")+" "+text(w, "period"), " -"), "calendar ")
			if d := text(w, "duration"); d != "-" {
				o["period"] = d
			}
		}
		if o["amount"] == nil {
			o["amount"] = wordUnlimited
		}
		if rule, ok := o["rule"].(object); ok {
			o["looks_for"] = ruleInShort(rule)
			o["counts"] = strings.TrimSuffix(text(o, "counts"), ":-")
			o["concerns"] = o["models"]
			if models, _ := o["models"].([]any); len(models) == 0 {
				o["concerns"] = "all"
			}
		}
	}
	if name, ok := o["price_provider"].(string); ok {
		o["priced_as"] = cmp.Or(name, text(o, "name"))
	}
	if targets, ok := o["targets"].([]any); ok {
		served := make([]string, 0, len(targets))
		for _, t := range targets {
			if t, ok := t.(object); ok {
				served = append(served, text(t, "provider_name")+"="+text(t, "upstream_model"))
			}
		}
		o["served_by"] = strings.Join(served, ", ")
	}
	if tiers, ok := o["tiers"].([]any); ok && len(tiers) > 0 {
		o["prices"] = tellPrices(tiers)
	}
	return o
}

func tellPrices(tiers []any) string {
	var parts []string
	first, ok := tiers[0].(object)
	if !ok {
		return "-"
	}
	units, _ := first["usd_per_million"].(object)
	for _, u := range []string{"input", "cache_read", "output"} {
		if units[u] != nil {
			parts = append(parts, u+" "+text(units, u))
		}
	}
	if more := len(units) - len(parts) + len(tiers) - 1; more > 0 {
		parts = append(parts, fmt.Sprintf("+%d", more))
	}
	return strings.Join(parts, ", ")
}

// list prints the resources that a query finds.
func (r resource) list(ctx context.Context, k *kong.Context, c *client, query url.Values, most int) error {
	items, more, err := c.some(ctx, "/"+r.path, query, most)
	if err != nil {
		return err
	}
	if c.Output == "table" {
		for _, item := range items {
			tell(item)
		}
	}
	if err := c.printer(k.Stdout).list(items, r.columns); err != nil {
		return err
	}
	if more {
		fmt.Fprintf(k.Stderr, "There are more: --max 0 lists all.\n")
	}
	return nil
}

// show prints one resource.
func (r resource) show(k *kong.Context, c *client, answer []byte) error {
	var o object
	if err := decode(answer, &o); err != nil {
		return err
	}
	if c.Output != "table" {
		return c.printer(k.Stdout).one(o, nil)
	}
	own, _ := o["limits"].([]any)
	columns := r.columns
	if o["key"] != nil {
		columns = append([]column{{"SECRET", "key"}}, columns...)
		fmt.Fprintln(k.Stderr, "Keep the secret now: it cannot be shown again.")
	}
	if err := c.printer(k.Stdout).one(tell(o), columns); err != nil || len(own) == 0 {
		return err
	}
	fmt.Fprintln(k.Stdout)
	items := make([]object, 0, len(own))
	for _, l := range own {
		if l, ok := l.(object); ok {
			items = append(items, tell(l))
		}
	}
	return c.printer(k.Stdout).list(items, limits().columns)
}

func (r resource) create(ctx context.Context, k *kong.Context, c *client, body object) error {
	answer, err := c.send(ctx, http.MethodPost, "/"+r.path, body)
	if err != nil {
		return err
	}
	return r.show(k, c, answer)
}

func (r resource) update(ctx context.Context, k *kong.Context, c *client, given string, body object) error {
	if len(body) == 0 {
		return fmt.Errorf("nothing to change\nTry: tollgate %s update --help", command(r.path))
	}
	id, err := c.idOf(ctx, r.path, r.prefix, given, nil)
	if err != nil {
		return err
	}
	answer, err := c.send(ctx, http.MethodPatch, "/"+r.path+"/"+id, body)
	if err != nil {
		return err
	}
	return r.show(k, c, answer)
}

// listFlags are the flags of every list.
type listFlags struct {
	client

	Max     atMost `default:"200" help:"Items at most; 0: all."`
	Deleted bool   `help:"Deleted ones too."`
}

func (f listFlags) query() url.Values {
	q := url.Values{}
	if f.Deleted {
		q.Set("deleted", "true")
	}
	return q
}

// named is a resource that a command is about.
type named struct {
	client

	ID string `arg:"" help:"Id or name."`
}

func (n *named) get(ctx context.Context, k *kong.Context, r resource) error {
	id, err := n.idOf(ctx, r.path, r.prefix, n.ID, nil)
	if err != nil {
		return err
	}
	answer, err := n.client.get(ctx, "/"+r.path+"/"+id, nil)
	if err != nil {
		return err
	}
	return r.show(k, &n.client, answer)
}

func (n *named) delete(ctx context.Context, k *kong.Context, r resource) error {
	id, err := n.idOf(ctx, r.path, r.prefix, n.ID, nil)
	if err != nil {
		return err
	}
	if _, err := n.send(ctx, http.MethodDelete, "/"+r.path+"/"+id, nil); err != nil {
		return err
	}
	if n.Output != "table" {
		return n.printer(k.Stdout).raw(object{"id": id, "deleted": true})
	}
	_, err = fmt.Fprintf(k.Stdout, "deleted %s\n", id)
	return err
}

// inOrganization adds the organization that a flag names to a body or query.
func (c *client) organization(ctx context.Context, given string) (string, error) {
	return c.idOf(ctx, "organizations", "org", given, nil)
}

// set puts a flag that was given into a body.
func set[T any](body object, member string, flag *T) {
	if flag != nil {
		body[member] = *flag
	}
}

type orgsCommand struct {
	List   orgsList   `cmd:"" help:"List organizations."`
	Get    orgsGet    `cmd:"" help:"Show an organization."`
	Create orgsCreate `cmd:"" help:"Create an organization."`
	Update orgsUpdate `cmd:"" help:"Change an organization."`
	Delete orgsDelete `cmd:"" help:"Delete an organization; its keys stop at once."`
}

type orgsList struct{ listFlags }

func (o *orgsList) Run(ctx context.Context, k *kong.Context) error {
	return organizations().list(ctx, k, &o.client, o.query(), int(o.Max))
}

type orgsGet struct{ named }

func (o *orgsGet) Run(ctx context.Context, k *kong.Context) error {
	return o.get(ctx, k, organizations())
}

type orgsDelete struct{ named }

func (o *orgsDelete) Run(ctx context.Context, k *kong.Context) error {
	return o.delete(ctx, k, organizations())
}

// orgFlags are what can be set on an organization.
type orgFlags struct {
	BudgetStatus  *int     `enum:"402,429" help:"HTTP status of an exhausted budget: 429 or 402." placeholder:"STATUS"`
	RequireBudget *bool    `help:"Refuse keys and teams without a money budget in their chain." negatable:""`
	Require       []string `help:"What each request must name: end_user, tags.NAME." placeholder:"NAME"`
	Blocked       *bool    `help:"Refuse every call." negatable:""`
}

func (f orgFlags) body() object {
	body := object{}
	set(body, "budget_status", f.BudgetStatus)
	set(body, "require_budget", f.RequireBudget)
	set(body, "blocked", f.Blocked)
	if f.Require != nil {
		body["require"] = f.Require
	}
	return body
}

type orgsCreate struct {
	client
	orgFlags

	Name string `arg:"" help:"Its name."`
}

// Help is shown by --help.
func (orgsCreate) Help() string {
	return "Example:\n  tollgate orgs create acme --require-budget"
}

func (o *orgsCreate) Run(ctx context.Context, k *kong.Context) error {
	body := o.body()
	body["name"] = o.Name
	return organizations().create(ctx, k, &o.client, body)
}

type orgsUpdate struct {
	named
	orgFlags

	Name *string `help:"Another name." placeholder:"NAME"`
}

// Help is shown by --help.
func (orgsUpdate) Help() string {
	return "Example:\n  tollgate orgs update acme --blocked"
}

func (o *orgsUpdate) Run(ctx context.Context, k *kong.Context) error {
	body := o.body()
	set(body, "name", o.Name)
	return organizations().update(ctx, k, &o.client, o.ID, body)
}

type teamsCommand struct {
	List   teamsList   `cmd:"" help:"List teams."`
	Get    teamsGet    `cmd:"" help:"Show a team and its limits."`
	Create teamsCreate `cmd:"" help:"Create a team, with its limits."`
	Update teamsUpdate `cmd:"" help:"Change a team."`
	Delete teamsDelete `cmd:"" help:"Delete a team; its keys stop at once."`
}

type teamsList struct {
	listFlags

	Org string `help:"Only of this organization." placeholder:"ORG"`
}

func (t *teamsList) Run(ctx context.Context, k *kong.Context) error {
	query, err := t.inOrganization(ctx, t.Org)
	if err != nil {
		return err
	}
	return teams().list(ctx, k, &t.client, query, int(t.Max))
}

// inOrganization is the query of a list that may be narrowed to an organization.
func (f *listFlags) inOrganization(ctx context.Context, given string) (url.Values, error) {
	query := f.query()
	if given == "" {
		return query, nil
	}
	id, err := f.organization(ctx, given)
	query.Set("organization_id", id)
	return query, err
}

type teamsGet struct{ named }

func (t *teamsGet) Run(ctx context.Context, k *kong.Context) error { return t.get(ctx, k, teams()) }

type teamsDelete struct{ named }

func (t *teamsDelete) Run(ctx context.Context, k *kong.Context) error {
	return t.delete(ctx, k, teams())
}

type teamsCreate struct {
	client
	firstLimits

	Name   string   `arg:"" help:"Its name."`
	Org    string   `required:"" help:"Its organization." placeholder:"ORG"`
	Models []string `help:"Patterns that narrow its keys' models; none: no model." placeholder:"PATTERN"`
}

// Help is shown by --help.
func (teamsCreate) Help() string {
	return `The limits are made in the same transaction, so that the team is never without them.

Example:
  tollgate teams create research --org acme --budget 500/month --rate 600/1m --models 'gpt-*'`
}

func (t *teamsCreate) Run(ctx context.Context, k *kong.Context) error {
	org, err := t.organization(ctx, t.Org)
	if err != nil {
		return err
	}
	body := object{"name": t.Name, "organization_id": org}
	if t.Models != nil {
		body["models"] = patterns(t.Models)
	}
	if body["limits"], err = t.limits(); err != nil {
		return err
	}
	return teams().create(ctx, k, &t.client, body)
}

type teamsUpdate struct {
	named

	Name    *string  `help:"Another name." placeholder:"NAME"`
	Models  []string `help:"Patterns that narrow its keys' models; all: no narrowing, none: no model." placeholder:"PATTERN"`
	Blocked *bool    `help:"Refuse every call of its keys." negatable:""`
}

func (t *teamsUpdate) Run(ctx context.Context, k *kong.Context) error {
	body := object{}
	set(body, "name", t.Name)
	set(body, "blocked", t.Blocked)
	if t.Models != nil {
		body["models"] = patterns(t.Models)
	}
	return teams().update(ctx, k, &t.client, t.ID, body)
}

type usersCommand struct {
	List   usersList   `cmd:"" help:"List users."`
	Get    usersGet    `cmd:"" help:"Show a user."`
	Create usersCreate `cmd:"" help:"Create a user."`
	Update usersUpdate `cmd:"" help:"Change a user."`
	Delete usersDelete `cmd:"" help:"Delete a user."`
}

type usersList struct {
	listFlags

	Org string `help:"Only of this organization." placeholder:"ORG"`
}

func (u *usersList) Run(ctx context.Context, k *kong.Context) error {
	query, err := u.inOrganization(ctx, u.Org)
	if err != nil {
		return err
	}
	return users().list(ctx, k, &u.client, query, int(u.Max))
}

type usersGet struct{ named }

func (u *usersGet) Run(ctx context.Context, k *kong.Context) error { return u.get(ctx, k, users()) }

type usersDelete struct{ named }

func (u *usersDelete) Run(ctx context.Context, k *kong.Context) error {
	return u.delete(ctx, k, users())
}

type usersCreate struct {
	client

	Name  string `arg:"" help:"The person's name."`
	Org   string `required:"" help:"The person's organization." placeholder:"ORG"`
	Email string `help:"Address." placeholder:"ADDRESS"`
}

func (u *usersCreate) Run(ctx context.Context, k *kong.Context) error {
	org, err := u.organization(ctx, u.Org)
	if err != nil {
		return err
	}
	body := object{"name": u.Name, "organization_id": org}
	if u.Email != "" {
		body["email"] = u.Email
	}
	return users().create(ctx, k, &u.client, body)
}

type usersUpdate struct {
	named

	Name    *string `help:"Another name." placeholder:"NAME"`
	Email   *string `help:"Another address." placeholder:"ADDRESS"`
	Blocked *bool   `help:"Refuse every call in the user's name." negatable:""`
}

func (u *usersUpdate) Run(ctx context.Context, k *kong.Context) error {
	body := object{}
	set(body, "name", u.Name)
	set(body, "email", u.Email)
	set(body, "blocked", u.Blocked)
	return users().update(ctx, k, &u.client, u.ID, body)
}

type providersCommand struct {
	List   providersList   `cmd:"" help:"List providers."`
	Kinds  providersKinds  `cmd:"" help:"List the kinds of provider that can be created."`
	Get    providersGet    `cmd:"" help:"Show a provider; its credential is never shown."`
	Create providersCreate `cmd:"" help:"Create a provider."`
	Update providersUpdate `cmd:"" help:"Change a provider."`
	Delete providersDelete `cmd:"" help:"Delete a provider."`
}

type providersList struct {
	listFlags

	Org string `help:"Only of this organization." placeholder:"ORG"`
}

func (p *providersList) Run(ctx context.Context, k *kong.Context) error {
	query, err := p.inOrganization(ctx, p.Org)
	if err != nil {
		return err
	}
	return providers().list(ctx, k, &p.client, query, int(p.Max))
}

type providersKinds struct{ client }

func (p *providersKinds) Run(ctx context.Context, k *kong.Context) error {
	answer, err := p.client.get(ctx, "/provider-kinds", nil)
	if err != nil {
		return err
	}
	var kinds struct{ Items []object }
	if err := decode(answer, &kinds); err != nil {
		return err
	}
	items := kinds.Items
	if p.Output == "table" {
		for _, item := range items {
			item["address"] = item["base_url"]
			if item["address"] == "" {
				item["address"] = "e.g. " + text(item, "example_url")
			}
			item["dialects"] = joined(item["dialects"])
		}
	}
	return p.printer(k.Stdout).list(items, []column{{"KIND", "kind"}, {"TITLE", "title"}, {"BASE URL", "address"}, {"DIALECTS", "dialects"}})
}

// joined tells a list of texts.
func joined(list any) string {
	all, _ := list.([]any)
	texts := make([]string, 0, len(all))
	for _, each := range all {
		texts = append(texts, fmt.Sprint(each))
	}
	return strings.Join(texts, ", ")
}

type providersGet struct{ named }

func (p *providersGet) Run(ctx context.Context, k *kong.Context) error {
	return p.get(ctx, k, providers())
}

type providersDelete struct{ named }

func (p *providersDelete) Run(ctx context.Context, k *kong.Context) error {
	return p.delete(ctx, k, providers())
}

type providersCreate struct {
	client

	Name          string `arg:"" help:"Its name."`
	Kind          string `default:"openai" help:"What it is: one of the kinds that tollgate providers kinds lists."`
	BaseURL       string `name:"base-url" help:"Where it is, if not where its kind is." placeholder:"URL"`
	Credential    string `help:"env:NAME or file:PATH; never the credential itself, which would stay in the shell's history." placeholder:"REFERENCE"`
	PriceProvider string `help:"Its name in the price book, if another." placeholder:"NAME"`
	Org           string `help:"Make it this organization's own; without it, it is the platform's." placeholder:"ORG"`
}

// Help is shown by --help.
func (providersCreate) Help() string {
	return `Example:
  tollgate providers create openai --credential env:OPENAI_API_KEY
  tollgate providers create groq --kind groq --credential env:GROQ_API_KEY
  tollgate providers create ours --kind vllm --base-url http://10.0.0.7:8000/v1`
}

func (p *providersCreate) Run(ctx context.Context, k *kong.Context) error {
	body := object{"name": p.Name, "kind": p.Kind}
	if p.BaseURL != "" {
		body["base_url"] = p.BaseURL
	}
	if p.PriceProvider != "" {
		body["price_provider"] = p.PriceProvider
	}
	if p.Credential != "" {
		credential, err := credentialOf("--credential", p.Credential)
		if err != nil {
			return err
		}
		body["credential"] = credential
	}
	if p.Org != "" {
		org, err := p.organization(ctx, p.Org)
		if err != nil {
			return err
		}
		body["organization_id"] = org
	}
	return providers().create(ctx, k, &p.client, body)
}

type providersUpdate struct {
	named

	Name          *string `help:"Another name." placeholder:"NAME"`
	BaseURL       *string `name:"base-url" help:"Another place; another host needs the credential again." placeholder:"URL"`
	Credential    string  `help:"env:NAME or file:PATH." placeholder:"REFERENCE"`
	PriceProvider *string `help:"Its name in the price book." placeholder:"NAME"`
}

func (p *providersUpdate) Run(ctx context.Context, k *kong.Context) error {
	body := object{}
	set(body, "name", p.Name)
	set(body, "base_url", p.BaseURL)
	set(body, "price_provider", p.PriceProvider)
	if p.Credential != "" {
		credential, err := credentialOf("--credential", p.Credential)
		if err != nil {
			return err
		}
		body["credential"] = credential
	}
	return providers().update(ctx, k, &p.client, p.ID, body)
}

type modelsCommand struct {
	List   modelsList   `cmd:"" help:"List models."`
	Get    modelsGet    `cmd:"" help:"Show a model."`
	Create modelsCreate `cmd:"" help:"Create a model."`
	Update modelsUpdate `cmd:"" help:"Change a model."`
	Delete modelsDelete `cmd:"" help:"Delete a model."`
}

type modelsList struct {
	listFlags

	Org string `help:"Only of this organization." placeholder:"ORG"`
}

func (m *modelsList) Run(ctx context.Context, k *kong.Context) error {
	query, err := m.inOrganization(ctx, m.Org)
	if err != nil {
		return err
	}
	return models().list(ctx, k, &m.client, query, int(m.Max))
}

type modelsGet struct{ named }

func (m *modelsGet) Run(ctx context.Context, k *kong.Context) error { return m.get(ctx, k, models()) }

type modelsDelete struct{ named }

func (m *modelsDelete) Run(ctx context.Context, k *kong.Context) error {
	return m.delete(ctx, k, models())
}

// targetFlags say what serves a model.
type targetFlags struct {
	Target []string `placeholder:"PROVIDER=MODEL" sep:"none" help:"What serves it: PROVIDER=MODEL[,weight=N][,priority=N]. May be repeated; lower priorities are tried first."`
}

func (f targetFlags) targets(ctx context.Context, c *client) ([]object, error) {
	targets := make([]object, 0, len(f.Target))
	for _, given := range f.Target {
		provider, target, err := targetOf(given)
		if err != nil {
			return nil, err
		}
		if target["provider_id"], err = c.idOf(ctx, "providers", "prov", provider, nil); err != nil {
			return nil, err
		}
		targets = append(targets, target)
	}
	return targets, nil
}

type modelsCreate struct {
	client
	targetFlags

	Name string `arg:"" help:"What clients ask for."`
	Org  string `help:"Make it this organization's own; without it, it is the platform's." placeholder:"ORG"`
}

// Help is shown by --help.
func (modelsCreate) Help() string {
	return `Example:
  tollgate models create gpt-4o --target openai=gpt-4o --target azure=gpt-4o-eu,priority=1`
}

func (m *modelsCreate) Run(ctx context.Context, k *kong.Context) error {
	targets, err := m.targets(ctx, &m.client)
	if err != nil {
		return err
	}
	body := object{"name": m.Name, "targets": targets}
	if m.Org != "" {
		if body["organization_id"], err = m.organization(ctx, m.Org); err != nil {
			return err
		}
	}
	return models().create(ctx, k, &m.client, body)
}

type modelsUpdate struct {
	named
	targetFlags

	Name *string `help:"Another name." placeholder:"NAME"`
}

func (m *modelsUpdate) Run(ctx context.Context, k *kong.Context) error {
	body := object{}
	set(body, "name", m.Name)
	if len(m.Target) > 0 {
		targets, err := m.targets(ctx, &m.client)
		if err != nil {
			return err
		}
		body["targets"] = targets
	}
	return models().update(ctx, k, &m.client, m.ID, body)
}

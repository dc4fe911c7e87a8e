package cli

import (
	"context"
	"fmt"
	"net/http"

	"github.com/alecthomas/kong"
)

type limitsCommand struct {
	List   limitsList   `cmd:"" help:"List limits."`
	Get    limitsGet    `cmd:"" help:"Show a limit."`
	State  limitsState  `cmd:"" help:"Show what is spent, held, owed and left of a limit."`
	Create limitsCreate `cmd:"" help:"Create a limit."`
	Update limitsUpdate `cmd:"" help:"Change a limit. What is spent, held and owed stays."`
	Delete limitsDelete `cmd:"" help:"Delete a limit; its effect ends at once."`
}

type limitsList struct {
	listFlags

	Scope string `help:"Only of this scope, such as team:research." placeholder:"TYPE:ID"`
	Org   string `help:"Only of this organization." placeholder:"ORG"`
}

func (c *limitsList) Run(ctx context.Context, k *kong.Context) error {
	query, err := c.inOrganization(ctx, c.Org)
	if err != nil {
		return err
	}
	if c.Scope != "" {
		kind, id, err := c.scope(ctx, c.Scope)
		if err != nil {
			return err
		}
		query.Set("scope_type", kind)
		query.Set("scope_id", id)
	}
	return limits().list(ctx, k, &c.client, query, int(c.Max))
}

// scope reads TYPE:ID, where ID may be a name.
func (c *client) scope(ctx context.Context, given string) (kind, id string, err error) {
	kind, id, err = scopeOf(given)
	if err != nil || id == "*" || kind == "end_user" {
		return kind, id, err
	}
	for _, r := range []resource{organizations(), teams(), keys(), users(), models()} {
		if kind+"s" == r.path {
			id, err = c.idOf(ctx, r.path, r.prefix, id, nil)
		}
	}
	return kind, id, err
}

// limitID is a limit that a command is about. Limits have no names.
type limitID struct {
	client

	ID string `arg:"" help:"Id, such as lim_4Tz0aQ9LmX2b."`
}

type limitsGet struct{ limitID }

func (c *limitsGet) Run(ctx context.Context, k *kong.Context) error {
	answer, err := c.get(ctx, "/limits/"+c.ID, nil)
	if err != nil {
		return err
	}
	return limits().show(k, &c.client, answer)
}

type limitsDelete struct{ limitID }

func (c *limitsDelete) Run(ctx context.Context, k *kong.Context) error {
	n := named{client: c.client, ID: c.ID}
	return n.delete(ctx, k, limits())
}

type limitsState struct{ limitID }

func (c *limitsState) Run(ctx context.Context, k *kong.Context) error {
	answer, err := c.get(ctx, "/limits/"+c.ID+"/state", nil)
	if err != nil {
		return err
	}
	var o object
	if err := decode(answer, &o); err != nil {
		return err
	}
	p := c.printer(k.Stdout)
	err = p.one(o, []column{
		{"LIMIT", "id"},
		{"AMOUNT", "amount"},
		{"SPENT", "spent"},
		{"HELD", "held"},
		{"DEBT", "debt"},
		{"REMAINING", "remaining"},
		{"RESETS", "resets_at"},
		{"AS OF", "as_of"},
		{"ENFORCEMENT", "enforcement"},
		{"MAY EXCEED BY", "bound"},
		{"MODE", "mode"},
	})
	members, _ := o["members"].([]any)
	if err != nil || c.Output != "table" || len(members) == 0 {
		return err
	}
	items := make([]object, 0, len(members))
	for _, m := range members {
		if m, ok := m.(object); ok {
			items = append(items, m)
		}
	}
	fmt.Fprintln(k.Stdout)
	return p.list(items, []column{
		{"MEMBER", "id"}, {"NAME", "name"}, {"SPENT", "spent"}, {"HELD", "held"}, {"DEBT", "debt"}, {"REMAINING", "remaining"}, {"RESETS", "resets_at"},
	})
}

// limitPolicy are the flags that create and update share.
type limitPolicy struct {
	Burst       *string `help:"Capacity of a rate's bucket; without it the amount." placeholder:"N"`
	Reserve     *string `enum:"declared,expected,maximum" help:"What output a call reserves: declared, expected, maximum." placeholder:"POLICY"`
	Enforcement *string `enum:"exact,convergent,advisory" help:"exact (default), convergent, advisory." placeholder:"STRENGTH"`
	Mode        *string `enum:"enforce,log" help:"enforce (default), or log: count what it would refuse." placeholder:"MODE"`
	ExpiresAt   *string `help:"When it ends, or never." placeholder:"TIME"`
	Reason      *string `help:"Why it is there." placeholder:"TEXT"`
}

func (p limitPolicy) body() object {
	body := object{}
	set(body, "burst", p.Burst)
	set(body, "reserve", p.Reserve)
	set(body, "enforcement", p.Enforcement)
	set(body, "mode", p.Mode)
	set(body, "expires_at", p.ExpiresAt)
	set(body, "reason", p.Reason)
	if p.ExpiresAt != nil && *p.ExpiresAt == wordNever {
		body["expires_at"] = nil
	}
	return body
}

type limitsCreate struct {
	client
	limitPolicy

	Scope    string   `required:"" help:"Whose use it counts: TYPE:ID, or TYPE:* for each member." placeholder:"TYPE:ID"`
	Within   string   `help:"With *: only members of this parent." placeholder:"TYPE:ID"`
	Org      string   `help:"Count this organization only." placeholder:"ORG"`
	Kind     string   `required:"" enum:"rate,budget,concurrency" help:"rate, budget or concurrency." placeholder:"KIND"`
	Metric   string   `default:"requests" enum:"requests,tokens,input_tokens,output_tokens,cost" help:"${enum}." placeholder:"METRIC"`
	Amount   string   `required:"" help:"US dollars for cost, else whole; or unlimited." placeholder:"N"`
	Per      string   `help:"Of rates: 1s, 1m, 1h, 24h." placeholder:"PER"`
	Window   string   `help:"Of budgets: day, week, month, quarter, year, total, or a duration such as 24h." placeholder:"PERIOD"`
	TimeZone string   `help:"Of calendar windows; without it UTC." placeholder:"ZONE"`
	Models   []string `help:"Count calls of these models only." placeholder:"PATTERN"`
	Routes   []string `help:"Count calls of these routes only." placeholder:"ROUTE"`
}

// Help is shown by --help.
func (limitsCreate) Help() string {
	return `Examples:
  tollgate limits create --scope team:research --kind budget --metric cost --amount 500 --window month --time-zone Europe/Paris
  tollgate limits create --scope 'key:*' --kind rate --amount 600 --per 1m
  tollgate limits create --scope 'end_user:*' --org acme --kind budget --metric cost --amount 2 --window day --mode log`
}

func (c *limitsCreate) Run(ctx context.Context, k *kong.Context) error {
	body := c.body()
	kind, id, err := c.scope(ctx, c.Scope)
	if err != nil {
		return err
	}
	scope := object{"type": kind, "id": id}
	if c.Within != "" {
		kind, id, err := c.scope(ctx, c.Within)
		if err != nil {
			return err
		}
		scope["within"] = object{"type": kind, "id": id}
	}
	body["scope"], body["kind"], body["metric"] = scope, c.Kind, c.Metric
	if c.Amount != wordUnlimited {
		body["amount"] = c.Amount
	}
	if c.Org != "" {
		if body["organization_id"], err = c.organization(ctx, c.Org); err != nil {
			return err
		}
	}
	if c.Per != "" {
		body["per"] = c.Per
	}
	if c.Window != "" {
		window := windowOf(c.Window)
		if c.TimeZone != "" {
			window["time_zone"] = c.TimeZone
		}
		body["window"] = window
	}
	if len(c.Models) > 0 {
		body["models"] = c.Models
	}
	if len(c.Routes) > 0 {
		body["routes"] = c.Routes
	}
	return limits().create(ctx, k, &c.client, body)
}

type limitsUpdate struct {
	limitID
	limitPolicy

	Amount *string `help:"US dollars for cost, else whole; or unlimited." placeholder:"N"`
}

// Help is shown by --help.
func (limitsUpdate) Help() string {
	return "Example:\n  tollgate limits update lim_4Tz0aQ9LmX2b --amount 750"
}

func (c *limitsUpdate) Run(ctx context.Context, k *kong.Context) error {
	body := c.body()
	set(body, "amount", c.Amount)
	if c.Amount != nil && *c.Amount == wordUnlimited {
		body["amount"] = nil
	}
	if len(body) == 0 {
		return fmt.Errorf("nothing to change\nTry: tollgate limits update --help")
	}
	answer, err := c.send(ctx, http.MethodPatch, "/limits/"+c.ID, body)
	if err != nil {
		return err
	}
	return limits().show(k, &c.client, answer)
}

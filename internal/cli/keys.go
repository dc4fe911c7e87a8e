package cli

import (
	"context"
	"fmt"
	"net/http"

	"github.com/alecthomas/kong"
)

type keysCommand struct {
	List   keysList   `cmd:"" help:"List keys."`
	Get    keysGet    `cmd:"" help:"Show a key and its own limits."`
	Limits keysLimits `cmd:"" help:"Show every limit that binds a key, and what is left of each."`
	Create keysCreate `cmd:"" help:"Issue a key, with its limits."`
	Update keysUpdate `cmd:"" help:"Change or block a key."`
	Rotate keysRotate `cmd:"" help:"Give a key a new secret; the old one works for a while."`
	Revoke keysRevoke `cmd:"" help:"End a key for good."`
	Delete keysDelete `cmd:"" help:"Delete a key."`
}

type keysList struct {
	listFlags

	Org  string `help:"Only of this organization." placeholder:"ORG"`
	Team string `help:"Only of this team." placeholder:"TEAM"`
}

func (c *keysList) Run(ctx context.Context, k *kong.Context) error {
	query, err := c.inOrganization(ctx, c.Org)
	if err != nil {
		return err
	}
	if c.Team != "" {
		id, err := c.idOf(ctx, "teams", "team", c.Team, nil)
		if err != nil {
			return err
		}
		query.Set("team_id", id)
	}
	return keys().list(ctx, k, &c.client, query, int(c.Max))
}

type keysGet struct{ named }

func (c *keysGet) Run(ctx context.Context, k *kong.Context) error { return c.get(ctx, k, keys()) }

type keysDelete struct{ named }

func (c *keysDelete) Run(ctx context.Context, k *kong.Context) error { return c.delete(ctx, k, keys()) }

type keysLimits struct{ named }

func (c *keysLimits) Run(ctx context.Context, k *kong.Context) error {
	id, err := c.idOf(ctx, "keys", "key", c.ID, nil)
	if err != nil {
		return err
	}
	answer, err := c.client.get(ctx, "/keys/"+id+"/limits", nil)
	if err != nil {
		return err
	}
	var page struct {
		Items []object `json:"items"`
	}
	if err := decode(answer, &page); err != nil {
		return err
	}
	if c.Output == "table" {
		for _, l := range page.Items {
			tell(l)["whose"] = text(l, "owner.type") + ":" + text(l, "owner.name")
		}
	}
	return c.printer(k.Stdout).list(page.Items, []column{
		{"LIMIT", "id"},
		{"OF", "whose"},
		{"KIND", "kind"},
		{"METRIC", "metric"},
		{"AMOUNT", "amount"},
		{"PER", "period"},
		{"SPENT", "state.spent"},
		{"HELD", "state.held"},
		{"DEBT", "state.debt"},
		{"REMAINING", "state.remaining"},
		{"RESETS", "state.resets_at"},
		{"MODE", "mode"},
		{"TIGHTEST", "tightest"},
	})
}

type keysCreate struct {
	client
	firstLimits

	Name         string   `arg:"" help:"Its name."`
	Team         string   `xor:"owner" required:"" help:"The team that it belongs to." placeholder:"TEAM"`
	Org          string   `xor:"owner" required:"" help:"Or the organization, without a team." placeholder:"ORG"`
	User         string   `help:"The user that it belongs to." placeholder:"USER"`
	Models       []string `help:"Patterns of what it may call; none: no model." placeholder:"PATTERN"`
	ExpiresAt    string   `help:"When it ends." placeholder:"TIME"`
	BudgetStatus *int     `enum:"402,429" help:"HTTP status of an exhausted budget, if not the organization's." placeholder:"STATUS"`
}

// Help is shown by --help.
func (keysCreate) Help() string {
	return `The secret is printed once and cannot be read again. The limits are made in the same transaction, so that the key is
never without them.

Examples:
  tollgate keys create ci --team research --budget 20/day --models 'gpt-*'
  KEY=$(tollgate keys create ci --team research -o json | jq -r .key)`
}

func (c *keysCreate) Run(ctx context.Context, k *kong.Context) (err error) {
	body := object{"name": c.Name}
	for _, ref := range []struct{ path, prefix, given, member string }{
		{"teams", "team", c.Team, "team_id"},
		{"organizations", "org", c.Org, "organization_id"},
		{"users", "user", c.User, "user_id"},
	} {
		if ref.given == "" {
			continue
		}
		if body[ref.member], err = c.idOf(ctx, ref.path, ref.prefix, ref.given, nil); err != nil {
			return err
		}
	}
	if c.Models != nil {
		body["models"] = patterns(c.Models)
	}
	if c.ExpiresAt != "" {
		body["expires_at"] = c.ExpiresAt
	}
	set(body, "budget_status", c.BudgetStatus)
	if body["limits"], err = c.limits(); err != nil {
		return err
	}
	return keys().create(ctx, k, &c.client, body)
}

type keysUpdate struct {
	named

	Name      *string  `help:"Another name." placeholder:"NAME"`
	Models    []string `help:"Patterns of what it may call; all, none." placeholder:"PATTERN"`
	ExpiresAt *string  `help:"When it ends, or never." placeholder:"TIME"`
	Blocked   *bool    `help:"Refuse its calls; --no-blocked lets them in again." negatable:""`
}

// Help is shown by --help.
func (keysUpdate) Help() string {
	return `Examples:
  tollgate keys update ci --blocked
  tollgate keys update ci --expires-at 2027-01-31T00:00:00Z`
}

func (c *keysUpdate) Run(ctx context.Context, k *kong.Context) error {
	body := object{}
	set(body, "name", c.Name)
	set(body, "blocked", c.Blocked)
	if c.Models != nil {
		body["models"] = patterns(c.Models)
	}
	set(body, "expires_at", c.ExpiresAt)
	if c.ExpiresAt != nil && *c.ExpiresAt == wordNever {
		body["expires_at"] = nil
	}
	return keys().update(ctx, k, &c.client, c.ID, body)
}

type keysRotate struct {
	named

	Grace string `default:"24h" help:"How long the old secret still works, such as 24h or 0s." placeholder:"DURATION"`
}

// Help is shown by --help.
func (keysRotate) Help() string {
	return "Example:\n  tollgate keys rotate ci --grace 1h"
}

func (c *keysRotate) Run(ctx context.Context, k *kong.Context) error {
	return c.act(ctx, k, "rotate", object{"grace": c.Grace})
}

type keysRevoke struct{ named }

func (c *keysRevoke) Run(ctx context.Context, k *kong.Context) error {
	return c.act(ctx, k, "revoke", nil)
}

func (n *named) act(ctx context.Context, k *kong.Context, verb string, body object) error {
	id, err := n.idOf(ctx, "keys", "key", n.ID, nil)
	if err != nil {
		return err
	}
	var sent any
	if body != nil {
		sent = body
	}
	answer, err := n.send(ctx, http.MethodPost, fmt.Sprintf("/keys/%s/%s", id, verb), sent)
	if err != nil {
		return err
	}
	return keys().show(k, &n.client, answer)
}

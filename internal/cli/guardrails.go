package cli

import (
	"context"
	"errors"

	"github.com/alecthomas/kong"
)

type guardrailsCommand struct {
	List   guardrailsList   `cmd:"" help:"List guardrails."`
	Get    guardrailsGet    `cmd:"" help:"Show a guardrail; the secret of a webhook is never shown."`
	Create guardrailsCreate `cmd:"" help:"Create a guardrail; it is in force everywhere within a second."`
	Update guardrailsUpdate `cmd:"" help:"Change a guardrail."`
	Delete guardrailsDelete `cmd:"" help:"Delete a guardrail."`
}

func guardrails() resource {
	return resource{"guardrails", "guard", []column{
		{"ID", "id"},
		{"NAME", "name"},
		{"SCOPE", "counts"},
		{"MODELS", "concerns"},
		{"STAGE", "stage"},
		{"RULE", "looks_for"},
		{"ACTION", "action"},
		{"ON ERROR", "on_error"},
		{"ENABLED", "enabled"},
	}}
}

type guardrailsList struct {
	listFlags

	Scope string `help:"Only of this scope, such as team:research, or platform." placeholder:"SCOPE"`
	Org   string `help:"Only of this organization." placeholder:"ORG"`
}

func (c *guardrailsList) Run(ctx context.Context, k *kong.Context) error {
	query, err := c.inOrganization(ctx, c.Org)
	if err != nil {
		return err
	}
	if c.Scope != "" {
		scope, err := c.guardrailScope(ctx, c.Scope)
		if err != nil {
			return err
		}
		query.Set("scope_type", text(scope, "type"))
		if id, ok := scope["id"].(string); ok {
			query.Set("scope_id", id)
		}
	}
	return guardrails().list(ctx, k, &c.client, query, int(c.Max))
}

// guardrailScope reads platform, or TYPE:ID where ID may be a name.
func (c *client) guardrailScope(ctx context.Context, given string) (object, error) {
	if given == scopePlatform {
		return object{"type": given}, nil
	}
	kind, id, err := c.scope(ctx, given)
	return object{"type": kind, "id": id}, err
}

const scopePlatform = "platform"

type guardrailsGet struct{ named }

func (c *guardrailsGet) Run(ctx context.Context, k *kong.Context) error {
	return c.get(ctx, k, guardrails())
}

type guardrailsDelete struct{ named }

func (c *guardrailsDelete) Run(ctx context.Context, k *kong.Context) error {
	return c.delete(ctx, k, guardrails())
}

// guardrailRule are the flags of which one says what a guardrail looks for.
type guardrailRule struct {
	Regex     []string `sep:"none" help:"RE2 expressions; may be repeated." placeholder:"PATTERN"`
	Keywords  []string `help:"Whole words or phrases, whatever their case." placeholder:"WORD"`
	PII       []string `name:"pii" help:"Personal data: email, phone, credit_card, iban, ip_address, us_ssn." placeholder:"KIND"`
	Secrets   bool     `help:"Credentials in well-known forms."`
	MaxSize   int64    `help:"More bytes of text than this." placeholder:"BYTES"`
	MaxTokens int64    `help:"A client's output limit above this." placeholder:"TOKENS"`
	Webhook   string   `help:"Somebody else decides, at this address." placeholder:"URL"`
	TimeoutMS int64    `name:"timeout-ms" help:"Of a webhook." placeholder:"MS"`
	Secret    string   `help:"Of a webhook: env:NAME or file:PATH." placeholder:"REFERENCE"`
}

var errOneRule = errors.New("name what it looks for with one of --regex, --keywords, --pii, --secrets, --max-size, --max-tokens, --webhook")

// into puts the rule and the secret into a body. Nothing is put there where no flag says what to look for.
func (r *guardrailRule) into(body object) error {
	var rules []object
	if len(r.Regex) > 0 {
		rules = append(rules, object{"type": "regex", "patterns": r.Regex})
	}
	if len(r.Keywords) > 0 {
		rules = append(rules, object{"type": "keywords", "words": r.Keywords})
	}
	if len(r.PII) > 0 {
		rules = append(rules, object{"type": "pii", "kinds": r.PII})
	}
	if r.Secrets {
		rules = append(rules, object{"type": "secrets"})
	}
	if r.MaxSize != 0 {
		rules = append(rules, object{"type": "max_size", "bytes": r.MaxSize})
	}
	if r.MaxTokens != 0 {
		rules = append(rules, object{"type": "max_tokens", "tokens": r.MaxTokens})
	}
	if r.Webhook != "" {
		rule := object{"type": "webhook", "url": r.Webhook}
		if r.TimeoutMS != 0 {
			rule["timeout_ms"] = r.TimeoutMS
		}
		rules = append(rules, rule)
	}
	if len(rules) > 1 {
		return errOneRule
	}
	if len(rules) == 1 {
		body["rule"] = rules[0]
	}
	if r.Secret != "" {
		secret, err := credentialOf("--secret", r.Secret)
		if err != nil {
			return err
		}
		body["secret"] = secret
	}
	return nil
}

type guardrailsCreate struct {
	client
	guardrailRule

	Name    string   `arg:"" help:"Its name; callers are told it when it blocks."`
	Scope   string   `default:"platform" help:"Whose calls it is about: platform, or TYPE:ID of an organization, a team or a key." placeholder:"SCOPE"`
	Models  []string `help:"Calls of these models only." placeholder:"PATTERN"`
	Stage   string   `enum:"request,answer,both," default:"" help:"What it looks at: request, answer or both." placeholder:"STAGE"`
	Action  string   `default:"block" enum:"mask,block,log" help:"mask, block, or log: count and tag only." placeholder:"ACTION"`
	OnError string   `default:"deny" enum:"deny,allow" help:"What becomes of calls that it cannot judge: deny, allow." placeholder:"WAY"`
}

// Help is shown by --help.
func (guardrailsCreate) Help() string {
	return `Examples:
  tollgate guardrails create no-codename --keywords bluebird --action mask
  tollgate guardrails create no-cards --scope organization:acme --pii credit_card,iban --stage request
  tollgate guardrails create short --scope team:research --max-tokens 4096 --action mask
  tollgate guardrails create ask --webhook https://guard.example.com/v1 --secret env:GUARD_SECRET --on-error allow`
}

func (c *guardrailsCreate) Run(ctx context.Context, k *kong.Context) error {
	scope, err := c.guardrailScope(ctx, c.Scope)
	if err != nil {
		return err
	}
	body := object{"name": c.Name, "scope": scope, "action": c.Action, "on_error": c.OnError}
	if err := c.into(body); err != nil {
		return err
	}
	if body["rule"] == nil {
		return errOneRule
	}
	if c.Stage != "" {
		body["stage"] = c.Stage
	}
	if len(c.Models) > 0 {
		body["models"] = c.Models
	}
	return guardrails().create(ctx, k, &c.client, body)
}

type guardrailsUpdate struct {
	named
	guardrailRule

	Name    *string `help:"Another name." placeholder:"NAME"`
	Action  *string `enum:"mask,block,log" help:"mask, block, log." placeholder:"ACTION"`
	Stage   *string `enum:"request,answer,both" help:"request, answer, both." placeholder:"STAGE"`
	OnError *string `enum:"deny,allow" help:"deny, allow." placeholder:"WAY"`
	Enabled *bool   `negatable:"" help:"Whether it is in force."`
}

// Help is shown by --help.
func (guardrailsUpdate) Help() string {
	return "Examples:\n  tollgate guardrails update no-codename --action log\n  tollgate guardrails update no-codename --no-enabled"
}

func (c *guardrailsUpdate) Run(ctx context.Context, k *kong.Context) error {
	body := object{}
	if err := c.into(body); err != nil {
		return err
	}
	set(body, "name", c.Name)
	set(body, "action", c.Action)
	set(body, "stage", c.Stage)
	set(body, "on_error", c.OnError)
	set(body, "enabled", c.Enabled)
	return guardrails().update(ctx, k, &c.client, c.ID, body)
}

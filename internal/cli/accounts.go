package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

type pricesCommand struct {
	List pricesList `cmd:"" help:"List price versions, newest first."`
	Get  pricesGet  `cmd:"" help:"Show a price version."`
	Add  pricesAdd  `cmd:"" aliases:"create" help:"Add a price; versions are never changed."`
}

type pricesList struct {
	client

	Max      atMost `default:"50" help:"Items at most; 0: all."`
	Provider string `help:"Only of this provider." placeholder:"NAME"`
	Model    string `help:"Only of this upstream model." placeholder:"NAME"`
}

func (c *pricesList) Run(ctx context.Context, k *kong.Context) error {
	query := url.Values{}
	if c.Provider != "" {
		query.Set("provider", c.Provider)
	}
	if c.Model != "" {
		query.Set("upstream_model", c.Model)
	}
	return prices().list(ctx, k, &c.client, query, int(c.Max))
}

type pricesGet struct{ limitID }

func (c *pricesGet) Run(ctx context.Context, k *kong.Context) error {
	answer, err := c.get(ctx, "/prices/"+c.ID, nil)
	if err != nil {
		return err
	}
	return prices().show(k, &c.client, answer)
}

type pricesAdd struct {
	client

	Provider      string `arg:"" help:"Name in the price book: PRICES in 'tollgate providers list'."`
	Model         string `arg:"" help:"The upstream's name of the model."`
	Unit          string `default:"input" help:"input, cache_read, cache_write_5m, cache_write_1h, output, reasoning, image, character, second, request, …"`
	USD           string `name:"usd" xor:"price" required:"" help:"US dollars per million units." placeholder:"USD"`
	Free          bool   `xor:"price" required:"" help:"The model costs nothing, explicitly."`
	ServiceTier   string `help:"Of a tier of the provider, such as batch, flex, priority, fast or us; of pictures hd or hd/1024x1792." placeholder:"TIER"`
	FromInput     int64  `help:"For prompts of at least so many tokens." placeholder:"TOKENS"`
	EffectiveFrom string `help:"From when on; without it now." placeholder:"TIME"`
}

// Help is shown by --help.
func (pricesAdd) Help() string {
	return `Give --usd, or --free. The other units keep their price.

Examples:
  tollgate prices add openai gpt-4o --unit input --usd 2.5
  tollgate prices add openai gpt-4o --unit output --usd 10 --effective-from 2026-02-01T00:00:00Z
  tollgate prices add openai gpt-4o --unit output --usd 5 --service-tier batch`
}

func (c *pricesAdd) Run(ctx context.Context, k *kong.Context) error {
	body := object{"provider": c.Provider, "upstream_model": c.Model}
	if c.Free {
		body["free"] = true
	} else {
		body["unit"], body["usd_per_million"] = c.Unit, c.USD
	}
	if c.ServiceTier != "" {
		body["service_tier"] = c.ServiceTier
	}
	if c.FromInput != 0 {
		body["from_input"] = c.FromInput
	}
	if c.EffectiveFrom != "" {
		body["effective_from"] = c.EffectiveFrom
	}
	return prices().create(ctx, k, &c.client, body)
}

type spendCommand struct {
	client

	GroupBy []string `default:"organization,team" help:"organization, team, key, user, model, provider, day, hour." placeholder:"MEMBER"`
	Since   string   `default:"30d" help:"A span such as 24h, 30d, 4w, or a time." placeholder:"SPAN"`
	Until   string   `help:"A time; without it now." placeholder:"TIME"`
	Org     string   `help:"Only of this organization." placeholder:"ORG"`
	Team    string   `help:"Only of this team." placeholder:"TEAM"`
	Key     string   `help:"Only of this key." placeholder:"KEY"`
	Model   string   `help:"Only of this model." placeholder:"NAME"`
	Rows    bool     `help:"List ledger rows instead of sums."`
	Max     atMost   `default:"200" help:"Rows at most; 0: all."`
}

// Help is shown by --help.
func (spendCommand) Help() string {
	return `Examples:
  tollgate spend --group-by team,model --since 7d
  tollgate spend --team research --rows -o json`
}

func (c *spendCommand) query(ctx context.Context) (url.Values, error) {
	query := url.Values{}
	for _, ref := range []struct{ path, prefix, given, member string }{
		{"organizations", "org", c.Org, "organization_id"},
		{"teams", "team", c.Team, "team_id"},
		{"keys", "key", c.Key, "key_id"},
	} {
		if ref.given == "" {
			continue
		}
		id, err := c.idOf(ctx, ref.path, ref.prefix, ref.given, nil)
		if err != nil {
			return nil, err
		}
		query.Set(ref.member, id)
	}
	if c.Model != "" {
		query.Set("model", c.Model)
	}
	now := time.Now()
	for name, given := range map[string]string{"from": c.Since, "to": c.Until} {
		if given == "" {
			continue
		}
		t, err := span(given, now)
		if err != nil {
			return nil, err
		}
		query.Set(name, t.UTC().Format(time.RFC3339))
	}
	return query, nil
}

func (c *spendCommand) Run(ctx context.Context, k *kong.Context) error {
	query, err := c.query(ctx)
	if err != nil {
		return err
	}
	if c.Rows {
		return resource{path: "spend", columns: []column{
			{"SETTLED", "settled_at"},
			{"REQUEST", "request_id"},
			{"KIND", "kind"},
			{"OUTCOME", "outcome"},
			{"TEAM", "team.name"},
			{"KEY", "key.name"},
			{"MODEL", "model"},
			{"USD", "cost_usd"},
		}}.list(ctx, k, &c.client, query, int(c.Max))
	}
	query.Set("group_by", strings.Join(c.GroupBy, ","))
	answer, err := c.get(ctx, "/spend/summary", query)
	if err != nil {
		return err
	}
	var page struct {
		Items []object `json:"items"`
	}
	if err := decode(answer, &page); err != nil {
		return err
	}
	if c.Output != "table" {
		return c.printer(k.Stdout).list(page.Items, nil)
	}
	return c.sums(k, page.Items)
}

func (c *spendCommand) sums(k *kong.Context, items []object) error {
	var columns []column
	for _, g := range c.GroupBy {
		title, path := strings.ToUpper(g), "group."+g
		if slices.Contains([]string{"organization", "team", "key", "user"}, g) {
			// Names can be alike in different organizations; ids tell them apart.
			columns = append(columns, column{title, path + "_name"})
			title += " ID"
		}
		columns = append(columns, column{title, path})
	}
	columns = append(columns, column{"REQUESTS", "requests"}, column{"INPUT TOKENS", "input_tokens"},
		column{"OUTPUT TOKENS", "output_tokens"}, column{"USD", "cost_usd"})
	return c.printer(k.Stdout).list(items, columns)
}

type ledgerCheck struct{ client }

// Help is shown by --help.
func (ledgerCheck) Help() string {
	return "Exits with 1 and prints the differing rows if anything disagrees."
}

func (c *ledgerCheck) Run(ctx context.Context, k *kong.Context) error {
	answer, err := c.call(ctx, http.MethodGet, "/ledger/check", nil, checkTimeout)
	if err != nil {
		return err
	}
	var report struct {
		Clean  bool `json:"clean"`
		Rows   int64
		Sealed struct {
			Block, Rows int64
			Hash        string
		}
		Checks []struct {
			ID, Name   string
			Violations int64
			Samples    []string
		}
	}
	if err := decode(answer, &report); err != nil {
		return err
	}
	p := c.printer(k.Stdout)
	if c.Output != "table" {
		var o object
		if err := decode(answer, &o); err != nil {
			return err
		}
		if err := p.raw(o); err != nil {
			return err
		}
	} else {
		rows := make([][]string, 0, len(report.Checks))
		for _, check := range report.Checks {
			verdict := "ok"
			if check.Violations > 0 {
				verdict = "DIFFERS"
			}
			rows = append(rows, []string{verdict, check.ID, plain(check.Name), fmt.Sprint(check.Violations)})
		}
		if err := p.table([]string{"RESULT", "CHECK", "WHAT", "VIOLATIONS"}, rows); err != nil {
			return err
		}
		for _, check := range report.Checks {
			for _, sample := range check.Samples {
				fmt.Fprintf(k.Stdout, "  %s %s\n", check.ID, plain(sample))
			}
		}
	}
	if !report.Clean {
		return fmt.Errorf("the ledger does not agree with itself\nHint: keep the database as it is, and compare the rows above with a backup")
	}
	if c.Output == "table" {
		fmt.Fprintln(k.Stdout, p.paint(green, fmt.Sprintf("clean: %d rows agree with every counter", report.Rows)))
		if report.Sealed.Block > 0 {
			fmt.Fprintf(k.Stdout, "sealed: %d rows in %d blocks, the last one %s\n", report.Sealed.Rows, report.Sealed.Block, plain(report.Sealed.Hash))
		}
	}
	return nil
}

package cli

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/alecthomas/kong"
)

type applyCommand struct {
	client

	File        string `short:"f" required:"" help:"YAML file, or - for standard input." placeholder:"FILE"`
	DryRun      bool   `help:"Show what would change, change nothing; exit with 2 if anything would."`
	Prune       bool   `help:"Delete what the file leaves out: teams, keys, users and limits of its organizations, and the platform's providers, models and guardrails where the file has such a section."`
	Credentials bool   `help:"Send credentials even where one is stored; stored ones cannot be compared."`
}

// Help is shown by --help.
func (applyCommand) Help() string {
	return `Names identify things; applying the same file again changes nothing. Members that the file leaves out are not touched.
${NAME} stands for an environment variable, and "credential: file:PATH" for the content of a file.
The secrets of new keys are printed once.

  organizations:
    - name: acme
      require_budget: true
      limits:
        - {kind: budget, metric: cost, amount: 1000, window: {type: calendar, period: month}}
      teams:
        - name: research
          models: ["gpt-*"]
          limits:
            - {kind: rate, metric: requests, amount: 600, per: 1m}
          keys:
            - name: ci
  providers:
    - {name: openai, base_url: "https://api.openai.com/v1", credential: "${OPENAI_API_KEY}"}
  models:
    - name: gpt-4o
      targets: [{provider: openai, upstream_model: gpt-4o}]
  limits:
    - {scope: {type: key, name: "*"}, kind: concurrency, amount: 50}
  guardrails:
    - {name: no-codename, rule: {type: keywords, words: [bluebird]}, action: mask}
  prices:
    - {provider: openai, upstream_model: gpt-4o, usd_per_million: {input: 2.5, output: 10}}

Examples:
  tollgate apply -f tollgate.yaml --dry-run
  tollgate apply -f tollgate.yaml --prune`
}

func (a *applyCommand) Run(ctx context.Context, k *kong.Context) error {
	doc, err := readDocument(a.File, os.Stdin)
	if err != nil {
		return err
	}
	p := &planner{api: &a.client, prune: a.Prune, credentials: a.Credentials}
	if err := p.document(ctx, doc); err != nil {
		return err
	}
	out := a.printer(k.Stdout)
	if a.Output == "table" {
		if err := out.plan(p.steps); err != nil {
			return err
		}
	}
	if !a.DryRun {
		for i, s := range p.steps {
			if err := s.do(ctx); err != nil {
				return fmt.Errorf("%s %s %s (step %d of %d): %w", s.action, s.kind, s.name, i+1, len(p.steps), err)
			}
		}
	}
	if err := a.report(k, out, p); err != nil {
		return err
	}
	if a.DryRun && len(p.steps) > 0 {
		if len(p.steps) == 1 {
			return &DifferenceError{"tollgate: 1 change is not applied yet"}
		}
		return &DifferenceError{fmt.Sprintf("tollgate: %d changes are not applied yet", len(p.steps))}
	}
	return nil
}

func (a *applyCommand) report(k *kong.Context, out printer, p *planner) error {
	if a.Output != "table" {
		changes := make([]object, 0, len(p.steps))
		for _, s := range p.steps {
			members := object{}
			for _, d := range s.diffs {
				members[d.member] = object{"from": d.from, "to": shown(d)}
			}
			changes = append(changes, object{"action": s.action, "kind": s.kind, "name": s.name, "members": members})
		}
		issued := p.issued
		if issued == nil {
			issued = []object{}
		}
		return out.raw(object{"applied": !a.DryRun, "changes": changes, "keys": issued})
	}
	counts := map[string]int{}
	for _, s := range p.steps {
		counts[s.action]++
	}
	verb := "Plan"
	if !a.DryRun {
		verb = "Done"
	}
	if len(p.steps) == 0 {
		_, err := fmt.Fprintln(k.Stdout, out.paint(green, "Nothing to change."))
		return err
	}
	fmt.Fprintf(k.Stdout, "\n%s: %d to create, %d to change, %d to delete.\n", verb, counts["create"], counts["change"], counts["delete"])
	if len(p.issued) == 0 {
		return nil
	}
	fmt.Fprintln(k.Stderr, "Keep the secrets now: they cannot be shown again.")
	return out.list(p.issued, []column{{"KEY", "name"}, {"ID", "id"}, {"SECRET", "key"}})
}

// plan writes the steps as a diff.
func (p printer) plan(steps []step) error {
	for _, s := range steps {
		sign, colour := "+", green
		switch s.action {
		case "change":
			sign, colour = "~", amber
		case "delete":
			sign, colour = "-", red
		}
		if _, err := fmt.Fprintln(p.out, p.paint(colour, fmt.Sprintf("%s %s %s", sign, s.kind, plain(s.name)))); err != nil {
			return err
		}
		for _, d := range s.diffs {
			if _, err := fmt.Fprintf(p.out, "    %s: %s → %s\n", d.member, cell(d.from), cell(shown(d))); err != nil {
				return err
			}
		}
	}
	return nil
}

// shown is the new value of a member, unless that is a secret.
func shown(d diff) any {
	if d.member == "credential" || d.member == "secret" {
		return "(new)"
	}
	if list, ok := d.to.([]string); ok {
		return strings.Join(list, "; ")
	}
	return d.to
}

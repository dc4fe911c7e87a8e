package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tollgate-gateway/tollgate/internal/app"
	"github.com/tollgate-gateway/tollgate/internal/config"
)

type serveCommand struct {
	settings

	PrintChain bool   `help:"Print the plugin chain and exit."`
	Output     string `enum:"text,json" default:"text" help:"Form of the announcement: ${enum}."`
}

// Help is shown by --help.
func (serveCommand) Help() string {
	return strings.TrimSpace(`
Needs DATABASE_URL, TOLLGATE_KEY_PEPPERS and TOLLGATE_ENCRYPTION_KEYS, and TOLLGATE_ADMIN_TOKEN for the control plane.
The schema must be up to date: run "tollgate migrate up" first. SIGTERM drains: streams may go on for the drain
time-out, then they are cut with an error event and settled. A second signal ends the process at once.

Example:
  tollgate serve --planes gateway --listen :8080`)
}

func (c *serveCommand) Run(ctx context.Context, file *config.File, s streams) error {
	cfg, err := c.load(file)
	if err != nil {
		return err
	}
	if c.PrintChain {
		return app.PrintChain(ctx, cfg, s.out)
	}
	return app.Serve(ctx, cfg, s.err, func(at app.Addresses) error {
		if c.Output == "json" {
			return json.NewEncoder(s.out).Encode(at)
		}
		_, err := fmt.Fprintln(s.out, announcement(at))
		return err
	})
}

func announcement(at app.Addresses) string {
	lines := []string{"Tollgate serves."}
	for _, l := range []struct{ what, url string }{{"traffic", at.Traffic}, {"control", at.Control}, {"operations", at.Ops}} {
		if l.url != "" {
			lines = append(lines, fmt.Sprintf("  %-11s %s", l.what, l.url))
		}
	}
	return strings.Join(lines, "\n")
}

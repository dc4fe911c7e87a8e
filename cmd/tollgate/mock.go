package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"

	"github.com/tollgate-gateway/tollgate/internal/mock"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

type mockCommand struct {
	Listen     string        `default:"127.0.0.1:8089" help:"Address to listen on; port 0 takes a free one."`
	Script     string        `help:"What requests get that choose no script." placeholder:"SCRIPT"`
	RequireKey secret.String `help:"The only credential that is accepted." placeholder:"KEY"`
	Output     string        `enum:"text,json" default:"text" help:"Form of the announcement: ${enum}."`
}

// Help is shown by --help.
func (mockCommand) Help() string {
	return `A scripted OpenAI- and Anthropic-shaped upstream with faults and a log of every byte. A request's behaviour is
chosen by the header X-Mock-Script, by a rule of POST /_script, or by a model named mock-SCRIPT.
GET /_log tells what it saw, GET /_count how much.

Example:
  curl -s localhost:8089/v1/chat/completions -H 'X-Mock-Script: frame_gap(50ms),reset_after(3)' \
    -d '{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'

Directives, separated by commas:
` + mock.Help()
}

func (c *mockCommand) Run(ctx context.Context, s streams) error {
	server, err := mock.New(mock.Options{RequireKey: c.RequireKey, Script: c.Script})
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	base := "http://" + l.Addr().String()
	if c.Output == "json" {
		err = json.NewEncoder(s.out).Encode(map[string]string{"base_url": base})
	} else {
		_, err = fmt.Fprintf(s.out, "The scripted upstream listens on %s (OpenAI base URL %s/v1). Ctrl-C ends it.\n", base, base)
	}
	if err != nil {
		return err
	}
	return server.Serve(ctx, l)
}

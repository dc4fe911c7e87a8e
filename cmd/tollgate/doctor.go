package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tollgate-gateway/tollgate/internal/app"
	"github.com/tollgate-gateway/tollgate/internal/config"
)

type doctorCommand struct {
	settings

	Output string `enum:"table,json" default:"table" help:"Form of the result: ${enum}."`
}

// Help is shown by --help.
func (doctorCommand) Help() string {
	return "Takes the same settings as serve, looks at what they lead to, changes nothing, and exits 1 if something is wrong."
}

func (c *doctorCommand) Run(ctx context.Context, file *config.File, s streams) error {
	cfg, err := c.load(file)
	if err != nil {
		return err
	}
	findings := app.Examine(ctx, cfg)
	healthy := true
	for _, f := range findings {
		healthy = healthy && f.OK
	}
	if c.Output == "json" {
		if err := json.NewEncoder(s.out).Encode(findings); err != nil {
			return err
		}
	} else {
		for _, f := range findings {
			mark := "ok  "
			if !f.OK {
				mark = "FAIL"
			}
			fmt.Fprintf(s.out, "%s  %-22s %s\n", mark, f.Name, f.Says)
			if f.Advice != "" {
				fmt.Fprintf(s.out, "      %-22s → %s\n", "", f.Advice)
			}
		}
	}
	if !healthy {
		return errors.New("something needs attention, see above")
	}
	return nil
}

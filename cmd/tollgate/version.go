package main

import (
	"encoding/json"
	"fmt"
	"runtime"

	"github.com/tollgate-gateway/tollgate/internal/version"
)

type versionCommand struct {
	Output string `enum:"table,json" default:"table" help:"Form of the result: ${enum}."`
}

func (c *versionCommand) Run(s streams) error {
	if c.Output == "json" {
		return json.NewEncoder(s.out).Encode(map[string]string{
			"version": version.Version, "commit": version.Commit, "go": runtime.Version(),
		})
	}
	_, err := fmt.Fprintf(s.out, "tollgate %s (%s, %s)\n", version.Version, version.Commit, runtime.Version())
	return err
}

// Package concurrency charges each attempt against the slots: how many calls may run at once.
package concurrency

import (
	"fmt"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/plugins"
)

// ID is the plugin's name in configuration, logs and metrics.
const ID = "concurrency"

// Module is what the application's list of plugins names. The plugin has no settings: limits are administered.
func Module() plugins.Module {
	return plugins.Module{ID: ID, New: func(_ plugins.Env, cfg plugins.Config) (plugins.Plugin, error) {
		if err := cfg.Decode(&struct{}{}); err != nil {
			return nil, fmt.Errorf("decode settings of concurrency: %w", err)
		}
		return charger{}, nil
	}}
}

type charger struct{}

var _ plugins.Charger = charger{}

// ID implements plugins.Plugin.
func (charger) ID() string { return ID }

// Charge implements plugins.Charger.
func (charger) Charge(c *plugins.Call) ([]governance.Hold, error) {
	return plugins.Holds(c, governance.KindConcurrency)
}

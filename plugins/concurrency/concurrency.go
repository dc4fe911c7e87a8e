// Package concurrency charges each attempt against the slots: how many calls may run at once.
package concurrency

import (
	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/plugins"
)

// ID is the plugin's name in configuration, logs and metrics.
const ID = "concurrency"

// Module is what the application's list of plugins names. The plugin has no settings: limits are administered.
func Module() plugins.Module { return plugins.Charging(ID, governance.KindConcurrency) }

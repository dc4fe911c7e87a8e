// Package ratelimit charges each attempt against the token buckets of requests, tokens and cost.
package ratelimit

import (
	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/plugins"
)

// ID is the plugin's name in configuration, logs and metrics.
const ID = "ratelimit"

// Module is what the application's list of plugins names. The plugin has no settings: limits are administered.
func Module() plugins.Module { return plugins.Charging(ID, governance.KindRate) }

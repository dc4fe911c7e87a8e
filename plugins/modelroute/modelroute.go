// Package modelroute turns the public name of a model into the targets that serve it.
package modelroute

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/plugins"
)

// ID is the plugin's name in configuration, logs and metrics.
const ID = "modelroute"

// Module is what the application's list of plugins names. The plugin has no settings: models are administered.
func Module() plugins.Module {
	return plugins.Module{ID: ID, New: func(_ plugins.Env, cfg plugins.Config) (plugins.Plugin, error) {
		if err := cfg.Decode(&struct{}{}); err != nil {
			return nil, fmt.Errorf("decode settings of modelroute: %w", err)
		}
		return resolver{}, nil
	}}
}

type resolver struct{}

var _ plugins.Resolver = resolver{}

// ID implements plugins.Plugin.
func (resolver) ID() string { return ID }

// Resolve implements plugins.Resolver. An organization's own model shadows the platform's; another organization's is as
// unknown as one that does not exist. A model must be allowed by the key's list and by its team's.
func (resolver) Resolve(_ context.Context, c *plugins.Call) (governance.Route, error) {
	m := c.Catalog.Model(c.Principal.Organization.Num, c.Model)
	if m == nil {
		return governance.Route{}, notFound("The model does not exist.")
	}
	if !c.Principal.MayUse(c.Model) {
		return governance.Route{}, &governance.Error{
			Code: governance.CodeModelNotAllowed, Public: "This API key may not use the model.", Param: "model",
		}
	}
	r := governance.Route{Model: m, Targets: order(c.Catalog, m.Targets)}
	switch {
	case len(m.Targets) == 0:
		return governance.Route{}, notFound("Nothing serves the model.")
	case len(r.Targets) == 0: // e.g. no credential of theirs opens: the model exists, and the client is not at fault
		return governance.Route{}, &governance.Error{
			Code: governance.CodeUpstreamUnreachable, Public: "None of the model's targets can be called at the moment. Tell your administrator.",
		}
	}
	return r, nil
}

func notFound(public string) error {
	return &governance.Error{Code: governance.CodeModelNotFound, Public: public, Param: "model"}
}

// order returns the targets in the order in which to try them: by priority, and within one priority drawn by weight. A
// weight of 0 gets no share and comes last.
func order(catalog *governance.Catalog, ways []governance.ModelTarget) []*governance.Target {
	ways = slices.Clone(ways)
	slices.SortStableFunc(ways, func(a, b governance.ModelTarget) int { return cmp.Compare(a.Priority, b.Priority) })
	targets := make([]*governance.Target, 0, len(ways))
	for len(ways) > 0 {
		group := ways[:1+last(ways)]
		ways = ways[len(group):]
		for len(group) > 0 {
			i := draw(group)
			if t := catalog.Target(group[i].Target.Num); t != nil && !slices.Contains(targets, t) {
				targets = append(targets, t)
			}
			group = slices.Delete(group, i, i+1)
		}
	}
	return targets
}

// last returns the index of the last way that has the first one's priority.
func last(ways []governance.ModelTarget) int {
	for i := range ways {
		if ways[i].Priority != ways[0].Priority {
			return i - 1
		}
	}
	return len(ways) - 1
}

// draw picks one of a group by weight; where none has any, the first.
func draw(group []governance.ModelTarget) int {
	var sum int64
	for i := range group {
		sum += weight(group[i])
	}
	if sum == 0 {
		return 0
	}
	point := rand.Int64N(sum) //nolint:gosec // shares of calls are no secret
	for i := range group {
		if point -= weight(group[i]); point < 0 {
			return i
		}
	}
	return len(group) - 1
}

func weight(w governance.ModelTarget) int64 { return int64(max(w.Weight, 0)) }

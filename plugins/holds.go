package plugins

import (
	"fmt"

	"github.com/tollgate-gateway/tollgate/governance"
)

// Holds returns what the call's present attempt asks of every limit of one kind: the whole of a charger that has no rules
// of its own. A limit whose amount is zero, such as one of cost at a free target, makes no leg.
//
// The store decides all of them exactly, whatever their enforcement: a limit is never weaker than what its owner asked for.
// Requests and slots are asked for by each attempt; the chain marks as carried what an earlier attempt holds (ruling 17).
func Holds(c *Call, kind governance.Kind) ([]governance.Hold, error) {
	caller := governance.Caller{
		Target:       c.Target.Num,
		Organization: c.Principal.Organization.Num,
		Team:         c.Principal.Team.Num,
		Key:          c.Principal.Key.Num,
		User:         c.Principal.User.Num,
		EndUser:      c.EndUserNum,
		ModelName:    c.Model,
		Route:        c.Route,
	}
	if c.Resolved.Model != nil {
		caller.Model = c.Resolved.Model.Num
	}
	applied := c.Catalog.Limits.Applied(kind, &caller, c.Received)
	if len(applied) == 0 {
		return nil, nil
	}
	holds := make([]governance.Hold, 0, len(applied))
	for _, a := range applied {
		amount, err := c.Demand.Amount(a.Limit, c.Target)
		if err != nil {
			return nil, err
		}
		if amount > 0 {
			holds = append(holds, governance.Hold{Limit: a.Limit, Subject: a.Subject, Amount: amount})
		}
	}
	return holds, nil
}

// Charging makes the module of a charger without rules and settings of its own: it asks for what every limit of one kind
// counts.
func Charging(id string, kind governance.Kind) Module {
	return Module{ID: id, New: func(_ Env, cfg Config) (Plugin, error) {
		if err := cfg.Decode(&struct{}{}); err != nil {
			return nil, fmt.Errorf("decode settings of %s: %w", id, err)
		}
		return charger{id, kind}, nil
	}}
}

type charger struct {
	id   string
	kind governance.Kind
}

var _ Charger = charger{}

// ID implements Plugin.
func (c charger) ID() string { return c.id }

// Charge implements Charger.
func (c charger) Charge(call *Call) ([]governance.Hold, error) { return Holds(call, c.kind) }

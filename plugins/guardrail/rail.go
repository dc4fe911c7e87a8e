package guardrail

import (
	"fmt"

	"github.com/tollgate-gateway/tollgate/governance"
)

// rail is a guardrail that is ready to judge.
type rail struct {
	*governance.Guardrail
	patterns []pattern
	broken   error // why it cannot judge; nil: it can
}

func newRail(g *governance.Guardrail) *rail {
	patterns, err := compile(&g.Rule)
	if err != nil {
		err = fmt.Errorf("compile guardrail %s: %w", g.ID, err)
	}
	return &rail{g, patterns, err}
}

// acts reports whether the guardrail does more than count.
func (r *rail) acts() bool { return r.Action != governance.ActionLog }

// blocked is what a caller is told. It names the guardrail, and neither its rule nor what it found.
func (r *rail) blocked() *governance.Error {
	return &governance.Error{
		Code: governance.CodeContentBlocked, Public: fmt.Sprintf("Blocked by the guardrail %q.", r.Name),
	}
}

// effectsOf lists the patterns of rails that look at texts.
func effectsOf(rails []*rail) []effect {
	var all []effect
	for _, r := range rails {
		for _, p := range r.patterns {
			all = append(all, effect{
				pattern: p, rail: r, masks: r.Action == governance.ActionMask, ends: r.Action == governance.ActionBlock,
			})
		}
	}
	return all
}

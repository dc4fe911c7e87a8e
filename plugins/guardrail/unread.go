package guardrail

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/plugins"
)

// unable refuses requests whose answers a guardrail could not hold to what it says. Nil: it can.
func (p *plugin) unable(c *plugins.Call) *governance.Error {
	hidden := unread(c)
	for _, r := range p.inForce(c, governance.StageAnswer) {
		switch {
		case !r.acts() || r.Rule.Type == governance.RuleMaxSize:
		case hidden != "":
			return &governance.Error{
				Code:   governance.CodePluginUnsupported,
				Public: fmt.Sprintf("The guardrail %q cannot read the answer in the form that %s asks for.", r.Name, hidden), Param: hidden,
			}
		}
	}
	return nil
}

// unread names the member by which a request asks for an answer that says its text in a form which is not judged: as sound, or
// as probabilities of tokens. "": it asks for none.
func unread(c *plugins.Call) string {
	if c.Body == nil {
		return ""
	}
	if c.Demand.AudioOutput {
		return "audio"
	}
	asks := func(name string) bool {
		raw, ok := c.Body.Get(name)
		return ok && string(raw) != "null" && string(raw) != "false"
	}
	switch c.Route {
	case governance.RouteChat, governance.RouteCompletions:
		if asks("logprobs") {
			return "logprobs"
		}
	case governance.RouteResponses:
		if asks("top_logprobs") {
			return "top_logprobs"
		}
		raw, _ := c.Body.Get("include")
		var include []string
		if json.Unmarshal(raw, &include) == nil && slices.Contains(include, "message.output_text.logprobs") {
			return "include"
		}
	}
	return ""
}

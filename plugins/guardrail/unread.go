package guardrail

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/plugins"
)

// unable refuses requests that a guardrail could not read, or whose answers it could not hold to what it says. Nil: it can.
func (p *plugin) unable(c *plugins.Call) *governance.Error {
	hidden := unread(c)
	if member := tokenized(c); member != "" {
		for _, r := range p.inForce(c, governance.StageRequest) {
			if r.acts() && r.Rule.Type != governance.RuleMaxSize && r.Rule.Type != governance.RuleMaxTokens {
				return &governance.Error{
					Code:   governance.CodePluginUnsupported,
					Public: fmt.Sprintf("The guardrail %q reads texts. Send %s as text, not as tokens.", r.Name, member), Param: member,
				}
			}
		}
	}
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

// tokenized names the member of a request that has its prompt as numbers of tokens; "": it is text.
func tokenized(c *plugins.Call) string {
	member := map[string]string{governance.RouteCompletions: "prompt", governance.RouteEmbeddings: "input"}[c.Route]
	if member == "" || c.Body == nil {
		return ""
	}
	raw, _ := c.Body.Get(member)
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return ""
	}
	for _, one := range list {
		if one[0] == '[' || one[0] >= '0' && one[0] <= '9' || one[0] == '-' {
			return member
		}
	}
	return ""
}

package gateway

import (
	"context"
	"errors"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/lognames"
	"github.com/tollgate-gateway/tollgate/providers"
)

// stay makes a call that goes on from a stored response go to the target that has it (F110), whatever weights and breakers say.
// A response that its organization does not have is unknown, although the provider's account may hold it for another one.
func (c *call) stay() error {
	if c.route.dialect != providers.OpenAIResponses {
		return nil
	}
	if err := c.answersHere(); err != nil || c.g.responses == nil {
		return err
	}
	store, given, err := c.Body.Bool("store")
	if err != nil {
		return unreadable(err)
	}
	c.stores = store || !given // OpenAI's default
	const member = "previous_response_id"
	id, _, err := c.Body.String(member)
	if err != nil {
		return unreadable(err)
	}
	if id == "" {
		return c.unseal()
	}
	num, err := c.g.responses.Target(c.ctx(), c.Principal.Organization.Num, id)
	switch {
	case errors.Is(err, governance.ErrNotFound):
		return &governance.Error{Code: governance.CodeNotFound, Public: "The previous response is not known here.", Param: member}
	case err != nil:
		return orUnavailable(err)
	}
	t := c.servedBy(num)
	if t == nil {
		return invalid(member, "The previous response was made by a target that does not serve the model any more. Send the whole conversation as input.")
	}
	c.Resolved.Targets = []*governance.Target{t}
	return nil
}

// unseal makes a call that sends back what a provider has encrypted for itself, reasoning above all, go to that provider: no
// other one could read it (F110). What is not known here goes wherever it would.
func (c *call) unseal() error {
	const member = "input"
	input, _ := c.Body.Get(member)
	if len(c.Resolved.Targets) < 2 {
		return nil
	}
	seal := providers.LastSealed(input)
	if seal == "" {
		return nil
	}
	num, err := c.g.responses.Target(c.ctx(), c.Principal.Organization.Num, seal)
	if errors.Is(err, governance.ErrNotFound) {
		return nil
	}
	if err != nil {
		return orUnavailable(err)
	}
	origin := c.Catalog.Target(num)
	if origin == nil {
		return nil
	}
	var able []*governance.Target
	for _, t := range c.Resolved.Targets {
		if t.Provider.Num == origin.Provider.Num {
			able = append(able, t)
		}
	}
	if len(able) == 0 {
		return invalid(member, "The encrypted content of the input was made by a provider that does not serve the model. Leave items with encrypted_content out.")
	}
	c.Resolved.Targets = able
	return nil
}

// answersHere refuses responses that go on at the provider after their answer, where nobody would learn what they have used, and
// conversations that are kept there: none can be begun through the gateway, so nobody knows whose one is.
func (c *call) answersHere() error {
	background, _, err := c.Body.Bool("background")
	if err != nil {
		return unreadable(err)
	}
	if background {
		return invalid("background", "Responses in the background are not supported. Ask for a stream instead.")
	}
	if raw, given := c.Body.Get("conversation"); given && string(raw) != "null" {
		return invalid("conversation", "Conversations that the provider keeps are not supported. Send previous_response_id, or the whole conversation as input.")
	}
	return nil
}

// remember notes where a response is, and what was encrypted in it, before its end goes out: who goes on from it may come to
// another replica at once. An answer does not wait for it longer than for its settlement.
func (c *call) remember(a *attempt, facts *providers.Facts) {
	if c.route.dialect != providers.OpenAIResponses || a.answer != nil || c.g.responses == nil {
		return
	}
	var names []string
	if c.stores && facts.ID != "" {
		names = append(names, facts.ID)
	}
	if facts.Sealed != "" && len(c.Resolved.Model.Targets) > 1 {
		names = append(names, facts.Sealed)
	}
	if len(names) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx()), c.g.cfg.AnswerHold)
	defer cancel()
	if err := c.g.responses.Remember(ctx, c.Principal.Organization.Num, a.target.Num, names...); err != nil {
		log := c.log.Sample(c.g.chain.sampler)
		log.Warn().Err(err).Str(lognames.Target, a.target.ID).Msg("stored response not remembered")
	}
}

package console

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

// signedDecimal is an amount that may take away.
type signedDecimal string

// Schema says what is accepted.
func (signedDecimal) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Type: huma.TypeString, Pattern: `^-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,9})?$`,
		PatternDescription: `a decimal in quotes, such as "-0.25"`,
		Examples:           []any{"-0.25"},
	}
}

func (d signedDecimal) dollars(field string) (money.Nano, error) {
	negative := len(d) > 0 && d[0] == '-'
	if negative {
		d = d[1:]
	}
	n, err := dollars(field, decimal(d))
	if negative {
		n = -n
	}
	return n, err
}

// resolution says what a provisional charge finally is: by policy, or by the evidence of what was used.
type resolution struct {
	Policy     string           `json:"policy,omitempty" enum:"keep,estimate,zero" doc:"keep: what was reserved; estimate: the prompt and what the target may have written in its time; zero: nothing. Or quantities"`
	Quantities map[string]int64 `json:"quantities,omitempty" doc:"What was used: unit to number. Or policy"`
	Reason     string           `json:"reason" minLength:"1" maxLength:"1000" doc:"Why, for the audit"`
}

// correction is what to add to a row.
type correction struct {
	Quantities map[string]int64 `json:"quantities,omitempty" doc:"Differences: unit to number, negative to take away"`
	CostUSD    signedDecimal    `json:"cost_usd,omitempty" doc:"Difference in US dollars"`
	Reason     string           `json:"reason" minLength:"1" maxLength:"1000" doc:"Why, for the audit"`
}

// credit is money given back.
type credit struct {
	OrganizationID string  `json:"organization_id" pattern:"^org_[0-9A-Za-z]{12}$" patternDescription:"an organization's id"`
	TeamID         string  `json:"team_id,omitempty" pattern:"^team_[0-9A-Za-z]{12}$" patternDescription:"a team's id"`
	KeyID          string  `json:"key_id,omitempty" pattern:"^key_[0-9A-Za-z]{12}$" patternDescription:"a key's id"`
	AmountUSD      decimal `json:"amount_usd" doc:"Above 0"`
	Reason         string  `json:"reason" minLength:"1" maxLength:"1000" doc:"Why, for the audit"`
}

// quantitiesOf reads numbers by the names of their units.
func quantitiesOf(given map[string]int64) (governance.Quantities, error) {
	var q governance.Quantities
	for name, n := range given {
		unit, ok := governance.ParseUnit(name)
		switch {
		case !ok:
			return q, invalidField("quantities."+name, "is not a unit")
		case n > governance.MaxTokens || n < -governance.MaxTokens:
			return q, invalidField("quantities."+name, "is out of range")
		}
		q[unit] = n
	}
	return q, nil
}

type decisionInput[Body any] struct {
	ID   string `path:"id"`
	Body Body
}

type rowOutput struct{ Body spendRow }

// decided is the answer of a decision: the row that it added to the ledger.
func decided(row governance.SpendRow, err error) (*rowOutput, error) {
	if err != nil {
		return nil, err
	}
	return &rowOutput{Body: viewSpendRow(row)}, nil
}

// because is the actor with the reason that the body gives.
func because(ctx context.Context, reason string) governance.Actor {
	by := actorOf(ctx)
	by.Reason = reason
	return by
}

func (s *server) registerDecisions(api huma.API) {
	if s.Decisions == nil {
		return
	}
	writes := []int{http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType}
	resolve := operation(http.MethodPost, "/reservations/{id}/resolve", "post-reservations-resolve", "reservations",
		"Give a provisional charge its final amount, by a late adjustment", writes...)
	resolve.DefaultStatus = http.StatusOK
	handle(api, resolve, "provisional charge", func(ctx context.Context, in *decisionInput[resolution]) (*rowOutput, error) {
		id, err := ids.Parse(in.ID)
		if err != nil {
			return nil, governance.ErrNotFound
		}
		if (in.Body.Policy == "") == (in.Body.Quantities == nil) {
			return nil, invalidField("policy", "either policy or quantities is needed")
		}
		quantities, err := quantitiesOf(in.Body.Quantities)
		if err != nil {
			return nil, err
		}
		r := governance.Resolution{Policy: governance.ResolvePolicy(in.Body.Policy), Quantities: quantities}
		return decided(s.Decisions.Resolve(ctx, because(ctx, in.Body.Reason), id, r))
	})

	correct := operation(http.MethodPost, "/spend/{id}/corrections", "post-spend-corrections", "spend",
		"Correct a ledger row, by a row of its own", writes...)
	handle(api, correct, "row", func(ctx context.Context, in *decisionInput[correction]) (*rowOutput, error) {
		quantities, err := quantitiesOf(in.Body.Quantities)
		if err != nil {
			return nil, err
		}
		c := governance.Correction{Quantities: quantities}
		if in.Body.CostUSD != "" {
			if c.Cost, err = in.Body.CostUSD.dollars("cost_usd"); err != nil {
				return nil, err
			}
		}
		return decided(s.Decisions.Correct(ctx, because(ctx, in.Body.Reason), in.ID, c))
	})

	give := operation(http.MethodPost, "/credits", "post-credits", "spend", "Give an organization money back", writes...)
	handle(api, give, "organization", func(ctx context.Context, in *bodyInput[credit]) (*rowOutput, error) {
		amount, err := dollars("amount_usd", in.Body.AmountUSD)
		if err != nil {
			return nil, err
		}
		if amount == 0 {
			return nil, invalidField("amount_usd", "must be above 0")
		}
		c := governance.Credit{Organization: in.Body.OrganizationID, Team: in.Body.TeamID, Key: in.Body.KeyID, Amount: amount}
		row, err := s.Decisions.Credit(ctx, because(ctx, in.Body.Reason), c)
		return decided(row, referenceMissing(err))
	})
}

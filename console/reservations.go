package console

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// reservation is an attempt that is not finally settled.
type reservation struct {
	ID            string           `json:"id"`
	RequestID     string           `json:"request_id"`
	Attempt       int              `json:"attempt"`
	State         string           `json:"state" enum:"open,provisional"`
	Organization  *named           `json:"organization,omitempty"`
	Team          *named           `json:"team,omitempty"`
	Key           *named           `json:"key,omitempty"`
	User          *named           `json:"user,omitempty"`
	Route         string           `json:"route"`
	Model         string           `json:"model"`
	Provider      string           `json:"provider"`
	UpstreamModel string           `json:"upstream_model"`
	Quantities    map[string]int64 `json:"quantities" doc:"What was reserved: unit to number"`
	CostUSD       string           `json:"cost_usd" doc:"What was reserved"`
	Legs          []leg            `json:"legs" nullable:"false" doc:"What was taken from which limit"`
	AdmittedAt    *time.Time       `json:"admitted_at"`
	ExpiresAt     *time.Time       `json:"expires_at"`
	Process       string           `json:"process" doc:"The gateway process that owns it"`
}

type leg struct {
	LimitID  string  `json:"limit_id"`
	Scope    string  `json:"scope"`
	Kind     string  `json:"kind"`
	Metric   string  `json:"metric"`
	Reserved decimal `json:"reserved"`
}

func viewReservation(r governance.OpenReservation) reservation {
	v := reservation{
		ID: r.ID.String(), RequestID: r.Origin.RequestID.String(), Attempt: r.Origin.Attempt, State: r.State,
		Organization: refOf(r.Origin.Organization), Team: refOf(r.Origin.Team), Key: refOf(r.Origin.Key), User: refOf(r.Origin.User),
		Route: r.Origin.Route, Model: r.Origin.Model, Provider: r.Origin.Provider, UpstreamModel: r.Origin.UpstreamModel,
		Quantities: viewQuantities(r.Estimate.Quantities), CostUSD: r.Estimate.Cost.String(),
		Legs: make([]leg, 0, len(r.Legs)), AdmittedAt: instant(r.AdmittedAt), ExpiresAt: instant(r.ExpiresAt), Process: r.Process,
	}
	for _, l := range r.Legs {
		v.Legs = append(v.Legs, leg{l.LimitID, string(l.Scope), string(l.Kind), string(l.Metric), amountOf(l.Reserved, l.Metric)})
	}
	return v
}

type reservationQuery struct {
	PageQuery
	Organization string `query:"organization_id" pattern:"^org_[0-9A-Za-z]{12}$" patternDescription:"an organization's id"`
	State        string `query:"state" enum:"open,provisional"`
}

// resolution says what a provisional charge finally is: by policy, or by the evidence of what was used.
type resolution struct {
	Policy     string           `json:"policy,omitempty" enum:"keep,estimate,zero" doc:"keep: what was reserved; estimate: the prompt alone; zero: nothing. Or quantities"`
	Quantities map[string]int64 `json:"quantities,omitempty" doc:"What was used: unit to number. Or policy"`
}

type resolveInput struct {
	ID   string `path:"id"`
	Body resolution
}

type reservationOutput struct{ Body reservation }

func (s *server) registerReservations(api huma.API) {
	list := operation(http.MethodGet, "/reservations", "list-reservations", "reservations", "List open reservations and provisional charges, oldest first")
	handle(api, list, "reservation", func(ctx context.Context, in *reservationQuery) (*pageOutput[reservation], error) {
		f := governance.ReservationFilter{Organization: in.Organization, State: in.State}
		rows, next, err := s.Spend.Reservations(ctx, f, in.page())
		if err != nil {
			return nil, err
		}
		return pageOf(rows, next, viewReservation), nil
	})
	if s.Resolver == nil {
		return
	}
	resolve := operation(http.MethodPost, "/reservations/{id}/resolve", "post-reservations-resolve", "reservations",
		"Give a provisional charge its final amount", http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	resolve.DefaultStatus = http.StatusOK
	handle(api, resolve, "reservation", func(ctx context.Context, in *resolveInput) (*reservationOutput, error) {
		r, err := s.resolve(ctx, in)
		if err != nil {
			return nil, err
		}
		return &reservationOutput{Body: viewReservation(r)}, nil
	})
}

func (s *server) resolve(ctx context.Context, in *resolveInput) (governance.OpenReservation, error) {
	var none governance.OpenReservation
	id, err := ids.Parse(in.ID)
	if err != nil {
		return none, governance.ErrNotFound
	}
	if (in.Body.Policy == "") == (in.Body.Quantities == nil) {
		return none, invalidField("policy", "policy or quantities is needed")
	}
	r, err := s.Resolver.Reservation(ctx, actorOf(ctx), id)
	if err != nil {
		return none, err
	}
	if r.State != "provisional" {
		return none, newProblem(http.StatusConflict, codeConflict, "The call is still under way; it settles by itself.")
	}
	settlement, err := settlementOf(r, in.Body)
	if err != nil {
		return none, err
	}
	err = s.Resolver.Resolve(ctx, actorOf(ctx), settlement)
	if errors.Is(err, governance.ErrAlreadyClosed) {
		return none, newProblem(http.StatusConflict, codeConflict, "The charge has its final amount already.")
	}
	return r, err
}

// settlementOf is what a resolution settles a reservation to.
func settlementOf(r governance.OpenReservation, by resolution) (governance.Settlement, error) {
	s := governance.Settlement{
		ID: r.ID, Outcome: governance.OutcomeExpired, Source: governance.UsageEstimate, Prices: r.Estimate.Prices,
		Requests: governance.BasisHold, Rate: governance.BasisHold, Budget: governance.BasisActual,
	}
	switch by.Policy {
	case "keep":
		s.Quantities, s.Cost, s.Budget, s.Source = r.Estimate.Quantities, r.Estimate.Cost, governance.BasisHold, governance.UsageReservation
		return s, nil
	case "zero":
		s.Budget, s.Source = governance.BasisZero, governance.UsageZero
		return s, nil
	case "estimate":
		for u := range governance.UnitOutput {
			s.Quantities[u] = r.Estimate.Quantities[u]
		}
		s.Quantities[governance.UnitRequest] = r.Estimate.Quantities[governance.UnitRequest]
	default:
		for name, n := range by.Quantities {
			u, ok := governance.ParseUnit(name)
			if !ok {
				return s, invalidField("quantities."+name, "is not a unit")
			}
			if n < 0 || n > governance.MaxTokens {
				return s, invalidField("quantities."+name, "is out of range")
			}
			s.Quantities[u] = n
		}
	}
	var err error
	if s.Cost, err = governance.CostAt(&s.Quantities, &s.Prices); err != nil {
		return s, invalidField("quantities", err.Error())
	}
	return s, nil
}

// node is one process of the fleet.
type node struct {
	ID        string    `json:"id"`
	Node      string    `json:"node"`
	StartedAt time.Time `json:"started_at"`
	BeatAt    time.Time `json:"beat_at" doc:"Last sign of life"`
	Alive     bool      `json:"alive"`
}

func viewNode(p Process) node {
	return node{p.ID, p.Node, p.StartedAt.UTC(), p.BeatAt.UTC(), p.Alive}
}

func (s *server) registerNodes(api huma.API) {
	if s.Processes == nil {
		return
	}
	op := operation(http.MethodGet, "/nodes", "list-nodes", "nodes", "List the processes of the fleet")
	handle(api, op, "node", func(ctx context.Context, _ *struct{}) (*pageOutput[node], error) {
		all, err := s.Processes.Processes(ctx)
		if err != nil {
			return nil, err
		}
		return pageOf(all, "", viewNode), nil
	})
}

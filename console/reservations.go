package console

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tollgate-gateway/tollgate/governance"
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
		Quantities: r.Estimate.Quantities.ByName(), CostUSD: r.Estimate.Cost.String(),
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
}

// node is one process of the fleet.
type node struct {
	ID        string     `json:"id" doc:"Made anew by each start"`
	Node      string     `json:"node" doc:"Host or pod"`
	Version   string     `json:"version"`
	StartedAt time.Time  `json:"started_at"`
	BeatAt    time.Time  `json:"beat_at" doc:"Last sign of life"`
	StoppedAt *time.Time `json:"stopped_at" doc:"null: it has not said goodbye"`
	Alive     bool       `json:"alive"`
}

func viewNode(p governance.Process) node {
	return node{p.ID, p.Node, p.Version, p.StartedAt.UTC(), p.BeatAt.UTC(), instant(p.StoppedAt), p.Alive}
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

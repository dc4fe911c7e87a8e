package console

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/money"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// book is a ledger whose every member is filled in.
type book struct {
	governance.SpendStore

	row     governance.SpendRow
	open    governance.OpenReservation
	members []governance.Level
}

func (b book) Rows(context.Context, governance.SpendFilter, governance.Page) ([]governance.SpendRow, string, error) {
	return []governance.SpendRow{b.row}, "more", nil
}

func (b book) Summary(context.Context, governance.SpendFilter, []string) ([]governance.SpendSum, error) {
	return []governance.SpendSum{{Group: map[string]string{"team": "team_x"}, Cost: -5, Requests: 1 << 60, InputTokens: 2, OutputTokens: 3}}, nil
}

func (b book) Reservations(context.Context, governance.ReservationFilter, governance.Page) ([]governance.OpenReservation, string, error) {
	return []governance.OpenReservation{b.open}, "", nil
}

func (b book) Members(context.Context, int64, governance.Page) ([]governance.Level, error) {
	return b.members, nil
}

func (b book) Check(context.Context) (governance.CheckReport, error) {
	return governance.CheckReport{Rows: 3, Duration: time.Second, Checks: []governance.CheckResult{
		{ID: "I01", Name: "window.spent = Σ rows", Violations: 1, Samples: []string{"row 1"}}, {ID: "I02", Name: "held"},
	}}, nil
}

// shelf is a store with one limit.
type shelf struct {
	governance.Store[governance.Limit]

	limit governance.Limit
}

func (s shelf) Get(context.Context, governance.Actor, string) (governance.Limit, error) {
	return s.limit, nil
}

// fleet is one process.
type fleet struct{}

func (fleet) Processes(context.Context) ([]governance.Process, error) {
	return []governance.Process{{ID: "1", Node: "gateway-0", StartedAt: time.Unix(0, 0), BeatAt: time.Unix(5, 0), Alive: true}}, nil
}

func TestLedger_FullRowsAreShownWhole(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 10, 12, 0, 0, 0, time.FixedZone("x", 3600))
	origin := governance.Origin{
		RequestID: ids.New(at), Attempt: 2, Organization: governance.Ref{ID: "org_AAAAAAAAAAAA", Name: "acme"},
		Team: governance.Ref{ID: "team_AAAAAAAAAAAA", Name: "research"}, Key: governance.Ref{ID: "key_AAAAAAAAAAAA", Name: "ci"},
		User: governance.Ref{ID: "user_AAAAAAAAAAAA", Name: "Ada"}, Route: "chat.completions", Model: "gpt-4o", Provider: "openai", UpstreamModel: "gpt-4o-2026",
	}
	row := governance.SpendRow{
		AttemptID: ids.New(at), Kind: governance.RowUsage, Origin: origin, EndUser: "u1", Outcome: governance.OutcomeComplete, Source: governance.UsageProvider,
		PriceID: "price_AAAAAAAAAAAA", Cost: -150_000, AdmittedAt: at, SettledAt: at, Corrects: "x.usage", Tags: map[string]string{"project": "x"},
	}
	row.Quantities[governance.UnitInput], row.Prices[governance.UnitInput] = 7, 2_500_000_000
	limit := governance.Limit{
		Meta: governance.Meta{Num: 7, ID: "lim_AAAAAAAAAAAA", Version: 1}, Kind: governance.KindBudget, Metric: governance.MetricCost, Amount: 10_000_000_000,
		Scope: governance.Scope{Type: governance.ScopeKey, Subject: governance.Ref{ID: "*"}}, Enforcement: governance.EnforceConvergent,
	}
	b := book{
		row: row,
		open: governance.OpenReservation{
			ID: ids.New(at), Origin: origin, State: "provisional", AdmittedAt: at, ExpiresAt: at, Process: "gateway-0",
			Estimate: governance.Estimate{Quantities: row.Quantities, Cost: 1}, Legs: []governance.Leg{{LimitID: limit.ID, Kind: limit.Kind, Metric: limit.Metric, Reserved: 1}},
		},
		members: []governance.Level{{
			Member: governance.Ref{ID: "key_AAAAAAAAAAAA", Name: "ci"}, Amount: 10_000_000_000, Spent: 9_999_999_999, Held: 1, Debt: 2, ResetsAfter: time.Minute,
		}},
	}
	o := Options{
		AdminToken: secret.New(testToken), Spend: b, Limits: shelf{limit: limit}, Processes: fleet{}, Now: func() time.Time { return at },
	}
	handler, err := New(o)
	require.NoError(t, err)
	e := &env{tb: t, handler: handler, contract: contractOf(o)}

	spend := e.must(http.MethodGet, "/spend", nil)
	require.Equal(t, "more", spend["next_cursor"])
	shown := spend["items"].([]any)[0].(object)
	require.Equal(t, "-0.00015", shown["cost_usd"])
	require.Equal(t, object{"input": "2.5"}, shown["unit_prices"])
	require.Equal(t, object{"id": "key_AAAAAAAAAAAA", "name": "ci"}, shown["key"])
	bare, err := json.Marshal(viewSpendRow(governance.SpendRow{}))
	require.NoError(t, err)
	require.Contains(t, string(bare), `"user":null`, "what a row has not is null")
	require.Equal(t, "2026-03-10T11:00:00Z", shown["settled_at"])

	sums := e.must(http.MethodGet, "/spend/summary?group_by=team", nil)
	require.Equal(t, money.Nano(-5).String(), sums["items"].([]any)[0].(object)["cost_usd"])

	reserved := e.must(http.MethodGet, "/reservations", nil)["items"].([]any)[0].(object)
	require.Equal(t, "0.000000001", reserved["cost_usd"])

	state := e.must(http.MethodGet, "/limits/lim_AAAAAAAAAAAA/state", nil)
	require.Equal(t, governance.Bound, state["bound"])
	one := state["members"].([]any)[0].(object)
	require.Equal(t, "9.999999999", one["spent"])
	require.Equal(t, "2026-03-10T11:01:00Z", one["resets_at"])

	check := e.must(http.MethodGet, "/ledger/check", nil)
	require.Equal(t, false, check["clean"])
	require.Len(t, e.must(http.MethodGet, "/nodes", nil)["items"], 1)
}

// pages remembers what was asked of a ledger.
type pages struct {
	governance.SpendStore

	asked []int
}

func (p *pages) Rows(_ context.Context, _ governance.SpendFilter, page governance.Page) ([]governance.SpendRow, string, error) {
	p.asked = append(p.asked, page.Limit)
	return nil, "", nil
}

func TestF161_ListsOfRowsAreAlwaysPages(t *testing.T) {
	t.Parallel()
	p := &pages{}
	o := Options{AdminToken: secret.New(testToken), Spend: p}
	handler, err := New(o)
	require.NoError(t, err)
	e := &env{tb: t, handler: handler, contract: contractOf(o)}
	e.must(http.MethodGet, "/spend", nil)
	e.must(http.MethodGet, "/spend?limit=250", nil)
	require.Equal(t, http.StatusBadRequest, e.send(http.MethodGet, "/spend?limit=251", nil).status)
	require.Equal(t, http.StatusBadRequest, e.send(http.MethodGet, "/spend?limit=0", nil).status)
	require.Equal(t, []int{50, 250}, p.asked)

	// A list that a page shows is one request: rows carry the names that a table has (F163).
	for _, op := range e.contract.operations {
		if op.Method != http.MethodGet || strings.Contains(op.Path, "{") || op.Path == "/ledger/check" {
			continue
		}
		schema := e.contract.resolve(op.Responses["200"].Content["application/json"].Schema)
		item := e.contract.resolve(schema.Properties["items"].Items)
		for name := range item.Properties {
			if owner, ok := strings.CutSuffix(name, "_id"); ok && (owner == "team" || owner == "user" || owner == "organization" && op.Path == "/keys") {
				require.Contains(t, item.Properties, owner+"_name", op.Path)
			}
		}
	}
}

package gateway_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

func TestKey_ShowsItsHolderWhatIsLeft(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.principal.KeyModels = []string{"gpt-*"}
		s.principal.KeyExpiresAt = time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
		s.limit(governance.KindBudget, governance.MetricCost, 5_500_000_000)
		s.limit(governance.KindRate, governance.MetricTokens, 1000)
		s.limit(governance.KindRate, governance.MetricRequests, 1).Mode = governance.ModeLog
		foreign := s.limit(governance.KindRate, governance.MetricRequests, 2)
		foreign.Scope = governance.Scope{Type: governance.ScopeTeam, Subject: governance.Ref{ID: "*"}, WithinType: governance.ScopeOrganization, Within: governance.Ref{Num: 99}}
	})
	b.spend.sums = []governance.SpendSum{{Cost: 1_500_000, Requests: 3, InputTokens: 40, OutputTokens: 2}}
	a := b.get("/v1/key")
	require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	var key struct {
		Label, Organization, Team string
		Models                    []string
		ExpiresAt                 time.Time `json:"expires_at"`
		Limits                    []struct{ ID, Kind, Metric, Amount, Remaining, Enforcement, Bound string }
		Today                     struct {
			CostUSD  string `json:"cost_usd"`
			Requests int64
		} `json:"usage_today"`
	}
	require.NoError(t, json.Unmarshal(a.body, &key))
	require.Equal(t, "demo", key.Label)
	require.Equal(t, "acme", key.Organization)
	require.Equal(t, "core", key.Team)
	require.Equal(t, []string{"gpt-*"}, key.Models)
	require.Equal(t, 2027, key.ExpiresAt.Year())
	require.Len(t, key.Limits, 2, "limits in log mode and those of others are not shown")
	require.Equal(t, "1000", key.Limits[0].Remaining)
	require.Equal(t, "5.5", key.Limits[1].Amount)
	require.NotEmpty(t, key.Limits[0].Bound)
	require.Equal(t, "0.0015", key.Today.CostUSD)
	require.Equal(t, governance.SpendFilter{Organization: "org_000000000001", Key: "key_000000000003", From: b.spend.filter.From}, b.spend.filter)

	b.spend.err = governance.ErrStoreAway
	require.Equal(t, "data_store_unavailable", b.get("/v1/key").failure(t).Code)
}

func TestModels_WithoutWhatNoTargetServes(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.model("m", "small")
		s.model("closed", "small")
		s.targets = s.targets[:1] // the other one's credential does not open
	})
	var list struct{ Data []struct{ ID string } }
	a := b.get("/v1/models")
	require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	require.NoError(t, json.Unmarshal(a.body, &list))
	require.Equal(t, []struct{ ID string }{{"m"}}, list.Data)
	a = b.post("/v1/chat/completions", strings.Replace(chatBody, `"m"`, `"closed"`, 1))
	require.Equal(t, http.StatusBadGateway, a.StatusCode, a.text())
	require.Equal(t, "upstream_unreachable", a.failure(t).Code)
}

func TestUsage_IsTheKeysOwn(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.spend.sums = []governance.SpendSum{{Group: map[string]string{"model": "m"}, Cost: 10, Requests: 1}}
	a := b.get("/v1/usage?group_by=model,day&from=2026-01-01T00:00:00Z")
	require.Equal(t, http.StatusOK, a.StatusCode)
	require.JSONEq(t, `{"items":[{"group":{"model":"m"},"cost_usd":"0.00000001","requests":1,"input_tokens":0,"output_tokens":0}],"next_cursor":null}`, a.text())
	require.Equal(t, "key_000000000003", b.spend.filter.Key)
	require.Equal(t, 2026, b.spend.filter.From.Year())
	require.Equal(t, http.StatusBadRequest, b.get("/v1/usage?from=yesterday").StatusCode)
}

func TestReceipt_IsForTheKeyThatMadeTheRequest(t *testing.T) {
	t.Parallel()
	b := start(t)
	id := ids.New(time.Now())
	origin := governance.Origin{RequestID: id, Attempt: 1, Key: governance.Ref{Num: 3, ID: "key_000000000003"}, Model: "m"}
	row := governance.SpendRow{AttemptID: id, Kind: governance.RowUsage, Origin: origin, Cost: 42, PriceID: "price_000000000007"}
	row.Quantities[governance.UnitInput], row.Prices[governance.UnitInput] = 3, 1_000_000_000
	b.spend.receipt = governance.Receipt{RequestID: id, Status: "settling", Rows: []governance.SpendRow{row}, Cost: 42, Reservations: []governance.OpenReservation{{Origin: origin}}}
	a := b.get("/v1/receipts/" + id.String())
	require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	var r struct {
		Status  string
		CostUSD string `json:"cost_usd"`
		Rows    []struct {
			Quantities map[string]int64
			UnitPrices map[string]string `json:"unit_prices"`
		}
		Open []struct{ Attempt int }
	}
	require.NoError(t, json.Unmarshal(a.body, &r))
	require.Equal(t, "settling", r.Status)
	require.Equal(t, "0.000000042", r.CostUSD)
	require.Equal(t, map[string]int64{"input": 3}, r.Rows[0].Quantities)
	require.Equal(t, map[string]string{"input": "1"}, r.Rows[0].UnitPrices)
	require.Len(t, r.Open, 1)

	require.Equal(t, http.StatusNotFound, b.get("/v1/receipts/"+ids.New(time.Now()).String()).StatusCode)
	b.spend.receipt.Rows[0].Origin.Key.Num = 4
	require.Equal(t, http.StatusNotFound, b.get("/v1/receipts/"+id.String()).StatusCode, "another key's request")
}

func TestEstimate_FindsTheRouteOfABody(t *testing.T) {
	t.Parallel()
	b := start(t)
	for _, tc := range []struct {
		body, query string
		output      int64
	}{
		{`{"model":"m","messages":[{"role":"user","content":"hi"}],"input":"hi"}`, "", 4096},
		{`{"model":"m","prompt":"hi"}`, "", 16},
		{`{"model":"m","prompt":["hi","ho"],"n":2}`, "", 64},
		{`{"model":"m","prompt":{"id":"pmpt_1"}}`, "", 4096},
		{`{"model":"m","input":"hi","max_output_tokens":9}`, "", 9},
		{`{"model":"m","input":"hi","instructions":"Be brief."}`, "", 4096},
		{`{"model":"m","input": [ {"role":"user","content":"hi"}]}`, "", 4096},
		{`{"model":"m","input":["hi","ho"],"max_tokens":7}`, "", 0},
		{`{"model":"m","input":[1,2]}`, "", 0},
		{`{"model":"m","input":"hi","prompt":null,"tools":null}`, "", 0},
		{`{"model":"m","input":"hi"}`, "?route=responses", 4096},
		{`{"model":"m","input":"hi","stream":false}`, "?route=moderations", 0},
	} {
		a := b.post("/v1/estimate"+tc.query, tc.body)
		require.Equal(t, http.StatusOK, a.StatusCode, a.text())
		var out struct {
			Estimate struct {
				Output int64 `json:"output_tokens"`
			}
		}
		require.NoError(t, json.Unmarshal(a.body, &out))
		require.Equal(t, tc.output, out.Estimate.Output, tc.body)
	}
	for query, param := range map[string]string{"?rout=responses": "rout", "?route=models": "route", "?route=": "route", "": "route"} {
		a := b.post("/v1/estimate"+query, `{"model":"m"}`)
		require.Equal(t, http.StatusBadRequest, a.StatusCode, a.text())
		require.Equal(t, param, *a.failure(t).Param)
	}
}

func TestDryRunsReserveNothing(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.model("m", "small")
		s.limit(governance.KindBudget, governance.MetricCost, 1)
		s.limit(governance.KindRate, governance.MetricRequests, 5)
	})
	responses := strings.NewReplacer(`"messages":[{"role":"user","content":"Say hello."}]`, `"input":"Say hello."`).Replace(chatBody)
	for _, a := range []answer{b.chat("X-Tollgate-Dry-Run", "true"), b.post("/v1/estimate", chatBody), b.post("/v1/estimate?route=responses", responses)} {
		require.Equal(t, http.StatusOK, a.StatusCode, a.text())
		var out struct {
			WouldAdmit bool `json:"would_admit"`
			Limits     []struct {
				Kind        string
				Wanted      string
				WouldRefuse bool `json:"would_refuse"`
			}
			Estimate struct {
				Input  int64  `json:"input_tokens"`
				Output int64  `json:"output_tokens"`
				Cost   string `json:"cost_usd"`
				Price  string `json:"price_version"`
			}
		}
		require.NoError(t, json.Unmarshal(a.body, &out))
		require.False(t, out.WouldAdmit)
		require.Len(t, out.Limits, 2)
		require.True(t, out.Limits[0].WouldRefuse)
		require.False(t, out.Limits[1].WouldRefuse)
		require.Positive(t, out.Estimate.Input)
		require.Equal(t, int64(4096), out.Estimate.Output)
		require.Equal(t, "price_000000000007", out.Estimate.Price)
	}
	require.Empty(t, b.ledger.admitted())
	require.Zero(t, b.mock.Counts().Count)
}

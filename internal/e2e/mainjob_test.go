package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The main job: a governed call is reserved, forwarded, settled and accounted for, unary and streamed, and an auditor
// finds one exact row for each.
func TestMainJob(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	key, _ := f.issue(
		object{"kind": "budget", "metric": "cost", "amount": "1", "window": object{"type": "calendar", "period": "month"}},
		object{"kind": "rate", "metric": "requests", "amount": "600", "per": "1m", "burst": "600"},
	)
	g := f.gateways[0]

	unary := must(t)(g.call(t.Context(), key, "/v1/chat/completions", helloChat))
	require.Equal(t, http.StatusOK, unary.status, "%s", unary.body)
	require.Equal(t, "600", unary.header.Get("x-ratelimit-limit-requests"))
	require.Equal(t, "599", unary.header.Get("x-ratelimit-remaining-requests"))
	require.NotEmpty(t, unary.header.Get("x-request-id"))
	require.Equal(t, unary.header.Get("x-request-id"), unary.header.Get("request-id"))

	stream := must(t)(g.call(t.Context(), key, "/v1/chat/completions", strings.Replace(helloChat, "{", `{"stream":true,`, 1)))
	require.Equal(t, http.StatusOK, stream.status)
	require.True(t, strings.HasSuffix(string(stream.body), "data: [DONE]\n\n"), "%s", stream.body)
	require.NotContains(t, string(stream.body), `"usage":{`, "the client did not ask for the usage frame")

	// "hello" is 5 bytes: 2 input tokens by the mock's rule; its text is 9 words: 9 output tokens.
	const cost = "0.000094" // 2 × 2 + 9 × 10 USD per million
	require.Equal(t, cost, unary.header.Get("x-tollgate-cost-usd"))
	rows := f.rows()
	require.Len(t, rows, 2)
	for _, r := range rows {
		require.Equal(t, "usage", r["kind"])
		require.Equal(t, "complete", r["outcome"])
		require.Equal(t, "provider", r["usage_source"])
		require.Equal(t, cost, r["cost_usd"])
	}
	require.Equal(t, unary.header.Get("x-request-id"), rows[1]["request_id"])

	receipt := must(t)(g.get(t.Context(), key, "/v1/receipts/"+stream.header.Get("x-request-id")))
	require.Equal(t, http.StatusOK, receipt.status, "%s", receipt.body)
	require.Equal(t, cost, receipt.json(t)["cost_usd"])

	own := must(t)(g.get(t.Context(), key, "/v1/key")).json(t)
	limits, _ := own["limits"].([]any)
	require.Len(t, limits, 2)
	f.requireBooksBalance()
}

// A key made on the control plane works at once on every gateway, and stops at once when it is revoked.
func TestF173_ChangesAreInForceEverywhere(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{gateways: 2})
	key, id := f.issue()
	for _, g := range f.gateways {
		for range 10 {
			a := must(t)(g.call(t.Context(), key, "/v1/chat/completions", helloChat))
			require.Equal(t, http.StatusOK, a.status, "%s", a.body)
		}
	}
	status, o := f.admin(http.MethodPost, "keys/"+id+"/revoke", object{})
	require.Equal(t, http.StatusOK, status, "%v", o)
	revoked := time.Now()
	for _, g := range f.gateways {
		f.eventually(20*time.Second, "the key is refused", func() bool {
			a := must(t)(g.call(t.Context(), key, "/v1/chat/completions", helloChat))
			return a.status == http.StatusUnauthorized && a.code() == "key_revoked"
		})
	}
	t.Logf("revoked everywhere after %s", time.Since(revoked).Round(time.Millisecond))
}

package e2e

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// A key that is made with limits is never without them, on no gateway: what holds of a cache that is a moment old must not be
// a moment without limits.
func TestANewKeyIsLimitedFromItsFirstRequest(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{gateways: 2})
	for range 10 {
		key, _ := f.issue(object{"kind": "budget", "metric": "cost", "amount": "0", "window": object{"type": "total"}})
		for _, g := range f.gateways {
			a := must(t)(g.call(t.Context(), key, "/v1/chat/completions", helloChat))
			require.Equal(t, http.StatusTooManyRequests, a.status, "%s", a.body)
			require.Equal(t, "budget_exceeded", a.code())
		}
	}
	require.Zero(t, f.mock.Counts().Count)
}

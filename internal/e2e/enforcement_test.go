package e2e

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// Limits that ask for a weaker enforcement are decided exactly: never more weakly than their owner asked for.
func TestWeakerEnforcementsAreDecidedExactly(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	for _, enforcement := range []string{"convergent", "advisory"} {
		key, _ := f.issue(object{"kind": "rate", "metric": "requests", "amount": "2", "per": "24h", "burst": "2", "enforcement": enforcement})
		for i, want := range []int{http.StatusOK, http.StatusOK, http.StatusTooManyRequests} {
			a := must(t)(f.gateways[0].call(t.Context(), key, "/v1/chat/completions", helloChat))
			require.Equal(t, want, a.status, "%s call %d: %s", enforcement, i, a.body)
		}
	}
	f.requireBooksBalance()
}

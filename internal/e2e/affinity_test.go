package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Two targets share a model's calls. Whoever goes on from a response reaches the one that has it, from any replica (F110); another
// organization reaches nothing.
func TestF110_FollowUpsReachTheTargetOfTheirResponse(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{gateways: 2})
	f.addModel("left", "left")
	f.addModel("right", "right")
	f.create("models", object{"name": "both", "targets": []object{
		{"provider_id": f.provider, "upstream_model": "left", "weight": 1, "priority": 0},
		{"provider_id": f.provider, "upstream_model": "right", "weight": 1, "priority": 0},
	}})
	key, _ := f.issue()
	other := text(f.create("keys", object{"organization_id": f.create("organizations", object{"name": "Other"})["id"], "name": "other"})["key"])
	ask := func(replica int, key, more string) answer {
		return must(t)(f.gateways[replica].call(t.Context(), key, "/v1/responses", `{"model":"both","input":"hi"`+more+`}`))
	}
	f.eventually(20*time.Second, "the model is there", func() bool { return ask(1, key, "").status == http.StatusOK && ask(0, key, "").status == http.StatusOK })

	first := ask(0, key, "")
	require.Equal(t, http.StatusOK, first.status, "%s", first.body)
	id, target := text(first.json(t)["id"]), first.header.Get("X-Tollgate-Model")
	for i := range 20 {
		a := ask(1-i%2, key, fmt.Sprintf(`,"previous_response_id":%q`, id))
		require.Equal(t, http.StatusOK, a.status, "%s", a.body)
		require.Equal(t, target, a.header.Get("X-Tollgate-Model"))
	}
	sent := f.mock.Counts().Count
	a := ask(1, other, fmt.Sprintf(`,"previous_response_id":%q`, id))
	require.Equal(t, http.StatusNotFound, a.status, "%s", a.body)
	kept := ask(0, key, `,"store":false`)
	a = ask(0, key, fmt.Sprintf(`,"previous_response_id":%q`, text(kept.json(t)["id"])))
	require.Equal(t, http.StatusNotFound, a.status, "%s", a.body)
	require.Equal(t, sent+1, f.mock.Counts().Count)
	f.requireBooksBalance()
}

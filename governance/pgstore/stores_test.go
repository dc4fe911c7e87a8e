package pgstore

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance/storetest"
	"github.com/tollgate-gateway/tollgate/internal/pgtest"
	"github.com/tollgate-gateway/tollgate/internal/seal"
)

func newKeys(t *testing.T) *seal.Keys {
	t.Helper()
	keys, err := seal.ParseKeys(seal.Generate("k1"))
	require.NoError(t, err)
	return keys
}

func newPeppers(t *testing.T) *seal.Peppers {
	t.Helper()
	peppers, err := seal.ParsePeppers(seal.Generate("p1"))
	require.NoError(t, err)
	return peppers
}

// stores makes all stores: those of the control plane on one pool, those that the data plane uses on another.
func stores(control, gateway *pgxpool.Pool, keys *seal.Keys, peppers *seal.Peppers) storetest.Stores {
	return storetest.Stores{
		Organizations: NewOrganizations(control), Teams: NewTeams(control), Users: NewUsers(control),
		Memberships: NewMemberships(control), Keys: NewKeys(control, peppers), Finder: NewKeyFinder(gateway),
		Providers: NewProviders(control, keys), Models: NewModels(control), Targets: NewTargets(control),
		Limits: NewLimits(control), Guardrails: NewGuardrails(control, keys), Prices: NewPrices(control), Audit: NewAudit(control),
		EndUsers: NewEndUsers(gateway), Idempotency: NewIdempotency(gateway), Responses: NewStoredResponses(gateway),
	}
}

// The suite runs with the privileges that the planes have in production, through pools as Open makes them.
func TestStores(t *testing.T) {
	t.Parallel()
	storetest.RunStores(t, func(t *testing.T) storetest.Stores {
		admin := pgtest.New(t)
		return stores(as(t, admin, "tollgate_control"), as(t, admin, "tollgate_gateway"), newKeys(t), newPeppers(t))
	})
}

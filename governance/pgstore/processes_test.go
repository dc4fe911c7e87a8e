package pgstore

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/pgtest"
)

func TestProcesses_SayWhichAreAlive(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	_, err := pool.Exec(t.Context(), `
		INSERT INTO ledger.processes (node, boot, version, lease_seconds, started_at, beat_at, stopped_at) VALUES
			('long ago', gen_random_uuid(), 'v1', 45, now() - interval '3 days', now() - interval '2 days', NULL),
			('silent', gen_random_uuid(), 'v1', 45, now() - interval '1 hour', now() - interval '46 seconds', NULL),
			('stopped', gen_random_uuid(), 'v1', 45, now() - interval '1 hour', now(), now()),
			('alive', gen_random_uuid(), 'v2', 45, now() - interval '1 hour', now(), NULL)`)
	require.NoError(t, err)
	list, err := NewProcesses(pgtest.Role(t, pool, "tollgate_control")).Processes(t.Context())
	require.NoError(t, err)
	alive := make(map[string]bool)
	for _, p := range list {
		alive[p.Node] = p.Alive
		require.NotEmpty(t, p.ID)
		require.Equal(t, p.Node == "stopped", !p.StoppedAt.IsZero())
	}
	require.Equal(t, map[string]bool{"alive": true, "stopped": false, "silent": false}, alive)
	require.Equal(t, "v2", list[0].Version)
}

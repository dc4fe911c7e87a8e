package devdb

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStandbyFollowsAndTakesOver(t *testing.T) {
	t.Parallel()
	primary := start(t, Options{DataDir: dataDir(t), Settings: map[string]string{"synchronous_commit": "on"}})
	execute(t, primary, "CREATE TABLE kept (n int)")
	standby, err := primary.StartStandby(t.Context(), StandbyOptions{DataDir: dataDir(t), Name: "second"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, standby.Stop(context.WithoutCancel(t.Context()))) })
	require.Equal(t, "true", ask(t, standby, "SELECT pg_is_in_recovery()::text"))

	execute(t, primary, "ALTER SYSTEM SET synchronous_standby_names = 'second'")
	execute(t, primary, "SELECT pg_reload_conf()")
	require.Eventually(t, func() bool {
		return ask(t, primary, "SELECT count(*)::text FROM pg_stat_replication WHERE sync_state = 'sync'") == "1"
	}, readyTimeout, pollInterval)
	execute(t, primary, "INSERT INTO kept VALUES (7)")
	require.NoError(t, primary.Kill(t.Context()))

	require.NoError(t, standby.Promote(t.Context()))
	require.Equal(t, "7", ask(t, standby, "SELECT n::text FROM kept"))
	execute(t, standby, "ALTER SYSTEM SET synchronous_standby_names = ''")
	execute(t, standby, "SELECT pg_reload_conf()")
	require.Eventually(t, func() bool { return ask(t, standby, "SHOW synchronous_standby_names") == "" }, readyTimeout, pollInterval)
	execute(t, standby, "INSERT INTO kept VALUES (8)")

	_, err = standby.StartStandby(t.Context(), StandbyOptions{DataDir: primary.options.DataDir, Name: "third"})
	require.ErrorContains(t, err, "in use by another process")
}

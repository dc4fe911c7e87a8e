package e2e

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// F196: PostgreSQL has stopped to answer, on connections that stay open, when a process is told to end. Its stream ends
// whole, and the process ends all the same, within its own bounds and not when a connection comes back. It says that it
// could not settle; others book what it had reserved.
func TestF196_ExitDoesNotHangOnHeldConnections(t *testing.T) {
	t.Parallel()
	cluster := startDatabase(t)
	f := startFleet(t, fleetOptions{dsn: cluster.DSN("postgres", "tollgate")})
	g := f.gateways[0]
	key, _ := f.issue(forever("cost", "100"))
	f.awaitAnswers(key)
	f.addModel("flying", "flying")
	f.awaitModels(key, "flying")
	f.script("flying", "confirm")
	r, err := g.open(t.Context(), key, streaming(named("flying")))
	require.NoError(t, err)
	_, err = r.event()
	require.NoError(t, err)

	frozen := tree(t, cluster.Pid())
	thaw := func() {
		for _, pid := range frozen {
			_ = syscall.Kill(pid, syscall.SIGCONT) // some have ended of themselves
		}
	}
	t.Cleanup(thaw)
	for _, pid := range frozen {
		require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	}
	require.NoError(t, g.cmd.Process.Signal(syscall.SIGTERM))
	waitUntilReady(t, g.ops, 503, "draining")
	f.mock.Release(0, 100)
	last := ""
	for {
		event, err := r.event()
		if err != nil {
			break
		}
		last = event
	}
	require.Equal(t, "data: [DONE]\n\n", last)
	told := time.Now()
	select {
	case <-g.done:
	case <-time.After(2 * time.Minute):
		require.Fail(t, "the process waits for the store")
	}
	t.Logf("ended %v after its stream, exit code %d", time.Since(told).Round(time.Millisecond), g.cmd.ProcessState.ExitCode())
	require.Equal(t, 1, g.cmd.ProcessState.ExitCode(), "what it could not settle is no clean end")
	require.Contains(t, g.out.String(), "settle")
	thaw()
}

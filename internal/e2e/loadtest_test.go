package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/loadtest"
)

// A load run by the binary itself: two callers, one gateway, a database of its own. How fast it was says nothing on a
// machine that does other things; what it admitted and what its ledger says is exact all the same, its report is complete,
// and the exit code is the report's.
func TestLoadtest_OfOneGateway(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), binary, "loadtest", "--replicas", "1", "--rates", "40", "--duration", "3s", "--output", "json")
	cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
	var said, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &complaints
	ended := cmd.Run()
	var report loadtest.Report
	require.NoError(t, json.Unmarshal(said.Bytes(), &report), "%s%s", &said, &complaints)
	require.Len(t, report.Samples, 1)
	s := &report.Samples[0]
	t.Logf("%s: %v", s.Verdict, s.Reasons)

	require.Equal(t, 120, s.Requests)
	require.Equal(t, 120, s.Observations, "%v", s.Errors)
	require.Zero(t, s.SamplingErrors, "%v", s.Errors)
	require.Zero(t, s.TransportErrors, "%v", s.Errors)
	require.Zero(t, s.Unexpected)
	require.NotNil(t, s.LedgerClean)
	require.True(t, *s.LedgerClean, s.Ledger)
	require.Len(t, s.Limits, 2)
	for _, l := range s.Limits {
		require.LessOrEqual(t, l.Admitted, int(math.Ceil(l.Capacity+l.Refill*l.Elapsed)), "%+v", l)
	}
	require.NotNil(t, s.LockWaiters)
	require.NotNil(t, s.Resources)
	require.Positive(t, s.Resources.CPU.Gateways)
	require.Positive(t, s.Resources.CPU.Postgres)
	require.Positive(t, s.Resources.GatewayRSS)
	require.NotNil(t, s.Limiter)
	require.LessOrEqual(t, s.Limiter.P95, s.HTTP.P95)
	require.Equal(t, loadtest.Judge(&s.Sample), s.Judgement)

	require.Equal(t, s.Verdict == loadtest.Passed, report.Pass)
	if report.Pass {
		require.NoError(t, ended, "%s", &complaints)
		return
	}
	var exit *exec.ExitError
	require.True(t, errors.As(ended, &exit), "%v", ended)
	require.Equal(t, 1, exit.ExitCode(), "%s", &complaints)
}

// The recorded run that looked well and was not is judged by the command as by the package: it failed.
func TestLoadtest_JudgesRecordedRuns(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), binary, "loadtest", "--judge", "../loadtest/testdata/counter-example.json").CombinedOutput()
	var exit *exec.ExitError
	require.True(t, errors.As(err, &exit), "%v", err)
	require.Equal(t, 1, exit.ExitCode())
	require.Contains(t, string(out), "queue p95 2200.0 ms, above 100")
	require.Contains(t, string(out), "not every sample passed")
}

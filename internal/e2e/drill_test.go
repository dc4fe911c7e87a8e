package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/drill"
)

// drillTime is how long a drill may take on a machine that does other things, too.
const drillTime = 4 * time.Minute

// drillHome makes a directory for temporary files that the server's own user can enter, as t.TempDir is none.
func drillHome(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tollgate-e2e-drill-") //nolint:usetesting // see above
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// reportOf waits for the end of a drill that writes JSON, and asserts that it has left nothing behind.
func reportOf(t *testing.T, home string, code int, args ...string) drill.Report {
	t.Helper()
	r := spawn(t, []string{"TMPDIR=" + home}, append(append([]string{"drill"}, args...), "--output", "json", "--no-fsync")...)
	require.Equal(t, code, r.exitCode(t, drillTime), "%s\n%s", r.stdout, r.out)
	var report drill.Report
	require.NoError(t, json.Unmarshal([]byte(r.stdout.String()), &report))
	requireEmpty(t, home)
	return report
}

func requireEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Empty(t, left, "what a drill has left")
}

// seen returns what a drill saw where its check is so called, and requires that there is one.
func seen(t *testing.T, r drill.Report, phase, what string) string {
	t.Helper()
	for _, c := range r.Checks {
		if c.Phase == phase && c.What == what {
			return c.Seen
		}
	}
	require.Fail(t, "no such check", "%s: %s in %+v", phase, what, r.Checks)
	return ""
}

// the outage drill passes, and what it shows are the contract's figures.
func TestA17_DrillOutage(t *testing.T) {
	t.Parallel()
	r := reportOf(t, drillHome(t), 0, "outage")
	require.True(t, r.Passed, "%+v", r.Checks)
	const requests = "32 requests over 4 gateways"
	for phase, want := range map[string]string{
		"before": "32 × 200", "outage, caches warm": "32 × 503 limit_store_unavailable",
		"outage, caches expired": "32 × 503 data_store_unavailable", "recovery": "32 × 200",
	} {
		require.Equal(t, want, seen(t, r, phase, requests), phase)
	}
}

// A-28, F190: a rolling update loses nothing, and says so.
func TestA28_F190_DrillRollout(t *testing.T) {
	t.Parallel()
	r := reportOf(t, drillHome(t), 0, "rollout")
	require.True(t, r.Passed, "%+v", r.Checks)
	require.Equal(t, "200 × [DONE]", seen(t, r, "drain", "streams end whole"))
	require.Equal(t, "unready, 200", seen(t, r, "old gateway 1 ends", "readiness, and a call that comes all the same"))
}

// A drill tells a product that breaks its promises: here an old version that gives its streams no time to end.
func TestDrillRollout_FindsAVersionThatCutsStreams(t *testing.T) {
	t.Parallel()
	old := filepath.Join(t.TempDir(), "old")
	script := fmt.Sprintf("#!/bin/sh\nTOLLGATE_DRAIN_TIMEOUT=1ms exec %q \"$@\"\n", binary)
	require.NoError(t, os.WriteFile(old, []byte(script), 0o755)) // a program
	r := reportOf(t, drillHome(t), 1, "rollout", "--old-binary", old)
	require.False(t, r.Passed)
	require.Equal(t, "0 × [DONE]", seen(t, r, "drain", "streams end whole"))
	require.Equal(t, "clean", seen(t, r, "books", "ledger check"), "they were settled all the same")
}

// Ctrl-C ends a drill and all that it has started.
func TestDrill_InterruptLeavesNothing(t *testing.T) {
	t.Parallel()
	home := drillHome(t)
	r := spawn(t, []string{"TMPDIR=" + home}, "drill", "outage")
	require.Eventually(t, func() bool { return strings.Contains(r.out.String(), "before: ") }, time.Minute, 10*time.Millisecond, "gateways run")
	processes := tree(t, r.cmd.Process.Pid)[1:]
	require.Greater(t, len(processes), 6, "four gateways, control plane, upstream and PostgreSQL")
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, 1, r.exitCode(t, time.Minute), r.out.String())
	require.Contains(t, r.stdout.String(), "drill outage interrupted after")
	require.NotContains(t, r.stdout.String(), "FAILED", "nothing that was promised was broken")
	require.Contains(t, r.out.String(), "tollgate: drill outage: interrupted\n")
	for _, pid := range processes {
		require.Eventually(t, func() bool { return gone(pid) }, 10*time.Second, 10*time.Millisecond, "process %d goes on", pid)
	}
	requireEmpty(t, home)
}

// gone reports whether a process has ended; one that nobody has waited for counts.
func gone(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ")
}

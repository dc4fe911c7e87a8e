//go:build seededbug

package seededbug_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	all   = flag.Bool("all", false, "run the whole suites, not only the checks that must fail")
	long  = flag.Bool("chaos", false, "run profiles of the chaos suite, too: on a machine that does nothing else")
	write = flag.Bool("write", false, "write docs/seeded-bugs.md from what was noticed")
	only  = flag.String("only", "", "run only bugs whose name contains this")
)

// checkWait bounds one suite. One that does not end is stopped, and counts as failed because it says so.
const checkWait = 4 * time.Minute

// TestSeededBugs plants each bug and wants its checks to fail. The first run is without any bug: it must pass, or the
// failures of the others would mean nothing.
func TestSeededBugs(t *testing.T) {
	suites := []string{
		ledgerSuite, gatewaySuite, moneySuite, priceSuite, windowSuite, bookSuite, openaiSuite, anthropicSuite, geminiSuite, cacheSuite, guardSuite,
	}
	if !*all {
		suites = nil
	}
	none := bug{name: "none", red: map[string][]string{}}
	for i := range bugs {
		if !strings.Contains(bugs[i].name, *only) {
			continue
		}
		if !*long {
			delete(bugs[i].red, chaosSuite)
		}
		for suite, checks := range bugs[i].red {
			none.red[suite] = append(none.red[suite], checks...)
		}
	}
	for _, checks := range none.red {
		slices.Sort(checks)
	}
	for suite, checks := range none.red {
		none.red[suite] = slices.Compact(checks)
	}
	t.Run("none", func(t *testing.T) {
		for suite, checks := range none.red {
			failed := none.run(t, suite, checks)
			if len(failed) > 0 { // a busy machine may have stopped one
				t.Logf("%s without a bug: %s; once more", suite, strings.Join(failed, ", "))
				failed = none.run(t, suite, failed)
			}
			require.Empty(t, failed, "%s must pass without a bug", suite)
		}
	})
	if t.Failed() {
		return
	}
	caught := make([]map[string][]string, len(bugs))
	for i := range bugs {
		b := &bugs[i]
		if !strings.Contains(b.name, *only) {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			caught[i] = make(map[string][]string)
			for suite, checks := range b.red {
				wanted := checks
				if slices.Contains(suites, suite) {
					checks = nil
				}
				failed := b.run(t, suite, checks)
				// Some checks are random: what they meet in most runs they miss in some.
				for again := 0; again < 2 && !contains(failed, wanted); again++ {
					failed = b.run(t, suite, checks)
				}
				caught[i][suite] = failed
				t.Logf("%s: %s", suite, strings.Join(failed, ", "))
				require.Subset(t, failed, wanted, "%s must notice that %s", suite, b.wrong)
			}
		})
	}
	if *write && !t.Failed() && *only == "" {
		require.NoError(t, os.WriteFile(filepath.Join(root, "docs/seeded-bugs.md"), page(caught), 0o644))
	}
}

// run builds a suite with the bug in it and returns which of its checks fail; no checks: all of it.
func (b *bug) run(t *testing.T, suite string, checks []string) []string {
	t.Helper()
	overlay := b.overlay(t)
	if suite == chaosSuite {
		return chaos(t, overlay, checks)
	}
	binary := filepath.Join(t.TempDir(), "suite.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", overlay, "-o", binary, "./"+suite)
	build.Dir = root
	said, err := build.CombinedOutput()
	require.NoError(t, err, "a bug must compile: %s", said)

	pattern := ""
	if len(checks) > 0 {
		pattern = "^(" + strings.Join(checks, "|") + ")$"
	}
	ctx, cancel := context.WithTimeout(t.Context(), checkWait+time.Minute)
	defer cancel()
	test := exec.CommandContext(ctx, binary, "-test.run", pattern, "-test.timeout", checkWait.String(), "-rapid.nofailfile", "-rapid.shrinktime=0s")
	if slices.Contains(withoutRapid, suite) { // they know no flags of it
		test.Args = test.Args[:len(test.Args)-2]
	}
	test.Dir = filepath.Join(root, suite)
	test.Env = append(os.Environ(), "TOLLGATE_TEST_OPERATIONS=800") // of the model tests
	out, err := test.CombinedOutput()
	failed := failures(out)
	if err == nil {
		require.Empty(t, failed)
		return nil
	}
	require.ErrorAs(t, err, new(*exec.ExitError))
	require.NotEmpty(t, failed, "it failed without saying what: %s", out)
	return failed
}

var (
	failLine = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)
	// A suite that hangs names what still ran.
	hangLine    = regexp.MustCompile(`(?m)^panic: test timed out`)
	runningLine = regexp.MustCompile(`(?m)^\t(Test[^\s/]+) \(`)
)

// failures lists the tests that failed, or still ran when time was up.
func failures(out []byte) []string {
	var names []string
	for _, m := range failLine.FindAllSubmatch(out, -1) {
		names = append(names, string(m[1]))
	}
	if hangLine.Match(out) {
		for _, m := range runningLine.FindAllSubmatch(out, -1) {
			names = append(names, string(m[1]))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// chaos runs profiles against a product with the bug in it, and returns which of them were violated.
func chaos(t *testing.T, overlay string, profiles []string) []string {
	t.Helper()
	const violated, notRun = 1, 3
	driver, product := filepath.Join(t.TempDir(), "chaos"), filepath.Join(t.TempDir(), "tollgate")
	for _, args := range [][]string{
		{"build", "-o", driver, "./" + chaosSuite},
		{"build", "-overlay", overlay, "-o", product, "./cmd/tollgate"},
	} {
		build := exec.CommandContext(t.Context(), "go", args...)
		build.Dir = root
		said, err := build.CombinedOutput()
		require.NoError(t, err, "a bug must compile: %s", said)
	}
	dir, err := os.MkdirTemp("", "tollgate-seeded-bug-") //nolint:usetesting // no other user may enter t.TempDir()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755), "the database's user goes through it")
	var caught []string
	for _, profile := range profiles {
		for load := 20 * time.Second; ; load *= 2 {
			run := exec.CommandContext(t.Context(), driver, "-profile", profile, "-seed", "1", "-time", load.String(), "-binary", product, "-dir", dir)
			out, err := run.CombinedOutput()
			var exit *exec.ExitError
			if err == nil {
				break
			}
			require.ErrorAs(t, err, &exit)
			if exit.ExitCode() == notRun && load < time.Minute {
				continue // too little happened on a busy machine
			}
			require.Equal(t, violated, exit.ExitCode(), "%s", out)
			caught = append(caught, profile)
			break
		}
	}
	return caught
}

// overlay writes the sources that the bug changes where go's -overlay finds them.
func (b *bug) overlay(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	top, err := filepath.Abs(root)
	require.NoError(t, err)
	replace := make(map[string]string)
	for file, text := range b.plant(t) {
		planted := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		require.NoError(t, os.WriteFile(planted, []byte(text), 0o600))
		replace[filepath.Join(top, file)] = planted
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	path := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(path, list, 0o600))
	return path
}

func contains(all, some []string) bool {
	return !slices.ContainsFunc(some, func(s string) bool { return !slices.Contains(all, s) })
}

// page writes the table of what noticed what.
func page(caught []map[string][]string) []byte {
	var b bytes.Buffer
	b.WriteString("# Seeded bugs\n\nWould the checks of what touches money notice if it were wrong? `make mutants` plants each of these bugs in a build of its own, runs the\n" +
		"checks in bold and wants each of them to fail; without a bug all of them must pass. A bug is a text that takes another\n" +
		"one's place in the compiler's overlay, so nothing of it is in any build of the product. The list is\n" +
		"[internal/seededbug/bugs_test.go](../internal/seededbug/bugs_test.go); this page is made from a run (`make mutants WRITE=1`).\n\n")
	if *all {
		b.WriteString("Of a suite that is named the whole was run: what is not named in it did not notice the bug. Suites that are not named\nwere not run against it.\n")
	} else {
		b.WriteString("Only the checks that are named were run against a bug. Others may notice it, too: `make mutants ALL=1 WRITE=1` runs the\nwhole of each suite.\n")
	}
	if *long {
		b.WriteString("What is named for `internal/chaos/run` are profiles of the [chaos suite](chaos.md): 20 seconds of load with seed 1.\n")
	} else {
		b.WriteString("The profiles of the [chaos suite](chaos.md) were not run for this page (`CHAOS=1` does).\n")
	}
	b.WriteString("\n" +
		"| bug | what it does | noticed by |\n|---|---|---|\n")
	for i := range bugs {
		var by []string
		for suite, failed := range caught[i] {
			var names []string
			for _, name := range failed {
				if slices.Contains(bugs[i].red[suite], name) {
					name = "**" + name + "**"
				}
				names = append(names, name)
			}
			by = append(by, fmt.Sprintf("`%s`: %s", suite, strings.Join(names, ", ")))
		}
		slices.Sort(by)
		fmt.Fprintf(&b, "| %s | %s | %s |\n", bugs[i].name, bugs[i].wrong, strings.Join(by, "; "))
	}
	return b.Bytes()
}

//go:build full

package e2e

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	product "github.com/tollgate-gateway/tollgate/internal/fleet"
)

// releasedFleet is the product as a release has it: without the race detector, which makes memory several times as large,
// with upstream, control plane and gateway in processes of their own, and a database that flushes every commit.
func releasedFleet(t *testing.T) (*product.Fleet, *product.Process) {
	t.Helper()
	released := filepath.Join(t.TempDir(), "tollgate")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", released, "github.com/tollgate-gateway/tollgate/cmd/tollgate").CombinedOutput()
	require.NoError(t, err, "%s", out)
	f, err := product.Start(t.Context(), product.Options{Binary: released})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	g, err := f.Start(t.Context(), product.Spec{})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the gateway:\n%s\nlog of the control plane:\n%s", tail(g.Log(), 8000), tail(f.Control.Log(), 8000))
			keepProfiles(t, g)
		}
	})
	return f, g
}

// keepProfiles writes down what a process's memory and goroutines are.
func keepProfiles(t *testing.T, p *product.Process) {
	dir, err := os.MkdirTemp("", "tollgate-profiles-") //nolint:usetesting // it outlives the test
	if err != nil {
		t.Errorf("make room for profiles: %v", err)
		return
	}
	for name, path := range map[string]string{"heap": "heap?gc=1", "goroutines": "goroutine?debug=1"} {
		r, err := http.Get(p.OpsURL + "/debug/pprof/" + path)
		if err != nil {
			t.Errorf("read profile: %v", err)
			return
		}
		var b bytes.Buffer
		_, err = b.ReadFrom(r.Body)
		_ = r.Body.Close()
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o600)
		}
		if err != nil {
			t.Errorf("keep profile: %v", err)
			return
		}
	}
	t.Logf("profiles are in %s", dir)
}

// footprint is what a process takes.
type footprint struct {
	live       float64 // bytes of the heap that are reachable, after a collection
	heap       float64 // bytes of the heap in use, what is too small to be given to anybody else included
	stacks     float64 // bytes of goroutines' stacks
	resident   float64 // bytes of memory that the process has
	goroutines float64
	files      float64
}

// footprintOf collects garbage and reads what a process takes then; also all its metrics.
func footprintOf(t *testing.T, p *product.Process) (footprint, map[string]float64) {
	t.Helper()
	for range 2 { // what pools hold goes with the second one
		_, err := probe(t, p.OpsURL, "/debug/pprof/heap?gc=1")
		require.NoError(t, err)
	}
	a, err := probe(t, p.OpsURL, "/metrics")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, a.status)
	m := metricsOf(t, a.body)
	return footprint{
		live: m["go_memstats_heap_alloc_bytes"], heap: m["go_memstats_heap_inuse_bytes"], stacks: m["go_memstats_stack_inuse_bytes"],
		resident: m["process_resident_memory_bytes"], goroutines: m["go_goroutines"], files: m["process_open_fds"],
	}, m
}

// metricsOf sums the series of each metric, whatever their labels.
func metricsOf(t *testing.T, text []byte) map[string]float64 {
	t.Helper()
	sums := make(map[string]float64)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		require.Positive(t, at, "%q", line)
		v, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64)
		require.NoError(t, err)
		name, _, _ := strings.Cut(line[:at], "{")
		sums[name] += v
	}
	return sums
}

// median of a few numbers.
func median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}

// awaitAnswer waits until a gateway knows a key and a model.
func awaitAnswer(t *testing.T, g *product.Process, key, model string) {
	t.Helper()
	p := &process{baseURL: g.BaseURL}
	require.Eventually(t, func() bool {
		a, err := p.call(t.Context(), key, "/v1/chat/completions", named(model))
		return err == nil && a.status == http.StatusOK
	}, 2*time.Minute, 50*time.Millisecond, "model %s answers", model)
}

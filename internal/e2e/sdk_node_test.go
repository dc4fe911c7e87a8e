package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// startNode starts a worker that drives npm packages, and returns its way to do tasks, many at a time.
func startNode(t *testing.T, program string) func(context.Context, task) report {
	t.Helper()
	node, err := exec.LookPath("node")
	require.NoError(t, err, "the npm SDK is part of the suite: install Node.js 20 or later (Debian: apt-get install nodejs npm)")
	_, err = os.Stat("sdk/node_modules/openai/package.json")
	require.NoError(t, err, "the npm SDK is not installed: run make test, or .ci/npm internal/e2e/sdk")

	cmd := exec.Command(node, program)
	cmd.Dir = "sdk"
	cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")} // no OPENAI_… of the developer's own
	complaints := &lockedBuffer{}
	cmd.Stderr = complaints
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())

	w := &worker{waiting: map[int64]chan report{}, ended: make(chan struct{})}
	go w.listen(bufio.NewReader(out))
	t.Cleanup(func() {
		_ = in.Close() // the worker ends with its input
		select {
		case <-w.ended:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-w.ended
		}
		require.NoError(t, cmd.Wait(), "worker of the npm SDK: %s", complaints)
	})
	return func(ctx context.Context, k task) report {
		answer := w.expect(&k)
		line, err := json.Marshal(k)
		if err != nil {
			return report{Error: &sdkError{Message: err.Error()}}
		}
		w.mu.Lock()
		_, err = in.Write(append(line, '\n'))
		w.mu.Unlock()
		if err != nil {
			return report{Error: &sdkError{Message: "worker: " + err.Error() + ": " + complaints.String()}}
		}
		select {
		case r := <-answer:
			return r
		case <-w.ended:
			return report{Error: &sdkError{Message: "worker ended: " + complaints.String()}}
		case <-ctx.Done():
			return report{Error: &sdkError{Message: "worker did not answer: " + ctx.Err().Error()}}
		}
	}
}

// worker matches reports to tasks.
type worker struct {
	mu      sync.Mutex
	next    int64
	waiting map[int64]chan report
	ended   chan struct{}
}

// expect numbers the task and returns where its report will come.
func (w *worker) expect(k *task) <-chan report {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next++
	k.ID = w.next
	answer := make(chan report, 1)
	w.waiting[k.ID] = answer
	return answer
}

func (w *worker) listen(lines *bufio.Reader) {
	defer close(w.ended)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var r report
		if json.Unmarshal(bytes.TrimSpace(line), &r) != nil {
			continue // not a report: what it belongs to is then missed
		}
		w.mu.Lock()
		answer := w.waiting[r.ID]
		delete(w.waiting, r.ID)
		w.mu.Unlock()
		if answer != nil {
			answer <- r
		}
	}
}

// A lock file that names a registry would make every machine ask that one.
func TestTheLockFileNamesNoRegistry(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"sdk/package-lock.json", "agents/package-lock.json"} {
		lock, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NotContains(t, string(lock), `"resolved"`, name)
	}
}

package audit_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/plugins"
	"github.com/tollgate-gateway/tollgate/plugins/audit"
	"github.com/tollgate-gateway/tollgate/plugins/plugintest"
)

func start(t *testing.T, section plugintest.Config) (plugins.Recorder, plugins.Runner, *plugintest.Env) {
	t.Helper()
	env := plugintest.NewEnv()
	p, err := audit.Module().New(env.Plugins(t), section)
	require.NoError(t, err)
	return p.(plugins.Recorder), p.(plugins.Runner), env
}

func record(c *plugins.Call, raw string) plugins.Record {
	return plugins.Record{Call: c, Attempts: []plugins.Attempt{{ID: ids.New(time.Now()), Target: c.Target, RawUsage: []byte(raw)}}}
}

// run lets the plugin write what it has and come to its end.
func run(t *testing.T, r plugins.Runner) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, r.Run(ctx))
}

func TestKeepsWhatClientsSaid(t *testing.T) {
	t.Parallel()
	recorder, runner, env := start(t, "")
	c := plugintest.Call()
	c.Metadata = []byte(`{"a":1}`)
	r := record(c, `{"prompt_tokens":1}`)
	released := r.Attempts[0]
	released.Settlement.Release = true
	r.Attempts = append(r.Attempts, released)
	recorder.Record(t.Context(), r)
	silent := plugintest.Call()
	silent.Tags = nil
	recorder.Record(t.Context(), record(silent, ""))
	run(t, runner)
	require.Equal(t, []governance.Attribution{{
		AttemptID: r.Attempts[0].ID, RequestID: c.ID, Tags: map[string]string{"project": "x"},
		Metadata: []byte(`{"a":1}`), RawUsage: []byte(`{"prompt_tokens":1}`),
	}}, env.Spend.Attributed(), "neither a released attempt nor one that says nothing leaves a row")
}

func TestWritesWhileItRuns(t *testing.T) {
	t.Parallel()
	recorder, runner, env := start(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- runner.Run(ctx) }()
	for range 500 {
		recorder.Record(ctx, record(plugintest.Call(), "{}"))
	}
	require.Eventually(t, func() bool { return len(env.Spend.Attributed()) == 500 }, 10*time.Second, time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
}

func TestFullQueueDropsAndCounts(t *testing.T) {
	t.Parallel()
	recorder, runner, env := start(t, "queue: 2")
	for range 5 {
		recorder.Record(t.Context(), record(plugintest.Call(), "{}"))
	}
	require.InDelta(t, 3, env.Metrics.Value("tollgate_attributions_lost_total", "queue_full"), 0)
	run(t, runner)
	require.Len(t, env.Spend.Attributed(), 2)
}

func TestStoreThatFails(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fails int64
		err   error
		kept  int
	}{
		"away for a moment": {4, fmt.Errorf("write: %w", governance.ErrStoreAway), 3},
		"away":              {100, governance.ErrStoreAway, 0},
		"refuses for good":  {1, errors.New("no such table"), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				recorder, runner, env := start(t, "")
				var calls atomic.Int64
				env.Spend.Fail = func() error {
					if calls.Add(1) <= tc.fails {
						return tc.err
					}
					return nil
				}
				for range 3 {
					recorder.Record(t.Context(), record(plugintest.Call(), "{}"))
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				require.NoError(t, runner.Run(ctx))
				require.Len(t, env.Spend.Attributed(), tc.kept)
				require.InDelta(t, 3-tc.kept, env.Metrics.Value("tollgate_attributions_lost_total", "store"), 0)
			})
		})
	}
}

func TestShutdownDoesNotWaitForAStoreThatIsAway(t *testing.T) {
	t.Parallel()
	recorder, runner, env := start(t, "")
	env.Spend.Fail = func() error { return governance.ErrStoreAway }
	recorder.Record(t.Context(), record(plugintest.Call(), "{}"))
	run(t, runner)
	require.InDelta(t, 1, env.Metrics.Value("tollgate_attributions_lost_total", "store"), 0)
}

func TestSettings(t *testing.T) {
	t.Parallel()
	for _, section := range []plugintest.Config{"queue: 0", "queue: -1", "queue: 2000000", "queue: many"} {
		_, err := audit.Module().New(plugintest.NewEnv().Plugins(t), section)
		require.Error(t, err, section)
	}
}

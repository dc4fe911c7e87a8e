package tasks_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollgate-gateway/tollgate/governance/tasks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// claims is the conditional write, in memory.
type claims struct {
	mu       sync.Mutex
	due      map[string]time.Time
	failures []string
	away     bool
}

var errAway = errors.New("store is away")

func (c *claims) Claim(_ context.Context, name string, every time.Duration) (bool, time.Duration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away {
		return false, 0, errAway
	}
	if c.due == nil {
		c.due = make(map[string]time.Time)
	}
	if left := time.Until(c.due[name]); left > 0 {
		return false, left, nil
	}
	c.due[name] = time.Now().Add(every)
	return true, every, nil
}

func (c *claims) Finished(_ context.Context, _, failure string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures = append(c.failures, failure)
	return nil
}

func (c *claims) setAway(away bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away = away
}

// runAll runs n replicas for d, then stops them and waits.
func runAll(t *testing.T, c tasks.Claims, log zerolog.Logger, n int, d time.Duration, all ...tasks.Task) []*tasks.Runner {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	replicas := make([]*tasks.Runner, n)
	for i := range replicas {
		r, err := tasks.New(c, log, all...)
		require.NoError(t, err)
		replicas[i] = r
		running.Go(func() { _ = r.Run(ctx) })
	}
	time.Sleep(d) // of the bubble's clock
	cancel()
	running.Wait()
	return replicas
}

func TestRun_EachDueRunGoesToOneOfManyReplicas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var at []time.Time
		task := tasks.Task{Name: "seal", Every: time.Minute, Timeout: time.Second, Run: func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Now())
			return nil
		}}
		replicas := runAll(t, &claims{}, zerolog.Nop(), 4, 2*time.Hour, task)
		require.GreaterOrEqual(t, len(at), 105, "a period is stretched by a tenth at most")
		require.LessOrEqual(t, len(at), 121)
		for i := 1; i < len(at); i++ {
			require.GreaterOrEqual(t, at[i].Sub(at[i-1]), time.Minute, "run twice within one period")
		}
		var won, lost uint64
		for _, r := range replicas {
			c := r.Counts()["seal"]
			won += c.Won
			lost += c.Lost
			require.Zero(t, c.Failed+c.Undecidable+c.Panicked)
		}
		require.Equal(t, uint64(len(at)), won)
		require.LessOrEqual(t, lost, 8*won, "replicas sleep until the task is due instead of polling")
	})
}

func TestRun_SurvivorTakesTheTurnsOfADeadReplica(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shared := &claims{}
		runs := 0
		task := tasks.Task{Name: "x", Every: time.Minute, Timeout: time.Second, Run: func(context.Context) error { runs++; return nil }}
		runAll(t, shared, zerolog.Nop(), 1, 10*time.Minute, task)
		first := runs
		runAll(t, shared, zerolog.Nop(), 1, 10*time.Minute, task)
		require.Positive(t, first)
		require.GreaterOrEqual(t, runs, first+8)
	})
}

func TestRun_PanicsAndErrorsAreCountedAndDoNotEndTheTask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		shared := &claims{}
		runs := 0
		task := tasks.Task{Name: "x", Every: time.Minute, Timeout: time.Second, Run: func(context.Context) error {
			runs++
			switch runs {
			case 1:
				panic("broken")
			case 2:
				return errAway
			}
			return nil
		}}
		replicas := runAll(t, shared, zerolog.New(&log), 1, 10*time.Minute, task)
		c := replicas[0].Counts()["x"]
		require.Equal(t, uint64(1), c.Panicked)
		require.Equal(t, uint64(2), c.Failed)
		require.Equal(t, uint64(runs), c.Won)
		require.Greater(t, runs, 5)
		require.Contains(t, log.String(), "broken")
		require.Contains(t, shared.failures[0], "task panicked: broken")
		require.Equal(t, errAway.Error(), shared.failures[1])
		require.Empty(t, shared.failures[2])
	})
}

func TestRun_TimeoutEndsARunThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		task := tasks.Task{Name: "x", Every: time.Minute, Timeout: time.Second, Run: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		replicas := runAll(t, &claims{}, zerolog.Nop(), 1, 5*time.Minute, task)
		c := replicas[0].Counts()["x"]
		require.GreaterOrEqual(t, c.Won, uint64(4))
		require.Equal(t, c.Won, c.Failed)
	})
}

func TestRun_StoreOutageIsCountedAndOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shared := &claims{away: true}
		runs := 0
		task := tasks.Task{Name: "x", Every: time.Hour, Timeout: time.Second, Run: func(context.Context) error { runs++; return nil }}
		go func() {
			time.Sleep(30 * time.Minute)
			shared.setAway(false)
		}()
		replicas := runAll(t, shared, zerolog.Nop(), 1, 35*time.Minute, task)
		require.Equal(t, 1, runs, "the first claim after the outage wins, without waiting for a whole period")
		require.Greater(t, replicas[0].Counts()["x"].Undecidable, uint64(10))
	})
}

func TestNew_RefusesUnusableTasks(t *testing.T) {
	t.Parallel()
	ok := tasks.Task{Name: "a", Every: time.Second, Timeout: time.Second, Run: func(context.Context) error { return nil }}
	for name, set := range map[string][]tasks.Task{
		"same name":   {ok, ok},
		"no name":     {{Every: ok.Every, Timeout: ok.Timeout, Run: ok.Run}},
		"no period":   {{Name: "a", Timeout: ok.Timeout, Run: ok.Run}},
		"no time-out": {{Name: "a", Every: ok.Every, Run: ok.Run}},
		"no function": {{Name: "a", Every: ok.Every, Timeout: ok.Timeout}},
	} {
		_, err := tasks.New(&claims{}, zerolog.Nop(), set...)
		require.Error(t, err, name)
	}
}

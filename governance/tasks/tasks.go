// Package tasks runs the work that no request asks for. Every replica runs every task and none is the leader: a
// conditional write gives each due run to one of them.
package tasks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/tollgate-gateway/tollgate/internal/lognames"
)

// Claims gives one due run of a task to one replica, by the store's clock.
type Claims interface {
	// Claim moves the task's due time by every if it has come, and reports whether this caller moved it. next is how long
	// it is until the task is due again; it may be zero or less where another replica has just taken the run.
	Claim(ctx context.Context, name string, every time.Duration) (mine bool, next time.Duration, err error)
	// Finished notes how a claimed run ended, for people. An empty failure means success.
	Finished(ctx context.Context, name, failure string) error
}

// Task is one kind of work. Run must be safe to repeat: a replica may die between claim and end, and one that was
// suspended may come back after another has run.
type Task struct {
	Name    string
	Every   time.Duration
	Timeout time.Duration // of one run
	Run     func(context.Context) error
}

// Counts says what one replica has seen of a task since it started.
type Counts struct {
	Won         uint64 // runs that this replica claimed
	Lost        uint64 // turns that were not due or went to another replica
	Failed      uint64 // claimed runs that returned an error, panics included
	Panicked    uint64
	Undecidable uint64 // claims that the store could not decide
}

const (
	// claimTimeout bounds one claim, so that a store that hangs does not stop a task for ever.
	claimTimeout = 5 * time.Second
	// retryMin and retryMax bound the pause after a claim that the store could not decide.
	retryMin = time.Second
	retryMax = time.Minute
	// jitterShare spreads the replicas over this part of a task's period behind its due time.
	jitterShare = 10
)

// Runner tries a set of tasks until it is told to stop.
type Runner struct {
	claims Claims
	log    zerolog.Logger
	tasks  []*counted
}

type counted struct {
	Task
	won, lost, failed, panicked, undecidable atomic.Uint64
}

// New checks the tasks: each has a name of its own, a period, a time-out and something to run.
func New(claims Claims, log zerolog.Logger, all ...Task) (*Runner, error) {
	r := &Runner{claims: claims, log: log}
	seen := make(map[string]bool, len(all))
	for _, t := range all {
		if t.Name == "" || seen[t.Name] || t.Every <= 0 || t.Timeout <= 0 || t.Run == nil {
			return nil, fmt.Errorf("add task %q: want a name of its own, a period, a time-out and a function", t.Name)
		}
		seen[t.Name] = true
		r.tasks = append(r.tasks, &counted{Task: t})
	}
	return r, nil
}

// Run tries every task until ctx ends, and returns when no run is left. Failures are logged and counted, never returned.
func (r *Runner) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, t := range r.tasks {
		running.Go(func() { r.loop(ctx, t) })
	}
	running.Wait()
	return nil
}

// Counts returns the counters of each task by its name.
func (r *Runner) Counts() map[string]Counts {
	all := make(map[string]Counts, len(r.tasks))
	for _, t := range r.tasks {
		all[t.Name] = Counts{
			Won: t.won.Load(), Lost: t.lost.Load(), Failed: t.failed.Load(),
			Panicked: t.panicked.Load(), Undecidable: t.undecidable.Load(),
		}
	}
	return all
}

func (r *Runner) loop(ctx context.Context, t *counted) {
	// The first turn is jittered too, so that a fleet that starts together does not knock together.
	for wait := jitter(min(t.Every, retryMax)); ctx.Err() == nil; wait = r.turn(ctx, t) {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// turn claims the task and runs it if it is this replica's, and returns how long to wait for the next turn.
func (r *Runner) turn(ctx context.Context, t *counted) time.Duration {
	claimCtx, cancel := context.WithTimeout(ctx, claimTimeout)
	mine, next, err := r.claims.Claim(claimCtx, t.Name, t.Every)
	cancel()
	switch {
	case ctx.Err() != nil && !mine:
		return 0
	case err != nil:
		t.undecidable.Add(1)
		r.log.Warn().Err(err).Str(lognames.Task, t.Name).Msg("task could not be claimed")
		return jitter(min(max(t.Every, retryMin), retryMax))
	case !mine:
		t.lost.Add(1)
		return max(next, 0) + jitter(t.Every)
	}
	t.won.Add(1)
	began := time.Now()
	r.execute(ctx, t)
	return max(next-time.Since(began), 0) + jitter(t.Every)
}

func (r *Runner) execute(ctx context.Context, t *counted) {
	runCtx, cancel := context.WithTimeout(ctx, t.Timeout)
	err := t.guarded(runCtx)
	cancel()
	failure := ""
	if err != nil {
		t.failed.Add(1)
		failure = err.Error()
		r.log.Error().Err(err).Str(lognames.Task, t.Name).Msg("task failed")
	}
	// The note outlives a shutdown that interrupted the run, since it says so.
	noteCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimTimeout)
	defer cancel()
	if err := r.claims.Finished(noteCtx, t.Name, failure); err != nil {
		r.log.Warn().Err(err).Str(lognames.Task, t.Name).Msg("end of task could not be noted")
	}
}

// errPanicked marks runs that panicked.
var errPanicked = errors.New("task panicked")

// guarded turns a panic into an error: one broken task must not take a gateway and its streams down.
func (t *counted) guarded(ctx context.Context) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			t.panicked.Add(1)
			err = fmt.Errorf("%w: %v\n%s", errPanicked, cause, debug.Stack())
		}
	}()
	return t.Run(ctx)
}

// jitter returns a random part of a tenth of d, at least a millisecond.
func jitter(d time.Duration) time.Duration {
	return time.Millisecond + rand.N(d/jitterShare+1) //nolint:gosec // nothing secret depends on it
}

package pgstore

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// failureMax bounds what is kept of a failed run, in bytes.
const failureMax = 4000

// Claims keeps the turns of background tasks.
type Claims struct{ pool *pgxpool.Pool }

// NewClaims keeps turns through pool.
func NewClaims(pool *pgxpool.Pool) *Claims { return &Claims{pool: pool} }

// Claim gives a due run of a task to this caller alone, by the database's clock; a task that nobody has run yet is due.
// next is how long it is until the task is due again.
func (c *Claims) Claim(ctx context.Context, name string, every time.Duration) (mine bool, next time.Duration, err error) {
	type claim struct {
		Mine bool          `db:"mine"`
		Next time.Duration `db:"next"`
	}
	got, err := read(ctx, c.pool, func(ctx context.Context, q querier) (claim, error) {
		return one[claim](ctx, q, "task_claim", args{"name": name, "every": every})
	})
	return got.Mine, got.Next, err
}

// Finished notes how a run ended.
func (c *Claims) Finished(ctx context.Context, name, failure string) error {
	failure = strings.ToValidUTF8(strings.ReplaceAll(failure[:min(len(failure), failureMax)], "\x00", ""), "")
	_, err := read(ctx, c.pool, func(ctx context.Context, q querier) (int64, error) {
		return exec(ctx, q, "task_finish", args{"name": name, "failure": failure})
	})
	return err
}

// TaskState is what is known of a background task over all replicas.
type TaskState struct {
	Name       string
	DueAt      time.Time
	StartedAt  time.Time
	FinishedAt time.Time // zero: running, or its replica died
	Failure    string    // of the last run; empty: none
	Runs       int64
}

// List returns all tasks that were ever claimed, by name.
func (c *Claims) List(ctx context.Context) ([]TaskState, error) {
	type taskColumns struct {
		Name       string     `db:"name"`
		DueAt      time.Time  `db:"due_at"`
		StartedAt  time.Time  `db:"started_at"`
		FinishedAt *time.Time `db:"finished_at"`
		Failure    string     `db:"failure"`
		Runs       int64      `db:"runs"`
	}
	rows, err := read(ctx, c.pool, func(ctx context.Context, q querier) ([]taskColumns, error) {
		return many[taskColumns](ctx, q, "task_list", nil)
	})
	list := make([]TaskState, 0, len(rows))
	for _, r := range rows {
		list = append(list, TaskState{
			Name: r.Name, DueAt: r.DueAt.UTC(), StartedAt: r.StartedAt.UTC(), FinishedAt: instant(r.FinishedAt),
			Failure: r.Failure, Runs: r.Runs,
		})
	}
	return list, err
}

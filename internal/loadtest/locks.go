package loadtest

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

//go:embed sql/lock_waiters.sql
var lockWaitersSQL string

// lockInterval is how often waiting sessions are counted.
const lockInterval = 100 * time.Millisecond

// lockWatch counts sessions that wait for locks until it is ended.
type lockWatch struct {
	cancel context.CancelFunc
	done   chan struct{}
	peak   int
	err    error
}

// watchLocks begins to count, with a session of its own.
func watchLocks(ctx context.Context, dsn string) (*lockWatch, error) {
	session, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("connect to watch locks: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &lockWatch{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.err = w.run(ctx, session)
		w.err = errors.Join(w.err, session.Close(context.WithoutCancel(ctx)))
	}()
	return w, nil
}

func (w *lockWatch) run(ctx context.Context, session *pgx.Conn) error {
	ticker := time.NewTicker(lockInterval)
	defer ticker.Stop()
	for {
		var n int
		// The count under way is let end: a cancelled one would be an error.
		if err := session.QueryRow(context.WithoutCancel(ctx), lockWaitersSQL).Scan(&n); err != nil {
			return fmt.Errorf("count sessions that wait for locks: %w", err)
		}
		w.peak = max(w.peak, n)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// end returns the most sessions that waited at one moment.
func (w *lockWatch) end() (int, error) {
	w.cancel()
	<-w.done
	return w.peak, w.err
}

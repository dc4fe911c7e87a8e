package gateway

import (
	"context"
	"sync"
	"time"
)

// bounded is a context that ends after a time, as context.WithTimeout makes it, but has no timer before somebody waits for
// its end: most stages answer from memory.
type bounded struct {
	parent context.Context
	until  time.Time

	mu     sync.Mutex
	ended  bool
	waited context.Context // nil: nobody waits for the end
	cancel context.CancelFunc
}

var _ context.Context = (*bounded)(nil)

// within returns a context for at most d. end must be called.
func within(parent context.Context, d time.Duration) *bounded {
	until := time.Now().Add(d)
	if earlier, ok := parent.Deadline(); ok && earlier.Before(until) {
		until = earlier
	}
	return &bounded{parent: parent, until: until}
}

// end ends the context.
func (b *bounded) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	if b.cancel != nil {
		b.cancel()
	}
}

// Deadline implements context.Context.
func (b *bounded) Deadline() (time.Time, bool) { return b.until, true }

// Done implements context.Context.
func (b *bounded) Done() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waited == nil {
		b.waited, b.cancel = context.WithDeadline(b.parent, b.until)
		if b.ended {
			b.cancel()
		}
	}
	return b.waited.Done()
}

// Err implements context.Context.
func (b *bounded) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch err := b.parent.Err(); {
	case b.waited != nil:
		return b.waited.Err()
	case err != nil:
		return err
	case b.ended:
		return context.Canceled
	case !time.Now().Before(b.until):
		return context.DeadlineExceeded
	}
	return nil
}

// Value implements context.Context. The timer's context answers once it is there, so that contexts made from this one find
// it instead of watching this one from a goroutine of their own.
func (b *bounded) Value(key any) any {
	b.mu.Lock()
	from := b.waited
	b.mu.Unlock()
	if from == nil {
		from = b.parent
	}
	return from.Value(key)
}

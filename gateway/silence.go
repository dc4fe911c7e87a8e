package gateway

import (
	"sync/atomic"
	"time"
)

// silence ends an attempt whose upstream says nothing for too long. The time in which a client is slow to take what there is does
// not count: then it is we who do not read.
type silence struct {
	timer  *time.Timer
	cancel func()
	busy   atomic.Bool  // the client is being written to
	spent  atomic.Int64 // nanoseconds of that since the upstream was last heard
}

// busyLook is how soon it is looked again whether a client has taken what it was sent.
const busyLook = 100 * time.Millisecond

// newSilence lets cancel be called once wait has passed in silence.
func newSilence(wait time.Duration, cancel func()) *silence {
	s := &silence{cancel: cancel}
	s.timer = time.AfterFunc(time.Hour, s.over)
	s.timer.Reset(wait)
	return s
}

// reset begins anew, since the upstream was heard.
func (s *silence) reset(wait time.Duration) {
	s.spent.Store(0)
	s.timer.Reset(wait)
}

func (s *silence) stop() { s.timer.Stop() }

// write notes that the client is written to until written is called with what it returns.
func (s *silence) write() (began time.Time) {
	s.busy.Store(true)
	return time.Now()
}

func (s *silence) written(began time.Time) {
	s.spent.Add(int64(time.Since(began)))
	s.busy.Store(false)
}

// over runs when the time has passed, the client's included.
func (s *silence) over() {
	if s.busy.Load() {
		s.timer.Reset(busyLook)
		return
	}
	if spent := s.spent.Swap(0); spent > int64(time.Millisecond) {
		s.timer.Reset(time.Duration(spent))
		return
	}
	s.cancel()
}

package app

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/tollgate-gateway/tollgate/internal/lognames"
)

// storeLog logs failures of the store once when they begin and once each ten seconds while they last, since an outage makes
// as many of them as there are requests.
type storeLog struct {
	log   zerolog.Logger
	last  atomic.Pointer[error]
	count atomic.Int64
}

const storeLogEvery = 10 * time.Second

// failed notes a failure. It never blocks.
func (s *storeLog) failed(err error) {
	s.last.Store(&err)
	s.count.Add(1)
}

// run writes what was noted until ctx ends.
func (s *storeLog) run(ctx context.Context) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	var written time.Time
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			n := s.count.Swap(0)
			switch {
			case n == 0 && failing && now.Sub(written) > storeLogEvery:
				failing = false
				s.log.Info().Msg("the limit store answers again")
			case n == 0:
			case !failing || now.Sub(written) >= storeLogEvery:
				failing, written = true, now
				s.log.Error().Err(*s.last.Load()).Int64(lognames.Count, n).Msg("the limit store does not answer")
			default:
				s.count.Add(n) // told with the next line
			}
		}
	}
}

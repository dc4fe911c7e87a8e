package gateway

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A bounded context is what context.WithTimeout makes, whether or not somebody waits for its end.
func TestBounded(t *testing.T) {
	t.Parallel()
	for name, waited := range map[string]bool{"waited for": true, "looked at": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				look := func(b *bounded) {
					if waited {
						b.Done()
					}
				}
				late := within(t.Context(), time.Second)
				defer late.end()
				look(late)
				require.NoError(t, late.Err())
				time.Sleep(2 * time.Second) // of synctest's clock
				require.ErrorIs(t, late.Err(), context.DeadlineExceeded)
				<-late.Done()

				ended := within(t.Context(), time.Second)
				look(ended)
				ended.end()
				require.ErrorIs(t, ended.Err(), context.Canceled)
				<-ended.Done()

				parent, cancel := context.WithTimeout(t.Context(), time.Minute)
				left := within(parent, time.Hour)
				defer left.end()
				look(left)
				until, _ := left.Deadline()
				require.Equal(t, time.Minute, time.Until(until), "the earlier deadline counts")
				child, stop := context.WithCancel(left)
				defer stop()
				cancel()
				synctest.Wait()
				require.ErrorIs(t, left.Err(), context.Canceled)
				<-child.Done()
			})
		})
	}
}

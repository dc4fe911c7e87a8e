package gateway

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestF018_AClientsPauseIsNotTheUpstreamsSilence: while a client does not take what there is, it is we who do not read.
func TestF018_AClientsPauseIsNotTheUpstreamsSilence(t *testing.T) {
	t.Parallel()
	ended := 0
	s := newSilence(time.Hour, func() { ended++ })
	defer s.stop()
	began := s.write()
	s.over()
	require.Zero(t, ended, "the client has not taken it yet")
	s.written(began.Add(-time.Minute))
	s.over()
	require.Zero(t, ended, "the upstream has the minute that the client took")
	s.over()
	require.Equal(t, 1, ended)

	s.written(s.write().Add(-time.Minute))
	s.reset(time.Hour) // the upstream was heard since then
	s.over()
	require.Equal(t, 2, ended)
}

func TestGenerating_EndsWhenWeDoNotWaitAnyLonger(t *testing.T) {
	t.Parallel()
	var never, s sending
	never.end()
	require.Zero(t, never.generating(), "it was not sent")
	s.sentAt.Store(time.Now().Add(-time.Hour).UnixNano())
	require.Greater(t, s.generating(), 59*time.Minute)
	s.endAt.Store(s.sentAt.Load() + int64(time.Second))
	s.end()
	require.Equal(t, time.Second, s.generating())
}

package sse_test

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollgate-gateway/tollgate/internal/sse"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestReader_Smoke(t *testing.T) {
	t.Parallel()
	r := sse.NewReader(strings.NewReader("event: a\ndata: 1\ndata: 2\r\n\r\n: ping\n\ndata:x\n"))
	ev, err := r.Next()
	require.NoError(t, err)
	require.Equal(t, "a", string(ev.Name))
	require.Equal(t, "1\n2", string(ev.Data))
	require.True(t, r.Buffered())
	_, err = r.Next()
	require.NoError(t, err)
	_, err = r.Next()
	require.NoError(t, err)
	require.False(t, r.Buffered())
	ev, err = r.Next()
	require.NoError(t, err)
	require.Equal(t, "x", string(ev.Data))
	_, err = r.Next()
	require.Equal(t, io.EOF, err)
}

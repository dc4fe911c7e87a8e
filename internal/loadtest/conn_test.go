package loadtest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/secret"
)

func targetOf(t *testing.T, handler http.HandlerFunc) *target {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	to, err := parseTarget(server.URL)
	require.NoError(t, err)
	return to
}

func TestParseTarget(t *testing.T) {
	t.Parallel()
	for base, expected := range map[string][3]string{
		"http://127.0.0.1:8080":      {"127.0.0.1:8080", "127.0.0.1:8080", "/v1/chat/completions"},
		"http://gw.example/":         {"gw.example", "gw.example:80", "/v1/chat/completions"},
		"https://gw.example/v1":      {"gw.example", "gw.example:443", "/v1/chat/completions"},
		"https://gw.example/ai/v1/":  {"gw.example", "gw.example:443", "/ai/v1/chat/completions"},
		"https://gw.example:8443/ai": {"gw.example:8443", "gw.example:8443", "/ai/v1/chat/completions"},
	} {
		to, err := parseTarget(base)
		require.NoError(t, err, base)
		require.Equal(t, expected, [3]string{to.host, to.address, to.path}, base)
		require.Equal(t, strings.HasPrefix(base, "https"), to.secure != nil)
	}
	for _, base := range []string{"", "gw.example:80", "ftp://gw.example", "http://", "http://a b"} {
		_, err := parseTarget(base)
		require.Error(t, err, base)
	}
}

// One connection carries whole answers of every form, one after the other.
func TestConn_ReadsWholeAnswersOnOneConnection(t *testing.T) {
	t.Parallel()
	var connections []string
	to := targetOf(t, func(w http.ResponseWriter, r *http.Request) {
		connections = append(connections, r.RemoteAddr)
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("Authorization") != "Bearer sk" || r.URL.Path != "/v1/chat/completions" {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		w.Header().Set("X-Tollgate-Limiter-Ms", "1.250")
		switch string(body) {
		case "refused":
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = io.WriteString(w, "no")
		case "stream":
			for i := range 100 {
				_, _ = fmt.Fprintf(w, "data: {\"n\":%d,\"pad\":%q}\n\n", i, strings.Repeat("x", i*100))
				_ = http.NewResponseController(w).Flush()
			}
			_, _ = io.WriteString(w, "data: [DO")
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, "NE]\n\n")
		case "cut":
			_, _ = io.WriteString(w, "data: {\"error\":{}}\n\n")
			_ = http.NewResponseController(w).Flush()
		default:
			_, _ = io.WriteString(w, strings.Repeat("y", 20_000))
		}
	})
	c := newConn(to, time.Minute)
	defer c.close()
	for _, body := range []string{"plain", "refused", "stream", "plain"} {
		answer, err := c.do(t.Context(), to.request(secret.New("sk"), []byte(body)), body == "stream")
		require.NoError(t, err, body)
		require.Equal(t, 1250*time.Microsecond, answer.limiter)
		require.Equal(t, body == "refused", answer.status == http.StatusTooManyRequests)
		require.False(t, answer.firstByte.IsZero())
	}
	for _, other := range connections {
		require.Equal(t, connections[0], other)
	}
	_, err := c.do(t.Context(), to.request(secret.New("sk"), []byte("cut")), true)
	require.ErrorIs(t, err, errCut)
	require.Nil(t, c.net)
	answer, err := c.do(t.Context(), to.request(secret.New("other"), []byte("plain")), false)
	require.NoError(t, err, "the next call connects again")
	require.Equal(t, http.StatusTeapot, answer.status)
	require.Equal(t, untold, answer.limiter)
}

func TestConn_TellsWhatTransportDid(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nothing":     "",
		"no HTTP":     "SSH-2.0-OpenSSH\r\n",
		"old HTTP":    "HTTP/1.0 200 OK\r\n\r\n",
		"no status":   "HTTP/1.1 abc\r\n\r\n",
		"half a head": "HTTP/1.1 200 OK\r\nContent-Le",
		"no colon":    "HTTP/1.1 200 OK\r\nContent\r\n\r\n",
		"no length":   "HTTP/1.1 200 OK\r\n\r\n",
		"bad length":  "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
		"short body":  "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab",
		"bad chunk":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
		"long chunk":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
		"cut chunk":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
		"bad time":    "HTTP/1.1 200 OK\r\nX-Tollgate-Limiter-Ms: soon\r\nContent-Length: 0\r\n\r\n",
		"long line":   "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", readBuffer) + "\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &conn{r: bufio.NewReaderSize(strings.NewReader(text), readBuffer)}
			_, _, err := c.read(true)
			require.Error(t, err)
		})
	}
	c := &conn{r: bufio.NewReaderSize(strings.NewReader("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nto the end"), readBuffer)}
	_, keep, err := c.read(false)
	require.NoError(t, err)
	require.False(t, keep)
}

func TestConn_NobodyListens(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	to, err := parseTarget("http://" + l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, l.Close())
	_, err = newConn(to, time.Minute).do(t.Context(), to.request(secret.New("sk"), nil), false)
	require.Error(t, err)
}

// Whatever a server says, reading it ends, with an answer or an error.
func FuzzConn_Read(f *testing.F) {
	f.Add("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", true)
	f.Add("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n", true)
	f.Add("HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\nX-Tollgate-Limiter-Ms: 0.001\r\n\r\n", false)
	f.Fuzz(func(t *testing.T, text string, stream bool) {
		c := &conn{r: bufio.NewReaderSize(strings.NewReader(text), readBuffer)}
		answer, _, err := c.read(stream)
		if err == nil && answer.limiter < untold {
			t.Fatalf("limiter %v", answer.limiter)
		}
	})
}

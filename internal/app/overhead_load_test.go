package app

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	frames   = 100 // of a stream, besides the one of its usage and the end
	frameGap = 5 * time.Millisecond

	wholeAnswer = `{"id":"chatcmpl-1","object":"chat.completion","created":1764547200,"model":"mock-small","choices":[{"index":0,` +
		`"message":{"role":"assistant","content":"Hello! How can I help you today?","refusal":null},"logprobs":null,"finish_reason":"stop"}],` +
		`"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0},` +
		`"completion_tokens_details":{"reasoning_tokens":0,"audio_tokens":0}},"service_tier":"default","system_fingerprint":"fp_1"}`
	frame = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1764547200,"model":"mock-small","service_tier":"default",` +
		`"system_fingerprint":"fp_1","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}],"usage":null}` + "\n\n"
	lastFrames = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1764547200,"model":"mock-small","service_tier":"default",` +
		`"system_fingerprint":"fp_1","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}` + "\n\n" +
		`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1764547200,"model":"mock-small","service_tier":"default",` +
		`"system_fingerprint":"fp_1","choices":[],"usage":{"prompt_tokens":19,"completion_tokens":100,"total_tokens":119}}` + "\n\n" +
		"data: [DONE]\n\n"
)

// upstream answers every call at once, or by a stream with a pause before each frame. hold keeps streams open after their
// first frame.
type upstream struct {
	*httptest.Server
	hold    atomic.Bool
	release chan struct{}
	held    atomic.Int64 // streams that wait
}

func newUpstream(b *testing.B) *upstream {
	b.Helper()
	u := &upstream{release: make(chan struct{})}
	u.Server = httptest.NewServer(http.HandlerFunc(u.answer))
	b.Cleanup(u.Close)
	return u
}

func (u *upstream) answer(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if !bytes.Contains(body, []byte(`"stream":true`)) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, wholeAnswer)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	if u.hold.Load() {
		_, _ = io.WriteString(w, frame)
		_ = rc.Flush()
		u.held.Add(1)
		<-u.release
		u.held.Add(-1)
	} else {
		tick := time.NewTicker(frameGap)
		defer tick.Stop()
		for range frames {
			<-tick.C
			_, _ = io.WriteString(w, frame)
			_ = rc.Flush()
		}
	}
	_, _ = io.WriteString(w, lastFrames)
}

// request is the bytes of one call to a process.
func request(s subject, key string, stream bool) []byte {
	body := `{"model":"mock-small","messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user","content":"Hello!"}],` +
		`"max_tokens":100,"temperature":0.7}`
	if stream {
		body = `{"stream":true,"stream_options":{"include_usage":true},` + body[1:]
	}
	return []byte(fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"+
		"User-Agent: overhead\r\nAccept: */*\r\nContent-Length: %d\r\n\r\n%s", s.address(), key, len(body), body))
}

func (s subject) address() string {
	u, err := url.Parse(s.Traffic)
	if err != nil {
		panic(err) // it was announced by a process of ours
	}
	return u.Host
}

// conn is a client's connection. It does as little as a client can, since it shares the machine with what it measures.
type conn struct {
	net.Conn
	r *bufio.Reader
}

func dial(address string) (*conn, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return &conn{c, bufio.NewReaderSize(c, 4<<10)}, nil
}

var errStatus = errors.New("answer is not 200")

// call sends a request and reads its answer to the end.
func (c *conn) call(request []byte) error {
	if _, err := c.Write(request); err != nil {
		return err
	}
	length, chunked, err := c.head()
	if err != nil {
		return fmt.Errorf("read head: %w", err)
	}
	if !chunked {
		_, err := c.r.Discard(length)
		return err
	}
	for {
		n, err := c.chunk()
		if n == 0 || err != nil {
			return err
		}
	}
}

func (c *conn) head() (length int, chunked bool, err error) {
	first := true
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return 0, false, err
		}
		line = bytes.TrimRight(line, "\r\n")
		switch {
		case first:
			if !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
				rest, _ := c.r.Peek(c.r.Buffered())
				return 0, false, fmt.Errorf("%w: %s %s", errStatus, line, rest)
			}
			first = false
		case len(line) == 0:
			return length, chunked, nil
		default:
			name, value, _ := strings.Cut(string(line), ": ")
			if strings.EqualFold(name, "Content-Length") {
				length, _ = strconv.Atoi(value)
			}
			chunked = chunked || strings.EqualFold(name, "Transfer-Encoding")
		}
	}
}

// chunk reads one chunk and returns its length; 0: it was the last.
func (c *conn) chunk() (int64, error) {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(bytes.TrimRight(line, "\r\n")), 16, 32)
	if err != nil {
		return 0, err
	}
	_, err = c.r.Discard(int(n) + len("\r\n"))
	return n, err
}

// drive makes n calls over so many connections, each as soon as the one before it was answered, and returns how long each took.
func drive(b *testing.B, address string, request []byte, connections, n int) []time.Duration {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(n))
	took := make([][]time.Duration, connections)
	faults := make([]error, connections)
	var all sync.WaitGroup
	for i := range connections {
		all.Go(func() {
			c, err := dial(address)
			if err != nil {
				faults[i] = err
				return
			}
			defer func() { _ = c.Close() }()
			for left.Add(-1) >= 0 {
				began := time.Now()
				if err := c.call(request); err != nil {
					faults[i] = fmt.Errorf("call %d of a connection, after %s: %w", len(took[i])+1, time.Since(began), err)
					return
				}
				took[i] = append(took[i], time.Since(began))
			}
		})
	}
	all.Wait()
	require.NoError(b, errors.Join(faults...))
	joined := slices.Concat(took...)
	slices.Sort(joined)
	return joined
}

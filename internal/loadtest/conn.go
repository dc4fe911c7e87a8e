package loadtest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/secret"
)

const (
	dialTimeout = 5 * time.Second
	// idleLimit is the age at which an idle connection is replaced: whoever is at the other end may have closed it.
	idleLimit = 30 * time.Second
	// readBuffer is the longest line of an answer's head, in bytes.
	readBuffer = 8 << 10
)

// target is where calls go. It makes the connections.
type target struct {
	host    string // as clients call it
	address string // host:port
	secure  *tls.Config
	path    string
}

// parseTarget reads the base URL of a gateway, with or without /v1 at its end.
func parseTarget(base string) (*target, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, fmt.Errorf("read target: %w", err)
	}
	port := u.Port()
	root := strings.TrimSuffix(strings.TrimSuffix(u.EscapedPath(), "/"), "/v1")
	t := &target{host: u.Host, path: root + "/v1/chat/completions"}
	switch u.Scheme {
	case "http":
		if port == "" {
			port = "80"
		}
	case "https":
		t.secure = &tls.Config{ServerName: u.Hostname(), NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12}
		if port == "" {
			port = "443"
		}
	default:
		return nil, fmt.Errorf("read target %q: give http:// or https:// and the address of a gateway", base)
	}
	if u.Hostname() == "" {
		return nil, fmt.Errorf("read target %q: it names no host", base)
	}
	t.address = net.JoinHostPort(u.Hostname(), port)
	return t, nil
}

// request is the whole text of a call, which is the same each time.
func (t *target) request(key secret.String, body []byte) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: tollgate-loadtest\r\nAuthorization: Bearer %s\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n", t.path, t.host, key.Reveal(), len(body))
	b.Write(body)
	return b.Bytes()
}

// conn is one connection of the load generator. It speaks as much HTTP/1.1 as a gateway's answers need, because a general
// client costs as much CPU as the gateway that is measured. It is used by one goroutine at a time.
type conn struct {
	target  *target
	timeout time.Duration // of a whole call
	net     net.Conn      // nil: not connected
	unwatch func() bool   // of the context that the connection ends with
	r       *bufio.Reader
	used    time.Time
}

func newConn(t *target, timeout time.Duration) *conn {
	return &conn{target: t, timeout: timeout, r: bufio.NewReaderSize(nil, readBuffer)}
}

// reply is what is known of an answer.
type reply struct {
	status    int
	limiter   time.Duration // untold: the gateway did not say
	firstByte time.Time
}

// do sends a request and reads its whole answer. stream says that a success must be a whole stream of events. All calls of a
// connection have one context.
func (c *conn) do(ctx context.Context, request []byte, stream bool) (reply, error) {
	now := time.Now()
	if c.net != nil && now.Sub(c.used) > idleLimit {
		c.close()
	}
	if c.net == nil {
		if err := c.connect(ctx); err != nil {
			return reply{}, err
		}
	}
	c.used = now
	if err := c.net.SetDeadline(now.Add(c.timeout)); err != nil {
		c.close()
		return reply{}, fmt.Errorf("set deadline: %w", err)
	}
	if err := ctx.Err(); err != nil { // its end may have set a deadline before
		c.close()
		return reply{}, err
	}
	if _, err := c.net.Write(request); err != nil {
		c.close()
		return reply{}, c.broken("send call", err)
	}
	answer, keep, err := c.read(stream)
	if err != nil || !keep {
		c.close()
	}
	if err != nil {
		return reply{}, c.broken("read answer", err)
	}
	return answer, nil
}

// broken says how a call failed. That it took too long is said in the same words for all calls.
func (c *conn) broken(what string, err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w within %s", errSilent, c.timeout)
	}
	return fmt.Errorf("%s: %w", what, err)
}

func (c *conn) connect(whole context.Context) error {
	ctx, cancel := context.WithTimeout(whole, min(dialTimeout, c.timeout))
	defer cancel()
	var d net.Dialer
	connection, err := d.DialContext(ctx, "tcp", c.target.address)
	if err != nil {
		return err
	}
	if c.target.secure != nil {
		secure := tls.Client(connection, c.target.secure)
		if err := secure.HandshakeContext(ctx); err != nil {
			return errors.Join(fmt.Errorf("shake hands: %w", err), connection.Close())
		}
		connection = secure
	}
	c.net = connection
	c.unwatch = context.AfterFunc(whole, func() { _ = connection.SetDeadline(time.Unix(1, 0)) }) // one that is closed needs none
	c.r.Reset(connection)
	return nil
}

func (c *conn) close() {
	if c.net != nil {
		c.unwatch()
		_ = c.net.Close() // it is given up
		c.net = nil
	}
}

var (
	errHead  = errors.New("its head is no HTTP/1.1 with a length")
	errChunk = errors.New("its chunks are broken")
	errCut   = errors.New("the stream ended without [DONE]")
	// errSilent is followed by the time that the call had.
	errSilent = errors.New("no whole answer")
)

const (
	unknownLength = -1
	chunkedLength = -2
)

// read reads one answer. keep reports whether the connection can be used again.
func (c *conn) read(stream bool) (answer reply, keep bool, err error) {
	line, err := c.line()
	if err != nil {
		return answer, false, err
	}
	answer.firstByte = time.Now()
	answer.limiter = untold
	if len(line) < 12 || string(line[:9]) != "HTTP/1.1 " {
		return answer, false, errHead
	}
	if answer.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return answer, false, errHead
	}
	keep = true
	length := unknownLength
	for {
		if line, err = c.line(); err != nil {
			return answer, false, err
		}
		if len(line) == 0 {
			break
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			return answer, false, errHead
		}
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if length, err = strconv.Atoi(string(value)); err != nil || length < 0 {
				return answer, false, errHead
			}
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			length = chunkedLength
		case bytes.EqualFold(name, []byte("Connection")):
			keep = !bytes.EqualFold(value, []byte("close"))
		case bytes.EqualFold(name, []byte("X-Tollgate-Limiter-Ms")):
			ms, err := strconv.ParseFloat(string(value), 64)
			if err != nil || ms < 0 {
				return answer, false, errHead
			}
			answer.limiter = time.Duration(ms * float64(time.Millisecond))
		}
	}
	switch length {
	case unknownLength:
		if keep {
			return answer, false, errHead
		}
		_, err = io.Copy(io.Discard, c.r)
	case chunkedLength:
		err = c.chunks(stream && answer.status == http.StatusOK)
	default:
		_, err = c.r.Discard(length)
	}
	return answer, keep, err
}

// line reads a line without its end. It is valid until the next read.
func (c *conn) line() ([]byte, error) {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(line[:len(line)-1], []byte("\r")), nil
}

// done ends every stream that came whole.
const done = "data: [DONE]\n\n"

// chunks reads a chunked body to its end.
func (c *conn) chunks(whole bool) error {
	var end [len(done)]byte // the last bytes of the body
	for {
		line, err := c.line()
		if err != nil {
			return err
		}
		size, err := strconv.ParseInt(string(line), 16, 32)
		if err != nil || size < 0 {
			return errChunk
		}
		if size == 0 {
			break
		}
		for left := int(size); left > 0; {
			part, err := c.r.Peek(min(left, max(c.r.Buffered(), 1)))
			if err != nil {
				return err
			}
			keepEnd(&end, part)
			left -= len(part)
			if _, err := c.r.Discard(len(part)); err != nil {
				return err
			}
		}
		if line, err = c.line(); err != nil || len(line) != 0 {
			return errors.Join(errChunk, err)
		}
	}
	for { // trailers
		line, err := c.line()
		if err != nil {
			return err
		}
		if len(line) == 0 {
			break
		}
	}
	if whole && string(end[:]) != done {
		return errCut
	}
	return nil
}

// keepEnd shifts the last bytes of part into end.
func keepEnd(end *[len(done)]byte, part []byte) {
	if len(part) >= len(end) {
		copy(end[:], part[len(part)-len(end):])
		return
	}
	copy(end[:], end[len(part):])
	copy(end[len(end)-len(part):], part)
}

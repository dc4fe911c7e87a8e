package gateway

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
)

// byteBudget bounds the memory that request bodies take together.
type byteBudget struct {
	left atomic.Int64
}

func (b *byteBudget) take(n int64) bool {
	if b.left.Add(-n) >= 0 {
		return true
	}
	b.left.Add(n)
	return false
}

func (b *byteBudget) give(n int64) { b.left.Add(n) }

const firstRead = 16 << 10 // bytes of memory that a body gets before any of it has come

// readBody reads the request's body into memory, once. It returns how many bytes of the budget it has taken, which the
// caller gives back when the call is over, also after an error.
func (g *Gateway) readBody(rc *http.ResponseController, r *http.Request) (body []byte, taken int64, err error) {
	if err := g.takesBody(r); err != nil {
		return nil, 0, err
	}
	size := int64(firstRead)
	if r.ContentLength >= 0 {
		size = min(size, r.ContentLength+1) // one more, so that the end is seen without growing
	}
	for {
		if grow := size - int64(cap(body)); grow > 0 {
			if !g.bodies.take(grow) {
				return nil, taken, fault(governance.CodeGatewayOverloaded, "Too many large requests are in flight.")
			}
			taken += grow
			body = append(make([]byte, 0, size), body...)
		}
		if err := rc.SetReadDeadline(time.Now().Add(g.cfg.BodyProgress)); err != nil {
			return nil, taken, err
		}
		n, err := r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case int64(len(body)) > g.cfg.MaxBody:
			return nil, taken, tooLarge()
		case err == io.EOF: // a reader's bare io.EOF
			// The server now watches for the client's leaving by reading on, for as long as the call takes.
			return body, taken, rc.SetReadDeadline(time.Time{})
		case err != nil:
			return nil, taken, unread(err)
		}
		if len(body) == cap(body) {
			size = min(2*size, g.cfg.MaxBody+1)
			if r.ContentLength >= 0 {
				size = min(max(size, int64(len(body))+1), r.ContentLength+1)
			}
		}
	}
}

// takesBody refuses what need not be read to be refused.
func (g *Gateway) takesBody(r *http.Request) error {
	if r.Header.Get("Content-Encoding") != "" {
		return fault(governance.CodeUnsupportedEncoding, "Compressed request bodies are not supported. Send the body as it is.")
	}
	if r.ContentLength > g.cfg.MaxBody {
		return tooLarge()
	}
	return nil
}

// unread explains a body that could not be read to its end.
func unread(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &failure{cause: invalid("", "The request body did not arrive in time."), status: http.StatusRequestTimeout, closing: true}
	}
	// A length that is wrong, a broken chunk, or a client that left: all the same from here.
	return &failure{cause: &governance.Error{
		Code: governance.CodeInvalidRequest, Public: "The request body ended early or is malformed.", Err: err,
	}, closing: true}
}

func tooLarge() error {
	return &failure{cause: fault(governance.CodePayloadTooLarge, "The request body is larger than this gateway accepts."), closing: true}
}

// smallBody is up to how many bytes of a body are sent as the provider's request holds them: the transport knows its reader
// as memory, and so sends head and body by one write where its buffer has room for both. Above, letting the body go matters
// more.
const smallBody = writeBuffer

// sendBody is a large request's body on its way to an upstream. The transport keeps hold of a request for as long as its answer
// lasts, which may be hours; what it holds here can be emptied.
type sendBody struct {
	size int
	mu   sync.Mutex
	text []byte // nil: let go
}

// open returns a reader from the start. The transport asks for another one where a connection turns out to be dead.
func (b *sendBody) open() (io.ReadCloser, error) { return &sendReader{from: b}, nil }

// drop lets the text go. Readers that are not at its end fail, which ends a request whose answer did not wait for it.
func (b *sendBody) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text = nil
}

type sendReader struct {
	from *sendBody
	at   int
}

func (r *sendReader) Read(p []byte) (int, error) {
	r.from.mu.Lock()
	defer r.from.mu.Unlock()
	if r.at == r.from.size {
		return 0, io.EOF
	}
	if r.from.text == nil {
		return 0, errBodyGone
	}
	n := copy(p, r.from.text[r.at:])
	r.at += n
	return n, nil
}

func (r *sendReader) Close() error { return nil }

var errBodyGone = errors.New("request body was let go")

// letBodyGo frees the request's body and its share of the budget once an answer has begun.
func (c *call) letBodyGo(a *attempt) {
	a.body.drop()
	c.form.drop()
	c.Body, c.Form = nil, nil
	c.g.bodies.give(c.bodyBytes)
	c.bodyBytes = 0
}

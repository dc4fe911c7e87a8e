package gateway

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	idleConnections   = 256
	idleConnectionAge = 55 * time.Second // below the 60 s after which many upstreams and balancers close
	maxUpstreamHeader = 256 << 10
	// Both buffers of a connection are kept for as long as a stream lasts, and there may be thousands. A body that does not fit
	// the first takes one write more, and large pieces of an answer pass the second by.
	writeBuffer = 8 << 10
	readBuffer  = 4 << 10
)

// upstreams keeps one tuned transport for each provider, so that a slow one takes no connections from the others. There are
// as many as there are configured providers. Transports are used bare: no redirect is followed, which would carry
// credentials to another host, and no cookie is kept.
type upstreams struct {
	cfg     Config
	control func(ctx context.Context, network, address string, c syscall.RawConn) error

	mu         *sync.Mutex
	transports map[int64]*http.Transport // by row number of the provider
}

func newUpstreams(cfg Config, control func(context.Context, string, string, syscall.RawConn) error) upstreams {
	return upstreams{cfg: cfg, control: control, mu: new(sync.Mutex), transports: make(map[int64]*http.Transport)}
}

func (u *upstreams) of(provider int64) *http.Transport {
	u.mu.Lock()
	defer u.mu.Unlock()
	t := u.transports[provider]
	if t == nil {
		dialer := &net.Dialer{Timeout: u.cfg.Connect, KeepAlive: 30 * time.Second, ControlContext: u.control}
		t = &http.Transport{
			Proxy: nil, // never from the environment
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := dialer.DialContext(ctx, network, address)
				if err != nil {
					return nil, err
				}
				return &countedConn{Conn: conn}, nil
			},
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    u.cfg.Connect,
			DisableCompression:     true,
			MaxIdleConns:           idleConnections,
			MaxIdleConnsPerHost:    idleConnections,
			IdleConnTimeout:        idleConnectionAge,
			MaxResponseHeaderBytes: maxUpstreamHeader,
			WriteBufferSize:        writeBuffer,
			ReadBufferSize:         readBuffer,
		}
		u.transports[provider] = t
	}
	return t
}

func (u *upstreams) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, t := range u.transports {
		t.CloseIdleConnections()
	}
}

// countedConn counts the bytes that were given to the kernel, by which we know whether a request can have reached the
// upstream at all.
type countedConn struct {
	net.Conn
	written atomic.Int64
}

func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	return n, err
}

// sending watches how far a request got. The transport calls back from its own goroutines.
type sending struct {
	conn   atomic.Pointer[countedConn]
	before atomic.Int64 // bytes that earlier requests wrote to the connection, and the TLS handshake
	sentAt atomic.Int64 // Unix nanoseconds at which the request was written to its last byte; 0: it was not
	endAt  atomic.Int64 // and at which we ended it; 0: we did not
}

// watch returns a context that reports to s.
func (s *sending) watch(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			conn := info.Conn
			if secured, ok := conn.(*tls.Conn); ok {
				conn = secured.NetConn()
			}
			if counted, ok := conn.(*countedConn); ok {
				s.before.Store(counted.written.Load())
				s.conn.Store(counted)
			}
		},
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil {
				s.sentAt.Store(time.Now().UnixNano())
			}
		},
	})
}

// written reports whether a byte of the request may have reached the upstream.
func (s *sending) written() bool {
	conn := s.conn.Load()
	return conn != nil && conn.written.Load() > s.before.Load()
}

// end notes that the request is not waited for any longer.
func (s *sending) end() { s.endAt.CompareAndSwap(0, time.Now().UnixNano()) }

// generating is the time since the whole request was sent, as long as it was waited for.
func (s *sending) generating() time.Duration {
	at := s.sentAt.Load()
	if at == 0 {
		return 0
	}
	if end := s.endAt.Load(); end != 0 {
		return time.Duration(max(end-at, 0))
	}
	return time.Since(time.Unix(0, at))
}

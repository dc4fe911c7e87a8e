package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
)

// cut is a way for a connection to end.
type cut int

const (
	// cutReply lets the server execute what the client has sent, and loses its reply.
	cutReply cut = iota
	// cutRequest lets only a part of what the client has sent reach the server.
	cutRequest
)

// order is a cut that the next fitting request takes.
type order struct {
	cut  cut
	aim  []byte  // the request contains this; nil: any request
	part float64 // of the request that still reaches the server, for cutRequest
}

// proxy stands between one gateway and one database server and forwards bytes, unless it is told otherwise. It reads no
// protocol: a chunk that a client sends is a request, and what comes back next is its reply, which holds for a client
// that waits for each reply before it sends on.
type proxy struct {
	listener net.Listener
	conns    sync.WaitGroup

	mu     sync.Mutex
	server net.Addr
	open   map[net.Conn]struct{}
	orders []order
	held   chan struct{} // closed when a stall ends; nil: bytes pass
	closed bool

	replies, requests atomic.Int64 // cuts that were made
}

// listenProxy starts a proxy on a free port of the loopback for a server.
func listenProxy(ctx context.Context, server net.Addr) (*proxy, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the database proxy: %w", err)
	}
	p := &proxy{listener: listener, server: server, open: make(map[net.Conn]struct{})}
	p.conns.Go(p.accept)
	return p, nil
}

// port is where clients connect.
func (p *proxy) port() int { return p.listener.Addr().(*net.TCPAddr).Port }

// retarget sends connections that begin from now on to another server.
func (p *proxy) retarget(server net.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = server
}

func (p *proxy) dial() (net.Conn, error) {
	p.mu.Lock()
	server := p.server
	p.mu.Unlock()
	var d net.Dialer
	return d.DialContext(context.Background(), server.Network(), server.String()) // a local one answers at once
}

// maxOrders is how many cuts wait for a request at most: what a silent gateway missed must not come all at once.
const maxOrders = 2

// arm makes the next fitting request of any connection take a cut. A few of them queue.
func (p *proxy) arm(o order) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.orders) < maxOrders {
		p.orders = append(p.orders, o)
	}
}

// disarm forgets orders that no request has taken.
func (p *proxy) disarm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.orders = nil
}

// stall keeps all bytes back, in both directions and of new connections, until resume.
func (p *proxy) stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held == nil {
		p.held = make(chan struct{})
	}
}

func (p *proxy) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held != nil {
		close(p.held)
		p.held = nil
	}
}

// close ends all connections and returns when nothing runs any more.
func (p *proxy) close() {
	p.mu.Lock()
	p.closed = true
	for c := range p.open {
		_ = c.Close() // whoever reads from it notices
	}
	p.mu.Unlock()
	p.resume()
	_ = p.listener.Close()
	p.conns.Wait()
}

// keep registers a connection, so that close finds it; false: the proxy is closed.
func (p *proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = c.Close()
		return false
	}
	p.open[c] = struct{}{}
	return true
}

func (p *proxy) drop(c net.Conn) {
	p.mu.Lock()
	delete(p.open, c)
	p.mu.Unlock()
	_ = c.Close()
}

// pass waits while the proxy stalls.
func (p *proxy) pass() {
	p.mu.Lock()
	held := p.held
	p.mu.Unlock()
	if held != nil {
		<-held
	}
}

// take returns the oldest order that fits a request.
func (p *proxy) take(request []byte) (order, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, o := range p.orders {
		if bytes.Contains(request, o.aim) {
			p.orders = append(p.orders[:i], p.orders[i+1:]...)
			return o, true
		}
	}
	return order{}, false
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptor is left, say
			sleep(context.Background(), standbyPoll)
			continue
		}
		if !p.keep(client) {
			return
		}
		p.conns.Go(func() {
			defer p.drop(client)
			p.pass()
			server, err := p.dial()
			if err != nil || !p.keep(server) {
				return
			}
			defer p.drop(server)
			p.forward(client, server)
		})
	}
}

// forward carries bytes until one side ends or a cut is made, and then ends both.
func (p *proxy) forward(client, server net.Conn) {
	link := &link{client: client, server: server}
	p.conns.Go(func() {
		defer link.end()
		buffer := make([]byte, 64<<10)
		for {
			n, err := server.Read(buffer)
			if n > 0 {
				p.pass()
				if link.muted.Load() {
					p.replies.Add(1)
					return
				}
				if _, err := client.Write(buffer[:n]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	defer link.end()
	buffer := make([]byte, 256<<10)
	for greeting := true; ; greeting = false {
		n, err := client.Read(buffer)
		if n > 0 {
			p.pass()
			request := buffer[:n]
			o, armed := order{}, false
			if !greeting {
				o, armed = p.take(request)
			}
			if armed {
				link.reset()
			}
			switch {
			case armed && o.cut == cutRequest:
				p.requests.Add(1)
				_, _ = server.Write(request[:int(o.part*float64(n))]) // the connection ends either way
				return
			case armed:
				link.muted.Store(true)
				if _, err := server.Write(request); err != nil {
					return
				}
				link.await(buffer)
				return
			}
			if _, err := server.Write(request); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// link is a pair of connections.
type link struct {
	client, server net.Conn
	muted          atomic.Bool // the server's next bytes are lost
}

// await returns when the connections have ended, which the server's reply does where it is muted. What the client still
// says nobody hears.
func (l *link) await(buffer []byte) {
	for {
		if _, err := l.client.Read(buffer); err != nil {
			return
		}
	}
}

// reset makes the end of the client's connection a reset, as a host that vanished would.
func (l *link) reset() {
	if c, ok := l.client.(*net.TCPConn); ok {
		_ = c.SetLinger(0) // else the end is an orderly one, which loses the reply as well
	}
}

// end closes both connections.
func (l *link) end() {
	_ = l.client.Close()
	_ = l.server.Close()
}

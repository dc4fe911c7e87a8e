//go:build full

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	product "github.com/tollgate-gateway/tollgate/internal/fleet"
)

// openAtOnce is how many calls begin at the same time: far fewer than a gateway's queue of admissions holds.
const openAtOnce = 64

// crowd is many connections of clients that cost this process next to nothing.
type crowd struct {
	mu    sync.Mutex
	conns []net.Conn
}

// join opens n connections to a gateway, from several addresses so that ports do not run short, and lets each begin with
// the same request. begun reads of its answer what has to have come.
func (c *crowd) join(t *testing.T, g *product.Process, n int, request []byte, begun func(*bufio.Reader) error) {
	t.Helper()
	requireFiles(t, n)
	to, err := url.Parse(g.BaseURL)
	require.NoError(t, err)
	var next atomic.Int64
	var workers sync.WaitGroup
	faults := make(chan error, openAtOnce)
	for range openAtOnce {
		workers.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if err := c.open(t.Context(), to.Host, byte(i%16), request, begun); err != nil {
					faults <- fmt.Errorf("connection %d: %w", i, err)
					return
				}
			}
		})
	}
	workers.Wait()
	close(faults)
	for err := range faults {
		require.NoError(t, err)
	}
}

func (c *crowd) open(ctx context.Context, address string, from byte, request []byte, begun func(*bufio.Reader) error) error {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2+from)}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.conns = append(c.conns, conn)
	c.mu.Unlock()
	if _, err := conn.Write(request); err != nil {
		return err
	}
	return begun(bufio.NewReaderSize(conn, 512))
}

// leave closes all connections.
func (c *crowd) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

// requireFiles asserts that this process, and so its children, may open n connections. Go has raised the bound to the
// hard one.
func requireFiles(t *testing.T, n int) {
	t.Helper()
	var bound syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &bound))
	require.Greater(t, bound.Max, uint64(n+1000), "this test needs more open files: ulimit -Hn")
}

// chatRequest is the bytes of a call.
func chatRequest(g *product.Process, key, body string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		strings.TrimPrefix(g.BaseURL, "http://"), key, len(body), body)
	return b.Bytes()
}

// answerHead reads status and headers of an answer and returns the length of its body; -1: it comes in chunks.
func answerHead(r *bufio.Reader) (length int, err error) {
	length = -1
	for first := true; ; first = false {
		line, err := r.ReadString('\n')
		line = strings.TrimSpace(line)
		switch name, value, _ := strings.Cut(line, ": "); {
		case err != nil:
			return 0, fmt.Errorf("read answer: %w", err)
		case first && !strings.HasPrefix(line, "HTTP/1.1 200 "):
			return 0, fmt.Errorf("answer is %q", line) //nolint:err113 // for people
		case line == "":
			return length, nil
		case strings.EqualFold(name, "Content-Length"):
			if length, err = strconv.Atoi(value); err != nil {
				return 0, fmt.Errorf("read length: %w", err)
			}
		}
	}
}

// streamBegun reads the first event of a stream.
func streamBegun(r *bufio.Reader) error {
	if _, err := answerHead(r); err != nil {
		return err
	}
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return fmt.Errorf("read stream: %w", err)
		}
		if strings.HasPrefix(line, "data: ") {
			return nil
		}
	}
}

// wholeAnswer reads an answer that is no stream.
func wholeAnswer(r *bufio.Reader) error {
	length, err := answerHead(r)
	if err != nil {
		return err
	}
	if _, err := io.CopyN(io.Discard, r, int64(length)); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	return nil
}

// requirePerConnection prints what each of n connections takes of the gateway, in KiB, and asserts that it is below most.
func requirePerConnection(t *testing.T, what string, n int, before, with footprint, most float64) {
	t.Helper()
	kib := func(of func(footprint) float64) float64 { return (of(with) - of(before)) / float64(n) / 1024 }
	inUse := kib(func(f footprint) float64 { return f.heap + f.stacks })
	resident := kib(func(f footprint) float64 { return f.resident })
	t.Logf("%d %s: each has %.1f KiB of heap and stacks (reachable %.1f, stacks %.1f), %.1f KiB of resident memory, %.2f goroutines, %.2f descriptors",
		n, what, inUse, kib(func(f footprint) float64 { return f.live }), kib(func(f footprint) float64 { return f.stacks }), resident,
		(with.goroutines-before.goroutines)/float64(n), (with.files-before.files)/float64(n))
	t.Logf("the gateway: resident %.1f MiB before, %.1f MiB with them", before.resident/(1<<20), with.resident/(1<<20))
	require.Less(t, inUse, most, "KiB of heap and stacks")
	require.Less(t, resident, most, "KiB of resident memory")
}

// startCrowd is a product with a key and a model whose streams go on for as long as their clients stay.
func startCrowd(t *testing.T) (f *product.Fleet, g *product.Process, key string) {
	t.Helper()
	f, g = releasedFleet(t)
	tenant, err := f.SetUp(t.Context(), "plain")
	require.NoError(t, err)
	_, err = f.AddModel(t.Context(), tenant.Provider, "long", "long")
	require.NoError(t, err)
	require.NoError(t, f.Mock.Script(t.Context(), product.Object{
		"script": "words(1000),frame_gap(3s)", "match": product.Object{"model": "long"},
	}))
	issued, _, err := f.Issue(t.Context(), tenant.Organization, "crowd", forever("cost", "1000000"), perDay("tokens", "100000000"))
	require.NoError(t, err)
	key = issued.Reveal()
	awaitAnswer(t, g, key, "plain")
	work(t, g, key)
	return f, g, key
}

// work lets a gateway serve some thousand calls: what it makes only once is there then, and memory has grown to what the
// collector lets it grow to.
func work(t *testing.T, g *product.Process, key string) {
	t.Helper()
	const calls = 4000
	p := &process{baseURL: g.BaseURL}
	var next atomic.Int64
	var workers sync.WaitGroup
	faults := make(chan string, openAtOnce)
	for range openAtOnce {
		workers.Go(func() {
			for i := next.Add(1); i <= calls; i = next.Add(1) {
				body := helloChat
				if i%2 == 0 {
					body = streaming(body)
				}
				if a, err := p.call(t.Context(), key, "/v1/chat/completions", body); err != nil || a.status != http.StatusOK {
					faults <- fmt.Sprint(a.status, err)
					return
				}
			}
		})
	}
	workers.Wait()
	close(faults)
	for f := range faults {
		require.Empty(t, f)
	}
	client.CloseIdleConnections()
}

// settled waits until nothing of a crowd is left, and asks the ledger to check itself.
func settled(t *testing.T, f *product.Fleet, g *product.Process, before footprint) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	require.NoError(t, f.AwaitClosed(ctx))
	require.NoError(t, f.CheckLedger(ctx))
	// Connections to the upstream are kept for a while, as many as there may be.
	require.Eventually(t, func() bool {
		after, _ := footprintOf(t, g)
		return after.goroutines < before.goroutines+700 && after.files < before.files+400
	}, 2*time.Minute, time.Second, "connections are closed")
	after, _ := footprintOf(t, g)
	t.Logf("the gateway when they have left: resident %.1f MiB, heap and stacks %.1f MiB", after.resident/(1<<20), (after.heap+after.stacks)/(1<<20))
}

// Two thousand open streams that get a frame every few seconds take little memory each.
func TestLong_MemoryOfOpenStreams(t *testing.T) {
	const streams, aim = 2000, 60 // KiB
	f, g, key := startCrowd(t)
	var c crowd
	t.Cleanup(c.leave)
	request := chatRequest(g, key, `{"stream":true,"max_tokens":1000,`+named("long")[1:])
	before, _ := footprintOf(t, g)

	c.join(t, g, streams, request, streamBegun)
	seen, err := f.Mock.Count(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, int64(streams), seen.InFlight)
	with, _ := footprintOf(t, g)
	requirePerConnection(t, "open streams", streams, before, with, 2*aim)
	c.leave()
	settled(t, f, g, before)
}

// Ten thousand connections that clients keep for a next call take little memory each.
func TestLong_MemoryOfIdleConnections(t *testing.T) {
	const connections, aim = 10_000, 30 // KiB
	f, g, key := startCrowd(t)
	var c crowd
	t.Cleanup(c.leave)
	request := chatRequest(g, key, helloChat)
	before, _ := footprintOf(t, g)

	c.join(t, g, connections, request, wholeAnswer)
	require.NoError(t, f.AwaitClosed(t.Context()))
	with, metrics := footprintOf(t, g)
	require.GreaterOrEqual(t, int(with.files-before.files), connections-openAtOnce, "connections are still open: %v", metrics["process_open_fds"])
	requirePerConnection(t, "idle connections", connections, before, with, 2*aim)
	c.leave()
	settled(t, f, g, before)
}

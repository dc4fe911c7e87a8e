package chaos

import (
	"bufio"
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// echo is a server that answers each line with the same line, and tells what it got.
func echo(t *testing.T) (net.Addr, <-chan string) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	got := make(chan string, 16)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			lines := bufio.NewReader(conn)
			for {
				line, err := lines.ReadString('\n')
				if line != "" {
					got <- line
				}
				if err != nil {
					break
				}
				if _, err := io.WriteString(conn, line); err != nil {
					break
				}
			}
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		require.NoError(t, listener.Close())
		<-done
	})
	return listener.Addr(), got
}

type session struct {
	t *testing.T
	net.Conn
	lines *bufio.Reader
}

func open(t *testing.T, p *proxy) session {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", "127.0.0.1:"+strconv.Itoa(p.port()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	s := session{t, conn, bufio.NewReader(conn)}
	s.say("hello\n")
	require.Equal(t, "hello\n", s.hear())
	return s
}

func (s session) say(line string) {
	s.t.Helper()
	_, err := io.WriteString(s, line)
	require.NoError(s.t, err)
}

func (s session) hear() string {
	line, _ := s.lines.ReadString('\n') // what came before the end of the connection
	return line
}

func startProxy(t *testing.T, server net.Addr) *proxy {
	t.Helper()
	p, err := listenProxy(t.Context(), server)
	require.NoError(t, err)
	t.Cleanup(p.close)
	return p
}

func TestProxy_LosesTheReplyOfAStatementThatWasExecuted(t *testing.T) {
	t.Parallel()
	server, got := echo(t)
	p := startProxy(t, server)
	s := open(t, p)
	require.Equal(t, "hello\n", <-got)
	p.arm(order{cut: cutReply, aim: []byte("aimed")})
	s.say("another\n")
	require.Equal(t, "another\n", s.hear(), "a request that the order does not fit passes")
	require.Equal(t, "another\n", <-got)
	s.say("the aimed one\n")
	require.Empty(t, s.hear())
	require.Equal(t, "the aimed one\n", <-got, "the server executed it")
	require.EqualValues(t, 1, p.replies.Load())
	require.Zero(t, p.requests.Load())
	open(t, p) // the next connection passes
}

func TestProxy_CutsWithinARequest(t *testing.T) {
	t.Parallel()
	server, got := echo(t)
	p := startProxy(t, server)
	s := open(t, p)
	require.Equal(t, "hello\n", <-got)
	p.arm(order{cut: cutRequest, part: 0.5})
	s.say("12345678\n")
	require.Empty(t, s.hear())
	require.Equal(t, "1234", <-got)
	require.EqualValues(t, 1, p.requests.Load())
	require.Zero(t, p.replies.Load())
}

func TestProxy_StallsBothDirectionsAndGoesOn(t *testing.T) {
	t.Parallel()
	server, got := echo(t)
	p := startProxy(t, server)
	s := open(t, p)
	require.Equal(t, "hello\n", <-got)
	p.stall()
	s.say("late\n")
	heard := make(chan string, 1)
	go func() { heard <- s.hear() }()
	select {
	case line := <-got:
		require.Fail(t, "it passed", line)
	case line := <-heard:
		require.Fail(t, "it was answered", line)
	case <-time.After(50 * time.Millisecond): // proves nothing on a slow machine, and finds a proxy that does not stall
	}
	p.resume()
	require.Equal(t, "late\n", <-heard)
	require.Equal(t, "late\n", <-got)
}

func TestProxy_EndsWithItsServerAndFindsTheNextOne(t *testing.T) {
	t.Parallel()
	first, firstGot := echo(t)
	second, secondGot := echo(t)
	p := startProxy(t, first)
	s := open(t, p)
	require.Equal(t, "hello\n", <-firstGot)
	p.retarget(second)
	s.say("still here\n")
	require.Equal(t, "still here\n", s.hear())
	open(t, p)
	require.Equal(t, "hello\n", <-secondGot)
}

func TestProxy_QueuesFewOrdersAndForgetsThem(t *testing.T) {
	t.Parallel()
	server, _ := echo(t)
	p := startProxy(t, server)
	for range 5 {
		p.arm(order{cut: cutReply})
	}
	require.Len(t, p.orders, maxOrders)
	p.disarm()
	s := open(t, p)
	s.say("whole\n")
	require.Equal(t, "whole\n", s.hear())
}

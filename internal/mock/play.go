package mock

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// answer is what a route says; the player sends it as the script wants.
type answer struct {
	status      int
	contentType string
	header      [2]string // one of the dialect's own, by name and value; none where they are empty
	stream      bool
	frames      [][]byte // the events of a stream with their blank lines; one for any other answer
	terminal    int      // how many of the last frames end the stream
	breakAt     int      // the frame in whose place the script's fault comes
}

const (
	contentJSON  = "application/json"
	contentSSE   = "text/event-stream; charset=utf-8"
	contentPlain = "text/plain; charset=utf-8"
)

// player sends one answer and counts what it sent.
type player struct {
	*call
	status, frames int
	out            flushWriter
}

type flushWriter interface {
	io.Writer
	// Flush hands over what was written so far to the client.
	Flush() error
}

// play sends a, or what the script makes of it. A client that leaves ends it at once.
func (p *player) play(a answer) {
	script, ctx := p.script, p.r.Context()
	if script.plain() {
		p.playPlain(a)
		return
	}
	if script.hold && p.server.log.step(ctx, p.seen) != nil {
		return
	}
	if !pause(ctx, script.firstByteDelay) {
		return
	}
	a = p.spoil(a)
	p.begin(a)
	if !p.preamble(a) {
		return
	}
	for i, frame := range a.frames {
		if script.fault != noFault && i == a.breakAt {
			p.breakOff()
			return
		}
		if i > 0 && (!pause(ctx, script.frameGap) || script.confirm && p.server.log.step(ctx, p.seen) != nil) {
			return
		}
		if script.fault == noFault && i == len(a.frames)-1 {
			p.server.log.update(p.seen, func() { p.seen.complete = true })
		}
		if !p.send(frame) {
			return
		}
		p.frames++
	}
	if script.fault != noFault {
		p.breakOff()
		return
	}
	if closer, ok := p.out.(io.Closer); ok && closer.Close() != nil {
		return
	}
	if script.idleSocketClose {
		tail := ""
		if p.w.Header().Get("Content-Length") == "" {
			tail = "0\r\n\r\n" // the end of a chunked body, which the server can no longer write
		}
		p.closeConnection(false, tail)
	}
}

// playPlain is the fast path of load runs: one write.
func (p *player) playPlain(a answer) {
	p.header(a)
	p.w.Header().Set("Content-Type", a.contentType)
	var whole []byte
	if len(a.frames) == 1 {
		whole = a.frames[0]
	} else {
		whole = bytes.Join(a.frames, nil)
	}
	if !a.stream {
		p.w.Header().Set("Content-Length", strconv.Itoa(len(whole)))
	}
	p.status = a.status
	p.w.WriteHeader(a.status)
	if _, err := p.w.Write(whole); err == nil {
		p.frames = len(a.frames)
	}
}

func (p *player) header(a answer) {
	h := p.w.Header()
	h["X-Mock-Request"] = []string{strconv.FormatInt(p.seen.ID, 10)}
	h["X-Mock-Body-Sha256"] = []string{p.seen.BodySHA256}
	h["X-Request-Id"] = []string{"req_mock_" + strconv.FormatInt(p.seen.ID, 10)}
	if a.header[0] != "" {
		h.Set(a.header[0], a.header[1])
	}
	if a.stream {
		h["Cache-Control"] = []string{"no-cache"}
	}
}

// begin sends status and headers, and sets up the writer that compresses and dribbles.
func (p *player) begin(a answer) {
	script := p.script
	p.header(a)
	h := p.w.Header()
	h.Set("Content-Type", a.contentType)
	if script.contentType != "" {
		h.Set("Content-Type", script.contentType)
	}
	if script.redirect != "" {
		h.Set("Location", script.redirect)
	}
	for _, pair := range script.headers {
		h.Set(pair[0], pair[1])
	}
	var out flushWriter = &direct{w: p.w, control: http.NewResponseController(p.w), size: script.dribble}
	switch script.encoding {
	case "gzip":
		out = &compressed{inner: gzip.NewWriter(out), below: out}
	case "deflate":
		out = &compressed{inner: zlib.NewWriter(out), below: out}
	case "br":
		out = &compressed{inner: newBrotli(out), below: out}
	default:
		if !a.stream && script.fault != faultCleanClose {
			length := 0
			for _, frame := range a.frames {
				length += len(frame)
			}
			h.Set("Content-Length", strconv.Itoa(length))
		}
	}
	p.out = out
	if script.encoding != "" {
		h.Set("Content-Encoding", script.encoding)
	}
	p.status = a.status
	p.w.WriteHeader(a.status)
}

// spoil puts the script's extra frames into the answer and cuts a unary one where it is to break.
func (p *player) spoil(a answer) answer {
	script := p.script
	a.breakAt = script.faultAfter
	if !a.stream {
		if script.fault != noFault && script.faultAfter >= 0 {
			whole := bytes.Join(a.frames, nil)
			cut := min(script.faultAfter, len(whole))
			a.frames, a.breakAt = [][]byte{whole[:cut], whole[cut:]}, 1
		}
		return a
	}
	if a.status != http.StatusOK {
		return a
	}
	if script.twoTerminals && a.terminal > 0 {
		a.frames = append(a.frames, a.frames[len(a.frames)-1])
	}
	if script.fault == faultCleanClose && script.faultAfter < 0 {
		a.frames = a.frames[:len(a.frames)-a.terminal]
	}
	if script.midStreamError != "" {
		n := min(script.midStreamAfter, len(a.frames))
		a.frames = append(a.frames[:n:n], p.errorFrame(http.StatusInternalServerError, script.midStreamError))
	}
	return a
}

// preamble sends what stands before the first frame; false: the client left.
func (p *player) preamble(a answer) bool {
	script := p.script
	if !a.stream || a.status != http.StatusOK {
		return true
	}
	if len(a.frames) > 0 && script.fault != noFault && script.faultAfter == 0 && p.out.Flush() != nil {
		return false
	}
	const together = 100 // lines a write
	for _, lines := range []struct {
		n    int
		line string
	}{{script.blankLines, "\n"}, {script.comments, ": keep-alive\n"}} {
		for sent := 0; sent < lines.n; sent += together {
			if !p.send(bytes.Repeat([]byte(lines.line), min(together, lines.n-sent))) {
				return false
			}
		}
	}
	if script.dataNull && !p.send([]byte("data: null\n\n")) {
		return false
	}
	if script.endlessLine {
		piece := bytes.Repeat([]byte("x"), 64<<10)
		for ok := p.send([]byte(`data: {"endless":"`)); ok; {
			ok = p.send(piece)
		}
		return false
	}
	return true
}

// send writes and flushes; false: the client left.
func (p *player) send(b []byte) bool {
	if _, err := p.out.Write(b); err != nil || p.out.Flush() != nil {
		p.server.log.abort(p.seen)
		return false
	}
	return true
}

// breakOff ends the answer as the script's fault says. A clean close needs nothing: the answer just ends.
func (p *player) breakOff() {
	ctx := p.r.Context()
	switch p.script.fault {
	case faultFreeze:
		if p.out.Flush() == nil {
			<-ctx.Done()
		}
	case faultPings:
		for p.send([]byte(": ping\n\n")) && pause(ctx, p.script.pingGap) {
		}
	case faultReset:
		if p.out.Flush() == nil {
			p.closeConnection(true, "")
		}
	case faultCleanClose:
		if closer, ok := p.out.(io.Closer); ok {
			_ = closer.Close() // a client that left sees no end
		}
	}
}

func (p *player) resetBeforeBytes() {
	if p.script.hold && p.server.log.step(p.r.Context(), p.seen) != nil || !pause(p.r.Context(), p.script.firstByteDelay) {
		return
	}
	p.closeConnection(true, "")
}

// closeConnection takes the connection from the server, writes tail and closes it, with a reset instead of a proper end
// if asked.
func (p *player) closeConnection(reset bool, tail string) {
	conn, _, err := http.NewResponseController(p.w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // HTTP/2: the server resets the stream
	}
	if tail != "" {
		_, _ = io.WriteString(conn, tail) // a client that has left needs none
	}
	if slow, ok := conn.(*slowConn); ok {
		conn = slow.Conn
	}
	if tcp, ok := conn.(*net.TCPConn); ok && reset {
		awaitSent(tcp)
		_ = tcp.SetLinger(0) // fails only for a connection that is already gone
	}
	_ = conn.Close()
}

// pause waits; false: the client left.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// direct writes to the connection, size bytes at a time if size is set.
type direct struct {
	w       io.Writer
	control *http.ResponseController
	size    int
}

func (d *direct) Write(b []byte) (int, error) {
	if d.size == 0 {
		return d.w.Write(b)
	}
	written := 0
	for written < len(b) {
		n, err := d.w.Write(b[written:min(written+d.size, len(b))])
		written += n
		if err != nil {
			return written, err
		}
		if err := d.control.Flush(); err != nil {
			return written, err
		}
	}
	return written, nil
}

func (d *direct) Flush() error { return d.control.Flush() }

// compressed flushes the compressor before the connection, so that each frame can be read at once.
type compressed struct {
	inner interface {
		io.WriteCloser
		Flush() error
	}
	below flushWriter
}

func (c *compressed) Write(b []byte) (int, error) { return c.inner.Write(b) }

func (c *compressed) Flush() error {
	if err := c.inner.Flush(); err != nil {
		return err
	}
	return c.below.Flush()
}

func (c *compressed) Close() error {
	if err := c.inner.Close(); err != nil {
		return err
	}
	return c.below.Flush()
}

// brotli writes Brotli streams of uncompressed blocks (RFC 7932, section 9.2): every decoder reads them, and the
// standard library has no encoder.
type brotli struct {
	w     io.Writer
	begun bool
}

func newBrotli(w io.Writer) *brotli { return &brotli{w: w} }

func (b *brotli) Write(data []byte) (int, error) {
	const block = 1 << 16
	written := 0
	for written < len(data) {
		piece := data[written:min(written+block, len(data))]
		// From the lowest bit: not the last block (0), its length less 1 in four nibbles (00), the length, uncompressed (1).
		header := uint32(len(piece)-1)<<3 | 1<<19
		if !b.begun {
			header <<= 1 // ahead of all the window of 2^16 bytes (0)
			b.begun = true
		}
		if _, err := b.w.Write([]byte{byte(header), byte(header >> 8), byte(header >> 16)}); err != nil {
			return written, err
		}
		n, err := b.w.Write(piece)
		written += n
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// Flush has nothing to do: each block is complete.
func (b *brotli) Flush() error { return nil }

// Close writes the last, empty block.
func (b *brotli) Close() error {
	end := []byte{0b11}
	if !b.begun {
		end[0] <<= 1
	}
	_, err := b.w.Write(end)
	return err
}

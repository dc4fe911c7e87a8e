// Package sse reads streams of server-sent events (WHATWG HTML, section 9.2) without losing a byte of them.
//
// One reader serves every dialect. What it returns as Raw, put end to end, is the stream as it came: a relay passes Raw
// on and lets meters look at Name and Data. There is no line limit, only a limit for one event.
package sse

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// MaxEvent is the largest event in bytes that a Reader returns by default: images arrive as one data line.
const MaxEvent = 32 << 20

const (
	smallBuffer = 8 << 10   // what a stream of ordinary events keeps
	keepBuffer  = 256 << 10 // a larger buffer is given back once its event is done
	scanBlock   = 4 << 10   // bounds the look for LF, so that streams of short CR lines stay linear
	emptyReads  = 100       // reads in a row without a byte or an error before io.ErrNoProgress
)

var (
	// ErrEventTooLarge says that an event passed the reader's limit. It ends the stream.
	ErrEventTooLarge = errors.New("event is larger than the limit")

	// ErrTruncated says that the stream ended within an event; errors.Is finds io.ErrUnexpectedEOF in it.
	ErrTruncated = fmt.Errorf("stream ended within an event: %w", io.ErrUnexpectedEOF)
)

var byteOrderMark = []byte("\xef\xbb\xbf")

// Event is one event, or one piece of a stream that carries none: a blank line, or a comment line before any field. Such
// pieces stand alone so that keep-alives pass at once and in any number. All slices are valid until the next call of
// Next and must not be changed.
type Event struct {
	Raw  []byte // every byte of it, line ends included
	Name []byte // value of its last "event" line; nil where there is none
	Data []byte // values of its "data" lines, joined by LF; nil where there is none, empty for an empty line
}

// span is a range of the buffer relative to the start of the current event, since the buffer moves.
type span struct{ from, to int }

// Reader splits a stream into events. It is not safe for concurrent use and starts no goroutine.
type Reader struct {
	src   io.Reader
	limit int
	err   error // what src ended with, or the reader's own verdict; final

	buf   []byte // buf[start:] is read and not yet returned
	start int    // first byte of the event being scanned
	line  int    // first byte of its unfinished line
	pos   int    // first byte not yet looked at
	whole bool   // buf[start:pos] is a whole event

	fields bool   // the event has a line that is no comment
	named  bool   // it has an "event" line
	lines  int    // number of its "data" lines
	name   span   // value of the last "event" line
	data   span   // value of the first "data" line
	joined []byte // values of several "data" lines

	begun   bool // the first line of the stream is over: no byte order mark can follow
	loneCR  bool // the last line ended in CR alone, so the next CR is not kept waiting for an LF
	afterCR bool // an LF that comes next belongs to that CR
}

// NewReader returns a reader of src for events of at most MaxEvent bytes.
func NewReader(src io.Reader) *Reader { return NewReaderLimit(src, MaxEvent) }

// NewReaderLimit returns a reader of src for events of at most limit bytes, line ends included.
func NewReaderLimit(src io.Reader, limit int) *Reader { return &Reader{src: src, limit: limit} }

// Next returns the next event. After the last one the error is io.EOF if the stream ended between events; an event whose
// last line is ended counts as whole even where its blank line is missing. If the stream broke off, Next returns the
// incomplete rest in Raw alone, which must not be passed on, together with ErrTruncated or the error of the source.
// Errors are final: later calls return the same one with an empty event.
func (r *Reader) Next() (Event, error) {
	for !r.advance() {
		if len(r.buf)-r.start > r.limit {
			return r.stop(ErrEventTooLarge)
		}
		if r.err != nil {
			return r.rest()
		}
		r.fill()
	}
	if r.pos-r.start > r.limit {
		return r.stop(ErrEventTooLarge)
	}
	return r.take(), nil
}

// Buffered reports whether a further whole event has been read already. A relay flushes when there is none. It keeps the
// event that Next returned valid.
func (r *Reader) Buffered() bool { return r.advance() }

// advance scans what is buffered up to the end of the event and reports whether it is whole.
func (r *Reader) advance() bool {
	for !r.whole {
		if r.afterCR && r.pos < len(r.buf) {
			r.afterCR = false
			if r.buf[r.pos] == '\n' {
				r.loneCR = false
				r.pos++
				r.line = r.pos
			}
		}
		end := lineEnd(r.buf, r.pos)
		if end < 0 {
			r.pos = len(r.buf)
			return false
		}
		next := end + 1
		switch {
		case r.buf[end] == '\n':
			r.loneCR = false
		case r.loneCR:
			r.afterCR = true
		case next < len(r.buf):
			if r.buf[next] == '\n' {
				next++
			} else {
				r.loneCR = true
			}
		case r.err == nil:
			r.pos = end
			return false
		}
		r.endLine(end)
		r.pos, r.line = next, next
	}
	return true
}

// lineEnd returns the index of the first CR or LF in b at or after from, or -1.
func lineEnd(b []byte, from int) int {
	for from < len(b) {
		block := b[from:min(from+scanBlock, len(b))]
		lf := bytes.IndexByte(block, '\n')
		if lf >= 0 {
			block = block[:lf]
		}
		if cr := bytes.IndexByte(block, '\r'); cr >= 0 {
			return from + cr
		}
		if lf >= 0 {
			return from + lf
		}
		from += len(block)
	}
	return -1
}

// endLine takes note of the line that ends before end.
func (r *Reader) endLine(end int) {
	from := r.line
	if !r.begun {
		r.begun = true
		if bytes.HasPrefix(r.buf[from:end], byteOrderMark) {
			from += len(byteOrderMark)
		}
	}
	if from == end || r.buf[from] == ':' && !r.fields {
		r.whole = true
		return
	}
	r.fields = true
	field, value := cutField(r.buf[from:end])
	at := span{end - len(value) - r.start, end - r.start}
	switch string(field) {
	case "data":
		if r.lines == 0 {
			r.data = at
		}
		r.lines++
	case "event":
		r.named, r.name = true, at
	}
}

// cutField splits a line at its first colon and leaves out one space behind it.
func cutField(line []byte) (field, value []byte) {
	colon := bytes.IndexByte(line, ':')
	if colon < 0 {
		return line, line[len(line):]
	}
	value = line[colon+1:]
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	return line[:colon], value
}

// take returns the whole event and begins the next one.
func (r *Reader) take() Event {
	raw := r.buf[r.start:r.pos:r.pos]
	ev := Event{Raw: raw}
	if r.named {
		ev.Name = raw[r.name.from:r.name.to:r.name.to]
	}
	switch {
	case r.lines == 1:
		ev.Data = raw[r.data.from:r.data.to:r.data.to]
	case r.lines > 1:
		r.join(raw)
		ev.Data = r.joined
	}
	r.start, r.whole = r.pos, false
	r.fields, r.named, r.lines = false, false, 0
	return ev
}

// join collects the values of all "data" lines of an event. The first one begins at r.data, a byte order mark before it.
func (r *Reader) join(raw []byte) {
	if cap(r.joined) > keepBuffer {
		r.joined = nil
	}
	r.joined = append(r.joined[:0], raw[r.data.from:r.data.to]...)
	for from, left := r.data.to, r.lines-1; left > 0; {
		for raw[from] == '\r' || raw[from] == '\n' {
			from++
		}
		end := lineEnd(raw, from)
		if field, value := cutField(raw[from:end]); string(field) == "data" {
			r.joined = append(append(r.joined, '\n'), value...)
			left--
		}
		from = end
	}
}

// rest ends the stream with what is left of it.
func (r *Reader) rest() (Event, error) {
	switch {
	case r.start == len(r.buf):
		return r.stop(r.err)
	case errors.Is(r.err, io.EOF) && r.line == len(r.buf):
		return r.take(), nil
	}
	raw, err := r.buf[r.start:], r.err
	if errors.Is(err, io.EOF) {
		err = ErrTruncated
	}
	_, err = r.stop(err)
	return Event{Raw: raw}, err
}

// stop drops what is buffered and returns err for good.
func (r *Reader) stop(err error) (Event, error) {
	r.err, r.buf = err, nil
	r.start, r.line, r.pos, r.whole = 0, 0, 0, false
	return Event{}, err
}

// fill reads once more, after it has made room: by moving the event to the front where that is cheap, else by doubling.
func (r *Reader) fill() {
	switch size, pending := cap(r.buf), len(r.buf)-r.start; {
	case size > keepBuffer && pending < smallBuffer/2:
		r.move(make([]byte, 0, smallBuffer))
	case r.start > size/2:
		r.move(r.buf[:0])
	case len(r.buf) == size:
		grown := max(smallBuffer, 2*size)
		if grown >= r.limit {
			grown = max(smallBuffer, r.limit+1) // one byte past the limit is enough to know that an event is too large
		}
		r.move(make([]byte, 0, grown))
	}
	for range emptyReads {
		n, err := r.src.Read(r.buf[len(r.buf):cap(r.buf)])
		r.buf = r.buf[:len(r.buf)+n]
		r.err = err
		if n > 0 || err != nil {
			return
		}
	}
	r.err = io.ErrNoProgress
}

// move puts the event to the front of the buffer to.
func (r *Reader) move(to []byte) {
	r.buf = append(to, r.buf[r.start:]...)
	r.line -= r.start
	r.pos -= r.start
	r.start = 0
}

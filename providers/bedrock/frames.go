package bedrock

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/go-json-experiment/json"

	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
)

// A frame of Amazon's event stream (application/vnd.amazon.eventstream), all numbers big-endian: 4 bytes of its length, 4 of
// that of its headers, the CRC-32 of these; headers; payload; the CRC-32 of all before it.
const (
	preludeSize = 12
	frameSize   = preludeSize + 4 // of one with nothing in it
	maxHeaders  = 128 << 10       // bytes, by Amazon's own rule
	frameBuffer = 8 << 10         // what a stream of ordinary frames keeps
	keepFrame   = 256 << 10       // a larger frame's memory is given back once the frame is done
	typeString  = 7               // of a header's value
	errorEvent  = "error"         // the name of an event that is a failure
	nameType    = ":message-type" // event, exception or error
	nameEvent   = ":event-type"   // of events
	nameFailed  = ":exception-type"
	nameCode    = ":error-code" // of errors, which have no payload
	nameMessage = ":error-message"
)

// frames reads a stream of frames. Memory grows with what has come, not with what a frame claims to be.
type frames struct {
	src  *bufio.Reader
	rest bytes.Buffer // of a frame, behind its prelude
	err  error        // final
}

func newFrames(stream io.Reader) *frames {
	return &frames{src: bufio.NewReaderSize(stream, frameBuffer)}
}

// Buffered implements providers.Events.
func (f *frames) Buffered() bool {
	if f.err != nil || f.src.Buffered() < preludeSize {
		return false
	}
	prelude, err := f.src.Peek(preludeSize)
	return err == nil && uint64(f.src.Buffered()) >= uint64(binary.BigEndian.Uint32(prelude))
}

// Next implements providers.Events. An exception in the middle of a stream is an event named "error", whose data is an object
// with the exception's name as "__type" and its "message".
func (f *frames) Next() (sse.Event, error) {
	if f.err != nil {
		return sse.Event{}, f.err
	}
	ev, err := f.next()
	if err != nil {
		f.err, f.rest = err, bytes.Buffer{}
	}
	return ev, err
}

func (f *frames) next() (sse.Event, error) {
	headers, payload, err := f.read()
	if err != nil {
		return sse.Event{}, err
	}
	h, err := readHeaders(headers)
	if err != nil {
		return sse.Event{}, err
	}
	switch h.kind {
	case "event":
		return sse.Event{Name: []byte(h.event), Data: payload}, nil
	case "exception":
		var said struct {
			Message string `json:"message"`
		}
		_ = json.Unmarshal(payload, &said) // one that says nothing has its name
		return failed(h.event, said.Message)
	case "error":
		return failed(h.event, h.message)
	}
	return sse.Event{}, fmt.Errorf("%w: message type", providers.ErrFrame)
}

// failed makes the event of a failure.
func failed(kind, message string) (sse.Event, error) {
	data, err := json.Marshal(said{Type: kind, Message: message})
	if err != nil { // its text is no UTF-8
		return sse.Event{}, fmt.Errorf("%w: exception", providers.ErrFrame)
	}
	return sse.Event{Name: []byte(errorEvent), Data: data}, nil
}

// read returns the headers and the payload of the next frame; both are valid until the next call.
func (f *frames) read() (headers, payload []byte, err error) {
	prelude, err := f.src.Peek(preludeSize)
	switch {
	case len(prelude) == 0 && errors.Is(err, io.EOF):
		return nil, nil, io.EOF
	case err != nil:
		return nil, nil, broken(err)
	case crc32.ChecksumIEEE(prelude[:8]) != binary.BigEndian.Uint32(prelude[8:]):
		return nil, nil, fmt.Errorf("%w: checksum of the prelude", providers.ErrFrame)
	}
	size, head := int64(binary.BigEndian.Uint32(prelude)), int64(binary.BigEndian.Uint32(prelude[4:]))
	switch {
	case size > sse.MaxEvent:
		return nil, nil, sse.ErrEventTooLarge
	case size < frameSize || head > size-frameSize || head > maxHeaders:
		return nil, nil, fmt.Errorf("%w: length", providers.ErrFrame)
	}
	sum := crc32.ChecksumIEEE(prelude)
	_, _ = f.src.Discard(preludeSize) // it is buffered
	if f.rest.Cap() > keepFrame {
		f.rest = bytes.Buffer{}
	}
	f.rest.Reset()
	if _, err := io.CopyN(&f.rest, f.src, size-preludeSize); err != nil {
		return nil, nil, broken(err)
	}
	body := f.rest.Bytes()
	body, end := body[:len(body)-4], body[len(body)-4:]
	if crc32.Update(sum, crc32.IEEETable, body) != binary.BigEndian.Uint32(end) {
		return nil, nil, fmt.Errorf("%w: checksum of the message", providers.ErrFrame)
	}
	return body[:head], body[head:], nil
}

// broken names the end of a stream within a frame.
func broken(err error) error {
	if errors.Is(err, io.EOF) {
		return sse.ErrTruncated
	}
	return err
}

// frameHeaders are the headers of a frame that matter.
type frameHeaders struct{ kind, event, message string }

// readHeaders reads name and value of each header. A value that is no string has its length by its type, or before it.
func readHeaders(b []byte) (h frameHeaders, err error) {
	bad := fmt.Errorf("%w: headers", providers.ErrFrame)
	for len(b) > 0 {
		size := int(b[0])
		if len(b) < 1+size+1 {
			return h, bad
		}
		name, kind := string(b[1:1+size]), b[1+size]
		b = b[1+size+1:]
		before, value := 0, 0 // bytes of the length, bytes of the value
		switch kind {
		case 0, 1: // true, false
		case 2: // a byte
			value = 1
		case 3:
			value = 2
		case 4:
			value = 4
		case 5, 8: // 64 bits, a time
			value = 8
		case 6, typeString: // bytes, a text
			if len(b) < 2 {
				return h, bad
			}
			before, value = 2, int(binary.BigEndian.Uint16(b))
		case 9: // a UUID
			value = 16
		default:
			return h, bad
		}
		if len(b) < before+value {
			return h, bad
		}
		if kind == typeString {
			h.set(name, string(b[before:before+value]))
		}
		b = b[before+value:]
	}
	return h, nil
}

func (h *frameHeaders) set(name, value string) {
	switch name {
	case nameType:
		h.kind = value
	case nameEvent, nameFailed, nameCode:
		h.event = value
	case nameMessage:
		h.message = value
	}
}

package ledger

import (
	"encoding/binary"
	"errors"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// A batch has some fifty arrays, so they are written and read without reflection, in PostgreSQL's binary format: number of
// dimensions, whether there are NULLs, type of the elements, length and lower bound, then each element behind its length.

// params collects the parameters of one statement. Its buffers are used again for the next one.
type params struct {
	values [][]byte
	oids   []uint32
	n      int
}

func (p *params) reset() { p.n = 0 }

// next returns the buffer of the next parameter, emptied.
func (p *params) next(oid uint32) *[]byte {
	if p.n == len(p.values) {
		p.values = append(p.values, nil)
		p.oids = append(p.oids, 0)
	}
	p.oids[p.n] = oid
	b := &p.values[p.n]
	*b = (*b)[:0]
	p.n++
	return b
}

func (p *params) bool(v bool) {
	b := p.next(pgtype.BoolOID)
	*b = appendBool(*b, v)
}

func (p *params) int8(v int64) {
	b := p.next(pgtype.Int8OID)
	*b = appendInt8(*b, v)
}

// array starts an array of n elements and returns where they go.
func (p *params) array(oid, element uint32, n int) *[]byte {
	b := p.next(oid)
	if n == 0 {
		*b = appendUint32s(*b, 0, 0, element)
	} else {
		*b = appendUint32s(*b, 1, 0, element, uint32(n), 1) // a batch is small
	}
	return b
}

func (p *params) int8s(v []int64) {
	b := p.array(pgtype.Int8ArrayOID, pgtype.Int8OID, len(v))
	for _, x := range v {
		*b = appendInt8(append(*b, 0, 0, 0, 8), x)
	}
}

func (p *params) int4s(v []int32) {
	b := p.array(pgtype.Int4ArrayOID, pgtype.Int4OID, len(v))
	for _, x := range v {
		*b = appendUint32s(*b, 4, uint32(x)) // two's complement is meant
	}
}

func (p *params) bools(v []bool) {
	b := p.array(pgtype.BoolArrayOID, pgtype.BoolOID, len(v))
	for _, x := range v {
		*b = appendBool(append(*b, 0, 0, 0, 1), x)
	}
}

func (p *params) uuids(v []ids.ID) {
	b := p.array(pgtype.UUIDArrayOID, pgtype.UUIDOID, len(v))
	for i := range v {
		*b = append(append(*b, 0, 0, 0, 16), v[i][:]...)
	}
}

func (p *params) texts(v []string) {
	b := p.array(pgtype.TextArrayOID, pgtype.TextOID, len(v))
	for _, x := range v {
		*b = append(appendUint32s(*b, uint32(len(x))), x...) // names are short
	}
}

func (p *params) times(v []int64) {
	b := p.array(pgtype.TimestamptzArrayOID, pgtype.TimestamptzOID, len(v))
	for _, x := range v {
		*b = appendInt8(append(*b, 0, 0, 0, 8), x)
	}
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendInt8(b []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(b, uint64(v)) // two's complement is meant
}

func appendUint32s(b []byte, vs ...uint32) []byte {
	for _, v := range vs {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return b
}

var errWire = errors.New("result of another shape than expected")

// reader takes one row's columns apart, in order. The first fault sticks.
type reader struct {
	columns [][]byte
	err     error
}

func (r *reader) next() []byte {
	if len(r.columns) == 0 {
		r.err = errWire
		return nil
	}
	c := r.columns[0]
	r.columns = r.columns[1:]
	return c
}

func (r *reader) text() string { return string(r.next()) }

func (r *reader) bool() bool {
	c := r.next()
	return len(c) == 1 && c[0] == 1
}

func (r *reader) int8() int64 { return r.int(r.next()) }

func (r *reader) int(c []byte) int64 {
	switch len(c) {
	case 1:
		return int64(c[0])
	case 2:
		return int64(int16(binary.BigEndian.Uint16(c))) // two's complement is meant
	case 4:
		return int64(int32(binary.BigEndian.Uint32(c))) // two's complement is meant
	case 8:
		return int64(binary.BigEndian.Uint64(c)) // two's complement is meant
	}
	r.err = errWire
	return 0
}

// ints reads an array of booleans, integers or instants; null stands for NULL elements. A NULL array is nil.
func (r *reader) ints(null int64) []int64 {
	c := r.next()
	if c == nil || r.err != nil {
		return nil
	}
	if len(c) < 12 {
		r.err = errWire
		return nil
	}
	if binary.BigEndian.Uint32(c) == 0 {
		return []int64{}
	}
	if len(c) < 20 {
		r.err = errWire
		return nil
	}
	n := int(binary.BigEndian.Uint32(c[12:]))
	c = c[20:]
	if n > len(c)/4 {
		r.err = errWire
		return nil
	}
	out := make([]int64, n)
	for i := range out {
		if len(c) < 4 {
			r.err = errWire
			return nil
		}
		size := int32(binary.BigEndian.Uint32(c)) // −1 stands for NULL
		c = c[4:]
		if size < 0 {
			out[i] = null
			continue
		}
		if int(size) > len(c) {
			r.err = errWire
			return nil
		}
		out[i] = r.int(c[:size])
		c = c[size:]
	}
	return out
}

// PostgreSQL counts microseconds from the year 2000; the ends of the scale are the infinities.
const (
	epochMicros      = 946_684_800_000_000
	negativeInfinity = math.MinInt64
)

// instant reads a timestamptz as it comes over the wire.
func instant(wire int64) time.Time { return time.UnixMicro(wire + epochMicros).UTC() }

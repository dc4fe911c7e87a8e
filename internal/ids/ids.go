// Package ids makes the two kinds of identifier that Tollgate shows: time-ordered UUIDs for requests and attempts, and
// short random names with a prefix that tells their kind, such as key_4Tz0aQ9LmX2b, for everything that an admin manages.
package ids

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"time"

	"github.com/google/uuid"
)

// ID identifies a request or an attempt. It is a version 7 UUID (RFC 9562), so that ids sort by the time they were made.
type ID = uuid.UUID

// New returns an id that carries the given instant in milliseconds and sorts after those of earlier milliseconds.
// Callers pass the database's clock as they know it, never their own, since ledger partitions are ranges of ids.
func New(at time.Time) ID {
	id := uuid.Must(uuid.NewRandom())
	ms := uint64(at.UnixMilli()) // instants before 1970 do not occur
	var stamp [8]byte
	binary.BigEndian.PutUint64(stamp[:], ms<<16)
	copy(id[:6], stamp[:6])
	id[6] = 0x70 | id[6]&0x0f
	return id
}

// Time returns the instant that New was given, in whole milliseconds.
func Time(id ID) time.Time {
	var stamp [8]byte
	copy(stamp[2:], id[:6])
	return time.UnixMilli(int64(binary.BigEndian.Uint64(stamp[:]))).UTC() // 48 bits
}

// ErrMalformed says that a text is not an identifier.
var ErrMalformed = errors.New("malformed identifier")

// Parse reads the canonical form of an ID.
func Parse(s string) (ID, error) {
	if len(s) != 36 {
		return ID{}, ErrMalformed
	}
	id, err := uuid.Parse(s)
	if err != nil {
		return ID{}, ErrMalformed
	}
	return id, nil
}

// Kind is the prefix of a public id.
type Kind string

// The kinds of public id.
const (
	Organization Kind = "org"
	Team         Kind = "team"
	Key          Kind = "key"
	User         Kind = "user"
	Provider     Kind = "prov"
	Model        Kind = "model"
	Target       Kind = "tgt"
	Limit        Kind = "lim"
	Price        Kind = "price"
	Membership   Kind = "mem"
	Guardrail    Kind = "guard"
	Batch        Kind = "batch"
	File         Kind = "file" // followed by a hyphen, as OpenAI's files are: clients know them by it
)

func (k Kind) prefix() string {
	if k == File {
		return "file-"
	}
	return string(k) + "_"
}

// Base62 is the alphabet of public ids and virtual keys, in the order of its digits.
const Base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

const publicLength = 12

// NewPublic returns a fresh public id: the kind's prefix and 12 random base62 digits (71 bits).
func NewPublic(k Kind) string { return k.prefix() + Random62(publicLength) }

// IsPublic reports whether s has the form of a public id of kind k.
func IsPublic(k Kind, s string) bool {
	prefix := len(k.prefix())
	if len(s) != prefix+publicLength || s[:prefix] != k.prefix() {
		return false
	}
	for i := prefix; i < len(s); i++ {
		c := s[i]
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}

// Random62 returns n uniformly random base62 digits from the system's secure source.
func Random62(n int) string {
	const unbiased = 256 - 256%len(Base62) // bytes from here on would favour the first digits
	out := make([]byte, 0, n)
	var buf [64]byte
	for len(out) < n {
		_, _ = rand.Read(buf[:]) // never fails: crypto/rand ends the process instead
		for _, b := range buf {
			if int(b) < unbiased && len(out) < n {
				out = append(out, Base62[int(b)%len(Base62)])
			}
		}
	}
	return string(out)
}

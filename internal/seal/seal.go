// Package seal keeps secrets that the database must hold without being able to read them: it seals the credentials of
// providers under a ring of encryption keys, and turns virtual keys into their stored form under a ring of peppers.
//
// A ring is written as "id:base64,id:base64": the first key is the one in use, the others are still understood, so that
// secrets can be changed without a moment in which the old ones fail.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// keyBytes is the length of an encryption key (AES-256) and the least length of a pepper.
const keyBytes = 32

// ErrUnreadable says that something sealed does not open: it was sealed for another place, under an unknown key, or
// was changed.
var ErrUnreadable = errors.New("sealed secret cannot be opened")

// Kind tells the two sorts of ring apart where their check values are kept.
type Kind string

// The kinds.
const (
	Pepper     Kind = "pepper"
	Encryption Kind = "encryption"
)

// Check proves that a process knows one key of a ring, without revealing it.
type Check struct {
	Kind  Kind
	ID    string
	Proof []byte
}

// Keys seals and opens. It is safe for concurrent use.
type Keys struct{ ring ring }

// ParseKeys reads a ring of encryption keys, each of exactly 32 random bytes.
func ParseKeys(text secret.String) (*Keys, error) {
	r, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("read encryption keys: %w", err)
	}
	for _, k := range r {
		if len(k.bytes) != keyBytes {
			return nil, fmt.Errorf("read encryption keys: key %q has %d bytes, not %d", k.id, len(k.bytes), keyBytes)
		}
	}
	return &Keys{ring: r}, nil
}

// Seal encrypts plain under the ring's first key. It opens again only for the same context.
func (k *Keys) Seal(plain secret.String, context ...string) ([]byte, error) {
	first := k.ring[0]
	aead, err := first.aead()
	if err != nil {
		return nil, err
	}
	header := header(first.id)
	nonce := make([]byte, aead.NonceSize())
	_, _ = rand.Read(nonce) // never fails: crypto/rand ends the process instead
	sealed := append(append([]byte{}, header...), nonce...)
	return aead.Seal(sealed, nonce, []byte(plain.Reveal()), bind(header, context)), nil
}

// Open decrypts what Seal made for the same context under any key of the ring, or returns ErrUnreadable.
func (k *Keys) Open(sealed []byte, context ...string) (secret.String, error) {
	for _, key := range k.ring {
		header := header(key.id)
		rest, ok := strings.CutPrefix(string(sealed), string(header))
		if !ok {
			continue
		}
		aead, err := key.aead()
		if err != nil {
			return secret.String{}, err
		}
		if len(rest) < aead.NonceSize() {
			return secret.String{}, ErrUnreadable
		}
		nonce, text := rest[:aead.NonceSize()], rest[aead.NonceSize():]
		plain, err := aead.Open(nil, []byte(nonce), []byte(text), bind(header, context))
		if err != nil {
			return secret.String{}, ErrUnreadable
		}
		return secret.New(string(plain)), nil
	}
	return secret.String{}, ErrUnreadable
}

// Checks returns a check value for each key of the ring.
func (k *Keys) Checks() []Check { return k.ring.checks(Encryption) }

// Peppers computes the stored form of virtual keys. It is safe for concurrent use.
type Peppers struct{ ring ring }

// ParsePeppers reads a ring of peppers, each of at least 32 random bytes.
func ParsePeppers(text secret.String) (*Peppers, error) {
	r, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("read peppers: %w", err)
	}
	return &Peppers{ring: r}, nil
}

// Current returns the id of the pepper under which new keys are stored.
func (p *Peppers) Current() string { return p.ring[0].id }

// Sum returns HMAC-SHA-256(pepper, SHA-256(key)), or false where no pepper has that id.
func (p *Peppers) Sum(pepperID string, key secret.String) ([32]byte, bool) {
	for _, pepper := range p.ring {
		if pepper.id == pepperID {
			digest := sha256.Sum256([]byte(key.Reveal()))
			return [32]byte(mac(pepper.bytes, digest[:])), true
		}
	}
	return [32]byte{}, false
}

// Checks returns a check value for each pepper.
func (p *Peppers) Checks() []Check { return p.ring.checks(Pepper) }

// Generate returns a ring of one fresh key, in the form that ParseKeys and ParsePeppers read.
func Generate(id string) secret.String {
	var key [keyBytes]byte
	_, _ = rand.Read(key[:])
	return secret.New(id + ":" + base64.StdEncoding.EncodeToString(key[:]))
}

type ringKey struct {
	id    string
	bytes []byte
}

func (k ringKey) aead() (cipher.AEAD, error) {
	block, err := aes.NewCipher(k.bytes)
	if err != nil {
		return nil, fmt.Errorf("use encryption key %q: %w", k.id, err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("use encryption key %q: %w", k.id, err)
	}
	return aead, nil
}

type ring []ringKey

func (r ring) checks(kind Kind) []Check {
	all := make([]Check, 0, len(r))
	for _, k := range r {
		all = append(all, Check{Kind: kind, ID: k.id, Proof: mac(k.bytes, []byte("tollgate check value 1 of "+string(kind)))})
	}
	return all
}

var idForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,32}$`)

func parse(text secret.String) (ring, error) {
	if text.IsZero() {
		return nil, errors.New("none is set; want id:base64[,id:base64]")
	}
	var r ring
	for i, part := range strings.Split(text.Reveal(), ",") {
		id, encoded, ok := strings.Cut(strings.TrimSpace(part), ":")
		if !ok || !idForm.MatchString(id) {
			return nil, fmt.Errorf("entry %d is not of the form id:base64", i+1)
		}
		for _, other := range r {
			if other.id == id {
				return nil, fmt.Errorf("id %q stands twice", id)
			}
		}
		key, err := decode(encoded)
		if err != nil {
			return nil, fmt.Errorf("key %q is not base64", id)
		}
		if err := strong(key); err != nil {
			return nil, fmt.Errorf("key %q: %w", id, err)
		}
		r = append(r, ringKey{id: id, bytes: key})
	}
	return r, nil
}

func decode(s string) ([]byte, error) {
	s = strings.TrimRight(s, "=")
	if strings.ContainsAny(s, "-_") {
		return base64.RawURLEncoding.DecodeString(s)
	}
	return base64.RawStdEncoding.DecodeString(s)
}

// strong refuses what was surely not drawn at random. Of 32 random bytes about 30 differ; that fewer than 16 do, or that
// all are printable, does not happen.
func strong(key []byte) error {
	if len(key) < keyBytes {
		return fmt.Errorf("has %d bytes, at least %d random ones are needed", len(key), keyBytes)
	}
	distinct := make(map[byte]bool, len(key))
	steps := make(map[byte]bool, len(key))
	printable := true
	for i, b := range key {
		distinct[b] = true
		printable = printable && b >= ' ' && b <= '~'
		if i > 0 {
			steps[b-key[i-1]] = true
		}
	}
	if printable || len(distinct) < keyBytes/2 || len(steps) < keyBytes/4 {
		return errors.New("is not random; make one with `openssl rand -base64 32`")
	}
	return nil
}

// header names format and key of what follows.
func header(id string) []byte { return append([]byte{1, byte(len(id))}, id...) }

// bind writes the context with the length of each part before it, so that no two contexts give the same bytes.
func bind(header []byte, context []string) []byte {
	bound := append([]byte{}, header...)
	for _, part := range context {
		bound = binary.BigEndian.AppendUint32(bound, uint32(len(part))) // parts are names and URLs
		bound = append(bound, part...)
	}
	return bound
}

func mac(key, message []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(message)
	return h.Sum(nil)
}

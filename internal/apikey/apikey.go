// Package apikey knows the form of virtual keys: "sk-tg-", 12 base62 digits of public id, 43 of secret (256 bits), and 6
// of CRC-32 over all that precedes. The checksum lets a mistyped or invented key be refused without a look-up.
package apikey

import (
	"crypto/subtle"
	"errors"
	"hash/crc32"
	"strings"

	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// Prefix is what every virtual key begins with. Secret scanners look for it.
const Prefix = "sk-tg-"

const (
	publicDigits = 12
	secretDigits = 43
	sumDigits    = 6
	length       = len(Prefix) + publicDigits + secretDigits + sumDigits
)

// Errors of Parse.
var (
	ErrForeign  = errors.New("not a key of Tollgate's form")
	ErrChecksum = errors.New("key fails its checksum")
)

// New makes a key from the system's secure source and returns it with its public id.
func New() (key secret.String, publicID string) {
	publicID = ids.Random62(publicDigits)
	text := Prefix + publicID + ids.Random62(secretDigits)
	return secret.New(text + checksum(text)), publicID
}

// Parse returns the public id of a key. It looks at the text alone: ErrForeign says that the key is of another form,
// ErrChecksum that it is of this form and cannot be valid.
func Parse(key secret.String) (publicID string, err error) {
	text := key.Reveal()
	if !strings.HasPrefix(text, Prefix) {
		return "", ErrForeign
	}
	if len(text) != length {
		return "", ErrChecksum
	}
	for i := len(Prefix); i < length; i++ {
		if strings.IndexByte(ids.Base62, text[i]) < 0 {
			return "", ErrChecksum
		}
	}
	body := text[:length-sumDigits]
	if checksum(body) != text[length-sumDigits:] {
		return "", ErrChecksum
	}
	return text[len(Prefix) : len(Prefix)+publicDigits], nil
}

// Last4 returns the last four characters of a key: what lists show of it.
func Last4(key secret.String) string {
	text := key.Reveal()
	return text[max(0, len(text)-4):]
}

// Equal compares two stored forms of keys in a time that does not depend on where they differ.
func Equal(a, b [32]byte) bool { return subtle.ConstantTimeCompare(a[:], b[:]) == 1 }

func checksum(body string) string {
	sum := crc32.ChecksumIEEE([]byte(body))
	var digits [sumDigits]byte
	for i := sumDigits - 1; i >= 0; i-- {
		digits[i] = ids.Base62[sum%uint32(len(ids.Base62))]
		sum /= uint32(len(ids.Base62))
	}
	return string(digits[:])
}

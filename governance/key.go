package governance

import (
	"time"

	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// VirtualKey is a credential that Tollgate issues. Its text is known only in the answer that created or rotated it.
type VirtualKey struct {
	Meta
	Organization Ref
	Team         Ref // zero where the key belongs to the organization itself
	User         Ref // zero where no user is set
	Name         string
	Models       []string // patterns over public model names; nil: all that the organization is offered, empty: none
	ExpiresAt    time.Time
	Blocked      bool
	RevokedAt    time.Time
	Hint         string // first digits of the public part and the last four of the newest secret, for lists
	LastUsedAt   time.Time
	BudgetStatus int // overrides the organization's; 0: inherited
}

// KeySecret is what the store keeps of one secret of a key. During a rotation's grace two are alive.
type KeySecret struct {
	PublicID  string   // the 12 base62 digits behind the prefix, by which the row is found
	Hash      [32]byte // HMAC-SHA-256(pepper, SHA-256(key))
	PepperID  string
	Last4     string
	ExpiresAt time.Time // end of the grace period; zero: as long as the key
}

// IssuedKey is a key together with its text, which cannot be read again.
type IssuedKey struct {
	VirtualKey
	Secret secret.String
}

// KeyRecord is all that authentication needs to know of one secret: one row of a look-up.
type KeyRecord struct {
	Secret    KeySecret
	Key       VirtualKey
	Principal Principal
	// BlockedBy names what stops the key besides itself: "team", "organization" or "user"; empty: nothing.
	BlockedBy string
}

// Principal is the caller that a credential stands for. It is immutable.
type Principal struct {
	Organization Ref
	Team         Ref
	Key          Ref
	User         Ref
	KeyModels    []string  // as VirtualKey.Models
	KeyExpiresAt time.Time // as VirtualKey.ExpiresAt
	TeamModels   []string  // as Team.Models
	BudgetStatus int       // 429 or 402
	Require      []string  // as Organization.Require
	// ConfigVersion is the configuration's version at which this was read. A call must not be decided by older limits: a key
	// that was made together with its limits would pass without them.
	ConfigVersion int64
}

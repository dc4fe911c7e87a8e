package governance

import (
	"context"
	"errors"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// Errors that every store returns.
var (
	ErrNotFound  = errors.New("not found")
	ErrConflict  = errors.New("changed meanwhile")                  // a conditional write found another version
	ErrExists    = errors.New("exists already")                     // a name or an identity is taken
	ErrStoreAway = errors.New("data store unavailable")             // it could not be read
	ErrStale     = errors.New("configuration could not be renewed") // what is cached is older than its maximum age
)

// InvalidError says which member of a write the store refused, and why.
type InvalidError struct {
	Field  string // path of the member, e.g. "limits[0].amount"
	Reason string
}

func (e *InvalidError) Error() string { return e.Field + ": " + e.Reason }

// RefusedError says why a write that is right by itself does not fit what else is stored.
type RefusedError struct {
	Reason string // for people, without a capital and a full stop
}

func (e *RefusedError) Error() string { return e.Reason }

// ListFilter narrows a list of administered rows. Zero members do not narrow. IDs are public.
type ListFilter struct {
	Organization string
	Team         string
	Provider     string
	Name         string
	ScopeType    ScopeType
	ScopeID      string
	Deleted      bool // deleted rows too
}

// Store keeps one kind of administered row. Every change writes its audit row in the same transaction and raises the
// configuration version. Actor.Organization bounds every method: what is another's is not found.
type Store[T any] interface {
	Create(ctx context.Context, by Actor, row T) (T, error)
	Get(ctx context.Context, by Actor, id string) (T, error)
	List(ctx context.Context, by Actor, f ListFilter, p Page) (rows []T, next string, err error)
	// Update writes the after-image; it is conditional on the row's Version and returns ErrConflict otherwise.
	Update(ctx context.Context, by Actor, row T) (T, error)
	// Delete is soft. version 0 deletes whatever version there is.
	Delete(ctx context.Context, by Actor, id string, version int64) error
}

// TeamStore keeps teams. A team may be created with its first limits, in one transaction.
type TeamStore interface {
	Store[Team]
	CreateWithLimits(ctx context.Context, by Actor, t Team, limits []Limit) (Team, []Limit, error)
}

// KeyStore keeps virtual keys.
type KeyStore interface {
	Store[VirtualKey]
	// Issue creates a key and its first limits in one transaction.
	Issue(ctx context.Context, by Actor, k VirtualKey, limits []Limit) (IssuedKey, []Limit, error)
	// Rotate gives a key a new secret; the old one works until grace has passed.
	Rotate(ctx context.Context, by Actor, id string, grace time.Duration) (IssuedKey, error)
	// Revoke ends a key for good.
	Revoke(ctx context.Context, by Actor, id string) (VirtualKey, error)
}

// KeyFinder finds what authentication needs. It is read through caches, never straight from a request.
type KeyFinder interface {
	// FindKey looks a secret up by its public part. ErrNotFound: there is none; any other error: it could not be read.
	FindKey(ctx context.Context, publicID string) (KeyRecord, error)
	// Touch notes that keys were used. Best effort.
	Touch(ctx context.Context, keys []int64) error
	// Rehash stores secrets under another pepper, where they are still stored as they were read. Best effort.
	Rehash(ctx context.Context, all []Rehash) error
}

// Rehash replaces the stored form of a secret by that under a newer pepper. Only who has seen the key can make one.
type Rehash struct {
	Was      KeySecret
	Hash     [32]byte
	PepperID string
}

// EndUsers maps the names that requests give their end users to row numbers.
type EndUsers interface {
	// EndUser returns the row number of a name within an organization; the row is made on first sight. A key that brings too
	// many unseen names gets an *Error with CodeRateLimitExceeded.
	EndUser(ctx context.Context, key, organization int64, name string) (int64, error)
}

// TargetPatch is what may be changed on a target. Nil members stay.
type TargetPatch struct {
	OnDisconnect    *OnDisconnect
	NoStreamOptions *bool
	Drop            *[]string
	MaxOutput       *int64
}

// TargetStore reads targets, which come into being with the models that use them.
type TargetStore interface {
	Get(ctx context.Context, by Actor, id string) (Target, error)
	List(ctx context.Context, by Actor, f ListFilter, p Page) ([]Target, string, error)
	Patch(ctx context.Context, by Actor, id string, version int64, patch TargetPatch) (Target, error)
}

// PriceStore keeps the price book. Versions are only ever added.
type PriceStore interface {
	Get(ctx context.Context, id string) (PriceVersion, error)
	List(ctx context.Context, provider, upstreamModel string, p Page) ([]PriceVersion, string, error)
	// Add adds versions in one transaction; active at their EffectiveFrom.
	Add(ctx context.Context, by Actor, versions []PriceVersion) ([]PriceVersion, error)
	// Empty reports whether the book has no version yet.
	Empty(ctx context.Context) (bool, error)
}

// AuditStore reads audit rows, newest first.
type AuditStore interface {
	Rows(ctx context.Context, by Actor, f AuditFilter, p Page) ([]AuditRow, string, error)
}

// AuditFilter narrows lists of audit rows. Zero members do not narrow.
type AuditFilter struct {
	Organization, Resource, ResourceID, ActorID string
	From, To                                    time.Time
}

// Catalogs gives the current picture of models, targets, limits and prices.
type Catalogs interface {
	// Current returns the newest picture, or ErrStale when it could not be confirmed for longer than its maximum age.
	Current() (*Catalog, error)
	// Refresh waits until the picture is at least as new as version, or ctx ends.
	Refresh(ctx context.Context, version int64) error
	// Confirm waits until the picture is known to be no older than this call, or ctx ends: what it lacks then does not exist.
	Confirm(ctx context.Context) error
	// Notice tells of a version that the store is known to have. A picture that is older is renewed soon; nobody waits.
	Notice(version int64)
}

// StoredResponses remembers which target has a response that its provider keeps, for as long as providers do. Ids of responses
// are known to their own organization alone: provider accounts are shared.
type StoredResponses interface {
	// Remember notes where responses are, or what else only the target's provider has the means to go on from. A repeat changes
	// nothing.
	Remember(ctx context.Context, organization, target int64, responses ...string) error
	// Target returns the row number of the target that has it. ErrNotFound: the organization has no such response.
	Target(ctx context.Context, organization int64, response string) (int64, error)
}

// IdempotencyStore remembers requests that carried an Idempotency-Key, per key, for 24 h.
type IdempotencyStore interface {
	// Begin claims a key. ErrExists: it was used with another body; ErrConflict: it is in flight; nil with seen: it was
	// used before and has finished, the request may run again.
	Begin(ctx context.Context, key int64, idempotencyKey string, bodyHash [32]byte, request ids.ID) (seen bool, err error)
	// Finish marks it finished.
	Finish(ctx context.Context, key int64, idempotencyKey string, request ids.ID) error
}

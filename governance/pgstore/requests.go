package pgstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

const (
	// knownEndUsers names are remembered for endUserAge, so that their requests need no look-up.
	knownEndUsers = 50_000
	endUserAge    = time.Minute
	endUserWait   = 2 * time.Second // of a look-up that a call waits for
	// A key may bring this many names that nobody has seen, at once and per second, on each gateway (ruling 27): each makes a
	// row and meters.
	newEndUsersBurst     = 200
	newEndUsersPerSecond = 20
	watchedKeys          = 10_000
)

// EndUsers maps the names that requests give their end users to row numbers. The role of the data plane suffices for it.
type EndUsers struct {
	pool    *pgxpool.Pool
	known   *lru.Cache[endUserName, knownEndUser]
	fresh   *lru.Cache[int64, *rate.Limiter] // by key
	flights singleflight.Group
}

type endUserName struct {
	organization int64
	name         string
}

type knownEndUser struct {
	num    int64
	readAt time.Time
}

var _ governance.EndUsers = (*EndUsers)(nil)

// NewEndUsers makes the mapping of end users.
func NewEndUsers(pool *pgxpool.Pool) *EndUsers {
	known, _ := lru.New[endUserName, knownEndUser](knownEndUsers) // fails only for a size below 1
	fresh, _ := lru.New[int64, *rate.Limiter](watchedKeys)
	return &EndUsers{pool: pool, known: known, fresh: fresh}
}

// EndUser returns the row number of a name within an organization; the row is made on first sight. A key that brings too many
// unseen names is refused for a moment.
func (s *EndUsers) EndUser(ctx context.Context, key, organization int64, name string) (int64, error) {
	who := endUserName{organization, name}
	if k, ok := s.known.Get(who); ok && time.Since(k.readAt) < endUserAge {
		return k.num, nil
	}
	at := time.Now()
	num, err := shared(ctx, &s.flights, fmt.Sprintf("%d/%s", organization, name), func(ctx context.Context) (int64, error) {
		return read(ctx, s.pool, func(ctx context.Context, q querier) (int64, error) { return s.find(ctx, q, key, who) })
	})
	if err == nil {
		s.known.Add(who, knownEndUser{num, at})
	}
	return num, err
}

// shared does for all who ask at once what one of them has asked for. It goes on when that one leaves.
func shared(ctx context.Context, group *singleflight.Group, what string, do func(context.Context) (int64, error)) (int64, error) {
	done := group.DoChan(what, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endUserWait)
		defer cancel()
		return do(ctx)
	})
	select {
	case r := <-done:
		num, _ := r.Val.(int64)
		return num, r.Err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (s *EndUsers) find(ctx context.Context, q querier, key int64, who endUserName) (int64, error) {
	num, err := scalar[int64](ctx, q, "end_users_find", args{"organization": who.organization, "name": who.name})
	if !errors.Is(err, governance.ErrNotFound) {
		return num, err
	}
	limiter, ok := s.fresh.Get(key)
	if !ok {
		limiter = rate.NewLimiter(newEndUsersPerSecond, newEndUsersBurst)
		s.fresh.Add(key, limiter)
	}
	if !limiter.Allow() {
		return 0, &governance.Error{
			Code: governance.CodeRateLimitExceeded, RetryAfter: time.Second,
			Public: "This key has brought too many new end users. Try again shortly.",
		}
	}
	return endUser(ctx, q, who.organization, who.name)
}

// endUser looks before it writes, since a conflicting insert burns a number each time.
func endUser(ctx context.Context, q querier, organization int64, name string) (int64, error) {
	a := args{"organization": organization, "name": name}
	num, err := scalar[int64](ctx, q, "end_users_find", a)
	if !errors.Is(err, governance.ErrNotFound) {
		return num, err
	}
	if _, err := exec(ctx, q, "end_users_add", a); err != nil {
		return 0, err
	}
	return scalar[int64](ctx, q, "end_users_find", a)
}

// Idempotency remembers requests that carried an Idempotency-Key. The role of the data plane suffices for it.
type Idempotency struct{ pool *pgxpool.Pool }

var _ governance.IdempotencyStore = (*Idempotency)(nil)

// NewIdempotency makes a store of idempotency keys.
func NewIdempotency(pool *pgxpool.Pool) *Idempotency { return &Idempotency{pool} }

type idempotencyRow struct {
	BodyHash []byte `db:"body_hash"`
	InFlight bool   `db:"in_flight"`
	Expired  bool   `db:"expired"`
}

// Begin claims a key. ErrExists: it was used with another body; ErrConflict: it is in flight. A claim whose gateway never
// finished it ends after an hour, so that a crash does not block the key for a day.
func (s *Idempotency) Begin(ctx context.Context, key int64, idempotencyKey string, bodyHash [32]byte, request ids.ID) (seen bool, err error) {
	a := args{"key": key, "idempotency_key": idempotencyKey, "body_hash": bodyHash[:], "request": request}
	err = within(ctx, s.pool, pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		added, err := exec(ctx, tx, "idempotency_add", a)
		if err != nil || added == 1 {
			return err
		}
		was, err := one[idempotencyRow](ctx, tx, "idempotency_lock", a)
		switch {
		case err != nil:
			return err
		case was.Expired:
		case !bytes.Equal(was.BodyHash, bodyHash[:]):
			return governance.ErrExists
		case was.InFlight:
			return governance.ErrConflict
		default:
			seen = true
		}
		_, err = exec(ctx, tx, "idempotency_claim", a)
		return err
	})
	return seen, err
}

// Finish marks a key as finished, if the request still holds its claim.
func (s *Idempotency) Finish(ctx context.Context, key int64, idempotencyKey string, request ids.ID) error {
	_, err := read(ctx, s.pool, func(ctx context.Context, q querier) (int64, error) {
		return exec(ctx, q, "idempotency_finish", args{"key": key, "idempotency_key": idempotencyKey, "request": request})
	})
	return err
}

// Prune removes keys that are older than 24 h, at most 10,000, and returns how many it removed.
func (s *Idempotency) Prune(ctx context.Context) (int64, error) {
	return read(ctx, s.pool, func(ctx context.Context, q querier) (int64, error) {
		return exec(ctx, q, "idempotency_prune", nil)
	})
}

// StoredResponses remembers which target has a response. The role of the data plane suffices for it.
type StoredResponses struct{ pool *pgxpool.Pool }

var _ governance.StoredResponses = (*StoredResponses)(nil)

// NewStoredResponses makes a store of where responses are.
func NewStoredResponses(pool *pgxpool.Pool) *StoredResponses { return &StoredResponses{pool} }

// Remember implements governance.StoredResponses.
func (s *StoredResponses) Remember(ctx context.Context, organization, target int64, responses ...string) error {
	hashes := make([][]byte, len(responses))
	for i, response := range responses {
		hash := sha256.Sum256([]byte(response))
		hashes[i] = hash[:]
	}
	_, err := read(ctx, s.pool, func(ctx context.Context, q querier) (int64, error) {
		return exec(ctx, q, "stored_responses_add", args{"organization": organization, "response_hashes": hashes, "target": target})
	})
	return err
}

// Target implements governance.StoredResponses.
func (s *StoredResponses) Target(ctx context.Context, organization int64, response string) (int64, error) {
	hash := sha256.Sum256([]byte(response))
	return read(ctx, s.pool, func(ctx context.Context, q querier) (int64, error) {
		return scalar[int64](ctx, q, "stored_responses_find", args{"organization": organization, "response_hash": hash[:]})
	})
}

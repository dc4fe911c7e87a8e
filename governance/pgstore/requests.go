package pgstore

import (
	"bytes"
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// EndUsers maps the names that requests give their end users to row numbers. The role of the data plane suffices for it.
type EndUsers struct{ pool *pgxpool.Pool }

var _ governance.EndUsers = (*EndUsers)(nil)

// NewEndUsers makes the mapping of end users.
func NewEndUsers(pool *pgxpool.Pool) *EndUsers { return &EndUsers{pool} }

// EndUser returns the row number of a name within an organization; the row is made on first sight.
func (s *EndUsers) EndUser(ctx context.Context, organization int64, name string) (int64, error) {
	return read(ctx, s.pool, func(ctx context.Context, q querier) (int64, error) {
		return endUser(ctx, q, organization, name)
	})
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

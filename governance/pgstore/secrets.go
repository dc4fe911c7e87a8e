package pgstore

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/internal/seal"
)

// ErrWrongSecret says that a pepper or an encryption key is not the one that this database was used with. The process must
// not start: what it stored could not be read by the others.
var ErrWrongSecret = errors.New("secret differs from the one this database was used with")

// VerifySecrets compares check values with those of the database. A key that is not known there is added, if the role may;
// the data plane's may not, and relies on the control plane for it.
func VerifySecrets(ctx context.Context, pool *pgxpool.Pool, checks ...seal.Check) error {
	_, err := read(ctx, pool, func(ctx context.Context, q querier) (struct{}, error) {
		var done struct{}
		mayAdd, err := scalar[bool](ctx, q, "secret_check_may_add", nil)
		if err != nil {
			return done, err
		}
		if mayAdd {
			for _, c := range checks {
				a := args{"kind": string(c.Kind), "id": c.ID, "proof": c.Proof}
				if _, err := exec(ctx, q, "secret_check_add", a); err != nil {
					return done, err
				}
			}
		}
		known, err := many[struct {
			Kind  string `db:"kind"`
			ID    string `db:"id"`
			Proof []byte `db:"proof"`
		}](ctx, q, "secret_checks", nil)
		if err != nil {
			return done, err
		}
		for _, c := range checks {
			for _, k := range known {
				if k.Kind == string(c.Kind) && k.ID == c.ID && subtle.ConstantTimeCompare(k.Proof, c.Proof) == 0 {
					return done, fmt.Errorf("%s %q: %w", c.Kind, c.ID, ErrWrongSecret)
				}
			}
		}
		return done, nil
	})
	return err
}

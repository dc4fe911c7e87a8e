package pgstore

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/internal/seal"
)

// ErrWrongSecret says that a pepper or an encryption key is not the one that this database was used with. The process must
// not start: what it stored could not be read by the others.
var ErrWrongSecret = errors.New("secret differs from the one this database was used with")

// ErrMissingSecret says that what the database holds needs a pepper or an encryption key that is not in the ring. The process
// must not start: virtual keys or credentials that are good would fail.
var ErrMissingSecret = errors.New("the database uses it, but it is not in the ring")

// VerifySecrets compares check values with those of the database, and looks whether the rings have what it uses: each pepper
// of a secret that can log in, and, where credentials are stored, an encryption key of some of them. A key that is not known
// there is added, if the role may; the data plane's may not, and relies on the control plane for it.
func VerifySecrets(ctx context.Context, pool *pgxpool.Pool, checks ...seal.Check) error {
	_, err := read(ctx, pool, func(ctx context.Context, q querier) (struct{}, error) {
		var done struct{}
		used, err := many[usedSecret](ctx, q, "secrets_in_use", nil)
		if err != nil {
			return done, err
		}
		if err := missing(used, checks); err != nil {
			return done, err
		}
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

// usedSecret names a pepper or an encryption key that something stored needs.
type usedSecret struct {
	Kind string `db:"kind"`
	ID   string `db:"id"`
}

// missing refuses rings that lack what is used. A ring of which there are no checks is not looked at. Credentials that do
// not open show as such and can be sent again, so one readable is enough; a key whose pepper is missing cannot be helped.
func missing(used []usedSecret, checks []seal.Check) error {
	has := func(kind string, fits func(id string) bool) bool {
		return slices.ContainsFunc(checks, func(c seal.Check) bool { return string(c.Kind) == kind && fits(c.ID) })
	}
	unread := ""
	opens := false
	for _, u := range used {
		if !has(u.Kind, func(string) bool { return true }) {
			continue
		}
		found := has(u.Kind, func(id string) bool { return id == u.ID })
		switch {
		case u.Kind == string(seal.Encryption) && found:
			opens = true
		case u.Kind == string(seal.Encryption):
			unread = u.ID
		case !found:
			return fmt.Errorf("%s %q: %w", u.Kind, u.ID, ErrMissingSecret)
		}
	}
	if unread != "" && !opens {
		return fmt.Errorf("%s %q: %w", seal.Encryption, unread, ErrMissingSecret)
	}
	return nil
}

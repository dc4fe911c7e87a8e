package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/apikey"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/seal"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// maxGrace bounds how long a rotated secret may go on working.
const maxGrace = 90 * 24 * time.Hour

// Keys keeps virtual keys.
type Keys struct {
	table[governance.VirtualKey, keysRow]
	limits  *Limits
	peppers *seal.Peppers
}

var (
	_ governance.KeyStore  = (*Keys)(nil)
	_ governance.KeyFinder = (*KeyFinder)(nil)
)

// NewKeys makes a store of virtual keys whose secrets are stored under the current pepper.
func NewKeys(pool *pgxpool.Pool, peppers *seal.Peppers) *Keys {
	return &Keys{keysTable(pool), NewLimits(pool), peppers}
}

func keysTable(pool *pgxpool.Pool) table[governance.VirtualKey, keysRow] {
	return table[governance.VirtualKey, keysRow]{pool: pool, resource: "keys", kind: ids.Key}
}

type keysRow struct {
	metaRow
	organizationRow
	teamRow
	userRow
	Name         string     `db:"name"`
	Models       []string   `db:"models"`
	ExpiresAt    *time.Time `db:"expires_at"`
	Blocked      bool       `db:"blocked"`
	RevokedAt    *time.Time `db:"revoked_at"`
	Hint         string     `db:"hint"`
	LastUsedAt   *time.Time `db:"last_used_at"`
	BudgetStatus int        `db:"budget_status"`
}

func (r keysRow) domain() governance.VirtualKey {
	return governance.VirtualKey{
		Meta: r.meta(), Organization: r.organization(), Team: r.team(), User: r.user(), Name: r.Name, Models: r.Models,
		ExpiresAt: instant(r.ExpiresAt), Blocked: r.Blocked, RevokedAt: instant(r.RevokedAt), Hint: r.Hint,
		LastUsedAt: instant(r.LastUsedAt), BudgetStatus: r.BudgetStatus,
	}
}

// Create adds a key without limits. Its text is lost: Issue is what people want.
func (s *Keys) Create(ctx context.Context, by governance.Actor, k governance.VirtualKey) (governance.VirtualKey, error) {
	issued, _, err := s.Issue(ctx, by, k, nil)
	return issued.VirtualKey, err
}

// Issue creates a key, its secret and its first limits in one transaction.
func (s *Keys) Issue(ctx context.Context, by governance.Actor, k governance.VirtualKey, limits []governance.Limit) (governance.IssuedKey, []governance.Limit, error) {
	var issued governance.IssuedKey
	var made []governance.Limit
	err := write(ctx, s.pool, by, func(ctx context.Context, c *change) error {
		a, o, err := s.place(ctx, c, &k)
		if err != nil {
			return err
		}
		a["public_id"] = ids.NewPublic(ids.Key)
		num, err := scalar[int64](ctx, c.tx, "keys_insert", a)
		if err != nil {
			return err
		}
		if issued.Secret, err = s.addSecret(ctx, c, num); err != nil {
			return err
		}
		created, err := s.noted(ctx, c, "create", num, nil)
		if err != nil {
			return err
		}
		issued.VirtualKey = created.domain()
		if made, err = s.limits.attach(ctx, c, governance.ScopeKey, created.ID, limits); err != nil {
			return err
		}
		return requireBudget(ctx, c, o, created.TeamNum, num, created.UserNum)
	})
	if err != nil {
		return governance.IssuedKey{}, nil, err
	}
	return issued, made, nil
}

// place finds where a new key belongs: its team's organization, or the organization itself.
func (s *Keys) place(ctx context.Context, c *change, k *governance.VirtualKey) (args, organizationsRow, error) {
	teams, users, organizations := teamsTable(nil), usersTable(nil), organizationsTable(nil)
	a := keyArgs(k)
	a["team_num"], a["user_num"] = nullNum(0), nullNum(0)
	home := k.Organization
	if !k.Team.IsZero() {
		t, err := teams.reference(ctx, c.tx, c.by, k.Team, "team_id")
		if err != nil {
			return nil, organizationsRow{}, err
		}
		if err := same("organization_id", k.Organization, t.organization()); err != nil {
			return nil, organizationsRow{}, invalid("organization_id", "is not that of the team")
		}
		a["team_num"], home = nullNum(t.Num), t.organization()
	}
	if home.IsZero() {
		home.Num = c.by.Organization
	}
	o, err := organizations.reference(ctx, c.tx, c.by, home, "organization_id")
	if err != nil {
		return nil, organizationsRow{}, err
	}
	a["organization_num"] = o.Num
	if !k.User.IsZero() {
		u, err := users.reference(ctx, c.tx, c.by, k.User, "user_id")
		if err != nil {
			return nil, organizationsRow{}, err
		}
		if u.OrganizationNum != o.Num {
			return nil, organizationsRow{}, invalid("user_id", "names nothing that exists")
		}
		a["user_num"] = nullNum(u.Num)
	}
	return a, o, nil
}

func keyArgs(k *governance.VirtualKey) args {
	return args{
		"name": k.Name, "models": k.Models, "expires_at": nullable(k.ExpiresAt), "blocked": k.Blocked,
		"budget_status": nullNum(int64(k.BudgetStatus)),
	}
}

func (s *Keys) addSecret(ctx context.Context, c *change, num int64) (secret.String, error) {
	key, publicID := apikey.New()
	hash, _ := s.peppers.Sum(s.peppers.Current(), key) // the current pepper is always there
	_, err := exec(ctx, c.tx, "key_secrets_insert", args{
		"public_id": publicID, "num": num, "hash": hash[:], "pepper_id": s.peppers.Current(), "last4": apikey.Last4(key),
	})
	return key, err
}

// Update writes the after-image. Organization, team, user and revocation are fixed.
func (s *Keys) Update(ctx context.Context, by governance.Actor, k governance.VirtualKey) (governance.VirtualKey, error) {
	return s.update(ctx, by, k.Meta, func(_ context.Context, _ *change, before keysRow) (args, error) {
		if err := same("organization_id", k.Organization, before.organization()); err != nil {
			return nil, err
		}
		if err := same("team_id", k.Team, before.team()); err != nil {
			return nil, err
		}
		if err := same("user_id", k.User, before.user()); err != nil {
			return nil, err
		}
		if before.RevokedAt != nil && k.Blocked != before.Blocked {
			return nil, &governance.RefusedError{Reason: "the key is revoked for good: it can be neither blocked nor unblocked"}
		}
		return keyArgs(&k), nil
	})
}

// Rotate gives a key a new secret; those it had work until grace has passed, at most 90 days.
func (s *Keys) Rotate(ctx context.Context, by governance.Actor, id string, grace time.Duration) (governance.IssuedKey, error) {
	if grace < 0 || grace > maxGrace {
		return governance.IssuedKey{}, invalid("grace", "is not between 0 and 90 days")
	}
	var issued governance.IssuedKey
	err := write(ctx, s.pool, by, func(ctx context.Context, c *change) error {
		before, err := s.living(ctx, c, id)
		if err != nil {
			return err
		}
		if _, err := exec(ctx, c.tx, "key_secrets_end", args{"num": before.Num, "grace": grace}); err != nil {
			return err
		}
		if issued.Secret, err = s.addSecret(ctx, c, before.Num); err != nil {
			return err
		}
		if _, err := exec(ctx, c.tx, "keys_touch_version", args{"num": before.Num}); err != nil {
			return err
		}
		after, err := s.noted(ctx, c, "rotate", before.Num, before)
		issued.VirtualKey = after.domain()
		return err
	})
	if err != nil {
		return governance.IssuedKey{}, err
	}
	return issued, nil
}

// living finds a key that was not revoked.
func (s *Keys) living(ctx context.Context, c *change, id string) (keysRow, error) {
	before, err := s.owned(ctx, c, id, 0)
	if err != nil {
		return before, err
	}
	if before.RevokedAt != nil {
		return before, invalid("id", "names a key that was revoked")
	}
	return before, nil
}

// Revoke ends a key for good. A repeat changes nothing.
func (s *Keys) Revoke(ctx context.Context, by governance.Actor, id string) (governance.VirtualKey, error) {
	var after keysRow
	err := write(ctx, s.pool, by, func(ctx context.Context, c *change) error {
		before, err := s.owned(ctx, c, id, 0)
		if err != nil {
			return err
		}
		if _, err := exec(ctx, c.tx, "keys_revoke", args{"num": before.Num}); err != nil {
			return err
		}
		after, err = s.noted(ctx, c, "revoke", before.Num, before)
		return err
	})
	if err != nil {
		return governance.VirtualKey{}, err
	}
	return after.domain(), nil
}

// KeyFinder finds what authentication needs. The role of the data plane suffices for it.
type KeyFinder struct{ pool *pgxpool.Pool }

// NewKeyFinder makes a finder of keys.
func NewKeyFinder(pool *pgxpool.Pool) *KeyFinder { return &KeyFinder{pool} }

type keyRecordRow struct {
	keysRow
	SecretID        string     `db:"secret_id"`
	Hash            []byte     `db:"hash"`
	PepperID        string     `db:"pepper_id"`
	Last4           string     `db:"last4"`
	SecretExpiresAt *time.Time `db:"secret_expires_at"`
	TeamModels      []string   `db:"team_models"`
	Status          int        `db:"status"`
	Require         []string   `db:"require"`
	ConfigVersion   int64      `db:"config_version"`
	BlockedBy       string     `db:"blocked_by"`
}

// FindKey looks a secret up by its public part, with all that can stop it. A secret whose grace is over, and one whose key,
// team or organization was deleted, is not found.
func (f *KeyFinder) FindKey(ctx context.Context, publicID string) (governance.KeyRecord, error) {
	r, err := read(ctx, f.pool, func(ctx context.Context, q querier) (keyRecordRow, error) {
		return one[keyRecordRow](ctx, q, "key_find", args{"public_id": publicID})
	})
	if err != nil {
		return governance.KeyRecord{}, err
	}
	k := r.domain()
	return governance.KeyRecord{
		Secret: governance.KeySecret{
			PublicID: r.SecretID, Hash: [32]byte(r.Hash), PepperID: r.PepperID, Last4: r.Last4,
			ExpiresAt: instant(r.SecretExpiresAt),
		},
		Key: k,
		Principal: governance.Principal{
			Organization: k.Organization, Team: k.Team, Key: governance.Ref{Num: k.Num, ID: k.ID, Name: k.Name}, User: k.User,
			KeyModels: k.Models, TeamModels: r.TeamModels, BudgetStatus: r.Status, Require: r.Require,
			KeyExpiresAt: k.ExpiresAt, ConfigVersion: r.ConfigVersion,
		},
		BlockedBy: r.BlockedBy,
	}, nil
}

// Touch notes that keys were used, to the minute. Rows that a change holds are passed over.
func (f *KeyFinder) Touch(ctx context.Context, keys []int64) error {
	_, err := read(ctx, f.pool, func(ctx context.Context, q querier) (int64, error) {
		return exec(ctx, q, "keys_touch", args{"nums": keys})
	})
	return err
}

// Rehash stores secrets under another pepper, where they are still stored as they were read.
func (f *KeyFinder) Rehash(ctx context.Context, all []governance.Rehash) error {
	names, peppers := make([]string, 0, len(all)), make([]string, 0, len(all))
	was, hashes := make([][]byte, 0, len(all)), make([][]byte, 0, len(all))
	for i := range all {
		r := &all[i]
		names, peppers = append(names, r.Was.PublicID), append(peppers, r.PepperID)
		was, hashes = append(was, r.Was.Hash[:]), append(hashes, r.Hash[:])
	}
	_, err := read(ctx, f.pool, func(ctx context.Context, q querier) (int64, error) {
		return scalar[int64](ctx, q, "keys_rehash", args{"public_ids": names, "was": was, "hashes": hashes, "pepper_ids": peppers})
	})
	return err
}

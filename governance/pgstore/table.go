package pgstore

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// row is a row of an aggregate as its read statement returns it.
type row[T any] interface {
	domain() T
	// owner is the row number of the organization that the row belongs to; 0: the platform.
	owner() int64
	// key returns what identifies the row and its state.
	key() metaRow
}

// table is what the stores of all aggregates share. An aggregate has four statements, named after its resource:
// R_read (by id, number or filter, with all columns of its row type, in the order of row numbers), R_insert (returns the
// number), R_update and R_delete (both conditional on the version).
type table[T any, R row[T]] struct {
	pool     *pgxpool.Pool
	resource string // as in the admin API
	kind     ids.Kind
}

// metaRow has the columns that every aggregate has.
type metaRow struct {
	Num       int64      `db:"num"`
	ID        string     `db:"id"`
	Version   int64      `db:"version"`
	CreatedAt time.Time  `db:"created_at"`
	UpdatedAt time.Time  `db:"updated_at"`
	DeletedAt *time.Time `db:"deleted_at"`
}

func (r metaRow) key() metaRow { return r }

func (r metaRow) meta() governance.Meta {
	return governance.Meta{
		Num: r.Num, ID: r.ID, Version: r.Version,
		CreatedAt: r.CreatedAt.UTC(), UpdatedAt: r.UpdatedAt.UTC(), DeletedAt: instant(r.DeletedAt),
	}
}

// organizationRow has the columns of a row's organization.
type organizationRow struct {
	OrganizationNum  int64  `db:"organization_num"`
	OrganizationID   string `db:"organization_id"`
	OrganizationName string `db:"organization_name"`
}

func (r organizationRow) owner() int64 { return r.OrganizationNum }

func (r organizationRow) organization() governance.Ref {
	return governance.Ref{Num: r.OrganizationNum, ID: r.OrganizationID, Name: r.OrganizationName}
}

// teamRow has the columns of a row's team.
type teamRow struct {
	TeamNum  int64  `db:"team_num"`
	TeamID   string `db:"team_id"`
	TeamName string `db:"team_name"`
}

func (r teamRow) team() governance.Ref {
	return governance.Ref{Num: r.TeamNum, ID: r.TeamID, Name: r.TeamName}
}

// userRow has the columns of a row's user.
type userRow struct {
	UserNum  int64  `db:"user_num"`
	UserID   string `db:"user_id"`
	UserName string `db:"user_name"`
}

func (r userRow) user() governance.Ref {
	return governance.Ref{Num: r.UserNum, ID: r.UserID, Name: r.UserName}
}

// filter has the arguments of a read statement that narrows nothing.
func filter(by governance.Actor) args {
	return args{
		"bound": by.Organization, "id": "", "num": int64(0), "organization": "", "team": "", "provider": "", "name": "",
		"scope_type": "", "scope_id": "", "deleted": false, "after": int64(0), "count": int64(1),
	}
}

// Get returns a living row.
func (t *table[T, R]) Get(ctx context.Context, by governance.Actor, id string) (T, error) {
	r, err := read(ctx, t.pool, func(ctx context.Context, q querier) (R, error) { return t.find(ctx, q, by, id) })
	if err != nil {
		var none T
		return none, err
	}
	return r.domain(), nil
}

// find reads a living row by its public id.
func (t *table[T, R]) find(ctx context.Context, q querier, by governance.Actor, id string) (R, error) {
	if !ids.IsPublic(t.kind, id) {
		var none R
		return none, governance.ErrNotFound
	}
	a := filter(by)
	a["id"] = id
	return one[R](ctx, q, t.resource+"_read", a)
}

// at reads a row by its number, whoever asks.
func (t *table[T, R]) at(ctx context.Context, q querier, num int64) (R, error) {
	a := filter(governance.Actor{})
	a["num"], a["deleted"] = num, true
	return one[R](ctx, q, t.resource+"_read", a)
}

// reference finds the row that a reference of a write points at: by its id, or by its number where that is all there is.
func (t *table[T, R]) reference(ctx context.Context, q querier, by governance.Actor, ref governance.Ref, field string) (R, error) {
	a := filter(by)
	switch {
	case ref.ID != "":
		a["id"] = ref.ID
	case ref.Num != 0:
		a["num"] = ref.Num
	default:
		var none R
		return none, invalid(field, "is missing")
	}
	r, err := one[R](ctx, q, t.resource+"_read", a)
	if errors.Is(err, governance.ErrNotFound) {
		return r, invalid(field, "names nothing that exists")
	}
	return r, err
}

// List returns a page in the order of creation, and the cursor of the next one, or "" behind the last.
func (t *table[T, R]) List(ctx context.Context, by governance.Actor, f governance.ListFilter, p governance.Page) ([]T, string, error) {
	rows, next, err := t.page(ctx, by, f, p)
	if err != nil {
		return nil, "", err
	}
	list := make([]T, 0, len(rows))
	for _, r := range rows {
		list = append(list, r.domain())
	}
	return list, next, nil
}

func (t *table[T, R]) page(ctx context.Context, by governance.Actor, f governance.ListFilter, p governance.Page) ([]R, string, error) {
	after, err := parseCursor(t.resource, p.Cursor)
	if err != nil {
		return nil, "", err
	}
	size := pageSize(p)
	a := filter(by)
	a["organization"], a["team"], a["provider"], a["name"] = f.Organization, f.Team, f.Provider, f.Name
	a["scope_type"], a["scope_id"], a["deleted"] = string(f.ScopeType), f.ScopeID, f.Deleted
	a["after"], a["count"] = after, int64(size)+1
	rows, err := read(ctx, t.pool, func(ctx context.Context, q querier) ([]R, error) {
		return many[R](ctx, q, t.resource+"_read", a)
	})
	if err != nil {
		return nil, "", err
	}
	if len(rows) <= size {
		return rows, "", nil
	}
	rows = rows[:size]
	return rows, cursor(t.resource, rows[size-1].key().Num), nil
}

// insert adds a row and notes it.
func (t *table[T, R]) insert(ctx context.Context, c *change, a args) (R, error) {
	var none R
	a["public_id"] = ids.NewPublic(t.kind)
	num, err := scalar[int64](ctx, c.tx, t.resource+"_insert", a)
	if err != nil {
		return none, err
	}
	return t.noted(ctx, c, "create", num, nil)
}

// noted reads the after-image of a row and notes the change.
func (t *table[T, R]) noted(ctx context.Context, c *change, action string, num int64, before any) (R, error) {
	after, err := t.at(ctx, c.tx, num)
	if err != nil {
		return after, err
	}
	k := after.key()
	c.note(note{
		action: action, resource: t.resource, id: k.ID, num: k.Num, organization: after.owner(), before: before, after: after,
	})
	return after, nil
}

// owned finds the row that a change is about, as it is before it. What the actor may only see is not found.
func (t *table[T, R]) owned(ctx context.Context, c *change, id string, version int64) (R, error) {
	r, err := t.find(ctx, c.tx, c.by, id)
	if err != nil {
		return r, err
	}
	if c.by.Organization != 0 && r.owner() != c.by.Organization {
		return r, governance.ErrNotFound
	}
	if version != 0 && r.key().Version != version {
		return r, governance.ErrConflict
	}
	return r, nil
}

// update writes the after-image that set makes, if the row still has the given version.
func (t *table[T, R]) update(ctx context.Context, by governance.Actor, m governance.Meta, set func(context.Context, *change, R) (args, error)) (T, error) {
	var after R
	err := write(ctx, t.pool, by, func(ctx context.Context, c *change) error {
		before, err := t.owned(ctx, c, m.ID, m.Version)
		if err != nil {
			return err
		}
		a, err := set(ctx, c, before)
		if err != nil {
			return err
		}
		after, err = t.put(ctx, c, "update", before, a)
		return err
	})
	if err != nil {
		var none T
		return none, err
	}
	return after.domain(), nil
}

// put runs the update statement on a row that the change has read, and notes it.
func (t *table[T, R]) put(ctx context.Context, c *change, action string, before R, a args) (R, error) {
	k := before.key()
	a["num"], a["version"] = k.Num, k.Version
	touched, err := exec(ctx, c.tx, t.resource+"_update", a)
	if err != nil {
		return before, err
	}
	if touched == 0 {
		return before, governance.ErrConflict
	}
	return t.noted(ctx, c, action, k.Num, before)
}

// Delete marks a row as deleted. version 0 deletes whatever version there is.
func (t *table[T, R]) Delete(ctx context.Context, by governance.Actor, id string, version int64) error {
	return write(ctx, t.pool, by, func(ctx context.Context, c *change) error {
		before, err := t.owned(ctx, c, id, version)
		if err != nil {
			return err
		}
		return t.remove(ctx, c, before)
	})
}

// remove marks a row that the change has read as deleted, and notes it.
func (t *table[T, R]) remove(ctx context.Context, c *change, before R) error {
	k := before.key()
	touched, err := exec(ctx, c.tx, t.resource+"_delete", args{"num": k.Num, "version": k.Version})
	if err != nil {
		return err
	}
	if touched == 0 {
		return governance.ErrConflict
	}
	c.note(note{
		action: "delete", resource: t.resource, id: k.ID, num: k.Num, organization: before.owner(), before: before,
	})
	return nil
}

// cursor hides a row number from clients, who must not build on it. It carries whose it is: the numbers of one list mean
// nothing in another.
func cursor(of string, num int64) string {
	return base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint64([]byte(of), uint64(num))) // read back alike
}

func parseCursor(of, s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	place, err := placeOf(of, s, 8)
	if err != nil {
		return 0, err
	}
	return int64(binary.BigEndian.Uint64(place)), nil // written alike
}

// placeOf takes a cursor of a list apart.
func placeOf(of, s string, size int) ([]byte, error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	place, ok := bytes.CutPrefix(b, []byte(of))
	if err != nil || !ok || len(place) != size {
		return nil, invalid("cursor", "is not one that this list returned")
	}
	return place, nil
}

// instant reads a nullable time: NULL is the zero time.
func instant(at *time.Time) time.Time {
	if at == nil {
		return time.Time{}
	}
	return at.UTC()
}

// nullable writes the zero time as NULL.
func nullable(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	return &at
}

// nullNum writes the number of a reference that points at nothing as NULL.
func nullNum(num int64) *int64 {
	if num == 0 {
		return nil
	}
	return &num
}

package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

const (
	// pageMax bounds every list, whatever its caller asks for.
	pageMax = 250
	// clocksDiffer is how far the clock that made a request's id may be ahead of the one that made its attempts'.
	clocksDiffer = time.Minute
)

// Spend reads the ledger, and adds to it what people decide: resolutions, corrections and credits.
type Spend struct{ pool *pgxpool.Pool }

var _ governance.SpendStore = (*Spend)(nil)

// NewSpend reads through pool. Long reads belong on another pool than admissions, since an old snapshot makes hot rows grow.
func NewSpend(pool *pgxpool.Pool) *Spend { return &Spend{pool: pool} }

// Rows lists rows, newest first. A page has at most 250, whatever was asked for.
func (s *Spend) Rows(ctx context.Context, f governance.SpendFilter, p governance.Page) ([]governance.SpendRow, string, error) {
	before, err := parsePlace(p.Cursor)
	if err != nil {
		return nil, "", err
	}
	count := pageSize(p)
	var rows []governance.SpendRow
	var next string
	err = within(ctx, s.pool, oneSnapshot, func(ctx context.Context, tx pgx.Tx) error {
		n, err := narrow(ctx, tx, f)
		if err != nil {
			return err
		}
		keys, err := pageKeys(ctx, tx, n, before, count+1)
		if err != nil {
			return err
		}
		next = ""
		if len(keys) > count {
			keys = keys[:count]
			next = keys[count-1].cursor()
		}
		rows, err = spendRows(ctx, tx, keys)
		return err
	})
	return rows, next, err
}

// oneSnapshot makes several statements see the same rows and the same roll-ups.
var oneSnapshot = pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}

// narrowing is a filter as statements take it: by row numbers, 0: by none, -1: by one that there is not.
type narrowing struct {
	Organization int64   `db:"organization"`
	Team         int64   `db:"team"`
	Key          int64   `db:"key"`
	User         int64   `db:"user_num"`
	Model        int64   `db:"model"`
	Targets      []int64 `db:"targets"`
	EndUsers     []int64 `db:"end_users"`

	// Models and providers may be named by what rows keep of them instead; "": they are not.
	ModelName    string `db:"-"`
	ProviderName string `db:"-"`
	ByTarget     bool   `db:"-"` // only rows of Targets
	ByEndUser    bool   `db:"-"` // only rows of EndUsers
	// Request is that of the only request; "": of all. Its attempts have no lower ids than FromID.
	Request  string     `db:"-"`
	FromID   string     `db:"-"`
	From, To *time.Time `db:"-"` // nil: no bound
}

// narrow finds the row numbers that a filter means.
func narrow(ctx context.Context, q querier, f governance.SpendFilter) (narrowing, error) {
	n, err := one[narrowing](ctx, q, "spend_filter", args{
		"organization": f.Organization, "team": f.Team, "key": f.Key, "user": f.User,
		"model": f.Model, "provider": f.Provider, "end_user": f.EndUser,
	})
	if err != nil {
		return n, err
	}
	if n.Model == 0 {
		n.ModelName = f.Model
	}
	if n.ByTarget = ids.IsPublic(ids.Provider, f.Provider); !n.ByTarget {
		n.ProviderName = f.Provider
	}
	n.ByEndUser = f.EndUser != ""
	n.FromID = ids.ID{}.String()
	if f.RequestID != (ids.ID{}) {
		n.Request, n.FromID = f.RequestID.String(), leastID(ids.Time(f.RequestID).Add(-clocksDiffer))
	}
	n.From, n.To = nullable(f.From), nullable(f.To)
	return n, nil
}

func (n *narrowing) args() args {
	return args{
		"organization": n.Organization, "team": n.Team, "key": n.Key, "user": n.User,
		"model": n.Model, "model_name": n.ModelName,
		"by_target": n.ByTarget, "targets": n.Targets, "provider_name": n.ProviderName,
		"by_end_user": n.ByEndUser, "end_users": n.EndUsers,
		"request": n.Request, "from_id": n.FromID, "from": n.From, "to": n.To,
	}
}

func pageSize(p governance.Page) int { return min(max(p.Limit, 1), pageMax) }

package pgstore

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/governance"
)

// Audit reads audit rows. They are written by the changes that they tell of.
type Audit struct{ pool *pgxpool.Pool }

var _ governance.AuditStore = (*Audit)(nil)

// NewAudit makes a reader of audit rows.
func NewAudit(pool *pgxpool.Pool) *Audit { return &Audit{pool} }

type auditRow struct {
	Num            int64           `db:"num"`
	At             time.Time       `db:"at"`
	ActorKind      string          `db:"actor_kind"`
	ActorID        string          `db:"actor_id"`
	ActorName      string          `db:"actor_name"`
	IP             string          `db:"ip"`
	RequestID      string          `db:"request_id"`
	Reason         string          `db:"reason"`
	Action         string          `db:"action"`
	Resource       string          `db:"resource"`
	ResourceID     string          `db:"resource_id"`
	OrganizationID string          `db:"organization_id"`
	Before         json.RawMessage `db:"before"`
	After          json.RawMessage `db:"after"`
}

// Rows lists audit rows, newest first. An actor who is bound to an organization sees only what happened to its rows.
func (s *Audit) Rows(ctx context.Context, by governance.Actor, f governance.AuditFilter, p governance.Page) ([]governance.AuditRow, string, error) {
	after, err := parseCursor("audit", p.Cursor)
	if err != nil {
		return nil, "", err
	}
	size := pageSize(p)
	rows, err := read(ctx, s.pool, func(ctx context.Context, q querier) ([]auditRow, error) {
		return many[auditRow](ctx, q, "audit_rows", args{
			"bound": by.Organization, "organization": f.Organization, "resource": f.Resource, "resource_id": f.ResourceID,
			"actor_id": f.ActorID, "from": nullable(f.From), "to": nullable(f.To), "after": after, "count": int64(size) + 1,
		})
	})
	if err != nil {
		return nil, "", err
	}
	next := ""
	if len(rows) > size {
		rows = rows[:size]
		next = cursor("audit", rows[size-1].Num)
	}
	list := make([]governance.AuditRow, 0, len(rows))
	for _, r := range rows {
		list = append(list, governance.AuditRow{
			Num: r.Num, At: r.At.UTC(),
			Actor: governance.Actor{
				Kind: r.ActorKind, ID: r.ActorID, Name: r.ActorName, IP: r.IP, RequestID: r.RequestID, Reason: r.Reason,
			},
			Action: r.Action, Resource: r.Resource, ResourceID: r.ResourceID, Organization: r.OrganizationID,
			Before: r.Before, After: r.After,
		})
	}
	return list, next, nil
}

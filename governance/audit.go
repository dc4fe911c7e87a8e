package governance

import (
	"encoding/json"
	"time"
)

// Actor is who makes a change. It goes into the audit row.
type Actor struct {
	Kind      string // "admin_token", "user", "system"
	ID        string
	Name      string
	IP        string
	RequestID string
	Reason    string
	// Organization bounds what the actor may touch; 0: the whole platform.
	Organization int64
}

// AuditRow is one change that an actor made, written in the change's own transaction.
type AuditRow struct {
	Num          int64
	At           time.Time
	Actor        Actor
	Action       string // create, update, delete, rotate, revoke, …
	Resource     string // organizations, keys, …
	ResourceID   string
	Organization string
	Before       json.RawMessage // without secrets
	After        json.RawMessage
}

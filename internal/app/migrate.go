package app

import (
	"context"

	"github.com/tollgate-gateway/tollgate/governance/pgstore"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// Migrate brings the schema of a database up to date and returns its version.
func Migrate(ctx context.Context, dsn secret.String) (int64, error) {
	status, err := pgstore.Migrate(ctx, pgstore.Options{DSN: dsn})
	return status.Version, err
}

// SchemaStatus says where a schema stands.
type SchemaStatus struct {
	Current int64 `json:"current"` // last step applied; 0: none
	Newest  int64 `json:"newest"`  // newest step that this binary has
	Dirty   bool  `json:"dirty"`   // the last step was cut off and will be repeated
}

// MigrationStatus looks where a schema stands and changes nothing.
func MigrationStatus(ctx context.Context, dsn secret.String) (SchemaStatus, error) {
	s, err := pgstore.ReadMigrationStatus(ctx, pgstore.Options{DSN: dsn})
	return SchemaStatus{Current: s.Version, Newest: s.Latest, Dirty: s.Interrupted}, err
}

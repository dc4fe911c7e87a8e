// Package migrations holds the schema, one file for each step.
package migrations

import "embed"

// FS has the steps as NNNNNN_name.up.sql and NNNNNN_name.down.sql.
//
//go:embed *.sql
var FS embed.FS

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tollgate-gateway/tollgate/internal/app"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

type migrateCommand struct {
	Up     migrateUp     `cmd:"" help:"Apply the steps that are missing, under one lock. Does nothing where there are none."`
	Status migrateStatus `cmd:"" help:"Show the schema's version and what is missing."`
}

// migrationDatabase says which database to migrate. Its role owns the schema.
type migrationDatabase struct {
	DatabaseDirectURL secret.String `env:"TOLLGATE_DATABASE_DIRECT_URL" help:"DSN of the schema's owner, not through a pooler." placeholder:"DSN"`
	DatabaseURL       secret.String `env:"DATABASE_URL" help:"Used where the direct DSN is not set." placeholder:"DSN"`
}

func (d *migrationDatabase) dsn() (secret.String, error) {
	if !d.DatabaseDirectURL.IsZero() {
		return d.DatabaseDirectURL, nil
	}
	if !d.DatabaseURL.IsZero() {
		return d.DatabaseURL, nil
	}
	return secret.String{}, errors.New("set TOLLGATE_DATABASE_DIRECT_URL or DATABASE_URL to the schema owner's DSN, or pass --database-direct-url\n" +
		"Hint: `tollgate dev` keeps it in secrets.env of its data directory")
}

type migrateUp struct{ migrationDatabase }

func (c *migrateUp) Run(ctx context.Context, s streams) error {
	dsn, err := c.dsn()
	if err != nil {
		return err
	}
	version, err := app.Migrate(ctx, dsn)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "schema is at version %d\n", version)
	return err
}

type migrateStatus struct {
	migrationDatabase

	Output string `enum:"table,json" default:"table" help:"Form of the result: ${enum}."`
}

func (c *migrateStatus) Run(ctx context.Context, s streams) error {
	dsn, err := c.dsn()
	if err != nil {
		return err
	}
	status, err := app.MigrationStatus(ctx, dsn)
	if err != nil {
		return err
	}
	if c.Output == "json" {
		return json.NewEncoder(s.out).Encode(status)
	}
	state := "up to date"
	switch {
	case status.Dirty:
		state = "a step was interrupted: run `tollgate migrate up`, which repeats it"
	case status.Current < status.Newest:
		state = "behind: run `tollgate migrate up`"
	case status.Current > status.Newest:
		state = "newer than this binary, which is fine"
	}
	_, err = fmt.Fprintf(s.out, "schema %d, this binary knows %d: %s\n", status.Current, status.Newest, state)
	return err
}

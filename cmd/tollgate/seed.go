package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/app"
)

type seedCommand struct {
	migrationDatabase

	Rows        int64 `default:"1000000" help:"How many ledger rows to add."`
	Days        int   `default:"30" help:"Over how many days, up to now, they are spread."`
	Development bool  `help:"Say that this database is for development and may be filled with made-up tenants."`
}

const (
	mostSeedRows = 1_000_000_000
	mostSeedDays = 366
)

// Help is shown by --help.
func (seedCommand) Help() string {
	return strings.TrimSpace(`
Adds made-up tenants and ledger rows to a development database, to see how lists, sums, exports and checks behave at size.
Books are whole: windows, blocks and roll-ups are made with the rows, and "tollgate ledger check" finds nothing. It refuses
a database that has rows of anybody else. It needs the DSN of the schema's owner, which "tollgate dev" keeps in secrets.env of
its data directory.

Examples:
  tollgate dev --data-dir /tmp/tollgate             in one shell; then, before its first call, in another:
  set -a; . /tmp/tollgate/secrets.env; set +a
  tollgate seed --rows 100000 --development
  tollgate seed --rows 10000000 --development       ten million rows: 11 GB`)
}

func (c *seedCommand) Run(ctx context.Context, s streams) error {
	if !c.Development {
		return errors.New("say --development: this fills the database with made-up tenants and rows")
	}
	if err := errors.Join(within("rows", c.Rows, 1, mostSeedRows), within("days", c.Days, 1, mostSeedDays)); err != nil {
		return err
	}
	dsn, err := c.dsn()
	if err != nil {
		return err
	}
	began, said := time.Now(), time.Now()
	return app.Seed(ctx, dsn, c.Rows, time.Duration(c.Days)*24*time.Hour, func(done int64) {
		if done == c.Rows || time.Since(said) >= time.Second {
			said = time.Now()
			_, _ = fmt.Fprintf(s.err, "%d of %d rows, %.0f a second\n", done, c.Rows, float64(done)/time.Since(began).Seconds())
		}
	})
}

// Command ledgerbench compares the ledger with the designs that it was chosen over, side by side in one run: processes of
// its own against a private PostgreSQL that flushes each commit, all on this machine.
//
//	go run ./internal/ledgerbench
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/tollgate-gateway/tollgate/governance/pgstore"
	"github.com/tollgate-gateway/tollgate/internal/devdb"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

//go:embed sql/plain.sql
var plainSQL string

func main() {
	worker := flag.Bool("worker", false, "do the job that comes as JSON on the standard input")
	each := flag.Duration("time", 4*time.Second, "of each run")
	table := flag.String("table", "", "make this one alone: designs, meters, tenants, refusals, latencies or lone")
	flag.Parse()
	if *each < time.Second || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "ledgerbench: --time must be a second at least, and there are no arguments")
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if *worker {
		err = serveJob(ctx)
	} else {
		err = compare(ctx, *each, *table)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "ledgerbench:", err)
		os.Exit(1)
	}
}

func serveJob(ctx context.Context) error {
	var j job
	if err := json.NewDecoder(os.Stdin).Decode(&j); err != nil {
		return fmt.Errorf("read job: %w", err)
	}
	r, err := work(ctx, j)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// table is one comparison: it makes its runs and prints what came of them.
type table struct {
	name  string
	print func(*bench, context.Context) error
}

var tables = []table{
	{"designs", (*bench).designs},
	{"meters", (*bench).meters},
	{"tenants", (*bench).tenants},
	{"refusals", (*bench).refusals},
	{"latencies", (*bench).latencies},
	{"lone", (*bench).lone},
}

// compare makes the runs of one table, or of all, and prints them.
func compare(ctx context.Context, each time.Duration, only string) (err error) {
	chosen := slices.DeleteFunc(slices.Clone(tables), func(t table) bool { return only != "" && t.name != only })
	if len(chosen) == 0 {
		return fmt.Errorf("no table is called %q", only) //nolint:err113 // for who typed it
	}
	b := &bench{each: each}
	if b.self, err = os.Executable(); err != nil {
		return fmt.Errorf("find own binary: %w", err)
	}
	b.cluster, err = devdb.StartScratch(ctx, devdb.Options{
		MaxConnections: 150, Settings: map[string]string{"shared_buffers": "512MB", "max_wal_size": "4GB"},
	})
	if err != nil {
		return fmt.Errorf("start database: %w", err)
	}
	defer func() { err = errors.Join(err, b.cluster.Stop(context.WithoutCancel(ctx))) }()
	if _, err := pgstore.Migrate(ctx, pgstore.Options{DSN: secret.New(b.cluster.DSN("postgres", "tollgate"))}); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if err := b.exec(ctx, "tollgate", plainSQL); err != nil {
		return err
	}
	for _, t := range chosen {
		if err := t.print(b, ctx); err != nil {
			return err
		}
	}
	return nil
}

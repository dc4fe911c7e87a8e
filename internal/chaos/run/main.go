// Command run breaks a product on purpose and asks whether its ledger still holds; see docs/chaos.md.
//
//	go run ./internal/chaos/run --time 5m
//
// It exits with 0 where everything held, 1 where an invariant was violated, 2 where the driver itself failed, and 3 where
// too little happened for the run to mean anything.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/chaos"
)

const (
	exitViolated = 1
	exitFailed   = 2
	exitNotRun   = 3
)

func main() {
	o := chaos.SeriesOptions{Progress: os.Stdout}
	profile := flag.String("profile", "all", "all, or one of burst, kills, locks, contention, crashes")
	flag.Uint64Var(&o.Seed, "seed", 0, "what the driver's decisions follow from; 0: a new one")
	flag.DurationVar(&o.Time, "time", 5*time.Minute, "of load and trouble, all profiles together")
	flag.StringVar(&o.Binary, "binary", "", "tollgate under test; default: built from this checkout")
	flag.StringVar(&o.Dir, "dir", "", "where runs that failed leave their logs and databases; default: the system's folder for temporary files")
	flag.StringVar(&o.Seeds, "seeds", "", "file that failing seeds are added to; empty: none")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "chaos: %q is no flag, and there are no arguments\n", flag.Arg(0))
		os.Exit(exitFailed)
	}
	if *profile != "all" {
		o.Profiles = []chaos.Profile{chaos.Profile(*profile)}
	}
	if err := o.Check(); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(exitFailed)
	}
	if o.Seed == 0 {
		o.Seed = uint64(rand.Uint32()) //nolint:gosec // no secret
	}
	os.Exit(run(o))
}

func run(o chaos.SeriesOptions) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.Binary == "" {
		dir, err := os.MkdirTemp("", "tollgate-chaos-binary-")
		if err != nil {
			fmt.Fprintln(os.Stderr, "chaos:", err)
			return exitFailed
		}
		defer func() { _ = os.RemoveAll(dir) }()
		o.Binary = filepath.Join(dir, "tollgate")
		build := exec.CommandContext(ctx, "go", "build", "-o", o.Binary, "github.com/tollgate-gateway/tollgate/cmd/tollgate")
		build.Stdout, build.Stderr = os.Stdout, os.Stderr
		if err := build.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "chaos: build tollgate:", err)
			return exitFailed
		}
	}
	report, err := chaos.RunSeries(ctx, o)
	if ctx.Err() != nil {
		fmt.Fprintln(os.Stderr, "chaos: interrupted; the profile that was running shows nothing")
		return exitFailed
	}
	if fault := report.Write(os.Stdout); fault != nil {
		err = errors.Join(err, fault)
	}
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "chaos:", err)
		return exitFailed
	case report.Verdict == chaos.Violated:
		return exitViolated
	case report.Verdict == chaos.NotRun:
		return exitNotRun
	}
	return 0
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/tollgate-gateway/tollgate/internal/drill"
)

type drillCommand struct {
	Outage  drillOutage  `cmd:"" help:"Stop PostgreSQL under four gateways, and start it again."`
	Crash   drillCrash   `cmd:"" help:"Kill gateways at each step between reservation and settlement."`
	Rollout drillRollout `cmd:"" help:"Replace old gateways by new ones with 200 streams in flight."`
}

// Help is shown by --help.
func (drillCommand) Help() string {
	return strings.TrimSpace(`
Breaks a Tollgate of its own and shows what clients, the upstream and the ledger saw of it, one line for each promise.
A drill runs this binary as real processes (serve, mock, migrate) on loopback, with a private PostgreSQL in a temporary
directory. It never touches a database that exists, and removes everything when it ends, on Ctrl-C too.
The exit code is 0 if every line says ok.`)
}

// drillOutput is what all drills have.
type drillOutput struct {
	Output  string `enum:"table,json" default:"table" help:"Form of the report: ${enum}."`
	NoFsync bool   `help:"Do not wait for a busy disk: only an end of the machine would lose anything, and no drill brings that about."`
}

// run plays a drill and writes its report, which there may be beside an error, too.
func (c *drillOutput) run(ctx context.Context, s streams, play func(context.Context, drill.Options) (*drill.Report, error), o drill.Options) error {
	line := newProgress(s.err)
	o.Progress, o.WithoutSync = line.say, c.NoFsync
	report, err := play(ctx, o)
	line.end()
	if report == nil {
		return err
	}
	if c.Output == "json" {
		err = errors.Join(err, json.NewEncoder(s.out).Encode(report))
	} else {
		err = errors.Join(err, report.WriteTable(s.out))
	}
	if err == nil && !report.Passed {
		err = errors.New("the drill found what was promised otherwise, see above")
	}
	return err
}

type drillOutage struct{ drillOutput }

// Help is shown by --help.
func (drillOutage) Help() string {
	return strings.TrimSpace(`
Four phases of 32 requests over four gateways: before; the database is stopped (immediately, as a crash would) and the
gateways still know key and limits; they do not any more; the database is back. Expected are 32 × 200,
32 × 503 limit_store_unavailable, 32 × 503 data_store_unavailable and 32 × 200. Nothing may reach the upstream during
the outage, streams in flight end whole, and afterwards every request has its one row. Takes about a quarter of a minute.

Example:
  tollgate drill outage --output json`)
}

func (c *drillOutage) Run(ctx context.Context, s streams) error {
	return c.run(ctx, s, drill.Outage, drill.Options{})
}

type drillCrash struct {
	drillOutput

	FaultpointBinary string `help:"Binary built with -tags faultpoint, which dies exactly where it is told to. Default: this one, if it was." type:"existingfile" placeholder:"FILE"`
}

// Help is shown by --help.
func (drillCrash) Help() string {
	return strings.TrimSpace(`
A gateway dies (SIGKILL) before, within and after the reservation, before the upstream's first byte, within the stream, and
before, within and after the settlement. Another process closes what it had reserved, once, at the reserved cost; where
nothing was reserved there is no row. Takes about a minute, half of which nobody may close anything yet.

Releases have no fault points: the drill then kills at moments spread over the life of a call instead, and says
so. For the exact steps, build the same source with fault points:

  go build -tags faultpoint -o tollgate-faultpoint ./cmd/tollgate
  tollgate drill crash --faultpoint-binary tollgate-faultpoint`)
}

func (c *drillCrash) Run(ctx context.Context, s streams) error {
	return c.run(ctx, s, drill.Crash, drill.Options{FaultBinary: c.FaultpointBinary})
}

type drillRollout struct {
	drillOutput

	OldBinary string `help:"Binary of the version that is replaced. Default: this one." type:"existingfile" placeholder:"FILE"`
}

// Help is shown by --help.
func (drillRollout) Help() string {
	return strings.TrimSpace(`
Two gateways and the control plane of the old version are replaced by the new one, one after the other, with 200 streams in
flight and 50 further calls a second through a balancer that follows readiness. The new version migrates the schema under
that load. No stream may be cut and no call may fail; both versions share one exact limit; old processes become unready
before they refuse anything, and exit 0. Takes about a quarter of a minute.

Example, before an upgrade:
  tollgate drill rollout --old-binary /usr/local/bin/tollgate`)
}

func (c *drillRollout) Run(ctx context.Context, s streams) error {
	return c.run(ctx, s, drill.Rollout, drill.Options{OldBinary: c.OldBinary})
}

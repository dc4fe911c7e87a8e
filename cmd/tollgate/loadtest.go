package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/loadtest"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

type loadtestCommand struct {
	Replicas    []int         `default:"1,2,4" help:"Numbers of gateways, a row of samples each." placeholder:"N" group:"Load:"`
	Rates       []float64     `default:"500" help:"Calls offered per second, a sample each." placeholder:"N" group:"Load:"`
	Duration    time.Duration `default:"10s" help:"How long a sample sends." group:"Load:"`
	Connections int           `help:"Closed loop instead: so many connections, each with its next call as soon as it has its answer." placeholder:"N" group:"Load:"`
	InFlight    int           `default:"512" help:"Most connections of an open loop; calls that find none wait, and their wait counts." group:"Load:"`
	Stream      bool          `help:"Ask for streams." group:"Load:"`
	Words       int           `default:"9" help:"Length of each answer in words, which are output tokens and, in a stream, frames; three more frames go round them." group:"Load:"`
	PromptBytes int           `default:"200" help:"Length of each prompt." group:"Load:"`
	Admit       int           `default:"80" help:"Per cent of the offered calls that the limits have room for; 100: nothing is refused." group:"Load:"`
	Script      string        `help:"What the mock does besides, such as first_byte_delay(50ms); see tollgate mock --help." placeholder:"SCRIPT" group:"Load:"`

	Target []string      `help:"Base URLs of gateways that run already, instead of own ones." placeholder:"URL" group:"Own cluster:"`
	Key    secret.String `env:"TOLLGATE_LOADTEST_KEY" help:"Virtual key for --target." placeholder:"KEY" group:"Own cluster:"`
	Model  string        `help:"Model to ask for at --target." placeholder:"NAME" group:"Own cluster:"`

	Judge  string `help:"Send nothing: judge a report that --output json has printed." type:"existingfile" placeholder:"FILE"`
	Output string `enum:"table,json" default:"table" help:"Form of the report: ${enum}."`
}

// Help is shown by --help.
func (loadtestCommand) Help() string {
	return strings.TrimSpace(`
Starts a private PostgreSQL that loses nothing, a mock upstream and gateways as processes on 127.0.0.1, .2, .3 and .4, and
offers calls whether or not earlier ones were answered. A call's time counts from the moment it was due. Two callers meet
limits that have room for a part of their calls: one a rate limit, one a budget.

A sample passes if all of this holds, else the exit code is 1:
  every limit admits at most ceil(capacity + refill x time) and at least floor(that) less what was in flight
  no 5xx, no transport error, no measurement that failed; every request has its observation
  90 % of the offered rate are answered; p95 of the client's queue and of its scheduling are within 100 ms
  the ledger check is clean
  other programs had at most 5 % of the CPU; with more the sample is invalid, which is not passed either

Examples:
  tollgate loadtest
  tollgate loadtest --replicas 4 --rates 500,2000,5000 --admit 100
  tollgate loadtest --replicas 1 --connections 64                          as many calls as the machine can
  tollgate loadtest --replicas 1 --connections 64 --stream --words 97      streams of 100 frames
  tollgate loadtest --target https://gw1.example --target https://gw2.example --model gpt-4o --rates 50`)
}

func (c *loadtestCommand) Run(ctx context.Context, s streams) error {
	report, err := c.report(ctx, s)
	if report == nil {
		return err
	}
	if c.Output == "json" {
		err = errors.Join(err, json.NewEncoder(s.out).Encode(report))
	} else {
		err = errors.Join(err, report.WriteTable(s.out))
	}
	if err == nil && !report.Pass {
		err = errors.New("not every sample passed, see above")
	}
	return err
}

func (c *loadtestCommand) report(ctx context.Context, s streams) (*loadtest.Report, error) {
	if c.Judge != "" {
		file, err := os.Open(c.Judge)
		if err != nil {
			return nil, fmt.Errorf("open report: %w", err)
		}
		defer func() { _ = file.Close() }() // it was read only
		return loadtest.ReadReport(file)
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	line := newProgress(s.err)
	defer line.end()
	o := loadtest.Options{
		Rates: c.Rates, Connections: c.Connections, InFlight: c.InFlight, Duration: c.Duration, Stream: c.Stream,
		Words: c.Words, PromptBytes: c.PromptBytes, Progress: seldom(line),
	}
	if len(c.Target) > 0 {
		return loadtest.RunTargets(ctx, loadtest.TargetOptions{Options: o, URLs: c.Target, Key: c.Key, Model: c.Model})
	}
	return loadtest.Run(ctx, loadtest.OwnOptions{Options: o, Replicas: c.Replicas, Admit: c.Admit, Script: c.Script})
}

// plainInterval is how often a load run tells how far it is where lines stay.
const plainInterval = 5 * time.Second

// seldom says every text on a terminal, else one each few seconds.
func seldom(line progress) func(string) {
	var last time.Time
	return func(text string) {
		if !line.terminal && time.Since(last) < plainInterval {
			return
		}
		last = time.Now()
		line.say(text)
	}
}

func (c *loadtestCommand) check() error {
	const mostReplicas, mostPrompt = 64, 1 << 20
	within := func(ok bool, flag, what string) error {
		if ok {
			return nil
		}
		return fmt.Errorf("--%s: %s", flag, what)
	}
	faults := []error{
		within(len(c.Rates) > 0, "rates", "name at least one"),
		within(len(c.Replicas) > 0, "replicas", "name at least one"),
		within(c.Duration >= time.Second && c.Duration <= time.Hour, "duration", "is not within 1s … 1h"),
		within(c.Connections >= 0 && c.Connections <= 10_000, "connections", "is not within 1 … 10000"),
		within(c.InFlight >= 1 && c.InFlight <= 10_000, "in-flight", "is not within 1 … 10000"),
		within(c.Words >= 1 && c.Words <= 10_000, "words", "is not within 1 … 10000"),
		within(c.PromptBytes >= 1 && c.PromptBytes <= mostPrompt, "prompt-bytes", "is not within 1 … 1048576"),
		within(c.Admit >= 1, "admit", "is not above 0"),
	}
	for _, rate := range c.Rates {
		faults = append(faults, within(rate >= 1 && rate <= 100_000, "rates", fmt.Sprintf("%g is not within 1 … 100000", rate)))
	}
	for _, n := range c.Replicas {
		faults = append(faults, within(n >= 1 && n <= mostReplicas, "replicas", fmt.Sprintf("%d is not within 1 … %d", n, mostReplicas)))
	}
	if len(c.Target) > 0 {
		faults = append(faults, within(!c.Key.IsZero(), "key", "is needed with --target"), within(c.Model != "", "model", "is needed with --target"))
	}
	return errors.Join(faults...)
}

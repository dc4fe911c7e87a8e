package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/tollgate-gateway/tollgate/internal/loadtest"
	"github.com/tollgate-gateway/tollgate/internal/mock"
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
	CallTimeout time.Duration `help:"Longest time that a call may take, then it is a transport error. Default: three times the duration, at least 10s and at most 60s." placeholder:"SPAN" group:"Load:"`
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

Whoever accepts calls and does not answer them holds a sample up for --call-timeout at most.

Examples:
  tollgate loadtest
  tollgate loadtest --replicas 4 --rates 500,2000,5000 --admit 100
  tollgate loadtest --replicas 1 --connections 64                          as many calls as the machine can
  tollgate loadtest --replicas 1 --connections 64 --stream --words 97      streams of 100 frames
  tollgate loadtest --target https://gw1.example --target https://gw2.example --model gpt-4o --rates 50`)
}

func (c *loadtestCommand) Run(ctx context.Context, s streams, k *kong.Context) error {
	report, err := c.report(ctx, s, flagsOf(k))
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

func (c *loadtestCommand) report(ctx context.Context, s streams, said flags) (*loadtest.Report, error) {
	if c.Judge != "" {
		if err := said.alone("judge", "output"); err != nil {
			return nil, err
		}
		file, err := os.Open(c.Judge)
		if err != nil {
			return nil, fmt.Errorf("open report: %w", err)
		}
		defer func() { _ = file.Close() }() // it was read only
		return loadtest.ReadReport(file)
	}
	if err := c.check(said); err != nil {
		return nil, err
	}
	line := newProgress(s.err)
	defer line.end()
	o := loadtest.Options{
		Rates: c.Rates, Connections: c.Connections, InFlight: c.InFlight, Duration: c.Duration, Stream: c.Stream,
		Words: c.Words, PromptBytes: c.PromptBytes, CallTimeout: c.CallTimeout, Progress: seldom(line),
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

// check returns all faults of the flags in one error.
func (c *loadtestCommand) check(said flags) error {
	const mostReplicas, mostConnections, mostWords, mostPrompt, mostRate = 64, 10_000, 10_000, 1 << 20, 100_000
	faults := []error{
		within("duration", c.Duration, time.Second, time.Hour),
		within("in-flight", c.InFlight, 1, mostConnections),
		within("words", c.Words, 1, mostWords),
		within("prompt-bytes", c.PromptBytes, 1, mostPrompt),
		within("admit", c.Admit, 1, 100),
	}
	if said.has("connections") {
		faults = append(faults, within("connections", c.Connections, 1, mostConnections))
	}
	if said.has("call-timeout") {
		faults = append(faults, within("call-timeout", c.CallTimeout, time.Second, time.Hour))
	}
	for _, rate := range c.Rates {
		faults = append(faults, within("rates", rate, 1, mostRate))
	}
	for _, n := range c.Replicas {
		faults = append(faults, within("replicas", n, 1, mostReplicas))
	}
	if _, err := mock.Parse(c.Script); err != nil {
		faults = append(faults, fmt.Errorf("--script %s: %w", c.Script, err))
	}
	for _, pair := range [][2]string{
		{"rates", "connections"}, {"in-flight", "connections"}, {"admit", "connections"}, // a closed loop meets no tight limit
		{"replicas", "target"}, {"admit", "target"}, {"script", "target"}, // these are of gateways and a mock of its own
	} {
		faults = append(faults, said.apart(pair[0], pair[1]))
	}
	if len(c.Target) == 0 {
		faults = append(faults, said.only("key", "target"), said.only("model", "target"))
		return errors.Join(faults...)
	}
	if c.Key.IsZero() {
		faults = append(faults, errors.New("--target: --key or TOLLGATE_LOADTEST_KEY is needed with it"))
	}
	if c.Model == "" {
		faults = append(faults, errors.New("--target: --model is needed with it"))
	}
	return errors.Join(faults...)
}

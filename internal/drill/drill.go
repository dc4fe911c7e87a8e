// Package drill runs the failure drills that ship with the product: it breaks a whole Tollgate of its own, made of real
// processes and a private PostgreSQL, and compares what clients, the upstream and the ledger saw with what was promised.
package drill

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/fleet"
)

// Options say how a drill runs.
type Options struct {
	// Binary is the program of all processes; default this process's own.
	Binary string
	// OldBinary is the program that a roll-out replaces; default Binary.
	OldBinary string
	// FaultBinary is a program with fault points, for the crash drill; default Binary, if it has them.
	FaultBinary string
	// WithoutSync lets PostgreSQL not wait for the disk. What is committed outlives every end of the server all the same,
	// but not one of the machine, which no drill brings about.
	WithoutSync bool
	// Progress is told what the drill does now; nil: nobody is.
	Progress func(text string)
}

const (
	// timeout bounds a whole drill, so that whatever hangs is a failure.
	timeout = 10 * time.Minute
	// settling is how long what has ended may take to be settled: a settlement waits for a database that was away.
	settling = time.Minute
	// ending is how long a process that has nothing left to do may take to end.
	ending = time.Minute
	// pollEvery is the pace of waiting for conditions of other processes.
	pollEvery = 20 * time.Millisecond
)

// The models that drills call, by what the upstream does.
const (
	plainModel   = "plain"   // answers at once
	heldModel    = "held"    // waits before its first byte until it is released
	flyingModel  = "flying"  // each event waits until it is released
	flowingModel = "flowing" // streams for a quarter of a minute
	pacedModel   = "paced"   // streams for a tenth of a second
)

var scripts = map[string]string{
	heldModel:    "hold",
	flyingModel:  "confirm",
	flowingModel: "words(300),frame_gap(50ms)",
	pacedModel:   "frame_gap(10ms)",
}

// allFrames is a release of more steps than any stream has events.
const allFrames = 1000

type object = fleet.Object

// drill is what all drills stand on.
type drill struct {
	*fleet.Fleet

	options Options
	report  *Report
	client  *client
	tenant  fleet.Tenant
	issued  int // keys so far
}

// ErrInterrupted says that a drill was told to end before it had. What it had started is removed all the same.
var ErrInterrupted = errors.New("interrupted")

// run plays a drill and removes all that it has started, however it ends. A report comes with an error, too: it holds what
// had been seen by then.
func run(ctx context.Context, name string, o Options, play func(context.Context, *drill) error) (*Report, error) {
	if o.Binary == "" {
		own, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find own program: %w", err)
		}
		o.Binary = own
	}
	if o.OldBinary == "" {
		o.OldBinary = o.Binary
	}
	if err := o.checkBinaries(ctx); err != nil {
		return nil, fmt.Errorf("drill %s: %w", name, err)
	}
	until := ctx
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	d := &drill{options: o, client: newClient(), report: &Report{
		Drill: name, StartedAt: time.Now().UTC(), Method: []string{}, Checks: []Check{}, interrupted: func() bool { return until.Err() != nil },
	}}
	err := play(ctx, d)
	if d.report.Interrupted = until.Err() != nil; d.report.Interrupted {
		err = ErrInterrupted // which is why anything else has failed
	}
	cancel() // ends the calls that a failed drill has left
	d.report.Passed = err == nil && d.report.allPassed()
	if d.Fleet != nil {
		if !d.report.Passed && !d.report.Interrupted {
			d.keepLogs()
		}
		err = errors.Join(err, d.Close())
	}
	d.client.http.CloseIdleConnections()
	d.report.Seconds = time.Since(d.report.StartedAt).Seconds()
	if err != nil {
		return d.report, fmt.Errorf("drill %s: %w", name, err)
	}
	return d.report, nil
}

// checkBinaries finds out whether the programs can be run at all, before anything else is started.
func (o *Options) checkBinaries(ctx context.Context) error {
	looked := make(map[string]bool)
	for _, b := range []struct{ what, path string }{
		{"binary", o.Binary}, {"old binary", o.OldBinary}, {"binary with fault points", o.FaultBinary},
	} {
		if b.path == "" || looked[b.path] {
			continue
		}
		looked[b.path] = true
		if err := fleet.CheckBinary(ctx, b.path); ctx.Err() != nil {
			return ErrInterrupted
		} else if err != nil {
			return fmt.Errorf("the %s %w", b.what, err)
		}
	}
	if o.FaultBinary != "" && !hasFaultPoints(o.FaultBinary) {
		return fmt.Errorf("%s has no fault points: build it with `go build -tags %s ./cmd/tollgate`", o.FaultBinary, faultTag)
	}
	return nil
}

// keepLogs puts what the processes complained about into the report.
func (d *drill) keepLogs() {
	for _, p := range d.Processes() {
		if log := strings.TrimSpace(p.Log()); log != "" {
			d.report.Logs = append(d.report.Logs, log)
		}
	}
}

// say tells what the drill does now.
func (d *drill) say(format string, args ...any) {
	if d.options.Progress != nil {
		d.options.Progress(fmt.Sprintf(format, args...))
	}
}

// begin starts database, upstream and control plane with a binary, and makes the tenant and its models.
func (d *drill) begin(ctx context.Context, binary string, env ...string) (err error) {
	d.say("a database, an upstream and a control plane start")
	o := fleet.Options{Binary: binary, Env: env}
	if d.options.WithoutSync {
		d.report.note("PostgreSQL runs without fsync: only an end of the machine could lose anything.")
		o.Database.Settings = map[string]string{"fsync": "off", "full_page_writes": "off"}
	}
	if d.Fleet, err = fleet.Start(ctx, o); err != nil {
		return err
	}
	d.report.Machine = d.Machine()
	if d.tenant, err = d.SetUp(ctx, plainModel); err != nil {
		return err
	}
	for model, script := range scripts {
		if _, err := d.AddModel(ctx, d.tenant.Provider, model, model); err != nil {
			return err
		}
		if err := d.Mock.Script(ctx, object{"script": script, "match": object{"model": model}}); err != nil {
			return err
		}
	}
	return nil
}

// issue makes a key of the tenant with limits and returns its text and its id.
func (d *drill) issue(ctx context.Context, limits ...object) (key, id string, err error) {
	d.issued++
	text, id, err := d.Issue(ctx, d.tenant.Organization, "drill "+strconv.Itoa(d.issued), limits...)
	return text.Reveal(), id, err
}

// of writes a share.
func of(part, whole int) string { return fmt.Sprintf("%d of %d", part, whole) }

// budget is a limit for ever.
func budget(usd string) object {
	return object{"kind": "budget", "metric": "cost", "amount": usd, "window": object{"type": "total"}}
}

// perDay is a bucket that fills up once a day: of a small amount it gives nothing back while a drill lasts.
func perDay(metric, amount string) object {
	return object{"kind": "rate", "metric": metric, "amount": amount, "per": "24h", "burst": amount}
}

// await polls until a condition holds, and reports whether it did in time.
func (d *drill) await(ctx context.Context, within time.Duration, holds func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// end tells a process to end and says how it did.
func (d *drill) end(ctx context.Context, p *fleet.Process) (string, error) {
	if err := p.Terminate(); err != nil {
		return "", err
	}
	return d.ended(ctx, p), nil
}

// ended waits for the end of a process that was told to, and says how it ended.
func (d *drill) ended(ctx context.Context, p *fleet.Process) string {
	timer := time.NewTimer(ending)
	defer timer.Stop()
	select {
	case <-p.Done():
		return "exit " + strconv.Itoa(p.ExitCode())
	case <-timer.C:
	case <-ctx.Done():
	}
	return "still runs"
}

// forwarded is how many requests have reached the upstream.
func (d *drill) forwarded(ctx context.Context) (int64, error) {
	count, err := d.Mock.Count(ctx, nil)
	return count.Requests, err
}

// release lets everything that waits at the upstream go some steps on.
func (d *drill) release(ctx context.Context, steps int) error {
	return d.Mock.Release(ctx, url.Values{"steps": {strconv.Itoa(steps)}})
}

// checkSettled waits until nothing is open and compares the ledger with the upstream's own count: each request that
// reached it has one row, and unforwarded attempts have that many besides.
func (d *drill) checkSettled(ctx context.Context, unforwarded int) error {
	const phase = "books"
	d.say("books: everything is settled and checked")
	closing, cancel := context.WithTimeout(ctx, settling)
	err := d.Admin.AwaitClosed(closing)
	cancel()
	seen := "none"
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		seen = "some"
	} else if err != nil {
		return err
	}
	d.report.expect(phase, "open reservations", "none", seen)
	rows, err := d.Admin.List(ctx, "spend", nil)
	if err != nil {
		return err
	}
	attempts := make(map[string]bool)
	for _, row := range rows {
		attempts[fmt.Sprint(row["request_id"], row["attempt"])] = true
	}
	forwarded, err := d.forwarded(ctx)
	if err != nil {
		return err
	}
	what := "ledger rows, one for each request that reached the upstream"
	if unforwarded > 0 {
		what = fmt.Sprintf("ledger rows, one for each request that reached the upstream, and %d", unforwarded)
	}
	d.report.expect(phase, what, strconv.FormatInt(forwarded+int64(unforwarded), 10), strconv.Itoa(len(rows)))
	d.report.expect(phase, "attempts with more than one row", "0", strconv.Itoa(len(rows)-len(attempts)))
	return nil
}

// checkStreams compares the rows of a key that had so many streams.
func (d *drill) checkStreams(ctx context.Context, keyID string, streams int) error {
	rows, err := d.Admin.List(ctx, "spend", url.Values{"key_id": {keyID}})
	if err != nil {
		return err
	}
	whole := 0
	for _, row := range rows {
		if row["kind"] == "usage" && row["outcome"] == "complete" && row["usage_source"] == "provider" {
			whole++
		}
	}
	d.report.expect("books", "rows of the streams that have the provider's usage", of(streams, streams), of(whole, len(rows)))
	return nil
}

// checkLedger has the ledger recompute itself.
func (d *drill) checkLedger(ctx context.Context) error {
	seen := "clean"
	if err := d.Admin.CheckLedger(ctx); errors.Is(err, fleet.ErrUnclean) {
		seen = err.Error()
	} else if err != nil {
		return err
	}
	d.report.expect("books", "ledger check", "clean", seen)
	return nil
}

// checkDeadlocks looks for deadlocks in PostgreSQL's own log.
func (d *drill) checkDeadlocks() error {
	log, err := os.ReadFile(d.Database.LogFile())
	if err != nil {
		return fmt.Errorf("read log of the database: %w", err)
	}
	d.report.expect("books", "deadlocks in the log of PostgreSQL", "0", strconv.Itoa(strings.Count(string(log), "deadlock detected")))
	return nil
}

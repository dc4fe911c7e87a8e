// Package chaos breaks a whole product on purpose, in every way that its ledger promises to survive, and asks afterwards
// whether a single token was lost, charged twice or granted beyond a limit.
//
// A run has real gateway processes, a private PostgreSQL with fsync on, a byte proxy between each gateway and the
// database, and the scripted upstream. The logs of the upstream and of the clients are the oracle: no gateway writes them.
// What the driver decides follows from a seed; when it happens depends on the machine. docs/chaos.md tells how to run it.
package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Profile is a kind of trouble.
type Profile string

// The profiles. Each finds faults that the others do not.
const (
	Kills      Profile = "kills"      // gateways die and are silenced, replies of the database are lost
	Locks      Profile = "locks"      // a session holds meters for longer than anybody waits for them
	Contention Profile = "contention" // many requests on few meters
	Crashes    Profile = "crashes"    // the database dies and comes back, or its standby takes over
	Burst      Profile = "burst"      // 64 requests at once into room for one
)

// Profiles are all of them, in the order in which they run.
func Profiles() []Profile { return []Profile{Burst, Kills, Locks, Contention, Crashes} }

// Options of a run.
type Options struct {
	Profile Profile
	Seed    uint64
	// Time is how long there is load and trouble; start, quiescence and checks come on top.
	Time time.Duration
	// Binary is the tollgate under test. Its own migrations make the schema.
	Binary string
	// Dir is where the run keeps its logs and its database: an empty folder that other users may enter. No name: one of its
	// own, which is removed where the verdict is Passed.
	Dir string
	// Progress is told each few seconds how far the run is. Nil: nobody is.
	Progress io.Writer
}

// shape is what a profile consists of.
type shape struct {
	gateways int
	load     loader
	trouble  trouble
	sweeps   bool // the driver expires too, without the grace that a start of the database asks for
	floors   map[string]float64
}

// loader is a load: it returns once ctx has ended and every request has its end.
type loader interface {
	run(ctx context.Context, l *load, seed uint64, began func()) error
}

// shapes has what each profile does, and the floors of its events a minute: what a machine under other load reaches too.
func shapes(p Profile) (shape, error) {
	switch p {
	case Kills:
		return shape{
			gateways: 4,
			load:     mixed{workers: 40, keys: 6, think: 500 * time.Millisecond, slow: 0.03},
			trouble: trouble{
				kill: 500 * time.Millisecond, pause: 9 * time.Second, stall: 6 * time.Second, cut: 200 * time.Millisecond,
			},
			sweeps: true,
			floors: map[string]float64{
				forwards: 500, kills: 25, cutReplies: 40, cutRequests: 8, expiries: 25, lateAdjustments: 5, debts: 50, refusals: 5, undecideds: 5,
			},
		}, nil
	case Locks:
		return shape{
			gateways: 3,
			load:     mixed{workers: 40, keys: 4, think: 400 * time.Millisecond, slow: 0.02},
			trouble: trouble{
				lock: 600 * time.Millisecond, kill: 2 * time.Second, cut: 400 * time.Millisecond, pause: 12 * time.Second,
			},
			sweeps: true,
			floors: map[string]float64{forwards: 200, heldMeters: 8, kills: 6, cutReplies: 10, expiries: 5, debts: 20, undecideds: 10},
		}, nil
	case Contention:
		return shape{
			gateways: 4,
			load:     mixed{workers: 120, keys: 2, think: 400 * time.Millisecond, slow: 0.005},
			trouble:  trouble{kill: 2 * time.Second, cut: 800 * time.Millisecond},
			sweeps:   true,
			floors:   map[string]float64{forwards: 600, kills: 6, cutReplies: 8, debts: 150, refusals: 200},
		}, nil
	case Crashes:
		return shape{
			gateways: 4,
			// Nothing expires while the database starts again and again, within its grace: what the dead held stays held.
			load: mixed{workers: 40, keys: 6, think: 500 * time.Millisecond, slow: 0.03, slots: 10_000},
			trouble: trouble{
				crash: 3 * time.Second, failover: true, kill: 1200 * time.Millisecond, cut: 500 * time.Millisecond,
			},
			floors: map[string]float64{forwards: 400, databaseCrashes: 3, failovers: 1, kills: 8, cutReplies: 10, expiries: 5, debts: 20, undecideds: 20},
		}, nil
	case Burst:
		return shape{
			gateways: 4,
			load:     &bursts{width: 64, every: 500 * time.Millisecond},
			floors:   map[string]float64{forwards: 10, refusals: 600, burstsSent: 10},
		}, nil
	}
	return shape{}, fmt.Errorf("no profile %q", p)
}

// quietWait bounds the time until nothing is open any more.
const quietWait = 90 * time.Second

// Run runs one profile. The error is a fault of the driver, such as a binary that does not start; what the product does
// wrong is in the report.
func Run(ctx context.Context, o Options) (report Report, err error) {
	s, err := shapes(o.Profile)
	if err != nil {
		return Report{}, err
	}
	report = Report{Profile: o.Profile, Seed: o.Seed, Time: o.Time, Dir: o.Dir}
	if report.Dir == "" {
		if report.Dir, err = newDir("", "tollgate-chaos-"); err != nil {
			return report, err
		}
		defer func() {
			if err == nil && report.Verdict == Passed {
				err = os.RemoveAll(report.Dir)
				report.Dir = ""
			}
		}()
	}
	r := &run{options: o, shape: s, began: time.Now()}
	err = r.run(ctx, &report)
	return report, err
}

// run is one run.
type run struct {
	options Options
	shape   shape
	began   time.Time

	database *database
	oracle   *oracle
	product  *product
	load     *load
	nemesis  *nemesis
	witness  witness
	calmAt   time.Time // from here on the driver expires without a grace
}

func (r *run) say(format string, args ...any) {
	if r.options.Progress != nil {
		_, _ = fmt.Fprintf(r.options.Progress, "%6.1fs  %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...)) // for people
	}
}

func (r *run) run(ctx context.Context, report *Report) (err error) {
	r.say("profile %s, seed %d, %s, in %s", r.options.Profile, r.options.Seed, r.options.Time, report.Dir)
	if r.oracle, err = newOracle(); err != nil {
		return err
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for the upstream: %w", err)
	}
	upstream := &http.Server{Handler: r.oracle, ReadHeaderTimeout: clientWait}
	var served sync.WaitGroup
	served.Go(func() { _ = upstream.Serve(listener) }) // it ends by Close
	defer func() {
		err = errors.Join(err, upstream.Close())
		served.Wait()
	}()
	if r.database, err = startDatabase(ctx, report.Dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.database.stop(ctx)) }()
	if r.shape.trouble.failover {
		if err := r.database.follow(ctx); err != nil {
			return err
		}
	}
	r.product, err = startProduct(ctx, report.Dir, r.options.Binary, "http://"+listener.Addr().String(), r.database, r.shape.gateways)
	if r.product != nil {
		defer func() { err = errors.Join(err, r.product.stop()) }()
	}
	if err != nil {
		return err
	}
	if err := r.database.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return execute(ctx, conn, "prepare")
	}); err != nil {
		return fmt.Errorf("prepare the database: %w", err)
	}
	r.load = newLoad(r.product, r.oracle)
	defer r.load.client.CloseIdleConnections()
	r.nemesis = &nemesis{trouble: r.shape.trouble, seed: r.options.Seed, product: r.product, database: r.database}
	if err := r.storm(ctx); err != nil {
		return err
	}
	open, err := r.calm(ctx)
	if err != nil {
		return err
	}
	return r.judge(ctx, report, open)
}

// storm runs load and trouble side by side.
func (r *run) storm(ctx context.Context) error {
	loading, stopLoad := context.WithCancel(ctx)
	defer stopLoad()
	troubling, stopTrouble := context.WithCancel(ctx)
	defer stopTrouble()
	began := make(chan struct{})
	var loaded, troubled error
	var load, rest sync.WaitGroup
	load.Go(func() {
		defer stopTrouble()
		loaded = r.shape.load.run(loading, r.load, r.options.Seed, func() {
			r.load.until = time.Now().Add(r.options.Time)
			close(began)
		})
	})
	select {
	case <-began:
	case <-troubling.Done(): // the load did not even begin
	}
	rest.Go(func() { troubled = r.nemesis.run(troubling) })
	rest.Go(func() { r.witness.watch(troubling, r.database) })
	rest.Go(func() { r.progress(troubling) })
	if r.shape.sweeps {
		rest.Go(func() { r.sweep(troubling) })
	}
	sleep(troubling, r.options.Time)
	stopTrouble()
	stopLoad()
	load.Wait()
	rest.Wait()
	return errors.Join(loaded, troubled, ctx.Err())
}

// sweepEvery is the time between two sweeps of the driver.
const sweepEvery = 500 * time.Millisecond

// sweep expires what is left open, as every gateway does.
func (r *run) sweep(ctx context.Context) {
	for sleep(ctx, sweepEvery) {
		_ = r.database.do(ctx, expire) // the next one comes soon
	}
}

// expire closes what is left open, without a grace: the driver knows when the database was away.
func expire(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, statement("expire"), pgx.StrictNamedArgs{"grace": 0})
	return err
}

// progress tells each few seconds how far the run is.
func (r *run) progress(ctx context.Context) {
	for sleep(ctx, 5*time.Second) {
		replies, requests := r.nemesis.cuts()
		r.say("forwarded %d, ok %d, 429 %d, 503 %d, broken %d; kills %d, cuts %d, pauses %d, stalls %d, locks %d, crashes %d, failovers %d",
			r.oracle.forwarded.Load(), r.oracle.ok.Load(), r.oracle.refused.Load(), r.oracle.undecided.Load(), r.oracle.broken.Load(),
			r.nemesis.kills.Load(), replies+requests, r.nemesis.pauses.Load(), r.nemesis.stalls.Load(), r.nemesis.locks.Load(),
			r.database.crashes.Load(), r.database.failovers.Load())
	}
}

// calm ends all gateways, the first by force and the others in order, and waits until nothing is open.
func (r *run) calm(ctx context.Context) (open int64, err error) {
	r.say("calm")
	r.calmAt = time.Now()
	var ending sync.WaitGroup
	for n, g := range r.product.gateways {
		p := g.take()
		if p == nil {
			continue
		}
		if n == 0 {
			if err := p.Kill(); err != nil {
				return 0, err
			}
			continue
		}
		ending.Go(func() { r.nemesis.endInOrder(g, p) })
	}
	ending.Wait()
	waiting, cancel := context.WithTimeout(ctx, quietWait)
	defer cancel()
	for {
		err := r.database.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			if err := expire(ctx, conn); err != nil {
				return err
			}
			return conn.QueryRow(ctx, statement("open")).Scan(&open)
		})
		if err == nil && open == 0 || !sleep(waiting, sweepEvery) {
			return open, errors.Join(err, ctx.Err())
		}
	}
}

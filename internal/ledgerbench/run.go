package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/devdb"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

var (
	//go:embed sql/make_limit.sql
	makeLimitSQL string
	//go:embed sql/make_plain.sql
	makePlainSQL string
	//go:embed sql/written.sql
	writtenSQL string
	//go:embed sql/books.sql
	booksSQL string
)

const (
	plenty      = 1_000_000_000   // what no run uses up
	closedLoop  = 256             // clients of a process
	startWithin = 2 * time.Second // of all processes of a run
)

// bench is the private server and the database that every run starts from.
type bench struct {
	cluster *devdb.Cluster
	self    string
	each    time.Duration
	runs    int
}

// scenario is one run.
type scenario struct {
	design    string
	processes int
	meters    int
	subjects  int64
	rate      float64 // of all processes; 0: closed loop
	refuse    bool    // the last meter has no room at all
}

func (s scenario) offered() string {
	if s.rate == 0 {
		return "as much as goes"
	}
	return strconv.FormatFloat(s.rate, 'f', 0, 64) + "/s"
}

// outcome is what came of a run, of all processes together.
type outcome struct {
	result
	elapsed  time.Duration
	wal      int64 // bytes
	versions int64 // of meters
	dead     int64 // row versions that wait for vacuum at the end
}

func (o outcome) perSecond() float64 { return float64(o.Pairs+o.Refused) / o.elapsed.Seconds() }

func (o outcome) percentile(p int) time.Duration {
	if len(o.Latencies) == 0 {
		return 0
	}
	return time.Duration(o.Latencies[(len(o.Latencies)-1)*p/100]) * time.Microsecond
}

// database makes a fresh database with the limits of a scenario and returns its name and them.
func (b *bench) database(ctx context.Context, s scenario) (name string, limits []*governance.Limit, err error) {
	b.runs++
	name = fmt.Sprintf("bench_%d", b.runs)
	if err := b.exec(ctx, "postgres", "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+" TEMPLATE tollgate"); err != nil {
		return "", nil, err
	}
	conn, err := pgx.Connect(ctx, b.cluster.DSN("postgres", name))
	if err != nil {
		return "", nil, fmt.Errorf("connect: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	for i := range s.meters {
		l := limit(i)
		if s.refuse && i == s.meters-1 {
			l.Amount = 0
		}
		if l.Num, err = insert(ctx, conn, l); err != nil {
			return "", nil, err
		}
		limits = append(limits, l)
	}
	if _, err := conn.Exec(ctx, makePlainSQL, numbers(limits), s.subjects, plenty); err != nil {
		return "", nil, fmt.Errorf("make plain meters: %w", err)
	}
	if _, err := conn.Exec(ctx, "CHECKPOINT"); err != nil {
		return "", nil, fmt.Errorf("checkpoint: %w", err)
	}
	return name, limits, nil
}

// insert adds a limit to the product's and returns its number.
func insert(ctx context.Context, conn *pgx.Conn, l *governance.Limit) (number int64, err error) {
	var per *int32
	var burst *int64
	var window *string
	switch l.Kind {
	case governance.KindRate:
		seconds := int32(l.Per / time.Second)
		per, burst = &seconds, &l.Burst
	case governance.KindBudget:
		w := string(l.Window.Type)
		window = &w
	}
	row := conn.QueryRow(ctx, makeLimitSQL, ids.NewPublic(ids.Limit), l.Kind, l.Metric, l.Amount, per, burst, window)
	if err := row.Scan(&number); err != nil {
		return 0, fmt.Errorf("make limit: %w", err)
	}
	return number, nil
}

func (b *bench) exec(ctx context.Context, database, sql string) error {
	conn, err := pgx.Connect(ctx, b.cluster.DSN("postgres", database))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	_, err = conn.PgConn().Exec(ctx, sql).ReadAll() // may be several statements, all our own
	if err = errors.Join(err, conn.Close(ctx)); err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	return nil
}

// run makes one run and checks that its books balance.
func (b *bench) run(ctx context.Context, s scenario) (o outcome, err error) {
	fmt.Fprintf(os.Stderr, "%s: processes %d, meters %d, subjects %d, offered %s\n", s.design, s.processes, s.meters, s.subjects, s.offered())
	name, limits, err := b.database(ctx, s)
	if err != nil {
		return o, err
	}
	conn, err := pgx.Connect(ctx, b.cluster.DSN("postgres", name))
	if err != nil {
		return o, fmt.Errorf("connect: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	var wal, versions, dead int64
	if err := conn.QueryRow(ctx, writtenSQL).Scan(&wal, &versions, &dead); err != nil {
		return o, fmt.Errorf("read what was written: %w", err)
	}
	j := job{
		DSN: b.cluster.DSN("postgres", name), Design: s.design, Limits: limits, Subjects: s.subjects,
		Clients: closedLoop, Rate: s.rate / float64(s.processes), Begin: time.Now().Add(startWithin), Time: b.each,
	}
	results := make([]result, s.processes)
	faults := make([]error, s.processes)
	var group sync.WaitGroup
	for i := range s.processes {
		group.Go(func() { results[i], faults[i] = b.spawn(ctx, j) })
	}
	group.Wait()
	o.elapsed = time.Since(j.Begin)
	if err := errors.Join(faults...); err != nil {
		return o, err
	}
	for _, r := range results {
		if r.Fault != "" {
			return o, fmt.Errorf("%s: %s", s.design, r.Fault) //nolint:err113 // what a process told
		}
		o.Pairs += r.Pairs
		o.Refused += r.Refused
		o.Undecided += r.Undecided
		o.Latencies = append(o.Latencies, r.Latencies...)
	}
	slices.Sort(o.Latencies)
	if err := conn.QueryRow(ctx, writtenSQL).Scan(&o.wal, &o.versions, &o.dead); err != nil {
		return o, fmt.Errorf("read what was written: %w", err)
	}
	o.wal, o.versions = o.wal-wal, o.versions-versions
	var rows, held int64
	if err := conn.QueryRow(ctx, booksSQL).Scan(&rows, &held); err != nil {
		return o, fmt.Errorf("read books: %w", err)
	}
	if rows != o.Pairs || held != 0 {
		return o, fmt.Errorf("%s: %d pairs, but %d rows, and %d units are held", s.design, o.Pairs, rows, held) //nolint:err113 // ends the run
	}
	return o, nil
}

// spawn runs a job in a process of its own.
func (b *bench) spawn(ctx context.Context, j job) (result, error) {
	input, err := json.Marshal(j)
	if err != nil {
		return result{}, fmt.Errorf("write job: %w", err)
	}
	cmd := exec.CommandContext(ctx, b.self, "--worker") //nolint:gosec // this very binary
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), os.Stderr
	output, err := cmd.Output()
	if err != nil {
		return result{}, fmt.Errorf("run worker: %w", err)
	}
	var r result
	if err := json.Unmarshal(output, &r); err != nil {
		return result{}, fmt.Errorf("read result: %w", err)
	}
	return r, nil
}

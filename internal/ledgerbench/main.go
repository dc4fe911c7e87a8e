// Command ledgerbench compares the ledger with the designs that it was chosen over, side by side in one run: processes of
// its own against a private PostgreSQL that flushes each commit, all on this machine.
//
//	go run ./internal/ledgerbench
package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/pgstore"
	"github.com/tollgate-gateway/tollgate/governance/pgstore/ledger"
	"github.com/tollgate-gateway/tollgate/internal/devdb"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

var (
	//go:embed sql/plain.sql
	plainSQL string
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

// compare makes the runs of one table, or of all, and prints them.
func compare(ctx context.Context, each time.Duration, only string) (err error) {
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
	made := false
	for _, table := range []struct {
		name  string
		print func(context.Context) error
	}{
		{"designs", b.designs},
		{"meters", b.meters},
		{"tenants", b.tenants},
		{"refusals", b.refusals},
		{"latencies", b.latencies},
		{"lone", b.lone},
	} {
		if only != "" && only != table.name {
			continue
		}
		made = true
		if err := table.print(ctx); err != nil {
			return err
		}
	}
	if !made {
		return fmt.Errorf("no table is called %q", only) //nolint:err113 // for who typed it
	}
	return nil
}

func (b *bench) designs(ctx context.Context) error {
	fmt.Printf("Pairs of an admission and a durable settlement a second; four meters that all requests share\n\n")
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "design\t1 process\t2\t4\tWAL bytes a pair\tmeter versions a pair\tundecided\t")
	four := make(map[string]float64)
	for _, design := range []string{perStep, pipelined, perCall, coalesced} {
		fmt.Fprintf(t, "%s\t", design)
		var last outcome
		for _, processes := range []int{1, 2, 4} {
			o, err := b.run(ctx, scenario{design: design, processes: processes, meters: 4, subjects: 1})
			if err != nil {
				return err
			}
			fmt.Fprintf(t, "%.0f\t", o.perSecond())
			last = o
		}
		four[design] = last.perSecond()
		fmt.Fprintf(t, "%.0f\t%.2f\t%d\t\n", float64(last.wal)/float64(last.Pairs), float64(last.versions)/float64(last.Pairs), last.Undecided)
	}
	_ = t.Flush()
	fmt.Printf("\nCoalesced through four processes: %.0f times the three pipelined statements.\n\n", four[coalesced]/four[pipelined])
	return nil
}

func (b *bench) meters(ctx context.Context) error {
	fmt.Printf("Coalesced, four processes, meters that all requests share\n\n")
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "meters\tpairs/s\tWAL bytes a pair\t")
	for _, meters := range []int{2, 3, 4, 6} {
		o, err := b.run(ctx, scenario{design: coalesced, processes: 4, meters: meters, subjects: 1})
		if err != nil {
			return err
		}
		fmt.Fprintf(t, "%d\t%.0f\t%.0f\t\n", meters, o.perSecond(), float64(o.wal)/float64(o.Pairs))
	}
	_ = t.Flush()
	fmt.Println()
	return nil
}

func (b *bench) tenants(ctx context.Context) error {
	fmt.Printf("Coalesced, four processes, four meters for each of 1,000 tenants\n\n")
	o, err := b.run(ctx, scenario{design: coalesced, processes: 4, meters: 4, subjects: 1000})
	if err != nil {
		return err
	}
	fmt.Printf("%.0f pairs/s, %.0f bytes of WAL and %.2f meter versions a pair, %d dead rows at the end, %d undecided\n\n",
		o.perSecond(), float64(o.wal)/float64(o.Pairs), float64(o.versions)/float64(o.Pairs), o.dead, o.Undecided)
	return nil
}

func (b *bench) refusals(ctx context.Context) error {
	fmt.Printf("Refusals: four processes, four meters, the last without any room\n\n")
	o, err := b.run(ctx, scenario{design: coalesced, processes: 4, meters: 4, subjects: 1, refuse: true})
	if err != nil {
		return err
	}
	fmt.Printf("%.0f refusals/s, %.0f bytes of WAL each, %d admitted, %d undecided\n\n", o.perSecond(), float64(o.wal)/float64(o.Refused), o.Pairs, o.Undecided)
	return nil
}

func (b *bench) latencies(ctx context.Context) error {
	fmt.Printf("Admissions that come whatever happens, over four processes; milliseconds from the moment they were due\n\n")
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "design\toffered/s\tanswered/s\tp50\tp95\tp99\tundecided\t")
	for _, s := range []scenario{
		{design: perStep, rate: 500},
		{design: pipelined, rate: 500},
		{design: perCall, rate: 500},
		{design: coalesced, rate: 500},
		{design: coalesced, rate: 1000},
		{design: coalesced, rate: 5000},
		{design: coalesced, rate: 5000, subjects: 1000},
	} {
		s.processes, s.meters, s.subjects = 4, 4, max(s.subjects, 1)
		o, err := b.run(ctx, s)
		if err != nil {
			return err
		}
		name := s.design
		if s.subjects > 1 {
			name += ", 1,000 tenants"
		}
		fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%s\t%s\t%s\t%d\t\n", name, s.rate, o.perSecond(), millis(o.percentile(50)), millis(o.percentile(95)),
			millis(o.percentile(99)), o.Undecided)
	}
	_ = t.Flush()
	fmt.Println()
	return nil
}

func millis(d time.Duration) string { return strconv.FormatFloat(d.Seconds()*1000, 'f', 1, 64) }

// lone compares a single client with empty durable transactions on the same server.
func (b *bench) lone(ctx context.Context) error {
	name, limits, _, err := b.database(ctx, scenario{meters: 4, subjects: 1})
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, b.cluster.DSN("postgres", name))
	if err != nil {
		return fmt.Errorf("open pool: %w", err)
	}
	defer pool.Close()
	l := ledger.New(ledger.Options{Pool: pool, Node: "bench"})
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	p := product{l, nil}
	for i, number := range limits {
		p.limits = append(p.limits, limit(i, number, plenty))
	}
	var reserve, settle, empty []time.Duration
	for end := time.Now().Add(b.each); time.Now().Before(end); {
		begin := time.Now()
		id, err := p.reserve(ctx, 1)
		if err != nil {
			return fmt.Errorf("reserve alone: %w", err)
		}
		reserve = append(reserve, time.Since(begin))
		begin = time.Now()
		if err := p.settle(ctx, id, 1); err != nil {
			return fmt.Errorf("settle alone: %w", err)
		}
		settle = append(settle, time.Since(begin))
		begin = time.Now()
		if _, err := pool.Exec(ctx, "SELECT pg_logical_emit_message(true, 'bench', '')"); err != nil {
			return fmt.Errorf("commit nothing: %w", err)
		}
		empty = append(empty, time.Since(begin))
	}
	if err := errors.Join(l.Close(ctx), <-ended); err != nil {
		return err
	}
	r, s, e := median(reserve), median(settle), median(empty)
	fmt.Printf("Alone, four meters, medians: admission %s ms, settlement %s ms, an empty durable transaction %s ms: %.1f and %.1f times\n",
		millis(r), millis(s), millis(e), float64(r)/float64(e), float64(s)/float64(e))
	return nil
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// database makes a fresh database with the limits of a scenario and returns its name and theirs.
func (b *bench) database(ctx context.Context, s scenario) (name string, limits, amounts []int64, err error) {
	b.runs++
	name = fmt.Sprintf("bench_%d", b.runs)
	if err := b.exec(ctx, "postgres", "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+" TEMPLATE tollgate"); err != nil {
		return "", nil, nil, err
	}
	conn, err := pgx.Connect(ctx, b.cluster.DSN("postgres", name))
	if err != nil {
		return "", nil, nil, fmt.Errorf("connect: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	for i := range s.meters {
		amount := int64(plenty)
		if s.refuse && i == s.meters-1 {
			amount = 0
		}
		l := limit(i, 0, amount)
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
		var number int64
		if err := conn.QueryRow(ctx, makeLimitSQL, ids.NewPublic(ids.Limit), l.Kind, l.Metric, amount, per, burst, window).Scan(&number); err != nil {
			return "", nil, nil, fmt.Errorf("make limit: %w", err)
		}
		limits, amounts = append(limits, number), append(amounts, amount)
	}
	if _, err := conn.Exec(ctx, makePlainSQL, limits, s.subjects, plenty); err != nil {
		return "", nil, nil, fmt.Errorf("make plain meters: %w", err)
	}
	if _, err := conn.Exec(ctx, "CHECKPOINT"); err != nil {
		return "", nil, nil, fmt.Errorf("checkpoint: %w", err)
	}
	return name, limits, amounts, nil
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
	name, limits, amounts, err := b.database(ctx, s)
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
		DSN: b.cluster.DSN("postgres", name), Design: s.design, Limits: limits, Amounts: amounts, Subjects: s.subjects,
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

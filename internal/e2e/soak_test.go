//go:build full

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	product "github.com/tollgate-gateway/tollgate/internal/fleet"
)

const (
	// soakRate is how many calls a second are offered: what two cores carry beside other work.
	soakRate = 60
	// soakWorkers bound the calls under way at once. While all are busy no more calls are offered.
	soakWorkers = 48
	// soakKeys and soakEndUsers are as many as take turns.
	soakKeys, soakEndUsers = 20, 50
)

// grows are the quantities that a soak watches, in the order of its table. The median of the last quarter may be this much
// above the median of the second one: 1.3 times, and a slack for what is small or comes in steps.
var grows = []struct {
	name  string
	unit  float64
	slack float64 // in units
}{
	{"goroutines", 1, 60},
	{"heap MiB", 1 << 20, 4},
	{"resident MiB", 1 << 20, 24},
	{"files", 1, 60},
	{"lane queue", 1, 64},
	{"outbox", 1, 64},
	{"control goroutines", 1, 30},
	{"control heap MiB", 1 << 20, 6},
	{"control resident MiB", 1 << 20, 32},
	{"control files", 1, 30},
	{"connections", 1, 6},
	{"meters MiB", 1 << 20, 3},
	{"reservations MiB", 1 << 20, 6},
	{"other tables MiB", 1 << 20, 4},
	{"dead rows", 1, 30000},
}

// accountTables are those which a call leaves something in for good.
const accountTables = "^(rows|attribution)|^(blocks|block_parts|hours|days|tenant_hours)$"

// What is kept of all calls, and what is not.
const storageQuery = `
SELECT pg_total_relation_size('ledger.meters'), pg_total_relation_size('ledger.reservations'),
       coalesce(sum(pg_total_relation_size(c.oid)) FILTER (WHERE c.relname !~ @accounts), 0)
         - pg_total_relation_size('ledger.meters') - pg_total_relation_size('ledger.reservations'),
       coalesce(sum(pg_total_relation_size(c.oid)) FILTER (WHERE c.relname ~ @accounts), 0),
       (SELECT sum(n_dead_tup) FROM pg_stat_user_tables),
       (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database())
FROM pg_class AS c
WHERE c.relkind = 'r' AND c.relnamespace IN ('ledger'::regnamespace, 'tollgate'::regnamespace)`

// soakSample is one look at a running product.
type soakSample struct {
	at       time.Duration
	rows     int64
	accounts int64 // bytes of accountTables
	values   []float64
}

// soak is a load that goes on, and what it does to the product.
type soak struct {
	t       *testing.T
	f       *product.Fleet
	g       *product.Process
	db      *pgx.Conn
	http    *http.Client
	keys    []string
	limited string // a key whose rate is far below what it is used for
	owing   string // a key whose calls use far more than was reserved for them

	mu     sync.Mutex
	counts map[string]int
}

// Nothing grows under a load that goes on: memory, goroutines, descriptors, queues, connections, and the tables of meters and
// reservations are after half an hour what they were after ten minutes (F200, F203). What an account takes is told.
// TOLLGATE_TEST_SOAK sets the time, three minutes unless told.
func TestLong_F200_F203_Soak(t *testing.T) {
	t.Parallel()
	length, err := time.ParseDuration(cmp.Or(os.Getenv("TOLLGATE_TEST_SOAK"), "3m"))
	require.NoError(t, err)
	s := startSoak(t)
	ctx, stop := context.WithCancel(t.Context())
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		s.load(ctx)
	}()
	samples := s.watch(length)
	stop()
	<-loaded
	quiet, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	require.NoError(t, s.f.AwaitClosed(quiet))
	s.http.CloseIdleConnections()

	t.Logf("%d samples in %s of at most %d calls a second\n%s", len(samples), length, soakRate, soakTable(samples))
	t.Logf("%v", s.counts)
	s.requireMixed()
	s.changes()
	require.NoError(t, s.f.CheckLedger(t.Context()))
	s.accounts(samples)
	for _, g := range judgeSoak(samples) {
		t.Errorf("%s", g)
	}
}

func startSoak(t *testing.T) *soak {
	s := &soak{
		t: t, counts: make(map[string]int),
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: soakWorkers, DisableCompression: true}},
	}
	s.f, s.g = releasedFleet(t)
	ctx := t.Context()
	tenant, err := s.f.SetUp(ctx, "plain")
	require.NoError(t, err)
	for model, script := range map[string]string{
		"steps": "frame_gap(20ms)", "late": "first_byte_delay(400ms)", "broken": "status(500)", "surprise": "usage(10,500)",
	} {
		_, err := s.f.AddModel(ctx, tenant.Provider, model, model)
		require.NoError(t, err)
		require.NoError(t, s.f.Mock.Script(ctx, product.Object{"script": script, "match": product.Object{"model": model}}))
	}
	issue := func(limits ...object) string {
		key, _, err := s.f.Issue(ctx, tenant.Organization, "soak", limits...)
		require.NoError(t, err)
		return key.Reveal()
	}
	for range soakKeys {
		s.keys = append(s.keys, issue(forever("cost", "100000"), perDay("tokens", "100000000")))
	}
	s.limited = issue(perMinute("60"))
	s.owing = issue(object{"kind": "rate", "metric": "tokens", "amount": "6000", "per": "1m", "burst": "6000"})
	for _, model := range []string{"plain", "steps", "late", "surprise"} {
		awaitAnswer(t, s.g, s.keys[0], model)
	}
	s.db, err = pgx.Connect(ctx, s.f.DSN("postgres"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.db.Close(context.Background()) })
	return s
}

// load sends calls of all sorts until ctx ends, and waits for the last.
func (s *soak) load(ctx context.Context) {
	due := make(chan int)
	var workers sync.WaitGroup
	for range soakWorkers {
		workers.Go(func() {
			for i := range due {
				kind, outcome := s.call(i)
				s.mu.Lock()
				s.counts[kind+" "+outcome]++
				s.mu.Unlock()
			}
		})
	}
	tick := time.NewTicker(time.Second / soakRate)
	defer tick.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		select {
		case <-ctx.Done():
		case <-tick.C:
			due <- i
		}
	}
	close(due)
	workers.Wait()
}

// call makes one call and says of which sort it was, and what became of it: a status, or "left".
func (s *soak) call(i int) (kind, outcome string) {
	key := s.keys[i/10%soakKeys]
	user := fmt.Sprintf(`{"user":"user-%d",`, i%soakEndUsers)
	with := func(model string) string { return strings.Replace(named(model), "{", user, 1) }
	switch i % 10 {
	case 0, 1:
		return "unary", s.send(key, with("plain"), 0, -1)
	case 2, 3:
		return "stream", s.send(key, streaming(with("plain")), 0, -1)
	case 4:
		return "slow stream", s.send(key, streaming(with("steps")), 0, -1)
	case 5:
		return "stream left in its midst", s.send(key, streaming(with("steps")), 0, 1)
	case 6:
		return "call left before its answer", s.send(key, with("late"), 100*time.Millisecond, -1)
	case 7:
		return "call above its rate", s.send(s.limited, with("plain"), 0, -1)
	case 8:
		return "call that fails upstream", s.send(key, with("broken"), 0, -1)
	default:
		return "call that owes", s.send(s.owing, strings.Replace(with("surprise"), "{", `{"max_tokens":5,`, 1), 0, -1)
	}
}

// send makes a call that is left after patience, if there is any, or behind so many bytes of its answer, unless negative.
func (s *soak) send(key, body string, patience time.Duration, most int64) string {
	ctx, leave := context.WithCancel(s.t.Context())
	defer leave()
	if patience > 0 {
		timer := time.AfterFunc(patience, leave)
		defer timer.Stop()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.g.BaseURL+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	r, err := s.http.Do(req)
	if err == nil {
		defer func() { _ = r.Body.Close() }()
		err = drain(r, most)
	}
	switch {
	case ctx.Err() != nil:
		return "left"
	case err != nil:
		return "without an answer"
	case most >= 0 && r.StatusCode == http.StatusOK:
		return "left"
	}
	return fmt.Sprint(r.StatusCode)
}

// drain reads an answer, or its first bytes.
func drain(r *http.Response, most int64) error {
	var b bytes.Buffer
	if most < 0 {
		_, err := b.ReadFrom(r.Body)
		return err
	}
	_, err := r.Body.Read(make([]byte, most))
	return err
}

// watch looks at the product at even distances for a time.
func (s *soak) watch(length time.Duration) []soakSample {
	const least = 24 // samples, so that a quarter has six
	every := min(15*time.Second, length/least)
	tick := time.NewTicker(every)
	defer tick.Stop()
	start := time.Now()
	var samples []soakSample
	for time.Since(start) < length {
		<-tick.C
		samples = append(samples, s.look(start))
	}
	return samples
}

func (s *soak) look(start time.Time) soakSample {
	t := s.t
	gateway, metrics := footprintOf(t, s.g)
	control, _ := footprintOf(t, s.f.Control)
	var meters, reservations, others, dead, connections int64
	look := soakSample{at: time.Since(start).Round(time.Second)}
	require.NoError(t, s.db.QueryRow(t.Context(), storageQuery, pgx.StrictNamedArgs{"accounts": accountTables}).
		Scan(&meters, &reservations, &others, &look.accounts, &dead, &connections))
	require.NoError(t, s.db.QueryRow(t.Context(), "SELECT count(*) FROM ledger.rows").Scan(&look.rows))
	for i, v := range []float64{
		gateway.goroutines, gateway.live, gateway.resident, gateway.files,
		metrics["tollgate_ledger_queue_length"], metrics["tollgate_ledger_outbox_length"],
		control.goroutines, control.live, control.resident, control.files,
		float64(connections), float64(meters), float64(reservations), float64(others), float64(dead),
	} {
		look.values = append(look.values, v/grows[i].unit)
	}
	return look
}

// requireMixed asserts that there was a load of all sorts, and that it was served.
func (s *soak) requireMixed() {
	t := s.t
	for _, kind := range []string{
		"unary 200", "stream 200", "slow stream 200", "stream left in its midst left", "call left before its answer left",
		"call above its rate 200", "call above its rate 429", "call that owes 200", "call that owes 429",
	} {
		require.Positive(t, s.counts[kind], "%s: %v", kind, s.counts)
	}
	require.Zero(t, s.counts["call that fails upstream 200"])
	unary := 0
	for kind, n := range s.counts {
		require.NotContains(t, kind, "without an answer", "%v", s.counts)
		if strings.HasPrefix(kind, "unary ") {
			unary += n
		}
	}
	require.GreaterOrEqual(t, s.counts["unary 200"], unary*9/10, "%v", s.counts)
	var owing int
	require.NoError(t, s.db.QueryRow(t.Context(), `
		SELECT count(*) FROM ledger.rows
		WHERE upstream_model = 'surprise' AND (SELECT sum(a) FROM unnest(leg_actual) AS a) > (SELECT sum(r) FROM unnest(leg_reserved) AS r)`,
	).Scan(&owing))
	require.Positive(t, owing, "no settlement was above its reservation")
}

// accounts tells what a row takes for good, with its indexes, its attribution, its share of roll-ups and seals.
func (s *soak) accounts(samples []soakSample) {
	first, last := samples[len(samples)/4], samples[len(samples)-1]
	require.Greater(s.t, last.rows, first.rows)
	s.t.Logf("%d rows in all; each took %d bytes for good", last.rows, (last.accounts-first.accounts)/(last.rows-first.rows))
	rows, err := s.db.Query(s.t.Context(), `
		SELECT c.relname, pg_total_relation_size(c.oid)
		FROM pg_class AS c
		WHERE c.relkind = 'r' AND c.relnamespace = 'ledger'::regnamespace AND c.relname ~ @accounts AND pg_total_relation_size(c.oid) > 100000
		ORDER BY 2 DESC`, pgx.StrictNamedArgs{"accounts": accountTables})
	require.NoError(s.t, err)
	var table string
	var size int64
	_, err = pgx.ForEachRow(rows, []any{&table, &size}, func() error {
		s.t.Logf("  %s: %d bytes a row", table, size/last.rows)
		return nil
	})
	require.NoError(s.t, err)
}

// changes tells how the tables fared that change all the time.
func (s *soak) changes() {
	rows, err := s.db.Query(s.t.Context(), `
		SELECT relname, n_live_tup, n_dead_tup, n_tup_ins, n_tup_upd, n_tup_hot_upd, n_tup_del, autovacuum_count
		FROM pg_stat_user_tables
		WHERE relid IN ('ledger.meters'::regclass, 'ledger.reservations'::regclass)
		ORDER BY relname`)
	require.NoError(s.t, err)
	var table string
	var live, dead, inserted, updated, hot, deleted, vacuums int64
	_, err = pgx.ForEachRow(rows, []any{&table, &live, &dead, &inserted, &updated, &hot, &deleted, &vacuums}, func() error {
		s.t.Logf("%s: %d rows, %d dead; %d inserted, %d updated (%d within their page), %d deleted, vacuumed %d times",
			table, live, dead, inserted, updated, hot, deleted, vacuums)
		return nil
	})
	require.NoError(s.t, err)
}

// quarter returns the values of one quantity in one quarter of a run.
func quarter(samples []soakSample, which, quantity int) []float64 {
	n := len(samples)
	var values []float64
	for _, s := range samples[n*which/4 : n*(which+1)/4] {
		values = append(values, s.values[quantity])
	}
	return values
}

// judgeSoak says what has grown.
func judgeSoak(samples []soakSample) []string {
	var found []string
	for i, g := range grows {
		early, late := median(quarter(samples, 1, i)), median(quarter(samples, 3, i))
		if late > 1.3*early+g.slack {
			found = append(found, fmt.Sprintf("%s: %.1f in the second quarter, %.1f in the last", g.name, early, late))
		}
	}
	return found
}

// soakTable is what people read: at most a few dozen of the samples, and the medians that are judged.
func soakTable(samples []soakSample) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(first string, rows string, value func(i int) float64) {
		fmt.Fprintf(w, "%s\t%s\t", first, rows)
		for i := range grows {
			fmt.Fprintf(w, "%.*f\t", map[bool]int{true: 1}[grows[i].unit > 1], value(i))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprint(w, "at\trows\t")
	for _, g := range grows {
		fmt.Fprintf(w, "%s\t", g.name)
	}
	fmt.Fprintln(w)
	step := int(math.Ceil(float64(len(samples)) / 30))
	for at := 0; at < len(samples); at += step {
		s := samples[at]
		line(s.at.String(), fmt.Sprint(s.rows), func(i int) float64 { return s.values[i] })
	}
	for which := range 4 {
		line(fmt.Sprintf("median of quarter %d", which+1), "", func(i int) float64 { return median(quarter(samples, which, i)) })
	}
	_ = w.Flush()
	return b.String()
}

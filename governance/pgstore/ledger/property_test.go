package ledger_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/meter"
	"github.com/tollgate-gateway/tollgate/governance/pgstore/ledger"
)

// operations is how many operations a model test runs: few where every push runs it, many in the full run.
func operations(tb testing.TB, few int) int {
	tb.Helper()
	text := os.Getenv("TOLLGATE_TEST_OPERATIONS")
	if text == "" {
		return few
	}
	n, err := strconv.Atoi(text)
	require.NoError(tb, err)
	return n
}

// stopClock makes the functions of the ledger take the time from a table, and returns what sets it.
func (d database) stopClock(tb testing.TB) (set func(time.Time)) {
	tb.Helper()
	d.exec(tb, "CREATE TABLE ledger.stopped_clock AS SELECT clock_timestamp() AS at")
	d.exec(tb, `CREATE FUNCTION ledger.stopped_clock() RETURNS timestamptz LANGUAGE sql VOLATILE
		AS 'SELECT at FROM ledger.stopped_clock'`)
	require.GreaterOrEqual(tb, d.count(tb, `SELECT count(*) FROM pg_proc WHERE pronamespace = 'ledger'::regnamespace AND prosrc LIKE '%clock_timestamp()%'`), int64(4))
	d.exec(tb, `DO $$ DECLARE f oid; BEGIN
		FOR f IN SELECT oid FROM pg_proc WHERE pronamespace = 'ledger'::regnamespace AND prosrc LIKE '%clock_timestamp()%' LOOP
			EXECUTE replace(pg_get_functiondef(f), 'clock_timestamp()', 'ledger.stopped_clock()');
		END LOOP;
	END $$`)
	return func(at time.Time) { d.exec(tb, "UPDATE ledger.stopped_clock SET at = $1", at) }
}

// TestLedger_EqualsMeter is a state machine: random requests go through the ledger and through a book that is kept with
// governance/meter, and after each of them both must have given the same answer and hold the same meters. The clock stands
// still but for the steps that move it, so that refills and windows are compared to the last unit.
func TestLedger_EqualsMeter(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	gate := &gate{}
	observer := ledger.Observer{
		Mismatch: func() { t.Error("governance/meter disagrees with the database") },
		Batch:    func(int, int, time.Duration) { gate.pass() },
	}
	machine := &machine{
		t: t, db: db, setClock: db.stopClock(t), gate: gate,
		lanes: map[string]*ledger.Ledger{
			"first":  start(t, ledger.Options{Pool: db.Pool, Grace: time.Nanosecond, Lease: time.Hour, Observer: observer}),
			"second": start(t, ledger.Options{Pool: db.Pool, Grace: time.Nanosecond, Lease: time.Hour}),
		},
	}
	for _, l := range machine.lanes {
		eventually(t, "registers", func() bool { return l.Stats().Process != 0 })
	}
	most, failed, done, void := operations(t, 400), false, 0, 0
	steps := max(30, most/90) // of a case; rapid makes a hundred cases, unless it is told otherwise
	rapid.Check(t, func(rt *rapid.T) {
		if done >= most && !failed { // while a failure is made smaller its cases must run
			return
		}
		defer func() { failed = failed || rt.Failed() }()
		machine.begin(rt)
		for range steps {
			machine.step()
			done++
			if machine.void {
				void++
				return
			}
		}
		machine.book.checkAttempts(rt, t, db)
	})
	t.Logf("%d operations; %d cases ended early, since the machine was busy", done, void)
}

// TestWindowStart_EqualsMeter compares the windows of calendars across changes of the clocks.
func TestWindowStart_EqualsMeter(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	zones := []string{
		"UTC", "Europe/Paris", "America/New_York", "America/Sao_Paulo", "America/Havana", "Asia/Beirut", "Africa/Cairo",
		"Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu", "America/Asuncion", "Atlantic/Azores", "America/Santiago",
		"America/Nuuk", "Africa/Casablanca", "Asia/Gaza", "Pacific/Chatham", "Antarctica/Troll",
	}
	periods := []string{"day", "week", "month", "quarter", "year"}
	check := func(tb require.TestingT, zone, period string, at time.Time) {
		l := &governance.Limit{Window: governance.Window{Type: governance.WindowCalendar, Period: period, TimeZone: zone}}
		start, end, err := meter.Window(l, at)
		require.NoError(tb, err)
		var inSQL time.Time
		require.NoError(tb, db.QueryRow(t.Context(), "SELECT ledger.window_start('calendar', $1, $2, NULL, NULL, $3)", period, zone, at).Scan(&inSQL))
		require.True(tb, start.Equal(inSQL), "%s %s at %s: %s, in SQL %s", period, zone, at, start, inSQL)
		require.False(tb, at.Before(start), "%s %s at %s starts %s", period, zone, at, start)
		require.True(tb, at.Before(end), "%s %s at %s ends %s", period, zone, at, end)
		next, _, err := meter.Window(l, end)
		require.NoError(tb, err)
		require.True(tb, next.Equal(end), "windows follow each other without a gap: %s %s at %s", period, zone, at)
		for windows := range int64(3) {
			var between int64
			require.NoError(tb, db.QueryRow(t.Context(), "SELECT ledger.windows_between('calendar', $1, $2, NULL, $3, $4)", period, zone, start, end).Scan(&between))
			require.Equal(tb, windows, between)
			require.Equal(tb, windows, meter.Between(l, start, end))
			_, end, err = meter.Window(l, end)
			require.NoError(tb, err)
		}
	}
	for _, zone := range zones {
		where, err := time.LoadLocation(zone)
		require.NoError(t, err)
		at := time.Date(2015, 1, 1, 0, 0, 0, 0, time.UTC)
		for range 12 { // around each change of the clocks
			_, change := at.In(where).ZoneBounds()
			if change.IsZero() {
				break
			}
			for _, off := range []time.Duration{-time.Hour - time.Second, -time.Second, 0, time.Second, time.Hour - time.Second, time.Hour, 25 * time.Hour} {
				check(t, zone, "day", change.Add(off))
			}
			at = change
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		check(rt, rapid.SampledFrom(zones).Draw(rt, "zone"), rapid.SampledFrom(periods).Draw(rt, "period"),
			time.Unix(rapid.Int64Range(1_000_000_000, 4_000_000_000).Draw(rt, "second"), 0).UTC())
	})
	rapid.Check(t, func(rt *rapid.T) {
		anchor := time.UnixMicro(rapid.Int64Range(1_600_000_000_000_000, 1_900_000_000_000_000).Draw(rt, "anchor")).UTC()
		at := time.UnixMicro(rapid.Int64Range(1_600_000_000_000_000, 1_900_000_000_000_000).Draw(rt, "at")).UTC()
		seconds := rapid.Int64Range(1, 10_000_000).Draw(rt, "seconds")
		l := &governance.Limit{Window: governance.Window{Type: governance.WindowFixed, Duration: time.Duration(seconds) * time.Second, Anchor: anchor}}
		start, _, err := meter.Window(l, at)
		require.NoError(rt, err)
		var inSQL time.Time
		require.NoError(rt, db.QueryRow(t.Context(), "SELECT ledger.window_start('fixed', NULL, NULL, $1, $2, $3)", seconds, anchor, at).Scan(&inSQL))
		require.True(rt, start.Equal(inSQL), fmt.Sprint(start, inSQL))
	})
}

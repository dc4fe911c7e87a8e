package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tollgate-gateway/tollgate/internal/fleet"
)

// witness remembers rows of the ledger that are durable, to look for them afterwards.
type witness struct {
	mu   sync.Mutex
	rows map[string]string // hash by attempt and kind
	last int64
}

type witnessed struct {
	Seq  int64  `db:"seq"`
	ID   string `db:"id"`
	Hash string `db:"hash"`
}

// watch reads new rows each few seconds. What it has read counts once a later commit is flushed: a batch is visible before
// it is durable.
func (w *witness) watch(ctx context.Context, d *database) {
	for sleep(ctx, 3*time.Second) {
		_ = d.do(ctx, func(ctx context.Context, conn *pgx.Conn) error { // what one look misses the next one sees
			w.mu.Lock()
			defer w.mu.Unlock()
			// Rows of transactions that were open at the last look have lower numbers than others that it saw.
			const behind = 500
			found, err := conn.Query(ctx, statement("witness"), pgx.StrictNamedArgs{"after": w.last - behind})
			if err != nil {
				return err
			}
			rows, err := pgx.CollectRows(found, pgx.RowToStructByName[witnessed])
			if err != nil {
				return err
			}
			if _, err := conn.Exec(ctx, statement("flush")); err != nil {
				return err
			}
			if w.rows == nil {
				w.rows = make(map[string]string)
			}
			for _, r := range rows {
				if _, ok := w.rows[r.ID]; !ok {
					w.rows[r.ID] = r.Hash
				}
				w.last = max(w.last, r.Seq)
			}
			return nil
		})
	}
}

// judge loads the oracle into the database, asks all invariants, and fills in the report.
func (r *run) judge(ctx context.Context, report *Report, open int64) error {
	r.say("judge")
	err := r.database.insist(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		report.Invariants, report.Events = nil, nil
		if err := execute(ctx, conn, "oracle"); err != nil {
			return err
		}
		if err := r.copyOracle(ctx, conn); err != nil {
			return err
		}
		for _, s := range statements("invariants") {
			i, err := ask(ctx, conn, s)
			if err != nil {
				return err
			}
			report.Invariants = append(report.Invariants, i)
		}
		return r.count(ctx, conn, report)
	})
	if err != nil {
		return fmt.Errorf("judge the run: %w", err)
	}
	if err := r.askProduct(ctx, report); err != nil {
		return err
	}
	report.add("I03", "nothing stays open when all gateways have ended", open)
	r.oracle.mu.Lock()
	report.add("oracle", "nothing is forwarded that nobody sent", int64(r.oracle.unknown))
	r.oracle.mu.Unlock()
	loud, err := r.product.panicked()
	if err != nil {
		return err
	}
	report.add("panic", "no process ends by a fault of its own, and SQL and Go decide alike", int64(len(loud)), loud...)
	report.add("orderly", "a gateway that is asked to end ends in order", int64(len(r.nemesis.badEnd)), r.nemesis.badEnd...)
	slices.SortStableFunc(report.Invariants, func(a, b Invariant) int { return strings.Compare(a.ID, b.ID) })
	report.decide()
	r.say("%s", report.Summary())
	return nil
}

func (r *run) copyOracle(ctx context.Context, conn *pgx.Conn) error {
	r.oracle.mu.Lock()
	defer r.oracle.mu.Unlock()
	sent := make([][]any, 0, len(r.oracle.seen))
	for _, s := range r.oracle.seen {
		p := s.plan
		sent = append(sent, []any{
			p.tag, p.key.id, p.burst, p.key.slots, p.inputUsed, p.outputUsed, p.faulty, p.leaveAfter > 0,
			s.status, s.code, s.whole, s.left, s.sent, s.done,
		})
	}
	arrived := make([][]any, 0, len(r.oracle.arrivals))
	for _, a := range r.oracle.arrivals {
		over := a.over
		if over.IsZero() {
			over = time.Now() // in flight when its gateway died
		}
		arrived = append(arrived, []any{a.tag, a.began, over})
	}
	outages := make([][]any, 0, len(r.database.outages))
	for _, o := range r.database.outages {
		outages = append(outages, []any{o.began, o.over, r.calmAt})
	}
	r.witness.mu.Lock()
	defer r.witness.mu.Unlock()
	rows := make([][]any, 0, len(r.witness.rows))
	for id, hash := range r.witness.rows {
		rows = append(rows, []any{id, hash})
	}
	for _, t := range []struct {
		name    string
		columns []string
		rows    [][]any
	}{
		{"sent", []string{
			"tag", "key_id", "burst", "slots", "input_used", "output_used", "faulty", "leaves", "status", "code", "whole", "gone",
			"sent_at", "done_at",
		}, sent},
		{"arrived", []string{"tag", "began", "over"}, arrived},
		{"witnessed", []string{"id", "hash"}, rows},
		{"outages", []string{"began", "over", "calm"}, outages},
	} {
		if _, err := conn.CopyFrom(ctx, pgx.Identifier{t.name}, t.columns, pgx.CopyFromRows(t.rows)); err != nil {
			return fmt.Errorf("load %s: %w", t.name, err)
		}
	}
	return nil
}

// ask runs a statement that lists violations. Its first line names it: "-- ID: name".
func ask(ctx context.Context, conn *pgx.Conn, statement string) (Invariant, error) {
	head, _, _ := strings.Cut(statement, "\n")
	id, name, _ := strings.Cut(strings.TrimPrefix(head, "-- "), ": ")
	i := Invariant{ID: id, Name: name}
	rows, err := conn.Query(ctx, statement)
	if err != nil {
		return i, fmt.Errorf("ask %s: %w", id, err)
	}
	var sample string
	_, err = pgx.ForEachRow(rows, []any{&i.Violations, &sample}, func() error {
		i.Samples = append(i.Samples, sample)
		return nil
	})
	if err != nil {
		return i, fmt.Errorf("ask %s: %w", id, err)
	}
	return i, nil
}

// count fills in the events.
func (r *run) count(ctx context.Context, conn *pgx.Conn, report *Report) error {
	rows, err := conn.Query(ctx, statement("events"))
	if err != nil {
		return fmt.Errorf("count events: %w", err)
	}
	counted, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[struct {
		Rows            int64 `db:"rows"`
		Expiries        int64 `db:"expiries"`
		LateAdjustments int64 `db:"late_adjustments"`
		Debts           int64 `db:"debts"`
		Releases        int64 `db:"releases"`
		Tombstones      int64 `db:"tombstones"`
	}])
	if err != nil {
		return fmt.Errorf("count events: %w", err)
	}
	n := r.nemesis
	replies, requests := n.cuts()
	burstsDone := int64(0)
	if b, ok := r.shape.load.(*bursts); ok {
		burstsDone = b.count.Load()
	}
	for _, e := range []struct {
		name  string
		count int64
	}{
		{requestsSent, int64(len(r.oracle.seen))},
		{forwards, r.oracle.forwarded.Load()},
		{answers, r.oracle.ok.Load()},
		{refusals, r.oracle.refused.Load()},
		{undecideds, r.oracle.undecided.Load()},
		{brokenAnswers, r.oracle.broken.Load()},
		{kills, n.kills.Load()},
		{terminations, n.terminations.Load()},
		{pauses, n.pauses.Load()},
		{stalls, n.stalls.Load()},
		{cutReplies, replies},
		{cutRequests, requests},
		{heldMeters, n.locks.Load()},
		{databaseCrashes, r.database.crashes.Load()},
		{failovers, r.database.failovers.Load()},
		{deafStandbys, n.deafnesses.Load()},
		{burstsSent, burstsDone},
		{ledgerRows, counted.Rows},
		{expiries, counted.Expiries},
		{lateAdjustments, counted.LateAdjustments},
		{debts, counted.Debts},
		{releases, counted.Releases},
		{tombstones, counted.Tombstones},
		{witnessedRows, int64(len(r.witness.rows))},
	} {
		floor := int64(r.shape.floors[e.name] * r.options.Time.Minutes())
		report.Events = append(report.Events, Event{Name: e.name, Count: e.count, Floor: floor})
	}
	return nil
}

// askProduct adds what `tollgate ledger check` finds, whatever it checks.
func (r *run) askProduct(ctx context.Context, report *Report) error {
	ctx, cancel := context.WithTimeout(ctx, quietWait)
	defer cancel()
	var checked object
	for {
		var err error
		if checked, err = r.product.admin.Get(ctx, "ledger/check"); err == nil {
			break
		}
		if !sleep(ctx, sweepEvery) {
			return fmt.Errorf("check the ledger: %w", err)
		}
	}
	checks := fleet.Items(checked, "checks")
	if len(checks) == 0 {
		return fmt.Errorf("check the ledger: %w", errNothingChecked)
	}
	for _, c := range checks {
		i := Invariant{ID: fleet.Text(c, "id"), Name: fleet.Text(c, "name")}
		violations, _ := c["violations"].(json.Number)
		var err error
		if i.Violations, err = violations.Int64(); err != nil {
			return fmt.Errorf("check the ledger: read violations of %s: %w", i.ID, err)
		}
		samples, _ := c["samples"].([]any)
		for _, s := range samples {
			i.Samples = append(i.Samples, fmt.Sprint(s))
		}
		report.Invariants = append(report.Invariants, i)
	}
	return nil
}

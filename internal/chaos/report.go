package chaos

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Verdict is what a run has shown.
type Verdict string

// The verdicts. A run below its floor of events has tested nothing, and says so; a violation counts in any case.
const (
	Passed   Verdict = "passed"
	Violated Verdict = "VIOLATED"
	NotRun   Verdict = "NOT RUN"
)

// The events, as reports name them.
const (
	requestsSent    = "requests"
	forwards        = "forwarded"
	answers         = "answered whole"
	refusals        = "refused (429)"
	undecideds      = "undecided (503)"
	brokenAnswers   = "broken answers"
	kills           = "kills"
	terminations    = "orderly ends"
	pauses          = "pauses"
	stalls          = "stalls"
	cutReplies      = "cut replies"
	cutRequests     = "cut requests"
	heldMeters      = "held meters"
	databaseCrashes = "database crashes"
	failovers       = "failovers"
	deafStandbys    = "deaf standbys"
	burstsSent      = "bursts"
	ledgerRows      = "ledger rows"
	expiries        = "expiries"
	lateAdjustments = "late adjustments"
	debts           = "debts"
	releases        = "releases"
	tombstones      = "tombstones"
	witnessedRows   = "witnessed rows"
)

var errNothingChecked = errors.New("it has no checks")

// Event is something that happened so many times.
type Event struct {
	Name         string
	Count, Floor int64 // Floor 0: as often as it likes
}

// Invariant is a statement about the ledger that must hold whatever happens.
type Invariant struct {
	ID, Name   string
	Violations int64
	Samples    []string // at most ten violations, as text for people
}

// Report is what a run has shown.
type Report struct {
	Profile    Profile
	Seed       uint64
	Time       time.Duration
	Verdict    Verdict
	Dir        string // of the run's logs and database; empty: removed
	Events     []Event
	Invariants []Invariant
}

func (r *Report) add(id, name string, violations int64, samples ...string) {
	r.Invariants = append(r.Invariants, Invariant{ID: id, Name: name, Violations: violations, Samples: samples[:min(len(samples), 10)]})
}

// decide sets the verdict.
func (r *Report) decide() {
	r.Verdict = Passed
	for _, e := range r.Events {
		if e.Count < e.Floor {
			r.Verdict = NotRun
		}
	}
	for _, i := range r.Invariants {
		if i.Violations > 0 {
			r.Verdict = Violated
		}
	}
}

// Summary is one line for people.
func (r *Report) Summary() string {
	var broken []string
	for _, i := range r.Invariants {
		if i.Violations > 0 {
			broken = append(broken, fmt.Sprintf("%s ×%d", i.ID, i.Violations))
		}
	}
	return strings.TrimSpace(fmt.Sprintf("%s seed %d: %s %s", r.Profile, r.Seed, r.Verdict, strings.Join(broken, ", ")))
}

// Write writes the report as tables, with all that it takes to see a failure again.
func (r *Report) Write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(t, "\n%s\n\nevent\tcount\tfloor\t\n", r.Summary()) // Flush tells
	for _, e := range r.Events {
		floor, short := "", ""
		if e.Floor > 0 {
			floor = fmt.Sprint(e.Floor)
		}
		if e.Count < e.Floor {
			short = "BELOW"
		}
		_, _ = fmt.Fprintf(t, "%s\t%d\t%s\t%s\n", e.Name, e.Count, floor, short)
	}
	_, _ = fmt.Fprint(t, "\ninvariant\tviolations\t\n")
	for _, i := range r.Invariants {
		_, _ = fmt.Fprintf(t, "%s\t%d\t%s\n", i.ID, i.Violations, i.Name)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	for _, i := range r.Invariants {
		for _, s := range i.Samples {
			if _, err := fmt.Fprintf(w, "\n%s: %s\n", i.ID, s); err != nil {
				return fmt.Errorf("write report: %w", err)
			}
		}
	}
	if r.Verdict == Passed {
		return nil
	}
	text := fmt.Sprintf("\nAgain: go run ./internal/chaos/run --profile %s --seed %d --time %s\n", r.Profile, r.Seed, r.Time)
	if r.Dir != "" {
		text += fmt.Sprintf("Kept: %s\n", r.Dir)
	}
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

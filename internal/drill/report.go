package drill

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/fleet"
)

// Check is one expectation of a drill and what was seen.
type Check struct {
	Phase    string `json:"phase"`
	What     string `json:"what"`
	Expected string `json:"expected"`
	Seen     string `json:"seen"`
	Passed   bool   `json:"passed"`
}

// Report is the outcome of a drill.
type Report struct {
	Drill     string        `json:"drill"`
	StartedAt time.Time     `json:"started_at"` // UTC
	Seconds   float64       `json:"seconds"`    // how long it took
	Machine   fleet.Machine `json:"machine"`
	// Method says what was really done, where a drill has a choice.
	Method []string `json:"method"`
	Checks []Check  `json:"checks"`
	Passed bool     `json:"passed"` // the drill came to its end, and every check passed
	// Interrupted: it was told to end before; the checks are those of until then.
	Interrupted bool `json:"interrupted,omitempty"`
	// Logs are what the processes that ran at the end of a drill that did not pass had logged, one text each.
	Logs []string `json:"logs,omitempty"`

	interrupted func() bool // nil: it cannot be
}

// WriteTable writes the report for people, one check a line.
func (r *Report) WriteTable(w io.Writer) error {
	for _, m := range append([]string{r.Machine.String()}, r.Method...) {
		if _, err := fmt.Fprintln(w, m); err != nil {
			return err
		}
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if _, err := fmt.Fprint(t, "RESULT\tPHASE\tWHAT\tEXPECTED\tSEEN\n"); err != nil {
		return err
	}
	failed := 0
	for _, c := range r.Checks {
		verdict := "ok"
		if !c.Passed {
			verdict = "FAILED"
			failed++
		}
		if _, err := fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", verdict, c.Phase, c.What, c.Expected, c.Seen); err != nil {
			return err
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	verdict, when := "passed", "in"
	switch {
	case r.Interrupted:
		verdict, when = "interrupted", "after"
	case failed > 0:
		verdict = fmt.Sprintf("FAILED: %d of %d checks", failed, len(r.Checks))
	case !r.Passed:
		verdict = "FAILED: it did not come to its end"
	}
	for _, log := range r.Logs {
		if _, err := fmt.Fprintf(w, "\nlog of a process:\n%s\n", log); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "drill %s %s %s %.1f s\n", r.Drill, verdict, when, r.Seconds)
	return err
}

// allPassed reports whether there are checks and none has failed.
func (r *Report) allPassed() bool {
	for _, c := range r.Checks {
		if !c.Passed {
			return false
		}
	}
	return len(r.Checks) > 0
}

// expect notes a check that passes where what was seen is what was expected, word for word.
func (r *Report) expect(phase, what, expected, seen string) {
	r.judge(phase, what, expected, seen, expected == seen)
}

// judge notes a check with a verdict of its own. What is seen of a drill that is interrupted is its own doing.
func (r *Report) judge(phase, what, expected, seen string, passed bool) {
	if r.interrupted != nil && r.interrupted() {
		return
	}
	r.Checks = append(r.Checks, Check{Phase: phase, What: what, Expected: expected, Seen: seen, Passed: passed})
}

// note adds to what was really done.
func (r *Report) note(format string, args ...any) {
	r.Method = append(r.Method, fmt.Sprintf(format, args...))
}

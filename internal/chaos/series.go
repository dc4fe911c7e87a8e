package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// SeriesOptions are those of several runs after each other.
type SeriesOptions struct {
	Profiles []Profile // default: all
	Seed     uint64    // of the first round; the others count on from it
	// Time is that of load and trouble of all runs together. Where it is long there are several rounds of all profiles.
	Time     time.Duration
	Binary   string
	Dir      string // failed runs leave theirs below; empty: each has a temporary one
	Seeds    string // file to which failing seeds are added; empty: none
	Progress io.Writer
}

// round is about how long one round of all profiles takes: long enough that starts and checks do not count, short enough
// that what a run has left can be read.
const round = 15 * time.Minute

// share says how much of a round's time is a profile's.
func share(p Profile) float64 {
	switch p {
	case Burst:
		return 0.08
	case Locks, Contention:
		return 0.16
	default:
		return 0.30
	}
}

// SeriesReport is what all runs of a series have shown.
type SeriesReport struct {
	Verdict Verdict
	Runs    []Report
	Total   Report // events and violations of all runs
}

// leastRun is what a run may be rounded to: less than a second is no time at all.
const leastRun = time.Second

// Check finds what no series can be run with: a profile that is not known, or so little time that one would have none.
func (o *SeriesOptions) Check() error {
	profiles, whole := o.profiles()
	for _, p := range profiles {
		if !slices.Contains(Profiles(), p) {
			return fmt.Errorf("no profile %q; there are %v", p, Profiles())
		}
	}
	for _, p := range profiles {
		if least := time.Duration(float64(leastRun) * whole / share(p)); o.Time < least {
			return fmt.Errorf("%s of time leave less than %s for the profile %s; it takes %s", o.Time, leastRun, p, least.Round(time.Millisecond))
		}
	}
	return nil
}

// profiles are those that are run, and the sum of their shares.
func (o *SeriesOptions) profiles() (profiles []Profile, whole float64) {
	if profiles = o.Profiles; len(profiles) == 0 {
		profiles = Profiles()
	}
	for _, p := range profiles {
		whole += share(p)
	}
	return profiles, whole
}

// RunSeries runs profiles after each other, in rounds. It goes on after a run that failed.
func RunSeries(ctx context.Context, o SeriesOptions) (SeriesReport, error) {
	profiles, whole := o.profiles()
	rounds := max(1, int((o.Time+round/2)/round))
	series := SeriesReport{Verdict: Passed, Total: Report{Profile: "all", Seed: o.Seed, Time: o.Time, Verdict: Passed}}
	var faults []error
	for n := range rounds {
		for _, p := range profiles {
			if ctx.Err() != nil {
				return series, errors.Join(append(faults, ctx.Err())...)
			}
			one := Options{
				Profile: p, Seed: o.Seed + uint64(n), Binary: o.Binary, Progress: o.Progress,
				Time: time.Duration(float64(o.Time) * share(p) / whole / float64(rounds)).Round(time.Second),
			}
			if o.Dir != "" {
				dir, err := newDir(o.Dir, fmt.Sprintf("%s-%d-", p, one.Seed))
				if err != nil {
					return series, errors.Join(append(faults, err)...)
				}
				one.Dir = dir
			}
			report, err := Run(ctx, one)
			if ctx.Err() != nil { // what was interrupted shows nothing
				return series, errors.Join(append(faults, ctx.Err(), os.RemoveAll(report.Dir))...)
			}
			if err != nil {
				faults = append(faults, fmt.Errorf("run profile %s with seed %d: %w", p, one.Seed, err))
			}
			series.add(report)
			if report.Verdict == Passed && err == nil {
				if one.Dir != "" {
					faults = append(faults, os.RemoveAll(one.Dir))
				}
				continue
			}
			if o.Progress != nil {
				faults = append(faults, report.Write(o.Progress))
			}
			if o.Seeds != "" && report.Verdict == Violated {
				faults = append(faults, keepSeed(o.Seeds, p, one.Seed))
			}
		}
	}
	return series, errors.Join(faults...)
}

func (s *SeriesReport) add(r Report) {
	s.Runs = append(s.Runs, r)
	for n, e := range r.Events {
		if n == len(s.Total.Events) {
			s.Total.Events = append(s.Total.Events, Event{Name: e.Name})
		}
		s.Total.Events[n].Count += e.Count
		s.Total.Events[n].Floor += e.Floor
	}
	for _, i := range r.Invariants {
		s.Total.sum(i)
	}
	switch {
	case r.Verdict == Violated:
		s.Verdict = Violated
	case r.Verdict != Passed && s.Verdict == Passed:
		s.Verdict = NotRun
	}
	s.Total.Verdict = s.Verdict
}

// sum adds the violations of an invariant to those of other runs.
func (r *Report) sum(i Invariant) {
	for n := range r.Invariants {
		if same := &r.Invariants[n]; same.ID == i.ID && same.Name == i.Name {
			same.Violations += i.Violations
			return
		}
	}
	r.Invariants = append(r.Invariants, Invariant{ID: i.ID, Name: i.Name, Violations: i.Violations})
}

// Write writes a line for each run and the tables of all together.
func (s *SeriesReport) Write(w io.Writer) error {
	for i := range s.Runs {
		r := &s.Runs[i]
		if _, err := fmt.Fprintf(w, "%s %s\n", r.Summary(), r.Dir); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
	}
	return s.Total.Write(w)
}

// keptRun is a run that failed once.
type keptRun struct {
	Profile Profile
	Seed    uint64
}

var errSeeds = errors.New("want lines of a profile and a seed")

// readSeeds reads the file of runs that failed. One that is missing has none.
func readSeeds(path string) ([]keptRun, error) {
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read seeds: %w", err)
	}
	var all []keptRun
	for line := range strings.Lines(string(content)) {
		profile, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		seed, err := strconv.ParseUint(number, 10, 64)
		if err != nil || !slices.Contains(Profiles(), Profile(profile)) {
			return nil, fmt.Errorf("read seeds: %w, not %q", errSeeds, line)
		}
		all = append(all, keptRun{Profile(profile), seed})
	}
	return all, nil
}

// keepSeed adds a run to the file of those that are repeated by the tests, unless it is there.
func keepSeed(path string, p Profile, seed uint64) error {
	all, err := readSeeds(path)
	if err != nil || slices.Contains(all, keptRun{p, seed}) {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("keep seed: %w", err)
	}
	if _, err := fmt.Fprintf(file, "%s %d\n", p, seed); err != nil {
		return errors.Join(fmt.Errorf("keep seed: %w", err), file.Close())
	}
	return file.Close()
}

package loadtest

import (
	"fmt"
	"math"
)

// Verdict is what a sample is worth.
type Verdict string

// The verdicts.
const (
	Passed Verdict = "passed"
	Failed Verdict = "failed"
	// Invalid is a sample that says nothing, because the machine was busy with something else.
	Invalid Verdict = "invalid"
)

// The conditions of a sample.
const (
	leastCompleted  = 0.9 // of what was offered
	longestQueue    = 100 // milliseconds, p95
	latestDispatch  = 100 // milliseconds, p95
	mostForeignCPU  = 5.0 // per cent of the machine
	wholeNumberSlip = 1e-6
)

// Judgement says what a sample is worth and why.
type Judgement struct {
	Verdict Verdict `json:"verdict"`
	// Reasons are the conditions that do not hold.
	Reasons []string `json:"reasons,omitempty"`
	// NotJudged are the conditions that nobody could see from outside.
	NotJudged []string `json:"not_judged,omitempty"`
}

// Judge decides about a sample. Promises of exactness hold on every machine: a sample that breaks one fails, however busy
// the machine was. The other conditions are about speed; a machine that was busy with something else says nothing about
// them, and the sample is invalid.
func Judge(s *Sample) Judgement {
	var j Judgement
	var broken, slow []string
	hold := func(list *[]string, ok bool, format string, args ...any) {
		if !ok {
			*list = append(*list, fmt.Sprintf(format, args...))
		}
	}
	for i := range s.Limits {
		l := &s.Limits[i]
		most, least := l.bounds()
		hold(&broken, l.Admitted <= most, "%s admitted %d calls, more than the %d that it may", l.Name, l.Admitted, most)
		hold(&broken, l.Admitted >= least, "%s admitted %d calls, fewer than the %d that it must", l.Name, l.Admitted, least)
	}
	if len(s.Limits) == 0 {
		j.NotJudged = append(j.NotJudged, "what the limits admitted")
	}
	if s.LedgerClean == nil {
		j.NotJudged = append(j.NotJudged, "ledger check")
	} else {
		hold(&broken, *s.LedgerClean, "ledger check found differences: %s", s.Ledger)
	}
	answers := s.Admitted + s.Refused + s.ServerErrors + s.Unexpected + s.TransportErrors
	hold(&broken, answers == s.Observations, "%d observations, but %d outcomes", s.Observations, answers)

	hold(&slow, s.Requests > 0, "no request was sent")
	hold(&slow, s.Observations == s.Requests, "%d requests, but %d observations", s.Requests, s.Observations)
	hold(&slow, s.ServerErrors == 0, "%d answers of 5xx", s.ServerErrors)
	hold(&slow, s.Unexpected == 0, "%d answers that are neither 2xx, 429 nor 5xx", s.Unexpected)
	hold(&slow, s.TransportErrors == 0, "%d transport errors", s.TransportErrors)
	hold(&slow, s.SamplingErrors == 0, "%d sampling errors", s.SamplingErrors)
	hold(&slow, s.Completed >= leastCompleted*s.Offered, "%.0f of %.0f calls a second completed, less than %.0f %%",
		s.Completed, s.Offered, 100*leastCompleted)
	hold(&slow, s.Queue.P95 <= longestQueue, "queue p95 %.1f ms, above %d", s.Queue.P95, longestQueue)
	hold(&slow, s.Scheduling.P95 <= latestDispatch, "scheduling p95 %.1f ms, above %d", s.Scheduling.P95, latestDispatch)
	foreign := false
	if s.Resources == nil {
		j.NotJudged = append(j.NotJudged, "foreign CPU")
	} else if foreign = s.Resources.Foreign > mostForeignCPU; foreign {
		j.Reasons = append(j.Reasons, fmt.Sprintf("%.1f %% of the machine's CPU went to something else, above %.0f %%", s.Resources.Foreign, mostForeignCPU))
	}
	j.Reasons = append(append(j.Reasons, broken...), slow...)
	switch {
	case len(broken) > 0:
		j.Verdict = Failed
	case foreign:
		j.Verdict = Invalid
	case len(slow) > 0:
		j.Verdict = Failed
	default:
		j.Verdict = Passed
	}
	return j
}

// bounds are the most and the fewest calls that the limit admits, exactly as promised: ⌈capacity + refill × elapsed⌉, and,
// where more was offered, ⌊that⌋ less what was in flight or never decided.
func (l *Limit) bounds() (most, least int) {
	most = int(math.Ceil(l.Capacity + l.Refill*l.Elapsed - wholeNumberSlip))
	least = min(int(math.Floor(l.Capacity+l.Refill*l.Sending+wholeNumberSlip)), l.Offered) - l.InFlight - l.Undecided
	return most, max(least, 0)
}

// pass reports whether there are samples and all of them passed.
func pass(samples []Judged) bool {
	for i := range samples {
		if samples[i].Verdict != Passed {
			return false
		}
	}
	return len(samples) > 0
}

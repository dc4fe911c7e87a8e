package loadtest

import (
	"fmt"
	"slices"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/fleet"
)

// Report is what a load run prints.
type Report struct {
	// Machine is nil where the gateways are somebody else's.
	Machine *fleet.Machine `json:"machine,omitempty"`
	Samples []Judged       `json:"samples"`
	Pass    bool           `json:"pass"`
}

// Judged is a sample and what it is worth.
type Judged struct {
	Sample
	Judgement
}

// Sample is one run as it was recorded. What could not be seen from outside is nil, and is not judged.
type Sample struct {
	Replicas int `json:"replicas"`
	// Offered is the rate in calls per second; 0: closed loop, each connection sends its next call after its last answer.
	Offered     float64 `json:"offered_rps"`
	Connections int     `json:"connections"` // closed loop: all of them; open loop: at most so many
	Stream      bool    `json:"stream"`
	Script      string  `json:"script,omitempty"` // what the upstream does
	// CallTimeout is the longest time that a call might take, in seconds; 0: nobody has noted it.
	CallTimeout float64 `json:"call_timeout_s,omitempty"`
	// Requests were due in the sample; Observations is of how many the end is known.
	Requests     int `json:"requests"`
	Observations int `json:"observations"`
	// Elapsed is from the first call to the last answer, in seconds.
	Elapsed float64 `json:"elapsed_s"`
	// Completed is the rate of answers over Elapsed.
	Completed float64 `json:"completed_rps"`

	Admitted        int      `json:"admitted"`      // answered by 2xx
	Refused         int      `json:"refused"`       // answered by 429
	ServerErrors    int      `json:"server_errors"` // answered by 5xx
	Unexpected      int      `json:"unexpected"`    // answered by anything else
	TransportErrors int      `json:"transport_errors"`
	SamplingErrors  int      `json:"sampling_errors"`  // measurements that failed, or that cannot be
	Errors          []string `json:"errors,omitempty"` // the first few of all these

	// Scheduling is how late the load generator was; Queue how long a call then waited for a connection. Both are parts
	// of HTTP.
	Scheduling Percentiles `json:"scheduling_ms"`
	Queue      Percentiles `json:"queue_ms"`
	// HTTP is from the due moment to the end of the answer, FirstByte to its beginning, Limiter the part that the
	// gateway says the limits took; of the admitted calls. Refusals is HTTP of the refused ones.
	HTTP      Percentiles  `json:"http_ms"`
	FirstByte Percentiles  `json:"first_byte_ms"`
	Limiter   *Percentiles `json:"limiter_ms"`
	Refusals  *Percentiles `json:"refusals_ms,omitempty"`

	InFlight int     `json:"in_flight_peak"`
	Limits   []Limit `json:"limits"`
	// LedgerClean is the result of the ledger check after the sample.
	LedgerClean *bool      `json:"ledger_clean"`
	Ledger      string     `json:"ledger,omitempty"` // what it found
	LockWaiters *int       `json:"lock_waiters_peak"`
	Resources   *Resources `json:"resources"`
}

// Percentiles of times in milliseconds.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Limit is a limit that the sample met, in calls.
type Limit struct {
	Name     string  `json:"name"`
	Capacity float64 `json:"capacity"`
	Refill   float64 `json:"refill_per_second"`
	Offered  int     `json:"offered"` // calls that were admitted or refused
	Admitted int     `json:"admitted"`
	// Undecided are calls that failed otherwise: they may have held what others were then refused.
	Undecided int `json:"undecided,omitempty"`
	InFlight  int `json:"in_flight_peak"`
	// Elapsed is from the first call to the last answer, Sending to the last call, both in seconds: what refills after
	// the last call admits nobody.
	Elapsed float64 `json:"elapsed_s"`
	Sending float64 `json:"sending_s"`
}

// Resources is what the processes of the sample used.
type Resources struct {
	Cores int `json:"cores"`
	// CPU is in microseconds per request.
	CPU CPU `json:"cpu_us_per_request"`
	// Foreign is the share of the machine's CPU, in per cent, that none of the sample's processes used.
	Foreign float64 `json:"foreign_cpu_percent"`
	// Busy is the share of the machine's CPU, in per cent, that was used at all.
	Busy float64 `json:"machine_cpu_percent"`
	// GatewayRSS is the highest resident size of the largest gateway, in bytes.
	GatewayRSS int64 `json:"gateway_rss_peak_bytes"`
}

// CPU is time by who used it.
type CPU struct {
	Gateways float64 `json:"gateways"`
	Postgres float64 `json:"postgres"`
	Mock     float64 `json:"mock"`
	Control  float64 `json:"control_plane"`
	Load     float64 `json:"load_generator"`
}

// observation is one call. Moments count from the start of the sample.
type observation struct {
	due, dispatched, sent, firstByte, done time.Duration
	limiter                                time.Duration // untold: the answer did not say
	status                                 int           // 0: no whole answer
	caller                                 int
	err                                    error
	ended                                  bool
}

const untold time.Duration = -1

// percentilesOf sorts the times.
func percentilesOf(times []time.Duration) Percentiles {
	if len(times) == 0 {
		return Percentiles{}
	}
	slices.Sort(times)
	// The nearest rank: the smallest time that at least so many per cent do not exceed.
	at := func(percent int) float64 { return milliseconds(times[(len(times)*percent+99)/100-1]) }
	return Percentiles{P50: at(50), P95: at(95), P99: at(99), Max: milliseconds(times[len(times)-1])}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// peakInFlight is the most calls that were between sending and the end of their answer at one moment.
func peakInFlight(all []observation) int {
	type step struct {
		at     time.Duration
		change int
	}
	steps := make([]step, 0, 2*len(all))
	for i := range all {
		if all[i].ended {
			steps = append(steps, step{all[i].sent, 1}, step{all[i].done, -1})
		}
	}
	// Of one moment, ends come last: they may not have come before.
	slices.SortFunc(steps, func(a, b step) int {
		if a.at != b.at {
			return int(a.at - b.at)
		}
		return b.change - a.change
	})
	now, peak := 0, 0
	for _, s := range steps {
		now += s.change
		peak = max(peak, now)
	}
	return peak
}

// keptErrors is how many messages a sample keeps.
const keptErrors = 5

// summarize counts what was observed into the sample.
func (s *Sample) summarize(all []observation) {
	var scheduling, queue, first, whole, limiter, refusals []time.Duration
	var last time.Duration
	told := true
	s.Requests = len(all)
	for i := range all {
		o := &all[i]
		if !o.ended {
			continue
		}
		s.Observations++
		last = max(last, o.done)
		scheduling = append(scheduling, o.dispatched-o.due)
		queue = append(queue, o.sent-o.dispatched)
		switch {
		case o.err != nil:
			s.TransportErrors++
			s.note(o.err.Error())
		case o.status >= 200 && o.status <= 299:
			s.Admitted++
			whole = append(whole, o.done-o.due)
			first = append(first, o.firstByte-o.due)
			if o.limiter == untold {
				told = false
				break
			}
			limiter = append(limiter, o.limiter)
			if o.limiter > o.done-o.sent {
				s.SamplingErrors++
				s.note("a gateway told more time of its limits than the whole call took")
			}
		case o.status == 429:
			s.Refused++
			refusals = append(refusals, o.done-o.due)
		case o.status >= 500:
			s.ServerErrors++
			s.note(fmt.Sprintf("a gateway answered %d", o.status))
		default:
			s.Unexpected++
			s.note(fmt.Sprintf("a gateway answered %d", o.status))
		}
	}
	s.Elapsed = last.Seconds()
	if last > 0 {
		s.Completed = float64(s.Admitted+s.Refused+s.ServerErrors+s.Unexpected) / last.Seconds()
	}
	s.Scheduling, s.Queue = percentilesOf(scheduling), percentilesOf(queue)
	s.HTTP, s.FirstByte = percentilesOf(whole), percentilesOf(first)
	if told && len(limiter) > 0 {
		p := percentilesOf(limiter)
		s.Limiter = &p
	}
	if len(refusals) > 0 {
		p := percentilesOf(refusals)
		s.Refusals = &p
	}
	s.InFlight = peakInFlight(all)
}

func (s *Sample) note(text string) {
	if len(s.Errors) < keptErrors && !slices.Contains(s.Errors, text) {
		s.Errors = append(s.Errors, text)
	}
}

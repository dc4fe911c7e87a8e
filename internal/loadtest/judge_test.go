package loadtest

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sound is a sample of which every condition holds.
func sound() *Sample {
	clean, waiters := true, 0
	return &Sample{
		Replicas: 4, Offered: 500, Connections: 512, Requests: 5000, Observations: 5000, Elapsed: 10, Completed: 500,
		Admitted: 4000, Refused: 1000, InFlight: 8,
		Queue: Percentiles{1, 100, 120, 130}, Scheduling: Percentiles{1, 100, 120, 130},
		HTTP: Percentiles{3, 120, 140, 160}, FirstByte: Percentiles{3, 120, 140, 160}, Limiter: &Percentiles{1, 2, 3, 4},
		Limits: []Limit{
			{Name: "rate limit", Capacity: 90, Refill: 360, Offered: 4500, Admitted: 3690, InFlight: 8, Elapsed: 10, Sending: 10},
			{Name: "budget", Capacity: 400.5, Offered: 500, Admitted: 400, InFlight: 2, Elapsed: 10, Sending: 10},
		},
		LedgerClean: &clean, LockWaiters: &waiters, Resources: &Resources{Cores: 2, Foreign: 5},
	}
}

func TestJudge_PassesWhereEverythingHolds(t *testing.T) {
	t.Parallel()
	require.Equal(t, Judgement{Verdict: Passed}, Judge(sound()))
}

// Each condition alone keeps a sample from passing, and is named.
func TestJudge_EachConditionAlone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		break_  func(*Sample)
		verdict Verdict
		reason  string
	}{
		"admits one too many":           {func(s *Sample) { s.Limits[0].Admitted = 3691 }, Failed, "rate limit admitted 3691 calls, more than the 3690"},
		"admits one too few":            {func(s *Sample) { s.Limits[0].Admitted = 3681 }, Failed, "rate limit admitted 3681 calls, fewer than the 3682"},
		"budget admits one too many":    {func(s *Sample) { s.Limits[1].Admitted = 402 }, Failed, "budget admitted 402 calls, more than the 401"},
		"budget admits too few":         {func(s *Sample) { s.Limits[1].Admitted = 397 }, Failed, "budget admitted 397 calls, fewer than the 398"},
		"fewer for calls that failed":   {func(s *Sample) { s.Limits[0].Undecided, s.Limits[0].Admitted = 3, 3678 }, Failed, "fewer than the 3679"},
		"refuses though there was room": {func(s *Sample) { s.Limits[0].Offered, s.Limits[0].Admitted = 1000, 900 }, Failed, "fewer than the 992"},
		"ledger differs":                {func(s *Sample) { *s.LedgerClean = false; s.Ledger = "I01: 3" }, Failed, "ledger check found differences: I01: 3"},
		"outcome without observation":   {func(s *Sample) { s.Refused++ }, Failed, "5000 observations, but 5001 outcomes"},
		"request without observation":   {func(s *Sample) { s.Requests++ }, Failed, "5001 requests, but 5000 observations"},
		"one 5xx":                       {func(s *Sample) { s.ServerErrors, s.Admitted = 1, 3999 }, Failed, "1 answers of 5xx"},
		"one 404":                       {func(s *Sample) { s.Unexpected, s.Admitted = 1, 3999 }, Failed, "1 answers that are neither"},
		"one transport error":           {func(s *Sample) { s.TransportErrors, s.Admitted = 1, 3999 }, Failed, "1 transport errors"},
		"one sampling error":            {func(s *Sample) { s.SamplingErrors = 1 }, Failed, "1 sampling errors"},
		"too few completed":             {func(s *Sample) { s.Completed = 449 }, Failed, "449 of 500 calls a second"},
		"queue":                         {func(s *Sample) { s.Queue.P95 = 100.1 }, Failed, "queue p95 100.1 ms"},
		"scheduling":                    {func(s *Sample) { s.Scheduling.P95 = 100.1 }, Failed, "scheduling p95 100.1 ms"},
		"foreign CPU":                   {func(s *Sample) { s.Resources.Foreign = 5.1 }, Invalid, "5.1 % of the machine's CPU"},
		"nothing sent":                  {func(s *Sample) { *s = Sample{Limits: s.Limits[:0]} }, Failed, "no request was sent"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sound()
			c.break_(s)
			j := Judge(s)
			require.Equal(t, c.verdict, j.Verdict, "%v", j.Reasons)
			require.Len(t, j.Reasons, 1)
			require.Contains(t, j.Reasons[0], c.reason)
		})
	}
}

// A busy machine excuses slowness, and nothing else.
func TestJudge_BusyMachineExcusesSlownessOnly(t *testing.T) {
	t.Parallel()
	s := sound()
	s.Resources.Foreign, s.Queue.P95, s.ServerErrors, s.Admitted = 40, 900, 3, 3997
	require.Equal(t, Invalid, Judge(s).Verdict)
	s.Limits[1].Admitted++
	s.Limits[1].Admitted++
	require.Equal(t, Failed, Judge(s).Verdict)
}

// From outside less can be seen; what cannot is named, and the rest is judged all the same.
func TestJudge_NamesWhatItDidNotJudge(t *testing.T) {
	t.Parallel()
	s := sound()
	s.Limits, s.LedgerClean, s.Resources, s.LockWaiters = nil, nil, nil, nil
	j := Judge(s)
	require.Equal(t, Passed, j.Verdict)
	require.Equal(t, []string{"what the limits admitted", "ledger check", "foreign CPU"}, j.NotJudged)
	s.Queue.P95 = 101
	require.Equal(t, Failed, Judge(s).Verdict)
}

// A run that completed 464 of 500 calls a second, more than nine tenths, did so because calls waited 2.2 s in the client. It
// says of itself that it passed.
func TestJudge_CounterExampleFails(t *testing.T) {
	t.Parallel()
	file, err := os.Open("testdata/counter-example.json")
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	report, err := ReadReport(file)
	require.NoError(t, err)
	require.Len(t, report.Samples, 1)
	require.False(t, report.Pass)
	require.Equal(t, Failed, report.Samples[0].Verdict)
	require.Equal(t, []string{"queue p95 2200.0 ms, above 100"}, report.Samples[0].Reasons)
}

func TestReport_PassesOnlyWithSamplesThatAllPassed(t *testing.T) {
	t.Parallel()
	require.False(t, pass(nil))
	require.True(t, pass([]Judged{{Judgement: Judgement{Verdict: Passed}}}))
	for _, v := range []Verdict{Failed, Invalid} {
		require.False(t, pass([]Judged{{Judgement: Judgement{Verdict: Passed}}, {Judgement: Judgement{Verdict: v}}}))
	}
}

// What was printed is read back and judged alike.
func TestReport_ReadsWhatItPrinted(t *testing.T) {
	t.Parallel()
	slow := sound()
	slow.Queue = Percentiles{1, 500, 500, 500}
	report := &Report{Samples: []Judged{{*sound(), Judge(sound())}, {*slow, Judge(slow)}}}
	text, err := json.Marshal(report)
	require.NoError(t, err)
	again, err := ReadReport(bytes.NewReader(text))
	require.NoError(t, err)
	require.Equal(t, report, again)
	_, err = ReadReport(strings.NewReader(`{"samples":[],"pass":true,"more":1}`))
	require.ErrorContains(t, err, "more")
}

func TestReport_TableSaysWhy(t *testing.T) {
	t.Parallel()
	slow := sound()
	slow.Queue.P95, slow.LockWaiters, slow.Limiter = 500, nil, nil
	closed := sound()
	closed.Offered, closed.Connections = 0, 64
	report := &Report{Samples: []Judged{{*sound(), Judge(sound())}, {*slow, Judge(slow)}, {*closed, Judge(closed)}}}
	var out strings.Builder
	require.NoError(t, report.WriteTable(&out))
	for _, text := range []string{
		"2: queue p95 500.0 ms, above 100", "1: rate limit: 3690 of 4500 calls admitted, promised 3682 … 3690", "64 conns",
		"Not every sample passed.", "passed\n", "failed\n",
	} {
		require.Contains(t, out.String(), text)
	}
}

// Whatever a bucket is offered, it never leaves the bounds of its sample, which are not so wide as to say nothing.
func TestLimit_BoundsHoldForEveryBucket(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.Int64Range(2, 50).Draw(t, "capacity") // a bucket of one loses what refills between two calls
		const unit = 1_000_000
		refill := rapid.Int64Range(1, 200).Draw(t, "refill") // a second
		most := rapid.SampledFrom([]int64{unit / refill, 3 * unit / refill}).Draw(t, "longest gap")
		gaps := rapid.SliceOfN(rapid.Int64Range(0, most), 1, 300).Draw(t, "gaps")
		l := Limit{Capacity: float64(capacity), Refill: float64(refill), InFlight: 1}
		level, now := capacity*unit, int64(0) // millionths of a call, microseconds
		for i, gap := range gaps {
			if i > 0 {
				now += gap
				level = min(level+gap*refill, capacity*unit)
			}
			l.Offered++
			if level >= unit {
				level -= unit
				l.Admitted++
			}
		}
		l.Elapsed = time.Duration(now * 1000).Seconds()
		l.Sending = l.Elapsed
		upper, lower := l.bounds()
		if l.Admitted > upper {
			t.Fatalf("admitted %d, at most %d", l.Admitted, upper)
		}
		// Whoever offers at every moment as much as refills leaves nothing in the bucket.
		if most*refill <= unit && l.Admitted < lower {
			t.Fatalf("admitted %d, at least %d", l.Admitted, lower)
		}
	})
}

// What a sample does not tell was not measured, and must not be taken for nothing.
func TestReadReport_WantsEveryMember(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/counter-example.json")
	require.NoError(t, err)
	_, err = ReadReport(bytes.NewReader(text))
	require.NoError(t, err)
	for _, name := range []string{"queue_ms", "scheduling_ms", "ledger_clean", "limits", "resources", "transport_errors", "elapsed_s"} {
		var report map[string]any
		require.NoError(t, json.Unmarshal(text, &report))
		delete(report["samples"].([]any)[0].(map[string]any), name)
		without, err := json.Marshal(report)
		require.NoError(t, err)
		_, err = ReadReport(bytes.NewReader(without))
		require.ErrorContains(t, err, name)
	}
	// Taken away, below zero, or beyond what the other members leave possible.
	for _, c := range [][2]string{
		{`"p95": 0.4, `, ``},
		{`"p95": 2200`, `"p95": -1`},
		{`"p50": 870, "p95": 2200`, `"p50": 870, "p95": 0`},
		{`"limiter_ms": {"p50": 264, "p95": 377, "p99": 421, "max": 486}`, `"limiter_ms": {"p50": 264, "p95": 1e15, "p99": 1e15, "max": 1e15}`},
		{`"foreign_cpu_percent": 1.4,`, ``},
		{`"foreign_cpu_percent": 1.4`, `"foreign_cpu_percent": -1`},
		{`"capacity": 90, `, ``},
		{`"offered": 4500, `, ``},
		{`"offered": 4500`, `"offered": 1`},
		{`"elapsed_s": 10.776,`, `"elapsed_s": 0,`},
		{`"in_flight_peak": 461, "elapsed_s": 10.776`, `"in_flight_peak": 461, "elapsed_s": 1e15`},
		{`"in_flight_peak": 461`, `"in_flight_peak": 1000000`},
		{`"completed_rps": 464`, `"completed_rps": 1e15`},
		{`"replicas": 4`, `"replicas": -1`},
	} {
		edited := strings.Replace(string(text), c[0], c[1], 1)
		require.NotEqual(t, string(text), edited, c[0])
		_, err = ReadReport(strings.NewReader(edited))
		require.ErrorContains(t, err, "sample 1: ", "%s", c)
	}
	for _, bad := range []string{"{}", "null", string(text) + "x", string(text) + "{}"} {
		_, err = ReadReport(strings.NewReader(bad))
		require.Error(t, err)
	}
}

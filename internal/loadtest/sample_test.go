package loadtest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func drawObservations(t *rapid.T) []observation {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) observation {
		part := func(name string) time.Duration {
			return time.Duration(rapid.Int64Range(0, 3_000_000_000).Draw(t, name))
		}
		o := observation{due: part("due"), ended: rapid.Float64Range(0, 1).Draw(t, "ended") > 0.05}
		o.dispatched = o.due + part("late")
		o.sent = o.dispatched + part("queued")
		o.firstByte = o.sent + part("waited")
		o.done = o.firstByte + part("read")
		o.status = rapid.SampledFrom([]int{200, 200, 200, 429, 503, 404, 0}).Draw(t, "status")
		o.limiter = time.Duration(rapid.Int64Range(0, int64(o.done-o.sent)).Draw(t, "limiter"))
		o.caller = rapid.IntRange(0, 1).Draw(t, "caller")
		if o.status == 0 {
			o.err = errors.New("reset")
		}
		return o
	}), 0, 60).Draw(t, "observations")
}

// Whatever was observed: each observation has one outcome, and the limiter is at most the whole call at each percentile.
func TestSummarize_AddsUpAndKeepsTheLimiterBelowTheCall(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all := drawObservations(t)
		var s Sample
		s.summarize(all)
		require.Equal(t, len(all), s.Requests)
		require.Equal(t, s.Observations, s.Admitted+s.Refused+s.ServerErrors+s.Unexpected+s.TransportErrors)
		require.Zero(t, s.SamplingErrors)
		require.LessOrEqual(t, s.InFlight, s.Observations)
		if s.Admitted == 0 {
			require.Nil(t, s.Limiter)
			return
		}
		require.LessOrEqual(t, s.Limiter.P50, s.HTTP.P50)
		require.LessOrEqual(t, s.Limiter.P95, s.HTTP.P95)
		require.LessOrEqual(t, s.Limiter.P99, s.HTTP.P99)
		require.LessOrEqual(t, s.FirstByte.P95, s.HTTP.P95)
		limits := met([]Limit{{Name: "a"}, {Name: "b"}}, all)
		require.Equal(t, s.Admitted, limits[0].Admitted+limits[1].Admitted)
		require.Equal(t, s.Admitted+s.Refused, limits[0].Offered+limits[1].Offered)
		require.Equal(t, s.Observations-s.Admitted-s.Refused, limits[0].Undecided+limits[1].Undecided)
	})
}

// A time that cannot be is a sampling error, and a gateway that tells no time of its limits leaves them unknown.
func TestSummarize_DoubtsWhatItIsTold(t *testing.T) {
	t.Parallel()
	call := observation{sent: 0, firstByte: time.Millisecond, done: 2 * time.Millisecond, status: 200, ended: true}
	impossible, silent := call, call
	impossible.limiter, silent.limiter = 3*time.Millisecond, untold
	var s Sample
	s.summarize([]observation{call, impossible})
	require.Equal(t, 1, s.SamplingErrors)
	require.Len(t, s.Errors, 1)
	s = Sample{}
	s.summarize([]observation{call, silent})
	require.Zero(t, s.SamplingErrors)
	require.Nil(t, s.Limiter)
	require.NotZero(t, s.HTTP)
}

func TestPercentiles_AreNearestRanks(t *testing.T) {
	t.Parallel()
	require.Equal(t, Percentiles{}, percentilesOf(nil))
	require.Equal(t, Percentiles{P50: 7, P95: 7, P99: 7, Max: 7}, percentilesOf([]time.Duration{7 * time.Millisecond}))
	var hundred []time.Duration
	for i := 100; i > 0; i-- {
		hundred = append(hundred, time.Duration(i)*time.Millisecond)
	}
	require.Equal(t, Percentiles{P50: 50, P95: 95, P99: 99, Max: 100}, percentilesOf(hundred))
	rapid.Check(t, func(t *rapid.T) {
		times := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.Int64Range(0, 1_000_000).Draw(t, "µs")) * time.Microsecond
		}), 1, 300).Draw(t, "times")
		p := percentilesOf(slices.Clone(times))
		for percent, value := range map[int]float64{50: p.P50, 95: p.P95, 99: p.P99} {
			within := 0
			for _, d := range times {
				if milliseconds(d) <= value {
					within++
				}
			}
			require.GreaterOrEqual(t, 100*within, percent*len(times))
		}
	})
}

func TestPeakInFlight_EqualsCountingAtEachMoment(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all := drawObservations(t)
		peak := 0
		for i := range all {
			now := 0
			for j := range all {
				if all[i].ended && all[j].ended && all[j].sent <= all[i].sent && all[i].sent <= all[j].done {
					now++
				}
			}
			peak = max(peak, now)
		}
		require.Equal(t, peak, peakInFlight(all))
	})
}

package meter_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/meter"
)

// zones have changes of the clocks at odd hours, by odd amounts, over midnight, twice around Ramadan, or none.
var zones = []string{
	"UTC", "Europe/London", "Europe/Paris", "America/New_York", "America/St_Johns", "America/Havana", "America/Santiago", "America/Asuncion",
	"America/Nuuk", "Atlantic/Azores", "Africa/Cairo", "Africa/Casablanca", "Asia/Beirut", "Asia/Gaza", "Asia/Kathmandu", "Asia/Tehran",
	"Australia/Adelaide", "Australia/Lord_Howe", "Pacific/Chatham", "Pacific/Apia", "Antarctica/Troll",
}

var calendarPeriods = []string{"day", "week", "month", "quarter", "year"}

// period numbers the window that an instant belongs to, by what a calendar on the wall of the zone says.
func period(kind string, at time.Time, zone *time.Location) int {
	y, m, d := at.In(zone).Date()
	days := int(time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix() / 86400)
	switch kind {
	case "day":
		return days
	case "week":
		return (days + 3) / 7 // 1970 began on a Thursday
	case "month":
		return y*12 + int(m) - 1
	case "quarter":
		return (y*12 + int(m) - 1) / 3
	default:
		return y
	}
}

// edge finds the second in (from, to] at which the number of the period changes.
func edge(kind string, from, to time.Time, zone *time.Location) time.Time {
	for low, high := from.Unix(), to.Unix(); ; {
		if high-low <= 1 {
			return time.Unix(high, 0).UTC()
		}
		if middle := low + (high-low)/2; period(kind, time.Unix(middle, 0), zone) == period(kind, from, zone) {
			low = middle
		} else {
			high = middle
		}
	}
}

// TestWindow_EqualsSearch compares windows with what is found by looking at the calendar again and again.
func TestWindow_EqualsSearch(t *testing.T) {
	t.Parallel()
	strides := map[string]time.Duration{ // less than the period
		"day": 12 * time.Hour, "week": 72 * time.Hour, "month": 300 * time.Hour, "quarter": 1000 * time.Hour, "year": 4000 * time.Hour,
	}
	check := func(t require.TestingT, kind, name string, at time.Time) {
		zone, err := time.LoadLocation(name)
		require.NoError(t, err)
		mine, stride := period(kind, at, zone), strides[kind]
		from, to := at.Truncate(time.Second), at.Truncate(time.Second)
		for period(kind, from, zone) == mine {
			from = from.Add(-stride)
		}
		for period(kind, to, zone) == mine {
			to = to.Add(stride)
		}
		l := &governance.Limit{Window: governance.Window{Type: governance.WindowCalendar, Period: kind, TimeZone: name}}
		start, end, err := meter.Window(l, at)
		require.NoError(t, err)
		require.Equal(t, edge(kind, from, from.Add(stride), zone), start, "%s of %s at %s begins", kind, name, at)
		require.Equal(t, edge(kind, to.Add(-stride), to, zone), end, "%s of %s at %s ends", kind, name, at)
	}
	for _, name := range zones { // around each change of the clocks
		zone, err := time.LoadLocation(name)
		require.NoError(t, err)
		at := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
		for range 24 {
			_, change := at.In(zone).ZoneBounds()
			if change.IsZero() {
				break
			}
			for _, off := range []time.Duration{-24 * time.Hour, -time.Hour, -time.Second, 0, time.Second, time.Hour - time.Second, time.Hour, 2 * time.Hour, 24 * time.Hour} {
				check(t, "day", name, change.Add(off))
				check(t, "week", name, change.Add(off))
			}
			at = change
		}
	}
	for _, day := range []string{"2024-02-28", "2024-02-29", "2024-03-01", "2027-02-28", "2027-12-31", "2028-02-29", "2028-12-31", "2100-02-28", "2100-03-01", "2030-06-30", "2030-09-30", "2029-12-31"} {
		at, err := time.Parse(time.DateOnly, day)
		require.NoError(t, err)
		for _, name := range zones {
			for _, kind := range calendarPeriods {
				for _, off := range []time.Duration{-time.Microsecond, 0, 12 * time.Hour, 24*time.Hour - time.Microsecond} {
					check(t, kind, name, at.Add(off))
				}
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		check(t, rapid.SampledFrom(calendarPeriods).Draw(t, "period"), rapid.SampledFrom(zones).Draw(t, "zone"),
			time.UnixMicro(rapid.Int64Range(1_704_067_200_000_000, 4_102_444_800_000_000).Draw(t, "µs")).UTC())
	})
}

// TestBetween_CountsWindows walks from window to window.
func TestBetween_CountsWindows(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := &governance.Limit{Window: governance.Window{
			Type: governance.WindowCalendar, Period: rapid.SampledFrom(calendarPeriods).Draw(t, "period"), TimeZone: rapid.SampledFrom(zones).Draw(t, "zone"),
		}}
		if rapid.Bool().Draw(t, "fixed") {
			l.Window = governance.Window{
				Type: governance.WindowFixed, Duration: time.Duration(rapid.Int64Range(1, 1_000_000).Draw(t, "seconds")) * time.Second,
				Anchor: time.UnixMicro(rapid.Int64Range(0, 4_000_000_000_000_000).Draw(t, "anchor")),
			}
		}
		at := time.UnixMicro(rapid.Int64Range(1_704_067_200_000_000, 4_000_000_000_000_000).Draw(t, "µs")).UTC()
		first, end, err := meter.Window(l, at)
		require.NoError(t, err)
		for empty := range int64(rapid.IntRange(1, 30).Draw(t, "windows")) {
			require.Equal(t, empty, meter.Between(l, first, end))
			var start time.Time
			start, end, err = meter.Window(l, end)
			require.NoError(t, err)
			require.Equal(t, empty, meter.Between(l, first, start))
		}
	})
}

package chaos

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// kept are the runs that failed once.
const kept = "testdata/seeds"

// attempt runs a profile, and again for longer where too little happened on a busy machine.
func attempt(t *testing.T, o Options) Report {
	t.Helper()
	o.Binary = binary(t)
	for {
		var said bytes.Buffer
		o.Progress = &said
		report, err := Run(t.Context(), o)
		require.NoError(t, err, "%s", &said)
		if report.Verdict != NotRun || o.Time > time.Minute {
			require.NoError(t, report.Write(&said))
			require.Equal(t, Passed, report.Verdict, "%s", &said)
			return report
		}
		require.NoError(t, os.RemoveAll(report.Dir))
		o.Time *= 3
	}
}

// Of 64 requests at once into room for one, one passes.
func TestBurst(t *testing.T) {
	t.Parallel()
	attempt(t, Options{Profile: Burst, Seed: 1, Time: 3 * time.Second})
}

// Gateways die and replies are lost, and the books balance.
func TestKills(t *testing.T) {
	t.Parallel()
	attempt(t, Options{Profile: Kills, Seed: 1, Time: 5 * time.Second})
}

// Runs that failed once do not fail any more.
func TestKeptSeeds(t *testing.T) {
	t.Parallel()
	seeds, err := readSeeds(kept)
	require.NoError(t, err)
	for _, s := range seeds {
		attempt(t, Options{Profile: s.Profile, Seed: s.Seed, Time: 6 * time.Second})
	}
}

func TestSeeds_AreKeptAndRead(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "seeds")
	none, err := readSeeds(path)
	require.NoError(t, err)
	require.Empty(t, none)
	require.NoError(t, keepSeed(path, Kills, 7))
	require.NoError(t, keepSeed(path, Crashes, 1<<63))
	require.NoError(t, keepSeed(path, Kills, 7), "once is enough")
	seeds, err := readSeeds(path)
	require.NoError(t, err)
	require.Equal(t, []keptRun{{Kills, 7}, {Crashes, 1 << 63}}, seeds)
	for _, bad := range []string{"nothing 1\n", "kills\n", "kills one\n", "kills -1\n"} {
		require.NoError(t, os.WriteFile(path, []byte(bad), 0o600))
		_, err := readSeeds(path)
		require.Error(t, err, bad)
	}
}

func TestVerdict_TooLittleIsNoPassAndAViolationIsOneInAnyCase(t *testing.T) {
	t.Parallel()
	enough, little := []Event{{"kills", 5, 5}, {"pauses", 0, 0}}, []Event{{"kills", 4, 5}}
	held, broken := []Invariant{{ID: "I01"}}, []Invariant{{ID: "I01"}, {ID: "I02", Violations: 2}}
	for _, c := range []struct {
		events     []Event
		invariants []Invariant
		want       Verdict
	}{{enough, held, Passed}, {little, held, NotRun}, {enough, broken, Violated}, {little, broken, Violated}} {
		r := Report{Events: c.events, Invariants: c.invariants}
		r.decide()
		require.Equal(t, c.want, r.Verdict)
	}
}

func TestSeries_SumsUpAndTellsTheWorst(t *testing.T) {
	t.Parallel()
	var s SeriesReport
	s.Verdict = Passed
	one := func(count, floor, violations int64) Report {
		r := Report{
			Profile: Kills, Seed: 3, Time: time.Second, Dir: "kept",
			Events: []Event{{kills, count, floor}}, Invariants: []Invariant{{"I01", "sums", violations, []string{"sample"}}},
		}
		r.decide()
		return r
	}
	s.add(one(5, 4, 0))
	require.Equal(t, Passed, s.Verdict)
	s.add(one(3, 4, 0))
	require.Equal(t, NotRun, s.Verdict)
	s.add(one(9, 4, 2))
	s.add(one(9, 4, 0))
	require.Equal(t, Violated, s.Verdict)
	require.Equal(t, []Event{{kills, 26, 16}}, s.Total.Events)
	require.EqualValues(t, 2, s.Total.Invariants[0].Violations)
	var text bytes.Buffer
	require.NoError(t, s.Write(&text))
	require.Contains(t, text.String(), "kills seed 3: VIOLATED I01 ×2 kept\n")
}

// The driver's decisions are the seed's alone, and each part has its own.
// A series that could not run is told so, instead of by an empty table.
func TestSeries_RefusesWhatItCannotRun(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		options SeriesOptions
		want    string
	}{
		{SeriesOptions{Time: time.Hour, Profiles: []Profile{Kills, "bogus"}}, `no profile "bogus"`},
		{SeriesOptions{Time: time.Hour, Profiles: []Profile{""}}, `no profile ""`},
		{SeriesOptions{Time: 12 * time.Second}, "12s of time leave less than 1s for the profile burst; it takes 12.5s"},
		{SeriesOptions{Profiles: []Profile{Locks}}, "0s of time leave less than 1s for the profile locks"},
	} {
		require.ErrorContains(t, c.options.Check(), c.want)
	}
	require.NoError(t, (&SeriesOptions{Time: 13 * time.Second}).Check())
	require.NoError(t, (&SeriesOptions{Time: time.Second, Profiles: []Profile{Burst}}).Check())
}

func TestRandom_FollowsTheSeedAndThePart(t *testing.T) {
	t.Parallel()
	require.Equal(t, randomOf(1, "kill").Uint64(), randomOf(1, "kill").Uint64())
	require.NotEqual(t, randomOf(1, "kill").Uint64(), randomOf(2, "kill").Uint64())
	require.NotEqual(t, randomOf(1, "kill").Uint64(), randomOf(1, "cut").Uint64())
}

func TestInvariants_AreNamedAndListTenAtMost(t *testing.T) {
	t.Parallel()
	for _, s := range statements("invariants") {
		require.Regexp(t, `^-- I\d\d: [a-z].*\n`, s)
		require.Contains(t, s, "count(*) OVER () AS violations")
		require.Contains(t, s, "LIMIT 10;")
	}
	require.Panics(t, func() { statement("none") })
	require.Panics(t, func() { statements("none") })
}

func TestProfiles_AllHaveAShapeAndFloors(t *testing.T) {
	t.Parallel()
	for _, p := range Profiles() {
		s, err := shapes(p)
		require.NoError(t, err)
		require.NotEmpty(t, s.floors, p)
	}
	_, err := Run(context.Background(), Options{Profile: "no such"})
	require.ErrorContains(t, err, `no profile "no such"`)
}

package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/mock"
)

// graceOfExpiry is how long a process expires nothing after its first contact with the database.
const graceOfExpiry = 30 * time.Second

// step is a moment of a call at which its gateway dies as kill -9 would have it.
type step struct {
	name      string
	point     string // fault point; empty: killed from outside while the upstream waits
	script    string // of the upstream
	events    int    // that the client has read when the gateway is killed from outside
	forwarded bool
	rows      []string // kinds that the attempt's one row may have; "": there may be none
}

func steps() []step {
	return []step{
		{name: "BeforeTheReservation", point: "ledger.before_batch", rows: []string{""}},
		// What the database was sent it finishes, most of the time.
		{name: "WithinTheReservation", point: "ledger.during_batch", rows: []string{"expiry", ""}},
		{name: "BetweenReservationAndForward", point: "ledger.after_batch", rows: []string{"expiry"}},
		{name: "BeforeTheFirstByte", script: "hold", forwarded: true, rows: []string{"expiry"}},
		{name: "WithinTheStream", script: "confirm", events: 3, forwarded: true, rows: []string{"expiry"}},
		{name: "BetweenLastByteAndSettlement", point: "ledger.before_settlement", forwarded: true, rows: []string{"expiry"}},
		{name: "WithinTheSettlement", point: "ledger.during_settlement", forwarded: true, rows: []string{"usage", "expiry"}},
		{name: "AfterTheSettlement", point: "ledger.after_settlement", forwarded: true, rows: []string{"usage"}},
	}
}

// A gateway dies at each step of a call. What it had reserved is closed by another process, once, provisionally and within
// bounds; where nothing was reserved there is no row. Nothing stays open or held, slots are free again, and what a living
// process has under way is left alone, however old it is.
func TestCrashAtEachStep(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{env: []string{"TOLLGATE_PROCESS_LEASE=2s"}})
	contact := time.Now() // the control plane's own was a little earlier
	healthy := f.gateways[0]

	livingKey, livingID := f.issue(forever("cost", "1"))
	f.addModel("living", "living")
	f.awaitModels(livingKey, "living")
	f.script("living", "hold")
	living := make(chan outcome, 1)
	go func() { living <- f.one(chat(livingKey, named("living")), 0, time.Now()) }()
	f.eventually(10*time.Second, "the long call is upstream", func() bool { return f.mock.Counts().InFlight == 1 })

	type crash struct {
		step
		key, keyID, model string
	}
	var crashes []crash
	for i, s := range steps() {
		c := crash{step: s, model: fmt.Sprintf("crash-%d", i)}
		f.addModel(c.model, c.model)
		c.key, c.keyID = f.issue(forever("cost", "1"), perDay("tokens", "100000"), object{"kind": "concurrency", "amount": "1"})
		f.awaitModels(c.key, c.model)
		// The meters exist, so that the fault meets the reservation itself.
		warm := must(t)(healthy.call(t.Context(), c.key, "/v1/chat/completions", named(c.model)))
		require.Equal(t, http.StatusOK, warm.status, "%s", warm.body)
		if s.script != "" {
			require.NoError(t, f.mock.SetScript(mock.Rule{Script: s.script, Times: 1, Match: map[string]string{"model": c.model}}))
		}
		before := f.forwarded()
		doomed := f.start("gateway", "DATABASE_URL="+as(f.dsn, "tollgate_gateway"), "TOLLGATE_FAULT_POINT="+s.point)
		if s.point != "" {
			// The client sees a broken connection, or a whole answer where its end did not wait for a slow settlement.
			_, _ = doomed.call(t.Context(), c.key, "/v1/chat/completions", streaming(bounded(named(c.model))))
		} else {
			f.killWithin(doomed, c.key, c.model, s.events)
		}
		select {
		case <-doomed.done:
		case <-time.After(10 * time.Second):
			require.Fail(t, "the gateway did not die", s.name)
		}
		require.Equal(t, s.forwarded, f.forwarded() > before, s.name)
		crashes = append(crashes, c)
	}
	dead := time.Now()

	provisional := 0
	for _, c := range crashes {
		var kinds []string
		read := func() bool {
			kinds = kinds[:0]
			for _, row := range f.rowsOf("key_id", c.keyID) {
				kinds = append(kinds, text(row["kind"]))
			}
			return true
		}
		if slices.Contains(c.rows, "") {
			require.Eventually(t, func() bool { // the sweep that closes the others has closed it, if there is anything
				_, open := f.admin(http.MethodGet, "reservations?state=open&organization_id="+f.org, nil)
				return len(items(open["items"])) <= 1
			}, graceOfExpiry+15*time.Second, 100*time.Millisecond, c.name)
			read()
		} else {
			require.Eventually(t, func() bool { return read() && len(kinds) == 2 },
				graceOfExpiry+15*time.Second, 100*time.Millisecond, "%s: rows are %v", c.name, kinds)
		}
		slices.Sort(kinds)
		own := "" // the other one is the call that came before
		switch len(kinds) {
		case 1:
			require.Equal(t, []string{"usage"}, kinds, c.name)
		case 2:
			require.Equal(t, "usage", kinds[1], c.name)
			own = kinds[0]
		default:
			require.Fail(t, "more than one row for an attempt", "%s: %v", c.name, kinds)
		}
		require.Contains(t, c.rows, own, c.name)
		for _, row := range f.rowsOf("key_id", c.keyID) {
			if row["kind"] == "expiry" {
				provisional++
				require.Equal(t, "expired", row["outcome"])
				require.Equal(t, "reservation", row["usage_source"])
				require.Equal(t, f.estimate(c.key, bounded(named(c.model)))["cost_usd"], row["cost_usd"])
			}
		}
	}
	closed := time.Now()
	t.Logf("%d of %d closed by expiry, %.1f s after the sweeper's first contact, %.1f s after the last death", provisional, len(crashes),
		closed.Sub(contact).Seconds(), closed.Sub(dead).Seconds())
	require.GreaterOrEqual(t, provisional, 4)
	require.GreaterOrEqual(t, closed.Sub(contact), graceOfExpiry-5*time.Second, "owners had no time to settle")
	_, list := f.admin(http.MethodGet, "reservations?state=provisional&limit=250", nil)
	require.Len(t, items(list["items"]), provisional)

	for _, c := range crashes {
		for _, limit := range f.limitsOf(c.keyID) {
			require.Zero(t, nano(t, f.state(limit)["held"]), c.name)
		}
		after := must(t)(healthy.call(t.Context(), c.key, "/v1/chat/completions", named(c.model)))
		require.Equal(t, http.StatusOK, after.status, "%s: the slot is not free: %s", c.name, after.body)
	}
	require.Empty(t, f.rowsOf("key_id", livingID), "a call of a living process was closed")
	f.mock.Release(0, 1)
	last := <-living
	require.NoError(t, last.err)
	require.Equal(t, http.StatusOK, last.status)
	rows := f.rowsOf("key_id", livingID)
	require.Len(t, rows, 1)
	require.Equal(t, "usage", rows[0]["kind"])
	f.requireBooksBalance()
}

// killWithin kills a gateway once its client has read so many events of a stream that goes on.
func (f *fleet) killWithin(p *process, key, model string, events int) {
	f.t.Helper()
	type opened struct {
		r   *reader
		err error
	}
	began := make(chan opened, 1)
	go func() {
		r, err := p.open(f.t.Context(), key, streaming(bounded(named(model))))
		began <- opened{r, err}
	}()
	f.eventually(10*time.Second, "the call is upstream", func() bool { return f.mock.Counts().InFlight == 2 })
	if events > 0 {
		o := <-began
		require.NoError(f.t, o.err)
		for range events {
			_, err := o.r.event()
			require.NoError(f.t, err)
			f.mock.Release(f.lastSeen().ID, 1)
		}
	}
	p.kill()
}

// What the buckets have given out is known to every process that comes after: neither a kill of all gateways nor a new one
// gives anything back.
func TestDrainedBucketsSurviveAKillOfAllGateways(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{gateways: 2})
	key, _ := f.issue(perDay("requests", "5"))
	require.Equal(t, map[string]int{"200": 5, "429 rate_limit_exceeded": 3}, tally(f.closedLoop(1, 8, chat(key, helloChat))))
	for _, g := range f.gateways {
		g.kill()
	}
	f.gateways = nil
	f.addGateway()
	require.Equal(t, map[string]int{"429 rate_limit_exceeded": 4}, tally(f.closedLoop(2, 4, chat(key, helloChat))))
	require.EqualValues(t, 5, f.forwarded())
	f.requireBooksBalance()
}

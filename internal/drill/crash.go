package drill

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/fleet"
)

// The parts of the crash drill.
const (
	faultTag     = "faultpoint" // build tag of binaries that have fault points
	faultSetting = "TOLLGATE_FAULT_POINT"
	crashLease   = "2s" // silence after which a process counts as dead
	sweptKills   = 24   // kills that replace the fault points of a binary without
	// closing is how long the drill waits for the dead processes' reservations: they may not expire in the first 30 s of a
	// process's contact with the database.
	closing = 2 * time.Minute
)

// death is a moment of a call at which its gateway dies.
type death struct {
	name   string
	point  string        // fault point at which the gateway kills itself; "": it is killed from outside
	model  string        // that the call is for
	events int           // that the client has read when the gateway is killed from outside; 0: the upstream is silent
	after  time.Duration // since the call was sent, for a kill at no particular moment; 0: there is one
	ends   []string      // what may be left
	rule   string        // the same in words, where there are many; "": the ends themselves
}

func (d *death) expected() string {
	if d.rule != "" {
		return d.rule
	}
	return strings.Join(d.ends, "; or ")
}

// What a death may leave. PostgreSQL finishes what it was sent, most of the time.
const (
	nothing  = "not forwarded, no row"
	reserved = "not forwarded, 1 × expiry"
	expired  = "forwarded, 1 × expiry"
	booked   = "forwarded, 1 × usage"
)

// between are the deaths that need fault points.
func between() []death {
	return []death{
		{name: "before the reservation", point: "ledger.before_batch", model: plainModel, ends: []string{nothing}},
		{name: "within the reservation", point: "ledger.during_batch", model: plainModel, ends: []string{reserved, nothing}},
		{name: "between reservation and forward", point: "ledger.after_batch", model: plainModel, ends: []string{reserved}},
		{name: "between last byte and settlement", point: "ledger.before_settlement", model: plainModel, ends: []string{expired}},
		{name: "within the settlement", point: "ledger.during_settlement", model: plainModel, ends: []string{booked, expired}},
		{name: "after the settlement", point: "ledger.after_settlement", model: plainModel, ends: []string{booked}},
	}
}

// outside are the deaths at moments that can be seen from outside.
func outside() []death {
	return []death{
		{name: "before the upstream's first byte", model: heldModel, ends: []string{expired}},
		{name: "within the stream", model: flowingModel, events: 3, ends: []string{expired}},
	}
}

// swept are deaths at moments spread evenly over the life of a call, and a little beyond its end.
func swept(life time.Duration) []death {
	all := make([]death, sweptKills)
	for i := range all {
		all[i] = death{
			name:  fmt.Sprintf("%d moments over the %.0f ms of a call", sweptKills, life.Seconds()*1000),
			model: pacedModel, after: life * time.Duration(i+1) * 5 / (sweptKills * 4),
			ends: []string{nothing, reserved, expired, booked}, rule: "1 row if forwarded, at most 1 if not",
		}
	}
	return all
}

// corpse is a call whose gateway has died.
type corpse struct {
	death

	key, keyID string
	forwarded  bool
}

// Crash kills gateways at each step between reservation and settlement. Whatever they had reserved is closed by another
// process, once and within bounds; where nothing was reserved there is no row.
func Crash(ctx context.Context, o Options) (*Report, error) {
	return run(ctx, "crash", o, func(ctx context.Context, d *drill) error {
		s := crash{drill: d}
		if err := s.prepare(ctx); err != nil {
			return err
		}
		deaths, err := s.choose(ctx)
		if err != nil {
			return err
		}
		for i, death := range deaths {
			s.say("death %d of %d", i+1, len(deaths))
			if err := s.die(ctx, death); err != nil {
				return fmt.Errorf("%s: %w", death.name, err)
			}
		}
		return s.verify(ctx)
	})
}

// crash is the state of one crash drill.
type crash struct {
	*drill

	healthy  string // base URL of a gateway that lives throughout
	faulty   string // binary with fault points; "": there is none
	steady   string // key of calls that show that a gateway serves
	living   string // key of a call that is under way at the healthy gateway throughout
	livingID string
	survivor chan answer
	corpses  []corpse
	restarts int // gateways that served after another one's death
	extra    int // rows of what was reserved and not forwarded
}

func (s *crash) prepare(ctx context.Context) error {
	if err := s.begin(ctx, s.options.Binary, "TOLLGATE_PROCESS_LEASE="+crashLease); err != nil {
		return err
	}
	g, err := s.Start(ctx, fleet.Spec{})
	if err != nil {
		return err
	}
	s.healthy = g.BaseURL
	if s.steady, _, err = s.issue(ctx, budget("100")); err != nil {
		return err
	}
	if s.living, s.livingID, err = s.issue(ctx, budget("1")); err != nil {
		return err
	}
	s.survivor = make(chan answer, 1)
	go func() { s.survivor <- s.client.call(ctx, s.healthy, s.living, chat(heldModel, false)) }()
	return s.inFlight(ctx, 1)
}

// choose decides which deaths this drill can bring about, and says so.
func (s *crash) choose(ctx context.Context) ([]death, error) {
	s.faulty = s.options.FaultBinary
	if s.faulty == "" && hasFaultPoints(s.options.Binary) {
		s.faulty = s.options.Binary
	}
	if s.faulty != "" {
		s.report.note("Gateways of a binary with fault points kill themselves (SIGKILL) at each of %d points; at %d further moments, "+
			"which can be seen from outside, the drill kills them.", len(between()), len(outside()))
		return slices.Concat(between(), outside()), nil
	}
	life, err := s.lifeOfACall(ctx)
	if err != nil {
		return nil, err
	}
	s.report.note("This binary has no fault points, as no release has: the drill kills gateways (SIGKILL) at %d moments that can be seen "+
		"from outside, and at %d moments spread over the life of a call instead of each step between reservation and settlement. "+
		"--faultpoint-binary takes a binary built with -tags %s, which dies exactly there.", len(outside()), sweptKills, faultTag)
	return slices.Concat(outside(), swept(life)), nil
}

// hasFaultPoints reads from a Go program with which tags it was built.
func hasFaultPoints(binary string) bool {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return false
	}
	for _, setting := range info.Settings {
		if setting.Key == "-tags" {
			return slices.Contains(strings.Split(setting.Value, ","), faultTag)
		}
	}
	return false
}

// lifeOfACall is how long the call takes that swept deaths interrupt.
func (s *crash) lifeOfACall(ctx context.Context) (time.Duration, error) {
	const calls = 5
	took := make([]time.Duration, calls)
	for i := range took {
		began := time.Now()
		if a := s.client.call(ctx, s.healthy, s.steady, chat(pacedModel, true)); a.brief() != "200" {
			return 0, fmt.Errorf("measure a call: %s", a.brief())
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took[calls/2], nil
}

// die lets a gateway of its own die at a moment of a call, and another one serve at once.
func (s *crash) die(ctx context.Context, d death) error {
	c := corpse{death: d}
	var err error
	if c.key, c.keyID, err = s.issue(ctx, budget("1"), perDay("tokens", "100000"), object{"kind": "concurrency", "amount": "1"}); err != nil {
		return err
	}
	// The meters are made by the first call, so that the death meets the reservation itself.
	if a := s.client.call(ctx, s.healthy, c.key, chat(plainModel, false)); a.brief() != "200" {
		return fmt.Errorf("first call of the key: %s", a.brief())
	}
	spec := fleet.Spec{}
	if d.point != "" {
		spec = fleet.Spec{Binary: s.faulty, Env: []string{faultSetting + "=" + d.point}}
	}
	doomed, err := s.Start(ctx, spec)
	if err != nil {
		return err
	}
	if d.point == "" { // a first call takes longer than those that the moments are chosen for
		if a := s.client.call(ctx, doomed.BaseURL, s.steady, chat(plainModel, false)); a.brief() != "200" {
			return fmt.Errorf("first call of the gateway: %s", a.brief())
		}
	}
	before, err := s.forwarded(ctx)
	if err != nil {
		return err
	}
	if err := s.interrupt(ctx, d, c.key, doomed); err != nil {
		return err
	}
	again, err := s.Start(ctx, fleet.Spec{})
	if err != nil {
		return err
	}
	if a := s.client.call(ctx, again.BaseURL, s.steady, chat(plainModel, false)); a.brief() == "200" {
		s.restarts++
		before++
	}
	if _, err := s.end(ctx, again); err != nil {
		return err
	}
	// Only now has the upstream certainly read what a dead gateway had written, and seen its end.
	if err := s.inFlight(ctx, 1); err != nil {
		return err
	}
	now, err := s.forwarded(ctx)
	if err != nil {
		return err
	}
	c.forwarded = now > before
	s.corpses = append(s.corpses, c)
	return nil
}

// interrupt sends a call through a gateway and has the gateway die within it.
func (s *crash) interrupt(ctx context.Context, d death, key string, doomed *fleet.Process) error {
	over := make(chan error, 1)
	reached := make(chan struct{}) // the moment, where the client sees it
	go func() { over <- s.read(ctx, doomed.BaseURL, key, d, reached) }()
	var err error
	switch {
	case d.point != "":
	case d.after > 0:
		timer := time.NewTimer(d.after)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		err = doomed.Kill()
	case d.events > 0:
		select {
		case <-reached:
		case err = <-over:
			return errors.Join(errors.New("the stream ended too early"), err)
		}
		err = doomed.Kill()
	default:
		err = errors.Join(s.inFlight(ctx, 2), doomed.Kill())
	}
	if err != nil {
		return err
	}
	select {
	case <-doomed.Done():
	case <-time.After(time.Minute):
		return errors.New("the gateway did not die")
	case <-ctx.Done():
		return ctx.Err()
	}
	<-over //nolint:errcheck // a broken connection, or a whole answer where its end did not wait for a slow settlement
	return nil
}

// read reads a stream to its end and closes reached after as many events as the death waits for.
func (s *crash) read(ctx context.Context, base, key string, d death, reached chan<- struct{}) error {
	open, err := s.client.open(ctx, base, key, d.model)
	if err != nil {
		return err
	}
	defer func() { _ = open.body.Close() }() // it broke
	for n := 1; err == nil; n++ {
		if n == d.events {
			close(reached)
		}
		err = open.next()
	}
	return err
}

// inFlight waits until so many requests are under way at the upstream.
func (s *crash) inFlight(ctx context.Context, n int64) error {
	var count fleet.Count
	var fault error
	if s.await(ctx, time.Minute, func() bool {
		count, fault = s.Mock.Count(ctx, nil)
		return fault == nil && count.InFlight == n
	}) {
		return nil
	}
	return errors.Join(fmt.Errorf("%d requests are under way at the upstream instead of %d", count.InFlight, n), fault)
}

// verify waits until the dead processes' reservations are closed and looks at what each death has left.
func (s *crash) verify(ctx context.Context) error {
	s.say("others close what the dead had reserved, which takes half a minute")
	open := 0
	var fault error
	if !s.await(ctx, closing, func() bool {
		var list []object
		list, fault = s.Admin.List(ctx, "reservations", url.Values{"state": {"open"}})
		open = len(list)
		return fault == nil && open <= 1
	}) && fault != nil {
		return fault
	}
	s.report.expect("expiry", "open reservations besides that of a living process", "0", strconv.Itoa(open-1))
	if err := s.checkEnds(ctx); err != nil {
		return err
	}
	if err := s.checkMeters(ctx); err != nil {
		return err
	}
	s.report.expect("restart", "gateways started after a death that serve at once", of(len(s.corpses), len(s.corpses)), of(s.restarts, len(s.corpses)))
	if err := s.checkSurvivor(ctx); err != nil {
		return err
	}
	if err := s.checkSettled(ctx, s.extra); err != nil {
		return err
	}
	return s.checkLedger(ctx)
}

// checkEnds compares what each death has left in the ledger with what it may leave.
func (s *crash) checkEnds(ctx context.Context) error {
	estimate := s.client.estimate(ctx, s.healthy, s.steady, chat(plainModel, true))
	expiries, proper := 0, 0
	ends := make(map[string][]string) // by the name of the death
	var names []string
	for _, c := range s.corpses {
		rows, err := s.Admin.List(ctx, "spend", url.Values{"key_id": {c.keyID}})
		if err != nil {
			return err
		}
		end := left(c.forwarded, rows)
		if end == reserved {
			s.extra++
		}
		for _, row := range rows {
			if row["kind"] == "expiry" {
				expiries++
				if row["outcome"] == "expired" && row["usage_source"] == "reservation" && row["cost_usd"] == estimate {
					proper++
				}
			}
		}
		if ends[c.name] == nil {
			names = append(names, c.name)
		}
		ends[c.name] = append(ends[c.name], end)
	}
	for _, name := range names {
		i := slices.IndexFunc(s.corpses, func(c corpse) bool { return c.name == name })
		allowed := s.corpses[i].ends
		passed := !slices.ContainsFunc(ends[name], func(end string) bool { return !slices.Contains(allowed, end) })
		s.report.judge("death", name, s.corpses[i].expected(), summary(ends[name]), passed)
	}
	s.report.expect("expiry", "expired rows, provisional and at the reserved cost", of(expiries, expiries), of(proper, expiries))
	return nil
}

// left names what a death has left, given the rows of a key that had one whole call before.
func left(forwarded bool, rows []object) string {
	reached := "not forwarded"
	if forwarded {
		reached = "forwarded"
	}
	kinds := make(map[string]int)
	for _, row := range rows {
		kinds[fleet.Text(row, "kind")]++
	}
	kinds["usage"]-- // the call before
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		if kinds[kind] != 0 {
			parts = append(parts, times(kinds[kind], kind))
		}
	}
	if parts == nil {
		return reached + ", no row"
	}
	return reached + ", " + strings.Join(parts, ", ")
}

// summary is one end, or how often there was which.
func summary(ends []string) string {
	if len(ends) == 1 {
		return ends[0]
	}
	counts := make(map[string]int)
	for _, end := range ends {
		counts[end]++
	}
	var parts []string
	for _, end := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d: %s", counts[end], end))
	}
	return strings.Join(parts, "; ")
}

// checkMeters looks whether the limits of the dead calls hold nothing any more, and their slots are free.
func (s *crash) checkMeters(ctx context.Context) error {
	limits, idle, free := 0, 0, 0
	for _, c := range s.corpses {
		key, err := s.Admin.Get(ctx, "keys/"+c.keyID)
		if err != nil {
			return err
		}
		for _, limit := range fleet.Items(key, "limits") {
			state, err := s.Admin.Get(ctx, "limits/"+fleet.Text(limit, "id")+"/state")
			if err != nil {
				return err
			}
			limits++
			if strings.Trim(fleet.Text(state, "held"), "0.") == "" {
				idle++
			}
		}
		if a := s.client.call(ctx, s.healthy, c.key, chat(plainModel, false)); a.brief() == "200" {
			free++
		}
	}
	s.report.expect("expiry", "limits of the dead calls that hold nothing", of(limits, limits), of(idle, limits))
	s.report.expect("expiry", "their only slots that a next call gets", of(len(s.corpses), len(s.corpses)), of(free, len(s.corpses)))
	return nil
}

// checkSurvivor looks at the call of a living process, which is older than all the others.
func (s *crash) checkSurvivor(ctx context.Context) error {
	rows, err := s.Admin.List(ctx, "spend", url.Values{"key_id": {s.livingID}})
	if err != nil {
		return err
	}
	before := len(rows)
	if err := s.release(ctx, allFrames); err != nil {
		return err
	}
	var last answer
	select {
	case last = <-s.survivor:
	case <-ctx.Done():
		return ctx.Err()
	}
	if rows, err = s.Admin.List(ctx, "spend", url.Values{"key_id": {s.livingID}}); err != nil {
		return err
	}
	kind := "no row"
	if len(rows) > 0 {
		kind = times(len(rows), fleet.Text(rows[0], "kind"))
	}
	s.report.expect("expiry", "a call of a living process, throughout", "rows while it ran: 0; then 200, 1 × usage",
		fmt.Sprintf("rows while it ran: %d; then %s, %s", before, last.brief(), kind))
	return nil
}

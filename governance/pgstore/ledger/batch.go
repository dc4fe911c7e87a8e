package ledger

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/meter"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

//go:embed sql/batch.sql
var batchSQL string

//go:embed sql/make_meters.sql
var makeMetersSQL string

// classes is the number of leg classes: kind and metric of a limit in one number, as ledger.leg_class has them.
const classes = 10

var classOf = [classes]struct {
	kind   governance.Kind
	metric governance.Metric
}{
	{governance.KindRate, governance.MetricRequests},
	{governance.KindRate, governance.MetricTokens},
	{governance.KindRate, governance.MetricInputTokens},
	{governance.KindRate, governance.MetricOutputTokens},
	{governance.KindRate, governance.MetricCost},
	{governance.KindBudget, governance.MetricTokens},
	{governance.KindBudget, governance.MetricInputTokens},
	{governance.KindBudget, governance.MetricOutputTokens},
	{governance.KindBudget, governance.MetricCost},
	{governance.KindConcurrency, governance.MetricRequests},
}

// batch is what travels in one transaction.
type batch struct {
	settlements []*settlement
	admissions  []*admission
	keys        []key // distinct meters of the admissions, in the order of their locks
	index       map[key]int
	carefully   bool
	skipLocked  bool
	lost        bool // a reply was lost: what seems to have been closed before was closed by this very batch
}

func newBatch(settlements []*settlement, admissions []*admission) *batch {
	b := &batch{settlements: settlements, admissions: admissions, index: make(map[key]int)}
	slices.SortFunc(b.settlements, func(x, y *settlement) int { return slices.Compare(x.ID[:], y.ID[:]) })
	// Who closes an attempt of his own comes first, so that nobody takes what the settlement has just given back for him.
	slices.SortStableFunc(b.admissions, func(x, y *admission) int { return cmp.Compare(order(x), order(y)) })
	for _, a := range b.admissions {
		for _, w := range a.wants {
			if _, ok := b.index[w.key]; !ok {
				b.index[w.key] = 0
				b.keys = append(b.keys, w.key)
			}
		}
	}
	slices.SortFunc(b.keys, func(x, y key) int {
		return cmp.Or(cmp.Compare(x.limit, y.limit), cmp.Compare(x.subject, y.subject))
	})
	for i, k := range b.keys {
		b.index[k] = i
	}
	return b
}

func order(a *admission) int {
	if a.closes != nil {
		return 0
	}
	return 1
}

// encode writes the parameters in the order of ledger.batch_commit.
func (b *batch) encode(p *params, process int64) {
	p.reset()
	p.int8(process)
	p.bool(b.carefully)
	p.bool(b.skipLocked)
	p.bool(false)

	var (
		s     = b.settlements
		texts = make([]string, 0, max(len(s), len(b.admissions)))
		ints  = make([]int64, 0, maxBatch)
		bools = make([]bool, 0, maxBatch)
		uuids = make([]ids.ID, 0, maxBatch)
	)
	place := make(map[*settlement]int32, len(s))
	for i, x := range s {
		place[x] = int32(i + 1) // a batch is small
		uuids = append(uuids, x.ID)
	}
	p.uuids(uuids)
	for _, x := range s {
		bools = append(bools, x.Release)
	}
	p.bools(bools)
	bools = bools[:0]
	for _, x := range s {
		bools = append(bools, x.Budget == governance.BasisHold && !x.Release)
	}
	p.bools(bools)
	for _, x := range s {
		texts = append(texts, string(x.Outcome))
	}
	p.texts(texts)
	texts = texts[:0]
	for _, x := range s {
		source := x.Source
		if source == "" {
			source = governance.UsageZero
		}
		texts = append(texts, string(source))
	}
	p.texts(texts)
	for _, x := range s {
		ints = append(ints, x.Quantities[:]...)
	}
	p.int8s(ints)
	ints = ints[:0]
	for _, x := range s {
		for _, price := range x.Prices {
			ints = append(ints, int64(price))
		}
	}
	p.int8s(ints)
	ints = ints[:0]
	for _, x := range s {
		ints = append(ints, int64(x.Cost))
	}
	p.int8s(ints)
	ints = ints[:0]
	for _, x := range s {
		for _, c := range classOf {
			ints = append(ints, meter.Actual(c.kind, c.metric, -1, &x.Settlement)) // −1 stays for "what was held"
		}
	}
	p.int8s(ints)

	b.encodeAdmissions(p, place)
}

func (b *batch) encodeAdmissions(p *params, place map[*settlement]int32) {
	r := b.admissions
	numbers := func(f func(*governance.ReserveRequest) int64) {
		v := make([]int64, len(r))
		for i, a := range r {
			v[i] = f(a.request)
		}
		p.int8s(v)
	}
	names := func(f func(*governance.ReserveRequest) string) {
		v := make([]string, len(r))
		for i, a := range r {
			v[i] = f(a.request)
		}
		p.texts(v)
	}
	ref := func(f func(*governance.Origin) *governance.Ref) {
		numbers(func(q *governance.ReserveRequest) int64 { return f(&q.Origin).Num })
		names(func(q *governance.ReserveRequest) string { return f(&q.Origin).ID })
		names(func(q *governance.ReserveRequest) string { return f(&q.Origin).Name })
	}
	uuids := make([]ids.ID, len(r))
	for i, a := range r {
		uuids[i] = a.request.ID
	}
	p.uuids(uuids)
	for i, a := range r {
		uuids[i] = a.request.Origin.RequestID
	}
	p.uuids(uuids)
	small := make([]int32, len(r))
	for i, a := range r {
		small[i] = int32(a.request.Origin.Attempt) // attempts are few
	}
	p.int4s(small)
	ref(func(o *governance.Origin) *governance.Ref { return &o.Organization })
	ref(func(o *governance.Origin) *governance.Ref { return &o.Team })
	ref(func(o *governance.Origin) *governance.Ref { return &o.Key })
	ref(func(o *governance.Origin) *governance.Ref { return &o.User })
	numbers(func(q *governance.ReserveRequest) int64 { return q.Origin.EndUser })
	names(func(q *governance.ReserveRequest) string { return q.Origin.Route })
	numbers(func(q *governance.ReserveRequest) int64 { return q.Origin.ModelNum })
	names(func(q *governance.ReserveRequest) string { return q.Origin.Model })
	names(func(q *governance.ReserveRequest) string { return q.Origin.Provider })
	numbers(func(q *governance.ReserveRequest) int64 { return q.Origin.TargetNum })
	names(func(q *governance.ReserveRequest) string { return q.Origin.UpstreamModel })
	numbers(func(q *governance.ReserveRequest) int64 { return q.Origin.PriceNum })
	unpriced := make([]bool, len(r))
	for i, a := range r {
		unpriced[i] = a.request.Origin.Unpriced
	}
	p.bools(unpriced)
	units := make([]int64, 0, len(r)*int(governance.UnitCount))
	for _, a := range r {
		units = append(units, a.request.Estimate.Quantities[:]...)
	}
	p.int8s(units)
	units = units[:0]
	for _, a := range r {
		for _, price := range a.request.Estimate.Prices {
			units = append(units, int64(price))
		}
	}
	p.int8s(units)
	numbers(func(q *governance.ReserveRequest) int64 { return int64(q.Estimate.Cost) })
	numbers(func(q *governance.ReserveRequest) int64 { return q.HardExpiry.Milliseconds() })
	for i, a := range r {
		small[i] = place[a.closes]
	}
	p.int4s(small)

	firsts := make([]int32, 0, len(r)+1)
	var (
		meters  []int32
		amounts []int64
		carried []bool
		sums    = make([]int64, len(b.keys))
	)
	for _, a := range r {
		firsts = append(firsts, int32(len(meters)+1)) // a batch is small
		for _, w := range a.wants {
			k := b.index[w.key]
			meters = append(meters, int32(k+1)) // a batch is small
			amounts = append(amounts, w.amount)
			carried = append(carried, w.carried)
			sums[k] += w.amount
		}
	}
	p.int4s(append(firsts, int32(len(meters)+1))) // a batch is small
	limits := make([]int64, len(b.keys))
	subjects := make([]int64, len(b.keys))
	for i, k := range b.keys {
		limits[i], subjects[i] = k.limit, k.subject
	}
	p.int8s(limits)
	p.int8s(subjects)
	p.int8s(sums)
	p.int4s(meters)
	p.int8s(amounts)
	p.bools(carried)
}

// What became of a settlement or an admission, as ledger.batch numbers it.
const (
	settled       = 1
	adjusted      = 2
	closedBefore  = 3
	neverAdmitted = 4
	locked        = 6

	refused       = 0
	admitted      = 1
	limitsUnknown = 2
	openAlready   = 3
	closedAlready = 4
	wrongTime     = 5
)

// decision is the answer to a batch.
type decision struct {
	verdict       string
	at            time.Time
	configVersion int64
	settlements   []int64 // nil: all settled
	admissions    []int64 // nil: all admitted
	taken         []int64 // nil: all that counts
	limits        []int64
	subjects      []int64
	windows       []int64 // as they come over the wire
	counts        []int64
	log           []int64
	amounts       []int64
	bursts        []int64
	levels        []int64
	spent         []int64
	held          []int64
	carried       []int64
	resets        int64
	waited        time.Duration // for the locks
}

const null = -1 // of amounts: unlimited

func decode(columns [][]byte) (*decision, error) {
	r := &reader{columns: columns}
	d := &decision{verdict: r.text()}
	if at := r.next(); len(at) == 8 {
		d.at = instant(r.int(at))
	}
	d.configVersion = r.int8()
	_ = r.bool() // whether anything was written: the procedure's own business
	for _, to := range []*[]int64{
		&d.settlements, &d.admissions, &d.taken, &d.limits, &d.subjects, &d.windows, &d.counts, &d.log, &d.amounts, &d.bursts,
		&d.levels, &d.spent, &d.held, &d.carried,
	} {
		*to = r.ints(null)
	}
	if c := r.next(); c != nil {
		d.resets = r.int(c)
	}
	if c := r.next(); c != nil {
		d.waited = time.Duration(r.int(c)) * time.Microsecond
	}
	if r.err != nil {
		return nil, fmt.Errorf("read decision: %w", r.err)
	}
	return d, nil
}

// SQLSTATEs that the lane acts on.
const (
	stateConflict  = "TG001"
	stateLockWait  = "55P03"
	stateDeadlock  = "40P01"
	stateSerialize = "40001"
	stateReadOnly  = "25006"

	// Of prepared statements.
	stateNoStatement   = "26000"
	stateSameStatement = "42P05"
	stateOtherResult   = "0A000" // the procedure was replaced by one with another result
	stateShutdown      = "57P"   // class of the server's going or being away
)

const maxRepeats = 8

// errConflicts says that a batch was repeated in vain. Something in it is wrong, not the store.
var errConflicts = errors.New("no end of conflicts")

// decide brings a batch to an answer: it repeats what must be repeated, and once what was lost on the way, under the same
// ids.
func (l *Ledger) decide(ctx context.Context, b *batch) (*decision, error) {
	ctx, cancel := context.WithTimeout(ctx, batchWait)
	defer cancel()
	made := false
	for range maxRepeats {
		d, err := l.send(ctx, b)
		if err != nil {
			var pg *pgconn.PgError
			switch {
			case l.noticePooler(err):
			case errors.As(err, &pg) && pg.Code == stateConflict:
				b.carefully = true
			case errors.As(err, &pg) && pg.Code == stateLockWait && !b.skipLocked:
				b.skipLocked = true
			case errors.As(err, &pg) && (pg.Code == stateDeadlock || pg.Code == stateSerialize):
			case unavailable(err) && !b.lost:
				b.lost = true
				b.carefully = true // it may have been committed
				if wasCut(err) {
					l.pool.Reset() // what cut one connection has mostly cut the idle ones too
				}
			default:
				return nil, err
			}
			continue
		}
		switch d.verdict {
		case "ok":
			return d, nil
		case "conflict":
			b.carefully = true
		case "missing":
			if made { // all but those that somebody locks out
				b.carefully, b.skipLocked = true, true
				continue
			}
			made = true
			if err := l.makeMeters(ctx, d); err != nil {
				return nil, err
			}
		}
	}
	return nil, errConflicts
}

// send makes one round trip.
func (l *Ledger) send(ctx context.Context, b *batch) (*decision, error) {
	process, err := l.registered(ctx)
	if err != nil {
		return nil, err
	}
	var p params
	b.encode(&p, process)
	acquire, cancel := context.WithTimeout(ctx, acquireWait)
	conn, err := l.pool.Acquire(acquire)
	cancel()
	if err != nil {
		return nil, fmt.Errorf("acquire connection: %w", err)
	}
	defer conn.Release()
	statement, cancel := context.WithTimeout(ctx, statementWait)
	defer cancel()
	b.fault("before")
	start := time.Now()
	sent, err := l.call(statement, conn.Conn(), &p)
	if err != nil {
		return nil, err
	}
	b.fault("during")
	result := sent.Read()
	if result.Err != nil {
		var pg *pgconn.PgError
		if errors.As(result.Err, &pg) && pg.Code == stateReadOnly {
			_ = conn.Conn().Close(ctx) // it leads to what is no primary any more
		}
		return nil, fmt.Errorf("call batch: %w", result.Err)
	}
	b.fault("after")
	if len(result.Rows) != 1 {
		return nil, errWire
	}
	d, err := decode(result.Rows[0])
	if err != nil {
		return nil, err
	}
	if !d.at.IsZero() {
		l.tick(d.at, d.configVersion)
	}
	if d.verdict == "ok" && l.observer.Batch != nil {
		l.observer.Batch(len(b.settlements), len(b.admissions), time.Since(start))
	}
	return d, nil
}

// call sends the statement. Prepared, it is parsed once a connection. A pooler that hands each transaction to another server
// connection and does not carry prepared statements along (PgBouncer before 1.21) answers that there is none of that name,
// or that there is one already; from then on every call brings the whole statement.
func (l *Ledger) call(ctx context.Context, conn *pgx.Conn, p *params) (*pgconn.ResultReader, error) {
	binary := []int16{pgtype.BinaryFormatCode}
	if l.pooled.Load() {
		return conn.PgConn().ExecParams(ctx, batchSQL, p.values[:p.n], p.oids[:p.n], binary, binary), nil
	}
	if _, err := conn.Prepare(ctx, l.statement, batchSQL); err != nil {
		return nil, fmt.Errorf("prepare batch: %w", err)
	}
	return conn.PgConn().ExecPrepared(ctx, l.statement, p.values[:p.n], binary, binary), nil
}

// noticePooler reports whether an error says that prepared statements do not last, and remembers it. Nothing was executed then.
func (l *Ledger) noticePooler(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != stateNoStatement && pg.Code != stateSameStatement && pg.Code != stateOtherResult {
		return false
	}
	l.pooled.Store(true)
	return true
}

// fault passes a fault point of crash drills: ledger.before_batch, ledger.during_batch (it was sent and not answered),
// ledger.after_batch, and the same of batches that settle: ledger.before_settlement and so on.
func (b *batch) fault(when string) {
	fault("ledger." + when + "_batch")
	if len(b.settlements) > 0 {
		fault("ledger." + when + "_settlement")
	}
}

func (l *Ledger) makeMeters(ctx context.Context, d *decision) error {
	var p params
	p.int8s(d.limits)
	p.int8s(d.subjects)
	p.times(d.windows)
	ctx, cancel := context.WithTimeout(ctx, statementWait)
	defer cancel()
	conn, err := l.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("acquire connection: %w", err)
	}
	defer conn.Release()
	result := conn.Conn().PgConn().ExecParams(ctx, makeMetersSQL, p.values[:p.n], p.oids[:p.n], []int16{pgtype.BinaryFormatCode}, nil).Read()
	if result.Err != nil {
		return fmt.Errorf("make meters: %w", result.Err)
	}
	return nil
}

// tick notes the database's clock. It was read a little before the answer came; ids that are a little too old harm nobody.
func (l *Ledger) tick(database time.Time, configVersion int64) {
	l.clock.Store(&clockReading{database: database, local: time.Now()})
	l.config.Store(configVersion)
}

// unavailable reports whether an error means that the database could not answer, rather than that it refused what it was
// asked.
func unavailable(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return !errors.Is(err, errWire) && !errors.Is(err, errConflicts)
	}
	switch pg.Code[:2] {
	case "08", "53", "57", "58", "25", "55", "XX":
		return true
	}
	return false
}

// wasCut reports whether a connection ended, rather than that nothing came over it.
func wasCut(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code[:3] == stateShutdown
	}
	return !errors.Is(err, context.DeadlineExceeded)
}

// explain turns the database's answers for the admissions into reservations and denials, by walking through them as it
// did, with the same arithmetic.
func (b *batch) explain(d *decision) (mismatch bool, err error) {
	meters := make([]meter.Meter, len(b.keys))
	windowEnds := make([]time.Time, len(b.keys))
	known := len(d.counts) == len(b.keys)
	if len(b.keys) > 0 && !known && d.admissions == nil {
		return false, errWire
	}
	limitOf := make([]*governance.Limit, len(b.keys))
	for _, a := range b.admissions {
		for i, w := range a.wants {
			limitOf[b.index[w.key]] = a.request.Holds[i].Limit
		}
	}
	for k, limit := range limitOf {
		m := &meters[k]
		m.Rule = meter.RuleOf(limit)
		if !known {
			continue
		}
		m.Unlimited = d.amounts[k] == null || d.counts[k] != 1
		m.Amount, m.Burst = max(d.amounts[k], 0), max(d.bursts[k], 0)
		m.Log = d.log[k] == 1
		m.Level, m.Spent, m.Held, m.Carried = d.levels[k], d.spent[k], d.held[k], d.carried[k]
		if limit.Kind == governance.KindBudget {
			_, windowEnds[k], _ = meter.Window(limit, d.at) // of a zone that only the database knows: no end is told
		}
	}
	taken := make([]meter.Taken, 0, 16)
	wants := make([]meter.Want, 0, 16)
	for j, a := range b.admissions {
		verdict := int64(admitted)
		if d.admissions != nil {
			verdict = d.admissions[j]
		}
		wants, taken = wants[:0], taken[:0]
		for _, w := range a.wants {
			wants = append(wants, meter.Want{Meter: b.index[w.key], Amount: w.amount, Carried: w.carried})
			taken = append(taken, meter.TookNothing)
		}
		switch verdict {
		case admitted:
			if !meter.Admit(meters, wants, taken) {
				mismatch = true
				for i := range wants {
					wants[i].Carried = true
				}
				meter.Admit(meters, wants, taken)
			}
		case openAlready:
		case refused:
			denial := &governance.Denial{ConfigVersion: d.configVersion}
			for i, w := range a.wants {
				k := b.index[w.key]
				// After a conflict what is carried may have been given back before, so the database asked for room.
				if m := &meters[k]; w.amount > 0 && (!w.carried || b.carefully) && !m.Log && !m.Room(w.amount) {
					denial.Refusals = append(denial.Refusals, refusal(m, &a.request.Holds[i], d.at, windowEnds[k]))
				}
			}
			if len(denial.Refusals) == 0 {
				mismatch = true
				for i, w := range a.wants {
					k := b.index[w.key]
					denial.Refusals = append(denial.Refusals, refusal(&meters[k], &a.request.Holds[i], d.at, windowEnds[k]))
				}
			}
			a.err = denial
			continue
		case limitsUnknown:
			a.err = fmt.Errorf("reserve attempt %s: %w", a.request.ID, governance.ErrStaleChain)
			continue
		case closedAlready:
			a.err = fmt.Errorf("reserve attempt %s: %w", a.request.ID, governance.ErrAlreadyClosed)
			continue
		case wrongTime:
			a.err = fmt.Errorf("reserve attempt %s: %w", a.request.ID, errInvalidTime)
			continue
		default:
			continue // waits for a lock
		}
		a.reservation = governance.Reservation{
			ID: a.request.ID, AdmittedAt: d.at, ConfigVersion: d.configVersion,
			Levels: make([]governance.Level, len(a.wants)),
		}
		for i, w := range a.wants {
			k := b.index[w.key]
			a.reservation.Levels[i] = meters[k].Describe(a.request.Holds[i].Limit, w.subject, d.at, windowEnds[k])
			a.reservation.Levels[i].WouldRefuse = taken[i].Refused()
		}
	}
	return mismatch, nil
}

func refusal(m *meter.Meter, h *governance.Hold, now, windowEnd time.Time) governance.Refusal {
	f := governance.Refusal{Level: m.Describe(h.Limit, h.Subject, now, windowEnd), Wanted: h.Amount}
	f.Reason, f.RetryAfter, f.Forever = m.Refuse(h.Amount, now, windowEnd)
	return f
}

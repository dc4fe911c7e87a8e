package ledger_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/pgstore/ledger"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// act is one call of a history, and answered what came of it.
type act struct {
	lane    string
	reserve *governance.ReserveRequest
	settle  *governance.Settlement
	expire  int // at most so many
	pass    time.Duration
}

type answered struct {
	verdict verdict
	levels  []governance.Level
	closed  int
	void    bool // the machine was too busy for this to mean anything
}

// linear is the book as a sequential specification. Sweepers do not wait for each other nor for who holds a meter, so how
// much one of them closes is not determined.
func linear(b *book) porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{b} },
		Step: func(state, input, output any) []any {
			next := state.(*book).clone()
			in, out := input.(act), output.(answered)
			switch {
			case in.reserve != nil:
				_, answers := next.reserve(in.lane, nil, []*governance.ReserveRequest{in.reserve})
				want := answers[0]
				if !want.agrees(out.verdict) || out.verdict == fine && !reflect.DeepEqual(want.levels, out.levels) {
					return nil
				}
			case in.settle != nil:
				if next.settle(in.lane, in.settle)[0] != out.verdict {
					return nil
				}
			case in.pass > 0:
				next.now = next.now.Add(in.pass)
			default:
				return next.sweeps(out.closed)
			}
			return []any{next}
		},
		Equal: func(x, y any) bool {
			a, b := x.(*book), y.(*book)
			return a.now.Equal(b.now) && maps.Equal(a.meters, b.meters) && maps.EqualFunc(a.attempts, b.attempts, func(p, q attempt) bool {
				return p.state == q.state && p.lapsed == q.lapsed
			})
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v → %+v", input, output) },
	}
	return model.ToModel()
}

// sweeps lists what the book may be after a sweep that closed n attempts.
func (b *book) sweeps(n int) []any {
	gone := b.expirable()
	if n > len(gone) {
		return nil
	}
	var all []any
	var choose func(from int, chosen []ids.ID)
	choose = func(from int, chosen []ids.ID) {
		if len(chosen) == n {
			next := b.clone()
			next.expire(chosen...)
			all = append(all, next)
			return
		}
		for i := from; i < len(gone); i++ {
			choose(i+1, append(chosen[:len(chosen):len(chosen)], gone[i]))
		}
	}
	choose(0, nil)
	return all
}

// TestLedger_IsLinearizable runs histories of concurrent calls through three ledgers on one database, with limits that are
// nearly used up, and looks for an order of the calls in which the book would have given the same answers.
func TestLedger_IsLinearizable(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	setClock := db.stopClock(t)
	now := time.Date(2027, 5, 1, 0, 0, 0, 0, time.UTC)
	setClock(now)
	lanes := make(map[string]*ledger.Ledger)
	var names []string
	for _, name := range []string{"first", "second", "third"} {
		l := start(t, ledger.Options{Pool: db.Pool, Grace: time.Nanosecond, Lease: time.Hour})
		lanes[name], names = l, append(names, name)
		eventually(t, "registers", func() bool { return l.Stats().Process != 0 })
	}
	histories := operations(t, 400) / 20
	var refused, expired, void int
	for n := range histories {
		random := rand.New(rand.NewPCG(uint64(n), 20)) // a history is made again from its number
		now = now.Add(time.Minute)
		setClock(now)
		db.exec(t, "DELETE FROM ledger.reservations")
		limits := []*governance.Limit{
			db.limit(t, governance.Limit{Kind: governance.KindRate, Metric: governance.MetricTokens, Amount: 60, Burst: 12, Per: time.Minute}),
			db.limit(t, governance.Limit{Kind: governance.KindBudget, Metric: governance.MetricTokens, Amount: 12}),
			db.limit(t, governance.Limit{Kind: governance.KindConcurrency, Metric: governance.MetricRequests, Amount: 2}),
			db.limit(t, governance.Limit{
				Kind: governance.KindBudget, Metric: governance.MetricCost, Amount: 10, CarryDebt: true,
				Window: governance.Window{Type: governance.WindowFixed, Duration: 2 * time.Second, Anchor: now},
			}),
		}
		b := newBook(now, limits)
		history := run(t, random, lanes, names, limits, now, db)
		if slices.ContainsFunc(history, func(o porcupine.Operation) bool { return o.Output.(answered).void }) {
			void++
			continue
		}
		for i := range history {
			out := history[i].Output.(answered)
			refused += boolean(out.verdict == denied)
			expired += out.closed
		}
		result := porcupine.CheckOperationsTimeout(linear(b), history, time.Minute)
		if result != porcupine.Ok {
			for i := range history {
				in, out := history[i].Input.(act), history[i].Output.(answered)
				t.Logf("%8d–%8d µs %s", history[i].Call/1000, history[i].Return/1000, in.String(out))
			}
			t.Fatalf("history %d of %d: %s", n, histories, result)
		}
	}
	t.Logf("%d histories with %d refusals and %d expiries; %d more mean nothing, since the machine was busy", histories-void, refused, expired, void)
	require.Positive(t, refused)
	require.Positive(t, expired)
}

func (a act) String(out answered) string {
	switch {
	case a.reserve != nil:
		return fmt.Sprintf("%s: reserve %s: %s %s", a.lane, describe(a.reserve), out.verdict, describeLevels(out.levels))
	case a.settle != nil:
		return fmt.Sprintf("%s: settle %s: %s", a.lane, describeSettlement(a.settle), out.verdict)
	case a.pass > 0:
		return fmt.Sprintf("%s pass", a.pass)
	default:
		return fmt.Sprintf("%s: expire %d: %d", a.lane, a.expire, out.closed)
	}
}

func describeLevels(levels []governance.Level) string {
	var s string
	for i := range levels {
		s += fmt.Sprintf("[%d left, %d spent, %d held, %d owed] ", levels[i].Remaining, levels[i].Spent, levels[i].Held, levels[i].Debt)
	}
	return s
}

// pause is how much time passes when it does.
const pause = 900 * time.Millisecond

// run makes one history of four clients, each with a request after the other, two of which let time pass and sweep.
func run(
	t *testing.T, random *rand.Rand, lanes map[string]*ledger.Ledger, names []string, limits []*governance.Limit, now time.Time, db database,
) []porcupine.Operation {
	var mu sync.Mutex
	var history []porcupine.Operation
	begun := time.Now()
	record := func(client int, in act, do func() answered) answered {
		call := time.Since(begun).Nanoseconds()
		out := do()
		back := time.Since(begun).Nanoseconds()
		mu.Lock()
		defer mu.Unlock()
		history = append(history, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: back})
		return out
	}
	var clients sync.WaitGroup
	for client := range 4 {
		lane := names[random.IntN(len(names))]
		seed := random.Uint64()
		clients.Go(func() {
			random := rand.New(rand.NewPCG(seed, 0)) // a history is made again from its number
			l := lanes[lane]
			for turn := range 2 + random.IntN(2) {
				if turn > 0 && client < 2 {
					record(client, act{pass: pause}, func() answered {
						db.exec(t, "UPDATE ledger.stopped_clock SET at = at + $1 * interval '1 microsecond'", pause.Microseconds())
						return answered{}
					})
					record(client, act{lane: lane, expire: 2}, func() answered {
						db.exec(t, "UPDATE ledger.processes SET beat_at = ledger.stopped_clock()")
						closed, err := l.Expire(t.Context(), 2)
						if err != nil {
							t.Error(err)
						}
						return answered{closed: closed}
					})
				}
				r := request(l)
				r.ID = ids.New(now)
				r.HardExpiry = time.Duration(random.IntN(3)) * time.Second
				for _, limit := range limits {
					amount := int64(1)
					if limit.Kind != governance.KindConcurrency {
						amount = 1 + random.Int64N(6)
					}
					if random.IntN(3) > 0 {
						r.Holds = append(r.Holds, hold(limit, 1, amount))
					}
				}
				got := record(client, act{lane: lane, reserve: &r}, func() answered {
					begun := time.Now()
					got, err := l.Reserve(t.Context(), r)
					return answered{verdict: verdictOf(err), levels: got.Levels, void: busy(begun, err)}
				})
				if got.verdict == denied && random.IntN(4) > 0 || random.IntN(4) == 0 {
					continue // sometimes an attempt is left to expiry
				}
				s := used(r.ID, random.Int64N(8), 0, random.Int64N(14))
				if random.IntN(4) == 0 {
					s = release(r.ID)
				}
				for range 1 + random.IntN(2) {
					via := lane
					if random.IntN(4) == 0 {
						via = names[random.IntN(len(names))]
					}
					record(client, act{lane: via, settle: &s}, func() answered {
						begun := time.Now()
						err := lanes[via].Settle(t.Context(), s)
						return answered{verdict: verdictOf(err), void: busy(begun, err)}
					})
				}
			}
		})
	}
	clients.Wait()
	return history
}

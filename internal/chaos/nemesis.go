package chaos

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tollgate-gateway/tollgate/internal/fleet"
)

// randomOf is the source of one of the driver's parts. Each has its own, so that what one does next does not depend on how
// fast another is.
func randomOf(seed uint64, part string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(part))                  // never fails
	return rand.New(rand.NewPCG(seed, h.Sum64())) //nolint:gosec // it has to come again with its seed
}

// trouble says how often what goes wrong; zero: never. All are mean times between two of a kind over the whole fleet.
type trouble struct {
	kill, pause, stall, cut, lock, crash time.Duration
	failover                             bool // every third crash is one
}

// nemesis makes the trouble of a run.
type nemesis struct {
	trouble
	seed     uint64
	product  *product
	database *database

	kills, terminations, pauses, stalls, locks, deafnesses atomic.Int64
	outages                                                int // of the database so far; only its crashes touch it

	mu     sync.Mutex
	faults []error // of the driver itself
	badEnd []string
}

// batchCall is what a request contains that decides a batch: the message Bind names first its portal, which has no name, and
// then the prepared statement.
var batchCall = []byte("\x00tollgate_batch_")

// run makes trouble until ctx ends, and returns when all is healed.
func (n *nemesis) run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, kind := range []struct {
		name  string
		every time.Duration
		do    func(context.Context, *rand.Rand, *sync.WaitGroup)
	}{
		{"kill", n.kill, n.killOne},
		{"pause", n.pause, n.pauseOne},
		{"stall", n.stall, n.stallOne},
		{"cut", n.cut, n.cutOne},
		{"lock", n.lock, n.holdMeter},
		{"crash", n.crash, n.crashDatabase},
	} {
		if kind.every == 0 {
			continue
		}
		all.Go(func() {
			random := randomOf(n.seed, kind.name)
			var apart sync.WaitGroup // trouble that goes on while the next begins
			defer apart.Wait()
			for sleep(ctx, time.Duration((0.5+random.Float64())*float64(kind.every))) {
				kind.do(ctx, random, &apart)
			}
		})
	}
	all.Wait()
	for _, g := range n.product.gateways {
		for _, p := range g.proxies {
			p.disarm()
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return errors.Join(n.faults...)
}

// failed notes a fault of the driver itself, but for those of its end.
func (n *nemesis) failed(ctx context.Context, what string, err error) {
	if err == nil || ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults = append(n.faults, fmt.Errorf("%s: %w", what, err))
}

func (n *nemesis) any(random *rand.Rand) *gateway {
	return n.product.gateways[random.IntN(len(n.product.gateways))]
}

// killOne ends a gateway and starts it again: most of the time as kill -9 does, sometimes in order.
func (n *nemesis) killOne(ctx context.Context, random *rand.Rand, apart *sync.WaitGroup) {
	g, orderly := n.any(random), n.crash == 0 && random.IntN(8) == 0
	if !g.trouble.TryLock() {
		return
	}
	apart.Go(func() {
		defer g.trouble.Unlock()
		if p := g.take(); p != nil && orderly {
			n.terminations.Add(1)
			n.endInOrder(g, p)
		} else if p != nil {
			n.failed(ctx, "kill gateway", p.Kill())
			n.kills.Add(1)
		}
		n.failed(ctx, "restart gateway", g.start(context.WithoutCancel(ctx)))
	})
}

// endInOrder ends the process of a gateway, and remembers one that does not end as it should.
func (n *nemesis) endInOrder(g *gateway, p *fleet.Process) {
	if err := terminate(p); err != nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.badEnd = append(n.badEnd, fmt.Sprintf("gateway %d: %s", g.number, err))
	}
}

// silence is longer than a lease and the sweep that follows it.
func silence(random *rand.Rand) time.Duration {
	return lease + time.Second + time.Duration(random.Int64N(int64(2*time.Second)))
}

// pauseOne stops a gateway for longer than its lease; then it goes on as if nothing had happened.
func (n *nemesis) pauseOne(ctx context.Context, random *rand.Rand, apart *sync.WaitGroup) {
	g, length := n.any(random), silence(random)
	if !g.trouble.TryLock() {
		return
	}
	apart.Go(func() {
		defer g.trouble.Unlock()
		n.pauses.Add(1)
		g.pause()
		sleep(ctx, length)
		g.resume()
	})
}

// stallOne keeps a gateway from its database, without a word, for longer than its lease or for a moment.
func (n *nemesis) stallOne(ctx context.Context, random *rand.Rand, apart *sync.WaitGroup) {
	g, length := n.any(random), silence(random)
	if random.IntN(2) == 0 {
		length = time.Duration(200+random.IntN(2000)) * time.Millisecond
	}
	if !g.trouble.TryLock() {
		return
	}
	apart.Go(func() {
		defer g.trouble.Unlock()
		n.stalls.Add(1)
		for _, p := range g.proxies {
			p.stall()
		}
		sleep(ctx, length)
		for _, p := range g.proxies {
			p.resume()
		}
	})
}

// cutOne lets the next request of a gateway that fits lose its reply, or its end.
func (n *nemesis) cutOne(_ context.Context, random *rand.Rand, _ *sync.WaitGroup) {
	o := order{cut: cutReply, aim: batchCall, part: random.Float64()}
	if random.IntN(4) == 0 {
		o.cut = cutRequest
	}
	if random.IntN(5) == 0 {
		o.aim = nil
	}
	for _, p := range n.any(random).proxies {
		p.arm(o)
	}
}

// holdMeter locks a meter for longer than clients of the database wait.
func (n *nemesis) holdMeter(ctx context.Context, random *rand.Rand, _ *sync.WaitGroup) {
	shared, salt := random.IntN(2) == 0, fmt.Sprint(random.Uint32())
	length := time.Duration(2200+random.IntN(900)) * time.Millisecond
	err := n.database.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			var limit int64
			if err := tx.QueryRow(ctx, statement("hold_meter"), pgx.StrictNamedArgs{"shared": shared, "salt": salt}).Scan(&limit); err != nil {
				return err
			}
			n.locks.Add(1)
			sleep(ctx, length)
			return nil
		})
	})
	if !errors.Is(err, pgx.ErrNoRows) { // nobody has used a limit yet
		n.failed(ctx, "hold a meter", err)
	}
}

// crashDatabase ends the database as a power cut does. It comes back, or its standby takes over.
func (n *nemesis) crashDatabase(ctx context.Context, random *rand.Rand, _ *sync.WaitGroup) {
	immediate, down := random.IntN(2) == 0, time.Duration(random.IntN(2500))*time.Millisecond
	n.outages++
	if n.failover && n.outages%3 == 2 {
		deaf := time.Duration(0)
		if n.outages%2 == 0 {
			deaf = 3500*time.Millisecond + down // longer than gateways wait for a statement
			n.deafnesses.Add(1)
		}
		n.failed(ctx, "fail over", n.database.failOver(ctx, immediate, deaf))
		return
	}
	n.failed(ctx, "crash the database", n.database.crash(ctx, immediate, down))
}

// cuts are the connections that were cut, by what was lost.
func (n *nemesis) cuts() (replies, requests int64) {
	for _, g := range n.product.gateways {
		for _, p := range g.proxies {
			replies += p.replies.Load()
			requests += p.requests.Load()
		}
	}
	return replies, requests
}

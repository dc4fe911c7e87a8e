package virtualkey

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"

	"github.com/tollgate-gateway/tollgate/governance"
)

const (
	maxUnknown = 10_000 // cached look-ups that found nothing
	maxSources = 10_000 // sources of failures that are remembered
	maxTouched = 1 << 17
	// A source that fails may have this many look-ups of unknown keys at once, and as many a second.
	failures = 20
)

var (
	errTooManyFailures = errors.New("too many unknown keys from this source")
	errSilent          = errors.New("the store does not answer look-ups of keys")
)

// patience is how long a look-up may take before others no longer wait for the store in vain.
const patience = 250 * time.Millisecond

// entry is what a look-up found. It is immutable but for used.
type entry struct {
	record  governance.KeyRecord
	readAt  time.Time   // before the look-up, so that age is never understated
	used    atomic.Bool // its use was noted
	unknown bool        // there is no such key
}

// cache holds what the store said of keys, per entry, for at most maxAge.
type cache struct {
	store   governance.KeyFinder
	maxAge  time.Duration
	known   *lru.Cache[string, *entry]
	unknown *lru.Cache[string, *entry]
	sources *lru.Cache[netip.Prefix, *source]
	flights singleflight.Group
	gate    gate

	// epoch counts changes. A look-up that began before a change is not kept, and nobody who came after it waits for it.
	mu    sync.Mutex
	epoch uint64
}

func newCache(store governance.KeyFinder, entries int, maxAge time.Duration) (*cache, error) {
	known, err := lru.New[string, *entry](entries)
	if err != nil {
		return nil, err
	}
	unknown, err := lru.New[string, *entry](maxUnknown)
	if err != nil {
		return nil, err
	}
	sources, err := lru.New[netip.Prefix, *source](maxSources)
	if err != nil {
		return nil, err
	}
	return &cache{store: store, maxAge: maxAge, known: known, unknown: unknown, sources: sources}, nil
}

// changed forgets what a change of configuration may have made wrong: a key, or those that belong to a team, a user or an
// organization. num 0 stands for all of them. What was unknown may have come into being.
func (c *cache) changed(kind string, num int64) {
	var owner func(*governance.KeyRecord) int64
	switch kind {
	case "key":
		owner = func(r *governance.KeyRecord) int64 { return r.Key.Num }
	case "team":
		owner = func(r *governance.KeyRecord) int64 { return r.Principal.Team.Num }
	case "user":
		owner = func(r *governance.KeyRecord) int64 { return r.Principal.User.Num }
	case "organization":
		owner = func(r *governance.KeyRecord) int64 { return r.Principal.Organization.Num }
	default:
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	c.unknown.Purge()
	for _, id := range c.known.Keys() {
		if e, ok := c.known.Peek(id); ok && (num == 0 || owner(&e.record) == num) {
			c.known.Remove(id)
		}
	}
}

// find returns a key's entry, at most maxAge old. ErrNotFound: there is no such key; errTooManyFailures: the source may not
// ask for now; any other error: the store could not be read.
func (c *cache) find(ctx context.Context, publicID, ip string) (*entry, error) {
	known, seen := c.known.Get(publicID)
	if seen && c.fresh(known) {
		if time.Since(known.readAt) > c.maxAge/2 {
			c.renew(ctx, publicID) // so that keys in use are read anew before anybody has to wait for it
		}
		return known, nil
	}
	if e, ok := c.unknown.Get(publicID); ok && c.fresh(e) {
		return nil, governance.ErrNotFound
	}
	if seen {
		return c.lookUp(ctx, publicID) // a key that was good a moment ago never pays for its neighbours
	}
	from := c.source(ip)
	paid, ok := from.enter()
	if !ok {
		return nil, errTooManyFailures
	}
	e, err := c.lookUp(ctx, publicID)
	from.leave(paid, errors.Is(err, governance.ErrNotFound))
	return e, err
}

func (c *cache) fresh(e *entry) bool { return time.Since(e.readAt) < c.maxAge }

// lookUp asks the store, once for all who wait for the same key. The look-up has its own time limit and goes on when one of
// them leaves.
func (c *cache) lookUp(ctx context.Context, publicID string) (*entry, error) {
	if c.gate.closed() {
		return nil, errSilent
	}
	flight := c.begin(ctx, publicID)
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for key: %w", ctx.Err())
	case result := <-flight:
		if result.Err != nil {
			return nil, result.Err
		}
		e := result.Val.(*entry)
		if e.unknown {
			return nil, governance.ErrNotFound
		}
		return e, nil
	}
}

// renew starts a look-up that nobody waits for.
func (c *cache) renew(ctx context.Context, publicID string) {
	if !c.gate.closed() {
		c.begin(ctx, publicID)
	}
}

// begin starts a look-up, or joins the one that is under way.
func (c *cache) begin(ctx context.Context, publicID string) <-chan singleflight.Result {
	c.mu.Lock()
	epoch := c.epoch
	c.mu.Unlock()
	return c.flights.DoChan(publicID+"@"+strconv.FormatUint(epoch, 10), func() (found any, err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("look up key: panic: %v", p)
			}
		}()
		return c.read(context.WithoutCancel(ctx), publicID, epoch)
	})
}

func (c *cache) read(ctx context.Context, publicID string, epoch uint64) (*entry, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	e := &entry{readAt: time.Now()}
	answered := false
	end := c.gate.pass()
	defer func() { end(answered) }()
	var err error
	e.record, err = c.store.FindKey(ctx, publicID)
	answered = err == nil || errors.Is(err, governance.ErrNotFound)
	switch {
	case errors.Is(err, governance.ErrNotFound):
		e.unknown = true
	case err != nil:
		return nil, fmt.Errorf("look up key: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if epoch != c.epoch {
		return e, nil
	}
	if e.unknown {
		c.known.Remove(publicID)
		c.unknown.Add(publicID, e)
	} else {
		c.known.Add(publicID, e)
	}
	return e, nil
}

// gate closes while the store does not answer: callers are then told so at once, instead of each finding out by a time-out
// of its own. One look-up at a time goes on to ask, and opens it again.
type gate struct {
	mu      sync.Mutex
	asking  int  // look-ups under way
	overdue int  // of them, those beyond patience
	failed  bool // the last look-up that ended was not answered
}

func (g *gate) closed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.overdue > 0 || g.failed && g.asking > 0
}

// pass begins a look-up; what it returns ends it.
func (g *gate) pass() (end func(answered bool)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asking++
	ended, late := false, false
	timer := time.AfterFunc(patience, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if !ended {
			late = true
			g.overdue++
		}
	})
	return func(answered bool) {
		timer.Stop()
		g.mu.Lock()
		defer g.mu.Unlock()
		ended = true
		g.asking--
		if late {
			g.overdue--
		}
		g.failed = !answered
	}
}

// source is one address, or one IPv6 network, from which keys come: a bucket of failures.
type source struct {
	mu   sync.Mutex
	left int
	at   time.Time // up to which left has been refilled
}

func (c *cache) source(ip string) *source {
	var from netip.Prefix // the zero prefix stands for all that cannot be told apart
	if addr, err := netip.ParseAddr(ip); err == nil {
		bits := 32
		if addr = addr.Unmap(); addr.Is6() {
			bits = 64
		}
		from, _ = addr.Prefix(bits) // valid for every address of that family
	}
	if s, ok := c.sources.Get(from); ok {
		return s
	}
	s := &source{left: failures, at: time.Now()}
	if earlier, ok, _ := c.sources.PeekOrAdd(from, s); ok {
		return earlier
	}
	return s
}

// enter asks for one look-up. A source without recent failures has as many as it likes; paid says that the look-up is paid
// for in advance.
func (s *source) enter() (paid, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if grown := int(now.Sub(s.at) / (time.Second / failures)); grown > 0 {
		s.left = min(failures, s.left+grown)
		s.at = now
	}
	switch s.left {
	case failures:
		return false, true
	case 0:
		return false, false
	}
	s.left--
	return true, true
}

// leave ends a look-up: only a failure is paid for.
func (s *source) leave(paid, failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case failed && !paid:
		s.left = max(0, s.left-1)
	case paid && !failed:
		s.left = min(failures, s.left+1)
	}
}

// touched collects keys whose use is to be noted.
type touched struct {
	mu   sync.Mutex
	keys map[int64]struct{}
}

func (t *touched) add(key int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.keys == nil {
		t.keys = make(map[int64]struct{})
	}
	if len(t.keys) < maxTouched {
		t.keys[key] = struct{}{}
	}
}

// take returns the collected keys in order, so that replicas lock their rows in the same order.
func (t *touched) take() []int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	keys := make([]int64, 0, len(t.keys))
	for key := range t.keys {
		keys = append(keys, key)
	}
	t.keys = nil
	slices.Sort(keys)
	return keys
}

// aging collects secrets that are stored under an old pepper, each once and at most maxTouched of them; the others are met
// again at their next use.
type aging struct {
	mu  sync.Mutex
	all map[string]governance.Rehash
}

func (a *aging) add(r governance.Rehash) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all == nil {
		a.all = make(map[string]governance.Rehash)
	}
	if len(a.all) < maxTouched {
		a.all[r.Was.PublicID] = r
	}
}

func (a *aging) take() []governance.Rehash {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := slices.Collect(maps.Values(a.all))
	a.all = nil
	return all
}

package gateway

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/lognames"
)

const (
	longestCooldown = 2 * time.Minute // of a target that fails each probe
	longestHint     = time.Minute     // of a provider's Retry-After that is heeded
	mostTargets     = 10_000          // whose health is remembered
)

// breakers keep this process's calls away from targets that fail. Each process has its own: what one replica sees of a
// provider another may not.
//
// A target that has failed so many times in a row is open: it is tried last, for a cool-down. Then one call is let through; if
// that fails the cool-down doubles, if not the target is closed again. A target whose provider refused for its rate is tried
// last for as long as the provider says, which says nothing of its health. The targets of a model are never all put aside.
type breakers struct {
	failures int // in a row that open a target; 0: none ever is
	cooldown time.Duration
	now      func() time.Time
	log      zerolog.Logger
	changed  func(values ...string)

	mu      sync.Mutex
	targets map[int64]*health
}

// health is what is known of one target.
type health struct {
	failures int           // in a row
	open     bool          // until a call succeeds
	until    time.Time     // of the cool-down, where it is open; then one call may probe
	cooldown time.Duration // the next one
	busy     time.Time     // until when its provider wants no calls
}

// diagnosis is what a call to a target says of its health.
type diagnosis uint8

const (
	saysNothing diagnosis = iota
	isWell
	isIll
	isBusy
)

func newBreakers(cfg Config, now func() time.Time, log zerolog.Logger, changed func(values ...string)) *breakers {
	return &breakers{
		failures: cfg.BreakerFailures, cooldown: cfg.BreakerCooldown, now: now, log: log, changed: changed, targets: make(map[int64]*health),
	}
}

// order returns targets with those that are put aside behind the others, the one that comes back first in front, and how many
// are not.
func (b *breakers) order(targets []*governance.Target) (ordered []*governance.Target, well int) {
	if len(targets) < 2 {
		return targets, 0 // there is nothing to choose from
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	back := make(map[int64]time.Time)
	for _, t := range targets {
		if h := b.targets[t.Num]; h != nil {
			if at := h.back(); at.After(now) {
				back[t.Num] = at
			}
		}
	}
	if len(back) == 0 {
		return targets, len(targets)
	}
	ordered = slices.Clone(targets)
	slices.SortStableFunc(ordered, func(x, y *governance.Target) int {
		one, other := back[x.Num], back[y.Num]
		return cmp.Or(one.Compare(other))
	})
	return ordered, len(ordered) - len(back)
}

// back is when calls may go to the target again.
func (h *health) back() time.Time {
	if h.open && h.until.After(h.busy) {
		return h.until
	}
	return h.busy
}

// enter asks to call a target that is not put aside. Behind a cool-down the first one who asks is let through as a probe, and
// the others have to go elsewhere.
func (b *breakers) enter(t *governance.Target) (ok, probe bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.targets[t.Num]
	now := b.now()
	switch {
	case h == nil:
		return true, false
	case h.back().After(now):
		return false, false
	case h.open: // a probe that is never heard of again is followed by another one
		h.until = now.Add(h.cooldown)
		return true, true
	}
	return true, false
}

// leave notes what a call to a target has shown. wait is how long the provider wants to be left alone; 0: it did not say.
func (b *breakers) leave(t *governance.Target, d diagnosis, probe bool, wait time.Duration) {
	if b.failures == 0 || d == saysNothing && !probe {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.targets[t.Num]
	if h == nil {
		if d == isWell || d == saysNothing {
			return
		}
		if len(b.targets) >= mostTargets {
			clear(b.targets)
		}
		h = &health{cooldown: b.cooldown}
		b.targets[t.Num] = h
	}
	now := b.now()
	wait = min(wait, longestHint)
	switch d {
	case saysNothing:
		h.until = now // the next call may probe: callers that are refused must not keep a target aside
	case isWell:
		if h.open {
			b.tell(t, "closed")
		}
		delete(b.targets, t.Num)
	case isBusy:
		if until := now.Add(wait); until.After(h.busy) {
			h.busy = until
		}
	case isIll:
		h.failures++
		if h.failures < b.failures && !h.open {
			return
		}
		if probe {
			h.cooldown = min(2*h.cooldown, max(longestCooldown, b.cooldown))
		}
		if !h.open {
			h.open = true
			b.tell(t, "open")
		}
		h.until = now.Add(max(h.cooldown, wait))
	}
}

func (b *breakers) tell(t *governance.Target, state string) {
	b.changed(t.ID, state)
	b.log.Warn().Str(lognames.Target, t.ID).Str(lognames.Provider, t.Provider.Name).Str(lognames.State, state).Msg("breaker of a target changed")
}

// shows is what an attempt says of its target's health. Only faults of the upstream count: what the caller asked for, our own
// account, our limits, guardrails and clients that leave do not (F218).
func (a *attempt) shows(err error) (diagnosis, time.Duration) {
	switch {
	case err == nil:
		return isWell, 0
	case errors.Is(err, errClientLeft), a.ending.ClientLeft, a.ending.Blocked, a.ending.Cut:
		return saysNothing, 0
	}
	f, ok := errors.AsType[*failure](err)
	if !ok {
		return saysNothing, 0
	}
	switch {
	case f.status == http.StatusTooManyRequests && f.cause.Code == governance.CodeRateLimitExceeded:
		return isBusy, f.wait
	case f.status == http.StatusRequestTimeout || f.status == http.StatusTooManyRequests:
		return saysNothing, 0
	case f.status != 0 && f.status < http.StatusInternalServerError:
		return isWell, 0 // it reads requests, and does not like this one
	}
	switch f.cause.Code {
	case governance.CodeUpstreamUnreachable, governance.CodeUpstreamTimeout, governance.CodeUpstreamAborted, governance.CodeUpstreamInvalid:
		return isIll, f.wait
	}
	return saysNothing, 0
}

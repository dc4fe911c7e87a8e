package drill

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// How the balancer looks after its gateways.
const (
	probeEvery   = 100 * time.Millisecond
	probeTimeout = 5 * time.Second
)

// balancer spreads calls over gateways as a load balancer does: it probes their readiness, sends nothing to one whose
// newest probe failed, and hands every fault of the others to its clients, without any retry.
type balancer struct {
	client *client
	probes http.Client

	mu      sync.Mutex
	members []*member
	next    int
}

// member is one gateway behind the balancer.
type member struct {
	base, ops string
	ready     bool
}

func newBalancer(c *client) *balancer {
	return &balancer{client: c, probes: http.Client{Timeout: probeTimeout, Transport: &http.Transport{}}}
}

// add begins to probe a gateway. It gets calls from its first good probe on.
func (b *balancer) add(base, ops string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.members = append(b.members, &member{base: base, ops: ops})
}

// run probes until ctx ends.
func (b *balancer) run(ctx context.Context) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	defer b.probes.CloseIdleConnections()
	for {
		b.mu.Lock()
		members := b.members
		b.mu.Unlock()
		var all sync.WaitGroup
		for _, m := range members {
			all.Go(func() {
				ready := b.probe(ctx, m.ops)
				b.mu.Lock()
				defer b.mu.Unlock()
				m.ready = ready
			})
		}
		all.Wait()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (b *balancer) probe(ctx context.Context, ops string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, ops+"/readyz", nil)
	if err != nil {
		return false
	}
	r, err := b.probes.Do(req)
	if err != nil {
		return false
	}
	return r.Body.Close() == nil && r.StatusCode == http.StatusOK
}

// serving reports whether a gateway gets calls.
func (b *balancer) serving(base string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.members {
		if m.base == base {
			return m.ready
		}
	}
	return false
}

// pick returns the next ready gateway; "": there is none.
func (b *balancer) pick() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for range b.members {
		b.next = (b.next + 1) % len(b.members)
		if m := b.members[b.next]; m.ready {
			return m.base
		}
	}
	return ""
}

// call sends a chat to the next ready gateway.
func (b *balancer) call(ctx context.Context, key, body string) answer {
	base := b.pick()
	if base == "" {
		return answer{status: http.StatusServiceUnavailable, body: []byte(`{"error":{"code":"no gateway is ready"}}`)}
	}
	return b.client.call(ctx, base, key, body)
}

// traffic sends calls, so many a second, whether or not earlier ones were answered, until stop is closed. It returns all
// answers when the last one is there.
func (b *balancer) traffic(ctx context.Context, perSecond int, key, body string, stop <-chan struct{}) []answer {
	var mu sync.Mutex
	var answers []answer
	var all sync.WaitGroup
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for {
		select {
		case <-stop:
			all.Wait()
			return answers
		case <-ctx.Done():
			all.Wait()
			return answers
		case <-tick.C:
			all.Go(func() {
				a := b.call(ctx, key, body)
				mu.Lock()
				defer mu.Unlock()
				answers = append(answers, a)
			})
		}
	}
}

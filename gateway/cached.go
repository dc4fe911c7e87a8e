package gateway

import (
	"context"
	"crypto/sha256"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/plugins"
)

// tagSaved is the tag of a spend row that says what an answer from the cache would have cost.
const tagSaved = ownTag + "cache_saved_usd"

// transcript is a copy of what a client is sent, for a cache.
type transcript struct {
	slot plugins.Slot
	body []byte
	over bool // there was more than the slot has room for
}

func (t *transcript) add(b []byte) {
	if t == nil || t.over {
		return
	}
	if len(t.body)+len(b) > t.slot.Room {
		t.over, t.body = true, nil
		return
	}
	t.body = append(t.body, b...)
}

// lookUp asks the answer cache. What it knows counts only where the target that gave it still serves the caller's model.
func (c *call) lookUp() *plugins.Answer {
	c.Policy = c.g.chain.policy(c)
	hit, slot := c.g.chain.lookUp(c.ctx(), c)
	if hit != nil && c.servedBy(hit.TargetNum) == nil {
		hit = nil
	}
	if slot.Room > 0 && !c.keepsAlive() {
		c.copy = &transcript{slot: slot}
	}
	if hit == nil && c.copy != nil {
		c.header("X-Tollgate-Cache", "miss")
	}
	return hit
}

// servedBy returns the target of that number, if the call may go there.
func (c *call) servedBy(num int64) *governance.Target {
	for _, t := range c.Resolved.Targets {
		if t.Num == num {
			return t
		}
	}
	return nil
}

// answerAgain gives the call an answer that is there already. It is admitted against the limits of requests, and booked.
func (c *call) answerAgain(hit *plugins.Answer) error {
	c.hit, c.copy = hit, nil
	a, err := c.reserve(c.servedBy(hit.TargetNum))
	if err != nil {
		return err
	}
	c.tag(map[string]string{tagSaved: hit.Cost.String()})
	settled := c.settle(a, c.g.cfg.AnswerHold)
	c.header("X-Tollgate-Cache", "hit")
	c.header("Age", strconv.FormatInt(max(0, int64(time.Since(hit.At).Seconds())), 10))
	if hit.Stream {
		c.streamHeaders(a)
	} else {
		c.answerHeaders(a, hit.ContentType)
		c.header("Content-Length", strconv.Itoa(len(hit.Body)))
		c.header("X-Tollgate-Cost-Usd", settled.Cost.String())
		c.begin(http.StatusOK)
	}
	err = c.write(hit.Body)
	if err == nil {
		err = c.flush()
	}
	if err != nil {
		c.abort = true
		return errClientLeft
	}
	return nil
}

// planAgain prepares the admission of an answer that is there already: one request (ruling 29), and nothing of the target's.
func (c *call) planAgain() (*attempt, governance.ReserveRequest, error) {
	t := c.Target
	p := c.g.providers[t.ProviderKind]
	way, ok := c.g.lanes.to(p, c.route.dialect)
	if !ok {
		return nil, governance.ReserveRequest{}, c.noLane()
	}
	all, err := c.g.chain.charge(c.ctx(), c)
	if err != nil {
		return nil, governance.ReserveRequest{}, err
	}
	var requests []governance.Hold
	for i := range all {
		if isRequest(&all[i]) {
			requests = append(requests, all[i])
		}
	}
	a := &attempt{id: ids.New(c.g.now()), number: 1, target: t, provider: p, lane: way, meter: p.Meter(way.dialect), holds: requests}
	a.ending = governance.Ending{ID: a.id, Price: t.Price, CacheHit: true}
	return a, governance.ReserveRequest{
		ID: a.id, Holds: requests, HardExpiry: c.g.cfg.Unary + c.g.cfg.ExpiryMargin, Origin: c.origin(t, a.number),
	}, nil
}

// keepAnswer gives the answer cache what the client was sent, if that is a whole answer that others could be given.
func (c *call) keepAnswer() {
	n := len(c.attempts)
	if c.copy == nil || c.copy.over || c.err != nil || c.abort || c.status != http.StatusOK || n == 0 {
		return
	}
	last := &c.attempts[n-1]
	if last.Settlement.Outcome != governance.OutcomeComplete || last.Settlement.Source != governance.UsageProvider {
		return
	}
	c.copy.slot.Keep(plugins.Answer{
		TargetNum: last.Target.Num, ContentType: c.w.Header().Get("Content-Type"), Body: c.copy.body, Stream: c.stream.open,
		Cost: last.Settlement.Cost, At: time.Now(),
	})
}

// policy names what all guards together hold the call to. A guard that cannot say so may treat each key in its own way.
func (ch *chain) policy(c *call) string {
	if len(ch.caches) == 0 {
		return ""
	}
	var all strings.Builder
	for _, l := range ch.links {
		_, guards := l.Plugin.(plugins.Guard)
		_, events := l.Plugin.(plugins.AnswerGuard)
		if !guards && !events {
			continue
		}
		policy := "key " + strconv.FormatInt(c.Principal.Key.Num, 10)
		if p, ok := l.Plugin.(plugins.Policied); ok {
			policy = p.Policy(&c.Call)
		}
		sum := sha256.Sum256([]byte(policy))
		all.WriteString(l.Plugin.ID())
		all.Write(sum[:])
	}
	return all.String()
}

// lookUp asks the cache. One that fails knows nothing, whatever its failure mode is: the call can be forwarded.
func (ch *chain) lookUp(ctx context.Context, c *call) (hit *plugins.Answer, slot plugins.Slot) {
	for _, s := range ch.caches {
		err := ch.run(ctx, c, s.at, func(ctx context.Context) (err error) {
			hit, slot, err = s.do.Lookup(ctx, &c.Call)
			return err
		})
		if err == nil {
			continue
		}
		if ctx.Err() == nil {
			ch.failed(ch.links[s.at].Plugin.ID())
		}
		hit, slot = nil, plugins.Slot{}
	}
	return hit, slot
}

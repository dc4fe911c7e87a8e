package gateway

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/tollgate-gateway/tollgate/providers"
)

// keeper sends keep-alives to the client of a stream while its upstream is silent, for boxes in between that cut silent
// connections (F097, ruling 38). The first one commits to status 200: what goes wrong later is told within the stream. They
// are ordinary frames with an empty delta, since comments break the error handling of clients.
//
// The goroutine that serves the call holds the lock for all of the attempt, save while it waits for the upstream. A nil
// keeper does nothing.
type keeper struct {
	c     *call
	a     *attempt
	mu    sync.Mutex
	over  bool
	since time.Time // the upstream is waited for
	timer *time.Timer
}

// keepsAlive reports whether the call's stream may have keep-alives: the dialect must have a frame that says nothing.
func (c *call) keepsAlive() bool {
	d := c.route.dialect
	return c.Stream && c.g.cfg.KeepAlive > 0 && (hasStreamOptions(d) || d == providers.AnthropicMessages)
}

// keepAlive starts the keep-alives of an attempt. stop must be called.
func (c *call) keepAlive(a *attempt) *keeper {
	k := &keeper{c: c, a: a}
	k.mu.Lock()
	k.timer = time.AfterFunc(c.g.cfg.KeepAlive, k.beat)
	return k
}

func (k *keeper) beat() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over {
		return
	}
	c, s := k.c, &k.c.stream
	if !s.open {
		c.notOurs += time.Since(k.since)
		c.streamHeaders(k.a)
	}
	if c.pass(k.a, s, c.emptyFrame()) == nil && c.flushStream(k.a, s) == nil {
		k.timer.Reset(c.g.cfg.KeepAlive)
	}
}

// wait runs what waits for the upstream, and lets keep-alives go out meanwhile.
func (k *keeper) wait(do func()) {
	if k == nil {
		do()
		return
	}
	k.since = time.Now()
	k.timer.Reset(k.c.g.cfg.KeepAlive)
	k.mu.Unlock()
	defer k.mu.Lock()
	do()
}

// rest ends the keep-alives of a stream whose terminal event is on its way: nothing comes behind that.
func (k *keeper) rest() {
	if k != nil {
		k.over = true
	}
}

func (k *keeper) stop() {
	k.over = true
	k.timer.Stop()
	k.mu.Unlock()
}

// chunkHead is what a chat chunk says about the answer that it is part of.
type chunkHead struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
}

type emptyChunk struct {
	chunkHead
	Choices []emptyChoice `json:"choices"`
}

type emptyChoice struct {
	Index        int       `json:"index"`
	Delta        *struct{} `json:"delta,omitempty"`
	Text         *string   `json:"text,omitempty"`
	FinishReason *string   `json:"finish_reason"`
}

// emptyFrame is a frame in the route's dialect that adds nothing. Its id is the upstream's, and empty until the upstream has
// told it: openai-go takes the first id that is not empty for the answer's and refuses frames with another one.
func (c *call) emptyFrame() []byte {
	if c.route.dialect == providers.AnthropicMessages {
		return event([]byte("ping"), []byte(`{"type": "ping"}`))
	}
	chunk := emptyChunk{chunkHead{"", "chat.completion.chunk", c.Received.Unix(), c.Model}, []emptyChoice{{Delta: &struct{}{}}}}
	if c.route.dialect == providers.OpenAICompletions {
		chunk.Object, chunk.Choices = "text_completion", []emptyChoice{{Text: new(string)}}
	}
	_ = json.Unmarshal(c.stream.head, &chunk.chunkHead) // what the upstream has not told, or in another type, stays
	b, _ := json.Marshal(chunk)                         //nolint:errchkjson // plain data
	return event(nil, b)
}

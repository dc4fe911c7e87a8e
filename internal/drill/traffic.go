package drill

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// answer is what a client got for one call: an error of the transport, or a status, headers and a body.
type answer struct {
	status int
	header http.Header
	body   []byte
	err    error
}

// code returns error.code of a refusal.
func (a *answer) code() string {
	var o struct {
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	if json.Unmarshal(a.body, &o) != nil {
		return ""
	}
	return o.Error.Code
}

// brief names what came back: "200", "503 limit_store_unavailable", "no answer".
func (a *answer) brief() string {
	switch {
	case a.err != nil:
		return "no answer"
	case a.status == http.StatusOK:
		return "200"
	default:
		return strings.TrimSpace(strconv.Itoa(a.status) + " " + a.code())
	}
}

// tally counts answers by what they are: "30 × 200, 2 × 503 limit_store_unavailable".
func tally(answers []answer) string {
	counts := make(map[string]int)
	for i := range answers {
		counts[answers[i].brief()]++
	}
	if len(counts) == 0 {
		return "none"
	}
	parts := make([]string, 0, len(counts))
	for _, brief := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, times(counts[brief], brief))
	}
	return strings.Join(parts, ", ")
}

// count is how many answers are so called.
func count(answers []answer, brief string) int {
	n := 0
	for i := range answers {
		if answers[i].brief() == brief {
			n++
		}
	}
	return n
}

// times writes a count of something: "32 × 200".
func times(n int, what string) string { return strconv.Itoa(n) + " × " + what }

const chatPath = "/v1/chat/completions"

// client makes calls of applications.
type client struct{ http http.Client }

func newClient() *client {
	return &client{http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 256, DisableCompression: true, ResponseHeaderTimeout: timeout, // some answers are held back
	}}}
}

// chat is the body of a small chat for a model.
func chat(model string, stream bool) string {
	return fmt.Sprintf(`{"model":%q,"stream":%t,"max_tokens":1000,"messages":[{"role":"user","content":"hello"}]}`, model, stream)
}

func (c *client) send(ctx context.Context, method, target, key, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	return c.http.Do(req)
}

// call sends a chat to the gateway at base and reads the whole answer.
func (c *client) call(ctx context.Context, base, key, body string) answer {
	return c.exchange(ctx, http.MethodPost, base+chatPath, key, body)
}

// estimate returns what a gateway would reserve for a chat, in US dollars; "": it does not say.
func (c *client) estimate(ctx context.Context, base, key, body string) string {
	a := c.exchange(ctx, http.MethodPost, base+"/v1/estimate", key, body)
	var o struct {
		Estimate struct {
			Cost string `json:"cost_usd"`
		} `json:"estimate"`
	}
	if json.Unmarshal(a.body, &o) != nil {
		return ""
	}
	return o.Estimate.Cost
}

// offers reports whether a gateway offers a model to a key.
func (c *client) offers(ctx context.Context, base, key, model string) bool {
	a := c.exchange(ctx, http.MethodGet, base+"/v1/models", key, "")
	return strings.Contains(string(a.body), strconv.Quote(model))
}

func (c *client) exchange(ctx context.Context, method, target, key, body string) answer {
	r, err := c.send(ctx, method, target, key, body)
	if err != nil {
		return answer{err: err}
	}
	defer func() { _ = r.Body.Close() }() // it was read
	text, err := io.ReadAll(r.Body)
	return answer{status: r.StatusCode, header: r.Header, body: text, err: err}
}

// spread sends n chats to all bases in turn, so many at a time.
func (c *client) spread(ctx context.Context, n, atATime int, bases []string, key, body string) []answer {
	answers := make([]answer, n)
	inTurn(n, atATime, func(i int) { answers[i] = c.call(ctx, bases[i%len(bases)], key, body) })
	return answers
}

// inTurn runs f for 0 … n-1, so many at a time, and waits for all.
func inTurn(n, atATime int, f func(i int)) {
	slots := make(chan struct{}, atATime)
	var all sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			f(i)
		})
	}
	all.Wait()
}

// undecided is how many calls were refused because the store did not decide in time, which a busy machine may bring about.
func undecided(answers []answer) int {
	return count(answers, "503 limit_store_unavailable") + count(answers, "503 gateway_overloaded")
}

// stream is a streamed chat that is being read.
type stream struct {
	body  io.ReadCloser
	lines *bufio.Reader
	last  string // data of the newest event
}

// open begins a streamed chat and reads its first event.
func (c *client) open(ctx context.Context, base, key, model string) (*stream, error) {
	r, err := c.send(ctx, http.MethodPost, base+chatPath, key, chat(model, true)) //nolint:bodyclose // rest closes it
	if err != nil {
		return nil, fmt.Errorf("open stream: %w", err)
	}
	s := &stream{body: r.Body, lines: bufio.NewReader(r.Body)}
	if r.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(r.Body) // whatever there is
		return nil, errors.Join(fmt.Errorf("open stream: status %d: %s", r.StatusCode, text), s.body.Close())
	}
	if err := s.next(); err != nil {
		return nil, errors.Join(fmt.Errorf("read the first event: %w", err), s.body.Close())
	}
	return s, nil
}

// openAll begins n streams, 16 at a time, at all bases in turn. Those that began are returned with the error, too.
func (c *client) openAll(ctx context.Context, n int, bases []string, key, model string) ([]*stream, error) {
	streams, faults := make([]*stream, n), make([]error, n)
	inTurn(n, 16, func(i int) { streams[i], faults[i] = c.open(ctx, bases[i%len(bases)], key, model) })
	return slices.DeleteFunc(streams, func(s *stream) bool { return s == nil }), errors.Join(faults...)
}

// next reads up to the end of one event.
func (s *stream) next() error {
	for data := ""; ; {
		line, err := s.lines.ReadString('\n')
		if err != nil {
			return err
		}
		if text, ok := strings.CutPrefix(line, "data: "); ok {
			data = strings.TrimSuffix(text, "\n")
		}
		if line == "\n" {
			s.last = data
			return nil
		}
	}
}

// rest reads to the end and reports whether the stream came to it: its last event is [DONE].
func (s *stream) rest() bool {
	defer func() { _ = s.body.Close() }() // it was read
	for {
		if err := s.next(); err != nil {
			return errors.Is(err, io.EOF) && s.last == "[DONE]"
		}
	}
}

// each runs f for all streams at the same time and returns for how many it holds.
func each(streams []*stream, f func(*stream) bool) int {
	held := make([]bool, len(streams))
	inTurn(len(streams), max(len(streams), 1), func(i int) { held[i] = f(streams[i]) })
	n := 0
	for _, h := range held {
		if h {
			n++
		}
	}
	return n
}

package chaos

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tollgate-gateway/tollgate/internal/fleet"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

type object = fleet.Object

// model is the one model of the product under test.
const model = "plain"

// clientWait is when a client gives its request up, which counts as an answer that never came.
const clientWait = 30 * time.Second

// usersAhead is how many end users are made at once.
const usersAhead = 2000

// key is a virtual key of the load.
type key struct {
	id     string
	secret secret.String
	slots  int // requests at once; 0: any number
}

// load sends requests to whatever gateways there are and tells the oracle what came back.
type load struct {
	product *product
	oracle  *oracle
	client  *http.Client

	sent  atomic.Int64 // numbers the tags
	until time.Time    // the end of the storm; set before the first request

	mu   sync.Mutex
	made int64 // tags that are end users
}

func newLoad(p *product, o *oracle) *load {
	return &load{product: p, oracle: o, client: &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 128, DisableCompression: true},
	}}
}

// tag names a request. Its end user is in the database before it is sent, as a key may bring only few new ones a second.
func (l *load) tag(ctx context.Context) (string, error) {
	n := l.sent.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	for n > l.made {
		first := l.made + 1
		err := l.product.database.insist(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, statement("add_end_users"), pgx.StrictNamedArgs{
				"organization": l.product.organization, "first": first, "last": first + usersAhead - 1,
			})
			return err
		})
		if err != nil {
			return "", fmt.Errorf("make end users: %w", err)
		}
		l.made += usersAhead
	}
	return "c" + strconv.FormatInt(n, 10), nil
}

// limit makes a limit of the organization.
func (l *load) limit(ctx context.Context, rule object) error {
	rule["scope"] = object{"type": "organization", "id": l.product.organization}
	_, err := l.product.admin.Create(ctx, "limits", rule)
	return err
}

// issue makes a key with limits.
func (l *load) issue(ctx context.Context, name string, slots int, limits ...object) (*key, error) {
	text, id, err := l.product.admin.Issue(ctx, l.product.organization, name, limits...)
	if err != nil {
		return nil, err
	}
	return &key{id: id, secret: text, slots: slots}, nil
}

func bucket(metric string, amount, burst int, per string) object {
	return object{"kind": "rate", "metric": metric, "amount": strconv.Itoa(amount), "burst": strconv.Itoa(burst), "per": per}
}

func window(metric, amount, duration string, carries bool) object {
	return object{
		"kind": "budget", "metric": metric, "amount": amount, "carry_debt": carries,
		"window": object{"type": "fixed", "duration": duration},
	}
}

func total(metric, amount string) object {
	return object{"kind": "budget", "metric": metric, "amount": amount, "window": object{"type": "total"}}
}

func slots(n int) object { return object{"kind": "concurrency", "amount": strconv.Itoa(n)} }

// mixed is the load of all profiles but the burst: workers that think between requests, on keys that share the meters of
// their organization.
type mixed struct {
	workers int
	keys    int
	think   time.Duration // on average
	slow    float64       // share of requests whose upstream stalls for longer than the lease
	slots   int           // more of them for each key than it needs, where those of the dead are not given back for long
}

// run makes the limits, and then sends until ctx ends. It returns when every request has its end.
func (m mixed) run(ctx context.Context, l *load, seed uint64, began func()) error {
	keys, err := m.keysOf(ctx, l)
	if err != nil {
		return err
	}
	began()
	var workers sync.WaitGroup
	faults := make(chan error, m.workers)
	for w := range m.workers {
		workers.Go(func() {
			random := randomOf(seed, "worker "+strconv.Itoa(w))
			for sleep(ctx, time.Duration(random.ExpFloat64()*float64(m.think))) {
				p, gateway, err := m.next(ctx, l, keys, random)
				if err != nil {
					if ctx.Err() == nil {
						faults <- err
					}
					return
				}
				l.send(context.WithoutCancel(ctx), p, gateway)
			}
		})
	}
	workers.Wait()
	select {
	case err := <-faults:
		return err
	default:
		return nil
	}
}

// keysOf makes limits tight enough that some requests are refused and some debts come up, and wide enough that most pass.
func (m mixed) keysOf(ctx context.Context, l *load) ([]*key, error) {
	rate := float64(m.workers) / m.think.Seconds() // requests a second, at most
	perKey := max(4, int(rate)/m.keys)
	const tokens = 40 // of a request, on average
	for _, rule := range []object{
		bucket("tokens", int(rate*tokens)*60, int(rate*tokens)*4, "1m"),
		window("cost", dollars(int(rate*15)*200_000), "15s", false),
		total("tokens", "100000000"),
	} {
		if err := l.limit(ctx, rule); err != nil {
			return nil, err
		}
	}
	var keys []*key
	for n := range m.keys {
		atOnce := 4 + 3*n + m.slots
		k, err := l.issue(ctx, "key "+strconv.Itoa(n), atOnce,
			bucket("requests", perKey, perKey, "1s"),
			bucket("output_tokens", perKey*20*60, perKey*60, "1m"),
			window("tokens", strconv.Itoa(perKey*tokens*5), "5s", true),
			total("cost", "1000"),
			slots(atOnce))
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	return keys, nil
}

// dollars writes nano-dollars.
func dollars(nano int) string {
	return fmt.Sprintf("%d.%09d", nano/1_000_000_000, nano%1_000_000_000)
}

// next decides about a request.
func (m mixed) next(ctx context.Context, l *load, keys []*key, random *rand.Rand) (*plan, *gateway, error) {
	tag, err := l.tag(ctx)
	if err != nil {
		return nil, nil, err
	}
	p := &plan{tag: tag, key: keys[random.IntN(len(keys))], stream: random.IntN(3) == 0, output: 5 + random.IntN(40)}
	p.inputUsed = 1 + random.IntN(30)
	p.outputUsed = 1 + int(float64(p.output)*1.4*random.Float64()) // sometimes more than was reserved: debt
	delay := time.Duration(10+random.IntN(150)) * time.Millisecond
	if stalled := silence(random); random.Float64() < m.slow && time.Until(l.until) > stalled {
		delay = stalled
	}
	p.script = fmt.Sprintf("usage(%d,%d),first_byte_delay(%s)", p.inputUsed, p.outputUsed, delay)
	switch chance := random.IntN(100); {
	case chance < 2:
		p.faulty, p.script = true, "status(503)"
	case chance < 3:
		p.faulty, p.script = true, "reset_before_bytes"
	case chance < 4:
		p.faulty, p.stream, p.script = true, true, "reset_after(3)"
	case chance < 7:
		p.leaveAfter = time.Duration(1+random.IntN(200)) * time.Millisecond
	}
	return p, l.product.gateways[random.IntN(len(l.product.gateways))], nil
}

// bursts is the directed load: so many requests at once into a limit that has room for one.
type bursts struct {
	width int           // requests at once
	every time.Duration // from burst to burst
	count atomic.Int64
}

// room is what a burst's requests ask for, and what its limit has.
const room = 20

// kinds of limits with room for one request of a burst.
func kinds() []object {
	return []object{
		total("output_tokens", strconv.Itoa(room)),
		window("output_tokens", strconv.Itoa(room), "1h", true),
		bucket("requests", 1, 1, "24h"),
		bucket("output_tokens", room, room, "24h"),
		slots(1),
	}
}

// slotsHeld is how long the one admitted request of a burst holds its slot; whoever comes later is welcome.
const slotsHeld = 2 * time.Second

func (b *bursts) run(ctx context.Context, l *load, seed uint64, began func()) error {
	random := randomOf(seed, "bursts")
	began()
	for number := 1; ctx.Err() == nil; number++ {
		rule := kinds()[random.IntN(len(kinds()))]
		atOnce := 0
		script := fmt.Sprintf("usage(3,%d)", room)
		if rule["kind"] == "concurrency" {
			atOnce, script = 1, script+",first_byte_delay("+slotsHeld.String()+")"
		}
		whole := context.WithoutCancel(ctx) // a burst that has begun comes to its end
		k, err := l.issue(whole, "burst "+strconv.Itoa(number), atOnce, rule)
		if err != nil {
			return err
		}
		var requests sync.WaitGroup
		gate := make(chan struct{})
		for range b.width {
			tag, err := l.tag(whole)
			if err != nil {
				close(gate)
				requests.Wait()
				return err
			}
			p := &plan{tag: tag, key: k, burst: number, output: room, inputUsed: 3, outputUsed: room, script: script}
			g := l.product.gateways[random.IntN(len(l.product.gateways))]
			requests.Go(func() {
				<-gate
				l.send(whole, p, g)
			})
		}
		close(gate)
		requests.Wait()
		b.count.Add(1)
		sleep(ctx, time.Duration((0.5+random.Float64())*float64(b.every)))
	}
	return nil
}

// send sends a request, once, and tells the oracle what came back.
func (l *load) send(ctx context.Context, p *plan, g *gateway) {
	url := g.url()
	if url == "" {
		return // nobody listens: there is no request
	}
	l.oracle.plans.Store(p.tag, p)
	s := seen{plan: p, sent: time.Now()}
	wait := clientWait
	if p.leaveAfter > 0 {
		wait = p.leaveAfter
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	s.status, s.code, s.whole = l.call(ctx, url, p)
	s.left = ctx.Err() != nil && !s.whole
	s.done = time.Now()
	l.oracle.saw(s)
}

// call makes the HTTP call and reads the answer to its end.
func (l *load) call(ctx context.Context, url string, p *plan) (status int, code string, whole bool) {
	body, err := json.Marshal(object{
		"model": model, "user": p.tag, "max_tokens": p.output, "stream": p.stream,
		"messages": []object{{"role": "user", "content": "Say something that is as long as you may."}},
	})
	if err != nil {
		return 0, err.Error(), false
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return 0, err.Error(), false
	}
	req.Header.Set("Authorization", "Bearer "+p.key.secret.Reveal())
	req.Header.Set("Content-Type", "application/json")
	r, err := l.client.Do(req)
	if err != nil {
		return 0, "", false
	}
	defer func() { _ = r.Body.Close() }()
	if r.StatusCode == http.StatusOK && p.stream {
		lines := bufio.NewScanner(r.Body)
		for lines.Scan() {
			whole = whole || strings.TrimSpace(lines.Text()) == "data: [DONE]"
		}
		return r.StatusCode, "", whole && lines.Err() == nil
	}
	answer, err := io.ReadAll(r.Body)
	if err != nil {
		return r.StatusCode, "", false
	}
	var o struct {
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	_ = json.Unmarshal(answer, &o) // a success has no error
	return r.StatusCode, o.Error.Code, true
}

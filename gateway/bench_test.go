package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollgate-gateway/tollgate/gateway"
	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/mock"
	"github.com/tollgate-gateway/tollgate/internal/money"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/plugins"
	"github.com/tollgate-gateway/tollgate/providers"
	"github.com/tollgate-gateway/tollgate/providers/anthropic"
	"github.com/tollgate-gateway/tollgate/providers/azure"
	"github.com/tollgate-gateway/tollgate/providers/bedrock"
	"github.com/tollgate-gateway/tollgate/providers/gemini"
	"github.com/tollgate-gateway/tollgate/providers/openai"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	demoKey    = "sk-tg-000000000000aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa111111"
	otherKey   = "sk-tg-111111111111bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb222222"
	foreignKey = "imported-key"
	upstreamID = "sk-upstream-credential"
)

// bench is a gateway in front of a scripted upstream, with a ledger in memory.
type bench struct {
	t        *testing.T
	gw       *gateway.Gateway
	url      string
	client   *http.Client
	mock     *mock.Server
	mockURL  string
	ledger   *ledger
	catalogs *catalogs
	spend    *spend
	idem     *idempotency
	log      *syncBuffer
	metrics  *counters
}

// Kinds of a catalog that speak one of OpenAI's dialects alone, the last two of them with one name for the limit of output.
const (
	chatAlone      = "chat-alone"
	responsesAlone = "responses-alone"
	maxTokens      = "max-tokens"
	maxCompletion  = "max-completion-tokens"
)

// testProviders are the kinds of provider that the gateway of a test can reach.
func testProviders() []providers.Provider {
	return []providers.Provider{
		openai.New(), anthropic.New(), gemini.New(), azure.New(openai.Of(azure.Entry())), bedrock.New(),
		openai.Of(&providers.Entry{Kind: chatAlone, Speaks: []string{"chat"}}),
		openai.Of(&providers.Entry{Kind: maxTokens, Speaks: []string{"chat"}, Quirks: providers.Quirks{OutputLimit: "max_tokens"}}),
		openai.Of(&providers.Entry{Kind: maxCompletion, Speaks: []string{"chat"}, Quirks: providers.Quirks{OutputLimit: "max_completion_tokens"}}),
		openai.Of(&providers.Entry{Kind: responsesAlone, Speaks: []string{"responses"}}),
	}
}

// setup is what a test may change before the gateway is built.
type setup struct {
	bench
	config    gateway.Config
	chain     []gateway.Link
	models    []*governance.Model
	targets   []*governance.Target
	limits    []*governance.Limit
	principal governance.Principal
	colleague governance.Principal // whom otherKey belongs to, if there is one
	dial      func(context.Context, string, string, syscall.RawConn) error

	translators []providers.Translator
	responses   governance.StoredResponses
}

// model offers a public model with one target for each script of the mock.
func (s *setup) model(name string, scripts ...string) []*governance.Target {
	m := &governance.Model{Meta: governance.Meta{Num: int64(len(s.models) + 1), ID: ids.NewPublic(ids.Model), CreatedAt: time.Unix(1700000000, 0)}, Name: name}
	var made []*governance.Target
	for _, script := range scripts {
		num := int64(len(s.targets) + 1)
		t := &governance.Target{
			Meta:     governance.Meta{Num: num, ID: ids.NewPublic(ids.Target)},
			Provider: governance.Ref{Num: num, ID: ids.NewPublic(ids.Provider), Name: fmt.Sprintf("provider-%d", num)}, ProviderKind: openai.Kind,
			BaseURL: s.mockURL, Credential: secret.New(upstreamID), UpstreamModel: "mock-" + script, Price: price(),
		}
		s.targets = append(s.targets, t)
		made = append(made, t)
		m.Targets = append(m.Targets, governance.ModelTarget{Target: governance.Ref{Num: num}, Priority: len(m.Targets)})
	}
	s.models = append(s.models, m)
	return made
}

// claude offers a public model like model does, at upstreams that speak Anthropic's dialect.
func (s *setup) claude(name string, scripts ...string) []*governance.Target {
	made := s.model(name, scripts...)
	for _, t := range made {
		t.ProviderKind = anthropic.Kind
	}
	return made
}

// limit adds a limit of the key.
func (s *setup) limit(kind governance.Kind, metric governance.Metric, amount int64) *governance.Limit {
	l := &governance.Limit{
		Meta: governance.Meta{Num: int64(len(s.limits) + 1), ID: ids.NewPublic(ids.Limit)},
		Kind: kind, Metric: metric, Amount: amount, Per: time.Minute, Burst: amount,
		Scope:       governance.Scope{Type: governance.ScopeKey, Subject: s.principal.Key},
		Enforcement: governance.EnforceExact, Mode: governance.ModeEnforce,
	}
	s.limits = append(s.limits, l)
	return l
}

func price() *governance.PriceVersion {
	tier := governance.PriceTier{}
	tier.Prices[governance.UnitInput] = 1_000_000_000  // 1 dollar per million
	tier.Prices[governance.UnitOutput] = 2_000_000_000 // 2 dollars per million
	return &governance.PriceVersion{Num: 7, ID: "price_000000000007", Tiers: []governance.PriceTier{tier}}
}

// start runs a gateway. Without a change it offers one model "m" whose upstream answers as it should.
func start(t *testing.T, change ...func(*setup)) *bench {
	t.Helper()
	upstream, err := mock.New(mock.Options{RequireKey: secret.New(upstreamID)})
	require.NoError(t, err)
	mockServer := httptest.NewServer(upstream)
	s := &setup{config: gateway.DefaultConfig()}
	s.bench = bench{
		t: t, mock: upstream, mockURL: mockServer.URL, log: new(syncBuffer), metrics: &counters{seen: map[string]int{}},
		ledger: newLedger(), spend: new(spend), idem: &idempotency{},
	}
	s.principal = governance.Principal{
		Organization: governance.Ref{Num: 1, ID: "org_000000000001", Name: "acme"},
		Team:         governance.Ref{Num: 2, ID: "team_000000000002", Name: "core"},
		Key:          governance.Ref{Num: 3, ID: "key_000000000003", Name: "demo"}, BudgetStatus: http.StatusTooManyRequests,
	}
	for _, c := range change {
		c(s)
	}
	if len(s.models) == 0 {
		s.model("m", "small")
	}
	s.catalogs = &catalogs{current: governance.NewCatalog(1, time.Now(), s.models, s.targets, s.limits)}
	known := keys{demoKey: s.principal, foreignKey: s.principal}
	if s.colleague.Key.Num != 0 {
		known[otherKey] = s.colleague
	}
	chain := append([]gateway.Link{{Plugin: known}, {Plugin: router{}}, {Plugin: charger{}}}, s.chain...)
	s.gw, err = gateway.New(gateway.Options{
		Config: s.config, Chain: chain, Providers: testProviders(), Translators: s.translators, Ledger: s.ledger, Catalogs: s.catalogs,
		EndUsers: endUsers{}, Spend: s.spend, Idempotency: s.idem, Responses: s.responses, Now: time.Now, Log: zerolog.New(s.log), Metrics: s.metrics, DialControl: s.dial,
	})
	require.NoError(t, err)
	server := httptest.NewUnstartedServer(s.gw.Handler())
	server.Config.MaxHeaderBytes = 64 << 10
	server.Start()
	transport := &http.Transport{DisableCompression: true}
	s.client, s.url = &http.Client{Transport: transport}, server.URL
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- s.gw.Run(ctx) }()
	t.Cleanup(func() {
		over, stop := context.WithTimeout(context.Background(), 10*time.Second)
		defer stop()
		transport.CloseIdleConnections()
		require.NoError(t, s.gw.Shutdown(over))
		server.Close()
		mockServer.CloseClientConnections()
		mockServer.Close()
		cancel()
		require.NoError(t, <-ran)
	})
	b := s.bench
	return &b
}

// answer is what a client saw.
type answer struct {
	*http.Response
	body []byte
	err  error // why the body ended early; nil: it did not
}

func (a answer) text() string { return string(a.body) }

// failure decodes an error in OpenAI's shape.
func (a answer) failure(t *testing.T) apiError {
	t.Helper()
	require.Equal(t, "application/json", a.Header.Get("Content-Type"), a.text())
	var e struct{ Error apiError }
	require.NoError(t, json.Unmarshal(a.body, &e), a.text())
	return e.Error
}

type apiError struct {
	Message string
	Type    string
	Param   *string
	Code    string
	Details struct {
		Limit     string
		Scope     struct{ Type, ID string }
		Metric    string
		Amount    string
		Spent     string
		Held      string
		Remaining string
		Others    []struct{ Limit, Code string }
		Most      *int64 `json:"max_affordable_tokens"`
	}
}

func (b *bench) request(method, path, body string, headers ...string) *http.Request {
	b.t.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, reader)
	require.NoError(b.t, err)
	r.Header.Set("Authorization", "Bearer "+demoKey)
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] == "" {
			r.Header.Del(headers[i])
		} else {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	return r
}

func (b *bench) do(r *http.Request) answer {
	b.t.Helper()
	response, err := b.client.Do(r)
	require.NoError(b.t, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return answer{response, body, err}
}

func (b *bench) get(path string, headers ...string) answer {
	b.t.Helper()
	return b.do(b.request(http.MethodGet, path, "", headers...))
}

func (b *bench) post(path, body string, headers ...string) answer {
	b.t.Helper()
	return b.do(b.request(http.MethodPost, path, body, headers...))
}

const (
	chatBody   = `{"model":"m","messages":[{"role":"user","content":"Say hello."}]}`
	streamBody = `{"model":"m","stream":true,"messages":[{"role":"user","content":"Say hello."}]}`
)

func (b *bench) chat(headers ...string) answer {
	return b.post("/v1/chat/completions", chatBody, headers...)
}

func (b *bench) stream(headers ...string) answer {
	return b.post("/v1/chat/completions", streamBody, headers...)
}

// opened is a stream that a test reads event by event.
type opened struct {
	*http.Response
	lines *bufio.Reader
	leave context.CancelFunc
}

func (b *bench) open(body string) opened {
	b.t.Helper()
	return b.openAt("/v1/chat/completions", body)
}

func (b *bench) openAt(path, body string, headers ...string) opened {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	response, err := b.client.Do(b.request(http.MethodPost, path, body, headers...).WithContext(ctx))
	require.NoError(b.t, err)
	b.t.Cleanup(func() { cancel(); _ = response.Body.Close() })
	return opened{response, bufio.NewReader(response.Body), cancel}
}

// event returns the data of the next event.
func (o opened) event(t *testing.T) string {
	t.Helper()
	for {
		line, err := o.lines.ReadString('\n')
		require.NoError(t, err)
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			return strings.TrimSpace(data)
		}
	}
}

// sums waits until the mock's log has come to a state.
func (b *bench) sums(reached func(mock.Counts) bool) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	require.NoError(b.t, b.mock.Wait(ctx, reached))
}

// release lets the requests that the upstream has go on, and waits for one if it has none yet.
func (b *bench) release(steps int) {
	b.t.Helper()
	require.Eventually(b.t, func() bool { return b.mock.Release(0, steps) > 0 }, time.Minute, 2*time.Millisecond)
}

// settled waits until n attempts are closed and returns them.
func (b *bench) settled(n int) []governance.Settlement {
	b.t.Helper()
	require.Eventually(b.t, func() bool { return len(b.ledger.closed()) >= n }, time.Minute, 2*time.Millisecond)
	return b.ledger.closed()
}

// idle waits until no call is being served.
func (b *bench) idle() {
	b.t.Helper()
	require.Eventually(b.t, func() bool { return b.gw.InFlight() == 0 }, time.Minute, 2*time.Millisecond)
}

// sent returns the bodies that reached the upstream.
func (b *bench) sent() []mock.Request { return b.mock.Log().Requests }

// keys is an authenticator.
type keys map[string]governance.Principal

func (keys) ID() string { return "keys" }

func (k keys) Authenticate(_ context.Context, c *plugins.Call) (governance.Principal, error) {
	p, ok := k[c.Credential.Reveal()]
	if !ok {
		return p, &governance.Error{Code: governance.CodeInvalidAPIKey, Public: "Incorrect API key provided."}
	}
	return p, nil
}

// router is a resolver: targets in the order of the model.
type router struct{}

func (router) ID() string { return "router" }

func (router) Resolve(_ context.Context, c *plugins.Call) (governance.Route, error) {
	m := c.Catalog.Model(c.Principal.Organization.Num, c.Model)
	if m == nil {
		return governance.Route{}, &governance.Error{Code: governance.CodeModelNotFound, Public: "The model is unknown.", Param: "model"}
	}
	if !c.Principal.MayUse(m.Name) {
		return governance.Route{}, &governance.Error{Code: governance.CodeModelNotAllowed, Public: "The key may not use the model.", Param: "model"}
	}
	r := governance.Route{Model: m}
	for _, t := range m.Targets {
		if target := c.Catalog.Target(t.Target.Num); target != nil {
			r.Targets = append(r.Targets, target)
		}
	}
	if len(r.Targets) == 0 {
		return governance.Route{}, &governance.Error{Code: governance.CodeUpstreamUnreachable, Public: "No target can be called."}
	}
	return r, nil
}

// charger holds every limit of the key and of the target.
type charger struct{}

func (charger) ID() string { return "charger" }

func (charger) Charge(c *plugins.Call) ([]governance.Hold, error) {
	var holds []governance.Hold
	for _, s := range []struct {
		scope   governance.ScopeType
		subject int64
	}{{governance.ScopeTarget, c.Target.Num}, {governance.ScopeKey, c.Principal.Key.Num}} {
		for _, l := range c.Catalog.Limits.Named(s.scope, s.subject) {
			amount, err := c.Demand.Amount(l, c.Target)
			if err != nil {
				return nil, err
			}
			if amount > 0 {
				holds = append(holds, governance.Hold{Limit: l, Subject: s.subject, Amount: amount})
			}
		}
	}
	return holds, nil
}

// ledger is a ledger in memory: requests and slots exactly, budgets by their windows' sum.
type ledger struct {
	mu          sync.Mutex
	used        map[[2]int64]int64
	open        map[ids.ID]governance.ReserveRequest
	reserves    []governance.ReserveRequest
	settlements []governance.Settlement
	fail        func(governance.ReserveRequest) error // before anything is decided
	slow        chan struct{}                         // settlements wait for it
	lost        error                                 // what settlements are answered with, if not nil
}

func newLedger() *ledger {
	return &ledger{used: map[[2]int64]int64{}, open: map[ids.ID]governance.ReserveRequest{}}
}

func (l *ledger) Reserve(_ context.Context, r governance.ReserveRequest) (governance.Reservation, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		if err := l.fail(r); err != nil {
			return governance.Reservation{}, err
		}
	}
	if r.Closes != nil {
		_ = l.close(*r.Closes)
	}
	denial := &governance.Denial{}
	for _, h := range r.Holds {
		level := l.level(h)
		if h.Carried || h.Limit.Unlimited || level.Remaining >= h.Amount {
			continue
		}
		refusal := governance.Refusal{Level: level, Wanted: h.Amount, RetryAfter: 7 * time.Second, Reason: governance.RefusedRate}
		switch {
		case h.Limit.Kind == governance.KindConcurrency:
			refusal.Reason = governance.RefusedConcurrency
		case h.Limit.Kind == governance.KindBudget && level.Remaining > 0:
			refusal.Reason, refusal.RetryAfter = governance.RefusedReservationTooLarge, 0
		case h.Limit.Kind == governance.KindBudget:
			refusal.Reason, refusal.RetryAfter = governance.RefusedBudgetExceeded, 0
		}
		denial.Refusals = append(denial.Refusals, refusal)
	}
	if len(denial.Refusals) > 0 {
		return governance.Reservation{}, denial
	}
	out := governance.Reservation{ID: r.ID, AdmittedAt: time.Now(), ConfigVersion: configVersion}
	for _, h := range r.Holds {
		if !h.Carried || h.Limit.Kind == governance.KindConcurrency { // a carried slot was given back a moment ago
			l.used[[2]int64{h.Limit.Num, h.Subject}] += h.Amount
		}
		out.Levels = append(out.Levels, l.level(h))
	}
	l.open[r.ID] = r
	l.reserves = append(l.reserves, r)
	return out, nil
}

func (l *ledger) level(h governance.Hold) governance.Level {
	used := l.used[[2]int64{h.Limit.Num, h.Subject}]
	return governance.Level{
		Limit: h.Limit, Subject: h.Subject, Amount: h.Limit.Amount, Spent: used, Remaining: max(0, h.Limit.Amount-used), ResetsAfter: 30 * time.Second,
	}
}

func (l *ledger) Settle(ctx context.Context, s governance.Settlement) error {
	if l.slow != nil {
		select {
		case <-l.slow:
		case <-ctx.Done():
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost != nil {
		return l.lost
	}
	return l.close(s)
}

func (l *ledger) close(s governance.Settlement) error {
	r, ok := l.open[s.ID]
	if !ok {
		return governance.ErrAlreadyClosed
	}
	delete(l.open, s.ID)
	l.settlements = append(l.settlements, s)
	for _, h := range r.Holds {
		key := [2]int64{h.Limit.Num, h.Subject}
		switch {
		case h.Limit.Kind == governance.KindConcurrency:
			l.used[key] -= h.Amount
		case h.Limit.Metric == governance.MetricRequests:
			if s.Release {
				l.used[key] -= h.Amount
			}
		case h.Limit.Kind == governance.KindBudget:
			l.used[key] -= h.Amount
			if s.Budget == governance.BasisHold {
				l.used[key] += h.Amount
			} else if h.Limit.Metric == governance.MetricCost {
				l.used[key] += int64(s.Cost)
			} else {
				l.used[key] += s.Quantities.Tokens()
			}
		}
	}
	return nil
}

func (l *ledger) Expire(context.Context, int) (int, error) { return 0, nil }

func (l *ledger) closed() []governance.Settlement {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.settlements)
}

func (l *ledger) admitted() []governance.ReserveRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.reserves)
}

// configVersion is what the ledger says with each admission.
const configVersion = 1_000

// held is the number of reservations that are open.
func (l *ledger) held() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

type catalogs struct {
	mu      sync.Mutex
	current *governance.Catalog
	next    *governance.Catalog // what Refresh brings
	noticed int64               // newest version that was told of
	err     error
}

func (c *catalogs) Current() (*governance.Catalog, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current, c.err
}

func (c *catalogs) Confirm(context.Context) error { return nil }

func (c *catalogs) Notice(version int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noticed = max(c.noticed, version)
}

func (c *catalogs) Refresh(context.Context, int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next != nil {
		c.current = c.next
	}
	return nil
}

type endUsers struct{}

func (endUsers) EndUser(_ context.Context, _, _ int64, name string) (int64, error) {
	if name == "unreadable" {
		return 0, governance.ErrStoreAway
	}
	return int64(len(name)), nil
}

type idempotency struct {
	mu   sync.Mutex
	seen map[string][32]byte
	busy map[string]bool
}

func (i *idempotency) Begin(_ context.Context, _ int64, key string, hash [32]byte, _ ids.ID) (bool, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.seen == nil {
		i.seen, i.busy = map[string][32]byte{}, map[string]bool{}
	}
	before, seen := i.seen[key]
	switch {
	case seen && before != hash:
		return false, governance.ErrExists
	case i.busy[key]:
		return false, governance.ErrConflict
	}
	i.seen[key], i.busy[key] = hash, true
	return seen, nil
}

func (i *idempotency) Finish(_ context.Context, _ int64, key string, _ ids.ID) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.busy[key] = false
	return nil
}

// spend answers self-service. Members that a test does not set are empty.
type spend struct {
	governance.SpendStore
	receipt governance.Receipt
	sums    []governance.SpendSum
	filter  governance.SpendFilter
	err     error
}

func (s *spend) Levels(_ context.Context, of []governance.LevelQuery) ([]governance.Level, error) {
	var levels []governance.Level
	for _, q := range of {
		levels = append(levels, governance.Level{Limit: q.Limit, Subject: q.Subject, Amount: q.Limit.Amount, Remaining: q.Limit.Amount})
	}
	return levels, s.err
}

func (s *spend) Summary(_ context.Context, f governance.SpendFilter, _ []string) ([]governance.SpendSum, error) {
	s.filter = f
	return s.sums, s.err
}

func (s *spend) Receipt(_ context.Context, organization int64, request ids.ID) (governance.Receipt, error) {
	if s.receipt.RequestID != request || organization != 1 {
		return governance.Receipt{}, governance.ErrNotFound
	}
	return s.receipt, s.err
}

type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

type counters struct {
	mu   sync.Mutex
	seen map[string]int
}

func (c *counters) Counter(name, _ string, labels ...string) func(values ...string) {
	return func(values ...string) {
		if len(values) != len(labels) {
			panic(name + ": wrong number of labels")
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.seen[name+"{"+strings.Join(values, ",")+"}"]++
	}
}

func (c *counters) Histogram(name, _ string, _ []float64, labels ...string) func(value float64, values ...string) {
	count := c.Counter(name, "", labels...)
	return func(_ float64, values ...string) { count(values...) }
}

func (c *counters) all() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.seen)
}

// raw sends bytes over a connection of its own and returns the status line and the rest.
func (b *bench) raw(text string) string {
	b.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	require.NoError(b.t, err)
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, text)
	require.NoError(b.t, err)
	require.NoError(b.t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	out, _ := io.ReadAll(conn)
	return string(out)
}

func dollars(t *testing.T, s string) money.Nano {
	t.Helper()
	n, err := money.Parse(s)
	require.NoError(t, err)
	return n
}

func contextWithCancel(t *testing.T) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	return ctx, cancel
}

// serveHTTP serves a handler on an address of its own until the test ends.
func serveHTTP(t *testing.T, h http.Handler) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

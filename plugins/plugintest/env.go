package plugintest

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.yaml.in/yaml/v3"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/plugins"
)

// Config is a section of the configuration as YAML text, decoded as strictly as the real one.
type Config string

// Decode implements plugins.Config.
func (c Config) Decode(into any) error {
	if strings.TrimSpace(string(c)) == "" {
		return nil
	}
	dec := yaml.NewDecoder(bytes.NewReader([]byte(c)))
	dec.KnownFields(true)
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("decode section: %w", err)
	}
	return nil
}

// Env is what a plugin under test gets from outside, all of it in memory.
type Env struct {
	Keys     *Keys
	Metrics  *Metrics
	Spend    *Spend
	Catalogs *Catalogs
	Peppers  Peppers

	mu        sync.Mutex
	listeners []func(kind string, num int64)
}

// NewEnv returns an empty environment.
func NewEnv() *Env {
	return &Env{
		Keys: &Keys{}, Metrics: &Metrics{}, Spend: &Spend{}, Catalogs: &Catalogs{}, Peppers: Peppers{"p1": "pepper"},
	}
}

// Plugins returns the environment in the form that plugins take.
func (e *Env) Plugins(t testing.TB) plugins.Env {
	t.Helper()
	return plugins.Env{
		Log: zerolog.New(zerolog.NewTestWriter(t)), Keys: e.Keys, Catalogs: e.Catalogs, Peppers: e.Peppers,
		Metrics: e.Metrics, Spend: e.Spend,
		Changed: func(fn func(kind string, num int64)) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.listeners = append(e.listeners, fn)
		},
	}
}

// Change tells all listeners of a change.
func (e *Env) Change(kind string, num int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, fn := range e.listeners {
		fn(kind, num)
	}
}

// Peppers maps ids of peppers to their texts.
type Peppers map[string]string

// Sum implements plugins.Peppers.
func (p Peppers) Sum(id string, key secret.String) (sum [32]byte, ok bool) {
	pepper, ok := p[id]
	if !ok {
		return sum, false
	}
	hashed := sha256.Sum256([]byte(key.Reveal()))
	mac := hmac.New(sha256.New, []byte(pepper))
	mac.Write(hashed[:])
	return [32]byte(mac.Sum(nil)), true
}

// Current implements plugins.Peppers: the last in the order of ids.
func (p Peppers) Current() string { return slices.Max(slices.Collect(maps.Keys(p))) }

// Keys is a governance.KeyFinder in memory. Find, where it is set, answers in its place.
type Keys struct {
	mu       sync.Mutex
	records  map[string]governance.KeyRecord
	lookups  int
	touched  [][]int64
	rehashed []governance.Rehash
	Find     func(ctx context.Context, publicID string) (governance.KeyRecord, error)
}

// Put stores what a look-up of a public id finds.
func (k *Keys) Put(publicID string, r governance.KeyRecord) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.records == nil {
		k.records = make(map[string]governance.KeyRecord)
	}
	k.records[publicID] = r
}

// FindKey implements governance.KeyFinder.
func (k *Keys) FindKey(ctx context.Context, publicID string) (governance.KeyRecord, error) {
	k.mu.Lock()
	k.lookups++
	r, ok := k.records[publicID]
	k.mu.Unlock()
	if k.Find != nil {
		return k.Find(ctx, publicID)
	}
	if !ok {
		return r, governance.ErrNotFound
	}
	return r, nil
}

// Touch implements governance.KeyFinder.
func (k *Keys) Touch(_ context.Context, keys []int64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.touched = append(k.touched, keys)
	return nil
}

// Rehash implements governance.KeyFinder.
func (k *Keys) Rehash(_ context.Context, all []governance.Rehash) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rehashed = append(k.rehashed, all...)
	return nil
}

// Rehashed returns what Rehash was given.
func (k *Keys) Rehashed() []governance.Rehash {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]governance.Rehash(nil), k.rehashed...)
}

// Lookups returns how often a key was looked up.
func (k *Keys) Lookups() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lookups
}

// Touched returns the keys of each call of Touch.
func (k *Keys) Touched() [][]int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([][]int64(nil), k.touched...)
}

// Catalogs is a governance.Catalogs whose picture a test sets.
type Catalogs struct{ Catalog *governance.Catalog }

// Current implements governance.Catalogs.
func (c *Catalogs) Current() (*governance.Catalog, error) {
	if c.Catalog == nil {
		return nil, governance.ErrStale
	}
	return c.Catalog, nil
}

// Refresh implements governance.Catalogs.
func (c *Catalogs) Refresh(context.Context, int64) error { return nil }

// Confirm implements governance.Catalogs: the picture is always the newest.
func (c *Catalogs) Confirm(context.Context) error { return nil }

// Notice implements governance.Catalogs.
func (c *Catalogs) Notice(int64) {}

// Spend is the part of a governance.SpendStore that plugins write to; every other method of it panics. Fail, where it is
// set, answers in its place.
type Spend struct {
	governance.SpendStore
	mu   sync.Mutex
	rows []governance.Attribution
	Fail func() error
}

// Attribute implements governance.SpendStore.
func (s *Spend) Attribute(_ context.Context, rows []governance.Attribution) error {
	if s.Fail != nil {
		if err := s.Fail(); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows = append(s.rows, rows...)
	return nil
}

// Attributed returns what was attributed.
func (s *Spend) Attributed() []governance.Attribution {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]governance.Attribution(nil), s.rows...)
}

// Metrics is a plugins.Registry that remembers.
type Metrics struct {
	mu     sync.Mutex
	series map[string]float64
}

// Counter implements plugins.Registry.
func (m *Metrics) Counter(name, _ string, labels ...string) func(values ...string) {
	return func(values ...string) { m.add(name, 1, labels, values) }
}

// Histogram implements plugins.Registry.
func (m *Metrics) Histogram(name, _ string, _ []float64, labels ...string) func(value float64, values ...string) {
	return func(value float64, values ...string) { m.add(name, value, labels, values) }
}

func (m *Metrics) add(name string, by float64, labels, values []string) {
	if len(labels) != len(values) {
		panic(fmt.Sprintf("metric %s has %d labels and got %d values", name, len(labels), len(values)))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.series == nil {
		m.series = make(map[string]float64)
	}
	m.series[seriesName(name, values)] += by
}

func seriesName(name string, values []string) string {
	return name + "{" + strings.Join(values, ",") + "}"
}

// Value returns a counter's value, or the sum of what a histogram observed.
func (m *Metrics) Value(name string, values ...string) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.series[seriesName(name, values)]
}

// Series returns how many series there are.
func (m *Metrics) Series() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.series)
}

// Received is the instant at which the calls of this package arrived.
func Received() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) }

package app

import (
	"cmp"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/pgstore"
	"github.com/tollgate-gateway/tollgate/internal/config"
	"github.com/tollgate-gateway/tollgate/internal/pgtest"
	"github.com/tollgate-gateway/tollgate/internal/seal"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// stage is all processes of the comparison, their upstream and their database.
type stage struct {
	upstream *upstream
	postgres postgresCPU
	key      string
	subjects []subject
}

// setUp starts the contestants. The organization, the team and the key of the calls have four limits that never refuse.
func setUp(b *testing.B) *stage {
	b.Helper()
	s := &stage{upstream: newUpstream(b)}
	pool := pgtest.New(b)
	require.NoError(b, pool.QueryRow(b.Context(), "SELECT current_database()").Scan(&s.postgres.database))
	var backend int
	require.NoError(b, pool.QueryRow(b.Context(), "SELECT pg_backend_pid()").Scan(&backend))
	s.postgres.postmaster = parent(b, backend)

	cfg := config.Default()
	cfg.Planes = []string{config.PlaneControl}
	cfg.DatabaseURL = secret.New(pool.Config().ConnString())
	cfg.KeyPeppers, cfg.EncryptionKeys = seal.Generate("p1"), seal.Generate("k1")
	a, err := build(b.Context(), &cfg, b.Output())
	require.NoError(b, err)
	defer func() { _ = a.Close() }()
	s.key = a.populate(b, s.upstream.URL)
	t := task{
		Upstream: s.upstream.URL, Database: pgtest.RoleDSN(b, pool, "tollgate_gateway"),
		Peppers: cfg.KeyPeppers.Reveal(), Keys: cfg.EncryptionKeys.Reveal(),
	}
	for _, t.Contestant = range contestants() {
		s.subjects = append(s.subjects, startSubject(b, t))
	}
	return s
}

// populate makes one tenant and one model, and returns the key.
func (a *App) populate(b *testing.B, upstream string) string {
	b.Helper()
	ctx, by := b.Context(), demoActor()
	require.NoError(b, pgstore.VerifySecrets(ctx, a.control, append(a.peppers.Checks(), a.keys.Checks()...)...))
	mock, err := a.ensureProvider(ctx, governance.Provider{Name: "mock", Kind: "openai", BaseURL: upstream + "/v1"})
	require.NoError(b, err)
	require.NoError(b, a.ensureModel(ctx, devModel, mock, devModel))
	require.NoError(b, a.ensureMockPrice(ctx))
	org, err := a.ensureOrganization(ctx, "Acme")
	require.NoError(b, err)
	team, err := a.ensureTeam(ctx, org, "Core") // with a monthly budget
	require.NoError(b, err)
	const plenty = 1 << 30
	exact := governance.Limit{Amount: plenty, Burst: plenty, Per: time.Minute, Enforcement: governance.EnforceExact, Mode: governance.ModeEnforce}
	requests, tokens, slots := exact, exact, exact
	requests.Kind, requests.Metric = governance.KindRate, governance.MetricRequests
	tokens.Kind, tokens.Metric, tokens.Reserve = governance.KindRate, governance.MetricTokens, governance.ReserveExpected
	slots.Kind, slots.Metric, slots.Per, slots.Burst = governance.KindConcurrency, governance.MetricRequests, 0, 0
	slots.Amount = 1 << 20
	key, _, err := a.stores.keys.Issue(ctx, by, governance.VirtualKey{
		Organization: governance.Ref{ID: org.ID}, Team: governance.Ref{ID: team.ID}, Name: "overhead",
	}, []governance.Limit{requests, tokens, slots})
	require.NoError(b, err)
	return key.Secret.Reveal()
}

// sample is what a chunk of calls cost.
type sample struct {
	calls    int
	wall     time.Duration
	cpu      time.Duration // of the process
	postgres time.Duration
	mallocs  float64 // each call
	bytes    float64 // each call
	took     []time.Duration
}

// measure drives a process and reads what it used meanwhile.
func (s *stage) measure(b *testing.B, of subject, request []byte, connections, n int) sample {
	b.Helper()
	before, postgres, began := of.usage(b, ""), s.postgres.used(b), time.Now()
	out := sample{calls: n, took: drive(b, of.address(), request, connections, n)}
	out.wall = time.Since(began)
	after := of.usage(b, "")
	out.cpu, out.postgres = after.CPU-before.CPU, s.postgres.used(b)-postgres
	out.mallocs = float64(after.Mallocs-before.Mallocs) / float64(n)
	out.bytes = float64(after.Bytes-before.Bytes) / float64(n)
	return out
}

// BenchmarkOverhead compares, in one run and in turns, what a call costs in a proxy that governs nothing, in this gateway
// without governance, with limits in its memory, and as the product is. Each figure is the median of the turns.
func BenchmarkOverhead(b *testing.B) {
	for _, shape := range []struct {
		name                      string
		stream                    bool
		turns, connections, calls int
	}{
		{"unary", false, 5, 64, 5000},
		{"stream", true, 3, 32, 192},
	} {
		b.Run(shape.name, func(b *testing.B) {
			s := setUp(b)
			samples := make(map[contestant][]sample)
			for turn := range 1 + shape.turns {
				for _, of := range s.subjects {
					measured := s.measure(b, of, request(of, s.key, shape.stream), shape.connections, shape.calls)
					if turn > 0 { // the first one warms up
						samples[of.contestant] = append(samples[of.contestant], measured)
					}
				}
			}
			s.profile(b, shape.name, shape.stream, shape.connections, shape.calls)
			base := median(samples[proxied], sample.each)
			for _, c := range contestants() {
				b.Run(string(c), func(b *testing.B) {
					turns := samples[c]
					b.ReportMetric(median(turns, func(s sample) float64 { return micro(s.wall) * 1e3 / float64(s.calls) }), "ns/op")
					b.ReportMetric(median(turns, func(s sample) float64 { return float64(s.calls) / s.wall.Seconds() }), "calls/s")
					b.ReportMetric(median(turns, sample.each), "cpu-µs")
					b.ReportMetric(median(turns, sample.eachPostgres), "pg-µs")
					b.ReportMetric(median(turns, sample.each)/base, "×proxy")
					b.ReportMetric(median(turns, func(s sample) float64 { return micro(s.took[len(s.took)/2]) }), "p50-µs")
					b.ReportMetric(median(turns, func(s sample) float64 { return micro(s.took[len(s.took)*99/100]) }), "p99-µs")
					b.ReportMetric(median(turns, func(s sample) float64 { return s.mallocs }), "mallocs")
					b.ReportMetric(median(turns, func(s sample) float64 { return s.bytes }), "heap-B")
				})
			}
		})
	}
}

// profiles is where one more turn of each process leaves its profiles.
var profiles = flag.String("profiles", "", "directory for CPU and allocation profiles of the processes")

// profile writes SHAPE.CONTESTANT.cpu and .allocs, if it is wanted.
func (s *stage) profile(b *testing.B, shape string, stream bool, connections, n int) {
	b.Helper()
	if *profiles == "" {
		return
	}
	for _, of := range s.subjects {
		over := make(chan struct{})
		go func() {
			defer close(over)
			drive(b, of.address(), request(of, s.key, stream), connections, 8*n)
		}()
		name := filepath.Join(*profiles, shape+"."+string(of.contestant))
		require.NoError(b, os.WriteFile(name+".cpu", of.fetch(b, "/profile?seconds=5"), 0o600))
		<-over
		require.NoError(b, os.WriteFile(name+".allocs", of.fetch(b, "/allocs"), 0o600))
	}
}

func (s sample) each() float64         { return micro(s.cpu) / float64(s.calls) }
func (s sample) eachPostgres() float64 { return micro(s.postgres) / float64(s.calls) }

func micro(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func median(turns []sample, of func(sample) float64) float64 {
	values := make([]float64, 0, len(turns))
	for _, t := range turns {
		values = append(values, of(t))
	}
	slices.SortFunc(values, cmp.Compare[float64])
	return values[len(values)/2]
}

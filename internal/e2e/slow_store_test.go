package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/devdb"
)

// badNetwork is a wire to a cluster that can be made worse.
type badNetwork struct {
	t     *testing.T
	proxy *toxiproxy.Proxy
}

// startBadNetwork leads to a cluster that listens on an address.
func startBadNetwork(t *testing.T, address string) *badNetwork {
	t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	n := &badNetwork{t, toxiproxy.NewProxy(server, "database", "127.0.0.1:0", address)}
	require.NoError(t, n.proxy.Start())
	t.Cleanup(n.proxy.Stop)
	return n
}

// dsn is the URL of the cluster through the network.
func (n *badNetwork) dsn() string {
	return "postgres://tollgate_gateway@" + n.proxy.Listen + "/tollgate?sslmode=disable"
}

// suffer adds a toxic of a kind, such as "latency", with its attributes, in both directions.
func (n *badNetwork) suffer(kind, attributes string) {
	n.t.Helper()
	for _, direction := range []string{"upstream", "downstream"} {
		_, err := n.proxy.Toxics.AddToxicJson(strings.NewReader(
			`{"name":"` + kind + direction + `","type":"` + kind + `","stream":"` + direction + `","attributes":` + attributes + `}`))
		require.NoError(n.t, err)
	}
}

// heal takes all toxics away.
func (n *badNetwork) heal() { n.proxy.Toxics.ResetToxics(n.t.Context()) }

// The way to PostgreSQL is long, jittery, narrow, or cuts what is sent into pieces: calls are slower and all else is as ever.
// Where it swallows everything without a word, nothing is forwarded and everybody is told so. Once it is good again there are
// answers, without any restart.
func TestSlowStore(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	cluster := startDatabaseWith(t, devdb.Options{Listen: address})
	network := startBadNetwork(t, address)
	f := startFleet(t, fleetOptions{gateways: 2, dsn: cluster.DSN(devdb.Superuser, "tollgate"), through: network.dsn()})
	key, _ := f.issue(forever("cost", "100"), perDay("requests", "100000"))
	f.awaitAnswers(key)
	before := f.goroutines()

	for _, bad := range [][2]string{
		{"latency", `{"latency":20,"jitter":15}`},
		{"slicer", `{"average_size":40,"size_variation":20,"delay":200}`},
		{"bandwidth", `{"rate":200}`}, // kB a second
	} {
		network.suffer(bad[0], bad[1])
		requireDecided(t, f.closedLoop(8, 80, chat(key, helloChat)))
		network.heal()
	}
	network.suffer("timeout", `{"timeout":0}`) // nothing comes through, and nobody is told
	// What was under way at that moment may still come through.
	f.eventually(20*time.Second, "the gateways notice", func() bool {
		a, err := f.gateways[0].call(t.Context(), key, "/v1/chat/completions", helloChat)
		return err == nil && a.status == http.StatusServiceUnavailable
	})
	seen := f.forwarded()
	for _, o := range f.closedLoop(8, 24, chat(key, helloChat)) {
		require.Equal(t, http.StatusServiceUnavailable, o.status, "%v %s", o.err, o.body)
		requireRedacted(t, o, cluster)
	}
	require.Equal(t, seen, f.forwarded(), "something was forwarded undecided")
	network.heal()
	f.awaitAnswers(key)
	f.requireBooksBalance()
	f.requireOneRowPerForward()
	f.requireNoLeak(before)
}

// What DATABASE_URL leads to takes no writes any more, as a primary that was demoted: nothing is forwarded, though keys can
// still be read. Sessions with it are given up, so that there are answers once it takes writes, or another server does.
func TestReadOnlyStore(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{gateways: 2})
	key, _ := f.issue(forever("cost", "100"))
	f.awaitAnswers(key)
	before, seen := f.goroutines(), f.forwarded()
	cut := "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '" + f.database() + "'"
	f.besides("ALTER DATABASE "+f.database()+" SET default_transaction_read_only = on", cut)
	outcomes := f.closedLoop(4, 40, chat(key, helloChat))
	counts := tally(outcomes)
	require.Equal(t, len(outcomes), undecided(counts)+counts["503 data_store_unavailable"], "%v", counts)
	require.Equal(t, seen, f.forwarded(), "something was forwarded undecided")
	f.besides("ALTER DATABASE " + f.database() + " RESET default_transaction_read_only") // and no session is cut
	f.awaitAnswers(key)
	f.requireBooksBalance()
	f.requireOneRowPerForward()
	f.requireNoLeak(before)
}

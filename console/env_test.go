package console

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance/pgstore"
	"github.com/tollgate-gateway/tollgate/internal/pgtest"
	"github.com/tollgate-gateway/tollgate/internal/seal"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

const testToken = "test-admin-token-of-more-than-32-characters"

// env is a control plane on a database of its own.
type env struct {
	tb      testing.TB
	pool    *pgxpool.Pool
	handler http.Handler
	log     *bytes.Buffer
	// contract is what every answer is checked against.
	contract contract
}

func options(tb testing.TB, pool *pgxpool.Pool) Options {
	tb.Helper()
	keys, err := seal.ParseKeys(seal.Generate("k1"))
	require.NoError(tb, err)
	peppers, err := seal.ParsePeppers(seal.Generate("p1"))
	require.NoError(tb, err)
	spend := pgstore.NewSpend(pool)
	return Options{
		Organizations: pgstore.NewOrganizations(pool), Teams: pgstore.NewTeams(pool), Users: pgstore.NewUsers(pool),
		Memberships: pgstore.NewMemberships(pool), Keys: pgstore.NewKeys(pool, peppers), Providers: pgstore.NewProviders(pool, keys),
		Models: pgstore.NewModels(pool), Targets: pgstore.NewTargets(pool), Limits: pgstore.NewLimits(pool), Guardrails: pgstore.NewGuardrails(pool, keys),
		Prices: pgstore.NewPrices(pool), Spend: spend, Decisions: spend, Exports: pgstore.NewExports(pool), Audit: pgstore.NewAudit(pool), Processes: pgstore.NewProcesses(pool),
		AdminToken: secret.New(testToken), ProviderKinds: testKinds(), Log: zerolog.Nop(),
	}
}

func newEnv(tb testing.TB, change ...func(*Options)) *env {
	tb.Helper()
	e := &env{tb: tb, pool: pgtest.New(tb), log: &bytes.Buffer{}}
	o := options(tb, e.pool)
	o.Log = zerolog.New(zerolog.SyncWriter(e.log))
	for _, c := range change {
		c(&o)
	}
	var err error
	e.handler, err = New(o)
	require.NoError(tb, err)
	e.contract = contractOf(o)
	return e
}

// answer is what a request got.
type answer struct {
	status int
	header http.Header
	text   string
	body   map[string]any
}

// send makes a request as the administrator. A body that is no string is encoded.
func (e *env) send(method, path string, body any, headers ...string) answer {
	e.tb.Helper()
	r := e.request(method, path, body)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return e.do(r)
}

func (e *env) request(method, path string, body any) *http.Request {
	e.tb.Helper()
	var reader io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		reader = strings.NewReader(b)
	default:
		text, err := json.Marshal(b)
		require.NoError(e.tb, err)
		reader = bytes.NewReader(text)
	}
	r := httptest.NewRequestWithContext(e.tb.Context(), method, "/admin/v1"+path, reader)
	r.Header.Set("Authorization", "Bearer "+testToken)
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	return r
}

func (e *env) do(r *http.Request) answer {
	e.tb.Helper()
	w := httptest.NewRecorder()
	e.handler.ServeHTTP(w, r)
	a := answer{status: w.Code, header: w.Header(), text: w.Body.String()}
	if strings.Contains(a.header.Get("Content-Type"), "json") && a.text != "" {
		d := json.NewDecoder(strings.NewReader(a.text))
		d.UseNumber()
		require.NoError(e.tb, d.Decode(&a.body), a.text)
	}
	e.contract.requireConforms(e.tb, r, a)
	return a
}

// must makes a request that has to succeed and returns its body.
func (e *env) must(method, path string, body any) map[string]any {
	e.tb.Helper()
	a := e.send(method, path, body)
	require.Less(e.tb, a.status, 300, "%s %s: %s", method, path, a.text)
	return a.body
}

// create makes a resource and returns its id.
func (e *env) create(path string, body any) string {
	e.tb.Helper()
	id, ok := e.must(http.MethodPost, path, body)["id"].(string)
	require.True(e.tb, ok)
	return id
}

// faults lists the members at fault of a problem.
func (a answer) faults() map[string]string {
	faults := make(map[string]string)
	list, _ := a.body["errors"].([]any)
	for _, f := range list {
		if f, ok := f.(map[string]any); ok {
			location, _ := f["location"].(string)
			faults[location], _ = f["message"].(string)
		}
	}
	return faults
}

type object = map[string]any

func monthly(amount string) object {
	return object{"kind": "budget", "metric": "cost", "amount": amount, "window": object{"type": "calendar", "period": "month"}}
}

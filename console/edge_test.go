package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// bare is a control plane whose stores do nothing but fail.
func bare(tb testing.TB, err error) *env {
	tb.Helper()
	o := Options{AdminToken: secret.New(testToken), Organizations: failing{err: err}, Log: zerolog.Nop()}
	handler, failure := New(o)
	require.NoError(tb, failure)
	return &env{tb: tb, handler: handler, contract: contractOf(o)}
}

// failing is a store that fails.
type failing struct {
	governance.Store[governance.Organization]

	err error
}

func (f failing) Get(context.Context, governance.Actor, string) (governance.Organization, error) {
	if f.err == nil {
		panic("a bug with a secret: " + testToken)
	}
	return governance.Organization{}, f.err
}

func TestNew_RefusesTokensThatCanBeGuessed(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"", "admin", strings.Repeat("x", 31)} {
		_, err := New(Options{AdminToken: secret.New(token)})
		require.ErrorContains(t, err, "at least 32")
	}
}

func TestAuthorization_OnlyTheTokenPasses(t *testing.T) {
	t.Parallel()
	e := bare(t, governance.ErrNotFound)
	for i, header := range []string{"", "Bearer", "Bearer ", "Bearer wrong", "Basic " + testToken, testToken, "Bearer " + testToken + "x", "bearer" + testToken} {
		r := e.request(http.MethodGet, "/organizations/org_000000000000", nil)
		r.RemoteAddr = fmt.Sprintf("192.0.2.%d:1000", i)
		r.Header.Set("Authorization", header)
		a := e.do(r)
		require.Equal(t, http.StatusUnauthorized, a.status, header)
		require.Equal(t, "unauthorized", a.body["code"])
		require.NotEmpty(t, a.header.Get("WWW-Authenticate"))
		require.NotContains(t, a.text, testToken)
	}
	require.Equal(t, http.StatusNotFound, e.send(http.MethodGet, "/organizations/org_000000000000", nil, "Authorization", "bearer "+testToken).status)
}

func TestAuthorization_FailuresAreSlowedAndNobodyIsLockedOut(t *testing.T) {
	t.Parallel()
	e := bare(t, governance.ErrNotFound)
	statuses := make(map[int]int)
	var last answer
	for range 40 {
		last = e.send(http.MethodGet, "/organizations", nil, "Authorization", "Bearer guess")
		statuses[last.status]++
	}
	require.Equal(t, failureBurst, statuses[http.StatusUnauthorized])
	require.Equal(t, 40-failureBurst, statuses[http.StatusTooManyRequests])
	require.NotEmpty(t, last.header.Get("Retry-After"))
	require.Equal(t, http.StatusNotFound, e.send(http.MethodGet, "/organizations/org_000000000000", nil).status, "the right token passes")
}

func TestEdge_OtherSitesAreRefused(t *testing.T) {
	t.Parallel()
	e := bare(t, governance.ErrNotFound)
	for name, value := range map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"} {
		a := e.send(http.MethodPost, "/organizations", object{"name": "x"}, name, value)
		require.Equal(t, http.StatusForbidden, a.status, name)
	}
	require.NotEqual(t, http.StatusForbidden, e.send(http.MethodGet, "/organizations/org_000000000000", nil, "Sec-Fetch-Site", "cross-site").status)
}

func TestEdge_EveryAnswerIsProtectedAndNamed(t *testing.T) {
	t.Parallel()
	e := bare(t, governance.ErrNotFound)
	for _, path := range []string{"/", "/nope", "/admin/v1", "/admin/v1/openapi.json", "/admin/v1/nope", "/admin/v1/organizations/org_000000000000", "/console/", "/admin/v1//organizations"} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.Header.Set("Authorization", "Bearer "+testToken)
		w := httptest.NewRecorder()
		e.handler.ServeHTTP(w, r)
		for name, value := range map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer"} {
			require.Equal(t, value, w.Header().Get(name), path)
		}
		require.NotEmpty(t, w.Header().Get("X-Request-Id"), path)
		if w.Code >= 400 {
			require.Equal(t, problemType, w.Header().Get("Content-Type"), path)
			require.Contains(t, w.Body.String(), w.Header().Get("X-Request-Id"), path)
		}
	}
	odd := e.send(http.MethodGet, "/organizations/org_000000000000", nil, "X-Request-Id", "a b\"c")
	require.NotContains(t, odd.header.Get("X-Request-Id"), " ", "an odd id is replaced")
}

func TestEdge_WrongMethodsNameTheRightOnes(t *testing.T) {
	t.Parallel()
	e := bare(t, governance.ErrNotFound)
	for _, op := range e.contract.operations {
		a := e.send(http.MethodPut, strings.Replace(op.Path, "{id}", "x", 1), object{})
		require.Equal(t, http.StatusMethodNotAllowed, a.status, op.Path)
		require.Contains(t, a.header.Get("Allow"), op.Method)
		require.Equal(t, "method_not_allowed", a.body["code"])
	}
}

func TestEdge_FailuresOfTheStoreAreToldWithoutTheirText(t *testing.T) {
	t.Parallel()
	const leak = "postgres://tollgate:secret@db.internal/x"
	for _, c := range []struct {
		err    error
		status int
		code   string
	}{
		{fmt.Errorf("read: %w: %s", governance.ErrStoreAway, leak), http.StatusServiceUnavailable, "data_store_unavailable"},
		{fmt.Errorf("%s: %w", leak, context.DeadlineExceeded), http.StatusServiceUnavailable, "data_store_unavailable"},
		{errors.New("syntax error in " + leak), http.StatusInternalServerError, "internal_error"},
		{fmt.Errorf("%s: %w", leak, governance.ErrConflict), http.StatusConflict, "conflict"},
		{fmt.Errorf("%s: %w", leak, governance.ErrExists), http.StatusConflict, "already_exists"},
		{nil, http.StatusInternalServerError, "internal_error"}, // a panic
	} {
		e := bare(t, c.err)
		r := e.request(http.MethodGet, "/organizations/org_000000000000", nil)
		w := httptest.NewRecorder()
		e.handler.ServeHTTP(w, r)
		require.Equal(t, c.status, w.Code, w.Body.String())
		require.Contains(t, w.Body.String(), c.code)
		require.NotContains(t, w.Body.String(), "secret")
		require.NotContains(t, w.Body.String(), testToken)
		require.Equal(t, c.status == http.StatusServiceUnavailable, w.Header().Get("Retry-After") != "")
	}
}

func FuzzCheckJSON(f *testing.F) {
	for _, seed := range []string{`{"a":1,"a":2}`, `{"a":[{"b":"\u0000"}]}`, `[1]x`, "\"\xff\"", `{"a/b":{"~":1e309}}`, ``, ` `} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if p := checkJSON(body); p != nil {
			require.NotEmpty(t, p.Message)
			require.True(t, strings.HasPrefix(p.Location, "body"))
			return
		}
		var v any
		if err := jsonFormat().Unmarshal(body, &v); len(body) > 0 {
			// What passes is one JSON value; only numbers beyond a float's range fail later.
			if err != nil {
				require.Contains(t, err.Error(), "range")
			}
		}
	})
}

func FuzzDuration(f *testing.F) {
	for _, seed := range []string{"24h", "1h30m", "45s", "0s", "90m", "100h0m1s"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := duration(text).parse("duration", minWindow, maxWindow)
		if err != nil {
			return
		}
		again, err := durationOf(d).parse("duration", minWindow, maxWindow)
		require.NoError(t, err)
		require.Equal(t, d, again)
	})
}

package console

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/secret"
)

func TestSmoke(t *testing.T) {
	h, err := New(Options{AdminToken: secret.New(strings.Repeat("a", 32))})
	require.NoError(t, err)
	get := func(method, path, body string) {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+strings.Repeat("a", 32))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		t.Log(method, path, body, "->", w.Code, w.Header(), w.Body.String()[:min(len(w.Body.String()), 900)])
		if path == "/admin/v1/openapi.json" {
			os.WriteFile("/tmp/openapi.json", w.Body.Bytes(), 0o644)
		}
	}
	get(http.MethodGet, "/admin/v1/openapi.json", "")
	get(http.MethodGet, "/", "")
	get(http.MethodGet, "/nope", "")
	get(http.MethodPut, "/admin/v1/keys", "{}")
	get(http.MethodGet, "/admin/v1/nope", "")
	get(http.MethodPost, "/admin/v1/keys", `{"name":"a","name":"b"}`)
	get(http.MethodPost, "/admin/v1/keys", `{"name":"a","budgett":5, "limits":[{"kind":"budget","metric":"cost","amount":10}]}`)
	get(http.MethodPost, "/admin/v1/keys", `{"name":"a\u0000b"}`)
	get(http.MethodPost, "/admin/v1/keys", `{"name":1e309}`)
	get(http.MethodPost, "/admin/v1/keys", `{"name":"a"} {}`)
	get(http.MethodPost, "/admin/v1/keys", `{"team_id":"x", "Name":"a"}`)
	get(http.MethodPost, "/admin/v1/keys", ``)
	get(http.MethodPost, "/admin/v1/keys", `[]`)
	get(http.MethodPost, "/admin/v1/keys", `null`)
	get(http.MethodPatch, "/admin/v1/limits/lim_123456789012", `{"kind":"rate","amount":"5"}`)
	get(http.MethodPatch, "/admin/v1/limits/lim_123456789012", `{"burst":null}`)
	get(http.MethodGet, "/admin/v1/keys?limit=0&foo=1&team_id=x", "")
	get(http.MethodGet, "/admin/v1/spend?from=x", "")
}

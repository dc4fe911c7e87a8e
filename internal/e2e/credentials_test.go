package e2e

import (
	"encoding/base64"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// F151: every header that clients put a key into works on every route; what cannot be a key is refused with the header's
// name and never its value. No secret is logged.
func TestF139_F151_CredentialsInEveryHeader(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	key, _ := f.issue()
	other, _ := f.issue()
	basic := func(user, password string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	}
	routes := []struct{ method, path, body string }{
		{http.MethodPost, "/v1/chat/completions", helloChat},
		{http.MethodPost, "/v1/completions", `{"model":"plain","prompt":"hello"}`},
		{http.MethodPost, "/v1/embeddings", `{"model":"plain","input":"hello"}`},
		{http.MethodPost, "/v1/responses", `{"model":"plain","input":"hello"}`},
		{http.MethodPost, "/v1/moderations", `{"model":"plain","input":"hello"}`},
		{http.MethodPost, "/v1/estimate", helloChat},
		{http.MethodGet, "/v1/models", ""},
		{http.MethodGet, "/v1/models/plain", ""},
		{http.MethodGet, "/v1/key", ""},
		{http.MethodGet, "/v1/usage", ""},
		{http.MethodPost, "/openai/v1/chat/completions", helloChat},
		{http.MethodGet, "/openai/v1/models", ""},
	}
	for _, c := range []struct {
		name    string
		headers http.Header
		status  int
		names   []string // headers that the refusal names
	}{
		{"Bearer", http.Header{"Authorization": {"Bearer " + key}}, 200, nil},
		{"SchemeInOtherCase", http.Header{"Authorization": {"bearer " + key}}, 200, nil},
		{"BasicUser", http.Header{"Authorization": {basic(key, "")}}, 200, nil},
		{"BasicPassword", http.Header{"Authorization": {basic("any", key)}}, 200, nil},
		{"XAPIKey", http.Header{"X-Api-Key": {key}}, 200, nil},
		{"APIKey", http.Header{"Api-Key": {key}}, 200, nil},
		{"XGoogAPIKey", http.Header{"X-Goog-Api-Key": {key}}, 200, nil},
		{"BesideNoop", http.Header{"Authorization": {"Bearer noop"}, "X-Api-Key": {key}}, 200, nil},
		{"BesideForeignKey", http.Header{"Authorization": {"Bearer " + key}, "X-Api-Key": {"sk-ant-api03-secret"}}, 200, nil},
		{"SameTwice", http.Header{"Authorization": {"Bearer " + key}, "X-Api-Key": {key}}, 200, nil},
		{"None", http.Header{}, 401, []string{"Authorization"}},
		{"NotNeeded", http.Header{"Authorization": {"Bearer not-needed"}}, 401, []string{"Authorization"}},
		{"Empty", http.Header{"Authorization": {"Bearer "}}, 401, []string{"Authorization"}},
		{"KeyWithoutScheme", http.Header{"Authorization": {key}}, 401, []string{"Authorization"}},
		{"KeyWithoutPrefix", http.Header{"X-Api-Key": {strings.TrimPrefix(key, "sk-tg-")}}, 401, []string{"X-Api-Key"}},
		{"BrokenBasic", http.Header{"Authorization": {"Basic %%%"}}, 401, []string{"Authorization"}},
		{"ChecksumWrong", http.Header{"Api-Key": {key[:len(key)-1] + "!"}}, 401, []string{"Api-Key"}},
		{"TwoKeys", http.Header{"Authorization": {"Bearer " + key}, "X-Api-Key": {other}}, 401, []string{"Authorization", "X-Api-Key"}},
		{"HeaderTwice", http.Header{"X-Api-Key": {key, key}}, 400, []string{"X-Api-Key"}},
		{"AuthorizationTwice", http.Header{"Authorization": {"Bearer " + key, "Bearer " + key}}, 400, []string{"Authorization"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := f.mock.Counts().Count
			for _, rt := range routes {
				req, err := http.NewRequestWithContext(t.Context(), rt.method, f.gateways[0].baseURL+rt.path, strings.NewReader(rt.body))
				require.NoError(t, err)
				req.Header = c.headers.Clone()
				a := must(t)(do(req))
				require.Equal(t, c.status, a.status, "%s: %s", rt.path, a.body)
				if c.status == http.StatusOK {
					continue
				}
				if c.status == http.StatusUnauthorized {
					require.Equal(t, "invalid_api_key", a.code(), "%s: %s", rt.path, a.body)
				}
				for _, name := range c.names {
					require.Contains(t, string(a.body), name, rt.path)
				}
				for _, values := range c.headers {
					for _, v := range values {
						if secret := v[strings.LastIndex(v, " ")+1:]; secret != "" {
							require.NotContains(t, string(a.body), secret, rt.path)
						}
					}
				}
			}
			if c.status != http.StatusOK {
				require.Equal(t, before, f.mock.Counts().Count, "nothing is forwarded")
			}
		})
	}
	for _, p := range append(f.gateways, f.control) { // F139
		for _, marker := range []string{key, other, adminToken, "sk-upstream-marker"} {
			require.NotContains(t, p.out.String(), marker, "a secret is in the log")
		}
	}
	for _, r := range f.mock.Log().Requests {
		for name, values := range r.Header {
			for _, v := range values {
				require.NotContains(t, v, key, "the caller's key reached the upstream in %s", name)
			}
		}
	}
}

package gateway_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/gateway"
	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/mock"
)

func TestF151_Credentials(t *testing.T) {
	t.Parallel()
	b := start(t)
	basic := func(user, password string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	}
	for name, tc := range map[string]struct {
		headers []string
		status  int
	}{
		"bearer":                      {[]string{"Authorization", "Bearer " + demoKey}, 200},
		"bearer in any case":          {[]string{"Authorization", "bEaReR   " + demoKey + " "}, 200},
		"basic user":                  {[]string{"Authorization", basic(demoKey, "")}, 200},
		"basic password":              {[]string{"Authorization", basic("", demoKey)}, 200},
		"basic both":                  {[]string{"Authorization", basic("someone", demoKey)}, 200},
		"x-api-key":                   {[]string{"Authorization", "", "X-Api-Key", demoKey}, 200},
		"api-key":                     {[]string{"Authorization", "", "Api-Key", demoKey}, 200},
		"x-goog-api-key":              {[]string{"Authorization", "", "X-Goog-Api-Key", demoKey}, 200},
		"imported key":                {[]string{"Authorization", "Bearer " + foreignKey}, 200},
		"noop beside ours":            {[]string{"Authorization", "Bearer noop", "X-Api-Key", demoKey}, 200},
		"not-needed beside ours":      {[]string{"Authorization", "Bearer " + demoKey, "X-Api-Key", "not-needed"}, 200},
		"the same twice":              {[]string{"Authorization", "Bearer " + demoKey, "X-Api-Key", demoKey}, 200},
		"two different ones":          {[]string{"Authorization", "Bearer " + demoKey, "X-Api-Key", otherKey}, 401},
		"none":                        {[]string{"Authorization", ""}, 401},
		"empty bearer":                {[]string{"Authorization", "Bearer "}, 401},
		"unknown scheme":              {[]string{"Authorization", "Digest x"}, 401},
		"broken basic":                {[]string{"Authorization", "Basic !!!"}, 401},
		"unknown key":                 {[]string{"Authorization", "Bearer not-needed"}, 401},
		"unknown key in x-api-key":    {[]string{"Authorization", "", "X-Api-Key", otherKey}, 401},
		"key without its scheme name": {[]string{"Authorization", demoKey}, 401},
	} {
		for _, path := range []string{"/v1/models", "/v1/chat/completions"} {
			var a answer
			if path == "/v1/models" {
				a = b.get(path, tc.headers...)
			} else {
				a = b.post(path, chatBody, tc.headers...)
			}
			require.Equal(t, tc.status, a.StatusCode, name+path+a.text())
			if tc.status == http.StatusUnauthorized {
				e := a.failure(t)
				require.Equal(t, "authentication_error", e.Type)
				requireClean(t, a, demoKey, otherKey, "not-needed", "aaaaaaaa")
			}
		}
	}
	a := b.get("/v1/models", "Authorization", "", "X-Api-Key", otherKey)
	require.Contains(t, a.failure(t).Message, "X-Api-Key", "the text says which header was read")
	a = b.get("/v1/models", "X-Api-Key", otherKey)
	require.Contains(t, a.failure(t).Message, "Authorization")
	require.Contains(t, a.failure(t).Message, "X-Api-Key")

	twice := b.request(http.MethodGet, "/v1/models", "")
	twice.Header["Authorization"] = []string{"Bearer " + demoKey, "Bearer " + demoKey}
	require.Equal(t, http.StatusBadRequest, b.do(twice).StatusCode)
	twice = b.request(http.MethodGet, "/v1/models", "", "Authorization", "")
	twice.Header["X-Api-Key"] = []string{demoKey, demoKey}
	require.Equal(t, http.StatusBadRequest, b.do(twice).StatusCode)
}

func TestX03_TheBodyIsReadOnlyAfterAuthentication(t *testing.T) {
	t.Parallel()
	b := start(t)
	out := b.raw("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer bad\r\nExpect: 100-continue\r\nContent-Length: 30000000\r\n\r\n")
	require.True(t, strings.HasPrefix(out, "HTTP/1.1 401 "), out)
	require.NotContains(t, out, "100 Continue")
	out = b.raw("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer bad\r\nContent-Length: 3000\r\n\r\n{")
	require.True(t, strings.HasPrefix(out, "HTTP/1.1 401 "), out)
}

func TestErrorsHaveOneShapeOnEveryStatus(t *testing.T) {
	t.Parallel()
	b := start(t)
	for _, tc := range []struct {
		method, path, body string
		headers            []string
		status             int
		code               string
	}{
		{"GET", "/v1/nothing", "", nil, 404, "not_found"},
		{"GET", "/admin", "", nil, 404, "not_found"},
		{"GET", "/admin/v1/keys", "", nil, 404, "not_found"},
		{"GET", "/console/", "", nil, 404, "not_found"},
		{"POST", "/v1/messages", "{}", nil, 400, ""},
		{"GET", "/v1/messages", "", nil, 405, ""},
		{"GET", "/v1/chat/completions", "", nil, 405, "method_not_allowed"},
		{"DELETE", "/v1/models/m", "", nil, 405, "method_not_allowed"},
		{"POST", "/v1/chat/completions", chatBody, []string{"Content-Encoding", "gzip"}, 415, "unsupported_content_encoding"},
		{"GET", "/v1/models", "", []string{"Connection", "Upgrade", "Upgrade", "websocket"}, 501, "upgrade_unsupported"},
		{"POST", "/v1/chat/completions", `{"model":"m"`, nil, 400, "invalid_request"},
		{"POST", "/v1/chat/completions", `{"model":"m","model":"m"}`, nil, 400, "invalid_request"},
		{"POST", "/v1/chat/completions", `{"model":"m","Model":"x"}`, nil, 400, "invalid_request"},
		{"POST", "/v1/chat/completions", `[]`, nil, 400, "invalid_request"},
		{"POST", "/v1/chat/completions", `{"model":7}`, nil, 400, "invalid_request"},
		{"POST", "/v1/chat/completions", `{"messages":[]}`, nil, 400, "invalid_request"},
		{"POST", "/v1/chat/completions", `{"model":"m","stream":"yes"}`, nil, 400, "invalid_request"},
		{"POST", "/v1/chat/completions", `{"model":"m","max_tokens":-1}`, nil, 400, "invalid_request"},
		{"POST", "/v1/chat/completions", `{"model":"m","max_tokens":9223372036854775808}`, nil, 400, "invalid_request"},
		{"POST", "/v1/chat/completions", `{"model":"m"} x`, nil, 400, "invalid_request"},
		{"POST", "/v1/chat/completions", `{"model":"unknown"}`, nil, 404, "model_not_found"},
		{"POST", "/v1/chat/completions", `{"model":"m","user":5}`, nil, 400, "invalid_request"},
		{"POST", "/v1/chat/completions", `{"model":"m","user":"a\u0000b"}`, nil, 400, "invalid_request"},
		{"POST", "/v1/chat/completions", `{"model":"m","metadata":{"a":"\u0000"}}`, nil, 400, "invalid_request"},
		{"POST", "/v1/chat/completions", `{"model":"m","user":"` + strings.Repeat("u", 257) + `"}`, nil, 400, "invalid_request"},
		{"POST", "/v1/chat/completions", `{"model":"m","user":"a"}`, []string{"X-Tollgate-End-User", "b"}, 400, "invalid_request"},
		{"POST", "/v1/chat/completions", `{"model":"m","user":"unreadable"}`, nil, 503, "data_store_unavailable"},
		{"POST", "/v1/chat/completions", chatBody, []string{"X-Tollgate-Dry-Run", "maybe"}, 400, "invalid_request"},
		{"POST", "/v1/chat/completions", chatBody, []string{"X-Tollgate-Max-Costs", "1"}, 400, "invalid_request"},
		{"POST", "/v1/chat/completions", chatBody, []string{"X-Tollgate-Tags", "novalue"}, 400, "invalid_request"},
		{"POST", "/v1/chat/completions", chatBody, []string{"X-Tollgate-Tags", "a=" + strings.Repeat("x", 65)}, 400, "invalid_request"},
		{"POST", "/v1/chat/completions", chatBody, []string{"X-Tollgate-Tags", tags(21)}, 400, "invalid_request"},
		{"POST", "/v1/chat/completions", chatBody, []string{"X-Tollgate-Tags", "tollgate.cache_saved_usd=9"}, 400, "invalid_request"},
		{"POST", "/v1/chat/completions", chatBody, []string{"X-Tollgate-Metadata", "[]"}, 400, "invalid_request"},
		{"POST", "/v1/chat/completions", chatBody, []string{"X-Tollgate-Metadata", `{"a":"\u0000"}`}, 400, "invalid_request"},
		{"POST", "/v1/chat/completions", chatBody, []string{"X-Tollgate-Metadata", `{"a":"` + strings.Repeat("x", 4<<10) + `"}`}, 400, "invalid_request"},
		{"POST", "/v1/chat/completions", chatBody, []string{"Idempotency-Key", strings.Repeat("k", 256)}, 400, "invalid_request"},
		{"GET", "/v1/receipts/nothing", "", nil, 404, "not_found"},
		{"GET", "/v1/usage?group_by=team", "", nil, 400, "invalid_request"},
		{"GET", "/v1/usage?form=x", "", nil, 400, "invalid_request"},
		{"POST", "/v1/estimate?route=x", chatBody, nil, 400, "invalid_request"},
	} {
		a := b.do(b.request(tc.method, tc.path, tc.body, tc.headers...))
		require.Equal(t, tc.status, a.StatusCode, tc.method+" "+tc.path+" "+tc.body+" "+a.text())
		require.Equal(t, "application/json", a.Header.Get("Content-Type"))
		require.NotEmpty(t, a.Header.Get("X-Request-Id"))
		require.NotEmpty(t, a.Header.Get("Request-Id"))
		if tc.code == "" {
			continue
		}
		e := a.failure(t)
		require.Equal(t, tc.code, e.Code)
		require.NotEmpty(t, e.Message)
		require.NotEmpty(t, e.Type)
		var whole map[string]map[string]any
		require.NoError(t, json.Unmarshal(a.body, &whole))
		require.Contains(t, whole["error"], "param")
	}
	require.Zero(t, b.mock.Counts().Count)
	require.Equal(t, http.StatusOK, b.chat("X-Tollgate-Tags", tags(20), "X-Tollgate-End-User", strings.Repeat("u", 256)).StatusCode)
}

func tags(n int) string {
	var list []string
	for i := range n {
		list = append(list, "t"+strconv.Itoa(i)+"="+strings.Repeat("x", 64))
	}
	return strings.Join(list, ", ")
}

func TestRuling41_AnthropicsShape(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.model("m", "small")
		s.claude("c", "small")
		s.limit(governance.KindBudget, governance.MetricCost, 0)
	})
	for _, tc := range []struct {
		method, path, body string
		headers            []string
		kind               string
	}{
		{"POST", "/v1/messages/batches", "{}", nil, "not_found_error"},
		{"GET", "/v1/messages", "", nil, "invalid_request_error"},
		{"POST", "/v1/messages", `{"model":"c"}`, nil, "invalid_request_error"}, // without its version
		{"POST", "/messages", `{"model":"c"}`, []string{"Anthropic-Version", "2023-06-01"}, "billing_error"},
		{"POST", "/openai/v1/messages", `{"model":"c"}`, []string{"Anthropic-Version", "2023-06-01"}, "billing_error"},
		{"POST", "/v1/messages", `{"model":"c","max_tokens":-1}`, []string{"Anthropic-Version", "2023-06-01"}, "invalid_request_error"},
		{"POST", "/v1/messages", `{"model":"m"}`, []string{"Anthropic-Version", "2023-06-01"}, "permission_error"},
		{"POST", "/v1/messages", `{"model":"x"}`, []string{"Anthropic-Version", "2023-06-01"}, "not_found_error"},
		{"POST", "/v1/messages/count_tokens", `{"model":"m"}`, []string{"Anthropic-Version", "2023-06-01"}, "not_found_error"},
		{"POST", "/v1/messages", `{"model":"c"}`, []string{"Authorization", "Bearer x", "Anthropic-Version", "2023-06-01"}, "authentication_error"},
		{"GET", "/v1/models", "", []string{"Authorization", "", "Anthropic-Version", "2023-06-01"}, "authentication_error"},
		{"GET", "/anthropic/v1/models/x", "", nil, "not_found_error"},
		{"POST", "/anthropic/v1/chat/completions", chatBody, nil, "billing_error"},
		{"POST", "/anthropic/v1/chat/completions", "[]", nil, "invalid_request_error"},
	} {
		a := b.do(b.request(tc.method, tc.path, tc.body, tc.headers...))
		var e struct {
			Type      string
			Error     struct{ Type, Message, Code string }
			RequestID string `json:"request_id"`
		}
		require.NoError(t, json.Unmarshal(a.body, &e), a.text())
		require.Equal(t, "error", e.Type)
		require.Equal(t, tc.kind, e.Error.Type, tc.path)
		require.NotEmpty(t, e.Error.Code)
		require.Equal(t, a.Header.Get("Request-Id"), e.RequestID)
	}
	a := b.get("/v1/models", "Anthropic-Version", "2023-06-01")
	require.Contains(t, a.text(), `"type":"model"`)
	require.Contains(t, a.text(), `"has_more":false`)
}

func TestRoot(t *testing.T) {
	t.Parallel()
	b := start(t)
	require.Equal(t, http.StatusOK, b.get("/", "Authorization", "").StatusCode)
	require.Equal(t, http.StatusOK, b.do(b.request(http.MethodHead, "/", "", "Authorization", "")).StatusCode)
}

func TestF109_ModelNamesWithAnyCharacters(t *testing.T) {
	t.Parallel()
	names := map[string]string{ // name → path as clients write it
		"a/b":                    "a/b",
		"c/d":                    "c%2Fd",
		"hf.co/x/y:Q4_K_M":       "hf.co/x/y:Q4_K_M",
		"/abs/path":              "/abs/path",
		"/abs/other":             "%2Fabs%2Fother",
		"模型/β":                   "%E6%A8%A1%E5%9E%8B/%CE%B2",
		"a%2Fb":                  "a%252Fb",
		strings.Repeat("n", 300): strings.Repeat("n", 300),
	}
	b := start(t, func(s *setup) {
		for name := range names {
			s.model(name, "small")
		}
		s.model("hidden", "small")
		s.principal.KeyModels = []string{"*/*", "*%*", "n*"}
	})
	list := b.get("/v1/models")
	var models struct{ Data []struct{ ID string } }
	require.NoError(t, json.Unmarshal(list.body, &models))
	require.Len(t, models.Data, len(names), "F142: exactly what this key may call")
	for _, m := range models.Data {
		a := b.get("/v1/models/" + names[m.ID])
		require.Equal(t, http.StatusOK, a.StatusCode, m.ID+a.text())
		var one struct{ ID string }
		require.NoError(t, json.Unmarshal(a.body, &one))
		require.Equal(t, m.ID, one.ID)
		require.Equal(t, http.StatusOK, b.get("/models/"+names[m.ID]).StatusCode)
		require.Equal(t, http.StatusOK, b.get("/openai/v1/models/"+names[m.ID]).StatusCode)
		quoted, err := json.Marshal(m.ID)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, b.post("/v1/chat/completions", strings.Replace(chatBody, `"m"`, string(quoted), 1)).StatusCode)
	}
	a := b.get("/v1/models/hidden")
	require.Equal(t, http.StatusForbidden, a.StatusCode)
	require.Equal(t, http.StatusForbidden, b.post("/v1/chat/completions", strings.Replace(chatBody, `"m"`, `"hidden"`, 1)).StatusCode)
	require.Equal(t, http.StatusNotFound, b.get("/v1/models/none").StatusCode)
}

func TestT10_ConfusingPathsAreRefused(t *testing.T) {
	t.Parallel()
	b := start(t)
	for _, target := range []string{
		"/v1/chat%2Fcompletions", "/v1/chat%2fcompletions", "/v1//chat/completions", "//v1/chat/completions", "/v1/../v1/chat/completions",
		"/v1/./chat/completions", "/v1/%2e%2e/v1/chat/completions", "/v1/chat;x=1/completions", "/v1/chat%3bcompletions", "/v1/chat%5ccompletions",
		"/v1/chat%00/completions", "/v1/models/../key", "/v1/models/a/../../key", "/v1/models/%2e%2e/key", "/v1/models/..%2f..%2fkey",
		"/v1/models/a%2f..%2f..%2fkey", "/v1/models/%5cx", "http://elsewhere/v1/models", "/x/../v1/models", "/admin/../v1/models", "/v1/key/%2e",
		"/v1/chat\\completions",
	} {
		out := b.raw("GET " + target + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		require.True(t, strings.HasPrefix(out, "HTTP/1.1 400 "), target+": "+out)
		require.NotContains(t, out, `"object"`)
	}
	for _, target := range []string{"/V1/models", "/v1/models%20", "/v1/mod%65ls", "/v1/models/"} {
		out := b.raw("GET " + target + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer " + demoKey + "\r\n\r\n")
		require.True(t, strings.HasPrefix(out, "HTTP/1.1 404 "), target+": "+out)
	}
}

func TestRuling42_AWrongContentLength(t *testing.T) {
	t.Parallel()
	b := start(t)
	conn := "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + demoKey + "\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
	require.True(t, strings.HasPrefix(b.raw(conn), "HTTP/1.1 400 "))
}

func TestI07_AHalfClosedConnectionIsNotToldThatAllWentWell(t *testing.T) {
	t.Parallel()
	b := start(t)
	require.NoError(t, b.mock.SetScript(mock.Rule{Script: "hold"}))
	for _, path := range []string{"/v1/chat/completions", "/nowhere"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
		require.NoError(t, err)
		_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", path, demoKey, len(chatBody), chatBody)
		require.NoError(t, err)
		b.sums(func(c mock.Counts) bool { return c.Count == 1 })
		require.NoError(t, conn.(*net.TCPConn).CloseWrite())
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
		got, err := io.ReadAll(conn)
		if path == "/nowhere" { // it was answered before the close was seen, or not at all
			require.NotContains(t, string(got), " 200 ")
			continue
		}
		require.Empty(t, got, "what the server takes for the client's leaving is no success")
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	}
}

func TestEveryCodeHasAStatus(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "../governance/errors.go", nil, 0)
	require.NoError(t, err)
	count := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != "Code" {
			return true
		}
		text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		require.NoError(t, err)
		status, kind := gateway.AnswerTo(governance.Code(text))
		require.NotZero(t, status, text)
		require.NotEmpty(t, kind, text)
		count++
		return true
	})
	require.Greater(t, count, 30)
}

func TestRequire(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.principal.Require = []string{"end_user", "tags.project"} })
	require.Equal(t, "X-Tollgate-End-User", *b.chat().failure(t).Param)
	require.Equal(t, "X-Tollgate-Tags", *b.chat("X-Tollgate-End-User", "u").failure(t).Param)
	require.Equal(t, http.StatusOK, b.chat("X-Tollgate-End-User", "u", "X-Tollgate-Tags", "project=p").StatusCode)
	require.Equal(t, int64(1), b.ledger.admitted()[0].Origin.EndUser)
	require.Equal(t, http.StatusOK, b.post("/v1/chat/completions", strings.Replace(chatBody, `{`, `{"user":"abc",`, 1), "X-Tollgate-Tags", "project=p").StatusCode)
	require.Contains(t, string(b.sent()[1].Body), `"user":"abc"`, "members of the body go on unchanged")
}

func TestHeadAndKeepAlive(t *testing.T) {
	t.Parallel()
	b := start(t)
	a := b.do(b.request(http.MethodHead, "/v1/models", ""))
	require.Equal(t, http.StatusMethodNotAllowed, a.StatusCode)
	response, err := b.client.Do(b.request(http.MethodPost, "/v1/chat/completions", streamBody))
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, b.chat().StatusCode)
}

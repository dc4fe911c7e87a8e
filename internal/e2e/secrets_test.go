package e2e

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/apikey"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/mock"
)

// canaries are secrets that a test has planted, by what they are, and every place where one could turn up.
type canaries struct {
	t       *testing.T
	planted map[string]string

	mu     sync.Mutex
	places map[string]string
}

// plant makes a marker that is found by its text, however it is embedded.
func (c *canaries) plant(what string) string {
	return c.keep(what, "canary-"+strings.ReplaceAll(what, " ", "-")+"-"+ids.Random62(24))
}

func (c *canaries) keep(what, text string) string {
	_, twice := c.planted[what]
	require.False(c.t, twice, what)
	c.planted[what] = text
	return text
}

// ring makes a key ring of two keys and plants the keys' own bytes as well as their written form.
func (c *canaries) ring(what, id string) string {
	var entries []string
	for _, n := range []string{"1", "2"} {
		written := c.keep(what+" "+n, random32())
		entries = append(entries, id+n+":"+written)
	}
	return strings.Join(entries, ",")
}

// found notes text that somebody could read.
func (c *canaries) found(where, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.places[where] += text + "\n"
}

// forms are the ways in which a secret may be written.
func forms(secret string) []string {
	all := []string{secret, hex.EncodeToString([]byte(secret)), base64.StdEncoding.EncodeToString([]byte(secret)), url.QueryEscape(secret)}
	if raw, err := base64.StdEncoding.DecodeString(secret); err == nil && len(raw) == 32 {
		all = append(all, string(raw), hex.EncodeToString(raw), base64.URLEncoding.EncodeToString(raw), base64.RawStdEncoding.EncodeToString(raw))
	}
	return all
}

// requireNone looks for every secret in every place.
func (c *canaries) requireNone() {
	c.t.Helper()
	size := 0
	for where, text := range c.places {
		size += len(text)
		for what, secret := range c.planted {
			for _, form := range forms(secret) {
				if at := strings.Index(text, form); at >= 0 {
					c.t.Errorf("%s is in %s: …%q…", what, where, text[max(0, at-150):min(len(text), at+len(form)+50)])
					break
				}
			}
		}
	}
	c.t.Logf("%d secrets, %d places, %d bytes searched", len(c.planted), len(c.places), size)
}

// call makes a request and keeps everything of the answer except what it is there to show.
func (c *canaries) call(method, address, body string, show []string, headers ...string) answer {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, address, strings.NewReader(body))
	require.NoError(c.t, err)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header[http.CanonicalHeaderKey(headers[i])] = []string{headers[i+1]}
	}
	a, err := do(req)
	if err != nil {
		return a // a cut connection is one of the flows
	}
	text := fmt.Sprint(a.header) + string(a.body)
	for _, s := range show {
		text = strings.ReplaceAll(text, s, "(shown)")
	}
	c.found("answers of "+method+" "+req.URL.Path, text)
	return a
}

// F139, F140, T03, T08: secrets and prompts are planted through every flow, errors included, and are found in no log, no
// answer, no metric and no dump of the database.
func TestF139_SecretsAppearNowhere(t *testing.T) {
	t.Parallel()
	c := &canaries{t: t, planted: map[string]string{}, places: map[string]string{}}
	token := c.plant("admin token of the control plane")
	peppers, keys := c.ring("pepper", "p"), c.ring("encryption key", "k")
	environment := c.plant("database password of the environment")
	f := startFleet(t, fleetOptions{env: []string{
		"TOLLGATE_KEY_PEPPERS=" + peppers, "TOLLGATE_ENCRYPTION_KEYS=" + keys, "PGPASSWORD=" + environment, "TOLLGATE_LOG_LEVEL=debug",
	}})
	withPassword := func(role string) string {
		u, err := url.Parse(f.dsn)
		require.NoError(t, err)
		u.User = url.UserPassword(role, c.plant("database password of "+role))
		return u.String()
	}
	g := f.addGateway("DATABASE_URL=" + withPassword("tollgate_gateway"))
	controlDSN := withPassword("tollgate_control")
	control := f.start("control", "DATABASE_URL="+controlDSN, "TOLLGATE_DATABASE_DIRECT_URL="+controlDSN, "TOLLGATE_ADMIN_TOKEN="+token)
	admin := control.admin + "/admin/v1/"
	asAdmin := []string{"Authorization", "Bearer " + token}

	// Providers that fail in every way, each with its own credential.
	offer := func(name, base string) {
		credential := c.plant("credential of " + name)
		a := c.call(http.MethodPost, admin+"providers", fmt.Sprintf(`{"name":%q,"kind":"openai","base_url":%q,"credential":%q}`, name, base, credential), nil, asAdmin...)
		require.Equal(t, http.StatusCreated, a.status, "%s", a.body)
		provider := text(a.json(t)["id"])
		a = c.call(http.MethodPost, admin+"models", fmt.Sprintf(`{"name":%q,"targets":[{"provider_id":%q,"upstream_model":"plain","weight":1,"priority":0}]}`, name, provider), nil, asAdmin...)
		require.Equal(t, http.StatusCreated, a.status, "%s", a.body)
		next := c.plant("rotated credential of " + name)
		a = c.call(http.MethodPatch, admin+"providers/"+provider, fmt.Sprintf(`{"credential":%q}`, next), nil, asAdmin...)
		require.Equal(t, http.StatusOK, a.status, "%s", a.body)
		c.call(http.MethodGet, admin+"providers/"+provider, "", nil, asAdmin...)
	}
	offer("works", f.upstream+"/v1")
	offer("unreachable", "http://"+freeAddress(t)+"/v1")
	offer("unresolvable", "http://no-such-host.invalid/v1")

	// Virtual keys in every state.
	key := map[string]string{}
	for _, state := range []string{"live", "rotated", "revoked", "blocked", "deleted", "expired", "poor"} {
		body := fmt.Sprintf(`{"organization_id":%q,"name":%q}`, f.org, state)
		switch state {
		case "expired":
			body = strings.TrimSuffix(body, "}") + `,"expires_at":"2026-01-01T00:00:00Z"}`
		case "poor":
			body = strings.TrimSuffix(body, "}") + `,"limits":[{"kind":"rate","metric":"requests","amount":"0","per":"1m"}]}`
		}
		status, o := f.admin(http.MethodPost, "keys", jsonOf(t, body)) // shows the key once, which is its purpose
		if status != http.StatusCreated && state == "expired" {
			continue // a key that is born expired may be refused
		}
		require.Equal(t, http.StatusCreated, status, "%v", o)
		key[state] = c.keep("virtual key: "+state, text(o["key"]))
		id := text(o["id"])
		switch state {
		case "rotated":
			status, o = f.admin(http.MethodPost, "keys/"+id+"/rotate", object{})
			require.Equal(t, http.StatusOK, status, "%v", o)
			key["successor"] = c.keep("virtual key: successor", text(o["key"]))
		case "revoked":
			c.call(http.MethodPost, admin+"keys/"+id+"/revoke", "{}", nil, asAdmin...)
		case "blocked":
			c.call(http.MethodPatch, admin+"keys/"+id, `{"blocked":true}`, nil, asAdmin...)
		case "deleted":
			c.call(http.MethodDelete, admin+"keys/"+id, "", nil, asAdmin...)
		}
	}
	invented, _ := apikey.New()
	key["invented"] = c.keep("virtual key: invented", invented.Reveal())
	key["mistyped"] = c.keep("virtual key: mistyped", key["live"][:len(key["live"])-8]+"0"+key["live"][len(key["live"])-7:])
	key["foreign"] = c.plant("key of another vendor")
	require.Equal(t, http.StatusOK, c.call(http.MethodPost, g.baseURL+"/v1/chat/completions", helloChat, nil, "Authorization", "Bearer "+key["live"]).status)

	// Prompts and answers, well-formed and not, on every route.
	prompt := func(what string) string { return c.plant("prompt: " + what) }
	said := c.plant("answer of the model")
	show := []string{said}
	require.NoError(t, f.mock.SetScript(mock.Rule{Script: "text(" + said + ")"}))
	asKey := func(k string) []string { return []string{"Authorization", "Bearer " + k} }
	chatOf := func(model, content string, more string) string {
		return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}]%s}`, model, content, more)
	}
	post := func(path, body string, headers ...string) answer {
		return c.call(http.MethodPost, g.baseURL+path, body, show, headers...)
	}
	for name, body := range map[string]string{
		"chat":      chatOf("works", prompt("chat"), ""),
		"stream":    chatOf("works", prompt("stream"), `,"stream":true`),
		"tools":     chatOf("works", "x", `,"tools":[{"type":"function","function":{"name":"f","description":"`+prompt("tool")+`"}}]`),
		"unknown":   chatOf("works", "x", `,"extra":{"deep":"`+prompt("unknown member")+`"}`),
		"twice":     chatOf("works", prompt("member given twice"), `,"model":"works"`),
		"truncated": strings.TrimSuffix(chatOf("works", prompt("truncated"), ""), "}]}"),
		"utf8":      strings.Replace(chatOf("works", prompt("invalid UTF-8"), ""), "role", "r\xffle", 1),
		"maximum":   chatOf("works", prompt("bad maximum"), `,"max_tokens":-1`),
		"user":      chatOf("works", prompt("bad user"), `,"user":5`),
		"nomodel":   chatOf("no-such-model", prompt("unknown model"), ""),
		"away":      chatOf("unreachable", prompt("unreachable"), ""),
		"nowhere":   chatOf("unresolvable", prompt("unresolvable"), ""),
	} {
		for _, k := range []string{key["live"], key["poor"], key["revoked"]} {
			require.NotZero(t, post("/v1/chat/completions", body, asKey(k)...).status, name)
		}
	}
	post("/v1/completions", fmt.Sprintf(`{"model":"works","prompt":%q}`, prompt("completion")), asKey(key["live"])...)
	post("/v1/embeddings", fmt.Sprintf(`{"model":"works","input":[%q]}`, prompt("embedding")), asKey(key["live"])...)
	post("/v1/responses", fmt.Sprintf(`{"model":"works","input":%q}`, prompt("response")), asKey(key["live"])...)
	post("/v1/moderations", fmt.Sprintf(`{"model":"works","input":%q}`, prompt("moderation")), asKey(key["live"])...)
	post("/v1/estimate", chatOf("works", prompt("estimate"), ""), asKey(key["live"])...)
	post("/v1/nowhere?q="+prompt("query"), helloChat, asKey(key["live"])...)
	for _, k := range key {
		for _, headers := range [][]string{
			asKey(k),
			{"Authorization", k},
			{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte(k+":"))},
			{"X-Api-Key", k},
			{"X-Goog-Api-Key", k},
			{"Authorization", "Bearer " + k, "X-Api-Key", key["invented"]},
			{"Authorization", "Digest " + k},
		} {
			post("/v1/chat/completions", helloChat, headers...)
			c.call(http.MethodGet, g.baseURL+"/v1/key", "", show, headers...)
		}
		c.call(http.MethodGet, g.baseURL+"/v1/models?key="+k, "", show) // where other vendors take it
		c.call(http.MethodGet, admin+"keys", "", nil, "Authorization", "Bearer "+k)
	}
	for _, script := range []string{
		"status(401,echo_key)", "status(403,echo_key)", "status(500,echo_key)", "status(429,quota)", "status(400,html)", "200_with_error_body", "200_first_event_error",
		"mid_stream_error(object)", "reset_before_bytes", "reset_after(2)", "redirect", "wrong_content_type", "clean_close_without_done", "gzip", "status(503,text)",
	} {
		f.mock.ClearScripts()
		require.NoError(t, f.mock.SetScript(mock.Rule{Script: script}))
		for _, more := range []string{"", `,"stream":true`} {
			post("/v1/chat/completions", chatOf("works", "x", more), asKey(key["live"])...)
		}
	}
	f.mock.ClearScripts()

	// The control plane, with wrong tokens and wrong bodies.
	wrong := c.plant("wrong admin token")
	c.call(http.MethodGet, admin+"keys", "", nil, "Authorization", "Bearer "+wrong)
	for _, body := range []string{`{"credential":5}`, `{"credential":"` + c.plant("credential in a bad body") + `","no_such_member":1}`, `{"credential":"` + c.plant("credential in broken JSON")} {
		c.call(http.MethodPost, admin+"providers", body, nil, asAdmin...)
	}
	for _, list := range []string{"keys", "providers", "models", "audit", "spend", "organizations", "reservations", "openapi.json", "nodes"} {
		c.call(http.MethodGet, admin+list, "", nil, asAdmin...)
	}

	// The database away, and processes with wrong secrets.
	f.closeDatabase()
	for _, p := range f.gateways {
		c.call(http.MethodPost, p.baseURL+"/v1/chat/completions", chatOf("works", prompt("outage of "+p.ops), ""), show, asKey(key["live"])...)
	}
	c.call(http.MethodGet, admin+"keys", "", nil, asAdmin...)
	f.openDatabase()
	settings := []string{
		"DATABASE_URL=" + withPassword("nobody"), "TOLLGATE_ADMIN_TOKEN=" + token,
		"TOLLGATE_KEY_PEPPERS=p1:" + c.keep("wrong pepper", random32()), "TOLLGATE_ENCRYPTION_KEYS=" + keys,
	}
	for _, args := range [][]string{
		{"doctor"}, {"config", "show"}, {"config", "check"}, {"serve", "--database-conns", "0"}, {"migrate", "status"}, {"serve", "--print-chain"},
	} {
		r := spawn(t, settings, args...)
		r.exitCode(t, 60*time.Second)
		c.found(fmt.Sprintf("output of %v", args), r.stdout.String()+r.out.String())
	}
	refusedStart := spawn(t, append(settings, "DATABASE_URL="+as(f.dsn, "tollgate_gateway")), serveGateway(freeAddress(t))...)
	require.Equal(t, 1, refusedStart.exitCode(t, 60*time.Second))
	c.found("output of a start with a wrong pepper", refusedStart.out.String())

	f.eventually(20*time.Second, "the product works again", func() bool {
		return post("/v1/chat/completions", chatOf("works", "x", ""), asKey(key["live"])...).status == http.StatusOK
	})
	processes := append([]*process{f.control, control}, f.gateways...)
	for i, p := range processes {
		for _, path := range []string{"/metrics", "/readyz", "/debug/pprof/cmdline"} {
			c.call(http.MethodGet, p.ops+path, "", nil)
		}
		p.terminate(t, 20*time.Second)
		require.NotEmpty(t, p.out.String(), "process %d logs", i)
		c.found(fmt.Sprintf("log of process %d", i), p.out.String())
	}
	dump, err := exec.CommandContext(t.Context(), "pg_dump", "--dbname", f.dsn).Output()
	require.NoError(t, err)
	require.Greater(t, len(dump), 100_000)
	require.Contains(t, string(dump), "unresolvable", "the dump has the rows")
	c.found("dump of the database", string(dump))

	require.GreaterOrEqual(t, len(c.planted), 40)
	c.requireNone()
}

func jsonOf(t *testing.T, text string) object {
	t.Helper()
	return answer{body: []byte(text)}.json(t)
}

// T02: who can write to the database, and knows neither pepper nor a key, cannot make one.
func TestT02_DatabaseWritersCannotMintKeys(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	honest, id := f.issue()
	g := f.gateways[0]
	require.Equal(t, http.StatusOK, must(t)(g.call(t.Context(), honest, "/v1/chat/completions", helloChat)).status)
	conn, err := pgx.Connect(t.Context(), f.dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()

	digest := func(key string) []byte { d := sha256.Sum256([]byte(key)); return d[:] }
	keyed := func(pepper []byte) func(string) []byte {
		return func(key string) []byte {
			m := hmac.New(sha256.New, pepper)
			m.Write(digest(key))
			return m.Sum(nil)
		}
	}
	var stolen []byte
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT hash FROM tollgate.key_secrets LIMIT 1").Scan(&stolen))
	before := f.mock.Counts().Count
	for name, hash := range map[string]func(string) []byte{
		"SHA-256":          digest,
		"EmptyPepper":      keyed(nil),
		"WrongPepper":      keyed([]byte("a pepper that the database's writer has made up")),
		"PepperIsItsID":    keyed([]byte("p1")),
		"HashOfAnotherKey": func(string) []byte { return stolen },
		"PepperIsTheProof": keyed(stolen),
	} {
		for _, pepper := range []string{"p1", "", "p2"} {
			forged, public := apikey.New()
			_, err := conn.Exec(t.Context(), `
				INSERT INTO tollgate.key_secrets (public_id, key_id, hash, pepper_id, last4)
				SELECT $1, id, $2, $3, 'abcd' FROM tollgate.virtual_keys WHERE public_id = $4`, public, hash(forged.Reveal()), pepper, id)
			require.NoError(t, err)
			a := must(t)(g.call(t.Context(), forged.Reveal(), "/v1/chat/completions", helloChat))
			if pepper != "p1" && a.status == http.StatusServiceUnavailable { // a pepper that this process has not got yet
				require.Equal(t, "data_store_unavailable", a.code())
				continue
			}
			require.Equal(t, http.StatusUnauthorized, a.status, "%s under pepper %q: %s", name, pepper, a.body)
			require.Equal(t, "invalid_api_key", a.code())
		}
	}
	require.Equal(t, before, f.mock.Counts().Count)
	require.Equal(t, http.StatusOK, must(t)(g.call(t.Context(), honest, "/v1/chat/completions", helloChat)).status)

	own, err := pgx.Connect(t.Context(), as(f.dsn, "tollgate_gateway"))
	require.NoError(t, err)
	defer func() { _ = own.Close(context.Background()) }()
	for _, statement := range []string{
		"INSERT INTO tollgate.key_secrets (public_id, key_id, hash, pepper_id, last4) SELECT 'x', 1, sha256('x'), 'p1', 'abcd'",
		"UPDATE tollgate.virtual_keys SET blocked = false", "UPDATE tollgate.limits SET amount = 0", "DELETE FROM ledger.rows",
		"UPDATE ledger.rows SET cost = 0", "INSERT INTO tollgate.audit_log DEFAULT VALUES", "UPDATE tollgate.providers SET base_url = 'http://x'",
	} {
		_, err := own.Exec(t.Context(), statement)
		require.ErrorContains(t, err, "permission denied", statement)
	}
}

// T08: a sealed credential opens only for the provider, the tenant and the host that it was sealed for.
func TestT08_MovedCredentialsDoNotOpen(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	var mu sync.Mutex
	seen := map[string]string{} // path → credential
	trap := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen[r.URL.Path] = r.Header.Get("Authorization")
		mu.Unlock()
		w.WriteHeader(http.StatusTeapot)
	}))
	defer trap.Close()
	conn, err := pgx.Connect(t.Context(), f.dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	alter := func(statement string, args ...any) {
		tag, err := conn.Exec(t.Context(), statement, args...)
		require.NoError(t, err)
		require.EqualValues(t, 1, tag.RowsAffected(), statement)
	}
	offer := func(name string, of any) {
		p := f.create("providers", object{"name": name, "kind": "openai", "base_url": f.upstream + "/v1", "credential": "sk-sealed-" + name, "organization_id": of})
		f.create("models", object{"name": name, "organization_id": of, "targets": []object{{"provider_id": p["id"], "upstream_model": "plain", "weight": 1, "priority": 0}}})
	}
	names := []string{"untouched", "path", "port", "host", "scheme", "user", "given", "taken", "swapped-a", "swapped-b", "flipped", "truncated", "renewed", "tenant"}
	for _, n := range names {
		if n == "taken" || n == "tenant" {
			offer(n, f.org)
			continue
		}
		offer(n, nil)
	}
	other := text(f.create("organizations", object{"name": "Other"})["id"])
	set := func(name, what string, args ...any) {
		alter("UPDATE tollgate.providers SET "+what+" WHERE name = $1", append([]any{name}, args...)...)
	}
	set("path", "base_url = base_url || '/../evil'")
	set("port", "base_url = $2", trap.URL+"/port")
	set("host", "base_url = $2", strings.Replace(trap.URL, "127.0.0.1", "localhost", 1)+"/host")
	set("scheme", "base_url = replace(base_url, 'http:', 'https:')")
	set("user", "base_url = $2", strings.Replace(f.upstream, "http://", "http://x@", 1)+"/v1")
	set("given", "credential = (SELECT credential FROM tollgate.providers WHERE name = 'untouched')")
	set("taken", "organization_id = NULL")
	set("tenant", "organization_id = (SELECT id FROM tollgate.organizations WHERE public_id = $2)", other)
	_, err = conn.Exec(t.Context(), `
		UPDATE tollgate.providers AS p SET credential = o.credential FROM tollgate.providers AS o
		WHERE (p.name, o.name) IN (('swapped-a', 'swapped-b'), ('swapped-b', 'swapped-a'))`)
	require.NoError(t, err)
	set("flipped", "credential = set_byte(credential, length(credential) - 1, get_byte(credential, length(credential) - 1) # 1)")
	set("truncated", "credential = substr(credential, 1, length(credential) - 5)")
	set("renewed", "public_id = $2", ids.NewPublic(ids.Provider))

	g := f.addGateway() // reads all of it anew
	key, _ := f.issue()
	f.mock.Reset()
	require.Equal(t, http.StatusOK, must(t)(g.call(t.Context(), key, "/v1/chat/completions", strings.Replace(helloChat, "plain", "untouched", 1))).status)
	for _, n := range names[2:] {
		a := must(t)(g.call(t.Context(), key, "/v1/chat/completions", strings.Replace(helloChat, "plain", n, 1)))
		require.NotEqual(t, http.StatusOK, a.status, "%s: %s", n, a.body)
		requireErrorShape(t, n, a)
		require.NotContains(t, string(a.body), "sk-sealed", n)
		require.NotContains(t, string(a.body), "127.0.0.1", n)
	}
	mu.Lock()
	defer mu.Unlock()
	require.Empty(t, seen, "nothing is sent where a credential does not belong")
	for _, r := range f.mock.Log().Requests {
		require.Equal(t, "Bearer sk-sealed-untouched", r.Header.Get("Authorization"))
	}
	require.EqualValues(t, 1, f.mock.Counts().Count)
}

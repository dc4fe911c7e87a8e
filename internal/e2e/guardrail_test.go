package e2e

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// guard makes a guardrail for calls of one key.
func (f *fleet) guard(key, action string, rule object, more ...object) string {
	f.t.Helper()
	body := object{"name": "guard of " + key + " " + text(rule["type"]), "scope": object{"type": "key", "id": key}, "rule": rule, "action": action}
	for _, m := range more {
		for name, value := range m {
			body[name] = value
		}
	}
	return text(f.create("guardrails", body)["id"])
}

// awaitGuardrails waits until every gateway has the newest configuration: a new key comes with it.
func (f *fleet) awaitGuardrails() {
	f.t.Helper()
	name := fmt.Sprintf("newest-%d", time.Now().UnixNano())
	f.addModel(name, "ok")
	key, _ := f.issue()
	f.awaitModels(key, name)
}

// bluebird is an answer whose codename no frame has whole.
const bluebird = "the bluebird flies at dawn"

// A word that is split over frames does not slip through in any dialect, on native and on translated lanes, read by the real
// libraries: what they join is the whole text with the mask in it, or nothing from the word on and an error that names the
// guardrail. What was blocked is paid for, and its row says so.
func TestF146_AWordSplitOverFramesDoesNotSlipThrough(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{gateways: 2})
	const script = `mock-pieces("` + bluebird + `",3)`
	f.addModel("gpt", script)
	claude := f.create("providers", object{
		"name": "claude", "kind": "anthropic", "base_url": f.upstream, "credential": "sk-upstream-marker", "price_provider": "mock",
	})["id"]
	f.create("models", object{"name": "claude", "targets": []object{{"provider_id": claude, "upstream_model": script, "weight": 1, "priority": 0}}})
	words := object{"type": "keywords", "words": []string{"bluebird"}}
	masked, maskedID := f.issue()
	blocked, blockedID := f.issue()
	free, _ := f.issue()
	f.guard(maskedID, "mask", words, object{"stage": "answer"})
	blocker := f.guard(blockedID, "block", words, object{"stage": "answer"})
	f.awaitGuardrails()

	openAIs := sdk{name: "openai-go", do: openAIGo}
	claudes := sdk{name: "anthropic-sdk-go", do: anthropicGo}
	for _, c := range []struct {
		lib       sdk
		op        string
		streaming bool
	}{
		{openAIs, opChat, false},
		{openAIs, opStream, true},
		{openAIs, opStreamHelper, true},
		{openAIs, opResponses, false},
		{openAIs, opResponsesStream, true},
		{claudes, opMessages, false},
		{claudes, opMessagesStream, true},
		{claudes, opMessagesHelper, true},
	} {
		for i, model := range []string{"gpt", "claude"} {
			t.Run(c.lib.name+" "+c.op+" "+model, func(t *testing.T) {
				none := 0
				k := task{Op: c.op, Model: model, Text: "hello", BaseURL: f.gateways[i].baseURL, MaxRetries: &none, MaxTokens: 1000}
				if c.lib.name == openAIs.name {
					k.BaseURL += "/v1"
				}
				k.Key = free
				r := c.lib.do(t.Context(), k)
				require.Nil(t, r.Error, "%+v", r.Error)
				require.Equal(t, []string{bluebird}, r.Texts, "who has no guardrail gets everything")
				k.Key = masked
				r = c.lib.do(t.Context(), k)
				require.Nil(t, r.Error, "%+v", r.Error)
				require.Equal(t, []string{strings.Replace(bluebird, "bluebird", "[masked]", 1)}, r.Texts)
				k.Key = blocked
				r = c.lib.do(t.Context(), k)
				require.NotNil(t, r.Error)
				said := strings.Join(r.Texts, "")
				require.True(t, strings.HasPrefix("the ", said), "%q is more than stands before the word", said)
				require.Contains(t, r.Error.Message, "guard of "+blockedID)
				require.NotContains(t, r.Error.Message, "bluebird")
				if !c.streaming {
					require.Equal(t, http.StatusBadRequest, r.Error.Status)
				}
			})
		}
	}
	f.requireBooksBalance()
	f.eventually(20*time.Second, "rows of what was blocked", func() bool {
		n := 0
		for _, row := range f.rows() {
			tags, _ := row["tags"].(object)
			if row["outcome"] == "blocked" && text(tags["tollgate.guardrails"]) == blocker {
				require.NotEqual(t, "0", text(row["cost_usd"]), "the provider did the work: %v", row)
				n++
			}
		}
		return n == 16
	})
}

// Each choice, each call of a tool and each thought is a text of its own, whatever shape its stream has.
func TestF113_F146_EveryTextOfAnAnswerIsHeldByItself(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	claude := f.create("providers", object{
		"name": "claude", "kind": "anthropic", "base_url": f.upstream, "credential": "sk-upstream-marker", "price_provider": "mock",
	})["id"]
	pieces := `pieces("` + bluebird + `",3)`
	for name, script := range map[string]string{
		"twins": "n2_interleaved," + pieces, "combined": "combined_terminal_frame," + pieces, "dribbles": "byte_dribble(3)," + pieces,
		"zipped": "gzip," + pieces, "usage": "usage_each_frame_cumulative," + pieces, "ends": "two_terminal_events," + pieces,
		"early": "clean_close_without_done," + pieces, "thinks": "thinking," + pieces, "tool": `tool(find,"{\"q\": \"the bluebird flies\"}")`,
	} {
		f.addModel("gpt-"+name, "mock-"+script)
		f.create("models", object{"name": "claude-" + name, "targets": []object{{"provider_id": claude, "upstream_model": "mock-" + script, "weight": 1, "priority": 0}}})
	}
	key, id := f.issue()
	f.guard(id, "mask", object{"type": "keywords", "words": []string{"bluebird", "words"}}, object{"stage": "answer"})
	f.awaitGuardrails()
	said := strings.Replace(bluebird, "bluebird", "[masked]", 1)
	none := 0
	ask := func(t *testing.T, lib func(context.Context, task) report, op, model string) report {
		k := task{Op: op, Model: model, Text: "hello", BaseURL: f.gateways[0].baseURL, Key: key, MaxRetries: &none, MaxTokens: 1000, Tools: true}
		if !strings.HasPrefix(op, "messages") {
			k.BaseURL += "/v1"
		}
		return lib(t.Context(), k)
	}
	for _, c := range []struct {
		lib func(context.Context, task) report
		op  string
	}{
		{openAIGo, opStream}, {openAIGo, opStreamHelper}, {openAIGo, opResponsesStream}, {anthropicGo, opMessagesStream}, {anthropicGo, opMessagesHelper},
	} {
		for _, model := range []string{
			"gpt-twins", "gpt-combined", "gpt-dribbles", "gpt-zipped", "gpt-usage", "gpt-ends", "claude-dribbles", "claude-zipped", "claude-thinks",
		} {
			if strings.HasSuffix(model, "twins") && (c.op == opResponsesStream || strings.HasPrefix(c.op, "messages")) {
				continue // there is one answer there
			}
			t.Run(c.op+" "+model, func(t *testing.T) {
				r := ask(t, c.lib, c.op, model)
				require.Nil(t, r.Error, "%+v", r.Error)
				require.NotEmpty(t, r.Texts)
				for _, text := range r.Texts {
					require.Equal(t, said, text)
				}
				require.NotContains(t, r.Thinking, "words")
				if model == "claude-thinks" && c.op == opMessagesHelper {
					require.Contains(t, r.Thinking, "<[masked]>")
				}
			})
		}
	}
	for op, lib := range map[string]func(context.Context, task) report{opStreamHelper: openAIGo, opMessagesHelper: anthropicGo} {
		for _, model := range []string{"gpt-tool", "claude-tool"} {
			t.Run(op+" "+model, func(t *testing.T) {
				r := ask(t, lib, op, model)
				require.Nil(t, r.Error, "%+v", r.Error)
				require.Len(t, r.Tools, 1)
				require.JSONEq(t, `{"q": "the [masked] flies"}`, r.Tools[0].Arguments)
			})
		}
	}
	r := ask(t, openAIGo, opStream, "gpt-early")
	require.Equal(t, []string{said}, r.Texts, "what was held back is not lost with a missing end")
}

// What a caller says is held to guardrails wherever it can be read, and refused where it cannot: nothing goes around them.
func TestF224_NoRouteGoesAroundAGuardrail(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	key, id := f.issue()
	f.guard(id, "block", object{"type": "secrets"}, object{"stage": "request"})
	other, otherID := f.issue()
	f.guard(otherID, "log", object{"type": "secrets"})
	f.awaitGuardrails()
	const secret = "sk-proj-canaryCANARYcanaryCANARY0123456789"
	g, ctx := f.gateways[0], t.Context()
	before := f.mock.Counts().Count
	for path, body := range map[string]string{
		"/v1/chat/completions":      `{"model":"plain","messages":[{"role":"user","content":%q}]}`,
		"/v1/completions":           `{"model":"plain","prompt":%q}`,
		"/v1/embeddings":            `{"model":"plain","input":[%q]}`,
		"/v1/responses":             `{"model":"plain","input":%q}`,
		"/v1/moderations":           `{"model":"plain","input":%q}`,
		"/v1/messages":              `{"model":"plain","max_tokens":10,"messages":[{"role":"user","content":%q}]}`,
		"/v1/messages/count_tokens": `{"model":"plain","messages":[{"role":"user","content":%q}]}`,
		"/v1/images/generations":    `{"model":"plain","prompt":%q}`,
		"/v1/audio/speech":          `{"model":"plain","voice":"alloy","input":%q}`,
		"/v1/rerank":                `{"model":"plain","query":"q","documents":[%q]}`,
	} {
		for _, stream := range []bool{false, true} {
			body := fmt.Sprintf(body, "my key is "+secret)
			if stream {
				body = strings.Replace(body, "{", `{"stream":true,`, 1)
			}
			a := must(t)(g.call(ctx, key, path, body, "Anthropic-Version", "2023-06-01"))
			require.Contains(t, []int{http.StatusBadRequest, http.StatusForbidden}, a.status, "%s: %s", path, a.body)
			require.NotContains(t, string(a.body), secret, path)
			switch a.status {
			case http.StatusBadRequest:
				require.Contains(t, string(a.body), "guard of "+id, path)
			default:
				require.Contains(t, string(a.body), "guardrail", path)
			}
		}
	}
	for path, c := range map[string]struct{ file, field, value string }{
		"/v1/images/edits":         {"image", "prompt", secret},
		"/v1/images/variations":    {"image", "user", "somebody"},
		"/v1/audio/transcriptions": {"file", "prompt", secret},
		"/v1/audio/translations":   {"file", "prompt", secret},
		"/v1/files":                {"file", "purpose", "batch"},
	} {
		var form bytes.Buffer
		w := multipart.NewWriter(&form)
		if path != "/v1/files" {
			require.NoError(t, w.WriteField("model", "plain"))
		}
		require.NoError(t, w.WriteField(c.field, c.value))
		part, err := w.CreateFormFile(c.file, "x.jsonl")
		require.NoError(t, err)
		_, err = fmt.Fprintf(part, `{"custom_id":"1","method":"POST","url":"/v1/chat/completions","body":{"model":"plain","messages":[{"role":"user","content":%q}]}}`+"\n", secret)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		a := must(t)(g.call(ctx, key, path, form.String(), "Content-Type", w.FormDataContentType()))
		require.Equal(t, http.StatusForbidden, a.status, "%s: %s", path, a.body)
		require.Equal(t, "plugin_unsupported", a.code(), path)
	}
	require.Equal(t, before, f.mock.Counts().Count, "the provider saw none of it")
	a := must(t)(g.call(ctx, other, "/v1/chat/completions", fmt.Sprintf(`{"model":"plain","messages":[{"role":"user","content":%q}]}`, secret)))
	require.Equal(t, http.StatusOK, a.status, "who is only watched is let through: %s", a.body)
	require.Contains(t, string(f.mock.Log().Requests[len(f.mock.Log().Requests)-1].Body), secret)

	f.eventually(20*time.Second, "the row of what was found", func() bool {
		for _, row := range f.rows() {
			tags, _ := row["tags"].(object)
			if strings.HasPrefix(text(tags["tollgate.guardrails"]), "guard_") {
				return true
			}
		}
		return false
	})
	rows, err := json.Marshal(f.rows())
	require.NoError(t, err)
	for where, what := range map[string]string{"the log": g.out.String() + f.control.out.String(), "rows": string(rows)} {
		require.NotContains(t, what, secret, where)
	}
}

// A guardrail is in force, changed and gone on every replica alike.
func TestGuardrails_AreInForceOnEveryReplica(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{gateways: 2})
	key, id := f.issue()
	const ask = `{"model":"plain","max_tokens":500,"messages":[{"role":"user","content":"tell me of Bluebird, and of the rest"}]}`
	everywhere := func(what string, status int, sent string) {
		t.Helper()
		for _, g := range f.gateways {
			f.eventually(20*time.Second, what, func() bool {
				a := must(t)(g.call(t.Context(), key, "/v1/chat/completions", ask))
				if a.status == http.StatusOK {
					seen := f.mock.Log().Requests
					return status == a.status && strings.Contains(string(seen[len(seen)-1].Body), sent)
				}
				return status == a.status && a.code() == "content_blocked"
			})
		}
	}
	everywhere("there is none", http.StatusOK, "of Bluebird, and")
	guardrail := f.guard(id, "block", object{"type": "keywords", "words": []string{"bluebird"}})
	everywhere("it blocks", http.StatusBadRequest, "")
	status, _ := f.admin(http.MethodPatch, "guardrails/"+guardrail, object{"action": "mask"})
	require.Equal(t, http.StatusOK, status)
	everywhere("it masks", http.StatusOK, "of [masked], and")
	status, _ = f.admin(http.MethodPatch, "guardrails/"+guardrail, object{"rule": object{"type": "max_tokens", "tokens": 7}, "stage": "request"})
	require.Equal(t, http.StatusOK, status)
	everywhere("it lowers a limit", http.StatusOK, `"max_tokens":7,`)
	a := must(t)(f.gateways[0].call(t.Context(), key, "/v1/chat/completions", ask))
	require.Contains(t, a.header.Get("X-Tollgate-Warnings"), "max_tokens")
	status, _ = f.admin(http.MethodDelete, "guardrails/"+guardrail, nil)
	require.Equal(t, http.StatusNoContent, status)
	everywhere("it is gone", http.StatusOK, `"max_tokens":500,`)
}

// Somebody else's guardrail is asked with a signature, and believed. One that is slow, broken, too talkative or elsewhere refuses
// the call, or lets it pass where its administrator said so.
func TestF221_WebhooksThatFailRefuseOrLetPass(t *testing.T) {
	t.Parallel()
	const secret, canary = "the secret of the webhook", "canary-of-the-webhook"
	var asked, elsewhere atomic.Int64
	release := make(chan struct{})
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(r.Header.Get("Tollgate-Timestamp") + "."))
		mac.Write(body)
		asked.Add(1)
		var question struct {
			Texts []string `json:"texts"`
		}
		if r.Header.Get("Tollgate-Signature") != "v1="+hex.EncodeToString(mac.Sum(nil)) || json.Unmarshal(body, &question) != nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		reply := object{"action": strings.TrimPrefix(r.URL.Path, "/")}
		switch r.URL.Path {
		case "/mask":
			for i, text := range question.Texts {
				question.Texts[i] = strings.ReplaceAll(text, "bluebird", "it")
			}
			reply["texts"] = question.Texts
		case "/slow":
			select {
			case <-release:
			case <-r.Context().Done():
			}
		case "/broken":
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, canary)
			return
		case "/large":
			reply["action"], reply["why"] = "allow", strings.Repeat("x", 8<<20)
		case "/redirect":
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
			return
		case "/elsewhere":
			elsewhere.Add(1)
			reply["action"] = "allow"
		}
		_ = json.NewEncoder(w).Encode(reply)
	}))
	t.Cleanup(hook.Close)
	t.Cleanup(func() { close(release) })
	down := httptest.NewServer(http.NotFoundHandler())
	down.Close()

	f := startFleet(t, fleetOptions{})
	const ask = `{"model":"plain","messages":[{"role":"user","content":"tell me of bluebird"}]}`
	type hooked struct {
		path, onError, key string
		status             int
		code               string
	}
	var all []hooked
	for _, c := range []hooked{
		{"/allow", "deny", "", http.StatusOK, ""},
		{"/mask", "deny", "", http.StatusOK, ""},
		{"/block", "deny", "", http.StatusBadRequest, "content_blocked"},
		{"/slow", "deny", "", http.StatusServiceUnavailable, "plugin_unavailable"},
		{"/broken", "deny", "", http.StatusServiceUnavailable, "plugin_unavailable"},
		{"/large", "deny", "", http.StatusServiceUnavailable, "plugin_unavailable"},
		{"/redirect", "deny", "", http.StatusServiceUnavailable, "plugin_unavailable"},
		{"down", "deny", "", http.StatusServiceUnavailable, "plugin_unavailable"},
		{"/slow", "allow", "", http.StatusOK, ""},
		{"/broken", "allow", "", http.StatusOK, ""},
		{"/redirect", "allow", "", http.StatusOK, ""},
		{"down", "allow", "", http.StatusOK, ""},
	} {
		key, id := f.issue()
		rule := object{"type": "webhook", "url": hook.URL + c.path, "timeout_ms": 10_000}
		switch c.path {
		case "/slow":
			rule["timeout_ms"] = 100
		case "down":
			rule["url"] = down.URL
		}
		f.guard(id, "mask", rule, object{"stage": "request", "on_error": c.onError, "secret": secret})
		c.key = key
		all = append(all, c)
	}
	f.awaitGuardrails()
	for _, c := range all {
		before := f.mock.Counts().Count
		a := must(t)(f.gateways[0].call(t.Context(), c.key, "/v1/chat/completions", ask))
		require.Equal(t, c.status, a.status, "%s, on error %s: %s", c.path, c.onError, a.body)
		require.Equal(t, c.code, cmp.Or(a.code(), ""), c.path)
		require.NotContains(t, string(a.body), canary)
		seen := f.mock.Log().Requests
		switch {
		case c.status != http.StatusOK:
			require.Equal(t, before, f.mock.Counts().Count, c.path)
		case c.path == "/mask":
			require.Contains(t, string(seen[len(seen)-1].Body), `"tell me of it"`)
		default:
			require.Contains(t, string(seen[len(seen)-1].Body), `"tell me of bluebird"`)
		}
	}
	require.Zero(t, elsewhere.Load(), "a redirect is not followed")

	seen := asked.Load()
	public := f.addGateway("TOLLGATE_ALLOW_PRIVATE_PROVIDERS=false")
	a := must(t)(public.call(t.Context(), all[0].key, "/v1/chat/completions", ask))
	require.Equal(t, http.StatusServiceUnavailable, a.status, "an address inside of the network is not asked: %s", a.body)
	require.Equal(t, "plugin_unavailable", a.code())
	require.Equal(t, seen, asked.Load())

	log := f.gateways[0].out.String() + public.out.String()
	for _, hidden := range []string{canary, secret, "bluebird"} {
		require.NotContains(t, log, hidden)
	}
}

// The response cache gives nobody an answer that their guardrails would not have let through, nor one that others' have masked.
func TestGuardrails_KeepTheResponseCacheApart(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{env: []string{"TOLLGATE_RESPONSE_CACHE=organization"}})
	f.addModel("gpt", `mock-pieces("`+bluebird+`",3)`)
	free, _ := f.issue()
	masked, maskedID := f.issue()
	f.guard(maskedID, "mask", object{"type": "keywords", "words": []string{"bluebird"}}, object{"stage": "answer"})
	f.awaitGuardrails()
	said := map[string]string{free: bluebird, masked: strings.Replace(bluebird, "bluebird", "[masked]", 1)}
	for _, body := range []string{`{"model":"gpt","messages":[]}`, `{"model":"gpt","stream":true,"messages":[]}`} {
		for _, key := range []string{free, masked} {
			f.eventually(20*time.Second, "an answer from the cache", func() bool {
				a := must(t)(f.gateways[0].call(t.Context(), key, "/v1/chat/completions", body))
				require.Equal(t, http.StatusOK, a.status, "%s", a.body)
				var text strings.Builder
				for _, m := range regexp.MustCompile(`"content":"([^"]*)"`).FindAllSubmatch(a.body, -1) {
					text.Write(m[1])
				}
				require.Equal(t, said[key], text.String())
				return a.header.Get("X-Tollgate-Cache") == "hit"
			})
		}
	}
}

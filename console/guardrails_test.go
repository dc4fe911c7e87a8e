package console

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGuardrails_SayWhatIsWrongWithThem(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	org := e.create("/organizations", object{"name": "acme"})
	words := object{"type": "keywords", "words": []string{"w"}}
	for _, c := range []struct {
		change object
		at     string
	}{
		{object{"rule": object{"type": "regex", "patterns": []string{"fine", "(bad"}}}, "body.rule.patterns[1]"},
		{object{"rule": object{"type": "regex", "patterns": []string{"^whole$"}}}, "body.rule.patterns[0]"},
		{object{"rule": object{"type": "regex", "words": []string{"w"}}}, "body.rule.words"},
		{object{"rule": object{"type": "pii", "kinds": []string{"email", "shoe_size"}}}, "body.rule.kinds[1]"},
		{object{"rule": object{"type": "max_tokens", "tokens": 5}, "stage": "answer"}, "body.stage"},
		{object{"rule": object{"type": "max_size", "bytes": 5}, "action": "mask"}, "body.action"},
		{object{"rule": words, "secret": "a-secret-that-signs-nothing"}, "body.secret"},
		{object{"rule": object{"type": "webhook", "url": "https://guard.example.com"}}, "body.secret"},
		{object{"rule": object{"type": "webhook", "url": "https://127.0.0.1/check"}, "secret": "a-secret-of-a-webhook"}, "body.rule.url"},
		{object{"rule": object{"type": "webhook", "url": "https://169.254.169.254/"}, "secret": "a-secret-of-a-webhook"}, "body.rule.url"},
		{object{"rule": object{"type": "webhook", "url": "http://guard.example.com"}, "secret": "a-secret-of-a-webhook"}, "body.rule.url"},
		{object{"rule": words, "scope": object{"type": "platform", "id": org}}, "body.scope.id"},
		{object{"rule": words, "scope": object{"type": "team", "id": org}}, "body.scope.id"},
		{object{"rule": words, "scope": object{"type": "key", "id": "key_000000000000"}}, "body.scope.id"},
		{object{"rule": words, "models": []string{"gpt-[45]"}}, "body.models[0]"},
	} {
		body := object{"name": "g", "scope": object{"type": "organization", "id": org}, "action": "block"}
		for member, value := range c.change {
			body[member] = value
		}
		a := e.send(http.MethodPost, "/guardrails", body)
		require.Equal(t, http.StatusBadRequest, a.status, "%v: %s", c.change, a.text)
		require.Contains(t, a.faults(), c.at, a.text)
	}
	made := e.must(http.MethodPost, "/guardrails", object{
		"name": "g", "scope": object{"type": "organization", "id": org}, "action": "mask", "rule": object{"type": "max_tokens", "tokens": 5},
	})
	require.Equal(t, []any{"request", org, "acme", true, "deny"}, []any{made["stage"], made["organization_id"], made["scope_name"], made["enabled"], made["on_error"]})
	id, _ := made["id"].(string)
	a := e.send(http.MethodPatch, "/guardrails/"+id, object{"scope": object{"type": "platform"}})
	require.Equal(t, http.StatusBadRequest, a.status, a.text)
	a = e.send(http.MethodPatch, "/guardrails/"+id, object{"action": "log"}, "If-Match", `"1"`)
	require.Equal(t, http.StatusOK, a.status, a.text)
	require.Equal(t, http.StatusPreconditionFailed, e.send(http.MethodDelete, "/guardrails/"+id, nil, "If-Match", `"1"`).status)
}

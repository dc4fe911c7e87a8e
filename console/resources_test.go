package console

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
)

func TestOrganization_LifeCycle(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	created := e.send(http.MethodPost, "/organizations", object{"name": "acme", "require": []string{"end_user"}})
	require.Equal(t, http.StatusCreated, created.status, created.text)
	id, _ := created.body["id"].(string)
	require.Equal(t, "/admin/v1/organizations/"+id, created.header.Get("Location"))
	require.Equal(t, `"1"`, created.header.Get("ETag"))

	got := e.send(http.MethodGet, "/organizations/"+id, nil)
	require.Equal(t, created.body, got.body)

	changed := e.send(http.MethodPatch, "/organizations/"+id, object{"blocked": true}, "If-Match", `"1"`)
	require.Equal(t, http.StatusOK, changed.status, changed.text)
	require.Equal(t, `"2"`, changed.header.Get("ETag"))
	require.Equal(t, true, changed.body["blocked"])
	require.Equal(t, "acme", changed.body["name"], "what is absent is unchanged")

	stale := e.send(http.MethodPatch, "/organizations/"+id, object{"blocked": false}, "If-Match", `"1"`)
	require.Equal(t, http.StatusPreconditionFailed, stale.status)
	require.Equal(t, "precondition_failed", stale.body["code"])
	require.Equal(t, http.StatusPreconditionFailed, e.send(http.MethodDelete, "/organizations/"+id, nil, "If-Match", `"1"`).status)

	same := e.send(http.MethodPatch, "/organizations/"+id, object{"blocked": true})
	require.Equal(t, `"2"`, same.header.Get("ETag"), "a repeat changes nothing")

	twin := e.send(http.MethodPost, "/organizations", object{"name": "acme"})
	require.Equal(t, http.StatusConflict, twin.status)

	require.Equal(t, http.StatusNoContent, e.send(http.MethodDelete, "/organizations/"+id, nil, "If-Match", `"2"`).status)
	require.Equal(t, http.StatusNotFound, e.send(http.MethodGet, "/organizations/"+id, nil).status)
	require.Len(t, e.must(http.MethodGet, "/organizations?deleted=true&name=acme", nil)["items"], 1)
}

func TestList_PagesAreKeysets(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		e.create("/organizations", object{"name": name})
	}
	var names []any
	path := "/organizations?limit=2"
	for range 5 {
		page := e.must(http.MethodGet, path, nil)
		items, ok := page["items"].([]any)
		require.True(t, ok)
		require.LessOrEqual(t, len(items), 2)
		for _, i := range items {
			names = append(names, i.(object)["name"])
		}
		next, ok := page["next_cursor"].(string)
		if !ok {
			break
		}
		path = "/organizations?limit=2&cursor=" + next
	}
	require.Equal(t, []any{"a", "b", "c", "d", "e"}, names)
	require.Equal(t, http.StatusBadRequest, e.send(http.MethodGet, "/organizations?limit=251", nil).status)
	bad := e.send(http.MethodGet, "/organizations?cursor=nonsense", nil)
	require.Equal(t, http.StatusBadRequest, bad.status)
	require.Contains(t, bad.faults(), "query.cursor")
}

func TestF013_LimitsOfANewKeyAreStoredAndEchoed(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	org := e.create("/organizations", object{"name": "acme"})
	body := object{"organization_id": org, "name": "ci", "limits": []object{monthly("12.5"), {"kind": "rate", "metric": "requests", "amount": "600", "per": "1m"}}}
	created := e.must(http.MethodPost, "/keys", body)
	require.Len(t, created["limits"], 2)
	secret, _ := created["key"].(string)
	require.True(t, strings.HasPrefix(secret, "sk-tg-"), secret)

	id, _ := created["id"].(string)
	got := e.send(http.MethodGet, "/keys/"+id, nil)
	require.Equal(t, created["limits"], got.body["limits"])
	require.NotContains(t, got.text, secret)
	require.NotContains(t, e.send(http.MethodGet, "/audit", nil).text, secret)

	misspelt := e.send(http.MethodPost, "/keys", object{"organization_id": org, "name": "other", "budgett": "5"})
	require.Equal(t, http.StatusBadRequest, misspelt.status)
	require.Equal(t, map[string]string{"body.budgett": "unknown member"}, misspelt.faults())
	require.Len(t, e.must(http.MethodGet, "/keys", nil)["items"], 1)
}

func TestF014_ImpossibleAmountsAreRefused(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	org := e.create("/organizations", object{"name": "acme"})
	for _, amount := range []string{`"-7"`, `"-0.01"`, `"NaN"`, `"Infinity"`, `"1e309"`, `1e309`, `10`, `""`, `"1e3"`, `"+1"`, `"01"`, `".5"`, `"1."`, `"0.1234567891"`, `"1234567890123456789"`, `true`, `[]`, `{}`} {
		a := e.send(http.MethodPost, "/limits", `{"scope":{"type":"organization","id":"`+org+`"},"kind":"budget","metric":"cost","amount":`+amount+`,"window":{"type":"calendar","period":"day"}}`)
		require.Equal(t, http.StatusBadRequest, a.status, amount)
		require.Contains(t, a.text, "body.amount", amount)
		p := e.send(http.MethodPost, "/prices", `{"provider":"openai","upstream_model":"m","unit":"input","usd_per_million":`+amount+`}`)
		require.Equal(t, http.StatusBadRequest, p.status, amount)
	}
	for _, duration := range []string{`"0s"`, `"-1h"`, `"0"`, `0`, `"1mo"`, `"NaN"`, `"1.5s"`, `"100000000h"`} {
		a := e.send(http.MethodPost, "/limits", `{"scope":{"type":"organization","id":"`+org+`"},"kind":"budget","metric":"cost","amount":"1","window":{"type":"fixed","duration":`+duration+`}}`)
		require.Equal(t, http.StatusBadRequest, a.status, duration)
		require.Contains(t, a.text, "body.window.duration", duration)
	}
	require.Empty(t, e.must(http.MethodGet, "/limits", nil)["items"])
	require.Empty(t, e.must(http.MethodGet, "/prices", nil)["items"])

	number := e.send(http.MethodPost, "/limits", `{"scope":{"type":"organization","id":"`+org+`"},"kind":"rate","metric":"requests","per":"1m","amount":10}`)
	require.Contains(t, number.faults()["body.amount"], "quotes", "a number gets a hint")
	whole := e.send(http.MethodPost, "/limits", `{"scope":{"type":"organization","id":"`+org+`"},"kind":"rate","metric":"requests","per":"1m","amount":"1.5"}`)
	require.Contains(t, whole.faults()["body.amount"], "whole")
}

func TestF016_NullIsUnlimitedAndZeroIsNothing(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	org := e.create("/organizations", object{"name": "acme"})
	limit := monthly("0")
	limit["scope"] = object{"type": "organization", "id": org}
	created := e.must(http.MethodPost, "/limits", limit)
	require.Equal(t, "0", created["amount"])
	id, _ := created["id"].(string)
	require.Equal(t, "0", e.must(http.MethodGet, "/limits/"+id+"/state", nil)["remaining"])

	cleared := e.must(http.MethodPatch, "/limits/"+id, `{"amount":null}`)
	require.Contains(t, cleared, "amount")
	require.Nil(t, cleared["amount"])
	state := e.must(http.MethodGet, "/limits/"+id+"/state", nil)
	require.Nil(t, state["amount"])
	require.Nil(t, state["remaining"])
	require.Equal(t, "0", state["spent"])
}

func TestF179_AmountsHaveThreeStates(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	org := e.create("/organizations", object{"name": "acme"})
	limit := object{"scope": object{"type": "organization", "id": org}, "kind": "rate", "metric": "tokens", "amount": "600", "per": "1m"}
	id := e.create("/limits", limit)
	require.Equal(t, "600", e.must(http.MethodPatch, "/limits/"+id, object{"reason": "noisy"})["amount"], "absent is unchanged")
	raised := e.must(http.MethodPatch, "/limits/"+id, object{"amount": "1000"})
	require.Equal(t, "1000", raised["amount"])
	require.Equal(t, "1000", raised["burst"], "a burst that equals the amount follows it")
	require.Nil(t, e.must(http.MethodPatch, "/limits/"+id, object{"amount": nil})["amount"])
	require.Nil(t, e.must(http.MethodGet, "/limits/"+id, nil)["amount"])
	again := e.must(http.MethodPatch, "/limits/"+id, object{"amount": "5", "burst": "50"})
	require.Equal(t, "5", again["amount"])
	require.Equal(t, "50", again["burst"])
	require.Equal(t, "7", e.must(http.MethodPatch, "/limits/"+id, object{"amount": "7"})["amount"])
	require.Equal(t, "50", e.must(http.MethodGet, "/limits/"+id, nil)["burst"])

	fixed := e.send(http.MethodPatch, "/limits/"+id, object{"kind": "budget"})
	require.Equal(t, http.StatusBadRequest, fixed.status)
	require.Contains(t, fixed.faults()["body.kind"], "create another")
}

func TestF145_KeysEndAtAStoredInstant(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 31, 9, 0, 0, 0, time.UTC)
	e := newEnv(t, func(o *Options) { o.Now = func() time.Time { return now } })
	org := e.create("/organizations", object{"name": "acme"})
	for _, instant := range []string{"2026-02-28T09:00:00Z", "2026-03-29T02:30:00+01:00", "2028-02-29T23:59:59.123456Z"} {
		want, err := time.Parse(time.RFC3339Nano, instant)
		require.NoError(t, err)
		created := e.must(http.MethodPost, "/keys", object{"organization_id": org, "name": instant, "expires_at": instant})
		id, _ := created["id"].(string)
		for _, body := range []object{created, e.must(http.MethodGet, "/keys/"+id, nil)} {
			text, _ := body["expires_at"].(string)
			got, err := time.Parse(time.RFC3339Nano, text)
			require.NoError(t, err)
			require.True(t, want.Equal(got), text)
		}
	}
	for _, bad := range []object{{"duration": "1mo"}, {"expires_at": "1mo"}, {"expires_at": 5}, {"expires_at": "0001-01-01T00:00:00Z"}, {"expires_at": "2026-01-31T08:59:59Z"}} {
		bad["organization_id"], bad["name"] = org, "bad"
		require.Equal(t, http.StatusBadRequest, e.send(http.MethodPost, "/keys", bad).status, bad)
	}

	id := e.create("/keys", object{"organization_id": org, "name": "short", "expires_at": "2026-01-31T10:00:00Z"})
	now = now.Add(2 * time.Hour)
	require.Equal(t, "expired", e.must(http.MethodGet, "/keys/"+id, nil)["status"])
	born := e.send(http.MethodPost, "/keys/"+id+"/rotate", object{"grace": "1h"})
	require.Equal(t, http.StatusConflict, born.status)
	e.must(http.MethodPatch, "/keys/"+id, object{"expires_at": nil})
	require.Equal(t, http.StatusOK, e.send(http.MethodPost, "/keys/"+id+"/rotate", object{"grace": "1h"}).status)
}

func TestKey_BlockRotateRevoke(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	org := e.create("/organizations", object{"name": "acme"})
	team := e.create("/teams", object{"organization_id": org, "name": "research", "limits": []object{monthly("10")}})
	created := e.must(http.MethodPost, "/keys", object{"team_id": team, "name": "ci", "models": []string{}})
	id, _ := created["id"].(string)
	require.Equal(t, []any{}, created["models"], "an empty list is none, not all")
	require.Nil(t, e.must(http.MethodPatch, "/keys/"+id, object{"models": nil})["models"])

	require.Equal(t, "blocked", e.must(http.MethodPatch, "/keys/"+id, object{"blocked": true})["status"])
	require.Equal(t, "active", e.must(http.MethodPatch, "/keys/"+id, object{"blocked": false})["status"])

	rotated := e.must(http.MethodPost, "/keys/"+id+"/rotate", nil)
	require.NotEqual(t, created["key"], rotated["key"])
	require.Equal(t, http.StatusBadRequest, e.send(http.MethodPost, "/keys/"+id+"/rotate", object{"grace": "721h"}).status)

	revoked := e.must(http.MethodPost, "/keys/"+id+"/revoke", nil)
	require.Equal(t, "revoked", revoked["status"])
	require.NotContains(t, revoked, "key")
	require.Equal(t, "revoked", e.must(http.MethodPost, "/keys/"+id+"/revoke", nil)["status"], "a repeat is harmless")
	require.Equal(t, http.StatusConflict, e.send(http.MethodPost, "/keys/"+id+"/rotate", nil).status)

	elsewhere := e.send(http.MethodPost, "/keys", object{"team_id": "team_000000000000", "name": "x"})
	require.Equal(t, http.StatusBadRequest, elsewhere.status)
	require.Contains(t, elsewhere.faults(), "body.team_id")
}

func TestF182_EffectiveLimitsOfAKeyNameTheTightest(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	org := e.create("/organizations", object{"name": "acme"})
	orgLimit := monthly("1000")
	orgLimit["scope"] = object{"type": "organization", "id": org}
	e.create("/limits", orgLimit)
	team := e.create("/teams", object{"organization_id": org, "name": "research", "limits": []object{monthly("10")}})
	other := e.create("/teams", object{"organization_id": org, "name": "other", "limits": []object{monthly("1")}})
	key := e.create("/keys", object{"team_id": team, "name": "ci"})
	named := e.create("/keys", object{"team_id": team, "name": "named", "limits": []object{{"kind": "rate", "metric": "requests", "amount": "5", "per": "1m"}}})
	e.create("/limits", object{"scope": object{"type": "key", "id": "*"}, "kind": "rate", "metric": "requests", "amount": "600", "per": "1m"})
	e.create("/limits", object{"scope": object{"type": "key", "id": "*", "within": object{"type": "team", "id": other}}, "kind": "concurrency", "amount": "1"})

	type row struct {
		owner, amount string
		tightest      bool
	}
	rows := func(key string) []row {
		items, _ := e.must(http.MethodGet, "/keys/"+key+"/limits", nil)["items"].([]any)
		all := make([]row, 0, len(items))
		for _, i := range items {
			i := i.(object)
			owner := i["owner"].(object)
			state := i["state"].(object)
			require.Equal(t, state["amount"], state["remaining"])
			all = append(all, row{owner["type"].(string), state["amount"].(string), i["tightest"].(bool)})
		}
		return all
	}
	require.Equal(t, []row{{"organization", "1000", false}, {"team", "10", true}, {"key", "600", true}}, rows(key))
	require.Equal(t, []row{{"organization", "1000", false}, {"team", "10", true}, {"key", "5", true}}, rows(named), "a named limit replaces that of each")
}

func TestKey_RevokedOnesAreNotBlocked(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	org := e.create("/organizations", object{"name": "o"})
	id := e.create("/keys", object{"organization_id": org, "name": "k"})
	e.must(http.MethodPost, "/keys/"+id+"/revoke", nil)
	a := e.send(http.MethodPatch, "/keys/"+id, object{"blocked": true})
	require.Equal(t, http.StatusConflict, a.status, a.text)
	require.Contains(t, a.body["detail"], "revoked for good")
	e.must(http.MethodPatch, "/keys/"+id, object{"name": "renamed"})
}

func TestLimit_TheLastRequiredBudgetStays(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	org := e.create("/organizations", object{"name": "o", "require_budget": true})
	e.create("/teams", object{"organization_id": org, "name": "t", "limits": []object{monthly("5")}})
	limits, _ := e.must(http.MethodGet, "/limits?organization_id="+org, nil)["items"].([]any)
	require.Len(t, limits, 1)
	limit, _ := limits[0].(object)
	id, _ := limit["id"].(string)
	for _, a := range []answer{
		e.send(http.MethodDelete, "/limits/"+id, nil),
		e.send(http.MethodPatch, "/limits/"+id, object{"amount": nil}),
	} {
		require.Equal(t, http.StatusConflict, a.status, a.text)
		require.Contains(t, a.body["detail"], "without a budget")
	}
}

func TestLimit_WhatCanNeverCountIsRefused(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	org := e.create("/organizations", object{"name": "o"})
	for at, member := range map[string]object{
		"routes[0]":     {"routes": []string{"chat/completions"}},
		"routes[1]":     {"routes": []string{"embeddings", "zz"}},
		"models[0]":     {"models": []string{"["}},
		"thresholds[1]": {"thresholds": []int{80, 50}},
		"thresholds[2]": {"thresholds": []int{50, 80, 80}},
		"expires_at":    {"expires_at": "2020-01-01T00:00:00Z"},
	} {
		rule := monthly("5")
		for name, value := range member {
			rule[name] = value
		}
		first := e.send(http.MethodPost, "/teams", object{"organization_id": org, "name": "t", "limits": []object{rule}})
		require.Equal(t, http.StatusBadRequest, first.status, first.text)
		require.Contains(t, first.faults(), "body.limits[0]."+at)
		rule["scope"] = object{"type": "organization", "id": org}
		a := e.send(http.MethodPost, "/limits", rule)
		require.Equal(t, http.StatusBadRequest, a.status, a.text)
		require.Contains(t, a.faults(), "body."+at)
	}
	rule := monthly("5")
	rule["scope"], rule["routes"], rule["models"] = object{"type": "organization", "id": org}, governance.Routes(), []string{"openai/gpt-4.1-*", "llama3:8b@q4 (old)"}
	id := e.create("/limits", rule)
	require.Equal(t, http.StatusBadRequest, e.send(http.MethodPatch, "/limits/"+id, object{"thresholds": []int{2, 1}}).status)
}

func TestUpdate_ParallelOnesWithoutIfMatchAllSucceed(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	id := e.create("/organizations", object{"name": "o"})
	const writers = 12
	statuses := make(chan int, writers)
	for i := range writers {
		r := e.request(http.MethodPatch, "/organizations/"+id, object{"name": fmt.Sprint("name ", i)})
		go func() {
			w := httptest.NewRecorder()
			e.handler.ServeHTTP(w, r)
			statuses <- w.Code
		}()
	}
	for range writers {
		require.Equal(t, http.StatusOK, <-statuses)
	}
}

func TestProvider_CredentialsGoInAndNeverComeOut(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const canary = "sk-canary-5f0a"
	created := e.send(http.MethodPost, "/providers", object{"name": "openai", "kind": "openai", "base_url": "https://api.openai.com/v1", "credential": canary})
	require.Equal(t, http.StatusCreated, created.status, created.text)
	require.Equal(t, true, created.body["credential_set"])
	id, _ := created.body["id"].(string)
	renamed := e.send(http.MethodPatch, "/providers/"+id, object{"name": "main"})
	require.Equal(t, true, renamed.body["credential_set"], "what is absent is unchanged")
	tooLong := e.send(http.MethodPatch, "/providers/"+id, object{"credential": strings.Repeat(canary, 2000)})
	require.Equal(t, http.StatusBadRequest, tooLong.status)
	for _, text := range []string{created.text, renamed.text, tooLong.text, e.send(http.MethodGet, "/providers", nil).text, e.send(http.MethodGet, "/audit", nil).text, e.log.String()} {
		require.NotContains(t, text, canary)
		require.NotContains(t, text, testToken)
	}
}

func TestProvider_AnotherHostNeedsTheCredentialAgain(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	id := e.create("/providers", object{"name": "openai", "kind": "openai", "base_url": "https://api.openai.com/v1", "credential": "sk-one"})
	refused := e.send(http.MethodPatch, "/providers/"+id, object{"base_url": "https://eu.example/v1"})
	require.Equal(t, http.StatusBadRequest, refused.status, refused.text)
	require.Contains(t, refused.faults(), "body.credential")
	kept := e.must(http.MethodGet, "/providers/"+id, nil)
	require.Equal(t, "https://api.openai.com/v1", kept["base_url"])
	require.Equal(t, true, kept["credential_set"])
	require.Equal(t, true, e.must(http.MethodPatch, "/providers/"+id, object{"base_url": "https://api.openai.com/v2"})["credential_set"], "the path does not matter")
	require.Equal(t, true, e.must(http.MethodPatch, "/providers/"+id, object{"base_url": "https://eu.example/v1", "credential": "sk-two"})["credential_set"])
	require.Equal(t, false, e.must(http.MethodPatch, "/providers/"+id, object{"base_url": "https://us.example/v1", "credential": nil})["credential_set"])
}

func TestProvider_URLsThatLeadElsewhereAreRefused(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	body := func(url string) object { return object{"name": "p", "kind": "openai", "base_url": url} }
	for _, url := range []string{
		"", "api.openai.com", "http://api.openai.com/v1", "ftp://api.openai.com", "https://user:pw@api.openai.com", "https://api.openai.com/v1?key=1",
		"https://api.openai.com/v1#x", "https://127.0.0.1/v1", "http://localhost:9000", "https://10.1.2.3", "https://[::1]/", "https://[::ffff:10.0.0.1]",
		"https://169.254.169.254/latest", "https://intranet/v1", "https://api.openai.com:99999", "https://api.openai.com/../v1", "https://a b.com", "javascript:alert(1)", "https://",
	} {
		a := e.send(http.MethodPost, "/providers", body(url))
		require.Equal(t, http.StatusBadRequest, a.status, url)
		require.Contains(t, a.text, "base_url", url)
	}
	require.Empty(t, e.must(http.MethodGet, "/providers", nil)["items"])

	private := newEnv(t, func(o *Options) { o.PrivateUpstreams = true })
	require.Equal(t, http.StatusCreated, private.send(http.MethodPost, "/providers", body("http://127.0.0.1:9000/v1")).status)
	for _, url := range []string{"http://169.254.169.254/latest", "http://[fe80::1]/", "http://[fd00:ec2::254]/", "http://[::ffff:169.254.169.254]/"} {
		a := private.send(http.MethodPost, "/providers", body(url))
		require.Equal(t, http.StatusBadRequest, a.status, url)
		require.Contains(t, a.text, "link-local", url)
	}
}

func TestModel_TargetsAreOrderedAndShared(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.create("/providers", object{"name": "openai", "kind": "openai", "base_url": "https://api.openai.com/v1"})
	target := object{"provider_id": p, "upstream_model": "gpt-4o"}
	created := e.must(http.MethodPost, "/models", object{"name": "gpt", "targets": []object{target, {"provider_id": p, "upstream_model": "gpt-4o-mini", "weight": 3, "priority": 1}}})
	targets, _ := created["targets"].([]any)
	require.Len(t, targets, 2)
	require.Equal(t, "openai", targets[0].(object)["provider_name"])
	id, _ := created["id"].(string)
	targetID, _ := targets[0].(object)["target_id"].(string)

	patched := e.send(http.MethodPatch, "/targets/"+targetID, object{"max_output": 4096, "on_disconnect": "drain"})
	require.Equal(t, http.StatusOK, patched.status, patched.text)
	require.Equal(t, "drain", patched.body["on_disconnect"])
	require.Len(t, e.must(http.MethodGet, "/targets?provider_id="+p, nil)["items"], 2)

	fewer := e.must(http.MethodPatch, "/models/"+id, object{"targets": []object{target}})
	require.Len(t, fewer["targets"], 1)
	twice := e.send(http.MethodPost, "/models", object{"name": "x", "targets": []object{target, target}})
	require.Equal(t, http.StatusBadRequest, twice.status)
	require.Contains(t, twice.faults(), "body.targets[1]")
}

// Whatever is counted can be priced.
func TestPrice_OfEveryUnit(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for u := range governance.UnitCount {
		made := e.must(http.MethodPost, "/prices", object{
			"provider": "p", "upstream_model": "m", "unit": u.String(), "usd_per_million": "1", "service_tier": "hd/1024x1792",
		})
		require.Equal(t, u.String(), made["unit"])
	}
}

func TestPrice_OneUnitAtATimeMakesWholeVersions(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	add := func(unit, usd, from string) object {
		body := object{"provider": "openai", "upstream_model": "gpt-4o", "unit": unit, "usd_per_million": usd}
		if from != "" {
			body["effective_from"] = from
		}
		return e.must(http.MethodPost, "/prices", body)
	}
	input := add("input", "2.5", "2026-01-01T00:00:00Z")
	require.Equal(t, "input", input["unit"])
	require.Equal(t, "2.5", input["usd_per_million"])
	require.Equal(t, "2026-01-01T00:00:00Z", input["effective_from"])
	output := add("output", "10", "2026-01-01T00:00:00Z")
	tiers, _ := output["tiers"].([]any)
	require.Equal(t, object{"input": "2.5", "output": "10"}, tiers[0].(object)["usd_per_million"], "the second keeps the first")
	require.NotEqual(t, input["id"], output["id"], "versions are never changed")
	later := add("input", "3.000000001", "2026-06-01T00:00:00Z")
	tiers, _ = later["tiers"].([]any)
	require.Equal(t, object{"input": "3.000000001", "output": "10"}, tiers[0].(object)["usd_per_million"])

	free := e.must(http.MethodPost, "/prices", object{"provider": "mock", "upstream_model": "m", "free": true})
	require.Equal(t, true, free["free"])
	for _, bad := range []object{
		{"provider": "openai", "upstream_model": "m", "unit": "input"},
		{"provider": "openai", "upstream_model": "m", "usd_per_million": "1"},
		{"provider": "openai", "upstream_model": "m", "unit": "tokens", "usd_per_million": "1"},
		{"provider": "openai", "upstream_model": "m", "unit": "input", "usd_per_million": "1", "free": true},
	} {
		require.Equal(t, http.StatusBadRequest, e.send(http.MethodPost, "/prices", bad).status, bad)
	}
	id, _ := later["id"].(string)
	require.Equal(t, "openai", e.must(http.MethodGet, "/prices/"+id, nil)["provider"])
	require.Len(t, e.must(http.MethodGet, "/prices?provider=openai", nil)["items"], 3)
}

func TestLedger_EmptyOneIsReadAndClean(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	require.Equal(t, []any{}, e.must(http.MethodGet, "/spend", nil)["items"])
	require.Equal(t, []any{}, e.must(http.MethodGet, "/reservations", nil)["items"])
	require.NotNil(t, e.must(http.MethodGet, "/spend/summary", nil)["items"])
	require.NotNil(t, e.must(http.MethodGet, "/spend/summary?group_by=team,day&time_zone=Europe/Paris&from=2026-01-01T00:00:00Z", nil)["items"])
	report := e.must(http.MethodGet, "/ledger/check", nil)
	require.Equal(t, true, report["clean"], report)
	for _, bad := range []string{"/spend?from=yesterday", "/spend?from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z", "/spend?request_id=1", "/spend?limit=1000", "/spend/summary?group_by=tag", "/spend/summary?time_zone=Mars", "/reservations?state=lost", "/spend?team_id=1"} {
		require.Equal(t, http.StatusBadRequest, e.send(http.MethodGet, bad, nil).status, bad)
	}
}

func TestDecisions_AreRowsOfTheirOwn(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	org := e.create("/organizations", object{"name": "acme"})
	given := e.send(http.MethodPost, "/credits", object{"organization_id": org, "amount_usd": "2.5", "reason": "an outage"})
	require.Equal(t, http.StatusCreated, given.status, given.text)
	require.Equal(t, "-2.5", given.body["cost_usd"])
	require.Equal(t, "credit", given.body["kind"])
	rows, _ := e.must(http.MethodGet, "/spend?organization_id="+org, nil)["items"].([]any)
	require.Len(t, rows, 1)
	for path, body := range map[string]object{
		"/reservations/01a22e78-90a9-7719-9e59-c9d78f0b3668/resolve":         {"policy": "zero", "reason": "x"},
		"/reservations/nonsense/resolve":                                     {"policy": "zero", "reason": "x"},
		"/spend/01a22e78-90a9-7719-9e59-c9d78f0b3668.usage/corrections":      {"cost_usd": "-0.25", "reason": "x"},
		"/spend/01a22e78-90a9-7719-9e59-c9d78f0b3668.adjustment/corrections": {"cost_usd": "-0.25", "reason": "x"},
	} {
		require.Equal(t, http.StatusNotFound, e.send(http.MethodPost, path, body).status, path)
	}
	require.Equal(t, http.StatusBadRequest, e.send(http.MethodPost, "/credits", object{"organization_id": org, "amount_usd": "2.5"}).status, "a reason is needed")
	require.Equal(t, http.StatusBadRequest, e.send(http.MethodPost, "/credits", object{"organization_id": org, "amount_usd": "0", "reason": "x"}).status)
}

func TestAudit_NamesWhoDidWhat(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	a := e.send(http.MethodPost, "/organizations", object{"name": "acme"}, "X-Tollgate-Reason", "a new customer", "X-Request-Id", "req-1")
	require.Equal(t, "req-1", a.header.Get("X-Request-Id"))
	items, _ := e.must(http.MethodGet, "/audit?resource=organizations", nil)["items"].([]any)
	require.Len(t, items, 1)
	row := items[0].(object)
	actor := row["actor"].(object)
	require.Equal(t, "admin_token", actor["kind"])
	require.Equal(t, "a new customer", actor["reason"])
	require.Equal(t, "req-1", actor["request_id"])
	require.Equal(t, "create", row["action"])
	require.Equal(t, "acme", row["after"].(object)["name"])
}

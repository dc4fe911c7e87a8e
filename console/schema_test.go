package console

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/stretchr/testify/require"
)

// contract is the API's own description, by which tests find what there is to try.
type contract struct {
	registry   huma.Registry
	operations []*huma.Operation
}

func contractOf(o Options) contract {
	api, _ := newAPI()
	(&server{Options: o}).register(api)
	c := contract{registry: api.OpenAPI().Components.Schemas}
	for _, path := range slices.Sorted(maps.Keys(api.OpenAPI().Paths)) {
		item := api.OpenAPI().Paths[path]
		for _, op := range []*huma.Operation{item.Get, item.Post, item.Patch, item.Delete} {
			if op != nil {
				c.operations = append(c.operations, op)
			}
		}
	}
	return c
}

func (c contract) resolve(s *huma.Schema) *huma.Schema {
	for s != nil && s.Ref != "" {
		s = c.registry.SchemaFromRef(s.Ref)
	}
	return s
}

// operation finds what serves a request. Nil: nothing does.
func (c contract) operation(method, path string) *huma.Operation {
	parts := strings.Split(path, "/")
	var found *huma.Operation
	for _, op := range c.operations {
		template := strings.Split(op.Path, "/")
		if op.Method != method || len(template) != len(parts) {
			continue
		}
		matches, literal := true, true
		for i, t := range template {
			variable := strings.HasPrefix(t, "{")
			matches = matches && (variable || t == parts[i])
			literal = literal && !variable
		}
		if matches && (found == nil || literal) {
			found = op
		}
	}
	return found
}

// requireConforms checks an answer against the schema that the API publishes for it.
func (c contract) requireConforms(tb testing.TB, r *http.Request, a answer) {
	tb.Helper()
	path, inside := strings.CutPrefix(r.URL.Path, prefix)
	op := c.operation(r.Method, path)
	if !inside || op == nil {
		return
	}
	name := fmt.Sprintf("%s %s: %d %s", r.Method, r.URL.Path, a.status, a.text)
	response := op.Responses[strconv.Itoa(a.status)]
	require.NotNil(tb, response, "status is not documented: %s", name)
	if response.Ref != "" {
		require.Equal(tb, problemType, a.header.Get("Content-Type"), name)
		c.requireFits(tb, c.registry.Map()["Problem"], a.text, name)
		require.Equal(tb, json.Number(strconv.Itoa(a.status)), a.body["status"], name)
		return
	}
	if len(response.Content) == 0 {
		require.Empty(tb, a.text, name)
		return
	}
	if object := response.Content["application/json"]; object != nil { // streams have tests of their own
		c.requireFits(tb, object.Schema, a.text, name)
	}
}

func (c contract) requireFits(tb testing.TB, s *huma.Schema, text, name string) {
	tb.Helper()
	var value any
	require.NoError(tb, json.Unmarshal([]byte(text), &value), name)
	res := &huma.ValidateResult{}
	huma.Validate(c.registry, s, huma.NewPathBuffer(nil, 0), huma.ModeReadFromServer, value, res)
	require.Empty(tb, res.Errors, name)
}

// fixture has a valid body for every operation that takes one.
type fixture struct {
	*env
	bodies map[string]object // by operation id
	paths  map[string]string // path with a real id, by operation id
}

func newFixture(tb testing.TB) *fixture {
	tb.Helper()
	e := newEnv(tb)
	org := e.create("/organizations", object{"name": "acme"})
	team := e.create("/teams", object{"organization_id": org, "name": "research"})
	user := e.create("/users", object{"organization_id": org, "name": "Ada"})
	key := e.create("/keys", object{"team_id": team, "name": "ci"})
	other := e.create("/teams", object{"organization_id": org, "name": "other"})
	membership := e.create("/memberships", object{"user_id": user, "team_id": team, "role": "developer"})
	provider := e.create("/providers", object{"name": "openai", "kind": "openai", "base_url": "https://api.openai.com/v1"})
	target := object{"provider_id": provider, "upstream_model": "gpt-4o", "weight": 1, "priority": 0}
	made := e.must(http.MethodPost, "/models", object{"name": "gpt-4o", "targets": []any{target}})
	model, _ := made["id"].(string)
	targetID, _ := made["targets"].([]any)[0].(object)["target_id"].(string)
	window := object{"type": "fixed", "duration": "24h", "anchor": "2026-01-01T00:00:00Z"}
	budget := object{
		"kind": "budget", "metric": "cost", "amount": "10", "window": window, "carry_debt": true, "reserve": "declared",
		"models": []any{"gpt-*"}, "routes": []any{"chat.completions"}, "enforcement": "exact", "mode": "enforce", "thresholds": []any{50, 100},
		"starts_at": "2026-01-01T00:00:00Z", "expires_at": "2030-01-01T00:00:00Z", "reason": "because",
	}
	rate := object{"kind": "rate", "metric": "tokens", "amount": "10", "per": "1m", "burst": "20"}
	limit := e.create("/limits", object{"scope": object{"type": "team", "id": team}, "kind": "rate", "metric": "tokens", "amount": "10", "per": "1m"})
	scoped := maps.Clone(budget)
	scoped["scope"] = object{"type": "key", "id": "*", "within": object{"type": "team", "id": team}}
	scoped["organization_id"] = org
	guardrail := e.create("/guardrails", object{"name": "words", "scope": object{"type": "platform"}, "rule": object{"type": "keywords", "words": []any{"secret"}}, "action": "mask"})
	price := e.create("/prices", object{"provider": "openai", "upstream_model": "gpt-4o", "unit": "input", "usd_per_million": "1"})
	const lost = "01a22e78-90a9-7719-9e59-c9d78f0b3668"
	return &fixture{
		env: e,
		bodies: map[string]object{
			"post-organizations":  {"name": "new", "blocked": false, "budget_status": 429, "require_budget": false, "require": []any{"end_user"}},
			"patch-organizations": {"name": "acme", "blocked": false, "budget_status": 429, "require_budget": false, "require": []any{"end_user"}},
			"post-teams":          {"organization_id": org, "name": "new", "blocked": false, "models": []any{"gpt-*"}, "limits": []any{budget, rate}},
			"patch-teams":         {"name": "research", "blocked": false, "models": []any{"gpt-*"}},
			"post-users":          {"organization_id": org, "name": "new", "email": "new@example.com", "blocked": false},
			"patch-users":         {"name": "Ada", "email": "ada@example.com", "blocked": false},
			"post-memberships":    {"user_id": user, "team_id": other, "role": "developer"},
			"patch-memberships":   {"role": "admin"},
			"post-keys":           {"team_id": team, "user_id": user, "name": "new", "models": []any{"gpt-*"}, "expires_at": "2030-01-01T00:00:00Z", "blocked": false, "budget_status": 402, "limits": []any{budget, rate}},
			"patch-keys":          {"name": "ci", "models": []any{"gpt-*"}, "expires_at": "2030-01-01T00:00:00Z", "blocked": false, "budget_status": 402},
			"post-keys-rotate":    {"grace": "1h"},
			"post-providers":      {"organization_id": org, "name": "new", "kind": "openai", "base_url": "https://api.openai.com/v1", "price_provider": "openai", "credential": "sk-x"},
			"patch-providers":     {"name": "openai", "base_url": "https://api.openai.com/v1", "price_provider": "openai", "credential": "sk-x"},
			"post-models":         {"organization_id": org, "name": "new", "targets": []any{target}},
			"patch-models":        {"name": "gpt-4o", "targets": []any{target}},
			"patch-targets":       {"on_disconnect": "drain", "no_stream_options": false, "drop": []any{"temperature"}, "max_output": 4096},
			"post-limits":         scoped,
			"patch-limits":        {"amount": "10", "burst": "10", "reserve": "expected", "enforcement": "exact", "mode": "log", "thresholds": []any{50}, "starts_at": "2026-01-01T00:00:00Z", "expires_at": "2030-01-01T00:00:00Z", "reason": "because"},
			"post-limits-preview": {"limit": scoped, "hours": 24},
			"post-guardrails": {
				"name": "new", "scope": object{"type": "team", "id": team}, "models": []any{"gpt-*"}, "stage": "both", "action": "block", "on_error": "allow", "enabled": true,
				"rule": object{"type": "webhook", "url": "https://guard.example.com/v1", "timeout_ms": 500}, "secret": "of-sixteen-characters",
			},
			"patch-guardrails": {
				"name": "words", "models": []any{"gpt-*"}, "stage": "request", "action": "log", "on_error": "deny", "enabled": false,
				"rule": object{"type": "webhook", "url": "https://guard.example.com/v1", "timeout_ms": 500}, "secret": "of-sixteen-characters",
			},
			"post-prices":               {"provider": "openai", "upstream_model": "gpt-4o", "unit": "input", "usd_per_million": "2.5", "service_tier": "flex", "from_input": 0, "effective_from": "2026-01-01T00:00:00Z", "source": "list"},
			"post-reservations-resolve": {"quantities": object{"input": 5}, "reason": "because"},
			"post-spend-corrections":    {"quantities": object{"input": 5}, "cost_usd": "-0.25", "reason": "because"},
			"post-credits":              {"organization_id": org, "team_id": team, "key_id": key, "amount_usd": "2.5", "reason": "because"},
		},
		paths: map[string]string{
			"organizations": org, "teams": team, "users": user, "memberships": membership, "keys": key, "providers": provider,
			"models": model, "targets": targetID, "limits": limit, "guardrails": guardrail, "prices": price, "reservations": lost, "spend": lost + ".usage",
		},
	}
}

// path is the operation's path with a real id in it.
func (f *fixture) path(op *huma.Operation) string {
	resource, _, _ := strings.Cut(strings.TrimPrefix(op.Path, "/"), "/")
	return strings.Replace(op.Path, "{id}", f.paths[resource], 1)
}

// rows counts everything that a request could store.
func (f *fixture) rows() map[string]int64 {
	f.tb.Helper()
	counts := make(map[string]int64)
	for _, table := range []string{
		"tollgate.organizations", "tollgate.teams", "tollgate.users", "tollgate.memberships", "tollgate.virtual_keys", "tollgate.key_secrets",
		"tollgate.providers", "tollgate.models", "tollgate.targets", "tollgate.limits", "tollgate.guardrails", "tollgate.price_versions", "tollgate.audit_log", "ledger.rows",
	} {
		var n int64
		require.NoError(f.tb, f.pool.QueryRow(f.tb.Context(), "SELECT count(*) FROM "+table).Scan(&n))
		counts[table] = n
	}
	return counts
}

func TestEveryOperation_AcceptsItsWholeBody(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, op := range f.contract.operations {
		if op.RequestBody == nil {
			continue
		}
		body, ok := f.bodies[op.OperationID]
		require.True(t, ok, "no valid body is known for %s", op.OperationID)
		schema := f.contract.resolve(op.RequestBody.Content["application/json"].Schema)
		for name := range schema.Properties {
			if slices.Contains([]string{"post-prices free", "post-keys organization_id", "post-reservations-resolve policy", "post-limits per", "post-limits burst"}, op.OperationID+" "+name) {
				continue // excludes another member of the body
			}
			require.Contains(t, body, name, "the valid body of %s leaves out %s", op.OperationID, name)
		}
		a := f.send(op.Method, f.path(op), body)
		if op.OperationID == "post-reservations-resolve" || op.OperationID == "post-spend-corrections" {
			require.Equal(t, http.StatusNotFound, a.status, a.text)
			continue
		}
		require.Less(t, a.status, 300, "%s: %s", op.OperationID, a.text)
		for name, want := range body {
			got, shown := a.body[name]
			if !shown || name == "limits" || name == "limit" || name == "targets" || name == "quantities" || name == "reason" && op.OperationID == "post-credits" {
				continue
			}
			wanted, err := json.Marshal(want)
			require.NoError(t, err)
			echoed, err := json.Marshal(got)
			require.NoError(t, err)
			if strings.HasSuffix(name, "_from") {
				continue // may be moved behind an equal one
			}
			require.JSONEq(t, string(wanted), string(echoed), "%s must echo %s", op.OperationID, name)
		}
	}
}

// mutation is a body with one fault.
type mutation struct {
	name     string // what was done
	location string // the member at fault
	body     string
}

// mutations makes every body that differs from a valid one by one fault.
func (c contract) mutations(schema *huma.Schema, valid object) []mutation {
	var all []mutation
	encode := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		return string(text)
	}
	// put returns the valid body with raw JSON in the place of the value at path.
	put := func(path []any, raw string) string {
		const mark = "\x01here\x01"
		body := clone(valid)
		place(body, path, mark)
		return strings.Replace(encode(body), encode(mark), raw, 1)
	}
	var walk func(s *huma.Schema, path []any, value any)
	walk = func(s *huma.Schema, path []any, value any) {
		s = c.resolve(s)
		at := "body"
		for _, p := range path {
			if i, ok := p.(int); ok {
				at += fmt.Sprintf("[%d]", i)
			} else {
				at += fmt.Sprintf(".%v", p)
			}
		}
		for _, raw := range badValues(s) {
			if len(path) > 0 {
				all = append(all, mutation{at + " = " + raw, at, put(path, raw)})
			} else {
				all = append(all, mutation{"body = " + raw, "body", raw})
			}
		}
		switch v := value.(type) {
		case object:
			inner := encode(v)
			all = append(all, mutation{at + " with an unknown member", at, put2(put, path, strings.Replace(inner, "{", `{"surprise":1,`, 1))})
			for _, name := range slices.Sorted(maps.Keys(v)) {
				all = append(all, mutation{at + " with " + name + " twice", at + "." + name, put2(put, path, strings.Replace(inner, "{", `{`+encode(name)+`:`+encode(v[name])+`,`, 1))})
				all = append(all, mutation{at + " with " + name + " in capitals", at, put2(put, path, strings.Replace(inner, encode(name)+":", encode(strings.ToUpper(name))+":", 1))})
				if property := s.Properties[name]; property != nil {
					walk(property, append(slices.Clone(path), name), v[name])
				}
			}
			for _, name := range s.Required {
				without := clone(v)
				delete(without, name)
				all = append(all, mutation{at + " without " + name, at, put2(put, path, encode(without))})
			}
		case []any:
			for i, item := range v {
				walk(s.Items, append(slices.Clone(path), i), item)
			}
		}
	}
	walk(schema, nil, valid)
	return all
}

func put2(put func([]any, string) string, path []any, raw string) string {
	if len(path) == 0 {
		return raw
	}
	return put(path, raw)
}

func clone(v object) object {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	var c object
	if err := json.Unmarshal(text, &c); err != nil {
		panic(err)
	}
	return c
}

func place(in any, path []any, value any) {
	for _, step := range path[:len(path)-1] {
		switch s := step.(type) {
		case string:
			in = in.(object)[s]
		case int:
			in = in.([]any)[s]
		}
	}
	switch s := path[len(path)-1].(type) {
	case string:
		in.(object)[s] = value
	case int:
		in.([]any)[s] = value
	}
}

// badValues are values that no member with this schema may have.
func badValues(s *huma.Schema) []string {
	bad := []string{`1e309`, `NaN`, `-`, `"` + "\xff" + `"`, `"a` + `\` + `u0000b"`, `"\ud800x`}
	switch s.Type {
	case huma.TypeString:
		bad = append(bad, `5`, `0.1`, `true`, `[]`, `{}`, `["x"]`)
		if len(s.Enum) > 0 || s.Pattern != "" || s.Format != "" {
			bad = append(bad, `"nonsense or worse"`, `"NaN"`, `"1e309"`, `"'; DROP TABLE limits; --"`)
		}
		if s.Format == "date-time" {
			bad = append(bad, `"2026-13-01T00:00:00Z"`, `"2026-01-01"`, `"0001-01-01T00:00:00Z"`, `"9999-12-31T23:59:59Z"`)
		}
		if s.MinLength != nil && *s.MinLength > 0 {
			bad = append(bad, `""`)
		}
		if s.MaxLength != nil {
			bad = append(bad, `"`+strings.Repeat("x", *s.MaxLength+1)+`"`)
		}
	case huma.TypeInteger:
		bad = append(bad, `"5"`, `1.5`, `true`, `[]`, `{}`, `99999999999999999999`, `-9223372036854775809`, `1e30`)
		if s.Minimum != nil {
			bad = append(bad, fmt.Sprint(int64(*s.Minimum)-1))
		}
	case huma.TypeBoolean:
		bad = append(bad, `"true"`, `1`, `0`, `[]`, `{}`)
	case huma.TypeArray:
		bad = append(bad, `"x"`, `5`, `{}`, `true`, `[[]]`, `[null]`)
		if s.MaxItems != nil {
			bad = append(bad, `[`+strings.TrimSuffix(strings.Repeat(`"x",`, *s.MaxItems+1), ",")+`]`)
		}
	case huma.TypeObject:
		bad = append(bad, `"x"`, `5`, `[]`, `true`, `{"surprise":{}}`)
	}
	return bad
}

func TestEveryOperation_RefusesEveryFault(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	before := f.rows()
	tried := 0
	for _, op := range f.contract.operations {
		if op.RequestBody == nil {
			continue
		}
		schema := op.RequestBody.Content["application/json"].Schema
		for _, m := range f.contract.mutations(schema, f.bodies[op.OperationID]) {
			tried++
			a := f.send(op.Method, f.path(op), m.body)
			require.Equal(t, http.StatusBadRequest, a.status, "%s: %s\n%s\n%s", op.OperationID, m.name, m.body, a.text)
			faults := a.faults()
			require.NotEmpty(t, faults, "%s: %s", op.OperationID, m.name)
			named := false
			for location, message := range faults {
				named = named || strings.HasPrefix(location, m.location) || strings.HasPrefix(m.location, location)
				require.NotEmpty(t, message)
			}
			require.True(t, named, "%s: %s: %s", op.OperationID, m.name, a.text)
		}
		huge := `{"name":"` + strings.Repeat("x", 10<<20) + `"}`
		require.Equal(t, http.StatusRequestEntityTooLarge, f.send(op.Method, f.path(op), huge).status, op.OperationID)
		require.Equal(t, http.StatusUnsupportedMediaType, f.send(op.Method, f.path(op), "name=x", "Content-Type", "application/x-www-form-urlencoded").status, op.OperationID)
		require.Equal(t, before, f.rows(), "%s stored something", op.OperationID)
	}
	require.Greater(t, tried, 2000)
	t.Logf("%d bodies refused", tried)
}

func TestEveryOperation_RefusesBadParameters(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	before := f.rows()
	for _, op := range f.contract.operations {
		path := f.path(op)
		body := any(nil)
		if op.RequestBody != nil {
			body = f.bodies[op.OperationID]
		}
		require.Equal(t, http.StatusBadRequest, f.send(op.Method, path+"?surprise=1", body).status, op.OperationID)
		for _, p := range op.Parameters {
			switch p.In {
			case "query":
				bad := []string{"%00", "%ff", "a%00b", strings.Repeat("x", 3000)}
				s := f.contract.resolve(p.Schema)
				if s.Type != huma.TypeString || len(s.Enum) > 0 || s.Pattern != "" || s.Format != "" {
					bad = append(bad, "nonsense", "1e309", "-1", url.QueryEscape("' OR 1=1"))
				}
				for _, v := range bad {
					a := f.send(op.Method, path+"?"+p.Name+"="+v, body)
					require.Equal(t, http.StatusBadRequest, a.status, "%s ?%s=%s: %s", op.OperationID, p.Name, v, a.text)
				}
				require.Equal(t, http.StatusBadRequest, f.send(op.Method, path+"?"+p.Name+"=1&"+p.Name+"=2", body).status)
			case "path":
				for _, v := range []string{"nonsense", "%00", "%ff", "1", "org_000000000000", "..%2f..", strings.Repeat("x", 3000), url.PathEscape("' OR 1=1")} {
					a := f.send(op.Method, strings.Replace(op.Path, "{id}", v, 1), body)
					require.Equal(t, http.StatusNotFound, a.status, "%s %s: %s", op.OperationID, v, a.text)
				}
			case "header":
				if p.Name == "If-Match" {
					for _, v := range []string{"1", `W/"1"`, `"x"`, `"-1"`, `"01"`, `"1","2"`, `"99999999999999999999"`} {
						a := f.send(op.Method, path, body, "If-Match", v)
						require.Equal(t, http.StatusBadRequest, a.status, "%s If-Match %s: %s", op.OperationID, v, a.text)
					}
					require.Equal(t, http.StatusPreconditionFailed, f.send(op.Method, path, body, "If-Match", `"77"`).status, op.OperationID)
				}
			}
		}
	}
	require.Equal(t, before, f.rows())
}

// Every member that PATCH may change says what it can widen, so that a new one is a decision (F149).
func TestF149_EveryMutableMemberIsClassified(t *testing.T) {
	t.Parallel()
	const (
		label   = "changes nothing that anyone may do"
		access  = "widens or narrows who may call what"
		money   = "widens or narrows what may be spent"
		routing = "changes where calls go"
		said    = "widens or narrows what may be said"
	)
	classes := map[string]map[string]string{
		"patch-organizations": {"name": label, "blocked": access, "budget_status": label, "require_budget": money, "require": access},
		"patch-teams":         {"name": label, "blocked": access, "models": access},
		"patch-users":         {"name": label, "email": access, "blocked": access},
		"patch-memberships":   {"role": access},
		"patch-keys":          {"name": label, "models": access, "expires_at": access, "blocked": access, "budget_status": label},
		"patch-providers":     {"name": routing, "base_url": routing, "price_provider": money, "credential": routing},
		"patch-models":        {"name": access, "targets": routing},
		"patch-targets":       {"on_disconnect": money, "no_stream_options": label, "drop": label, "max_output": money},
		"patch-limits": {
			"amount": money, "burst": money, "reserve": money, "enforcement": money, "mode": money, "thresholds": label,
			"starts_at": money, "expires_at": money, "reason": label,
		},
		"patch-guardrails": {
			"name": label, "models": said, "stage": said, "rule": said, "action": said, "on_error": said, "enabled": said, "secret": said,
		},
	}
	c := contractOf(Options{})
	for _, op := range c.operations {
		if op.Method != http.MethodPatch {
			continue
		}
		schema := c.resolve(op.RequestBody.Content["application/json"].Schema)
		require.ElementsMatch(t, slices.Collect(maps.Keys(classes[op.OperationID])), slices.Collect(maps.Keys(schema.Properties)), op.OperationID)
	}
}

func TestOpenAPI_IsWholeAndServedWithoutAToken(t *testing.T) {
	t.Parallel()
	e := bare(t, nil)
	a := e.send(http.MethodGet, "/openapi.json", nil, "Authorization", "")
	require.Equal(t, http.StatusOK, a.status)
	require.Equal(t, "3.1.0", a.body["openapi"])
	operations := make(map[string]bool)
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, item := range v {
				walk(item)
			}
		case object:
			if ref, ok := v["$ref"].(string); ok {
				var at any = a.body
				for step := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
					at = at.(object)[step]
				}
				require.NotNil(t, at, ref)
			}
			if id, ok := v["operationId"].(string); ok {
				require.False(t, operations[id], id)
				operations[id] = true
				require.NotEmpty(t, v["summary"], id)
				require.NotEmpty(t, v["tags"], id)
			}
			for _, item := range v {
				walk(item)
			}
		}
	}
	walk(a.body)
	require.Greater(t, len(operations), 45)
	for name, schema := range e.contract.registry.Map() {
		if schema.Type == huma.TypeObject {
			require.NotNil(t, schema.AdditionalProperties, "%s accepts unknown members", name)
		}
	}
}

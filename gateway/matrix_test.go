package gateway_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/mock"
	"github.com/tollgate-gateway/tollgate/providers"
	"github.com/tollgate-gateway/tollgate/providers/anthropic"
	"github.com/tollgate-gateway/tollgate/providers/azure"
	"github.com/tollgate-gateway/tollgate/providers/bedrock"
	"github.com/tollgate-gateway/tollgate/providers/gemini"
	"github.com/tollgate-gateway/tollgate/providers/openai"
	"github.com/tollgate-gateway/tollgate/providers/translate"
)

// update writes the golden files and the table of docs/api.md instead of comparing with them.
var update = flag.Bool("update", false, "write golden files")

// feature is a column of the matrix: what a client wants of a model.
type feature struct {
	name   string
	script string // of the upstream
	bodies map[string]string
}

const pixelURL = "data:image/png;base64,iVBORw0KGgo="

// The tools of each dialect, and a conversation in which they were used.
const (
	parameters = `{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`
	chatTool   = `"tools":[{"type":"function","function":{"name":"weather","description":"The weather.","parameters":` + parameters + `}}]`
	replyTool  = `"tools":[{"type":"function","name":"weather","description":"The weather.","parameters":` + parameters + `}]`
	claudeTool = `"tools":[{"name":"weather","description":"The weather.","input_schema":` + parameters + `}]`
)

// matrixFeatures are written once for each route, as its clients write them.
var matrixFeatures = []feature{
	{"plain", "ok", map[string]string{
		"/v1/chat/completions": `{"model":"m","temperature":0.5,"max_completion_tokens":50,"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Say hello."}]}`,
		"/v1/responses":        `{"model":"m","temperature":0.5,"max_output_tokens":50,"instructions":"Be brief.","input":"Say hello."}`,
		"/v1/messages":         `{"model":"m","temperature":0.5,"max_tokens":50,"system":"Be brief.","messages":[{"role":"user","content":"Say hello."}]}`,
	}},
	{"stream", "ok", map[string]string{
		"/v1/chat/completions": `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"Say hello."}]}`,
		"/v1/responses":        `{"model":"m","stream":true,"input":"Say hello."}`,
		"/v1/messages":         `{"model":"m","stream":true,"max_tokens":50,"messages":[{"role":"user","content":"Say hello."}]}`,
	}},
	{"tools", "parallel_tools_in_one_frame", map[string]string{
		"/v1/chat/completions": `{"model":"m",` + chatTool + `,"tool_choice":"required","parallel_tool_calls":false,"messages":[{"role":"user","content":"Weather?"}]}`,
		"/v1/responses":        `{"model":"m",` + replyTool + `,"tool_choice":"required","parallel_tool_calls":false,"input":"Weather?"}`,
		"/v1/messages":         `{"model":"m",` + claudeTool + `,"tool_choice":{"type":"any","disable_parallel_tool_use":true},"max_tokens":50,"messages":[{"role":"user","content":"Weather?"}]}`,
	}},
	{"parallel tools, streamed", "parallel_tools_in_one_frame", map[string]string{
		"/v1/chat/completions": `{"model":"m","stream":true,"stream_options":{"include_usage":true},` + chatTool + `,"messages":[{"role":"user","content":"Weather?"},{"role":"assistant","content":"Let me see.","tool_calls":[` +
			`{"id":"call_a","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Paris\"}"}},{"id":"call_b","type":"function","function":{"name":"weather","arguments":"{\"city\": 9007199254740993}"}}]},` +
			`{"role":"tool","tool_call_id":"call_a","content":"21"},{"role":"tool","tool_call_id":"call_b","content":"22"},{"role":"user","content":"And now?"}]}`,
		"/v1/responses": `{"model":"m","stream":true,` + replyTool + `,"input":[{"role":"user","content":"Weather?"},{"type":"function_call","call_id":"call_a","name":"weather","arguments":"{\"city\":\"Paris\"}"},` +
			`{"type":"function_call","call_id":"call_b","name":"weather","arguments":"{\"city\": 9007199254740993}"},{"type":"function_call_output","call_id":"call_a","output":"21"},{"type":"function_call_output","call_id":"call_b","output":"22"},{"role":"user","content":"And now?"}]}`,
		"/v1/messages": `{"model":"m","stream":true,"max_tokens":50,` + claudeTool + `,"messages":[{"role":"user","content":"Weather?"},{"role":"assistant","content":[{"type":"text","text":"Let me see."},` +
			`{"type":"tool_use","id":"toolu_a","name":"weather","input":{"city":"Paris"}},{"type":"tool_use","id":"toolu_b","name":"weather","input":{"city": 9007199254740993}}]},` +
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_a","content":"21"},{"type":"tool_result","tool_use_id":"toolu_b","content":"22"},{"type":"text","text":"And now?"}]}]}`,
	}},
	{"images", "ok", map[string]string{
		"/v1/chat/completions": `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"What is it?"},{"type":"image_url","image_url":{"url":"` + pixelURL + `"}}]}]}`,
		"/v1/responses":        `{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"What is it?"},{"type":"input_image","image_url":"` + pixelURL + `"}]}]}`,
		"/v1/messages":         `{"model":"m","max_tokens":50,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgo="}},{"type":"text","text":"What is it?"}]}]}`,
	}},
	{"structured output", "ok", map[string]string{
		"/v1/chat/completions": `{"model":"m","response_format":{"type":"json_schema","json_schema":{"name":"city","strict":true,"schema":` + parameters + `}},"messages":[{"role":"user","content":"A city."}]}`,
		"/v1/responses":        `{"model":"m","text":{"format":{"type":"json_schema","name":"city","strict":true,"schema":` + parameters + `}},"input":"A city."}`,
		"/v1/messages":         `{"model":"m","max_tokens":50,"output_config":{"format":{"type":"json_schema","schema":` + parameters + `}},"messages":[{"role":"user","content":"A city."}]}`,
	}},
	{"reasoning", "thinking", map[string]string{
		"/v1/chat/completions": `{"model":"m","max_completion_tokens":8000,"reasoning_effort":"high","messages":[{"role":"user","content":"Think."}]}`,
		"/v1/responses":        `{"model":"m","max_output_tokens":8000,"reasoning":{"effort":"high"},"input":"Think."}`,
		"/v1/messages":         `{"model":"m","max_tokens":8000,"thinking":{"type":"enabled","budget_tokens":4000},"messages":[{"role":"user","content":"Think."}]}`,
	}},
	{"errors", "status(429),retry_after(7)", map[string]string{
		"/v1/chat/completions": `{"model":"m","messages":[{"role":"user","content":"Say hello."}]}`,
		"/v1/responses":        `{"model":"m","input":"Say hello."}`,
		"/v1/messages":         `{"model":"m","max_tokens":50,"messages":[{"role":"user","content":"Say hello."}]}`,
	}},
	{"a parameter without counterpart", "ok", map[string]string{
		"/v1/chat/completions": `{"model":"m","logit_bias":{"50256":-100},"messages":[{"role":"user","content":"Say hello."}]}`,
		"/v1/responses":        `{"model":"m","previous_response_id":"resp_1","input":"Say hello."}`,
		"/v1/messages":         `{"model":"m","max_tokens":50,"top_k":5,"messages":[{"role":"user","content":"Say hello."}]}`,
	}},
}

var (
	matrixRoutes = []string{"/v1/chat/completions", "/v1/responses", "/v1/messages"}
	matrixKinds  = []string{openai.Kind, azure.Kind, chatAlone, responsesAlone, anthropic.Kind, gemini.Kind, bedrock.Kind}
	matrixModels = map[string]string{ // what a target can do is known by its model
		openai.Kind: "gpt-5", azure.Kind: "gpt-5", chatAlone: "gpt-5", responsesAlone: "gpt-5",
		maxTokens: "gpt-5", maxCompletion: "gpt-5", anthropic.Kind: "claude-sonnet-4-5", gemini.Kind: "gemini-2.5-pro", bedrock.Kind: "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
	}
	matrixDialects = map[string]providers.Dialect{
		"/v1/chat/completions": providers.OpenAIChat, "/v1/responses": providers.OpenAIResponses, "/v1/messages": providers.AnthropicMessages,
	}
	runningName = regexp.MustCompile(`mock[-_][0-9]+|01[0-9a-f]{6}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}|"(created|created_at)": ?[0-9]+`)
)

// cell is what became of a request.
type cell struct {
	answer answer
	sent   *mock.Request // what the upstream saw; nil: nothing
}

// ask sends a feature's request through a gateway to a target of a kind.
func (f feature) ask(t *testing.T, route, kind string) cell {
	t.Helper()
	b := laneBench(t, kind, f.script)
	a := b.post(route, f.bodies[route], "Anthropic-Version", "2023-06-01")
	require.NoError(t, a.err)
	c := cell{answer: a}
	if seen := b.sent(); len(seen) > 0 {
		c.sent = &seen[0]
	}
	if a.StatusCode == http.StatusOK {
		require.NotNil(t, c.sent)
		require.Positive(t, b.settled(1)[0].Cost, "%s of %s", f.name, kind)
	}
	require.Zero(t, b.ledger.held())
	return c
}

// upstreams is the client's body with the upstream's name of the model.
func (f feature) upstreams(route, kind string) string {
	return strings.Replace(f.bodies[route], `"m"`, strconv.Quote(matrixModels[kind]), 1)
}

// native asks the upstream itself.
func (f feature) native(t *testing.T, route, kind string) []byte {
	t.Helper()
	upstream, err := mock.New(mock.Options{Script: f.script})
	require.NoError(t, err)
	b := &bench{t: t, url: serveHTTP(t, upstream), client: http.DefaultClient}
	body := f.upstreams(route, kind)
	if route != messagesPath {
		return b.post(route, body).body
	}
	return b.messages(body).body
}

// TestLaneMatrix asks for every feature on every lane. Native lanes are equal byte for byte in both directions; what translated
// ones send and answer is in golden files; what they cannot carry is refused by name. The table of docs/api.md is written from
// what was seen.
func TestLaneMatrix(t *testing.T) {
	t.Parallel()
	var table bytes.Buffer
	table.WriteString("| route | target |")
	for _, f := range matrixFeatures {
		table.WriteString(" " + f.name + " |")
	}
	table.WriteString("\n|---|---|" + strings.Repeat("---|", len(matrixFeatures)) + "\n")
	for _, route := range matrixRoutes {
		for _, kind := range matrixKinds {
			native := isNative(route, kind)
			var golden bytes.Buffer
			fmt.Fprintf(&table, "| `%s` | `%s` |", route, kind)
			for _, f := range matrixFeatures {
				c := f.ask(t, route, kind)
				who := fmt.Sprintf("%s of %s at %s: %s", f.name, route, kind, c.answer.text())
				switch {
				case native:
					require.Equal(t, f.upstreams(route, kind), string(c.sent.Body), who)
					require.Equal(t, ordinary(f.native(t, route, kind)), ordinary(c.answer.body), who)
				case c.sent == nil:
					require.Equal(t, http.StatusBadRequest, c.answer.StatusCode, who)
				case f.name == "errors":
					require.Equal(t, http.StatusTooManyRequests, c.answer.StatusCode, who)
					require.Equal(t, "7", c.answer.Header.Get("Retry-After"), who)
				default:
					require.Equal(t, http.StatusOK, c.answer.StatusCode, who)
				}
				table.WriteString(" " + c.verdict(t, native) + " |")
				c.writeGolden(&golden, f, route)
			}
			table.WriteString("\n")
			if !native {
				name := strings.ReplaceAll(strings.Trim(route, "/"), "/", "_") + "-" + kind + ".golden"
				requireGolden(t, filepath.Join("testdata", "lanes", name), golden.Bytes())
			}
		}
	}
	requireTable(t, table.String())
}

// isNative reports whether a kind speaks the dialect of a route.
func isNative(route, kind string) bool {
	for _, p := range testProviders() {
		if p.Kind() == kind {
			return slices.Contains(p.Speaks(), matrixDialects[route])
		}
	}
	return false
}

// ordinary hides what differs between two runs: running numbers, and ids.
func ordinary(b []byte) string { return runningName.ReplaceAllString(string(b), "MOCK") }

// verdict is what the table says of a cell.
func (c cell) verdict(t *testing.T, native bool) string {
	t.Helper()
	warned := c.answer.Header.Get("X-Tollgate-Warnings")
	switch {
	case native:
		require.Empty(t, warned)
		return "native"
	case c.sent == nil:
		var e struct {
			Error struct{ Param, Message string }
		}
		require.NoError(t, json.Unmarshal(c.answer.body, &e))
		if e.Error.Param == "" { // Anthropic's errors have no such member: the message names it
			e.Error.Param, _, _ = strings.Cut(e.Error.Message, " ")
		}
		return "400 `" + strings.Trim(e.Error.Param, "`\"") + "`"
	case warned == "":
		return "translated"
	}
	var names []string
	for _, w := range strings.Split(warned, ", ") {
		name, _, _ := strings.Cut(w, ":")
		names = append(names, "`"+name+"`")
	}
	return "translated, warns of " + strings.Join(names, ", ")
}

func (c cell) writeGolden(w *bytes.Buffer, f feature, route string) {
	fmt.Fprintf(w, "== %s\n-- the client\n%s\n", f.name, f.bodies[route])
	if c.sent != nil {
		fmt.Fprintf(w, "-- the upstream\n%s\n", ordinary(c.sent.Body))
	}
	fmt.Fprintf(w, "-- answer %d, warnings %q\n%s\n\n", c.answer.StatusCode, c.answer.Header.Get("X-Tollgate-Warnings"), ordinary(c.answer.body))
}

func requireGolden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "%s: go test ./gateway -run TestLaneMatrix -update writes it anew", path)
}

// requireTable compares the table with the one in docs/api.md, between its two marks.
func requireTable(t *testing.T, table string) {
	t.Helper()
	const path, from, to = "../docs/api.md", "<!-- lanes -->\n", "<!-- /lanes -->"
	page, err := os.ReadFile(path)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(page), from)
	require.True(t, ok)
	was, after, ok := strings.Cut(rest, to)
	require.True(t, ok)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(before+from+table+to+after), 0o644))
		was = table
	}
	require.Equal(t, was, table, "docs/api.md: go test ./gateway -run TestLaneMatrix -update writes it anew")
}

// Ruling 49: on no lane is an event held back. The upstream sends its next word when the client has seen the last.
func TestStreams_EveryEventGoesOutAsItComes(t *testing.T) {
	t.Parallel()
	const words = 20
	for _, tc := range []struct {
		route, kind, word string
		ahead             int // frames of the upstream before its first word
	}{
		{"/v1/chat/completions", openai.Kind, `"delta":{"content":"`, 1},
		{"/v1/responses", openai.Kind, `"type":"response.output_text.delta"`, 4},
		{"/v1/messages", openai.Kind, `"text_delta"`, 1},
		{"/v1/chat/completions", anthropic.Kind, `"delta":{"content":"`, 3},
		{"/v1/responses", anthropic.Kind, `"type":"response.output_text.delta"`, 3},
		{"/v1/messages", anthropic.Kind, `"text_delta"`, 3},
		{"/v1/chat/completions", azure.Kind, `"delta":{"content":"`, 1},
		{"/v1/responses", chatAlone, `"type":"response.output_text.delta"`, 1},
		{"/v1/chat/completions", responsesAlone, `"delta":{"content":"`, 4},
		{"/v1/messages", responsesAlone, `"text_delta"`, 4},
		{"/v1/chat/completions", gemini.Kind, `"delta":{"content":"`, 0},
		{"/v1/responses", gemini.Kind, `"type":"response.output_text.delta"`, 0},
		{"/v1/messages", gemini.Kind, `"text_delta"`, 0},
		{"/v1/chat/completions", bedrock.Kind, `"delta":{"content":"`, 1},
		{"/v1/responses", bedrock.Kind, `"type":"response.output_text.delta"`, 1},
		{"/v1/messages", bedrock.Kind, `"text_delta"`, 1},
	} {
		t.Run(tc.kind+tc.route, func(t *testing.T) {
			t.Parallel()
			b := laneBench(t, tc.kind, "confirm,words("+strconv.Itoa(words)+")")
			o := b.openAt(tc.route, streamed(tc.route), "Anthropic-Version", "2023-06-01")
			defer time.AfterFunc(time.Minute, o.leave).Stop()
			b.release(tc.ahead)
			for range words {
				for !strings.Contains(o.event(t), tc.word) {
				}
				b.release(1)
			}
			b.mock.Release(0, 100)
			_, err := io.ReadAll(o.lines)
			require.NoError(t, err)
		})
	}
}

// However an upstream's bytes arrive, the client of a translated lane gets the same.
func TestF073_ChunksOfAnySizeTranslateAlike(t *testing.T) {
	t.Parallel()
	for _, kind := range matrixKinds {
		for _, route := range matrixRoutes {
			var want string
			for _, script := range []string{"byte_dribble(100000)", "byte_dribble(1)", "byte_dribble(2)", "byte_dribble(3)", "byte_dribble(7)"} {
				a := laneBench(t, kind, script).post(route, streamed(route), "Anthropic-Version", "2023-06-01")
				require.NoError(t, a.err)
				if want == "" {
					want = ordinary(a.body)
				}
				require.Equal(t, want, ordinary(a.body), "%s at %s, %s", route, kind, script)
				require.Contains(t, want, "🙂")
			}
		}
	}
}

// laneBench is a gateway with all translators and one model "m" of a kind, whose upstream follows a script.
func laneBench(t *testing.T, kind, script string) *bench {
	t.Helper()
	b := start(t, func(s *setup) {
		s.translators = translate.All(func() time.Time { return time.Unix(1750000000, 0) })
		target := s.model("m", "")[0]
		target.ProviderKind, target.UpstreamModel, target.MaxOutput = kind, matrixModels[kind], 64_000
		if kind == gemini.Kind {
			target.BaseURL += "/v1beta"
		}
	})
	require.NoError(t, b.mock.SetScript(mock.Rule{Script: script}))
	return b
}

// streamed is the smallest body that asks for a stream on a route.
func streamed(route string) string {
	switch route {
	case messagesPath:
		return `{"model":"m","stream":true,"max_tokens":5000,"messages":[{"role":"user","content":"Say hello."}]}`
	case "/v1/responses":
		return `{"model":"m","stream":true,"input":"Say hello."}`
	}
	return `{"model":"m","stream":true,"messages":[{"role":"user","content":"Say hello."}]}`
}

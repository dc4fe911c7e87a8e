package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/mock"
)

func sha(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// lastSeen returns the newest request that reached the mock.
func (f *fleet) lastSeen() mock.Request {
	f.t.Helper()
	log := f.mock.Log().Requests
	require.NotEmpty(f.t, log)
	return log[len(log)-1]
}

// oddBody is a request in which everything is written as few programs would write it. MODEL and STREAM are replaced.
const oddBody = "{ \"zeta\" : 1.0,\t\"metadata\":{\"id\":9223372036854775807, \"b\":\"\"},  \"messages\" :[\n" +
	`{"role":"user","content":"<b>&amp;` + "\u2028\u2029 \U0001F642 é" + `\u2028 \/ \ud83d\ude42 \u003c  two  blanks"},` +
	`{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"id\": 9007199254740993,\"a\":1,\"a\":2}"}}],` +
	`"reasoning_content":"so\u00a0so","reasoning_details":[{"type":"x","signature":"AAAA=="}]},` +
	`{"role":"tool","tool_call_id":"c","content":"ok","cache_control":{"type":"ephemeral"}}` +
	` ],"model": MODEL ,"temperature":0,"top_p":0, "seed":9007199254740993,"n":1,"presence_penalty":0,"frequency_penalty":-0.0,` +
	`"max_tokens":0,"stream":STREAM,"logprobs":false,"stop":null,"tools":[],"parallel_tool_calls":false,` +
	`"x_number":0.123000000000000005123,"x_exponents":[1e2,1E+2,1.50,10e-1,123456789012345678901234567890],"x_empty":{},"":0,` +
	`"x_nested":{"z":{"y":[[],[{}]],"x":null},"a":true} } `

func odd(model, stream string) string {
	return strings.NewReplacer("MODEL", model, "STREAM", stream).Replace(oddBody)
}

// What a client writes reaches the provider byte for byte, but for the members that Tollgate owns: zeros and nulls stay
// (F103), numbers keep all digits (F104), members their order and white space (F118), extensions of messages stay (F116).
func TestF103_F104_F116_F118_RequestsKeepTheirBytes(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	f.addModel("renamed", `up"<stream>`)
	key, _ := f.issue(object{"kind": "rate", "metric": "tokens", "amount": "1000000", "per": "1m", "burst": "1000000"})
	f.awaitModels(key, "renamed")
	const asksUsage = `{"stream_options":{"include_usage":true},`
	for _, c := range []struct{ name, path, sent, want string }{
		{"SameName", "chat/completions", odd(`"plain"`, "false"), odd(`"plain"`, "false")},
		{"EscapedName", "chat/completions", odd(`"pl\u0061in"`, "null"), odd(`"pl\u0061in"`, "null")},
		{"OtherName", "chat/completions", odd(`"renamed"`, "false"), odd(`"up\"<stream>"`, "false")},
		{"Stream", "chat/completions", odd(`"plain"`, "true"), strings.Replace(odd(`"plain"`, "true"), "{", asksUsage, 1)},
		{"StreamOfOtherName", "chat/completions", odd(`"renamed"`, "true"), strings.Replace(odd(`"up\"<stream>"`, "true"), "{", asksUsage, 1)},
		{"Completions", "completions", `{"prompt" : "a\u2028<&>","max_tokens":1,"x":1e0,"model":"plain","echo":false }`, `{"prompt" : "a\u2028<&>","max_tokens":1,"x":1e0,"model":"plain","echo":false }`},
		{"Embeddings", "embeddings", `{"input":[ "<a>","b" ],"model":"renamed","dimensions":8,"x":1.0}`, `{"input":[ "<a>","b" ],"model":"up\"<stream>","dimensions":8,"x":1.0}`},
		{"Responses", "responses", ` {"input":"<a>","stream":true,"store":false,"model":"plain","x":9007199254740993}`, ` {"input":"<a>","stream":true,"store":false,"model":"plain","x":9007199254740993}`},
		{"Moderations", "moderations", `{"input":"<a>","model":"plain","x":1E2}`, `{"input":"<a>","model":"plain","x":1E2}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 2 { // the same bytes each time, so that caches of prefixes hit
				a := must(t)(f.gateways[0].call(t.Context(), key, "/v1/"+c.path, c.sent))
				require.Equal(t, http.StatusOK, a.status, "%s", a.body)
				seen := f.lastSeen()
				require.Equal(t, c.want, string(seen.Body))
				require.Equal(t, sha([]byte(c.want)), seen.BodySHA256)
				require.Equal(t, "/v1/"+c.path, seen.Path)
			}
		})
	}
}

// F115: stream_options is changed in one member, and only where usage is needed and not asked for.
func TestF115_StreamOptionsAreSpliced(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	key, _ := f.issue()
	f.addModelWithoutStreamOptions("refuses")
	f.awaitModels(key, "refuses")
	const head, tail = `{"model":"plain","stream":true`, `,"messages":[{"role":"user","content":"hello"}]}`
	for _, c := range []struct {
		name, sent, want string
		usage            bool
	}{
		{"Absent", head + tail, `{"stream_options":{"include_usage":true},` + head[1:] + tail, false},
		{"Null", head + `,"stream_options": null ` + tail, head + `,"stream_options": {"include_usage":true} ` + tail, false},
		{"Empty", head + `,"stream_options":{ }` + tail, head + `,"stream_options":{"include_usage":true }` + tail, false},
		{"Beside", head + `,"stream_options":{ "x":1.0}` + tail, head + `,"stream_options":{"include_usage":true, "x":1.0}` + tail, false},
		{"False", head + `,"stream_options":{"x":0, "include_usage": false}` + tail, head + `,"stream_options":{"x":0, "include_usage": true}` + tail, false},
		{"True", head + `,"stream_options":{"include_usage" :true}` + tail, head + `,"stream_options":{"include_usage" :true}` + tail, true},
		{"WithoutStream", `{"model":"plain","stream_options":{"include_usage":false}` + tail, `{"model":"plain","stream_options":{"include_usage":false}` + tail, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := must(t)(f.gateways[0].call(t.Context(), key, "/v1/chat/completions", c.sent))
			require.Equal(t, http.StatusOK, a.status, "%s", a.body)
			require.Equal(t, c.want, string(f.lastSeen().Body))
			require.Equal(t, c.usage, bytes.Contains(a.body, []byte(`"usage":{`)), "%s", a.body)
		})
	}
	t.Run("LegacyCompletions", func(t *testing.T) {
		for _, asked := range []bool{false, true} {
			sent := `{"model":"plain","stream":true,"prompt":"hello","stream_options":{"include_usage":` + strconv.FormatBool(asked) + `}}`
			a := must(t)(f.gateways[0].call(t.Context(), key, "/v1/completions", sent))
			require.Equal(t, http.StatusOK, a.status, "%s", a.body)
			require.Equal(t, strings.Replace(sent, "false", "true", 1), string(f.lastSeen().Body))
			require.Equal(t, asked, bytes.Contains(a.body, []byte(`"usage":{`)), "%s", a.body)
		}
	})
	t.Run("RefusedByTarget", func(t *testing.T) {
		for options, usage := range map[string]bool{
			"": false, `,"stream_options":null`: false, `,"stream_options":{"include_usage":false}`: false, `,"stream_options":{"include_usage":true}`: true,
		} {
			a := must(t)(f.gateways[0].call(t.Context(), key, "/v1/chat/completions", strings.Replace(head, "plain", "refuses", 1)+options+tail))
			require.Equal(t, http.StatusOK, a.status, "%s", a.body)
			require.NotContains(t, string(f.lastSeen().Body), "stream_options")
			require.True(t, bytes.HasSuffix(a.body, []byte("data: [DONE]\n\n")), "%s", a.body)
			require.Equal(t, usage, bytes.Contains(a.body, []byte(`"estimated":true`)), "%s", a.body)
		}
	})
}

// addModelWithoutStreamOptions adds a model whose upstream refuses the member stream_options.
func (f *fleet) addModelWithoutStreamOptions(name string) {
	f.t.Helper()
	f.addModel(name, name)
	_, list := f.admin(http.MethodGet, "targets?provider_id="+f.provider+"&limit=250", nil)
	items, _ := list["items"].([]any)
	for _, i := range items {
		if o, _ := i.(object); o["upstream_model"] == name {
			status, changed := f.admin(http.MethodPatch, "targets/"+text(o["id"]), object{"no_stream_options": true})
			require.Equal(f.t, http.StatusOK, status, "%v", changed)
			return
		}
	}
	require.Fail(f.t, "no target of the model", "%v", list)
}

// awaitModels waits until every gateway offers the newest models, and so everything that was changed before them.
func (f *fleet) awaitModels(key string, names ...string) {
	f.t.Helper()
	for _, g := range f.gateways {
		f.eventually(20*time.Second, "the models are offered", func() bool {
			a, err := g.get(f.t.Context(), key, "/v1/models")
			for _, name := range names {
				if err != nil || !bytes.Contains(a.body, []byte(strconv.Quote(name))) {
					return false
				}
			}
			return true
		})
	}
}

// canned is an upstream that answers with given bytes, by the first segment of the path.
type canned map[string]cannedAnswer

type cannedAnswer struct {
	contentType string
	body        []byte
	piece       int // bytes that are written and flushed at a time; 0: all
}

func (c canned) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	model, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	a := c[model]
	_, _ = io.Copy(io.Discard, r.Body) // a client that sends no whole body gets its answer all the same
	w.Header().Set("Content-Type", a.contentType)
	if a.piece == 0 {
		w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
		_, _ = w.Write(a.body)
		return
	}
	control := http.NewResponseController(w)
	for rest := a.body; len(rest) > 0; {
		n := min(a.piece, len(rest))
		if _, err := w.Write(rest[:n]); err != nil || control.Flush() != nil {
			return // the client has left
		}
		rest = rest[n:]
	}
}

// serveCanned adds an upstream that answers each of its models with given bytes. A provider of its own for each model tells
// them apart without a look at the request.
func (f *fleet) serveCanned(answers canned) {
	f.t.Helper()
	server := httptest.NewServer(answers)
	f.t.Cleanup(server.Close)
	for name := range answers {
		provider := f.create("providers", object{
			"name": "canned " + name, "kind": "openai", "base_url": server.URL + "/" + name + "/v1", "credential": "sk-canned",
		})
		f.create("models", object{"name": name, "targets": []object{
			{"provider_id": provider["id"], "upstream_model": name, "weight": 1, "priority": 0},
		}})
	}
}

// frame is a chat chunk whose delta holds content.
func frame(content string) string {
	return `data: { "id":"c1","object":"chat.completion.chunk","created":1750000000,"model":"m","big":9007199254740993,"z":1.0,` +
		`"choices":[{"index":0,"delta":{"content":"` + content + `"},"finish_reason":null}]}` + "\n\n"
}

const (
	lastFrame  = `data: {"id":"c1","object":"chat.completion.chunk","created":1750000000,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	usageFrame = `data: {"id":"c1","object":"chat.completion.chunk","created":1750000000,"model":"m","choices":[],"usage":{"prompt_tokens":12,"completion_tokens":34,"total_tokens":46}}` + "\n\n"
	doneFrame  = "data: [DONE]\n\n"
)

// F073, F074, F079, F104: the bytes of a stream do not change, however the network cuts it, whatever stands between the
// frames and however long a line is. Only the usage frame that the client did not ask for is missing.
func TestF073_F074_F079_StreamsKeepTheirBytes(t *testing.T) {
	t.Parallel()
	between := ": ping - 2\n\n:\n\nevent: ping\ndata: {}\n\nid: 7\nretry: 10\ndata: {\"x\":\ndata: 1}\n\n\n\n"
	mixed := frame("Grüße 漢字 🙂 <>&"+"\u2028") + between + frame(`\ud83d\ude42 \/ \u003c`) +
		strings.ReplaceAll(frame("CRLF"), "\n", "\r\n") + frame("end")
	streams := map[string]string{}
	answers := canned{}
	add := func(name, content string, piece int) {
		streams[name] = content + lastFrame
		answers[name] = cannedAnswer{"text/event-stream", []byte(content + lastFrame + usageFrame + doneFrame), piece}
	}
	for piece := 1; piece <= 7; piece++ {
		add(fmt.Sprintf("pieces-%d", piece), mixed, piece)
	}
	image := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("png\x00\xff"), 4<<20))
	for name, size := range map[string]int{"70k": 70 << 10, "1.1m": 1_100_000, "5m": 5 << 20, "17m": 17 << 20} {
		add("line-"+name, frame("before")+frame(image[:size])+frame("behind"), 64<<10)
	}
	f := startFleet(t, fleetOptions{})
	f.serveCanned(answers)
	key, _ := f.issue(object{"kind": "rate", "metric": "tokens", "amount": "1000000", "per": "1m", "burst": "1000000"})
	f.awaitModels(key, slices.Collect(maps.Keys(streams))...)
	for name, content := range streams {
		t.Run(name, func(t *testing.T) {
			for _, asked := range []bool{true, false} {
				want := content + usageFrame + doneFrame
				if !asked {
					want = content + doneFrame
				}
				a := must(t)(f.gateways[0].call(t.Context(), key, "/v1/chat/completions",
					`{"model":"`+name+`","stream":true,"stream_options":{"include_usage":`+strconv.FormatBool(asked)+`},"messages":[{"role":"user","content":"hello"}]}`))
				require.Equal(t, http.StatusOK, a.status, "%.1000s", a.body)
				require.Equal(t, "text/event-stream", a.header.Get("Content-Type"))
				requireSameBytes(t, []byte(want), a.body)
				f.requireCharged(t, key, a, 12, 34)
			}
		})
	}
}

// requireSameBytes does not print megabytes.
func requireSameBytes(t *testing.T, want, got []byte) {
	t.Helper()
	if bytes.Equal(want, got) {
		return
	}
	at := 0
	for at < min(len(want), len(got)) && want[at] == got[at] {
		at++
	}
	around := func(b []byte) string { return fmt.Sprintf("%q", b[max(at-40, 0):min(at+80, len(b))]) }
	require.Fail(t, "bytes differ", "want %d bytes, got %d; from byte %d on:\nwant … %s\ngot  … %s", len(want), len(got), at, around(want), around(got))
}

// requireCharged looks an answer up by its receipt: one row with the provider's own usage.
func (f *fleet) requireCharged(t *testing.T, key string, a answer, input, output float64) {
	t.Helper()
	r := must(t)(f.gateways[0].get(t.Context(), key, "/v1/receipts/"+a.header.Get("X-Request-Id")))
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	rows, _ := r.json(t)["rows"].([]any)
	require.Len(t, rows, 1, "%s", r.body)
	row, _ := rows[0].(object)
	require.Equal(t, "provider", row["usage_source"], "%s", r.body)
	require.Subset(t, row["quantities"], object{"input": input, "output": output}, "%s", r.body)
}

// F104, F112, F118: what the provider answers in one piece reaches the client byte for byte, at every size.
func TestF104_F112_AnswersKeepTheirBytes(t *testing.T) { // not beside others: the race detector makes it a load on the machine
	odd := "\n{ \"id\":\"x\", \"seed\":9007199254740993,\"n\":[1E+2,1.0,0.123000000000000005123], \"html\":\"<>&\u2028\\u2028\\/\"," +
		`"choices":[ {"index":0,"message":{"role":"assistant","content":"CONTENT","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"id\":9223372036854775807}"}}]},"finish_reason":"stop"}],` +
		`"usage":{"prompt_tokens":12,"completion_tokens":34,"total_tokens":46} ,"a":null}` + "\n"
	answers := canned{"odd": {"application/json; charset=utf-8", []byte(odd), 0}, "dribbled": {"application/json", []byte(odd), 5}}
	for i, size := range append(powers, 32<<20) {
		body := strings.Replace(odd, "CONTENT", strings.Repeat("x", size-len(odd)+len("CONTENT")), 1)
		require.Len(t, body, size)
		answers[fmt.Sprintf("size-%d", size)] = cannedAnswer{"application/json", []byte(body), i % 2 * (64 << 10)} // with a length, or in pieces
	}
	f := startFleet(t, fleetOptions{})
	f.serveCanned(answers)
	key, _ := f.issue()
	f.awaitModels(key, slices.Collect(maps.Keys(answers))...)
	for name, said := range answers {
		t.Run(name, func(t *testing.T) {
			a := must(t)(f.gateways[0].call(t.Context(), key, "/v1/chat/completions", strings.Replace(helloChat, "plain", name, 1)))
			require.Equal(t, http.StatusOK, a.status, "%.1000s", a.body)
			require.Equal(t, said.contentType, a.header.Get("Content-Type"))
			require.Equal(t, strconv.Itoa(len(said.body)), a.header.Get("Content-Length"))
			requireSameBytes(t, said.body, a.body)
			f.requireCharged(t, key, a, 12, 34)
		})
	}
}

// powers are sizes at which hidden buffers of other gateways ended.
var powers = []int{
	32<<10 - 1, 32 << 10, 32<<10 + 1, 64<<10 - 1, 64 << 10, 64<<10 + 1, 1<<20 - 1, 1 << 20, 1<<20 + 1, 4 << 20, 16 << 20,
}

// sized is a request with an image that makes it size bytes long.
func sized(model string, size int) []byte {
	head := `{"model":"` + model + `","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,`
	const tail = `"}},{"type":"text","text":"hello"}]}]}`
	b := make([]byte, 0, size)
	b = append(b, head...)
	b = append(b, bytes.Repeat([]byte("A"), size-len(head)-len(tail))...)
	return append(b, tail...)
}

// F106, F112: bodies up to the documented limit go through whole, with a length and without; above it the refusal is JSON.
func TestF106_F112_BodiesOfAllSizes(t *testing.T) { // not beside others: the race detector makes it a load on the machine
	const limit = 34 << 20 // the documented one
	f := startFleet(t, fleetOptions{})
	arrived := make(chan string, 1) // the mock would read what it is sent, which takes long under the race detector
	sink := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		_, _ = io.Copy(sum, r.Body) // a body that is cut has another sum
		arrived <- hex.EncodeToString(sum.Sum(nil))
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"id":"c1","object":"chat.completion","choices":[],"usage":{"prompt_tokens":12,"completion_tokens":34,"total_tokens":46}}`)
	}))
	t.Cleanup(sink.Close)
	provider := f.create("providers", object{"name": "sink", "kind": "openai", "base_url": sink.URL, "credential": "sk-sink"})
	f.create("models", object{"name": "sink", "targets": []object{{"provider_id": provider["id"], "upstream_model": "sink", "weight": 1, "priority": 0}}})
	key, _ := f.issue()
	f.awaitModels(key, "sink")
	send := func(t *testing.T, body []byte, chunked bool) answer {
		t.Helper()
		var r io.Reader = bytes.NewReader(body)
		if chunked {
			r = io.MultiReader(r) // hides the length
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.gateways[0].baseURL+"/v1/chat/completions", r)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+key)
		req.Header.Set("Content-Type", "application/json")
		return must(t)(do(req))
	}
	for i, size := range append(powers, 5<<20, 5<<20, 20<<20, 20<<20, 33<<20, 33<<20, limit) {
		chunked := i%2 == 1
		t.Run(fmt.Sprintf("%d-%t", size, chunked), func(t *testing.T) {
			body := sized("sink", size)
			a := send(t, body, chunked)
			require.Equal(t, http.StatusOK, a.status, "%.1000s", a.body)
			require.Equal(t, sha(body), <-arrived)
		})
	}
	for _, size := range []int{limit + 1, 40 << 20} {
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprintf("TooLarge-%d-%t", size, chunked), func(t *testing.T) {
				a := send(t, sized("sink", size), chunked)
				require.Equal(t, http.StatusRequestEntityTooLarge, a.status, "%.1000s", a.body)
				require.Equal(t, "application/json", a.header.Get("Content-Type"))
				require.Equal(t, "payload_too_large", a.code())
				require.Empty(t, arrived, "nothing is forwarded")
			})
		}
	}
}

// F106: the bodies that are in memory at once are bounded. What passes the bound is told to come again, and small requests
// still get through.
func TestF106_BodiesInFlightAreBounded(t *testing.T) {
	t.Parallel()
	const size, bound, calls = 4 << 20, 18 << 20, 12 // four fit
	f := startFleet(t, fleetOptions{env: []string{"TOLLGATE_MAX_BODY_BYTES=" + strconv.Itoa(size+1), "TOLLGATE_MAX_BODIES_IN_FLIGHT=" + strconv.Itoa(bound)}})
	f.addModel("held", "mock-hold")
	key, _ := f.issue()
	f.awaitModels(key, "held")
	answers := make(chan answer, calls)
	for range calls {
		go func() {
			a, err := f.gateways[0].call(t.Context(), key, "/v1/chat/completions", string(sized("held", size)))
			if err != nil {
				a.status = -1
			}
			answers <- a
		}()
	}
	refused := 0
	for range calls - bound/size {
		a := <-answers // the others are held
		require.Equal(t, http.StatusServiceUnavailable, a.status, "%s", a.body)
		require.Equal(t, "gateway_overloaded", a.code())
		require.Regexp(t, "^([2-9]|10)$", a.header.Get("Retry-After"))
		refused++
	}
	f.eventually(20*time.Second, "a small request gets through", func() bool { // a refused body is given back behind its answer
		a, err := f.gateways[0].call(t.Context(), key, "/v1/chat/completions", helloChat)
		return err == nil && a.status == http.StatusOK
	})
	require.NoError(t, f.mock.SetScript(mock.Rule{Script: "ok"})) // what comes now is not held
	f.mock.Release(0, 1)
	for range calls - refused {
		a := <-answers
		require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	}
	// The memory is free again.
	require.Equal(t, http.StatusOK, must(t)(f.gateways[0].call(t.Context(), key, "/v1/chat/completions", string(sized("plain", size)))).status)
}

// F134: an upstream's refusal keeps its status, and its body where it is JSON; other text becomes the message.
func TestF134_UpstreamErrorsKeepTheirBytes(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	key, _ := f.issue()
	direct := &process{baseURL: f.upstream}
	shapes := []string{"object", "string", "nested", "detail", "numeric_code", "context_length", "array", "text", "html"}
	for _, shape := range shapes {
		f.addModel("refuses-"+shape, "mock-status(422,"+shape+")")
	}
	f.awaitModels(key, "refuses-"+shapes[len(shapes)-1])
	for _, shape := range shapes {
		t.Run(shape, func(t *testing.T) {
			name := "refuses-" + shape
			for _, stream := range []string{"", `"stream":true,`} { // F086: a stream has the status of its refusal
				body := strings.Replace(helloChat, "{", "{"+stream, 1)
				said := must(t)(direct.call(t.Context(), "sk", "/v1/chat/completions", strings.Replace(body, "plain", "mock-status(422,"+shape+")", 1)))
				got := must(t)(f.gateways[0].call(t.Context(), key, "/v1/chat/completions", strings.Replace(body, "plain", name, 1)))
				require.Equal(t, http.StatusUnprocessableEntity, got.status)
				require.Equal(t, "application/json", got.header.Get("Content-Type"))
				if shape == "text" || shape == "html" {
					wrapped, _ := got.json(t)["error"].(object)
					require.Equal(t, string(said.body), wrapped["message"])
					continue
				}
				require.Equal(t, string(said.body), string(got.body))
			}
		})
	}
}

package openai_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
	"github.com/tollgate-gateway/tollgate/providers/openai"
)

func body(d providers.Dialect, text string) providers.Facts {
	m := openai.New().Meter(d)
	m.Body([]byte(text))
	return m.Facts()
}

// stream meters a whole stream and returns the facts after each event.
func stream(t testing.TB, d providers.Dialect, text string) []providers.Facts {
	t.Helper()
	m := openai.New().Meter(d)
	r := sse.NewReader(strings.NewReader(text))
	var all []providers.Facts
	for {
		ev, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		m.Event(ev)
		all = append(all, m.Facts())
	}
}

func last(all []providers.Facts) providers.Facts { return all[len(all)-1] }

func golden(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	return string(text)
}

func quantities(of map[governance.Unit]int64) governance.Quantities {
	var q governance.Quantities
	for u, n := range of {
		q[u] = n
	}
	return q
}

const (
	in, read, write   = governance.UnitInput, governance.UnitCacheRead, governance.UnitCacheWrite5m
	audioIn, imageIn  = governance.UnitInputAudio, governance.UnitInputImage
	out, reason       = governance.UnitOutput, governance.UnitReasoning
	audioOut          = governance.UnitOutputAudio
	chat, respond     = providers.OpenAIChat, providers.OpenAIResponses
	textCompletion    = providers.OpenAICompletions
	embed, moderation = providers.OpenAIEmbeddings, providers.OpenAIModerations
)

func TestF019_F020_F022_F034_UsageInDisjointQuantities(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, usage string
		want        map[governance.Unit]int64
	}{
		{"plain", `{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}`, map[governance.Unit]int64{in: 10, out: 5}},
		{"zeros", `{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}`, nil},
		{"thoughts in the total alone", `{"completion_tokens":1,"prompt_tokens":9,"total_tokens":103}`, map[governance.Unit]int64{in: 9, out: 1, reason: 93}},
		{"sound in the total alone", `{"completion_tokens":1,"prompt_tokens":9,"total_tokens":103,"prompt_audio_seconds":3}`, map[governance.Unit]int64{in: 9, out: 1}},
		{"null details", `{"prompt_tokens":1,"completion_tokens":2,"prompt_tokens_details":null,"completion_tokens_details":null}`, map[governance.Unit]int64{in: 1, out: 2}},
		{
			"cached is a part of the prompt", `{"prompt_tokens":100,"completion_tokens":50,"total_tokens":150,"prompt_tokens_details":{"cached_tokens":80,"audio_tokens":0}}`,
			map[governance.Unit]int64{in: 20, read: 80, out: 50},
		},
		{
			"cache reads and writes within the prompt", `{"prompt_tokens":1000,"completion_tokens":5,"total_tokens":1005,"prompt_tokens_details":{"cached_tokens":200,"cache_write_tokens":700}}`,
			map[governance.Unit]int64{in: 100, read: 200, write: 700, out: 5},
		},
		{
			"the same at the top level", `{"prompt_tokens":1000,"completion_tokens":5,"total_tokens":1005,"cache_read_input_tokens":200,"cache_creation_input_tokens":700}`,
			map[governance.Unit]int64{in: 100, read: 200, write: 700, out: 5},
		},
		{
			"the same in both places", `{"prompt_tokens":1000,"completion_tokens":5,"total_tokens":1005,"cache_read_input_tokens":200,"cache_creation_input_tokens":700,"prompt_tokens_details":{"cached_tokens":200}}`,
			map[governance.Unit]int64{in: 100, read: 200, write: 700, out: 5},
		},
		{
			"cached is larger than the prompt, so counted outside", `{"prompt_tokens":342,"completion_tokens":44,"cache_read_input_tokens":86272}`,
			map[governance.Unit]int64{in: 342, read: 86272, out: 44},
		},
		{
			"the total tells that cached was counted outside", `{"prompt_tokens":342,"completion_tokens":44,"cache_read_input_tokens":100,"total_tokens":486}`,
			map[governance.Unit]int64{in: 342, read: 100, out: 44},
		},
		{
			"cache hits and misses", `{"prompt_tokens":30,"completion_tokens":4,"prompt_cache_hit_tokens":20,"prompt_cache_miss_tokens":10,"total_tokens":34}`,
			map[governance.Unit]int64{in: 10, read: 20, out: 4},
		},
		{
			"reasoning is a part of the answer", `{"prompt_tokens":1,"completion_tokens":1944,"total_tokens":1945,"completion_tokens_details":{"reasoning_tokens":1360}}`,
			map[governance.Unit]int64{in: 1, out: 584, reason: 1360},
		},
		{
			"the total tells that reasoning was counted outside", `{"prompt_tokens":10,"completion_tokens":9,"total_tokens":119,"completion_tokens_details":{"reasoning_tokens":100}}`,
			map[governance.Unit]int64{in: 10, out: 9, reason: 100},
		},
		{
			"audio both ways", `{"prompt_tokens":50,"completion_tokens":592,"total_tokens":642,"prompt_tokens_details":{"audio_tokens":30,"cached_tokens":10},"completion_tokens_details":{"audio_tokens":482,"text_tokens":110}}`,
			map[governance.Unit]int64{in: 10, read: 10, audioIn: 30, out: 110, audioOut: 482},
		},
		{
			"audio that overlaps with cached", `{"prompt_tokens":50,"completion_tokens":1,"prompt_tokens_details":{"audio_tokens":45,"cached_tokens":20}}`,
			map[governance.Unit]int64{read: 20, audioIn: 30, out: 1},
		},
		{"images", `{"prompt_tokens":50,"completion_tokens":1,"prompt_tokens_details":{"image_tokens":40}}`, map[governance.Unit]int64{in: 10, imageIn: 40, out: 1}},
		{
			"searches of Perplexity", `{"prompt_tokens":14,"completion_tokens":9,"total_tokens":23,"num_search_queries":3,"citation_tokens":70}`,
			map[governance.Unit]int64{in: 14, out: 9, governance.UnitSearch: 3},
		},
		{"only the total", `{"prompt_tokens":7,"total_tokens":7}`, map[governance.Unit]int64{in: 7}},
		{
			"names of the responses dialect", `{"input_tokens":10,"input_tokens_details":{"cached_tokens":4},"output_tokens":6,"output_tokens_details":{"reasoning_tokens":2},"total_tokens":16}`,
			map[governance.Unit]int64{in: 6, read: 4, out: 4, reason: 2},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := body(chat, `{"choices":[],"usage":`+tc.usage+`}`)
			require.True(t, f.HasUsage)
			require.False(t, f.BadUsage)
			require.Equal(t, quantities(tc.want), f.Usage.Quantities)
			require.Equal(t, tc.usage, string(f.Usage.Raw))
			require.True(t, f.Terminal)
		})
	}
}

func TestF034_UsageThatMakesNoSense(t *testing.T) {
	t.Parallel()
	for _, usage := range []string{
		`{}`,
		`"10"`,
		`[1]`,
		`12`,
		`{"completion_tokens":5}`,
		`{"prompt_tokens":5}`,
		`{"prompt_tokens":-1,"completion_tokens":5}`,
		`{"prompt_tokens":"10","completion_tokens":5}`,
		`{"prompt_tokens":1.5,"completion_tokens":5}`,
		`{"prompt_tokens":1e3,"completion_tokens":5}`,
		`{"prompt_tokens":10,"completion_tokens":9223372036854775807}`,
		`{"prompt_tokens":10,"completion_tokens":99999999999999999999}`,
		`{"prompt_tokens":10,"completion_tokens":5,"completion_tokens_details":{"reasoning_tokens":-3}}`,
		`{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":7}`,
		`{"prompt_tokens":10,"completion_tokens":5,"num_search_queries":-1}`,
	} {
		f := body(chat, `{"choices":[],"usage":`+usage+`}`)
		require.False(t, f.HasUsage, usage)
		require.True(t, f.BadUsage, usage)
		require.Zero(t, f.Usage.Quantities, usage)
		require.Equal(t, usage, string(f.Usage.Raw), "is kept for whoever finds out what it was")
	}
	f := body(chat, `{"choices":[],"usage":null}`)
	require.False(t, f.HasUsage)
	require.False(t, f.BadUsage, "null is absent")
}

func TestF019_PartsAddUpToTheTotal(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := func(name string, most int64) int64 { return rapid.Int64Range(0, most).Draw(t, name) }
		prompt, answer := n("prompt", 1<<20), n("answer", 1<<20)
		cached := n("cached", prompt)
		written := n("written", prompt-cached)
		reasoning := n("reasoning", answer)
		u := map[string]any{
			"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer,
			"prompt_tokens_details": map[string]any{
				"cached_tokens": cached, "cache_write_tokens": written, "audio_tokens": n("audio in", prompt), "image_tokens": n("image in", prompt),
			},
			"completion_tokens_details": map[string]any{"reasoning_tokens": reasoning, "audio_tokens": n("audio out", answer)},
		}
		f := body(chat, encode(t, map[string]any{"choices": []any{}, "usage": u}))
		require.True(t, f.HasUsage)
		q := f.Usage.Quantities
		for _, n := range q {
			require.GreaterOrEqual(t, n, int64(0))
		}
		require.Equal(t, prompt, q.InputTokens())
		require.Equal(t, answer, q.OutputTokens())
		require.Equal(t, cached, q[read])
		require.Equal(t, reasoning, q[reason])
	})
}

func TestChatBody(t *testing.T) {
	t.Parallel()
	f := body(chat, golden(t, "chat.json"))
	require.True(t, f.Terminal)
	require.True(t, f.HasUsage)
	require.Equal(t, "gpt-4o-2024-08-06", f.Model)
	require.Equal(t, "default", f.Usage.ServiceTier)
	require.Equal(t, quantities(map[governance.Unit]int64{in: 18, read: 1024, out: 20, reason: 12}), f.Usage.Quantities)
	require.Equal(t, int64(len("Héllo\n世界")+len("get_weather")+len(`{"city":"Zürich"}`)), f.OutputLen)
	require.Nil(t, f.ErrorBody)
	require.False(t, f.UsageOnly)
}

func TestF071_ChatStream(t *testing.T) {
	t.Parallel()
	all := stream(t, chat, golden(t, "chat_stream.txt"))
	f := last(all)
	require.True(t, f.Terminal)
	require.True(t, f.Finished)
	require.Equal(t, "gpt-4o-2024-08-06", f.Model)
	require.Equal(t, quantities(map[governance.Unit]int64{in: 9, out: 12}), f.Usage.Quantities)
	require.Equal(t, int64(len("Hello world")+len("No.")+len("f")+len(`{"a":1}`)+len("thinking")), f.OutputLen)
	only := 0
	for _, f := range all {
		if f.UsageOnly {
			only++
			require.True(t, f.HasUsage)
			require.False(t, f.Terminal)
		}
	}
	require.Equal(t, 1, only)
	require.False(t, all[len(all)-3].HasUsage, "null usage in ordinary frames is none")
}

func TestF064_F092_CumulativeUsageCountsOnce(t *testing.T) {
	t.Parallel()
	frame := func(n string) string {
		return `data: {"choices":[{"index":0,"delta":{"content":"x"}}],"usage":{"prompt_tokens":4,"completion_tokens":` + n + `,"total_tokens":` + n + `}}` + "\n\n"
	}
	all := stream(t, chat, frame("1")+frame("2")+frame("3"))
	for i, f := range all {
		require.Equal(t, int64(i+1), f.Usage.Quantities[out])
		require.False(t, f.UsageOnly)
	}
	all = stream(t, chat, frame("7")+frame(`"x"`))
	require.True(t, last(all).BadUsage, "the last one counts, and it makes no sense")
	require.False(t, last(all).HasUsage)
	all = stream(t, chat, frame("-7")+frame("7"))
	require.False(t, last(all).BadUsage)
	require.Equal(t, int64(7), last(all).Usage.Quantities[out])
}

func TestF113_InterleavedChoices(t *testing.T) {
	t.Parallel()
	all := stream(t, chat, `data: {"choices":[{"index":0,"delta":{"content":"ab"}}]}

data: {"choices":[{"index":1,"delta":{"content":"cd"}}]}

data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

data: {"choices":[{"index":1,"delta":{"content":"e"}}]}

data: {"choices":[{"index":1,"delta":{},"finish_reason":"length"}]}

data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":9}}

`)
	require.False(t, all[2].Finished, "one choice is still open")
	require.True(t, all[4].Finished)
	require.False(t, last(all).Terminal, "a clean end decides, which a meter does not see")
	require.Equal(t, int64(5), last(all).OutputLen)
	require.Equal(t, int64(9), last(all).Usage.Quantities[out])
}

func TestF091_OddFrames(t *testing.T) {
	t.Parallel()
	for _, data := range []string{
		`{"choices":[]}`, `{"choices":null}`, `{"choices":{}}`, `{"id":"x"}`, `null`, ``, `[]`, `"text"`, `{`, `{"choices":[null,1,"x",[]]}`,
		`{"choices":[{"index":"zero","delta":null}]}`, `{"choices":[{"delta":[],"finish_reason":null}]}`, `{"choices":[{"delta":{"content":null}}]}`,
		`{"choices":[],"prompt_filter_results":[{}]}`, `[DONE`, `{"choices":[],"usage":[]}`, `{"choices":[],"usage":null}`,
	} {
		f := last(stream(t, chat, "data: "+data+"\n\n"))
		require.False(t, f.HasUsage, data)
		require.False(t, f.UsageOnly, data)
		require.False(t, f.Terminal, data)
		require.False(t, f.Finished, data)
		require.Nil(t, f.ErrorBody, data)
	}
	f := last(stream(t, chat, ": comment\n\n\n\nevent: ping\ndata: {}\n\n"))
	require.Equal(t, providers.Facts{}, f)
	f = last(stream(t, chat, "data: [DONE]\n\n"))
	require.True(t, f.Terminal)
}

func TestUsageOnlyFrames(t *testing.T) {
	t.Parallel()
	const usage = `"usage":{"prompt_tokens":1,"completion_tokens":2}`
	for data, want := range map[string]bool{
		`{"id":"a","object":"chat.completion.chunk","created":1,"model":"m","service_tier":"default","system_fingerprint":"f","choices":[],` + usage + `}`: true,
		`{"choices":[],` + usage + `}`:                       true,
		`{` + usage + `}`:                                    false,
		`{"choices":null,` + usage + `}`:                     false,
		`{"choices":[],` + usage + `,"obfuscation":"x"}`:     false,
		`{"choices":[{"index":0,"delta":{}}],` + usage + `}`: false,
		`{"choices":[],"usage":null}`:                        false,
	} {
		require.Equal(t, want, last(stream(t, chat, "data: "+data+"\n\n")).UsageOnly, data)
	}
	all := stream(t, chat, "data: {\"choices\":[],"+usage+"}\n\ndata: [DONE]\n\n")
	require.False(t, last(all).UsageOnly, "it speaks of the last event alone")
}

func TestF077_ErrorsWithStatus200(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"error":{"message":"no","type":"invalid_request_error"}}`,
		`{"error":"no"}`,
		`{"object":"error","message":"no","code":400}`,
	} {
		f := body(chat, text)
		require.Equal(t, text, string(f.ErrorBody))
		require.False(t, f.Terminal)
		f = last(stream(t, chat, "data: "+text+"\n\n"))
		require.Equal(t, text, string(f.ErrorBody))
		require.False(t, f.Terminal)
	}
	f := last(stream(t, chat, "event: error\ndata: {\"message\":\"no\"}\n\n"))
	require.Equal(t, `{"message":"no"}`, string(f.ErrorBody))
	f = last(stream(t, chat, "event: error\ndata: no\n\n"))
	require.Equal(t, `no`, string(f.ErrorBody))
	require.Nil(t, body(chat, `{"choices":[],"error":null}`).ErrorBody)
}

func TestBodiesThatAreNoAnswer(t *testing.T) {
	t.Parallel()
	for _, text := range []string{``, `null`, `[]`, `{"choices":[`, `<html>`, `{"choices":[]} x`} {
		for _, d := range openai.New().Speaks() {
			require.False(t, body(d, text).Terminal, "%s %q", d, text)
		}
	}
}

func TestCompletions(t *testing.T) {
	t.Parallel()
	f := body(textCompletion, `{"object":"text_completion","model":"m","choices":[{"text":"abcd","index":0,"finish_reason":"length"}],"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}}`)
	require.True(t, f.Terminal)
	require.Equal(t, int64(4), f.OutputLen)
	require.Equal(t, int64(12), f.Usage.Quantities.Tokens())
	all := stream(t, textCompletion, "data: {\"choices\":[{\"text\":\"ab\",\"index\":0,\"finish_reason\":null}]}\n\ndata: {\"choices\":[{\"text\":\"\",\"index\":0,\"finish_reason\":\"stop\"}]}\n\n")
	require.True(t, last(all).Finished)
	require.Equal(t, int64(2), last(all).OutputLen)
}

func TestEmbeddingsAndModerations(t *testing.T) {
	t.Parallel()
	f := body(embed, `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.1,-2e-3]}],"model":"text-embedding-3-small","usage":{"prompt_tokens":5,"total_tokens":5}}`)
	require.True(t, f.Terminal)
	require.Equal(t, quantities(map[governance.Unit]int64{in: 5}), f.Usage.Quantities)
	require.Zero(t, f.OutputLen)
	f = body(moderation, `{"id":"modr-1","model":"omni-moderation-latest","results":[{"flagged":false}]}`)
	require.True(t, f.Terminal)
	require.False(t, f.HasUsage)
	require.Equal(t, "omni-moderation-latest", f.Model)
}

func TestResponsesBody(t *testing.T) {
	t.Parallel()
	f := body(respond, golden(t, "response.json"))
	require.True(t, f.Terminal)
	require.Nil(t, f.ErrorBody)
	require.Equal(t, "gpt-5-2025-08-07", f.Model)
	require.Equal(t, quantities(map[governance.Unit]int64{in: 28, read: 8, out: 14, reason: 64}), f.Usage.Quantities)
	require.Equal(t, int64(len("I thought.")+len("Hello there.")+len("f")+len("{}")), f.OutputLen)
	f = body(respond, `{"object":"response","status":"failed","error":{"code":"server_error","message":"x"},"usage":null}`)
	require.True(t, f.Terminal)
	require.Nil(t, f.ErrorBody, "a failed response is the answer that clients expect")
	f = body(respond, `{"error":{"message":"no"}}`)
	require.False(t, f.Terminal)
	require.NotNil(t, f.ErrorBody)
}

// TestResponsesSearches: OpenAI charges searches of the web by the piece and reports them nowhere but in the output.
func TestResponsesSearches(t *testing.T) {
	t.Parallel()
	const call = `{"type":"web_search_call","id":"ws","status":"completed","action":{"type":%q,"query":"type"}}`
	output := strings.Join([]string{
		fmt.Sprintf(call, "search"), fmt.Sprintf(call, "open_page"), `{"action":{"type":"search"},"type":"web_search_call"}`,
		fmt.Sprintf(call, "find_in_page"), `{"type":"web_search_call","status":"completed"}`, `{"type":"file_search_call"}`, `null`, `"x"`,
		`{"type":"message","content":[{"type":"output_text","text":"web_search_call"}]}`,
	}, ",")
	response := `{"object":"response","output":[` + output + `],"usage":{"input_tokens":8,"output_tokens":4,"total_tokens":12}}`
	want := quantities(map[governance.Unit]int64{in: 8, out: 4, governance.UnitSearch: 3})
	f := body(respond, response)
	require.True(t, f.Terminal)
	require.Equal(t, want, f.Usage.Quantities)
	m := openai.New().Meter(respond)
	for range 2 { // the second one takes the place of the first
		data := []byte(`{"type":"response.completed","response":` + response + `}`)
		m.Event(sse.Event{Raw: data, Name: []byte("response.completed"), Data: data})
	}
	require.Equal(t, want, m.Facts().Usage.Quantities)
}

func TestResponsesStream(t *testing.T) {
	t.Parallel()
	text := golden(t, "responses_stream.txt")
	all := stream(t, respond, text)
	f := last(all)
	require.True(t, f.Terminal)
	require.False(t, all[len(all)-2].Terminal)
	require.Equal(t, "gpt-5-2025-08-07", all[0].Model)
	require.Equal(t, quantities(map[governance.Unit]int64{in: 36, out: 14, reason: 64}), f.Usage.Quantities)
	require.Equal(t, int64(len("thinks")+len("Hello there.")+len(`{"a":1}`)), f.OutputLen)

	var unnamed []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "event:") {
			unnamed = append(unnamed, line)
		}
	}
	require.Equal(t, f, last(stream(t, respond, strings.Join(unnamed, ""))), "the type inside says the same")
}

func TestResponsesEndInThreeWays(t *testing.T) {
	t.Parallel()
	const usage = `"usage":{"input_tokens":3,"output_tokens":4,"total_tokens":7}`
	for kind, failed := range map[string]bool{"completed": false, "incomplete": false, "failed": true} {
		f := last(stream(t, respond, "event: response."+kind+"\ndata: {\"type\":\"response."+kind+"\",\"response\":{\"error\":null,"+usage+"}}\n\n"))
		require.True(t, f.Terminal, kind)
		require.Equal(t, int64(7), f.Usage.Quantities.Tokens(), kind)
		require.Equal(t, failed, f.ErrorBody != nil, kind)
	}
	for _, text := range []string{
		"event: error\ndata: {\"type\":\"error\",\"code\":\"x\",\"message\":\"no\"}\n\n",
		"data: {\"type\":\"error\",\"message\":\"no\"}\n\n",
		"data: {\"error\":{\"message\":\"no\"}}\n\n",
	} {
		f := last(stream(t, respond, text))
		require.NotNil(t, f.ErrorBody, text)
		require.False(t, f.Terminal, text)
	}
	f := last(stream(t, respond, "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\n\n"))
	require.False(t, f.Terminal, "a broken event ends nothing")
}

func TestResponsesWithoutDeltasCountTheLastEvent(t *testing.T) {
	t.Parallel()
	f := last(stream(t, respond, `data: {"type":"response.completed","response":{"output":[{"type":"message","content":[{"type":"output_text","text":"abcdef"}]}]}}`+"\n\n"))
	require.Equal(t, int64(6), f.OutputLen)
}

func FuzzMeters(f *testing.F) {
	for _, name := range []string{"chat.json", "chat_stream.txt", "response.json", "responses_stream.txt"} {
		f.Add(golden(f, name))
	}
	f.Add(`data: {"choices":[{"index":1,"delta":{"content":[{"text":"\ud800"}]}}]}` + "\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, d := range openai.New().Speaks() {
			facts := []providers.Facts{body(d, text)}
			r := sse.NewReader(strings.NewReader(text))
			m := openai.New().Meter(d)
			for {
				ev, err := r.Next()
				if err != nil {
					break
				}
				m.Event(ev)
				facts = append(facts, m.Facts())
			}
			for _, f := range facts {
				require.GreaterOrEqual(t, f.OutputLen, int64(0))
				require.LessOrEqual(t, f.OutputLen, 3*int64(len(text)))
				require.False(t, f.HasUsage && f.BadUsage)
				for _, n := range f.Usage.Quantities {
					require.GreaterOrEqual(t, n, int64(0))
				}
			}
		}
	})
}

func BenchmarkChatEvent(b *testing.B) {
	m := openai.New().Meter(chat)
	ev := sse.Event{Data: []byte(`{"id":"chatcmpl-AbCdEf","object":"chat.completion.chunk","created":1730000000,"model":"gpt-4o-2024-08-06","service_tier":"default","system_fingerprint":"fp_45cf54deae","choices":[{"index":0,"delta":{"content":" world"},"logprobs":null,"finish_reason":null}],"usage":null}`)}
	b.ReportAllocs()
	for b.Loop() {
		m.Event(ev)
	}
}

func BenchmarkResponsesDelta(b *testing.B) {
	m := openai.New().Meter(respond)
	ev := sse.Event{
		Name: []byte("response.output_text.delta"),
		Data: []byte(`{"type":"response.output_text.delta","sequence_number":5,"item_id":"msg_68","output_index":1,"content_index":0,"delta":" there","logprobs":[],"obfuscation":"aFk3"}`),
	}
	b.ReportAllocs()
	for b.Loop() {
		m.Event(ev)
	}
}

package anthropic_test

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
	"github.com/tollgate-gateway/tollgate/providers/anthropic"
)

func body(text string) providers.Facts {
	m := anthropic.New().Meter(providers.AnthropicMessages)
	m.Body([]byte(text))
	return m.Facts()
}

// stream meters a whole stream and returns the facts after each event.
func stream(t testing.TB, text string) []providers.Facts {
	t.Helper()
	m := anthropic.New().Meter(providers.AnthropicMessages)
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

func quantities(of map[governance.Unit]int64) governance.Quantities {
	var q governance.Quantities
	for u, n := range of {
		q[u] = n
	}
	return q
}

const (
	in, read       = governance.UnitInput, governance.UnitCacheRead
	write, hour    = governance.UnitCacheWrite5m, governance.UnitCacheWrite1h
	out, reason    = governance.UnitOutput, governance.UnitReasoning
	search         = governance.UnitSearch
	messageHead    = `{"id":"msg_1","type":"message","role":"assistant","model":"claude-x","content":[],"stop_reason":null,"stop_sequence":null`
	ordinaryPrices = 3_000_000_000
)

// Prices of a common model, in nano-dollars per million.
func claude() *governance.PriceVersion {
	var p governance.UnitPrices
	p[in], p[read], p[write], p[hour], p[out] = ordinaryPrices, 300_000_000, 3_750_000_000, 6_000_000_000, 15_000_000_000
	p[search] = 10_000_000_000_000
	return &governance.PriceVersion{Tiers: []governance.PriceTier{{Prices: p}}}
}

func TestF019_F020_F034_UsageInDisjointQuantities(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, usage string
		want        map[governance.Unit]int64
		cost        string // to the nano-dollar
	}{
		{"plain", `{"input_tokens":10,"output_tokens":5}`, map[governance.Unit]int64{in: 10, out: 5}, "0.000105"},
		{"zeros", `{"input_tokens":0,"output_tokens":0}`, nil, "0"},
		{
			"nulls", `{"input_tokens":1,"output_tokens":2,"cache_creation_input_tokens":null,"cache_read_input_tokens":null,"cache_creation":null,"server_tool_use":null,"output_tokens_details":null,"iterations":null}`,
			map[governance.Unit]int64{in: 1, out: 2},
			"0.000033",
		},
		{
			"cached tokens stand beside the input", `{"input_tokens":342,"cache_creation_input_tokens":0,"cache_read_input_tokens":86272,"output_tokens":44,"service_tier":"standard"}`,
			map[governance.Unit]int64{in: 342, read: 86272, out: 44},
			"0.0275676",
		},
		{
			"reads and writes", `{"input_tokens":100,"cache_creation_input_tokens":700,"cache_read_input_tokens":200,"output_tokens":0}`,
			map[governance.Unit]int64{in: 100, read: 200, write: 700},
			"0.002985",
		},
		{
			"writes by time to live", `{"input_tokens":100,"cache_creation_input_tokens":700,"cache_creation":{"ephemeral_5m_input_tokens":300,"ephemeral_1h_input_tokens":400},"output_tokens":1}`,
			map[governance.Unit]int64{in: 100, write: 300, hour: 400, out: 1},
			"0.00384",
		},
		{
			"a breakdown that does not add up is not forgiven", `{"input_tokens":1,"cache_creation_input_tokens":700,"cache_creation":{"ephemeral_1h_input_tokens":100},"output_tokens":1}`,
			map[governance.Unit]int64{in: 1, write: 600, hour: 100, out: 1},
			"0.002868",
		},
		{
			"only the breakdown", `{"input_tokens":1,"cache_creation":{"ephemeral_5m_input_tokens":10,"ephemeral_1h_input_tokens":20},"output_tokens":1}`,
			map[governance.Unit]int64{in: 1, write: 10, hour: 20, out: 1},
			"0.0001755",
		},
		{
			"thinking is a part of the output", `{"input_tokens":1,"output_tokens":1944,"output_tokens_details":{"thinking_tokens":1360}}`,
			map[governance.Unit]int64{in: 1, out: 584, reason: 1360},
			"0.029163",
		},
		{
			"searches by the piece", `{"input_tokens":1,"output_tokens":1,"server_tool_use":{"web_search_requests":3,"web_fetch_requests":2}}`,
			map[governance.Unit]int64{in: 1, out: 1, search: 3},
			"0.030018",
		},
		{
			"what ran beside the answer", `{"input_tokens":5,"output_tokens":7,"iterations":[{"type":"compaction","input_tokens":100,"output_tokens":20},{"type":"message","input_tokens":5,"output_tokens":7},{"type":"advisor_message","input_tokens":10,"cache_read_input_tokens":2,"output_tokens":1},null]}`,
			map[governance.Unit]int64{in: 115, read: 2, out: 28},
			"0.0007656",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := body(messageHead + `,"usage":` + tc.usage + `}`)
			require.True(t, f.HasUsage)
			require.False(t, f.BadUsage)
			require.True(t, f.Terminal)
			require.Equal(t, quantities(tc.want), f.Usage.Quantities)
			require.Equal(t, tc.usage, string(f.Usage.Raw))
			require.Equal(t, "claude-x", f.Model)
			cost, _, err := claude().Cost(&f.Usage.Quantities, f.Usage.ServiceTier)
			require.NoError(t, err)
			require.Equal(t, tc.cost, cost.String())
		})
	}
}

func TestServiceTiers(t *testing.T) {
	t.Parallel()
	for usage, want := range map[string]string{
		`{"input_tokens":1,"output_tokens":1,"service_tier":"priority"}`:                          "priority",
		`{"input_tokens":1,"output_tokens":1,"service_tier":"batch","speed":"standard"}`:          "batch",
		`{"input_tokens":1,"output_tokens":1,"service_tier":"standard","speed":"fast"}`:           "fast",
		`{"input_tokens":1,"output_tokens":1,"service_tier":null,"speed":null}`:                   "",
		`{"input_tokens":1,"output_tokens":1,"service_tier":"standard","inference_geo":"us"}`:     "us",
		`{"input_tokens":1,"output_tokens":1,"inference_geo":"us","speed":"fast"}`:                "fast/us",
		`{"input_tokens":1,"output_tokens":1,"service_tier":"batch","inference_geo":"mars"}`:      "batch/mars",
		`{"input_tokens":1,"output_tokens":1,"service_tier":"standard","inference_geo":"global"}`: "standard",
		`{"input_tokens":1,"output_tokens":1,"inference_geo":"not_available"}`:                    "",
		`{"input_tokens":1,"output_tokens":1,"service_tier":["priority"],"speed":"slow"}`:         "",
	} {
		require.Equal(t, want, body(messageHead+`,"usage":`+usage+`}`).Usage.ServiceTier, usage)
	}
}

func TestF034_UsageThatMakesNoSense(t *testing.T) {
	t.Parallel()
	for _, usage := range []string{
		`{}`, `"10"`, `[1]`, `12`, `{"output_tokens":5}`, `{"input_tokens":5}`, `{"input_tokens":-1,"output_tokens":5}`,
		`{"input_tokens":"10","output_tokens":5}`, `{"input_tokens":1.5,"output_tokens":5}`, `{"input_tokens":1e3,"output_tokens":5}`,
		`{"input_tokens":10,"output_tokens":9223372036854775807}`, `{"input_tokens":10,"output_tokens":5,"cache_read_input_tokens":-86272}`,
		`{"input_tokens":10,"output_tokens":5,"cache_creation":{"ephemeral_1h_input_tokens":-1}}`,
		`{"input_tokens":10,"output_tokens":5,"server_tool_use":{"web_search_requests":-1}}`,
		`{"input_tokens":10,"output_tokens":5,"iterations":[{"type":"compaction","input_tokens":-1}]}`,
	} {
		f := body(messageHead + `,"usage":` + usage + `}`)
		require.False(t, f.HasUsage, usage)
		require.True(t, f.BadUsage, usage)
		require.Zero(t, f.Usage.Quantities, usage)
	}
	f := body(messageHead + `,"usage":null}`)
	require.False(t, f.HasUsage)
	require.False(t, f.BadUsage, "null is absent")
}

const begun = `event: message_start
data: {"type":"message_start","message":` + messageHead + `,"usage":{"input_tokens":45,"cache_creation_input_tokens":8,"cache_read_input_tokens":30,"cache_creation":{"ephemeral_5m_input_tokens":2,"ephemeral_1h_input_tokens":6},"output_tokens":1,"service_tier":"standard"}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: ping
data: {"type":"ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"héllo"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"c2lnbmF0dXJl"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_1","name":"weather","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"city\":"}}

`

const ended = `event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":511}}

event: message_stop
data: {"type":"message_stop"}

`

// F004: the end of a stream tells its usage; its beginning tells the prompt's alone, and a placeholder of 1 for the answer.
func TestF004_F005_F064_TheLastUsageOfAStreamCounts(t *testing.T) {
	t.Parallel()
	all := stream(t, begun+ended)
	first := all[0]
	require.False(t, first.HasUsage, "1 is a placeholder")
	require.True(t, first.PromptUsage)
	prompt := map[governance.Unit]int64{in: 45, read: 30, write: 2, hour: 6}
	require.Equal(t, quantities(prompt), first.Usage.Quantities)
	f := last(all)
	require.True(t, f.Terminal)
	require.True(t, f.HasUsage)
	require.False(t, f.PromptUsage)
	prompt[out] = 511
	require.Equal(t, quantities(prompt), f.Usage.Quantities)
	require.Equal(t, "standard", f.Usage.ServiceTier)
	require.Equal(t, "claude-x", f.Model)
	require.Equal(t, int64(len("héllo")+len("weather")+len(`{"city":`)), f.OutputLen)
	require.True(t, json.Valid(f.Usage.Raw))
	require.Contains(t, string(f.Usage.Raw), `{"output_tokens":511}`)
	require.Contains(t, string(f.Usage.Raw), `"cache_read_input_tokens":30`)
	require.False(t, all[len(all)-2].Terminal)

	// Later numbers replace earlier ones: they are cumulative, and never a sum.
	f = last(stream(t, begun+`event: message_delta
data: {"type":"message_delta","delta":{},"usage":{"input_tokens":50,"output_tokens":100}}

event: message_delta
data: {"type":"message_delta","delta":{},"usage":{"input_tokens":60,"cache_read_input_tokens":31,"output_tokens":200,"output_tokens_details":{"thinking_tokens":50},"server_tool_use":{"web_search_requests":2}}}

`))
	require.Equal(t, quantities(map[governance.Unit]int64{in: 60, read: 31, write: 2, hour: 6, out: 150, reason: 50, search: 2}), f.Usage.Quantities)
	require.False(t, f.Terminal, "a stream without its message_stop is broken")
}

func TestStreamsOfCompatibleServers(t *testing.T) {
	t.Parallel()
	// All usage in the last event, and events without names.
	f := last(stream(t, `data: {"type":"message_start","message":`+messageHead+`}}

data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":7,"output_tokens":9}}

data: {"type":"message_stop"}

`))
	require.True(t, f.Terminal)
	require.Equal(t, quantities(map[governance.Unit]int64{in: 7, out: 9}), f.Usage.Quantities)
	require.Equal(t, `{"input_tokens":7,"output_tokens":9}`, string(f.Usage.Raw))
	// Nonsense at the end is no usage, whatever the beginning said.
	f = last(stream(t, begun+"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{},\"usage\":{\"output_tokens\":-3}}\n\n"))
	require.True(t, f.BadUsage)
	require.False(t, f.HasUsage)
	require.False(t, f.PromptUsage)
	f = last(stream(t, begun+"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{},\"usage\":7}\n\n"+ended))
	require.True(t, f.HasUsage, "a later one may make up for it")
}

func TestBodies(t *testing.T) {
	t.Parallel()
	f := body(`{"type":"message","model":"claude-x","content":[{"type":"thinking","thinking":"ab","signature":"xxxxxxxx"},{"type":"text","text":"héllo"},` +
		`{"type":"tool_use","id":"toolu_1","name":"weather","input":{"city": "Paris"}},{"type":"web_search_tool_result","content":[{"title":"read, not written"}]}],` +
		`"stop_reason":"tool_use","usage":{"input_tokens":3,"output_tokens":4}}`)
	require.True(t, f.Terminal)
	require.Equal(t, int64(len("ab")+len("héllo")+len("weather")+len(`{"city": "Paris"}`)), f.OutputLen)
	for _, text := range []string{``, `{`, `null`, `[]`, `{"type":"message"} x`} {
		require.False(t, body(text).Terminal, text)
	}
}

func TestF077_F131_ErrorsWithinASuccess(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`,
		`{"error":{"message":"no"}}`, `{"error":"no"}`, `{"type":"error"}`,
	} {
		f := body(text)
		require.Equal(t, text, string(f.ErrorBody))
		require.False(t, f.Terminal)
		f = last(stream(t, "event: error\ndata: "+text+"\n\n"))
		require.Equal(t, text, string(f.ErrorBody))
		f = last(stream(t, "data: "+text+"\n\n"))
		require.Equal(t, text, string(f.ErrorBody))
	}
	require.Equal(t, "no", string(last(stream(t, "event: error\ndata: no\n\n")).ErrorBody))
	require.Nil(t, last(stream(t, begun+ended)).ErrorBody)
}

func TestCountsOfTokensUseNone(t *testing.T) {
	t.Parallel()
	count := func(text string) providers.Facts {
		m := anthropic.New().Meter(providers.AnthropicCountTokens)
		m.Body([]byte(text))
		m.Event(sse.Event{Data: []byte(text)})
		return m.Facts()
	}
	f := count(`{"input_tokens":2095,"context_management":{"original_input_tokens":3000}}`)
	require.True(t, f.Terminal)
	require.True(t, f.HasUsage)
	require.Zero(t, f.Usage.Quantities)
	require.False(t, count(`{"input_tokens":`).Terminal)
	require.False(t, count(`{}`).HasUsage)
	require.NotNil(t, count(`{"type":"error","error":{"type":"not_found_error","message":"no"}}`).ErrorBody)
}

// Whatever the upstream reports: no quantity is negative, and nothing that it counted is lost.
func TestF019_F034_PartsAddUpToTheTotal(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := func(name string, most int64) int64 { return rapid.Int64Range(0, most).Draw(t, name) }
		input, cached, written, output := n("input", 1<<20), n("cached", 1<<20), n("written", 1<<20), n("output", 1<<20)
		anHour := n("an hour", written)
		usage, err := json.Marshal(map[string]any{
			"input_tokens": input, "cache_read_input_tokens": cached, "cache_creation_input_tokens": written, "output_tokens": output,
			"cache_creation":        map[string]any{"ephemeral_1h_input_tokens": anHour, "ephemeral_5m_input_tokens": written - anHour},
			"output_tokens_details": map[string]any{"thinking_tokens": n("thinking", 2*output)},
		})
		require.NoError(t, err)
		f := body(messageHead + `,"usage":` + string(usage) + `}`)
		require.True(t, f.HasUsage)
		for _, n := range f.Usage.Quantities {
			require.GreaterOrEqual(t, n, int64(0))
		}
		require.Equal(t, input+cached+written, f.Usage.Quantities.InputTokens())
		require.Equal(t, output, f.Usage.Quantities.OutputTokens())
		require.Equal(t, anHour, f.Usage.Quantities[hour])
	})
}

func FuzzMeter(f *testing.F) {
	f.Add(begun + ended)
	f.Add("event: error\ndata: x\n\n")
	f.Add("data: {\"type\":\"message_delta\",\"usage\":{\"iterations\":[{}]}}\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, d := range []providers.Dialect{providers.AnthropicMessages, providers.AnthropicCountTokens} {
			m := anthropic.New().Meter(d)
			m.Body([]byte(text))
			r := sse.NewReader(strings.NewReader(text))
			for {
				ev, err := r.Next()
				if err != nil {
					break
				}
				m.Event(ev)
			}
			facts := m.Facts()
			require.False(t, facts.HasUsage && (facts.BadUsage || facts.PromptUsage))
			require.GreaterOrEqual(t, facts.OutputLen, int64(0))
			for _, n := range facts.Usage.Quantities {
				require.GreaterOrEqual(t, n, int64(0))
			}
		}
	})
}

func BenchmarkEvent(b *testing.B) {
	data := []byte(`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"The quick brown fox jumps over"}}`)
	ev := sse.Event{Name: []byte("content_block_delta"), Data: data}
	m := anthropic.New().Meter(providers.AnthropicMessages)
	b.ReportAllocs()
	for b.Loop() {
		m.Event(ev)
	}
}

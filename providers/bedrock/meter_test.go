package bedrock

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
)

func metered(events ...seen) providers.Facts {
	m := New().Meter(providers.BedrockConverse)
	for _, ev := range events {
		m.Event(sse.Event{Name: []byte(ev.name), Data: []byte(ev.data)})
	}
	return m.Facts()
}

func body(text string) providers.Facts {
	m := New().Meter(providers.BedrockConverse)
	m.Body([]byte(text))
	return m.Facts()
}

const stopped = `{"stopReason":"end_turn"}`

func TestF019_UsageInDisjointQuantities(t *testing.T) {
	t.Parallel()
	const (
		in, out, read, write, hour = governance.UnitInput, governance.UnitOutput, governance.UnitCacheRead, governance.UnitCacheWrite5m, governance.UnitCacheWrite1h
	)
	for _, tc := range []struct {
		usage string
		want  map[governance.Unit]int64
	}{
		{`{"inputTokens":10,"outputTokens":5,"totalTokens":15}`, map[governance.Unit]int64{in: 10, out: 5}},
		{`{"inputTokens":3,"outputTokens":5,"totalTokens":1208,"cacheReadInputTokens":1000,"cacheWriteInputTokens":200}`, map[governance.Unit]int64{in: 3, out: 5, read: 1000, write: 200}},
		{
			`{"inputTokens":3,"outputTokens":5,"cacheWriteInputTokens":300,"cacheDetails":[{"ttl":"1h","inputTokens":100},{"ttl":"5m","inputTokens":200},7]}`,
			map[governance.Unit]int64{in: 3, out: 5, write: 200, hour: 100},
		},
		{`{"inputTokens":0,"outputTokens":0,"cacheReadInputTokens":null,"cacheDetails":null}`, nil},
	} {
		var want governance.Quantities
		for u, n := range tc.want {
			want[u] = n
		}
		for _, f := range []providers.Facts{
			body(`{"output":{"message":{"role":"assistant","content":[]}},"stopReason":"end_turn","usage":` + tc.usage + `,"serviceTier":{"type":"priority"}}`),
			metered(seen{"messageStart", `{"role":"assistant"}`}, seen{"messageStop", stopped}, seen{"metadata", `{"usage":` + tc.usage + `,"serviceTier":{"type":"priority"}}`}),
		} {
			require.True(t, f.HasUsage, tc.usage)
			require.True(t, f.Terminal)
			require.Equal(t, want, f.Usage.Quantities, tc.usage)
			require.Equal(t, tc.usage, string(f.Usage.Raw))
			require.Equal(t, "priority", f.Usage.ServiceTier)
		}
	}
}

func TestF034_UsageThatMakesNoSense(t *testing.T) {
	t.Parallel()
	for _, usage := range []string{
		`{}`, `7`, `[]`, `{"outputTokens":5}`, `{"inputTokens":5}`, `{"inputTokens":-1,"outputTokens":1}`, `{"inputTokens":1.5,"outputTokens":1}`,
		`{"inputTokens":1,"outputTokens":1,"cacheReadInputTokens":"x"}`, `{"inputTokens":99999999999999999999,"outputTokens":1}`,
	} {
		f := body(`{"output":{},"usage":` + usage + `}`)
		require.True(t, f.BadUsage, usage)
		require.False(t, f.HasUsage, usage)
	}
	require.False(t, body(`{"output":{},"usage":null}`).BadUsage)
}

func TestF064_StreamsEndWithTheirMetadata(t *testing.T) {
	t.Parallel()
	begin := seen{"messageStart", `{"role":"assistant"}`}
	f := metered(begin, seen{"contentBlockDelta", `{"contentBlockIndex":0,"delta":{"text":"four"}}`})
	require.False(t, f.Terminal || f.Finished)
	require.Equal(t, int64(4), f.OutputLen)
	f = metered(begin, seen{"messageStop", stopped})
	require.True(t, f.Finished)
	require.False(t, f.Terminal || f.HasUsage)
	f = metered(begin, seen{"metadata", `{"usage":{"inputTokens":1,"outputTokens":2}}`})
	require.False(t, f.Terminal, "no reason of its end was given")
	f = metered(begin, seen{"error", `{"__type":"throttlingException"}`})
	require.Equal(t, `{"__type":"throttlingException"}`, string(f.ErrorBody))
	require.Equal(t, `{"message":"no"}`, string(body(`{"message":"no"}`).ErrorBody))
	require.Nil(t, body(`{"output":`).ErrorBody)
}

func TestOutputIsWhatTheModelWrote(t *testing.T) {
	t.Parallel()
	want := int64(len("said") + len("thought") + len("weather") + len(`{"city":"Rome"}`))
	require.Equal(t, want, body(`{"output":{"message":{"content":[{"text":"said"},{"reasoningContent":{"reasoningText":{"text":"thought","signature":"no"}}},`+
		`{"reasoningContent":{"redactedContent":"no"}},{"toolUse":{"toolUseId":"no","name":"weather","input":{"city":"Rome"}}},{"new":{"text":"no"}},7]}}}`).OutputLen)
	delta := func(text string) seen {
		return seen{"contentBlockDelta", `{"contentBlockIndex":0,"delta":` + text + `}`}
	}
	require.Equal(t, want, metered(
		delta(`{"text":"sa"}`), delta(`{"text":"id"}`), delta(`{"reasoningContent":{"text":"thought"}}`), delta(`{"reasoningContent":{"signature":"no"}}`),
		seen{"contentBlockStart", `{"contentBlockIndex":1,"start":{"toolUse":{"toolUseId":"no","name":"weather"}}}`},
		delta(`{"toolUse":{"input":"{\"city\":"}}`), delta(`{"toolUse":{"input":"\"Rome\"}"}}`), delta(`7`), seen{"contentBlockStop", `{"contentBlockIndex":1}`},
	).OutputLen)
}

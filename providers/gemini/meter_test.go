package gemini_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
	"github.com/tollgate-gateway/tollgate/providers/gemini"
)

func body(text string) providers.Facts {
	m := gemini.New().Meter(providers.GeminiGenerate)
	m.Body([]byte(text))
	return m.Facts()
}

// stream meters the events and returns the facts after the last one.
func stream(events ...string) providers.Facts {
	m := gemini.New().Meter(providers.GeminiGenerate)
	for _, text := range events {
		m.Event(sse.Event{Data: []byte(text)})
	}
	return m.Facts()
}

const (
	in, read           = governance.UnitInput, governance.UnitCacheRead
	inAudio, inImage   = governance.UnitInputAudio, governance.UnitInputImage
	out, reason        = governance.UnitOutput, governance.UnitReasoning
	outAudio, outImage = governance.UnitOutputAudio, governance.UnitOutputImage
	answered           = `{"candidates":[{"content":{"parts":[{"text":"x"}]},"finishReason":"STOP"}],"modelVersion":"gemini-x","usageMetadata":`
)

func TestF019_F020_F034_UsageInDisjointQuantities(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, usage string
		want        map[governance.Unit]int64
	}{
		{"plain", `{"promptTokenCount":10,"candidatesTokenCount":5,"totalTokenCount":15}`, map[governance.Unit]int64{in: 10, out: 5}},
		{"nothing was said", `{"promptTokenCount":10,"totalTokenCount":10}`, map[governance.Unit]int64{in: 10}},
		{"the answer is the rest of the total", `{"promptTokenCount":10,"toolUsePromptTokenCount":1,"thoughtsTokenCount":2,"totalTokenCount":20}`, map[governance.Unit]int64{in: 11, out: 7, reason: 2}},
		{"nulls", `{"promptTokenCount":1,"candidatesTokenCount":2,"cachedContentTokenCount":null,"promptTokensDetails":null}`, map[governance.Unit]int64{in: 1, out: 2}},
		{"cached tokens are a part of the prompt", `{"promptTokenCount":1000,"cachedContentTokenCount":600,"candidatesTokenCount":50}`, map[governance.Unit]int64{in: 400, read: 600, out: 50}},
		{"thoughts stand beside the candidates", `{"promptTokenCount":10,"candidatesTokenCount":5,"thoughtsTokenCount":584,"totalTokenCount":599}`, map[governance.Unit]int64{in: 10, out: 5, reason: 584}},
		{"what tools brought in stands beside the prompt", `{"promptTokenCount":10,"toolUsePromptTokenCount":90,"candidatesTokenCount":5}`, map[governance.Unit]int64{in: 100, out: 5}},
		{
			"modalities", `{"promptTokenCount":1000,"candidatesTokenCount":1400,"promptTokensDetails":[{"modality":"TEXT","tokenCount":10},{"modality":"AUDIO","tokenCount":300},{"modality":"IMAGE","tokenCount":258},{"modality":"VIDEO","tokenCount":432}],"candidatesTokensDetails":[{"modality":"IMAGE","tokenCount":1290},{"modality":"AUDIO","tokenCount":20}]}`,
			map[governance.Unit]int64{in: 442, inAudio: 300, inImage: 258, out: 90, outImage: 1290, outAudio: 20},
		},
		{
			"cached audio is read", `{"promptTokenCount":1000,"cachedContentTokenCount":500,"candidatesTokenCount":1,"promptTokensDetails":[{"modality":"AUDIO","tokenCount":600}],"cacheTokensDetails":[{"modality":"AUDIO","tokenCount":400},{"modality":"TEXT","tokenCount":100}]}`,
			map[governance.Unit]int64{in: 300, inAudio: 200, read: 500, out: 1},
		},
		{"more parts than the whole", `{"promptTokenCount":5,"cachedContentTokenCount":9,"candidatesTokenCount":1,"candidatesTokensDetails":[{"modality":"AUDIO","tokenCount":7}]}`, map[governance.Unit]int64{read: 5, outAudio: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var want governance.Quantities
			for u, n := range tc.want {
				want[u] = n
			}
			for _, f := range []providers.Facts{body(answered + tc.usage + "}"), stream(answered + tc.usage + "}")} {
				require.True(t, f.HasUsage)
				require.False(t, f.BadUsage || f.PromptUsage)
				require.Equal(t, want, f.Usage.Quantities)
				require.Equal(t, tc.usage, string(f.Usage.Raw))
				require.Equal(t, "gemini-x", f.Model)
			}
		})
	}
}

func TestF034_UsageThatMakesNoSense(t *testing.T) {
	t.Parallel()
	for _, usage := range []string{
		`{}`, `7`, `[]`, `{"candidatesTokenCount":5}`, `{"promptTokenCount":-1}`, `{"promptTokenCount":1.5}`, `{"promptTokenCount":"1"}`,
		`{"promptTokenCount":1,"promptTokensDetails":[{"modality":"AUDIO","tokenCount":-4}]}`, `{"promptTokenCount":99999999999999999999}`,
	} {
		f := body(answered + usage + "}")
		require.True(t, f.BadUsage, usage)
		require.False(t, f.HasUsage, usage)
	}
	require.False(t, body(answered+"null}").BadUsage)
}

// The usage is told anew with every piece: the last one counts. None of them says that it is the end (ruling 30).
func TestF004_F064_TheLastUsageOfAStreamCounts(t *testing.T) {
	t.Parallel()
	const (
		first  = `{"candidates":[{"content":{"parts":[{"text":"Hmm.","thought":true}]},"index":0}],"usageMetadata":{"promptTokenCount":7,"thoughtsTokenCount":3}}`
		second = `{"candidates":[{"content":{"parts":[{"text":"héllo"},{"functionCall":{"name":"f","args":{"a": 1}}}]},"index":0}],"usageMetadata":{"promptTokenCount":7,"thoughtsTokenCount":3,"candidatesTokenCount":2}}`
		end    = `{"candidates":[{"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":7,"thoughtsTokenCount":3,"candidatesTokenCount":9}}`
	)
	f := stream(first)
	require.True(t, f.PromptUsage)
	require.False(t, f.HasUsage || f.Finished || f.Terminal)
	require.Equal(t, governance.Quantities{in: 7}, f.Usage.Quantities)
	f = stream(first, second)
	require.True(t, f.HasUsage)
	require.False(t, f.Finished)
	require.Equal(t, int64(len("Hmm.")+len("héllo")+len("f")+len(`{"a": 1}`)), f.OutputLen)
	f = stream(first, second, end)
	require.True(t, f.HasUsage && f.Finished)
	require.False(t, f.Terminal)
	require.Equal(t, governance.Quantities{in: 7, out: 9, reason: 3}, f.Usage.Quantities)

	require.False(t, stream(end, `{"candidates":[{"index":1}]}`).Finished, "another candidate goes on")
	require.True(t, stream(end, `{"usageMetadata":{"promptTokenCount":7,"candidatesTokenCount":10}}`).Finished, "usage behind the end")
	f = stream(`{"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":7}}`)
	require.True(t, f.HasUsage && f.Finished, "a refused prompt has no candidates")
	f = body(answered + `{"promptTokenCount":7}}`)
	require.True(t, f.Terminal && f.PromptUsage && !f.HasUsage, "what was written and not counted is estimated")
}

func TestF077_F131_ErrorsWithinASuccess(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"error":{"code":503,"message":"no","status":"UNAVAILABLE"}}`, `[{"error":{"code":503,"message":"no","status":"UNAVAILABLE"}}]`,
	} {
		f := body(text)
		require.Equal(t, text, string(f.ErrorBody))
		require.False(t, f.Terminal)
		require.Equal(t, text, string(stream(text).ErrorBody))
	}
	require.Nil(t, body(answered+`{"promptTokenCount":1}}`).ErrorBody)
	for _, text := range []string{``, `{`, `{"candidates":[]} x`} {
		require.False(t, body(text).Terminal, text)
	}
}

func FuzzMeter(f *testing.F) {
	f.Add(answered + `{"promptTokenCount":7,"candidatesTokenCount":9,"thoughtsTokenCount":3}}`)
	f.Add(`{"candidates":[{"index":1,"content":{"parts":[{"functionCall":{"name":"f","args":{}}}]}}]}` + "\n" + `[{"error":{}}]`)
	f.Add(answered + `{"promptTokenCount":7,"promptTokensDetails":[{"modality":"AUDIO","tokenCount":9}]}}`)
	f.Fuzz(func(t *testing.T, text string) {
		for _, facts := range []providers.Facts{body(text), stream(strings.Split(text, "\n")...)} {
			require.False(t, facts.HasUsage && (facts.BadUsage || facts.PromptUsage))
			require.GreaterOrEqual(t, facts.OutputLen, int64(0))
			for _, n := range facts.Usage.Quantities {
				require.GreaterOrEqual(t, n, int64(0))
			}
		}
	})
}

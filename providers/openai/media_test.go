package openai_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/providers"
)

// What the answers of pictures, sound and rankings report, as OpenAI, Groq, Mistral, Cohere, Jina and vLLM write it.
func TestMediaUsage(t *testing.T) {
	t.Parallel()
	const (
		in, image, inAudio = governance.UnitInput, governance.UnitInputImage, governance.UnitInputAudio
		out, outImage      = governance.UnitOutput, governance.UnitOutputImage
		second, search     = governance.UnitSecond, governance.UnitSearch
	)
	type units = map[governance.Unit]int64
	for _, tc := range []struct {
		name    string
		dialect providers.Dialect
		body    string
		usage   units // nil: none
		counted units
		tier    string
	}{
		{
			"gpt-image-1", providers.OpenAIImages,
			`{"created":1,"data":[{"b64_json":"eA=="}],"quality":"high","size":"1024x1024","usage":{"total_tokens":100,"input_tokens":50,"output_tokens":50,"input_tokens_details":{"text_tokens":10,"image_tokens":40}}}`,
			units{in: 10, image: 40, outImage: 50},
			units{governance.UnitImage: 1},
			"high/1024x1024",
		},
		{
			"gpt-image-1.5, with its text", providers.OpenAIImageEdits,
			`{"data":[{},{}],"usage":{"total_tokens":160,"input_tokens":60,"output_tokens":100,"input_tokens_details":{"text_tokens":60,"image_tokens":0},"output_tokens_details":{"text_tokens":30,"image_tokens":70}}}`,
			units{in: 60, out: 30, outImage: 70},
			units{governance.UnitImage: 2},
			"",
		},
		{"dall-e", providers.OpenAIImages, `{"created":1,"data":[{"url":"https://h/1"},{"url":"https://h/2"},{"url":"https://h/3"}]}`, nil, units{governance.UnitImage: 3}, ""},
		{"whisper", providers.OpenAITranscriptions, `{"text":"hi","usage":{"type":"duration","seconds":3.2}}`, units{second: 4}, units{second: 4}, ""},
		{"verbose", providers.OpenAITranslations, `{"task":"translate","duration":"8.47","text":"hi","segments":[]}`, nil, units{second: 9}, ""},
		{
			"gpt-4o-transcribe", providers.OpenAITranscriptions,
			`{"text":"hi","usage":{"type":"tokens","input_tokens":14,"input_token_details":{"text_tokens":4,"audio_tokens":10},"output_tokens":45,"total_tokens":59}}`,
			units{in: 4, inAudio: 10, out: 45},
			nil, "",
		},
		{
			"without details all of it is sound", providers.OpenAITranscriptions, `{"text":"hi","usage":{"input_tokens":14,"output_tokens":45,"total_tokens":59}}`,
			units{inAudio: 14, out: 45},
			nil, "",
		},
		{
			"Mistral", providers.OpenAITranscriptions,
			`{"model":"voxtral","text":"hi","usage":{"prompt_audio_seconds":203,"prompt_tokens":4,"total_tokens":649,"completion_tokens":645}}`,
			units{inAudio: 4, out: 645},
			units{second: 203},
			"",
		},
		{
			"Cohere", providers.CohereRerank, `{"id":"r","results":[{"index":0,"relevance_score":0.9}],"meta":{"api_version":{"version":"2"},"billed_units":{"search_units":2}}}`,
			units{search: 2},
			nil, "",
		},
		{"Jina", providers.CohereRerank, `{"model":"jina","usage":{"total_tokens":38,"prompt_tokens":38},"results":[]}`, units{in: 38}, nil, ""},
		{"vLLM", providers.CohereRerank, `{"id":"rerank-1","model":"bge","usage":{"total_tokens":56},"results":[]}`, units{in: 56}, nil, ""},
		{"rankings that say nothing", providers.CohereRerank, `{"results":[],"meta":null,"usage":null}`, nil, nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := body(tc.dialect, tc.body)
			require.True(t, f.Terminal)
			require.Equal(t, tc.usage != nil, f.HasUsage)
			require.False(t, f.BadUsage)
			require.Equal(t, counts(tc.counted), f.Counted)
			require.Equal(t, tc.tier, f.Usage.ServiceTier)
			if tc.usage != nil {
				require.Equal(t, counts(tc.usage), f.Usage.Quantities)
				require.NotEmpty(t, f.Usage.Raw)
			}
		})
	}
}

func counts(units map[governance.Unit]int64) governance.Quantities {
	var q governance.Quantities
	for u, n := range units {
		q[u] = n
	}
	return q
}

func TestMediaUsage_ThatMakesNoSense(t *testing.T) {
	t.Parallel()
	for d, text := range map[providers.Dialect]string{
		providers.OpenAIImages:         `{"data":[],"usage":{"input_tokens":-1,"output_tokens":2}}`,
		providers.OpenAITranscriptions: `{"text":"","usage":{"type":"duration","seconds":-3}}`,
		providers.CohereRerank:         `{"results":[],"meta":{"billed_units":{"search_units":1.5}}}`,
	} {
		f := body(d, text)
		require.False(t, f.HasUsage, text)
		require.True(t, f.BadUsage, text)
	}
}

package jsonedit_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
)

func TestFacts(t *testing.T) {
	t.Parallel()
	png := "data:image/png;base64," + strings.Repeat("iVBO", 1000)
	for name, c := range map[string]struct {
		body string
		want jsonedit.Facts
	}{
		"empty": {`{}`, jsonedit.Facts{Prompts: 1}},
		"what the model does not read": {
			`{"model":"m","user":"somebody","metadata":{"a":"b"},"stop":["x"]}`,
			jsonedit.Facts{Prompts: 1},
		},
		"chat": {
			`{"messages":[{"role":"system","content":"12345"},{"role":"user","name":"ab","content":[{"type":"text","text":"123"}]}]}`,
			jsonedit.Facts{TextBytes: 10, Messages: 2, Prompts: 1},
		},
		"unescaped": {
			`{"messages":[{"content":"\u4e2d\ud83d\ude00\n\"\ud800\ud800x\u0041\/"},{"content":"中"}]}`,
			jsonedit.Facts{TextBytes: 3 + 4 + 1 + 1 + 3 + 3 + 1 + 1 + 1 + 3, Messages: 2, Prompts: 1},
		},
		"image": {
			`{"messages":[{"content":[{"image_url":{"detail":"high","url":"` + png + `"},"type":"image_url"},{"type":"text","text":"abc"}]}]}`,
			jsonedit.Facts{TextBytes: 3, Messages: 1, Prompts: 1, Images: 1},
		},
		"a data URL in a text is text": {
			`{"messages":[{"content":[{"type":"text","text":"data:image/png;base64,AAAA"}]}]}`,
			jsonedit.Facts{TextBytes: 26, Messages: 1, Prompts: 1},
		},
		"responses": {
			`{"instructions":"123","input":[{"role":"user","content":[{"type":"input_text","text":"12"},{"type":"input_image","image_url":"` + png + `"},` +
				`{"type":"input_file","file_data":"data:application/pdf;base64,AAAA"},{"type":"input_file","file_id":"file-1"}]},` +
				`{"type":"function_call","arguments":"{}","name":"f"},{"type":"image_generation_call","result":"AAAAAAAA"},{"result":"1234","type":"other"}]}`,
			jsonedit.Facts{TextBytes: 3 + 2 + 2 + 1 + 4, Messages: 4, Prompts: 1, Images: 2, Files: 2, FileBytes: 3},
		},
		"audio": {
			`{"messages":[{"content":[{"type":"input_audio","input_audio":{"data":"UklGR` + strings.Repeat("A", 128_000) + `","format":"wav"}},` +
				`{"type":"input_audio","input_audio":{"data":"` + strings.Repeat("A", 32_000) + `","format":"mp3"}}]}]}`,
			jsonedit.Facts{Messages: 1, Prompts: 1, Audios: 2, AudioSeconds: 4 + 4},
		},
		"chat file": {
			`{"messages":[{"content":[{"type":"file","file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,AAAAAAAA"}}]}]}`,
			jsonedit.Facts{Messages: 1, Prompts: 1, Files: 1, FileBytes: 6},
		},
		"anthropic": {
			`{"system":[{"type":"text","text":"123","cache_control":{"type":"ephemeral","ttl":"1h"}}],"messages":[{"role":"user","content":[` +
				`{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}},` +
				`{"source":{"data":"AAAA","media_type":"image/png","type":"base64"},"type":"image"},` +
				`{"source":{"type":"url","url":"https://example.com/i.png"},"type":"image"},` +
				`{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"AAAA"}},` +
				`{"type":"document","source":{"data":"1234567","media_type":"text/plain","type":"text"}},` +
				`{"type":"document","source":{"type":"content","content":[{"type":"text","text":"12"},{"type":"image","source":{"type":"file","file_id":"f"}}]}},` +
				`{"type":"search_result","source":"12","title":"3"},` +
				`{"type":"thinking","thinking":"1234","signature":"AAAAAAAAAA"},` +
				`{"type":"tool_use","id":"1","name":"2","input":{"ab":"cde","ab":1}}]}]}`,
			jsonedit.Facts{
				TextBytes: 3 + 7 + 2 + 3 + 4 + 2 + 7, Messages: 1, Prompts: 1, Images: 4, Files: 1, FileBytes: 3,
				CacheWrite: true, CacheHour: true,
			},
		},
		"cache_control at the top": {`{"cache_control":{"type":"ephemeral"}}`, jsonedit.Facts{Prompts: 1, CacheWrite: true}},
		"cache_control null":       {`{"cache_control":null,"messages":[{"cache_control":null}]}`, jsonedit.Facts{Messages: 1, Prompts: 1}},
		"tools": {
			`{"tools":[{"type":"function","function":{"name":"f","description":"12","parameters":{"type":"object","properties":{"a":{"type":["string","null"]}}}}}],` +
				`"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"x","x":1,"x":2}}}}`,
			jsonedit.Facts{TextBytes: 1 + 2 + 4 + 6 + 10 + 1 + 4 + 6 + 4 + 1 + 4 + 1 + 1 + 1, Prompts: 1},
		},
		"odd kinds": {
			`{"messages":[{"type":["12"],"result":{"a":"3"},"source":["4",{"source":{"source":{"text":"5"}}}],"image_url":null,"input_audio":7,"file":[]}]}`,
			jsonedit.Facts{TextBytes: 5, Messages: 1, Prompts: 1, Files: 2},
		},
		"one prompt":              {`{"prompt":"123","suffix":"4"}`, jsonedit.Facts{TextBytes: 4, Prompts: 1}},
		"prompts":                 {`{"prompt":["1","23",""]}`, jsonedit.Facts{TextBytes: 3, Prompts: 3}},
		"a prompt of tokens":      {`{"prompt":[1,22,333]}`, jsonedit.Facts{TokenIDs: 3, Prompts: 1}},
		"prompts of tokens":       {`{"input":[[1,22],[333]]}`, jsonedit.Facts{TokenIDs: 3, Prompts: 2}},
		"a prompt by reference":   {`{"prompt":{"id":"p","variables":{"a":"bc"}}}`, jsonedit.Facts{TextBytes: 3, Prompts: 1}},
		"prompt of other numbers": {`{"messages":[{"content":[1,2]}],"prompt":[null]}`, jsonedit.Facts{Messages: 1, Prompts: 1}},
		"rerank":                  {`{"query":"12","documents":["3",{"text":"45"}]}`, jsonedit.Facts{TextBytes: 5, Prompts: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Empty(t, cmp.Diff(c.want, parse(t, c.body).Facts()))
		})
	}
}

func TestFacts_PromptTokens(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]int64{
		`{}`: 0,
		`{"messages":[{"role":"user","content":"1234"}]}`:                             2 + 4,
		`{"messages":[{"role":"user","content":"123"},{"role":"user"}]}`:              1 + 8,
		`{"prompt":[[1,2,3],[4]]}`:                                                    4,
		`{"messages":[{"content":[{"image_url":"data:image/png;base64,AAAA"}]}]}`:     4 + 1600,
		`{"messages":[{"content":[{"input_audio":{"data":"AAAA","format":"mp3"}}]}]}`: 4 + 32,
		`{"input":[{"content":[{"file_data":"` + strings.Repeat("A", 6400) + `"}]}]}`: 4 + 4000 + 300,
	} {
		require.Equal(t, want, parse(t, body).Facts().PromptTokens(), body)
	}
}

// TestFacts_CountBytesOfDecodedText takes any text through the two forms in which encoders write it.
func TestFacts_CountBytesOfDecodedText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		quoted, err := json.Marshal(text)
		require.NoError(t, err)
		var escaped strings.Builder
		for _, r := range string(quoted) {
			if r < 0x80 {
				escaped.WriteRune(r)
				continue
			}
			escaped.WriteString(asciiEscape(r))
		}
		for _, literal := range []string{string(quoted), escaped.String()} {
			doc, err := jsonedit.Parse([]byte(`{"prompt":` + literal + `}`))
			require.NoError(t, err)
			require.Equal(t, int64(len(text)), doc.Facts().TextBytes, literal)
			got, _, err := doc.String("prompt")
			require.NoError(t, err)
			require.Equal(t, text, got)
		}
	})
}

// asciiEscape writes a rune as \\uXXXX, in two where it takes a surrogate pair.
func asciiEscape(r rune) string {
	var b strings.Builder
	for _, unit := range utf16.Encode([]rune{r}) {
		fmt.Fprintf(&b, `\u%04x`, unit)
	}
	return b.String()
}

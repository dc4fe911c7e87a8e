package translate_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
)

func FuzzChatToMessages(f *testing.F)      { fuzz(f, chat, messages) }
func FuzzMessagesToChat(f *testing.F)      { fuzz(f, messages, chat) }
func FuzzChatToResponses(f *testing.F)     { fuzz(f, chat, responded) }
func FuzzResponsesToChat(f *testing.F)     { fuzz(f, responded, chat) }
func FuzzMessagesToResponses(f *testing.F) { fuzz(f, messages, responded) }
func FuzzResponsesToMessages(f *testing.F) { fuzz(f, responded, messages) }
func FuzzChatToGemini(f *testing.F)        { fuzz(f, chat, gemini) }
func FuzzMessagesToGemini(f *testing.F)    { fuzz(f, messages, gemini) }
func FuzzResponsesToGemini(f *testing.F)   { fuzz(f, responded, gemini) }
func FuzzMessagesToConverse(f *testing.F)  { fuzz(f, messages, converse) }
func FuzzChatToConverse(f *testing.F)      { fuzz(f, chat, converse) }
func FuzzResponsesToConverse(f *testing.F) { fuzz(f, responded, converse) }

// fuzz feeds any request, any answer and any stream to a translator. Whatever comes: a request becomes a body that is read in
// one way or a refusal; an answer becomes JSON or an error; a stream becomes whole events of JSON, the same in any chunking,
// and while all is well its text is the upstream's.
func fuzz(f *testing.F, from, to providers.Dialect) {
	tr := between(f, from, to)
	dirs, err := filepath.Glob(filepath.Join(folder(tr), "*"))
	require.NoError(f, err)
	for _, dir := range dirs {
		seed := func(file string) []byte {
			b, err := os.ReadFile(filepath.Join(dir, file))
			if !errors.Is(err, os.ErrNotExist) {
				require.NoError(f, err)
			}
			return b
		}
		f.Add(seed("client.json"), append(seed("upstream.json"), seed("upstream.txt")...))
	}
	f.Add([]byte(clientOf(from)), []byte(said{reasoning: []string{"a"}, text: []string{"b"}, finish: "stop"}.in(to)))
	f.Fuzz(func(t *testing.T, client, upstream []byte) {
		doc, err := jsonedit.Parse(client)
		if err != nil {
			doc = parse(t, clientOf(from))
		}
		if out, _, err := tr.Request(doc, model(tr)); err == nil {
			_, err := jsonedit.Parse(out)
			require.NoError(t, err, string(out))
		} else {
			var refusal *governance.Error
			require.ErrorAs(t, err, &refusal)
			require.Equal(t, governance.CodeInvalidRequest, refusal.Code)
		}
		if body, err := tr.NewAnswer(doc).Body(upstream); err == nil {
			requireJSON(t, body)
		}
		requireJSON(t, tr.NewAnswer(doc).Error(500, upstream))

		out, err := stream(tr.NewAnswer(doc), bytes.NewReader(upstream))
		again, againErr := stream(tr.NewAnswer(doc), iotest.OneByteReader(bytes.NewReader(upstream)))
		require.Equal(t, out, again)
		require.Equal(t, err == nil, againErr == nil)
		for _, ev := range events(t, out) {
			if string(ev.Data) != "[DONE]" {
				requireJSON(t, ev.Data)
			}
		}
		if want, ok := heard(to, upstream); ok && err == nil && to != gemini && to != converse {
			require.Equal(t, want, string(spoken(t, from, out)))
		}
	})
}

func requireJSON(t *testing.T, text []byte) {
	t.Helper()
	require.True(t, jsontext.Value(text).IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)), "%q", text)
}

// heard returns the text of an upstream's stream, as the inside of a JSON string; ok is false where an odd stream leaves
// open what its text is.
func heard(d providers.Dialect, upstream []byte) (text string, ok bool) {
	var b strings.Builder
	for r := sse.NewReader(bytes.NewReader(upstream)); ; {
		ev, err := r.Next()
		if errors.Is(err, io.EOF) {
			return b.String(), true
		}
		if err != nil {
			return "", false
		}
		data := bytes.TrimSpace(ev.Data)
		if len(data) == 0 || string(data) == "null" || string(data) == "[DONE]" {
			continue
		}
		var frame struct {
			Type         string         `json:"type"`
			Delta        jsontext.Value `json:"delta"`
			ContentBlock jsontext.Value `json:"content_block"`
			Choices      []struct {
				Index int `json:"index"`
				Delta struct {
					Content jsontext.Value `json:"content"`
					Refusal jsontext.Value `json:"refusal"`
				} `json:"delta"`
			} `json:"choices"`
		}
		if json.Unmarshal(data, &frame) != nil {
			return "", false
		}
		add := func(literal jsontext.Value) {
			if len(literal) > 0 && literal[0] == '"' {
				b.Write(literal[1 : len(literal)-1])
			}
		}
		switch d {
		case chat:
			for _, choice := range frame.Choices {
				if choice.Index == 0 {
					add(choice.Delta.Content)
				}
				if len(choice.Delta.Refusal) > 2 || len(choice.Delta.Content) > 0 && choice.Delta.Content[0] == '[' {
					return "", false
				}
			}
		case messages:
			var delta, block struct {
				Type string         `json:"type"`
				Text jsontext.Value `json:"text"`
			}
			if len(frame.Delta) > 0 && json.Unmarshal(frame.Delta, &delta) != nil || len(frame.ContentBlock) > 0 && json.Unmarshal(frame.ContentBlock, &block) != nil {
				return "", false
			}
			if frame.Type == "content_block_start" && block.Type == "text" {
				add(block.Text)
			}
			if frame.Type == "content_block_delta" && delta.Type == "text_delta" {
				add(delta.Text)
			}
		default:
			if frame.Type == "response.output_text.delta" {
				add(frame.Delta)
			}
		}
		if frame.Type == "" && d != chat {
			return "", false // its name may be in the event
		}
		if ended(d, frame.Type) {
			return b.String(), true
		}
	}
}

func ended(d providers.Dialect, kind string) bool {
	return d == messages && kind == "message_stop" || d == responded && (kind == "response.completed" || kind == "response.incomplete")
}

// spoken returns the text that a client hears, as the inside of a JSON string.
func spoken(t *testing.T, d providers.Dialect, out string) (words pieces) {
	t.Helper()
	for _, ev := range events(t, out) {
		switch {
		case d == messages:
			words.add(t, ev.Data, "delta", "text")
		case d == responded && string(ev.Name) == "response.output_text.delta":
			words.add(t, ev.Data, "delta")
		case d == chat && string(ev.Data) != "[DONE]":
			var chunk struct {
				Choices []struct {
					Delta jsontext.Value `json:"delta"`
				} `json:"choices"`
			}
			require.NoError(t, json.Unmarshal(ev.Data, &chunk, jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true)))
			if len(chunk.Choices) > 0 {
				words.add(t, chunk.Choices[0].Delta, "content")
			}
		}
	}
	return words
}

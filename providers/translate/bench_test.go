package translate_test

import (
	"io"
	"strings"
	"testing"

	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
	"github.com/tollgate-gateway/tollgate/providers/translate"
)

// BenchmarkFrame measures what one frame of text costs in a stream, beyond reading it: the text of a token, and a long one.
func BenchmarkFrame(b *testing.B) {
	for _, tr := range translate.All(clock) {
		for size, text := range map[string]string{"token": " token", "64KiB": strings.Repeat("quick fox ", 6_554)} {
			b.Run(strings.TrimPrefix(folder(tr), "testdata/")+"/"+size, func(b *testing.B) {
				all := events(b, said{text: []string{text}, finish: "stop"}.in(tr.To()))
				at := 0
				for !strings.Contains(string(all[at].Data), text) {
					at++
				}
				var answer providers.Answer
				b.ReportAllocs()
				b.SetBytes(int64(len(all[at].Data)))
				for n := 0; b.Loop(); n++ {
					if n%100 == 0 { // some dialects hold the whole answer
						answer = tr.NewAnswer(parse(b, clientOf(tr.From())))
						feed(b, answer, all[:at]...)
					}
					feed(b, answer, all[at])
				}
			})
		}
	}
}

func feed(b *testing.B, answer providers.Answer, all ...sse.Event) {
	for _, ev := range all {
		if err := answer.Event(io.Discard, ev); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRequest measures a conversation with an image of a megabyte.
func BenchmarkRequest(b *testing.B) {
	image := strings.Repeat("iVBORw0K", 1<<17)
	bodies := map[providers.Dialect]string{
		providers.OpenAIChat: `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[{"type":"text","text":"What?"},` +
			`{"type":"image_url","image_url":{"url":"data:image/png;base64,` + image + `"}}]}]}`,
		providers.AnthropicMessages: `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[{"type":"text","text":"What?"},` +
			`{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + image + `"}}]}]}`,
		providers.OpenAIResponses: `{"model":"m","max_output_tokens":9,"input":[{"role":"user","content":[{"type":"input_text","text":"What?"},` +
			`{"type":"input_image","image_url":"data:image/png;base64,` + image + `"}]}]}`,
	}
	for _, tr := range translate.All(clock) {
		b.Run(strings.TrimPrefix(folder(tr), "testdata/"), func(b *testing.B) {
			doc := parse(b, bodies[tr.From()])
			b.ReportAllocs()
			b.SetBytes(int64(len(bodies[tr.From()])))
			for b.Loop() {
				if _, _, err := tr.Request(doc, model(tr)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

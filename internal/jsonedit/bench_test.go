package jsonedit_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
)

// chatBody returns a chat request of about size bytes: a conversation of English with a few escapes.
func chatBody(size int) []byte {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	line := strings.Repeat("The quick brown fox \"jumps\" over the lazy dog, as 狐 do.\n", 8)
	body := struct {
		Model    string    `json:"model"`
		Stream   bool      `json:"stream"`
		Messages []message `json:"messages"`
	}{Model: "gpt-4o", Stream: true}
	for n := 0; n < size; n += len(line) {
		body.Messages = append(body.Messages, message{"user", line[:min(len(line), size)]})
	}
	raw, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return raw
}

// imageBody returns a request with one base64 image of about size bytes.
func imageBody(size int) []byte {
	return fmt.Appendf(nil, `{"model":"gpt-4o","messages":[{"role":"user","content":[{"type":"text","text":"What is this?"},`+
		`{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}]}]}`, strings.Repeat("iVBORw0KGgo+", size/12))
}

// longNames returns n distinct names of about size bytes that differ only at their ends.
func longNames(n, size int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = strings.Repeat("n", size) + strconv.Itoa(i)
	}
	return names
}

func benchmarkBodies(b *testing.B, run func(b *testing.B, body []byte)) {
	for name, body := range map[string][]byte{
		"1KB":        chatBody(1 << 10),
		"100KB":      chatBody(100 << 10),
		"30MB":       chatBody(30 << 20),
		"30MB/image": imageBody(30 << 20),
		"30MB/names": []byte(`{"metadata":{"` + strings.Join(longNames(9_999, 3_000), `":0,"`) + `":0}}`),
		"2MB/tokens": []byte(`{"input":[` + strings.Repeat("1,", 999_000) + `1]}`),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			run(b, body)
		})
	}
}

func BenchmarkParse(b *testing.B) {
	benchmarkBodies(b, func(b *testing.B, body []byte) {
		for b.Loop() {
			if _, err := jsonedit.Parse(body); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkWith(b *testing.B) {
	benchmarkBodies(b, func(b *testing.B, body []byte) {
		doc, err := jsonedit.Parse(body)
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			_, err := doc.With(jsonedit.At("model").String("other"), jsonedit.At("stream_options", "include_usage").Bool(true))
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}

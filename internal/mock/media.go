package mock

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
)

// pixel is a PNG of one transparent pixel.
const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

// images are n pictures of a pixel each. A stream shows the partial ones that were asked for first.
func (c *call) images() answer {
	n := c.body.choices()
	if !c.body.Stream {
		picture := `{"b64_json":"` + pixel + `"}`
		return unary(`{"created":` + created + `,"data":[` + picture + strings.Repeat(","+picture, n-1) + `],` + c.flatUsage(n, "input_tokens_details") + `}`)
	}
	kind := "image_generation"
	if c.path == "/images/edits" {
		kind = "image_edit"
	}
	var frames [][]byte
	for i := range min(max(c.body.PartialImages, 0), 3) {
		frames = append(frames, named(kind+".partial_image", `"b64_json":"`+pixel+`","partial_image_index":`+strconv.Itoa(i)))
	}
	return streamOf(1, append(frames, named(kind+".completed", `"b64_json":"`+pixel+`",`+c.flatUsage(1, "input_tokens_details")))...)
}

// named is an event that carries its name twice, as those of images and audio do.
func named(kind, members string) []byte {
	return []byte("event: " + kind + "\ndata: " + `{"type":"` + kind + `",` + members + "}\n\n")
}

// flatUsage is the member usage of images and audio. details names that of the input, which has all of it as text.
func (c *call) flatUsage(out int, details string) string {
	if c.script.usageMode == usageNever {
		return `"usage":null`
	}
	u := c.count(out)
	return `"usage":{"type":"tokens","input_tokens":` + strconv.Itoa(u.in) + `,"` + details + `":{"text_tokens":` + strconv.Itoa(u.in) +
		`},"output_tokens":` + strconv.Itoa(u.out) + `,"total_tokens":` + strconv.Itoa(u.in+u.out) + `}`
}

// transcript is the answer's text in the format that was asked for.
func (c *call) transcript() answer {
	words := c.text()
	text, usage := strings.Join(words, ""), c.transcriptUsage(len(words))
	if c.body.Stream {
		var frames [][]byte
		for _, word := range words {
			frames = append(frames, named("transcript.text.delta", `"delta":`+string(quote(word))))
		}
		return streamOf(1, append(frames, named("transcript.text.done", `"text":`+string(quote(text))+`,`+usage))...)
	}
	var format string
	if len(c.body.ResponseFormat) > 0 {
		_ = decode(c.body.ResponseFormat, &format) // any other kind is the default
	}
	written := func(contentType, text string) answer {
		return answer{status: http.StatusOK, contentType: contentType, frames: [][]byte{[]byte(text)}}
	}
	switch format {
	case "text":
		return written(contentPlain, text+"\n")
	case "srt":
		return written(contentPlain, "1\n00:00:00,000 --> 00:00:08,470\n"+text+"\n")
	case "vtt":
		return written("text/vtt; charset=utf-8", "WEBVTT\n\n00:00:00.000 --> 00:00:08.470\n"+text+"\n")
	case "verbose_json":
		return unary(`{"task":"transcribe","language":"english","duration":8.470000267028809,"text":` + string(quote(text)) + `,"segments":[],` + usage + `}`)
	}
	return unary(`{"text":` + string(quote(text)) + `,` + usage + `}`)
}

func (c *call) transcriptUsage(out int) string {
	if c.script.seconds > 0 {
		return `"usage":{"type":"duration","seconds":` + strconv.Itoa(c.script.seconds) + `}`
	}
	return c.flatUsage(out, "input_token_details")
}

// speech is no sound that can be heard: a tag as an MP3 has it, and a piece for each word. As events it has the same pieces.
func (c *call) speech() answer {
	pieces := [][]byte{[]byte("ID3\x04\x00\x00\x00\x00\x00\x00")}
	for _, word := range c.text() {
		pieces = append(pieces, []byte("\xff\xfb\x90\x00"+word))
	}
	if c.body.StreamFormat != "sse" {
		return answer{status: http.StatusOK, contentType: "audio/mpeg", stream: true, frames: pieces}
	}
	var frames [][]byte
	for _, piece := range pieces {
		frames = append(frames, named("speech.audio.delta", `"audio":"`+base64.StdEncoding.EncodeToString(piece)+`"`))
	}
	return streamOf(1, append(frames, named("speech.audio.done", c.flatUsage(len(pieces)-1, "input_token_details")))...)
}

package mock

import (
	"strconv"
	"strings"
)

// anthropicUsage counts cached tokens apart, as Anthropic does.
func anthropicUsage(u usage, out int) string {
	return `{"input_tokens":` + strconv.Itoa(u.in-u.cached) + `,"cache_creation_input_tokens":0,"cache_read_input_tokens":` + strconv.Itoa(u.cached) +
		`,"output_tokens":` + strconv.Itoa(out) + `,"service_tier":"standard"}`
}

func (c *call) messages() answer {
	words, missing := c.cut(1 << 30)
	stop := "end_turn"
	if missing {
		stop = "max_tokens"
	}
	u := c.count(len(words))
	head := `{"id":"msg_mock_` + c.number() + `","type":"message","role":"assistant","model":` + c.model()
	withUsage := func(s, usage string) string {
		if c.script.usageMode == usageNever {
			return s
		}
		return s + `,"usage":` + usage
	}
	if !c.body.Stream {
		return unary(withUsage(head+`,"content":[{"type":"text","text":`+string(quote(strings.Join(words, "")))+`}],"stop_reason":"`+stop+`","stop_sequence":null`,
			anthropicUsage(u, u.out)) + "}")
	}
	var frames [][]byte
	add := func(name, members string) {
		frames = append(frames, event(name, []byte(`{"type":"`+name+`"`+members+"}")))
	}
	add("message_start", `,"message":`+withUsage(head+`,"content":[],"stop_reason":null,"stop_sequence":null`, anthropicUsage(u, 1))+"}")
	add("content_block_start", `,"index":0,"content_block":{"type":"text","text":""}`)
	add("ping", "")
	if c.script.giantLine > 0 {
		words = append([]string{strings.Repeat("x", c.script.giantLine)}, words...)
	}
	for _, word := range words {
		add("content_block_delta", `,"index":0,"delta":{"type":"text_delta","text":`+string(quote(word))+"}")
	}
	add("content_block_stop", `,"index":0`)
	add("message_delta", withUsage(`,"delta":{"stop_reason":"`+stop+`","stop_sequence":null}`, anthropicUsage(u, u.out)))
	add("message_stop", "")
	return streamOf(1, frames...)
}

package mock

import (
	"net/http"
	"strconv"
	"strings"
)

// anthropicUsage counts cached tokens apart, as Anthropic does. As a placeholder it stands at the beginning of a stream.
func (c *call) anthropicUsage(u usage, placeholder bool) string {
	fiveMinutes, hour := c.script.cacheWrites[0], c.script.cacheWrites[1]
	out := u.out
	if placeholder {
		out = 1
	}
	s := `{"input_tokens":` + strconv.Itoa(u.in-u.cached) + `,"cache_creation_input_tokens":` + strconv.Itoa(fiveMinutes+hour) +
		`,"cache_read_input_tokens":` + strconv.Itoa(u.cached) + `,"cache_creation":{"ephemeral_5m_input_tokens":` + strconv.Itoa(fiveMinutes) +
		`,"ephemeral_1h_input_tokens":` + strconv.Itoa(hour) + `},"output_tokens":` + strconv.Itoa(out)
	if u.reasoning > 0 && !placeholder {
		s += `,"output_tokens_details":{"thinking_tokens":` + strconv.Itoa(u.reasoning) + `}`
	}
	return s + `,"service_tier":"standard"}`
}

// contentBlock is a block of a message: as a whole, and in the pieces of a stream.
type contentBlock struct {
	whole  string
	start  string
	deltas []string
}

func textBlock(words []string) contentBlock {
	b := contentBlock{
		whole: `{"type":"text","text":` + string(quote(strings.Join(words, ""))) + `}`,
		start: `{"type":"text","text":""}`,
	}
	for _, word := range words {
		b.deltas = append(b.deltas, `{"type":"text_delta","text":`+string(quote(word))+`}`)
	}
	return b
}

// toolBlock is the use of a tool; its input comes in two pieces, cut where no JSON ends.
func toolBlock(id string, use toolUse) contentBlock {
	head := `{"type":"tool_use","id":"` + id + `","name":` + string(quote(use.name)) + `,"input":`
	b := contentBlock{whole: head + use.input + `}`, start: head + `{}}`}
	for _, piece := range []string{use.input[:len(use.input)/2], use.input[len(use.input)/2:]} {
		b.deltas = append(b.deltas, `{"type":"input_json_delta","partial_json":`+string(quote(piece))+`}`)
	}
	return b
}

// Thinking and Signature are what the script thinking puts ahead of an answer: a signature is for its maker alone to read.
const (
	Thinking  = "The user wants <words> & no more."
	Signature = "bW9jaw/c2lnbmF0dXJl+Q=="
)

func thinkingBlock() contentBlock {
	return contentBlock{
		whole: `{"type":"thinking","thinking":"` + Thinking + `","signature":"` + Signature + `"}`,
		start: `{"type":"thinking","thinking":"","signature":""}`,
		deltas: []string{
			`{"type":"thinking_delta","thinking":"` + Thinking[:9] + `"}`,
			`{"type":"thinking_delta","thinking":"` + Thinking[9:] + `"}`,
			`{"type":"signature_delta","signature":"` + Signature + `"}`,
		},
	}
}

// blocks returns the content of a message and why it ends.
func (c *call) blocks(words []string, missing bool) (blocks []contentBlock, stop string) {
	if c.script.thinking {
		blocks = append(blocks, thinkingBlock())
	}
	switch {
	case c.script.parallelTools:
		return append(blocks, toolBlock("toolu_mock_0", toolUse{"weather", `{"city":"Paris"}`}), toolBlock("toolu_mock_1", toolUse{"weather", `{"city":"Rome"}`})), "tool_use"
	case c.script.tool != nil:
		return append(blocks, toolBlock("toolu_mock_0", *c.script.tool)), "tool_use"
	case c.script.refusal:
		return blocks, "refusal"
	case missing:
		return append(blocks, textBlock(words)), "max_tokens"
	}
	return append(blocks, textBlock(words)), "end_turn"
}

func (c *call) messages() answer {
	switch {
	case c.r.Header.Get("Anthropic-Version") == "":
		return c.refuse(http.StatusBadRequest, "object", "anthropic-version: header is required")
	case c.body.MaxTokens == nil:
		return c.refuse(http.StatusBadRequest, "object", "max_tokens: Field required")
	}
	words, missing := c.cut(1 << 30)
	u := c.count(len(words))
	if c.script.giantLine > 0 {
		words = append([]string{strings.Repeat("x", c.script.giantLine)}, words...)
	}
	blocks, stop := c.blocks(words, missing)
	head := `{"id":"msg_mock_` + c.number() + `","type":"message","role":"assistant","model":` + c.model()
	withUsage := func(s, usage string) string {
		if c.script.usageMode == usageNever {
			return s
		}
		return s + `,"usage":` + usage
	}
	if !c.body.Stream {
		whole := make([]string, len(blocks))
		for i, b := range blocks {
			whole[i] = b.whole
		}
		return unary(withUsage(head+`,"content":[`+strings.Join(whole, ",")+`],"stop_reason":"`+stop+`","stop_sequence":null`,
			c.anthropicUsage(u, false)) + "}")
	}
	var frames [][]byte
	add := func(name, members string) {
		frames = append(frames, event(name, []byte(`{"type":"`+name+`"`+members+"}")))
	}
	add("message_start", `,"message":`+withUsage(head+`,"content":[],"stop_reason":null,"stop_sequence":null`, c.anthropicUsage(u, true))+"}")
	for i, b := range blocks {
		index := `,"index":` + strconv.Itoa(i)
		add("content_block_start", index+`,"content_block":`+b.start)
		if i == 0 {
			add("ping", "")
		}
		for _, delta := range b.deltas {
			add("content_block_delta", index+`,"delta":`+delta)
		}
		add("content_block_stop", index)
	}
	add("message_delta", withUsage(`,"delta":{"stop_reason":"`+stop+`","stop_sequence":null}`, c.anthropicUsage(u, false)))
	add("message_stop", "")
	return streamOf(1, frames...)
}

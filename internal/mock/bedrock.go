package mock

import (
	"encoding/binary"
	"hash/crc32"
	"net/http"
	"strconv"
	"strings"
)

// The methods of a model in Bedrock's API, behind the model's name.
const (
	bedrockWhole  = "/converse"
	bedrockStream = "/converse-stream"
)

// contentFrames is the type of Amazon's event streams.
const contentFrames = "application/vnd.amazon.eventstream"

// bedrockModel returns the model that a path of Bedrock's API names, and whether it asks for a stream. ok is false for others.
func bedrockModel(path string) (model string, stream, ok bool) {
	_, name, found := strings.Cut(path, "/model/")
	if !found {
		return "", false, false
	}
	if model, ok = strings.CutSuffix(name, bedrockStream); ok {
		return model, true, true
	}
	model, ok = strings.CutSuffix(name, bedrockWhole)
	return model, false, ok
}

// frame makes a message of Amazon's event stream from pairs of headers, which are texts, and a payload.
func frame(payload string, headers ...string) []byte {
	var head []byte
	for i := 0; i+1 < len(headers); i += 2 {
		name, value := headers[i], headers[i+1]
		head = append(append(head, byte(len(name))), name...)
		head = append(head, 7) // a text
		head = append(binary.BigEndian.AppendUint16(head, uint16(len(value))), value...)
	}
	const around = 16 // bytes of lengths and checksums
	b := binary.BigEndian.AppendUint32(nil, uint32(around+len(head)+len(payload)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(head)))
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	b = append(append(b, head...), payload...)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

// bedrockEvent makes an event of ConverseStream.
func bedrockEvent(name, payload string) []byte {
	return frame(payload, ":event-type", name, ":content-type", contentJSON, ":message-type", "event")
}

// bedrockException makes the failure of a stream that has begun.
func bedrockException(name, payload string) []byte {
	return frame(payload, ":exception-type", name, ":content-type", contentJSON, ":message-type", "exception")
}

// bedrockUsage counts cached tokens apart.
func (c *call) bedrockUsage(u usage) string {
	if c.script.usageMode == usageNever {
		return ""
	}
	fiveMinutes, hour := c.script.cacheWrites[0], c.script.cacheWrites[1]
	s := `,"usage":{"inputTokens":` + strconv.Itoa(u.in-u.cached) + `,"outputTokens":` + strconv.Itoa(u.out) +
		`,"totalTokens":` + strconv.Itoa(u.in+u.out) + `,"cacheReadInputTokens":` + strconv.Itoa(u.cached) +
		`,"cacheWriteInputTokens":` + strconv.Itoa(fiveMinutes+hour)
	if hour > 0 {
		s += `,"cacheDetails":[{"ttl":"1h","inputTokens":` + strconv.Itoa(hour) + `},{"ttl":"5m","inputTokens":` + strconv.Itoa(fiveMinutes) + `}]`
	}
	return s + `}`
}

// bedrockBlock is a block of an answer: as a whole, and in the pieces of a stream. A block of text or thoughts has no start.
type bedrockBlock struct {
	whole, start string
	deltas       []string
}

func bedrockTool(id string, use toolUse) bedrockBlock {
	head := `{"toolUse":{"toolUseId":"` + id + `","name":` + string(quote(use.name))
	b := bedrockBlock{whole: head + `,"input":` + use.input + `}}`, start: head + `}}`}
	for _, piece := range []string{use.input[:len(use.input)/2], use.input[len(use.input)/2:]} {
		b.deltas = append(b.deltas, `{"toolUse":{"input":`+string(quote(piece))+`}}`)
	}
	return b
}

// bedrockBlocks returns the content of an answer and why it ends.
func (c *call) bedrockBlocks(words []string, missing bool) (blocks []bedrockBlock, stop string) {
	if c.script.thinking {
		blocks = append(blocks, bedrockBlock{
			whole: `{"reasoningContent":{"reasoningText":{"text":"` + Thinking + `","signature":"` + Signature + `"}}}`,
			deltas: []string{
				`{"reasoningContent":{"text":"` + Thinking[:9] + `"}}`,
				`{"reasoningContent":{"text":"` + Thinking[9:] + `"}}`,
				`{"reasoningContent":{"signature":"` + Signature + `"}}`,
			},
		})
	}
	text := bedrockBlock{whole: `{"text":` + string(quote(strings.Join(words, ""))) + `}`}
	for _, word := range words {
		text.deltas = append(text.deltas, `{"text":`+string(quote(word))+`}`)
	}
	switch {
	case c.script.parallelTools:
		return append(blocks,
			bedrockTool("tooluse_mock_0", toolUse{"weather", `{"city":"Paris"}`}),
			bedrockTool("tooluse_mock_1", toolUse{"weather", `{"city":"Rome"}`})), "tool_use"
	case c.script.tool != nil:
		return append(blocks, bedrockTool("tooluse_mock_0", *c.script.tool)), "tool_use"
	case c.script.refusal:
		return blocks, "content_filtered"
	case missing:
		return append(blocks, text), "max_tokens"
	}
	return append(blocks, text), "end_turn"
}

// converse answers Converse and ConverseStream.
func (c *call) converse() answer {
	if len(c.body.Messages) == 0 {
		return c.refuse(http.StatusBadRequest, "object", "The value at messages is empty.")
	}
	words, missing := c.cut(1 << 30)
	u := c.count(len(words))
	blocks, stop := c.bedrockBlocks(words, missing)
	tail := c.bedrockUsage(u) + `,"metrics":{"latencyMs":42}}`
	if !c.body.Stream {
		whole := make([]string, len(blocks))
		for i, b := range blocks {
			whole[i] = b.whole
		}
		return unary(`{"output":{"message":{"role":"assistant","content":[` + strings.Join(whole, ",") + `]}},"stopReason":"` + stop + `"` + tail)
	}
	frames := [][]byte{bedrockEvent("messageStart", `{"p":"abc","role":"assistant"}`)}
	for i, b := range blocks {
		index := `"contentBlockIndex":` + strconv.Itoa(i)
		if b.start != "" {
			frames = append(frames, bedrockEvent("contentBlockStart", `{`+index+`,"start":`+b.start+`}`))
		}
		for _, delta := range b.deltas {
			frames = append(frames, bedrockEvent("contentBlockDelta", `{`+index+`,"delta":`+delta+`,"p":"abcdefgh"}`))
		}
		frames = append(frames, bedrockEvent("contentBlockStop", `{`+index+`}`))
	}
	frames = append(frames, bedrockEvent("messageStop", `{"stopReason":"`+stop+`"}`), bedrockEvent("metadata", "{"+strings.TrimPrefix(tail, ",")))
	a := streamOf(2, frames...)
	a.contentType = contentFrames
	return a
}

// bedrockKind is the name of an error of a status.
func bedrockKind(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "ValidationException"
	case http.StatusUnauthorized:
		return "UnrecognizedClientException"
	case http.StatusForbidden:
		return "AccessDeniedException"
	case http.StatusNotFound:
		return "ResourceNotFoundException"
	case http.StatusRequestTimeout:
		return "ModelTimeoutException"
	case http.StatusTooManyRequests:
		return "ThrottlingException"
	case http.StatusServiceUnavailable:
		return "ServiceUnavailableException"
	}
	return "InternalServerException"
}

package mock

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// created is the time in every answer, fixed so that answers are equal between runs.
const created = "1750000000"

// usage is what an answer reports; in includes cached, out includes reasoning.
type usage struct{ in, out, cached, reasoning int }

// answer makes the answer of the call's route.
func (c *call) answer() answer {
	script := c.script
	switch {
	case script.redirect != "":
		return answer{status: http.StatusTemporaryRedirect, contentType: contentPlain, frames: [][]byte{[]byte("Temporary Redirect")}}
	case script.status >= 400:
		return c.refuse(script.status, script.shape, "The mock was told to answer "+strconv.Itoa(script.status)+".")
	case script.errorBody:
		return c.refuse(http.StatusOK, "object", "The mock was told to fail with status 200.")
	case script.firstEventError:
		a := streamOf(0, c.errorFrame(http.StatusBadRequest, "object"))
		if c.dialect == bedrock {
			a.contentType = contentFrames
		}
		return a
	}
	a := c.route()
	if script.status != 0 && a.status == http.StatusOK {
		a.status = script.status
	}
	return a
}

func (c *call) route() answer {
	if a, ok := c.object(); ok {
		return a
	}
	if c.r.Method == http.MethodGet {
		return c.models()
	}
	switch c.dialect {
	case gemini:
		return c.generate()
	case bedrock:
		return c.converse()
	}
	switch c.path {
	case "/chat/completions":
		return c.chat()
	case "/completions":
		return c.completion()
	case "/messages":
		return c.messages()
	case "/messages/count_tokens":
		return unary(`{"input_tokens":` + strconv.Itoa(c.body.promptTokens()) + `}`)
	case "/embeddings":
		return c.embeddings()
	case "/moderations":
		return unary(`{"id":"modr-mock-` + c.number() + `","model":` + c.model() + `,"results":[{"flagged":false,"categories":{"violence":false},"category_scores":{"violence":0.0001}}]}`)
	case "/rerank":
		return c.rerank()
	case "/images/generations", "/images/edits", "/images/variations":
		return c.images()
	case "/audio/transcriptions", "/audio/translations":
		return c.transcript()
	case "/audio/speech":
		return c.speech()
	}
	return c.refuse(http.StatusNotFound, "object", "Unknown request URL: "+c.r.Method+" "+c.r.URL.Path+".")
}

func unary(body string) answer {
	return answer{status: http.StatusOK, contentType: contentJSON, frames: [][]byte{[]byte(body)}}
}

func streamOf(terminal int, frames ...[]byte) answer {
	return answer{status: http.StatusOK, contentType: contentSSE, stream: true, frames: frames, terminal: terminal}
}

func (c *call) number() string { return strconv.FormatInt(c.seen.ID, 10) }

// model returns the model's name as JSON.
func (c *call) model() string {
	if c.body.Model == "" {
		return `"mock"`
	}
	return string(quote(c.body.Model))
}

// text returns the words of the answer, not yet cut to the request's limit.
func (c *call) text() []string {
	switch {
	case c.script.echo:
		return []string{c.seen.BodySHA256}
	case c.script.content != nil:
		return c.script.content
	}
	return split(DefaultText)
}

// cut returns the words within the limit of the request, and whether some are missing.
func (c *call) cut(otherwise int) (words []string, missing bool) {
	words = c.text()
	if limit := c.body.limit(otherwise); limit < len(words) {
		return words[:limit], true
	}
	return words, false
}

// count returns the usage of an answer of out tokens, or what the script says.
func (c *call) count(out int) usage {
	if c.script.usage != nil {
		return *c.script.usage
	}
	return usage{in: c.body.promptTokens(), out: out}
}

// usageObject is OpenAI's usage of chat and legacy completions.
func usageObject(u usage) string {
	return `{"prompt_tokens":` + strconv.Itoa(u.in) + `,"completion_tokens":` + strconv.Itoa(u.out) + `,"total_tokens":` + strconv.Itoa(u.in+u.out) +
		`,"prompt_tokens_details":{"cached_tokens":` + strconv.Itoa(u.cached) + `,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":` +
		strconv.Itoa(u.reasoning) + `,"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}`
}

func (c *call) models() answer {
	const mock = `{"id":"mock","object":"model","created":` + created + `,"owned_by":"mock"}`
	name, one := strings.CutPrefix(c.path, "/models/")
	switch {
	case c.path == "/models" && c.dialect == anthropic:
		return unary(`{"data":[{"type":"model","id":"mock","display_name":"Mock","created_at":"2025-06-15T15:06:40Z"}],"has_more":false,"first_id":"mock","last_id":"mock"}`)
	case c.path == "/models":
		return unary(`{"object":"list","data":[` + mock + `]}`)
	case one && name == "mock":
		return unary(mock)
	}
	return c.refuse(http.StatusNotFound, "object", "No such object: "+c.path+".")
}

func (c *call) embeddings() answer {
	inputs := 1
	var elements []jsontext.Value
	if c.body.Input.Kind() == '[' && decode(c.body.Input, &elements) == nil && len(elements) > 0 && elements[0].Kind() != '0' {
		inputs = len(elements)
	}
	dimensions := c.body.Dimensions
	if dimensions < 1 || dimensions > 4096 {
		dimensions = 8
	}
	b := []byte(`{"object":"list","data":[`)
	for i := range inputs {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"object":"embedding","index":`...)
		b = strconv.AppendInt(b, int64(i), 10)
		b = append(b, `,"embedding":`...)
		b = appendVector(b, dimensions, c.body.EncodingFormat == "base64")
		b = append(b, '}')
	}
	b = append(b, `],"model":`+c.model()...)
	if c.script.usageMode != usageNever {
		u := c.count(0)
		b = append(b, `,"usage":{"prompt_tokens":`+strconv.Itoa(u.in)+`,"total_tokens":`+strconv.Itoa(u.in+u.out)+`}`...)
	}
	return unary(string(append(b, '}')))
}

// appendVector writes the vector 1/1, 1/2, 1/3 …, as numbers or as little-endian 32-bit floats in base64.
func appendVector(b []byte, dimensions int, asBase64 bool) []byte {
	if asBase64 {
		raw := make([]byte, 0, 4*dimensions)
		for i := range dimensions {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(1/float32(i+1)))
		}
		b = append(b, '"')
		b = base64.StdEncoding.AppendEncode(b, raw)
		return append(b, '"')
	}
	b = append(b, '[')
	for i := range dimensions {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendFloat(b, 1/float64(i+1), 'g', -1, 32)
	}
	return append(b, ']')
}

func (c *call) rerank() answer {
	var documents []jsontext.Value
	_ = decode(c.body.Documents, &documents) // absent or no list: no documents
	b := []byte(`{"id":"rerank-mock-` + c.number() + `","model":` + c.model() + `,"results":[`)
	for i := range documents {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"index":`+strconv.Itoa(i)+`,"relevance_score":0.`+strconv.Itoa(9-min(i, 8))+`}`...)
	}
	return unary(string(append(b, `],"meta":{"billed_units":{"search_units":1}},"usage":{"total_tokens":`+strconv.Itoa(c.count(0).in)+`}}`...)))
}

package e2e

import (
	"context"
	bits "encoding/binary"
	"encoding/json"
	"math"
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// sdk is a client library that users have, driven through one vocabulary so that one table of cases holds for all of them.
type sdk struct {
	name string
	do   func(context.Context, task) report
	// stainless libraries come from one generator: they repeat 429 and 5xx as the answer's headers say, have an accumulator
	// for streams and read whatever has the shape of JSON. go-openai does none of it.
	stainless bool
}

// Operations of a task.
const (
	opChat            = "chat"
	opStream          = "stream"
	opStreamHelper    = "stream_helper" // a stream through the library's own accumulator
	opTools           = "tools"         // a call with tools, then a second one to SecondModel with their results
	opEmbeddings      = "embeddings"
	opResponses       = "responses"
	opResponsesStream = "responses_stream"
	opModerations     = "moderations"
	opModels          = "models"
	opModel           = "model"

	opMessages       = "messages"
	opMessagesStream = "messages_stream"
	opMessagesHelper = "messages_helper"
	opMessagesTools  = "messages_tools"
	opCountTokens    = "count_tokens"
)

// task is one use of a library. The worker of the npm packages reads the same as JSON.
type task struct {
	ID           int64  `json:"id"`
	Library      string `json:"library,omitempty"` // of the worker: anthropic, else openai
	Op           string `json:"op"`
	BaseURL      string `json:"base_url"` // with /v1
	Key          string `json:"key"`
	Bearer       bool   `json:"bearer,omitempty"` // Anthropic's libraries send the key as a bearer token and not in x-api-key
	Model        string `json:"model"`
	SecondModel  string `json:"second_model,omitempty"`
	Text         string `json:"text"`
	N            int    `json:"n,omitempty"`
	MaxTokens    int    `json:"max_tokens,omitempty"`
	IncludeUsage *bool  `json:"include_usage,omitempty"` // nil: no stream_options
	Tools        bool   `json:"tools,omitempty"`         // stream_helper offers tools
	Format       string `json:"format,omitempty"`        // float, or base64
	MaxRetries   *int   `json:"max_retries,omitempty"`   // nil: the library's own default
}

// report is what the caller of a library sees.
type report struct {
	ID          int64      `json:"id"`
	Texts       []string   `json:"texts"`  // by index of the choice
	Finish      []string   `json:"finish"` // likewise
	Frames      int        `json:"frames"`
	UsageFrames int        `json:"usage_frames"`
	Usage       *usage     `json:"usage"`
	Tools       []toolCall `json:"tools"`
	Models      []string   `json:"models"`
	Vector      []float64  `json:"vector"`
	Flagged     *bool      `json:"flagged"`
	Thinking    string     `json:"thinking"`
	Signature   string     `json:"signature"`
	Error       *sdkError  `json:"error"`
	Requests    int        `json:"requests"` // that the library's transport sent
	WaitedMS    float64    `json:"waited_ms"`
	RequestID   string     `json:"request_id"`
}

type usage struct {
	Input  int64 `json:"input"`
	Output int64 `json:"output"`
}

type toolCall struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// sdkError is an error as the library shows it. What it does not show is empty.
type sdkError struct {
	Class      string `json:"class"`
	API        bool   `json:"api"` // an answer of the API, not a fault of the transport
	Status     int    `json:"status"`
	Code       string `json:"code"`
	Type       string `json:"type"`
	Param      string `json:"param"`
	Message    string `json:"message"`
	RequestID  string `json:"request_id"`
	RetryAfter string `json:"retry_after"`
}

// counter is the transport below a Go library: it counts what is really sent.
type counter struct{ sent atomic.Int64 }

func (c *counter) RoundTrip(r *http.Request) (*http.Response, error) {
	c.sent.Add(1)
	return client.Transport.RoundTrip(r)
}

// measured runs a task of a Go library and fills in what all reports have.
func measured(t task, use func(*http.Client, *report) error, explain func(error) *sdkError) report {
	r := report{ID: t.ID}
	transport := &counter{}
	began := time.Now()
	if err := use(&http.Client{Transport: transport}, &r); err != nil {
		r.Error = explain(err)
	}
	r.WaitedMS = float64(time.Since(began).Microseconds()) / 1000
	r.Requests = int(transport.sent.Load())
	return r
}

// say adds a piece of a choice's text.
func (r *report) say(index int, text, finish string) {
	for len(r.Texts) <= index {
		r.Texts, r.Finish = append(r.Texts, ""), append(r.Finish, "")
	}
	r.Texts[index] += text
	if finish != "" {
		r.Finish[index] = finish
	}
}

// sdks returns all libraries.
func sdks(t *testing.T) []sdk {
	t.Helper()
	return []sdk{
		{name: "go-openai", do: goOpenAI},
		{name: "openai-go", do: openAIGo, stainless: true},
		{name: "openai-node", do: startNode(t, "worker.mjs"), stainless: true},
	}
}

// decodeVector reads the member embedding of raw: little-endian 32-bit floats in base64.
func decodeVector(raw string) ([]float64, error) {
	var said struct {
		Embedding []byte `json:"embedding"`
	}
	if err := json.Unmarshal([]byte(raw), &said); err != nil {
		return nil, err
	}
	vector := make([]float64, len(said.Embedding)/4)
	for i := range vector {
		vector[i] = float64(math.Float32frombits(bits.LittleEndian.Uint32(said.Embedding[4*i:])))
	}
	return vector, nil
}

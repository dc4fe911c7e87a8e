package mock

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"

	"github.com/coder/websocket"
)

// response makes a Responses object in one of its states.
func (c *call) response(id, status, output string, u *usage) string {
	reported := "null"
	if u != nil && c.script.usageMode != usageNever {
		reported = `{"input_tokens":` + strconv.Itoa(u.in) + `,"input_tokens_details":{"cached_tokens":` + strconv.Itoa(u.cached) + `},"output_tokens":` +
			strconv.Itoa(u.out) + `,"output_tokens_details":{"reasoning_tokens":` + strconv.Itoa(u.reasoning) + `},"total_tokens":` + strconv.Itoa(u.in+u.out) + `}`
	}
	details := "null"
	if status == "incomplete" {
		details = `{"reason":"max_output_tokens"}`
	}
	previous := "null"
	if c.body.PreviousResponseID != "" {
		previous = string(quote(c.body.PreviousResponseID))
	}
	return `{"id":"` + id + `","object":"response","created_at":` + created + `,"status":"` + status + `","error":null,"incomplete_details":` + details +
		`,"model":` + c.model() + `,"previous_response_id":` + previous + `,"output":` + output + `,"parallel_tool_calls":true,"tools":[],"usage":` + reported + `}`
}

// responseParts are the pieces of one Responses answer.
type responseParts struct {
	id, status string
	sealed     string // its encrypted reasoning, an output item before the other; "": it was not asked for
	item       string // its other output item, complete
	words      []string
	usage      usage
}

func (c *call) responseParts() responseParts {
	words, missing := c.cut(1 << 30)
	p := responseParts{id: "resp_mock_" + c.number(), status: "completed", words: words, usage: c.count(len(words))}
	if bytes.Contains(c.body.Include, []byte(`"reasoning.encrypted_content"`)) {
		p.sealed = `{"id":"rs_mock_` + c.number() + `","type":"reasoning","summary":[],"encrypted_content":"sealed-` + c.number() + `"}`
	}
	if use := c.script.tool; use != nil {
		p.item = c.functionCall("completed", use.input)
		return p
	}
	if missing {
		p.status = "incomplete"
	}
	p.item = `{"id":"msg_mock_` + c.number() + `","type":"message","status":"` + p.status + `","role":"assistant","content":[{"type":"output_text","text":` +
		string(quote(strings.Join(words, ""))) + `,"annotations":[]}]}`
	return p
}

// output is all of an answer's items.
func (p *responseParts) output() string {
	if p.sealed == "" {
		return "[" + p.item + "]"
	}
	return "[" + p.sealed + "," + p.item + "]"
}

// functionCall is the output item of a tool's use.
func (c *call) functionCall(status, arguments string) string {
	return `{"id":"fc_mock_` + c.number() + `","type":"function_call","status":"` + status + `","call_id":"call_mock_0","name":` +
		string(quote(c.script.tool.name)) + `,"arguments":` + string(quote(arguments)) + `}`
}

func (c *call) createResponse() answer {
	if id := c.body.PreviousResponseID; id != "" && c.server.objects.get("responses", id) == "" {
		return c.refuse(http.StatusNotFound, "object", "Previous response with id '"+id+"' not found.")
	}
	p := c.responseParts()
	body := c.response(p.id, p.status, p.output(), &p.usage)
	c.server.objects.put("responses", p.id, body)
	if !c.body.Stream {
		return unary(body)
	}
	var frames [][]byte
	for _, e := range c.responseEvents(p, body) {
		frames = append(frames, event(e.name, e.data))
	}
	return streamOf(1, frames...)
}

type namedEvent struct {
	name string
	data []byte
}

func (c *call) responseEvents(p responseParts, body string) []namedEvent {
	var events []namedEvent
	add := func(name, members string) {
		data := `{"type":"` + name + `","sequence_number":` + strconv.Itoa(len(events)) + "," + members + "}"
		events = append(events, namedEvent{name, []byte(data)})
	}
	at := `"output_index":0,`
	if p.sealed != "" {
		at = `"output_index":1,`
	}
	item := `"msg_mock_` + c.number() + `"`
	place := `"item_id":` + item + "," + at + `"content_index":0,`
	text := string(quote(strings.Join(p.words, "")))
	part := func(text string) string { return `"part":{"type":"output_text","text":` + text + `,"annotations":[]}` }

	add("response.created", `"response":`+c.response(p.id, "in_progress", "[]", nil))
	add("response.in_progress", `"response":`+c.response(p.id, "in_progress", "[]", nil))
	if p.sealed != "" {
		add("response.output_item.added", `"output_index":0,"item":{"id":"rs_mock_`+c.number()+`","type":"reasoning","summary":[],"encrypted_content":""}`)
		add("response.output_item.done", `"output_index":0,"item":`+p.sealed)
	}
	if use := c.script.tool; use != nil {
		place := `"item_id":"fc_mock_` + c.number() + `",` + at
		add("response.output_item.added", at+`"item":`+c.functionCall("in_progress", ""))
		add("response.function_call_arguments.delta", place+`"delta":`+string(quote(use.input)))
		add("response.function_call_arguments.done", place+`"arguments":`+string(quote(use.input)))
		add("response.output_item.done", at+`"item":`+p.item)
		add("response."+p.status, `"response":`+body)
		return events
	}
	add("response.output_item.added", at+`"item":{"id":`+item+`,"type":"message","status":"in_progress","role":"assistant","content":[]}`)
	add("response.content_part.added", place+part(`""`))
	words := p.words
	if c.script.giantLine > 0 {
		words = append([]string{strings.Repeat("x", c.script.giantLine)}, words...)
	}
	for _, word := range words {
		add("response.output_text.delta", place+`"delta":`+string(quote(word)))
	}
	add("response.output_text.done", place+`"text":`+text)
	add("response.content_part.done", place+part(text))
	add("response.output_item.done", at+`"item":`+p.item)
	add("response."+p.status, `"response":`+body)
	return events
}

// websocket answers each response.create that arrives with the events of one response, a frame each. Every frame of the
// client is a request of its own in the log.
func (p *player) websocket() {
	conn, err := websocket.Accept(p.w, p.r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return // Accept has answered
	}
	p.status = http.StatusSwitchingProtocols
	defer func() { _ = conn.CloseNow() }() // closed properly by the client, or gone
	conn.SetReadLimit(64 << 20)
	ctx := p.r.Context()
	for {
		_, frame, err := conn.Read(ctx)
		if err != nil {
			return
		}
		turn := p.frame(frame)
		var events []namedEvent
		if kind := turn.body.member("type"); kind == "response.create" {
			parts := turn.responseParts()
			events = turn.responseEvents(parts, turn.response(parts.id, parts.status, parts.output(), &parts.usage))
		} else {
			events = []namedEvent{{"error", []byte(`{"type":"error","error":{"type":"invalid_request_error","code":"unknown_event","message":` + string(quote("Unknown event "+kind)) + `}}`)}}
		}
		sent := 0
		for i, e := range events {
			if i > 0 && !pause(ctx, p.script.frameGap) || conn.Write(ctx, websocket.MessageText, e.data) != nil {
				break
			}
			sent++
		}
		p.server.log.end(turn.seen, http.StatusSwitchingProtocols, sent)
		p.frames += sent
	}
}

// frame logs a client's WebSocket frame and returns it as a call, whose parameters may stand in a member response.
func (p *player) frame(frame []byte) *call {
	q := newRequest(p.r, frame)
	q.Method, q.Script = "FRAME", p.script.text
	p.server.log.add(q)
	turn := &call{server: p.server, r: p.r, seen: q, path: p.path, dialect: openAIResponses, script: p.script}
	var nested struct {
		Response *body `json:"response"`
	}
	// What cannot be read is answered as an unknown event.
	if turn.body.read("", frame) == nil && decode(frame, &nested) == nil && nested.Response != nil {
		nested.Response.raw = frame
		turn.body = *nested.Response
	}
	return turn
}

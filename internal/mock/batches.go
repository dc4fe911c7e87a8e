package mock

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// batches are the batches of the provider's account, under raw ids. Each request of a batch is answered as if it had come
// alone, by the script that its model names.
type batches struct {
	mu    sync.Mutex
	until string // what batches come to; "": completed
	all   []*batch
}

type batch struct {
	id, endpoint, input string
	metadata            jsontext.Value
	status              string
	answers, failures   [][]byte // lines of the output and of the errors
	output, errors      string   // ids of files; "": there are none
}

// batchStatuses are what batches can come to.
var batchStatuses = []string{"validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelled"}

// SetBatches says what batches come to from now on, also those that have not ended: one of validating, in_progress,
// finalizing, completed, failed, expired and cancelled. Of a batch that expires or is cancelled half of the requests are
// answered.
func (s *Server) SetBatches(status string) error {
	if !slices.Contains(batchStatuses, status) {
		return fmt.Errorf("batches do not come to %q", status)
	}
	s.batches.mu.Lock()
	defer s.batches.mu.Unlock()
	s.batches.until = status
	return nil
}

func (b *batch) ended() bool { return slices.Index(batchStatuses, b.status) >= 3 }

// createBatch answers POST /batches.
func (c *call) createBatch() answer {
	input := c.body.InputFileID
	if c.server.objects.get("files", input) == "" {
		return c.refuse(http.StatusNotFound, "object", "No such File object: "+input)
	}
	b := &batch{id: "batch_mock" + c.number(), endpoint: c.body.member("endpoint"), input: input, status: "validating"}
	var given struct {
		Metadata jsontext.Value `json:"metadata"`
	}
	if json.Unmarshal(c.body.raw, &given, options) == nil {
		b.metadata = given.Metadata
	}
	for number, line := range bytes.Split(bytes.TrimSpace(c.server.objects.contentOf("files", input)), []byte("\n")) {
		c.answerLine(b, number, line)
	}
	s := &c.server.batches
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, b)
	if len(s.all) > maxObjects {
		s.all = s.all[1:]
	}
	return unary(c.server.shown(b))
}

func (c *call) answerLine(b *batch, number int, line []byte) {
	var request struct {
		ID   string         `json:"custom_id"`
		URL  string         `json:"url"`
		Body jsontext.Value `json:"body"`
	}
	one := &call{server: c.server, w: c.w, r: c.r, seen: c.seen, path: "/chat/completions", script: c.script}
	if err := json.Unmarshal(line, &request, options); err == nil {
		_ = one.body.read(contentJSON, request.Body) // what cannot be read is answered all the same
	}
	if path, ok := strings.CutPrefix(request.URL, "/v1"); ok {
		one.path = path
	}
	if text, ok := strings.CutPrefix(one.body.Model, "mock-"); ok {
		if script, err := Parse(text); err == nil {
			one.script = script
		}
	}
	a := one.answer()
	said := fmt.Sprintf(`{"id":"batch_req_mock%d","custom_id":%s,"response":{"status_code":%d,"request_id":"req_mock%d","body":%s},"error":null}`,
		number, quote(request.ID), a.status, number, bytes.Join(a.frames, nil))
	if a.status/100 == 2 {
		b.answers = append(b.answers, []byte(said))
	} else {
		b.failures = append(b.failures, []byte(said))
	}
}

// shown moves a batch on and returns what it looks like. The lock is held.
func (s *Server) shown(b *batch) string {
	until := s.batches.until
	if until == "" {
		until = "completed"
	}
	switch {
	case b.ended():
	case b.status == "cancelling":
		b.status = "cancelled"
	default:
		b.status = until
	}
	if b.ended() && b.output == "" && b.errors == "" {
		if b.status == "expired" || b.status == "cancelled" {
			b.answers = b.answers[:len(b.answers)/2]
		}
		if b.status != "failed" {
			b.output = s.keepLines(strings.Replace(b.id, "batch_mock", "file-mockout", 1), "output", b.answers)
			b.errors = s.keepLines(strings.Replace(b.id, "batch_mock", "file-mockerr", 1), "errors", b.failures)
		}
	}
	return b.render()
}

func (b *batch) render() string {
	total := len(b.answers) + len(b.failures)
	completed, failed, faults, at := len(b.answers), len(b.failures), "null", ""
	if b.ended() {
		at = `,"` + b.status + `_at":` + created
	} else {
		completed, failed = 0, 0
	}
	if b.status == "failed" {
		completed = 0
		faults = `{"object":"list","data":[{"code":"invalid_file","message":"The file ` + b.input + ` of ` + b.id + ` is not valid.","param":null,"line":1}]}`
	}
	metadata := string(b.metadata)
	if metadata == "" {
		metadata = "null"
	}
	return `{"id":"` + b.id + `","object":"batch","endpoint":` + string(quote(b.endpoint)) + `,"errors":` + faults + `,"input_file_id":` + string(quote(b.input)) +
		`,"completion_window":"24h","status":"` + b.status + `","output_file_id":` + orNull(b.output) + `,"error_file_id":` + orNull(b.errors) +
		`,"created_at":` + created + at + `,"request_counts":{"total":` + strconv.Itoa(total) + `,"completed":` + strconv.Itoa(completed) +
		`,"failed":` + strconv.Itoa(failed) + `},"metadata":` + metadata + `,"account":"` + b.input + `"}`
}

func orNull(s string) string {
	if s == "" {
		return "null"
	}
	return string(quote(s))
}

// keepLines makes a file of lines and returns its id; "": there are none.
func (s *Server) keepLines(id, name string, lines [][]byte) string {
	if len(lines) == 0 {
		return ""
	}
	content := append(bytes.Join(lines, []byte("\n")), '\n')
	s.objects.putContent("files", id, `{"id":"`+id+`","object":"file","bytes":`+strconv.Itoa(len(content))+`,"created_at":`+created+
		`,"filename":"`+name+`.jsonl","purpose":"batch_output","status":"processed"}`, content)
	return id
}

// batch answers the routes of batches. rest is what follows /batches in the path.
func (c *call) batch(rest []string) answer {
	if len(rest) == 0 && c.r.Method == http.MethodPost {
		return c.createBatch()
	}
	s := &c.server.batches
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(rest) == 0 && c.r.Method == http.MethodGet {
		return unary(c.listBatches())
	}
	at := slices.IndexFunc(s.all, func(b *batch) bool { return len(rest) > 0 && b.id == rest[0] })
	if at < 0 {
		return c.refuse(http.StatusNotFound, "object", "No such object: "+strings.Join(rest, "/"))
	}
	b := s.all[at]
	switch action := c.r.Method + " " + strings.Join(rest[1:], "/"); {
	case action == "GET ":
		return unary(c.server.shown(b))
	case action == "POST cancel" && b.ended():
		return c.refuse(http.StatusConflict, "object", "Cannot cancel "+b.id+" with status '"+b.status+"'.")
	case action == "POST cancel":
		b.status = "cancelling"
		return unary(b.render())
	}
	return c.refuse(http.StatusNotFound, "object", "Unknown request URL: "+c.r.Method+" "+c.r.URL.Path+".")
}

// listBatches lists batches, newest first. The lock is held.
func (c *call) listBatches() string {
	after := c.r.URL.Query().Get("after")
	var bodies []string
	for _, b := range slices.Backward(c.server.batches.all) {
		if after == "" {
			bodies = append(bodies, c.server.shown(b))
		} else if b.id == after {
			after = ""
		}
	}
	return `{"object":"list","data":[` + strings.Join(bodies, ",") + `],"first_id":null,"last_id":null,"has_more":false}`
}

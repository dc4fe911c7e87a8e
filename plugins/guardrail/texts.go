package guardrail

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tollgate-gateway/tollgate/governance"
)

// place is a text in an answer: the string at data[from:to], quotes included, or a number in the input of a tool.
type place struct {
	from, to int
	text     string
	channel  string // of texts that come in pieces; "": this one is whole
	input    bool   // the text is the input of a tool, and JSON
}

// textNames are the members of answers, in all dialects, that hold what a model writes.
var textNames = map[string]bool{
	"content": true, "text": true, "refusal": true, "reasoning": true, "reasoning_content": true, "thinking": true,
	"arguments": true, "partial_json": true, "delta": true, "input": true, "transcript": true,
	"cited_text": true, "title": true, "document_title": true, "snippet": true, "quote": true, "code": true, "output": true, "query": true, "queries": true, "command": true, "commands": true, "stdout": true, "stderr": true,
}

// textsIn lists the texts in a JSON document in their order. channel names the channel of the one at a path; "": it is whole.
// What is no JSON has none.
func textsIn(data []byte, channel func(path []step) string) []place {
	w := walker{data: data, dec: decoderOf(data), channel: channel}
	if !w.value(false) {
		return nil
	}
	return w.places
}

// step is a member's name, or a place in a list.
type step struct {
	name  string
	index int // of a list; -1: a member
}

type walker struct {
	data    []byte
	dec     *jsontext.Decoder
	path    []step
	channel func(path []step) string
	places  []place
}

// value reads the next value. all says that every string and number in it is a text, as in the input of a tool.
func (w *walker) value(all bool) bool {
	switch w.dec.PeekKind() {
	case '{':
		return w.object(all)
	case '[':
		return w.list(all)
	case '"':
		raw, err := w.dec.ReadValue()
		if err != nil {
			return false
		}
		to := int(w.dec.InputOffset())
		if all || w.isText() {
			text, err := jsontext.AppendUnquote(nil, raw)
			if err != nil && len(text) == 0 {
				return true
			}
			p := place{from: to - len(raw), to: to, text: string(text), input: !all && w.named("arguments")}
			if w.channel != nil {
				p.channel = w.channel(w.path)
			}
			w.places = append(w.places, p)
		}
		return true
	case '0':
		raw, err := w.dec.ReadValue()
		if err == nil && all {
			to := int(w.dec.InputOffset())
			w.places = append(w.places, place{from: to - len(raw), to: to, text: string(raw)})
		}
		return err == nil
	case 0:
		return false
	}
	return w.dec.SkipValue() == nil
}

// named reports whether the path ends with a member of that name.
func (w *walker) named(name string) bool {
	return len(w.path) > 0 && w.path[len(w.path)-1].name == name
}

// stringsIn lists every string and number in a JSON document.
func stringsIn(data []byte) []place {
	w := walker{data: data, dec: decoderOf(data)}
	if !w.value(true) {
		return nil
	}
	return w.places
}

func decoderOf(data []byte) *jsontext.Decoder {
	return jsontext.NewDecoder(bytes.NewReader(data), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// isText reports whether the string at the path is one that a model wrote: a member with such a name, or in a list below one.
func (w *walker) isText() bool {
	for i := len(w.path) - 1; i >= 0; i-- {
		if w.path[i].index < 0 {
			return textNames[w.path[i].name]
		}
	}
	return false
}

func (w *walker) object(all bool) bool {
	if _, err := w.dec.ReadToken(); err != nil {
		return false
	}
	for w.dec.PeekKind() == '"' {
		token, err := w.dec.ReadToken()
		if err != nil {
			return false
		}
		name := token.String()
		w.path = append(w.path, step{name, -1})
		ok := w.value(all || name == "input" && w.dec.PeekKind() == '{')
		w.path = w.path[:len(w.path)-1]
		if !ok {
			return false
		}
	}
	_, err := w.dec.ReadToken()
	return err == nil
}

func (w *walker) list(all bool) bool {
	if _, err := w.dec.ReadToken(); err != nil {
		return false
	}
	for i := 0; w.dec.PeekKind() != ']'; i++ {
		w.path = append(w.path, step{"", i})
		ok := w.value(all)
		w.path = w.path[:len(w.path)-1]
		if !ok {
			return false
		}
	}
	_, err := w.dec.ReadToken()
	return err == nil
}

// edit is a text that takes a place's.
type edit struct {
	place
	with string
}

// splice returns data with the edits, which do not overlap; all other bytes stay. What takes the place of a number is a string.
func splice(data []byte, edits []edit) []byte {
	slices.SortFunc(edits, func(a, b edit) int { return cmp.Compare(a.from, b.from) })
	out := make([]byte, 0, len(data)+64)
	at := 0
	for _, e := range edits {
		if e.with == e.text {
			continue
		}
		out = append(out, data[at:e.from]...)
		out, _ = jsontext.AppendQuote(out, e.with) // its only error is about invalid UTF-8, replaced by U+FFFD
		at = e.to
	}
	return append(out, data[at:]...)
}

// frame is what an event of a stream means to a guardrail.
type frame struct {
	places []place
	// closes reports whether the texts of a channel end with this event: with it where the event itself has a piece of them,
	// else before it.
	closes func(channel string) bool
}

// done is the data of the event that ends OpenAI's streams.
const done = "[DONE]"

// readFrame reads an event's data in the dialect of a route.
func readFrame(route string, data []byte) frame {
	all := func(string) bool { return true }
	none := func(string) bool { return false }
	if string(bytes.TrimSpace(data)) == done {
		return frame{closes: all}
	}
	switch route {
	case governance.RouteMessages:
		return messagesFrame(data)
	case governance.RouteResponses:
		return responsesFrame(data)
	}
	var head struct {
		Choices []struct {
			Index  int     `json:"index"`
			Finish *string `json:"finish_reason"`
			Delta  struct {
				Tools []struct {
					Index int `json:"index"`
				} `json:"tool_calls"`
			} `json:"delta"`
		} `json:"choices"`
	}
	if json.Unmarshal(data, &head) != nil {
		return frame{closes: none}
	}
	f := frame{places: textsIn(data, func(path []step) string {
		// choices, its place, then delta or text
		if len(path) < 3 || path[0].name != "choices" || path[1].index < 0 || path[1].index >= len(head.Choices) {
			return ""
		}
		choice := head.Choices[path[1].index]
		name := fmt.Sprintf("%d/", choice.Index)
		if len(path) > 4 && path[3].name == "tool_calls" && path[4].index >= 0 && path[4].index < len(choice.Delta.Tools) {
			name += fmt.Sprintf("tool %d/", choice.Delta.Tools[path[4].index].Index)
		}
		return name + path[len(path)-1].name
	})}
	ended := make(map[string]bool)
	for _, c := range head.Choices {
		if c.Finish != nil && *c.Finish != "" {
			ended[strconv.Itoa(c.Index)] = true
		}
	}
	f.closes = func(channel string) bool {
		index, _, _ := strings.Cut(channel, "/")
		return ended[index]
	}
	return f
}

func messagesFrame(data []byte) frame {
	var head struct {
		Type  string `json:"type"`
		Index int    `json:"index"`
	}
	if json.Unmarshal(data, &head) != nil {
		return frame{closes: func(string) bool { return false }}
	}
	block := fmt.Sprintf("%d/", head.Index)
	f := frame{}
	switch head.Type {
	case "content_block_delta", "content_block_start":
		f.places = textsIn(data, func(path []step) string {
			if len(path) == 2 && (path[0].name == "delta" || path[0].name == "content_block") {
				return block + path[1].name
			}
			return ""
		})
		f.closes = func(string) bool { return false }
	case "content_block_stop":
		f.closes = func(channel string) bool { return strings.HasPrefix(channel, block) }
	case "message_delta", "message_stop":
		f.closes = func(string) bool { return true }
	default:
		f.places = textsIn(data, nil)
		f.closes = func(string) bool { return false }
	}
	return f
}

func responsesFrame(data []byte) frame {
	var head struct {
		Type    string `json:"type"`
		Output  int    `json:"output_index"`
		Content int    `json:"content_index"`
		Summary int    `json:"summary_index"`
	}
	none := func(string) bool { return false }
	if json.Unmarshal(data, &head) != nil {
		return frame{closes: none}
	}
	item := fmt.Sprintf("%d/", head.Output)
	part := fmt.Sprintf("%s%d/%d/", item, head.Content, head.Summary)
	if kind, ok := strings.CutSuffix(head.Type, ".delta"); ok {
		return frame{places: textsIn(data, func(path []step) string {
			if len(path) == 1 && path[0].name == "delta" {
				return part + kind
			}
			return ""
		}), closes: none}
	}
	f := frame{places: textsIn(data, nil), closes: none}
	switch kind, done := strings.CutSuffix(head.Type, ".done"); {
	case head.Type == "response.completed", head.Type == "response.incomplete", head.Type == "response.failed":
		f.closes = func(string) bool { return true }
	case head.Type == "response.output_item.done":
		f.closes = func(channel string) bool { return strings.HasPrefix(channel, item) }
	case done:
		f.closes = func(channel string) bool { return channel == part+kind }
	}
	return f
}

package openai

import (
	"bytes"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
)

// responsesMeter reads the responses dialect: typed events, with the usage in the one that ends the stream.
type responsesMeter struct {
	found
	searches int64 // of the web, in the last whole response
}

func newResponsesMeter() *responsesMeter { return &responsesMeter{found: found{thinks: true}} }

// Facts implements providers.Meter.
func (m *responsesMeter) Facts() providers.Facts {
	f := m.result()
	f.Usage.Quantities[governance.UnitSearch] = m.searches // OpenAI's usage object leaves them out, its bill does not
	return f
}

// Body implements providers.Meter. A response whose status is "failed" is an answer, in the shape that clients expect; an
// object with an error that is no response is not.
func (m *responsesMeter) Body(b []byte) {
	var failed, isResponse bool
	m.Reset(b)
	for m.Enter('{'); m.Next(); {
		switch name := m.Name(); string(name) {
		case "object":
			switch string(m.Text()) {
			case "response":
				isResponse = true
			case "error":
				failed = true
			}
		case "error":
			failed = failed || m.Kind() != 'n'
			m.Skip()
		default:
			m.member(name)
		}
	}
	switch {
	case !m.End():
	case failed && !isResponse:
		m.facts.ErrorBody = bytes.Clone(b)
	default:
		m.facts.Terminal = true
	}
}

// member reads a member of a response object.
func (m *responsesMeter) member(name []byte) {
	switch string(name) {
	case "usage":
		m.usage()
	case "id":
		if id := m.Text(); len(id) <= maxModel && m.facts.ID != string(id) {
			m.facts.ID = string(id)
		}
	case "model":
		m.model()
	case "service_tier":
		m.serviceTier()
	case "output":
		m.items()
	default:
		m.Skip()
	}
}

// items reads what a response consists of.
func (m *responsesMeter) items() {
	if m.Kind() != '[' {
		m.output(false)
		return
	}
	m.searches = 0
	for m.Enter('['); m.Next(); {
		if m.Kind() != '{' {
			m.output(false)
			continue
		}
		if m.item() {
			m.searches++
		}
	}
}

// item reads one of them, and reports whether it is a search of the web that is charged by the piece: to open a page that it
// found is another action of the same tool, and costs its tokens alone.
func (m *responsesMeter) item() bool {
	tool, opened := false, false
	for m.Enter('{'); m.Next(); {
		switch name := m.Name(); string(name) {
		case "type":
			tool = string(m.Text()) == "web_search_call"
		case "action":
			opened = m.action()
		case "encrypted_content":
			if text := m.Text(); len(text) > 0 {
				m.facts.Sealed = providers.Seal(text)
			}
		default:
			m.partOf(name)
		}
	}
	return tool && !opened
}

// action reads what a tool did, and reports whether that was something else than a search.
func (m *responsesMeter) action() (other bool) {
	if m.Kind() != '{' {
		m.Skip()
		return false
	}
	for m.Enter('{'); m.Next(); {
		if string(m.Name()) == "type" {
			other = string(m.Text()) != "search"
		} else {
			m.Skip()
		}
	}
	return other
}

// Event implements providers.Meter. Events that repeat what the deltas before them said are not decoded.
func (m *responsesMeter) Event(ev sse.Event) {
	if !isObject(ev.Data) || len(ev.Name) > 0 && kindOf(ev.Name) == otherEvent {
		return
	}
	kind, counted := kindOf(ev.Name), m.facts.OutputLen
	var delta int64
	var failed bool
	m.Reset(ev.Data)
	for m.Enter('{'); m.Next(); {
		switch string(m.Name()) {
		case "type":
			if text := m.Text(); len(ev.Name) == 0 {
				kind = kindOf(text)
			}
		case "delta":
			delta = int64(len(m.Text()))
		case "error":
			failed = m.Kind() != 'n'
			m.Skip()
		case "response":
			m.response()
		default:
			m.Skip()
		}
	}
	whole := m.End()
	m.facts.OutputLen = max(counted, m.facts.OutputLen-counted) // the response in the last event repeats the deltas
	switch kind {
	case deltaEvent:
		m.facts.OutputLen += delta
	case lastEvent:
		m.facts.Terminal = m.facts.Terminal || whole
	case failedEvent:
		m.facts.Terminal = m.facts.Terminal || whole
		failed = true
	case errorEvent:
		failed = true
	}
	if failed {
		m.facts.ErrorBody = bytes.Clone(ev.Data)
	}
}

func (m *responsesMeter) response() {
	if m.Kind() != '{' {
		m.Skip()
		return
	}
	for m.Enter('{'); m.Next(); {
		m.member(m.Name())
	}
}

// event is what an event of a responses stream is to a meter.
type event uint8

const (
	otherEvent  event = iota
	deltaEvent        // a piece of what the model writes
	firstEvent        // names the model
	lastEvent         // carries the usage
	failedEvent       // carries it too, and an error
	errorEvent
)

func kindOf(name []byte) event {
	switch string(name) {
	case "response.created":
		return firstEvent
	case "response.completed", "response.incomplete":
		return lastEvent
	case "response.failed":
		return failedEvent
	case "error":
		return errorEvent
	case "response.audio.delta": // no text
		return otherEvent
	}
	if bytes.HasSuffix(name, []byte(".delta")) {
		return deltaEvent
	}
	return otherEvent
}

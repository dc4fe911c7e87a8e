package openai

import (
	"bytes"
	"strconv"

	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
)

const maxChoices = 1 << 10

// chatMeter reads the chat, completions, embeddings and moderations dialects, which have their outer form in common.
type chatMeter struct {
	found
	finished map[int64]bool // by the choice's index, which streams interleave
	open     int
}

func newChatMeter() *chatMeter { return &chatMeter{found: found{thinks: true}} }

// Facts implements providers.Meter.
func (m *chatMeter) Facts() providers.Facts { return m.result() }

// Body implements providers.Meter.
func (m *chatMeter) Body(b []byte) {
	if seen := m.object(b, nil); seen.whole && !seen.failed {
		m.facts.Terminal = true
	}
	m.facts.UsageOnly = false
}

// Event implements providers.Meter.
func (m *chatMeter) Event(ev sse.Event) {
	m.facts.UsageOnly = false
	switch {
	case string(bytes.TrimSpace(ev.Data)) == "[DONE]":
		m.facts.Terminal = true
	case isObject(ev.Data):
		m.object(ev.Data, ev.Name)
	case string(ev.Name) == "error" && len(ev.Data) > 0:
		m.facts.ErrorBody = bytes.Clone(ev.Data)
	}
}

// objectSeen says what one body or event was.
type objectSeen struct {
	whole  bool // valid JSON to its end
	failed bool // an error in place of an answer
}

func (m *chatMeter) object(text, event []byte) (seen objectSeen) {
	seen.failed = string(event) == "error"
	var noChoices, usage, more bool
	m.Reset(text)
	for m.Enter('{'); m.Next(); {
		switch string(m.Name()) {
		case "choices":
			noChoices = m.choices()
		case "usage":
			usage = m.usage()
		case "error":
			if m.Kind() != 'n' {
				seen.failed = true
			}
			more = true
			m.Skip()
		case "object":
			if string(m.Text()) == "error" {
				seen.failed = true
			}
		case "model":
			m.model()
		case "service_tier":
			m.serviceTier()
		case "id", "created", "system_fingerprint":
			m.Skip()
		default:
			more = true
			m.Skip()
		}
	}
	seen.whole = m.End()
	if seen.failed {
		m.facts.ErrorBody = bytes.Clone(text)
	}
	m.facts.UsageOnly = seen.whole && noChoices && usage && !more && !seen.failed
	return seen
}

// choices reads the next value as the list of choices and reports whether it is an empty list.
func (m *chatMeter) choices() (empty bool) {
	if m.Kind() != '[' {
		m.Skip()
		return false
	}
	empty = true
	for m.Enter('['); m.Next(); {
		empty = false
		m.choice()
	}
	m.facts.Finished = len(m.finished) > 0 && m.open == 0
	return empty
}

func (m *chatMeter) choice() {
	if m.Kind() != '{' {
		m.Skip()
		return
	}
	var index int64
	var finished bool
	for m.Enter('{'); m.Next(); {
		switch string(m.Name()) {
		case "index":
			index, _ = strconv.ParseInt(string(m.Raw()), 10, 64)
		case "delta", "message":
			m.output(false)
		case "text":
			m.output(true)
		case "finish_reason":
			finished = m.Kind() == '"'
			m.Skip()
		case "usage": // Moonshot's streams have it here
			if m.Kind() == '{' {
				m.usage()
			} else {
				m.Skip()
			}
		default:
			m.Skip()
		}
	}
	m.note(index, finished)
}

// note takes note that a choice has come up, and whether it has its finish reason.
func (m *chatMeter) note(index int64, finished bool) {
	was, known := m.finished[index]
	if known && (was || !finished) || !known && len(m.finished) == maxChoices {
		return
	}
	if m.finished == nil {
		m.finished = make(map[int64]bool, 1)
	}
	m.finished[index] = finished
	switch {
	case !known && !finished:
		m.open++
	case known && finished:
		m.open--
	}
}

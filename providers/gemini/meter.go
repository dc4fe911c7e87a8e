package gemini

import (
	"bytes"
	"strconv"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/jsonscan"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
)

const (
	maxRawUsage   = 16 << 10 // a longer usage object is read, but not kept
	maxModel      = 256      // bytes of a name that is kept
	maxCandidates = 64       // whose ends are watched; the API knows eight
)

// meter reads the generate dialect. Every event of a stream has the form of a whole answer, with the usage so far, and none
// says that it is the last one.
type meter struct {
	jsonscan.Scanner
	inside   jsonscan.Scanner // of usage objects
	facts    providers.Facts
	usage    []byte // the usage object that came last; nil: none
	reported reported
	valid    bool   // it makes sense
	seen     uint64 // the candidates that said something, by index
	ended    uint64 // those that gave the reason of their end
	blocked  bool   // the prompt was refused, so that no candidate comes
	failed   bool   // what was read is an error
}

// Facts implements providers.Meter.
func (m *meter) Facts() providers.Facts { return m.facts }

// Body implements providers.Meter.
func (m *meter) Body(b []byte) {
	switch whole := m.read(b); {
	case !whole:
	case m.failed:
		m.facts.ErrorBody = bytes.Clone(b)
	default:
		m.facts.Terminal = true
		m.conclude(true)
	}
}

// Event implements providers.Meter.
func (m *meter) Event(ev sse.Event) {
	data := bytes.TrimLeft(ev.Data, " \t\r\n")
	if len(data) == 0 {
		return
	}
	m.failed = false
	if data[0] == '{' || data[0] == '[' {
		m.read(data)
	}
	if m.failed || string(ev.Name) == "error" {
		m.facts.ErrorBody = bytes.Clone(ev.Data)
		return
	}
	m.facts.Finished = m.blocked || m.seen != 0 && m.seen == m.ended
	m.conclude(m.facts.Finished)
}

// read takes in an answer or a piece of one, and reports whether it was valid. Errors come in an array at times.
func (m *meter) read(text []byte) bool {
	m.failed = false
	m.Reset(text)
	if m.Kind() != '[' {
		m.answer()
		return m.End()
	}
	for m.Enter('['); m.Next(); {
		if m.Kind() == '{' {
			m.answer()
		} else {
			m.Skip()
		}
	}
	return m.End()
}

func (m *meter) answer() {
	for m.Enter('{'); m.Next(); {
		switch string(m.Name()) {
		case "candidates":
			m.candidates()
		case "promptFeedback":
			m.feedback()
		case "usageMetadata":
			m.readUsage()
		case "modelVersion":
			if text := m.Text(); len(text) > 0 && len(text) <= maxModel && m.facts.Model != string(text) {
				m.facts.Model = string(text)
			}
		case "error":
			m.failed = m.failed || m.Kind() != 'n'
			m.Skip()
		default:
			m.Skip()
		}
	}
}

// feedback reads why a prompt was refused, if it was.
func (m *meter) feedback() {
	m.Each('{', func() {
		if string(m.Name()) == "blockReason" {
			m.blocked = len(m.Text()) > 0 || m.blocked
		} else {
			m.Skip()
		}
	})
}

// readUsage takes in the next value, a usage object; null is none.
func (m *meter) readUsage() {
	if m.Kind() == 'n' {
		m.Skip()
		return
	}
	raw := m.Raw()
	if m.Fault() {
		return
	}
	m.usage = append(m.usage[:0], raw...)
	m.reported = reported{}
	m.valid = m.reported.read(&m.inside, raw) && !m.reported.nonsense()
}

// conclude says what the last usage means. whole says that the answer is at its end: a count of it that is missing then is the
// rest of the total, or nothing was written. Else the prompt alone was counted.
func (m *meter) conclude(whole bool) {
	if m.usage == nil {
		return
	}
	f := &m.facts
	whole = m.reported.Candidates.Given || whole && (m.reported.Total.Given || f.OutputLen == 0)
	f.HasUsage, f.PromptUsage, f.BadUsage = m.valid && whole, m.valid && !whole, !m.valid
	f.Usage = governance.Usage{}
	if len(m.usage) <= maxRawUsage { // of a shape that is unknown too
		f.Usage.Raw = bytes.Clone(m.usage)
	}
	if !m.valid {
		return
	}
	f.Usage.Quantities = m.reported.quantities()
	if !whole {
		f.Usage.Quantities[governance.UnitOutput], f.Usage.Quantities[governance.UnitReasoning] = 0, 0
	}
}

func (m *meter) candidates() {
	m.Each('[', m.candidate)
}

// candidate reads a piece of one of the answers. One without an index is the first.
func (m *meter) candidate() {
	var index int
	var ended bool
	m.Each('{', func() {
		switch string(m.Name()) {
		case "index":
			if n, err := strconv.Atoi(string(m.Raw())); err == nil {
				index = min(max(n, 0), maxCandidates-1)
			}
		case "finishReason":
			ended = len(m.Text()) > 0
		case "content":
			m.content()
		default:
			m.Skip()
		}
	})
	m.seen |= 1 << index
	if ended {
		m.ended |= 1 << index
	}
}

// content adds up what the model wrote: text, thoughts, the names and arguments of calls.
func (m *meter) content() {
	m.Each('{', func() {
		if string(m.Name()) != "parts" {
			m.Skip()
			return
		}
		m.Each('[', func() { m.Each('{', m.part) })
	})
}

func (m *meter) part() {
	switch string(m.Name()) {
	case "text":
		m.facts.OutputLen += int64(len(m.Text()))
	case "functionCall":
		m.Each('{', func() {
			switch string(m.Name()) {
			case "name":
				m.facts.OutputLen += int64(len(m.Text()))
			case "args":
				m.facts.OutputLen += int64(len(m.Raw()))
			default:
				m.Skip()
			}
		})
	default:
		m.Skip()
	}
}

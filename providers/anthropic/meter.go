package anthropic

import (
	"bytes"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/jsonscan"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
)

const maxRawUsage = 16 << 10 // a longer usage object is read, but not kept

// meter reads the messages dialect: the usage of the prompt comes with the event that begins a stream, that of the answer with
// the one before its end.
type meter struct {
	jsonscan.Scanner
	inside   jsonscan.Scanner // of usage objects
	facts    providers.Facts
	reported reported
	tier     string
	place    string // of inference; "": anywhere
	prompt   []byte // the usage object that came first
	last     []byte // the one that came last
	flawed   bool   // the last one was none
}

// Facts implements providers.Meter.
func (m *meter) Facts() providers.Facts {
	f := m.facts
	f.Usage.ServiceTier = m.tier
	if m.place != "" {
		f.Usage.ServiceTier = governance.RegionalTier(m.tier, m.place)
	}
	return f
}

// Body implements providers.Meter.
func (m *meter) Body(b []byte) {
	var failed bool
	m.Reset(b)
	for m.Enter('{'); m.Next(); {
		switch name := string(m.Name()); name {
		case "type":
			failed = failed || string(m.Text()) == "error"
		case "error":
			failed = failed || m.Kind() != 'n'
			m.Skip()
		default:
			m.message(name)
		}
	}
	switch {
	case !m.End():
	case failed:
		m.facts.ErrorBody = bytes.Clone(b)
	default:
		m.facts.Terminal = true
		m.conclude(true)
	}
}

// message reads a member of a message, be it whole or the head of a stream.
func (m *meter) message(name string) {
	switch name {
	case "model":
		setText(&m.facts.Model, m.Text())
	case "usage":
		m.usage()
	case "content":
		m.blocks()
	default:
		m.Skip()
	}
}

// Event implements providers.Meter. Only what the type of an event promises is read.
func (m *meter) Event(ev sse.Event) {
	if data := bytes.TrimLeft(ev.Data, " \t\r\n"); len(data) == 0 || data[0] != '{' {
		if string(ev.Name) == "error" && len(ev.Data) > 0 {
			m.facts.ErrorBody = bytes.Clone(ev.Data)
		}
		return
	}
	kind := eventOf(ev.Name)
	var failed bool
	m.Reset(ev.Data)
	for m.Enter('{'); m.Next(); {
		switch string(m.Name()) {
		case "type":
			if text := m.Text(); kind == otherEvent {
				kind = eventOf(text)
			}
		case "message":
			m.start()
		case "content_block":
			m.block()
		case "delta":
			m.delta()
		case "usage":
			m.usage()
		case "error":
			failed = m.Kind() != 'n'
			m.Skip()
		default:
			m.Skip()
		}
	}
	whole := m.End()
	switch {
	case kind == errorEvent || failed:
		m.facts.ErrorBody = bytes.Clone(ev.Data)
	case kind == startEvent:
		m.conclude(false)
	case kind == deltaEvent:
		m.conclude(true)
	case kind == stopEvent && whole:
		m.facts.Terminal = true
	}
}

// start reads the message that a stream begins with.
func (m *meter) start() {
	if m.Kind() != '{' {
		m.Skip()
		return
	}
	for m.Enter('{'); m.Next(); {
		m.message(string(m.Name()))
	}
}

// usage takes in the next value, a usage object; null is none.
func (m *meter) usage() {
	switch m.Kind() {
	case 'n':
		m.Skip()
		return
	case '{':
	default:
		if raw := m.Raw(); !m.Fault() {
			m.flawed, m.last = true, append(m.last[:0], raw...)
		}
		return
	}
	raw := m.Raw()
	if m.Fault() {
		return
	}
	if m.last != nil && m.prompt == nil {
		m.prompt = bytes.Clone(m.last)
	}
	m.last = append(m.last[:0], raw...)
	m.flawed = !m.reported.read(&m.inside, raw, &m.tier, &m.place)
}

// conclude draws the sum of the usage objects so far. whole says that they count the answer and not the prompt alone.
func (m *meter) conclude(whole bool) {
	if m.last == nil {
		return
	}
	q, ok := m.reported.quantities()
	ok = ok && !m.flawed && (!whole || m.reported.Output.Given)
	if !whole {
		for _, unit := range []governance.Unit{governance.UnitOutput, governance.UnitReasoning} {
			q[unit] = 0 // a placeholder
		}
	}
	m.facts.PromptUsage, m.facts.HasUsage, m.facts.BadUsage = ok && !whole, ok && whole, !ok
	m.facts.Usage = governance.Usage{Raw: m.raw()} // of a shape that is unknown too
	if ok {
		m.facts.Usage.Quantities = q
	}
}

// raw returns what the upstream reported, for the record: its last usage object, in a list behind its first one where there
// are two.
func (m *meter) raw() []byte {
	if len(m.prompt)+len(m.last) > maxRawUsage {
		return nil
	}
	if m.prompt == nil {
		return bytes.Clone(m.last)
	}
	return bytes.Join([][]byte{[]byte("["), m.prompt, []byte(","), m.last, []byte("]")}, nil)
}

// blocks adds up the text of the content of a whole message.
func (m *meter) blocks() {
	if m.Kind() != '[' {
		m.Skip()
		return
	}
	for m.Enter('['); m.Next(); {
		m.block()
	}
}

// block adds up what the model wrote in a content block: text, thinking, the names and inputs of tools. What a server's tool
// answered was read and not written.
func (m *meter) block() {
	if m.Kind() != '{' {
		m.Skip()
		return
	}
	for m.Enter('{'); m.Next(); {
		switch string(m.Name()) {
		case "text", "thinking", "name":
			m.facts.OutputLen += int64(len(m.Text()))
		case "input":
			if raw := m.Raw(); string(raw) != "{}" { // as it stands at the start of a block whose deltas follow
				m.facts.OutputLen += int64(len(raw))
			}
		default:
			m.Skip()
		}
	}
}

// delta adds up a piece of a content block.
func (m *meter) delta() {
	if m.Kind() != '{' {
		m.Skip()
		return
	}
	for m.Enter('{'); m.Next(); {
		switch string(m.Name()) {
		case "text", "thinking", "partial_json":
			m.facts.OutputLen += int64(len(m.Text()))
		default:
			m.Skip()
		}
	}
}

// event is what an event of a stream is to a meter.
type event uint8

const (
	otherEvent event = iota
	pieceEvent       // of a content block
	startEvent       // has the usage of the prompt
	deltaEvent       // has the usage of the answer
	stopEvent        // ends the stream
	errorEvent
)

func eventOf(name []byte) event {
	switch string(name) {
	case "message_start":
		return startEvent
	case "message_delta":
		return deltaEvent
	case "message_stop":
		return stopEvent
	case "error":
		return errorEvent
	case "content_block_start", "content_block_delta", "content_block_stop", "ping":
		return pieceEvent
	}
	return otherEvent
}

// countMeter reads answers to the counting of tokens, which uses none and costs nothing (ruling 29).
type countMeter struct {
	scanner jsonscan.Scanner
	facts   providers.Facts
}

// Facts implements providers.Meter.
func (m *countMeter) Facts() providers.Facts { return m.facts }

// Body implements providers.Meter.
func (m *countMeter) Body(b []byte) {
	var count providers.Count
	var failed bool
	s := &m.scanner
	s.Reset(b)
	for s.Enter('{'); s.Next(); {
		switch string(s.Name()) {
		case "input_tokens":
			count.Read(s)
		case "type":
			failed = failed || string(s.Text()) == "error"
		case "error":
			failed = failed || s.Kind() != 'n'
			s.Skip()
		default:
			s.Skip()
		}
	}
	switch {
	case !s.End():
	case failed:
		m.facts.ErrorBody = bytes.Clone(b)
	default:
		m.facts.Terminal = true
		m.facts.HasUsage, m.facts.BadUsage = count.Given && !count.Bad, count.Bad
	}
}

// Event implements providers.Meter: there are no streams of counts.
func (*countMeter) Event(sse.Event) {}

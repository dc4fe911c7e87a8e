package bedrock

import (
	"bytes"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/jsonscan"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
)

const (
	maxRawUsage = 16 << 10 // a longer usage object is read, but not kept
	maxTier     = 64       // bytes of a service tier's name that is kept
)

// meter reads the Converse dialect. The usage of a stream comes in its last event, metadata, behind the one that says why the
// answer ended.
type meter struct {
	jsonscan.Scanner
	inside jsonscan.Scanner // of usage objects
	facts  providers.Facts
}

// Facts implements providers.Meter.
func (m *meter) Facts() providers.Facts { return m.facts }

// Body implements providers.Meter.
func (m *meter) Body(b []byte) {
	output := false
	m.Reset(b)
	for m.Enter('{'); m.Next(); {
		switch string(m.Name()) {
		case "output":
			output = m.Kind() == '{'
			m.within("message", func() { m.within("content", func() { m.Each('[', m.block) }) })
		case "usage":
			m.usage()
		case "serviceTier":
			m.tier()
		default:
			m.Skip()
		}
	}
	switch {
	case !m.End():
	case !output:
		m.facts.ErrorBody = bytes.Clone(b)
	default:
		m.facts.Terminal = true
	}
}

// Event implements providers.Meter. Only what the name of an event promises is read.
func (m *meter) Event(ev sse.Event) {
	switch string(ev.Name) {
	case errorEvent:
		if len(ev.Data) > 0 {
			m.facts.ErrorBody = bytes.Clone(ev.Data)
		}
	case "contentBlockStart":
		m.read(ev.Data, "start", func() { m.Each('{', m.piece) })
	case "contentBlockDelta":
		m.read(ev.Data, "delta", func() { m.Each('{', m.piece) })
	case "messageStop":
		m.facts.Finished = true
	case "metadata":
		m.Reset(ev.Data)
		for m.Enter('{'); m.Next(); {
			switch string(m.Name()) {
			case "usage":
				m.usage()
			case "serviceTier":
				m.tier()
			default:
				m.Skip()
			}
		}
		m.facts.Terminal = m.End() && m.facts.Finished
	}
}

// read takes in one member of a text.
func (m *meter) read(text []byte, name string, each func()) {
	m.Reset(text)
	for m.Enter('{'); m.Next(); {
		if string(m.Name()) == name {
			each()
		} else {
			m.Skip()
		}
	}
}

// within calls each for one member of the next value, if that is an object.
func (m *meter) within(name string, each func()) {
	m.Each('{', func() {
		if string(m.Name()) == name {
			each()
		} else {
			m.Skip()
		}
	})
}

// block reads what the model wrote in a content block.
func (m *meter) block() { m.Each('{', m.piece) }

// piece adds up what the model wrote: text, thoughts, the names and inputs of tools. Inputs are objects in whole answers and
// pieces of text in streams.
func (m *meter) piece() {
	switch string(m.Name()) {
	case "text":
		m.facts.OutputLen += int64(len(m.Text()))
	case "toolUse":
		m.Each('{', func() {
			switch name := string(m.Name()); {
			case name == "name", name == "input" && m.Kind() == '"':
				m.facts.OutputLen += int64(len(m.Text()))
			case name == "input":
				m.facts.OutputLen += int64(len(m.Raw()))
			default:
				m.Skip()
			}
		})
	case "reasoningContent":
		m.Each('{', func() {
			switch string(m.Name()) {
			case "text":
				m.facts.OutputLen += int64(len(m.Text()))
			case "reasoningText":
				m.within("text", func() { m.facts.OutputLen += int64(len(m.Text())) })
			default:
				m.Skip()
			}
		})
	default:
		m.Skip()
	}
}

// tier reads {"type":"priority"}. The ordinary one has no name.
func (m *meter) tier() {
	m.within("type", func() {
		if name := m.Text(); len(name) <= maxTier && string(name) != "default" {
			m.facts.Usage.ServiceTier = string(name)
		}
	})
}

// usage takes in the next value, a usage object; null is none.
func (m *meter) usage() {
	if m.Kind() == 'n' {
		m.Skip()
		return
	}
	raw := m.Raw()
	if m.Fault() {
		return
	}
	var r reported
	q, ok := governance.Quantities{}, r.read(&m.inside, raw)
	if ok {
		q, ok = r.quantities()
	}
	f := &m.facts
	f.HasUsage, f.BadUsage = ok, !ok
	f.Usage.Quantities, f.Usage.Raw = q, nil
	if len(raw) <= maxRawUsage {
		f.Usage.Raw = bytes.Clone(raw)
	}
}

// reported is a usage object. What was read from a cache and written to it stands beside the input, not within.
type reported struct{ Input, Output, CacheRead, CacheWrite, Write1h providers.Count }

// read takes in a usage object and reports whether it was one.
func (u *reported) read(s *jsonscan.Scanner, raw []byte) bool {
	s.Reset(raw)
	for s.Enter('{'); s.Next(); {
		switch string(s.Name()) {
		case "inputTokens":
			u.Input.Read(s)
		case "outputTokens":
			u.Output.Read(s)
		case "cacheReadInputTokens":
			u.CacheRead.Read(s)
		case "cacheWriteInputTokens":
			u.CacheWrite.Read(s)
		case "cacheDetails":
			u.readDetails(s)
		default:
			s.Skip()
		}
	}
	return s.End()
}

// readDetails finds what was written for an hour in [{"ttl":"1h","inputTokens":1}].
func (u *reported) readDetails(s *jsonscan.Scanner) {
	s.Each('[', func() {
		var ttl string
		var n providers.Count
		s.Each('{', func() {
			switch string(s.Name()) {
			case "ttl":
				ttl = string(s.Text())
			case "inputTokens":
				n.Read(s)
			default:
				s.Skip()
			}
		})
		if ttl == "1h" {
			u.Write1h = n
		}
	})
}

// quantities returns the counts as disjoint quantities. ok is false where they make no sense.
func (u *reported) quantities() (q governance.Quantities, ok bool) {
	for _, c := range []providers.Count{u.Input, u.Output, u.CacheRead, u.CacheWrite, u.Write1h} {
		if c.Bad {
			return q, false
		}
	}
	q[governance.UnitInput] = u.Input.N
	q[governance.UnitOutput] = u.Output.N
	q[governance.UnitCacheRead] = u.CacheRead.N
	q[governance.UnitCacheWrite1h] = u.Write1h.N
	q[governance.UnitCacheWrite5m] = max(u.CacheWrite.N-u.Write1h.N, 0)
	return q, u.Input.Given && u.Output.Given
}

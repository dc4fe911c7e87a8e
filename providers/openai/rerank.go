package openai

import (
	"bytes"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/jsonscan"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
)

// rerankMeter reads rankings: Cohere's meta.billed_units, and the usage of servers that count tokens, which often tell their
// sum alone.
type rerankMeter struct{ found }

// Facts implements providers.Meter.
func (m *rerankMeter) Facts() providers.Facts { return m.result() }

// Event implements providers.Meter: rankings do not stream.
func (m *rerankMeter) Event(sse.Event) {}

// Body implements providers.Meter.
func (m *rerankMeter) Body(b []byte) {
	var failed bool
	var tokens, searches providers.Count
	m.Reset(b)
	for m.Enter('{'); m.Next(); {
		switch string(m.Name()) {
		case "usage":
			raw := m.objectHere()
			readCounts(&m.inside, raw, &tokens, "total_tokens", "prompt_tokens", "input_tokens")
			m.facts.Usage.Raw = kept(raw)
		case "meta":
			if m.Kind() != '{' {
				m.Skip()
				continue
			}
			for m.Enter('{'); m.Next(); {
				if string(m.Name()) != "billed_units" {
					m.Skip()
					continue
				}
				raw := m.objectHere()
				readCounts(&m.inside, raw, &searches, "search_units")
				readCounts(&m.inside, raw, &tokens, "input_tokens")
				m.facts.Usage.Raw = kept(raw)
			}
		case "error":
			failed = failed || m.Kind() != 'n'
			m.Skip()
		case "model":
			m.model()
		default:
			m.Skip()
		}
	}
	whole := m.End()
	if failed {
		m.facts.ErrorBody = bytes.Clone(b)
	}
	m.facts.Terminal = whole && !failed
	m.facts.BadUsage = tokens.Bad || searches.Bad
	m.facts.HasUsage = whole && (tokens.Given || searches.Given) && !m.facts.BadUsage
	if m.facts.HasUsage {
		m.facts.Usage.Quantities[governance.UnitInput] = tokens.N
		m.facts.Usage.Quantities[governance.UnitSearch] = searches.N
	}
}

// objectHere returns the next value if it is an object, and skips any other.
func (m *rerankMeter) objectHere() []byte {
	if m.Kind() != '{' {
		m.Skip()
		return nil
	}
	return m.Raw()
}

// readCounts reads members of a JSON object: the last of those that are there counts.
func readCounts(s *jsonscan.Scanner, raw []byte, into *providers.Count, names ...string) {
	if raw == nil {
		return
	}
	s.Reset(raw)
	for s.Enter('{'); s.Next(); {
		name, known := string(s.Name()), false
		for _, n := range names {
			known = known || n == name
		}
		if known {
			into.Read(s)
		} else {
			s.Skip()
		}
	}
}

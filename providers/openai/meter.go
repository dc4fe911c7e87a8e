package openai

import (
	"bytes"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/jsonscan"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
)

const (
	maxRawUsage = 16 << 10 // a longer usage object is read, but not kept
	maxModel    = 256
)

// found collects what all meters look for.
type found struct {
	jsonscan.Scanner
	facts  providers.Facts
	tier   string
	inside jsonscan.Scanner // of usage objects
	thinks bool             // the model may think, and the usage may have that in its total alone
}

func (m *found) result() providers.Facts {
	f := m.facts
	f.Usage.ServiceTier = m.tier
	return f
}

// body reads a whole answer by what reads its object. read tells whether that is an error, and whether it is whole.
func (m *found) body(b []byte, read func(text, event []byte) (failed, whole bool)) {
	if failed, whole := read(b, nil); whole && !failed {
		m.facts.Terminal = true
	}
}

// event reads an event of a stream in the same way.
func (m *found) event(ev sse.Event, read func(text, event []byte) (failed, whole bool)) {
	switch {
	case string(bytes.TrimSpace(ev.Data)) == "[DONE]":
		m.facts.Terminal = true
	case isObject(ev.Data):
		read(ev.Data, ev.Name)
	case string(ev.Name) == "error" && len(ev.Data) > 0:
		m.facts.ErrorBody = bytes.Clone(ev.Data)
	}
}

// usage reads the next value as a usage object: the last one counts. It reports whether it was one; null is none.
func (m *found) usage() bool {
	kind := m.Kind()
	if kind == 'n' {
		m.Skip()
		return false
	}
	raw := m.Raw()
	if m.Fault() {
		return false
	}
	var u governance.Usage
	ok := false
	if kind == '{' {
		u.Quantities, ok = parseUsage(&m.inside, raw, m.thinks)
	}
	u.Raw = kept(raw) // of a shape that is unknown too, so that somebody can find out what it was
	m.setUsage(u, ok)
	return kind == '{'
}

// kept returns what is kept of a usage object beside its row.
func kept(raw []byte) []byte {
	if len(raw) > maxRawUsage {
		return nil
	}
	return bytes.Clone(raw)
}

func (m *found) setUsage(u governance.Usage, ok bool) {
	m.facts.Usage, m.facts.HasUsage, m.facts.BadUsage = u, ok, !ok
}

func (m *found) model() {
	if name := m.Text(); len(name) > 0 && len(name) <= maxModel && m.facts.Model != string(name) {
		m.facts.Model = string(name)
	}
}

func (m *found) serviceTier() {
	if tier := m.Text(); len(tier) > 0 && len(tier) <= maxModel && m.tier != string(tier) {
		m.tier = string(tier)
	}
}

// output adds up the text in the next value: what the model wrote, not the names of roles, kinds and ids around it.
// counted says that a string in this place is such text.
func (m *found) output(counted bool) {
	switch m.Kind() {
	case '"':
		if text := m.Text(); counted {
			m.facts.OutputLen += int64(len(text))
		}
	case '[':
		for m.Enter('['); m.Next(); {
			m.output(counted)
		}
	case '{':
		for m.Enter('{'); m.Next(); {
			m.partOf(m.Name())
		}
	default:
		m.Skip()
	}
}

// partOf adds up the text in a member of an answer.
func (m *found) partOf(name []byte) {
	switch partNamed(name) {
	case written:
		m.output(true)
	case around:
		m.output(false)
	case repeated:
		m.Skip()
	}
}

// part is what a member of an answer holds.
type part uint8

const (
	around   part = iota // perhaps texts further inside
	written              // text that the model wrote
	repeated             // a second form of what stands elsewhere, or no text at all
)

func partNamed(name []byte) part {
	switch string(name) {
	case "content", "text", "refusal", "reasoning", "reasoning_content", "thinking", "arguments", "input", "name", "transcript":
		return written
	case "reasoning_details", "annotations", "logprobs", "data", "encrypted_content":
		return repeated
	default:
		return around
	}
}

// isObject reports whether data may be a JSON object. Upstreams send null, empty data and [DONE] too.
func isObject(data []byte) bool {
	data = bytes.TrimLeft(data, " \t\r\n")
	return len(data) > 0 && data[0] == '{'
}

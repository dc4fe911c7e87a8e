package openai

import (
	"bytes"
	"math"
	"strconv"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
)

const maxAudioSeconds = 1 << 30 // 34 years

// audioMeter reads transcripts, and speech that comes as events. Speech that comes as sound says nothing.
type audioMeter struct {
	found
	spoken   bool // the answer is speech, not text
	detailed bool // the usage tells sound from text
}

// Facts implements providers.Meter.
func (m *audioMeter) Facts() providers.Facts {
	f := m.result()
	q := &f.Usage.Quantities
	switch {
	case !f.HasUsage:
	case m.spoken && q[governance.UnitOutputAudio] == 0:
		q[governance.UnitOutputAudio], q[governance.UnitOutput] = q[governance.UnitOutput], 0
	case !m.spoken && !m.detailed:
		q[governance.UnitInputAudio], q[governance.UnitInput] = q[governance.UnitInput], 0
	}
	return f
}

// Body implements providers.Meter. A transcript that is plain text, such as subtitles, says nothing of its usage.
func (m *audioMeter) Body(b []byte) {
	m.body(b, m.object)
}

// Event implements providers.Meter.
func (m *audioMeter) Event(ev sse.Event) {
	m.event(ev, m.object)
}

func (m *audioMeter) object(text, event []byte) (failed, whole bool) {
	failed = string(event) == "error"
	var kind string
	var written int64
	m.Reset(text)
	for m.Enter('{'); m.Next(); {
		switch string(m.Name()) {
		case "type":
			kind = string(m.Text())
			failed = failed || kind == "error"
		case "text":
			written += int64(len(m.Text()))
		case "delta":
			if n := int64(len(m.Text())); !m.spoken {
				m.facts.OutputLen += n
			}
		case "usage":
			m.audioUsage()
		case "duration":
			m.duration()
		case "error":
			failed = failed || m.Kind() != 'n'
			m.Skip()
		case "model":
			m.model()
		default:
			m.Skip()
		}
	}
	whole = m.End()
	switch {
	case failed:
		m.facts.ErrorBody = bytes.Clone(text)
	case kind == "transcript.text.done" || kind == "speech.audio.done":
		m.facts.Terminal = m.facts.Terminal || whole
		m.facts.OutputLen = max(m.facts.OutputLen, written) // all of the deltas once more
	case kind == "":
		m.facts.OutputLen += written
	}
	return failed, whole
}

// audioUsage reads the next value: tokens, or the length of the sound.
func (m *audioMeter) audioUsage() {
	if m.Kind() != '{' {
		m.usage()
		return
	}
	raw := m.Raw()
	if m.Fault() {
		return
	}
	byTime := false
	s := &m.inside
	s.Reset(raw)
	for s.Enter('{'); s.Next(); {
		switch string(s.Name()) {
		case "seconds":
			if seconds, ok := wholeSeconds(s.Raw()); ok {
				byTime = true
				m.facts.Counted[governance.UnitSecond] = seconds
			}
		case "prompt_audio_seconds": // Mistral, beside tokens
			if seconds, ok := wholeSeconds(s.Raw()); ok {
				m.facts.Counted[governance.UnitSecond] = seconds
			}
		case "input_token_details", "input_tokens_details":
			m.detailed = s.Kind() == '{'
			s.Skip()
		default:
			s.Skip()
		}
	}
	if byTime && s.End() {
		u := governance.Usage{}
		u.Quantities[governance.UnitSecond] = m.facts.Counted[governance.UnitSecond]
		u.Raw = kept(raw)
		m.setUsage(u, true)
		return
	}
	q, ok := parseUsage(&m.inside, raw, false)
	m.setUsage(governance.Usage{Quantities: q, Raw: kept(raw)}, ok)
}

// duration reads the next value, which verbose transcripts have as a number or a text.
func (m *audioMeter) duration() {
	var text []byte
	if m.Kind() == '"' {
		text = m.Text()
	} else {
		text = m.Raw()
	}
	if seconds, ok := wholeSeconds(text); ok {
		m.facts.Counted[governance.UnitSecond] = seconds
	}
}

// wholeSeconds reads a number of seconds; one that has begun is a whole one.
func wholeSeconds(text []byte) (int64, bool) {
	seconds, err := strconv.ParseFloat(string(text), 64)
	if err != nil || !(seconds >= 0 && seconds <= maxAudioSeconds) {
		return 0, false
	}
	return int64(math.Ceil(seconds)), true
}

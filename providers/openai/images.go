package openai

import (
	"bytes"
	"strings"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
)

// imageMeter reads answers that are pictures: it counts them, and reads the tokens of the models that report any. How they
// were made, which is the tier of their price, stands in the answer of newer models alone.
type imageMeter struct {
	found
	quality, size string
}

// Facts implements providers.Meter.
func (m *imageMeter) Facts() providers.Facts {
	f := m.result()
	f.Usage.ServiceTier = governance.ImageTier(m.quality, m.size)
	if q := &f.Usage.Quantities; f.HasUsage && q[governance.UnitOutputImage] == 0 {
		// Without details, what the model wrote is the picture.
		q[governance.UnitOutputImage], q[governance.UnitOutput] = q[governance.UnitOutput], 0
	}
	return f
}

// Body implements providers.Meter.
func (m *imageMeter) Body(b []byte) {
	m.body(b, m.object)
}

// Event implements providers.Meter. A request for several pictures has several events that say completed, so that only the
// end of the stream is its end.
func (m *imageMeter) Event(ev sse.Event) {
	m.event(ev, m.object)
}

func (m *imageMeter) object(text, event []byte) (failed, whole bool) {
	failed = string(event) == "error"
	var completed bool
	var pictures int64
	m.Reset(text)
	for m.Enter('{'); m.Next(); {
		switch string(m.Name()) {
		case "type":
			kind := string(m.Text())
			completed = strings.HasSuffix(kind, ".completed")
			failed = failed || kind == "error"
		case "data":
			if m.Kind() != '[' {
				m.Skip()
				continue
			}
			for m.Enter('['); m.Next(); m.Skip() {
				pictures++
			}
		case "usage":
			m.usage()
		case "error":
			failed = failed || m.Kind() != 'n'
			m.Skip()
		case "model":
			m.model()
		case "quality":
			m.quality = string(m.Text())
		case "size":
			m.size = string(m.Text())
		default:
			m.Skip()
		}
	}
	whole = m.End()
	switch {
	case failed:
		m.facts.ErrorBody = bytes.Clone(text)
	case completed && whole:
		m.facts.Finished = true
		m.facts.Counted[governance.UnitImage]++
	default:
		m.facts.Counted[governance.UnitImage] += pictures
	}
	return failed, whole
}

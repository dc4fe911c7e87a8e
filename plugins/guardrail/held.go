package guardrail

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/plugins"
)

// maxStream is how much of a stream waits for a webhook, in bytes of events.
const maxStream = 8 << 20

// held is a stream that webhooks judge: they see texts whole, so that they are asked at its end.
type held struct {
	acts   bool // nothing goes out before they have agreed; else they are only asked
	events []sse.Event
	size   int
	over   bool // they have been asked
}

// heldFor returns what the webhooks among rails need; nil: there are none.
func heldFor(rails []*rail) *held {
	var h *held
	for _, r := range rails {
		if r.Rule.Type == governance.RuleWebhook {
			if h == nil {
				h = &held{}
			}
			h.acts = h.acts || r.acts()
		}
	}
	return h
}

// take keeps what an event has become, and asks once the stream has said everything.
func (j *judge) take(ctx context.Context, ev sse.Event, v plugins.StreamVerdict) (plugins.StreamVerdict, error) {
	h := j.held
	kind := kindOf(ev.Data)
	switch {
	case h.over && h.acts:
		return plugins.StreamVerdict{}, nil // nothing that counts comes behind the end
	case h.over, kind == "ping":
		return v, nil
	case kind == "error":
		h.events, h.size = nil, 0 // the answer is none; the client is told why
		return v, nil
	}
	if v.Pass {
		h.keep(ev)
	}
	for _, e := range v.Events {
		h.keep(e)
	}
	switch {
	case h.size > maxStream:
		return j.tooLong(v)
	case isEnd(j.call.Route, kind, ev.Data):
		return j.ask(ctx, v)
	case h.acts:
		return plugins.StreamVerdict{Tags: v.Tags}, nil
	}
	return v, nil
}

func (h *held) keep(ev sse.Event) {
	ev = sse.Event{Name: bytes.Clone(ev.Name), Data: bytes.Clone(ev.Data), Raw: bytes.Clone(ev.Raw)}
	h.events = append(h.events, ev)
	h.size += len(ev.Name) + len(ev.Data) + len(ev.Raw)
}

// tooLong decides about a stream that is longer than what waits.
func (j *judge) tooLong(v plugins.StreamVerdict) (plugins.StreamVerdict, error) {
	h := j.held
	h.over = true
	for _, r := range j.rails {
		if r.Rule.Type == governance.RuleWebhook && !j.p.spares(r, fmt.Errorf("stream of more than %d bytes", maxStream)) {
			return j.deny(r), nil
		}
	}
	if !h.acts {
		return v, nil
	}
	h.acts = false // the rest passes, too
	return plugins.StreamVerdict{Events: h.events, Tags: v.Tags}, nil
}

// ask shows the stream's texts to the webhooks and lets out what they leave. v is what the last event has become.
func (j *judge) ask(ctx context.Context, v plugins.StreamVerdict) (plugins.StreamVerdict, error) {
	h := j.held
	h.over = true
	pieces, texts := h.read(j.call.Route)
	if len(texts) > 0 {
		answer, err := j.p.ask(ctx, j.call, j.rails, governance.StageAnswer, texts, &j.hits)
		switch {
		case err != nil:
			return plugins.StreamVerdict{}, err
		case answer.by != nil:
			return j.deny(answer.by), nil
		case answer.texts != nil:
			h.rewrite(pieces, texts, answer.texts)
		}
	}
	v.Tags = j.hits.tags(j.call)
	if h.acts {
		v.Pass, v.Events = false, h.events
		h.events = nil
	}
	return v, nil
}

// piece is a part of a text, or all of it.
type piece struct {
	place
	event int
	of    int // which text
}

// read lists the pieces of all texts, in their order, and puts the texts together.
func (h *held) read(route string) (pieces []piece, texts []string) {
	channels := make(map[string]int)
	var whole []*strings.Builder
	for i := range h.events {
		for _, p := range readFrame(route, h.events[i].Data).places {
			of, known := channels[p.channel]
			if !known || p.channel == "" {
				of = len(whole)
				channels[p.channel] = of
				whole = append(whole, &strings.Builder{})
			}
			whole[of].WriteString(p.text)
			pieces = append(pieces, piece{p, i, of})
		}
	}
	for _, text := range whole {
		texts = append(texts, text.String())
	}
	return pieces, texts
}

// rewrite puts other texts in the places of those that changed: all of one where its first letter was.
func (h *held) rewrite(pieces []piece, before, after []string) {
	edits := make([][]edit, len(h.events))
	written := make([]bool, len(before))
	for i, p := range pieces {
		if after[p.of] == before[p.of] {
			continue
		}
		with := ""
		last := !slices.ContainsFunc(pieces[i+1:], func(later piece) bool { return later.of == p.of })
		if !written[p.of] && (p.text != "" || last) {
			with, written[p.of] = after[p.of], true
		}
		edits[p.event] = append(edits[p.event], edit{p.place, with})
	}
	for i := range edits {
		if !unchanged(edits[i]) {
			h.events[i] = sse.Event{Name: h.events[i].Name, Data: splice(h.events[i].Data, edits[i])}
		}
	}
}

// kindOf returns an event's type: error for what says that an answer failed, in whatever dialect.
func kindOf(data []byte) string {
	var head struct {
		Type  string          `json:"type"`
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal(data, &head) != nil {
		return ""
	}
	if len(head.Error) > 0 && string(head.Error) != "null" {
		return "error"
	}
	return head.Type
}

// isEnd reports whether an event is the last one of a route's streams.
func isEnd(route, kind string, data []byte) bool {
	switch route {
	case governance.RouteMessages:
		return kind == "message_stop"
	case governance.RouteResponses:
		return kind == "response.completed" || kind == "response.incomplete" || kind == "response.failed"
	}
	return string(bytes.TrimSpace(data)) == done
}

package guardrail

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/plugins"
)

// judge judges one answer by the rails that are in force for it. It implements plugins.AnswerJudge.
type judge struct {
	p        *plugin
	call     *plugins.Call
	rails    []*rail
	effects  []effect
	acts     bool // whether any of the rails does more than count
	hits     hits
	size     int64 // bytes of text so far
	broken   error // why a rail that must agree cannot judge; nil: all can
	channels map[string]*channel
	order    []string // of the channels, as they began
	held     *held    // for webhooks, in a stream; nil: none judges it
}

var _ plugins.AnswerJudge = (*judge)(nil)

// pieces reads a text that comes in pieces: push returns what of it can be passed on, and end the rest.
type pieces interface {
	push(piece string) (out string, by *rail)
	end() (out string, by *rail)
}

// channel is a text of a stream that comes in pieces, with the event that brought the last one: what is held back goes out
// in an event of the same form.
type channel struct {
	scanner pieces
	name    []byte
	data    []byte
	edits   []edit // that leave nothing of the event's texts but the channel's
	own     int    // which of them is the channel's
	owes    bool   // something may be held back
}

func (j *judge) deny(r *rail) plugins.StreamVerdict {
	j.hits.add(r)
	return plugins.StreamVerdict{Deny: r.blocked(), Tags: j.hits.tags(j.call)}
}

// counts adds a text's size and returns the rail that finds the answer too long.
func (j *judge) counts(text string) *rail {
	j.size += int64(len(text))
	for _, r := range j.rails {
		if r.Rule.Type == governance.RuleMaxSize && j.size > r.Rule.Bytes {
			j.hits.add(r)
			if r.acts() {
				return r
			}
		}
	}
	return nil
}

// Whole implements plugins.AnswerJudge.
func (j *judge) Whole(ctx context.Context, body []byte) (plugins.Verdict, error) {
	if j.broken != nil {
		return plugins.Verdict{}, j.broken
	}
	places := textsIn(body, nil)
	late, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	r := j.reader(late)
	edits, by := j.wholes(r, places)
	if err := r.fails(j.p, j.rails); by == nil && err != nil {
		return plugins.Verdict{}, err
	}
	if by == nil && len(places) > 0 {
		texts := make([]string, len(places))
		for i := range places {
			texts[i] = places[i].text
		}
		for i := range edits {
			texts[indexOf(places, edits[i].from)] = edits[i].with
		}
		answer, err := j.p.ask(ctx, j.call, j.rails, governance.StageAnswer, texts, &j.hits)
		if err != nil {
			return plugins.Verdict{}, err
		}
		by = answer.by
		if answer.texts != nil {
			edits = edits[:0]
			for i := range places {
				if answer.texts[i] != places[i].text {
					edits = append(edits, edit{places[i], answer.texts[i]})
				}
			}
		}
	}
	v := plugins.Verdict{Tags: j.hits.tags(j.call)}
	switch {
	case by != nil:
		v.Deny = by.blocked()
	case len(edits) > 0 && j.acts:
		v.Body = splice(body, edits)
	}
	return v, nil
}

func indexOf(places []place, from int) int {
	for i := range places {
		if places[i].from == from {
			return i
		}
	}
	return -1
}

// wholes judges texts that come in one piece.
func (j *judge) wholes(r *reader, places []place) (edits []edit, by *rail) {
	for _, p := range places {
		if by := j.counts(p.text); by != nil {
			return nil, by
		}
		text, by := readWhole(r, &p)
		if by != nil {
			return nil, by
		}
		if text != p.text {
			edits = append(edits, edit{p, text})
		}
	}
	return edits, nil
}

// Event implements plugins.AnswerJudge.
func (j *judge) Event(ctx context.Context, ev sse.Event) (plugins.StreamVerdict, error) {
	if j.broken != nil {
		return plugins.StreamVerdict{}, j.broken
	}
	r := j.reader(ctx)
	v := j.scan(r, ev)
	if err := r.fails(j.p, j.rails); v.Deny == nil && err != nil {
		return plugins.StreamVerdict{}, err
	}
	if v.Deny != nil || j.held == nil {
		return v, nil
	}
	return j.take(ctx, ev, v)
}

// scan looks for the patterns in an event's texts.
func (j *judge) scan(r *reader, ev sse.Event) plugins.StreamVerdict {
	switch data := bytes.TrimSpace(ev.Data); {
	case len(data) == 0:
		return plugins.StreamVerdict{Pass: true}
	case string(data) != done && !json.Valid(data):
		return j.oddity(r, ev)
	}
	f := readFrame(j.call.Route, ev.Data)
	var edits []edit
	var fresh []string // channels that this event has a piece of
	for _, p := range f.places {
		var text string
		var by *rail
		if p.channel == "" {
			// Events that repeat a text were counted when its pieces came.
			if text, by = readWhole(r, &p); by != nil {
				return j.deny(by)
			}
		} else {
			if by = j.counts(p.text); by != nil {
				return j.deny(by)
			}
			c := j.channel(p.channel)
			if text, by = c.scanner.push(p.text); by != nil {
				return j.deny(by)
			}
			c.owes = true
			fresh = append(fresh, p.channel)
			if f.closes(p.channel) {
				rest, by := c.scanner.end()
				if by != nil {
					return j.deny(by)
				}
				text, c.owes = text+rest, false
			}
		}
		edits = append(edits, edit{p, text})
	}
	var out []sse.Event
	for _, name := range j.order {
		c := j.channels[name]
		if !c.owes || !f.closes(name) {
			continue
		}
		rest, by := c.rest()
		if by != nil {
			return j.deny(by)
		}
		out = append(out, rest...)
	}
	for _, name := range fresh {
		j.channels[name].keep(ev, edits, name)
	}
	v := plugins.StreamVerdict{Tags: j.hits.tags(j.call)}
	if !j.acts || len(out) == 0 && unchanged(edits) {
		v.Pass = true
		return v
	}
	if unchanged(edits) {
		v.Events = append(out, ev)
	} else {
		v.Events = append(out, sse.Event{Name: ev.Name, Data: splice(ev.Data, edits)})
	}
	return v
}

func (j *judge) reader(ctx context.Context) *reader {
	return &reader{ctx: ctx, effects: j.effects, hit: j.hits.add}
}

// readWhole judges a text that comes in one piece.
func readWhole(r *reader, p *place) (out string, by *rail) {
	if p.input && isInput(p.text) {
		return r.input(p.text)
	}
	return r.whole(p.text)
}

// oddity judges an event that is no JSON, whatever clients make of it.
func (j *judge) oddity(r *reader, ev sse.Event) plugins.StreamVerdict {
	text := string(ev.Data)
	by := j.counts(text)
	if by == nil {
		text, by = r.whole(text)
	}
	if by != nil {
		return j.deny(by)
	}
	v := plugins.StreamVerdict{Tags: j.hits.tags(j.call), Pass: !j.acts || text == string(ev.Data)}
	if !v.Pass {
		v.Events = []sse.Event{{Name: ev.Name, Data: []byte(text)}}
	}
	return v
}

func unchanged(edits []edit) bool {
	for i := range edits {
		if edits[i].with != edits[i].text {
			return false
		}
	}
	return true
}

// End implements plugins.AnswerJudge.
func (j *judge) End(ctx context.Context) (plugins.StreamVerdict, error) {
	v := plugins.StreamVerdict{}
	for _, name := range j.order {
		c := j.channels[name]
		if !c.owes {
			continue
		}
		rest, by := c.rest()
		if by != nil {
			return j.deny(by), nil
		}
		if j.acts {
			v.Events = append(v.Events, rest...)
		}
	}
	v.Tags = j.hits.tags(j.call)
	if j.held == nil || j.held.over {
		return v, nil
	}
	for _, ev := range v.Events {
		j.held.keep(ev)
	}
	return j.ask(ctx, v)
}

func (j *judge) channel(name string) *channel {
	c := j.channels[name]
	if c == nil {
		c = &channel{scanner: newScanner(j.effects, j.hits.add)}
		if strings.HasSuffix(name, "arguments") || strings.HasSuffix(name, "partial_json") {
			c.scanner = newInput(j.effects, j.hits.add)
		}
		j.channels[name] = c
		j.order = append(j.order, name)
	}
	return c
}

// keep notes the event that brought a piece, for what may be held back of it.
func (c *channel) keep(ev sse.Event, edits []edit, name string) {
	c.name, c.data = bytes.Clone(ev.Name), bytes.Clone(ev.Data)
	c.edits = c.edits[:0]
	for i, e := range edits {
		if e.channel == name {
			c.own = i
		}
		c.edits = append(c.edits, edit{e.place, ""})
	}
}

// rest returns an event with what was held back; none, where nothing was.
func (c *channel) rest() ([]sse.Event, *rail) {
	c.owes = false
	text, by := c.scanner.end()
	if by != nil || text == "" {
		return nil, by
	}
	c.edits[c.own].with = text
	return []sse.Event{{Name: c.name, Data: splice(c.data, append([]edit(nil), c.edits...))}}, nil
}

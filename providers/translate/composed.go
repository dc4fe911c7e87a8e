package translate

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
)

// composed goes from one dialect to another by way of a third, chat or Anthropic's, which holds all that both have.
type composed struct {
	first, second providers.Translator
	names         map[string]string // the client's names of the third dialect's members, where they differ
}

// From implements providers.Translator.
func (t composed) From() providers.Dialect { return t.first.From() }

// To implements providers.Translator.
func (t composed) To() providers.Dialect { return t.second.To() }

// Request implements providers.Translator.
func (t composed) Request(body *jsonedit.Document, model string) ([]byte, []providers.Warning, error) {
	between, warnings, err := t.first.Request(body, model)
	if err != nil {
		return nil, nil, err
	}
	doc, err := jsonedit.Parse(between)
	if err != nil { // it is larger or deeper than the client's, which was within what jsonedit reads
		return nil, nil, refuse("", "the body is too large or too deep to be translated")
	}
	out, more, err := t.second.Request(doc, model)
	if refusal, ok := errors.AsType[*governance.Error](err); ok {
		refusal.Param = t.name(refusal.Param)
	}
	if err != nil {
		return nil, nil, err
	}
	all := notes(warnings)
	for _, w := range more {
		all.add(t.name(w.Param), w.Reason)
	}
	return out, all, nil
}

// name returns what the client calls a parameter. Where its name is another one the way inside of it is too, and is left out.
func (t composed) name(param string) string {
	if own, ok := t.names[param]; ok {
		return own
	}
	if own, ok := t.names[param[:len(param)-len(strings.TrimLeft(param, "abcdefghijklmnopqrstuvwxyz_"))]]; ok {
		return own
	}
	return param
}

// NewAnswer implements providers.Translator.
func (t composed) NewAnswer(client *jsonedit.Document) providers.Answer {
	return &composedAnswer{inner: t.second.NewAnswer(usageWanted(client)), outer: t.first.NewAnswer(client)}
}

// usageWanted returns what a client of the chat dialect asks for that wants its usage, under the client's name of the model.
func usageWanted(client *jsonedit.Document) *jsonedit.Document {
	model, _ := client.Get("model")
	if !isString(model) {
		model = raw(`""`)
	}
	doc, err := jsonedit.Parse([]byte(`{"model":` + string(model) + `,"stream_options":{"include_usage":true}}`))
	if err != nil {
		return client // its own model was read before
	}
	return doc
}

// composedAnswer passes what one answer makes of the upstream's to the next.
type composedAnswer struct {
	inner, outer providers.Answer
	between, out bytes.Buffer
}

// Body implements providers.Answer.
func (a *composedAnswer) Body(upstream []byte) ([]byte, error) {
	between, err := a.inner.Body(upstream)
	if err != nil {
		return nil, err
	}
	return a.outer.Body(between)
}

// Event implements providers.Answer.
func (a *composedAnswer) Event(w io.Writer, ev sse.Event) error {
	a.between.Reset()
	if err := a.inner.Event(&a.between, ev); err != nil {
		return err
	}
	return a.pass(w)
}

// pass hands the events between to the outer answer, whose own are written at once. They are as this package writes them: one
// line of data each, behind their name where they have one.
func (a *composedAnswer) pass(w io.Writer) error {
	for rest := a.between.Bytes(); len(rest) > 0; {
		var frame []byte
		frame, rest, _ = bytes.Cut(rest, []byte("\n\n"))
		_, data, _ := bytes.Cut(frame, []byte("data: "))
		if err := a.outer.Event(&a.out, sse.Event{Data: data}); err != nil {
			return err
		}
	}
	return a.flush(w)
}

// flush writes what the outer answer has made.
func (a *composedAnswer) flush(w io.Writer) error {
	if a.out.Len() == 0 {
		return nil
	}
	_, err := w.Write(a.out.Bytes())
	for _, buf := range []*bytes.Buffer{&a.between, &a.out} {
		buf.Reset()
		if buf.Cap() > maxKept {
			*buf = bytes.Buffer{}
		}
	}
	return err
}

// End implements providers.Answer.
func (a *composedAnswer) End(w io.Writer) error {
	a.between.Reset()
	if err := a.inner.End(&a.between); err != nil {
		return err
	}
	if err := a.pass(w); err != nil {
		return err
	}
	return a.outer.End(w)
}

// Error implements providers.Answer.
func (a *composedAnswer) Error(status int, body []byte) []byte {
	return a.outer.Error(status, a.inner.Error(status, body))
}

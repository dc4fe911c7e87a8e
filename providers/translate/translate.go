// Package translate carries requests and answers from the dialect that a client speaks to the one that its target speaks.
//
// Every ordered pair of dialects is a pure state machine: no clock but the one it is given, no I/O, no memory beyond what
// the dialects force it to hold. What no counterpart exists for is dropped with a warning or refused by name, at any depth
// of a request. Texts, numbers, tool inputs and schemas cross as the bytes that they came as: they are never decoded and
// encoded again, so that an escaped half of an emoji, 9223372036854775807 and 1E+2 arrive as what they were.
package translate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
)

// All returns a translator for every ordered pair of dialects that can be bridged. The clock dates the answers of upstreams
// that do not date them.
func All(now func() time.Time) []providers.Translator {
	return []providers.Translator{
		chatToMessages{now: now},
		messagesToChat{},
		chatToResponses{now},
		responsesToChat{now: now},
		composed{messagesToChat{}, chatToResponses{now}, map[string]string{"stop": "stop_sequences"}},
		composed{responsesToChat{now: now, halfway: true}, chatToMessages{now: now}, map[string]string{
			"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text", "reasoning_effort": "reasoning",
		}},
		chatToGemini{now},
		composed{messagesToChat{halfway: true}, chatToGemini{now}, map[string]string{
			"stop": "stop_sequences", "response_format": "output_config", "user": "metadata.user_id",
		}},
		composed{responsesToChat{now: now, halfway: true}, chatToGemini{now}, map[string]string{
			"messages": "input", "response_format": "text", "reasoning_effort": "reasoning",
		}},
		messagesToConverse{now},
		composed{chatToMessages{now: now, halfway: true}, messagesToConverse{now}, converseNames("messages", "response_format", "reasoning_effort")},
		composed{
			composed{responsesToChat{now: now, halfway: true}, chatToMessages{now: now, halfway: true}, map[string]string{
				"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text", "reasoning_effort": "reasoning",
			}},
			messagesToConverse{now},
			converseNames("input", "text", "reasoning"),
		},
	}
}

// converseNames returns what clients of OpenAI's dialects call the members of Anthropic's.
func converseNames(conversation, format, effort string) map[string]string {
	return map[string]string{
		"messages": conversation, "system": conversation, "output_config": format, "thinking": effort, "stop_sequences": "stop",
		"metadata": "user", "tool_choice.disable_parallel_tool_use": "parallel_tool_calls",
	}
}

var (
	// errIncomplete says that an upstream's stream ended in order, but without what ends an answer in its dialect.
	errIncomplete = errors.New("the stream ended before its answer was complete")
	// errTooMuch says that an answer would make the gateway hold more than a stream may.
	errTooMuch = errors.New("the answer holds back more than a stream may")
	// errNoAnswer says that an upstream's body is no answer of its dialect.
	errNoAnswer = errors.New("the body is no answer")
)

const (
	maxHeld  = 8 << 20  // bytes of an answer that one stream may hold back
	maxOpen  = 1 << 10  // blocks, tool calls or items of one answer
	maxKept  = 64 << 10 // bytes of a buffer that is kept for the next event
	maxNotes = 32       // warnings about one request
	maxParam = 96       // bytes of a warning's parameter
)

// raw is one JSON value as its sender wrote it; nil where it is absent.
type raw = jsontext.Value

// options keep what is not ours as it is: escapes, number literals, names given twice within tool inputs, halves of emojis.
var options = json.JoinOptions(
	jsontext.AllowDuplicateNames(true),
	jsontext.AllowInvalidUTF8(true),
	jsontext.PreserveRawStrings(true),
)

// given reports whether a member is there and not null.
func given(v raw) bool { return len(v) > 0 && v[0] != 'n' }

// present returns a member that is given, and nil for null.
func present(v raw) raw {
	if !given(v) {
		return nil
	}
	return v
}

func isString(v raw) bool { return len(v) > 0 && v[0] == '"' }

// hasText reports whether v is a string with something in it.
func hasText(v raw) bool { return isString(v) && len(v) > len(`""`) }

// blank reports whether a value is no text, or one without a letter.
func blank(v raw) bool { return !hasText(v) || strings.TrimSpace(unquote(v)) == "" }

// quote returns a text as a JSON string.
func quote(text string) raw {
	quoted, _ := jsontext.AppendQuote(nil, text) // its only error is about invalid UTF-8, replaced by U+FFFD
	return quoted
}

// unquote returns the text of a JSON string, or "" for anything else.
func unquote(v raw) string {
	if !isString(v) {
		return ""
	}
	text, _ := jsontext.AppendUnquote(nil, v) // its only error is about lone surrogates, replaced by U+FFFD
	return string(text)
}

// joined puts JSON strings together, byte by byte, with a separator that needs no escape in between.
func joined(texts []raw, separator string) raw {
	if len(texts) == 1 {
		return texts[0]
	}
	out := raw{'"'}
	for i, text := range texts {
		if i > 0 {
			out = append(out, separator...)
		}
		out = append(out, text[1:len(text)-1]...)
	}
	return append(out, '"')
}

// object returns the JSON object inside of a JSON string, which is how the OpenAI dialects carry tool inputs. An empty
// string is an empty object. ok is false where it is anything else.
func object(arguments raw) (value raw, ok bool) {
	text := strings.TrimSpace(unquote(arguments))
	if text == "" {
		return raw("{}"), true
	}
	value = raw(text)
	return value, value[0] == '{' && value.IsValid(options)
}

// encode writes one JSON value.
func encode(v any) ([]byte, error) {
	out, err := json.Marshal(v, options)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return out, nil
}

// refuse returns the error for a member that the target cannot be given.
func refuse(param, format string, args ...any) error {
	return &governance.Error{Code: governance.CodeInvalidRequest, Param: param, Public: fmt.Sprintf(format, args...)}
}

// decodeRequest reads a client's body, in which a member of the wrong kind is the client's fault.
func decodeRequest(body []byte, into any) error {
	err := json.Unmarshal(body, into, options)
	if err == nil {
		return nil
	}
	param := ""
	if semantic, ok := errors.AsType[*json.SemanticError](err); ok {
		param = named(semantic.JSONPointer)
	}
	if domain, ok := errors.AsType[*governance.Error](err); ok {
		domain.Param = param
		return domain
	}
	return &governance.Error{
		Code: governance.CodeInvalidRequest, Param: param, Public: "the member is not of the kind that it must be", Err: err,
	}
}

// named writes a JSON pointer as the providers' errors do: messages[2].role.
func named(pointer jsontext.Pointer) string {
	var b strings.Builder
	for token := range pointer.Tokens() {
		switch {
		case strings.Trim(token, "0123456789") == "" && b.Len() > 0:
			b.WriteString("[" + token + "]")
		case b.Len() > 0:
			b.WriteString("." + token)
		default:
			b.WriteString(token)
		}
	}
	return shortened(b.String())
}

// shortened makes a client's words fit for a header.
func shortened(param string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' || r == ',' {
			return '?'
		}
		return r
	}, param[:min(len(param), maxParam)])
}

// notes collects the warnings about one request, each parameter once.
type notes []providers.Warning

func (n *notes) add(param, reason string) {
	param = shortened(param)
	if len(*n) == maxNotes {
		return
	}
	for _, w := range *n {
		if w.Param == param {
			return
		}
	}
	*n = append(*n, providers.Warning{Param: param, Reason: reason})
}

// dropped takes note of a member that is given and not neutral: one whose absence says the same.
func (n *notes) dropped(param string, value raw, reason string) {
	if !neutral(value) {
		n.add(param, reason)
	}
}

// changed takes note of a member that is given and not what the target does anyway.
func (n *notes) changed(param string, value raw, anyway, reason string) {
	if given(value) && string(value) != anyway {
		n.add(param, reason)
	}
}

// unknown takes note of the members of an object that nobody here knows. at is the path to it with a dot at its end, in
// which arrays have no index.
func (n *notes) unknown(at string, rest raw) {
	if len(rest) <= len("{}") {
		return
	}
	dec := jsontext.NewDecoder(bytes.NewReader(rest), options)
	for _, err := dec.ReadToken(); err == nil && dec.PeekKind() == '"'; {
		var name jsontext.Token
		if name, err = dec.ReadToken(); err != nil {
			return
		}
		param := at + name.String()
		var value raw
		if value, err = dec.ReadValue(); err == nil {
			n.dropped(param, value, "not known to the target's dialect")
		}
	}
}

// neutral reports whether a value says no more than its absence: null, false, zero or something empty.
func neutral(v raw) bool {
	if !given(v) {
		return true
	}
	switch v[0] {
	case 'f':
		return true
	case '"':
		return len(v) == len(`""`)
	case '{', '[':
		return len(bytes.TrimSpace(v[1:len(v)-1])) == 0
	case 't':
		return false
	}
	mantissa, _, _ := strings.Cut(strings.ToLower(string(v)), "e")
	return strings.Trim(mantissa, "-0.") == ""
}

// frames collects the events that one event of the upstream becomes, and writes them at once.
type frames struct {
	buf bytes.Buffer
	err error
}

// named adds an event with a name.
func (f *frames) named(name string, data any) {
	f.buf.WriteString("event: ")
	f.buf.WriteString(name)
	f.buf.WriteByte('\n')
	f.data(data)
}

// data adds an event without a name.
func (f *frames) data(data any) {
	f.buf.WriteString("data: ")
	if err := json.MarshalWrite(&f.buf, data, options); err != nil && f.err == nil {
		f.err = fmt.Errorf("encode %T: %w", data, err)
	}
	f.buf.WriteString("\n\n")
}

// done adds what ends a stream of the chat dialect.
func (f *frames) done() { f.buf.WriteString("data: [DONE]\n\n") }

// flush writes what was collected, unless a part of it could not be.
func (f *frames) flush(w io.Writer) error {
	if f.err != nil || f.buf.Len() == 0 {
		return f.err
	}
	_, err := w.Write(f.buf.Bytes())
	f.buf.Reset()
	if f.buf.Cap() > maxKept {
		f.buf = bytes.Buffer{}
	}
	return err
}

// content is a text or a list of parts; what is neither is kept as it is.
type content[P any] struct {
	text  raw
	parts []P
	other raw
}

// IsZero reports whether there is no content; json asks it.
func (c content[P]) IsZero() bool { return c.text == nil && c.parts == nil && c.other == nil }

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (c *content[P]) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	switch dec.PeekKind() {
	case '"':
		return json.UnmarshalDecode(dec, &c.text)
	case '[':
		return json.UnmarshalDecode(dec, &c.parts)
	default:
		return json.UnmarshalDecode(dec, &c.other)
	}
}

// MarshalJSONTo implements json.MarshalerTo.
func (c content[P]) MarshalJSONTo(enc *jsontext.Encoder) error {
	switch {
	case c.text != nil:
		return enc.WriteValue(c.text)
	case c.other != nil:
		return enc.WriteValue(c.other)
	default:
		return json.MarshalEncode(enc, c.parts)
	}
}

// decodeEvent reads the data of an event. ok is false where it carries nothing: no data, null, [DONE].
func decodeEvent(ev sse.Event, into any) (ok bool, err error) {
	data := bytes.TrimSpace(ev.Data)
	if len(data) == 0 || string(data) == "null" || isDone(data) {
		return false, nil
	}
	if err := json.Unmarshal(data, into, options); err != nil {
		return false, fmt.Errorf("decode event: %w", err)
	}
	return true, nil
}

// isDone reports whether data is what ends a stream of the chat dialect.
func isDone(data []byte) bool { return string(bytes.TrimSpace(data)) == "[DONE]" }

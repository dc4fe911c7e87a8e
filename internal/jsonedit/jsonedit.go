// Package jsonedit reads request bodies without decoding them, and edits single members in place: everything that is not
// edited keeps its bytes, whatever its order, white space, number literals and unknown members.
//
// There is one reading of a body: what Parse accepts means the same to every JSON parser that a provider may use.
package jsonedit

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Document is a body that Parse accepted. It is immutable and safe for concurrent use.
type Document struct {
	body  []byte
	root  object
	facts Facts
}

// object locates the members of a JSON object in the body.
type object struct {
	open    int // offset behind the opening brace
	members []member
}

// member locates one member in the body: "name": value. Offsets count from the start of the body.
type member struct {
	name  []byte // unescaped
	at    int    // opening quote of the name
	value int    // first byte of the value
	end   int    // behind the value
}

func (o object) find(name string) (member, bool) {
	for _, m := range o.members {
		if string(m.name) == name {
			return m, true
		}
	}
	return member{}, false
}

// Bytes returns the body as Parse got it. It must not be changed.
func (d *Document) Bytes() []byte { return d.body }

// Facts returns what the estimate of the prompt needs to know.
func (d *Document) Facts() Facts { return d.facts }

// Get returns the raw value of a member, null included, or of a member inside of it: Get("stream_options",
// "include_usage"). Inside of what is no object every member is absent. It is a part of the body and must not be changed.
func (d *Document) Get(path ...string) (raw []byte, ok bool) {
	if len(path) == 0 {
		return nil, false
	}
	m, ok := d.root.find(path[0])
	for _, name := range path[1:] {
		if !ok || d.body[m.value] != '{' {
			return nil, false
		}
		m, ok = scan(d.body, m.value, m.end).find(name)
	}
	if !ok {
		return nil, false
	}
	return d.body[m.value:m.end:m.end], true
}

// String returns the text of a member; ok is false where it is absent or null. Any other kind is an *Error.
func (d *Document) String(path ...string) (s string, ok bool, err error) {
	raw, ok := d.present(path)
	if !ok {
		return "", false, nil
	}
	if raw[0] != '"' {
		return "", false, wrong(ErrWantString, path)
	}
	return string(unquote(raw)), true, nil
}

// Int returns a member that is a whole number of at most 64 bits, however it is written: 100, 100.0, 1e2. ok is false where
// it is absent or null. Any other kind is an *Error, and so is a fraction.
func (d *Document) Int(path ...string) (n int64, ok bool, err error) {
	raw, ok := d.present(path)
	if !ok {
		return 0, false, nil
	}
	if raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9' {
		n, ok = whole(string(raw))
	} else {
		ok = false
	}
	if !ok {
		return 0, false, wrong(ErrWantInteger, path)
	}
	return n, true, nil
}

// whole reads a JSON number whose value is whole, exactly.
func whole(literal string) (int64, bool) {
	if n, err := strconv.ParseInt(literal, 10, 64); err == nil {
		return n, true
	}
	mantissa, exponent, scaled := strings.Cut(strings.ToLower(literal), "e")
	shift := 0
	if scaled {
		var err error
		if shift, err = strconv.Atoi(exponent); err != nil || shift > 1000 || shift < -1000 {
			return 0, false
		}
	}
	digits, sign := strings.CutPrefix(mantissa, "-")
	integer, fraction, _ := strings.Cut(digits, ".")
	shift -= len(fraction)
	digits = strings.TrimLeft(integer+fraction, "0")
	significant := strings.TrimRight(digits, "0")
	shift += len(digits) - len(significant)
	if significant == "" {
		return 0, true
	}
	if shift < 0 || len(significant)+shift > 19 {
		return 0, false
	}
	text := significant + strings.Repeat("0", shift)
	if sign {
		text = "-" + text
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}

// Bool returns a member that is true or false; ok is false where it is absent or null. Any other kind is an *Error.
func (d *Document) Bool(path ...string) (b, ok bool, err error) {
	raw, ok := d.present(path)
	if !ok {
		return false, false, nil
	}
	switch string(raw) {
	case "true":
		return true, true, nil
	case "false":
		return false, true, nil
	}
	return false, false, wrong(ErrWantBool, path)
}

// present returns a member that is there and not null.
func (d *Document) present(path []string) ([]byte, bool) {
	raw, ok := d.Get(path...)
	return raw, ok && raw[0] != 'n'
}

func wrong(reason error, path []string) error {
	var p jsontext.Pointer
	for _, name := range path {
		p = p.AppendToken(name)
	}
	return &Error{Reason: reason, Param: param(p)}
}

// scan locates the members of the object in body[from:to], which Parse has accepted.
func scan(body []byte, from, to int) object {
	dec := newDecoder(body[from:to])
	o := object{open: from + 1}
	for _, err := dec.ReadToken(); err == nil && dec.PeekKind() == '"'; {
		name, _ := dec.ReadValue()
		m := member{name: unquote(name), at: from + int(dec.InputOffset()) - len(name)}
		var value jsontext.Value
		value, err = dec.ReadValue()
		m.end = from + int(dec.InputOffset())
		m.value = m.end - len(value)
		o.members = append(o.members, m)
	}
	return o
}

// newDecoder reads body in place. It leaves names and UTF-8 to Parse: jsontext would refuse names that are given twice
// inside tool inputs, and escaped lone surrogates, which clients send when they cut a string within an emoji.
func newDecoder(body []byte) *jsontext.Decoder {
	return jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// unquote returns the text of a valid JSON string literal: a part of it where nothing is escaped.
func unquote(literal []byte) []byte {
	if inner := literal[1 : len(literal)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	text, _ := jsontext.AppendUnquote(nil, literal) // its only error is about lone surrogates, replaced by U+FFFD
	return text
}

// Package formdata reads bodies of multipart/form-data (RFC 7578) where they lie, and changes the value of one field in them:
// every other byte stays as it came.
//
// There is one reading of a body: what two parsers could read in two ways is refused. Lines end in CR LF, the body begins with
// its first delimiter, and no delimiter stands where only some would see it.
package formdata

import (
	"bytes"
	"fmt"
	"io"
	"mime"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
)

const (
	maxParts      = 128
	maxHeader     = 8 << 10 // bytes of one part's header
	maxLines      = 16      // of one part's header
	maxFields     = 1 << 20 // bytes of all values that are no files
	maxName       = 128
	maxBoundary   = 70       // RFC 2046, section 5.1.1
	searchedAtOne = 64 << 10 // bytes
)

// Error says what is wrong with a form. Its text may be shown to the client.
type Error struct {
	Reason string
	Param  string // the part's name; empty where there is none
}

// Error names the reason and the part.
func (e *Error) Error() string {
	if e.Param == "" {
		return e.Reason
	}
	return e.Reason + ": " + e.Param
}

func fault(reason string) *Error { return &Error{Reason: reason} }

// Part is one part of a form.
type Part struct {
	Name     string
	Filename string
	IsFile   bool  // it has a file name, were it an empty one
	At, End  int64 // where its value lies in the body

	length span // the value of its header Content-Length
}

// Size is the length of the part's value.
func (p *Part) Size() int64 { return p.End - p.At }

type span struct{ at, end int64 }

// Form is a form that Parse accepted. It is immutable and safe for concurrent use, as far as its body is.
type Form struct {
	body   io.ReaderAt
	size   int64
	parts  []Part
	values map[string]string // of fields, the last of those whose name ends in []
}

// owned are the fields that the gateway reads or sets. Each may be given once, in this case, and not as a file.
var owned = [...]string{
	"model", "n", "partial_images", "prompt", "quality", "response_format", "size", "stream", "user",
}

// Boundary returns the boundary that a Content-Type names. ok is false where the type is another one than that of forms.
func Boundary(contentType string) (boundary string, ok bool, err error) {
	kind, _, _ := strings.Cut(contentType, ";")
	if !strings.EqualFold(strings.Trim(kind, " \t"), "multipart/form-data") {
		return "", false, nil
	}
	_, parameters, err := mime.ParseMediaType(contentType)
	boundary = parameters["boundary"]
	switch {
	case err != nil:
		return "", true, fault("the header Content-Type cannot be read")
	case boundary == "":
		return "", true, fault("the header Content-Type names no boundary")
	case len(boundary) > maxBoundary || strings.Trim(boundary, bchars) != "" || strings.HasSuffix(boundary, " "):
		return "", true, fault("the boundary has characters or a length that are not allowed")
	}
	return boundary, true, nil
}

// bchars are the characters of a boundary.
const bchars = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'()+_,-./:=? "

// Parse reads the form that body is. It refuses with an *Error what is no form, what more than one reading could be made of,
// and what is out of bounds: more than 128 parts, 8 KiB of header for a part, 1 MiB of fields.
func Parse(body io.ReaderAt, size int64, boundary string) (*Form, error) {
	f := &Form{body: body, size: size, values: make(map[string]string)}
	dash := []byte("--" + boundary)
	if head, err := f.read(0, int64(len(dash))); err != nil || !bytes.Equal(head, dash) {
		return nil, orFault(err, "the body does not begin with its boundary")
	}
	fields := int64(0)
	for at := int64(len(dash)); ; {
		tail, err := f.read(at, 2)
		if err != nil {
			return nil, err
		}
		at += int64(len(tail))
		switch string(tail) {
		case "--":
			if err := f.ends(at); err != nil {
				return nil, err
			}
			return f, nil
		case "\r\n":
		default:
			return nil, fault("a boundary is followed by something else than the end of its line")
		}
		if len(f.parts) == maxParts {
			return nil, fault("the form has more than " + strconv.Itoa(maxParts) + " parts")
		}
		p, err := f.header(at)
		if err != nil {
			return nil, err
		}
		if p.End, err = f.delimiter(p.At, dash); err != nil {
			return nil, err
		}
		if !p.IsFile {
			if fields += p.Size(); fields > maxFields {
				return nil, &Error{"the fields of the form are larger than 1 MiB; files need a file name", p.Name}
			}
		}
		if err := f.add(p); err != nil {
			return nil, err
		}
		at = p.End + int64(len("\r\n")) + int64(len(dash))
	}
}

func orFault(err error, reason string) error {
	if err != nil {
		return err
	}
	return fault(reason)
}

// read returns up to n bytes of the body; fewer at its end.
func (f *Form) read(at, n int64) ([]byte, error) {
	return f.readInto(make([]byte, min(n, max(f.size-at, 0))), at)
}

func (f *Form) readInto(b []byte, at int64) ([]byte, error) {
	b = b[:min(int64(len(b)), max(f.size-at, 0))]
	if _, err := f.body.ReadAt(b, at); err != nil && len(b) > 0 {
		if err == io.EOF && at+int64(len(b)) == f.size {
			return b, nil
		}
		return nil, fmt.Errorf("read form: %w", err)
	}
	return b, nil
}

// ends checks that nothing follows the last boundary.
func (f *Form) ends(at int64) error {
	rest, err := f.read(at, 3)
	if err != nil {
		return err
	}
	if len(rest) > 0 && string(rest) != "\r\n" {
		return fault("something follows the end of the form")
	}
	return nil
}

// delimiter finds where the value that begins at from ends.
func (f *Form) delimiter(from int64, dash []byte) (int64, error) {
	for at := from; ; {
		found, before, err := f.find(at, from, dash)
		switch {
		case err != nil:
			return 0, err
		case found < 0:
			return 0, fault("the form has no end: its last boundary is missing")
		case found-from >= 2 && before == [2]byte{'\r', '\n'}:
			return found - 2, nil
		case found == from || before[1] == '\n' || before[1] == '\r':
			return 0, fault("a boundary stands behind something else than CR LF")
		}
		at = found + 1 // in the middle of a line: no boundary
	}
}

// find returns the first place at or after at where pattern stands, and the two bytes before it as far as they are not before
// from; -1: nowhere.
func (f *Form) find(at, from int64, pattern []byte) (found int64, before [2]byte, err error) {
	room := make([]byte, searchedAtOne)
	for {
		start := max(at-2, from)
		window, err := f.readInto(room, start)
		if err != nil {
			return 0, before, err
		}
		skip := int(at - start)
		if len(window) < skip {
			return -1, before, nil
		}
		if i := bytes.Index(window[skip:], pattern); i >= 0 {
			i += skip
			copy(before[2-min(i, 2):], window[max(i-2, 0):i])
			return start + int64(i), before, nil
		}
		if start+int64(len(window)) >= f.size {
			return -1, before, nil
		}
		at = start + int64(len(window)-len(pattern)+1)
	}
}

// header reads the header of a part that begins at at.
func (f *Form) header(at int64) (Part, error) {
	block, err := f.read(at, maxHeader)
	if err != nil {
		return Part{}, err
	}
	end := bytes.Index(block, []byte("\r\n\r\n"))
	if end < 0 {
		return Part{}, fault("the header of a part is longer than 8 KiB, or does not end")
	}
	p := Part{At: at + int64(end) + 4}
	seen := make(map[string]bool)
	lines := strings.Split(string(block[:end]), "\r\n")
	if len(lines) > maxLines {
		return Part{}, fault("the header of a part has more than 16 lines")
	}
	for _, line := range lines {
		name, value, ok := strings.Cut(line, ":")
		if !ok || name == "" || strings.ContainsAny(line, "\r\n\x00") || strings.ContainsAny(name, " \t\"(),/;<=>?@[]{}\\") {
			return Part{}, fault("the header of a part cannot be read")
		}
		name = strings.ToLower(name)
		if seen[name] {
			return Part{}, fault("the header of a part has a line twice")
		}
		seen[name] = true
		from := at + int64(len(line)-len(strings.TrimLeft(value, " \t")))
		at += int64(len(line) + 2)
		value = strings.Trim(value, " \t")
		if err := p.line(name, value, from); err != nil {
			return Part{}, err
		}
	}
	if !seen["content-disposition"] {
		return Part{}, fault("a part has no Content-Disposition")
	}
	return p, nil
}

// line takes one line of a part's header, whose value begins at at.
func (p *Part) line(name, value string, at int64) error {
	switch name {
	case "content-disposition":
		return p.disposition(value)
	case "content-length":
		p.length = span{at, at + int64(len(value))}
	case "content-transfer-encoding":
		if !strings.EqualFold(value, "binary") && !strings.EqualFold(value, "8bit") && !strings.EqualFold(value, "7bit") {
			return fault("a part has a transfer encoding, which forms do not")
		}
	case "content-type":
		kind, parameters, err := mime.ParseMediaType(value)
		charset := parameters["charset"]
		switch {
		case err != nil && kind == "":
			return fault("the Content-Type of a part cannot be read")
		case strings.HasPrefix(kind, "multipart/"):
			return fault("a part is a form of its own")
		case charset != "" && !strings.EqualFold(charset, "utf-8") && !strings.EqualFold(charset, "us-ascii"):
			return fault("a part has another character set than UTF-8")
		}
	}
	return nil
}

// disposition reads form-data; name="…"; filename="…".
func (p *Part) disposition(value string) error {
	kind, rest, _ := strings.Cut(value, ";")
	if !strings.EqualFold(strings.Trim(kind, " \t"), "form-data") {
		return fault("the Content-Disposition of a part is not form-data")
	}
	seen := make(map[string]bool)
	for rest = strings.Trim(rest, " \t"); rest != ""; {
		name, after, ok := strings.Cut(rest, "=")
		name = strings.ToLower(strings.Trim(name, " \t"))
		text, left, read := parameter(after)
		if !ok || !read || seen[name] {
			return fault("the Content-Disposition of a part cannot be read")
		}
		seen[name] = true
		switch name {
		case "name":
			p.Name = text
		case "filename", "filename*": // the latter is encoded, and for people
			p.Filename, p.IsFile = text, true
		default:
			return fault("the Content-Disposition of a part has a parameter that forms have not")
		}
		rest = strings.Trim(left, " \t")
	}
	if p.Name == "" || len(p.Name) > maxName || strings.Trim(p.Name, nameChars) != "" {
		return fault("the name of a part is missing, too long, or has characters that are not allowed")
	}
	return nil
}

// nameChars are the characters of names: what every parser reads as itself.
const nameChars = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_.[]"

// parameter reads a token or a quoted string, and the semicolon behind it.
func parameter(text string) (value, rest string, ok bool) {
	if !strings.HasPrefix(text, `"`) {
		value, rest, _ = strings.Cut(text, ";")
		value = strings.Trim(value, " \t")
		return value, rest, value != "" && !strings.ContainsAny(value, " \t\"\\")
	}
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			rest = strings.TrimLeft(text[i+1:], " \t")
			if rest != "" && rest[0] != ';' {
				return "", "", false
			}
			return text[1:i], strings.TrimPrefix(rest, ";"), true
		}
	}
	return "", "", false
}

// add takes a part whose value is known, unless it contradicts the others.
func (f *Form) add(p Part) error {
	mine := false
	for _, name := range owned {
		if p.Name != name && strings.EqualFold(p.Name, name) {
			return &Error{"a field differs only in case from one that the gateway reads", p.Name}
		}
		mine = mine || p.Name == name
	}
	if mine && p.IsFile {
		return &Error{"a field that the gateway reads is given as a file", p.Name}
	}
	list := strings.HasSuffix(p.Name, "[]")
	for i := range f.parts {
		if other := &f.parts[i]; other.Name == p.Name && (!list && !p.IsFile || other.IsFile != p.IsFile) {
			return &Error{"a field is given twice", p.Name}
		}
	}
	if p.length != (span{}) {
		given, err := f.read(p.length.at, p.length.end-p.length.at)
		if err != nil {
			return err
		}
		if string(given) != strconv.FormatInt(p.Size(), 10) {
			return &Error{"the Content-Length of a part is wrong", p.Name}
		}
	}
	if !p.IsFile {
		if p.Name == "_charset_" {
			return &Error{"forms are in UTF-8 here", p.Name}
		}
		value, err := f.read(p.At, p.Size())
		if err != nil {
			return err
		}
		if !utf8.Valid(value) || bytes.IndexByte(value, 0) >= 0 {
			return &Error{"a field is not valid UTF-8", p.Name}
		}
		f.values[p.Name] = string(value)
	}
	f.parts = append(f.parts, p)
	return nil
}

// Size is the length of the body.
func (f *Form) Size() int64 { return f.size }

// Reader reads the body from its start, as it came.
func (f *Form) Reader() io.Reader { return io.NewSectionReader(f.body, 0, f.size) }

// Parts lists the parts in their order. They must not be changed.
func (f *Form) Parts() []Part { return f.parts }

// File reads the value of a part.
func (f *Form) File(p *Part) *io.SectionReader { return io.NewSectionReader(f.body, p.At, p.Size()) }

// String returns the value of a field; ok is false where it is absent. A path of several names finds nothing: forms do not
// nest. It never fails.
func (f *Form) String(path ...string) (s string, ok bool, err error) {
	if len(path) != 1 {
		return "", false, nil
	}
	s, ok = f.values[path[0]]
	return s, ok, nil
}

// Int returns the value of a field as a whole number; ok is false where it is absent or empty. Anything else is a
// *jsonedit.Error.
func (f *Form) Int(path ...string) (n int64, ok bool, err error) {
	text, ok, _ := f.String(path...)
	if !ok || text == "" {
		return 0, false, nil
	}
	if n, err = strconv.ParseInt(text, 10, 64); err != nil {
		return 0, false, &jsonedit.Error{Reason: jsonedit.ErrWantInteger, Param: path[0]}
	}
	return n, true, nil
}

// Bool returns the value of a field that is true or false, in any of the ways in which SDKs write them; ok is false where it
// is absent or empty. Anything else is a *jsonedit.Error.
func (f *Form) Bool(path ...string) (b, ok bool, err error) {
	text, ok, _ := f.String(path...)
	if !ok || text == "" {
		return false, false, nil
	}
	if b, err = strconv.ParseBool(text); err != nil {
		return false, false, &jsonedit.Error{Reason: jsonedit.ErrWantBool, Param: path[0]}
	}
	return b, true, nil
}

// With returns the body with another value of a field that it has once, and its length. Each call of open reads it from its
// start. It fails for a field that is not there and for a value that would end its part.
func (f *Form) With(name, value, boundary string) (open func() io.Reader, size int64, err error) {
	for i := range f.parts {
		p := &f.parts[i]
		if p.Name != name || p.IsFile {
			continue
		}
		if strings.Contains(value, boundary) {
			return nil, 0, fmt.Errorf("replace field %s: the value contains the boundary", name)
		}
		pieces := []piece{{span{p.At, p.End}, value}}
		if p.length != (span{}) {
			pieces = append([]piece{{p.length, strconv.Itoa(len(value))}}, pieces...)
		}
		return func() io.Reader { return f.spliced(pieces) }, f.spliced(pieces).size, nil
	}
	return nil, 0, fmt.Errorf("replace field %s: the form has none", name)
}

// piece is what stands in the place of a span.
type piece struct {
	span
	text string
}

type splicedReader struct {
	io.Reader
	size int64
}

func (f *Form) spliced(pieces []piece) splicedReader {
	var readers []io.Reader
	at, size := int64(0), f.size
	for _, p := range pieces {
		readers = append(readers, io.NewSectionReader(f.body, at, p.at-at), strings.NewReader(p.text))
		size += int64(len(p.text)) - (p.end - p.at)
		at = p.end
	}
	readers = append(readers, io.NewSectionReader(f.body, at, f.size-at))
	return splicedReader{io.MultiReader(readers...), size}
}

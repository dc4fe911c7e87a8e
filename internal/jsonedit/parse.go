package jsonedit

import (
	"errors"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Bounds of a body: what passes them takes seconds to read, and no client needs it.
const (
	maxDepth  = 1_000
	maxNames  = 10_000
	maxTokens = 1_000_000
)

// fewNames is up to how many names of an object are compared one by one before a set is made of them.
const fewNames = 16

// owned are the top-level members that Tollgate reads or sets, in any dialect. A case variant of one is refused, because
// some providers match names without regard to case and would take it for the member itself.
var owned = [...]string{
	"background", "best_of", "cache_control", "documents", "functions", "input", "instructions", "max_completion_tokens",
	"max_output_tokens", "max_tokens", "max_tokens_to_sample", "messages", "metadata", "model", "n", "output_config",
	"output_format", "prediction", "previous_response_id", "prompt", "query", "reasoning", "reasoning_effort",
	"response_format", "service_tier", "store", "stream", "stream_options", "suffix", "system", "text", "thinking",
	"tool_choice", "tools", "user",
}

// Parse reads a body in one walk. It refuses, with an *Error, what two parsers could read in two ways: invalid UTF-8,
// trailing data, a member name given twice (except inside tool inputs and JSON schemas, which a model or a library has
// made), a case variant of a top-level member that Tollgate reads; and what is too big to read: more than 1,000 levels,
// 10,000 members of one object or 1,000,000 tokens. The document keeps body, which must not be changed any more.
func Parse(body []byte) (*Document, error) {
	w := newWalker(&Document{body: body, root: object{members: make([]member, 0, 16)}})
	if err := w.walk(); err != nil {
		return nil, err
	}
	w.doc.facts = w.facts
	w.doc.facts.Prompts = max(w.facts.Prompts, 1)
	return w.doc, nil
}

// walker is the state of one walk over a body.
type walker struct {
	dec    *jsontext.Decoder
	doc    *Document
	tokens int
	frames []frame  // the open objects and arrays, outermost first
	names  [][]byte // the names so far of all open objects, outermost first
	facts  Facts
	prompt promptCount
	onText func(span) // gets each string that the model reads; may be nil
}

func newWalker(doc *Document) walker {
	return walker{dec: newDecoder(doc.body), doc: doc, frames: make([]frame, 0, 8), names: make([][]byte, 0, 32)}
}

// frame is one open object or array.
type frame struct {
	object   bool
	wantName bool                // the next token of the object is a name or its end
	names    int                 // where its names begin in walker.names
	seen     map[string]struct{} // its names, once there are more than a few
	zone     zone                // how its values are read
	next     zone                // how the value behind the name just read is read
	part     part                // what it is, if it is a part of a message
}

func (w *walker) walk() error {
	if !utf8.Valid(w.doc.body) {
		return &Error{Reason: ErrInvalidUTF8, Offset: int64(validPrefix(w.doc.body))}
	}
	kind := w.dec.PeekKind()
	if _, err := w.dec.ReadToken(); err != nil && !errors.Is(err, io.EOF) {
		return w.syntax(err)
	}
	if kind != '{' {
		return &Error{Reason: ErrNotObject}
	}
	w.doc.root.open = int(w.dec.InputOffset())
	w.frames = append(w.frames, frame{object: true, wantName: true})
	for len(w.frames) > 0 {
		if w.tokens++; w.tokens > maxTokens {
			return w.fault(ErrTooManyTokens)
		}
		if err := w.step(); err != nil {
			return err
		}
	}
	switch _, err := w.dec.ReadToken(); {
	case err == nil:
		return w.fault(ErrTrailingData)
	case !errors.Is(err, io.EOF):
		return &Error{Reason: ErrTrailingData, Offset: w.dec.InputOffset()}
	}
	return nil
}

// step takes one token.
func (w *walker) step() error {
	f := &w.frames[len(w.frames)-1]
	switch kind := w.dec.PeekKind(); kind {
	case '}', ']':
		if _, err := w.dec.ReadToken(); err != nil {
			return w.syntax(err)
		}
		w.pop()
	case '{', '[':
		if _, err := w.dec.ReadToken(); err != nil {
			return w.syntax(err)
		}
		if len(w.frames) == maxDepth {
			return w.fault(ErrTooDeep)
		}
		w.locate(1)
		w.push(kind == '{')
	default:
		raw, err := w.dec.ReadValue()
		if err != nil {
			return w.syntax(err)
		}
		if f.object && f.wantName {
			return w.name(f, raw)
		}
		w.locate(len(raw))
		w.scalar(f, raw)
		w.valueDone()
	}
	return nil
}

// name takes the name of a member.
func (w *walker) name(f *frame, raw []byte) error {
	name := unquote(raw)
	if f.zone != verbatim && w.repeated(f, name) {
		return w.fault(ErrDuplicateName)
	}
	w.names = append(w.names, name)
	if len(w.names)-f.names > maxNames {
		return w.fault(ErrTooManyNames)
	}
	if len(w.frames) == 1 {
		if isCaseVariant(string(name)) {
			return w.fault(ErrCaseVariant)
		}
		root := &w.doc.root
		root.members = append(root.members, member{name: name, at: int(w.dec.InputOffset()) - len(raw)})
	}
	f.wantName = false
	w.enter(f, name, raw)
	return nil
}

// repeated reports whether the open object f has the name already, and remembers it.
func (w *walker) repeated(f *frame, name []byte) bool {
	mine := w.names[f.names:]
	if f.seen == nil && len(mine) < fewNames {
		for _, other := range mine {
			if string(other) == string(name) {
				return true
			}
		}
		return false
	}
	if f.seen == nil {
		f.seen = make(map[string]struct{}, 4*fewNames)
		for _, other := range mine {
			f.seen[string(other)] = struct{}{}
		}
	}
	if _, twice := f.seen[string(name)]; twice {
		return true
	}
	f.seen[string(name)] = struct{}{}
	return false
}

func isCaseVariant(name string) bool {
	for _, o := range owned {
		if name == o {
			return false
		}
	}
	for _, o := range owned {
		if strings.EqualFold(name, o) {
			return true
		}
	}
	return false
}

// locate notes where the value of a top-level member begins: read bytes before the decoder's position.
func (w *walker) locate(read int) {
	if len(w.frames) == 1 {
		members := w.doc.root.members
		members[len(members)-1].value = int(w.dec.InputOffset()) - read
	}
}

func (w *walker) push(isObject bool) {
	zone := w.open(&w.frames[len(w.frames)-1], isObject)
	w.frames = append(w.frames, frame{object: isObject, wantName: isObject, names: len(w.names), zone: zone})
}

func (w *walker) pop() {
	last := len(w.frames) - 1
	f := w.frames[last]
	w.names = w.names[:f.names]
	w.frames = w.frames[:last]
	if last > 0 {
		w.close(&f, &w.frames[last-1])
		w.valueDone()
	}
}

// valueDone ends a value of the innermost open object or array.
func (w *walker) valueDone() {
	f := &w.frames[len(w.frames)-1]
	f.wantName = f.object
	if len(w.frames) == 1 {
		members := w.doc.root.members
		members[len(members)-1].end = int(w.dec.InputOffset())
		w.facts.Prompts = max(w.facts.Prompts, w.prompt.total())
		w.prompt = promptCount{}
	}
}

// fault refuses the body at the token just read.
func (w *walker) fault(reason error) error {
	return &Error{Reason: reason, Param: param(w.dec.StackPointer()), Offset: w.dec.InputOffset()}
}

// syntax refuses what jsontext could not read.
func (w *walker) syntax(err error) error {
	e := &Error{Reason: ErrSyntax, Offset: w.dec.InputOffset()}
	var at *jsontext.SyntacticError
	if errors.As(err, &at) {
		e.Offset = at.ByteOffset
	}
	return e
}

func validPrefix(b []byte) int {
	at := 0
	for at < len(b) {
		r, size := utf8.DecodeRune(b[at:])
		if r == utf8.RuneError && size <= 1 {
			break
		}
		at += size
	}
	return at
}

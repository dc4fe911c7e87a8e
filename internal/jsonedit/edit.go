package jsonedit

import (
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// Edit is a change of one member.
type Edit struct {
	path  []string
	value []byte // nil deletes
}

// Path names a member for an Edit.
type Path []string

// At returns the path of a top-level member, or of a member inside of it: At("stream_options", "include_usage").
func At(name string, inside ...string) Path { return append(Path{name}, inside...) }

// Raw sets the member to value, which must be one valid JSON value.
func (p Path) Raw(value []byte) Edit { return Edit{p, value} }

// String sets the member to a string.
func (p Path) String(value string) Edit {
	quoted, _ := jsontext.AppendQuote(nil, value) // its only error is about invalid UTF-8, replaced by U+FFFD
	return Edit{p, quoted}
}

// Int sets the member to an integer.
func (p Path) Int(value int64) Edit { return Edit{p, strconv.AppendInt(nil, value, 10)} }

// Bool sets the member to true or false.
func (p Path) Bool(value bool) Edit { return Edit{p, strconv.AppendBool(nil, value)} }

// Delete removes the member with one comma; an absent one stays absent.
func (p Path) Delete() Edit { return Edit{path: p} }

// With returns a new body with the edits applied; the document keeps the original, which serves the next attempt. A value
// takes the place of the old one; a member that is absent goes directly behind the opening brace. An edit inside a member
// that is absent or null makes it an object; inside any other kind it is an *Error. Edits must not overlap.
func (d *Document) With(edits ...Edit) ([]byte, error) {
	patches, err := plan(nil, d.body, d.root, edits, 0)
	if err != nil {
		return nil, err
	}
	return splice(d.body, patches), nil
}

// MapTexts calls f with each string that the model reads, unescaped: values of tool inputs and schemas are among them,
// images, audio and files are not. It returns a new body in which those that f changed are replaced, or the same body
// where none is. The calls come in the order of the body, except that the text of a part whose kind decides whether it is
// one comes at the part's end.
func (d *Document) MapTexts(f func(text string) string) []byte {
	var patches []patch
	w := newWalker(&Document{body: d.body})
	w.onText = func(at span) {
		old := string(unquote(d.body[at.from:at.to]))
		if text := f(old); text != old {
			quoted, _ := jsontext.AppendQuote(nil, text) // its only error is about invalid UTF-8, replaced by U+FFFD
			patches = append(patches, patch{at.from, at.to, quoted})
		}
	}
	_ = w.walk() // Parse has accepted this body
	if len(patches) == 0 {
		return d.body
	}
	slices.SortFunc(patches, func(a, b patch) int { return a.from - b.from })
	return splice(d.body, patches)
}

// splice returns a copy of body with the patches, which are in its order and do not overlap.
func splice(body []byte, patches []patch) []byte {
	size := len(body)
	for _, p := range patches {
		size += len(p.with) - (p.to - p.from)
	}
	out := make([]byte, 0, size)
	done := 0
	for _, p := range patches {
		out = append(append(out, body[done:p.from]...), p.with...)
		done = p.to
	}
	return append(out, body[done:]...)
}

// patch replaces body[from:to].
type patch struct {
	from, to int
	with     []byte
}

// plan appends to patches, in the order of the body, what the edits do to an object. The first depth names of the edits'
// paths lead to it.
func plan(patches []patch, body []byte, o object, edits []Edit, depth int) ([]patch, error) {
	first := len(patches)
	patches = append(patches, patch{from: o.open, to: o.open})
	kept := o.open // end of the last member that stays
	for i, m := range o.members {
		mine := under(edits, string(m.name), depth)
		inside := len(mine) > 0 && len(mine[0].path) > depth+1
		switch {
		case len(mine) == 0:
		case inside && body[m.value] == '{':
			var err error
			if patches, err = plan(patches, body, scan(body, m.value, m.end), mine, depth+1); err != nil {
				return nil, err
			}
		case inside && body[m.value] != 'n':
			return nil, wrong(ErrWantObject, mine[0].path[:depth+1])
		default:
			if value := build(mine, depth+1); value != nil {
				patches = append(patches, patch{from: m.value, to: m.end, with: value})
			} else if !inside {
				patches = remove(patches, o, i, kept)
				continue
			}
		}
		kept = m.end
	}
	patches[first].with = additions(o, edits, depth)
	if len(patches[first].with) > 0 && kept > o.open {
		patches[first].with = append(patches[first].with, ',')
	}
	return patches, nil
}

// remove cuts member i and one comma: the one behind it or, if it is the last member, the one before it, which is the
// comma behind the last member that stays. Members between those two are cut already.
func remove(patches []patch, o object, i, kept int) []patch {
	switch {
	case i+1 < len(o.members):
		return append(patches, patch{from: o.members[i].at, to: o.members[i+1].at})
	case kept == o.open:
		return append(patches, patch{from: o.members[i].at, to: o.members[i].end})
	}
	for patches[len(patches)-1].from >= kept {
		patches = patches[:len(patches)-1]
	}
	return append(patches, patch{from: kept, to: o.members[i].end})
}

// under returns the edits of the member name, or inside of it, in the object that depth names lead to.
func under(edits []Edit, name string, depth int) []Edit {
	var mine []Edit
	for _, e := range edits {
		if e.path[depth] == name {
			mine = append(mine, e)
		}
	}
	return mine
}

// additions writes the members that the edits give to an object that lacks them, parted by commas.
func additions(o object, edits []Edit, depth int) []byte {
	var out []byte
	added := object{}
	for _, e := range edits {
		name := e.path[depth]
		_, present := o.find(name)
		_, done := added.find(name)
		if present || done {
			continue
		}
		value := build(under(edits, name, depth), depth+1)
		if value == nil {
			continue
		}
		added.members = append(added.members, member{name: []byte(name)})
		if len(out) > 0 {
			out = append(out, ',')
		}
		out, _ = jsontext.AppendQuote(out, name)
		out = append(append(out, ':'), value...)
	}
	return out
}

// build returns the value that the edits give to a member that is absent, null or replaced; nil if they give none.
func build(edits []Edit, depth int) []byte {
	if len(edits[0].path) == depth {
		return edits[0].value
	}
	members := additions(object{}, edits, depth)
	if members == nil {
		return nil
	}
	return append(append([]byte{'{'}, members...), '}')
}

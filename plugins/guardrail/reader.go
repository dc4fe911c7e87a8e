package guardrail

import (
	"context"
	"errors"
	"time"
	"unicode/utf8"
)

const (
	// readTime is how long the texts of one request, or of one answer, may be read: RE2 takes time that grows with the size of a
	// pattern times that of the text (T24).
	readTime = 2 * time.Second
	// readPiece is how much of a long text is read before the time is looked at, in bytes.
	readPiece = 8 << 10
)

// errLate is what a guardrail fails with whose patterns take longer than readTime.
var errLate = errors.New("patterns take too long")

// reader reads whole texts, as long as there is time.
type reader struct {
	ctx     context.Context //nolint:containedctx // of one request or answer
	effects []effect
	hit     func(*rail)
	late    bool // it was too slow, and the texts since then were not read
}

// whole reads a text: as it is, and then as people and models read it. One in which nothing is found stays as it is.
func (r *reader) whole(text string) (out string, by *rail) {
	out = text
	for _, form := range []func(string) string{func(text string) string { return text }, readable} {
		plain := form(out)
		masked, by := r.scan(plain)
		switch {
		case by != nil:
			return "", by
		case r.late:
			return text, nil
		case masked != plain:
			out = masked
		}
		if readable(out) == out {
			break
		}
	}
	return out, nil
}

func (r *reader) scan(text string) (out string, by *rail) {
	if r.late = r.late || r.ctx.Err() != nil; r.late {
		return text, nil
	}
	s := newScanner(r.effects, r.hit)
	if len(text) <= 2*readPiece {
		s.text = text
		return s.decide(len(text), true)
	}
	all := make([]byte, 0, len(text))
	for rest := text; rest != ""; {
		n := min(readPiece, len(rest))
		for n < len(rest) && !utf8.RuneStart(rest[n]) {
			n++
		}
		piece, by := s.push(rest[:n])
		if by != nil {
			return "", by
		}
		if r.late = r.ctx.Err() != nil; r.late {
			return text, nil
		}
		all = append(all, piece...)
		rest = rest[n:]
	}
	last, by := s.end()
	return string(append(all, last...)), by
}

// input reads the input of a tool. Each string and each number in it is a text of its own.
func (r *reader) input(text string) (out string, by *rail) {
	var edits []edit
	for _, p := range stringsIn([]byte(text)) {
		with, by := r.whole(p.text)
		if by != nil {
			return "", by
		}
		if with != p.text {
			edits = append(edits, edit{p, with})
		}
	}
	if len(edits) == 0 {
		return text, nil
	}
	return string(splice([]byte(text), edits)), nil
}

// fails returns an error if the reader was late and one of the rails that read texts does not spare that.
func (r *reader) fails(p *plugin, rails []*rail) (err error) {
	if !r.late {
		return nil
	}
	for _, one := range rails {
		if len(one.patterns) > 0 && !p.spares(one, errLate) {
			err = errLate
		}
	}
	return err
}

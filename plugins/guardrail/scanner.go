package guardrail

import (
	"cmp"
	"slices"
	"unicode/utf8"
)

const (
	mask = "[masked]" // what takes the place of what was found
	// maxHeld is how much of a text is held back in a stream because a match may be under way, in bytes. What is longer is
	// judged as it is.
	maxHeld = 32 << 10
)

// effect is what the matches of a pattern cause.
type effect struct {
	pattern
	rail  *rail
	masks bool
	ends  bool // the call is blocked
}

// span is a part of a text.
type span struct{ from, to int }

// scanner reads one text that comes in pieces and passes on what is decided: no part of a match, nor of what may still become
// one. It is what it passes on whatever the pieces are.
type scanner struct {
	effects  []effect
	trackers []tracker
	from     []int  // by effect: where its next match may begin
	text     string // what is not decided, with some context before it
	released int    // offset up to which it was passed on
	masked   int    // offset up to which a mask stands for it; negative: there is none near
	spans    []span // that will be masked, and are not passed on yet
	hit      func(*rail)
}

// newScanner makes a scanner. hit is told of each match.
func newScanner(effects []effect, hit func(*rail)) *scanner {
	s := &scanner{masked: -1, effects: effects, trackers: make([]tracker, len(effects)), from: make([]int, len(effects)), hit: hit}
	for i := range effects {
		s.trackers[i] = newTracker(&effects[i].pattern)
	}
	return s
}

// push adds a piece and returns what can be passed on. A rail says that the text is blocked by it.
func (s *scanner) push(piece string) (out string, by *rail) {
	at := len(s.text)
	s.text += piece
	limit := len(s.text)
	for i := range s.trackers {
		s.trackers[i].take(piece, at)
		limit = s.trackers[i].undecided(limit)
	}
	return s.decide(limit, len(s.text)-limit > maxHeld)
}

// end returns the rest.
func (s *scanner) end() (out string, by *rail) { return s.decide(len(s.text), true) }

// decide looks for the matches that begin before limit. final says that the text is judged as if nothing followed.
func (s *scanner) decide(limit int, final bool) (out string, by *rail) {
	if final {
		limit = len(s.text)
	}
	for i := range s.effects {
		e := &s.effects[i]
		for pos := s.from[i]; ; {
			start, end, ok := e.find(s.text, pos)
			if !ok || start >= limit {
				break
			}
			if end == len(s.text) && !final { // what follows may belong to it, or make it none
				limit = start
				break
			}
			if e.refine != nil {
				if end, ok = e.refine(s.text, start, end); !ok {
					_, size := utf8.DecodeRuneInString(s.text[start:])
					pos = start + size
					s.from[i] = pos
					continue
				}
			}
			s.hit(e.rail)
			if e.ends {
				return "", e.rail
			}
			if e.masks {
				s.spans = append(s.spans, span{start, end})
			}
			pos = end
			s.from[i] = end
		}
	}
	for i := range s.from {
		s.from[i] = max(s.from[i], limit)
	}
	return s.release(limit), nil
}

// release passes on what lies before limit, with masks.
func (s *scanner) release(limit int) string {
	slices.SortFunc(s.spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	at := max(s.released, s.masked)
	out := make([]byte, 0, max(limit-at, 0)+len(mask))
	kept := s.spans[:0]
	for _, sp := range s.spans {
		switch {
		case sp.from >= limit:
			kept = append(kept, sp)
		case sp.from > s.masked:
			out = append(append(out, s.text[at:sp.from]...), mask...)
			at, s.masked = sp.to, sp.to
		default: // it overlaps with the mask before it, or touches it
			s.masked = max(s.masked, sp.to)
			at = max(at, s.masked)
		}
	}
	s.spans = kept
	if at < limit {
		out = append(out, s.text[at:limit]...)
	}
	s.released = max(s.released, limit)
	s.trim()
	return string(out)
}

// trim forgets what is decided but for its last two runes, which are the context of what follows: see endsInWord.
func (s *scanner) trim() {
	n := s.released
	for _, from := range s.from {
		n = min(n, from)
	}
	if n <= 0 || n > len(s.text) {
		return
	}
	for range 2 {
		_, size := utf8.DecodeLastRuneInString(s.text[:n])
		n -= size
	}
	s.text = s.text[n:]
	s.released -= n
	s.masked -= n
	for i := range s.from {
		s.from[i] -= n
		s.trackers[i].trim(n)
	}
	for i := range s.spans {
		s.spans[i].from -= n
		s.spans[i].to -= n
	}
}

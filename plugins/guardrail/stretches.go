package guardrail

import (
	"regexp/syntax"
	"unicode/utf8"
)

// stretches are the parts of a text that a pattern can match in: the longest runs of characters that its matches consist of,
// where they are long enough and hold what every match has. Most of a text is in none of them, and needs no search.
type stretches struct {
	ascii    [utf8.RuneSelf]bool // the ASCII characters of matches
	beyond   bool                // whether matches may have others
	least    int                 // bytes of the shortest match
	required []byte              // what every match holds
}

// stretchesOf reads them from a program; nil: its matches depend on what is around them.
func stretchesOf(prog *syntax.Prog) *stretches {
	s := &stretches{}
	for i := range prog.Inst {
		inst := &prog.Inst[i]
		switch inst.Op {
		case syntax.InstEmptyWidth:
			return nil
		case syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
			s.beyond = true
		case syntax.InstRune, syntax.InstRune1:
			for _, r := range inst.Rune {
				s.beyond = s.beyond || r >= utf8.RuneSelf
			}
			if syntax.Flags(inst.Arg)&syntax.FoldCase != 0 { // K and S have folded forms that are not ASCII
				s.beyond = s.beyond || inst.MatchRune('\u212a') || inst.MatchRune('\u017f')
			}
		default:
			continue
		}
		for r := range s.ascii {
			s.ascii[r] = s.ascii[r] || takes(inst, rune(r))
		}
	}
	s.least = shortest(prog, -1)
	if s.least <= 0 {
		return nil
	}
	for r := range s.ascii {
		if s.ascii[r] && shortest(prog, rune(r)) < 0 {
			s.required = append(s.required, byte(r))
		}
	}
	return s
}

// shortest returns the runes of a program's shortest match that has no rune without; -1: there is no such match.
func shortest(prog *syntax.Prog, without rune) int {
	const far = 1 << 30
	length := make([]int, len(prog.Inst))
	for i := range length {
		length[i] = far
	}
	queue := []uint32{uint32(prog.Start)}
	length[prog.Start] = 0
	best := far
	for len(queue) > 0 {
		pc := queue[0]
		queue = queue[1:]
		inst := &prog.Inst[pc]
		reach := func(to uint32, steps int) {
			if n := length[pc] + steps; n < length[to] {
				length[to] = n
				queue = append(queue, to)
			}
		}
		switch inst.Op {
		case syntax.InstMatch:
			best = min(best, length[pc])
		case syntax.InstFail:
		case syntax.InstAlt, syntax.InstAltMatch:
			reach(inst.Out, 0)
			reach(inst.Arg, 0)
		case syntax.InstCapture, syntax.InstNop, syntax.InstEmptyWidth:
			reach(inst.Out, 0)
		default:
			if !onlyTakes(inst, without) {
				reach(inst.Out, 1)
			}
		}
	}
	if best == far {
		return -1
	}
	return best
}

// onlyTakes reports whether an instruction takes no rune but one.
func onlyTakes(inst *syntax.Inst, r rune) bool {
	if r < 0 || !takes(inst, r) {
		return false
	}
	switch inst.Op {
	case syntax.InstRune1:
		return syntax.Flags(inst.Arg)&syntax.FoldCase == 0
	case syntax.InstRune:
		if len(inst.Rune) == 1 {
			return syntax.Flags(inst.Arg)&syntax.FoldCase == 0
		}
		for i := 0; i+1 < len(inst.Rune); i += 2 {
			if inst.Rune[i] != r || inst.Rune[i+1] != r {
				return false
			}
		}
		return true
	}
	return false
}

// next returns the first stretch of a text at or behind from; start equals end where there is none.
func (s *stretches) next(text string, from int) (start, end int) {
	for at := from; at < len(text); at = end {
		for at < len(text) && !s.has(text[at]) {
			at++
		}
		for end = at; end < len(text) && s.has(text[end]); {
			end++
		}
		if end-at >= s.least && s.complete(text[at:end]) {
			return at, end
		}
	}
	return len(text), len(text)
}

func (s *stretches) has(b byte) bool {
	if b < utf8.RuneSelf {
		return s.ascii[b]
	}
	return s.beyond
}

func (s *stretches) complete(stretch string) bool {
	for _, b := range s.required {
		found := false
		for i := 0; i < len(stretch) && !found; i++ {
			found = stretch[i] == b
		}
		if !found {
			return false
		}
	}
	return true
}

package guardrail

import (
	"regexp/syntax"
	"unicode/utf8"
)

// tracker follows a pattern through a text that comes in pieces and knows the earliest place at which a match may still be
// under way: what lies before it is decided. It finds no matches by itself; package regexp does.
type tracker struct {
	prog    *syntax.Prog
	begins  *[utf8.RuneSelf]bool // whether a match can begin with an ASCII rune
	starts  starts
	threads []thread // behind the last rune, the oldest first
	next    []thread
	seen    []int // by instruction: number of the step in which it was reached
	step    int
	last    rune // -1: none
}

// thread is a match under way: the instruction that it waits at, and where it began.
type thread struct {
	pc    uint32
	start int
}

func newTracker(p *pattern) tracker {
	return tracker{prog: p.prog, begins: p.begins, starts: p.starts, seen: make([]int, len(p.prog.Inst)), last: -1}
}

// starts are the instructions that take the first rune of a match, by that rune; nil: what is before it matters. A list of a
// thousand words has few that begin with one letter.
type starts *[utf8.RuneSelf][]uint32

func startsOf(prog *syntax.Prog) starts {
	var table [utf8.RuneSelf][]uint32
	reached := make([]bool, len(prog.Inst))
	todo := []uint32{uint32(prog.Start)}
	for len(todo) > 0 {
		pc := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if reached[pc] {
			continue
		}
		reached[pc] = true
		inst := &prog.Inst[pc]
		switch inst.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			todo = append(todo, inst.Out, inst.Arg)
		case syntax.InstCapture, syntax.InstNop:
			todo = append(todo, inst.Out)
		case syntax.InstEmptyWidth:
			return nil
		case syntax.InstMatch, syntax.InstFail:
		default:
			for r := range table {
				if takes(inst, rune(r)) {
					table[r] = append(table[r], pc)
				}
			}
		}
	}
	return &table
}

// firsts tells with which ASCII runes a match of a program can begin.
func firsts(prog *syntax.Prog) *[utf8.RuneSelf]bool {
	var table [utf8.RuneSelf]bool
	for r := range table {
		reached := make(map[uint32]bool)
		var begins func(pc uint32) bool
		begins = func(pc uint32) bool {
			if reached[pc] {
				return false
			}
			reached[pc] = true
			inst := &prog.Inst[pc]
			switch inst.Op {
			case syntax.InstAlt, syntax.InstAltMatch:
				return begins(inst.Out) || begins(inst.Arg)
			case syntax.InstCapture, syntax.InstNop, syntax.InstEmptyWidth: // whatever the context turns out to be
				return begins(inst.Out)
			case syntax.InstMatch:
				return false
			case syntax.InstFail:
				return false
			}
			return takes(inst, rune(r))
		}
		table[r] = begins(uint32(prog.Start))
	}
	return &table
}

func takes(inst *syntax.Inst, r rune) bool {
	switch inst.Op {
	case syntax.InstRuneAny:
		return true
	case syntax.InstRuneAnyNotNL:
		return r != '\n'
	case syntax.InstRune, syntax.InstRune1:
		return inst.MatchRune(r)
	default:
		return false
	}
}

// take reads a piece that begins at an offset.
func (t *tracker) take(piece string, at int) {
	for i, r := range piece {
		t.rune(r, at+i)
	}
}

func (t *tracker) rune(r rune, at int) {
	begins := r >= utf8.RuneSelf || t.begins[r]
	if len(t.threads) == 0 && !begins {
		t.last = r
		return
	}
	t.step++
	t.next = t.next[:0]
	context := syntax.EmptyOpContext(t.last, r)
	for _, th := range t.threads {
		t.follow(th.pc, th.start, r, context)
	}
	switch {
	case !begins:
	case r < utf8.RuneSelf && t.starts != nil:
		for _, pc := range t.starts[r] {
			if t.seen[pc] != t.step {
				t.seen[pc] = t.step
				t.next = append(t.next, thread{t.prog.Inst[pc].Out, at})
			}
		}
	default:
		t.follow(uint32(t.prog.Start), at, r, context)
	}
	t.threads, t.next = t.next, t.threads
	t.last = r
}

// follow adds what a thread at pc becomes by the next rune.
func (t *tracker) follow(pc uint32, start int, r rune, context syntax.EmptyOp) {
	if t.seen[pc] == t.step {
		return // by a thread that began before
	}
	t.seen[pc] = t.step
	inst := &t.prog.Inst[pc]
	switch inst.Op {
	case syntax.InstAlt, syntax.InstAltMatch:
		t.follow(inst.Out, start, r, context)
		t.follow(inst.Arg, start, r, context)
	case syntax.InstCapture, syntax.InstNop:
		t.follow(inst.Out, start, r, context)
	case syntax.InstEmptyWidth:
		if syntax.EmptyOp(inst.Arg)&^context == 0 {
			t.follow(inst.Out, start, r, context)
		}
	case syntax.InstMatch, syntax.InstFail:
	default:
		if takes(inst, r) {
			t.next = append(t.next, thread{inst.Out, start})
		}
	}
}

// undecided returns where the earliest match under way began, or end.
func (t *tracker) undecided(end int) int {
	for _, th := range t.threads {
		end = min(end, th.start)
	}
	return end
}

// trim counts offsets from n on.
func (t *tracker) trim(n int) {
	for i := range t.threads {
		t.threads[i].start -= n
	}
}

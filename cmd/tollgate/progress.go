package main

import (
	"fmt"
	"io"
)

// progress tells what a long command does now: on a terminal in one line that is written over, else in a line each.
type progress struct {
	out      io.Writer
	terminal bool
}

func newProgress(w io.Writer) progress { return progress{w, coloured(w)} }

// lineStart goes back to the beginning of the line and clears it.
const lineStart = "\r\x1b[K"

// say replaces what was said before.
func (p progress) say(text string) {
	if p.terminal {
		fmt.Fprint(p.out, lineStart+text+" …")
		return
	}
	fmt.Fprintln(p.out, text)
}

// end clears the line.
func (p progress) end() {
	if p.terminal {
		fmt.Fprint(p.out, lineStart)
	}
}

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// column is one column of a table: its heading and where its value is found.
type column struct {
	name string
	path string
}

// at returns the member of o that a dotted path names. Nil: there is none.
func at(o object, path string) any {
	var v any = o
	for step := range strings.SplitSeq(path, ".") {
		m, ok := v.(object)
		if !ok {
			return nil
		}
		v = m[step]
	}
	return v
}

// text writes a member as a cell.
func text(o object, path string) string { return cell(at(o, path)) }

func cell(v any) string {
	switch v := v.(type) {
	case nil:
		return "-"
	case string:
		if t, err := time.Parse(time.RFC3339Nano, v); err == nil {
			return t.UTC().Format("2006-01-02 15:04:05Z")
		}
		if v == "" {
			return "-"
		}
		return plain(v)
	case bool:
		if v {
			return "yes"
		}
		return "no"
	case []any:
		parts := make([]string, 0, len(v))
		for _, e := range v {
			parts = append(parts, cell(e))
		}
		if len(parts) == 0 {
			return "none"
		}
		return strings.Join(parts, ", ")
	case object:
		encoded, err := json.Marshal(v)
		if err != nil {
			return "?"
		}
		return string(encoded)
	}
	return fmt.Sprint(v)
}

// plain keeps what others named from moving the cursor or colouring the terminal.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}

// printer writes results in one form.
type printer struct {
	out    io.Writer
	form   string
	colour bool
}

func (c *client) printer(out io.Writer) printer {
	return printer{out: out, form: c.Output, colour: c.Output == "table" && isTerminal(out)}
}

// isTerminal reports whether colours make sense on w.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

const (
	bold  = "\x1b[1m"
	green = "\x1b[32m"
	red   = "\x1b[31m"
	amber = "\x1b[33m"
	reset = "\x1b[0m"
)

func (p printer) paint(colour, s string) string {
	if !p.colour {
		return s
	}
	return colour + s + reset
}

// list writes items as a table, or as they are.
func (p printer) list(items []object, columns []column) error {
	if p.form != "table" {
		if items == nil {
			items = []object{}
		}
		return p.raw(items)
	}
	if len(items) == 0 {
		_, err := fmt.Fprintln(p.out, "none")
		return err
	}
	rows := make([][]string, 0, len(items))
	for _, item := range items {
		row := make([]string, 0, len(columns))
		for _, c := range columns {
			row = append(row, text(item, c.path))
		}
		rows = append(rows, row)
	}
	names := make([]string, 0, len(columns))
	for _, c := range columns {
		names = append(names, c.name)
	}
	return p.table(names, rows)
}

// table writes rows under headings, numbers to the right.
func (p printer) table(names []string, rows [][]string) error {
	width := make([]int, len(names))
	numeric := make([]bool, len(names))
	for i, n := range names {
		width[i] = utf8.RuneCountInString(n)
		for _, row := range rows {
			width[i] = max(width[i], utf8.RuneCountInString(row[i]))
		}
		numeric[i] = areNumbers(rows, i)
	}
	var b strings.Builder
	line := func(cells []string, colour string) {
		var l strings.Builder
		for i, c := range cells {
			gap := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if i > 0 {
				l.WriteString("  ")
			}
			if numeric[i] {
				l.WriteString(gap + c)
			} else {
				l.WriteString(c + gap)
			}
		}
		s := strings.TrimRight(l.String(), " ")
		if colour != "" {
			s = p.paint(colour, s)
		}
		b.WriteString(s + "\n")
	}
	line(names, bold)
	for _, row := range rows {
		line(row, "")
	}
	_, err := io.WriteString(p.out, b.String())
	return err
}

// areNumbers reports whether a column holds numbers, and gaps at most.
func areNumbers(rows [][]string, column int) bool {
	some := false
	for _, row := range rows {
		s := row[column]
		if s == "-" || s == wordUnlimited {
			continue
		}
		if strings.Trim(s, "-0123456789.") != "" {
			return false
		}
		some = true
	}
	return some
}

// one writes a single resource.
func (p printer) one(o object, columns []column) error {
	if p.form != "table" {
		return p.raw(o)
	}
	width := 0
	for _, c := range columns {
		width = max(width, len(c.name))
	}
	for _, c := range columns {
		_, err := fmt.Fprintf(p.out, "%s%s  %s\n", p.paint(bold, c.name), strings.Repeat(" ", width-len(c.name)), text(o, c.path))
		if err != nil {
			return err
		}
	}
	return nil
}

// raw writes a value as JSON or YAML.
func (p printer) raw(v any) error {
	encoded, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	if p.form == "json" {
		_, err = fmt.Fprintf(p.out, "%s\n", encoded)
		return err
	}
	var node yaml.Node
	if err := yaml.Unmarshal(encoded, &node); err != nil {
		return fmt.Errorf("write result as YAML: %w", err)
	}
	blockStyle(&node)
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(&node); err != nil {
		return fmt.Errorf("write result as YAML: %w", err)
	}
	_, err = p.out.Write(b.Bytes())
	return err
}

// blockStyle undoes the braces and quotes that JSON has; texts that would read as something else keep theirs.
func blockStyle(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
		var plain yaml.Node
		if yaml.Unmarshal([]byte(n.Value), &plain) != nil || len(plain.Content) != 1 || plain.Content[0].Tag != "!!str" ||
			plain.Content[0].Value != n.Value {
			return
		}
	}
	n.Style = 0
	for _, c := range n.Content {
		blockStyle(c)
	}
}

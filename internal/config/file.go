package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// File is a parsed settings file.
type File struct {
	values  map[string]value
	Plugins []Plugin
}

type value struct {
	text string
	line int
}

// ReadFile parses the YAML file at path. Nested mappings join their names with a dash: database: {url: …} is database-url.
// The key plugins is the chain. Faults carry their line.
func ReadFile(path string) (*File, error) {
	text, err := os.ReadFile(path) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, fmt.Errorf("read settings: %w", err)
	}
	f, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

func parse(text []byte) (*File, error) {
	f := &File{values: make(map[string]value)}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return f, nil
	case err != nil:
		return nil, err
	}
	if doc.Content[0].Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: want a mapping of settings", doc.Content[0].Line)
	}
	return f, f.walk("", doc.Content[0])
}

func (f *File) walk(prefix string, m *yaml.Node) error {
	for i := 0; i+1 < len(m.Content); i += 2 {
		k, v := m.Content[i], m.Content[i+1]
		name := prefix + strings.ReplaceAll(k.Value, "_", "-")
		if _, twice := f.values[name]; twice {
			return fmt.Errorf("line %d: %s is set twice", k.Line, name)
		}
		switch {
		case name == "plugins":
			if err := strict(v, &f.Plugins); err != nil {
				return err
			}
		case v.Kind == yaml.MappingNode:
			if err := f.walk(name+"-", v); err != nil {
				return err
			}
		case v.Kind == yaml.SequenceNode:
			var items []string
			if err := v.Decode(&items); err != nil {
				return fmt.Errorf("line %d: %s: want a list of texts", v.Line, name)
			}
			f.values[name] = value{strings.Join(items, ","), k.Line}
		default:
			f.values[name] = value{v.Value, k.Line}
		}
	}
	return nil
}

// strict decodes a node and refuses members that the type does not have.
func strict(n *yaml.Node, into any) error {
	text, err := yaml.Marshal(n)
	if err != nil {
		return err
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("in the section at line %d: %w", n.Line, err)
	}
	return nil
}

// Value returns what the file says about a flag.
func (f *File) Value(flag string) (string, bool) {
	v, ok := f.values[flag]
	return v.text, ok
}

// Unknown returns an error that names each key that is no flag, with its line.
func (f *File) Unknown(known func(flag string) bool) error {
	var faults []error
	for name, v := range f.values {
		if !known(name) {
			faults = append(faults, fmt.Errorf("line %d: unknown setting %s", v.line, name))
		}
	}
	return errors.Join(faults...)
}

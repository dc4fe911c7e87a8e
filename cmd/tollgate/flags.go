package main

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// flags are those that the command line itself names, as it may be told of them: what comes from the environment or is a
// default was not meant for this very call.
type flags map[string]string

func flagsOf(k *kong.Context) flags {
	said := make(flags)
	for _, p := range k.Path {
		if p.Flag != nil && !p.Resolved {
			said[p.Flag.Name] = strings.TrimSpace("--" + p.Flag.Name + " " + written(k.FlagValue(p.Flag)))
		}
	}
	return said
}

// written is a value as it is given on the command line; secrets stay masked.
func written(value any) string {
	v := reflect.ValueOf(value)
	switch v.Kind() {
	case reflect.Bool:
		return ""
	case reflect.Slice:
		items := make([]string, v.Len())
		for i := range items {
			items[i] = fmt.Sprint(v.Index(i).Interface())
		}
		return strings.Join(items, ",")
	}
	return fmt.Sprint(value)
}

func (f flags) has(name string) bool { return f[name] != "" }

// apart is a fault if both flags were given.
func (f flags) apart(one, other string) error {
	if f.has(one) && f.has(other) {
		return fmt.Errorf("%s does not go with %s", f[one], f[other])
	}
	return nil
}

// only is a fault if a flag was given without the one that it belongs to.
func (f flags) only(name, with string) error {
	if f.has(name) && !f.has(with) {
		return fmt.Errorf("%s goes only with --%s", f[name], with)
	}
	return nil
}

// alone is a fault if anything was given besides a flag and those that go with it.
func (f flags) alone(name string, besides ...string) error {
	var others []string
	for other, text := range f {
		if other != name && !slices.Contains(besides, other) {
			others = append(others, text)
		}
	}
	if len(others) == 0 {
		return nil
	}
	slices.Sort(others)
	return fmt.Errorf("%s does not go with %s", strings.Join(others, ", "), f[name])
}

// within is a fault if the value of a flag is out of its range.
func within[T cmp.Ordered](flag string, value, least, most T) error {
	if value >= least && value <= most {
		return nil
	}
	return fmt.Errorf("--%s %v: is not within %v … %v", flag, value, least, most)
}

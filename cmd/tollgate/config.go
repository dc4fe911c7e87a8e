package main

import (
	"fmt"
	"reflect"
	"strings"
	"text/tabwriter"

	"github.com/alecthomas/kong"

	"github.com/tollgate-gateway/tollgate/internal/config"
)

type configCommand struct {
	Check configCheck `cmd:"" help:"Check flags, environment and file; all faults at once."`
	Show  configShow  `cmd:"" help:"Show the settings in force; secrets are masked."`
}

type configCheck struct{ settings }

func (c *configCheck) Run(file *config.File, s streams) error {
	if _, err := c.load(file); err != nil {
		return err
	}
	fmt.Fprintln(s.out, "settings are valid")
	return nil
}

type configShow struct{ settings }

func (c *configShow) Run(file *config.File, s streams, k *kong.Context) error {
	c.Plugins = file.Plugins
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SETTING\tENVIRONMENT\tVALUE")
	for _, f := range k.Selected().Flags {
		if f.Name == "help" || f.Name == "config" {
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.Name, strings.Join(f.Envs, ", "), show(f.Target))
	}
	return w.Flush()
}

func show(v reflect.Value) string {
	text := fmt.Sprint(v.Interface())
	if v.IsZero() {
		return "-"
	}
	return text
}

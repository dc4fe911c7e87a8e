package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/tollgate-gateway/tollgate/internal/cli"
	"github.com/tollgate-gateway/tollgate/internal/config"
)

const description = `An LLM gateway with exact budgets, money that adds up, and streams that arrive byte for byte.

Start with "tollgate dev": it brings its own database and a mock provider and prints commands to paste.`

// commands is the whole command line. Each command is a file of its own.
type commands struct {
	Dev      devCommand      `cmd:"" help:"Run everything on this machine: database, demo organization, mock provider, gateway." group:"Run:"`
	Serve    serveCommand    `cmd:"" help:"Run the gateway against DATABASE_URL." group:"Run:"`
	Migrate  migrateCommand  `cmd:"" help:"Bring the database's schema up to date, or show its state." group:"Run:"`
	Config   configCommand   `cmd:"" help:"Check or show the settings." group:"Run:"`
	Doctor   doctorCommand   `cmd:"" help:"Check database, privileges and secrets, and say what to do." group:"Run:"`
	Drill    drillCommand    `cmd:"" help:"Break a Tollgate of its own and show that the promises hold." group:"Run:"`
	Loadtest loadtestCommand `cmd:"" help:"Offer load to one, two and four gateways and judge what came of it." group:"Run:"`
	Mock     mockCommand     `cmd:"" help:"Run the scripted upstream that demos and tests use." group:"Run:"`
	Seed     seedCommand     `cmd:"" help:"Fill a development database with made-up ledger rows." group:"Run:"`
	Version  versionCommand  `cmd:"" help:"Print the version." group:"Run:"`

	Ledger ledgerCommand `cmd:"" help:"Check the ledger, and archive its closed months." group:"Account:"`

	cli.Commands
}

// streams are where a command writes.
type streams struct{ out, err io.Writer }

func execute(ctx context.Context, args []string, out, errs io.Writer) error {
	return executeOf(ctx, &commands{}, args, out, errs)
}

// executeOf runs a command line of some commands.
func executeOf(ctx context.Context, some any, args []string, out, errs io.Writer) error {
	exited := false
	parser, err := kong.New(some,
		kong.Name("tollgate"),
		kong.Description(description),
		kong.Writers(out, errs),
		kong.Exit(func(int) { exited = true }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true, WrapUpperBound: 110}),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(span)),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(streams{out, errs}, &config.File{}),
	)
	if err != nil {
		return fmt.Errorf("build the command line: %w", err)
	}
	if err := forgetEmptyVariables(parser.Model); err != nil {
		return err
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	command, err := parser.Parse(args)
	if exited { // help was asked for and printed
		return nil
	}
	if err != nil {
		if parse, ok := errors.AsType[*kong.ParseError](err); ok {
			return fmt.Errorf("%w\nTry: tollgate %s--help", err, commandName(parse.Context))
		}
		return err
	}
	return command.Run()
}

// span reads durations, wherever they come from.
func span(c *kong.DecodeContext, target reflect.Value) error {
	token, err := c.Scan.PopValue("duration")
	if err != nil {
		return err
	}
	d, err := config.ParseDuration(token.String())
	if err != nil {
		return err
	}
	target.SetInt(int64(d))
	return nil
}

// forgetEmptyVariables makes an environment variable that is set to nothing count as one that is not set: templates and
// compose files leave such ones behind.
func forgetEmptyVariables(model *kong.Application) error {
	return kong.Visit(model, func(node kong.Visitable, next kong.Next) error {
		if flag, ok := node.(*kong.Flag); ok {
			flag.Tag.Envs = slices.DeleteFunc(slices.Clone(flag.Tag.Envs), func(name string) bool { return os.Getenv(name) == "" })
		}
		return next(nil)
	})
}

func commandName(c *kong.Context) string {
	if c == nil || c.Selected() == nil {
		return ""
	}
	return c.Selected().Path() + " "
}

// settings are the flags of the commands that run a process.
type settings struct {
	SettingsFile settingsFile `name:"config" env:"TOLLGATE_CONFIG" help:"YAML file with settings; flags and environment win over it." placeholder:"FILE" group:"Listeners"`
	config.Config
}

// settingsFile makes the YAML file a source of flags, weaker than the environment.
type settingsFile string

// BeforeResolve reads the file and refuses keys that are no settings.
func (settingsFile) BeforeResolve(ctx *kong.Context, trace *kong.Path, loaded *config.File) error {
	path, ok := ctx.FlagValue(trace.Flag).(settingsFile)
	if !ok || path == "" {
		return nil
	}
	file, err := config.ReadFile(string(path))
	if err != nil {
		return err
	}
	known := make(map[string]bool)
	for _, f := range ctx.Flags() {
		known[f.Name] = true
	}
	if err := file.Unknown(func(flag string) bool { return known[flag] }); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	*loaded = *file
	ctx.AddResolver(kong.ResolverFunc(func(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
		for _, name := range flag.Envs {
			if os.Getenv(name) != "" {
				return nil, nil // kong's way of saying: ask elsewhere
			}
		}
		if text, ok := file.Value(flag.Name); ok {
			return text, nil
		}
		return nil, nil // as above
	}))
	return nil
}

// environment reads and checks the settings that the environment and its file have, in place of all that dev brings itself.
func environment(ctx context.Context) (*config.Config, error) {
	var alone struct{ settings }
	file := &config.File{}
	parser, err := kong.New(&alone,
		kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(span)), kong.BindTo(ctx, (*context.Context)(nil)), kong.Bind(file))
	if err == nil {
		err = forgetEmptyVariables(parser.Model)
	}
	if err == nil {
		const later = "made-by-dev-when-it-has-a-database"
		_, err = parser.Parse([]string{
			"--planes=gateway,control", "--database-url=" + later, "--database-control-url=", "--database-direct-url=",
			"--admin-token=" + later, "--key-peppers=" + later, "--encryption-keys=" + later,
		})
	}
	if err != nil {
		return nil, fmt.Errorf("settings of the environment:\n  %s", strings.ReplaceAll(err.Error(), "\n", "\n  "))
	}
	alone.Plugins = file.Plugins
	return &alone.Config, nil
}

// load completes the settings and checks them.
func (s *settings) load(file *config.File) (*config.Config, error) {
	s.Plugins = file.Plugins
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("settings:\n  %s", strings.ReplaceAll(err.Error(), "\n", "\n  "))
	}
	return &s.Config, nil
}

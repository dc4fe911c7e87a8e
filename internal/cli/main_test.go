package cli

import (
	"bytes"
	"context"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run executes a command line as main does and returns what it printed.
func run(tb testing.TB, args ...string) (out, errs string, err error) {
	tb.Helper()
	var root struct {
		Commands

		Ledger LedgerCommands `cmd:""`
	}
	var stdout, stderr bytes.Buffer
	exited := false
	parser, err := kong.New(&root,
		kong.Name("tollgate"), kong.Writers(&stdout, &stderr), kong.Exit(func(int) { exited = true }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true, WrapUpperBound: 110}),
		kong.BindTo(tb.Context(), (*context.Context)(nil)),
	)
	require.NoError(tb, err)
	command, err := parser.Parse(args)
	switch {
	case exited:
		err = nil
	case err == nil:
		err = command.Run()
	}
	return stdout.String(), stderr.String(), err
}

func TestHelpTeaches(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"orgs", "create"},
		{"teams", "create"},
		{"keys", "create"},
		{"keys", "rotate"},
		{"providers", "create"},
		{"models", "create"},
		{"limits", "create"},
		{"prices", "add"},
		{"apply"},
		{"spend"},
		{"completion"},
	} {
		out, _, err := run(t, append(args, "--help")...)
		require.NoError(t, err)
		require.Contains(t, out, "Example", args)
		require.Contains(t, out, "tollgate "+args[0], args)
	}
	out, _, err := run(t, "--help")
	require.NoError(t, err)
	require.Contains(t, out, "keys create")
}

// Command tollgate is a multi-tenant LLM gateway with exact budgets. `tollgate --help` lists what it does.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/tollgate-gateway/tollgate/internal/cli"
)

func main() {
	os.Exit(run())
}

// run returns the exit code: 0, 1 for a failure, 2 where a command found drift or a difference.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err == nil {
		return 0
	}
	if differs, ok := errors.AsType[*cli.DifferenceError](err); ok {
		fmt.Fprintln(os.Stderr, differs.Error())
		return 2
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	fmt.Fprintln(os.Stderr, "tollgate: "+err.Error())
	return 1
}

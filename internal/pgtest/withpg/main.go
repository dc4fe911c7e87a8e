// Command withpg runs a command beside a scratch PostgreSQL, which TOLLGATE_TEST_DSN names to it, and removes the server
// afterwards, also upon Ctrl-C. Where TOLLGATE_TEST_DSN is set already, that server is used.
//
//	go run ./internal/pgtest/withpg go test ./...
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/devdb"
)

const dsnVariable = "TOLLGATE_TEST_DSN"

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: withpg COMMAND [ARGUMENT]...")
		os.Exit(2)
	}
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "withpg:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// run returns the exit code of the command.
func run(command []string) (code int, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if os.Getenv(dsnVariable) == "" {
		cluster, fault := devdb.StartScratch(ctx, devdb.Options{Fast: true, MaxConnections: 300})
		if fault != nil {
			return 1, fault
		}
		defer func() {
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
			defer cancel()
			err = errors.Join(err, cluster.Stop(ending))
		}()
		if err := os.Setenv(dsnVariable, cluster.DSN(devdb.Superuser, "postgres")); err != nil {
			return 1, fmt.Errorf("set %s: %w", dsnVariable, err)
		}
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Ctrl-C reaches the command by the terminal; other signals are passed on, and what ignores them is killed.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	if err != nil {
		return 1, fmt.Errorf("run %s: %w", command[0], err)
	}
	return 0, nil
}

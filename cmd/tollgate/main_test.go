package main

import (
	"bytes"
	"context"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// command runs a line of some commands as main does and returns what it printed. All of them together would take the race
// detector a quarter of a second for each line.
func command(ctx context.Context, some any, args ...string) (out, errs string, err error) {
	var stdout, stderr bytes.Buffer
	err = executeOf(ctx, some, args, &stdout, &stderr)
	return stdout.String(), stderr.String(), err
}

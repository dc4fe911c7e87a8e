package ledger_test

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain lets every push run the same random cases, so that a red one is of the push; "make models" looks for new ones.
func TestMain(m *testing.M) {
	if os.Getenv("TOLLGATE_TEST_OPERATIONS") == "" {
		if err := flag.Set("rapid.seed", "20261201"); err != nil { // the command line wins
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	goleak.VerifyTestMain(m)
}

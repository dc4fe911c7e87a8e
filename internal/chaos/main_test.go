package chaos

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) { os.Exit(cleanUp(code)) }))
}

var (
	builtDir string
	build    = sync.OnceValues(func() (string, error) {
		if binary := os.Getenv("TOLLGATE_BIN"); binary != "" {
			return binary, nil
		}
		dir, err := os.MkdirTemp("", "tollgate-chaos-binary-")
		if err != nil {
			return "", err
		}
		builtDir = dir
		binary := filepath.Join(dir, "tollgate")
		out, err := exec.Command("go", "build", "-race", "-o", binary, "github.com/tollgate-gateway/tollgate/cmd/tollgate").CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("build tollgate: %w:\n%s", err, out)
		}
		return binary, nil
	})
)

// binary is the race-detecting product, built once, unless TOLLGATE_BIN names one.
func binary(t *testing.T) string {
	t.Helper()
	path, err := build()
	require.NoError(t, err)
	return path
}

func cleanUp(code int) int {
	if builtDir != "" {
		if err := os.RemoveAll(builtDir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return max(code, 1)
		}
	}
	return code
}

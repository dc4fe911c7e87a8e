package cli

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// F188: whoever gets a part of an export is told so by the exit code, and has no file that could be taken for a whole one.
func TestF188_AnExportWithoutATrailerFails(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 10_000)
	for answer, whole := range map[string]bool{
		"a,b\n1,2\n# trailer {\"sha256\":\"ab\",\"unsealed_rows\":0}\n": true,
		"{\"id\":1}\n{\"trailer\":{\"sha256\":\"ab\"}}\n":               true,
		"a,b\n1,2\n":   false,
		"a,b\n" + long: false,
		"":             false,
		"a,b\n# FAILED, this export is not whole: x\n":           false,
		"{\"error\":\"x\"}\n":                                    false,
		"# trailer {\"sha256\":\"ab\"}\n1,2\n":                   false,
		"a,b\n# trailer {\"sha256\":\"ab\",\"unsealed_rows\":0}": false,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			require.Equal(t, "/admin/v1/spend/export", r.URL.Path)
			_, _ = w.Write([]byte(answer)) // the client sees it
		}))
		path := filepath.Join(t.TempDir(), "out")
		require.NoError(t, os.WriteFile(path, []byte("an earlier export"), 0o600))
		_, _, err := run(t, "export", "--url", server.URL, "--token", "t", "--to", path)
		server.Close()
		require.Equal(t, whole, err == nil, "%q: %v", answer, err)
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		if !whole {
			answer = "an earlier export" // what is not whole takes nothing's place
		}
		require.Equal(t, answer, string(got))
		left, err := os.ReadDir(filepath.Dir(path))
		require.NoError(t, err)
		require.Len(t, left, 1)
	}
}

// An export of nothing is whole, and whoever asked for what is not there is told so.
func TestExport_OfNothingSaysSo(t *testing.T) {
	t.Parallel()
	for trailer, remark := range map[string]string{
		`{"rows":0,"sha256":"ab"}`:                   "nothing matches --since 7d --model ghost: the export has no rows\n",
		`{"rows":1,"sha256":"ab"}`:                   "",
		`{"rows":2,"unsealed_rows":3,"sha256":"ab"}`: "3 rows of the period are not sealed yet and not in the export; end it a minute ago with --until\n",
		`{"rows":2,"dropped_rows":4,"sha256":"ab"}`:  "4 rows of these blocks are of months that are not kept any more, and not in the export\n",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			require.Equal(t, "ghost", r.URL.Query().Get("model"))
			_, _ = w.Write([]byte("a,b\n# trailer " + trailer + "\n")) // the client sees it
		}))
		out, errs, err := run(t, "export", "--url", server.URL, "--token", "t", "--model", "ghost", "--since", "7d")
		server.Close()
		require.NoError(t, err)
		require.Equal(t, "a,b\n# trailer "+trailer+"\n", out)
		require.Equal(t, remark, errs)
	}
}

// However an answer is cut into pieces, its last line is the same.
func TestLastLine_DoesNotDependOnPieces(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.RuneFrom([]rune("ab\n")), 0, 30, -1).Draw(t, "text")
		var l lastLine
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			_, _ = l.Write([]byte(rest[:n])) // it cannot fail
			rest = rest[n:]
		}
		want := strings.TrimSuffix(text, "\n")
		want = want[strings.LastIndex(want, "\n")+1:]
		if !bytes.Equal([]byte(want), l.text) || l.ended != strings.HasSuffix(text, "\n") {
			t.Fatalf("%q: %q %v", text, l.text, l.ended)
		}
	})
}

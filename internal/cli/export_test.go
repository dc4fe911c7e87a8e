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

// F188: whoever gets a part of an export is told so, in the file and by the exit code.
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
		c := exportCommand{client: client{URL: server.URL, Token: "t", Output: "table"}, Format: "csv", Since: "30d", To: path}
		err := c.Run(t.Context(), nil)
		server.Close()
		require.Equal(t, whole, err == nil, "%q: %v", answer, err)
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, answer, string(got))
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

package archtest

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The page of field faults names tests that exist, and leaves out no fault of the areas that it covers as a whole.
func TestDocs_FieldFaultsNameTheirTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(root + "/docs/field-faults.md")
	require.NoError(t, err)
	tests := read(t, func(path string) bool { return strings.HasSuffix(path, "_test.go") })
	named := regexp.MustCompile("`([a-z0-9/]+)` (Test[A-Za-z0-9_]+)")
	found := named.FindAllStringSubmatch(string(page), -1)
	require.NotEmpty(t, found)
	for _, m := range found {
		folder := make(map[string]string)
		for path, text := range tests {
			if strings.HasPrefix(path, m[1]+"/") && !strings.Contains(path[len(m[1])+1:], "/") {
				folder[path] = text
			}
		}
		require.True(t, contains(folder, "func "+m[2]+"("), "docs/field-faults.md names %s, which is not in %s", m[2], m[1])
	}
	for _, id := range strings.Fields("F154 F155 F157 F158 F160 F161 F163 F164 F166 F167 F169 F170 F172 F173 F175 F176 F178 " +
		"F199 F200 F202 F203 F205 F206 F208 F209") {
		require.Contains(t, string(page), "| "+id+" | ", "a fault of these areas has a test, or a reason why it has none")
	}
}

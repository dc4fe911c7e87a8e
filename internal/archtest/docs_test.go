package archtest

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/config"
)

const root = "../.."

var update = flag.Bool("update", false, "write the generated pages of the reference")

// The reference of settings is made from the struct that reads them.
func TestDocs_SettingsReferenceIsCurrent(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("# Settings\n\nMade from `internal/config`; `go test ./internal/archtest -update` writes it anew.\n\n" +
		"A flag wins over the environment, the environment over the YAML file (`--config FILE`; nested names join with a\n" +
		"dash, so `database: {url: …}` is `database-url`), the file over the default. Unknown keys are errors.\n" +
		"A variable that is set to nothing counts as not set. Spans of time are written as `90s`, `1h30m` or `92d`; a day has 24 hours.\n" +
		"All of these need a restart; everything an admin manages (keys, limits, models, prices) is in the database and\n" +
		"takes effect within a second.\n\n| flag | environment | default | meaning |\n|---|---|---|---|\n")
	for f := range fields() {
		fmt.Fprintf(&b, "| `--%s` | `%s` | %s | %s |\n", kebab(f.Name), strings.ReplaceAll(f.Tag.Get("env"), ",", "`, `"),
			code(f.Tag.Get("default")), strings.ReplaceAll(f.Tag.Get("help"), "${enum}", strings.ReplaceAll(f.Tag.Get("enum"), ",", ", ")))
	}
	compare(t, "docs/reference/settings.md", b.String())
}

// Each variable and metric that the documentation names exists in the code, and each of the code is documented.
func TestDocs_NamesExistBothWays(t *testing.T) {
	t.Parallel()
	pages := read(t, func(path string) bool {
		return strings.HasSuffix(path, ".md") && !strings.HasPrefix(path, "docs/decisions/")
	})
	code := read(t, func(path string) bool {
		return strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") || path == "Makefile" || strings.HasPrefix(path, ".ci/") || strings.HasPrefix(path, "helm/tollgate/")
	})
	tests := read(t, func(path string) bool { return strings.HasSuffix(path, "_test.go") })

	variable := regexp.MustCompile(`\b(?:TOLLGATE|CP_GATEWAY)_[A-Z0-9_]*[A-Z0-9]\b`)
	for name := range names(pages, variable) {
		require.True(t, contains(code, name) || contains(tests, name), "%s is documented and not in the code", name)
	}
	for f := range fields() {
		for name := range strings.SplitSeq(f.Tag.Get("env"), ",") {
			require.True(t, contains(pages, name), "%s is not documented", name)
		}
	}
	metric := regexp.MustCompile(`\btollgate_[a-z0-9_]+(?:_total|_seconds|_usd|_info|_bytes|_open|_up|_length|_state|_version|_waiting|_tokens|_size)\b`)
	declared := regexp.MustCompile(`"(tollgate_[a-z0-9_]+)"`)
	inCode := make(map[string]bool)
	for _, text := range code {
		for _, m := range declared.FindAllStringSubmatch(text, -1) {
			inCode[m[1]] = true
		}
	}
	for name := range names(pages, metric) {
		require.True(t, inCode[name], "the metric %s is documented and not in the code", name)
	}
	for name := range inCode {
		if metric.MatchString(name) {
			require.True(t, contains(pages, name), "the metric %s is not documented", name)
		}
	}
}

// fields yields the settings in their order.
func fields() func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		t := reflect.TypeFor[config.Config]()
		for i := range t.NumField() {
			if f := t.Field(i); f.Tag.Get("env") != "" && !yield(f) {
				return
			}
		}
	}
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

// kebab writes a field's name as kong writes its flag.
func kebab(s string) string {
	s = regexp.MustCompile(`([a-z0-9])([A-Z])`).ReplaceAllString(s, "$1-$2")
	s = regexp.MustCompile(`([A-Z]+)([A-Z][a-z])`).ReplaceAllString(s, "$1-$2")
	return strings.ToLower(s)
}

func compare(t *testing.T, path, want string) {
	t.Helper()
	path = filepath.Join(root, path)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, string(got), "run: go test ./internal/archtest -update")
}

// read returns the texts of the tree's files that are wanted, by path.
func read(t *testing.T, wanted func(path string) bool) map[string]string {
	t.Helper()
	texts := make(map[string]string)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{"node_modules", ".git", "bin", ".cache"}, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !wanted(rel) {
			return nil
		}
		b, err := os.ReadFile(path) // a walk of the tree
		texts[rel] = string(b)
		return err
	})
	require.NoError(t, err)
	require.NotEmpty(t, texts)
	return texts
}

func names(texts map[string]string, form *regexp.Regexp) map[string]bool {
	found := make(map[string]bool)
	for _, text := range texts {
		for _, name := range form.FindAllString(text, -1) {
			found[name] = true
		}
	}
	return found
}

func contains(texts map[string]string, name string) bool {
	for _, text := range texts {
		if strings.Contains(text, name) {
			return true
		}
	}
	return false
}

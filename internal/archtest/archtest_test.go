// Package archtest holds the borders between the packages as a test.
package archtest

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/tollgate-gateway/tollgate"

// leaves may be imported by everybody and import only each other.
var leaves = []string{
	"internal/apikey", "internal/audiolen", "internal/config", "internal/formdata", "internal/ids", "internal/jsonedit",
	"internal/jsonscan", "internal/lognames", "internal/money", "internal/pricebook", "internal/prompt", "internal/seal",
	"internal/secret", "internal/sse", "internal/version", "internal/wholefile",
}

// borders says what the code of a folder may import of this module, besides the leaves. The longest matching folder counts.
// "X/..." stands for X and everything below it.
var borders = map[string][]string{
	"internal":               {},
	"internal/pricebook":     {"governance", "internal/pricebook"},
	"governance":             {},
	"governance/meter":       {"governance"},
	"governance/pgstore":     {"governance", "governance/meter", "governance/tasks", "governance/pgstore/...", "migrations"},
	"governance/memstore":    {"governance", "governance/meter"},
	"governance/storetest":   {"governance", "governance/meter"},
	"governance/tasks":       {"governance"},
	"providers":              {"governance", "providers"},
	"providers/providertest": {"governance", "providers"},
	"plugins":                {"governance", "plugins"},
	"plugins/plugintest":     {"governance", "plugins"},
	"gateway":                {"governance", "plugins", "providers"},
	"console":                {"governance", "governance/meter"},
	"migrations":             {},
	"internal/app":           {"governance/...", "plugins/...", "providers/...", "gateway", "console", "migrations", "internal/..."},
	"internal/chaos":         {"internal/devdb", "internal/fleet", "internal/mock"},
	"internal/chaos/run":     {"internal/chaos"},
	"internal/cli":           {"governance", "internal/..."},
	"internal/devdb":         {"internal/..."},
	"internal/fleet":         {"internal/devdb"},
	"internal/drill":         {"internal/fleet"},
	"internal/ledgerbench":   {"governance", "governance/pgstore", "governance/pgstore/ledger", "internal/devdb"},
	"internal/loadtest":      {"internal/fleet", "internal/devdb"},
	"internal/mock":          {},
	"internal/pgtest":        {"migrations", "internal/..."},
	"internal/e2e":           {"governance/...", "internal/..."},
	"cmd":                    {"internal/..."},
}

// reserved maps an outside module to the only folders whose code may import it.
var reserved = map[string][]string{
	"github.com/labstack/echo/v4":          {"gateway", "console"},
	"github.com/danielgtaylor/huma/v2":     {"console"},
	"github.com/jackc/pgx/v5":              {"governance/pgstore", "internal/pgtest", "internal/app", "internal/chaos", "internal/ledgerbench", "internal/loadtest"},
	"github.com/golang-migrate/migrate/v4": {"governance/pgstore"},
	"github.com/prometheus/client_golang":  {"internal/app"},
	"github.com/rs/zerolog/log":            {},
	"github.com/sashabaranov/go-openai":    {"providers"},
	"github.com/openai/openai-go/v3":       {},
	"github.com/alecthomas/kong":           {"cmd", "internal/cli"},
	"github.com/hashicorp/golang-lru/v2":   {"plugins", "governance/pgstore"},
	"github.com/aws/aws-sdk-go-v2":         {"providers/bedrock"},
	"golang.org/x/oauth2":                  {"providers/vertex", "console"},
}

type listed struct {
	ImportPath string
	Imports    []string
}

func TestImports(t *testing.T) {
	t.Parallel()
	for _, p := range list(t) {
		folder := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		for _, imported := range p.Imports {
			if why := judge(folder, imported); why != "" {
				t.Errorf("%s imports %s: %s", folder, imported, why)
			}
		}
	}
}

func TestJudge_RefusesAndAllows(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{"governance", module + "/governance/pgstore"},
		{"governance", "github.com/jackc/pgx/v5/pgconn"},
		{"plugins/budget", module + "/plugins/virtualkey"},
		{"plugins/budget", module + "/gateway"},
		{"gateway", module + "/governance/pgstore"},
		{"gateway", module + "/console"},
		{"console", module + "/gateway"},
		{"console", module + "/plugins"},
		{"providers/openai", module + "/providers/anthropic"},
		{"plugins", "github.com/rs/zerolog/log"},
		{"internal/money", module + "/governance"},
		{"internal/money", module + "/internal/mock"},
		{"cmd/tollgate", module + "/gateway"},
		{"governance/memstore", module + "/governance/pgstore"},
	} {
		require.NotEmpty(t, judge(c[0], c[1]), "%s must not import %s", c[0], c[1])
	}
	for _, c := range [][2]string{
		{"plugins/budget", module + "/plugins"},
		{"plugins/budget", module + "/internal/money"},
		{"governance/pgstore", "github.com/jackc/pgx/v5/pgxpool"},
		{"governance/pgstore/ledger", module + "/governance/meter"},
		{"internal/app", module + "/governance/pgstore/ledger"},
		{"gateway", module + "/internal/sse"},
		{"gateway", "github.com/labstack/echo/v4"},
		{"cmd/tollgate", module + "/internal/app"},
	} {
		require.Empty(t, judge(c[0], c[1]), "%s may import %s", c[0], c[1])
	}
}

// judge returns why folder may not import a package, or nothing.
func judge(folder, imported string) string {
	for outside, folders := range reserved {
		if imported != outside && !strings.HasPrefix(imported, outside+"/") {
			continue
		}
		if !slices.ContainsFunc(folders, func(f string) bool { return folder == f || strings.HasPrefix(folder, f+"/") }) {
			return "reserved for " + strings.Join(folders, ", ")
		}
	}
	own, ok := strings.CutPrefix(imported, module+"/")
	if !ok {
		return ""
	}
	if slices.Contains(leaves, own) && own != "internal/pricebook" {
		return ""
	}
	border := ""
	for b := range borders {
		if (folder == b || strings.HasPrefix(folder, b+"/")) && len(b) > len(border) {
			border = b
		}
	}
	for _, allowed := range borders[border] {
		tree, whole := strings.CutSuffix(allowed, "/...")
		if own == tree || whole && strings.HasPrefix(own, tree+"/") {
			return ""
		}
	}
	return "not in the borders of " + border
}

func list(t *testing.T) []listed {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports", module+"/...").Output()
	require.NoError(t, err)
	var all []listed
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			require.NotEmpty(t, all)
			return all
		} else {
			require.NoError(t, err)
		}
		all = append(all, p)
	}
}

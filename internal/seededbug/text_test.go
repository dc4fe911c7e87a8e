package seededbug_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const root = "../.."

// The suites that checks belong to.
const (
	ledgerSuite    = "governance/pgstore/ledger"
	gatewaySuite   = "gateway"
	moneySuite     = "internal/money"
	priceSuite     = "governance"
	windowSuite    = "governance/meter"
	bookSuite      = "internal/pricebook"
	openaiSuite    = "providers/openai"
	anthropicSuite = "providers/anthropic"
	geminiSuite    = "providers/gemini"
	cacheSuite     = "plugins/cache"
	guardSuite     = "plugins/guardrail"
	chaosSuite     = "internal/chaos/run" // its checks are profiles
)

// withoutRapid are the suites that check no properties.
var withoutRapid = []string{gatewaySuite, bookSuite, geminiSuite}

// plant returns the sources that a bug changes, as it makes them.
func (b *bug) plant(t *testing.T) map[string]string {
	t.Helper()
	sources := make(map[string]string)
	for _, s := range b.swaps {
		text, ok := sources[s.file]
		if !ok {
			read, err := os.ReadFile(filepath.Join(root, s.file))
			require.NoError(t, err)
			text = string(read)
		}
		require.Equal(t, 1, strings.Count(text, s.from), "%s is to be found once in %s: %s", b.name, s.file, s.from)
		sources[s.file] = strings.Replace(text, s.from, s.to, 1)
	}
	return sources
}

// The list cannot rot: what a bug replaces is there.
func TestBugs_FindTheirPlace(t *testing.T) {
	t.Parallel()
	require.GreaterOrEqual(t, len(bugs), 16)
	seen := make(map[string]bool)
	for i := range bugs {
		require.False(t, seen[bugs[i].name], bugs[i].name)
		seen[bugs[i].name] = true
		require.NotEmpty(t, bugs[i].red, bugs[i].name)
		for file, text := range bugs[i].plant(t) {
			read, err := os.ReadFile(filepath.Join(root, file))
			require.NoError(t, err)
			require.NotEqual(t, string(read), text, bugs[i].name)
		}
	}
}

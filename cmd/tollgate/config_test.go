package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type configAlone struct {
	Config configCommand `cmd:""`
}

// shownSettings are the values of `config show`, by the name of the flag.
func shownSettings(t *testing.T, args ...string) map[string]string {
	t.Helper()
	out, _, err := command(t.Context(), &configAlone{}, append([]string{
		"config", "show", "--database-url", "postgres://h/x", "--key-peppers", "p1:x", "--encryption-keys", "k1:x",
		"--admin-token", strings.Repeat("a", 32),
	}, args...)...)
	require.NoError(t, err)
	shown := make(map[string]string)
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		shown[fields[0]] = fields[len(fields)-1]
	}
	return shown
}

// A variable that is set to nothing is one that is not set, for every kind of setting: the file and the default hold.
func TestSettings_EmptyVariablesAreNone(t *testing.T) {
	for _, name := range []string{
		"TOLLGATE_LEDGER_RETENTION", "TOLLGATE_MAX_ATTEMPTS", "TOLLGATE_LISTEN", "TOLLGATE_PLANES", "TOLLGATE_LOG_LEVEL",
		"TOLLGATE_ALLOW_PRIVATE_PROVIDERS", "TOLLGATE_LIMIT_STORE", "TOLLGATE_DATABASE_DIRECT_URL", "TOLLGATE_CONFIG",
	} {
		t.Setenv(name, "")
	}
	t.Setenv("CP_GATEWAY_LIMIT_STORE", "memory") // the second name of a setting whose first one is empty
	shown := shownSettings(t)
	for name, want := range map[string]string{
		"ledger-retention": "-", "max-attempts": "3", "listen": ":8080", "planes": "control]", "log-level": "info",
		"allow-private-providers": "-", "limit-store": "memory", "database-direct-url": "-",
	} {
		require.Equal(t, want, shown[name], name)
	}
	file := filepath.Join(t.TempDir(), "settings.yaml")
	require.NoError(t, os.WriteFile(file, []byte("max_attempts: 5\nledger: {retention: 100d}\n"), 0o600))
	shown = shownSettings(t, "--config", file)
	require.Equal(t, "5", shown["max-attempts"])
	require.Equal(t, "2400h0m0s", shown["ledger-retention"])
}

// Days are understood wherever a span of time is.
func TestSettings_SpansInDays(t *testing.T) {
	t.Setenv("TOLLGATE_LEDGER_RETENTION", "92d")
	shown := shownSettings(t, "--database-conn-life", "1d")
	require.Equal(t, "2208h0m0s", shown["ledger-retention"])
	require.Equal(t, "24h0m0s", shown["database-conn-life"])
	t.Setenv("TOLLGATE_LEDGER_RETENTION", "92x")
	_, _, err := command(t.Context(), &configAlone{}, "config", "check")
	require.ErrorContains(t, err, `--ledger-retention: "92x" is no span of time such as 90s, 1h30m or 92d`)
}

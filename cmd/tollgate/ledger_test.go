package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/archive"
)

type ledgerAlone struct {
	Ledger ledgerCommand `cmd:""`
}

func TestLedgerArchive_RefusesWhatItCannotRead(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	t.Setenv("TOLLGATE_DATABASE_DIRECT_URL", "")
	for want, args := range map[string][]string{
		`--before: "2026-13" is no day such as`:           {"--before", "2026-13", "--dir", "d"},
		`--before: "yesterday" is no day such as`:         {"--before", "yesterday", "--dir", "d"},
		"missing flags: --before=DAY":                     {"--dir", "d"},
		"missing flags: --dir=DIR":                        {"--before", "2026-01"},
		"TOLLGATE_DATABASE_DIRECT_URL or DATABASE_URL to": {"--before", "2026-01-15", "--dir", "d"},
	} {
		out, _, err := command(t.Context(), &ledgerAlone{}, append([]string{"ledger", "archive"}, args...)...)
		require.ErrorContains(t, err, want)
		require.Empty(t, out)
	}
}

func TestLedgerVerify_SaysWhatAFileHas(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "2026-01.jsonl"), filepath.Join(dir, "2026-02.jsonl")
	var trailer archive.Trailer
	file, err := os.Create(good)
	require.NoError(t, err)
	w, err := archive.NewWriter(file, archive.Header{Format: archive.Format, Month: "2026-01"})
	require.NoError(t, err)
	trailer, err = w.Close()
	require.NoError(t, err)
	require.NoError(t, file.Close())
	require.NoError(t, os.WriteFile(bad, []byte("{}\n"), 0o600))

	out, _, err := command(t.Context(), &ledgerAlone{}, "ledger", "verify", good)
	require.NoError(t, err)
	require.Contains(t, out, "2026-01  0")
	out, _, err = command(t.Context(), &ledgerAlone{}, "ledger", "verify", good, "--output", "json")
	require.NoError(t, err)
	var got []archive.Trailer
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Equal(t, []archive.Trailer{trailer}, got)
	_, _, err = command(t.Context(), &ledgerAlone{}, "ledger", "verify", good, bad)
	require.ErrorIs(t, err, archive.ErrIncomplete)
	require.ErrorContains(t, err, bad)
}

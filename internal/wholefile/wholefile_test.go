package wholefile_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollgate-gateway/tollgate/internal/wholefile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A file is complete or not there. What a run that was cut off has left is no obstacle.
func TestWrite_AllOrNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	left := filepath.Join(dir, ".file.partial")
	fault := errors.New("half of it")
	require.ErrorIs(t, wholefile.Write(path, func(w io.Writer) error {
		_, err := io.WriteString(w, strings.Repeat("x", 3<<20))
		require.NoError(t, err)
		require.FileExists(t, left)
		require.NoFileExists(t, path)
		return fault
	}), fault)
	require.NoFileExists(t, path)
	require.NoFileExists(t, left)

	require.NoError(t, os.WriteFile(path, []byte("earlier"), 0o600))
	require.ErrorIs(t, wholefile.Write(path, func(io.Writer) error { return fault }), fault)
	earlier, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "earlier", string(earlier))

	require.NoError(t, os.WriteFile(left, []byte(strings.Repeat("of a process that was killed", 100)), 0o600))
	require.NoError(t, wholefile.Write(path, func(w io.Writer) error { _, err := io.WriteString(w, "whole"); return err }))
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "whole", string(got))
	require.NoFileExists(t, left)
	require.ErrorIs(t, wholefile.Write(filepath.Join(dir, "none", "x"), nil), os.ErrNotExist)
}

func TestWrite_WhatIsNoFile(t *testing.T) {
	t.Parallel()
	require.NoError(t, wholefile.Write(os.DevNull, func(w io.Writer) error { _, err := io.WriteString(w, "x"); return err }))
	info, err := os.Stat(os.DevNull)
	require.NoError(t, err)
	require.False(t, info.Mode().IsRegular(), "it is still what it was")
}

func TestWrite_ThroughALink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	require.NoError(t, os.WriteFile(path, []byte("earlier"), 0o600))
	require.NoError(t, os.Symlink(path, link))
	require.NoError(t, wholefile.Write(link, func(w io.Writer) error { _, err := io.WriteString(w, "whole"); return err }))
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "whole", string(got))
}

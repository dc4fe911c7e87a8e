package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type seedAlone struct {
	Seed seedCommand `cmd:""`
}

func TestSeed_RefusesByFlagAndValue(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	t.Setenv("TOLLGATE_DATABASE_DIRECT_URL", "")
	for line, want := range map[string]string{
		"":                                  "say --development",
		"--development --rows 0":            "--rows 0: is not within 1 … 1000000000",
		"--development --days 367":          "--days 367: is not within 1 … 366",
		"--development --days=-1 --rows=-5": "--rows -5: is not within 1 … 1000000000\n--days -1: is not within 1 … 366",
		"--development":                     "keeps it in secrets.env of its data directory",
	} {
		_, _, err := command(t.Context(), &seedAlone{}, append([]string{"seed"}, strings.Fields(line)...)...)
		require.ErrorContains(t, err, want)
	}
}

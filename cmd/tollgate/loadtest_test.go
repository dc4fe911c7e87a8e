package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type loadtestAlone struct {
	Loadtest loadtestCommand `cmd:""`
}

// What is out of its range, or does not go with something else, is refused before anything starts, by flag and value.
func TestLoadtest_RefusesFlagsItWouldNotHeed(t *testing.T) {
	t.Parallel()
	recorded := filepath.Join("..", "..", "internal", "loadtest", "testdata", "counter-example.json")
	for line, want := range map[string]string{
		"--script bogus":                       "--script bogus: ",
		"--script words(9),bogus(1)":           "--script words(9),bogus(1): ",
		"--admit 101":                          "--admit 101: is not within 1 … 100",
		"--admit 0":                            "--admit 0: is not within 1 … 100",
		"--connections 0":                      "--connections 0: is not within 1 … 10000",
		"--connections 10001":                  "--connections 10001: is not within 1 … 10000",
		"--connections=-1":                     "--connections -1: is not within 1 … 10000",
		"--in-flight 0":                        "--in-flight 0: is not within 1 … 10000",
		"--duration 999ms":                     "--duration 999ms: is not within 1s … 1h0m0s",
		"--call-timeout 0s":                    "--call-timeout 0s: is not within 1s … 1h0m0s",
		"--words 0":                            "--words 0: is not within 1 … 10000",
		"--prompt-bytes 0":                     "--prompt-bytes 0: is not within 1 … 1048576",
		"--rates 500,0.5":                      "--rates 0.5: is not within 1 … 100000",
		"--rates NaN":                          "--rates NaN: is not within 1 … 100000",
		"--replicas 1,65":                      "--replicas 65: is not within 1 … 64",
		"--replicas 1 --replicas 0":            "--replicas 0: is not within 1 … 64",
		"--connections 4 --rates 500,7":        "--rates 500,7 does not go with --connections 4",
		"--connections 4 --in-flight 9":        "--in-flight 9 does not go with --connections 4",
		"--connections 4 --admit 100":          "--admit 100 does not go with --connections 4",
		"--key sk-tg-1":                        "--key [secret] goes only with --target",
		"--model gpt":                          "--model gpt goes only with --target",
		"--target http://a --model m":          "--key or TOLLGATE_LOADTEST_KEY is needed",
		"--target http://a --key k":            "--model is needed",
		"--target http://a --replicas 2":       "--replicas 2 does not go with --target http://a",
		"--target http://a --admit 50":         "--admit 50 does not go with --target http://a",
		"--target http://a --script reset":     "--script reset does not go with --target http://a",
		"--target a:b --key k --model m":       `"a:b"`,
		"--judge " + recorded + " --words 3":   "--words 3 does not go with --judge ",
		"--judge " + recorded + " --stream":    "--stream does not go with",
		"--judge " + recorded + " --rates 500": "--rates 500 does not go with",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			out, _, err := command(t.Context(), &loadtestAlone{}, append([]string{"loadtest"}, strings.Fields(line)...)...)
			require.ErrorContains(t, err, want)
			require.Empty(t, out)
		})
	}
}

// All faults are told at once, and what the environment says was not said for this run.
func TestLoadtest_TellsAllFaults(t *testing.T) {
	t.Setenv("TOLLGATE_LOADTEST_KEY", "sk-of-the-environment")
	_, _, err := command(t.Context(), &loadtestAlone{}, "loadtest", "--words", "0", "--admit", "0", "--model", "m")
	require.EqualError(t, err, "--words 0: is not within 1 … 10000\n--admit 0: is not within 1 … 100\n--model m goes only with --target")
}

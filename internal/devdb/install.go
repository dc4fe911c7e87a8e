package devdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// binariesVariable names the folder of initdb and postgres, where the search would find none or the wrong one.
const binariesVariable = "TOLLGATE_POSTGRES_BIN"

// The supported major versions of PostgreSQL.
const (
	oldestMajor = 15
	newestMajor = 18
)

// installation is a PostgreSQL that can run the cluster.
type installation struct {
	bin   string
	major int
}

// find chooses the binaries: those named, else the newest supported ones, for an existing cluster those of its version.
func find(ctx context.Context, named, cluster string) (installation, error) {
	wanted, err := clusterMajor(cluster)
	if err != nil {
		return installation{}, err
	}
	if named == "" {
		named = os.Getenv(binariesVariable)
	}
	candidates := []string{named}
	if named == "" {
		if candidates, err = filepath.Glob("/usr/lib/postgresql/*/bin"); err != nil {
			return installation{}, fmt.Errorf("look for PostgreSQL: %w", err)
		}
		if path, err := exec.LookPath("initdb"); err == nil {
			if resolved, err := filepath.EvalSymlinks(path); err == nil {
				candidates = append(candidates, filepath.Dir(resolved))
			}
		}
	}
	var found []installation
	var faults []error
	for _, bin := range candidates {
		i, err := inspect(ctx, bin)
		switch {
		case err != nil:
			faults = append(faults, err)
		case wanted != 0 && i.major != wanted:
			faults = append(faults, fmt.Errorf("%s is version %d, and the cluster in %s was made by %d", bin, i.major, cluster, wanted))
		default:
			found = append(found, i)
		}
	}
	if len(found) == 0 {
		hint := fmt.Errorf("no PostgreSQL %d to %d found: install it (Debian: apt-get install postgresql) or name its folder of initdb in %s",
			oldestMajor, newestMajor, binariesVariable)
		return installation{}, errors.Join(append([]error{hint}, faults...)...)
	}
	return slices.MaxFunc(found, func(a, b installation) int { return a.major - b.major }), nil
}

func inspect(ctx context.Context, bin string) (installation, error) {
	if _, err := os.Stat(filepath.Join(bin, "initdb")); err != nil {
		return installation{}, fmt.Errorf("look for initdb: %w", err)
	}
	out, err := exec.CommandContext(ctx, filepath.Join(bin, "postgres"), "--version").Output()
	if err != nil {
		return installation{}, fmt.Errorf("ask %s for its version: %w", filepath.Join(bin, "postgres"), err)
	}
	// postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)
	_, version, _ := strings.Cut(string(out), "(PostgreSQL) ")
	digits := strings.IndexFunc(version+" ", func(r rune) bool { return r < '0' || r > '9' })
	major, err := strconv.Atoi(version[:digits])
	if err != nil {
		return installation{}, fmt.Errorf("read version of PostgreSQL in %q: %w", out, err)
	}
	if major < oldestMajor || major > newestMajor {
		return installation{}, fmt.Errorf("%s is version %d, not within %d … %d", bin, major, oldestMajor, newestMajor)
	}
	return installation{bin: bin, major: major}, nil
}

// clusterMajor is the version that made the cluster, 0 if there is none.
func clusterMajor(dir string) (int, error) {
	text, err := os.ReadFile(filepath.Join(dir, "PG_VERSION"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read version of the cluster: %w", err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read version of the cluster: %w", err)
	}
	return major, nil
}

package devdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const scratchPrefix = "tollgate-scratch-"

// scratchAge is how old an unlocked scratch directory is before it counts as left behind: its maker locks it soon.
const scratchAge = time.Minute

// StartScratch starts a cluster in a temporary directory that Stop removes, for tests, drills and load runs. What killed
// processes of this user have left of earlier ones, running servers included, is removed first.
func StartScratch(ctx context.Context, o Options) (*Cluster, error) {
	if err := sweepScratch(ctx); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", scratchPrefix)
	if err != nil {
		return nil, fmt.Errorf("make scratch data directory: %w", err)
	}
	// The server's user has to get through; the cluster itself is closed to others.
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, errors.Join(fmt.Errorf("open scratch data directory: %w", err), os.Remove(dir))
	}
	o.DataDir = dir
	c, err := prepare(ctx, o)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	c.scratch = true
	if err := c.begin(ctx); err != nil {
		return nil, errors.Join(err, c.release())
	}
	return c, nil
}

// sweepScratch removes scratch clusters whose process is gone, which the kernel tells by their lock.
func sweepScratch(ctx context.Context) error {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), scratchPrefix+"*"))
	if err != nil {
		return fmt.Errorf("look for scratch clusters left behind: %w", err)
	}
	for _, dir := range dirs {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || time.Since(info.ModTime()) < scratchAge {
			continue // just removed by another sweep, or just made
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); !ok || int(stat.Uid) != os.Geteuid() {
			continue
		}
		if err := discard(ctx, dir); err != nil {
			return fmt.Errorf("remove scratch cluster left behind in %s: %w", dir, err)
		}
	}
	return nil
}

// discard stops the server on a data directory, if no process owns it, and removes both.
func discard(ctx context.Context, dir string) error {
	c := &Cluster{options: Options{DataDir: dir}, dir: filepath.Join(dir, "postgres"), scratch: true}
	if err := c.takeLock(); errors.Is(err, errInUse) {
		return nil
	} else if err != nil {
		return err
	}
	if file, err := readPidFile(c.dir); err == nil {
		const socketLine = 4
		if len(file.lines) > socketLine && filepath.IsAbs(file.lines[socketLine]) {
			c.socketDir = file.lines[socketLine]
		}
	}
	return errors.Join(c.endOrphan(ctx), c.release())
}

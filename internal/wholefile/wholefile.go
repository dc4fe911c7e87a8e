// Package wholefile writes files that are whole or not there.
package wholefile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// buffer is how many bytes go to the disk at once.
const buffer = 1 << 20

// Write lets fill write a file that nobody but its owner may read. It has another name (.NAME.partial, in the same directory) until
// all of it is on the disk; a failure leaves what was there before. Two must not write the same file at once. What is no file, such
// as a pipe or a terminal, is written as it is.
func Write(path string, fill func(io.Writer) error) error {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return stream(path, fill)
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // a link stays one
	}
	dir, name := filepath.Split(path)
	partial := filepath.Join(dir, "."+name+".partial")
	file, err := os.OpenFile(partial, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600) //nolint:gosec // the caller's user names it
	if err != nil {
		return fmt.Errorf("create file: %w", err)
	}
	out := bufio.NewWriterSize(file, buffer)
	err = fill(out)
	if err == nil {
		err = errors.Join(out.Flush(), file.Sync())
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, os.Remove(partial))
	}
	if err := os.Rename(partial, path); err != nil {
		return fmt.Errorf("name file: %w", err)
	}
	return syncDirectory(filepath.Dir(path))
}

func stream(path string, fill func(io.Writer) error) error {
	to, err := os.OpenFile(path, os.O_WRONLY, 0) //nolint:gosec // the caller's user names it
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	return errors.Join(fill(to), to.Close())
}

// syncDirectory makes the names in a directory outlive a crash.
func syncDirectory(path string) error {
	d, err := os.Open(path) //nolint:gosec // the caller's user names it
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("flush directory: %w", err)
	}
	return nil
}

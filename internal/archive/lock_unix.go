//go:build unix

package archive

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Lock makes a directory, where it is missing, and keeps other processes from archiving into it until unlock, or until this
// process ends, however that comes. ErrBusy: another one does.
func Lock(dir string) (unlock func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	d, err := os.Open(dir) //nolint:gosec // the operator names it
	if err != nil {
		return nil, fmt.Errorf("open directory: %w", err)
	}
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrBusy
		}
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), d.Close())
	}
	return d.Close, nil
}

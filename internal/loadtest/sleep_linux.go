package loadtest

import (
	"syscall"
	"time"
)

// sleepUntil blocks its thread until a moment, to some ten microseconds.
func sleepUntil(moment time.Time) {
	for {
		left := time.Until(moment)
		if left <= 0 {
			return
		}
		rest := syscall.NsecToTimespec(int64(left))
		_ = syscall.Nanosleep(&rest, nil) // a signal may end it early
	}
}

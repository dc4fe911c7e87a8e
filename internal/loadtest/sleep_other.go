//go:build !linux

package loadtest

import "time"

// sleepUntil waits until a moment, to about a millisecond.
func sleepUntil(moment time.Time) {
	timer := time.NewTimer(time.Until(moment))
	defer timer.Stop()
	<-timer.C
}

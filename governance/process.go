package governance

import (
	"context"
	"time"
)

// Process is one gateway process, which owns the reservations that it has made.
type Process struct {
	ID        string // made anew by each start
	Node      string // host or pod, for people
	Version   string // of the program
	StartedAt time.Time
	BeatAt    time.Time // last sign of life
	StoppedAt time.Time // zero: it has not said goodbye
	Alive     bool      // within its lease, by the database's clock
}

// ProcessStore reads the fleet.
type ProcessStore interface {
	// Processes lists the processes that live or were alive within the last day, newest first, at most 250.
	Processes(ctx context.Context) ([]Process, error)
}

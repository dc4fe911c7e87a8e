package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/governance"
)

// Processes reads the fleet. The processes write their rows themselves, as leases of their reservations.
type Processes struct{ pool *pgxpool.Pool }

var _ governance.ProcessStore = (*Processes)(nil)

// NewProcesses makes a reader of the fleet.
func NewProcesses(pool *pgxpool.Pool) *Processes { return &Processes{pool} }

type processRow struct {
	Boot      string     `db:"boot"`
	Node      string     `db:"node"`
	Version   string     `db:"version"`
	StartedAt time.Time  `db:"started_at"`
	BeatAt    time.Time  `db:"beat_at"`
	StoppedAt *time.Time `db:"stopped_at"`
	Alive     bool       `db:"alive"`
}

// Processes lists the processes that live or were alive within the last day, newest first.
func (s *Processes) Processes(ctx context.Context) ([]governance.Process, error) {
	rows, err := read(ctx, s.pool, func(ctx context.Context, q querier) ([]processRow, error) {
		return many[processRow](ctx, q, "processes_read", args{"count": int64(pageMax)})
	})
	if err != nil {
		return nil, err
	}
	list := make([]governance.Process, 0, len(rows))
	for _, r := range rows {
		p := governance.Process{
			ID: r.Boot, Node: r.Node, Version: r.Version, StartedAt: r.StartedAt.UTC(), BeatAt: r.BeatAt.UTC(), Alive: r.Alive,
		}
		if r.StoppedAt != nil {
			p.StoppedAt = r.StoppedAt.UTC()
		}
		list = append(list, p)
	}
	return list, nil
}

package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/meter"
)

// Levels returns the present state of meters in the given order, by the database's clock: buckets as refilled by now,
// budgets in the window of now, with what the windows before it overspent. A meter that was never used is whole. Amount,
// burst and mode are the store's, however old the given limits are. ErrNotFound: the store does not know one of them.
func (s *Spend) Levels(ctx context.Context, of []governance.LevelQuery) ([]governance.Level, error) {
	levels := make([]governance.Level, len(of))
	if len(of) == 0 {
		return levels, nil
	}
	limits, subjects := make([]int64, len(of)), make([]int64, len(of))
	for i, q := range of {
		limits[i], subjects[i] = q.Limit.Num, q.Subject
	}
	states, err := read(ctx, s.pool, func(ctx context.Context, q querier) ([]meterColumns, error) {
		return many[meterColumns](ctx, q, "meter_levels", args{"limits": limits, "subjects": subjects})
	})
	if err != nil {
		return nil, err
	}
	if len(states) != len(of) {
		return nil, governance.ErrNotFound
	}
	for i, q := range of {
		if levels[i], err = states[i].level(q.Limit); err != nil {
			return nil, err
		}
	}
	return levels, nil
}

// Members lists the meters of one limit that were ever used, the fullest first: those with the least room by now.
// There is no further page than the first.
func (s *Spend) Members(ctx context.Context, limitNum int64, p governance.Page) ([]governance.Level, error) {
	return read(ctx, s.pool, func(ctx context.Context, q querier) ([]governance.Level, error) {
		row, err := NewLimits(s.pool).at(ctx, q, limitNum)
		if err != nil {
			return nil, err
		}
		limit := row.domain()
		type member struct {
			meterColumns
			ID   string `db:"member_id"`
			Name string `db:"member_name"`
		}
		states, err := many[member](ctx, q, "meter_members", args{"limit": limitNum, "count": pageSize(p)})
		if err != nil {
			return nil, err
		}
		levels := make([]governance.Level, len(states))
		for i := range states {
			if levels[i], err = states[i].level(&limit); err != nil {
				return nil, err
			}
			levels[i].Member = governance.Ref{Num: states[i].Subject, ID: states[i].ID, Name: states[i].Name}
		}
		return levels, nil
	})
}

// meterColumns are the newest stored state of a meter and what its limit says now.
type meterColumns struct {
	Now      time.Time          `db:"now"`
	Amount   *int64             `db:"amount"` // NULL: unlimited
	Burst    int64              `db:"burst"`
	Mode     string             `db:"mode"`
	Subject  int64              `db:"subject"`
	Window   pgtype.Timestamptz `db:"window_start"` // not valid: the meter was never used
	Level    int64              `db:"level"`
	Refilled pgtype.Timestamptz `db:"refilled_at"` // -infinity: never used
	Spent    int64              `db:"spent"`
	Held     int64              `db:"held"`
	Carried  int64              `db:"carried"`
}

func (c *meterColumns) level(l *governance.Limit) (governance.Level, error) {
	m := meter.Meter{
		Rule: meter.RuleOf(l),
		State: meter.State{
			Level: c.Level, Refilled: meter.Never, Spent: c.Spent, Held: c.Held, Carried: c.Carried,
		},
	}
	m.Unlimited, m.Burst, m.Log = c.Amount == nil, c.Burst, c.Mode == string(governance.ModeLog)
	m.Amount = 0
	if c.Amount != nil {
		m.Amount = *c.Amount
	}
	if c.Refilled.Valid && c.Refilled.InfinityModifier == pgtype.Finite {
		m.Refilled = c.Refilled.Time.UnixMicro()
	}
	m.Advance(c.Now)
	if l.Kind != governance.KindBudget {
		return m.Describe(l, c.Subject, c.Now, time.Time{}), nil
	}
	start, end, err := meter.Window(l, c.Now)
	if err != nil {
		return governance.Level{}, err
	}
	if c.Window.Valid && c.Window.InfinityModifier == pgtype.Finite && c.Window.Time.Before(start) {
		empty, err := windowsBetween(l, c.Window.Time, start)
		if err != nil {
			return governance.Level{}, err
		}
		m.State = meter.State{Carried: m.CarriedInto(empty)}
		if !l.CarryDebt {
			m.Carried = 0
		}
	}
	return m.Describe(l, c.Subject, c.Now, end), nil
}

// windowsBetween counts the windows behind the one that begins at from and before the one that begins at to.
func windowsBetween(l *governance.Limit, from, to time.Time) (int64, error) {
	if l.Window.Type == governance.WindowFixed {
		return int64(to.Sub(from)/l.Window.Duration) - 1, nil
	}
	for n := int64(-1); ; n++ {
		if !from.Before(to) {
			return n, nil
		}
		_, end, err := meter.Window(l, from)
		if err != nil {
			return 0, fmt.Errorf("count windows: %w", err)
		}
		from = end
	}
}

package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// Receipt returns everything about one request of one organization, 0: of any, in the order in which it happened. A request
// of which nothing reached a provider has an empty receipt for a day, then none.
func (s *Spend) Receipt(ctx context.Context, organization int64, request ids.ID) (governance.Receipt, error) {
	r := governance.Receipt{RequestID: request, Status: "settled"}
	// One snapshot: a settlement moves an attempt from the reservations to the rows.
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := within(ctx, s.pool, snapshot, func(ctx context.Context, tx pgx.Tx) error {
		asked := ids.Time(request)
		of := args{
			"organization": organization, "request": request.String(),
			"from_id": leastID(asked.Add(-clocksDiffer)), "to_id": leastID(asked.Add(time.Hour)),
		}
		keys, err := many[spendKey](ctx, tx, "receipt_rows", of)
		if err != nil {
			return err
		}
		if r.Rows, err = spendRows(ctx, tx, keys); err != nil {
			return err
		}
		held, err := many[reservationColumns](ctx, tx, "receipt_reservations", of)
		if err != nil {
			return err
		}
		if len(keys)+len(held) == 0 {
			return governance.ErrNotFound
		}
		var open []reservationColumns
		for i := range held {
			if held[i].State == stateOpen {
				open = append(open, held[i])
			}
		}
		r.Reservations, err = openReservations(ctx, tx, open)
		return err
	})
	if err != nil {
		return governance.Receipt{}, err
	}
	if len(r.Reservations) > 0 {
		r.Status = "settling"
	}
	for i := range r.Rows {
		r.Cost += r.Rows[i].Cost
	}
	return r, nil
}

// leastID is the least id that an instant can have.
func leastID(at time.Time) string {
	var zero ids.ID
	id := ids.New(at)
	copy(zero[:6], id[:6])
	return zero.String()
}

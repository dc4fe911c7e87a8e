package pgstore

import (
	"context"
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

// States of governance.OpenReservation.
const (
	stateOpen        = "open"
	stateProvisional = "provisional"
)

// reservationColumns are a reservation, or a row that books one provisionally.
type reservationColumns struct {
	AttemptID ids.ID `db:"attempt_id"`
	State     string `db:"state"`
	originColumns
	Quantities []int64 `db:"quantities"`
	UnitPrices []int64 `db:"unit_prices"`
	Cost       int64   `db:"cost"`
	legColumns
	AdmittedAt *time.Time `db:"admitted_at"`
	ExpiresAt  *time.Time `db:"expires_at"`
	Process    string     `db:"process"`
}

// Reservations lists open reservations and rows that book one provisionally, oldest first.
func (s *Spend) Reservations(ctx context.Context, f governance.ReservationFilter, p governance.Page) ([]governance.OpenReservation, string, error) {
	if f.State != "" && f.State != stateOpen && f.State != stateProvisional {
		return nil, "", invalid("state", "knows open and provisional")
	}
	after := ids.ID{}
	if p.Cursor != "" {
		var err error
		if after, err = ids.Parse(p.Cursor); err != nil {
			return nil, "", invalid("cursor", "is not one that a list returned")
		}
	}
	count := pageSize(p)
	type answer struct {
		list []governance.OpenReservation
		next string
	}
	a, err := read(ctx, s.pool, func(ctx context.Context, q querier) (answer, error) {
		page, err := many[reservationColumns](ctx, q, "reservation_page", args{
			"organization": f.Organization, "state": f.State, "after_id": after.String(), "count": count + 1,
		})
		if err != nil {
			return answer{}, err
		}
		next := ""
		if len(page) > count {
			page = page[:count]
			next = page[count-1].AttemptID.String()
		}
		list, err := openReservations(ctx, q, page)
		return answer{list, next}, err
	})
	return a.list, a.next, err
}

func openReservations(ctx context.Context, q querier, all []reservationColumns) ([]governance.OpenReservation, error) {
	var nums []int64
	for i := range all {
		nums = append(nums, all[i].Limits...)
	}
	limits, err := legLimits(ctx, q, nums)
	if err != nil {
		return nil, err
	}
	list := make([]governance.OpenReservation, 0, len(all))
	for i := range all {
		c := &all[i]
		list = append(list, governance.OpenReservation{
			ID: c.AttemptID, Origin: c.origin(), State: c.State,
			Estimate: governance.Estimate{
				Quantities: quantities(c.Quantities), Prices: unitPrices(c.UnitPrices), Cost: money.Nano(c.Cost),
			},
			Legs: c.legs(limits), AdmittedAt: instant(c.AdmittedAt), ExpiresAt: instant(c.ExpiresAt), Process: c.Process,
		})
	}
	return list, nil
}

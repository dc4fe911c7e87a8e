package pgstore

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// pageKeys finds the newest count rows behind a place.
func pageKeys(ctx context.Context, q querier, n narrowing, before place, count int) ([]spendKey, error) {
	if _, err := exec(ctx, q, "spend_plans", nil); err != nil {
		return nil, err
	}
	a := n.args()
	a["before_at"], a["before_seq"], a["count"] = before.at, before.seq, count
	switch {
	case n.Request != "":
		return many[spendKey](ctx, q, "spend_page_request", a)
	case n.ByEndUser:
		return many[spendKey](ctx, q, "spend_page_end_user", a)
	}
	keys, err := many[spendKey](ctx, q, "spend_tail", a)
	if err != nil {
		return nil, err
	}
	if len(keys) == count { // of the sealed rows only those matter that lie between them
		if oldest := keys[count-1].SettledAt; n.From == nil || n.From.Before(oldest) {
			a["from"] = &oldest
		}
	}
	until := n.To
	if before.at != nil && (until == nil || before.at.Before(*until)) {
		behind := before.at.Add(time.Microsecond)
		until = &behind
	}
	sealed, err := sealedKeys(ctx, q, a, until, count)
	if err != nil {
		return nil, err
	}
	keys = append(keys, sealed...)
	slices.SortFunc(keys, func(a, b spendKey) int {
		return cmp.Or(b.SettledAt.Compare(a.SettledAt), cmp.Compare(b.Seq, a.Seq))
	})
	return keys[:min(count, len(keys))], nil
}

// spansAtOnce is how many spans of the roll-ups a list looks at first before it looks for rows, and then four times as many.
const spansAtOnce = 4

// span is a day or an hour that has sealed rows of a filter.
type span struct {
	Start time.Time `db:"start"`
	Rows  int64     `db:"rows"`
}

// sealedKeys finds the newest count sealed rows before an instant. The roll-ups say in which days and hours they are, so that
// a filter that matches little costs little.
func sealedKeys(ctx context.Context, q querier, a args, until *time.Time, count int) (keys []spendKey, err error) {
	if _, err := exec(ctx, q, "spend_ordered_plans", nil); err != nil {
		return nil, err
	}
	for days := spansAtOnce; ; days *= 4 {
		a["until"], a["spans"] = until, days
		some, err := many[span](ctx, q, "spend_days", a)
		if err != nil || len(some) == 0 {
			return keys, err
		}
		since := enough(some, count-len(keys))
		more, err := keysOfHours(ctx, q, a, since, until, count-len(keys))
		if keys = append(keys, more...); err != nil || len(keys) >= count {
			return keys, err
		}
		until = &since
	}
}

// keysOfHours finds the newest count sealed rows between two instants.
func keysOfHours(ctx context.Context, q querier, a args, since time.Time, until *time.Time, count int) (keys []spendKey, err error) {
	share := int64(4) // of an hour that has far more than what is needed: so many times as much should be enough
	for hours := spansAtOnce; len(keys) < count; hours *= 4 {
		a["since"], a["until"], a["spans"] = since, until, hours
		some, err := many[span](ctx, q, "spend_hours", a)
		if err != nil || len(some) == 0 {
			return keys, err
		}
		from, end := enough(some, count-len(keys)), some[0].Start.Add(time.Hour)
		if until == nil || until.After(end) {
			until = &end
		}
		if need := share * int64(count-len(keys)); some[0].Rows > need {
			part := until.Add(-time.Hour / time.Duration(some[0].Rows/need))
			if part.After(from) {
				from, hours, share = part, 1, share*2
			}
		}
		a["since"], a["until"] = from, until
		more, err := many[spendKey](ctx, q, "spend_page", a)
		if err != nil {
			return nil, err
		}
		keys, until = append(keys, more...), &from
	}
	return keys, nil
}

// enough returns the start of the span with which those before it have at least count rows. The first may be cut short, and
// counts for nothing.
func enough(spans []span, count int) time.Time {
	sum := int64(0)
	for _, s := range spans[1:] {
		if sum += s.Rows; sum >= int64(count) {
			return s.Start
		}
	}
	return spans[len(spans)-1].Start
}

// spendKey names a row and its place in a list.
type spendKey struct {
	AttemptID ids.ID    `db:"attempt_id"`
	Kind      string    `db:"kind"`
	SettledAt time.Time `db:"settled_at"`
	Seq       int64     `db:"seq"`
}

// cursor hides where the next page begins.
func (k spendKey) cursor() string {
	place := binary.BigEndian.AppendUint64([]byte("spend"), uint64(k.SettledAt.UnixMicro()))         // read back alike
	return base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint64(place, uint64(k.Seq))) // read back alike
}

// place is one in a list, behind which a page begins; at nil: before the newest row.
type place struct {
	at  *time.Time
	seq int64
}

// parsePlace reads what cursor has written.
func parsePlace(cursor string) (place, error) {
	if cursor == "" {
		return place{}, nil
	}
	b, err := placeOf("spend", cursor, 16)
	if err != nil {
		return place{}, err
	}
	at := time.UnixMicro(int64(binary.BigEndian.Uint64(b)))       // written alike
	return place{&at, int64(binary.BigEndian.Uint64(b[8:]))}, nil // written alike
}

package meter

import (
	"fmt"
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
)

// Window returns the window of a budget that contains at, as [start, end). A total window has neither; both are zero then.
// An unknown time zone is an error.
func Window(l *governance.Limit, at time.Time) (start, end time.Time, err error) {
	switch w := &l.Window; w.Type {
	case governance.WindowFixed:
		anchor := w.Anchor
		if anchor.IsZero() {
			anchor = l.CreatedAt
		}
		since := at.UnixMicro() - anchor.UnixMicro()
		length := w.Duration.Microseconds()
		if since%length < 0 {
			since -= length
		}
		start = time.UnixMicro(anchor.UnixMicro() + since/length*length).UTC()
		return start, start.Add(w.Duration), nil
	case governance.WindowCalendar:
		zone := time.UTC
		if w.TimeZone != "" {
			if zone, err = time.LoadLocation(w.TimeZone); err != nil {
				return time.Time{}, time.Time{}, fmt.Errorf("load zone of limit %s: %w", l.ID, err)
			}
		}
		y, m, d := at.In(zone).Date()
		var toY, toM, toD int
		switch w.Period {
		case "week": // from Monday
			d -= (int(at.In(zone).Weekday()) + 6) % 7
			toD = 7
		case "month":
			d, toM = 1, 1
		case "quarter":
			d, m, toM = 1, m-(m-1)%3, 3
		case "year":
			d, m, toY = 1, 1, 1
		default:
			toD = 1
		}
		return midnight(y, m, d, zone), midnight(y+toY, m+time.Month(toM), d+toD, zone), nil
	default:
		return time.Time{}, time.Time{}, nil
	}
}

// midnight is the first instant of a day. Where clocks are put back over midnight the day has two of them and begins with
// the first; where they are put forward over it the day begins at the change.
func midnight(y int, m time.Month, d int, zone *time.Location) time.Time {
	t := time.Date(y, m, d, 0, 0, 0, 0, zone)
	switch earlier := t.Add(-time.Hour); {
	case t.Hour() > 12: // the time does not exist, and was taken for one before the change
		_, t = t.ZoneBounds()
	case earlier.Hour() == 0 && earlier.Day() == t.Day():
		t = earlier
	}
	return t.UTC()
}

// Between is the number of whole windows between the one that starts at earlier and the one that starts at later.
func Between(l *governance.Limit, earlier, later time.Time) int64 {
	w := &l.Window
	if w.Type == governance.WindowFixed {
		return int64(later.Sub(earlier)/w.Duration) - 1
	}
	zone, err := time.LoadLocation(w.TimeZone)
	if err != nil {
		zone = time.UTC
	}
	y1, m1, d1 := earlier.In(zone).Date()
	y2, m2, d2 := later.In(zone).Date()
	months := int64(y2-y1)*12 + int64(m2-m1)
	days := int64(time.Date(y2, m2, d2, 0, 0, 0, 0, time.UTC).Sub(time.Date(y1, m1, d1, 0, 0, 0, 0, time.UTC)) / (24 * time.Hour))
	switch w.Period {
	case "week":
		return days/7 - 1
	case "month":
		return months - 1
	case "quarter":
		return months/3 - 1
	case "year":
		return months/12 - 1
	default:
		return days - 1
	}
}

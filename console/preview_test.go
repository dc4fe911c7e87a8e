package console

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/money"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// past is a ledger with given rows.
type past struct {
	governance.SpendStore

	rows []governance.SpendRow
}

func (p past) Rows(_ context.Context, f governance.SpendFilter, page governance.Page) ([]governance.SpendRow, string, error) {
	var found []governance.SpendRow
	for _, r := range slices.Backward(p.rows) {
		if !r.SettledAt.Before(f.From) && r.SettledAt.Before(f.To) && (f.Key == "" || f.Key == r.Origin.Key.ID) {
			found = append(found, r)
		}
	}
	start := len(page.Cursor)
	end := min(start+page.Limit, len(found))
	next := ""
	if end < len(found) {
		next = string(make([]byte, end))
	}
	return found[start:end], next, nil
}

func TestPreview_SaysWhatALimitWouldHaveRefused(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	const keyA, keyB = "key_AAAAAAAAAAAA", "key_BBBBBBBBBBBB"
	var rows []governance.SpendRow
	call := func(ago time.Duration, key string, cost money.Nano, lasts time.Duration) {
		at := now.Add(-ago)
		row := governance.SpendRow{
			AttemptID: ids.New(at), Kind: governance.RowUsage, Cost: cost, AdmittedAt: at, SettledAt: at.Add(lasts),
			Origin: governance.Origin{RequestID: ids.New(at), Attempt: 1, Key: governance.Ref{ID: key, Name: key}, Model: "gpt-4o", Route: "chat.completions"},
		}
		row.Quantities[governance.UnitInput] = 100
		rows = append(rows, row)
	}
	call(30*time.Hour, keyA, 1_000_000_000, time.Second) // yesterday
	for i := range 10 {
		call(time.Hour-time.Duration(i)*time.Second, keyA, 500_000_000, 5*time.Second)
	}
	call(time.Minute, keyB, 500_000_000, time.Second)
	o := Options{AdminToken: secret.New(testToken), Spend: past{rows: rows}, Now: func() time.Time { return now }}
	handler, err := New(o)
	require.NoError(t, err)
	e := &env{tb: t, handler: handler, contract: contractOf(o)}

	day := object{"type": "calendar", "period": "day"}
	for name, c := range map[string]struct {
		limit         object
		hours         int
		calls, refuse string
	}{
		"three a minute":                     {object{"scope": object{"type": "key", "id": "*"}, "kind": "rate", "metric": "requests", "amount": "3", "per": "1m"}, 24, "11", "7"},
		"of one key":                         {object{"scope": object{"type": "key", "id": keyB}, "kind": "rate", "metric": "requests", "amount": "1", "per": "1m"}, 24, "1", "0"},
		"nothing":                            {object{"scope": object{"type": "key", "id": "*"}, "kind": "rate", "metric": "requests", "amount": "0", "per": "1m"}, 24, "11", "11"},
		"unlimited":                          {object{"scope": object{"type": "key", "id": "*"}, "kind": "rate", "metric": "requests", "per": "1m"}, 24, "11", "0"},
		"two dollars a day":                  {object{"scope": object{"type": "key", "id": "*"}, "kind": "budget", "metric": "cost", "amount": "2", "window": day}, 48, "12", "6"},
		"each day is counted from its start": {object{"scope": object{"type": "key", "id": keyA}, "kind": "budget", "metric": "tokens", "amount": "550", "window": day}, 1, "10", "5"},
		"three at once":                      {object{"scope": object{"type": "key", "id": "*"}, "kind": "concurrency", "amount": "3"}, 24, "11", "4"},
		"other models":                       {object{"scope": object{"type": "key", "id": "*"}, "kind": "rate", "metric": "requests", "amount": "0", "per": "1m", "models": []string{"claude-*"}}, 24, "0", "0"},
	} {
		got := e.must(http.MethodPost, "/limits/preview", object{"limit": c.limit, "hours": c.hours})
		require.EqualValues(t, c.calls, got["calls"], name)
		require.EqualValues(t, c.refuse, got["would_refuse"], name)
		require.Equal(t, true, got["complete"], name)
	}
	bad := e.send(http.MethodPost, "/limits/preview", object{"limit": object{"scope": object{"type": "key", "id": "*"}, "kind": "budget", "metric": "requests", "amount": "1", "window": day}})
	require.Equal(t, http.StatusBadRequest, bad.status)
	require.Contains(t, bad.faults(), "body.limit.metric")
}

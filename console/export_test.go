package console

import (
	"context"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// reel is an export of some pages that may end in a failure.
type reel struct {
	pages [][]governance.SpendRow
	fails error
	asked governance.SpendFilter
}

func (r *reel) Export(_ context.Context, f governance.SpendFilter, each func([]governance.SpendRow) error) (governance.Exported, error) {
	r.asked = f
	var done governance.Exported
	for _, p := range r.pages {
		if err := each(p); err != nil {
			return done, err
		}
		done.Rows += int64(len(p))
	}
	done.Cost, done.Block, done.Unsealed, done.Dropped = 1_500_000_000, governance.Block{Number: 7, Hash: []byte{0xab, 0xcd}}, 3, 5
	return done, r.fails
}

func exportedRows(names ...string) []governance.SpendRow {
	rows := make([]governance.SpendRow, len(names))
	for i, n := range names {
		id := ids.New(time.Date(2026, 5, 1, 0, 0, i, 0, time.UTC))
		rows[i] = governance.SpendRow{
			AttemptID: id, Kind: governance.RowUsage, Reason: n, Cost: -5, Tags: map[string]string{"a": "b\n"},
			Origin: governance.Origin{RequestID: id, Attempt: 1, Key: governance.Ref{ID: "key_1", Name: n}},
		}
		rows[i].Quantities[governance.UnitOutput] = 42
	}
	return rows
}

// F188: an export is one stream from the server, with sums and a checksum at its end.
func TestF188_ExportsEndWithATrailer(t *testing.T) {
	t.Parallel()
	source := &reel{pages: [][]governance.SpendRow{exportedRows("plain", "=cmd()|x"), exportedRows("@a", `q"u,o`+"\nte")}}
	e := newEnv(t, func(o *Options) { o.Exports = source })
	rows := int64(4)
	check := func(text, begins string) trailer {
		i := strings.LastIndex(strings.TrimSuffix(text, "\n"), "\n") + 1
		require.True(t, strings.HasPrefix(text[i:], begins), text[i:])
		var end trailer
		require.NoError(t, json.Unmarshal([]byte(strings.TrimSuffix(strings.TrimPrefix(text[i:], begins), map[bool]string{true: "}\n", false: "\n"}[begins[0] == '{'])), &end))
		sum := sha256.Sum256([]byte(text[:i]))
		require.Equal(t, hex.EncodeToString(sum[:]), end.SHA256)
		require.Equal(t, rows, end.Rows)
		require.Equal(t, "1.5", end.CostUSD)
		require.Equal(t, int64(3), end.Unsealed)
		require.Equal(t, int64(5), end.Dropped)
		require.Equal(t, "abcd", end.BlockHash)
		return end
	}
	a := e.do(e.request(http.MethodGet, "/spend/export?from=2026-05-01T00:00:00Z", nil))
	require.Equal(t, http.StatusOK, a.status)
	require.Contains(t, a.header.Get("Content-Type"), "text/csv")
	end := check(a.text, "# trailer ")
	require.Equal(t, time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC), end.From.UTC())
	require.Nil(t, end.To)
	reader := csv.NewReader(strings.NewReader(a.text))
	reader.Comment = '#'
	records, err := reader.ReadAll()
	require.NoError(t, err)
	require.Len(t, records, 5)
	for i, want := range []string{"key", "plain", "'=cmd()|x", "'@a", "q\"u,o\nte"} {
		require.Equal(t, want, records[i][13], "no cell is a formula")
	}

	r := e.request(http.MethodGet, "/spend/export?format=jsonl&key_id=key_000000000000", nil)
	a = e.do(r)
	check(a.text, `{"trailer":`)
	require.Equal(t, "key_000000000000", source.asked.Key)
	lines := strings.Split(strings.TrimSpace(a.text), "\n")
	require.Len(t, lines, 5)
	var row spendRow
	require.NoError(t, json.Unmarshal([]byte(lines[1]), &row))
	require.Equal(t, "=cmd()|x", row.Key.Name, "JSON is no spreadsheet")

	source.pages, rows = nil, 0
	for format, begins := range map[string]string{"csv": "# trailer ", "jsonl": `{"trailer":`} {
		check(e.do(e.request(http.MethodGet, "/spend/export?format="+format, nil)).text, begins)
	}
	source.fails = errors.New("torn")
	a = e.do(e.request(http.MethodGet, "/spend/export", nil))
	require.Equal(t, http.StatusInternalServerError, a.status, "nothing was sent yet")
	source.pages = [][]governance.SpendRow{exportedRows("one")}
	for _, format := range []string{"csv", "jsonl"} {
		a = e.do(e.request(http.MethodGet, "/spend/export?format="+format, nil))
		require.NotContains(t, a.text, "trailer")
		require.NotContains(t, a.text, "torn")
		require.Regexp(t, `(?m)^(# FAILED.*|\{"error":.*)\n\z`, a.text)
	}
	require.Equal(t, http.StatusBadRequest, e.send(http.MethodGet, "/spend/export?format=xlsx", nil).status)
}

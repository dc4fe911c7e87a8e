package pgstore

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

func TestReceipt_SaysSettlingWhileAnAttemptIsOpen(t *testing.T) {
	t.Parallel()
	b := openSound(t)
	organization := b.accounts[0].organization.Num
	r, err := b.Receipt(t.Context(), organization, b.open.request)
	require.NoError(t, err)
	require.Equal(t, "settling", r.Status)
	require.Empty(t, r.Rows)
	require.Len(t, r.Reservations, 1)
	held := r.Reservations[0]
	require.Equal(t, "open", held.State)
	require.Equal(t, "node-1", held.Process)
	require.Equal(t, money.Nano(510_000), held.Estimate.Cost)
	require.Len(t, held.Legs, 4)
	require.True(t, held.ExpiresAt.After(held.AdmittedAt))

	r, err = b.Receipt(t.Context(), organization, b.used.request)
	require.NoError(t, err)
	require.Equal(t, "settled", r.Status)
	require.Equal(t, money.Nano(450_000), r.Cost)
	require.Len(t, r.Rows, 1)

	r, err = b.Receipt(t.Context(), 0, b.used.request)
	require.NoError(t, err)
	require.Len(t, r.Rows, 1)
}

func TestReceipt_OfAnotherOrganizationIsNotFound(t *testing.T) {
	t.Parallel()
	b := openSound(t)
	for _, request := range []ids.ID{b.used.request, b.open.request, ids.New(b.now)} {
		_, err := b.Receipt(t.Context(), b.accounts[1].organization.Num, request)
		require.ErrorIs(t, err, governance.ErrNotFound)
	}
}

func TestReceipt_ShowsAttemptsInOrderAndAddsUp(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	request := ids.New(b.now)
	q, p := tokens(10, 0)
	first := b.add(line{request: request, source: governance.UsageZero, outcome: governance.OutcomeUpstreamError})
	second := b.add(line{request: request, q: q, p: p, admitted: b.now.Add(time.Second)})
	r, err := b.Receipt(t.Context(), b.accounts[0].organization.Num, request)
	require.NoError(t, err)
	require.Equal(t, []ids.ID{first.id, second.id}, []ids.ID{r.Rows[0].AttemptID, r.Rows[1].AttemptID})
	require.Equal(t, money.Nano(1500), r.Cost)
}

// F164: whatever a client says, its money row is there and so are everybody else's words.
func TestF164_TextThatCannotBeStoredIsLeftOutAlone(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	q, p := tokens(10, 0)
	evil, good := b.add(line{q: q, p: p}), b.add(line{q: q, p: p})
	raw := []byte("\x00\xff{\"usage\":\"\\u0000\\ud800\"}")
	require.NoError(t, b.Attribute(t.Context(), []governance.Attribution{
		{AttemptID: evil.id, RequestID: evil.request, Metadata: raw, RawUsage: raw, Tags: map[string]string{
			"nul": "a\x00b", "\x00": "x", "surrogate": "\xed\xa0\x80", "bytes": "\xff\xfe", "long": strings.Repeat("x", 65), "fine": `"\u0000 é`,
		}},
		{AttemptID: good.id, RequestID: good.request, Tags: map[string]string{"team": "ü"}},
	}))
	tags := make(map[ids.ID]map[string]string)
	for _, r := range b.allRows(t.Context(), governance.SpendFilter{}, 10) {
		tags[r.AttemptID] = r.Tags
	}
	require.Equal(t, map[ids.ID]map[string]string{evil.id: {"fine": `"\u0000 é`}, good.id: {"team": "ü"}}, tags)
	var stored []byte
	b.scan("SELECT raw_usage FROM ledger.attribution WHERE attempt_id = $1", &stored, evil.id)
	require.Equal(t, raw, stored, "bytes come back as they came")
}

func TestAttribute_IsBoundedAndHarmlessToRepeat(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	tags := make(map[string]string)
	for i := range 40 {
		tags[string(rune('a'+i))] = "v"
	}
	a := governance.Attribution{
		AttemptID: ids.New(b.now), RequestID: ids.New(b.now), Tags: tags,
		Metadata: bytes.Repeat([]byte("m"), 4097), RawUsage: []byte("{}"),
	}
	require.NoError(t, b.Attribute(t.Context(), []governance.Attribution{a}))
	a.Tags = map[string]string{"other": "v"}
	require.NoError(t, b.Attribute(t.Context(), []governance.Attribution{a, a}))
	require.NoError(t, b.Attribute(t.Context(), nil))
	var kept, metadata int
	b.scan("SELECT count(*) FROM ledger.attribution AS a, jsonb_object_keys(a.tags)", &kept)
	b.scan("SELECT count(metadata) FROM ledger.attribution", &metadata)
	require.Equal(t, 32, kept)
	require.Zero(t, metadata)
	require.Error(t, b.Attribute(t.Context(), []governance.Attribution{{}}))
}

package pgstore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/money"
	"github.com/tollgate-gateway/tollgate/internal/pgtest"
)

var finance = governance.Actor{Kind: "user", ID: "user_finance", Name: "Fin", Reason: "agreed with the provider"}

// audits counts audit rows of an action on a ledger row.
func (b *book) audits(action, id string) (n int) {
	b.t.Helper()
	b.scan("SELECT count(*) FROM tollgate.audit_log WHERE resource = 'spend' AND action = $1 AND resource_id = $2", &n, action, id)
	return n
}

func TestReservations_ListWhatIsNotSettledOldestFirst(t *testing.T) {
	t.Parallel()
	b := openSound(t)
	all, next, err := b.Reservations(t.Context(), governance.ReservationFilter{}, governance.Page{Limit: 10})
	require.NoError(t, err)
	require.Empty(t, next)
	require.Len(t, all, 2)
	require.Equal(t, []ids.ID{b.expired.id, b.open.id}, []ids.ID{all[0].ID, all[1].ID})
	require.Equal(t, []string{"provisional", "open"}, []string{all[0].State, all[1].State})
	require.Len(t, all[0].Legs, 4)
	for state, id := range map[string]ids.ID{"open": b.open.id, "provisional": b.expired.id} {
		some, _, err := b.Reservations(t.Context(), governance.ReservationFilter{State: state}, governance.Page{Limit: 10})
		require.NoError(t, err)
		require.Len(t, some, 1)
		require.Equal(t, id, some[0].ID)
	}
	page, next, err := b.Reservations(t.Context(), governance.ReservationFilter{}, governance.Page{Limit: 1})
	require.NoError(t, err)
	require.Len(t, page, 1)
	page, next, err = b.Reservations(t.Context(), governance.ReservationFilter{}, governance.Page{Limit: 1, Cursor: next})
	require.NoError(t, err)
	require.Equal(t, b.open.id, page[0].ID)
	require.Empty(t, next)
	none, _, err := b.Reservations(t.Context(), governance.ReservationFilter{Organization: b.accounts[1].organization.ID}, governance.Page{Limit: 10})
	require.NoError(t, err)
	require.Empty(t, none)
	_, _, err = b.Reservations(t.Context(), governance.ReservationFilter{State: "x"}, governance.Page{})
	require.ErrorContains(t, err, "state")
}

func TestResolve_WritesOneLateAdjustment(t *testing.T) {
	t.Parallel()
	q, _ := tokens(100, 300)
	for name, c := range map[string]struct {
		resolution governance.Resolution
		source     governance.UsageSource
		total      money.Nano
	}{
		"known":    {governance.Resolution{Quantities: q}, governance.UsageProvider, 15_000 + 180_000},
		"nothing":  {governance.Resolution{}, governance.UsageZero, 0},
		"zero":     {governance.Resolution{Policy: governance.ResolveZero}, governance.UsageZero, 0},
		"keep":     {governance.Resolution{Policy: governance.ResolveKeep}, governance.UsageReservation, 615_000},
		"estimate": {governance.Resolution{Policy: governance.ResolveEstimate}, governance.UsageEstimate, 15_000 + 60_000}, // 1 s at 100 a second
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := openSound(t)
			row, err := b.Resolve(t.Context(), finance, b.expired.id, c.resolution)
			require.NoError(t, err)
			require.Equal(t, governance.RowLateAdjustment, row.Kind)
			require.Equal(t, c.source, row.Source)
			require.Equal(t, c.total-615_000, row.Cost)
			require.Equal(t, finance.Reason, row.Reason)
			require.Equal(t, 1, b.audits("resolve", row.ID()))
			b.clean()
			require.Equal(t, int64(450_000+c.total), b.level(b.day).Spent)
			receipt, err := b.Receipt(t.Context(), 0, b.expired.request)
			require.NoError(t, err)
			require.Equal(t, c.total, receipt.Cost)
			left, _, err := b.Reservations(t.Context(), governance.ReservationFilter{State: "provisional"}, governance.Page{Limit: 10})
			require.NoError(t, err)
			require.Empty(t, left)

			_, err = b.Resolve(t.Context(), finance, b.expired.id, governance.Resolution{Policy: governance.ResolveZero})
			require.ErrorIs(t, err, governance.ErrConflict)
			b.clean()
		})
	}
}

func TestResolve_RefusesWhatIsNotProvisional(t *testing.T) {
	t.Parallel()
	b := openSound(t)
	zero := governance.Resolution{Policy: governance.ResolveZero}
	for _, id := range []ids.ID{b.used.id, b.open.id, ids.New(b.now)} {
		_, err := b.Resolve(t.Context(), finance, id, zero)
		require.ErrorIs(t, err, governance.ErrNotFound)
	}
	stranger := finance
	stranger.Organization = b.accounts[1].organization.Num
	_, err := b.Resolve(t.Context(), stranger, b.expired.id, zero)
	require.ErrorIs(t, err, governance.ErrNotFound)
	_, err = b.Resolve(t.Context(), governance.Actor{Kind: "user"}, b.expired.id, zero)
	require.ErrorContains(t, err, "reason")
	_, err = b.Resolve(t.Context(), finance, b.expired.id, governance.Resolution{Policy: "forget"})
	require.ErrorContains(t, err, "policy")
	_, err = b.Resolve(t.Context(), finance, b.expired.id, governance.Resolution{Quantities: governance.Quantities{-1}})
	require.ErrorContains(t, err, "quantities")
	var audits int
	b.scan("SELECT count(*) FROM tollgate.audit_log", &audits)
	require.Zero(t, audits)
	b.clean()
}

// F035: whoever resolves first wins, and nobody adjusts twice.
func TestF035_ConcurrentResolutionsAdjustOnce(t *testing.T) {
	t.Parallel()
	b := openSound(t)
	won := make(chan governance.SpendRow, 8)
	var all errgroup.Group
	for range 8 {
		all.Go(func() error {
			row, err := b.Resolve(t.Context(), finance, b.expired.id, governance.Resolution{Policy: governance.ResolveZero})
			if err == nil {
				won <- row
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
	require.Len(t, won, 1)
	b.clean()
	var audits int
	b.scan("SELECT count(*) FROM tollgate.audit_log", &audits)
	require.Equal(t, 1, audits)
}

// What a window that has ended overspends later is owed by the present one, and no longer owed when it is given back.
func TestDecisions_MoveTheDebtOfEndedWindows(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	day := b.limit("kind, metric, amount, window_type, window_period", "'budget', 'tokens', 100, 'calendar', 'day'")
	key := b.accounts[0].key.Num
	today := b.now.UTC().Truncate(24 * time.Hour)
	yesterday := today.Add(-24 * time.Hour)
	q, p := tokens(150, 0)
	row := b.add(line{q: q, p: p, admitted: yesterday.Add(time.Hour), legs: []governance.Leg{leg(day, key, yesterday, 150, 150)}})
	b.meter(day, key, yesterday, 150, 0, 0)
	b.meter(day, key, today, 0, 0, 50)
	debt := func(change int64) int64 {
		_, err := b.Correct(t.Context(), finance, governance.SpendRowID(row.id, governance.RowUsage), governance.Correction{
			Quantities: governance.Quantities{governance.UnitInput: change}, Cost: money.Nano(change * 150),
		})
		require.NoError(t, err)
		return b.level(day).Debt
	}
	require.Equal(t, int64(80), debt(30))
	require.Equal(t, int64(20), debt(-60))
	require.Equal(t, int64(0), debt(-100))
	require.Equal(t, int64(0), debt(10))
	b.clean()
}

func TestCorrect_NeverTakesMoreThanIsLeft(t *testing.T) {
	t.Parallel()
	b := openSound(t)
	id := governance.SpendRowID(b.used.id, governance.RowUsage)
	row, err := b.Correct(t.Context(), finance, id, governance.Correction{Cost: -400_000})
	require.NoError(t, err)
	require.Equal(t, id, row.Corrects)
	require.Equal(t, 1, b.audits("correct", row.ID()))
	for _, c := range []governance.Correction{
		{Cost: -50_001}, {Quantities: governance.Quantities{governance.UnitOutput: -501}}, {},
	} {
		_, err = b.Correct(t.Context(), finance, id, c)
		require.Error(t, err)
	}
	_, err = b.Correct(t.Context(), finance, id, governance.Correction{Cost: -50_000})
	require.NoError(t, err)
	for _, missing := range []string{"", "x", governance.SpendRowID(ids.New(b.now), governance.RowUsage), row.ID()} {
		_, err = b.Correct(t.Context(), finance, missing, governance.Correction{Cost: 1})
		require.ErrorIs(t, err, governance.ErrNotFound, missing)
	}
	b.clean()
	receipt, err := b.Receipt(t.Context(), 0, b.used.request)
	require.NoError(t, err)
	require.Zero(t, receipt.Cost)
	require.Len(t, receipt.Rows, 3)
}

func TestCredit_IsARowOfItsOwn(t *testing.T) {
	t.Parallel()
	b := openSound(t)
	a := b.accounts[0]
	row, err := b.Credit(t.Context(), finance, governance.Credit{Organization: a.organization.ID, Key: a.key.ID, Amount: 1_000_000})
	require.NoError(t, err)
	require.Equal(t, money.Nano(-1_000_000), row.Cost)
	require.Equal(t, a.team, row.Origin.Team, "the key's team")
	require.Equal(t, 1, b.audits("credit", row.ID()))
	sums, err := b.Summary(t.Context(), governance.SpendFilter{Organization: a.organization.ID}, nil)
	require.NoError(t, err)
	require.Equal(t, money.Nano(450_000+615_000-1_000_000), sums[0].Cost)
	require.Equal(t, int64(2), sums[0].Requests)
	for _, c := range []governance.Credit{
		{Organization: a.organization.ID},
		{Organization: a.organization.ID, Amount: -1},
		{Organization: "org_x", Amount: 1},
		{Organization: a.organization.ID, Team: b.accounts[1].team.ID, Amount: 1},
		{Organization: a.organization.ID, Key: b.accounts[1].key.ID, Amount: 1},
	} {
		_, err = b.Credit(t.Context(), finance, c)
		require.Error(t, err)
	}
	b.clean()
}

// The data plane may resolve by policy, and neither correct nor give credit.
func TestDecisions_NeedTheControlPlane(t *testing.T) {
	t.Parallel()
	b := openSound(t)
	control := NewSpend(pgtest.Role(t, b.pool, "tollgate_control"))
	gateway := NewSpend(pgtest.Role(t, b.pool, "tollgate_gateway"))
	id := governance.SpendRowID(b.used.id, governance.RowUsage)
	_, err := gateway.Correct(t.Context(), finance, id, governance.Correction{Cost: -1})
	require.ErrorContains(t, err, "42501")
	_, err = gateway.Credit(t.Context(), finance, governance.Credit{Organization: b.accounts[0].organization.ID, Amount: 1})
	require.ErrorContains(t, err, "42501")
	_, err = control.Correct(t.Context(), finance, id, governance.Correction{Cost: -1})
	require.NoError(t, err)
	_, err = control.Credit(t.Context(), finance, governance.Credit{Organization: b.accounts[0].organization.ID, Amount: 1})
	require.NoError(t, err)
	_, err = control.Resolve(t.Context(), finance, b.expired.id, governance.Resolution{Policy: governance.ResolveZero})
	require.NoError(t, err)
	for _, s := range []*Spend{control, gateway} {
		report, err := s.Check(t.Context())
		require.NoError(t, err)
		require.True(t, report.Clean())
		_, err = s.Summary(t.Context(), governance.SpendFilter{}, []string{"organization", "user"})
		require.NoError(t, err)
		_, _, err = s.Rows(t.Context(), governance.SpendFilter{}, governance.Page{Limit: 10})
		require.NoError(t, err)
		require.NoError(t, s.Attribute(t.Context(), []governance.Attribution{{AttemptID: b.used.id, RequestID: b.used.request}}))
	}
}

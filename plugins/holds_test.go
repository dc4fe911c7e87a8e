package plugins_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/plugins"
	"github.com/tollgate-gateway/tollgate/plugins/plugintest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func limit(num int64, scope governance.ScopeType, subject int64, kind governance.Kind, metric governance.Metric) *governance.Limit {
	return &governance.Limit{
		Meta: governance.Meta{Num: num}, Scope: governance.Scope{Type: scope, Subject: governance.Ref{Num: subject}},
		Kind: kind, Metric: metric, Amount: 1_000_000,
	}
}

func holds(t *testing.T, c *plugins.Call, kind governance.Kind) []governance.Hold {
	t.Helper()
	h, err := plugins.Holds(c, kind)
	require.NoError(t, err)
	return h
}

func TestF062_HoldsAskForTheWholeDemand(t *testing.T) {
	t.Parallel()
	limits := []*governance.Limit{
		limit(10, governance.ScopeKey, 3, governance.KindRate, governance.MetricRequests),
		limit(11, governance.ScopeKey, 3, governance.KindRate, governance.MetricTokens),
		limit(12, governance.ScopeOrganization, 1, governance.KindBudget, governance.MetricCost),
		limit(13, governance.ScopeModel, 6, governance.KindConcurrency, governance.MetricRequests),
		limit(14, governance.ScopeTarget, 7, governance.KindRate, governance.MetricInputTokens),
		limit(15, governance.ScopeKey, 33, governance.KindRate, governance.MetricRequests),
	}
	c := plugintest.WithLimits(plugintest.Call(), limits...)
	input := c.Demand.Input
	require.Equal(t, []governance.Hold{
		{Limit: limits[4], Subject: 7, Amount: input},
		{Limit: limits[0], Subject: 3, Amount: 1},
		{Limit: limits[1], Subject: 3, Amount: input + 100},
	}, holds(t, c, governance.KindRate))
	require.Equal(t, []governance.Hold{{Limit: limits[2], Subject: 1, Amount: input*3_000 + 100*15_000}}, holds(t, c, governance.KindBudget))
	require.Equal(t, []governance.Hold{{Limit: limits[3], Subject: 6, Amount: 1}}, holds(t, c, governance.KindConcurrency))
}

func TestF011_EachAttemptIsChargedAtItsOwnTarget(t *testing.T) {
	t.Parallel()
	money := limit(10, governance.ScopeKey, 3, governance.KindBudget, governance.MetricCost)
	tokens := limit(11, governance.ScopeKey, 3, governance.KindBudget, governance.MetricTokens)
	c := plugintest.WithLimits(plugintest.Call(), money, tokens)
	paid := c.Target
	free := *paid
	free.Price = &governance.PriceVersion{Free: true}
	c.Target = &free
	require.Equal(t, []governance.Hold{{Limit: tokens, Subject: 3, Amount: c.Demand.Input + 100}}, holds(t, c, governance.KindBudget),
		"a free target asks no money, and still counts tokens")
	c.Target, c.Attempt = paid, 2
	require.Len(t, holds(t, c, governance.KindBudget), 2, "its paid fallback does")
}

func TestF040_UnpricedTargetForABudgetedCaller(t *testing.T) {
	t.Parallel()
	for _, edit := range []func(*governance.Limit){
		func(*governance.Limit) {},
		func(l *governance.Limit) { l.Mode = governance.ModeLog },
		func(l *governance.Limit) { l.Unlimited = true },
	} {
		money := limit(10, governance.ScopeOrganization, 1, governance.KindBudget, governance.MetricCost)
		edit(money)
		c := plugintest.WithLimits(plugintest.Call(), money)
		unpriced := *c.Target
		unpriced.Price = nil
		c.Target = &unpriced
		_, err := plugins.Holds(c, governance.KindBudget)
		require.Equal(t, governance.CodeModelUnpriced, governance.CodeOf(err))
		c = plugintest.WithLimits(c)
		require.Empty(t, holds(t, c, governance.KindBudget), "nobody who counts money is asked")
	}
}

func TestF016_ZeroAndUnlimitedBothReachTheStore(t *testing.T) {
	t.Parallel()
	zero := limit(10, governance.ScopeKey, 3, governance.KindBudget, governance.MetricCost)
	zero.Amount = 0
	counted := limit(11, governance.ScopeKey, 3, governance.KindBudget, governance.MetricTokens)
	counted.Amount, counted.Unlimited = 0, true
	c := plugintest.WithLimits(plugintest.Call(), zero, counted)
	require.Len(t, holds(t, c, governance.KindBudget), 2, "0 refuses there, null is counted there")
}

func TestF031_EndUserOfAnySourceHasTheSameMeter(t *testing.T) {
	t.Parallel()
	each := limit(10, governance.ScopeEndUser, 0, governance.KindBudget, governance.MetricTokens)
	each.Scope.Subject.ID = "*"
	c := plugintest.WithLimits(plugintest.Call(), each)
	require.Equal(t, int64(5), holds(t, c, governance.KindBudget)[0].Subject)
	c.EndUserNum = 0
	require.Empty(t, holds(t, c, governance.KindBudget))
}

func TestNoOutputMakesNoLegOfOutput(t *testing.T) {
	t.Parallel()
	c := plugintest.WithLimits(plugintest.Call(), limit(10, governance.ScopeKey, 3, governance.KindRate, governance.MetricOutputTokens))
	c.Demand.NoOutput = true
	require.Empty(t, holds(t, c, governance.KindRate))
}

package modelroute_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/plugins"
	"github.com/tollgate-gateway/tollgate/plugins/modelroute"
	"github.com/tollgate-gateway/tollgate/plugins/plugintest"
)

func resolver(t require.TestingT) plugins.Resolver {
	p, err := modelroute.Module().New(plugins.Env{}, plugintest.Config(""))
	require.NoError(t, err)
	return p.(plugins.Resolver)
}

func model(num, organization int64, name string, ways ...governance.ModelTarget) *governance.Model {
	return &governance.Model{
		Meta: governance.Meta{Num: num}, Organization: governance.Ref{Num: organization}, Name: name, Targets: ways,
	}
}

func way(target int64, priority, weight int) governance.ModelTarget {
	return governance.ModelTarget{Target: governance.Ref{Num: target}, Priority: priority, Weight: weight}
}

func catalog(models ...*governance.Model) *governance.Catalog {
	var targets []*governance.Target
	for num := int64(1); num <= 9; num++ {
		targets = append(targets, &governance.Target{Meta: governance.Meta{Num: num}})
	}
	return governance.NewCatalog(1, plugintest.Received(), models, targets, nil)
}

func call(c *governance.Catalog, name string, keyModels, teamModels []string) *plugins.Call {
	return &plugins.Call{
		Model: name, Catalog: c,
		Principal: governance.Principal{Organization: governance.Ref{Num: 1}, KeyModels: keyModels, TeamModels: teamModels},
	}
}

func nums(r governance.Route) []int64 {
	var all []int64
	for _, t := range r.Targets {
		all = append(all, t.Num)
	}
	return all
}

func TestResolve(t *testing.T) {
	t.Parallel()
	c := catalog(
		model(10, 0, "shared", way(1, 0, 1)), model(11, 1, "shared", way(2, 0, 1)), model(12, 0, "platform", way(3, 0, 1)),
		model(13, 2, "theirs", way(4, 0, 1)), model(14, 1, "empty"), model(15, 1, "dangling", way(77, 0, 1), way(5, 1, 1)),
		model(16, 1, "org/模型:β", way(6, 0, 1)), model(17, 1, "closed", way(77, 0, 1), way(78, 0, 1)),
	)
	for _, tc := range []struct {
		name, model string
		key, team   []string
		want        []int64
		code        governance.Code
	}{
		{name: "own model shadows the platform's", model: "shared", want: []int64{2}},
		{name: "the platform's", model: "platform", want: []int64{3}},
		{name: "another organization's", model: "theirs", code: governance.CodeModelNotFound},
		{name: "unknown", model: "nope", code: governance.CodeModelNotFound},
		{name: "unknown, and the key may use nothing", model: "nope", key: []string{}, code: governance.CodeModelNotFound},
		{name: "case counts", model: "Shared", code: governance.CodeModelNotFound},
		{name: "allowed by pattern", model: "shared", key: []string{"sh*"}, want: []int64{2}},
		{name: "not allowed by the key", model: "shared", key: []string{"platform"}, code: governance.CodeModelNotAllowed},
		{name: "the key may use nothing", model: "shared", key: []string{}, code: governance.CodeModelNotAllowed},
		{name: "not allowed by the team", model: "shared", key: []string{"*"}, team: []string{"platform"}, code: governance.CodeModelNotAllowed},
		{name: "without targets", model: "empty", code: governance.CodeModelNotFound},
		{name: "no target that can be called", model: "closed", code: governance.CodeUpstreamUnreachable},
		{name: "a target that is gone", model: "dangling", want: []int64{5}},
		{name: "odd names", model: "org/模型:β", want: []int64{6}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r, err := resolver(t).Resolve(t.Context(), call(c, tc.model, tc.key, tc.team))
			if tc.code != "" {
				require.Equal(t, tc.code, governance.CodeOf(err))
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.want, nums(r))
			require.Equal(t, tc.model, r.Model.Name)
		})
	}
}

func TestPrioritiesAreKeptAndWeightsShare(t *testing.T) {
	t.Parallel()
	c := catalog(model(10, 0, "m", way(5, 1, 1), way(1, 0, 3), way(2, 0, 1), way(3, 0, 0), way(4, 1, 0)))
	r := resolver(t)
	first := map[int64]int{}
	const rounds = 4_000
	for range rounds {
		route, err := r.Resolve(t.Context(), call(c, "m", nil, nil))
		require.NoError(t, err)
		got := nums(route)
		require.Len(t, got, 5)
		require.Equal(t, []int64{3, 5, 4}, got[2:], "no weight comes last within its priority")
		first[got[0]]++
	}
	require.InDelta(t, rounds*3/4, first[1], rounds/20)
	require.InDelta(t, rounds/4, first[2], rounds/20)
}

func TestOrderIsAlwaysWhole(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ways := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) governance.ModelTarget {
			return way(rapid.Int64Range(1, 9).Draw(t, "target"), rapid.IntRange(0, 3).Draw(t, "priority"), rapid.IntRange(-1, 100).Draw(t, "weight"))
		}), 1, 9, func(w governance.ModelTarget) int64 { return w.Target.Num }).Draw(t, "ways")
		given := slices.Clone(ways)
		priority := map[int64]int{}
		for _, w := range ways {
			priority[w.Target.Num] = w.Priority
		}
		route, err := resolver(t).Resolve(t.Context(), call(catalog(model(10, 0, "m", ways...)), "m", nil, nil))
		require.NoError(t, err)
		require.Len(t, route.Targets, len(ways))
		require.True(t, slices.IsSortedFunc(route.Targets, func(a, b *governance.Target) int { return priority[a.Num] - priority[b.Num] }))
		require.Equal(t, given, ways, "the picture is shared and never changed")
	})
}

func TestF142_WhatIsOfferedIsWhatCanBeCalled(t *testing.T) {
	t.Parallel()
	c := catalog(model(10, 0, "a", way(1, 0, 1)), model(11, 1, "a", way(2, 0, 1)), model(12, 0, "ab", way(3, 0, 1)), model(13, 2, "b", way(4, 0, 1)))
	for _, list := range [][]string{nil, {}, {"*"}, {"a"}, {"a*"}, {"b"}, {"*b"}} {
		listed := map[string]bool{}
		x := call(c, "", list, nil)
		for _, m := range c.Offered(1) {
			if x.Principal.MayUse(m.Name) {
				listed[m.Name] = true
			}
		}
		for _, name := range []string{"a", "ab", "b"} {
			_, err := resolver(t).Resolve(t.Context(), call(c, name, list, nil))
			require.Equal(t, listed[name], err == nil, "%v %s", list, name)
		}
	}
}

package e2e

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/mock"
)

// frameworks are the libraries above the vendors' own, each in every API that it speaks.
func frameworks(t *testing.T) []sdk {
	t.Helper()
	node := startNode(t, "frameworks.mjs")
	var all []sdk
	for _, name := range []string{"ai openai chat", "ai openai responses", "ai anthropic", "langchain chat", "langchain responses"} {
		all = append(all, sdk{name: name, do: func(ctx context.Context, k task) report {
			k.Library = name
			return node(ctx, k)
		}})
	}
	return all
}

// testFrameworks calls models of both dialects with every framework: whole, streamed, and a turn with two tools at once.
func (f *dialectFleet) testFrameworks(t *testing.T) {
	t.Parallel()
	key, _ := f.issue()
	broke, _ := f.issue(object{"kind": "budget", "metric": "cost", "amount": "0", "window": object{"type": "total"}})
	ask := func(op, model, key string) task {
		k := f.ask(op, model, key)
		k.BaseURL = f.gateways[0].baseURL + "/v1"
		return k
	}
	each(t, frameworks(t), func(t *testing.T, lib sdk) {
		for _, model := range []string{"plain", "claude"} {
			for _, op := range []string{opChat, opStream} {
				r := done(t, lib, ask(op, model, key))
				require.Equal(t, saidWords, r.Texts, "%s of %s", op, model)
				require.EqualValues(t, 9, r.Usage.Output, "%s of %s", op, model)
			}
		}
		for model, want := range map[string][]toolCall{"tools": chatTools, "claude-tools": toolTurns} {
			if model == "tools" && (lib.name == "ai openai responses" || lib.name == "langchain responses") {
				continue // the mock has no such answer in this dialect
			}
			k := ask(opTools, model, key)
			k.SecondModel, k.Text = map[string]string{"tools": "plain", "claude-tools": "claude"}[model], model+" of "+lib.name
			r := done(t, lib, k)
			require.Equal(t, want, r.Tools)
			require.Equal(t, []string{mock.DefaultText}, r.Texts)
			require.Contains(t, f.lastOf(t, k.Text), "21 degrees")
		}
		for _, model := range []string{"error-frame", "claude-error", "claude-cut"} {
			r := lib.do(t.Context(), ask(opStream, model, key))
			require.NotNil(t, r.Error, "an error in a stream of %s is thrown: %+v", model, r)
		}
		r := lib.do(t.Context(), ask(opChat, "plain", broke))
		require.NotNil(t, r.Error)
		require.Equal(t, 429, r.Error.Status, "%+v", r.Error)
		if lib.name == "langchain chat" || lib.name == "langchain responses" {
			require.Equal(t, 1, r.Requests)
		} else {
			require.Equal(t, 3, r.Requests, "this library repeats every 429, whatever it is told")
		}
	})
}

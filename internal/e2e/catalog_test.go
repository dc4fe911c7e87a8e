package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/mock"
)

// Providers of the catalog, of an operator's own catalog and of Azure are reached as their kinds say, and clients of chat and of
// responses alike call those that speak only one of them.
func TestF115_KindsAreReachedAsTheyAre(t *testing.T) {
	t.Parallel()
	own := filepath.Join(t.TempDir(), "kinds.yaml")
	require.NoError(t, os.WriteFile(own, []byte(
		"- {kind: inhouse, title: Ours, base_url: 'https://llm.example.com/v1', speaks: [responses], auth: X-Api-Key, prices: mock}\n"), 0o600))
	f := startFleet(t, fleetOptions{env: []string{"TOLLGATE_PROVIDER_CATALOG=" + own}})
	for unit, price := range map[string]string{"input": inputPrice, "output": outputPrice} {
		f.create("prices", object{
			"provider": "mock", "upstream_model": "mock-ok", "unit": unit, "usd_per_million": price, "effective_from": "2026-01-01T00:00:00Z",
		})
	}
	key, _ := f.issue(object{"kind": "budget", "metric": "cost", "amount": "100", "window": object{"type": "total"}})
	for kind, path := range map[string]string{
		"deepseek": "/v1", "mistral": "/v1", "inhouse": "/v1", "azure": "/openai?api-version=2024-10-21",
	} {
		p := object{"name": kind, "kind": kind, "base_url": f.upstream + path, "credential": "sk-upstream-marker"}
		if kind != "inhouse" {
			p["price_provider"] = "mock"
		}
		f.create("models", object{"name": kind, "targets": []object{
			{"provider_id": f.create("providers", p)["id"], "upstream_model": "mock-ok", "weight": 1, "priority": 0},
		}})
		f.awaitModels(key, kind)
	}

	community, official := sdk{name: "go-openai", do: goOpenAI}, sdk{name: "openai-go", do: openAIGo}
	last := func() mock.Request {
		seen := f.mock.Log().Requests
		require.NotEmpty(t, seen)
		return seen[len(seen)-1]
	}
	for _, tc := range []struct {
		model string
		ops   []string
		path  string // at the upstream
		auth  string // the header that has the credential
	}{
		{"deepseek", []string{opChat, opStream, opResponses, opResponsesStream}, "/v1/chat/completions", "Authorization"},
		{"inhouse", []string{opChat, opStream, opResponses, opResponsesStream}, "/v1/responses", "X-Api-Key"},
		{"azure", []string{opChat, opStream}, "/openai/deployments/mock-ok/chat/completions?api-version=2024-10-21", "Api-Key"},
		{"mistral", []string{opStream}, "/v1/chat/completions", "Authorization"},
	} {
		for _, op := range tc.ops {
			for _, lib := range []sdk{community, official} {
				k := task{Op: op, BaseURL: f.gateways[0].baseURL + "/v1", Key: key, Model: tc.model, Text: "hello", MaxRetries: pointer(0)}
				if op == opStream {
					k.IncludeUsage = pointer(true)
				}
				r := done(t, lib, k)
				require.Equal(t, saidWords, r.Texts, "%s of %s by %s", op, tc.model, lib.name)
				require.NotNil(t, r.Usage, "%s of %s by %s", op, tc.model, lib.name)
				require.Positive(t, r.Usage.Output)

				seen := last()
				require.Equal(t, tc.path, seen.Path)
				for _, name := range []string{"Authorization", "Api-Key", "X-Api-Key"} {
					if name == tc.auth {
						require.Equal(t, "sk-upstream-marker", strings.TrimPrefix(seen.Header.Get(name), "Bearer "))
					} else {
						require.Empty(t, seen.Header.Get(name), name)
					}
				}
				if tc.model == "mistral" {
					require.NotContains(t, string(seen.Body), "stream_options")
				}
			}
		}
	}
	f.requireBooksBalance()
}

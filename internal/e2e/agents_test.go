//go:build full

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/mock"
)

// agent is a program that people let work through Tollgate. Its packages bring a binary for each platform.
type agent struct {
	name   string
	binary string // a pattern below agents/node_modules
	tool   string // the tool of its own that runs a command
	input  string // of that tool, as JSON: prints what only the tool's answer can have
	// prepare returns its arguments and environment. home is empty and its own.
	prepare func(t *testing.T, f *fleet, home, model, key string) (arguments, env []string)
}

const printed = "tollgate-42" // by the commands of the tools

var agents = []agent{
	{
		"Claude Code", "@anthropic-ai/claude-code-linux-*/claude", "Bash", `{"command":"echo tollgate-$((40+2))","description":"Print it"}`,
		func(_ *testing.T, f *fleet, _, model, key string) (arguments, env []string) {
			return []string{"-p", "run it", "--allowedTools", "Bash"}, []string{
				"ANTHROPIC_BASE_URL=" + f.gateways[0].baseURL, "ANTHROPIC_AUTH_TOKEN=" + key, "ANTHROPIC_MODEL=" + model,
				"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
			}
		},
	},
	{
		"Codex", "@openai/codex-linux-*/vendor/*/bin/codex", "exec_command", `{"cmd":"echo tollgate-$((40+2))"}`,
		func(t *testing.T, f *fleet, home, model, key string) (arguments, env []string) {
			config := fmt.Sprintf("model = %q\nmodel_provider = \"tollgate\"\n[model_providers.tollgate]\nname = \"tollgate\"\nbase_url = %q\nenv_key = \"TOLLGATE_KEY\"\nwire_api = \"responses\"\n",
				model, f.gateways[0].baseURL+"/v1")
			require.NoError(t, os.Mkdir(filepath.Join(home, ".codex"), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(home, ".codex", "config.toml"), []byte(config), 0o600))
			return []string{"exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "run it"}, []string{"TOLLGATE_KEY=" + key}
		},
	},
}

// Agents take a turn with a tool of theirs, on a native lane and on a translated one: the model asks for the tool, the agent
// runs it and sends what it said, and the model has the last word.
func TestLong_AgentsTakeATurnWithATool(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	provider := f.create("providers", object{
		"name": "claude", "kind": "anthropic", "base_url": f.upstream, "credential": "sk-upstream-marker", "price_provider": "mock",
	})["id"]
	f.create("models", object{"name": "claude", "targets": []object{{"provider_id": provider, "upstream_model": "plain", "weight": 1, "priority": 0}}})
	key, _ := f.issue()
	f.awaitModels(key, "claude")
	for _, a := range agents {
		for _, model := range []string{"plain", "claude"} {
			t.Run(a.name+" of "+model, func(t *testing.T) {
				found, err := filepath.Glob(filepath.Join("agents", "node_modules", a.binary))
				require.NoError(t, err)
				require.NotEmpty(t, found, "it is not installed: run make long, or .ci/npm internal/e2e/agents")
				program, err := filepath.Abs(found[0])
				require.NoError(t, err)
				f.mock.Reset()
				require.NoError(t, f.mock.SetScript(mock.Rule{Script: fmt.Sprintf("tool(%s,%q)", a.tool, a.input), Times: 1}))

				home := t.TempDir()
				arguments, env := a.prepare(t, f, home, model, key)
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
				defer cancel()
				run := exec.CommandContext(ctx, program, arguments...)
				run.Dir, run.Env = t.TempDir(), append(env, "HOME="+home, "PATH="+os.Getenv("PATH"))
				said, err := run.CombinedOutput()
				require.NoError(t, err, "%s", said)
				require.Contains(t, string(said), mock.DefaultText)

				turns := f.mock.Log().Requests
				require.Len(t, turns, 2, "%s", said)
				require.False(t, bytes.Contains(turns[0].Body, []byte(printed)))
				require.True(t, bytes.Contains(turns[1].Body, []byte(printed)), "what the tool said")
				require.True(t, strings.Contains(turns[0].Path, "/messages") == (model == "claude"), turns[0].Path)
				var sent struct{ Stream bool }
				require.NoError(t, json.Unmarshal(turns[0].Body, &sent))
				require.True(t, sent.Stream)
			})
		}
	}
	f.requireBooksBalance()
}

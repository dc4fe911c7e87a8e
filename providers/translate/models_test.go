package translate_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/providers"
)

// member returns the JSON of a member of a request, "" where it is absent.
func member(t *testing.T, request string, path ...string) string {
	t.Helper()
	data := json.RawMessage(request)
	for _, name := range path {
		var members map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(data, &members))
		if data = members[name]; data == nil {
			return ""
		}
	}
	return string(data)
}

func params(warnings []providers.Warning) (names []string) {
	for _, w := range warnings {
		names = append(names, w.Param)
	}
	return names
}

func TestClaude_ThinksByItsGeneration(t *testing.T) {
	t.Parallel()
	tr := between(t, chat, messages)
	for _, c := range []struct{ model, effort, thinking, config string }{
		{"claude-3-5-haiku-20241022", "high", "", ""},
		{"claude-3-7-sonnet-20250219", "low", `{"type":"enabled","budget_tokens":2048}`, ""},
		{"claude-opus-4-20250514", "high", `{"type":"enabled","budget_tokens":16384}`, ""},
		{"us.anthropic.claude-sonnet-4-5-20250929-v1:0", "minimal", `{"type":"enabled","budget_tokens":1024}`, ""},
		{"anthropic/claude-sonnet-4.6", "medium", `{"type":"adaptive"}`, `{"effort":"medium"}`},
		{"claude-opus-4-6", "xhigh", `{"type":"adaptive"}`, `{"effort":"high"}`},
		{"claude-opus-4-7", "xhigh", `{"type":"adaptive","display":"summarized"}`, `{"effort":"xhigh"}`},
		{"claude-opus-5", "max", `{"type":"adaptive","display":"summarized"}`, `{"effort":"max"}`},
		{"kimi-k2-thinking", "medium", `{"type":"enabled","budget_tokens":8192}`, ""},
		{"claude-opus-4-7", "none", "", ""},
	} {
		out, _ := translated(t, tr, fmt.Sprintf(`{"model":"m","reasoning_effort":%q,"messages":[{"role":"user","content":"Hi"}]}`, c.effort), c.model)
		require.Equal(t, c.thinking, member(t, out, "thinking"), c.model)
		require.Equal(t, c.config, member(t, out, "output_config"), c.model)
	}
	for body, why := range map[string]string{
		`"max_tokens":1200`: "no room",
		`"tools":[{"type":"function","function":{"name":"a"}}],"tool_choice":"required"`: "a tool must be called",
	} {
		out, warnings := translated(t, tr, `{"model":"m","reasoning_effort":"high",`+body+`,"messages":[{"role":"user","content":"Hi"}]}`, "claude-sonnet-4-5")
		require.Empty(t, member(t, out, "thinking"), why)
		require.Contains(t, params(warnings), "reasoning_effort", why)
	}
	require.Equal(t, "reasoning_effort", refused(t, tr, `{"model":"m","reasoning_effort":"huge","messages":[{"role":"user","content":"Hi"}]}`).Param)
	out, warnings := translated(t, tr, `{"model":"m","max_tokens":9000,"thinking":{"type":"enabled","budget_tokens":2000,"new":1},"reasoning_effort":"low","messages":[{"role":"user","content":"Hi"}]}`, "claude-sonnet-4-5")
	require.Equal(t, `{"type":"enabled","budget_tokens":2000,"new":1}`, member(t, out, "thinking"), "what is Anthropic's own goes on")
	require.Equal(t, []string{"reasoning_effort"}, params(warnings))
}

func TestClaude_SamplesByItsGeneration(t *testing.T) {
	t.Parallel()
	tr := between(t, chat, messages)
	for _, c := range []struct{ model, given, temperature, topP, topK, warned string }{
		{"claude-3-haiku-20240307", `"temperature":0.5,"top_p":0.9,"top_k":4`, "0.5", "0.9", "4", ""},
		{"claude-3-haiku-20240307", `"temperature":2`, "1", "", "", "temperature"},
		{"claude-sonnet-4-5", `"temperature":0.50,"top_p":0.9`, "0.50", "", "", "top_p"},
		{"claude-sonnet-4-5", `"top_p":0.9`, "", "0.9", "", ""},
		{"claude-opus-4-7", `"temperature":0,"top_p":0.9,"top_k":1`, "", "", "", "temperature top_p top_k"},
		{"claude-opus-4-7", `"temperature":1,"top_p":1`, "", "", "", ""},
		{"claude-sonnet-4-5", `"temperature":0,"reasoning_effort":"low"`, "", "", "", "temperature"},
	} {
		out, warnings := translated(t, tr, `{"model":"m","max_tokens":9000,`+c.given+`,"messages":[{"role":"user","content":"Hi"}]}`, c.model)
		require.Equal(t, []string{c.temperature, c.topP, c.topK}, []string{member(t, out, "temperature"), member(t, out, "top_p"), member(t, out, "top_k")}, c.model)
		require.Equal(t, c.warned, strings.Join(params(warnings), " "), c.model)
	}
}

func TestChatTargets_GetWhatTheirModelsTake(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		model        string
		own, reasons bool
	}{
		{"gpt-4o", true, false},
		{"gpt-4.1-mini", true, false},
		{"chatgpt-4o-latest", true, false},
		{"o3-mini", true, true},
		{"gpt-5.1-codex", true, true},
		{"openai/gpt-5", true, true},
		{"gpt-10", true, true},
		{"openai/gpt-oss-120b", false, true},
		{"qwen3-coder", false, false},
		{"olmo-3", false, false},
	} {
		limit, effort := "max_tokens", ""
		if c.own {
			limit = "max_completion_tokens"
		}
		if c.reasons {
			effort = `"high"`
		}
		out, warnings := translated(t, between(t, messages, chat),
			`{"model":"m","max_tokens":50000,"thinking":{"type":"enabled","budget_tokens":20000},"messages":[{"role":"user","content":"Hi"}]}`, c.model)
		require.Equal(t, "50000", member(t, out, limit), c.model)
		require.Equal(t, effort, member(t, out, "reasoning_effort"), c.model)
		require.Equal(t, c.reasons, len(warnings) == 0, c.model)
		out, _ = translated(t, between(t, responded, chat), `{"model":"m","max_output_tokens":50000,"reasoning":{"effort":"high"},"prompt_cache_key":"k","input":"Hi"}`, c.model)
		require.Equal(t, "50000", member(t, out, limit), c.model)
		require.Equal(t, effort, member(t, out, "reasoning_effort"), c.model)
		require.Equal(t, c.own, member(t, out, "prompt_cache_key") != "", c.model)
	}
}

func TestGemini_ThinksByItsGeneration(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ model, effort, want string }{
		{"gemini-2.5-flash", "none", `{"thinkingBudget":0}`},
		{"gemini-2.5-pro", "low", `{"thinkingBudget":1024,"includeThoughts":true}`},
		{"gemini-3-pro-preview", "minimal", `{"thinkingLevel":"low","includeThoughts":true}`},
		{"gemini-3-pro-preview", "medium", `{"thinkingLevel":"high","includeThoughts":true}`},
		{"gemini-3.5-flash", "medium", `{"thinkingLevel":"medium","includeThoughts":true}`},
		{"gemini-3.5-flash", "xhigh", `{"thinkingLevel":"high","includeThoughts":true}`},
	} {
		out, _ := translated(t, between(t, chat, gemini), fmt.Sprintf(`{"model":"m","reasoning_effort":%q,"messages":[{"role":"user","content":"Hi"}]}`, c.effort), c.model)
		require.Equal(t, c.want, member(t, out, "generationConfig", "thinkingConfig"), c.model)
	}
}

package translate_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestF127_StopReasonsOfConverse(t *testing.T) {
	t.Parallel()
	const text, tool = `{"text":"a"}`, `{"toolUse":{"toolUseId":"c","name":"n","input":{}}}`
	streams := map[string]string{
		text: "event: contentBlockDelta\ndata: {\"contentBlockIndex\":0,\"delta\":{\"text\":\"a\"}}\n\n",
		tool: "event: contentBlockStart\ndata: {\"contentBlockIndex\":0,\"start\":{\"toolUse\":{\"toolUseId\":\"c\",\"name\":\"n\"}}}\n\n",
	}
	for _, c := range []struct{ reason, content, claude, openAI string }{
		{"end_turn", text, "end_turn", "stop"},
		{"end_turn", tool, "tool_use", "tool_calls"},
		{"tool_use", tool, "tool_use", "tool_calls"},
		{"max_tokens", text, "max_tokens", "length"},
		{"max_tokens", tool, "max_tokens", "length"},
		{"model_context_window_exceeded", text, "model_context_window_exceeded", "length"},
		{"stop_sequence", text, "stop_sequence", "stop"},
		{"guardrail_intervened", text, "refusal", "content_filter"},
		{"content_filtered", text, "refusal", "content_filter"},
		{"malformed_model_output", text, "end_turn", "stop"},
		{"malformed_tool_use", tool, "end_turn", "stop"},
		{"brand_new", text, "end_turn", "stop"},
	} {
		whole := fmt.Sprintf(`{"output":{"message":{"role":"assistant","content":[%s]}},"stopReason":%q,"usage":{"inputTokens":1,"outputTokens":1}}`, c.content, c.reason)
		stream := "event: messageStart\ndata: {\"role\":\"assistant\"}\n\n" + streams[c.content] +
			"event: contentBlockStop\ndata: {\"contentBlockIndex\":0}\n\n" + fmt.Sprintf("event: messageStop\ndata: {\"stopReason\":%q}\n\n", c.reason)
		for from, want := range map[string]string{
			string(messages): fmt.Sprintf(`"stop_reason":%q`, c.claude), string(chat): fmt.Sprintf(`"finish_reason":%q`, c.openAI),
		} {
			tr := between(t, messages, converse)
			client := clientOf(messages)
			if from == string(chat) {
				tr, client = between(t, chat, converse), clientOf(chat)
			}
			body, err := tr.NewAnswer(parse(t, client)).Body([]byte(whole))
			require.NoError(t, err)
			for _, out := range []string{string(body), streamed(t, tr, client, stream)} {
				require.Contains(t, out, want, c.reason)
				require.Contains(t, out, fmt.Sprintf(`"native_finish_reason":%q`, c.reason))
			}
		}
	}
}

// What is one maker's own goes to its models, and to those whose names do not tell; others are spared a refusal.
func TestConverse_WhatAModelTakesIsReadFromItsName(t *testing.T) {
	t.Parallel()
	const request = `{"model":"m","max_tokens":9,"top_k":5,"stop_sequences":["a"],"thinking":{"type":"enabled","budget_tokens":2000},
		"tools":[{"name":"a"}],"tool_choice":{"type":"auto","disable_parallel_tool_use":true},
		"messages":[{"role":"user","content":[{"type":"text","text":"Hi","cache_control":{"type":"ephemeral"}}]}]}`
	tr := between(t, messages, converse)
	for _, c := range []struct {
		model                          string
		cached, own, one, asksWhatStop bool
	}{
		{"anthropic.claude-sonnet-4-5-20250929-v1:0", true, true, true, true},
		{"us.anthropic.claude-3-7-sonnet-20250219-v1:0", true, true, false, true},
		{"arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-opus-4-6-v1", true, true, true, true},
		{"arn:aws:bedrock:us-east-1:1:application-inference-profile/ab12cd34", true, true, false, false},
		{"us.amazon.nova-pro-v1:0", true, false, false, false},
		{"meta.llama3-3-70b-instruct-v1:0", false, false, false, false},
		{"openai.gpt-oss-120b-1:0", false, false, false, false},
	} {
		out, warnings := translated(t, tr, request, c.model)
		require.Equal(t, c.cached, strings.Contains(out, "cachePoint"), c.model)
		require.Equal(t, c.own, member(t, out, "additionalModelRequestFields", "thinking") != "", c.model)
		require.Equal(t, c.own, member(t, out, "additionalModelRequestFields", "top_k") == "5", c.model)
		require.Equal(t, c.one, member(t, out, "additionalModelRequestFields", "tool_choice") != "", c.model)
		require.Equal(t, c.one, member(t, out, "toolConfig", "toolChoice") == "", c.model)
		require.Equal(t, c.asksWhatStop, member(t, out, "additionalModelResponseFieldPaths") != "", c.model)
		require.Equal(t, c.cached && c.own && c.one, len(warnings) == 0, c.model)
	}
}

// Bedrock refuses what has no name, two documents of one name, and ids beyond 64 characters.
func TestConverse_NamesAndIDsFit(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 100)
	out, _ := translated(t, between(t, messages, converse), `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[
		{"type":"document","title":"../Bericht  (Entwurf)_7.pdf","source":{"type":"text","data":"a"}},{"type":"document","title":"狐","source":{"type":"text","data":"b"}},
		{"type":"document","source":{"type":"text","data":"c"}},{"type":"document","title":"`+strings.Repeat("y", 300)+`","source":{"type":"text","data":"d"}}]},
		{"role":"assistant","content":[{"type":"tool_use","id":"`+long+`","name":"n"}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"`+long+`"}]}]}`, "amazon.nova-lite-v1:0")
	for _, want := range []string{`"name":"Bericht (Entwurf) 7 pdf"`, `"name":"document"`, `"name":"document-2"`, `"name":"` + strings.Repeat("y", 180) + `"`} {
		require.Contains(t, out, want)
	}
	require.Equal(t, 2, strings.Count(out, `"toolUseId":"`+long[:64]+`"`), "a result still names its call")
	require.Contains(t, out, `"content":[]`)
}

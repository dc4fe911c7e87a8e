package guardrail

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
)

// An answer that says its text a second time, in a form that is not judged, is not asked for.
func TestF224_WhatRepeatsATextUnreadIsRefused(t *testing.T) {
	t.Parallel()
	rule := governance.GuardrailRule{Type: governance.RuleKeywords, Words: []string{"bluebird"}}
	for _, c := range []struct{ route, body, param string }{
		{governance.RouteChat, `{"model":"m","messages":[],"logprobs":true}`, "logprobs"},
		{governance.RouteChat, `{"model":"m","messages":[],"logprobs":false}`, ""},
		{governance.RouteChat, `{"model":"m","messages":[],"logprobs":null}`, ""},
		{governance.RouteCompletions, `{"model":"m","prompt":"p","logprobs":0}`, "logprobs"},
		{governance.RouteResponses, `{"model":"m","input":"i","top_logprobs":2}`, "top_logprobs"},
		{governance.RouteResponses, `{"model":"m","input":"i","include":["message.output_text.log\u0070robs"]}`, "include"},
		{governance.RouteResponses, `{"model":"m","input":"i","include":["reasoning.encrypted_content"]}`, ""},
		{governance.RouteChat, `{"model":"m","messages":[],"modalities":["text","audio"],"audio":{"voice":"alloy","format":"wav"}}`, "audio"},
	} {
		p := newPlugin(t)
		blocking, logging := guards(governance.ActionMask, rule), guards(governance.ActionLog, rule)
		asked := call(t, c.route, c.body, blocking)
		demand, err := governance.DemandOf(c.route, asked.Body)
		require.NoError(t, err)
		asked.Demand = demand
		v := guard(t, p, asked)
		if c.param == "" {
			require.Nil(t, v.Deny, c.body)
		} else {
			require.NotNil(t, v.Deny, c.body)
			require.Equal(t, []string{string(governance.CodePluginUnsupported), c.param}, []string{string(v.Deny.Code), v.Deny.Param}, c.body)
		}
		asked = call(t, c.route, c.body, logging)
		asked.Demand = demand
		require.Nil(t, guard(t, p, asked).Deny, "who only counts refuses nothing")
		blocking[0].Stage = governance.StageRequest
		asked = call(t, c.route, c.body, blocking)
		asked.Demand = demand
		require.Nil(t, guard(t, p, asked).Deny, "the answer is nobody's business")
	}
}

// A number that a tool is given is a text too, and what nobody found keeps its bytes.
func TestNumbersInToolInputsAreTexts(t *testing.T) {
	t.Parallel()
	s := newPlugin(t)
	rule := governance.GuardrailRule{Type: governance.RulePII, Kinds: []string{"credit_card"}}
	j := s.GuardAnswer(call(t, governance.RouteMessages, `{}`, guards(governance.ActionMask, rule)))
	v, err := j.Whole(t.Context(), []byte(`{"content":[{"type":"tool_use","id":"t","name":"pay","input":{"card":4111111111111111,"amount":1.50, "note":"f\u00fcr 4111 1111 1111 1111","cc":"\u0061"}}],"usage":{"output_tokens":4111111111111111}}`))
	require.NoError(t, err)
	require.Equal(t, `{"content":[{"type":"tool_use","id":"t","name":"pay","input":{"card":"[masked]","amount":1.50, "note":"für [masked]","cc":"\u0061"}}],"usage":{"output_tokens":4111111111111111}}`, string(v.Body))
}

// TestPromptsOfTokensAreRefused where a guardrail would have to read them.
func TestPromptsOfTokensAreRefused(t *testing.T) {
	t.Parallel()
	for body, route := range map[string]string{
		`{"prompt":[1,2,3]}`: governance.RouteCompletions, `{"prompt":["hi",[1]]}`: governance.RouteCompletions,
		`{"input":[[1,2],[3]]}`: governance.RouteEmbeddings, `{"input":[7]}`: governance.RouteEmbeddings,
	} {
		deny := guard(t, newPlugin(t), call(t, route, body, guards(governance.ActionMask, words("secret")))).Deny
		require.NotNil(t, deny, body)
		require.Equal(t, governance.CodePluginUnsupported, deny.Code)
		require.NotEmpty(t, deny.Param)
		require.Nil(t, guard(t, newPlugin(t), call(t, route, body, guards(governance.ActionLog, words("secret")))).Deny)
		require.Nil(t, guard(t, newPlugin(t), call(t, route, body, guards(governance.ActionBlock, governance.GuardrailRule{Type: governance.RuleMaxTokens, Tokens: 5}))).Deny)
	}
	for body, route := range map[string]string{
		`{"prompt":["hi"]}`: governance.RouteCompletions, `{"prompt":null}`: governance.RouteCompletions, `{"input":"hi"}`: governance.RouteEmbeddings, `{"input":[]}`: governance.RouteEmbeddings,
	} {
		require.Nil(t, guard(t, newPlugin(t), call(t, route, body, guards(governance.ActionMask, words("secret")))).Deny, body)
	}
}

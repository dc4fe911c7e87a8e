package translate_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
	"github.com/tollgate-gateway/tollgate/providers/translate"
)

const (
	chat      = providers.OpenAIChat
	messages  = providers.AnthropicMessages
	responded = providers.OpenAIResponses
	gemini    = providers.GeminiGenerate
	converse  = providers.BedrockConverse
)

func dataOf(frames ...string) string {
	var b strings.Builder
	for _, f := range frames {
		data(&b, "%s", strings.ReplaceAll(f, "%", "%%"))
	}
	return b.String()
}

const (
	chunkHead = `{"id":"c1","object":"chat.completion.chunk","created":1,"model":"up","choices":[{"index":0,`
	chunkText = chunkHead + `"delta":{"content":"Hi"},"finish_reason":null}]}`
	chunkStop = chunkHead + `"delta":{},"finish_reason":"stop"}]}`

	messageStart = `{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"up","content":[],"usage":{"input_tokens":3,"output_tokens":1}}}`
	blockStart   = `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`
	blockDelta   = `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}`
	blockStop    = `{"type":"content_block_stop","index":0}`
	messageDelta = `{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":9}}`
	messageStop  = `{"type":"message_stop"}`
)

func TestF070_UsageIsNeverInvented(t *testing.T) {
	t.Parallel()
	combined := chunkHead + `"delta":{"content":"Hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}`
	for _, from := range []providers.Dialect{messages, responded} {
		tr := between(t, from, chat)
		got := readStream(t, from, streamed(t, tr, clientOf(from), dataOf(combined, "[DONE]")))
		require.Equal(t, "Hi", got.Text)
		require.Equal(t, []int64{3, 1}, []int64{got.In, got.Out})
	}
	out := streamed(t, between(t, responded, chat), clientOf(responded), dataOf(chunkText, chunkStop, "[DONE]"))
	require.Contains(t, out, `"usage":null,"user"`)
	out = streamed(t, between(t, chat, responded), clientOf(chat), dataOf(
		`{"type":"response.created","response":{"id":"r","object":"response","created_at":1,"model":"up"}}`,
		`{"type":"response.completed","response":{"id":"r","object":"response","created_at":1,"model":"up","status":"completed"}}`))
	require.NotContains(t, out, "prompt_tokens")
	require.Equal(t, "stop", readStream(t, chat, out).Finish)
}

func TestF079_GiantEventsCross(t *testing.T) {
	t.Parallel()
	giant := strings.Repeat("iVBORw0K", 1_100_000/8)
	for _, tr := range translate.All(clock) {
		s := said{text: []string{giant}, finish: "stop"}
		out := streamed(t, tr, clientOf(tr.From()), s.in(tr.To()))
		require.True(t, strings.Contains(out, giant), folder(tr))
	}
}

func TestF083_F089_AnIncompleteAnswerNeverLooksWhole(t *testing.T) {
	t.Parallel()
	for _, tr := range translate.All(clock) {
		s := said{text: []string{"one", "two"}, calls: []saidCall{{id: "c", name: "n", pieces: []string{`{\"a\":`, `1}`}}}, order: []int{0, 0}, finish: "tool_calls"}
		all := events(t, s.in(tr.To()))
		ends := 1
		switch tr.To() { // a clean end behind the finish reason is whole
		case chat:
			ends = 3 // with or without usage and [DONE]
		case converse:
			ends = 2 // with or without usage
		}
		for n := range len(all) - ends + 1 {
			answer := tr.NewAnswer(parse(t, clientOf(tr.From())))
			var out bytes.Buffer
			for _, ev := range all[:n] {
				require.NoError(t, answer.Event(&out, ev))
			}
			before := out.Len()
			require.Error(t, answer.End(&out), "%s after %d events", folder(tr), n)
			require.Equal(t, before, out.Len(), "nothing is written at such an end")
			for _, terminal := range []string{"[DONE]", "message_stop", "response.completed", "response.incomplete"} {
				require.NotContains(t, out.String(), terminal)
			}
		}
	}
}

func TestF091_OddFramesOfCompatibleUpstreams(t *testing.T) {
	t.Parallel()
	odd := dataOf(
		`{"choices":[],"created":0,"id":"","model":"","object":"","prompt_filter_results":[{}]}`,
		chunkText, `{"id":"c1","choices":[]}`, `{"id":"c1","choices":null}`, `{"id":"c1","choices":{}}`, `{"id":"c1"}`, `null`, ``,
		chunkHead+`"delta":null,"finish_reason":null}]}`, chunkHead+`"finish_reason":null}]}`,
		chunkHead+`"delta":{"content":null,"tool_calls":null,"role":null},"finish_reason":""}]}`, chunkStop, "[DONE]",
	)
	for _, from := range []providers.Dialect{messages, responded} {
		got := readStream(t, from, streamed(t, between(t, from, chat), clientOf(from), odd))
		require.Equal(t, "Hi", got.Text)
		require.Equal(t, finishIn(from, "stop"), got.Finish)
	}
}

func TestF091_AStreamThatIsDoneNeedsNoReason(t *testing.T) {
	t.Parallel()
	for _, from := range []providers.Dialect{messages, responded} {
		got := readStream(t, from, streamed(t, between(t, from, chat), clientOf(from), dataOf(chunkText, "[DONE]")))
		require.Equal(t, "Hi", got.Text)
		require.Equal(t, finishIn(from, "stop"), got.Finish)
		require.Error(t, between(t, from, chat).NewAnswer(parse(t, clientOf(from))).Event(io.Discard, events(t, dataOf("[DONE]"))[0]), "nothing came")
	}
}

func TestF092_CumulativeUsageCountsOnce(t *testing.T) {
	t.Parallel()
	var frames []string
	for n := 1; n <= 5; n++ {
		frames = append(frames, fmt.Sprintf(chunkHead+`"delta":{"content":"x"},"finish_reason":null}],"usage":{"prompt_tokens":3,"completion_tokens":%d}}`, n))
	}
	frames = append(frames, chunkStop, "[DONE]")
	for _, from := range []providers.Dialect{messages, responded} {
		got := readStream(t, from, streamed(t, between(t, from, chat), clientOf(from), dataOf(frames...)))
		require.Equal(t, []int64{3, 5}, []int64{got.In, got.Out})
	}
	for _, client := range []string{messageDelta, strings.Replace(messageDelta, `{"output_tokens":9}`, `{"input_tokens":null,"output_tokens":9}`, 1)} {
		got := readStream(t, chat, streamed(t, between(t, chat, messages), clientOf(chat),
			dataOf(messageStart, strings.Replace(messageDelta, "9", "4", 1), client, messageStop)))
		require.Equal(t, []int64{3, 9}, []int64{got.In, got.Out}, "the usage of message_start stands until another is told")
	}
}

func TestF094_UsageFramesGoToThoseWhoAsk(t *testing.T) {
	t.Parallel()
	upstream := dataOf(messageStart, blockStart, blockDelta, blockStop, messageDelta, messageStop)
	tr := between(t, chat, messages)
	silent := strings.Replace(clientOf(chat), `"include_usage":true`, `"include_usage":false`, 1)
	require.NotContains(t, streamed(t, tr, silent, upstream), "usage")
	require.Contains(t, streamed(t, tr, clientOf(chat), upstream), `"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":9,"total_tokens":12`)
}

func TestF100_F119_NothingIsDroppedSilently(t *testing.T) {
	t.Parallel()
	request := `{"model":"m","max_tokens":9,"logit_bias":{"1":-100},"messages":[{"role":"user","content":"Hi"}]%s}`
	_, warnings := translated(t, between(t, chat, messages), fmt.Sprintf(request, ""), "claude-sonnet-4-5")
	require.Equal(t, []providers.Warning{{Param: "logit_bias", Reason: "the target has no such parameter"}}, warnings)
	require.Equal(t, "response_format", refused(t, between(t, chat, messages), fmt.Sprintf(request, `,"response_format":{"type":"json_object"}`)).Param)

	tools := `,"tools":[{"type":"function","function":{"name":"a"}}]`
	for given, want := range map[string]string{"": "", `,"parallel_tool_calls":true`: "", `,"parallel_tool_calls":false`: `"tool_choice":{"type":"auto","disable_parallel_tool_use":true}`} {
		out, _ := translated(t, between(t, chat, messages), fmt.Sprintf(request, tools+given), "claude-sonnet-4-5")
		require.Contains(t, out, want)
		require.Equal(t, want != "", strings.Contains(out, "tool_choice"))
		out, _ = translated(t, between(t, chat, responded), fmt.Sprintf(request, tools+given), "gpt-5")
		require.Contains(t, out, given)
	}
}

// Every member of a request, at any depth, is translated, warned about or refused: a name that nobody knows is warned about.
func TestF100_UnknownMembersAreNamedAtAnyDepth(t *testing.T) {
	t.Parallel()
	for from, request := range map[providers.Dialect]string{
		chat: `{"model":"m","max_tokens":9,"x00":1,"response_format":{"type":"json_schema","x01":1,"json_schema":{"name":"n","schema":{},"x02":1}},
			"tools":[{"type":"function","x03":1,"function":{"name":"a","x04":1}}],"tool_choice":{"type":"function","x05":1,"function":{"name":"a","x06":1}},
			"messages":[{"role":"user","x07":1,"content":[{"type":"text","text":"Hi","x08":1},{"type":"image_url","image_url":{"url":"https://a/a.png","x09":1}},
			{"type":"file","file":{"file_data":"data:application/pdf;base64,","x10":1}}]},
			{"role":"assistant","content":"a","tool_calls":[{"id":"c","x11":1,"type":"function","function":{"name":"a","arguments":"{}","x12":1}}]}]}`,
		messages: `{"model":"m","max_tokens":9,"x00":1,"metadata":{"x01":1},"thinking":{"type":"disabled","x02":1},"tool_choice":{"type":"auto","x03":1},
			"output_config":{"x04":1,"format":{"type":"json_schema","schema":{},"x05":1}},"tools":[{"name":"a","x06":1}],
			"messages":[{"role":"user","x07":1,"content":[{"type":"image","x08":1,"source":{"type":"url","url":"https://a","x09":1}}]},
			{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"a","input":{"x":1},"x10":1}]},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","x11":1,"content":[{"type":"text","text":"a","x12":1}]}]}],"system":[{"type":"text","text":"a","x13":1}]}`,
		responded: `{"model":"m","x00":1,"text":{"x01":1,"format":{"type":"json_schema","schema":{},"x02":1}},"reasoning":{"x03":1},
			"tools":[{"type":"function","name":"a","x04":1},{"type":"custom","name":"b","format":{"type":"text","x05":1}}],"tool_choice":{"type":"function","name":"a","x06":1},
			"input":[{"role":"user","x07":1,"content":[{"type":"input_text","text":"Hi","x08":1}]},
			{"type":"function_call","call_id":"c","name":"a","arguments":"{}","x09":1},{"type":"function_call_output","call_id":"c","output":[{"type":"input_text","text":"a","x10":1}],"x11":1}]}`,
	} {
		for _, tr := range translate.All(clock) {
			if tr.From() != from {
				continue
			}
			request := request
			if tr.To() == converse { // takes no images by URL, and thinking as it is
				request = strings.NewReplacer(`"url":"https://a/a.png"`, `"url":"data:image/png;base64,"`,
					`"type":"url","url":"https://a"`, `"type":"base64","media_type":"image/png","data":""`, `"disabled","x02":1`, `"disabled"`).Replace(request)
			}
			_, warnings := translated(t, tr, request, model(tr))
			named := fmt.Sprint(warnings)
			for n := range 14 {
				member := fmt.Sprintf("x%02d", n)
				require.Equal(t, strings.Contains(request, `"`+member+`"`), strings.Contains(named, member+" "), "%s: %s in %s", folder(tr), member, named)
			}
		}
	}
}

func TestF103_F104_F118_NumbersTextsAndOrderCross(t *testing.T) {
	t.Parallel()
	schema := `{"zeta":{"const":9007199254740993},"alpha":[1E+2,0.123000000000000005123,1.0,-0],"<&>":"\u2028\/","alpha":1}`
	input := `{"z":9223372036854775807,"a":1E+2,"s":"\ud83d","z":0}`
	quoted, err := json.Marshal(input)
	require.NoError(t, err)
	for from, request := range map[providers.Dialect]string{
		chat: `{"model":"m","max_tokens":0,"temperature":0,"messages":[{"role":"user","content":"\ud83d <b>&"},
			{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"a","arguments":` + string(quoted) + `}}]}],
			"tools":[{"type":"function","function":{"name":"a","parameters":` + schema + `}}]}`,
		messages: `{"model":"m","max_tokens":0,"temperature":0,"messages":[{"role":"user","content":"\ud83d <b>&"},
			{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"a","input":` + input + `}]}],"tools":[{"name":"a","input_schema":` + schema + `}]}`,
		responded: `{"model":"m","max_output_tokens":0,"temperature":0,"input":[{"role":"user","content":"\ud83d <b>&"},
			{"type":"function_call","call_id":"c","name":"a","arguments":` + string(quoted) + `}],"tools":[{"type":"function","name":"a","parameters":` + schema + `}]}`,
	} {
		for _, tr := range translate.All(clock) {
			if tr.From() != from {
				continue
			}
			out, _ := translated(t, tr, request, model(tr))
			require.Contains(t, out, schema)
			require.Contains(t, out, `"\ud83d <b>&"`)
			require.Contains(t, out, `"temperature":0`)
			require.Regexp(t, `"(max_(completion_|output_)?tokens|maxOutputTokens|maxTokens)":0`, out)
			switch tr.To() {
			case messages, converse:
				require.Contains(t, out, `"input":`+input)
			case gemini:
				require.Contains(t, out, `"args":`+input)
			default:
				require.Contains(t, out, string(quoted))
			}
			again, _ := translated(t, tr, request, model(tr))
			require.Equal(t, out, again, "the same body twice is the same prefix twice")
		}
	}
}

func TestF104_NumbersInAnswersCross(t *testing.T) {
	t.Parallel()
	body, err := between(t, chat, messages).NewAnswer(parse(t, clientOf(chat))).Body([]byte(`{"id":"m","type":"message","role":"assistant","model":"up",` +
		`"content":[{"type":"tool_use","id":"t","name":"a","input":{"z": 9223372036854775807,"a":1E+2}}],"stop_reason":"tool_use","usage":{"input_tokens":1,"output_tokens":1}}`))
	require.NoError(t, err)
	require.Contains(t, string(body), `"arguments":"{\"z\": 9223372036854775807,\"a\":1E+2}"`)
	body, err = between(t, messages, chat).NewAnswer(parse(t, clientOf(messages))).Body([]byte(`{"id":"c","model":"up","choices":[{"index":0,"message":` +
		`{"role":"assistant","tool_calls":[{"id":"t","type":"function","function":{"name":"a","arguments":"{\"z\":9223372036854775807,\"a\":1E+2}"}}]},"finish_reason":"tool_calls"}]}`))
	require.NoError(t, err)
	require.Contains(t, string(body), `"input":{"z":9223372036854775807,"a":1E+2}`)
}

func TestF110_StatefulMembersAreRefusedByName(t *testing.T) {
	t.Parallel()
	for _, to := range []providers.Dialect{chat, messages, gemini, converse} {
		for _, member := range []string{`"previous_response_id":"resp_1"`, `"conversation":"conv_1"`, `"conversation":{"id":"conv_1"}`, `"prompt":{"id":"pmpt_1"}`, `"background":true`} {
			name := strings.Trim(member[:strings.IndexByte(member, ':')], `"`)
			require.Equal(t, name, refused(t, between(t, responded, to), `{"model":"m","input":"Hi",`+member+`}`).Param)
		}
	}
}

// TestF122_ThoughtsKeepTheirPlaces between the calls of tools: Claude's API refuses a message in which they stand elsewhere.
func TestF122_ThoughtsKeepTheirPlaces(t *testing.T) {
	t.Parallel()
	detail := func(index int, text string) string {
		return fmt.Sprintf(`{"type":"reasoning.text","text":%q,"signature":"c2ln","format":"anthropic-claude-v1","index":%d}`, text, index)
	}
	call := func(id string) string {
		return `{"id":"` + id + `","type":"function","function":{"name":"f","arguments":"{}"}}`
	}
	request := func(details string) string {
		return `{"model":"m","max_tokens":99,"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":null,"reasoning_details":[` + details +
			`],"tool_calls":[` + call("a") + "," + call("b") + `]},{"role":"tool","tool_call_id":"a","content":"1"},{"role":"tool","tool_call_id":"b","content":"2"}]}`
	}
	for details, want := range map[string]string{
		detail(0, "one") + "," + detail(2, "two"): "thinking tool_use thinking tool_use",
		detail(0, "one") + "," + detail(0, "two"): "thinking thinking tool_use tool_use", // a client that has lost the places
		detail(0, "one"): "thinking tool_use tool_use",
		detail(9, "one"): "tool_use tool_use thinking",
	} {
		out, _ := translated(t, between(t, chat, messages), request(details), "claude-x")
		var body struct {
			Messages []struct{ Content []struct{ Type string } }
		}
		require.NoError(t, json.Unmarshal([]byte(out), &body))
		var kinds []string
		for _, block := range body.Messages[1].Content {
			kinds = append(kinds, block.Type)
		}
		require.Equal(t, want, strings.Join(kinds, " "))
	}
}

// TestWhatTargetsRefuseIsNotSent: texts without a letter, a media type that only OpenAI knows, ids that carry a signature, and output limits
// below the least.
func TestWhatTargetsRefuseIsNotSent(t *testing.T) {
	t.Parallel()
	blankText := `{"model":"m","max_tokens":99,"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"\n\n","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},` +
		`{"role":"tool","tool_call_id":"a","content":"1"}]}`
	out, _ := translated(t, between(t, chat, messages), blankText, "claude-x")
	require.NotContains(t, out, `\n`)
	require.Contains(t, out, "tool_use")
	picture := `{"model":"m","max_tokens":99,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/JPG;base64,AAAA"}}]}]}`
	for _, to := range []providers.Dialect{messages, gemini} {
		out, _ = translated(t, between(t, chat, to), picture, "x")
		require.Contains(t, out, `"image/jpeg"`)
	}
	sealed := strings.ReplaceAll(blankText, `"a"`, `"call_1__extra__eyJnb29nbGUiOnt9fQ"`)
	out, _ = translated(t, between(t, chat, responded), sealed, "gpt-5")
	require.Equal(t, 2, strings.Count(out, `"call_id":"call_1"`), out)
	out, warnings := translated(t, between(t, messages, responded), `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"quota"}]}`, "gpt-5")
	require.Contains(t, out, `"max_output_tokens":16`)
	require.NotEmpty(t, warnings)
}

// TestThePlaceOfInferenceIsNotDropped: a law may want it.
func TestThePlaceOfInferenceIsNotDropped(t *testing.T) {
	t.Parallel()
	const body = `{"model":"m","max_tokens":99,"messages":[{"role":"user","content":"Hi"}],"inference_geo":`
	for _, to := range []providers.Dialect{chat, responded, gemini, converse} {
		for _, place := range []string{`"us"`, `"eu"`, "7"} {
			require.Equal(t, "inference_geo", refused(t, between(t, messages, to), body+place+"}").Param)
		}
		for _, place := range []string{`"global"`, "null"} {
			_, warnings := translated(t, between(t, messages, to), body+place+"}", "up")
			require.Empty(t, warnings)
		}
	}
}

func TestF113_SeveralChoices(t *testing.T) {
	t.Parallel()
	for _, to := range []providers.Dialect{messages, responded, gemini, converse} {
		require.Equal(t, "n", refused(t, between(t, chat, to), `{"model":"m","n":2,"messages":[{"role":"user","content":"Hi"}]}`).Param)
	}
	second := strings.Replace(strings.Replace(chunkText, `"index":0`, `"index":1`, 1), "Hi", "No", 1)
	for _, from := range []providers.Dialect{messages, responded} {
		got := readStream(t, from, streamed(t, between(t, from, chat), clientOf(from), dataOf(chunkText, second, chunkStop, "[DONE]")))
		require.Equal(t, "Hi", got.Text, "choices are never mixed")
	}
}

// Reasoning goes back to where it came from, in the member that it came in, and nowhere else.
func TestF116_F121_ReasoningGoesBackToItsOwnProvider(t *testing.T) {
	t.Parallel()
	for _, member := range []string{"reasoning_content", "reasoning"} {
		stream := dataOf(strings.Replace(chunkText, `"content"`, `"`+member+`"`, 1), chunkStop, "[DONE]")
		tr := between(t, messages, chat)
		var thinking pieces
		for _, ev := range events(t, streamed(t, tr, clientOf(messages), stream)) {
			thinking.add(t, ev.Data, "delta", "signature")
		}
		request := `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":[` +
			`{"type":"thinking","thinking":"H\u00e9\/","signature":"%s"},{"type":"text","text":"a"}]}]}`
		out, warnings := translated(t, tr, fmt.Sprintf(request, thinking.text(t)), "up")
		require.Contains(t, out, `"`+member+`":"H\u00e9\/"`)
		require.Empty(t, warnings)
		out, warnings = translated(t, tr, fmt.Sprintf(request, "EqQBCgIYAhIM"), "up")
		require.NotContains(t, out, "reasoning")
		require.Len(t, warnings, 1)
	}
	signed := `{"type":"reasoning.text","text":"H\u00e9\/","signature":"EqQB","format":"anthropic-claude-v1","index":0}`
	request := `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"a","reasoning_details":[%s]}]}`
	out, warnings := translated(t, between(t, chat, messages), fmt.Sprintf(request, signed), "claude-sonnet-4-5")
	require.Contains(t, out, `{"type":"thinking","thinking":"H\u00e9\/","signature":"EqQB"}`)
	require.Empty(t, warnings)
	out, warnings = translated(t, between(t, chat, messages), fmt.Sprintf(request, strings.Replace(signed, "anthropic-claude-v1", "openai-responses-v1", 1)), "claude-sonnet-4-5")
	require.NotContains(t, out, "thinking")
	require.Len(t, warnings, 1)
}

// Gemini's models want the signatures of their calls back, which dialects other than chat have no place for.
func TestF116_SignaturesOfCallsGoBack(t *testing.T) {
	t.Parallel()
	const extra = `{"google":{"thought_signature":"Cr\/4+A=="}}`
	stream := dataOf(chunkHead+`"delta":{"tool_calls":[{"index":0,"id":"call.1","type":"function","function":{"name":"a","arguments":"{}"},"extra_content":`+extra+`}]},"finish_reason":null}]}`,
		strings.Replace(chunkStop, "stop", "tool_calls", 1), "[DONE]")
	body := `{"id":"c1","object":"chat.completion","created":1,"model":"up","choices":[{"index":0,"message":{"role":"assistant","tool_calls":[{"id":"call.1",` +
		`"type":"function","function":{"name":"a","arguments":"{}"},"extra_content":` + extra + `}]},"finish_reason":"tool_calls"}]}`
	for from, request := range map[providers.Dialect]string{
		messages: `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":[{"type":"tool_use","id":%[1]q,"name":"a","input":{}}]},` +
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":%[1]q,"content":"ok"}]}]}`,
		responded: `{"model":"m","input":[{"role":"user","content":"Hi"},{"type":"function_call","call_id":%[1]q,"name":"a","arguments":"{}"},` +
			`{"type":"function_call_output","call_id":%[1]q,"output":"ok"}]}`,
	} {
		tr := between(t, from, chat)
		id := readStream(t, from, streamed(t, tr, clientOf(from), stream)).Calls[0].ID
		whole, err := tr.NewAnswer(parse(t, clientOf(from))).Body([]byte(body))
		require.NoError(t, err)
		require.Equal(t, id, readBody(t, from, string(whole)).Calls[0].ID)
		out, warnings := translated(t, tr, fmt.Sprintf(request, id), "gemini-3-pro")
		require.Empty(t, warnings)
		require.Contains(t, out, `"id":"call.1"`)
		require.Contains(t, out, `"extra_content":`+extra)
		require.Contains(t, out, `"tool_call_id":"call.1"`)
	}
}

func TestF122_F124_BlocksKeepTheirOrderAndTurnsAreMerged(t *testing.T) {
	t.Parallel()
	out, _ := translated(t, between(t, chat, messages), `{"model":"m","max_tokens":9,"messages":[
		{"role":"system","content":"S"},{"role":"user","content":"a"},{"role":"user","content":"b"},
		{"role":"assistant","content":"t","reasoning_details":[{"type":"reasoning.text","text":"1","signature":"s","format":"anthropic-claude-v1","index":0},
			{"type":"reasoning.encrypted","data":"2","format":"anthropic-claude-v1","index":1}],"tool_calls":[
			{"id":"c1","type":"function","function":{"name":"x","arguments":"{}"}},{"id":"c2","type":"function","function":{"name":"y","arguments":"{}"}},
			{"id":"c3","type":"function","function":{"name":"z","arguments":"{}"}}]},
		{"role":"tool","tool_call_id":"c1","content":"1"},{"role":"tool","tool_call_id":"c2","content":"2"},{"role":"tool","tool_call_id":"c3","content":"3"},
		{"role":"user","content":"c"}]}`, "claude-sonnet-4-5")
	var request struct {
		Messages []struct {
			Role    string
			Content []struct{ Type, ID, ToolUseID string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(strings.ReplaceAll(out, "tool_use_id", "ToolUseID")), &request))
	var shape []string
	for _, m := range request.Messages {
		for _, block := range m.Content {
			shape = append(shape, strings.TrimRight(m.Role+" "+block.Type+" "+block.ID+block.ToolUseID, " "))
		}
		shape = append(shape, "")
	}
	require.Equal(t, []string{
		"user text", "user text", "",
		"assistant thinking", "assistant redacted_thinking", "assistant text", "assistant tool_use c1", "assistant tool_use c2", "assistant tool_use c3", "",
		"user tool_result c1", "user tool_result c2", "user tool_result c3", "user text", "",
	}, shape)
}

func TestF127_FinishReasons(t *testing.T) {
	t.Parallel()
	body := `{"id":"m","type":"message","role":"assistant","model":"up","content":[],"stop_reason":%q,"usage":{"input_tokens":1,"output_tokens":1}}`
	for reason, want := range map[string]string{
		"end_turn": "stop", "stop_sequence": "stop", "pause_turn": "stop", "max_tokens": "length", "model_context_window_exceeded": "length",
		"tool_use": "tool_calls", "refusal": "content_filter", "brand_new": "stop",
	} {
		tr := between(t, chat, messages)
		whole, err := tr.NewAnswer(parse(t, clientOf(chat))).Body(fmt.Appendf(nil, body, reason))
		require.NoError(t, err)
		for _, out := range []string{string(whole), streamed(t, tr, clientOf(chat), dataOf(messageStart, strings.Replace(messageDelta, "end_turn", reason, 1), messageStop))} {
			require.Contains(t, out, fmt.Sprintf(`"finish_reason":%q,"native_finish_reason":%q`, want, reason))
		}
	}
	for _, c := range []struct{ message, reason, want string }{
		{`"content":"a"`, "stop", "end_turn"},
		{`"content":"a"`, "length", "max_tokens"},
		{`"content":"a"`, "content_filter", "refusal"},
		{`"refusal":"no"`, "stop", "refusal"},
		{`"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"a","arguments":"{}"}}]`, "tool_calls", "tool_use"},
		{`"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"a","arguments":"{}"}}]`, "stop", "tool_use"},
		{`"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"a","arguments":"{"}}]`, "length", "max_tokens"},
		{`"content":"a"`, "brand_new", "end_turn"},
	} {
		tr := between(t, messages, chat)
		whole, err := tr.NewAnswer(parse(t, clientOf(messages))).Body(fmt.Appendf(nil,
			`{"id":"c","model":"up","choices":[{"index":0,"message":{%s},"finish_reason":%q}]}`, c.message, c.reason))
		require.NoError(t, err)
		for _, out := range []string{string(whole), streamed(t, tr, clientOf(messages), dataOf(chunkHead+fmt.Sprintf(`"delta":{%s},"finish_reason":%q}]}`, c.message, c.reason), "[DONE]"))} {
			require.Contains(t, out, fmt.Sprintf(`"stop_reason":%q`, c.want))
			require.Contains(t, out, fmt.Sprintf(`"native_finish_reason":%q`, c.reason))
		}
	}
}

func TestF133_CacheMarkersStayWhereTheyAre(t *testing.T) {
	t.Parallel()
	const mark = `"cache_control":{"type":"ephemeral","ttl":"1h"}`
	out, warnings := translated(t, between(t, chat, messages), `{"model":"m","max_tokens":9,"messages":[
		{"role":"system","content":[{"type":"text","text":"a"},{"type":"text","text":"b",`+mark+`}]},{"role":"user","content":"c",`+mark+`}],
		"tools":[{"type":"function","function":{"name":"a"}},{"type":"function","function":{"name":"b"},`+mark+`}]}`, "claude-sonnet-4-5")
	require.Empty(t, warnings)
	for _, place := range []string{`{"type":"text","text":"b",` + mark, `{"type":"text","text":"c",` + mark, `{"name":"b","input_schema":{"type":"object","properties":{}},` + mark} {
		require.Contains(t, out, place)
	}
	require.Equal(t, 3, strings.Count(out, "cache_control"))
}

// Error bodies come in every shape: each keeps its words in each dialect.
func TestF082_F085_F128_F130_F134_ErrorsOfEveryShape(t *testing.T) {
	t.Parallel()
	shapes := []string{
		`{"error":{"message":"it broke","type":"invalid_request_error","param":"messages","code":"bad_thing"}}`,
		`{"error":{"message":"it broke","code":400}}`,
		`{"error":{"code":400,"message":"it broke","status":"INVALID_ARGUMENT","details":[{"@type":"t","reason":"API_KEY_INVALID"}]}}`,
		`{"error":"it broke"}`,
		`[{"error":{"code":400,"message":"it broke","status":"INVALID_ARGUMENT"}}]`,
		`{"type":"error","error":{"type":"invalid_request_error","message":"it broke"},"request_id":"r"}`,
		`{"type":"error","code":"x","message":"it broke","param":null,"sequence_number":3}`,
		`{"type":"response.failed","response":{"id":"r","status":"failed","error":{"code":"server_error","message":"it broke"}}}`,
		`{"object":"error","message":"it broke","type":"BadRequestError","param":null,"code":400}`,
		`{"detail":"it broke"}`,
		`{"detail":[{"loc":["body"],"msg":"it broke","type":"missing"}]}`,
		`it broke`,
	}
	for _, tr := range translate.All(clock) {
		for _, shape := range append(shapes, "<html><h1>502</h1></html>", "", "{", "null", `{"error":null}`, `{"error":{"message":""}}`) {
			body := tr.NewAnswer(parse(t, clientOf(tr.From()))).Error(400, []byte(shape))
			var failure struct {
				Type  string
				Error struct {
					Message, Type string
					Code          any
				}
			}
			require.NoError(t, json.Unmarshal(body, &failure), string(body))
			require.NotEmpty(t, failure.Error.Message, shape)
			if strings.Contains(shape, "it broke") {
				require.Equal(t, "it broke", failure.Error.Message, shape)
			}
			require.NotContains(t, failure.Error.Message, "<html>")
			if tr.From() == messages {
				require.Equal(t, []string{"error", "invalid_request_error"}, []string{failure.Type, failure.Error.Type})
			} else {
				require.NotEmpty(t, failure.Error.Type)
			}
		}
		first := tr.NewAnswer(parse(t, clientOf(tr.From()))).Error(400, []byte(shapes[0]))
		require.Contains(t, string(first), `"bad_thing"`, "the code stays")
	}
}

func TestF130_AgentsAreToldThatTheContextOverflowed(t *testing.T) {
	t.Parallel()
	upstream := `{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 208310 tokens > 200000 maximum"}}`
	body := between(t, chat, messages).NewAnswer(parse(t, clientOf(chat))).Error(400, []byte(upstream))
	require.Contains(t, string(body), `"code":"context_length_exceeded"`)
	upstream = `{"error":{"message":"This model's maximum context length is 8192 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`
	body = between(t, messages, chat).NewAnswer(parse(t, clientOf(messages))).Error(400, []byte(upstream))
	require.Contains(t, string(body), `"message":"prompt is too long: This model's maximum context length is 8192 tokens."`)
	body = between(t, responded, chat).NewAnswer(parse(t, clientOf(responded))).Error(400, []byte(upstream))
	require.Contains(t, string(body), `"code":"context_length_exceeded"`)
}

func TestError_WithinAStreamOfResponses(t *testing.T) {
	t.Parallel()
	answer := between(t, responded, chat).NewAnswer(parse(t, clientOf(responded)))
	var out bytes.Buffer
	require.NoError(t, answer.Event(&out, sse.Event{Data: []byte(chunkText)}))
	n := len(events(t, out.String()))
	require.JSONEq(t, fmt.Sprintf(`{"type":"error","sequence_number":%d,"code":null,"message":"gone","param":null}`, n), string(answer.Error(200, []byte(`{"error":{"message":"gone"}}`))))
}

func TestF208_WhatAStreamHoldsIsBounded(t *testing.T) {
	t.Parallel()
	piece := strings.Repeat("x", 1<<20)
	endless := chunkHead + `"delta":{"tool_calls":[{"index":%d,"id":"c%d","type":"function","function":{"name":"a","arguments":"{\"` + piece + `"}}]},"finish_reason":null}]}`
	for _, from := range []providers.Dialect{messages, responded} {
		answer := between(t, from, chat).NewAnswer(parse(t, clientOf(from)))
		var err error
		n := 0
		for ; err == nil && n < 20; n++ {
			err = answer.Event(&bytes.Buffer{}, sse.Event{Data: fmt.Appendf(nil, endless, n, n)})
		}
		require.Error(t, err)
		require.Less(t, n, 12)
	}
	for _, tr := range translate.All(clock) {
		answer := tr.NewAnswer(parse(t, clientOf(tr.From())))
		s := said{finish: "tool_calls"}
		for i := range 1_100 {
			s.calls = append(s.calls, saidCall{id: fmt.Sprint("c", i), name: "a"})
		}
		var err error
		for _, ev := range events(t, s.in(tr.To())) {
			if err = answer.Event(&bytes.Buffer{}, ev); err != nil {
				break
			}
		}
		if tr.To() == messages && tr.From() == chat {
			require.NoError(t, err, "calls that follow each other are not held")
			continue
		}
		require.Error(t, err, folder(tr))
	}
}

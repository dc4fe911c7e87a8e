package guardrail

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/plugins"
	"github.com/tollgate-gateway/tollgate/plugins/plugintest"
)

func TestContract(t *testing.T) {
	t.Parallel()
	plugintest.Run(t, Module(), "max_text: 1000")
}

// rails makes guardrails of rules with an action for requests and answers.
func guards(action governance.GuardrailAction, rules ...governance.GuardrailRule) []*governance.Guardrail {
	var all []*governance.Guardrail
	for i, r := range rules {
		all = append(all, &governance.Guardrail{
			Meta: governance.Meta{Num: int64(i + 1), ID: fmt.Sprintf("guard_%012d", i+1), Version: 1}, Name: "house rules",
			Stage: governance.StageBoth, Rule: r, Action: action,
		})
	}
	return all
}

type setup struct {
	*plugin
	log     *bytes.Buffer
	metrics *plugintest.Metrics
}

func newPlugin(t require.TestingT) setup {
	s := setup{log: &bytes.Buffer{}, metrics: &plugintest.Metrics{}}
	p, err := Module().New(plugins.Env{Log: zerolog.New(s.log), Metrics: s.metrics}, plugintest.Config(""))
	require.NoError(t, err)
	s.plugin = p.(*plugin) //nolint:forcetypeassert // it is ours
	return s
}

func call(t require.TestingT, route, body string, all []*governance.Guardrail) *plugins.Call {
	doc, err := jsonedit.Parse([]byte(body))
	require.NoError(t, err)
	catalog := governance.NewCatalog(1, time.Now(), nil, nil, nil)
	catalog.Guardrails = all
	stream, _, _ := doc.Bool("stream")
	return &plugins.Call{
		Route: route, Body: doc, Model: "m", Stream: stream, Catalog: catalog,
		Principal: governance.Principal{Organization: governance.Ref{Num: 1, ID: "org_1"}, Key: governance.Ref{Num: 3, ID: "key_3"}},
	}
}

func guard(t *testing.T, s setup, c *plugins.Call) plugins.Verdict {
	t.Helper()
	v, err := s.Guard(t.Context(), c)
	require.NoError(t, err)
	return v
}

const asked = `{"model":"m" , "messages":[{"role":"system","content":"be nice"},{"role":"user","content":[{"type":"text","text":"my mail is jane@example.com"}]}]}`

func TestRequestsAreMaskedBlockedOrLogged(t *testing.T) {
	t.Parallel()
	mail := governance.GuardrailRule{Type: governance.RulePII, Kinds: []string{"email"}}
	s := newPlugin(t)

	v := guard(t, s, call(t, governance.RouteChat, asked, guards(governance.ActionMask, mail)))
	require.Nil(t, v.Deny)
	require.Equal(t, strings.Replace(asked, "jane@example.com", "[masked]", 1), string(v.Body), "every other byte stays")
	require.Equal(t, "guard_000000000001", v.Tags[tag])

	v = guard(t, s, call(t, governance.RouteChat, asked, guards(governance.ActionBlock, mail)))
	require.Equal(t, governance.CodeContentBlocked, v.Deny.Code)
	require.Contains(t, v.Deny.Public, `"house rules"`)
	require.NotContains(t, v.Deny.Public, "jane")

	v = guard(t, s, call(t, governance.RouteChat, asked, guards(governance.ActionLog, mail)))
	require.Nil(t, v.Deny)
	require.Nil(t, v.Body)
	require.Equal(t, "guard_000000000001", v.Tags[tag])
	require.Equal(t, 1.0, s.metrics.Value("tollgate_guardrail_hits_total", "guard_000000000001", "log"))

	v = guard(t, s, call(t, governance.RouteChat, `{"messages":[{"role":"user","content":"nothing"}]}`, guards(governance.ActionBlock, mail)))
	require.Equal(t, plugins.Verdict{}, v)
	require.NotContains(t, s.log.String(), "jane")
}

func TestWhoIsNotConcerned(t *testing.T) {
	t.Parallel()
	s := newPlugin(t)
	all := guards(governance.ActionBlock, words("mail"))
	all[0].Organization = governance.Ref{Num: 9}
	c := call(t, governance.RouteChat, asked, all)
	require.Equal(t, plugins.Verdict{}, guard(t, s, c))
	require.True(t, s.Idle(c))
	require.Nil(t, s.GuardAnswer(c))
	all = guards(governance.ActionLog, words("mail"))
	c = call(t, governance.RouteChat, asked, all)
	require.True(t, s.Idle(c), "what only counts refuses nothing that it cannot see")
	all[0].Action = governance.ActionBlock
	all[0].Version++
	require.False(t, s.Idle(call(t, governance.RouteChat, asked, all)))
}

func TestPolicyFollowsWhatIsInForce(t *testing.T) {
	t.Parallel()
	s := newPlugin(t)
	all := guards(governance.ActionBlock, words("a"), words("b"))
	all[1].Key = governance.Ref{Num: 4}
	one := s.Policy(call(t, governance.RouteChat, asked, all))
	c := call(t, governance.RouteChat, asked, all)
	require.Equal(t, one, s.Policy(c))
	c.Principal.Key.Num = 4
	require.NotEqual(t, one, s.Policy(c))
	changed := guards(governance.ActionBlock, words("a"), words("b"))
	changed[0].Version, changed[1].Key = 2, governance.Ref{Num: 4}
	require.NotEqual(t, one, s.Policy(call(t, governance.RouteChat, asked, changed)))
}

func TestBoundsOfSizeAndOutput(t *testing.T) {
	t.Parallel()
	s := newPlugin(t)
	size := governance.GuardrailRule{Type: governance.RuleMaxSize, Bytes: 34}
	require.Equal(t, plugins.Verdict{}, guard(t, s, call(t, governance.RouteChat, asked, guards(governance.ActionBlock, size))))
	size.Bytes--
	require.NotNil(t, guard(t, s, call(t, governance.RouteChat, asked, guards(governance.ActionBlock, size))).Deny)
	require.Nil(t, guard(t, s, call(t, governance.RouteChat, asked, guards(governance.ActionLog, size))).Deny)

	tokens := governance.GuardrailRule{Type: governance.RuleMaxTokens, Tokens: 100}
	for _, c := range []struct{ route, body, want string }{
		{governance.RouteChat, `{"max_tokens":101}`, `{"max_tokens":100}`},
		{governance.RouteChat, `{"max_tokens":500,"max_completion_tokens":7}`, `{"max_tokens":100,"max_completion_tokens":7}`},
		{governance.RouteChat, `{"n":1}`, `{"max_completion_tokens":100,"n":1}`},
		{governance.RouteResponses, `{"max_output_tokens":4000}`, `{"max_output_tokens":100}`},
		{governance.RouteMessages, `{"max_tokens":99}`, ""},
		{governance.RouteEmbeddings, `{"input":"x"}`, ""},
	} {
		v := guard(t, s, call(t, c.route, c.body, guards(governance.ActionMask, tokens)))
		require.Equal(t, c.want, string(v.Body), c.body)
		require.Equal(t, c.want != "", len(v.Warnings) > 0, c.body)
	}
	thinks := `{"max_tokens":2000,"thinking":{"type":"enabled","budget_tokens":1024}}`
	require.NotNil(t, guard(t, s, call(t, governance.RouteMessages, thinks, guards(governance.ActionMask, tokens))).Deny, "what is left would be refused by Anthropic, in its own words")
	require.NotNil(t, guard(t, s, call(t, governance.RouteChat, `{"max_tokens":101}`, guards(governance.ActionBlock, tokens))).Deny)
	require.Nil(t, guard(t, s, call(t, governance.RouteChat, `{"n":1}`, guards(governance.ActionBlock, tokens))).Deny)
	v := guard(t, s, call(t, governance.RouteChat, `{"max_tokens":101}`, guards(governance.ActionLog, tokens)))
	require.Nil(t, v.Body)
	require.Empty(t, v.Warnings)
	require.NotEmpty(t, v.Tags)
}

// TestT24_MoreThanIsInspectedIsRefused, unless the guardrail says that it may fail.
func TestT24_MoreThanIsInspectedIsRefused(t *testing.T) {
	t.Parallel()
	s := newPlugin(t)
	body := `{"messages":[{"role":"user","content":"` + strings.Repeat("x", 1<<20) + `y"}]}`
	all := guards(governance.ActionMask, words("never"))
	require.NotNil(t, guard(t, s, call(t, governance.RouteChat, body, all)).Deny)
	all = guards(governance.ActionMask, words("never"))
	all[0].Version, all[0].AllowOnError = 2, true
	require.Nil(t, guard(t, s, call(t, governance.RouteChat, body, all)).Deny)
	require.Nil(t, guard(t, s, call(t, governance.RouteChat, body, guards(governance.ActionLog, words("never")))).Deny)
}

// TestT24_PatternsHaveABudgetOfTime: what is not read in it is decided as every failure is, and a guardrail that logs refuses nothing.
func TestT24_PatternsHaveABudgetOfTime(t *testing.T) {
	t.Parallel()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		action governance.GuardrailAction
		allow  bool
		fails  bool
	}{{governance.ActionMask, false, true}, {governance.ActionBlock, false, true}, {governance.ActionMask, true, false}, {governance.ActionLog, false, false}} {
		all := guards(c.action, patterns(`x{1,9}y`))
		all[0].AllowOnError = c.allow
		s := newPlugin(t)
		v, err := s.Guard(over, call(t, governance.RouteChat, `{"messages":[{"role":"user","content":"xxy"}]}`, all))
		require.Equal(t, c.fails, err != nil)
		require.Nil(t, v.Deny)
		require.Nil(t, v.Body)
		require.Equal(t, 1.0, s.metrics.Value("tollgate_guardrail_failures_total", "guard_000000000001"))
		_, err = s.GuardAnswer(call(t, governance.RouteChat, `{}`, all)).Whole(over, []byte(`{"choices":[{"message":{"content":"xxy"}}]}`))
		require.Equal(t, c.fails, err != nil)
	}
}

// TestLongTextsAreReadInPieces, which makes no difference.
func TestLongTextsAreReadInPieces(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("é filler ", 5_000) + "top secret" + strings.Repeat(" and more", 5_000) + " sec"
	for cut := range 3 {
		long := strings.Repeat("x", cut+readPiece-5) + " top secret " + text
		require.Equal(t, strings.ReplaceAll(long, "top secret", "[masked]"), masked(t, long, railOf(t, governance.ActionMask, words("top secret"))))
	}
}

// streamed returns what a judge leaves of a stream.
func streamed(t require.TestingT, s setup, c *plugins.Call, text string) (out []sse.Event, deny *governance.Error) {
	j := s.GuardAnswer(c)
	require.NotNil(t, j)
	r := sse.NewReader(strings.NewReader(text))
	for {
		ev, err := r.Next()
		if err == io.EOF { //nolint:errorlint // as it is documented
			break
		}
		require.NoError(t, err)
		v, err := j.Event(context.Background(), ev)
		require.NoError(t, err)
		switch {
		case v.Deny != nil:
			return out, v.Deny
		case v.Pass:
			out = append(out, ev)
		default:
			out = append(out, v.Events...)
		}
	}
	v, err := j.End(context.Background())
	require.NoError(t, err)
	return append(out, v.Events...), v.Deny
}

// dialects write a text in pieces as a stream, and read it from one.
var dialects = map[string]struct {
	write func(pieces []string) string
	read  func(t require.TestingT, events []sse.Event) string
}{
	governance.RouteChat: {
		func(pieces []string) string {
			out := `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
			for _, p := range pieces {
				out += `data: {"id":"c","choices":[{"index":0,"delta":{"content":` + quote(p) + `},"finish_reason":null}]}` + "\n\n"
			}
			return out + `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"
		},
		func(t require.TestingT, events []sse.Event) string {
			text := ""
			for i, ev := range events {
				if string(ev.Data) == "[DONE]" {
					require.Equal(t, len(events)-1, i, "nothing comes behind the end")
					continue
				}
				var e struct {
					Choices []struct {
						Delta  struct{ Content string }
						Finish *string `json:"finish_reason"`
					}
				}
				require.NoError(t, json.Unmarshal(ev.Data, &e), string(ev.Data))
				text += e.Choices[0].Delta.Content
				require.False(t, e.Choices[0].Finish != nil && i < len(events)-2, "text behind the end")
			}
			return text
		},
	},
	governance.RouteMessages: {
		func(pieces []string) string {
			out := "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"content\":[]}}\n\n" +
				"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n"
			for _, p := range pieces {
				out += "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":" + quote(p) + "}}\n\n"
			}
			return out + "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
		},
		func(t require.TestingT, events []sse.Event) string {
			text, stopped := "", false
			for _, ev := range events {
				var e struct {
					Type  string
					Delta struct{ Text string }
				}
				require.NoError(t, json.Unmarshal(ev.Data, &e))
				require.Equal(t, e.Type, string(ev.Name))
				stopped = stopped || e.Type == "content_block_stop"
				require.False(t, stopped && e.Delta.Text != "", "text behind the end of its block")
				text += e.Delta.Text
			}
			return text
		},
	},
	governance.RouteResponses: {
		func(pieces []string) string {
			out := ""
			for _, p := range pieces {
				out += "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"item_id\":\"i\",\"output_index\":0,\"content_index\":0,\"delta\":" + quote(p) + "}\n\n"
			}
			all := quote(strings.Join(pieces, ""))
			return out + "event: response.output_text.done\ndata: {\"type\":\"response.output_text.done\",\"item_id\":\"i\",\"output_index\":0,\"content_index\":0,\"text\":" + all + "}\n\n" +
				"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"type\":\"message\",\"content\":[{\"type\":\"output_text\",\"text\":" + all + "}]}]}}\n\n"
		},
		func(t require.TestingT, events []sse.Event) string {
			text, done := "", false
			for _, ev := range events {
				var e struct {
					Type, Delta, Text string
					Response          struct {
						Output []struct{ Content []struct{ Text string } }
					}
				}
				require.NoError(t, json.Unmarshal(ev.Data, &e))
				require.False(t, done && e.Delta != "", "text behind its end")
				text += e.Delta
				switch e.Type {
				case "response.output_text.done":
					done = true
					require.Equal(t, text, e.Text)
				case "response.completed":
					require.Equal(t, text, e.Response.Output[0].Content[0].Text)
				}
			}
			return text
		},
	},
	governance.RouteCompletions: {
		func(pieces []string) string {
			out := ""
			for _, p := range pieces {
				out += `data: {"choices":[{"index":0,"text":` + quote(p) + `,"finish_reason":null}]}` + "\n\n"
			}
			return out + `data: {"choices":[{"index":0,"text":"","finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"
		},
		func(t require.TestingT, events []sse.Event) string {
			text := ""
			for _, ev := range events {
				var e struct{ Choices []struct{ Text string } }
				if json.Unmarshal(ev.Data, &e) == nil {
					text += e.Choices[0].Text
				}
			}
			return text
		},
	},
}

func quote(s string) string {
	b, _ := json.Marshal(s) //nolint:errchkjson // a string
	return string(b)
}

// TestF146_AWordSplitOverFramesDoesNotSlipThrough: for each dialect the client's text is the mask of the whole, in the right
// order with what ends it; a block shows nothing of a match; and where nothing is found the bytes are the upstream's.
func TestF146_AWordSplitOverFramesDoesNotSlipThrough(t *testing.T) {
	t.Parallel()
	for route, d := range dialects {
		t.Run(route, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				s := newPlugin(t)
				rules := []governance.GuardrailRule{words("top secret", "b"), patterns(`a+b`, `c.c`)}
				text := rapid.StringOfN(rapid.SampledFrom([]rune("aabc \"秘\n")), 0, 30, -1).Draw(t, "text")
				if rapid.Bool().Draw(t, "secret") {
					text += " top secret plan"
				}
				var pieces []string
				for rest := []rune(text); len(rest) > 0; {
					n := rapid.IntRange(1, min(len(rest), 4)).Draw(t, "piece")
					pieces, rest = append(pieces, string(rest[:n])), rest[n:]
				}
				all := guards(governance.ActionMask, rules...)
				var rails []*rail
				for _, g := range all {
					rails = append(rails, newRail(g))
				}
				want := masked(t, text, rails...)
				c := call(t, route, `{"stream":true}`, all)
				stream := d.write(pieces)
				events, deny := streamed(t, s, c, stream)
				require.Nil(t, deny)
				require.Equal(t, want, d.read(t, events))

				events, deny = streamed(t, newPlugin(t), call(t, route, `{"stream":true}`, guards(governance.ActionBlock, rules...)), stream)
				if want == text {
					require.Nil(t, deny)
					require.Equal(t, text, d.read(t, events))
				} else {
					require.NotNil(t, deny)
					for _, ev := range events {
						require.NotContains(t, string(ev.Data), "secret")
					}
				}

				events, deny = streamed(t, newPlugin(t), call(t, route, `{"stream":true}`, guards(governance.ActionLog, rules...)), stream)
				require.Nil(t, deny)
				var same strings.Builder
				for _, ev := range events {
					same.Write(ev.Raw)
				}
				require.Equal(t, stream, same.String(), "log mode changes no byte")
			})
		})
	}
}

func TestToolCallsAndChoicesAreTextsOfTheirOwn(t *testing.T) {
	t.Parallel()
	s := newPlugin(t)
	c := call(t, governance.RouteChat, `{"stream":true}`, guards(governance.ActionMask, words("secret")))
	frame := func(delta string, index int) string {
		return fmt.Sprintf("data: {\"choices\":[{\"index\":%d,\"delta\":%s,\"finish_reason\":null}]}\n\n", index, delta)
	}
	tool := func(n int, arguments string) string {
		return fmt.Sprintf(`{"tool_calls":[{"index":%d,"function":{"arguments":%s}}]}`, n, quote(arguments))
	}
	events, deny := streamed(t, s, c, frame(`{"content":"sec"}`, 0)+frame(`{"content":"ret"}`, 1)+frame(tool(0, `{"a":"sec`), 0)+frame(tool(1, `{"b":"ret`), 0)+
		frame(tool(0, `ret"}`), 0)+frame(tool(1, `"}`), 0)+frame(`{"content":"ond"}`, 0)+
		"data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"},{\"index\":1,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n")
	require.Nil(t, deny)
	content, arguments := map[int]string{}, map[int]string{}
	for _, ev := range events {
		var e struct {
			Choices []struct {
				Index int
				Delta struct {
					Content string
					Tools   []struct {
						Index    int
						Function struct{ Arguments string }
					} `json:"tool_calls"`
				}
			}
		}
		require.NoError(t, json.Unmarshal(ev.Data, &e))
		for _, ch := range e.Choices {
			content[ch.Index] += ch.Delta.Content
			for _, tl := range ch.Delta.Tools {
				arguments[tl.Index] += tl.Function.Arguments
			}
		}
	}
	require.Equal(t, map[int]string{0: "second", 1: "ret"}, content)
	require.Equal(t, map[int]string{0: `{"a":"[masked]"}`, 1: `{"b":"ret"}`}, arguments)
}

// TestInputsOfToolsAreReadAsWhatTheyMean: they are JSON within a text, and a letter may be written as its number.
func TestInputsOfToolsAreReadAsWhatTheyMean(t *testing.T) {
	t.Parallel()
	frames := map[string]func(piece string) string{
		governance.RouteChat: func(piece string) string {
			return `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":` + quote(piece) + `}}]}}]}` + "\n\n"
		},
		governance.RouteMessages: func(piece string) string {
			return `data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":` + quote(piece) + `}}` + "\n\n"
		},
		governance.RouteResponses: func(piece string) string {
			return `data: {"type":"response.function_call_arguments.delta","output_index":0,"delta":` + quote(piece) + `}` + "\n\n"
		},
	}
	for route, frame := range frames {
		for _, pieces := range [][]string{{`{"a":"\u0073ec`, `ret"}`}, {`{"a":"\u00`, `73ecret"}`}, {`{"a":"`, `\u0073\u0065\u0063\u0072\u0065\u0074`, `"}`}, {`{"a":"x\`, `nsecret"}`}} {
			stream := ""
			for _, p := range pieces {
				stream += frame(p)
			}
			s := newPlugin(t)
			c := call(t, route, `{"stream":true}`, guards(governance.ActionMask, words("secret")))
			events, deny := streamed(t, s, c, stream)
			require.Nil(t, deny)
			all := ""
			for _, ev := range events {
				all += string(ev.Data) + "\n"
			}
			require.Contains(t, all, "[masked]", "%s %q", route, pieces)
			require.NotContains(t, all, "cret")
			require.NotContains(t, all, "u0074")
		}
	}
	chat := frames[governance.RouteChat]
	untouched := chat(`{"path":"C:\\u0041","q":"\"\n\t`) + chat(`"}`) + `data: {"choices":[{"index":0,"delta":{"content":"write \\u0041"}}]}` + "\n\n"
	events, deny := streamed(t, newPlugin(t), call(t, governance.RouteChat, `{"stream":true}`, guards(governance.ActionMask, words("secret"))), untouched)
	require.Nil(t, deny)
	same := ""
	for _, ev := range events {
		same += string(ev.Raw)
	}
	require.Equal(t, untouched, same)
	body := `{"choices":[{"message":{"content":"\\u0041","tool_calls":[{"function":{"arguments":"{\"a\":\"\\u0073ecret\"}"}}]}}]}`
	v, err := newPlugin(t).GuardAnswer(call(t, governance.RouteChat, `{}`, guards(governance.ActionMask, words("secret")))).Whole(t.Context(), []byte(body))
	require.NoError(t, err)
	require.Equal(t, `{"choices":[{"message":{"content":"\\u0041","tool_calls":[{"function":{"arguments":"{\"a\":\"[masked]\"}"}}]}}]}`, string(v.Body))
}

// TestEventsThatAreNoJSONAreReadAsTexts: somebody may show them.
func TestEventsThatAreNoJSONAreReadAsTexts(t *testing.T) {
	t.Parallel()
	stream := "data: a secret {\n\ndata: [DONE]\n\n"
	events, deny := streamed(t, newPlugin(t), call(t, governance.RouteChat, `{"stream":true}`, guards(governance.ActionMask, words("secret"))), stream)
	require.Nil(t, deny)
	require.Len(t, events, 2)
	require.Equal(t, "a [masked] {", string(events[0].Data))
	_, deny = streamed(t, newPlugin(t), call(t, governance.RouteChat, `{"stream":true}`, guards(governance.ActionBlock, words("secret"))), stream)
	require.NotNil(t, deny)
	events, deny = streamed(t, newPlugin(t), call(t, governance.RouteChat, `{"stream":true}`, guards(governance.ActionBlock, words("absent"))), stream)
	require.Nil(t, deny)
	require.NotNil(t, events[0].Raw)
}

func TestWholeAnswers(t *testing.T) {
	t.Parallel()
	for route, body := range map[string]string{
		governance.RouteChat:      `{"id":"secret","choices":[{"index":0,"message":{"role":"assistant","content":"a secret","tool_calls":[{"id":"x","function":{"name":"f","arguments":"{\"k\":\"secret\"}"}}]}}],"usage":{"total_tokens":1}}`,
		governance.RouteMessages:  `{"model":"secret","content":[{"type":"thinking","thinking":"a secret"},{"type":"tool_use","name":"f","input":{"deep":["secret",{"x":"secret"}]}}]}`,
		governance.RouteResponses: `{"id":"secret","output":[{"type":"message","content":[{"type":"output_text","text":"a secret"}]},{"type":"function_call","name":"f","arguments":"{\"k\":\"secret\"}"}]}`,
	} {
		s := newPlugin(t)
		j := s.GuardAnswer(call(t, route, `{}`, guards(governance.ActionMask, words("secret"))))
		v, err := j.Whole(t.Context(), []byte(body))
		require.NoError(t, err)
		head, rest, _ := strings.Cut(body, `,`) // names and ids are no texts
		require.Equal(t, head+","+strings.ReplaceAll(rest, "secret", "[masked]"), string(v.Body), route)
		j = newPlugin(t).GuardAnswer(call(t, route, `{}`, guards(governance.ActionBlock, words("secret"))))
		v, err = j.Whole(t.Context(), []byte(body))
		require.NoError(t, err)
		require.Equal(t, governance.CodeContentBlocked, v.Deny.Code)
		j = newPlugin(t).GuardAnswer(call(t, route, `{}`, guards(governance.ActionBlock, words("absent"))))
		v, err = j.Whole(t.Context(), []byte(body))
		require.NoError(t, err)
		require.Equal(t, plugins.Verdict{}, v)
	}
}

// hook is a webhook of a test's own.
func hook(t *testing.T, answer http.HandlerFunc) governance.GuardrailRule {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	return governance.GuardrailRule{Type: governance.RuleWebhook, URL: server.URL + "/judge?token=hidden", Timeout: 5000}
}

func TestWebhooks(t *testing.T) {
	t.Parallel()
	var seen question
	rule := hook(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mac := hmac.New(sha256.New, []byte("shared"))
		mac.Write([]byte(r.Header.Get("Tollgate-Timestamp") + "." + string(body)))
		if r.Header.Get("Tollgate-Signature") != "v1="+hex.EncodeToString(mac.Sum(nil)) {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_ = json.Unmarshal(body, &seen)
		switch last := seen.Texts[len(seen.Texts)-1]; {
		case strings.Contains(last, "block me"):
			_, _ = io.WriteString(w, `{"action":"block"}`)
		case strings.Contains(last, "mask me"):
			seen.Texts[len(seen.Texts)-1] = "masked by the hook"
			_ = json.NewEncoder(w).Encode(map[string]any{"action": "mask", "texts": seen.Texts})
		default:
			_, _ = io.WriteString(w, `{"action":"allow"}`)
		}
	})
	all := guards(governance.ActionMask, rule)
	all[0].Secret = secret.New("shared")
	s := newPlugin(t)
	body := func(text string) string { return `{"messages":[{"role":"user","content":` + quote(text) + `}]}` }
	require.Equal(t, plugins.Verdict{}, guard(t, s, call(t, governance.RouteChat, body("hello"), all)))
	require.Equal(t, question{
		RequestID: "00000000-0000-0000-0000-000000000000", Guardrail: "guard_000000000001", Stage: "request", Organization: "org_1", Key: "key_3",
		Route: governance.RouteChat, Model: "m", Texts: []string{"hello"},
	}, seen)
	require.Equal(t, body("masked by the hook"), string(guard(t, s, call(t, governance.RouteChat, body("mask me"), all)).Body))
	require.Equal(t, governance.CodeContentBlocked, guard(t, s, call(t, governance.RouteChat, body("block me"), all)).Deny.Code)

	j := s.GuardAnswer(call(t, governance.RouteChat, `{}`, all))
	v, err := j.Whole(t.Context(), []byte(`{"choices":[{"message":{"content":"mask me"}}]}`))
	require.NoError(t, err)
	require.JSONEq(t, `{"choices":[{"message":{"content":"masked by the hook"}}]}`, string(v.Body))
}

// TestWebhooksOfStreams see each text of a stream whole. Nothing of it goes out before they have agreed, in every dialect.
func TestWebhooksOfStreams(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	rule := hook(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		var q question
		body, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(body, &q)
		action := "allow"
		for i, text := range q.Texts {
			switch {
			case strings.Contains(text, "block"):
				action = "block"
			case strings.Contains(text, "mask me"):
				action, q.Texts[i] = "mask", "[["+text+"]]"
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"action": action, "texts": q.Texts})
	})
	for route, d := range dialects {
		t.Run(route, func(t *testing.T) {
			judged := func(action governance.GuardrailAction, pieces ...string) (events []sse.Event, early int, deny *governance.Error) {
				j := newPlugin(t).GuardAnswer(call(t, route, `{"stream":true}`, guards(action, rule)))
				r := sse.NewReader(strings.NewReader(d.write(pieces)))
				for {
					ev, err := r.Next()
					if err != nil {
						break
					}
					before := len(events)
					v, err := j.Event(t.Context(), ev)
					require.NoError(t, err)
					if v.Deny != nil {
						return events, early, v.Deny
					}
					if v.Pass {
						events = append(events, sse.Event{Name: bytes.Clone(ev.Name), Data: bytes.Clone(ev.Data), Raw: bytes.Clone(ev.Raw)})
					}
					events = append(events, v.Events...)
					if before == 0 {
						early = len(events)
					}
				}
				v, err := j.End(t.Context())
				require.NoError(t, err)
				require.Nil(t, v.Deny)
				return append(events, v.Events...), early, nil
			}
			before := asked.Load()
			events, early, deny := judged(governance.ActionMask, "all ", "is ", "well")
			require.Nil(t, deny)
			require.Equal(t, early, len(events), "all of it at once")
			same := ""
			for _, ev := range events {
				same += string(ev.Raw)
			}
			require.Equal(t, d.write([]string{"all ", "is ", "well"}), same)
			require.Equal(t, before+1, asked.Load())

			events, _, deny = judged(governance.ActionMask, "mask", " me", ", please")
			require.Nil(t, deny)
			require.Equal(t, "[[mask me, please]]", d.read(t, events))

			events, _, deny = judged(governance.ActionBlock, "blo", "ck", " me")
			require.NotNil(t, deny)
			require.Empty(t, events, "nothing was shown")

			events, early, deny = judged(governance.ActionLog, "blo", "ck", " me")
			require.Nil(t, deny)
			require.Less(t, early, len(events), "who only watches holds nothing up")
			require.Equal(t, "block me", d.read(t, events))
			require.Equal(t, before+4, asked.Load())
		})
	}
}

// TestWebhooksOfStreamsThatEndBadly: an error is told at once, and what is too long for them is decided as every failure is.
func TestWebhooksOfStreamsThatEndBadly(t *testing.T) {
	t.Parallel()
	rule := hook(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"action":"allow"}`) })
	frame := func(text string) string {
		return `data: {"choices":[{"index":0,"delta":{"content":` + quote(text) + `}}]}` + "\n\n"
	}
	const fault, end = `data: {"error":{"message":"m"}}` + "\n\n", "data: [DONE]\n\n"
	asked := func(allow bool, stream string) (string, *governance.Error) {
		all := guards(governance.ActionBlock, rule)
		all[0].AllowOnError = allow
		j := newPlugin(t).GuardAnswer(call(t, governance.RouteChat, `{"stream":true}`, all))
		r := sse.NewReader(strings.NewReader(stream))
		out := ""
		take := func(ev sse.Event, v plugins.StreamVerdict, err error) *governance.Error {
			require.NoError(t, err)
			if v.Pass {
				out += string(ev.Raw)
			}
			for _, e := range v.Events {
				out += string(e.Raw)
			}
			return v.Deny
		}
		for {
			ev, err := r.Next()
			if err != nil {
				break
			}
			v, err := j.Event(t.Context(), ev)
			if deny := take(ev, v, err); deny != nil {
				return out, deny
			}
		}
		v, err := j.End(t.Context())
		return out, take(sse.Event{}, v, err)
	}
	out, deny := asked(false, frame("a")+fault)
	require.Nil(t, deny)
	require.Equal(t, fault, out)
	out, deny = asked(false, frame("a")+frame("b"))
	require.Nil(t, deny)
	require.Equal(t, frame("a")+frame("b"), out, "a stream without its last event")
	out, deny = asked(false, frame("a")+end+frame("later"))
	require.Nil(t, deny)
	require.Equal(t, frame("a")+end, out, "nothing comes behind the end")
	ping := "event: ping\ndata: {\"type\":\"ping\"}\n\n"
	out, deny = asked(false, frame("a")+ping)
	require.Nil(t, deny)
	require.Equal(t, ping+frame("a"), out)

	long := strings.Repeat(frame(strings.Repeat("x", 512<<10)), maxStream/(2*512<<10)+1)
	out, deny = asked(false, long+end)
	require.Equal(t, governance.CodeContentBlocked, deny.Code)
	require.Empty(t, out)
	out, deny = asked(true, long+end)
	require.Nil(t, deny)
	require.Equal(t, long+end, out)
}

// TestWebhooksThatFail are failures of the guardrail: they refuse, unless it may fail. Nothing says where the webhook is.
func TestWebhooksThatFail(t *testing.T) {
	t.Parallel()
	down := httptest.NewServer(nil)
	down.Close()
	for name, rule := range map[string]governance.GuardrailRule{
		"refuses": hook(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }),
		"redirects": hook(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
		}),
		"no JSON":   hook(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }),
		"no action": hook(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"action":"maybe"}`) }),
		"null": hook(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"action":"mask","texts":[null]}`)
		}),
		"too few texts": hook(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"action":"mask","texts":[]}`) }),
		"too large":     hook(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(bytes.Repeat([]byte(" "), maxVerdict+1)) }),
		"is down":       {Type: governance.RuleWebhook, URL: down.URL + "/judge?token=hidden"},
		"is silent": func() governance.GuardrailRule {
			r := hook(t, func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.ReadAll(r.Body) // only then does the server notice that the client has left
				<-r.Context().Done()
			})
			r.Timeout = 50
			return r
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newPlugin(t)
			_, err := s.Guard(t.Context(), call(t, governance.RouteChat, asked, guards(governance.ActionBlock, rule)))
			require.Error(t, err)
			require.NotContains(t, err.Error()+s.log.String(), "hidden")
			require.NotContains(t, err.Error()+s.log.String(), "jane")
			require.Equal(t, 1.0, s.metrics.Value("tollgate_guardrail_failures_total", "guard_000000000001"))
			all := guards(governance.ActionBlock, rule)
			all[0].Version, all[0].AllowOnError = 2, true
			require.Equal(t, plugins.Verdict{}, guard(t, s, call(t, governance.RouteChat, asked, all)))
		})
	}
}

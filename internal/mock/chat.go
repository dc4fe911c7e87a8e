package mock

import (
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

func decode(value []byte, into any) error { return json.Unmarshal(value, into, options) }

// chunks builds the frames of a chat or legacy stream in one piece of memory.
type chunks struct {
	head      string // up to "choices":
	nullUsage bool   // frames without usage say null, as OpenAI does where usage was asked for
	buf       []byte
	ends      []int
}

// add writes one frame; choices is JSON, usage JSON or empty.
func (k *chunks) add(choices, usage string) {
	k.buf = append(k.buf, "data: "...)
	k.buf = append(k.buf, k.head...)
	k.buf = append(k.buf, choices...)
	if usage != "" {
		k.buf = append(append(k.buf, `,"usage":`...), usage...)
	} else if k.nullUsage {
		k.buf = append(k.buf, `,"usage":null`...)
	}
	k.raw("}\n\n")
}

func (k *chunks) raw(text string) {
	k.buf = append(k.buf, text...)
	k.ends = append(k.ends, len(k.buf))
}

// answer ends the stream with [DONE].
func (k *chunks) answer() answer {
	k.raw("data: [DONE]\n\n")
	frames := make([][]byte, len(k.ends))
	start := 0
	for i, end := range k.ends {
		frames[i] = k.buf[start:end:end]
		start = end
	}
	return streamOf(1, frames...)
}

// usageWanted tells whether the stream has a last frame of usage alone.
func (c *call) usageWanted() bool {
	asked := c.body.StreamOptions != nil && c.body.StreamOptions.IncludeUsage
	return asked && c.script.usageMode != usageNever || c.script.usageMode == usageAlways
}

const toolCalls = `[{"index":0,"id":"call_mock_0","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Paris\"}"}},` +
	`{"index":1,"id":"call_mock_1","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Rome\"}"}}]`

// tools returns the tools that a chat answer uses, as in a frame of a stream; "": none.
func (c *call) tools() string {
	switch use := c.script.tool; {
	case c.script.parallelTools:
		return toolCalls
	case use != nil:
		return `[{"index":0,"id":"call_mock_0","type":"function","function":{"name":` + string(quote(use.name)) + `,"arguments":` + string(quote(use.input)) + `}}]`
	}
	return ""
}

const refusalText = `"I cannot help with that."`

func (c *call) chatHead(object string) string {
	return `{"id":"chatcmpl-mock-` + c.number() + `","object":"` + object + `","created":` + created + `,"model":` + c.model() +
		`,"service_tier":"default","system_fingerprint":"fp_mock","choices":`
}

func (c *call) chatChoices() int {
	if c.script.interleaved {
		return max(c.body.choices(), 2)
	}
	return c.body.choices()
}

func (c *call) chat() answer {
	words, missing := c.cut(1 << 30)
	finish := "stop"
	switch {
	case c.tools() != "":
		finish = "tool_calls"
	case missing:
		finish = "length"
	}
	if c.body.Stream {
		return c.chatStream(words, finish)
	}
	return c.chatUnary(words, finish)
}

func (c *call) chatUnary(words []string, finish string) answer {
	script := c.script
	message := `{"role":"assistant","content":` + string(quote(strings.Join(words, ""))) + `,"refusal":null,"annotations":[]}`
	switch {
	case c.tools() != "":
		message = `{"role":"assistant","content":null,"refusal":null,"tool_calls":` + strings.NewReplacer(`"index":0,`, "", `"index":1,`, "").Replace(c.tools()) + `}`
	case script.refusal:
		message = `{"role":"assistant","content":null,"refusal":` + refusalText + `,"annotations":[]}`
	}
	logprobs := "null"
	if script.logprobs {
		logprobs = logprobsOf(words)
	}
	var choices strings.Builder
	n := c.chatChoices()
	for i := range n {
		if i > 0 {
			choices.WriteByte(',')
		}
		choices.WriteString(`{"index":` + strconv.Itoa(i) + `,"message":` + message + `,"logprobs":` + logprobs + `,"finish_reason":"` + finish + `"}`)
	}
	body := c.withChoices(c.chatHead("chat.completion"), "["+choices.String()+"]")
	if script.usageMode != usageNever {
		body += `,"usage":` + usageObject(c.count(n*len(words)))
	}
	return unary(body + "}")
}

// withChoices joins head and choices, or the script's shape in their place.
func (c *call) withChoices(head, choices string) string {
	switch c.script.choices {
	case "empty":
		return head + "[]"
	case "null":
		return head + "null"
	case "object":
		return head + "{}"
	case "absent":
		return strings.TrimSuffix(head, `,"choices":`)
	}
	return head + choices
}

func (c *call) chatStream(words []string, finish string) answer {
	script := c.script
	n := c.chatChoices()
	wanted := c.usageWanted()
	k := &chunks{head: c.chatHead("chat.completion.chunk"), nullUsage: wanted && script.usageMode == usageIfAsked}
	k.buf = make([]byte, 0, (len(words)*n+4)*(len(k.head)+120))
	total := c.count(n * len(words))
	sent := 0
	progress := func() string {
		if script.usageMode != usageCumulative {
			return ""
		}
		return usageObject(usage{in: total.in, out: sent})
	}
	each := func(delta, logprobs, finish string) {
		for i := range n {
			k.add(`[{"index":`+strconv.Itoa(i)+`,"delta":`+delta+`,"logprobs":`+logprobs+`,"finish_reason":`+finish+`}]`, progress())
		}
	}

	if script.choices != "" {
		k.raw("data: " + c.withChoices(k.head, "") + "}\n\n")
	}
	each(`{"role":"assistant","content":"","refusal":null}`, "null", "null")
	if script.roleOnly {
		each(`{"role":"assistant"}`, "null", "null")
	}
	if script.giantLine > 0 {
		each(`{"content":"`+strings.Repeat("x", script.giantLine)+`"}`, "null", "null")
	}
	quoted := `"` + finish + `"`
	switch {
	case c.tools() != "":
		sent = total.out
		each(`{"tool_calls":`+c.tools()+`}`, "null", "null")
	case script.refusal:
		sent = total.out
		each(`{"refusal":`+refusalText+`}`, "null", "null")
	default:
		for i, word := range words {
			logprobs, end := "null", "null"
			if script.logprobs {
				logprobs = logprobsOf(words[i : i+1])
			}
			last := script.combined && i == len(words)-1
			if last {
				end = quoted
			}
			for choice := range n {
				sent++
				said := progress()
				if last && choice == n-1 && script.usageMode != usageNever {
					said = usageObject(total)
				}
				k.add(`[{"index":`+strconv.Itoa(choice)+`,"delta":{"content":`+string(quote(word))+`},"logprobs":`+logprobs+`,"finish_reason":`+end+`}]`, said)
			}
		}
	}
	if script.annotations {
		each(`{"annotations":[{"type":"url_citation","url_citation":{"start_index":0,"end_index":3,"url":"https://example.com/","title":"Example"}}]}`, "null", "null")
	}
	if script.combined && len(words) > 0 && c.tools() == "" && !script.refusal {
		return k.answer()
	}
	each("{}", "null", quoted)
	if wanted {
		k.add("[]", usageObject(total))
	}
	return k.answer()
}

func logprobsOf(words []string) string {
	var b strings.Builder
	b.WriteString(`{"content":[`)
	for i, word := range words {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`{"token":` + string(quote(word)) + `,"logprob":-0.25,"bytes":[`)
		for j := range len(word) {
			if j > 0 {
				b.WriteByte(',')
			}
			b.WriteString(strconv.Itoa(int(word[j])))
		}
		b.WriteString(`],"top_logprobs":[]}`)
	}
	b.WriteString(`],"refusal":null}`)
	return b.String()
}

// legacyLimit is the output limit of legacy completions that state none.
const legacyLimit = 16

func (c *call) completion() answer {
	words, missing := c.cut(legacyLimit)
	finish := `"stop"`
	if missing {
		finish = `"length"`
	}
	n := c.body.choices()
	if c.body.Prompt.Kind() == '[' {
		// A list of numbers is one prompt; one of strings or of lists of numbers is many.
		var prompts []jsontext.Value
		if decode(c.body.Prompt, &prompts) == nil && len(prompts) > 0 && prompts[0].Kind() != '0' {
			n *= len(prompts)
		}
	}
	head := `{"id":"cmpl-mock-` + c.number() + `","object":"text_completion","created":` + created + `,"model":` + c.model() + `,"choices":`
	choice := func(i int, text, end string) string {
		return `{"text":` + string(quote(text)) + `,"index":` + strconv.Itoa(i) + `,"logprobs":null,"finish_reason":` + end + `}`
	}
	total := c.count(n * len(words))
	if !c.body.Stream {
		list := make([]string, n)
		for i := range list {
			list[i] = choice(i, strings.Join(words, ""), finish)
		}
		body := head + "[" + strings.Join(list, ",") + "]"
		if c.script.usageMode != usageNever {
			body += `,"usage":` + usageObject(total)
		}
		return unary(body + "}")
	}
	wanted := c.usageWanted()
	k := &chunks{head: head, nullUsage: wanted && c.script.usageMode == usageIfAsked}
	for _, word := range words {
		for i := range n {
			k.add("["+choice(i, word, "null")+"]", "")
		}
	}
	for i := range n {
		k.add("["+choice(i, "", finish)+"]", "")
	}
	if wanted {
		k.add("[]", usageObject(total))
	}
	return k.answer()
}

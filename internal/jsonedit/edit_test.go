package jsonedit_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
)

func with(t require.TestingT, body string, edits ...jsonedit.Edit) string {
	doc, err := jsonedit.Parse([]byte(body))
	require.NoError(t, err, body)
	out, err := doc.With(edits...)
	require.NoError(t, err, body)
	require.Equal(t, body, string(doc.Bytes()), "the original must survive")
	return string(out)
}

func TestWith(t *testing.T) {
	t.Parallel()
	model := jsonedit.At("model").String("b\"<é>")
	usage := jsonedit.At("stream_options", "include_usage").Bool(true)
	for name, c := range map[string]struct {
		body  string
		edits []jsonedit.Edit
		want  string
	}{
		"no edit":         {` { "a" : 1 } `, nil, ` { "a" : 1 } `},
		"replace":         {"{ \"model\" :\t\"a\" , \"n\":1.0}\n", []jsonedit.Edit{model}, "{ \"model\" :\t\"b\\\"<é>\" , \"n\":1.0}\n"},
		"escaped name":    {`{"m\u006fdel":"a"}`, []jsonedit.Edit{model}, `{"m\u006fdel":"b\"<é>"}`},
		"last of several": {`{"n":1,"model":"a"}`, []jsonedit.Edit{model}, `{"n":1,"model":"b\"<é>"}`},
		"insert":          {`{ "a":1}`, []jsonedit.Edit{jsonedit.At("n").Int(-5)}, `{"n":-5, "a":1}`},
		"insert into empty": {
			`{ }`,
			[]jsonedit.Edit{jsonedit.At("n").Int(1), jsonedit.At("raw").Raw([]byte(`[1e400]`))},
			`{"n":1,"raw":[1e400] }`,
		},
		"usage absent":        {`{"stream":true}`, []jsonedit.Edit{usage}, `{"stream_options":{"include_usage":true},"stream":true}`},
		"usage null":          {`{"stream_options": null }`, []jsonedit.Edit{usage}, `{"stream_options": {"include_usage":true} }`},
		"usage empty":         {`{"stream_options": { } }`, []jsonedit.Edit{usage}, `{"stream_options": {"include_usage":true } }`},
		"usage false":         {`{"stream_options":{"x":1.0, "include_usage": false}}`, []jsonedit.Edit{usage}, `{"stream_options":{"x":1.0, "include_usage": true}}`},
		"usage beside":        {`{"stream_options":{ "x":1.0 }}`, []jsonedit.Edit{usage}, `{"stream_options":{"include_usage":true, "x":1.0 }}`},
		"usage inside null":   {`{"stream_options":{"include_usage":null}}`, []jsonedit.Edit{usage}, `{"stream_options":{"include_usage":true}}`},
		"two inside absent":   {`{}`, []jsonedit.Edit{usage, jsonedit.At("stream_options", "x").Int(1)}, `{"stream_options":{"include_usage":true,"x":1}}`},
		"delete first":        {`{ "a":1, "b":2}`, []jsonedit.Edit{jsonedit.At("a").Delete()}, `{ "b":2}`},
		"delete last":         {`{"a":1 , "b":2 }`, []jsonedit.Edit{jsonedit.At("b").Delete()}, `{"a":1 }`},
		"delete only":         {`{ "a":1 }`, []jsonedit.Edit{jsonedit.At("a").Delete()}, `{  }`},
		"delete absent":       {`{"a":1}`, []jsonedit.Edit{jsonedit.At("b").Delete(), jsonedit.At("c", "d").Delete()}, `{"a":1}`},
		"delete inside null":  {`{"a":null}`, []jsonedit.Edit{jsonedit.At("a", "d").Delete()}, `{"a":null}`},
		"delete inside":       {`{"a":{"d":1,"e":2},"b":3}`, []jsonedit.Edit{jsonedit.At("a", "d").Delete()}, `{"a":{"e":2},"b":3}`},
		"delete last two":     {`{"a":1,"b":2,"c":3}`, []jsonedit.Edit{jsonedit.At("c").Delete(), jsonedit.At("b").Delete()}, `{"a":1}`},
		"delete all, insert":  {`{"a":1,"b":2}`, []jsonedit.Edit{jsonedit.At("a").Delete(), jsonedit.At("b").Delete(), jsonedit.At("c").Int(3)}, `{"c":3}`},
		"replace, delete":     {`{"model":"a","b":2}`, []jsonedit.Edit{model, jsonedit.At("b").Delete()}, `{"model":"b\"<é>"}`},
		"deep":                {`{"a":{"b":{"c":1}}}`, []jsonedit.Edit{jsonedit.At("a", "b", "c").Int(2), jsonedit.At("a", "x", "y").Int(3)}, `{"a":{"x":{"y":3},"b":{"c":2}}}`},
		"name needs escaping": {`{}`, []jsonedit.Edit{jsonedit.At("a\"\n").Int(2)}, `{"a\"\n":2}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, with(t, c.body, c.edits...))
		})
	}
}

func TestWith_RefusesToEditInsideOfNoObject(t *testing.T) {
	t.Parallel()
	for _, value := range []string{`[]`, `"x"`, `1`, `false`} {
		_, err := parse(t, `{"stream_options":`+value+`}`).With(jsonedit.At("stream_options", "include_usage").Bool(true))
		require.ErrorIs(t, err, jsonedit.ErrWantObject)
		require.ErrorContains(t, err, "stream_options")
		_, err = parse(t, `{"a":{"b":`+value+`}}`).With(jsonedit.At("a", "b", "c").Int(1))
		require.EqualError(t, err, "the member must be an object: a.b")
	}
}

// odd is a body as clients send them: odd order, white space, numbers that no float holds, zeros and nulls that mean
// something, characters that encoders like to escape.
const odd = "{\"temperature\" : 0, \"top_p\":0,\t\"seed\": 9007199254740993,\n\n \"n\":1,\"presence_penalty\":0, \"stop\":null, " +
	"\"stream\":false,\"model\":\"gpt-4o\",\"logprobs\":false,\"metadata\":{\"id\":9223372036854775807,\"z\":1E+2,\"a\":1.0}, " +
	"\"x\":0.123000000000000005123, \"messages\":[{\"role\":\"user\",\"content\":\"<b> & \u2028 \\u00e9 \\/ \\ud83d\",\"reasoning_content\":\"\"}]} \n"

func TestF103_F104_F118_AllButTheModelKeepsItsBytes(t *testing.T) {
	t.Parallel()
	out := with(t, odd, jsonedit.At("model").String("upstream/model"))
	require.Equal(t, strings.Replace(odd, `"gpt-4o"`, `"upstream/model"`, 1), out)
	require.Equal(t, out, with(t, odd, jsonedit.At("model").String("upstream/model")), "the same body twice is the same prefix twice")
}

// TestWith_EqualsEditsOfAList compares with a list of members that is edited by the book.
func TestWith_EqualsEditsOfAList(t *testing.T) {
	t.Parallel()
	blank := rapid.StringMatching(`[ \t\r\n]{0,2}`)
	names := []string{"model", "a", "b\u0000", "é", "stream", "m", ""}
	values := []string{`1`, `-0.0`, `"x"`, `"}{,\""`, `null`, `[]`, `[1, {"a":2}]`, `{}`, `{ "a" : {"b":[ ]} }`, `true`}
	type pair struct{ Name, Value string }
	rapid.Check(t, func(t *rapid.T) {
		var members []pair
		var body strings.Builder
		body.WriteString(blank.Draw(t, "before") + "{" + blank.Draw(t, "open"))
		for i, name := range rapid.SliceOfDistinct(rapid.SampledFrom(names), rapid.ID[string]).Draw(t, "names") {
			if i > 0 {
				body.WriteString("," + blank.Draw(t, "comma"))
			}
			value := rapid.SampledFrom(values).Draw(t, "value")
			quoted, err := json.Marshal(name)
			require.NoError(t, err)
			fmt.Fprintf(&body, "%s%s:%s%s%s", quoted, blank.Draw(t, "name"), blank.Draw(t, "colon"), value, blank.Draw(t, "value end"))
			members = append(members, pair{name, value})
		}
		body.WriteString("}" + blank.Draw(t, "after"))

		var edits []jsonedit.Edit
		var added []pair
		for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom(names), rapid.ID[string]).Draw(t, "edited") {
			at := slices.IndexFunc(members, func(p pair) bool { return p.Name == name })
			if rapid.Bool().Draw(t, "delete") {
				edits = append(edits, jsonedit.At(name).Delete())
				if at >= 0 {
					members = slices.Delete(members, at, at+1)
				}
				continue
			}
			value := rapid.SampledFrom(values).Draw(t, "new value")
			edits = append(edits, jsonedit.At(name).Raw([]byte(value)))
			if at >= 0 {
				members[at].Value = value
			} else {
				added = append(added, pair{name, value})
			}
		}

		out := with(t, body.String(), edits...)
		var got []pair
		dec := json.NewDecoder(strings.NewReader(out))
		_, err := dec.Token()
		require.NoError(t, err, out)
		for dec.More() {
			name, err := dec.Token()
			require.NoError(t, err, out)
			var value json.RawMessage
			require.NoError(t, dec.Decode(&value), out)
			got = append(got, pair{name.(string), string(value)})
		}
		require.True(t, json.Valid([]byte(out)), out)
		require.Empty(t, cmp.Diff(slices.Concat(added, members), got), out)
	})
}

func TestMapTexts(t *testing.T) {
	t.Parallel()
	body := `{ "model":"secret","user":"secret", "messages":[{"role":"secret","content":"a secret\n"},{"content":[{"type":"text","text":"s\u0065cret"},` +
		`{"type":"image_url","image_url":{"url":"data:secret,secret"}},{"source":{"data":"secret","type":"text"},"type":"document"},` +
		`{"source":{"data":"secret","type":"base64"},"type":"image"},{"result":"secret"},{"input":{"secret":["secret",1.0]}}]}],"system" : "secrets"}`
	want := `{ "model":"secret","user":"secret", "messages":[{"role":"secret","content":"a \"*\"\n"},{"content":[{"type":"text","text":"\"*\""},` +
		`{"type":"image_url","image_url":{"url":"data:secret,secret"}},{"source":{"data":"\"*\"","type":"text"},"type":"document"},` +
		`{"source":{"data":"secret","type":"base64"},"type":"image"},{"result":"\"*\""},{"input":{"secret":["\"*\"",1.0]}}]}],"system" : "\"*\"s"}`
	doc := parse(t, body)
	var seen []string
	out := doc.MapTexts(func(text string) string {
		seen = append(seen, text)
		return strings.ReplaceAll(text, "secret", `"*"`)
	})
	require.Equal(t, want, string(out))
	require.Equal(t, []string{"a secret\n", "secret", "secret", "secret", "secret", "secrets"}, seen)
	require.Equal(t, body, string(doc.Bytes()), "the original must survive")

	same := doc.MapTexts(func(text string) string { return text })
	require.Same(t, &doc.Bytes()[0], &same[0], "nothing changed, nothing copied")
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		odd, `{}`, `{"model":"a","m\u006fdel":"b"}`, `{"stream_options":{"include_usage":null}}`, `{"a":"\ud800"}`,
		`{"tools":[{"function":{"parameters":{"a":1,"a":2}}}]}`, `{"input":[[1,2],"x",{"type":"input_image","image_url":"data:,"}]}`,
		`{"messages":[{"content":[{"source":{"type":"base64","data":"AA","media_type":"image/png"},"type":"image","cache_control":{"ttl":"1h"}}]}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		doc, err := jsonedit.Parse(body)
		if err != nil {
			return
		}
		var members map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(body, &members), "what is accepted is JSON")
		for name, want := range members {
			raw, ok := doc.Get(name)
			require.True(t, ok, name)
			require.Equal(t, string(want), string(raw))
		}
		require.LessOrEqual(t, doc.Facts().TextBytes, int64(len(body)))
		var texts int64
		_ = doc.MapTexts(func(text string) string { texts += int64(len(text)); return text + "'" })
		require.LessOrEqual(t, texts, doc.Facts().TextBytes, "names of tool inputs count as well")
		out, err := doc.With(jsonedit.At("model").String("other"))
		require.NoError(t, err)
		again, err := jsonedit.Parse(out)
		require.NoError(t, err)
		model, ok, err := again.String("model")
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, "other", model)
		for name, want := range members {
			if raw, ok := again.Get(name); name != "model" {
				require.True(t, ok)
				require.Equal(t, string(want), string(raw))
			}
		}
	})
}

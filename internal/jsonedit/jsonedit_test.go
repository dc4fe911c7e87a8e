package jsonedit_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func parse(t *testing.T, body string) *jsonedit.Document {
	t.Helper()
	doc, err := jsonedit.Parse([]byte(body))
	require.NoError(t, err, body)
	return doc
}

func TestParse_Refuses(t *testing.T) {
	t.Parallel()
	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(`"k` + strings.Repeat("x", i%7) + string(rune('0'+i%10)) + strings.Repeat("y", i/70) + `":0`)
		}
		return "{" + b.String() + "}"
	}
	for name, c := range map[string]struct {
		body   string
		reason error
		param  string
	}{
		"empty":                     {``, jsonedit.ErrNotObject, ""},
		"blank":                     {" \n", jsonedit.ErrNotObject, ""},
		"null":                      {`null`, jsonedit.ErrNotObject, ""},
		"array":                     {`[{"model":"a"}]`, jsonedit.ErrNotObject, ""},
		"string":                    {`"x"`, jsonedit.ErrNotObject, ""},
		"word":                      {`model=a`, jsonedit.ErrSyntax, ""},
		"cut":                       {`{"model":"a"`, jsonedit.ErrSyntax, ""},
		"cut in a string":           {`{"model":"a`, jsonedit.ErrSyntax, ""},
		"comma at the end":          {`{"model":"a",}`, jsonedit.ErrSyntax, ""},
		"comment":                   {`{"model":"a"/**/}`, jsonedit.ErrSyntax, ""},
		"control character":         {"{\"model\":\"a\nb\"}", jsonedit.ErrSyntax, ""},
		"wrong bracket":             {`{"a":1]`, jsonedit.ErrSyntax, ""},
		"name without a value":      {`{"a"}`, jsonedit.ErrSyntax, ""},
		"object for a name":         {`{{}:1}`, jsonedit.ErrSyntax, ""},
		"number for a name":         {`{1:1}`, jsonedit.ErrSyntax, ""},
		"missing comma":             {`{"a":1 "b":2}`, jsonedit.ErrSyntax, ""},
		"leading zero":              {`{"n":01}`, jsonedit.ErrSyntax, ""},
		"NaN":                       {`{"n":NaN}`, jsonedit.ErrSyntax, ""},
		"bad escape":                {`{"model":"\x"}`, jsonedit.ErrSyntax, ""},
		"value behind":              {`{"model":"a"} {}`, jsonedit.ErrTrailingData, ""},
		"bytes behind":              {`{"model":"a"}x`, jsonedit.ErrTrailingData, ""},
		"NUL behind":                {"{\"model\":\"a\"}\x00", jsonedit.ErrTrailingData, ""},
		"invalid UTF-8":             {"{\"model\":\"a\xff\"}", jsonedit.ErrInvalidUTF8, ""},
		"raw surrogate":             {"{\"model\":\"\xed\xa0\x80\"}", jsonedit.ErrInvalidUTF8, ""},
		"byte order mark":           {"\xef\xbb\xbf{}", jsonedit.ErrSyntax, ""},
		"twice":                     {`{"model":"cheap","model":"dear"}`, jsonedit.ErrDuplicateName, "model"},
		"twice, escaped":            {`{"model":"cheap","m\u006fdel":"dear"}`, jsonedit.ErrDuplicateName, "model"},
		"twice, deep":               {`{"messages":[{"role":"user"},{"role":"a","role":"b"}]}`, jsonedit.ErrDuplicateName, "messages[1].role"},
		"twice in metadata":         {`{"metadata":{"input":{"a":1,"a":2}}}`, jsonedit.ErrDuplicateName, "metadata.input.a"},
		"twice beside a tool input": {`{"messages":[{"content":[{"input":{"a":1,"a":2},"id":1,"id":2}]}]}`, jsonedit.ErrDuplicateName, "messages[0].content[0].id"},
		"twice, inside of many":     {strings.Replace(many(10_000), "{", `{"k3yy":0,`, 1), jsonedit.ErrDuplicateName, "-"},
		"case variant":              {`{"Model":"a"}`, jsonedit.ErrCaseVariant, "Model"},
		"case variant, folded":      {"{\"me\u017f\u017fages\":[]}", jsonedit.ErrCaseVariant, "me\u017f\u017fages"},
		"case variant beside":       {`{"model":"a","MODEL":"b"}`, jsonedit.ErrCaseVariant, "MODEL"},
		"too deep":                  {`{"a":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `}`, jsonedit.ErrTooDeep, "-"},
		"too many names":            {many(10_001), jsonedit.ErrTooManyNames, "-"},
		"too many tokens":           {`{"input":[` + strings.Repeat("1,", 1_000_000) + `1]}`, jsonedit.ErrTooManyTokens, "-"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := jsonedit.Parse([]byte(c.body))
			require.ErrorIs(t, err, c.reason)
			var e *jsonedit.Error
			require.True(t, errors.As(err, &e))
			if c.param != "-" {
				require.Equal(t, c.param, e.Param)
			}
			require.Less(t, len(e.Error()), 300)
		})
	}
	parse(t, many(10_000))
	parse(t, `{"a":`+strings.Repeat("[", 999)+strings.Repeat("]", 999)+`}`)
}

func TestParse_Accepts(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		" \t\r\n{} \n",
		`{"a":"\ud800","b":"\udc00\ud800"}`,
		`{"a":1e400,"b":-0,"c":123456789012345678901234567890}`,
		`{"xMODEL":1,"models":2,"":3}`,
		`{"metadata":{"Model":1,"model":2}}`,
		`{"a":{"x":1},"b":{"x":1},"c":[{"x":1},{"x":1}]}`,
		`{"messages":[{"tool_calls":[{"function":{"name":"f","arguments":{"a":1,"a":2}}}]}]}`,
		`{"messages":[{"content":[{"type":"tool_use","input":{"a":{"b":1,"b":2}}}]}]}`,
		`{"input":[{"type":"function_call","arguments":{"a":1,"a":2}}]}`,
		`{"tools":[{"function":{"parameters":{"properties":{"a":{},"a":{}}}}}]}`,
		`{"tools":[{"parameters":{"a":1,"a":2}},{"input_schema":{"a":1,"a":2},"input_examples":[{"a":1,"a":2}]}]}`,
		`{"functions":[{"parameters":{"a":1,"a":2}}]}`,
		`{"response_format":{"json_schema":{"schema":{"a":1,"a":2}}},"text":{"format":{"schema":{"a":1,"a":2}}}}`,
		`{"output_format":{"schema":{"a":1,"a":2}},"output_config":{"format":{"schema":{"a":1,"a":2}}}}`,
	} {
		require.Equal(t, body, string(parse(t, body).Bytes()))
	}
}

// TestParse_FindsTheNameGivenTwice puts one name twice into an object of any number of names.
func TestParse_FindsTheNameGivenTwice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-c]{1,4}`), 1, 60, rapid.ID[string]).Draw(t, "names")
		body := func() []byte { return []byte(`{"metadata":{"` + strings.Join(names, `":{"x":1},"`) + `":[]}}`) }
		_, err := jsonedit.Parse(body())
		require.NoError(t, err)
		twice := rapid.SampledFrom(names).Draw(t, "twice")
		names = slices.Insert(names, rapid.IntRange(0, len(names)).Draw(t, "at"), twice)
		_, err = jsonedit.Parse(body())
		require.ErrorIs(t, err, jsonedit.ErrDuplicateName)
		require.ErrorContains(t, err, "metadata."+twice)
	})
}

func TestError_NamesLongMembersInShort(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("狐", 100_000)
	_, err := jsonedit.Parse([]byte(`{"metadata":{"` + long + `":1,"` + long + `":2}}`))
	require.ErrorIs(t, err, jsonedit.ErrDuplicateName)
	require.Less(t, len(err.Error()), 300)
	require.True(t, utf8.ValidString(err.Error()))
}

func TestDocument_Get(t *testing.T) {
	t.Parallel()
	doc := parse(t, `{ "m\u006fdel" : "gp\u0074" ,"n":null, "stream_options":{ "x" : [1, 2] ,"include_usage":true},"s":"x","":0}`)
	for path, want := range map[string]string{
		"model": `"gp\u0074"`, "n": `null`, "stream_options/x": `[1, 2]`, "stream_options/include_usage": `true`, "": `0`,
	} {
		raw, ok := doc.Get(strings.Split(path, "/")...)
		require.True(t, ok, path)
		require.Equal(t, want, string(raw), path)
	}
	for _, path := range []string{"Model", "x", "stream_options/y", "s/x", "n/x", "stream_options/x/y"} {
		_, ok := doc.Get(strings.Split(path, "/")...)
		require.False(t, ok, path)
	}
	_, ok := doc.Get()
	require.False(t, ok)
}

func TestDocument_TypedReads(t *testing.T) {
	t.Parallel()
	doc := parse(t, `{"s":"a\"\u4e2d\ud800","n":null,"i":-9223372036854775808,"big":9223372036854775808,"f":1.5,"w":1.0,"e":1e3,"huge":1e400,`+
		`"t":true,"o":{"f":false,"i":7,"s":"x"},"a":[]}`)

	s, ok, err := doc.String("s")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "a\"中\ufffd", s)
	i, ok, err := doc.Int("i")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, int64(-9223372036854775808), i)
	i, _, err = doc.Int("o", "i")
	require.NoError(t, err)
	require.Equal(t, int64(7), i)
	b, ok, err := doc.Bool("t")
	require.NoError(t, err)
	require.True(t, ok)
	require.True(t, b)
	b, ok, err = doc.Bool("o", "f")
	require.NoError(t, err)
	require.True(t, ok)
	require.False(t, b)

	for _, name := range []string{"n", "absent"} {
		_, ok, err = doc.String(name)
		require.NoError(t, err)
		require.False(t, ok)
		_, ok, err = doc.Int(name)
		require.NoError(t, err)
		require.False(t, ok)
		_, ok, err = doc.Bool(name)
		require.NoError(t, err)
		require.False(t, ok)
	}
	for _, name := range []string{"s", "big", "f", "huge", "t", "o", "a"} {
		_, _, err = doc.Int(name)
		require.ErrorIs(t, err, jsonedit.ErrWantInteger, name)
	}
	for _, name := range []string{"i", "t", "o", "a"} {
		_, _, err = doc.String(name)
		require.ErrorIs(t, err, jsonedit.ErrWantString, name)
	}
	for _, name := range []string{"i", "s", "o", "a"} {
		_, _, err = doc.Bool(name)
		require.ErrorIs(t, err, jsonedit.ErrWantBool, name)
	}
	_, _, err = doc.Int("o", "s")
	require.EqualError(t, err, "the member must be an integer: o.s")
}

func TestDocument_IntTakesWholeNumbersHoweverWritten(t *testing.T) {
	t.Parallel()
	for literal, want := range map[string]int64{
		"0": 0, "-0": 0, "0.0": 0, "0e5": 0, "0.000e-9": 0, "100.0": 100, "1e2": 100, "1E+2": 100, "12.50e1": 125, "100e-2": 1,
		"-1.5e1": -15, "9223372036854775807.0": 9223372036854775807, "-9223372036854775808.0": -9223372036854775808,
	} {
		n, ok, err := parse(t, `{"n":`+literal+`}`).Int("n")
		require.NoError(t, err, literal)
		require.True(t, ok, literal)
		require.Equal(t, want, n, literal)
	}
	for _, literal := range []string{"0.5", "1e-1", "12.5", "1e400", "1e19", "9223372036854775808.0", "1e99999999999999999999", `"1"`} {
		_, _, err := parse(t, `{"n":`+literal+`}`).Int("n")
		require.ErrorIs(t, err, jsonedit.ErrWantInteger, literal)
	}
}

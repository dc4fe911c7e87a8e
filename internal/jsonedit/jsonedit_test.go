package jsonedit_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

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

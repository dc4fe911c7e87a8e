package jsonscan_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollgate-gateway/tollgate/internal/jsonscan"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// walk collects the strings of a text with the names in front of them.
func walk(s *jsonscan.Scanner, name string, into *[]string) {
	switch s.Kind() {
	case '{':
		for s.Enter('{'); s.Next(); {
			walk(s, string(s.Name()), into)
		}
	case '[':
		for s.Enter('['); s.Next(); {
			walk(s, name, into)
		}
	case '"':
		*into = append(*into, name+"="+string(s.Text()))
	default:
		s.Skip()
	}
}

func TestScanner(t *testing.T) {
	t.Parallel()
	var s jsonscan.Scanner
	for _, tc := range []struct {
		text  string
		said  []string
		whole bool
	}{
		{`{"a":"x","b":[1,null,{"c":"\u00e9\ud800"}],"a":"y"}`, []string{"a=x", "c=é\uFFFD", "a=y"}, true},
		{` "é\n" `, []string{"=é\n"}, true},
		{`{}`, nil, true},
		{`{"a":"x"} x`, []string{"a=x"}, false},
		{`{"a":"x`, []string{"a="}, false},
		{``, nil, false},
		{`{"a":"x",}`, []string{"a=x"}, false},
	} {
		var said []string
		s.Reset([]byte(tc.text))
		walk(&s, "", &said)
		require.Equal(t, tc.whole, s.End(), tc.text)
		require.Equal(t, tc.said, said, tc.text)
	}
	s.Reset([]byte(`[1]`))
	s.Enter('{')
	require.True(t, s.Fault())
	require.False(t, s.Next())
	require.Nil(t, s.Raw())
	require.Empty(t, s.Text())
}

func FuzzScanner(f *testing.F) {
	f.Add([]byte(`{"a":["b",{"c":1}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var s jsonscan.Scanner
		var said []string
		s.Reset(text)
		walk(&s, "", &said)
		if json.Valid(text) {
			require.True(t, s.End(), "%q", text)
		}
	})
}

package translate_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Ids come back from clients: what stands in them is read with suspicion.
func TestCallIDs_OfOthersAreWhatTheyAre(t *testing.T) {
	t.Parallel()
	for _, sealed := range []string{
		"", "!", base64.RawURLEncoding.EncodeToString([]byte("{")), base64.RawURLEncoding.EncodeToString([]byte("\"\xff\"")),
		base64.RawURLEncoding.EncodeToString([]byte(`{"a":1,"a":2}`)), base64.RawURLEncoding.EncodeToString([]byte(`{} {}`)),
	} {
		id := "call_1__extra__" + sealed
		out, _ := translated(t, between(t, messages, chat), `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"Hi"},`+
			`{"role":"assistant","content":[{"type":"tool_use","id":"`+id+`","name":"a","input":{}}]},`+
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"`+id+`","content":"ok"}]}]}`, "up")
		require.Equal(t, 2, strings.Count(out, `"`+id+`"`), out)
		require.NotContains(t, out, "extra_content")
	}
}

func TestComposed_RefusesWhatGrowsTooDeep(t *testing.T) {
	t.Parallel()
	const depth = 997 // with the three around it as deep as a body may be
	deep := strings.Repeat(`{"a":`, depth) + "1" + strings.Repeat("}", depth)
	refusal := refused(t, between(t, messages, responded), `{"model":"m","max_tokens":9,"tools":[{"name":"a","input_schema":`+deep+`}],"messages":[{"role":"user","content":"Hi"}]}`)
	require.Contains(t, refusal.Public, "too deep")
}

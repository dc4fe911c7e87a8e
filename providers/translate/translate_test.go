package translate_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
	"github.com/tollgate-gateway/tollgate/providers/translate"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock stands at 1,700,000,000 seconds.
func clock() time.Time { return time.Unix(1_700_000_000, 0) }

// between returns the translator for a pair of dialects.
func between(t testing.TB, from, to providers.Dialect) providers.Translator {
	t.Helper()
	for _, tr := range translate.All(clock) {
		if tr.From() == from && tr.To() == to {
			return tr
		}
	}
	t.Fatalf("no translator from %s to %s", from, to)
	return nil
}

// folder returns where the golden files of a translator are.
func folder(tr providers.Translator) string {
	name := func(d providers.Dialect) string { return strings.ReplaceAll(string(d), "/", "_") }
	return filepath.Join("testdata", name(tr.From())+"-"+name(tr.To()))
}

// model is what the targets of golden requests are called, unless the case has a file "model".
func model(tr providers.Translator) string {
	switch tr.To() {
	case providers.AnthropicMessages:
		return "claude-sonnet-4-5"
	case providers.GeminiGenerate:
		return "gemini-3-flash"
	case providers.BedrockConverse:
		return "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
	}
	return "gpt-4o"
}

func parse(t testing.TB, body string) *jsonedit.Document {
	t.Helper()
	doc, err := jsonedit.Parse([]byte(body))
	require.NoError(t, err, body)
	return doc
}

// translated returns what becomes of a request: the body, its warnings.
func translated(t testing.TB, tr providers.Translator, body, model string) (string, []providers.Warning) {
	t.Helper()
	out, warnings, err := tr.Request(parse(t, body), model)
	require.NoError(t, err, body)
	require.True(t, jsontext.Value(out).IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)), string(out))
	return string(out), warnings
}

// refused returns the error that becomes of a request.
func refused(t testing.TB, tr providers.Translator, body string) *governance.Error {
	t.Helper()
	_, _, err := tr.Request(parse(t, body), model(tr))
	var domain *governance.Error
	require.ErrorAs(t, err, &domain, body)
	require.Equal(t, governance.CodeInvalidRequest, domain.Code)
	return domain
}

// stream feeds an upstream's stream to an answer, as the gateway does: errors go to Error, the end to End.
func stream(answer providers.Answer, upstream io.Reader) (string, error) {
	var out bytes.Buffer
	for events := sse.NewReader(upstream); ; {
		ev, err := events.Next()
		if errors.Is(err, io.EOF) {
			err := answer.End(&out)
			return out.String(), err
		}
		if err != nil {
			return out.String(), err
		}
		if err := answer.Event(&out, ev); err != nil {
			return out.String(), err
		}
	}
}

// streamed is stream for a whole stream of the client's dialect.
func streamed(t testing.TB, tr providers.Translator, client, upstream string) string {
	t.Helper()
	out, err := stream(tr.NewAnswer(parse(t, client)), strings.NewReader(upstream))
	require.NoError(t, err, out)
	return out
}

// events splits a stream of the client's dialect.
func events(t testing.TB, out string) (all []sse.Event) {
	t.Helper()
	for r := sse.NewReader(strings.NewReader(out)); ; {
		ev, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		all = append(all, sse.Event{Raw: bytes.Clone(ev.Raw), Name: bytes.Clone(ev.Name), Data: bytes.Clone(ev.Data)})
	}
}

// golden compares a text with a file, or writes it.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
		return
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got, file)
}

// indented lays JSON out for people; strings and numbers stay as they are.
func indented(t *testing.T, body []byte) string {
	t.Helper()
	v := jsontext.Value(bytes.Clone(body))
	require.NoError(t, v.Format(
		jsontext.Multiline(true), jsontext.WithIndent("  "), jsontext.PreserveRawStrings(true),
		jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true),
	))
	return string(v) + "\n"
}

// eachCase runs f for every folder of golden files of every translator.
func eachCase(t *testing.T, f func(t *testing.T, tr providers.Translator, dir string)) {
	t.Helper()
	for _, tr := range translate.All(clock) {
		dirs, err := filepath.Glob(filepath.Join(folder(tr), "*"))
		require.NoError(t, err)
		require.NotEmpty(t, dirs, "%s needs golden files", folder(tr))
		for _, dir := range dirs {
			t.Run(strings.TrimPrefix(dir, "testdata/"), func(t *testing.T) {
				t.Parallel()
				f(t, tr, dir)
			})
		}
	}
}

// given reads a file of a case; ok is false where the case has none.
func given(t *testing.T, dir, file string) (content string, ok bool) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, file))
	if errors.Is(err, os.ErrNotExist) {
		return "", false
	}
	require.NoError(t, err)
	return string(b), true
}

// A case is a folder. What is given: client.json, the client's request; upstream.json, the answer to it; upstream.txt, the
// stream in its place; model, the target's name for the model. What is golden: request.json and warnings.txt, or
// refusal.txt, for the target; answer.json or answer.txt for the client.
func TestGolden(t *testing.T) {
	t.Parallel()
	eachCase(t, func(t *testing.T, tr providers.Translator, dir string) {
		client, ok := given(t, dir, "client.json")
		require.True(t, ok, "a case needs client.json")
		name, ok := given(t, dir, "model")
		if !ok {
			name = model(tr)
		}
		doc := parse(t, client)
		out, warnings, err := tr.Request(doc, strings.TrimSpace(name))
		if err != nil {
			var domain *governance.Error
			require.ErrorAs(t, err, &domain)
			golden(t, filepath.Join(dir, "refusal.txt"), fmt.Sprintf("%s: %s\n", domain.Param, domain.Public))
			return
		}
		golden(t, filepath.Join(dir, "request.json"), indented(t, out))
		var lines strings.Builder
		for _, w := range warnings {
			fmt.Fprintf(&lines, "%s: %s\n", w.Param, w.Reason)
		}
		if _, had := given(t, dir, "warnings.txt"); had || lines.Len() > 0 {
			golden(t, filepath.Join(dir, "warnings.txt"), lines.String())
		}
		if upstream, ok := given(t, dir, "upstream.json"); ok {
			answer, err := tr.NewAnswer(doc).Body([]byte(upstream))
			require.NoError(t, err)
			golden(t, filepath.Join(dir, "answer.json"), indented(t, answer))
		}
		if upstream, ok := given(t, dir, "upstream.txt"); ok {
			answer, err := stream(tr.NewAnswer(doc), strings.NewReader(upstream))
			require.NoError(t, err)
			golden(t, filepath.Join(dir, "answer.txt"), answer)
		}
	})
}

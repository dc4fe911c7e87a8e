package gateway

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/providers/openai"
)

// carried is what becomes of a file whose model is known already.
func carried(file []byte, upstream string) (text []byte, f *batchFile, err error) {
	g := &Gateway{}
	g.bodies.left.Store(64 << 20)
	f = &batchFile{
		c: &call{g: g}, model: "public", route: batchRoute("/v1/chat/completions"), target: &governance.Target{UpstreamModel: upstream},
	}
	var out bytes.Buffer
	to := bufio.NewWriter(&out)
	err = f.carry(bytes.NewReader(file), func() (*bufio.Writer, error) { return to, nil })
	_ = to.Flush()
	if left := g.bodies.left.Load(); left != 64<<20 {
		err = errors.Join(err, fmt.Errorf("%d bytes of the budget are left", left))
	}
	return out.Bytes(), f, err
}

const requestLine = `{"custom_id":"%s","method":"POST","url":"/v1/chat/completions","body":{"messages":[{"role":"user","content":"é\u00e9 😀"}], "model" : "public","x":1.0}}`

func TestBatchFile_ChangesNothingButTheModel(t *testing.T) {
	t.Parallel()
	file := fmt.Sprintf(requestLine+"\r\n\n"+requestLine+"\n", "a", "b")
	text, f, err := carried([]byte(file), "upstream")
	require.NoError(t, err)
	require.Equal(t, strings.ReplaceAll(fmt.Sprintf(requestLine+"\n"+requestLine+"\n", "a", "b"), `"public"`, `"upstream"`), string(text))
	require.EqualValues(t, 2, f.demand.Batch.Requests)
	require.EqualValues(t, len(text), f.bytes)

	last, _, err := carried(bytes.TrimRight([]byte(file), "\n"), "upstream")
	require.NoError(t, err)
	require.Equal(t, text, last, "the last line may lack its end")
	f.target.Drop = []string{"x"}
	dropped, err := f.rewrite(3, fmt.Appendf(nil, requestLine, "c"))
	require.NoError(t, err)
	require.Equal(t, strings.NewReplacer(`"public",`, `"upstream"`, `"x":1.0`, "").Replace(fmt.Sprintf(requestLine, "c")), string(dropped))
	require.Equal(t, []string{"x: dropped, since the target refuses it"}, f.c.warnings)

	same, _, err := carried([]byte(file), "public")
	require.NoError(t, err)
	require.Equal(t, strings.ReplaceAll(strings.ReplaceAll(file, "\r", ""), "\n\n", "\n"), string(same))
}

func TestBatchFile_HasBounds(t *testing.T) {
	t.Parallel()
	var many bytes.Buffer
	for i := range maxBatchLines + 1 {
		fmt.Fprintf(&many, `{"custom_id":"%d","method":"POST","url":"/v1/chat/completions","body":{"model":"public"}}`+"\n", i)
	}
	text, _, err := carried(many.Bytes(), "public")
	require.ErrorContains(t, err, "Line 50001 of the file is one request too many")
	require.Equal(t, maxBatchLines, bytes.Count(text, []byte("\n")))

	_, _, err = carried(append([]byte(`{"custom_id":"`), bytes.Repeat([]byte("x"), maxBatchLine)...), "public")
	require.ErrorContains(t, err, "Line 1 of the file is longer than")
	_, _, err = carried(fmt.Appendf(nil, requestLine, strings.Repeat("x", maxCustomID+1)), "public")
	require.ErrorContains(t, err, "custom_id")
}

func FuzzBatchFile(f *testing.F) {
	f.Add([]byte(fmt.Sprintf(requestLine+"\n"+requestLine, "a", "b")))
	f.Add([]byte(fmt.Sprintf(requestLine, "a") + "\n{}"))
	f.Add([]byte(`{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"public","max_tokens":1e9,"n":3}}`))
	f.Fuzz(func(t *testing.T, file []byte) {
		text, b, err := carried(file, "upstream")
		if err != nil {
			if _, ok := errors.AsType[*governance.Error](err); !ok {
				t.Fatal("no error for a client: ", err)
			}
			return
		}
		lines := bytes.Split(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"))
		if int64(len(lines)) != b.demand.Batch.Requests {
			t.Fatalf("%d lines are %d requests", len(lines), b.demand.Batch.Requests)
		}
		for _, line := range lines {
			var said struct{ Body struct{ Model string } }
			if json.Unmarshal(line, &said) != nil || said.Body.Model != "upstream" {
				t.Fatalf("a provider reads %q in %s", said.Body.Model, line)
			}
		}
	})
}

func FuzzBatchAnswer(f *testing.F) {
	f.Add([]byte(`{"custom_id":"a","response":{"status_code":200,"body":{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}},"error":null}`))
	f.Add([]byte(`{"response":{"status_code":200,"body":{"choices":[{"message":{"content":"hello"}}]}}}`))
	f.Add([]byte(`{"response":null,"error":{}}`))
	f.Add([]byte(`{"response":{"status_code":500,"body":{}}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		b := &governance.Batch{Requests: 2, InputTokens: 7}
		q, charged, known := usageOf(line, openai.New().Meter(batchRoute("/v1/chat/completions").dialect), b)
		for _, n := range q {
			if n < 0 || n > governance.MaxTokens {
				t.Fatalf("%v", q)
			}
		}
		if known && !charged || charged && !known && q[governance.UnitInput] != 4 {
			t.Fatalf("%v %v %v", q, charged, known)
		}
	})
}

func TestReadLine_EndsWithItsReader(t *testing.T) {
	t.Parallel()
	in := bufio.NewReaderSize(io.MultiReader(strings.NewReader("one\ntwo"), brokenReader{}), 16)
	line, room, err := readLine(in, nil, 100)
	require.NoError(t, err)
	require.Equal(t, "one", string(line))
	_, _, err = readLine(in, room, 100)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF, "half a line is none")
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

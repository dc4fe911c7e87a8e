package mock

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollgate-gateway/tollgate/internal/secret"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// upstream is a running mock and a client without keep-alive surprises of other tests.
type upstream struct {
	*Server
	url    string
	client *http.Client
}

func start(t *testing.T, o Options) upstream {
	t.Helper()
	s, err := New(o)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, listener) }()
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		require.NoError(t, <-done)
	})
	noRedirects := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return upstream{s, "http://" + listener.Addr().String(), &http.Client{Transport: transport, CheckRedirect: noRedirects}}
}

// bounded ends a wait that would hang the whole suite.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// post sends body with a script and returns the answer, whose body the caller closes.
func (u upstream) post(t *testing.T, path, script, body string) *http.Response {
	t.Helper()
	r, err := u.request(t.Context(), path, script, body)
	require.NoError(t, err)
	return r
}

func (u upstream) request(ctx context.Context, path, script, body string) (*http.Response, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, u.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	q.Header.Set("Content-Type", "application/json")
	if strings.Contains(path, "/messages") {
		q.Header.Set("Anthropic-Version", "2023-06-01")
	}
	if script != "" {
		q.Header.Set("X-Mock-Script", script)
	}
	return u.client.Do(q)
}

func (u upstream) text(t *testing.T, path, script, body string) string {
	t.Helper()
	r := u.post(t, path, script, body)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return string(b)
}

const (
	chatBody   = `{"model":"m","messages":[{"role":"user","content":"Say it."}]}`
	streamBody = `{"model":"m","stream":true,"messages":[{"role":"user","content":"Say it."}]}`
	askingBody = `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"Say it."}]}`
)

func events(stream string) []string {
	var found []string
	for line := range strings.Lines(stream) {
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			found = append(found, strings.TrimRight(data, "\n"))
		}
	}
	return found
}

func TestChatAnswersTheDefaultText(t *testing.T) {
	t.Parallel()
	u := start(t, Options{})
	body := u.text(t, "/v1/chat/completions", "", chatBody)
	require.Contains(t, body, `"content":"`+DefaultText+`"`)
	require.Contains(t, body, `"prompt_tokens":2,"completion_tokens":9,"total_tokens":11`)
}

func TestPromptTokensAreAQuarterOfTheText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		`{"messages":[{"role":"user","content":"12345678"}]}`:                                                                    2,
		`{"messages":[{"role":"user","content":"123456789"}]}`:                                                                   3,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"1234"},{"type":"image_url","image_url":{"url":"xx"}}]}]}`: 1,
		`{"system":"1234","messages":[{"role":"user","content":"1234"}]}`:                                                        2,
		`{"input":["1234","5678"]}`: 2,
		`{"prompt":""}`:             1,
	} {
		var b body
		require.NoError(t, b.read("application/json", []byte(text)))
		require.Equal(t, want, b.promptTokens(), text)
	}
}

func TestOutputIsCutToTheRequestsLimit(t *testing.T) {
	t.Parallel()
	u := start(t, Options{})
	body := u.text(t, "/v1/chat/completions", "", `{"messages":[],"max_tokens":3,"n":2}`)
	require.Contains(t, body, `"finish_reason":"length"`)
	require.Contains(t, body, `"completion_tokens":6`)
	require.Contains(t, u.text(t, "/v1/completions", "words(20)", `{"prompt":"x"}`), `"completion_tokens":16`)
}

func TestStreamHasUsageOnlyWhereAsked(t *testing.T) {
	t.Parallel()
	u := start(t, Options{})
	asked := events(u.text(t, "/v1/chat/completions", "", askingBody))
	require.Len(t, asked, 1+9+1+1+1)
	require.Equal(t, "[DONE]", asked[12])
	require.Contains(t, asked[11], `"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":9`)
	for _, frame := range asked[:11] {
		require.Contains(t, frame, `"usage":null`)
	}
	for script, has := range map[string]bool{"": false, "ok": false, "ok_usage_only_if_asked": false, "ok_usage_always": true, "ok_no_usage": false} {
		require.Equal(t, has, strings.Contains(u.text(t, "/v1/chat/completions", script, streamBody), "usage"), script)
	}
	require.NotContains(t, u.text(t, "/v1/chat/completions", "ok_no_usage", askingBody), "usage")
	require.Contains(t, u.text(t, "/v1/chat/completions", "usage(100,50,80,20)", askingBody),
		`{"prompt_tokens":100,"completion_tokens":50,"total_tokens":150,"prompt_tokens_details":{"cached_tokens":80,`)
}

func TestShapesOfFrames(t *testing.T) {
	t.Parallel()
	u := start(t, Options{})
	for script, want := range map[string]string{
		"usage_each_frame_cumulative": `"completion_tokens":5,`,
		"choices_shape(empty)":        `"choices":[]}`,
		"choices_shape(null)":         `"choices":null}`,
		"choices_shape(object)":       `"choices":{}}`,
		"choices_shape(absent)":       `"system_fingerprint":"fp_mock"}`,
		"data_null":                   "data: null\n\n",
		"two_terminal_events":         "data: [DONE]\n\ndata: [DONE]\n\n",
		"combined_terminal_frame":     `{"content":"dog."},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt`,
		"role_only":                   `"delta":{"role":"assistant"}`,
		"refusal":                     `"delta":{"refusal":`,
		"annotations":                 `"url_citation"`,
		"parallel_tools_in_one_frame": `"id":"call_mock_1"`,
		"n2_interleaved":              `"index":1,"delta":{"content":"The "}`,
		"logprobs":                    `"bytes":[84,104,101,32]`,
		"giant_line(70k)":             strings.Repeat("x", 70<<10),
		"blank_lines(250)":            strings.Repeat("\n", 250) + "data: ",
		"comments(3)":                 ": keep-alive\n: keep-alive\n: keep-alive\ndata: ",
		"mid_stream_error(object)":    `data: {"error":{"message":`,
		"mid_stream_error(event,1)":   "event: error\n",
		"200_first_event_error":       `data: {"error":{`,
		"byte_dribble(1)":             `漢字 `,
		`text("a, (b)")`:              `{"content":"(b)"}`,
	} {
		require.Contains(t, u.text(t, "/v1/chat/completions", script, streamBody), want, script)
	}
	require.NotContains(t, u.text(t, "/v1/chat/completions", "mid_stream_error(object)", streamBody), "DONE")
	require.NotContains(t, u.text(t, "/v1/chat/completions", "clean_close_without_done", streamBody), "DONE")
	require.Len(t, events(u.text(t, "/v1/chat/completions", "clean_close_without_done(3)", streamBody)), 3)
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	u := start(t, Options{})
	for script, want := range map[string]string{
		"status(500)":                     `{"error":{"message":`,
		"status(429,string)":              `{"error":"The mock`,
		"status(429,array)":               `[{"error":{`,
		"status(429,text)":                "The mock was told to answer 429.",
		"status(502,html)":                "<html>",
		"status(429,numeric_code)":        `"code":429}`,
		"status(429,quota)":               `"insufficient_quota"`,
		"status(400,context_length)":      `"context_length_exceeded"`,
		"status(503,detail)":              `{"detail":`,
		"status(503,empty)":               "",
		"200_with_error_body":             `{"error":{"message":`,
		"status(429),retry_after(7)":      `rate_limit_exceeded`,
		"status(429),header(x-a,\"b,c\")": `rate_limit_exceeded`,
	} {
		r := u.post(t, "/v1/chat/completions", script, streamBody)
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		require.Contains(t, string(body), want, script)
		if strings.Contains(script, "retry_after") {
			require.Equal(t, "7", r.Header.Get("Retry-After"))
		}
		if strings.Contains(script, "header") {
			require.Equal(t, "b,c", r.Header.Get("X-A"))
		}
	}
	require.Contains(t, u.text(t, "/v1/messages", "status(529)", streamBody), `{"type":"error","error":{"type":"overloaded_error"`)
	r := u.post(t, "/v1/chat/completions", "redirect(http://example.com/)", chatBody)
	require.NoError(t, r.Body.Close())
	require.Equal(t, http.StatusTemporaryRedirect, r.StatusCode)
	require.Equal(t, "http://example.com/", r.Header.Get("Location"))
}

func TestResets(t *testing.T) {
	t.Parallel()
	u := start(t, Options{})
	_, err := u.request(t.Context(), "/v1/chat/completions", "reset_before_bytes", chatBody)
	require.ErrorContains(t, err, "reset by peer")

	r := u.post(t, "/v1/chat/completions", "reset_after(3)", streamBody)
	body, err := io.ReadAll(r.Body)
	require.NoError(t, r.Body.Close())
	require.ErrorContains(t, err, "reset by peer")
	require.Len(t, events(string(body)), 3)

	r = u.post(t, "/v1/chat/completions", "reset_after(10)", chatBody)
	body, err = io.ReadAll(r.Body)
	require.NoError(t, r.Body.Close())
	require.Error(t, err)
	require.Len(t, body, 10)
}

func TestFreezeLastsUntilTheClientLeaves(t *testing.T) {
	t.Parallel()
	u := start(t, Options{})
	for _, script := range []string{"freeze_after(2)", "pings_only_after(2,1ms)", "freeze_after(0)", "endless_line"} {
		u.Reset()
		ctx, cancel := context.WithCancel(t.Context())
		r, err := u.request(ctx, "/v1/chat/completions", script, streamBody)
		require.NoError(t, err)
		if strings.HasSuffix(script, "(2)") {
			lines := bufio.NewScanner(r.Body)
			for range 4 {
				require.True(t, lines.Scan())
			}
		}
		cancel()
		require.NoError(t, r.Body.Close())
		err = u.Wait(bounded(t), func(c Counts) bool { return c.Aborted == 1 && c.Ended == 1 && c.InFlight == 0 })
		require.NoError(t, err, "%s: %+v", script, u.Log())
		require.NotNil(t, u.Log().Requests[0].AbortedAt)
	}
}

func TestLeavingAfterTheLastFrameIsNoAbort(t *testing.T) {
	t.Parallel()
	u := start(t, Options{})
	for range 20 {
		r := u.post(t, "/v1/chat/completions", "frame_gap(1us)", streamBody)
		lines := bufio.NewScanner(r.Body)
		for lines.Scan() && lines.Text() != "data: [DONE]" {
		}
		require.NoError(t, r.Body.Close())
	}
	require.NoError(t, u.Wait(bounded(t), func(c Counts) bool { return c.Ended == 20 }))
	require.Zero(t, u.Counts().Aborted)
}

func TestConfirmSendsOneFrameAStep(t *testing.T) {
	t.Parallel()
	u := start(t, Options{})
	r := u.post(t, "/v1/chat/completions", "confirm", streamBody)
	defer r.Body.Close()
	lines := bufio.NewReader(r.Body)
	for frame := range 12 {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(line, "data: "))
		_, err = lines.ReadString('\n')
		require.NoError(t, err)
		require.Zero(t, lines.Buffered(), "a frame ahead of its confirmation")
		if frame < 11 {
			confirmed, err := u.client.Post(u.url+"/_release", "", nil)
			require.NoError(t, err)
			require.NoError(t, confirmed.Body.Close())
			require.Equal(t, http.StatusOK, confirmed.StatusCode)
		}
	}
	_, err := lines.ReadByte()
	require.ErrorIs(t, err, io.EOF)
}

func TestHoldKeepsRequestsInFlight(t *testing.T) {
	t.Parallel()
	u := start(t, Options{Script: "hold"})
	answers := make(chan error, 3)
	for range 3 {
		go func() {
			r, err := u.request(t.Context(), "/v1/chat/completions", "", chatBody)
			if err == nil {
				err = r.Body.Close()
			}
			answers <- err
		}()
	}
	require.NoError(t, u.Wait(bounded(t), func(c Counts) bool { return c.InFlight == 3 }))
	require.Equal(t, 3, u.Release(0, 1))
	for range 3 {
		require.NoError(t, <-answers)
	}
	require.NoError(t, u.Wait(bounded(t), func(c Counts) bool { return c.Ended == 3 }))
	require.Equal(t, Counts{Count: 3, InFlightMax: 3, Ended: 3}, u.Counts())
}

func TestCompressions(t *testing.T) {
	t.Parallel()
	u := start(t, Options{})
	decoders := map[string]func(t *testing.T, b []byte) string{
		"gzip": func(t *testing.T, b []byte) string {
			z, err := gzip.NewReader(bytes.NewReader(b))
			require.NoError(t, err)
			return all(t, z)
		},
		"deflate": func(t *testing.T, b []byte) string {
			z, err := zlib.NewReader(bytes.NewReader(b))
			require.NoError(t, err)
			return all(t, z)
		},
		"br": func(t *testing.T, b []byte) string {
			node := exec.Command("node", "-e", `process.stdout.write(require("zlib").brotliDecompressSync(require("fs").readFileSync(0)))`)
			node.Stdin = bytes.NewReader(b)
			out, err := node.Output()
			require.NoError(t, err)
			return string(out)
		},
	}
	for encoding, decode := range decoders {
		for script, body := range map[string]string{"": streamBody, ",ok": chatBody, ",status(429)": chatBody, ",giant_line(200k)": streamBody, ",status(503,empty)": chatBody} {
			r := u.post(t, "/v1/chat/completions", encoding+script, body)
			raw := all(t, r.Body)
			require.NoError(t, r.Body.Close())
			require.Equal(t, encoding, r.Header.Get("Content-Encoding"))
			plain := decode(t, []byte(raw))
			switch {
			case strings.Contains(script, "empty"):
				require.Empty(t, plain)
			case strings.Contains(script, "status"):
				require.Contains(t, plain, "rate_limit_exceeded")
			default:
				require.Contains(t, plain, "quick")
			}
		}
	}
}

func all(t *testing.T, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(b)
}

func TestIdleSocketIsClosedUnannounced(t *testing.T) {
	t.Parallel()
	u := start(t, Options{})
	for _, body := range []string{chatBody, streamBody} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(u.url, "http://"))
		require.NoError(t, err)
		q, err := http.NewRequest(http.MethodPost, u.url+"/v1/chat/completions", strings.NewReader(body))
		require.NoError(t, err)
		q.Header.Set("X-Mock-Script", "idle_socket_close")
		require.NoError(t, q.Write(conn))
		reader := bufio.NewReader(conn)
		r, err := http.ReadResponse(reader, q)
		require.NoError(t, err)
		require.NotEmpty(t, all(t, r.Body))
		require.False(t, r.Close, "the close was announced")
		_, err = reader.ReadByte()
		require.ErrorIs(t, err, io.EOF)
		require.NoError(t, conn.Close())
	}
}

func TestSlowAccept(t *testing.T) {
	t.Parallel()
	u := start(t, Options{})
	require.NoError(t, u.SetScript(Rule{Script: "slow_accept(1h)"}))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := u.request(ctx, "/v1/chat/completions", "", chatBody)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	u.ClearScripts()
	require.Contains(t, u.text(t, "/v1/chat/completions", "", chatBody), "quick")
	require.EqualValues(t, 1, u.Counts().Count)
}

func TestLogHasTheRawBytes(t *testing.T) {
	t.Parallel()
	u := start(t, Options{})
	body := "{\"messages\":[ {\"content\":\"<>&\u2028 \",\"role\":\"user\"}],  \"x\":1.0, \"y\":1e2}"
	sum := sha256.Sum256([]byte(body))
	r := u.post(t, "/v1/chat/completions?a=b", "echo_body_sha256", body)
	require.Contains(t, all(t, r.Body), hex.EncodeToString(sum[:]))
	require.NoError(t, r.Body.Close())
	require.Equal(t, hex.EncodeToString(sum[:]), r.Header.Get("X-Mock-Body-Sha256"))
	require.NoError(t, u.Wait(bounded(t), func(c Counts) bool { return c.Ended == 1 }))

	seen := u.Log().Requests[0]
	require.Equal(t, body, string(seen.Body))
	require.Equal(t, "/v1/chat/completions?a=b", seen.Path)
	require.Equal(t, hex.EncodeToString(sum[:]), seen.BodySHA256)
	require.Equal(t, http.StatusOK, seen.Status)
	require.Equal(t, "echo_body_sha256", seen.Script)
	require.Equal(t, 1, seen.Parallel)

	overHTTP, err := u.client.Get(u.url + "/_log")
	require.NoError(t, err)
	require.Contains(t, all(t, overHTTP.Body), `"body_sha256":"`+hex.EncodeToString(sum[:]))
	require.NoError(t, overHTTP.Body.Close())
	u.Reset()
	require.Empty(t, u.Log().Requests)
}

func TestLogIsBounded(t *testing.T) {
	t.Parallel()
	u := start(t, Options{LogRequests: 3})
	for range 5 {
		u.text(t, "/v1/chat/completions", "", chatBody)
	}
	log := u.Log()
	require.Len(t, log.Requests, 3)
	require.EqualValues(t, 2, log.Dropped)
	require.EqualValues(t, 5, log.Count)
	require.EqualValues(t, 5, log.Requests[2].ID)
}

func TestScriptIsChosenByHeaderThenRuleThenModel(t *testing.T) {
	t.Parallel()
	u := start(t, Options{Script: "text(default)"})
	ask := func(script, body string) string { return u.text(t, "/v1/chat/completions", script, body) }
	byModel := `{"model":"mock-text(model)","user":"u1","messages":[]}`
	require.Contains(t, ask("", chatBody), "default")
	require.Contains(t, ask("", byModel), `"content":"model"`)
	require.Contains(t, ask("", `{"model":"mock-small","messages":[]}`), "default")
	require.Contains(t, ask("", `{"model":"mock-text(","messages":[]}`), "closing bracket is missing")
	require.NoError(t, u.SetScript(Rule{Script: "text(ofuser)", Match: map[string]string{"user": "u1"}}))
	require.NoError(t, u.SetScript(Rule{Script: "text(once)", Times: 1, Path: "/chat/completions"}))
	require.Contains(t, ask("text(header)", byModel), `"content":"header"`)
	require.Contains(t, ask("", byModel), `"content":"once"`)
	require.Contains(t, ask("", byModel), `"content":"ofuser"`)
	require.Contains(t, ask("", chatBody), "default")
	u.ClearScripts()
	require.Contains(t, ask("", byModel), `"content":"model"`)
	require.Error(t, u.SetScript(Rule{Script: "no_such_thing"}))
}

func TestKeyIsRequired(t *testing.T) {
	t.Parallel()
	u := start(t, Options{RequireKey: secret.New("sk-right")})
	require.Contains(t, u.text(t, "/v1/chat/completions", "", chatBody), "invalid_api_key")
	require.Contains(t, u.text(t, "/v1/messages", "", chatBody), "authentication_error")
	client := openai.NewClient(option.WithBaseURL(u.url+"/v1"), option.WithAPIKey("sk-right"), option.WithHTTPClient(u.client))
	answer, err := client.Chat.Completions.New(t.Context(), openai.ChatCompletionNewParams{
		Model: "m", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Say it.")},
	})
	require.NoError(t, err)
	require.Equal(t, DefaultText, answer.Choices[0].Message.Content)
}

func TestMessages(t *testing.T) {
	t.Parallel()
	u := start(t, Options{})
	const tail = `"max_tokens":9,"messages":[{"role":"user","content":"Say it."}]}`
	whole, stream := `{"model":"m",`+tail, `{"model":"m","stream":true,`+tail
	ask := func(script, body string) string { return u.text(t, "/v1/messages", script, body) }

	body := ask("usage(100,7,60,2),cache_writes(3,4)", whole)
	require.Contains(t, body, `"type":"message"`)
	require.Contains(t, body, `"input_tokens":40,"cache_creation_input_tokens":7,"cache_read_input_tokens":60,`+
		`"cache_creation":{"ephemeral_5m_input_tokens":3,"ephemeral_1h_input_tokens":4},"output_tokens":7,"output_tokens_details":{"thinking_tokens":2}`)
	text := u.text(t, "/anthropic/v1/messages", "", stream)
	require.True(t, strings.HasPrefix(text, "event: message_start\ndata: "))
	require.True(t, strings.HasSuffix(text, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"))
	require.Contains(t, text, `"stop_reason":"end_turn"`)
	require.Contains(t, text, `"output_tokens":1,`, "a placeholder")
	require.NotContains(t, ask("clean_close_without_done", stream), "message_stop")
	require.Equal(t, `{"input_tokens":2}`, u.text(t, "/v1/messages/count_tokens", "", chatBody))

	tools := ask("thinking,parallel_tools_in_one_frame", whole)
	require.Contains(t, tools, `"signature":"`+Signature+`"},{"type":"tool_use","id":"toolu_mock_0","name":"weather","input":{"city":"Paris"}},`)
	require.Contains(t, tools, `"stop_reason":"tool_use"`)
	tools = ask("thinking,parallel_tools_in_one_frame", stream)
	require.Contains(t, tools, `"index":2,"delta":{"type":"input_json_delta","partial_json":":\"Rome\"}"}`)
	require.Contains(t, ask("refusal", stream), `"stop_reason":"refusal"`)

	require.Contains(t, ask("", `{"model":"m"}`), "max_tokens: Field required")
	r, err := u.client.Post(u.url+"/v1/messages", "application/json", strings.NewReader(whole))
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	require.Equal(t, http.StatusBadRequest, r.StatusCode, "without its version")
}

func TestToolsOfOnesChoice(t *testing.T) {
	t.Parallel()
	u := start(t, Options{})
	const script = `tool(run,"{\"command\": \"ls\"}")`
	for path, c := range map[string]struct{ body, whole, piece, end string }{
		"/v1/chat/completions": {chatBody, `"function":{"name":"run","arguments":"{\"command\": \"ls\"}"}`, `"arguments":"{\"command\": \"ls\"}"`, `"finish_reason":"tool_calls"`},
		"/v1/messages":         {strings.Replace(chatBody, "{", `{"max_tokens":9,`, 1), `"name":"run","input":{"command": "ls"}}`, `"partial_json":"{\"comman"`, `"stop_reason":"tool_use"`},
		"/v1/responses":        {`{"model":"m","input":"x"}`, `"name":"run","arguments":"{\"command\": \"ls\"}"`, `"delta":"{\"command\": \"ls\"}"`, `"status":"completed"`},
	} {
		whole := u.text(t, path, script, c.body)
		require.Contains(t, whole, c.whole)
		require.Contains(t, whole, c.end)
		stream := u.text(t, path, script, strings.Replace(c.body, "{", `{"stream":true,`, 1))
		require.Contains(t, stream, c.piece)
		require.Contains(t, stream, c.end)
	}
	_, err := Parse("tool(run,{)")
	require.ErrorContains(t, err, "no JSON")
}

func TestResponsesAreKept(t *testing.T) {
	t.Parallel()
	u := start(t, Options{})
	require.Contains(t, u.text(t, "/v1/responses", "", `{"model":"m","input":"Say it."}`), `"status":"completed"`)
	id := "resp_mock_1"
	require.Contains(t, u.text(t, "/v1/responses", "", `{"model":"m","input":"On.","previous_response_id":"`+id+`"}`), `"previous_response_id":"`+id+`"`)
	require.Contains(t, u.text(t, "/v1/responses", "", `{"model":"m","input":"On.","previous_response_id":"resp_other"}`), "not found")
	stream := u.text(t, "/v1/responses", "", `{"model":"m","input":"Say it.","stream":true}`)
	require.Contains(t, stream, "event: response.created\ndata: ")
	require.Contains(t, stream, `"total_tokens":11`)
	require.Contains(t, u.text(t, "/v1/responses", "mid_stream_error(object)", `{"stream":true}`), "event: error\ndata: {\"type\":\"error\"")
}

func TestEmbeddingsInBothFormats(t *testing.T) {
	t.Parallel()
	u := start(t, Options{})
	require.Contains(t, u.text(t, "/v1/embeddings", "", `{"input":["a","b"],"dimensions":2}`), `"index":1,"embedding":[1,0.5]`)
	require.Contains(t, u.text(t, "/v1/embeddings", "", `{"input":"a","dimensions":2,"encoding_format":"base64"}`), `"embedding":"AACAPwAAAD8="`)
}

func TestFilesAndBatchesHaveRawIDs(t *testing.T) {
	t.Parallel()
	u := start(t, Options{})
	var form bytes.Buffer
	parts := multipart.NewWriter(&form)
	require.NoError(t, parts.WriteField("purpose", "batch"))
	file, err := parts.CreateFormFile("file", "in.jsonl")
	require.NoError(t, err)
	_, err = file.Write([]byte("{}\n"))
	require.NoError(t, err)
	require.NoError(t, parts.Close())
	r, err := u.client.Post(u.url+"/v1/files", parts.FormDataContentType(), &form)
	require.NoError(t, err)
	require.Contains(t, all(t, r.Body), `"id":"file-mock1","object":"file","bytes":3`)
	require.NoError(t, r.Body.Close())

	get := func(method, path string) (int, string) {
		q, err := http.NewRequestWithContext(t.Context(), method, u.url+path, nil)
		require.NoError(t, err)
		r, err := u.client.Do(q)
		require.NoError(t, err)
		defer r.Body.Close()
		return r.StatusCode, all(t, r.Body)
	}
	_, content := get("GET", "/v1/files/file-mock1/content")
	require.Equal(t, "{}\n", content)
	status, _ := get("GET", "/v1/files/file-other")
	require.Equal(t, http.StatusNotFound, status)
	require.Contains(t, u.text(t, "/v1/batches", "", `{"input_file_id":"file-other","endpoint":"/v1/chat/completions"}`), "No such File object")
	require.Contains(t, u.text(t, "/v1/batches", "", `{"input_file_id":"file-mock1","endpoint":"/v1/chat/completions"}`), `"output_file_id":"file-mockout`)
	_, list := get("GET", "/v1/files")
	require.Contains(t, list, "file-mock1")
	status, _ = get("DELETE", "/v1/files/file-mock1")
	require.Equal(t, http.StatusOK, status)
	status, _ = get("GET", "/v1/files/file-mock1")
	require.Equal(t, http.StatusNotFound, status)
	status, _ = get("GET", "/v1/models/none")
	require.Equal(t, http.StatusNotFound, status)
}

func TestWebSocketAnswersEachTurn(t *testing.T) {
	t.Parallel()
	u := start(t, Options{})
	conn, _, err := websocket.Dial(t.Context(), u.url+"/v1/responses", &websocket.DialOptions{HTTPClient: u.client})
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, conn.Write(t.Context(), websocket.MessageText, []byte(`{"type":"response.create","response":{"model":"m","input":"Say it."}}`)))
		for {
			_, frame, err := conn.Read(t.Context())
			require.NoError(t, err)
			if strings.Contains(string(frame), `"type":"response.completed"`) {
				require.Contains(t, string(frame), `"total_tokens":11`)
				break
			}
		}
	}
	require.NoError(t, conn.Close(websocket.StatusNormalClosure, ""))
	require.EqualValues(t, 3, u.Counts().Count, "the handshake and two turns")
}

func TestRemainingRoutes(t *testing.T) {
	t.Parallel()
	u := start(t, Options{})
	for path, want := range map[string]string{
		"/v1/moderations": `"flagged":false`, "/v1/rerank": `"results":[`, "/v1/images/generations": `"b64_json"`, "/v1/audio/speech": "ID3",
		"/v1/audio/transcriptions": DefaultText, "/openai/deployments/d/chat/completions?api-version=1": "quick", "/v1/nowhere": "Unknown request URL",
	} {
		require.Contains(t, u.text(t, path, "", `{"model":"m"}`), want, path)
	}
	r, err := u.client.Get(u.url + "/v1/models")
	require.NoError(t, err)
	require.Contains(t, all(t, r.Body), `"id":"mock"`)
	require.NoError(t, r.Body.Close())
}

func TestCountCanWait(t *testing.T) {
	t.Parallel()
	u := start(t, Options{})
	r, err := u.client.Get(u.url + "/_count?count=1&timeout=1ms")
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	require.Equal(t, http.StatusGatewayTimeout, r.StatusCode)
	u.text(t, "/v1/chat/completions", "", chatBody)
	r, err = u.client.Get(u.url + "/_count?count=1&ended=1")
	require.NoError(t, err)
	require.Equal(t, `{"count":1,"in_flight":0,"in_flight_max":1,"aborted":0,"ended":1}`, all(t, r.Body))
	require.NoError(t, r.Body.Close())
}

func TestHelpListsEveryDirective(t *testing.T) {
	t.Parallel()
	for _, d := range directives {
		require.Contains(t, Help(), "  "+d.name)
	}
}

func TestFaultsOfScripts(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"frame_gap", "frame_gap(x)", "frame_gap(-1s)", "status(99)", "status(600)", "status(500,odd)", "ok(1)", "words(0)", "words(2000000)", "giant_line(999m)",
		"text(\"a)", "text(a)b", "nothing", "ok,", ",ok", "frame_gap(1s", "choices_shape(round)", "pings_only_after(-1)",
	} {
		_, err := Parse(text)
		require.Error(t, err, text)
	}
	s, err := Parse(` frame_gap( 50ms ) , reset_after(3),text("a \"b\", c") `)
	require.NoError(t, err)
	require.Equal(t, 50*time.Millisecond, s.frameGap)
	require.Equal(t, 3, s.faultAfter)
	require.Equal(t, `a "b", c`, strings.Join(s.content, ""))
	s, err = Parse(`pieces("Grüße, du", 4)`)
	require.NoError(t, err)
	require.Equal(t, []string{"Grüß", "e, d", "u"}, s.content)
}

func FuzzParse(f *testing.F) {
	for _, d := range directives {
		f.Add(d.name + d.args)
	}
	f.Add(`text("a, b"),frame_gap(50ms),giant_line(17m)`)
	f.Fuzz(func(t *testing.T, text string) {
		first, err := Parse(text)
		if err != nil {
			return
		}
		second, err := Parse(first.String())
		require.NoError(t, err)
		require.Equal(t, first, second)
	})
}

func BenchmarkChat(b *testing.B) {
	s, err := New(Options{LogRequests: 1000})
	require.NoError(b, err)
	for name, body := range map[string]string{"unary": chatBody, "stream": askingBody} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				q := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(body))
				s.ServeHTTP(httptest.NewRecorder(), q)
			}
		})
	}
}

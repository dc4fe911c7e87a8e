package gateway_test

import (
	"bytes"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/mock"
	"github.com/tollgate-gateway/tollgate/providers/bedrock"
	"github.com/tollgate-gateway/tollgate/providers/translate"
)

// framed is a gateway with a model "m" at an upstream that frames its streams as Amazon does and follows a script; change, if
// set, has its way with the bytes of an answer.
func framed(t *testing.T, script string, change func([]byte) []byte, tune ...func(*setup)) *bench {
	t.Helper()
	return start(t, func(s *setup) {
		s.translators = translate.All(func() time.Time { return time.Unix(1750000000, 0) })
		target := s.model("m", "")[0]
		target.ProviderKind, target.UpstreamModel = bedrock.Kind, "mock-"+script
		if change != nil {
			target.BaseURL = serveHTTP(t, changed(t, change))
		}
		for _, f := range tune {
			f(s)
		}
	})
}

// changed answers as a mock does, with a change.
func changed(t *testing.T, change func([]byte) []byte) http.HandlerFunc {
	t.Helper()
	upstream, err := mock.New(mock.Options{})
	require.NoError(t, err)
	return func(w http.ResponseWriter, r *http.Request) {
		var seen kept
		upstream.ServeHTTP(&seen, r)
		w.Header().Set("Content-Type", seen.header.Get("Content-Type"))
		_, _ = w.Write(change(seen.body.Bytes())) // a gateway that has left is a part of the tests
	}
}

// kept is an http.ResponseWriter that keeps what is written.
type kept struct {
	header http.Header
	body   bytes.Buffer
}

func (k *kept) Header() http.Header {
	if k.header == nil {
		k.header = http.Header{}
	}
	return k.header
}

func (k *kept) WriteHeader(int)             {}
func (k *kept) Write(b []byte) (int, error) { return k.body.Write(b) }
func (k *kept) FlushError() error           { return nil }

func TestF083_F085_ABrokenStreamOfFramesNeverLooksWhole(t *testing.T) {
	t.Parallel()
	flip := func(b []byte) []byte {
		b = bytes.Clone(b)
		b[len(b)*2/3] ^= 1
		return b
	}
	for name, tc := range map[string]struct {
		script string
		change func([]byte) []byte
		code   string
	}{
		"exception":        {"mid_stream_error(object,3)", nil, `"message":"The server had an error while processing your request."`},
		"without its end":  {"clean_close_without_done", nil, "upstream_aborted"},
		"reset":            {"reset_after(4)", nil, "upstream_aborted"},
		"a bit flipped":    {"", flip, "upstream_invalid_response"},
		"within a frame":   {"", func(b []byte) []byte { return b[:len(b)*2/3] }, "upstream_aborted"},
		"within a prelude": {"", func(b []byte) []byte { return b[:bytes.LastIndex(b, []byte(":event-type"))-3] }, "upstream_aborted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := framed(t, tc.script, tc.change)
			got := a.post("/v1/chat/completions", streamed("/v1/chat/completions"))
			require.Equal(t, http.StatusOK, got.StatusCode, got.text())
			require.ErrorIs(t, got.err, io.ErrUnexpectedEOF, "the terminating chunk must be missing")
			require.Contains(t, got.text(), tc.code)
			require.Contains(t, got.text(), `"content":"`)
			require.NotContains(t, got.text(), "[DONE]")
			require.Equal(t, governance.OutcomeUpstreamAborted, a.settled(1)[0].Outcome)
			require.Positive(t, a.settled(1)[0].Quantities.OutputTokens())
		})
	}
	t.Run("unharmed", func(t *testing.T) {
		t.Parallel()
		a := framed(t, "", bytes.Clone)
		got := a.post("/v1/chat/completions", streamed("/v1/chat/completions"))
		require.NoError(t, got.err)
		require.Contains(t, got.text(), "[DONE]")
		require.Equal(t, governance.OutcomeComplete, a.settled(1)[0].Outcome)
	})
}

// Before the first event has gone out a client can still be told by a status.
func TestF077_StreamsOfFramesThatFailAtOnce(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		script string
		change func([]byte) []byte
		status int
		code   string
	}{
		"exception": {"200_first_event_error", nil, http.StatusBadRequest, "while processing your request"},
		"no frames": {"", func([]byte) []byte { return []byte("data: {\"a\":1}\n\ndata: [DONE]\n\n") }, http.StatusBadGateway, "upstream_invalid"},
		"nothing":   {"", func([]byte) []byte { return nil }, http.StatusBadGateway, "upstream_invalid"},
		"a piece":   {"", func(b []byte) []byte { return b[:20] }, http.StatusBadGateway, "upstream_invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := framed(t, tc.script, tc.change).post("/v1/chat/completions", streamed("/v1/chat/completions"))
			require.Equal(t, tc.status, a.StatusCode, a.text())
			require.Contains(t, a.text(), tc.code)
		})
	}
}

func TestF211_AFrozenStreamOfFramesIsCut(t *testing.T) {
	t.Parallel()
	b := framed(t, "freeze_after(4)", nil, func(s *setup) { s.config.Idle = 150 * time.Millisecond })
	a := b.post("/v1/messages", streamed("/v1/messages"), "Anthropic-Version", "2023-06-01")
	require.Equal(t, http.StatusOK, a.StatusCode)
	require.Contains(t, a.text(), "event: error")
	require.NotContains(t, a.text(), "message_stop")
	require.ErrorIs(t, a.err, io.ErrUnexpectedEOF)
	require.Equal(t, governance.OutcomeUpstreamAborted, b.settled(1)[0].Outcome)
}

// Clients of Anthropic's count by themselves where they are told that nobody else does.
func TestF128_BedrockCountsNoTokens(t *testing.T) {
	t.Parallel()
	a := framed(t, "", nil).post("/v1/messages/count_tokens", `{"model":"m","messages":[{"role":"user","content":"Say hello."}]}`, "Anthropic-Version", "2023-06-01")
	require.Equal(t, http.StatusNotFound, a.StatusCode)
	require.Contains(t, a.text(), `{"type":"error","error":{"type":"not_found_error"`)
}

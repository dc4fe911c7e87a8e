package gateway_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/mock"
)

const formType = "multipart/form-data; boundary=----b0undary"

// form writes the parts of a form: names and values. A name such as file=a.wav is of a file.
func form(parts ...string) string {
	var b strings.Builder
	for i := 0; i < len(parts); i += 2 {
		name, file, isFile := strings.Cut(parts[i], "=")
		fmt.Fprintf(&b, "------b0undary\r\nContent-Disposition: form-data; name=%q", name)
		if isFile {
			fmt.Fprintf(&b, "; filename=%q\r\nContent-Type: application/octet-stream", file)
		}
		b.WriteString("\r\n\r\n" + parts[i+1] + "\r\n")
	}
	return b.String() + "------b0undary--\r\n"
}

func (b *bench) postForm(path string, parts ...string) answer {
	b.t.Helper()
	return b.post(path, form(parts...), "Content-Type", formType)
}

// perMinute is a price of seconds: 6 cents a minute.
var perMinute = map[governance.Unit]int64{governance.UnitSecond: 1_000_000_000_000}

// Of a form nothing but the value of model is another at the upstream, wherever it stands, and whether the form waited in
// memory or in a file.
func TestForms_NothingButTheModelIsAnother(t *testing.T) {
	t.Parallel()
	b := start(t)
	for _, size := range []int{0, 1, 255 << 10, 256 << 10, 5 << 20} {
		file := strings.Repeat("\r\n--\x00\xff\x7f-", size/8+1)[:size]
		for _, sent := range []string{
			form("model", "m", "file=a.mp3", file, "language", "de"),
			form("file=ä.mp3", file, "timestamp_granularities[]", "word", "timestamp_granularities[]", "segment", "model", "m"),
		} {
			a := b.post("/v1/audio/transcriptions", sent, "Content-Type", formType)
			require.Equal(t, http.StatusOK, a.StatusCode, a.text())
			got := b.sent()[0]
			require.True(t, bytes.Equal([]byte(strings.Replace(sent, "\r\nm\r\n", "\r\nmock-small\r\n", 1)), got.Body))
			require.Equal(t, formType, got.Header.Get("Content-Type"))
			b.mock.Reset()
		}
	}
}

// Each target gets the whole form, however many there are.
func TestForms_AnotherTargetGetsAllOfIt(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.model("m", "status(503)", "reset_before_bytes", "ok") })
	sent := form("file=a.mp3", strings.Repeat("x", 1<<20), "model", "m")
	a := b.post("/v1/audio/transcriptions", sent, "Content-Type", formType)
	require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	require.Equal(t, "3", a.Header.Get("X-Tollgate-Attempts"))
	for i, model := range []string{"mock-status(503)", "mock-reset_before_bytes", "mock-ok"} {
		require.Equal(t, strings.Replace(sent, "\r\nm\r\n", "\r\n"+model+"\r\n", 1), string(b.sent()[i].Body))
	}
}

// The length of the audio is what the provider says; where it says nothing, what the file says of itself. It is never free.
func TestTranscriptions_ByTheSecond(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		priced(s.model("told", "seconds(61)")[0], perMinute)
		priced(s.model("silent", "ok_no_usage")[0], perMinute)
	})
	wave := "RIFF\x00\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x80\x3e\x00\x00\x00\x7d\x00\x00\x02\x00\x10\x00" // 32,000 bytes a second
	file := wave + strings.Repeat("\x00", 320_000-len(wave))
	for _, tc := range []struct {
		model, format string
		seconds       int64
		source        governance.UsageSource
	}{
		{"told", "json", 61, governance.UsageProvider},
		{"silent", "verbose_json", 9, governance.UsageProvider}, // its duration is 8.47
		{"silent", "json", 10, governance.UsageEstimate},
		{"silent", "text", 10, governance.UsageEstimate},
		{"silent", "srt", 10, governance.UsageEstimate},
		{"silent", "vtt", 10, governance.UsageEstimate},
	} {
		a := b.postForm("/v1/audio/transcriptions", "model", tc.model, "response_format", tc.format, "file=a.wav", file)
		require.Equal(t, http.StatusOK, a.StatusCode, a.text())
		require.Contains(t, a.text(), strings.TrimSpace(mock.DefaultText))
		all := b.ledger.closed()
		s := all[len(all)-1]
		require.Equal(t, tc.seconds, s.Quantities[governance.UnitSecond], "%s %s", tc.model, tc.format)
		require.Equal(t, tc.source, s.Source, "%s %s", tc.model, tc.format)
		require.EqualValues(t, tc.seconds*1_000_000, s.Cost)
		require.Equal(t, s.Cost.String(), a.Header.Get("X-Tollgate-Cost-Usd"))
		require.EqualValues(t, 10, b.ledger.admitted()[len(all)-1].Estimate.Quantities[governance.UnitSecond])
	}
}

// Models that charge for tokens tell those of the sound from those of the prompt.
func TestTranscriptions_ByTheToken(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		priced(s.model("m", "usage(14,45)")[0], map[governance.Unit]int64{
			governance.UnitInput: 2_500_000_000, governance.UnitOutput: 10_000_000_000, governance.UnitInputAudio: 6_000_000_000,
		})
	})
	for _, stream := range []string{"false", "true"} {
		a := b.postForm("/v1/audio/transcriptions", "model", "m", "stream", stream, "file=a.mp3", "ID3")
		require.Equal(t, http.StatusOK, a.StatusCode, a.text())
		require.Equal(t, stream == "true", strings.Contains(a.text(), "event: transcript.text.done"))
	}
	for _, s := range b.settled(2) {
		require.Equal(t, only(map[governance.Unit]int64{governance.UnitInput: 14, governance.UnitOutput: 45, governance.UnitRequest: 1}), s.Quantities)
		require.Equal(t, governance.OutcomeComplete, s.Outcome)
	}
}

// A budget of money holds for audio before any of it is heard.
func TestTranscriptions_ABudgetAffordsWhatItCan(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		priced(s.model("m", "seconds(10)")[0], perMinute)
		s.limit(governance.KindBudget, governance.MetricCost, int64(dollars(t, "0.025")))
	})
	statuses := map[int]int{}
	for range 5 {
		statuses[b.postForm("/v1/audio/transcriptions", "model", "m", "file=a.webm", strings.Repeat("x", 20_000)).StatusCode]++
	}
	require.Equal(t, map[int]int{http.StatusOK: 2, http.StatusTooManyRequests: 3}, statuses)
}

// Pictures to edit come as a form or as JSON, and both are counted alike.
func TestImages_Edits(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		priced(s.model("m", "ok_no_usage")[0], map[governance.Unit]int64{governance.UnitImage: 40_000_000_000_000})
	})
	for _, a := range []answer{
		b.postForm("/v1/images/edits", "image[]=a.png", "\x89PNG", "image[]=b.png", "\x89PNG", "prompt", "A hat.", "n", "2", "model", "m"),
		b.post("/v1/images/edits", `{"model":"m","prompt":"A hat.","n":2,"images":[{"image_url":"data:image/png;base64,iVBORw0KGgo="}]}`),
		b.postForm("/v1/images/variations", "image=a.png", "\x89PNG", "n", "2", "model", "m"),
	} {
		require.Equal(t, http.StatusOK, a.StatusCode, a.text())
		require.Equal(t, "0.08", a.Header.Get("X-Tollgate-Cost-Usd"))
	}
	require.Contains(t, string(b.sent()[0].Body), "mock-ok_no_usage")
}

// Access, attribution, dry runs and estimates are those of every route.
func TestForms_AreGovernedLikeAnyBody(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		priced(s.model("m", "seconds(3)")[0], perMinute)
		s.model("secret", "ok")
		s.principal.KeyModels = []string{"m"}
		s.principal.Require = []string{"end_user"}
	})
	const path = "/v1/audio/transcriptions"
	a := b.postForm(path, "model", "m", "file=a.mp3", "x")
	require.Equal(t, http.StatusBadRequest, a.StatusCode, "no end user")
	a = b.postForm(path, "model", "secret", "user", "eve", "file=a.mp3", "x")
	require.Equal(t, http.StatusForbidden, a.StatusCode, a.text())
	a = b.postForm(path, "model", "nobody", "user", "eve", "file=a.mp3", "x")
	require.Equal(t, http.StatusNotFound, a.StatusCode, a.text())
	asked := form("model", "m", "user", "eve", "file=a.webm", strings.Repeat("x", 20_000))
	a = b.post(path, asked, "Content-Type", formType, "X-Tollgate-Dry-Run", "true")
	require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	require.Contains(t, a.text(), `"second":10`)
	require.Contains(t, a.text(), `"cost_usd":"0.01"`)
	estimated := b.post("/v1/estimate?route=audio.transcriptions", asked, "Content-Type", formType)
	require.Equal(t, a.text(), estimated.text())
	a = b.post("/v1/estimate", asked, "Content-Type", formType)
	require.Equal(t, "route", *a.failure(t).Param)
	a = b.post("/v1/estimate?route=audio.speech", asked, "Content-Type", formType)
	require.Equal(t, http.StatusBadRequest, a.StatusCode, a.text())
	a = b.post(path, asked, "Content-Type", formType, "X-Tollgate-Max-Cost", "0.009")
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode, a.text())
	require.Empty(t, b.sent())

	for _, wanted := range []int{http.StatusOK, http.StatusOK} {
		a = b.post(path, asked, "Content-Type", formType, "Idempotency-Key", "one")
		require.Equal(t, wanted, a.StatusCode, a.text())
	}
	require.Equal(t, "idempotency_key_reused", a.Header.Get("X-Tollgate-Warnings"))
	a = b.post(path, strings.Replace(asked, "eve", "bob", 1), "Content-Type", formType, "Idempotency-Key", "one")
	require.Equal(t, "idempotency_mismatch", a.failure(t).Code)
}

// A form that could be read in two ways, or is none, is refused by name and reaches nobody.
func TestForms_HostileOnesAreRefused(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) { s.config.MaxBody = 1 << 20 })
	const path = "/v1/audio/transcriptions"
	good := form("model", "m", "file=a.mp3", "x")
	for name, tc := range map[string]struct {
		body, contentType string
		status            int
		param             string
	}{
		"JSON":                    {`{"model":"m"}`, "application/json", http.StatusBadRequest, ""},
		"no boundary":             {good, "multipart/form-data", http.StatusBadRequest, ""},
		"another boundary":        {good, "multipart/form-data; boundary=other", http.StatusBadRequest, ""},
		"model twice":             {form("model", "m", "model", "dear", "file=a.mp3", "x"), formType, http.StatusBadRequest, "model"},
		"model in other capitals": {form("model", "m", "MODEL", "dear", "file=a.mp3", "x"), formType, http.StatusBadRequest, "MODEL"},
		"model as a file":         {form("model=m.txt", "m", "file=a.mp3", "x"), formType, http.StatusBadRequest, "model"},
		"no model":                {form("file=a.mp3", "x"), formType, http.StatusBadRequest, "model"},
		"no end":                  {strings.TrimSuffix(good, "------b0undary--\r\n"), formType, http.StatusBadRequest, ""},
		"a stream that is no bool": {
			form("model", "m", "stream", "perhaps", "file=a.mp3", "x"), formType, http.StatusBadRequest, "stream",
		},
		"too large": {form("model", "m", "file=a.mp3", strings.Repeat("x", 1<<20)), formType, http.StatusRequestEntityTooLarge, ""},
	} {
		a := b.post(path, tc.body, "Content-Type", tc.contentType)
		require.Equal(t, tc.status, a.StatusCode, "%s: %s", name, a.text())
		if e := a.failure(t); tc.param != "" {
			require.NotNil(t, e.Param, name)
			require.Equal(t, tc.param, *e.Param, name)
		}
	}
	// A chunk that is none.
	out := b.raw("POST " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer " + demoKey + "\r\nContent-Type: " + formType +
		"\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
	require.Contains(t, out, "400 Bad Request")
	require.Empty(t, b.sent())
	require.Empty(t, b.ledger.admitted())
}

// Bodies in flight count wherever they wait, and give back what they took.
func TestForms_CountAsBodiesInFlight(t *testing.T) {
	t.Parallel()
	b := start(t, func(s *setup) {
		s.model("m", "hold")
		s.config.MaxBody, s.config.MaxBodiesInFlight = 3<<20, 4<<20
	})
	sent := form("model", "m", "file=a.mp3", strings.Repeat("x", 2<<20))
	first := make(chan int, 1)
	go func() {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+"/v1/audio/transcriptions", strings.NewReader(sent))
		if err != nil {
			first <- 0
			return
		}
		r.Header.Set("Authorization", "Bearer "+demoKey)
		r.Header.Set("Content-Type", formType)
		response, err := b.client.Do(r)
		if err != nil {
			first <- 0
			return
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		first <- response.StatusCode
	}()
	b.sums(func(c mock.Counts) bool { return c.InFlight == 1 })
	a := b.post("/v1/audio/transcriptions", sent, "Content-Type", formType)
	require.Equal(t, http.StatusServiceUnavailable, a.StatusCode, a.text())
	require.Equal(t, "gateway_overloaded", a.failure(t).Code)
	b.release(1)
	require.Equal(t, http.StatusOK, <-first)
	b.idle()
	require.NoError(t, b.mock.SetScript(mock.Rule{Script: "ok"}))
	require.Equal(t, http.StatusOK, b.post("/v1/audio/transcriptions", sent, "Content-Type", formType).StatusCode)
}

// TestF193_FormsNeedNoPlaceToWrite: where no file can be made, a form waits in memory.
func TestF193_FormsNeedNoPlaceToWrite(t *testing.T) {
	t.Setenv("TMPDIR", "/nowhere")
	b := start(t)
	sent := form("file=a.mp3", strings.Repeat("x", 1<<20), "model", "m")
	a := b.post("/v1/audio/transcriptions", sent, "Content-Type", formType)
	require.Equal(t, http.StatusOK, a.StatusCode, a.text())
	require.Equal(t, strings.Replace(sent, "\r\nm\r\n", "\r\nmock-small\r\n", 1), string(b.sent()[0].Body))
}

// Forms of many megabytes are in nobody's memory, however many are on their way at once.
func TestForms_AreNotHeldInMemory(t *testing.T) {
	const calls, size = 4, 30 << 20
	arrived, measured := make(chan int64, calls), make(chan struct{})
	b := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		arrived <- n
		<-measured
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"text":"hi","usage":{"type":"duration","seconds":1}}`)
	})
	start, end, _ := strings.Cut(form("file=a.mp3", "|", "model", "m"), "|")
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	statuses := make(chan int, calls)
	for range calls {
		go func() {
			sent := io.MultiReader(strings.NewReader(start), io.LimitReader(zeros{}, size), strings.NewReader(end))
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+"/v1/audio/transcriptions", sent)
			if err != nil {
				statuses <- 0
				return
			}
			r.ContentLength = int64(len(start) + size + len(end))
			r.Header.Set("Authorization", "Bearer "+demoKey)
			r.Header.Set("Content-Type", formType)
			response, err := b.client.Do(r)
			if err != nil {
				statuses <- 0
				return
			}
			_ = response.Body.Close()
			statuses <- response.StatusCode
		}()
	}
	for range calls {
		require.Greater(t, <-arrived, int64(size))
	}
	after := heap()
	close(measured)
	for range calls {
		require.Equal(t, http.StatusOK, <-statuses)
	}
	require.Less(t, int64(after)-int64(before), int64(size/2))
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

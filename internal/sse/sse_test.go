package sse_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollgate-gateway/tollgate/internal/sse"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// event is a copy of an sse.Event that outlives the next one.
type event struct {
	Raw, Name, Data string
	HasData         bool
}

// readAll reads r to its end. What Next returns with an error is the last event.
func readAll(r *sse.Reader) ([]event, error) {
	var events []event
	for {
		ev, err := r.Next()
		if len(ev.Raw) > 0 {
			events = append(events, event{string(ev.Raw), string(ev.Name), string(ev.Data), ev.Data != nil})
		}
		if err != nil {
			return events, err
		}
	}
}

func raws(events []event) []string {
	var all []string
	for _, ev := range events {
		all = append(all, ev.Raw)
	}
	return all
}

// withData drops the blank lines, comments and events without data.
func withData(events []event) []event {
	var some []event
	for _, ev := range events {
		if ev.HasData {
			ev.Raw = ""
			some = append(some, ev)
		}
	}
	return some
}

// chunks reads a text in pieces of the given sizes, again and again, and counts the reads.
type chunks struct {
	rest  []byte
	sizes []byte
	reads int
	err   error // at the end; nil means io.EOF
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		if c.err != nil {
			return 0, c.err
		}
		return 0, io.EOF
	}
	size := len(c.rest)
	if len(c.sizes) > 0 {
		size = min(size, int(c.sizes[c.reads%len(c.sizes)])+1)
	}
	c.reads++
	n := copy(p, c.rest[:size])
	c.rest = c.rest[n:]
	return n, nil
}

func TestReader_SplitsByTheStandard(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in   string
		want []event
		err  error
	}{
		"empty":                  {"", nil, io.EOF},
		"one":                    {"data: x\n\n", []event{{"data: x\n\n", "", "x", true}}, io.EOF},
		"named":                  {"event: a\nid: 1\ndata: x\n\n", []event{{"event: a\nid: 1\ndata: x\n\n", "a", "x", true}}, io.EOF},
		"last name counts":       {"event: a\nevent: b\ndata:\n\n", []event{{"event: a\nevent: b\ndata:\n\n", "b", "", true}}, io.EOF},
		"lines are joined":       {"data: 1\n: c\ndata:2\nretry: 1\ndata\n\n", []event{{"data: 1\n: c\ndata:2\nretry: 1\ndata\n\n", "", "1\n2\n", true}}, io.EOF},
		"one space goes":         {"data:  x \n\n", []event{{"data:  x \n\n", "", " x ", true}}, io.EOF},
		"colon in the value":     {"data:a:b\n\n", []event{{"data:a:b\n\n", "", "a:b", true}}, io.EOF},
		"field without data":     {"event: a\n\n", []event{{"event: a\n\n", "a", "", false}}, io.EOF},
		"names are exact":        {"Data: x\n data: y\ndatax: z\n\n", []event{{"Data: x\n data: y\ndatax: z\n\n", "", "", false}}, io.EOF},
		"CRLF":                   {"data: 1\r\ndata: 2\r\n\r\ndata: 3\r\n\r\n", []event{{"data: 1\r\ndata: 2\r\n\r\n", "", "1\n2", true}, {"data: 3\r\n\r\n", "", "3", true}}, io.EOF},
		"CR":                     {"data: 1\rdata: 2\r\rdata: 3\r\r", []event{{"data: 1\rdata: 2\r\r", "", "1\n2", true}, {"data: 3\r\r", "", "3", true}}, io.EOF},
		"LF CR":                  {"data: 1\n\rdata: 2\r\n\n", []event{{"data: 1\n\r", "", "1", true}, {"data: 2\r\n\n", "", "2", true}}, io.EOF},
		"CR CRLF":                {"data: 1\r\r\ndata: 2\r\n\r\n", []event{{"data: 1\r\r", "", "1", true}, {"\ndata: 2\r\n\r\n", "", "2", true}}, io.EOF},
		"CR CRLF at the end":     {"data: 1\r\r\n", []event{{"data: 1\r\r", "", "1", true}, {"\n", "", "", false}}, io.EOF},
		"blank lines":            {"\n\r\n\n\ndata: x\n\n\n", []event{{"\n", "", "", false}, {"\r\n", "", "", false}, {"\n", "", "", false}, {"\n", "", "", false}, {"data: x\n\n", "", "x", true}, {"\n", "", "", false}}, io.EOF},
		"byte order mark":        {"\xef\xbb\xbfdata: x\ndata: y\n\n", []event{{"\xef\xbb\xbfdata: x\ndata: y\n\n", "", "x\ny", true}}, io.EOF},
		"a second mark is text":  {"\xef\xbb\xbf\n\xef\xbb\xbfdata: x\n\n", []event{{"\xef\xbb\xbf\n", "", "", false}, {"\xef\xbb\xbfdata: x\n\n", "", "", false}}, io.EOF},
		"NUL and broken UTF-8":   {"data: \x00\xff\n\n", []event{{"data: \x00\xff\n\n", "", "\x00\xff", true}}, io.EOF},
		"one line end at EOF":    {"data: 1\n\ndata: 2\n", []event{{"data: 1\n\n", "", "1", true}, {"data: 2\n", "", "2", true}}, io.EOF},
		"one CR at EOF":          {"data: 1\r", []event{{"data: 1\r", "", "1", true}}, io.EOF},
		"CRLF and CR at EOF":     {"data: 1\r\n\r", []event{{"data: 1\r\n\r", "", "1", true}}, io.EOF},
		"no line end at EOF":     {"data: 1\n\ndata: 2", []event{{"data: 1\n\n", "", "1", true}, {"data: 2", "", "", false}}, sse.ErrTruncated},
		"half a line at EOF":     {"data: 1\nda", []event{{"data: 1\nda", "", "", false}}, sse.ErrTruncated},
		"half a comment at EOF":  {": pi", []event{{": pi", "", "", false}}, sse.ErrTruncated},
		"byte order mark at EOF": {"\xef\xbb\xbf", []event{{"\xef\xbb\xbf", "", "", false}}, sse.ErrTruncated},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, src := range []io.Reader{
				strings.NewReader(c.in),
				iotest.OneByteReader(strings.NewReader(c.in)),
				iotest.DataErrReader(strings.NewReader(c.in)),
			} {
				got, err := readAll(sse.NewReader(src))
				require.Equal(t, c.err, err)
				require.Empty(t, cmp.Diff(c.want, got))
			}
		})
	}
}

func TestF073_EventsCutAnywhereAreReadWhole(t *testing.T) {
	t.Parallel()
	in := "data: {\"text\":\"狐 jumps\"}\r\n\r\nevent: e\ndata: {\"text\":\"😀\"}\n\ndata: [DONE]\n\n"
	want, err := readAll(sse.NewReader(strings.NewReader(in)))
	require.Equal(t, io.EOF, err)
	for first := range 7 {
		for second := range 7 {
			got, err := readAll(sse.NewReader(&chunks{rest: []byte(in), sizes: []byte{byte(first), byte(second)}}))
			require.Equal(t, io.EOF, err)
			require.Empty(t, cmp.Diff(want, got))
		}
	}
}

func TestF074_CommentsPassAndCarryNoData(t *testing.T) {
	t.Parallel()
	in := ": ping - 2\n\n:\n\ndata: 1\n\nevent: ping\ndata: {}\n\n: OPENROUTER PROCESSING\n\ndata: 2\n\n"
	events, err := readAll(sse.NewReader(strings.NewReader(in)))
	require.Equal(t, io.EOF, err)
	require.Equal(t, in, strings.Join(raws(events), ""))
	require.Empty(t, cmp.Diff([]event{{"", "", "1", true}, {"", "ping", "{}", true}, {"", "", "2", true}}, withData(events)))
}

func TestF079_GiantLinesPassWhole(t *testing.T) {
	t.Parallel()
	for _, size := range []int{64 << 10, 70_000, 128 << 10, 1 << 20, 1_100_000, 5_000_000, 17_000_000} {
		data := strings.Repeat("iVBORw0K", size/8)
		in := "event: image\ndata: " + data + "\n\ndata: [DONE]\n\n"
		events, err := readAll(sse.NewReader(iotest.HalfReader(strings.NewReader(in))))
		require.Equal(t, io.EOF, err)
		require.Len(t, events, 2)
		require.True(t, data == events[0].Data, "the line of %d bytes differs", size)
		require.True(t, in == events[0].Raw+events[1].Raw)
		require.Equal(t, "image", events[0].Name)
	}
}

func TestF079_AnEventOverTheLimitIsAnError(t *testing.T) {
	t.Parallel()
	const limit = 100_000
	exact := "data: " + strings.Repeat("x", limit-len("data: \n\n")) + "\n\n"
	for _, sizes := range [][]byte{nil, {0}, {99}} {
		events, err := readAll(sse.NewReaderLimit(&chunks{rest: []byte(exact + exact + ": c\n"), sizes: sizes}, limit))
		require.Equal(t, io.EOF, err)
		require.Len(t, events, 3)

		r := sse.NewReaderLimit(&chunks{rest: []byte("data: 1\n\nx" + exact), sizes: sizes}, limit)
		events, err = readAll(r)
		require.Equal(t, sse.ErrEventTooLarge, err)
		require.Len(t, events, 1)
		ev, err := r.Next()
		require.Equal(t, sse.ErrEventTooLarge, err, "the error is final")
		require.Empty(t, ev)
	}
}

// endless repeats a text for ever.
type endless struct {
	text string
	read int
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.text[e.read%len(e.text):])
	e.read += n
	return n, nil
}

func TestReader_MemoryIsBounded(t *testing.T) {
	// Not parallel: it measures what the process allocates.
	src := &endless{text: "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := sse.NewReaderLimit(src, 1<<20).Next()
	runtime.ReadMemStats(&after)
	require.ErrorIs(t, err, sse.ErrEventTooLarge)
	require.LessOrEqual(t, src.read, 1<<20+1)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(3<<20), "buffers of 8 KiB to 1 MiB, each twice the one before")
}

func TestReader_GivesGiantBuffersBack(t *testing.T) {
	// Not parallel: it measures the heap.
	giant := "data: " + strings.Repeat("x", 8<<20) + "\ndata: " + strings.Repeat("y", 8<<20) + "\n\n"
	r := sse.NewReader(iotest.HalfReader(io.MultiReader(strings.NewReader(giant), &endless{text: "data: 1\n\ndata: 1\ndata: 2\n\n"})))
	ev, err := r.Next()
	require.NoError(t, err)
	require.Len(t, ev.Data, 16<<20+1)
	for range 100_000 {
		_, err = r.Next()
		require.NoError(t, err)
	}
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	require.Less(t, stats.HeapAlloc, uint64(16<<20))
	runtime.KeepAlive(r)
}

func TestF080_BlankLinesAndCommentsAreUnlimited(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"\n", "\r\n", ": keep-alive\n", ":\r\n\r\n", "\r", ":\r"} {
		in := strings.Repeat(line, 50_000) + "data: x\n\n"
		events, err := readAll(sse.NewReaderLimit(strings.NewReader(in), 64))
		require.Equal(t, io.EOF, err)
		require.True(t, in == strings.Join(raws(events), ""))
		require.Equal(t, []event{{"", "", "x", true}}, withData(events))
	}
}

func TestF080_KeepAlivesAreNotHeldBack(t *testing.T) {
	t.Parallel()
	for _, line := range []string{": keep-alive\n", ": keep-alive\r\n", "\n", "\r\n", "data: 1\n\n", "data: 1\r\n\r\n", "data: 1\r\r"} {
		in, out := io.Pipe()
		done := make(chan error, 1)
		go func() {
			_, err := io.WriteString(out, line)
			done <- err
		}()
		ev, err := sse.NewReader(in).Next()
		require.NoError(t, err)
		require.Equal(t, line, string(ev.Raw), "must pass before anything follows it")
		require.NoError(t, <-done)
	}
}

func TestF091_OddFramesAreJustData(t *testing.T) {
	t.Parallel()
	frames := []string{`{"choices":[]}`, `{"choices":null}`, `{"choices":{}}`, `{}`, `null`, `{"choices":[],"prompt_filter_results":[{}]}`, `[DONE]`}
	var want []event
	for _, frame := range frames {
		want = append(want, event{"data: " + frame + "\n\n", "", frame, true})
	}
	got, err := readAll(sse.NewReader(strings.NewReader("data: " + strings.Join(frames, "\n\ndata: ") + "\n\n")))
	require.Equal(t, io.EOF, err)
	require.Empty(t, cmp.Diff(want, got))
}

func TestReader_TellsABrokenStreamFromItsEnd(t *testing.T) {
	t.Parallel()
	reset := errors.New("connection reset")
	for in, rest := range map[string]string{
		"data: 1\n\n":            "",
		"data: 1\n\ndata: 2\n":   "data: 2\n", // its blank line may have been on the way
		"data: 1\n\ndata: 2":     "data: 2",
		"data: 1\n\nevent: 2\nd": "event: 2\nd",
	} {
		r := sse.NewReader(&chunks{rest: []byte(in), err: reset})
		ev, err := r.Next()
		require.NoError(t, err)
		require.Equal(t, "1", string(ev.Data))
		ev, err = r.Next()
		require.Equal(t, reset, err)
		require.Equal(t, rest, string(ev.Raw))
		require.Nil(t, ev.Data)
		ev, err = r.Next()
		require.Equal(t, reset, err)
		require.Empty(t, ev)
	}
	require.ErrorIs(t, sse.ErrTruncated, io.ErrUnexpectedEOF)
	require.NotErrorIs(t, sse.ErrTruncated, io.EOF)
	_, err := sse.NewReader(iotest.ErrReader(io.ErrUnexpectedEOF)).Next()
	require.Equal(t, io.ErrUnexpectedEOF, err)
}

// stuck returns neither bytes nor an error.
type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }

func TestReader_GivesUpOnASourceWithoutProgress(t *testing.T) {
	t.Parallel()
	_, err := sse.NewReader(stuck{}).Next()
	require.Equal(t, io.ErrNoProgress, err)
}

func TestReader_BufferedLooksAheadOneWholeEvent(t *testing.T) {
	t.Parallel()
	r := sse.NewReader(&chunks{rest: []byte("data: 1\ndata: 1\n\ndata: 2\ndata: 2\n\ndata: 3"), sizes: []byte{255}})
	require.False(t, r.Buffered(), "nothing is read yet")
	ev, err := r.Next()
	require.NoError(t, err)
	for range 2 {
		require.True(t, r.Buffered())
		require.Equal(t, "1\n1", string(ev.Data))
		require.Equal(t, "data: 1\ndata: 1\n\n", string(ev.Raw))
	}
	ev, err = r.Next()
	require.NoError(t, err)
	require.Equal(t, "2\n2", string(ev.Data))
	require.False(t, r.Buffered())
	require.Equal(t, "2\n2", string(ev.Data))
	_, err = r.Next()
	require.Equal(t, sse.ErrTruncated, err)
	require.False(t, r.Buffered())
}

// parse reads a whole stream as the standard's algorithm is written: line by line, fields into buffers.
func parse(in string) []event {
	in = strings.TrimPrefix(in, "\xef\xbb\xbf")
	in = strings.ReplaceAll(strings.ReplaceAll(in, "\r\n", "\n"), "\r", "\n")
	lines := strings.Split(in, "\n")
	whole := lines[len(lines)-1] == ""
	lines = lines[:len(lines)-1]
	if whole && len(lines) > 0 && lines[len(lines)-1] != "" {
		lines = append(lines, "") // Tollgate's rule: an ended last line ends its event
	}
	var events []event
	var ev event
	for _, line := range lines {
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			if ev.HasData {
				ev.Data = strings.TrimSuffix(ev.Data, "\n")
				events = append(events, ev)
			}
			ev = event{}
		case field == "data":
			ev.Data += value + "\n"
			ev.HasData = true
		case field == "event":
			ev.Name = value
		}
	}
	return events
}

func FuzzReader(f *testing.F) {
	for _, seed := range []string{
		"data: x\n\n", "event: a\ndata: 1\ndata: 2\r\n\r\n: ping\n\ndata:x\n", "data\r\rdata:\r\r\n\n", "\xef\xbb\xbfdata: x\r\n\r",
		":\n:\r:\r\n\rdata: 狐\n\ndata: [DONE]", "event: a\n\nevent\ndata:x\n\r\n\r",
	} {
		f.Add([]byte(seed), []byte{0})
		f.Add([]byte(seed), []byte{1, 4, 2})
	}
	f.Fuzz(func(t *testing.T, in, sizes []byte) {
		whole, wholeErr := readAll(sse.NewReader(bytes.NewReader(in)))
		require.Equal(t, string(in), strings.Join(raws(whole), ""), "no byte is lost")
		require.Empty(t, cmp.Diff(parse(string(in)), withData(whole)), "the standard's reading")

		src := &chunks{rest: in, sizes: sizes}
		r := sse.NewReader(src)
		var pieces []event
		var err error
		for i := 0; err == nil; i++ {
			buffered := i%3 > 0 && r.Buffered()
			reads := src.reads
			var ev sse.Event
			ev, err = r.Next()
			if buffered {
				require.NoError(t, err)
				require.Equal(t, reads, src.reads, "what is buffered needs no read")
			}
			r.Buffered()
			if len(ev.Raw) > 0 {
				pieces = append(pieces, event{string(ev.Raw), string(ev.Name), string(ev.Data), ev.Data != nil})
			}
		}
		require.Equal(t, wholeErr, err)
		require.Empty(t, cmp.Diff(whole, pieces), "however the stream is cut, it is the same events")
	})
}

func BenchmarkReader(b *testing.B) {
	chunk := `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" fox"},"finish_reason":null}]}`
	for name, text := range map[string]string{
		"LF":       chunk + "\n\n",
		"CRLF":     chunk + "\r\n\r\n",
		"CR":       chunk + "\r\r",
		"named":    "event: content_block_delta\n" + chunk + "\n\n",
		"joined":   chunk + "\n" + chunk + "\n\n",
		"1MB":      "data: " + strings.Repeat("x", 1<<20) + "\n\n",
		"comments": ": OPENROUTER PROCESSING\n\n",
	} {
		b.Run(name, func(b *testing.B) {
			r := sse.NewReader(&endless{text: text})
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Next(); err != nil {
					b.Fatal(err)
				}
				_ = r.Buffered()
			}
		})
	}
}

func ExampleReader() {
	r := sse.NewReader(strings.NewReader("event: greeting\ndata: hello\n\ndata: [DONE]\n\n"))
	for {
		ev, err := r.Next()
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s %s\n", ev.Name, ev.Data)
	}
	// Output:
	// greeting hello
	//  [DONE]
	// EOF
}

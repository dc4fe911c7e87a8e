package formdata_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/textproto"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/internal/formdata"
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const head = "Content-Disposition: form-data; name="

// form writes parts, each a header and a value, between boundaries "b".
func form(parts ...string) string {
	var b strings.Builder
	for i := 0; i < len(parts); i += 2 {
		b.WriteString("--b\r\n" + parts[i] + "\r\n\r\n" + parts[i+1] + "\r\n")
	}
	return b.String() + "--b--\r\n"
}

func parse(text string) (*formdata.Form, error) {
	return formdata.Parse(strings.NewReader(text), int64(len(text)), "b")
}

func TestParse(t *testing.T) {
	t.Parallel()
	text := form(
		head+`"model"`, "small",
		head+"n", "2",
		head+`"stream"`, "True",
		head+`"empty"`, "",
		head+`"file"; filename="a \"b\".wav"; filename*=UTF-8''a.wav`+"\r\nContent-Type: audio/wav\r\nX-More: yes", "RIFF\r\n--\r\n--c\r\n\x00\xff",
		head+`"tags[]"`, "x", head+`"tags[]"`, "y",
	)
	f, err := parse(text)
	require.NoError(t, err)
	require.Len(t, f.Parts(), 7)
	model, ok, err := f.String("model")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "small", model)
	n, ok, err := f.Int("n")
	require.NoError(t, err)
	require.True(t, ok)
	require.EqualValues(t, 2, n)
	stream, ok, err := f.Bool("stream")
	require.NoError(t, err)
	require.True(t, ok && stream)
	_, ok, err = f.Int("empty")
	require.NoError(t, err)
	require.False(t, ok)
	_, ok, _ = f.String("metadata", "user_id")
	require.False(t, ok)
	_, _, err = f.Int("model")
	require.ErrorIs(t, err, jsonedit.ErrWantInteger)
	_, _, err = f.Bool("model")
	require.ErrorIs(t, err, jsonedit.ErrWantBool)

	file := f.Parts()[4]
	require.True(t, file.IsFile)
	value, err := io.ReadAll(f.File(&file))
	require.NoError(t, err)
	require.Equal(t, "RIFF\r\n--\r\n--c\r\n\x00\xff", string(value))
	whole, err := io.ReadAll(f.Reader())
	require.NoError(t, err)
	require.Equal(t, text, string(whole))

	open, size, err := f.With("model", "provider/large", "b0undary")
	require.NoError(t, err)
	for range 2 {
		other, err := io.ReadAll(open())
		require.NoError(t, err)
		require.Equal(t, strings.Replace(text, "small", "provider/large", 1), string(other))
		require.Len(t, other, int(size))
	}
	_, _, err = f.With("absent", "x", "b0undary")
	require.Error(t, err)
	_, _, err = f.With("model", "b0undary", "b0undary")
	require.Error(t, err)
}

// Some clients write how long each part is.
func TestWith_KeepsALengthTrue(t *testing.T) {
	t.Parallel()
	text := form("Content-Length:  5\r\n"+head+`"model"`, "small", head+`"n"`, "1")
	f, err := parse(text)
	require.NoError(t, err)
	open, size, err := f.With("model", "provider/large", "b0undary")
	require.NoError(t, err)
	other, err := io.ReadAll(open())
	require.NoError(t, err)
	require.Equal(t, form("Content-Length:  14\r\n"+head+`"model"`, "provider/large", head+`"n"`, "1"), string(other))
	require.Len(t, other, int(size))
}

func TestParse_RefusesWhatHasTwoReadings(t *testing.T) {
	t.Parallel()
	model := []string{head + `"model"`, "m"}
	for name, text := range map[string]string{
		"nothing":                         "",
		"no form":                         `{"model":"m"}`,
		"a preamble":                      "hello\r\n" + form(model...),
		"no end":                          strings.TrimSuffix(form(model...), "--b--\r\n"),
		"an end that is cut":              strings.TrimSuffix(form(model...), "--\r\n"),
		"an epilogue":                     form(model...) + "more",
		"a second form":                   form(model...) + form(model...),
		"bare line feeds":                 strings.ReplaceAll(form(model...), "\r\n", "\n"),
		"a boundary behind a line feed":   form(head+`"x"`, "y\n--b\r\n"+head+`"model"`+"\r\n\r\nz"),
		"a boundary behind a return":      form(head+`"x"`, "y\r--b\r\n"+head+`"model"`+"\r\n\r\nz"),
		"a longer boundary":               form(head+`"x"`, "y\r\n--bb\r\nz"),
		"padding behind a boundary":       strings.Replace(form(model...), "--b\r\n", "--b \r\n", 1),
		"a boundary in place of a value":  "--b\r\n" + head + `"x"` + "\r\n\r\n--b--\r\n",
		"no header":                       "--b\r\n\r\nx\r\n--b--\r\n",
		"no name":                         form("Content-Disposition: form-data", "x"),
		"an empty name":                   form(head+`""`, "x"),
		"no disposition":                  form("Content-Type: text/plain", "x"),
		"another disposition":             form(`Content-Disposition: attachment; name="model"`, "m"),
		"a name twice":                    form(head+`"x"; name="model"`, "m"),
		"an encoded name":                 form(head+`"x"; name*=UTF-8''model`, "m"),
		"a name with an escape":           form(head+`"mo\del"`, "m"),
		"a name that is percent-encoded":  form(head+`"mode%6c"`, "m"),
		"a name that does not end":        form(head+`"model`, "m"),
		"a folded header":                 form("Content-Disposition: form-data;\r\n name=\"model\"", "m"),
		"a disposition twice":             form(head+"\"x\"\r\n"+head+`"model"`, "m"),
		"a NUL in a header":               form(head+"\"model\"\r\nX: \x00", "m"),
		"endless header":                  form(head+`"model"; filename="`+strings.Repeat("x", 9<<10)+`"`, "m"),
		"many lines of header":            form(head+`"model"`+strings.Repeat("\r\nX: y", 20), "m"),
		"lines of header that differ not": form(head+`"x"`+"\r\nX-A: 1\r\nx-a: 2", "m"),
		"model twice":                     form(head+`"model"`, "cheap", head+`"model"`, "dear"),
		"a field twice":                   form(head+`"voice"`, "a", head+`"voice"`, "b"),
		"a field and a file":              form(head+`"image"`, "a", head+`"image"; filename="x"`, "b"),
		"model as a file":                 form(head+`"model"; filename="m.txt"`, "m"),
		"model in capitals":               form(head+`"Model"`, "m"),
		"model in base64":                 form(head+"\"model\"\r\nContent-Transfer-Encoding: base64", "bQ=="),
		"model in another alphabet":       form(head+"\"model\"\r\nContent-Type: text/plain; charset=utf-7", "+AG0-"),
		"an alphabet for all":             form(head+`"_charset_"`, "utf-16", head+`"model"`, "m"),
		"model is no text":                form(head+`"model"`, "m\xff"),
		"model has a NUL":                 form(head+`"model"`, "m\x00"),
		"a length that is wrong":          form(head+"\"model\"\r\nContent-Length: 7", "m"),
		"a form within":                   form(head+"\"files\"\r\nContent-Type: multipart/mixed; boundary=c", "--c--"),
		"a field as large as a file":      form(head+`"file"`, strings.Repeat("x", 2<<20)),
		"too many parts":                  form(repeated(200)...),
	} {
		f, err := parse(text)
		var said *formdata.Error
		require.ErrorAs(t, err, &said, name)
		require.Nil(t, f, name)
		require.NotEmpty(t, said.Error())
	}
}

func repeated(n int) []string {
	var parts []string
	for i := range n {
		parts = append(parts, head+fmt.Sprintf(`"x%d"`, i), "y")
	}
	return parts
}

func TestBoundary(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		`multipart/form-data; boundary=abc`:                             "abc",
		`Multipart/Form-Data; charset=utf-8; boundary="a b'()+_,-./:="`: "a b'()+_,-./:=",
	} {
		boundary, ok, err := formdata.Boundary(header)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, want, boundary)
	}
	for _, header := range []string{
		`multipart/form-data`, `multipart/form-data; boundary=`, `multipart/form-data; boundary=a; boundary=b`,
		`multipart/form-data; boundary="` + strings.Repeat("x", 71) + `"`, `multipart/form-data; boundary="a;b"`, `multipart/form-data; boundary="a "`,
	} {
		_, ok, err := formdata.Boundary(header)
		require.True(t, ok, header)
		require.Error(t, err, header)
	}
	for _, header := range []string{"", "application/json", "multipart/mixed; boundary=x", "multipart", ";"} {
		_, ok, err := formdata.Boundary(header)
		require.False(t, ok, header)
		require.NoError(t, err, header)
	}
}

// What the standard library writes is read, wherever the windows of the search lie, and its own reader sees the same.
func TestParse_ReadsWhatWritersWrite(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var text bytes.Buffer
		w := multipart.NewWriter(&text)
		size := rapid.IntRange(0, 200_000).Draw(t, "size")
		data := bytes.Repeat([]byte("\r\n--"+w.Boundary()[:5]), size/9+1)[:size]
		file, err := w.CreateFormFile("file", "a.mp3")
		require.NoError(t, err)
		_, err = file.Write(data)
		require.NoError(t, err)
		require.NoError(t, w.WriteField("model", "m"))
		part, err := w.CreatePart(textproto.MIMEHeader{"Content-Disposition": {`form-data; name="user"`}, "Content-Type": {"text/plain; charset=utf-8"}})
		require.NoError(t, err)
		_, err = io.WriteString(part, "é")
		require.NoError(t, err)
		require.NoError(t, w.Close())
		f, err := formdata.Parse(bytes.NewReader(text.Bytes()), int64(text.Len()), w.Boundary())
		require.NoError(t, err)
		require.Len(t, f.Parts(), 3)
		require.EqualValues(t, size, f.Parts()[0].Size())
		user, _, _ := f.String("user")
		require.Equal(t, "é", user)
	})
}

// large is a body of a file's size that is nowhere in memory.
type large struct{ head, tail string }

const largeFile = 64 << 20

func (l large) ReadAt(b []byte, at int64) (int, error) {
	for i := range b {
		switch n := at + int64(i); {
		case n < int64(len(l.head)):
			b[i] = l.head[n]
		case n < int64(len(l.head))+largeFile:
			b[i] = '-'
		case n < l.size():
			b[i] = l.tail[n-int64(len(l.head))-largeFile]
		default:
			return i, io.EOF
		}
	}
	return len(b), nil
}

func (l large) size() int64 { return int64(len(l.head)) + largeFile + int64(len(l.tail)) }

// The memory that a form takes does not grow with its files.
func TestParse_HoldsNoFile(t *testing.T) {
	body := large{"--b0undary\r\n" + head + `"file"; filename="x"` + "\r\n\r\n", "\r\n--b0undary\r\n" + head + "\"model\"\r\n\r\nm\r\n--b0undary--\r\n"}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f, err := formdata.Parse(body, body.size(), "b0undary")
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	require.EqualValues(t, largeFile, f.Parts()[0].Size())
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4<<20))
}

func TestParse_AReaderThatFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("disk is gone")
	_, err := formdata.Parse(readerAt(func([]byte, int64) (int, error) { return 0, broken }), 100, "b")
	require.ErrorIs(t, err, broken)
}

type readerAt func(b []byte, at int64) (int, error)

func (r readerAt) ReadAt(b []byte, at int64) (int, error) { return r(b, at) }

// Whatever is accepted is what the standard library's reader sees too, and a replaced field changes nothing else.
func FuzzParse(f *testing.F) {
	f.Add(form(head+`"model"`, "m", head+`"file"; filename="x"`, "y\r\n"))
	f.Add(form(head+`"model"`, "cheap", head+`"model"`, "dear"))
	f.Add("--b\r\nContent-Length: 1\r\n" + head + "model\r\n\r\nm\r\n--b--")
	f.Fuzz(func(t *testing.T, text string) {
		form, err := parse(text)
		if err != nil {
			require.Nil(t, form)
			return
		}
		r := multipart.NewReader(strings.NewReader(text), "b")
		for i := range form.Parts() {
			mine := &form.Parts()[i]
			p, err := r.NextRawPart()
			require.NoError(t, err)
			require.Equal(t, p.FormName(), mine.Name)
			theirs, err := io.ReadAll(p)
			require.NoError(t, err)
			value, err := io.ReadAll(form.File(mine))
			require.NoError(t, err)
			require.Equal(t, string(theirs), string(value))
		}
		_, err = r.NextRawPart()
		require.ErrorIs(t, err, io.EOF)
		open, size, err := form.With("model", "another", "b0undary")
		if err != nil {
			return
		}
		changed, err := io.ReadAll(open())
		require.NoError(t, err)
		require.Len(t, changed, int(size))
		again, err := parse(string(changed))
		require.NoError(t, err)
		model, _, _ := again.String("model")
		require.Equal(t, "another", model)
		require.Len(t, again.Parts(), len(form.Parts()))
	})
}

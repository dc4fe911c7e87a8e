package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func digest(text string) Hash {
	h := sha256.Sum256([]byte(text))
	return h[:]
}

// chain makes blocks of so many rows of January, each with rows of February besides, and their digests.
func chain(rows ...int) (blocks []Block, digests [][]Hash) {
	var previous Hash
	for i, n := range rows {
		b := Block{Number: int64(i + 1), Epoch: 1, FromXID: fmt.Sprint(10 * i), UntilXID: fmt.Sprint(10 * (i + 1)), Previous: previous}
		var all []byte
		var own []Hash
		for r := range n {
			own = append(own, digest(fmt.Sprint(i, r)))
			all = append(all, own[r]...)
		}
		b.Parts = []Part{
			{Month: "2026-01", Rows: int64(n), Cost: int64(100 * n), Hash: digest(string(all))},
			{Month: "2026-02", Rows: 1, Cost: 7, Hash: digest("february")},
		}
		b.Hash = b.hash()
		previous = b.Hash
		blocks, digests = append(blocks, b), append(digests, own)
	}
	return blocks, digests
}

// written is a file of these blocks.
func written(t require.TestingT, blocks []Block, digests [][]Hash) ([]byte, Trailer) {
	var out bytes.Buffer
	w, err := NewWriter(&out, Header{Format: Format, Month: "2026-01", Units: []string{"input"}})
	require.NoError(t, err)
	for i, b := range blocks {
		require.NoError(t, w.Block(b))
		for r, d := range digests[i] {
			row := Row{Row: json.RawMessage(fmt.Sprintf(`{"n":%d,"cost":100,"who":"<&>"}`, r)), Digest: d}
			if r == 0 {
				row.Attribution = json.RawMessage(`{"tags":{"a":"b"}}`)
			}
			require.NoError(t, w.Row(row))
		}
	}
	trailer, err := w.Close()
	require.NoError(t, err)
	require.EqualValues(t, out.Len(), w.Bytes())
	return out.Bytes(), trailer
}

func TestCheck_ReadsWhatWasWritten(t *testing.T) {
	t.Parallel()
	blocks, digests := chain(3, 1, 2)
	text, trailer := written(t, blocks, digests)
	got, err := Check(bytes.NewReader(text))
	require.NoError(t, err)
	require.Equal(t, trailer, got)
	require.Equal(t, Trailer{
		Month: "2026-01", Rows: 6, Cost: 600, Blocks: 3, Block: 3, BlockHash: blocks[2].Hash, SHA256: trailer.SHA256,
	}, trailer)
	body := text[:bytes.LastIndexByte(text[:len(text)-1], '\n')+1]
	require.Equal(t, digest(string(body)), trailer.SHA256, "the checksum is of everything before the trailer's line")
	require.Contains(t, string(text), `{"row":{"n":0,"cost":100,"who":"<&>"},"attribution":{"tags":{"a":"b"}},"digest":"`)

	text, trailer = written(t, nil, nil)
	got, err = Check(bytes.NewReader(text))
	require.NoError(t, err, "a month without rows has a file, too")
	require.Equal(t, trailer, got)
}

// No byte can change, and nothing can be missing or too much, without being noticed.
func TestCheck_NoticesEveryChange(t *testing.T) {
	t.Parallel()
	blocks, digests := chain(2, 3)
	text, _ := written(t, blocks, digests)
	body := bytes.LastIndexByte(text[:len(text)-1], '\n') // what the checksum is of
	rapid.Check(t, func(t *rapid.T) {
		changed := bytes.Clone(text)
		switch rapid.IntRange(0, 3).Draw(t, "change") {
		case 0:
			changed[rapid.IntRange(0, body).Draw(t, "at")] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits"))
		case 1: // the line's end is not missed
			changed = changed[:rapid.IntRange(0, len(text)-2).Draw(t, "to")]
		case 2:
			at := rapid.IntRange(0, body).Draw(t, "at")
			changed = append(changed[:at], changed[at+1:]...)
		default:
			lines := bytes.SplitAfter(text, []byte("\n"))
			i := rapid.IntRange(0, len(lines)-2).Draw(t, "line")
			changed = append(bytes.Join(lines[:i+1], nil), text[len(bytes.Join(lines[:i], nil)):]...) // twice
		}
		_, err := Check(bytes.NewReader(changed))
		if err == nil {
			t.Fatalf("unnoticed: %s", changed)
		}
	})
}

// A writer refuses rows and blocks that are not those that were sealed, before the file is complete.
// Costs are in no hash of a file, so they have to add up.
func TestCheck_AddsUpCosts(t *testing.T) {
	t.Parallel()
	blocks, digests := chain(3)
	text, _ := written(t, blocks, digests)
	for _, change := range [][2]string{{`"n":1,"cost":100`, `"n":1,"cost":1`}, {`"rows":3,"cost":300`, `"rows":3,"cost":1`}} {
		body, _, _ := strings.Cut(string(text), `{"trailer"`)
		forged := strings.Replace(body, change[0], change[1], 1)
		require.NotEqual(t, body, forged)
		_, err := Check(strings.NewReader(forged + `{"trailer":{}}` + "\n"))
		require.ErrorIs(t, err, ErrSeal)
	}
}

func TestWriter_RefusesBrokenSeals(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(blocks []Block, digests [][]Hash) ([]Block, [][]Hash){
		"row that was changed": func(b []Block, d [][]Hash) ([]Block, [][]Hash) { d[1][0] = digest("x"); return b, d },
		"row that is gone":     func(b []Block, d [][]Hash) ([]Block, [][]Hash) { d[0] = d[0][1:]; return b, d },
		"row too many":         func(b []Block, d [][]Hash) ([]Block, [][]Hash) { d[0] = append(d[0], digest("x")); return b, d },
		"rows in another order": func(b []Block, d [][]Hash) ([]Block, [][]Hash) {
			d[0][0], d[0][1] = d[0][1], d[0][0]
			return b, d
		},
		"last row that is gone": func(b []Block, d [][]Hash) ([]Block, [][]Hash) { d[1] = d[1][:1]; return b, d },
		"sum of another month":  func(b []Block, d [][]Hash) ([]Block, [][]Hash) { b[0].Parts[1].Hash = digest("x"); return b, d },
		"bound that was moved":  func(b []Block, d [][]Hash) ([]Block, [][]Hash) { b[1].UntilXID = "21"; return b, d },
		"block that was forged": func(b []Block, d [][]Hash) ([]Block, [][]Hash) { b[0].Hash = digest("x"); return b, d },
		"block of another chain": func(b []Block, d [][]Hash) ([]Block, [][]Hash) {
			b[1].Previous = digest("x")
			b[1].Hash = b[1].hash()
			return b, d
		},
		"blocks in another order": func(b []Block, d [][]Hash) ([]Block, [][]Hash) { return []Block{b[1], b[0]}, [][]Hash{d[1], d[0]} },
		"block that is there twice": func(b []Block, d [][]Hash) ([]Block, [][]Hash) {
			return []Block{b[0], b[0]}, [][]Hash{d[0], d[0]}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			blocks, digests := spoil(chain(2, 2))
			w, err := NewWriter(io.Discard, Header{Format: Format, Month: "2026-01"})
			require.NoError(t, err)
			for i, b := range blocks {
				if err = errors.Join(err, w.Block(b)); err != nil {
					break
				}
				for _, d := range digests[i] {
					require.NoError(t, w.Row(Row{Row: json.RawMessage(`{"cost":100}`), Digest: d}))
				}
			}
			if err == nil {
				_, err = w.Close()
			}
			require.ErrorIs(t, err, ErrSeal)
		})
	}
	w, err := NewWriter(io.Discard, Header{Format: Format, Month: "2026-01"})
	require.NoError(t, err)
	require.ErrorIs(t, w.Row(Row{Row: json.RawMessage(`{"cost":100}`)}), ErrSeal, "a row of no block")
}

func TestCheck_RefusesOtherFiles(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "\n", "{}\n", "a,b\n1,2\n", `{"archive":{"format":2,"month":"2026-01"}}` + "\n", `{"archive":{"format":1,"month":"2026-01"}}` + "\n",
	} {
		_, err := Check(strings.NewReader(text))
		require.ErrorIs(t, err, ErrIncomplete, text)
	}
	_, err := CheckFile(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestLock_OneAtATime(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made", "here")
	unlock, err := Lock(dir)
	require.NoError(t, err)
	_, err = Lock(dir)
	require.ErrorIs(t, err, ErrBusy)
	require.NoError(t, unlock())
	unlock, err = Lock(dir)
	require.NoError(t, err)
	require.NoError(t, unlock())
}

// Whatever a file has, reading it ends, and what passes is what a writer writes.
func FuzzCheck(f *testing.F) {
	blocks, digests := chain(2, 1)
	text, _ := written(f, blocks, digests)
	f.Add(text)
	f.Add([]byte(`{"archive":{"format":1,"month":"2026-01"}}` + "\n" + `{"block":{"parts":null}}` + "\n{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := Check(bytes.NewReader(text))
		if err == nil && (got.Rows < 0 || got.Blocks < 0) {
			t.Fatalf("%+v", got)
		}
	})
}

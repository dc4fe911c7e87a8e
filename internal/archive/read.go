package archive

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// longestLine bounds a line: a row with the attribution of its call.
const longestLine = 64 << 20

// ErrIncomplete says that a file is none of these, or does not come to its end.
var ErrIncomplete = errors.New("this is no complete archive")

// Check reads a file, follows the hashes of everything that it has, and returns its trailer. ErrIncomplete, ErrSeal.
func Check(r io.Reader) (Trailer, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, longestLine)
	lines.Split(wholeLines)
	sum := sha256.New()
	var b *books
	for lines.Scan() {
		var l struct {
			Archive *Header  `json:"archive"`
			Block   *Block   `json:"block"`
			Trailer *Trailer `json:"trailer"`
			Row
		}
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return Trailer{}, fmt.Errorf("%w: %w", ErrIncomplete, err)
		}
		switch {
		case b == nil && (l.Archive == nil || l.Archive.Format != Format):
			return Trailer{}, fmt.Errorf("%w: it does not begin as one of form %d", ErrIncomplete, Format)
		case b == nil:
			b = newBooks(l.Archive.Month)
		case l.Block != nil:
			if err := b.begin(*l.Block); err != nil {
				return Trailer{}, err
			}
		case l.Trailer != nil:
			return b.end(*l.Trailer, sum.Sum(nil), lines)
		default:
			if err := b.row(l.Row); err != nil {
				return Trailer{}, err
			}
		}
		sum.Write(lines.Bytes())
	}
	if err := lines.Err(); err != nil {
		return Trailer{}, fmt.Errorf("read archive: %w", err)
	}
	return Trailer{}, fmt.Errorf("%w: it has no trailer", ErrIncomplete)
}

// end compares the trailer with what came before it.
func (b *books) end(t Trailer, sum []byte, rest *bufio.Scanner) (Trailer, error) {
	if err := b.close(); err != nil {
		return Trailer{}, err
	}
	want := b.sums
	if rest.Scan() || t.Month != want.Month || t.Rows != want.Rows || t.Cost != want.Cost || t.Blocks != want.Blocks ||
		t.Block != want.Block || !bytes.Equal(t.BlockHash, want.BlockHash) || !bytes.Equal(t.SHA256, sum) {
		return Trailer{}, fmt.Errorf("%w: its trailer is not of what it has", ErrIncomplete)
	}
	return t, nil
}

// CheckFile checks the file at a path.
func CheckFile(path string) (Trailer, error) {
	file, err := os.Open(path) //nolint:gosec // the operator names it
	if err != nil {
		return Trailer{}, fmt.Errorf("read archive: %w", err)
	}
	defer func() { _ = file.Close() }() // it was read only
	return Check(file)
}

// wholeLines splits into lines with their ends; a rest without one is a line, too.
func wholeLines(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if end := bytes.IndexByte(data, '\n'); end >= 0 {
		return end + 1, data[:end+1], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

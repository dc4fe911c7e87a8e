package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
)

// Writer writes one file. Methods are called in the order of the file's lines.
type Writer struct {
	out   io.Writer
	sum   hash.Hash
	books *books
	bytes int64
}

// NewWriter begins a file of a month.
func NewWriter(w io.Writer, h Header) (*Writer, error) {
	a := &Writer{sum: sha256.New(), books: newBooks(h.Month)}
	a.out = io.MultiWriter(w, a.sum)
	return a, a.line("archive", h)
}

// Block goes on to a block. ErrSeal: it, or the one before, is not what was sealed.
func (a *Writer) Block(b Block) error {
	if err := a.books.begin(b); err != nil {
		return err
	}
	return a.line("block", b)
}

// Row writes the next row of the block.
func (a *Writer) Row(r Row) error {
	if err := a.books.row(r); err != nil {
		return err
	}
	return a.write(r)
}

// Close ends the file and returns what it has. ErrSeal: the last block is not what was sealed.
func (a *Writer) Close() (Trailer, error) {
	if err := a.books.close(); err != nil {
		return Trailer{}, err
	}
	t := a.books.sums
	t.SHA256 = a.sum.Sum(nil)
	return t, a.line("trailer", t)
}

// Bytes is how much was written.
func (a *Writer) Bytes() int64 { return a.bytes }

func (a *Writer) line(name string, v any) error { return a.write(map[string]any{name: v}) }

func (a *Writer) write(v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	n, err := a.out.Write(b.Bytes())
	a.bytes += int64(n)
	if err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	return nil
}

// ErrBusy says that another process writes into the directory.
var ErrBusy = errors.New("another process writes archives here")

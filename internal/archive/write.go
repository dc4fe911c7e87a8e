package archive

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
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

// fileBuffer is how many bytes go to the disk at once.
const fileBuffer = 1 << 20

// Create writes a file that is complete and on the disk, or not there: fill writes it under another name, which it loses when
// everything is flushed. Two must not write the same file at once. An existing file is replaced.
func Create(path string, fill func(io.Writer) error) (err error) {
	dir, name := filepath.Split(path)
	partial := filepath.Join(dir, "."+name+".partial")
	file, err := os.OpenFile(partial, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600) //nolint:gosec // the operator names it
	if err != nil {
		return fmt.Errorf("create archive: %w", err)
	}
	out := bufio.NewWriterSize(file, fileBuffer)
	err = fill(out)
	if err == nil {
		err = errors.Join(out.Flush(), file.Sync())
	}
	err = errors.Join(err, file.Close())
	if err != nil {
		return errors.Join(err, os.Remove(partial))
	}
	if err := os.Rename(partial, path); err != nil {
		return fmt.Errorf("name archive: %w", err)
	}
	return syncDirectory(filepath.Dir(path))
}

// syncDirectory makes the names in a directory outlive a crash.
func syncDirectory(path string) error {
	d, err := os.Open(path) //nolint:gosec // the operator names it
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("flush directory: %w", err)
	}
	return nil
}

// ErrBusy says that another process writes into the directory.
var ErrBusy = errors.New("another process writes archives here")

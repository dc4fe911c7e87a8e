// Package archive has the files in which months of the ledger outlive their rows: JSON, an object a line.
//
//	{"archive": {…}}                        what the file is of
//	{"block": {…}}                          a block that has rows of the month, with its hash and those of all its parts
//	{"row": {…}, "digest": "…"}             the rows of the block in the order in which they were hashed
//	{"trailer": {…}}                        sums, the last block, and the SHA-256 of everything before this line
//
// A file is complete or it has another name: the digests of its rows make the hashes of the blocks' parts, these make the hashes
// of the blocks, and these the chain, and costs add up. That a row is what its digest was made of takes PostgreSQL
// (ledger.row_digest); a file alone does not show it.
package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
)

// Format is the number of the form that is written.
const Format = 1

// Header says what a file is of.
type Header struct {
	Format int    `json:"format"`
	Month  string `json:"month"` // of the attempts, in UTC: 2026-01
	// Units name the entries of the rows' quantities and unit_prices, which are shorter where the last ones are 0.
	Units []string `json:"units"`
}

// Block is a run of rows that was sealed at once.
type Block struct {
	Number   int64  `json:"number"`
	Epoch    int    `json:"epoch"`
	FromXID  string `json:"from_xid"`
	UntilXID string `json:"until_xid"` // exclusive
	Previous Hash   `json:"previous_hash"`
	Hash     Hash   `json:"hash"`
	Parts    []Part `json:"parts"` // by month
}

// Part is the rows of a block whose attempts are of one month.
type Part struct {
	Month string `json:"month"`
	Rows  int64  `json:"rows"`
	Cost  int64  `json:"cost"` // nano-dollars
	Hash  Hash   `json:"hash"` // of the digests of its rows
}

// Row is one row of the ledger.
type Row struct {
	Row json.RawMessage `json:"row"` // every column by its name
	// Attribution is what the client and the provider said about the call, beside the row of its usage.
	Attribution json.RawMessage `json:"attribution,omitempty"`
	Digest      Hash            `json:"digest"`
}

// Trailer ends a file that is complete.
type Trailer struct {
	Month     string `json:"month"`
	Rows      int64  `json:"rows"`
	Cost      int64  `json:"cost"` // nano-dollars
	Blocks    int64  `json:"blocks"`
	Block     int64  `json:"block"`      // the last one; 0: there is none
	BlockHash Hash   `json:"block_hash"` // its hash
	SHA256    Hash   `json:"sha256"`     // of all bytes before the trailer's line
}

// Hash is written in hexadecimal.
type Hash []byte

// MarshalText writes the hash.
func (h Hash) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h), nil }

// UnmarshalText reads the hash.
func (h *Hash) UnmarshalText(text []byte) (err error) {
	*h, err = hex.AppendDecode(nil, text)
	return err
}

// ErrSeal says that rows are not those that were sealed, or blocks not an unbroken chain.
var ErrSeal = errors.New("the seal is broken")

// books add up what a file has, and compare it with the seals.
type books struct {
	month   string
	block   *Block // nil: there was none yet
	digests hash.Hash
	rows    int64 // of the block's part
	cost    int64 // of these
	sums    Trailer
}

func newBooks(month string) *books {
	return &books{month: month, digests: sha256.New(), sums: Trailer{Month: month}}
}

// begin goes on to a block, whose own hash it checks.
func (b *books) begin(next Block) error {
	if err := b.close(); err != nil {
		return err
	}
	if last := b.block; last != nil {
		if next.Number <= last.Number || next.Number == last.Number+1 && !bytes.Equal(next.Previous, last.Hash) {
			return fmt.Errorf("block %d does not follow block %d: %w", next.Number, last.Number, ErrSeal)
		}
	}
	if !bytes.Equal(next.hash(), next.Hash) {
		return fmt.Errorf("block %d has another hash than its parts make: %w", next.Number, ErrSeal)
	}
	b.block = &next
	b.digests.Reset()
	b.rows, b.cost = 0, 0
	return nil
}

// hash is what ledger.block_hash makes of the block.
func (b *Block) hash() []byte {
	h := sha256.New()
	h.Write(b.Previous)
	fmt.Fprintf(h, "%d %d %s %s", b.Number, b.Epoch, b.FromXID, b.UntilXID)
	for _, p := range b.Parts {
		h.Write(p.Hash)
	}
	return h.Sum(nil)
}

// row takes the next row of the block.
func (b *books) row(r Row) error {
	if b.block == nil {
		return fmt.Errorf("a row is before the first block: %w", ErrSeal)
	}
	var money struct {
		Cost *int64 `json:"cost"`
	}
	if err := json.Unmarshal(r.Row, &money); err != nil || money.Cost == nil {
		return fmt.Errorf("a row of block %d has no cost: %w", b.block.Number, ErrSeal)
	}
	b.digests.Write(r.Digest)
	b.rows++
	b.cost += *money.Cost
	return nil
}

// close compares the rows of the last block with the hash of its part.
func (b *books) close() error {
	if b.block == nil {
		return nil
	}
	var own Part
	for _, p := range b.block.Parts {
		if p.Month == b.month {
			own = p
		}
	}
	if own.Cost != b.cost {
		return fmt.Errorf("block %d has rows of %s that cost %d together, and its part says %d: %w", b.block.Number, b.month, b.cost, own.Cost, ErrSeal)
	}
	if own.Rows != b.rows || !bytes.Equal(own.Hash, b.digests.Sum(nil)) {
		return fmt.Errorf("block %d has %d rows of %s which are not the %d that were sealed: %w", b.block.Number, b.rows, b.month, own.Rows, ErrSeal)
	}
	b.sums.Rows += own.Rows
	b.sums.Cost += own.Cost
	b.sums.Blocks++
	b.sums.Block, b.sums.BlockHash = b.block.Number, b.block.Hash
	return nil
}

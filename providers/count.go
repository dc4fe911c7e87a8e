package providers

import (
	"strconv"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/jsonscan"
)

// Count is a number of tokens as an upstream reported it.
type Count struct {
	N     int64
	Given bool // it was there, and not null
	Bad   bool // it makes no sense: no whole number, negative or above governance.MaxTokens
}

// Read takes the next value of s; null is none. It never fails, so that one odd member does not hide the others.
func (c *Count) Read(s *jsonscan.Scanner) {
	raw := string(s.Raw())
	if raw == "null" || s.Fault() {
		return
	}
	n, err := strconv.ParseInt(raw, 10, 64)
	*c = Count{N: n, Given: true, Bad: err != nil || n < 0 || n > governance.MaxTokens}
}

// Package money holds US-dollar amounts as whole nano-dollars, and the only arithmetic that Tollgate does with them.
package money

import (
	"errors"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// Nano is an amount in nano-dollars: 1,000,000,000 is one dollar.
type Nano int64

// PerMillion is a price in nano-dollars for one million units (tokens, requests, images, seconds).
type PerMillion int64

// String writes p as decimal US dollars for one million units.
func (p PerMillion) String() string { return FormatScaled(int64(p), 9) }

// Errors of arithmetic and parsing.
var (
	ErrOverflow  = errors.New("amount does not fit in 63 bits")
	ErrNegative  = errors.New("negative quantity or price")
	ErrMalformed = errors.New("want digits, then optionally a dot and at most nine digits")
)

const million = 1_000_000

// Sum collects products of quantities and prices exactly, in 128 bits, so that a row is rounded once.
// The zero value is an empty sum.
type Sum struct{ hi, lo uint64 }

// Add adds quantity × price.
func (s *Sum) Add(quantity int64, p PerMillion) error {
	if quantity < 0 || p < 0 {
		return ErrNegative
	}
	hi, lo := bits.Mul64(uint64(quantity), uint64(p))
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, lo, 0)
	s.hi, carry = bits.Add64(s.hi, hi, carry)
	if carry != 0 {
		return ErrOverflow
	}
	return nil
}

// HalfEven returns the sum in nano-dollars, rounded half to even: what a settled row costs.
func (s Sum) HalfEven() (Nano, error) {
	quo, rem, err := s.divide()
	if err != nil {
		return 0, err
	}
	if rem > million/2 || rem == million/2 && quo%2 == 1 {
		quo++
	}
	return toNano(quo)
}

// Up returns the sum in nano-dollars, rounded up: what a hold takes, so that no fraction of use is free.
func (s Sum) Up() (Nano, error) {
	quo, rem, err := s.divide()
	if err != nil {
		return 0, err
	}
	if rem > 0 {
		quo++
	}
	return toNano(quo)
}

func (s Sum) divide() (quo, rem uint64, err error) {
	if s.hi >= million {
		return 0, 0, ErrOverflow
	}
	quo, rem = bits.Div64(s.hi, s.lo, million)
	if quo > math.MaxInt64 { // rounded up, the largest 64-bit quotient would wrap to zero
		return 0, 0, ErrOverflow
	}
	return quo, rem, nil
}

func toNano(u uint64) (Nano, error) {
	if u > math.MaxInt64 {
		return 0, ErrOverflow
	}
	return Nano(u), nil
}

// Parse reads a plain non-negative decimal of dollars such as "12.5", with at most nine fraction digits.
func Parse(s string) (Nano, error) {
	n, err := ParseScaled(s, 9)
	return Nano(n), err
}

// ParseScaled reads a plain non-negative decimal and returns it times 10^digits.
// It refuses signs, exponents, superfluous zeros and more fraction digits than asked for.
func ParseScaled(s string, digits int) (int64, error) {
	whole, frac, dot := strings.Cut(s, ".")
	if whole == "" || dot && frac == "" || len(frac) > digits || len(whole) > 1 && whole[0] == '0' {
		return 0, ErrMalformed
	}
	all := whole + frac
	for i := range len(all) {
		if all[i] < '0' || all[i] > '9' {
			return 0, ErrMalformed
		}
	}
	n, err := strconv.ParseInt(all+strings.Repeat("0", digits-len(frac)), 10, 64)
	if err != nil {
		return 0, ErrOverflow
	}
	return n, nil
}

// String writes the amount in dollars with all its digits, trailing zeros cut: "0.00015".
func (n Nano) String() string { return FormatScaled(int64(n), 9) }

// FormatScaled writes n ÷ 10^digits as a plain decimal without trailing zeros.
func FormatScaled(n int64, digits int) string {
	sign := ""
	u := uint64(n) // two's complement is meant
	if n < 0 {
		sign, u = "-", -u
	}
	s := strconv.FormatUint(u, 10)
	if len(s) <= digits {
		s = strings.Repeat("0", digits+1-len(s)) + s
	}
	if digits == 0 {
		return sign + s
	}
	point := len(s) - digits
	return sign + strings.TrimSuffix(strings.TrimRight(s[:point]+"."+s[point:], "0"), ".")
}

package console

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

const (
	maxName      = 200
	maxModelName = 300
	maxReason    = 1000
	maxPatterns  = 200
)

// decimal is an amount as clients write it: never a float.
type decimal string

// Schema says what is accepted; how many fraction digits make sense depends on the metric.
func (decimal) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Type: huma.TypeString, Pattern: `^(0|[1-9][0-9]{0,17})(\.[0-9]{1,9})?$`,
		PatternDescription: `a plain decimal in quotes, such as "12.5"`,
		Examples:           []any{"12.5"},
	}
}

// dollars reads an amount of US dollars.
func dollars(field string, d decimal) (money.Nano, error) {
	n, err := money.Parse(string(d))
	if err != nil {
		return 0, invalidField(field, err.Error())
	}
	return n, nil
}

// units reads an amount of a metric: nano-dollars for cost, else whole pieces.
func units(field string, d decimal, m governance.Metric) (int64, error) {
	if m == governance.MetricCost {
		n, err := dollars(field, d)
		return int64(n), err
	}
	if strings.Contains(string(d), ".") {
		return 0, invalidField(field, fmt.Sprintf("must be a whole number of %s", m))
	}
	n, err := money.ParseScaled(string(d), 0)
	if err != nil {
		return 0, invalidField(field, err.Error())
	}
	return n, nil
}

// amountOf writes an amount of a metric as clients read it.
func amountOf(n int64, m governance.Metric) decimal {
	return decimal(m.Text(n))
}

// checkName refuses names that people could not read or tell apart.
func checkName(field, s string, longest int) error {
	switch {
	case strings.TrimSpace(s) == "":
		return invalidField(field, "must not be empty")
	case len(s) > longest:
		return invalidField(field, fmt.Sprintf("must be at most %d bytes", longest))
	case strings.TrimSpace(s) != s:
		return invalidField(field, "must not begin or end with space")
	case strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }):
		return invalidField(field, "must not contain control characters")
	}
	return nil
}

// checkPatterns checks patterns over public model names, in which * stands for anything.
func checkPatterns(field string, patterns []string) error {
	if len(patterns) > maxPatterns {
		return invalidField(field, fmt.Sprintf("must be at most %d patterns", maxPatterns))
	}
	seen := make(map[string]bool, len(patterns))
	for i, p := range patterns {
		at := fmt.Sprintf("%s[%d]", field, i)
		if err := checkName(at, p, governance.MaxPattern); err != nil {
			return err
		}
		if strings.ContainsAny(p, notInPatterns) {
			return invalidField(at, "has a character that no pattern knows: * stands for anything, everything else for itself")
		}
		if seen[p] {
			return invalidField(at, "is given twice")
		}
		seen[p] = true
	}
	return nil
}

// notInPatterns is what other languages of patterns use and names of models do not.
const notInPatterns = "[]{}?^$|\\\"`<>"

// checkRoutes refuses what no call's route is named.
func checkRoutes(field string, routes []string) error {
	for i, r := range routes {
		at := fmt.Sprintf("%s[%d]", field, i)
		if !slices.Contains(governance.Routes(), r) {
			return invalidField(at, "must be one of "+strings.Join(governance.Routes(), ", "))
		}
		if slices.Contains(routes[:i], r) {
			return invalidField(at, "is given twice")
		}
	}
	return nil
}

// checkThresholds refuses percentages that do not ascend: each fires once.
func checkThresholds(field string, percent []int) error {
	for i := 1; i < len(percent); i++ {
		if percent[i] <= percent[i-1] {
			return invalidField(fmt.Sprintf("%s[%d]", field, i), "must be more than the one before it")
		}
	}
	return nil
}

// checkInstant refuses times that no clock shows: they are always a mistake, and the zero time means "none" inside.
func checkInstant(field string, t *time.Time) (time.Time, error) {
	if t == nil {
		return time.Time{}, nil
	}
	if y := t.UTC().Year(); y < 2000 || y > 2200 {
		return time.Time{}, invalidField(field, "must lie between the years 2000 and 2200")
	}
	return t.UTC().Truncate(time.Microsecond), nil
}

// checkFuture refuses an end that lies behind now; the zero time is no end.
func checkFuture(field string, end, now time.Time) error {
	if !end.IsZero() && !end.After(now) {
		return invalidField(field, "has passed")
	}
	return nil
}

// duration is a whole number of seconds as clients write it, such as 24h or 1h30m.
type duration string

// Schema says what is accepted.
func (duration) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Type: huma.TypeString, Pattern: `^[0-9]+(h([0-9]+m)?([0-9]+s)?|m([0-9]+s)?|s)$`,
		PatternDescription: `a duration in hours, minutes and seconds, such as "24h" or "1h30m"`,
		Examples:           []any{"24h"},
	}
}

func (d duration) parse(field string, least, most time.Duration) (time.Duration, error) {
	t, err := time.ParseDuration(string(d))
	if err != nil || t < least || t > most {
		return 0, invalidField(field, fmt.Sprintf("must be a duration between %s and %s", durationOf(least), durationOf(most)))
	}
	return t, nil
}

// durationOf writes whole seconds without superfluous zeros: 24h, 1h30m, 45s.
func durationOf(t time.Duration) duration {
	s := t.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return duration(s)
}

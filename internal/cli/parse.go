package cli

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// words that stand for "no value" on the command line.
const (
	wordUnlimited = "unlimited"
	wordNever     = "never"
	wordAll       = "all"
	wordNone      = "none"
)

// atMost is the flag of how many items are wanted; 0: all of them.
type atMost int

// Validate refuses what is no number of items.
func (m atMost) Validate() error {
	if m < 0 {
		return fmt.Errorf("%d is negative", m)
	}
	return nil
}

// firstLimits are flags that give a new team or key its limits.
type firstLimits struct {
	Budget      []string `placeholder:"USD/PERIOD" help:"Money budget, such as 100/month; also day, week, quarter, year, total. May be repeated." sep:"none" group:"Limits:"`
	Rate        []string `placeholder:"N/PER" help:"Requests, such as 600/1m; PER is 1s, 1m, 1h or 24h." sep:"none" group:"Limits:"`
	TokenRate   []string `placeholder:"N/PER" help:"Tokens, such as 100000/1m." sep:"none" group:"Limits:"`
	Concurrency string   `placeholder:"N" help:"Calls at the same time." group:"Limits:"`
}

func (f firstLimits) limits() ([]object, error) {
	var limits []object
	for _, b := range f.Budget {
		amount, period, ok := strings.Cut(b, "/")
		if !ok {
			return nil, fmt.Errorf("--budget %q: write it as AMOUNT/PERIOD, such as 100/month", b)
		}
		limits = append(limits, object{"kind": "budget", "metric": "cost", "amount": strings.TrimPrefix(amount, "$"), "window": windowOf(period)})
	}
	for _, r := range []struct {
		flag, metric string
		given        []string
	}{{"rate", "requests", f.Rate}, {"token-rate", "tokens", f.TokenRate}} {
		for _, given := range r.given {
			amount, per, ok := strings.Cut(given, "/")
			if !ok {
				return nil, fmt.Errorf("--%s %q: write it as N/PER, such as 600/1m", r.flag, given)
			}
			limits = append(limits, object{"kind": "rate", "metric": r.metric, "amount": amount, "per": per})
		}
	}
	if f.Concurrency != "" {
		limits = append(limits, object{"kind": "concurrency", "metric": "requests", "amount": f.Concurrency})
	}
	return limits, nil
}

// windowOf reads a period as people write it: month, 24h or total.
func windowOf(period string) object {
	switch {
	case period == "total":
		return object{"type": "total"}
	case slices.Contains([]string{"day", "week", "month", "quarter", "year"}, period):
		return object{"type": "calendar", "period": period}
	}
	return object{"type": "fixed", "duration": period}
}

// scopeOf reads TYPE:ID.
func scopeOf(given string) (kind, id string, err error) {
	kind, id, ok := strings.Cut(given, ":")
	if !ok || kind == "" || id == "" {
		return "", "", fmt.Errorf("--scope %q: write it as TYPE:ID, such as team:team_4Tz0aQ9LmX2b, team:research or key:*", given)
	}
	return kind, id, nil
}

// targetOf reads PROVIDER=UPSTREAM[,weight=N][,priority=N].
func targetOf(given string) (provider string, target object, err error) {
	provider, rest, ok := strings.Cut(given, "=")
	if !ok || provider == "" || rest == "" {
		return "", nil, fmt.Errorf("--target %q: write it as PROVIDER=MODEL, such as openai=gpt-4o or openai=gpt-4o,weight=2,priority=1", given)
	}
	parts := strings.Split(rest, ",")
	target = object{"upstream_model": parts[0]}
	for _, p := range parts[1:] {
		name, value, _ := strings.Cut(p, "=")
		n, err := strconv.Atoi(value)
		if err != nil || name != "weight" && name != "priority" {
			return "", nil, fmt.Errorf("--target %q: %q is neither weight=N nor priority=N", given, p)
		}
		target[name] = n
	}
	return provider, target, nil
}

// patterns reads the flag --models: patterns, or one of the words all and none.
func patterns(given []string) any {
	switch {
	case len(given) == 1 && given[0] == wordAll:
		return nil
	case len(given) == 1 && given[0] == wordNone:
		return []string{}
	}
	return given
}

// span finds the beginning of a span of time that ends now.
func span(given string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, given); err == nil {
		return t, nil
	}
	if t, err := time.Parse(time.DateOnly, given); err == nil {
		return t, nil
	}
	match := regexp.MustCompile(`^([0-9]{1,5})([hdw])$`).FindStringSubmatch(given)
	if match == nil {
		return time.Time{}, fmt.Errorf("%q is no span such as 24h, 30d or 4w, and no time such as 2026-01-31 or 2026-01-31T09:00:00Z", given)
	}
	n, err := strconv.Atoi(match[1])
	if err != nil {
		return time.Time{}, fmt.Errorf("read span %q: %w", given, err)
	}
	unit := map[string]time.Duration{"h": time.Hour, "d": 24 * time.Hour, "w": 7 * 24 * time.Hour}[match[2]]
	return now.Add(-time.Duration(n) * unit), nil
}

package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/mock"
)

// outcome is what became of one call of a load.
type outcome struct {
	answer
	err     error
	at      time.Time     // when its answer was read
	took    time.Duration // since the moment it was due: a load that cannot keep up shows here
	gateway int
}

type send func(ctx context.Context, g *process, i int) (answer, error)

// chat is a send of one body with one key.
func chat(key, body string, headers ...string) send {
	return func(ctx context.Context, g *process, _ int) (answer, error) {
		return g.call(ctx, key, "/v1/chat/completions", body, headers...)
	}
}

// openLoop sends n calls, rate a second, over all gateways in turn, whether or not earlier ones were answered.
func (f *fleet) openLoop(rate, n int, send send) []outcome {
	outcomes := make([]outcome, n)
	start := time.Now()
	var all sync.WaitGroup
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := range n {
		due := start.Add(time.Duration(i) * time.Second / time.Duration(rate))
		timer.Reset(time.Until(due))
		<-timer.C
		all.Go(func() { outcomes[i] = f.one(send, i, due) })
	}
	all.Wait()
	return outcomes
}

// steadyLoad sends calls, rate a second, over all gateways in turn, until ctx ends.
func (f *fleet) steadyLoad(ctx context.Context, rate int, send send) []outcome {
	var mu sync.Mutex
	var outcomes []outcome
	var all sync.WaitGroup
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			all.Wait()
			return outcomes
		case due := <-tick.C:
			all.Go(func() {
				o := f.one(send, i, due)
				mu.Lock()
				defer mu.Unlock()
				outcomes = append(outcomes, o)
			})
		}
	}
}

// closedLoop sends n calls by so many workers, over all gateways in turn, each call as soon as a worker is free.
func (f *fleet) closedLoop(workers, n int, send send) []outcome {
	outcomes := make([]outcome, n)
	next := make(chan int)
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for i := range next {
				outcomes[i] = f.one(send, i, time.Now())
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	all.Wait()
	return outcomes
}

// atOnce sends n calls behind a barrier, over all gateways in turn.
func (f *fleet) atOnce(n int, send send) []outcome {
	outcomes := make([]outcome, n)
	barrier := make(chan struct{})
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			<-barrier
			outcomes[i] = f.one(send, i, time.Now())
		})
	}
	close(barrier)
	all.Wait()
	return outcomes
}

func (f *fleet) one(send send, i int, due time.Time) outcome {
	o := outcome{gateway: i % len(f.gateways)}
	o.answer, o.err = send(f.t.Context(), f.gateways[o.gateway], i)
	o.at = time.Now()
	o.took = o.at.Sub(due)
	return o
}

// tally counts outcomes by status and, for refusals, by code, such as "200" and "429 rate_limit_exceeded".
func tally(outcomes []outcome) map[string]int {
	counts := map[string]int{}
	for i := range outcomes {
		o := &outcomes[i]
		switch {
		case o.err != nil:
			counts["error: "+o.err.Error()]++
		case o.status == http.StatusOK:
			counts["200"]++
		default:
			counts[strconv.Itoa(o.status)+" "+o.code()]++
		}
	}
	return counts
}

// undecided is how many calls of a tally the store could not decide in time, which a busy machine may bring about.
func undecided(counts map[string]int) int {
	return counts["503 limit_store_unavailable"] + counts["503 gateway_overloaded"]
}

// percentile returns the time within which that share of the calls was answered.
func percentile(outcomes []outcome, share int) time.Duration {
	times := make([]time.Duration, len(outcomes))
	for i := range outcomes {
		times[i] = outcomes[i].took
	}
	slices.Sort(times)
	return times[min(len(times)*share/100, len(times)-1)].Round(time.Millisecond)
}

// requireUsableRetryAfter asserts that every 429 tells when to come back: a whole number of seconds, at least one.
func requireUsableRetryAfter(t *testing.T, outcomes []outcome) {
	t.Helper()
	for i := range outcomes {
		if outcomes[i].status != http.StatusTooManyRequests {
			continue
		}
		seconds, err := strconv.Atoi(outcomes[i].header.Get("Retry-After"))
		require.NoError(t, err, "%v %s", outcomes[i].header, outcomes[i].body)
		require.GreaterOrEqual(t, seconds, 1)
		require.LessOrEqual(t, seconds, 60)
	}
}

// patch changes a resource.
func (f *fleet) patch(path string, body object) object {
	f.t.Helper()
	status, o := f.admin(http.MethodPatch, path, body)
	require.Equal(f.t, http.StatusOK, status, "PATCH %s: %v", path, o)
	return o
}

// limit makes a limit and returns its id.
func (f *fleet) limit(scope object, rule object) string {
	f.t.Helper()
	body := object{"scope": scope}
	for name, v := range rule {
		body[name] = v
	}
	return text(f.create("limits", body)["id"])
}

// state reads the meter of a limit that has one.
func (f *fleet) state(limit string) object {
	f.t.Helper()
	status, o := f.admin(http.MethodGet, "limits/"+limit+"/state", nil)
	require.Equal(f.t, http.StatusOK, status, "%v", o)
	return o
}

// limitsOf returns the ids of a key's own limits, in the order in which they were made.
func (f *fleet) limitsOf(keyID string) []string {
	f.t.Helper()
	status, o := f.admin(http.MethodGet, "keys/"+keyID, nil)
	require.Equal(f.t, http.StatusOK, status, "%v", o)
	limits := slices.Clone(items(o["limits"]))
	slices.SortStableFunc(limits, func(a, b object) int { return cmp.Compare(text(a["created_at"]), text(b["created_at"])) })
	all := make([]string, len(limits))
	for i, l := range limits {
		all[i] = text(l["id"])
	}
	return all
}

func items(v any) []object {
	list, _ := v.([]any)
	all := make([]object, 0, len(list))
	for _, i := range list {
		o, _ := i.(object)
		all = append(all, o)
	}
	return all
}

// awaitLimit waits until every gateway applies a limit to calls of a key for a model.
func (f *fleet) awaitLimit(key, model, limit string) {
	f.t.Helper()
	body := strings.Replace(helloChat, "plain", model, 1)
	for _, g := range f.gateways {
		f.eventually(20*time.Second, "limit is in force", func() bool {
			a, err := g.call(f.t.Context(), key, "/v1/estimate", body)
			return err == nil && strings.Contains(string(a.body), limit)
		})
	}
}

// estimate returns what a gateway would reserve for a chat.
func (f *fleet) estimate(key, body string) object {
	f.t.Helper()
	a := must(f.t)(f.gateways[0].call(f.t.Context(), key, "/v1/estimate", body))
	require.Equal(f.t, http.StatusOK, a.status, "%s", a.body)
	o, _ := a.json(f.t)["estimate"].(object)
	return o
}

// rowsOf lists the spend rows that a filter such as key_id or request_id names.
func (f *fleet) rowsOf(filter, value string) []object {
	f.t.Helper()
	status, page := f.admin(http.MethodGet, "spend?limit=250&"+filter+"="+url.QueryEscape(value), nil)
	require.Equal(f.t, http.StatusOK, status, "%v", page)
	return items(page["items"])
}

// requireOneRowPerForward compares the ledger with the upstream's own count: whatever was forwarded has one row, and what
// was not has none. It is for tests in which no process dies: an expiry books what may have been forwarded.
func (f *fleet) requireOneRowPerForward() {
	f.t.Helper()
	rows := f.rows()
	attempts := map[string]bool{}
	for _, row := range rows {
		require.Equal(f.t, "usage", row["kind"])
		attempts[fmt.Sprint(row["request_id"], row["attempt"])] = true
	}
	require.Len(f.t, attempts, len(rows), "an attempt has more than one row")
	require.EqualValues(f.t, f.forwarded(), len(rows), "rows and requests that reached the upstream differ")
}

// forwarded is how many requests have reached the upstream.
func (f *fleet) forwarded() int64 { return f.mock.Counts().Count }

// script lets the mock answer requests for an upstream model in its own way from now on.
func (f *fleet) script(upstreamModel, script string) {
	f.t.Helper()
	require.NoError(f.t, f.mock.SetScript(mock.Rule{Script: script, Match: map[string]string{"model": upstreamModel}}))
}

// number reads a count out of decoded JSON.
func number(v any) int64 {
	switch n := v.(type) {
	case float64:
		return int64(n)
	case string:
		whole, _ := strconv.ParseInt(n, 10, 64)
		return whole
	}
	return -1
}

// nano reads an amount of US dollars.
func nano(t *testing.T, v any) int64 {
	t.Helper()
	whole, fraction, _ := strings.Cut(strings.TrimPrefix(text(v), "-"), ".")
	n, err := strconv.ParseInt(whole+(fraction + "000000000")[:9], 10, 64)
	require.NoError(t, err, "%v", v)
	if strings.HasPrefix(text(v), "-") {
		n = -n
	}
	return n
}

// dollars writes nano-dollars as the admin API takes them.
func dollars(n int64) string { return fmt.Sprintf("%d.%09d", n/1e9, n%1e9) }

// streaming asks for the stream of a chat's answer.
func streaming(body string) string { return strings.Replace(body, "{", `{"stream":true,`, 1) }

// bounded asks for at most 1,000 output tokens, fewer than any target is ever expected to give: what is reserved then does
// not change when a target's outputs have been measured.
func bounded(body string) string { return strings.Replace(body, "{", `{"max_tokens":1000,`, 1) }

// named is a chat for another model.
func named(model string) string {
	return strings.Replace(helloChat, `"plain"`, string(quoted(model)), 1)
}

func quoted(s string) []byte {
	b, _ := json.Marshal(s) //nolint:errchkjson // a string can always be written
	return b
}

package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/lognames"
	"github.com/tollgate-gateway/tollgate/providers"
)

const (
	dueAtOnce     = 4               // batches that one process looks after at a time
	dueHold       = 5 * time.Minute // for which they are nobody else's
	leastPause    = 10 * time.Second
	mostPause     = 5 * time.Minute
	holdEvery     = time.Minute // how often that is prolonged while answers are read
	maxAnswerLine = 32 << 20    // bytes
	maxUpstreamID = 300
)

// hasEnded reports whether a status is one that batches end with.
func hasEnded(status string) bool {
	switch status {
	case "completed", "failed", "expired", "cancelled":
		return true
	}
	return false
}

// LookAfterBatches asks providers what became of the batches that are due, and settles those that have ended. Any number of
// processes may do so at once: each batch is due to one of them, and settled once by the ids of its attempts. It returns when
// none is due, or ctx ends. The application's tasks run it.
func (g *Gateway) LookAfterBatches(ctx context.Context) error {
	if g.batches == nil {
		return nil
	}
	for ctx.Err() == nil {
		due, err := g.batches.Due(ctx, dueAtOnce, dueHold)
		if err != nil || len(due) == 0 {
			return err
		}
		var all sync.WaitGroup
		for i := range due {
			all.Go(func() {
				if err := g.lookAfter(ctx, &due[i]); err != nil {
					g.log.Warn().Err(err).Str(lognames.Batch, due[i].ID).Msg("batch not looked after")
				}
			})
		}
		all.Wait()
	}
	return ctx.Err()
}

// namesOf maps the provider's names of a batch.
func namesOf(b *governance.Batch) naming {
	names := naming{b.FileUpstream: b.FileID}
	if b.UpstreamID != "" {
		names[b.UpstreamID] = b.ID
	}
	return names
}

func quote(s string) string {
	text, err := json.Marshal(s)
	if err != nil {
		return `""`
	}
	return string(text)
}

// openPicture is a batch that is not settled. One that has ended at the provider is still being finalized here: what it cost
// is not known before.
func openPicture(b *governance.Batch, doc *jsonedit.Document) []byte {
	set := map[string]string{
		"id": quote(b.ID), "object": `"batch"`, "input_file_id": quote(b.FileID), "output_file_id": "null", "error_file_id": "null",
		"metadata": withoutMark(doc),
	}
	if status, _, _ := doc.String("status"); hasEnded(status) {
		set["status"], set["usage"] = `"finalizing"`, ""
		for _, at := range []string{"completed_at", "failed_at", "expired_at", "cancelled_at"} {
			set[at] = "null"
		}
	}
	return namesOf(b).picture(doc, set)
}

// again is how long a batch is left alone: the longer the older it is.
func again(b *governance.Batch, now time.Time) time.Duration {
	return min(max(now.Sub(b.CreatedAt)/20, leastPause), mostPause)
}

// lookAfter asks the provider what became of a batch and notes it. If it has ended it is settled first. Everything may be
// repeated, by anybody, from any point on.
func (g *Gateway) lookAfter(ctx context.Context, b *governance.Batch) error {
	t, err := g.batches.Target(ctx, b.TargetNum)
	if err != nil {
		return fmt.Errorf("find the batch's provider: %w", err)
	}
	a, ok := g.account(&t)
	if !ok {
		return errors.New("the batch's provider keeps no batches")
	}
	if b.State == governance.BatchCreating {
		return g.findLost(ctx, a, b)
	}
	doc, _, err := a.object(ctx, resource{method: http.MethodGet, kind: providers.OpenAIBatches, path: []string{b.UpstreamID}})
	if r, ok := errors.AsType[*resourceError](err); ok && r.status == http.StatusNotFound && b.Overdue {
		return g.giveUp(ctx, b)
	}
	if err != nil {
		return fmt.Errorf("ask for the batch: %w", err)
	}
	status, _, err := doc.String("status")
	if err != nil {
		return fmt.Errorf("read the batch: %w", err)
	}
	if !hasEnded(status) {
		if err := g.batches.Progress(ctx, b.Num, openPicture(b, doc), again(b, g.now())); err != nil {
			return fmt.Errorf("note the batch's progress: %w", err)
		}
		return nil
	}
	return g.settleBatch(ctx, a, b, doc)
}

// giveUp ends a batch that its provider does not know any more. Its reservations have expired, as fully used.
func (g *Gateway) giveUp(ctx context.Context, b *governance.Batch) error {
	doc, err := jsonedit.Parse(b.Picture)
	if err != nil {
		return fmt.Errorf("read the batch's picture: %w", err)
	}
	picture, err := doc.With(jsonedit.At("status").String("expired"))
	if err != nil {
		return fmt.Errorf("change the batch's picture: %w", err)
	}
	if err := g.batches.End(ctx, b.Num, picture, nil); err != nil && !errors.Is(err, governance.ErrConflict) {
		return fmt.Errorf("note the batch's end: %w", err)
	}
	return nil
}

// settleBatch reads what came of a batch that has ended, settles it, and only then shows its end.
func (g *Gateway) settleBatch(ctx context.Context, a account, b *governance.Batch, doc *jsonedit.Document) error {
	uses := make([]governance.BatchUse, len(b.Charges))
	set := map[string]string{
		"id": quote(b.ID), "object": `"batch"`, "input_file_id": quote(b.FileID), "output_file_id": "null", "error_file_id": "null",
		"metadata": withoutMark(doc),
	}
	names := namesOf(b)
	var files []governance.File
	for _, name := range []string{"output", "error"} {
		upstream, _, err := doc.String(name + "_file_id")
		if err != nil || len(upstream) > maxUpstreamID {
			return fmt.Errorf("read the batch's %s file: %w", name, errors.Join(err, errors.New("no name of a file")))
		}
		if upstream == "" {
			continue
		}
		f := governance.File{
			ID: ids.NewPublic(ids.File), Organization: b.Organization, TargetNum: b.TargetNum, UpstreamID: upstream,
			Purpose: governance.PurposeBatchOutput, Name: b.ID + "_" + name + ".jsonl",
		}
		about, _, err := a.object(ctx, resource{method: http.MethodGet, kind: providers.OpenAIFiles, path: []string{upstream}})
		if err != nil {
			return fmt.Errorf("ask for the batch's %s file: %w", name, err)
		}
		f.Bytes, _, _ = about.Int("bytes")
		f.Bytes = max(f.Bytes, 0)
		f.ExpiresAt = instantOf(about, "expires_at")
		files = append(files, f)
		names[upstream] = f.ID
		set[name+"_file_id"] = quote(f.ID)
	}
	if output, _, _ := doc.String("output_file_id"); output != "" {
		answers, err := g.readAnswers(ctx, a, b, output, uses)
		if err != nil {
			return fmt.Errorf("read the batch's answers: %w", err)
		}
		if told, ok, err := doc.Int("request_counts", "completed"); err == nil && ok && told > answers && !b.Overdue {
			return fmt.Errorf("the batch has %d answers and its file %d", told, answers)
		}
	}
	for _, s := range b.Settlements(uses) {
		if err := g.ledger.Settle(ctx, s); err != nil && !errors.Is(err, governance.ErrAlreadyClosed) {
			return fmt.Errorf("settle the batch: %w", err)
		}
		if !s.Release {
			g.log.Info().Str(lognames.Batch, b.ID).Str(lognames.Outcome, string(s.Outcome)).Str(lognames.UsageSource, string(s.Source)).
				Int64(lognames.TokensIn, s.Quantities.InputTokens()).Int64(lognames.TokensOut, s.Quantities.OutputTokens()).
				Stringer(lognames.CostUSD, s.Cost).Msg("batch settled")
		}
	}
	err := g.batches.End(ctx, b.Num, names.picture(doc, set), files)
	if err != nil && !errors.Is(err, governance.ErrConflict) { // somebody else came first
		return fmt.Errorf("note the batch's end: %w", err)
	}
	return nil
}

// answerLine is a line of a batch's output, as far as money is concerned.
type answerLine struct {
	Response *struct {
		Status int             `json:"status_code"`
		Body   json.RawMessage `json:"body"`
	} `json:"response"`
}

// readAnswers adds up what the answers of a batch have used, and returns how many there are. Answers that are errors cost
// nothing; one whose usage is missing counts as the mean of the prompts and its own text.
func (g *Gateway) readAnswers(ctx context.Context, a account, b *governance.Batch, upstream string, uses []governance.BatchUse) (int64, error) {
	ctx, source, end := g.patience(ctx)
	defer end()
	response, _, err := a.ask(ctx, resource{method: http.MethodGet, kind: providers.OpenAIFiles, path: []string{upstream, "content"}})
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode/100 != 2 {
		_, _, err := a.read(response)
		return 0, err
	}
	source.Reader = response.Body
	dialect := batchRouteNamed(b.Route).dialect
	in := bufio.NewReaderSize(source, 64<<10)
	var room []byte
	var answers int64
	prolonged := time.Now()
	for {
		if time.Since(prolonged) > holdEvery {
			if err := g.batches.Progress(ctx, b.Num, b.Picture, dueHold); err != nil {
				return answers, err
			}
			prolonged = time.Now()
		}
		line, grown, err := readLine(in, room, maxAnswerLine)
		room = grown
		switch {
		case errors.Is(err, io.EOF):
			return answers, nil
		case err != nil:
			return answers, err
		case len(line) == 0:
			continue
		}
		q, charged, known := usageOf(line, a.batcher.Meter(dialect), b)
		if !charged {
			continue
		}
		answers++
		u := &uses[b.Charge(q.InputTokens())]
		u.Add(&q)
		u.Estimated = u.Estimated || !known
	}
}

// usageOf returns what one answer has used; known is false where that is estimated.
func usageOf(line []byte, m providers.Meter, b *governance.Batch) (q governance.Quantities, charged, known bool) {
	var l answerLine
	if err := json.Unmarshal(line, &l); err != nil {
		l.Response = nil // it may be anything, and nobody would charge for it
	}
	if l.Response == nil || l.Response.Status/100 != 2 {
		return q, false, false
	}
	m.Body(l.Response.Body)
	facts := m.Facts()
	if facts.HasUsage {
		return facts.Usage.Quantities, true, true
	}
	q[governance.UnitInput] = (b.InputTokens + b.Requests - 1) / max(b.Requests, 1)
	q[governance.UnitOutput] = (facts.OutputLen + bytesPerToken - 1) / bytesPerToken
	return q, true, false
}

const bytesPerToken = 3 // as in the estimate of prompts (ruling 19)

// findLost finds out whether the provider has a batch whose creation was cut short: the mark in its metadata says so. If it
// has not, what is held is given back.
func (g *Gateway) findLost(ctx context.Context, a account, b *governance.Batch) error {
	after := ""
	for range 100 { // pages
		doc, err := a.page(ctx, after)
		if err != nil {
			return fmt.Errorf("look for the batch: %w", err)
		}
		for i := range doc.Data {
			one, err := jsonedit.Parse(doc.Data[i])
			if err != nil {
				continue
			}
			id, _, _ := one.String("id")
			after = id
			mark, _, _ := one.String("metadata", batchMark)
			if mark != b.ID || id == "" || len(id) > maxUpstreamID {
				continue
			}
			b.UpstreamID = id
			if err := g.batches.Open(ctx, b.Num, id, openPicture(b, one)); err != nil {
				return fmt.Errorf("open the batch: %w", err)
			}
			return nil
		}
		if !doc.HasMore || after == "" {
			break
		}
	}
	for i := range b.Charges {
		if err := g.ledger.Settle(ctx, b.Charges[i].Released()); err != nil && !errors.Is(err, governance.ErrAlreadyClosed) {
			return fmt.Errorf("release the batch: %w", err)
		}
	}
	if err := g.batches.Forget(ctx, b.Num); err != nil {
		return fmt.Errorf("forget the batch: %w", err)
	}
	return nil
}

// batchPage is a page of an account's list of batches.
type batchPage struct {
	Data    []json.RawMessage `json:"data"`
	HasMore bool              `json:"has_more"`
}

func (a account) page(ctx context.Context, after string) (batchPage, error) {
	var p batchPage
	query := url.Values{"limit": {"100"}}
	if after != "" {
		query.Set("after", after)
	}
	doc, _, err := a.object(ctx, resource{method: http.MethodGet, kind: providers.OpenAIBatches, query: query})
	if err != nil {
		return p, err
	}
	return p, json.Unmarshal(doc.Bytes(), &p)
}

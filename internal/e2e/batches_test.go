package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	official "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/require"
)

// batchLines returns a file of n requests to a model. Its mock reports 100 tokens read, 40 of them cached, and 20 written.
func batchLines(n int, model string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"custom_id":"request-%d","method":"POST","url":"/v1/chat/completions","body":{"model":%q,"max_tokens":50,"messages":[{"role":"user","content":"hello"}]}}`+"\n", i, model)
	}
	return b.String()
}

// sdk is openai-go as its users set it up.
func (p *process) sdk(key string) official.Client {
	return official.NewClient(option.WithBaseURL(p.baseURL+"/v1"), option.WithAPIKey(key), option.WithMaxRetries(0), option.WithHTTPClient(client))
}

// upload sends a file of requests.
func upload(t *testing.T, sdk *official.Client, lines string) *official.FileObject {
	t.Helper()
	file, err := sdk.Files.New(t.Context(), official.FileNewParams{
		File: official.File(strings.NewReader(lines), "requests.jsonl", "application/jsonl"), Purpose: official.FilePurposeBatch,
	})
	require.NoError(t, err, said(err))
	return file
}

// said is what a refusal had to say.
func said(err error) string {
	if e := (*official.Error)(nil); errors.As(err, &e) {
		return string(e.DumpResponse(true))
	}
	return ""
}

func createBatch(ctx context.Context, sdk *official.Client, file string) (*official.Batch, error) {
	return sdk.Batches.New(ctx, official.BatchNewParams{
		InputFileID: file, Endpoint: official.BatchNewParamsEndpointV1ChatCompletions, CompletionWindow: official.BatchNewParamsCompletionWindow24h,
		Metadata: map[string]string{"job": "nightly"},
	})
}

// ended waits until a batch shows a status.
func (f *fleet) ended(sdk *official.Client, id string, status official.BatchStatus) *official.Batch {
	f.t.Helper()
	var last *official.Batch
	f.eventually(60e9, "the batch is "+string(status), func() bool {
		b, err := sdk.Batches.Get(f.t.Context(), id)
		require.NoError(f.t, err)
		last = b
		return b.Status == status
	})
	return last
}

// statusOf returns the status and the code of an SDK's error.
func statusOf(t *testing.T, err error) (int, string) {
	t.Helper()
	var e *official.Error
	require.True(t, errors.As(err, &e), "%v", err)
	return e.StatusCode, e.Code
}

// addBatchModel offers a model whose batches have a price of their own, half of the ordinary one.
func (f *fleet) addBatchModel(name, upstream string) {
	f.addModel(name, upstream)
}

func TestBatches_AreSettledOnce(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{gateways: 2})
	f.addBatchModel("cheap", "mock-usage(100,20,40)")
	key, _ := f.issue(object{"kind": "budget", "metric": "cost", "amount": "1", "window": object{"type": "total"}})
	a, b := f.gateways[0].sdk(key), f.gateways[1].sdk(key)

	lines := batchLines(3, "cheap")
	file := upload(t, &a, lines)
	require.Regexp(t, "^file-[0-9A-Za-z]{12}$", file.ID)
	require.Equal(t, "requests.jsonl", file.Filename)
	require.NoError(t, f.mock.SetBatches("in_progress"))
	batch, err := createBatch(t.Context(), &b, file.ID)
	require.NoError(t, err)
	require.Regexp(t, "^batch_[0-9A-Za-z]{12}$", batch.ID)
	require.Equal(t, file.ID, batch.InputFileID)
	require.Equal(t, map[string]string{"job": "nightly"}, map[string]string(batch.Metadata))
	_, open := f.admin(http.MethodGet, "reservations?state=open", nil)
	require.Len(t, open["items"], 1)

	require.NoError(t, f.mock.SetBatches("completed"))
	done := f.ended(&a, batch.ID, official.BatchStatusCompleted)
	require.EqualValues(t, 3, done.RequestCounts.Completed)
	require.NotEmpty(t, done.OutputFileID)
	rows := f.rows()
	require.Len(t, rows, 1)
	require.Equal(t, "batches", rows[0]["route"], "%v", rows[0])
	// 3 × (60 × 2 + 40 × 2 + 20 × 10) per million
	require.Equal(t, "0.0012", rows[0]["cost_usd"])
	f.ended(&b, batch.ID, official.BatchStatusCompleted)

	content, err := b.Files.Content(t.Context(), done.OutputFileID)
	require.NoError(t, err)
	output, err := io.ReadAll(content.Body)
	require.NoError(t, err)
	require.NoError(t, content.Body.Close())
	require.Equal(t, 3, bytes.Count(output, []byte("\n")))
	require.Contains(t, string(output), `"custom_id":"request-2"`)
	f.requireBooksBalance()
	require.Len(t, f.rows(), 1)
}

package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	official "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/mock"
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
	f.eventually(60*time.Second, "the batch is "+string(status), func() bool {
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

// connect opens the product's database, as superuser.
func (f *fleet) connect() *pgx.Conn {
	f.t.Helper()
	conn, err := pgx.Connect(f.t.Context(), f.dsn)
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// due makes the batches that have not ended due at once.
func (f *fleet) due(conn *pgx.Conn) {
	f.t.Helper()
	_, err := conn.Exec(f.t.Context(), "UPDATE tollgate.batches SET due_at = now() WHERE state <> 'ended'")
	require.NoError(f.t, err)
}

// sweep expires what can be expired, as each process does once it has run for a while.
func sweep(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	require.Eventually(t, func() bool {
		// Another sweep that is under way lets this one do nothing.
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(t.Context()) }()
		var free bool
		require.NoError(t, tx.QueryRow(t.Context(), "SELECT pg_try_advisory_xact_lock(hashtextextended('ledger.expire', 0))").Scan(&free))
		if !free {
			return false
		}
		_, err = tx.Exec(t.Context(), "SELECT ledger.expire(100, 0)")
		require.NoError(t, err)
		return tx.Commit(t.Context()) == nil
	}, time.Minute, 10*time.Millisecond)
}

// count returns how many rows a query finds.
func count(t *testing.T, conn *pgx.Conn, query string) (n int) {
	t.Helper()
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM "+query).Scan(&n))
	return n
}

// rawNames returns the provider's names of all that it has made.
func (f *fleet) rawNames() []string {
	var all []string
	for _, q := range f.mock.Log().Requests {
		for _, kind := range []string{"file-mock", "file-mockout", "file-mockerr", "batch_mock"} {
			all = append(all, kind+strconv.FormatInt(q.ID, 10))
		}
	}
	return all
}

func TestBatches_AreSettledOnce(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{gateways: 2})
	f.addModel("cheap", "mock-usage(100,20,40)")
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

	// Batches have a price of their own, and so have long prompts: 100 tokens are reported where fewer were foreseen.
	f.addModel("tiered", "mock-usage(100,20)")
	for _, price := range []object{
		{"unit": "input", "usd_per_million": "1"},
		{"unit": "output", "usd_per_million": "5"},
		{"unit": "input", "usd_per_million": "3", "from_input": 90},
		{"unit": "output", "usd_per_million": "7", "from_input": 90},
	} {
		price["provider"], price["upstream_model"], price["service_tier"] = "mock", "mock-usage(100,20)", "batch"
		price["effective_from"] = "2026-01-02T00:00:00Z"
		f.create("prices", price)
	}
	f.addModel("behind the prices", "plain")
	f.awaitModels(key, "behind the prices") // who knows it knows the prices
	require.NoError(t, f.mock.SetBatches("in_progress"))
	batch, err = createBatch(t.Context(), &a, upload(t, &a, batchLines(2, "tiered")).ID)
	require.NoError(t, err)
	_, open = f.admin(http.MethodGet, "reservations?state=open", nil)
	require.Len(t, open["items"], 2, "one for each price that may apply")
	require.NoError(t, f.mock.SetBatches("completed"))
	f.ended(&b, batch.ID, official.BatchStatusCompleted)
	rows = f.rows()
	require.Len(t, rows, 2)
	require.Equal(t, "0.00088", rows[0]["cost_usd"], "2 × (100 × 3 + 20 × 7) per million: %v", rows[0])
	f.requireBooksBalance()
	require.Len(t, f.rows(), 2)
	state := must(t)(f.gateways[0].get(t.Context(), key, "/v1/key")).json(t)
	require.Equal(t, "0.00208", state["limits"].([]any)[0].(object)["spent"])
}

// The check of the fault as it is written: nothing but Tollgate's own names, and only those of the caller's organization,
// leads to the provider's account, and none of the provider's own names comes out.
func TestF152_OnlyOwnNamesLeadToFilesAndBatches(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	f.addModel("cheap", "mock-usage(100,20,40)")
	p := f.gateways[0]
	mine, _ := f.issue()
	colleague, _ := f.issue()
	stranger := text(f.create("keys", object{
		"organization_id": text(f.create("organizations", object{"name": "Rival"})["id"]), "name": "stranger",
	})["key"])

	var said bytes.Buffer
	ask := func(method, key, path, body string) int {
		req, err := http.NewRequestWithContext(t.Context(), method, p.baseURL+path, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+key)
		a, err := do(req)
		require.NoError(t, err, path)
		said.Write(a.body)
		return a.status
	}
	a := p.sdk(mine)
	file := upload(t, &a, batchLines(2, "cheap"))
	batch, err := createBatch(t.Context(), &a, file.ID)
	require.NoError(t, err)
	batch = f.ended(&a, batch.ID, official.BatchStatusCompleted)
	require.NoError(t, f.mock.SetBatches("failed"))
	failed, err := createBatch(t.Context(), &a, file.ID)
	require.NoError(t, err)
	failed = f.ended(&a, failed.ID, official.BatchStatusFailed)
	require.Contains(t, failed.Errors.Data[0].Message, "The file "+file.ID+" of "+failed.ID)

	for _, path := range []string{
		"/v1/files", "/v1/batches", "/v1/files/" + file.ID, "/v1/files/" + batch.OutputFileID, "/v1/files/" + batch.OutputFileID + "/content",
		"/v1/batches/" + batch.ID, "/v1/batches/" + failed.ID,
	} {
		require.Equal(t, http.StatusOK, ask(http.MethodGet, mine, path, ""), path)
		require.Equal(t, http.StatusOK, ask(http.MethodGet, colleague, path, ""), path)
	}
	raw := f.rawNames()
	wrong := slices.Clone(raw)
	for _, name := range append([]string{file.ID, batch.ID, batch.OutputFileID}, raw...) {
		wrong = append(wrong, name+"x", name+"-1", "x"+name, "file-"+name, "batch_"+name, strings.ToUpper(name),
			base64.RawURLEncoding.EncodeToString([]byte(name)), "file-"+base64.RawURLEncoding.EncodeToString([]byte(name)), name+"%20", name+"%2e")
	}
	tries := func(key string, ids []string) {
		for _, id := range ids {
			for _, path := range []string{"/v1/files/" + id, "/v1/files/" + id + "/content", "/v1/batches/" + id, "/files/" + id, "/v1/files?after=" + id, "/v1/batches?after=" + id} {
				require.Equal(t, http.StatusNotFound, ask(http.MethodGet, key, path, ""), path)
			}
			require.Equal(t, http.StatusNotFound, ask(http.MethodDelete, key, "/v1/files/"+id, ""), id)
			require.Equal(t, http.StatusNotFound, ask(http.MethodPost, key, "/v1/batches/"+id+"/cancel", ""), id)
			require.Equal(t, http.StatusNotFound, ask(http.MethodPost, key, "/v1/batches",
				fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/chat/completions","completion_window":"24h"}`, id)), id)
		}
	}
	before := f.mock.Counts().Count
	tries(stranger, []string{file.ID, batch.ID, batch.OutputFileID, failed.ID, raw[0], raw[len(raw)-1]})
	tries(stranger, wrong[len(wrong)-20:])
	tries(mine, wrong[:12])
	tries(mine, wrong[len(raw):len(raw)+30])
	require.Equal(t, before, f.mock.Counts().Count, "the provider was asked for what is nobody's")
	require.Equal(t, http.StatusOK, ask(http.MethodGet, stranger, "/v1/files", ""))
	require.True(t, strings.HasSuffix(said.String(), `{"object":"list","data":[],"first_id":null,"last_id":null,"has_more":false}`))

	require.Equal(t, http.StatusBadRequest, ask(http.MethodPost, mine, "/v1/batches/"+batch.ID+"/cancel", ""))
	deleted, err := a.Files.Delete(t.Context(), batch.OutputFileID)
	require.NoError(t, err)
	require.True(t, deleted.Deleted)
	require.Equal(t, http.StatusNotFound, ask(http.MethodGet, mine, "/v1/files/"+batch.OutputFileID, ""))
	for _, name := range []string{"file-mock", "batch_mock"} {
		require.NotContains(t, said.String(), name)
	}
	list := a.Files.ListAutoPaging(t.Context(), official.FileListParams{Limit: official.Int(1)})
	var listed []string
	for list.Next() {
		listed = append(listed, list.Current().ID)
	}
	require.NoError(t, list.Err())
	require.Equal(t, []string{file.ID}, listed)
	batches := a.Batches.ListAutoPaging(t.Context(), official.BatchListParams{Limit: official.Int(1)})
	listed = nil
	for batches.Next() {
		listed = append(listed, batches.Current().ID)
	}
	require.NoError(t, batches.Err())
	require.Equal(t, []string{failed.ID, batch.ID}, listed)
	f.requireBooksBalance()
}

// Whoever dies, whatever is deleted: what a batch cost is booked once. Its reservation does not fall with the process that
// made it.
func TestBatches_OutliveTheirGateway(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{env: []string{"TOLLGATE_PROCESS_LEASE=2s"}})
	conn := f.connect()
	f.addModel("cheap", "mock-usage(100,20,40)")
	key, id := f.issue(object{"kind": "budget", "metric": "cost", "amount": "1", "window": object{"type": "total"}})
	first := f.gateways[0]
	sdk := first.sdk(key)
	require.NoError(t, f.mock.SetBatches("in_progress"))
	file := upload(t, &sdk, batchLines(3, "cheap"))
	batch, err := createBatch(t.Context(), &sdk, file.ID)
	require.NoError(t, err)
	require.Equal(t, 1, count(t, conn, "ledger.reservations WHERE expires_at BETWEEN now() + interval '24 hours' AND now() + interval '25 hours'"))
	first.kill()

	// One that dies when the ledger has the settlement, and nobody else knows of it.
	doomed := f.addGateway("TOLLGATE_FAULT_POINT=ledger.after_settlement")
	f.eventually(30*time.Second, "the first gateway's lease is over", func() bool {
		return count(t, conn, "ledger.processes WHERE beat_at + make_interval(secs => lease_seconds) < now()") > 0
	})
	sweep(t, conn)
	require.Equal(t, 1, count(t, conn, "ledger.reservations WHERE state = 'open'"))
	status, _ := f.admin(http.MethodDelete, "keys/"+id, nil)
	require.Equal(t, http.StatusNoContent, status)
	require.NoError(t, f.mock.SetBatches("completed"))
	f.due(conn)
	select {
	case <-doomed.done:
	case <-t.Context().Done():
	}
	require.Equal(t, 1, count(t, conn, "ledger.rows"))
	require.Equal(t, 1, count(t, conn, "tollgate.batches WHERE state = 'open'"))

	status, _ = f.admin(http.MethodDelete, "organizations/"+f.org, nil)
	require.Equal(t, http.StatusNoContent, status)
	f.addGateway()
	f.due(conn)
	f.eventually(60*time.Second, "the batch has ended", func() bool { return count(t, conn, "tollgate.batches WHERE state = 'ended'") == 1 })
	require.Equal(t, 1, count(t, conn, "ledger.rows"))
	require.Equal(t, 1, count(t, conn, "ledger.rows WHERE cost = 1200000 AND kind = 'usage' AND outcome = 'complete'"))
	require.Equal(t, 1, count(t, conn, "tollgate.files WHERE purpose = 'batch_output'"))
	require.Zero(t, count(t, conn, "ledger.reservations WHERE state = 'open'"))
	require.NotEmpty(t, batch.ID)
	_, report := f.admin(http.MethodGet, "ledger/check", nil)
	require.Equal(t, true, report["clean"], "%v", report)
}

// form writes an upload.
func form(t *testing.T, fields [][2]string, lines string) (contentType, body string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, field := range fields {
		if field[0] != "file" {
			require.NoError(t, w.WriteField(field[0], field[1]))
			continue
		}
		part, err := w.CreateFormFile("file", field[1])
		require.NoError(t, err)
		_, err = io.WriteString(part, lines)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return w.FormDataContentType(), b.String()
}

func TestBatches_AreRefusedForCause(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	f.addModel("cheap", "mock-usage(100,20,40)")
	f.addModel("dear", "dear")
	f.create("models", object{"name": "unpriced", "targets": []object{{"provider_id": f.provider, "upstream_model": "unpriced", "weight": 1, "priority": 0}}})
	p := f.gateways[0]
	key := text(f.create("keys", object{"organization_id": f.org, "name": "narrow", "models": []string{"cheap", "plain", "unpriced"}, "limits": []object{
		{"kind": "budget", "metric": "cost", "amount": "0.01", "window": object{"type": "total"}},
	}})["key"])
	sdk := p.sdk(key)
	send := func(fields [][2]string, lines string) answer {
		contentType, body := form(t, fields, lines)
		return must(t)(p.call(t.Context(), key, "/v1/files", body, "Content-Type", contentType))
	}
	usual := [][2]string{{"purpose", "batch"}, {"file", "in.jsonl"}}
	line := strings.TrimSpace(batchLines(1, "cheap"))
	second := strings.Replace(line, "request-0", "request-1", 1)
	for _, c := range []struct {
		name, lines, message string
		status               int
	}{
		{"no JSON", "hello\n", "Line 1 of the file cannot be read", 400},
		{"half of it", line + "\n" + second[:40], "Line 2 of the file cannot be read", 400},
		{"an array", "[" + line + "]\n", "Line 1 of the file cannot be read", 400},
		{"nothing", "", "The file has no requests", 400},
		{"blank lines", strings.Repeat("\n", 1_000_000), "The file has no requests", 400},
		{"a name twice", strings.Replace(line, `"body":{`, `"body":{"model":"dear",`, 1), "Line 1 of the file cannot be read", 400},
		{"the same custom_id", line + "\n" + line, "Line 2 of the file has a custom_id that another line has", 400},
		{"no custom_id", strings.Replace(line, "custom_id", "id", 1), "needs a custom_id", 400},
		{"another method", strings.Replace(line, "POST", "DELETE", 1), "must have the method POST", 400},
		{"a url that is none of ours", strings.Replace(line, "/v1/chat/completions", "/v1/files", 1), "has a url that batches do not take", 400},
		{"a url elsewhere", strings.Replace(line, "/v1/chat/completions", "http://10.0.0.1/v1/chat/completions", 1), "has a url that batches do not take", 400},
		{"two urls", line + "\n" + strings.Replace(second, "/v1/chat/completions", "/v1/responses", 1), "Line 2 of the file has another url", 400},
		{"two models", line + "\n" + strings.Replace(second, "cheap", "plain", 1), "Line 2 of the file asks for another model", 400},
		{"a model that the key may not use", strings.Replace(line, "cheap", "dear", 1), "Line 1 of the file: This API key may not use the model", 403},
		{"a model that does not exist", strings.Replace(line, "cheap", "none", 1), "Line 1 of the file: The model does not exist", 404},
		{"no model", strings.Replace(line, `"model"`, `"modell"`, 1), "has a body without a model", 400},
		{"no body", strings.Replace(line, `"body"`, `"bodi"`, 1), "has no body", 400},
		{
			"a response of somebody", strings.NewReplacer("/v1/chat/completions", "/v1/responses", `"max_tokens":50,"messages":[{"role":"user","content":"hello"}]`, `"input":"go on","previous_response_id":"resp_1"`).Replace(line),
			"has previous_response_id", 400,
		},
		{"a stream", strings.Replace(line, `"max_tokens"`, `"stream":true,"max_tokens"`, 1), "asks for a stream", 400},
		{"absurd limits", strings.Replace(line, `50`, `1e300`, 1), "Line 1 of the file: ", 400},
		{"an endless line", line + "\n" + strings.Repeat("x", 9<<20), "Line 2 of the file is longer than", 400},
	} {
		a := send(usual, c.lines)
		require.Equal(t, c.status, a.status, "%s: %s", c.name, a.body)
		require.Contains(t, string(a.body), c.message, c.name)
	}
	for _, c := range []struct {
		fields  [][2]string
		message string
	}{
		{[][2]string{{"file", "in.jsonl"}}, "purpose is missing"},
		{[][2]string{{"file", "in.jsonl"}, {"purpose", "assistants"}}, "Only files with the purpose batch"},
		{[][2]string{{"purpose", "user_data"}, {"file", "in.jsonl"}}, "Only files with the purpose batch"},
		{[][2]string{{"purpose", "batch"}}, "The form has no file"},
		{[][2]string{{"purpose", "batch"}, {"file", "a"}, {"file", "b"}}, "more than one file"},
		{[][2]string{{"purpose", "batch"}, {"base_url", "http://10.0.0.1"}, {"file", "a"}}, "a field that is unknown"},
		{[][2]string{{"purpose", strings.Repeat("x", 5000)}, {"file", "a"}}, "too long"},
	} {
		a := send(c.fields, line)
		require.Equal(t, http.StatusBadRequest, a.status, "%s", a.body)
		require.Contains(t, string(a.body), c.message)
	}
	require.Equal(t, http.StatusBadRequest, must(t)(p.call(t.Context(), key, "/v1/files", "{}")).status)
	require.Equal(t, http.StatusNotFound, must(t)(p.call(t.Context(), key, "/v1/files", "{}", "Anthropic-Version", "2023-06-01")).status)
	require.Zero(t, strings.Count(string(must(t)(p.get(t.Context(), key, "/v1/files")).body), `"id"`), "nothing of them was kept")

	small := upload(t, &sdk, line)
	for _, body := range []string{
		`{"input_file_id":"` + small.ID + `","endpoint":"/v1/embeddings","completion_window":"24h"}`,
		`{"input_file_id":"` + small.ID + `","endpoint":"/v1/chat/completions","completion_window":"soon"}`,
		`{"input_file_id":"` + small.ID + `","endpoint":"/v1/chat/completions","completion_window":"9000h"}`,
		`{"input_file_id":"` + small.ID + `","endpoint":"/v1/chat/completions"}`,
		`{"input_file_id":7,"endpoint":"/v1/chat/completions","completion_window":"24h"}`,
		`{"input_file_id":"` + small.ID + `","endpoint":"/v1/chat/completions","completion_window":"24h","metadata":{"tollgate_batch":"x"}}`,
		`{"input_file_id":"` + small.ID + `","endpoint":"/v1/chat/completions","completion_window":"24h","metadata":"x"}`,
		`[]`, ``,
	} {
		a := must(t)(p.call(t.Context(), key, "/v1/batches", body))
		require.Equal(t, http.StatusBadRequest, a.status, "%s: %s", body, a.body)
	}
	create := `{"input_file_id":"` + small.ID + `","endpoint":"/v1/chat/completions","completion_window":"24h"}`
	a := must(t)(p.call(t.Context(), key, "/v1/batches", create, "X-Tollgate-Max-Cost", "0.0000001"))
	require.Equal(t, "max_cost_exceeded", a.code(), "%s", a.body)
	require.Equal(t, "invalid_request", must(t)(p.call(t.Context(), key, "/v1/batches", create, "X-Tollgate-Dry-Run", "true")).code())

	before := f.mock.Counts().Count
	big := upload(t, &sdk, batchLines(30, "cheap")) // 30 × (50 × 10 + some input) per million is more than a cent
	_, err := createBatch(t.Context(), &sdk, big.ID)
	status, code := statusOf(t, err)
	require.Equal(t, 429, status)
	require.Equal(t, "reservation_too_large", code)
	unpriced := upload(t, &sdk, strings.Replace(line, "cheap", "unpriced", 1))
	_, err = createBatch(t.Context(), &sdk, unpriced.ID)
	status, code = statusOf(t, err)
	require.Equal(t, 422, status)
	require.Equal(t, "model_unpriced", code)
	require.EqualValues(t, before+2, f.mock.Counts().Count, "two uploads and no batch")
	wide, _ := f.issue()
	other := p.sdk(wide)
	dear := upload(t, &other, strings.Replace(line, "cheap", "dear", 1))
	_, err = createBatch(t.Context(), &sdk, dear.ID)
	status, code = statusOf(t, err)
	require.Equal(t, 403, status, "the key that makes a batch must be allowed its model")
	require.Equal(t, "model_not_allowed", code)

	list := string(must(t)(p.get(t.Context(), key, "/v1/batches")).body)
	require.Contains(t, list, `"data":[]`)
	f.requireBooksBalance()
	require.Empty(t, f.rows())
	batch, err := createBatch(t.Context(), &sdk, small.ID)
	require.NoError(t, err)
	f.ended(&sdk, batch.ID, official.BatchStatusCompleted)
	require.Len(t, f.rows(), 1)
}

// What the provider leaves unanswered or refuses costs nothing; what it has answered before a batch ended early does.
func TestBatches_EndEarly(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	conn := f.connect()
	f.addModel("cheap", "mock-usage(100,20,40)")
	f.addModel("broken", "mock-status(400)")
	key, _ := f.issue(object{"kind": "budget", "metric": "cost", "amount": "1", "window": object{"type": "total"}})
	sdk := f.gateways[0].sdk(key)
	four := upload(t, &sdk, batchLines(4, "cheap"))
	costOf := func(status string, file *official.FileObject) (string, *official.Batch) {
		before := len(f.rows())
		require.NoError(t, f.mock.SetBatches(status))
		batch, err := createBatch(t.Context(), &sdk, file.ID)
		require.NoError(t, err)
		batch = f.ended(&sdk, batch.ID, official.BatchStatus(status))
		rows := f.rows()
		require.Len(t, rows, before+1)
		return text(rows[0]["cost_usd"]), batch
	}
	cost, _ := costOf("failed", four)
	require.Equal(t, "0", cost)
	cost, batch := costOf("expired", four)
	require.Equal(t, "0.0008", cost, "half of it")
	require.NotEmpty(t, batch.OutputFileID)
	cost, batch = costOf("completed", upload(t, &sdk, batchLines(2, "broken")))
	require.Equal(t, "0", cost)
	require.NotEmpty(t, batch.ErrorFileID)
	require.Empty(t, batch.OutputFileID)

	require.NoError(t, f.mock.SetBatches("in_progress"))
	batch, err := createBatch(t.Context(), &sdk, four.ID)
	require.NoError(t, err)
	_, err = sdk.Batches.Cancel(t.Context(), batch.ID)
	require.NoError(t, err)
	f.ended(&sdk, batch.ID, official.BatchStatusCancelled)
	require.Equal(t, "0.0008", f.rows()[0]["cost_usd"])

	// The window passes before the provider says anything: the reservation is booked, and corrected when it does.
	batch, err = createBatch(t.Context(), &sdk, four.ID)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "UPDATE ledger.reservations SET expires_at = now() - interval '1 second' WHERE state = 'open'")
	require.NoError(t, err)
	sweep(t, conn)
	require.Equal(t, 1, count(t, conn, "ledger.rows WHERE kind = 'expiry'"))
	require.NoError(t, f.mock.SetBatches("completed"))
	f.ended(&sdk, batch.ID, official.BatchStatusCompleted)
	var spent int64
	require.NoError(t, conn.QueryRow(t.Context(),
		"SELECT sum(cost) FROM ledger.rows WHERE attempt_id = (SELECT attempt_id FROM ledger.rows WHERE kind = 'expiry')").Scan(&spent))
	require.EqualValues(t, 1_600_000, spent)

	// The provider refuses the batch, or nobody hears what it says.
	require.NoError(t, f.mock.SetScript(mock.Rule{Path: "/batches", Times: 1, Script: "status(400)"}))
	_, err = createBatch(t.Context(), &sdk, four.ID)
	status, _ := statusOf(t, err)
	require.Equal(t, 400, status)
	require.Zero(t, count(t, conn, "ledger.reservations WHERE state = 'open'"))
	require.Zero(t, count(t, conn, "tollgate.batches WHERE state <> 'ended'"))

	rows := len(f.rows())
	require.NoError(t, f.mock.SetScript(mock.Rule{Path: "/batches", Times: 1, Script: "reset_after(0)"}))
	_, err = createBatch(t.Context(), &sdk, four.ID)
	status, _ = statusOf(t, err)
	require.Equal(t, 502, status)
	require.Equal(t, 1, count(t, conn, "tollgate.batches WHERE state = 'creating'"))
	require.Equal(t, 1, count(t, conn, "ledger.reservations WHERE state = 'open'"), "the provider may well have it")
	var lost string
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT public_id FROM tollgate.batches WHERE state = 'creating'").Scan(&lost))
	_, err = sdk.Batches.Cancel(t.Context(), lost)
	status, _ = statusOf(t, err)
	require.Equal(t, 404, status, "nobody was told of it yet")
	f.due(conn)
	f.eventually(60*time.Second, "the batch was found again and settled", func() bool { f.due(conn); return len(f.rows()) == rows+1 })
	require.Equal(t, "0.0016", f.rows()[0]["cost_usd"], "%v", f.rows())

	require.NoError(t, f.mock.SetScript(mock.Rule{Path: "/batches", Times: 1, Script: "reset_before_bytes"}))
	_, err = createBatch(t.Context(), &sdk, four.ID)
	require.Error(t, err)
	f.eventually(60*time.Second, "what it held was given back", func() bool {
		f.due(conn)
		return count(t, conn, "ledger.reservations WHERE state = 'open'") == 0 && count(t, conn, "tollgate.batches WHERE state <> 'ended'") == 0
	})
	require.Len(t, f.rows(), rows+1)

	// The provider has forgotten the batch: after its window it has ended, and what expired stands.
	require.NoError(t, f.mock.SetBatches("in_progress"))
	batch, err = createBatch(t.Context(), &sdk, four.ID)
	require.NoError(t, err)
	var upstream string
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT upstream_id FROM tollgate.batches WHERE public_id = $1", batch.ID).Scan(&upstream))
	require.NoError(t, f.mock.SetScript(mock.Rule{Path: "/batches/" + upstream, Script: "status(404)"}))
	f.due(conn)
	f.eventually(60*time.Second, "the provider was asked in vain", func() bool {
		return count(t, conn, "tollgate.batches WHERE state = 'open' AND looks > 0") == 1
	})
	require.Equal(t, 1, count(t, conn, "ledger.reservations WHERE state = 'open'"), "it may come back")
	for _, table := range []string{"ledger.reservations", "tollgate.batches"} {
		_, err = conn.Exec(t.Context(), "UPDATE "+table+" SET expires_at = now() - interval '1 second' WHERE state = 'open'")
		require.NoError(t, err)
	}
	sweep(t, conn)
	f.due(conn)
	f.ended(&sdk, batch.ID, official.BatchStatusExpired)
	require.Equal(t, 2, count(t, conn, "ledger.rows WHERE kind = 'expiry'"))

	// The provider was deleted meanwhile: its batch is settled all the same.
	batch, err = createBatch(t.Context(), &sdk, four.ID)
	require.NoError(t, err)
	_, models := f.admin(http.MethodGet, "models", nil)
	for _, m := range items(models["items"]) {
		status, _ := f.admin(http.MethodDelete, "models/"+text(m["id"]), nil)
		require.Equal(t, http.StatusNoContent, status)
	}
	status, problem := f.admin(http.MethodDelete, "providers/"+f.provider, nil)
	require.Equal(t, http.StatusNoContent, status, "%v", problem)
	rows = len(f.rows())
	require.NoError(t, f.mock.SetBatches("completed"))
	f.due(conn)
	f.ended(&sdk, batch.ID, official.BatchStatusCompleted)
	require.Len(t, f.rows(), rows+1)
	require.Equal(t, "0.0016", f.rows()[0]["cost_usd"])
	f.requireBooksBalance()
}

package pgstore

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/seal"
)

const (
	// creationTime bounds the making of a batch. One that is older and still being made was left by a process that died.
	creationTime = 3 * time.Minute
	// firstLook is when an open batch is looked after for the first time.
	firstLook = 10 * time.Second
)

// Batches keeps files and batches. The role of the data plane suffices for it.
type Batches struct {
	pool *pgxpool.Pool
	keys *seal.Keys
}

var _ governance.BatchStore = (*Batches)(nil)

// NewBatches makes a store of files and batches. keys opens the credentials of providers.
func NewBatches(pool *pgxpool.Pool, keys *seal.Keys) *Batches { return &Batches{pool, keys} }

type filesRow struct {
	Num          int64      `db:"num"`
	ID           string     `db:"id"`
	Organization int64      `db:"organization"`
	Target       int64      `db:"target"`
	UpstreamID   string     `db:"upstream_id"`
	Purpose      string     `db:"purpose"`
	Name         string     `db:"name"`
	Bytes        int64      `db:"bytes"`
	CreatedAt    time.Time  `db:"created_at"`
	ExpiresAt    *time.Time `db:"expires_at"`
	Model        string     `db:"model"`
	Route        string     `db:"route"`
	Requests     int64      `db:"requests"`
	InputTokens  int64      `db:"input_tokens"`
	LargestInput int64      `db:"largest_input"`
	OutputTokens int64      `db:"output_tokens"`
	OpenOutputs  int64      `db:"open_outputs"`
	NoOutput     bool       `db:"no_output"`
	CacheWrites  bool       `db:"cache_writes"`
	Images       bool       `db:"images"`
	Audio        bool       `db:"audio"`
	AudioOutput  bool       `db:"audio_output"`
	Estimator    int        `db:"estimator"`
}

func (r *filesRow) domain() governance.File {
	f := governance.File{
		Num: r.Num, ID: r.ID, Organization: r.Organization, TargetNum: r.Target, UpstreamID: r.UpstreamID,
		Purpose: governance.FilePurpose(r.Purpose), Name: r.Name, Bytes: r.Bytes, CreatedAt: r.CreatedAt.UTC(),
		ExpiresAt: instant(r.ExpiresAt), Model: r.Model, Route: r.Route,
	}
	if r.Requests > 0 {
		f.Demand = governance.Demand{
			Input: r.InputTokens, Declared: r.OutputTokens, Outputs: r.OpenOutputs, NoOutput: r.NoOutput,
			CacheWrites: r.CacheWrites, Images: r.Images, Audio: r.Audio, AudioOutput: r.AudioOutput, Version: r.Estimator,
			Batch: &governance.BatchDemand{Requests: r.Requests, Largest: r.LargestInput},
		}
	}
	return f
}

func addFile(ctx context.Context, q querier, f *governance.File) (governance.File, error) {
	d := &f.Demand
	var requests governance.BatchDemand
	if d.Batch != nil {
		requests = *d.Batch
	}
	r, err := one[filesRow](ctx, q, "file_add", args{
		"id": f.ID, "organization": f.Organization, "target": f.TargetNum, "upstream_id": f.UpstreamID,
		"purpose": string(f.Purpose), "file_name": f.Name, "bytes": f.Bytes, "expires_at": nullable(f.ExpiresAt),
		"model": f.Model, "route": f.Route, "requests": requests.Requests, "input_tokens": d.Input,
		"largest_input": requests.Largest, "output_tokens": d.Declared, "open_outputs": d.Outputs, "no_output": d.NoOutput,
		"cache_writes": d.CacheWrites, "images": d.Images, "audio": d.Audio, "audio_output": d.AudioOutput, "estimator": d.Version,
	})
	return r.domain(), err
}

// AddFile stores a file.
func (s *Batches) AddFile(ctx context.Context, f governance.File) (governance.File, error) {
	var added governance.File
	err := within(ctx, s.pool, pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) (err error) {
		added, err = addFile(ctx, tx, &f)
		return err
	})
	return added, err
}

// File returns a file that was not deleted.
func (s *Batches) File(ctx context.Context, organization int64, id string) (governance.File, error) {
	if !ids.IsPublic(ids.File, id) {
		return governance.File{}, governance.ErrNotFound
	}
	return read(ctx, s.pool, func(ctx context.Context, q querier) (governance.File, error) {
		r, err := one[filesRow](ctx, q, "file_find", args{"organization": organization, "id": id})
		return r.domain(), err
	})
}

// Files lists files, newest first.
func (s *Batches) Files(
	ctx context.Context, organization int64, purpose governance.FilePurpose, p governance.Page,
) (files []governance.File, next string, err error) {
	before := int64(0)
	if p.Cursor != "" {
		last, err := s.File(ctx, organization, p.Cursor)
		if err != nil {
			return nil, "", err
		}
		before = last.Num
	}
	count := pageSize(p)
	rows, err := read(ctx, s.pool, func(ctx context.Context, q querier) ([]filesRow, error) {
		return many[filesRow](ctx, q, "file_page", args{
			"organization": organization, "purpose": string(purpose), "before": before, "count": int64(count) + 1,
		})
	})
	if err != nil {
		return nil, "", err
	}
	if len(rows) > count {
		rows = rows[:count]
		next = rows[count-1].ID
	}
	for i := range rows {
		files = append(files, rows[i].domain())
	}
	return files, next, nil
}

// DeleteFile forgets a file. ErrNotFound: there is none.
func (s *Batches) DeleteFile(ctx context.Context, organization int64, id string) error {
	return s.change(ctx, governance.ErrNotFound, "file_delete", args{"organization": organization, "id": id})
}

// change runs a conditional write; none is the error where it has touched nothing.
func (s *Batches) change(ctx context.Context, none error, statement string, a args) error {
	touched, err := read(ctx, s.pool, func(ctx context.Context, q querier) (int64, error) { return exec(ctx, q, statement, a) })
	if err == nil && touched == 0 {
		return none
	}
	return err
}

type batchesRow struct {
	Num          int64     `db:"num"`
	ID           string    `db:"id"`
	Organization int64     `db:"organization"`
	Key          int64     `db:"key"`
	Target       int64     `db:"target"`
	UpstreamID   string    `db:"upstream_id"`
	State        string    `db:"state"`
	Picture      []byte    `db:"picture"`
	CreatedAt    time.Time `db:"created_at"`
	ExpiresAt    time.Time `db:"expires_at"`
	Overdue      bool      `db:"overdue"`
	Looks        int       `db:"looks"`
	FileID       string    `db:"file_id"`
	FileUpstream string    `db:"file_upstream"`
	Route        string    `db:"route"`
	Requests     int64     `db:"requests"`
	InputTokens  int64     `db:"input_tokens"`
}

type batchChargesRow struct {
	Num        int64   `db:"num"`
	Attempt    ids.ID  `db:"attempt_id"`
	FromInput  int64   `db:"from_input"`
	UnitPrices []int64 `db:"unit_prices"`
}

// Begin stores a batch that is being created. ErrNotFound: there is no such file any more.
func (s *Batches) Begin(ctx context.Context, b governance.Batch) (governance.Batch, error) {
	attempts := make([]string, 0, len(b.Charges))
	from := make([]int64, 0, len(b.Charges))
	prices := make([]int64, 0, len(b.Charges)*int(governance.UnitCount))
	for i := range b.Charges {
		attempts, from = append(attempts, b.Charges[i].Attempt.String()), append(from, b.Charges[i].FromInput)
		for _, p := range b.Charges[i].Prices {
			prices = append(prices, int64(p))
		}
	}
	var begun governance.Batch
	err := within(ctx, s.pool, pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		num, err := scalar[int64](ctx, tx, "batch_add", args{
			"id": b.ID, "organization": b.Organization, "key": b.Key, "file_id": b.FileID, "picture": b.Picture,
			"window": b.Window, "creation": creationTime,
		})
		if err != nil {
			return err
		}
		if _, err := exec(ctx, tx, "batch_charges_add", args{
			"num": num, "attempts": attempts, "from_inputs": from, "unit_prices": prices, "units": int(governance.UnitCount),
		}); err != nil {
			return err
		}
		begun, err = findBatch(ctx, tx, b.Organization, b.ID)
		begun.Window = b.Window
		return err
	})
	return begun, err
}

func findBatch(ctx context.Context, q querier, organization int64, id string) (governance.Batch, error) {
	r, err := one[batchesRow](ctx, q, "batch_find", args{"organization": organization, "id": id})
	if err != nil {
		return governance.Batch{}, err
	}
	all, err := withCharges(ctx, q, []batchesRow{r})
	if err != nil {
		return governance.Batch{}, err
	}
	return all[0], nil
}

func withCharges(ctx context.Context, q querier, rows []batchesRow) ([]governance.Batch, error) {
	all := make([]governance.Batch, 0, len(rows))
	nums := make([]int64, 0, len(rows))
	index := make(map[int64]int, len(rows))
	for i := range rows {
		r := &rows[i]
		index[r.Num] = i
		nums = append(nums, r.Num)
		all = append(all, governance.Batch{
			Num: r.Num, ID: r.ID, Organization: r.Organization, Key: r.Key, TargetNum: r.Target, Route: r.Route,
			FileID: r.FileID, FileUpstream: r.FileUpstream, UpstreamID: r.UpstreamID, State: governance.BatchState(r.State),
			Requests: r.Requests, InputTokens: r.InputTokens, Picture: r.Picture, CreatedAt: r.CreatedAt.UTC(),
			ExpiresAt: r.ExpiresAt.UTC(), Overdue: r.Overdue, Looks: r.Looks,
		})
	}
	charges, err := many[batchChargesRow](ctx, q, "batch_charges", args{"nums": nums})
	for i := range charges {
		c := &charges[i]
		b := &all[index[c.Num]]
		b.Charges = append(b.Charges, governance.BatchCharge{
			Attempt: c.Attempt, FromInput: c.FromInput, Prices: unitPrices(c.UnitPrices),
		})
	}
	return all, err
}

// Open notes under what name the provider has a batch.
func (s *Batches) Open(ctx context.Context, num int64, upstreamID string, picture []byte) error {
	return s.change(ctx, governance.ErrConflict, "batch_open", args{
		"num": num, "upstream_id": upstreamID, "picture": picture, "again": firstLook,
	})
}

// Forget removes a batch that was being created.
func (s *Batches) Forget(ctx context.Context, num int64) error {
	return s.change(ctx, nil, "batch_forget", args{"num": num})
}

// Batch returns a batch.
func (s *Batches) Batch(ctx context.Context, organization int64, id string) (governance.Batch, error) {
	if !ids.IsPublic(ids.Batch, id) {
		return governance.Batch{}, governance.ErrNotFound
	}
	return read(ctx, s.pool, func(ctx context.Context, q querier) (governance.Batch, error) {
		return findBatch(ctx, q, organization, id)
	})
}

// Batches lists batches, newest first.
func (s *Batches) Batches(ctx context.Context, organization int64, p governance.Page) (batches []governance.Batch, next string, err error) {
	before := int64(0)
	if p.Cursor != "" {
		last, err := s.Batch(ctx, organization, p.Cursor)
		if err != nil {
			return nil, "", err
		}
		before = last.Num
	}
	count := pageSize(p)
	batches, err = read(ctx, s.pool, func(ctx context.Context, q querier) ([]governance.Batch, error) {
		rows, err := many[batchesRow](ctx, q, "batch_page", args{
			"organization": organization, "before": before, "count": int64(count) + 1,
		})
		if err != nil {
			return nil, err
		}
		return withCharges(ctx, q, rows)
	})
	if len(batches) > count {
		batches = batches[:count]
		next = batches[count-1].ID
	}
	return batches, next, err
}

// Due gives batches that have not ended and are due to this caller alone.
func (s *Batches) Due(ctx context.Context, limit int, hold time.Duration) ([]governance.Batch, error) {
	var due []governance.Batch
	err := within(ctx, s.pool, pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := many[batchesRow](ctx, tx, "batch_due", args{"count": int64(limit), "hold": hold})
		if err != nil {
			return err
		}
		due, err = withCharges(ctx, tx, rows)
		return err
	})
	return due, err
}

// Look takes the turn of asking the provider about one batch.
func (s *Batches) Look(ctx context.Context, num int64, every time.Duration) (bool, error) {
	err := s.change(ctx, governance.ErrConflict, "batch_look", args{"num": num, "every": every})
	if errors.Is(err, governance.ErrConflict) {
		return false, nil
	}
	return err == nil, err
}

// Progress notes what a batch looks like that has not ended.
func (s *Batches) Progress(ctx context.Context, num int64, picture []byte, again time.Duration) error {
	return s.change(ctx, nil, "batch_progress", args{"num": num, "picture": picture, "again": again})
}

// End notes that an open batch is settled.
func (s *Batches) End(ctx context.Context, num int64, picture []byte, files []governance.File) error {
	return within(ctx, s.pool, pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		touched, err := exec(ctx, tx, "batch_end", args{"num": num, "picture": picture})
		if err == nil && touched == 0 {
			err = governance.ErrConflict
		}
		for i := 0; err == nil && i < len(files); i++ {
			_, err = addFile(ctx, tx, &files[i])
		}
		return err
	})
}

// Target returns what reaches a provider, also after it was deleted.
func (s *Batches) Target(ctx context.Context, num int64) (governance.Target, error) {
	r, err := read(ctx, s.pool, func(ctx context.Context, q querier) (targetsRow, error) {
		targets := targetsTable(s.pool)
		return targets.at(ctx, q, num)
	})
	if err != nil {
		return governance.Target{}, err
	}
	t := r.domain()
	t.Credential, err = sealed{r.Sealed, r.OrganizationID, r.ProviderID, r.BaseURL}.open(s.keys)
	return t, err
}

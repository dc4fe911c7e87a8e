package governance

import (
	"context"
	"math"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// RouteBatches is the route of batches in ledger rows. Limits that name routes count a batch under the route of its requests.
const RouteBatches = "batches"

// ServiceTierBatch is what providers call the service tier of batches.
const ServiceTierBatch = "batch"

// BatchDemand is what a Demand has to say of many requests that are charged together.
type BatchDemand struct {
	Requests int64
	Largest  int64 // tokens of the largest prompt, which decides what context tiers can be reached
}

// requests is how many requests the demand is of.
func (d *Demand) requests() int64 {
	if d.Batch != nil {
		return d.Batch.Requests
	}
	return 1
}

// Add counts one more request of a batch in. It refuses with CodeInvalidRequest what passes MaxAmount tokens.
func (d *Demand) Add(one *Demand) error {
	if d.Batch == nil {
		*d = Demand{NoOutput: one.NoOutput, Version: one.Version, Batch: &BatchDemand{}}
	}
	d.Batch.Requests++
	d.Batch.Largest = max(d.Batch.Largest, one.Input)
	d.Input += one.Input
	switch {
	case one.Declared > 0 && one.Outputs > 0 && one.Declared > MaxAmount/one.Outputs:
		return one.tooMuch(nil)
	case one.Declared > 0:
		d.Declared += one.Declared * one.Outputs
	default:
		d.Outputs += one.Outputs
	}
	if d.Input > MaxAmount || d.Declared > MaxAmount || d.Outputs > maxOutputs {
		return one.tooMuch(nil)
	}
	d.CacheWrites = d.CacheWrites || one.CacheWrites
	d.Images = d.Images || one.Images
	d.Audio = d.Audio || one.Audio
	d.AudioOutput = d.AudioOutput || one.AudioOutput
	return nil
}

// FilePurpose says what a file is for, as OpenAI names it.
type FilePurpose string

// The purposes.
const (
	PurposeBatch       FilePurpose = "batch"        // requests of a batch
	PurposeBatchOutput FilePurpose = "batch_output" // what came of them
)

// File is what an organization keeps at a provider's account. Outside it is known by its ID alone.
type File struct {
	Num          int64
	ID           string
	Organization int64
	TargetNum    int64  // the target whose provider has it
	UpstreamID   string // the provider's own name of it, which never leaves Tollgate
	Purpose      FilePurpose
	Name         string
	Bytes        int64
	CreatedAt    time.Time
	ExpiresAt    time.Time // zero: the provider did not say
	// Of PurposeBatch: the public name of the model of all requests, their route, and what they may use at most.
	Model  string
	Route  string
	Demand Demand
}

// BatchState says how far Tollgate is with a batch, whatever its provider says of it.
type BatchState string

// The states, in their order.
const (
	BatchCreating BatchState = "creating" // money may be held for it; whether the provider has it is not known
	BatchOpen     BatchState = "open"     // the provider has it
	BatchEnded    BatchState = "ended"    // it is settled
)

// Batch is a batch of an organization at a provider's account.
type Batch struct {
	Num          int64
	ID           string
	Organization int64
	Key          int64
	TargetNum    int64
	Route        string // of its requests
	FileID       string // of its requests; as the client knows it
	FileUpstream string
	UpstreamID   string // empty while creating
	State        BatchState
	Requests     int64
	InputTokens  int64  // of all prompts, as estimated
	Picture      []byte // the batch as its owner sees it: a JSON object with Tollgate's ids
	CreatedAt    time.Time
	Window       time.Duration // of a new one: from its creation to ExpiresAt
	ExpiresAt    time.Time     // when its reservations do
	Overdue      bool          // ExpiresAt has passed, by the database's clock
	Looks        int           // how often it was looked after in the background
	Charges      []BatchCharge
}

// BatchCharge is one reservation of a batch, and one row of the ledger: for what is charged at one context tier of the price
// that was active at its creation. A row has one price for each unit.
type BatchCharge struct {
	Attempt   ids.ID
	FromInput int64 // tokens of a prompt from which it applies
	Prices    UnitPrices
}

// BatchUse is what came of the requests of one charge.
type BatchUse struct {
	Answers    int64 // answers that the provider charges for
	Quantities Quantities
	Estimated  bool // some answers had no usage
}

// Add counts one answer in.
func (u *BatchUse) Add(q *Quantities) {
	u.Answers++
	for i, n := range q {
		u.Quantities[i] = saturated(u.Quantities[i], n)
	}
	u.Quantities[UnitRequest] = u.Answers
}

func saturated(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// Charge returns the index of the charge that a prompt of so many tokens belongs to.
func (b *Batch) Charge(input int64) int {
	found := 0
	for i := range b.Charges {
		if b.Charges[i].FromInput <= input {
			found = i
		}
	}
	return found
}

// Settlements books what each charge has used. Only money has legs (ruling 29). Context tiers that no answer has reached are
// released, without a row; a batch without any answer leaves one row, without cost. Where what was reported cannot be priced
// the reservation stands.
func (b *Batch) Settlements(uses []BatchUse) []Settlement {
	var answers int64
	for i := range uses {
		answers += uses[i].Answers
	}
	all := make([]Settlement, len(b.Charges))
	for i := range b.Charges {
		if uses[i].Answers > 0 {
			all[i] = b.Charges[i].settlement(&uses[i])
			continue
		}
		all[i] = b.Charges[i].Released()
		if answers == 0 && i == 0 {
			all[i].Release, all[i].Requests = false, BasisHold
		}
	}
	return all
}

func (c *BatchCharge) settlement(u *BatchUse) Settlement {
	s := Settlement{
		ID: c.Attempt, Outcome: OutcomeComplete, Source: UsageProvider, Quantities: u.Quantities, Prices: c.Prices,
		Requests: BasisHold, Rate: BasisActual, Budget: BasisActual,
	}
	if u.Estimated {
		s.Source = UsageEstimate
	}
	var err error
	if s.Cost, err = CostAt(&s.Quantities, &s.Prices); err != nil || s.Cost > MaxAmount {
		s.Source, s.Rate, s.Budget = UsageReservation, BasisHold, BasisHold
	}
	return s
}

// Released gives back what a charge holds, e.g. for a batch that the provider never got.
func (c *BatchCharge) Released() Settlement {
	return Settlement{
		ID: c.Attempt, Outcome: OutcomeUpstreamError, Source: UsageZero,
		Requests: BasisZero, Rate: BasisZero, Budget: BasisZero, Release: true,
	}
}

// BatchStore keeps files and batches. What belongs to another organization is not found, whatever is known of it.
type BatchStore interface {
	// AddFile stores a file; Num and CreatedAt are the store's.
	AddFile(ctx context.Context, f File) (File, error)
	// File returns a file by its public id.
	File(ctx context.Context, organization int64, id string) (File, error)
	// Files lists files, newest first. Page.Cursor is the public id of the last one seen; next is that of the last on the page,
	// and empty on the last page. An unknown cursor is ErrNotFound.
	Files(ctx context.Context, organization int64, purpose FilePurpose, p Page) (files []File, next string, err error)
	// DeleteFile forgets a file.
	DeleteFile(ctx context.Context, organization int64, id string) error

	// Begin stores a batch that is being created, with its charges, before anything is held for them: from then on their
	// reservations belong to the fleet, and not to the process that makes them.
	Begin(ctx context.Context, b Batch) (Batch, error)
	// Open notes under what name the provider has a batch. ErrConflict: it was not being created any more.
	Open(ctx context.Context, num int64, upstreamID string, picture []byte) error
	// Forget removes a batch that was being created and never came to be.
	Forget(ctx context.Context, num int64) error
	// Batch returns a batch by its public id.
	Batch(ctx context.Context, organization int64, id string) (Batch, error)
	// Batches lists batches as Files does files.
	Batches(ctx context.Context, organization int64, p Page) (batches []Batch, next string, err error)
	// Due gives up to limit batches that have not ended and are due to this caller alone, until for has passed.
	Due(ctx context.Context, limit int, hold time.Duration) ([]Batch, error)
	// Look takes the turn of asking the provider about one batch, at most once in every; false: another one had it.
	Look(ctx context.Context, num int64, every time.Duration) (bool, error)
	// Progress notes what an open batch looks like, and in what time it is due again.
	Progress(ctx context.Context, num int64, picture []byte, again time.Duration) error
	// End notes that an open batch is settled, and adds the files that came of it. ErrConflict: that has been noted before.
	End(ctx context.Context, num int64, picture []byte, files []File) error
	// Target returns what reaches a provider, also after it was deleted.
	Target(ctx context.Context, num int64) (Target, error)
}

// Package plugins is the contract between the gateway's chain and the governance plugins.
//
// Stages return values and the chain owns the effects: a plugin never writes to the call, the ledger or the client.
package plugins

import (
	"context"
	"errors"
	"net/http"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/formdata"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/money"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/internal/sse"
)

// ErrNotMine is what an Authenticator returns for a credential of another kind: the next one is asked.
var ErrNotMine = errors.New("credential of another kind")

// Plugin is what every governance plugin is. What it does follows from which stage interfaces it also has.
type Plugin interface {
	// ID is the plugin's stable name in configuration, logs and metrics.
	ID() string
}

// Module makes plugins of one kind. Modules are listed by name in internal/app.
type Module struct {
	ID string
	// New decodes its section of the configuration strictly and validates it. It opens nothing and starts nothing.
	New func(Env, Config) (Plugin, error)
}

// Config decodes a plugin's own section of the configuration and refuses unknown members.
type Config interface{ Decode(into any) error }

// Env is all that a plugin gets from outside. It opens no connection and reads no environment variable by itself.
type Env struct {
	Log      zerolog.Logger
	Keys     governance.KeyFinder
	Catalogs governance.Catalogs
	Peppers  Peppers
	// Changed tells of changes of configuration: kind is a resource such as "key", num its row, or 0 for all of them.
	// A plugin that caches registers here; the function must not block.
	Changed func(func(kind string, num int64))
	Metrics Registry
	Spend   governance.SpendStore // where attribution goes
	// DialControl may refuse a resolved address before it is connected to; nil: none is refused. A plugin that connects to where
	// an administrator says must heed it.
	DialControl func(ctx context.Context, network, address string, c syscall.RawConn) error
	// MaxAge is for how long the operator lets cached data go unconfirmed; 0: as long as the plugin does by itself.
	MaxAge time.Duration
}

// Peppers computes the stored form of a key under each live pepper.
type Peppers interface {
	// Sum returns HMAC-SHA-256(pepper, SHA-256(key)), or false where no pepper has that id.
	Sum(pepperID string, key secret.String) ([32]byte, bool)
	// Current returns the id of the pepper under which secrets are to be stored.
	Current() string
}

// Registry registers a plugin's own metrics. Labels come from configured ids only.
type Registry interface {
	Counter(name, help string, labels ...string) func(values ...string)
	Histogram(name, help string, buckets []float64, labels ...string) func(value float64, values ...string)
}

// Call is a client's request on its way through the chain. Plugins read it; only the chain writes to it.
type Call struct {
	ID         ids.ID // the request id
	Route      string // the route's name, e.g. chat.completions
	Received   time.Time
	Header     http.Header
	Query      string // of the request's URL, as it came
	RemoteIP   string
	Credential secret.String
	Body       *jsonedit.Document // nil where the route takes none, and once a stream has begun
	Form       *formdata.Form     // the body where it is a form; Body is nil then
	Model      string             // the public name that was asked for
	Stream     bool
	EndUser    string
	EndUserNum int64
	Tags       map[string]string
	Metadata   []byte // JSON object of at most 4 KiB that the client gave; nil: none
	Demand     Demand
	Policy     string // what its guards hold the call to; set after the guard stage where the chain has an answer cache

	Principal governance.Principal // set after the authenticate stage
	Catalog   *governance.Catalog  // the picture that this call is decided by
	Resolved  governance.Route     // set after the resolve stage
	Target    *governance.Target   // set for each attempt
	Attempt   int                  // from 1
}

// Demand is what the request may use at most, before any target is known.
type Demand = governance.Demand

// Verdict is a guard's answer.
type Verdict struct {
	Deny *governance.Error
	Body []byte            // nil: the body stays; the chain indexes a new one again
	Tags map[string]string // go to the spend row
	// Warnings tell the client what was changed.
	Warnings []string
}

// Authenticator turns a credential into a principal.
type Authenticator interface {
	Authenticate(ctx context.Context, c *Call) (governance.Principal, error)
}

// Resolver turns the requested model into targets in the order in which to try them, or refuses the model.
type Resolver interface {
	Resolve(ctx context.Context, c *Call) (governance.Route, error)
}

// Guard judges a request before anything is charged for it.
type Guard interface {
	Guard(ctx context.Context, c *Call) (Verdict, error)
}

// Charger says what an attempt must reserve. It is pure: no I/O. The chain reserves all plugins' holds in one transaction.
type Charger interface {
	Charge(c *Call) ([]governance.Hold, error)
}

// StreamObserver sees each upstream event and cannot change it.
type StreamObserver interface {
	Observe(c *Call, ev sse.Event)
}

// AnswerGuard judges what models say, in the client's dialect.
type AnswerGuard interface {
	// GuardAnswer returns the judge of a call's answer, or nil where there is nothing to judge: then the answer passes byte for
	// byte. It is asked once for each attempt that answers.
	GuardAnswer(c *Call) AnswerJudge
}

// AnswerJudge judges one answer: whole, or event by event. It is not safe for concurrent use.
type AnswerJudge interface {
	// Whole judges an answer that is no stream.
	Whole(ctx context.Context, body []byte) (Verdict, error)
	// Event judges the next event of a stream. What it holds back it must give out before the event that ends its text.
	Event(ctx context.Context, ev sse.Event) (StreamVerdict, error)
	// End is told that a stream has ended in order, and gives out what is still held back.
	End(ctx context.Context) (StreamVerdict, error)
}

// StreamVerdict is what shall become of an event.
type StreamVerdict struct {
	Deny   *governance.Error // ends the stream
	Pass   bool              // the event goes on as it came
	Events []sse.Event       // else these take its place, of which Raw is made where it is missing
	Tags   map[string]string // go to the spend row
}

// Recorder hears of each finished call after the client has its answer, exactly once. Its queue is bounded.
type Recorder interface {
	Record(ctx context.Context, r Record)
}

// AnswerCache answers a call from what an earlier one was told. It is asked once every guard has agreed; what it returns is
// charged as an answer from the cache, which the limits of requests must still admit.
type AnswerCache interface {
	// Lookup returns the answer to an earlier call that this one is equal to, or nil, and the place for this one's.
	Lookup(ctx context.Context, c *Call) (*Answer, Slot, error)
}

// Slot is where an answer goes that equal calls may be given. It outlives the call's body.
type Slot struct {
	Room int // bytes that the answer may have; 0: it is not to be kept
	Keep func(Answer)
}

// Answer is a whole, successful answer in the client's dialect.
type Answer struct {
	TargetNum   int64 // of the target that gave it
	ContentType string
	Body        []byte // whole, or all events of a stream; nobody changes it
	Stream      bool
	Cost        money.Nano // that its attempt was settled with
	At          time.Time
}

// Policied is what a guard is whose verdict depends on who calls. Calls under different policies are never given each
// other's answers.
type Policied interface {
	// Policy names what the guard holds calls like this one to. It is as good as a secret, and never shown.
	Policy(c *Call) string
}

// Finisher is told, exactly once and in reverse order, that a call whose stages this plugin took part in has ended: by
// success, error, refusal, cancel or panic.
type Finisher interface {
	Finish(c *Call, err error)
}

// Runner is a plugin with a background life, which the application starts and stops.
type Runner interface {
	Run(ctx context.Context) error
}

// Record is a finished call.
type Record struct {
	Call      *Call
	Status    int
	Err       error // what the client was told, if not success
	Attempts  []Attempt
	FirstByte time.Duration // until the first byte went to the client; 0: none did
	Total     time.Duration
	Overhead  time.Duration // Tollgate's own share
	BytesOut  int64
}

// Attempt is one call to one target.
type Attempt struct {
	ID         ids.ID
	Target     *governance.Target
	Settlement governance.Settlement
	RawUsage   []byte
	Err        error
}

// Package providers is the contract between the gateway and the upstream APIs.
package providers

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/internal/sse"
)

// Dialect is a wire format of requests and answers.
type Dialect string

// The dialects that clients or upstreams speak.
const (
	OpenAIChat        Dialect = "openai/chat"
	OpenAICompletions Dialect = "openai/completions"
	OpenAIResponses   Dialect = "openai/responses"
	OpenAIEmbeddings  Dialect = "openai/embeddings"
	OpenAIModerations Dialect = "openai/moderations"

	OpenAIImages          Dialect = "openai/images"
	OpenAIImageEdits      Dialect = "openai/image_edits"      // JSON or a form
	OpenAIImageVariations Dialect = "openai/image_variations" // a form
	OpenAISpeech          Dialect = "openai/speech"
	OpenAITranscriptions  Dialect = "openai/transcriptions" // a form
	OpenAITranslations    Dialect = "openai/translations"   // a form

	AnthropicMessages    Dialect = "anthropic/messages"
	AnthropicCountTokens Dialect = "anthropic/count_tokens" //nolint:gosec // no credential

	GeminiGenerate Dialect = "gemini/generate" // generateContent, and streamGenerateContent with alt=sse

	BedrockConverse Dialect = "bedrock/converse" // Converse, and ConverseStream in Amazon's event stream

	CohereRerank Dialect = "cohere/rerank" // v2/rerank
)

// Provider reaches one kind of upstream. It is transport alone: it touches no byte of a body.
type Provider interface {
	// Kind is the name that providers in the store carry, e.g. "openai".
	Kind() string
	// Speaks lists the dialects that the upstream takes as they are.
	Speaks() []Dialect
	// NewRequest wraps a body that is already in d: URL, credential and vendor headers, and of the client's headers only
	// those on the provider's allow-list.
	NewRequest(ctx context.Context, up Upstream, d Dialect, client http.Header, body []byte) (*http.Request, error)
	// Classify reads a non-2xx answer, or a 2xx one that is an error inside.
	Classify(status int, h http.Header, body []byte) Failure
	// Meter returns a fresh meter for one answer in d.
	Meter(d Dialect) Meter
}

// Framer is a Provider whose streams are no server-sent events.
type Framer interface {
	// Frames splits a stream into events. Their Raw is not for clients: only translators have a use for such streams.
	Frames(stream io.Reader) Events
}

// Events is a stream of events. sse.Reader is one, and says what Next and Buffered mean. Where the stream cannot be read any
// further for what stands in it, the error of Next is ErrFrame or sse.ErrEventTooLarge.
type Events interface {
	Next() (sse.Event, error)
	Buffered() bool
}

// ErrFrame says that a frame of a stream is not what its protocol demands.
var ErrFrame = errors.New("frame of the stream is not valid")

// MemberEditor is a Provider whose upstream wants members of a body otherwise than the dialect has them, the model's name above
// all.
type MemberEditor interface {
	// Members returns the edits, in the place of that of the model.
	Members(d Dialect, model string) []jsonedit.Edit
}

// CredentialChecker is a Provider whose credentials have a form that goes beyond a word in a header.
type CredentialChecker interface {
	// CheckCredential says what is wrong with a credential, without showing any of it.
	CheckCredential(credential secret.String) error
}

// Upstream is where a target lives and how to log in there.
type Upstream struct {
	BaseURL    string
	Model      string
	Credential secret.String
	// ContentType is that of a body which is no JSON; "" is application/json.
	ContentType string
	// Stream says that the client waits for a stream. Dialects whose bodies say so themselves need it not.
	Stream bool
	// ClientQuery is the query of the client's own request. As of its headers, only what is on the provider's allow-list goes
	// on.
	ClientQuery string
}

// Failure is an upstream's refusal in our words.
type Failure struct {
	Code       governance.Code
	Public     string        // what the caller may read
	OurFault   bool          // our credential or account was refused: never shown to the caller as it is
	TryNext    bool          // another target may do better
	RetryAfter time.Duration // the provider's own hint; 0: none
}

// Meter finds the usage in an answer of one dialect. It reads and never changes. The last usage counts, never a sum.
type Meter interface {
	// Body reads a whole unary answer.
	Body(b []byte)
	// Event reads one event of a stream.
	Event(ev sse.Event)
	// Facts returns what was found so far.
	Facts() Facts
}

// Facts is what a meter found in an answer.
type Facts struct {
	Usage    governance.Usage
	HasUsage bool // a valid usage was seen, explicit zeros included
	// PromptUsage says that what was seen so far counts the prompt alone: Usage has it, and HasUsage is still false. Dialects
	// that report the prompt ahead of the answer have it.
	PromptUsage bool
	// Counted is what was seen of the answer that is charged by the piece: pictures, seconds of audio.
	Counted  governance.Quantities
	Terminal bool // the dialect's terminal event was seen; unary: a whole answer was read (ruling 30)
	// Finished says that every choice seen has its finish reason: a clean end after that is terminal too (ruling 30), a
	// broken connection is not.
	Finished  bool
	BadUsage  bool  // a usage was seen that makes no sense (negative, not numbers)
	OutputLen int64 // bytes of output text, reasoning and tool arguments that were relayed, for estimates
	Model     string
	ID        string // of a response that the provider may keep; "": it has none, or its dialect keeps nothing
	// Sealed is the SHA-256, in hex, of the last content that the provider has encrypted for itself: whoever sends it back must
	// send it there. "": there is none.
	Sealed    string
	ErrorBody []byte // the error object of an answer that is an error although its status is 200; nil: none
	// UsageOnly says that the last event carries nothing but usage (ruling 36) and may be withheld if the client did not ask.
	UsageOnly bool
}

// Translator carries requests and answers from one dialect to another. It is pure. There is one for an ordered pair: what the
// client speaks and what its target speaks.
type Translator interface {
	From() Dialect // what the client speaks
	To() Dialect   // what the target speaks
	// Request translates a client's body for the upstream model. A parameter that has no counterpart is either dropped with
	// a Warning, or refused with a *governance.Error of governance.CodeInvalidRequest whose Param names it: never dropped
	// silently.
	Request(body *jsonedit.Document, model string) ([]byte, []Warning, error)
	// NewAnswer returns the state machine of one answer to the client's body.
	NewAnswer(client *jsonedit.Document) Answer
}

// Warning names a parameter that was dropped or changed, and says why.
type Warning struct{ Param, Reason string }

// Answer translates one answer, event by event. It is not safe for concurrent use.
type Answer interface {
	// Body translates a whole 2xx answer.
	Body(upstream []byte) ([]byte, error)
	// Event takes one event of the upstream's stream and writes complete events of the client's dialect: none, one or many.
	Event(w io.Writer, ev sse.Event) error
	// End says that the upstream's stream has ended in order, and closes the client's if its terminal event is still due.
	End(w io.Writer) error
	// Error puts an upstream's error body, which may be anything, into the client's dialect.
	Error(status int, body []byte) []byte
}

package governance

import (
	"regexp"
	"slices"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// Provider is an account at an upstream: where it is and how to log in there.
type Provider struct {
	Meta
	Organization Ref // zero: the platform's, offered to every organization
	Name         string
	Kind         string // which code reaches it: "openai", later others
	BaseURL      string
	// PriceProvider is the provider's name in the price book; empty: its own name.
	PriceProvider string
	// Credential is write-only. Zero keeps the stored one on update; a new provider then has none.
	Credential secret.String
	// DropCredential makes an update forget the stored credential, so that none is sent. It is write-only.
	DropCredential bool
	CredentialOK   bool // whether the stored credential could be opened
}

// OnDisconnect says what happens upstream when the client leaves during an answer.
type OnDisconnect string

// The two ways. Drain is bounded in time and in number.
const (
	DisconnectAbort OnDisconnect = "abort"
	DisconnectDrain OnDisconnect = "drain"
)

// Target is an upstream model at a provider: what really runs. Models share targets.
type Target struct {
	Meta
	Provider      Ref
	ProviderKind  string
	BaseURL       string
	Credential    secret.String
	UpstreamModel string
	OnDisconnect  OnDisconnect
	// NoStreamOptions marks upstreams that refuse the member stream_options.
	NoStreamOptions bool
	// Drop names members of request bodies that the upstream refuses: they are taken out, and the client is told. CheckDrop
	// says which may be named.
	Drop      []string
	MaxOutput int64 // tokens the model can answer at most; 0: unknown
	// ExpectedOutput is the 99th percentile of the target's settled outputs in tokens, at least 1,024; 4,096 before there are any.
	ExpectedOutput int64
	// OutputRate is the 95th percentile of the target's output speed in tokens per second; 0: unknown.
	OutputRate int64
	Price      *PriceVersion // what is active now; nil: unpriced
}

var apiVersion = regexp.MustCompile(`^(api-version=[A-Za-z0-9-]{1,40})?$`)

// IsBaseQuery reports whether the query of a base URL is none, or names a version of the API as Azure wants it: all else might
// be a credential, and that has its own place.
func IsBaseQuery(query string) bool { return apiVersion.MatchString(query) }

const maxDrop = 20 // members that a target may drop

var droppable = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// CheckDrop returns what is wrong with the names of members that a target is to drop, and the index of the one that is; an
// empty reason: nothing is. What decides what is called, how it is answered and what may be charged for it is never dropped.
func CheckDrop(names []string) (at int, reason string) {
	if len(names) > maxDrop {
		return maxDrop, "is more than 20 names"
	}
	for i, name := range names {
		switch {
		case !droppable.MatchString(name):
			return i, "is not the name of a member: lower-case letters, digits and _, at most 64"
		case slices.Contains(names[:i], name):
			return i, "is named twice"
		}
		switch name {
		case "model", "messages", "input", "prompt", "contents", "stream", "stream_options", "n", "best_of",
			"max_tokens", "max_completion_tokens", "max_output_tokens":
			return i, "cannot be dropped: it decides what is called or what is reserved"
		}
	}
	return 0, ""
}

// ModelTarget is one way of serving a model. Lower priorities are tried first; within one, weights share the calls.
type ModelTarget struct {
	Target   Ref
	Provider Ref
	Upstream string
	Weight   int
	Priority int
}

// Model is a public name that clients ask for.
type Model struct {
	Meta
	Organization Ref // zero: the platform's
	Name         string
	Targets      []ModelTarget
}

// Route is where a call may go: the model that was asked for and its targets in the order in which to try them.
type Route struct {
	Model   *Model
	Targets []*Target
}

// Catalog is an immutable picture of the models, targets, limits and prices at one configuration version.
type Catalog struct {
	Version  int64
	LoadedAt time.Time
	models   map[modelKey]*Model
	targets  map[int64]*Target
	offered  map[int64][]*Model
	Limits   *LimitIndex
	// Guardrails are all that are not deleted, in the order in which they were made.
	Guardrails []*Guardrail
}

type modelKey struct {
	organization int64
	name         string
}

// NewCatalog indexes what a store has read.
func NewCatalog(version int64, loadedAt time.Time, models []*Model, targets []*Target, limits []*Limit) *Catalog {
	c := &Catalog{
		Version: version, LoadedAt: loadedAt,
		models:  make(map[modelKey]*Model, len(models)),
		targets: make(map[int64]*Target, len(targets)),
		offered: make(map[int64][]*Model),
		Limits:  NewLimitIndex(limits),
	}
	for _, t := range targets {
		c.targets[t.Num] = t
	}
	for _, m := range models {
		c.models[modelKey{m.Organization.Num, m.Name}] = m
		c.offered[m.Organization.Num] = append(c.offered[m.Organization.Num], m)
	}
	return c
}

// Model finds what organization means by a public name: its own model shadows the platform's. Nil: unknown.
func (c *Catalog) Model(organization int64, name string) *Model {
	if m := c.models[modelKey{organization, name}]; m != nil {
		return m
	}
	return c.models[modelKey{0, name}]
}

// Offered lists the models that an organization may use at all, its own first, in no other order.
func (c *Catalog) Offered(organization int64) []*Model {
	own := c.offered[organization]
	if organization == 0 {
		return own
	}
	all := make([]*Model, 0, len(own)+len(c.offered[0]))
	all = append(all, own...)
	for _, m := range c.offered[0] {
		if c.models[modelKey{organization, m.Name}] == nil {
			all = append(all, m)
		}
	}
	return all
}

// Target returns a target by its row number. Nil: unknown.
func (c *Catalog) Target(num int64) *Target { return c.targets[num] }

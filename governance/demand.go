package governance

import (
	"errors"
	"math"

	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

// Names of the routes whose requests differ in what they may use.
const (
	RouteChat        = "chat.completions"
	RouteCompletions = "completions"
	RouteResponses   = "responses"
	RouteEmbeddings  = "embeddings"
	RouteModerations = "moderations"
	RouteMessages    = "messages"
	RouteCountTokens = "messages.count_tokens"

	RouteImages          = "images.generations"
	RouteImageEdits      = "images.edits"
	RouteImageVariations = "images.variations"
	RouteSpeech          = "audio.speech"
	RouteTranscriptions  = "audio.transcriptions"
	RouteTranslations    = "audio.translations"
	RouteRerank          = "rerank"
)

const (
	maxOutputs               = 1 << 20 // answers to one request; with MaxTokens each they still fit 63 bits
	legacyCompletionsOutput  = 16      // what the provider takes where max_tokens is absent (ruling 18)
	leastExpectedOutput      = 1_024
	unmeasuredExpectedOutput = 4_096
)

// Demand is what a request may use at most, before any target is known: the estimate of its prompt (ruling 19) and what
// the client said about its output (ruling 18).
type Demand struct {
	Input       int64  // tokens of the prompt, estimated from above
	Declared    int64  // output tokens the client asked for at most, for one output; 0: it did not say
	DeclaredBy  string // the member that says so; "": none does
	Outputs     int64  // how many outputs: prompts × max(n, best_of)
	NoOutput    bool   // the route makes no output tokens (embeddings, moderations, count_tokens)
	Costless    bool   // no provider charges for the route (count_tokens, ruling 29)
	CacheWrites bool   // the prompt asks the provider to cache parts of it
	Images      bool   // the prompt has images
	Audio       bool   // the prompt has audio
	AudioOutput bool   // the client asked for spoken answers
	ServiceTier string // that the client asked for, in its provider's words; "": none

	// Counted is what may be charged by the piece, at most: pictures, characters to speak, seconds of audio, searches.
	Counted Quantities
	Tier    string // of a price, that the pictures have by their quality and size; see ImageTier
	AnyTier bool   // quality or size is the provider's choice

	Version int // version of the estimator

	// Batch is set where many requests are charged together: Input is then the sum of their prompts, Declared that of what they
	// ask for at most, and Outputs counts the answers of those that do not say.
	Batch *BatchDemand
}

// DemandOf reads the demand of a request from its body. Only members that the route's dialect has are read, since an
// upstream ignores the others. An output limit or a count that is no number, negative or absurd is refused with
// CodeInvalidRequest, naming the member.
func DemandOf(route string, body *jsonedit.Document) (Demand, error) {
	facts := body.Facts()
	d := Demand{
		Input:       facts.PromptTokens(),
		Outputs:     1,
		CacheWrites: facts.CacheWrite || facts.CacheHour,
		Images:      facts.Images > 0,
		Audio:       facts.Audios > 0,
		Version:     jsonedit.EstimatorVersion,
	}
	var limits []string
	var err error
	switch route {
	case RouteEmbeddings, RouteModerations:
		d.NoOutput, d.Outputs = true, 0
		return d, nil
	case RouteImages, RouteImageEdits, RouteImageVariations, RouteSpeech, RouteTranscriptions, RouteTranslations:
		return mediaDemand(route, body, d.Input, Uploads{Count: picturesIn(body)})
	case RouteRerank:
		return rankingDemand(body, d.Input)
	case RouteCountTokens: // one request and nothing else (ruling 29)
		return Demand{NoOutput: true, Costless: true, Version: jsonedit.EstimatorVersion}, nil
	case RouteChat:
		limits = []string{"max_tokens", "max_completion_tokens"}
		d.Outputs, err = outputs(body, 1, "n")
		spoken, ok := body.Get("audio") // how they shall sound; without it the provider refuses to speak
		d.AudioOutput = ok && string(spoken) != "null"
	case RouteCompletions:
		limits = []string{"max_tokens"}
		d.Outputs, err = outputs(body, int64(facts.Prompts), "n", "best_of")
	case RouteResponses:
		limits = []string{"max_output_tokens"}
	default:
		limits = []string{"max_tokens"}
	}
	if err != nil {
		return Demand{}, err
	}
	d.ServiceTier = askedTier(body)
	if d.Declared, d.DeclaredBy, err = declared(body, limits); err != nil {
		return Demand{}, err
	}
	if route == RouteCompletions && d.Declared == 0 {
		d.Declared = legacyCompletionsOutput
	}
	return d, nil
}

// EstimateTier is the tier of a price at which an answer is booked that has not said its own.
func (d *Demand) EstimateTier() string {
	if d.Tier == "" && onlyIfAsked(d.ServiceTier) {
		return d.ServiceTier
	}
	return d.Tier
}

// askedTier returns the service tier that a request asks for, in OpenAI's words or in Anthropic's; "": none. What is no string
// the provider refuses.
func askedTier(body *jsonedit.Document) string {
	tier, _, err := body.String("service_tier")
	if err != nil {
		tier = ""
	}
	if speed, _, err := body.String("speed"); err == nil && speed == ServiceTierFast {
		tier = speed
	}
	if place, _, err := body.String("inference_geo"); err == nil && place == InferenceUS {
		tier = RegionalTier(tier, place)
	}
	return tier
}

// declared returns the largest of the output limits that the body gives, and its name; 0: none. Which of several limits a target honours
// is the target's own affair, so only the largest is never below what it may make.
func declared(body *jsonedit.Document, names []string) (most int64, by string, err error) {
	for _, name := range names {
		n, ok, err := body.Int(name)
		if err != nil {
			return 0, "", unreadable(err)
		}
		if !ok {
			continue
		}
		if n < 0 || n > MaxTokens {
			return 0, "", invalid(name, "must lie between 0 and 1,099,511,627,776")
		}
		if n > most {
			most, by = n, name
		}
	}
	return most, by, nil
}

// outputs returns prompts times the largest of the named counts.
func outputs(body *jsonedit.Document, prompts int64, names ...string) (int64, error) {
	most := int64(1)
	for _, name := range names {
		n, ok, err := body.Int(name)
		if err != nil {
			return 0, unreadable(err)
		}
		if !ok {
			continue
		}
		if n < 1 || n > maxOutputs/max(prompts, 1) {
			return 0, invalid(name, "asks for too many answers, or for none")
		}
		most = max(most, n)
	}
	return most * max(prompts, 1), nil
}

func invalid(param, why string) *Error {
	return &Error{Code: CodeInvalidRequest, Public: param + " " + why + ".", Param: param}
}

// unreadable passes on what the reader of bodies said: its text is made for clients.
func unreadable(err error) *Error {
	e := &Error{Code: CodeInvalidRequest, Public: err.Error()}
	if in, ok := errors.AsType[*jsonedit.Error](err); ok {
		e.Param = in.Param
	}
	return e
}

// Output is the number of output tokens, of all outputs together, that policy reserves at t.
func (d *Demand) Output(t *Target, policy ReservePolicy) int64 {
	if d.NoOutput || d.byPiece(t) {
		return 0
	}
	if d.Batch != nil {
		undeclared := Demand{Outputs: d.Outputs}
		return d.Declared + undeclared.Output(t, policy)
	}
	ceiling := int64(MaxTokens)
	if t.MaxOutput > 0 {
		ceiling = min(ceiling, t.MaxOutput)
	}
	expected := max(t.ExpectedOutput, leastExpectedOutput)
	if t.ExpectedOutput <= 0 {
		expected = unmeasuredExpectedOutput
	}
	var each int64
	switch {
	case d.Declared > 0 && policy == ReserveExpected:
		each = min(expected, d.Declared)
	case d.Declared > 0:
		each = d.Declared
	case policy == ReserveMaximum && t.MaxOutput > 0:
		each = t.MaxOutput
	default:
		each = expected
	}
	return min(each, ceiling) * d.Outputs
}

// Amount is what an attempt at t asks of a limit's meter, in its metric's unit; 0 makes no leg. A limit of cost refuses a
// target that is Unpriced with CodeModelUnpriced (ruling 20); what passes MaxAmount is CodeInvalidRequest.
func (d *Demand) Amount(l *Limit, t *Target) (int64, error) {
	switch l.Metric {
	case MetricInputTokens:
		return d.Input, nil
	case MetricOutputTokens:
		return d.countable(d.Output(t, l.reserve()))
	case MetricTokens:
		return d.countable(d.Input + d.Output(t, l.reserve()))
	case MetricCost:
		cost, err := d.Cost(t, l.reserve())
		return int64(cost), err
	default:
		return 1, nil
	}
}

// Cost is the most that an attempt at t can cost under policy, rounded up. It refuses as Amount does.
func (d *Demand) Cost(t *Target, policy ReservePolicy) (money.Nano, error) {
	if d.Unpriced(t) {
		return 0, &Error{
			Code:   CodeModelUnpriced,
			Public: "The model has no price for what this request uses, and a budget applies to it. Ask your administrator to price it.",
		}
	}
	if d.Costless || t.Price.Free {
		return 0, nil
	}
	cost, err := t.Price.Ceiling(d, d.Output(t, policy))
	if err != nil || cost > MaxAmount {
		return 0, d.tooMuch(err)
	}
	return cost, nil
}

// countable passes on a number of tokens that a meter can hold.
func (d *Demand) countable(tokens int64) (int64, error) {
	if tokens > MaxAmount {
		return 0, d.tooMuch(nil)
	}
	return tokens, nil
}

func (d *Demand) tooMuch(err error) *Error {
	return &Error{
		Code: CodeInvalidRequest, Public: "The request asks for more output than can be counted or priced.", Param: d.DeclaredBy, Err: err,
	}
}

// Estimate is what an attempt at t that takes holds may use at most, by the widest policy among them; without one that
// counts output it is what the client declared. Its cost is CostAt of its quantities and prices.
func (d *Demand) Estimate(t *Target, holds []Hold) (Estimate, error) {
	output := d.Output(t, ReserveDeclared)
	widest := int64(math.MinInt64)
	for _, h := range holds {
		switch h.Limit.Metric {
		case MetricTokens, MetricOutputTokens, MetricCost:
			widest = max(widest, d.Output(t, h.Limit.reserve()))
		}
	}
	if widest >= 0 {
		output = widest
	}
	e := Estimate{Quantities: d.quantities(output)}
	if d.Costless {
		return e, nil
	}
	if output > MaxAmount {
		return Estimate{}, d.tooMuch(nil)
	}
	if t.Price == nil {
		return e, nil
	}
	e.Prices = t.Price.dearest(d)
	var err error
	if e.Cost, err = CostAt(&e.Quantities, &e.Prices); err != nil || e.Cost > MaxAmount {
		return Estimate{}, d.tooMuch(err)
	}
	return e, nil
}

// quantities are what the request uses at most, together with output tokens.
func (d *Demand) quantities(output int64) Quantities {
	q := d.Counted
	in, out := d.units()
	q[in], q[out] = d.Input, output
	if !d.Costless {
		q[UnitRequest] = d.requests()
	}
	return q
}

// Unpriced reports whether t's price lacks what the request uses, in any of its tiers: the price of what is counted by the
// piece or else that of input, and of output where the route makes any. Zero is no price; a model that costs nothing is Free.
func (d *Demand) Unpriced(t *Target) bool {
	if d.Costless {
		return false
	}
	if t.Price == nil {
		return true
	}
	if t.Price.Free || d.byPiece(t) {
		return false
	}
	_, out := d.units()
	for i := range t.Price.Tiers {
		prices := t.Price.Tiers[i].Prices.filled()
		if prices[UnitInput] == 0 || !d.NoOutput && prices[out] == 0 {
			return true
		}
	}
	return len(t.Price.Tiers) == 0
}

// reserve returns the limit's policy, or its kind's default.
func (l *Limit) reserve() ReservePolicy {
	switch {
	case l.Reserve != "":
		return l.Reserve
	case l.Kind == KindRate:
		return ReserveExpected
	default:
		return ReserveDeclared
	}
}

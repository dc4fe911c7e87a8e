// Package guardrail holds what is said to models, and by them, to the guardrails that administrators have made.
package guardrail

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"sync"

	"github.com/rs/zerolog"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/lognames"
	"github.com/tollgate-gateway/tollgate/plugins"
)

// ID is the plugin's name in configuration, logs and metrics.
const ID = "guardrail"

// longText is what a request has in texts, in bytes, that waits for its turn: half of the processors read such ones.
const longText = 64 << 10

const (
	tag    = "tollgate.guardrails" // names, on the spend row, the guardrails that found something
	maxTag = 64                    // bytes of a tag's value
)

// settings are the plugin's section of the configuration.
type settings struct {
	// MaxText is how many bytes of text of one request are inspected. A request with more is refused where a guardrail acts
	// on it: the built-in patterns cost about a fifth of a second of a core for 1 MiB (T24).
	MaxText int `yaml:"max_text"`
}

// Module is what the application's list of plugins names.
func Module() plugins.Module {
	return plugins.Module{ID: ID, New: func(env plugins.Env, cfg plugins.Config) (plugins.Plugin, error) {
		s := settings{MaxText: 1 << 20}
		if err := cfg.Decode(&s); err != nil {
			return nil, fmt.Errorf("decode settings of guardrail: %w", err)
		}
		if s.MaxText < 1 {
			return nil, fmt.Errorf("guardrail: max_text is at least 1, not %d", s.MaxText)
		}
		return &plugin{
			settings: s, log: env.Log, webhooks: newWebhooks(env.DialControl), long: make(chan struct{}, max(runtime.GOMAXPROCS(0)/2, 1)),
			found:  env.Metrics.Counter("tollgate_guardrail_hits_total", "Requests and answers in which a guardrail found something, by guardrail and action.", "guardrail", "action"),
			failed: env.Metrics.Counter("tollgate_guardrail_failures_total", "Requests and answers that a guardrail could not judge, by guardrail.", "guardrail"),
		}, nil
	}}
}

type plugin struct {
	settings settings
	log      zerolog.Logger
	webhooks *webhooks
	long     chan struct{} // a place for each request with long texts that is read
	found    func(values ...string)
	failed   func(values ...string)

	mu    sync.Mutex
	ready *ready
}

var (
	_ plugins.Guard       = (*plugin)(nil)
	_ plugins.AnswerGuard = (*plugin)(nil)
	_ plugins.Policied    = (*plugin)(nil)
	_ plugins.Idler       = (*plugin)(nil)
)

// ID implements plugins.Plugin.
func (*plugin) ID() string { return ID }

// ready are the guardrails of one picture of the configuration, ready to judge.
type ready struct {
	catalog *governance.Catalog
	byNum   map[int64]*rail
	all     map[int64][]*rail // by organization; 0: the platform's
}

// of returns the guardrails of a picture. Those that have not changed since the last one are taken over.
func (p *plugin) of(catalog *governance.Catalog) *ready {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ready != nil && p.ready.catalog == catalog {
		return p.ready
	}
	next := &ready{catalog: catalog, byNum: make(map[int64]*rail), all: make(map[int64][]*rail)}
	for _, g := range catalog.Guardrails {
		var r *rail
		if p.ready != nil {
			r = p.ready.byNum[g.Num]
		}
		if r == nil || r.Version != g.Version {
			r = newRail(g)
		} else {
			r = &rail{Guardrail: g, patterns: r.patterns, broken: r.broken}
		}
		next.byNum[g.Num] = r
		next.all[g.Organization.Num] = append(next.all[g.Organization.Num], r)
	}
	p.ready = next
	return next
}

// inForce lists the guardrails that apply to a call at a stage, the platform's first; stage "": at any.
func (p *plugin) inForce(c *plugins.Call, stage governance.GuardrailStage) []*rail {
	if c.Catalog == nil || len(c.Catalog.Guardrails) == 0 {
		return nil
	}
	all := p.of(c.Catalog).all
	var list []*rail
	for _, rails := range [][]*rail{all[0], all[c.Principal.Organization.Num]} {
		for _, r := range rails {
			if r.AppliesTo(&c.Principal, c.Model) && (stage == "" || r.Stage.Sees(stage)) {
				list = append(list, r)
			}
		}
		if c.Principal.Organization.Num == 0 {
			break
		}
	}
	return list
}

// Idle implements plugins.Idler.
func (p *plugin) Idle(c *plugins.Call) bool { return !anyActs(p.inForce(c, "")) }

func anyActs(rails []*rail) bool {
	for _, r := range rails {
		if r.acts() {
			return true
		}
	}
	return false
}

// Policy implements plugins.Policied.
func (p *plugin) Policy(c *plugins.Call) string {
	h := sha256.New()
	for _, r := range p.inForce(c, "") {
		_ = binary.Write(h, binary.BigEndian, []int64{r.Num, r.Version}) // a hash takes everything
	}
	return string(h.Sum(nil))
}

// hits are the guardrails that found something in one request or answer.
type hits struct {
	p     *plugin
	found []*rail
}

func (h *hits) add(r *rail) {
	for _, known := range h.found {
		if known == r {
			return
		}
	}
	h.found = append(h.found, r)
	h.p.found(r.ID, string(r.Action))
}

// tags name the guardrails, beside those that the call was tagged with before, as far as there is room.
func (h *hits) tags(c *plugins.Call) map[string]string {
	if len(h.found) == 0 {
		return nil
	}
	var ids []string
	if before := c.Tags[tag]; before != "" {
		ids = strings.Split(before, " ")
	}
	for _, r := range h.found {
		known := false
		for _, id := range ids {
			known = known || id == r.ID
		}
		if !known && len(strings.Join(ids, " "))+1+len(r.ID) <= maxTag {
			ids = append(ids, r.ID)
		}
	}
	return map[string]string{tag: strings.Join(ids, " ")}
}

// spares reports whether a failure of a guardrail lets the call pass, and notes the failure.
func (p *plugin) spares(r *rail, err error) bool {
	p.failed(r.ID)
	p.log.Warn().Err(err).Str(lognames.Guardrail, r.ID).Msg("guardrail could not judge")
	return r.AllowOnError || !r.acts()
}

// Guard implements plugins.Guard. Forms are not read: the chain refuses them unless the plugin is idle.
func (p *plugin) Guard(ctx context.Context, c *plugins.Call) (plugins.Verdict, error) {
	if deny := p.unable(c); deny != nil {
		return plugins.Verdict{Deny: deny}, nil //nolint:nilerr // a decision, no failure
	}
	rails := p.inForce(c, governance.StageRequest)
	if len(rails) == 0 || c.Body == nil {
		return plugins.Verdict{}, nil
	}
	q := &request{p: p, call: c, rails: rails, body: c.Body, hits: hits{p: p}}
	by, err := q.judge(ctx)
	v := plugins.Verdict{Tags: q.hits.tags(c), Warnings: q.warnings}
	switch {
	case err != nil:
		return v, err
	case by != nil:
		q.hits.add(by)
		v.Deny, v.Tags = by.blocked(), q.hits.tags(c)
	case q.body != c.Body:
		v.Body = q.body.Bytes()
	}
	return v, nil
}

// request is one request that is judged.
type request struct {
	p        *plugin
	call     *plugins.Call
	rails    []*rail
	body     *jsonedit.Document
	texts    []string
	size     int // bytes of all texts
	hits     hits
	warnings []string
}

// judge returns the rail that blocks the request, or nil.
func (q *request) judge(ctx context.Context) (*rail, error) {
	_ = q.body.MapTexts(func(text string) string {
		q.size += len(text)
		q.texts = append(q.texts, text)
		return text
	})
	var readers []*rail // rails that read the texts
	for _, r := range q.rails {
		switch r.Rule.Type {
		case governance.RuleMaxSize:
			if int64(q.size) > r.Rule.Bytes {
				q.hits.add(r)
				if r.acts() {
					return r, nil
				}
			}
		case governance.RuleMaxTokens:
			if by, err := q.clamp(r); by != nil || err != nil {
				return by, err
			}
		default:
			readers = append(readers, r)
		}
	}
	if q.size > q.p.settings.MaxText {
		return q.tooMuch(readers), nil
	}
	for _, r := range readers {
		if r.broken != nil && !q.p.spares(r, r.broken) {
			return nil, r.broken
		}
	}
	if by, err := q.mask(ctx, readers); by != nil || err != nil {
		return by, err
	}
	told, err := q.p.ask(ctx, q.call, readers, governance.StageRequest, q.texts, &q.hits)
	if err != nil || told.by != nil {
		return told.by, err
	}
	return nil, q.replace(told.texts)
}

// tooMuch refuses what is more than is inspected, where a guardrail would act on it.
func (q *request) tooMuch(readers []*rail) *rail {
	for _, r := range readers {
		q.p.failed(r.ID)
		if r.acts() && !r.AllowOnError {
			return r
		}
	}
	return nil
}

// mask looks for the patterns in each text.
func (q *request) mask(ctx context.Context, readers []*rail) (*rail, error) {
	effects := effectsOf(readers)
	if len(effects) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	if q.size > longText { // others have calls, too
		select {
		case q.p.long <- struct{}{}:
			defer func() { <-q.p.long }()
		case <-ctx.Done():
		}
	}
	r := &reader{ctx: ctx, effects: effects, hit: q.hits.add}
	masked := make([]string, len(q.texts))
	for i, text := range q.texts {
		var by *rail
		if masked[i], by = r.whole(text); by != nil {
			return by, nil
		}
		if masked[i] != text && isInput(text) && !isInput(masked[i]) { // what is JSON stays JSON
			if masked[i], by = r.input(text); by != nil {
				return by, nil
			}
		}
	}
	if err := r.fails(q.p, readers); err != nil {
		return nil, err
	}
	return nil, q.replace(masked)
}

// replace puts other texts in the places of the request's; nil: they stay.
func (q *request) replace(texts []string) error {
	changed := false
	for i := range texts {
		changed = changed || texts[i] != q.texts[i]
	}
	if !changed {
		return nil
	}
	i := 0
	body := q.body.MapTexts(func(string) string {
		i++
		return texts[i-1]
	})
	doc, err := jsonedit.Parse(body)
	if err != nil {
		return fmt.Errorf("read masked request: %w", err)
	}
	q.body, q.texts = doc, texts
	return nil
}

// clamp lowers the limits of output that the client asks for, or sets one where it asks for none.
func (q *request) clamp(r *rail) (*rail, error) {
	var names []string
	switch q.call.Route {
	case governance.RouteChat:
		names = []string{"max_completion_tokens", "max_tokens"}
	case governance.RouteCompletions, governance.RouteMessages:
		names = []string{"max_tokens"}
	case governance.RouteResponses:
		names = []string{"max_output_tokens"}
	default:
		return nil, nil // nothing is written
	}
	var edits []jsonedit.Edit
	given := false
	for _, name := range names {
		n, ok, err := q.body.Int(name)
		if err != nil {
			return nil, nil //nolint:nilerr // refused by the estimate, which names it
		}
		given = given || ok
		if ok && n > r.Rule.Tokens {
			edits = append(edits, jsonedit.At(name).Int(r.Rule.Tokens))
			q.warnings = append(q.warnings, fmt.Sprintf("%s: lowered to %d by a guardrail", name, r.Rule.Tokens))
		}
	}
	switch {
	case !given && r.Action == governance.ActionMask:
		edits = append(edits, jsonedit.At(names[0]).Int(r.Rule.Tokens))
		q.warnings = append(q.warnings, fmt.Sprintf("%s: set to %d by a guardrail", names[0], r.Rule.Tokens))
	case len(edits) == 0:
		return nil, nil
	default:
		q.hits.add(r)
	}
	switch r.Action {
	case governance.ActionBlock:
		return r, nil
	case governance.ActionLog:
		q.warnings = nil
		return nil, nil
	}
	if budget, ok, err := q.body.Int("thinking", "budget_tokens"); err == nil && ok && budget >= r.Rule.Tokens {
		return r, nil // Anthropic would refuse a limit that leaves no room behind the thoughts
	}
	body, err := q.body.With(edits...)
	if err != nil {
		return nil, fmt.Errorf("lower the output limit: %w", err)
	}
	if q.body, err = jsonedit.Parse(body); err != nil {
		return nil, fmt.Errorf("read clamped request: %w", err)
	}
	return nil, nil
}

// GuardAnswer implements plugins.AnswerGuard.
func (p *plugin) GuardAnswer(c *plugins.Call) plugins.AnswerJudge {
	switch c.Route {
	case governance.RouteChat, governance.RouteCompletions, governance.RouteMessages, governance.RouteResponses:
	default:
		return nil // no model writes there; sound is refused by the chain
	}
	rails := p.inForce(c, governance.StageAnswer)
	if len(rails) == 0 {
		return nil
	}
	j := &judge{
		p: p, call: c, rails: rails, effects: effectsOf(rails), acts: anyActs(rails), hits: hits{p: p}, channels: make(map[string]*channel),
		held: heldFor(rails),
	}
	for _, r := range rails {
		if r.broken != nil && !p.spares(r, r.broken) {
			j.broken = r.broken
		}
	}
	return j
}

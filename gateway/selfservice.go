package gateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
)

// reply sends v as the answer.
func (c *call) reply(v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := c.answerJSON(http.StatusOK, body); err != nil {
		return errClientLeft
	}
	return nil
}

type openAIModel struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

type openAIModels struct {
	Object string        `json:"object"`
	Data   []openAIModel `json:"data"`
}

type anthropicModel struct {
	Type        string    `json:"type"`
	ID          string    `json:"id"`
	DisplayName string    `json:"display_name"`
	CreatedAt   time.Time `json:"created_at"`
}

type anthropicModels struct {
	Data    []anthropicModel `json:"data"`
	HasMore bool             `json:"has_more"`
	FirstID *string          `json:"first_id"`
	LastID  *string          `json:"last_id"`
}

// serveModels lists exactly the models that this key may call: each one is put to the resolver that will decide.
func (c *call) serveModels() error {
	if err := c.pickCatalog(); err != nil {
		return err
	}
	offered := slices.SortedFunc(slices.Values(c.Catalog.Offered(c.Principal.Organization.Num)),
		func(a, b *governance.Model) int { return cmp.Compare(a.Name, b.Name) })
	mine := make([]*governance.Model, 0, len(offered))
	for _, m := range offered {
		c.Model = m.Name
		_, err := c.g.chain.resolve(c.ctx(), c)
		switch {
		case err == nil:
			mine = append(mine, m)
		case !decided(err):
			return err
		case governance.CodeOf(err) == governance.CodeUpstreamUnreachable: // no target of it can be called at the moment
		case asFailure(err).statusOf(0) >= http.StatusInternalServerError:
			return err
		}
	}
	if c.anthropic {
		list := anthropicModels{Data: make([]anthropicModel, 0, len(mine))}
		for _, m := range mine {
			list.Data = append(list.Data, asAnthropicModel(m))
		}
		if n := len(list.Data); n > 0 {
			list.FirstID, list.LastID = &list.Data[0].ID, &list.Data[n-1].ID
		}
		return c.reply(list)
	}
	list := openAIModels{Object: "list", Data: make([]openAIModel, 0, len(mine))}
	for _, m := range mine {
		list.Data = append(list.Data, asOpenAIModel(m))
	}
	return c.reply(list)
}

func asOpenAIModel(m *governance.Model) openAIModel {
	return openAIModel{ID: m.Name, Object: "model", Created: m.CreatedAt.Unix(), OwnedBy: "tollgate"}
}

func asAnthropicModel(m *governance.Model) anthropicModel {
	return anthropicModel{Type: "model", ID: m.Name, DisplayName: m.Name, CreatedAt: m.CreatedAt.UTC()}
}

// serveModelInfo shows one model, named by all of the path behind /models/ (F109).
func (c *call) serveModelInfo() error {
	escaped, _ := modelName(c.r.URL.EscapedPath())
	name, err := url.PathUnescape(escaped)
	if err != nil || name == "" {
		return fault(governance.CodeModelNotFound, "The model is unknown.")
	}
	if err := c.pickCatalog(); err != nil {
		return err
	}
	c.Model = name
	resolved, err := c.g.chain.resolve(c.ctx(), c)
	if err != nil {
		return err
	}
	if c.anthropic {
		return c.reply(asAnthropicModel(resolved.Model))
	}
	return c.reply(asOpenAIModel(resolved.Model))
}

// limitState is a limit and what is left of it, as ruling 45 shows it to the holder of a key.
type limitState struct {
	ID          string       `json:"id"`
	Scope       refusedScope `json:"scope"`
	Kind        string       `json:"kind"`
	Metric      string       `json:"metric"`
	Amount      *string      `json:"amount"`
	Spent       string       `json:"spent"`
	Held        string       `json:"held"`
	Debt        string       `json:"debt"`
	Remaining   string       `json:"remaining"`
	ResetsAt    *time.Time   `json:"resets_at"`
	Enforcement string       `json:"enforcement"`
	Bound       string       `json:"bound"`
	Wanted      string       `json:"wanted,omitempty"`
	WouldRefuse *bool        `json:"would_refuse,omitempty"`
}

func (c *call) limitState(l *governance.Level) limitState {
	d := describe(l, &c.Call, c.g.now())
	return limitState{
		ID: d.Limit, Scope: d.Scope, Kind: string(l.Limit.Kind), Metric: d.Metric, Amount: d.Amount, Spent: d.Spent, Held: d.Held,
		Debt: d.Debt, Remaining: d.Remaining, ResetsAt: d.ResetsAt,
		Enforcement: string(l.Limit.Enforcement), Bound: governance.Bound,
	}
}

type keyState struct {
	Label        string       `json:"label"`
	Organization string       `json:"organization"`
	Team         *string      `json:"team"`
	Models       []string     `json:"models"` // null: all that the organization is offered
	ExpiresAt    *time.Time   `json:"expires_at"`
	Limits       []limitState `json:"limits"`
	UsageToday   usageSum     `json:"usage_today"`
	UsageMonth   usageSum     `json:"usage_month"`
}

type usageSum struct {
	CostUSD      string `json:"cost_usd"`
	Requests     int64  `json:"requests"`
	InputTokens  int64  `json:"input_tokens"`
	OutputTokens int64  `json:"output_tokens"`
}

// serveKey tells the holder of a key what it is and what is left of it.
func (c *call) serveKey() error {
	if err := c.pickCatalog(); err != nil {
		return err
	}
	p := &c.Principal
	state := keyState{
		Label: p.Key.Name, Organization: p.Organization.Name, Team: orNull(p.Team.Name), Models: p.KeyModels, Limits: []limitState{},
	}
	if !p.KeyExpiresAt.IsZero() {
		at := p.KeyExpiresAt.UTC()
		state.ExpiresAt = &at
	}
	queries := ownLimits(c.Catalog, p, c.g.now())
	levels, err := c.g.spend.Levels(c.ctx(), queries)
	if err != nil {
		return orUnavailable(err)
	}
	for i := range levels {
		state.Limits = append(state.Limits, c.limitState(&levels[i]))
	}
	now := c.g.now().UTC()
	day := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, time.UTC)
	month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	if state.UsageToday, err = c.usedSince(day); err != nil {
		return err
	}
	if state.UsageMonth, err = c.usedSince(month); err != nil {
		return err
	}
	return c.reply(state)
}

// ownLimits lists the limits that hold for calls of a principal. Limits in log mode are not shown to clients.
func ownLimits(catalog *governance.Catalog, p *governance.Principal, now time.Time) []governance.LevelQuery {
	caller := governance.Caller{Organization: p.Organization.Num, Team: p.Team.Num, Key: p.Key.Num, User: p.User.Num}
	var queries []governance.LevelQuery
	for _, kind := range []governance.Kind{governance.KindRate, governance.KindBudget, governance.KindConcurrency} {
		for _, applied := range catalog.Limits.Applied(kind, &caller, now) {
			if applied.Limit.Mode != governance.ModeLog {
				queries = append(queries, governance.LevelQuery(applied))
			}
		}
	}
	return queries
}

func (c *call) ownSpend() governance.SpendFilter {
	return governance.SpendFilter{Organization: c.Principal.Organization.ID, Key: c.Principal.Key.ID}
}

func (c *call) usedSince(from time.Time) (usageSum, error) {
	f := c.ownSpend()
	f.From = from
	sums, err := c.g.spend.Summary(c.ctx(), f, nil)
	if err != nil {
		return usageSum{}, orUnavailable(err)
	}
	if len(sums) == 0 {
		return asUsage(governance.SpendSum{}), nil
	}
	return asUsage(sums[0]), nil
}

func asUsage(s governance.SpendSum) usageSum {
	return usageSum{CostUSD: s.Cost.String(), Requests: s.Requests, InputTokens: s.InputTokens, OutputTokens: s.OutputTokens}
}

type usageGroup struct {
	Group map[string]string `json:"group"`
	usageSum
}

type usageList struct {
	Items      []usageGroup `json:"items"`
	NextCursor *string      `json:"next_cursor"`
}

// usageGroups are the members by which the holder of a key may group its own use.
var usageGroups = []string{"model", "provider", "day", "hour"}

// serveUsage sums up what this key has used: ?group_by=model,day&from=…&to=… (RFC 3339).
func (c *call) serveUsage() error {
	q := c.r.URL.Query()
	for name := range q {
		if name != "group_by" && name != "from" && name != "to" {
			return invalid(name, "The parameter "+name+" is unknown.")
		}
	}
	var groupBy []string
	if text := q.Get("group_by"); text != "" {
		groupBy = strings.Split(text, ",")
	}
	for _, g := range groupBy {
		if !slices.Contains(usageGroups, g) {
			return invalid("group_by", "Usage is grouped by "+strings.Join(usageGroups, ", ")+".")
		}
	}
	f := c.ownSpend()
	for name, at := range map[string]*time.Time{"from": &f.From, "to": &f.To} {
		if text := q.Get(name); text != "" {
			var err error
			if *at, err = time.Parse(time.RFC3339, text); err != nil {
				return invalid(name, "The parameter "+name+" must be an instant such as 2026-01-31T00:00:00Z.")
			}
		}
	}
	sums, err := c.g.spend.Summary(c.ctx(), f, groupBy)
	if err != nil {
		return orUnavailable(err)
	}
	list := usageList{Items: make([]usageGroup, 0, len(sums))}
	for _, s := range sums {
		list.Items = append(list.Items, usageGroup{Group: s.Group, usageSum: asUsage(s)})
	}
	return c.reply(list)
}

type receipt struct {
	RequestID string        `json:"request_id"`
	Status    string        `json:"status"`
	CostUSD   string        `json:"cost_usd"`
	Rows      []spendRow    `json:"rows"`
	Open      []openAttempt `json:"open"`
}

// spendRow follows ruling 45.
type spendRow struct {
	ID            string            `json:"id"`
	RequestID     string            `json:"request_id"`
	Attempt       int               `json:"attempt"`
	Kind          string            `json:"kind"`
	Outcome       string            `json:"outcome"`
	UsageSource   string            `json:"usage_source"`
	Organization  string            `json:"organization"`
	Team          *string           `json:"team"`
	Key           string            `json:"key"`
	User          *string           `json:"user"`
	EndUser       *string           `json:"end_user"`
	Model         string            `json:"model"`
	Provider      string            `json:"provider"`
	UpstreamModel string            `json:"upstream_model"`
	Quantities    map[string]int64  `json:"quantities"`
	UnitPrices    map[string]string `json:"unit_prices"` // US dollars per million units
	PriceVersion  *string           `json:"price_version"`
	CostUSD       string            `json:"cost_usd"`
	Unpriced      bool              `json:"unpriced,omitempty"`
	AdmittedAt    time.Time         `json:"admitted_at"`
	SettledAt     time.Time         `json:"settled_at"`
	Corrects      *string           `json:"corrects"`
	Tags          map[string]string `json:"tags"`
	Limits        []legState        `json:"limits"`
}

type legState struct {
	Limit    string `json:"limit"`
	Scope    string `json:"scope"`
	Kind     string `json:"kind"`
	Metric   string `json:"metric"`
	Reserved string `json:"reserved"`
	Actual   string `json:"actual"`
}

type openAttempt struct {
	Attempt       int        `json:"attempt"`
	Model         string     `json:"model"`
	Provider      string     `json:"provider"`
	UpstreamModel string     `json:"upstream_model"`
	CostUSDAtMost string     `json:"cost_usd_at_most"`
	AdmittedAt    time.Time  `json:"admitted_at"`
	Limits        []legState `json:"limits"`
}

// serveReceipt shows everything about one request to the key that made it.
func (c *call) serveReceipt() error {
	id, err := ids.Parse(c.param)
	if err != nil {
		return noReceipt()
	}
	r, err := c.g.spend.Receipt(c.ctx(), c.Principal.Organization.Num, id)
	if errors.Is(err, governance.ErrNotFound) {
		return noReceipt()
	}
	if err != nil {
		return orUnavailable(err)
	}
	out := receipt{RequestID: id.String(), Status: r.Status, CostUSD: r.Cost.String(), Rows: []spendRow{}, Open: []openAttempt{}}
	for i := range r.Rows {
		if r.Rows[i].Origin.Key.Num != c.Principal.Key.Num {
			return noReceipt()
		}
		out.Rows = append(out.Rows, asRow(&r.Rows[i]))
	}
	for i := range r.Reservations {
		o := &r.Reservations[i]
		if o.Origin.Key.Num != c.Principal.Key.Num {
			return noReceipt()
		}
		out.Open = append(out.Open, openAttempt{
			Attempt: o.Origin.Attempt, Model: o.Origin.Model, Provider: o.Origin.Provider, UpstreamModel: o.Origin.UpstreamModel,
			CostUSDAtMost: o.Estimate.Cost.String(), AdmittedAt: o.AdmittedAt.UTC(), Limits: asLegs(o.Legs),
		})
	}
	return c.reply(out)
}

func noReceipt() error {
	return fault(governance.CodeNotFound, "This key has made no request with this id.")
}

func asRow(r *governance.SpendRow) spendRow {
	row := spendRow{
		ID: r.AttemptID.String(), RequestID: r.Origin.RequestID.String(), Attempt: r.Origin.Attempt, Kind: string(r.Kind),
		Outcome: string(r.Outcome), UsageSource: string(r.Source), Organization: r.Origin.Organization.ID,
		Team: orNull(r.Origin.Team.ID), Key: r.Origin.Key.ID, User: orNull(r.Origin.User.ID), EndUser: orNull(r.EndUser),
		Model: r.Origin.Model, Provider: r.Origin.Provider, UpstreamModel: r.Origin.UpstreamModel,
		Quantities: r.Quantities.ByName(), UnitPrices: map[string]string{}, PriceVersion: orNull(r.PriceID), CostUSD: r.Cost.String(),
		Unpriced: r.Origin.Unpriced, AdmittedAt: r.AdmittedAt.UTC(), SettledAt: r.SettledAt.UTC(), Corrects: orNull(r.Corrects),
		Tags: r.Tags, Limits: asLegs(r.Legs),
	}
	for u, n := range r.Quantities {
		if n != 0 {
			row.UnitPrices[governance.Unit(u).String()] = r.Prices[u].String()
		}
	}
	return row
}

func asLegs(legs []governance.Leg) []legState {
	out := make([]legState, 0, len(legs))
	for i := range legs {
		l := &legs[i]
		out = append(out, legState{
			l.LimitID, string(l.Scope), string(l.Kind), string(l.Metric), l.Metric.Text(l.Reserved), l.Metric.Text(l.Actual),
		})
	}
	return out
}

type estimateState struct {
	Model        string `json:"model"`
	Provider     string `json:"provider"`
	InputTokens  int64  `json:"input_tokens"`
	OutputTokens int64  `json:"output_tokens"`
	// Quantities has all units that the request may use, also those that are no tokens.
	Quantities   map[string]int64 `json:"quantities"`
	CostUSD      string           `json:"cost_usd"`
	PriceVersion *string          `json:"price_version"`
	Unpriced     bool             `json:"unpriced,omitempty"`
}

type dryRun struct {
	WouldAdmit bool          `json:"would_admit"`
	Limits     []limitState  `json:"limits"`
	Estimate   estimateState `json:"estimate"`
}

// serveEstimate answers what a request would reserve. The body is that request; ?route= names its route, else its members
// do.
func (c *call) serveEstimate() error {
	q := c.r.URL.Query()
	for name := range q {
		if name != "route" {
			return invalid(name, "The parameter "+name+" is unknown.")
		}
	}
	if err := c.read(); err != nil {
		return err
	}
	name := q.Get("route")
	if !q.Has("route") {
		if name = c.routeOfBody(); name == "" {
			return invalid("route", "The body does not say what it is for. Name its route in the parameter route.")
		}
	}
	for _, rt := range routes() {
		if rt.metered() && rt.name == name {
			c.route, c.Route = rt, rt.name
			if err := c.prepare(); err != nil {
				return err
			}
			return c.answerDryRun()
		}
	}
	return invalid("route", "No route to a model has this name.")
}

func (c *call) routeOfBody() string {
	if c.Body == nil { // forms of several routes look alike
		return ""
	}
	return routeOf(c.Body)
}

// onlyResponses are members that bodies of responses have and those of embeddings and moderations lack.
var onlyResponses = []string{
	"background", "instructions", "max_output_tokens", "previous_response_id", "reasoning", "store", "stream", "text", "tool_choice", "tools",
}

// routeOf returns the name of the route that a body is made for; "": it has no prompt of any. An input of strings or tokens
// alone is taken for one of embeddings.
func routeOf(body *jsonedit.Document) string {
	given := func(name string) []byte { // nil: absent, or null
		raw, _ := body.Get(name)
		if string(raw) == "null" {
			return nil
		}
		return raw
	}
	prompt, input := given("prompt"), given("input")
	stored := bytes.HasPrefix(prompt, []byte("{")) // a prompt that responses name by its id
	turns := bytes.HasPrefix(bytes.TrimLeft(input, "[ \t\r\n"), []byte("{"))
	switch {
	case given("messages") != nil:
		return governance.RouteChat
	case given("query") != nil && given("documents") != nil:
		return governance.RouteRerank
	case prompt != nil && !stored:
		return governance.RouteCompletions
	case stored || turns:
		return governance.RouteResponses
	case input == nil:
		return ""
	}
	for _, name := range onlyResponses {
		if given(name) != nil {
			return governance.RouteResponses
		}
	}
	return governance.RouteEmbeddings
}

// answerDryRun says what the first target would reserve and which limits would refuse, from the present state of their
// meters. Nothing is reserved.
func (c *call) answerDryRun() error {
	c.Target = c.Resolved.Targets[0]
	_, request, err := c.plan()
	if err != nil {
		return err
	}
	queries := make([]governance.LevelQuery, len(request.Holds))
	for i, h := range request.Holds {
		queries[i] = governance.LevelQuery{Limit: h.Limit, Subject: h.Subject}
	}
	levels, err := c.g.spend.Levels(c.ctx(), queries)
	if err != nil {
		return orUnavailable(err)
	}
	e := &request.Estimate
	out := dryRun{WouldAdmit: true, Limits: []limitState{}, Estimate: estimateState{
		Model: c.Model, Provider: c.Target.Provider.Name, InputTokens: e.Quantities.InputTokens(),
		OutputTokens: e.Quantities.OutputTokens(), Quantities: e.Quantities.ByName(), CostUSD: e.Cost.String(), Unpriced: c.Demand.Unpriced(c.Target),
	}}
	if c.Target.Price != nil {
		out.Estimate.PriceVersion = orNull(c.Target.Price.ID)
	}
	for i := range levels {
		if levels[i].Limit.Mode == governance.ModeLog {
			continue
		}
		refuses := !levels[i].Unlimited && levels[i].Remaining < request.Holds[i].Amount
		state := c.limitState(&levels[i])
		state.Wanted, state.WouldRefuse = levels[i].Limit.Metric.Text(request.Holds[i].Amount), &refuses
		out.WouldAdmit = out.WouldAdmit && !refuses
		out.Limits = append(out.Limits, state)
	}
	return c.reply(out)
}

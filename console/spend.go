package console

import (
	"context"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

// named is a reference for people: id and the name that history keeps.
type named struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Schema is that of the two members, or null: rows name what they have not, too.
func (named) Schema(huma.Registry) *huma.Schema {
	text := func() *huma.Schema { return &huma.Schema{Type: huma.TypeString} }
	s := &huma.Schema{
		Type: huma.TypeObject, Nullable: true, Properties: map[string]*huma.Schema{"id": text(), "name": text()},
		Required: []string{"id", "name"}, AdditionalProperties: false,
	}
	s.PrecomputeMessages()
	return s
}

// refOf is nil where a reference points at nothing.
func refOf(r governance.Ref) *named {
	if r.IsZero() {
		return nil
	}
	return &named{r.ID, r.Name}
}

// spendRow is one row of the ledger.
type spendRow struct {
	ID            string             `json:"id"`
	RequestID     string             `json:"request_id"`
	Attempt       int                `json:"attempt" doc:"From 1"`
	Kind          string             `json:"kind"`
	Outcome       string             `json:"outcome"`
	UsageSource   string             `json:"usage_source"`
	Organization  *named             `json:"organization"`
	Team          *named             `json:"team"`
	Key           *named             `json:"key"`
	User          *named             `json:"user"`
	EndUser       *string            `json:"end_user"`
	Route         string             `json:"route"`
	Model         string             `json:"model" doc:"What was asked for"`
	Provider      string             `json:"provider"`
	UpstreamModel string             `json:"upstream_model" doc:"What ran"`
	Quantities    map[string]int64   `json:"quantities" doc:"Unit to number"`
	UnitPrices    map[string]decimal `json:"unit_prices" doc:"Unit to US dollars per million, of the units in quantities"`
	PriceVersion  *string            `json:"price_version" doc:"null: unpriced"`
	CostUSD       string             `json:"cost_usd" doc:"Negative where it gives back"`
	AdmittedAt    time.Time          `json:"admitted_at"`
	SettledAt     time.Time          `json:"settled_at"`
	Corrects      *string            `json:"corrects" doc:"The row that this one corrects"`
	Tags          map[string]string  `json:"tags"`
	Actor         string             `json:"actor,omitempty"`
	Reason        string             `json:"reason,omitempty"`
}

func viewSpendRow(r governance.SpendRow) spendRow {
	v := spendRow{
		ID: r.ID(), RequestID: r.Origin.RequestID.String(), Attempt: r.Origin.Attempt, Kind: string(r.Kind),
		Outcome: string(r.Outcome), UsageSource: string(r.Source), Organization: refOf(r.Origin.Organization),
		Team: refOf(r.Origin.Team), Key: refOf(r.Origin.Key), User: refOf(r.Origin.User), EndUser: textOf(r.EndUser),
		Route: r.Origin.Route, Model: r.Origin.Model, Provider: r.Origin.Provider, UpstreamModel: r.Origin.UpstreamModel,
		Quantities: r.Quantities.ByName(), UnitPrices: make(map[string]decimal), PriceVersion: textOf(r.PriceID),
		CostUSD: r.Cost.String(), AdmittedAt: r.AdmittedAt.UTC(), SettledAt: r.SettledAt.UTC(), Corrects: textOf(r.Corrects),
		Tags: r.Tags, Actor: r.Actor, Reason: r.Reason,
	}
	for u, n := range r.Quantities {
		if n != 0 {
			v.UnitPrices[governance.Unit(u).String()] = decimal(r.Prices[u].String())
		}
	}
	if v.Tags == nil {
		v.Tags = map[string]string{}
	}
	return v
}

// textOf is nil for the empty text.
func textOf(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// SpendQuery narrows rows and sums.
type SpendQuery struct {
	Organization string    `query:"organization_id" pattern:"^org_[0-9A-Za-z]{12}$" patternDescription:"an organization's id"`
	Team         string    `query:"team_id" pattern:"^team_[0-9A-Za-z]{12}$" patternDescription:"a team's id"`
	Key          string    `query:"key_id" pattern:"^key_[0-9A-Za-z]{12}$" patternDescription:"a key's id"`
	User         string    `query:"user_id" pattern:"^user_[0-9A-Za-z]{12}$" patternDescription:"a user's id"`
	EndUser      string    `query:"end_user" maxLength:"256"`
	Model        string    `query:"model" maxLength:"300" doc:"Public name or id"`
	Provider     string    `query:"provider" maxLength:"200" doc:"Name or id"`
	RequestID    string    `query:"request_id" doc:"A request's id"`
	From         time.Time `query:"from" doc:"Settled at or after it"`
	To           time.Time `query:"to" doc:"Settled before it"`
}

func (q SpendQuery) filter() (governance.SpendFilter, error) {
	f := governance.SpendFilter{
		Organization: q.Organization, Team: q.Team, Key: q.Key, User: q.User, EndUser: q.EndUser,
		Model: q.Model, Provider: q.Provider, From: q.From, To: q.To,
	}
	if q.RequestID != "" {
		id, err := ids.Parse(q.RequestID)
		if err != nil {
			return f, invalidField("query.request_id", "must be a request's id")
		}
		f.RequestID = id
	}
	return f, checkSpan(q.From, q.To)
}

// checkSpan refuses times that no row can have, so that a mistyped year is not an empty list.
func checkSpan(from, to time.Time) error {
	for name, t := range map[string]time.Time{"query.from": from, "query.to": to} {
		if t.IsZero() {
			continue
		}
		if _, err := checkInstant(name, &t); err != nil {
			return err
		}
	}
	if !from.IsZero() && !to.IsZero() && !from.Before(to) {
		return invalidField("query.to", "must lie after from")
	}
	return nil
}

type spendInput struct {
	PageQuery
	SpendQuery
}

type summaryInput struct {
	SpendQuery
	GroupBy  string `query:"group_by" maxLength:"200" doc:"Comma-separated: organization, team, key, user, model, provider, day, hour. Absent: one total"`
	TimeZone string `query:"time_zone" maxLength:"64" doc:"IANA zone whose days are meant; absent: UTC"`
}

// spendSum is one group of a summary.
type spendSum struct {
	Group        map[string]string `json:"group" doc:"Member to value; names stand beside ids, e.g. team_name"`
	CostUSD      string            `json:"cost_usd"`
	Requests     int64             `json:"requests"`
	InputTokens  int64             `json:"input_tokens"`
	OutputTokens int64             `json:"output_tokens"`
}

func viewSum(s governance.SpendSum) spendSum {
	v := spendSum{
		Group: s.Group, CostUSD: s.Cost.String(), Requests: s.Requests, InputTokens: s.InputTokens, OutputTokens: s.OutputTokens,
	}
	if v.Group == nil {
		v.Group = map[string]string{}
	}
	return v
}

func (q summaryInput) groups() ([]string, error) {
	if q.GroupBy == "" {
		return nil, nil
	}
	var groups []string
	for member := range strings.SplitSeq(q.GroupBy, ",") {
		member = strings.TrimSpace(member)
		if !slices.Contains(governance.SpendGroups(), member) {
			return nil, invalidField("query.group_by", "must name some of "+strings.Join(governance.SpendGroups(), ", "))
		}
		if slices.Contains(groups, member) {
			return nil, invalidField("query.group_by", "names "+member+" twice")
		}
		groups = append(groups, member)
	}
	return groups, nil
}

func (s *server) registerSpend(api huma.API) {
	rows := operation(http.MethodGet, "/spend", "list-spend", "spend", "List ledger rows, newest first")
	handle(api, rows, "row", func(ctx context.Context, in *spendInput) (*pageOutput[spendRow], error) {
		f, err := in.filter()
		if err != nil {
			return nil, err
		}
		rows, next, err := s.Spend.Rows(ctx, f, in.page())
		if err != nil {
			return nil, err
		}
		return pageOf(rows, next, viewSpendRow), nil
	})

	summary := operation(http.MethodGet, "/spend/summary", "get-spend-summary", "spend", "Sum ledger rows")
	handle(api, summary, "summary", func(ctx context.Context, in *summaryInput) (*pageOutput[spendSum], error) {
		f, err := in.filter()
		if err != nil {
			return nil, err
		}
		groups, err := in.groups()
		if err != nil {
			return nil, err
		}
		if _, err := time.LoadLocation(in.TimeZone); err != nil || in.TimeZone == "Local" {
			return nil, invalidField("query.time_zone", "must be an IANA name such as Europe/Paris")
		}
		f.TimeZone = in.TimeZone
		sums, err := s.Spend.Summary(ctx, f, groups)
		if err != nil {
			return nil, err
		}
		return pageOf(sums, "", viewSum), nil
	})
	s.registerCheck(api)
}

// checkReport is the result of a ledger check.
type checkReport struct {
	Clean      bool          `json:"clean" doc:"Whether nothing disagrees"`
	Rows       int64         `json:"rows" doc:"Ledger rows that were read"`
	Sealed     sealedReport  `json:"sealed" doc:"The newest block of sealed rows"`
	DurationMS int64         `json:"duration_ms"`
	Checks     []checkResult `json:"checks" nullable:"false"`
}

type checkResult struct {
	ID         string   `json:"id"`
	Name       string   `json:"name"`
	Violations int64    `json:"violations"`
	Samples    []string `json:"samples" nullable:"false" doc:"Some of the differing rows"`
}

// sealedReport tells how far the ledger is sealed.
type sealedReport struct {
	Block           int64  `json:"block" doc:"From 1; 0: none yet"`
	Rows            int64  `json:"rows" doc:"Rows of all blocks"`
	Hash            string `json:"hash" doc:"SHA-256 of the block, its predecessors included, in hexadecimal digits"`
	UnsealedSeconds int64  `json:"unsealed_seconds" doc:"Age of the oldest row that is not sealed; 0: every row is"`
}

type checkOutput struct{ Body checkReport }

func (s *server) registerCheck(api huma.API) {
	op := operation(http.MethodGet, "/ledger/check", "get-ledger-check", "ledger", "Recompute every counter from the ledger and verify the invariants")
	op.Metadata = map[string]any{"slow": true}
	handle(api, op, "check", func(ctx context.Context, _ *struct{}) (*checkOutput, error) {
		report, err := s.Spend.Check(ctx)
		if err != nil {
			return nil, err
		}
		out := &checkOutput{Body: checkReport{
			Clean: report.Clean(), Rows: report.Rows, DurationMS: report.Duration.Milliseconds(),
			Checks: make([]checkResult, 0, len(report.Checks)),
			Sealed: sealedReport{
				report.Sealed.Number, report.Sealed.Rows, hex.EncodeToString(report.Sealed.Hash), int64(report.Unsealed.Seconds()),
			},
		}}
		for _, c := range report.Checks {
			out.Body.Checks = append(out.Body.Checks, checkResult{c.ID, c.Name, c.Violations, orEmpty(c.Samples)})
		}
		return out, nil
	})
}

// auditRow is one change that somebody made.
type auditRow struct {
	At           time.Time  `json:"at"`
	Actor        auditActor `json:"actor"`
	Action       string     `json:"action"`
	Resource     string     `json:"resource"`
	ResourceID   string     `json:"resource_id"`
	Organization *string    `json:"organization_id"`
	Before       image      `json:"before,omitzero" doc:"Without secrets"`
	After        image      `json:"after,omitzero" doc:"Without secrets"`
}

// image is a row as the audit keeps it.
type image struct{ jsontext.Value }

// Schema allows every object: each resource has its own.
func (image) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true}
}

type auditActor struct {
	Kind      string `json:"kind"`
	ID        string `json:"id"`
	Name      string `json:"name"`
	IP        string `json:"ip"`
	RequestID string `json:"request_id"`
	Reason    string `json:"reason"`
}

func viewAuditRow(r governance.AuditRow) auditRow {
	return auditRow{
		At: r.At.UTC(), Action: r.Action, Resource: r.Resource, ResourceID: r.ResourceID, Organization: textOf(r.Organization),
		Actor:  auditActor{r.Actor.Kind, r.Actor.ID, r.Actor.Name, r.Actor.IP, r.Actor.RequestID, r.Actor.Reason},
		Before: image{jsontext.Value(r.Before)}, After: image{jsontext.Value(r.After)},
	}
}

type auditQuery struct {
	PageQuery
	Organization string    `query:"organization_id" pattern:"^org_[0-9A-Za-z]{12}$" patternDescription:"an organization's id"`
	Resource     string    `query:"resource" maxLength:"64" doc:"Such as keys"`
	ResourceID   string    `query:"resource_id" maxLength:"64"`
	ActorID      string    `query:"actor_id" maxLength:"64"`
	From         time.Time `query:"from"`
	To           time.Time `query:"to"`
}

func (s *server) registerAudit(api huma.API) {
	op := operation(http.MethodGet, "/audit", "list-audit", "audit", "List changes, newest first")
	handle(api, op, "audit row", func(ctx context.Context, in *auditQuery) (*pageOutput[auditRow], error) {
		if err := checkSpan(in.From, in.To); err != nil {
			return nil, err
		}
		f := governance.AuditFilter{
			Organization: in.Organization, Resource: in.Resource, ResourceID: in.ResourceID, ActorID: in.ActorID,
			From: in.From, To: in.To,
		}
		rows, next, err := s.Audit.Rows(ctx, actorOf(ctx), f, in.page())
		if err != nil {
			return nil, err
		}
		return pageOf(rows, next, viewAuditRow), nil
	})
}

package console

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/meter"
)

const (
	defaultPreview = 24 // hours
	// previewRows bounds how many ledger rows a preview replays.
	previewRows = 20_000
	// previewSamples is how many refused calls a preview names.
	previewSamples = 20
)

// previewBody asks what a limit would have refused.
type previewBody struct {
	Limit limitBody `json:"limit"`
	Hours int       `json:"hours,omitempty" minimum:"1" maximum:"744" doc:"How far to look back; absent: 24"`
}

// preview is what a limit would have refused of the calls that the ledger has.
type preview struct {
	From        time.Time     `json:"from"`
	To          time.Time     `json:"to"`
	Calls       int           `json:"calls" doc:"Calls that the limit would have counted"`
	WouldRefuse int           `json:"would_refuse" doc:"How many of them it would have refused"`
	Members     int           `json:"members" doc:"How many meters it would have had"`
	Complete    bool          `json:"complete" doc:"Whether all rows were looked at; false: there were more than 20,000"`
	Refused     []refusedCall `json:"refused" nullable:"false" doc:"The first of the refused calls"`
}

type refusedCall struct {
	RequestID  string    `json:"request_id"`
	AdmittedAt time.Time `json:"admitted_at"`
	Key        *named    `json:"key,omitempty"`
	Model      string    `json:"model"`
}

type previewOutput struct{ Body preview }

func (s *server) registerPreview(api huma.API) {
	op := operation(http.MethodPost, "/limits/preview", "post-limits-preview", "limits",
		"Ask what a limit would have refused of the calls that the ledger has. It counts what calls used, not what they reserved",
		http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	op.DefaultStatus = http.StatusOK
	handle(api, op, "limit", func(ctx context.Context, in *bodyInput[previewBody]) (*previewOutput, error) {
		l, err := in.Body.Limit.row()
		if err != nil {
			return nil, inLimit(err)
		}
		l.Complete()
		if err := l.Validate(); err != nil {
			return nil, inLimit(err)
		}
		hours := in.Body.Hours
		if hours == 0 {
			hours = defaultPreview
		}
		out, err := s.preview(ctx, l, time.Duration(hours)*time.Hour)
		if err != nil {
			return nil, inLimit(referenceMissing(err))
		}
		return &previewOutput{Body: out}, nil
	})
}

// inLimit puts the path of the limit before that of its member.
func inLimit(err error) error {
	if bad, ok := errors.AsType[*governance.InvalidError](err); ok {
		return invalidField("limit."+bad.Field, bad.Reason)
	}
	return err
}

func (s *server) preview(ctx context.Context, l governance.Limit, back time.Duration) (preview, error) {
	now := s.Now().UTC()
	out := preview{From: now.Add(-back), To: now, Refused: []refusedCall{}}
	if err := s.resolveSubject(ctx, &l); err != nil {
		return out, err
	}
	l.CreatedAt = out.From // where fixed windows begin that say nothing else
	begin := out.From
	if l.Kind == governance.KindBudget {
		start, _, err := meter.Window(&l, out.From)
		if err != nil {
			return out, err
		}
		if !start.IsZero() && start.Before(begin) {
			begin = start // what was spent in the window before the span counts in it
		}
	}
	rows, complete, err := s.usage(ctx, &l, begin, now)
	if err != nil {
		return out, err
	}
	out.Complete = complete
	r := replay{limit: &l, meters: make(map[string]*replayMeter)}
	for i := range rows {
		row := &rows[i]
		subject, counted := r.subject(row)
		if !counted {
			continue
		}
		refused, err := r.call(row, subject)
		if err != nil {
			return out, err
		}
		if row.AdmittedAt.Before(out.From) {
			continue
		}
		out.Calls++
		if !refused {
			continue
		}
		out.WouldRefuse++
		if len(out.Refused) < previewSamples {
			out.Refused = append(out.Refused, refusedCall{
				row.Origin.RequestID.String(), row.AdmittedAt.UTC(), refOf(row.Origin.Key), row.Origin.Model,
			})
		}
	}
	out.Members = len(r.meters)
	return out, nil
}

// resolveSubject finds the row numbers of a model or target, since ledger rows name them by these.
func (s *server) resolveSubject(ctx context.Context, l *governance.Limit) error {
	if l.Scope.Each() {
		return nil
	}
	switch l.Scope.Type {
	case governance.ScopeModel:
		m, err := s.Models.Get(ctx, actorOf(ctx), l.Scope.Subject.ID)
		l.Scope.Subject.Num = m.Num
		return err
	case governance.ScopeTarget:
		t, err := s.Targets.Get(ctx, actorOf(ctx), l.Scope.Subject.ID)
		l.Scope.Subject.Num = t.Num
		return err
	case governance.ScopeOrganization, governance.ScopeTeam, governance.ScopeKey, governance.ScopeUser, governance.ScopeEndUser:
	}
	return nil
}

// usage reads the rows of forwarded attempts, oldest first.
func (s *server) usage(ctx context.Context, l *governance.Limit, from, to time.Time) (rows []governance.SpendRow, complete bool, err error) {
	f := governance.SpendFilter{Organization: l.Organization.ID, From: from, To: to, EndUser: l.Scope.EndUser}
	if !l.Scope.Each() {
		switch l.Scope.Type {
		case governance.ScopeOrganization:
			f.Organization = l.Scope.Subject.ID
		case governance.ScopeTeam:
			f.Team = l.Scope.Subject.ID
		case governance.ScopeKey:
			f.Key = l.Scope.Subject.ID
		case governance.ScopeUser:
			f.User = l.Scope.Subject.ID
		case governance.ScopeModel, governance.ScopeTarget, governance.ScopeEndUser:
		}
	}
	page := governance.Page{Limit: maxChain}
	for len(rows) < previewRows {
		some, next, err := s.Spend.Rows(ctx, f, page)
		if err != nil {
			return nil, false, err
		}
		for _, row := range some {
			if row.Kind == governance.RowUsage || row.Kind == governance.RowExpiry {
				rows = append(rows, row)
			}
		}
		if next == "" {
			complete = true
			break
		}
		page.Cursor = next
	}
	slices.SortFunc(rows, func(a, b governance.SpendRow) int { return a.AdmittedAt.Compare(b.AdmittedAt) })
	return rows, complete, nil
}

// replay runs the calls of the ledger through the meters of one limit.
type replay struct {
	limit  *governance.Limit
	meters map[string]*replayMeter // by subject
}

type replayMeter struct {
	meter.Meter

	window time.Time   // of budgets: when the present window began
	open   []time.Time // of concurrency: when the calls that are under way end
}

// subject names the meter of a call. False: the limit does not count it.
func (r *replay) subject(row *governance.SpendRow) (string, bool) {
	l, o := r.limit, &row.Origin
	if !governance.Covers(l.Models, o.Model) || len(l.Routes) > 0 && !slices.Contains(l.Routes, o.Route) {
		return "", false
	}
	perAttempt := l.Scope.Type == governance.ScopeModel || l.Scope.Type == governance.ScopeTarget
	if l.Metric == governance.MetricRequests && o.Attempt > 1 && !perAttempt {
		return "", false // one request of the client, however many attempts it took
	}
	if l.Scope.WithinType != "" && refOfScope(o, l.Scope.WithinType).ID != l.Scope.Within.ID {
		return "", false
	}
	switch l.Scope.Type {
	case governance.ScopeModel:
		return strconv.FormatInt(o.ModelNum, 10), l.Scope.Each() || o.ModelNum == l.Scope.Subject.Num
	case governance.ScopeTarget:
		return strconv.FormatInt(o.TargetNum, 10), l.Scope.Each() || o.TargetNum == l.Scope.Subject.Num
	case governance.ScopeEndUser:
		return o.Organization.ID + "/" + row.EndUser, row.EndUser != ""
	case governance.ScopeOrganization, governance.ScopeTeam, governance.ScopeKey, governance.ScopeUser:
	}
	owner := refOfScope(o, l.Scope.Type)
	return owner.ID, owner.ID != ""
}

func refOfScope(o *governance.Origin, t governance.ScopeType) governance.Ref {
	switch t {
	case governance.ScopeOrganization:
		return o.Organization
	case governance.ScopeTeam:
		return o.Team
	case governance.ScopeKey:
		return o.Key
	case governance.ScopeUser:
		return o.User
	case governance.ScopeModel, governance.ScopeTarget, governance.ScopeEndUser:
	}
	return governance.Ref{}
}

// call lets one call through, or refuses it. What is refused counts nothing.
func (r *replay) call(row *governance.SpendRow, subject string) (refused bool, err error) {
	m := r.meters[subject]
	if m == nil {
		m = &replayMeter{Meter: meter.Meter{Rule: meter.RuleOf(r.limit), State: meter.State{Refilled: meter.Never}}}
		r.meters[subject] = m
	}
	amount := int64(1)
	if r.limit.Metric != governance.MetricRequests {
		amount = meter.Used(r.limit.Metric, &row.Quantities, int64(row.Cost))
	}
	switch r.limit.Kind {
	case governance.KindRate:
		m.Advance(row.AdmittedAt)
	case governance.KindBudget:
		start, _, err := meter.Window(r.limit, row.AdmittedAt)
		if err != nil {
			return false, err
		}
		if !start.Equal(m.window) {
			m.window, m.State = start, meter.State{}
		}
	case governance.KindConcurrency:
		m.open = slices.DeleteFunc(m.open, func(end time.Time) bool { return !end.After(row.AdmittedAt) })
		m.Held = int64(len(m.open))
	}
	if !m.Room(amount) {
		return true, nil
	}
	m.Take(amount)
	switch r.limit.Kind {
	case governance.KindBudget:
		m.Settle(amount, amount)
	case governance.KindConcurrency:
		m.open = append(m.open, row.SettledAt)
	case governance.KindRate:
	}
	return false, nil
}

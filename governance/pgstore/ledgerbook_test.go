package pgstore

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/pgtest"
)

// book is a small ledger that a test writes by hand, as superuser: two organizations, each with a team, a key and a user.
type book struct {
	t    *testing.T
	pool *pgxpool.Pool
	*Spend
	now      time.Time // the database's clock when the book was opened
	accounts [2]account
	process  int64
}

type account struct{ organization, team, key, user governance.Ref }

func openBook(t *testing.T) *book {
	t.Helper()
	pool := pgtest.New(t)
	b := &book{t: t, pool: pool, Spend: NewSpend(pool)}
	b.scan("SELECT date_trunc('milliseconds', clock_timestamp())", &b.now)
	for i, name := range []string{"acme", "brand"} {
		a := &b.accounts[i]
		a.organization = b.ref("INSERT INTO tollgate.organizations (public_id, name) VALUES ($1, $2) RETURNING id", ids.Organization, name)
		a.team = b.ref("INSERT INTO tollgate.teams (public_id, name, organization_id) VALUES ($1, $2, $3) RETURNING id",
			ids.Team, name+" team", a.organization.Num)
		a.key = b.ref("INSERT INTO tollgate.virtual_keys (public_id, name, organization_id, team_id) VALUES ($1, $2, $3, $4) RETURNING id",
			ids.Key, name+" key", a.organization.Num, a.team.Num)
		a.user = b.ref("INSERT INTO tollgate.users (public_id, name, organization_id) VALUES ($1, $2, $3) RETURNING id",
			ids.User, name+" user", a.organization.Num)
	}
	b.scan(`INSERT INTO ledger.processes (node, boot, version, lease_seconds, started_at, beat_at)
		VALUES ('node-1', gen_random_uuid(), 'test', 45, now(), now()) RETURNING id`, &b.process)
	return b
}

func (b *book) exec(sql string, a ...any) {
	b.t.Helper()
	_, err := b.pool.Exec(b.t.Context(), sql, a...)
	require.NoError(b.t, err)
}

// plant writes what the ledger refuses: as superuser, with the triggers switched off.
func (b *book) plant(sql string, a ...any) {
	b.t.Helper()
	err := pgx.BeginFunc(b.t.Context(), b.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(b.t.Context(), "SET LOCAL session_replication_role = replica"); err != nil {
			return err
		}
		tag, err := tx.Exec(b.t.Context(), sql, a...)
		require.NotZero(b.t, tag.RowsAffected(), "nothing was planted")
		return err
	})
	require.NoError(b.t, err)
}

func (b *book) scan(sql string, into any, a ...any) {
	b.t.Helper()
	require.NoError(b.t, b.pool.QueryRow(b.t.Context(), sql, a...).Scan(into))
}

func (b *book) ref(sql string, k ids.Kind, name string, more ...any) governance.Ref {
	b.t.Helper()
	r := governance.Ref{ID: ids.NewPublic(k), Name: name}
	b.scan(sql, &r.Num, append([]any{r.ID, name}, more...)...)
	return r
}

// limit makes a limit on the first account's key. The columns are those of tollgate.limits from kind on.
func (b *book) limit(columns, values string) *governance.Limit {
	b.t.Helper()
	var num int64
	b.scan(`INSERT INTO tollgate.limits (public_id, organization_id, scope_type, scope_id, created_at, updated_at, `+columns+`)
		VALUES ($1, $2, 'key', $3, $4, $4, `+values+`) RETURNING id`, &num,
		ids.NewPublic(ids.Limit), b.accounts[0].organization.Num, b.accounts[0].key.Num, b.now.Add(-48*time.Hour))
	row, err := NewLimits(b.pool).at(b.t.Context(), b.pool, num)
	require.NoError(b.t, err)
	l := row.domain()
	return &l
}

// line is a row or a reservation to be written.
type line struct {
	id, request ids.ID // made where they are zero
	account     int
	kind        governance.RowKind // usage by default
	source      governance.UsageSource
	outcome     governance.Outcome
	model       string
	provider    string
	endUser     int64
	target      int64
	q           governance.Quantities
	p           governance.UnitPrices
	cost        int64 // added to what the quantities cost
	legs        []governance.Leg
	admitted    time.Time // now by default
	settled     time.Time // a second after admission by default
}

var classes = map[governance.Kind]map[governance.Metric]int16{
	governance.KindRate: {
		governance.MetricRequests: 1, governance.MetricTokens: 2, governance.MetricInputTokens: 3,
		governance.MetricOutputTokens: 4, governance.MetricCost: 5,
	},
	governance.KindBudget: {
		governance.MetricTokens: 6, governance.MetricInputTokens: 7, governance.MetricOutputTokens: 8, governance.MetricCost: 9,
	},
	governance.KindConcurrency: {governance.MetricRequests: 10},
}

func leg(l *governance.Limit, subject int64, window time.Time, reserved, actual int64) governance.Leg {
	return governance.Leg{
		LimitNum: l.Num, LimitID: l.ID, Scope: l.Scope.Type, Kind: l.Kind, Metric: l.Metric, Subject: subject,
		WindowStart: window, Reserved: reserved, Actual: actual,
	}
}

// add writes a ledger row.
func (b *book) add(l line) line {
	b.t.Helper()
	l.fill(b)
	a := b.lineArgs(&l)
	_, err := b.pool.Exec(b.t.Context(), `
		INSERT INTO ledger.rows (attempt_id, kind, epoch, request_id, attempt,
			organization_id, organization_public_id, organization_name, team_id, team_public_id, team_name,
			key_id, key_public_id, key_name, user_id, user_public_id, user_name, end_user_id,
			route, model_id, model, provider, target_id, upstream_model, price_id, unpriced,
			outcome, usage_source, quantities, unit_prices, cost,
			leg_limits, leg_subjects, leg_windows, leg_classes, leg_reserved, leg_actual, process_id, admitted_at, settled_at)
		VALUES (@attempt, @kind, 1, @request, 1,
			@o_id, @o_pid, @o_name, @t_id, @t_pid, @t_name, @k_id, @k_pid, @k_name, @u_id, @u_pid, @u_name, @end_user,
			'chat.completions', 0, @model, @provider, @target, 'upstream', 0, false,
			@outcome, @source, @quantities, @prices, @cost,
			@limits, @subjects, @windows::text[]::timestamptz[], @classes, @reserved, @actual, @process, @admitted, @settled)`, a)
	require.NoError(b.t, err)
	return l
}

// hold writes an open reservation.
func (b *book) hold(l line) line {
	b.t.Helper()
	l.fill(b)
	a := b.lineArgs(&l)
	_, err := b.pool.Exec(b.t.Context(), `
		INSERT INTO ledger.reservations (attempt_id, state, process_id, admitted_at, expires_at, request_id, attempt,
			organization_id, organization_public_id, organization_name, team_id, team_public_id, team_name,
			key_id, key_public_id, key_name, user_id, user_public_id, user_name, end_user_id,
			route, model_id, model, provider, target_id, upstream_model, price_id, unpriced,
			quantities, unit_prices, cost, leg_limits, leg_subjects, leg_windows, leg_classes, leg_reserved)
		VALUES (@attempt, 'open', @process, @admitted::timestamptz, @admitted::timestamptz + interval '11 minutes', @request, 1,
			@o_id, @o_pid, @o_name, @t_id, @t_pid, @t_name, @k_id, @k_pid, @k_name, @u_id, @u_pid, @u_name, @end_user,
			'chat.completions', 0, @model, @provider, @target, 'upstream', 0, false,
			@quantities, @prices, @cost, @limits, @subjects, @windows::text[]::timestamptz[], @classes, @reserved)`, a)
	require.NoError(b.t, err)
	return l
}

func (l *line) fill(b *book) {
	if l.admitted.IsZero() {
		l.admitted = b.now
	}
	if l.settled.IsZero() {
		l.settled = l.admitted.Add(time.Second)
	}
	if l.id == (ids.ID{}) {
		l.id = ids.New(l.admitted)
	}
	if l.request == (ids.ID{}) {
		l.request = ids.New(l.admitted)
	}
	if l.kind == "" {
		l.kind = governance.RowUsage
	}
	if l.source == "" {
		l.source = governance.UsageProvider
	}
	if l.outcome == "" {
		l.outcome = governance.OutcomeComplete
	}
	if l.model == "" {
		l.model = "gpt-4o"
	}
	if l.provider == "" {
		l.provider = "openai"
	}
}

func (b *book) lineArgs(l *line) pgx.NamedArgs {
	b.t.Helper()
	cost, err := governance.CostAt(&l.q, &l.p)
	require.NoError(b.t, err)
	var limits, subjects, reserved, actual []int64
	var windows []string
	var class []int16
	for _, g := range l.legs {
		limits, subjects = append(limits, g.LimitNum), append(subjects, g.Subject)
		reserved, actual = append(reserved, g.Reserved), append(actual, g.Actual)
		class = append(class, classes[g.Kind][g.Metric])
		window := "-infinity"
		if !g.WindowStart.IsZero() {
			window = g.WindowStart.Format(time.RFC3339Nano)
		}
		windows = append(windows, window)
	}
	empty := func(v []int64) []int64 { return append([]int64{}, v...) }
	a := b.accounts[l.account]
	return pgx.NamedArgs{
		"attempt": l.id, "kind": string(l.kind), "request": l.request,
		"o_id": a.organization.Num, "o_pid": a.organization.ID, "o_name": a.organization.Name,
		"t_id": a.team.Num, "t_pid": a.team.ID, "t_name": a.team.Name,
		"k_id": a.key.Num, "k_pid": a.key.ID, "k_name": a.key.Name,
		"u_id": a.user.Num, "u_pid": a.user.ID, "u_name": a.user.Name,
		"end_user": l.endUser, "model": l.model, "provider": l.provider, "target": l.target,
		"outcome": string(l.outcome), "source": string(l.source),
		"quantities": l.q[:], "prices": storedPrices(l.p), "cost": int64(cost) + l.cost,
		"limits": empty(limits), "subjects": empty(subjects), "windows": append([]string{}, windows...),
		"classes": append([]int16{}, class...), "reserved": empty(reserved), "actual": empty(actual),
		"process": b.process, "admitted": l.admitted, "settled": l.settled,
	}
}

// meter sets the state of a window or a set of slots.
func (b *book) meter(l *governance.Limit, subject int64, window time.Time, spent, held, carried int64) {
	b.t.Helper()
	var at any = window
	if window.IsZero() {
		at = "-infinity"
	}
	b.exec(`INSERT INTO ledger.meters (limit_id, subject, window_start, spent, held, carried) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (limit_id, subject, window_start) DO UPDATE SET spent = excluded.spent, held = excluded.held, carried = excluded.carried`,
		l.Num, subject, at, spent, held, carried)
}

// clean fails the test unless every invariant holds.
func (b *book) clean() {
	b.t.Helper()
	report, err := b.Check(b.t.Context())
	require.NoError(b.t, err)
	for _, c := range report.Checks {
		require.Zero(b.t, c.Violations, "%s %s: %v", c.ID, c.Name, c.Samples)
	}
	require.True(b.t, report.Clean())
}

// violated returns the ids of the invariants that do not hold.
func (b *book) violated() []string {
	b.t.Helper()
	report, err := b.Check(b.t.Context())
	require.NoError(b.t, err)
	red := []string{}
	for _, c := range report.Checks {
		if c.Violations > 0 {
			red = append(red, c.ID)
			require.NotEmpty(b.t, c.Samples)
			require.LessOrEqual(b.t, len(c.Samples), 10)
		}
	}
	return red
}

// violatedBy plants something and returns the ids of the invariants that then do not hold.
func (b *book) violatedBy(sql string, a ...any) []string {
	b.t.Helper()
	b.plant(sql, a...)
	return b.violated()
}

// allRows pages through a list.
func (b *book) allRows(ctx context.Context, f governance.SpendFilter, size int) []governance.SpendRow {
	b.t.Helper()
	var all []governance.SpendRow
	for p := (governance.Page{Limit: size}); ; {
		rows, next, err := b.Rows(ctx, f, p)
		require.NoError(b.t, err)
		require.LessOrEqual(b.t, len(rows), size)
		all = append(all, rows...)
		if next == "" {
			return all
		}
		p.Cursor = next
	}
}

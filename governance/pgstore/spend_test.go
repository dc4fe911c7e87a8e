package pgstore

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

func TestRows_GiveBackWhatWasWritten(t *testing.T) {
	t.Parallel()
	b := openSound(t)
	var person int64
	b.scan("INSERT INTO tollgate.end_users (organization_id, name) VALUES ($1, 'ann') RETURNING id", &person, b.accounts[0].organization.Num)
	q, p := tokens(7, 9)
	written := b.add(line{q: q, p: p, endUser: person, admitted: b.now.Add(time.Second)})
	require.NoError(t, b.Attribute(t.Context(), []governance.Attribution{{
		AttemptID: written.id, RequestID: written.request, Tags: map[string]string{"project": "x"},
	}}))
	rows, next, err := b.Rows(t.Context(), governance.SpendFilter{}, governance.Page{Limit: 10})
	require.NoError(t, err)
	require.Empty(t, next)
	require.Len(t, rows, 3)
	a := b.accounts[0]
	require.Empty(t, gocmp.Diff(governance.SpendRow{
		AttemptID: written.id, Kind: governance.RowUsage,
		Origin: governance.Origin{
			RequestID: written.request, Attempt: 1, Organization: a.organization, Team: a.team, Key: a.key, User: a.user,
			EndUser: person, Route: "chat.completions", Model: "gpt-4o", Provider: "openai", UpstreamModel: "upstream",
		},
		EndUser: "ann", Outcome: governance.OutcomeComplete, Source: governance.UsageProvider, Quantities: q, Prices: p,
		Cost: 6450, Legs: []governance.Leg{}, AdmittedAt: written.admitted.UTC(), SettledAt: written.settled.UTC(),
		Tags: map[string]string{"project": "x"},
	}, rows[0]))
	require.Equal(t, b.used.id, rows[1].AttemptID)
	require.Empty(t, gocmp.Diff(b.used.legs, rows[1].Legs))
	require.Equal(t, b.expired.id.String()+".expiry", rows[2].ID())

	b.exec("DELETE FROM tollgate.end_users WHERE id = $1", person)
	rows, _, err = b.Rows(t.Context(), governance.SpendFilter{}, governance.Page{Limit: 1})
	require.NoError(t, err)
	require.Empty(t, rows[0].EndUser, "a person who was erased has no name")
	require.Equal(t, person, rows[0].Origin.EndUser)
}

func TestRows_PagesAreWholeAndInOrder(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	q, p := tokens(10, 10)
	var want []ids.ID
	for i := range 25 {
		// Five settle at the same instant, and ids are in another order than settlements.
		l := b.add(line{
			account: i % 2, q: q, p: p, admitted: b.now.Add(-time.Duration(i) * time.Second),
			settled: b.now.Add(time.Duration(i/5) * time.Minute),
		})
		want = append([]ids.ID{l.id}, want...)
	}
	for _, size := range []int{1, 3, 25, 250} {
		var got []ids.ID
		for _, r := range b.allRows(t.Context(), governance.SpendFilter{}, size) {
			got = append(got, r.AttemptID)
		}
		require.Equal(t, want, got, "pages of %d", size)
		require.Len(t, b.allRows(t.Context(), governance.SpendFilter{Organization: b.accounts[0].organization.ID}, size), 13)
	}
	_, _, err := b.Rows(t.Context(), governance.SpendFilter{}, governance.Page{Limit: 1, Cursor: "nonsense"})
	require.ErrorContains(t, err, "cursor")
}

// A caller that asks for everything gets a page.
func TestF161_RowsAreCappedWhateverIsAskedFor(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	b.fillRows(400)
	for _, limit := range []int{0, -1, 1 << 30} {
		rows, next, err := b.Rows(t.Context(), governance.SpendFilter{}, governance.Page{Limit: limit})
		require.NoError(t, err)
		require.LessOrEqual(t, len(rows), 250)
		require.NotEmpty(t, next)
	}
}

// counter counts the statements of a pool.
type counter struct{ n atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// F163: a page costs the same few statements, however many rows it has.
func TestF163_APageIsNoStatementPerRow(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	b.fillRows(400)
	var statements counter
	config := b.pool.Config()
	config.ConnConfig.Tracer = &statements
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	for _, size := range []int{1, 250} {
		statements.n.Store(0)
		rows, _, err := NewSpend(pool).Rows(t.Context(), governance.SpendFilter{}, governance.Page{Limit: size})
		require.NoError(t, err)
		require.Len(t, rows, size)
		require.LessOrEqual(t, statements.n.Load(), int64(12))
	}
}

func TestRows_FiltersNarrow(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	q, p := tokens(10, 10)
	var person, provider, target int64
	b.scan("INSERT INTO tollgate.end_users (organization_id, name) VALUES ($1, 'ann') RETURNING id", &person, b.accounts[1].organization.Num)
	providerID := ids.NewPublic(ids.Provider)
	b.scan("INSERT INTO tollgate.providers (public_id, name, kind, base_url) VALUES ($1, 'azure', 'openai', 'http://x') RETURNING id", &provider, providerID)
	b.scan("INSERT INTO tollgate.targets (public_id, provider_id, upstream_model) VALUES ($1, $2, 'm') RETURNING id", &target,
		ids.NewPublic(ids.Target), provider)
	first := b.add(line{q: q, p: p})
	second := b.add(line{account: 1, q: q, p: p, endUser: person, model: "claude", provider: "azure", target: target, admitted: b.now.Add(time.Hour)})
	for name, f := range map[string]governance.SpendFilter{
		"organization":  {Organization: b.accounts[1].organization.ID},
		"team":          {Team: b.accounts[1].team.ID},
		"key":           {Key: b.accounts[1].key.ID},
		"user":          {User: b.accounts[1].user.ID},
		"model":         {Model: "claude"},
		"provider":      {Provider: "azure"},
		"provider's id": {Provider: providerID},
		"end user":      {EndUser: "ann"},
		"request":       {RequestID: second.request},
		"from":          {From: b.now.Add(time.Hour)},
		"all":           {Organization: b.accounts[1].organization.ID, Key: b.accounts[1].key.ID, Model: "claude", EndUser: "ann", From: b.now},
	} {
		rows := b.allRows(t.Context(), f, 10)
		require.Len(t, rows, 1, name)
		require.Equal(t, second.id, rows[0].AttemptID, name)
		sums, err := b.Summary(t.Context(), f, nil)
		require.NoError(t, err, name)
		require.Equal(t, int64(1), sums[0].Requests, name)
	}
	rows := b.allRows(t.Context(), governance.SpendFilter{To: second.settled}, 10)
	require.Len(t, rows, 1, "the end of a range is not part of it")
	require.Equal(t, first.id, rows[0].AttemptID)
	for name, f := range map[string]governance.SpendFilter{
		"unknown organization":       {Organization: ids.NewPublic(ids.Organization)},
		"unknown key":                {Key: ids.NewPublic(ids.Key)},
		"unknown model":              {Model: ids.NewPublic(ids.Model)},
		"unknown provider":           {Provider: ids.NewPublic(ids.Provider)},
		"unknown person":             {EndUser: "bob"},
		"key of another's":           {Organization: b.accounts[0].organization.ID, Key: b.accounts[1].key.ID},
		"person of another's":        {Organization: b.accounts[0].organization.ID, EndUser: "ann"},
		"request of another's":       {Organization: b.accounts[0].organization.ID, RequestID: second.request},
		"unknown team and no others": {Team: "team_x"},
	} {
		require.Empty(t, b.allRows(t.Context(), f, 10), name)
	}
}

// F041: every view of the same rows has the same total, to the last nano-dollar.
func TestF041_SummariesAgreeWithRowsInEveryGrouping(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	b.fillRows(2000)
	var cost money.Nano
	var requests, input, output int64
	for _, r := range b.allRows(t.Context(), governance.SpendFilter{}, 250) {
		cost += r.Cost
		requests++
		input += r.Quantities.InputTokens()
		output += r.Quantities.OutputTokens()
	}
	require.Positive(t, cost)
	for _, by := range [][]string{
		nil,
		{"organization"},
		{"team"},
		{"key"},
		{"user"},
		{"model"},
		{"provider"},
		{"day"},
		{"hour"},
		{"organization", "team", "key", "user", "model", "provider", "day", "hour"},
		{"model", "day"},
	} {
		sums, err := b.Summary(t.Context(), governance.SpendFilter{}, by)
		require.NoError(t, err)
		got := governance.SpendSum{}
		seen := make(map[string]bool)
		for _, s := range sums {
			got.Cost += s.Cost
			got.Requests += s.Requests
			got.InputTokens += s.InputTokens
			got.OutputTokens += s.OutputTokens
			key := fmt.Sprint(s.Group)
			require.False(t, seen[key], "%s twice", key)
			seen[key] = true
			for _, member := range by {
				require.NotEmpty(t, s.Group[member], "%v by %s", s.Group, member)
			}
		}
		require.Equal(t, governance.SpendSum{Cost: cost, Requests: requests, InputTokens: input, OutputTokens: output}, got, "by %v", by)
	}
	sums, err := b.Summary(t.Context(), governance.SpendFilter{}, []string{"key"})
	require.NoError(t, err)
	require.Len(t, sums, 2)
	require.Contains(t, []string{"acme key", "brand key"}, sums[0].Group["key_name"])
	for _, s := range sums {
		var requests int64
		b.scan("SELECT count(*) FROM ledger.rows WHERE key_public_id = $1", &requests, s.Group["key"])
		require.Equal(t, requests, s.Requests)
	}
	_, err = b.Summary(t.Context(), governance.SpendFilter{}, []string{"colour"})
	require.ErrorContains(t, err, "group_by")
}

// F043: what a day has cost does not change with the price book, and a correction is a row.
func TestF043_ClosedDaysKeepTheirCost(t *testing.T) {
	t.Parallel()
	b := openSound(t)
	before, err := b.Summary(t.Context(), governance.SpendFilter{}, []string{"day", "model"})
	require.NoError(t, err)
	b.exec("INSERT INTO tollgate.price_versions (public_id, provider, upstream_model, effective_from) VALUES ('price_x', 'openai', 'upstream', now() - interval '1 year')")
	after, err := b.Summary(t.Context(), governance.SpendFilter{}, []string{"day", "model"})
	require.NoError(t, err)
	require.Equal(t, before, after)
	b.clean()
	corrected, err := b.Correct(t.Context(), governance.Actor{Kind: "user", ID: "user_1", Reason: "agreed price"},
		governance.SpendRowID(b.used.id, governance.RowUsage), governance.Correction{Cost: -50_000})
	require.NoError(t, err)
	require.Equal(t, "user user_1", corrected.Actor)
	require.Equal(t, "agreed price", corrected.Reason)
	now, err := b.Summary(t.Context(), governance.SpendFilter{}, nil)
	require.NoError(t, err)
	require.Equal(t, money.Nano(450_000+615_000-50_000), now[0].Cost)
	b.clean()
}

// F187, F023: a day is the day of the zone that was asked for, through changes of the clock.
func TestF187_DaysBeginAtMidnightOfTheZone(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	var q governance.Quantities
	var p governance.UnitPrices
	q[governance.UnitRequest], p[governance.UnitRequest] = 1, 1_000_000
	// Half an hour apart over ten days in which both zones of the west change their clocks.
	first := time.Date(2026, time.March, 5, 0, 0, 0, 0, time.UTC)
	b.exec(`INSERT INTO ledger.rows SELECT (jsonb_populate_record(r, jsonb_build_object('attempt_id', gen_random_uuid(),
			'seq', n, 'settled_at', $2::timestamptz + n * interval '30 minutes', 'admitted_at', $2::timestamptz))).*
		FROM ledger.rows AS r CROSS JOIN generate_series(1, 480) AS n WHERE r.attempt_id = $1`,
		b.add(line{q: q, p: p, admitted: first, settled: first}).id, first)
	for _, name := range []string{"Asia/Kolkata", "America/Los_Angeles", "UTC", "Asia/Tokyo"} {
		zone, err := time.LoadLocation(name)
		require.NoError(t, err)
		want := make(map[string]int64)
		for n := range 481 {
			want[first.Add(time.Duration(n)*30*time.Minute).In(zone).Format(time.DateOnly)]++
		}
		sums, err := b.Summary(t.Context(), governance.SpendFilter{TimeZone: name}, []string{"day"})
		require.NoError(t, err)
		got := make(map[string]int64)
		for _, s := range sums {
			got[s.Group["day"]] += s.Requests
		}
		require.Empty(t, gocmp.Diff(want, got), name)
		day := time.Date(2026, time.March, 8, 0, 0, 0, 0, zone) // Los Angeles has 23 hours
		sums, err = b.Summary(t.Context(), governance.SpendFilter{From: day, To: day.AddDate(0, 0, 1)}, nil)
		require.NoError(t, err)
		require.Equal(t, want["2026-03-08"], sums[0].Requests, name)
	}
	_, err := b.Summary(t.Context(), governance.SpendFilter{TimeZone: "Mars/Base"}, []string{"day"})
	require.ErrorContains(t, err, "time_zone")
}

// fillRows adds n rows of the last two hours in the order of time, spread over both accounts, two models, two providers.
func (b *book) fillRows(n int) {
	b.t.Helper()
	q, p := tokens(10, 20)
	var seeds []string
	for i := range 4 {
		seeds = append(seeds, b.add(line{
			account: i % 2, q: q, p: p, model: []string{"gpt-4o", "claude"}[i%2], provider: []string{"openai", "azure"}[i/2],
			admitted: b.now.Add(-2 * time.Hour),
		}).id.String())
	}
	b.exec(`INSERT INTO ledger.rows (attempt_id, kind, epoch, request_id, attempt,
				organization_id, organization_public_id, organization_name, team_id, team_public_id, team_name,
				key_id, key_public_id, key_name, user_id, user_public_id, user_name, end_user_id,
				route, model_id, model, provider, target_id, upstream_model, price_id, unpriced,
				outcome, usage_source, quantities, unit_prices, cost,
				leg_limits, leg_subjects, leg_windows, leg_classes, leg_reserved, leg_actual, process_id, admitted_at, settled_at)
			SELECT at.id, kind, epoch, at.id, attempt,
				organization_id, organization_public_id, organization_name, team_id, team_public_id, team_name,
				key_id, key_public_id, key_name, user_id, user_public_id, user_name, end_user_id,
				route, model_id, model, provider, target_id, upstream_model, price_id, unpriced, outcome, usage_source,
				ARRAY[k % 1000,0,0,0,0,0,k % 77,0,0,0,0,1,0], unit_prices, (k % 1000) * 150 + (k % 77) * 600,
				leg_limits, leg_subjects, leg_windows, leg_classes, leg_reserved, leg_actual, process_id, at.t, at.t + interval '1 second'
			FROM ledger.rows AS r
			CROSS JOIN generate_series(2, $2::int) AS k
			CROSS JOIN LATERAL (
				SELECT n.t, overlay(gen_random_uuid()::text PLACING left(ledger.id_at(n.t)::text, 13) FROM 1 FOR 13)::uuid AS id
				FROM (SELECT r.admitted_at + k * (interval '2 hours' / $2::int) AS t) AS n
			) AS at
			WHERE r.attempt_id = ANY ($1::text[]::uuid[])
		ORDER BY at.t`, seeds, n/4)
}

// Lists and sums at size: none reads a partition from end to end, sealed or not.
func TestPlans_ListsAndSumsNeverReadTheWholeLedger(t *testing.T) {
	t.Parallel()
	b := openBook(t)
	b.fillRows(60_000)
	b.seal()
	b.settle()
	b.fillRows(4_000)
	_, err := NewUpkeep(b.pool).Seal(t.Context()) // leaves nothing unsealed, but for what other tests run meanwhile
	require.NoError(t, err)
	b.exec("ANALYZE")
	a := b.accounts[0]
	rows := b.allRowsOnce(t.Context(), governance.SpendFilter{})
	last := rows[len(rows)-1]
	for name, f := range map[string]governance.SpendFilter{
		"organization": {Organization: a.organization.ID}, "team": {Team: a.team.ID}, "key": {Key: a.key.ID},
		"user": {User: a.user.ID}, "request": {RequestID: last.Origin.RequestID}, "everything": {},
		"model of an organization": {Organization: a.organization.ID, Model: "gpt-4o"},
		"nobody's model":           {Model: "none"},
		"nobody":                   {EndUser: "none"},
		"hours":                    {From: b.now.Add(-90 * time.Minute), To: b.now.Add(-85 * time.Minute)},
	} {
		n, err := narrow(t.Context(), b.pool, f)
		require.NoError(t, err)
		a := n.args()
		at, hour := last.SettledAt, last.SettledAt.Truncate(time.Hour)
		a["before_at"], a["before_seq"], a["count"] = &at, int64(1<<40), 51
		a["since"], a["until"], a["spans"] = hour, &at, spansAtOnce
		statements := []string{"spend_tail", "spend_days", "spend_hours", "spend_page"}
		switch {
		case f.RequestID != ids.ID{}:
			statements = []string{"spend_page_request"}
		case f.EndUser != "":
			statements = []string{"spend_page_end_user"}
		}
		for _, by := range [][]string{{}, {"day", "model"}, {"team", "hour"}} {
			a["by"], a["zone"], a["whole_days"], a["tenants"] = by, "Europe/Berlin", len(by) == 0, f.Team == ""
			for _, statement := range append(statements, n.summaryStatement()) {
				b.noScan(name+": "+statement, statement, a)
			}
		}
	}
	n, err := narrow(t.Context(), b.pool, governance.SpendFilter{})
	require.NoError(t, err)
	export := n.args()
	var low int64
	b.scan("SELECT first_seq FROM ledger.blocks WHERE number = 1", &low)
	export["first"], export["last"], export["low"], export["high"] = 1, exportBlocks, low, low+exportRows
	b.noScan("export", "export_page", export)
	b.noScan("rows of a page", "spend_rows", args{
		"attempts": []string{last.AttemptID.String(), rows[0].AttemptID.String()}, "kinds": []string{"usage", "usage"},
	})
	b.noScan("receipt", "receipt_rows", args{
		"organization": a.organization.Num, "request": last.Origin.RequestID.String(), "from_id": leastID(b.now.Add(-3 * time.Hour)),
	})
	b.noScan("reservations", "reservation_page", args{"organization": "", "state": "", "after_id": ids.ID{}.String(), "count": 51})
	b.noScan("provisional rows", "provisional_due", args{"after": time.Hour, "count": 100})
	b.noScan("a provisional row", "provisional_row", args{"attempt": last.AttemptID.String(), "organization": int64(0)})
}

// seal seals everything that the book has. Transactions of other tests on the same server may be in the way for a while.
func (b *book) seal() {
	b.t.Helper()
	u := NewUpkeep(b.pool)
	require.Eventually(b.t, func() bool {
		_, err := u.Seal(b.t.Context())
		require.NoError(b.t, err)
		var open bool
		b.scan(`SELECT EXISTS (SELECT FROM ledger.rows AS r, ledger.seal_mark AS m WHERE (r.epoch, r.xid) >= (m.epoch, m.until_xid))`, &open)
		return !open
	}, 5*time.Minute, 20*time.Millisecond)
}

// settle seals again, so that no statement has to look for unsealed rows among sealed ones.
func (b *book) settle() {
	b.t.Helper()
	u := NewUpkeep(b.pool)
	require.Eventually(b.t, func() bool {
		b.exec("SELECT nextval('ledger.row_seq')")
		_, err := u.Seal(b.t.Context())
		require.NoError(b.t, err)
		var known bool
		b.scan(`SELECT m.floor_seq >= coalesce((SELECT max(seq) FROM ledger.rows), 0) FROM ledger.seal_mark AS m`, &known)
		return known
	}, 5*time.Minute, 20*time.Millisecond)
}

func (b *book) allRowsOnce(ctx context.Context, f governance.SpendFilter) []governance.SpendRow {
	b.t.Helper()
	rows, _, err := b.Rows(ctx, f, governance.Page{Limit: 50})
	require.NoError(b.t, err)
	return rows
}

// noScan fails if a statement reads a partition that has rows from end to end, or as many pages by other ways.
func (b *book) noScan(what, statement string, a args) {
	b.t.Helper()
	text, named := prepare(statement, a)
	var lines []string
	err := pgx.BeginTxFunc(b.t.Context(), b.pool, oneSnapshot, func(tx pgx.Tx) error {
		plans := "spend_plans"
		if slices.Contains([]string{"spend_days", "spend_hours", "spend_page"}, statement) {
			plans = "spend_ordered_plans"
		}
		if _, err := exec(b.t.Context(), tx, plans, nil); err != nil {
			return err
		}
		rows, err := tx.Query(b.t.Context(), "EXPLAIN (ANALYZE, BUFFERS, COSTS off, TIMING off) "+text, pgx.QueryExecModeExec, named)
		if err != nil {
			return err
		}
		lines, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	require.NoError(b.t, err, what)
	plan := strings.Join(lines, "\n")
	type partition struct {
		Name  string `db:"name"`
		Pages int64  `db:"pages"`
	}
	filled, err := b.pool.Query(b.t.Context(), `
		SELECT c.relname::text AS name, pg_relation_size(c.oid) / 8192 AS pages
		FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
		WHERE i.inhparent = 'ledger.rows'::regclass AND pg_relation_size(c.oid) > 0`)
	require.NoError(b.t, err)
	partitions, err := pgx.CollectRows(filled, pgx.RowToStructByName[partition])
	require.NoError(b.t, err)
	pages := int64(0)
	for _, p := range partitions { // those without rows may well be scanned
		require.NotContains(b.t, plan, "Seq Scan on "+p.Name, what)
		pages += p.Pages
	}
	touched := int64(0)
	for _, n := range regexp.MustCompile(`(?m)^ *Buffers: shared (?:hit=(\d+))?(?: ?read=(\d+))?`).FindStringSubmatch(plan)[1:] {
		pagesOf, _ := strconv.ParseInt(cmp.Or(n, "0"), 10, 64)
		touched += pagesOf
	}
	require.Less(b.t, touched, pages/2, "%s reads %d of %d pages:\n%s", what, touched, pages, plan)
}

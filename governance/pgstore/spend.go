package pgstore

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

const (
	// pageMax bounds every list, whatever its caller asks for.
	pageMax = 250
	// groupsMax bounds a summary; what has more groups is no summary.
	groupsMax = 10_000
	// clocksDiffer is how far the clock that made a request's id may be ahead of the one that made its attempts'.
	clocksDiffer = time.Minute
)

// Spend reads the ledger, and adds to it what people decide: resolutions, corrections and credits.
type Spend struct{ pool *pgxpool.Pool }

var _ governance.SpendStore = (*Spend)(nil)

// NewSpend reads through pool. Long reads belong on another pool than admissions, since an old snapshot makes hot rows grow.
func NewSpend(pool *pgxpool.Pool) *Spend { return &Spend{pool: pool} }

// Rows lists rows, newest first. A page has at most 250, whatever was asked for.
func (s *Spend) Rows(ctx context.Context, f governance.SpendFilter, p governance.Page) ([]governance.SpendRow, string, error) {
	at, seq, err := parseSpendCursor(p.Cursor)
	if err != nil {
		return nil, "", err
	}
	count := pageSize(p)
	var rows []governance.SpendRow
	var next string
	err = within(ctx, s.pool, oneSnapshot, func(ctx context.Context, tx pgx.Tx) error {
		narrow, err := spendArgs(ctx, tx, f)
		if err != nil {
			return err
		}
		narrow["before_at"], narrow["before_seq"], narrow["count"] = at, seq, count+1
		keys, err := pageKeys(ctx, tx, narrow, count+1)
		if err != nil {
			return err
		}
		next = ""
		if len(keys) > count {
			keys = keys[:count]
			next = keys[count-1].cursor()
		}
		rows, err = spendRows(ctx, tx, keys)
		return err
	})
	return rows, next, err
}

// oneSnapshot makes several statements see the same rows and the same roll-ups.
var oneSnapshot = pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}

// pageKeys finds the newest count rows behind the cursor.
func pageKeys(ctx context.Context, q querier, narrow args, count int) ([]spendKey, error) {
	if _, err := exec(ctx, q, "spend_plans", nil); err != nil {
		return nil, err
	}
	switch {
	case narrow["request"] != "":
		return many[spendKey](ctx, q, "spend_page_request", narrow)
	case narrow["by_end_user"] == true:
		return many[spendKey](ctx, q, "spend_page_end_user", narrow)
	}
	keys, err := many[spendKey](ctx, q, "spend_tail", narrow)
	if err != nil {
		return nil, err
	}
	if len(keys) == count { // of the sealed rows only those matter that lie between them
		narrow = maps.Clone(narrow)
		oldest := keys[count-1].SettledAt
		if from, ok := narrow["from"].(*time.Time); !ok || from == nil || from.Before(oldest) {
			narrow["from"] = &oldest
		}
	}
	sealed, err := sealedKeys(ctx, q, narrow, count)
	if err != nil {
		return nil, err
	}
	keys = append(keys, sealed...)
	slices.SortFunc(keys, func(a, b spendKey) int {
		return cmp.Or(b.SettledAt.Compare(a.SettledAt), cmp.Compare(b.Seq, a.Seq))
	})
	return keys[:min(count, len(keys))], nil
}

// spansAtOnce is how many spans of the roll-ups a list looks at first before it looks for rows, and then four times as many.
const spansAtOnce = 4

// span is a day or an hour that has sealed rows of a filter.
type span struct {
	Start time.Time `db:"start"`
	Rows  int64     `db:"rows"`
}

// sealedKeys finds the newest count sealed rows behind the cursor. The roll-ups say in which days and hours they are, so that
// a filter that matches little costs little.
func sealedKeys(ctx context.Context, q querier, narrow args, count int) (keys []spendKey, err error) {
	narrow = maps.Clone(narrow)
	until, _ := narrow["to"].(*time.Time)
	if at, _ := narrow["before_at"].(*time.Time); at != nil && (until == nil || at.Before(*until)) {
		behind := at.Add(time.Microsecond)
		until = &behind
	}
	if _, err := exec(ctx, q, "spend_ordered_plans", nil); err != nil {
		return nil, err
	}
	for days := spansAtOnce; ; days *= 4 {
		narrow["until"], narrow["spans"] = until, days
		some, err := many[span](ctx, q, "spend_days", narrow)
		if err != nil || len(some) == 0 {
			return keys, err
		}
		since := enough(some, count-len(keys))
		more, err := keysOfHours(ctx, q, narrow, since, until, count-len(keys))
		if keys = append(keys, more...); err != nil || len(keys) >= count {
			return keys, err
		}
		until = &since
	}
}

// keysOfHours finds the newest count sealed rows between two instants.
func keysOfHours(ctx context.Context, q querier, narrow args, since time.Time, until *time.Time, count int) (keys []spendKey, err error) {
	narrow = maps.Clone(narrow)
	share := int64(4) // of an hour that has far more than what is needed: so many times as much should be enough
	for hours := spansAtOnce; len(keys) < count; hours *= 4 {
		narrow["since"], narrow["until"], narrow["spans"] = since, until, hours
		some, err := many[span](ctx, q, "spend_hours", narrow)
		if err != nil || len(some) == 0 {
			return keys, err
		}
		from, end := enough(some, count-len(keys)), some[0].Start.Add(time.Hour)
		if until == nil || until.After(end) {
			until = &end
		}
		if need := share * int64(count-len(keys)); some[0].Rows > need {
			part := until.Add(-time.Hour / time.Duration(some[0].Rows/need))
			if part.After(from) {
				from, hours, share = part, 1, share*2
			}
		}
		narrow["since"], narrow["until"] = from, until
		more, err := many[spendKey](ctx, q, "spend_page", narrow)
		if err != nil {
			return nil, err
		}
		keys, until = append(keys, more...), &from
	}
	return keys, nil
}

// enough returns the start of the span with which those before it have at least count rows. The first may be cut short, and
// counts for nothing.
func enough(spans []span, count int) time.Time {
	sum := int64(0)
	for _, s := range spans[1:] {
		if sum += s.Rows; sum >= int64(count) {
			return s.Start
		}
	}
	return spans[len(spans)-1].Start
}

// spendKey names a row and its place in a list.
type spendKey struct {
	AttemptID ids.ID    `db:"attempt_id"`
	Kind      string    `db:"kind"`
	SettledAt time.Time `db:"settled_at"`
	Seq       int64     `db:"seq"`
}

// cursor hides where the next page begins.
func (k spendKey) cursor() string {
	place := binary.BigEndian.AppendUint64([]byte("spend"), uint64(k.SettledAt.UnixMicro()))         // read back alike
	return base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint64(place, uint64(k.Seq))) // read back alike
}

// parseSpendCursor returns the place behind which a page begins; no instant: at the newest row.
func parseSpendCursor(s string) (at *time.Time, seq int64, err error) {
	if s == "" {
		return nil, 0, nil
	}
	place, err := placeOf("spend", s, 16)
	if err != nil {
		return nil, 0, err
	}
	settled := time.UnixMicro(int64(binary.BigEndian.Uint64(place))) // written alike
	return &settled, int64(binary.BigEndian.Uint64(place[8:])), nil  // written alike
}

// spendArgs finds the row numbers that a filter means.
func spendArgs(ctx context.Context, q querier, f governance.SpendFilter) (args, error) {
	type numbers struct {
		Organization int64   `db:"organization"`
		Team         int64   `db:"team"`
		Key          int64   `db:"key"`
		User         int64   `db:"user_num"`
		Model        int64   `db:"model"`
		Targets      []int64 `db:"targets"`
		EndUsers     []int64 `db:"end_users"`
	}
	n, err := one[numbers](ctx, q, "spend_filter", args{
		"organization": f.Organization, "team": f.Team, "key": f.Key, "user": f.User,
		"model": f.Model, "provider": f.Provider, "end_user": f.EndUser,
	})
	if err != nil {
		return nil, err
	}
	modelName, providerName, request, from := f.Model, f.Provider, "", ids.ID{}.String()
	if n.Model != 0 {
		modelName = ""
	}
	byTarget := ids.IsPublic(ids.Provider, f.Provider)
	if byTarget {
		providerName = ""
	}
	if f.RequestID != (ids.ID{}) {
		request, from = f.RequestID.String(), leastID(ids.Time(f.RequestID).Add(-clocksDiffer))
	}
	return args{
		"organization": n.Organization, "team": n.Team, "key": n.Key, "user": n.User,
		"model": n.Model, "model_name": modelName,
		"by_target": byTarget, "targets": n.Targets, "provider_name": providerName,
		"by_end_user": f.EndUser != "", "end_users": n.EndUsers,
		"request": request, "from_id": from, "from": nullable(f.From), "to": nullable(f.To),
	}, nil
}

func pageSize(p governance.Page) int { return min(max(p.Limit, 1), pageMax) }

// originColumns are the columns of governance.Origin, which reservations and rows share.
type originColumns struct {
	RequestID            ids.ID `db:"request_id"`
	Attempt              int    `db:"attempt"`
	OrganizationID       int64  `db:"organization_id"`
	OrganizationPublicID string `db:"organization_public_id"`
	OrganizationName     string `db:"organization_name"`
	TeamID               int64  `db:"team_id"`
	TeamPublicID         string `db:"team_public_id"`
	TeamName             string `db:"team_name"`
	KeyID                int64  `db:"key_id"`
	KeyPublicID          string `db:"key_public_id"`
	KeyName              string `db:"key_name"`
	UserID               int64  `db:"user_id"`
	UserPublicID         string `db:"user_public_id"`
	UserName             string `db:"user_name"`
	EndUserID            int64  `db:"end_user_id"`
	Route                string `db:"route"`
	ModelID              int64  `db:"model_id"`
	Model                string `db:"model"`
	Provider             string `db:"provider"`
	TargetID             int64  `db:"target_id"`
	UpstreamModel        string `db:"upstream_model"`
	PriceID              int64  `db:"price_id"`
	Unpriced             bool   `db:"unpriced"`
}

func (o *originColumns) origin() governance.Origin {
	return governance.Origin{
		RequestID: o.RequestID, Attempt: o.Attempt,
		Organization: governance.Ref{Num: o.OrganizationID, ID: o.OrganizationPublicID, Name: o.OrganizationName},
		Team:         governance.Ref{Num: o.TeamID, ID: o.TeamPublicID, Name: o.TeamName},
		Key:          governance.Ref{Num: o.KeyID, ID: o.KeyPublicID, Name: o.KeyName},
		User:         governance.Ref{Num: o.UserID, ID: o.UserPublicID, Name: o.UserName},
		EndUser:      o.EndUserID, Route: o.Route, Model: o.Model, ModelNum: o.ModelID, Provider: o.Provider,
		UpstreamModel: o.UpstreamModel, TargetNum: o.TargetID, PriceNum: o.PriceID, Unpriced: o.Unpriced,
	}
}

// legColumns are the parallel arrays of legs.
type legColumns struct {
	Limits   []int64              `db:"leg_limits"`
	Subjects []int64              `db:"leg_subjects"`
	Windows  []pgtype.Timestamptz `db:"leg_windows"` // -infinity: the meter has no windows
	Reserved []int64              `db:"leg_reserved"`
	Actual   []int64              `db:"leg_actual"`
}

func (c *legColumns) legs(limits map[int64]legLimit) []governance.Leg {
	legs := make([]governance.Leg, len(c.Limits))
	for i, num := range c.Limits {
		l := limits[num]
		legs[i] = governance.Leg{
			LimitNum: num, LimitID: l.PublicID, Scope: l.Scope, Kind: l.Kind, Metric: l.Metric,
			Subject: c.Subjects[i], Reserved: c.Reserved[i],
		}
		if c.Windows[i].InfinityModifier == pgtype.Finite {
			legs[i].WindowStart = c.Windows[i].Time.UTC()
		}
		if i < len(c.Actual) {
			legs[i].Actual = c.Actual[i]
		}
	}
	return legs
}

// legLimit is what a leg tells of its limit.
type legLimit struct {
	Num      int64                `db:"id"`
	PublicID string               `db:"public_id"`
	Scope    governance.ScopeType `db:"scope_type"`
	Kind     governance.Kind      `db:"kind"`
	Metric   governance.Metric    `db:"metric"`
}

func legLimits(ctx context.Context, q querier, nums []int64) (map[int64]legLimit, error) {
	byNum := make(map[int64]legLimit)
	if len(nums) == 0 {
		return byNum, nil
	}
	slices.Sort(nums)
	all, err := many[legLimit](ctx, q, "spend_limits", args{"nums": slices.Compact(nums)})
	for _, l := range all {
		byNum[l.Num] = l
	}
	return byNum, err
}

type spendColumns struct {
	AttemptID ids.ID `db:"attempt_id"`
	Kind      string `db:"kind"`
	originColumns
	Outcome     string  `db:"outcome"`
	UsageSource string  `db:"usage_source"`
	Quantities  []int64 `db:"quantities"`
	UnitPrices  []int64 `db:"unit_prices"`
	Cost        int64   `db:"cost"`
	legColumns
	AdmittedAt      time.Time `db:"admitted_at"`
	SettledAt       time.Time `db:"settled_at"`
	Actor           string    `db:"actor"`
	Reason          string    `db:"reason"`
	CorrectsAttempt string    `db:"corrects_attempt"`
	CorrectsKind    string    `db:"corrects_kind"`
	EndUser         string    `db:"end_user"`
	Price           string    `db:"price"`
	Tags            []byte    `db:"tags"`
}

func (c *spendColumns) row(limits map[int64]legLimit) (governance.SpendRow, error) {
	row := governance.SpendRow{
		AttemptID: c.AttemptID, Kind: governance.RowKind(c.Kind), Origin: c.origin(), EndUser: c.EndUser,
		Outcome: governance.Outcome(c.Outcome), Source: governance.UsageSource(c.UsageSource),
		Quantities: quantities(c.Quantities), Prices: unitPrices(c.UnitPrices), PriceID: c.Price,
		Cost: money.Nano(c.Cost), Legs: c.legs(limits), AdmittedAt: c.AdmittedAt.UTC(), SettledAt: c.SettledAt.UTC(),
		Actor: c.Actor, Reason: c.Reason,
	}
	if c.CorrectsAttempt != "" {
		corrected, err := ids.Parse(c.CorrectsAttempt)
		if err != nil {
			return row, fmt.Errorf("read corrected row of %s: %w", c.AttemptID, err)
		}
		row.Corrects = governance.SpendRowID(corrected, governance.RowKind(c.CorrectsKind))
	}
	if err := json.Unmarshal(c.Tags, &row.Tags); err != nil {
		return row, fmt.Errorf("read tags of %s: %w", c.AttemptID, err)
	}
	return row, nil
}

// quantities reads a stored array; units that came after the row was written count nothing.
func quantities(stored []int64) (q governance.Quantities) {
	copy(q[:], stored)
	return q
}

func unitPrices(stored []int64) (p governance.UnitPrices) {
	for i := range min(len(stored), len(p)) {
		p[i] = money.PerMillion(stored[i])
	}
	return p
}

// spendRows reads the rows of a page in its order.
func spendRows(ctx context.Context, q querier, keys []spendKey) ([]governance.SpendRow, error) {
	rows := make([]governance.SpendRow, 0, len(keys))
	if len(keys) == 0 {
		return rows, nil
	}
	attempts, kinds := make([]string, len(keys)), make([]string, len(keys))
	for i, k := range keys {
		attempts[i], kinds[i] = k.AttemptID.String(), k.Kind
	}
	all, err := many[spendColumns](ctx, q, "spend_rows", args{"attempts": attempts, "kinds": kinds})
	if err != nil {
		return nil, err
	}
	var nums []int64
	for i := range all {
		nums = append(nums, all[i].Limits...)
	}
	limits, err := legLimits(ctx, q, nums)
	if err != nil {
		return nil, err
	}
	for i := range all {
		row, err := all[i].row(limits)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// Summary sums the rows of one snapshot. Days begin at midnight of the filter's zone; hours are given by their first
// instant, in UTC. Requests are forwarded attempts: what a fallback ran counts at each provider. Groups of organizations,
// teams, keys and users carry the present name beside the id, as e.g. "team_name".
func (s *Spend) Summary(ctx context.Context, f governance.SpendFilter, groupBy []string) ([]governance.SpendSum, error) {
	for _, member := range groupBy {
		if !slices.Contains(governance.SpendGroups(), member) {
			return nil, invalid("group_by", "knows "+strings.Join(governance.SpendGroups(), ", "))
		}
	}
	zone := cmp.Or(f.TimeZone, "UTC")
	var sums []sumColumns
	err := within(ctx, s.pool, oneSnapshot, func(ctx context.Context, tx pgx.Tx) error {
		narrow, err := spendArgs(ctx, tx, f)
		if err != nil {
			return err
		}
		narrow["by"], narrow["zone"], narrow["count"] = append([]string{}, groupBy...), zone, groupsMax+1
		narrow["tenants"] = f.Team == "" && f.Key == "" && f.User == "" && !slices.ContainsFunc(groupBy, func(member string) bool {
			return member == "team" || member == "key" || member == "user"
		})
		narrow["whole_days"] = !slices.Contains(groupBy, "hour") && (zone == "UTC" || !slices.Contains(groupBy, "day"))
		if _, err := exec(ctx, tx, "spend_plans", nil); err != nil {
			return err
		}
		sums, err = many[sumColumns](ctx, tx, summaryStatement(narrow), narrow)
		return err
	})
	if fault, ok := errors.AsType[*pgconn.PgError](err); ok && fault.Code == "22023" { // invalid_parameter_value
		return nil, invalid("time_zone", "is not a zone that the database knows")
	}
	if err != nil {
		return nil, err
	}
	if len(sums) > groupsMax {
		return nil, invalid("group_by", "makes more than 10000 groups; narrow the filter, or read the rows")
	}
	all := make([]governance.SpendSum, len(sums))
	for i := range sums {
		all[i] = sums[i].sum(groupBy)
	}
	return all, nil
}

// summaryStatement chooses between roll-ups and rows.
func summaryStatement(narrow args) string {
	if narrow["request"] != "" || narrow["by_end_user"] == true {
		return "spend_summary_rows"
	}
	return "spend_summary"
}

type sumColumns struct {
	Organization     string `db:"organization"`
	OrganizationName string `db:"organization_name"`
	Team             string `db:"team"`
	TeamName         string `db:"team_name"`
	Key              string `db:"key"`
	KeyName          string `db:"key_name"`
	User             string `db:"user_id"`
	UserName         string `db:"user_name"`
	Model            string `db:"model"`
	Provider         string `db:"provider"`
	Day              string `db:"day"`
	Hour             string `db:"hour"`
	Cost             int64  `db:"cost"`
	Requests         int64  `db:"requests"`
	InputTokens      int64  `db:"input_tokens"`
	OutputTokens     int64  `db:"output_tokens"`
}

func (c *sumColumns) sum(groupBy []string) governance.SpendSum {
	group := make(map[string]string, 2*len(groupBy))
	for _, member := range groupBy {
		switch member {
		case "organization":
			group["organization"], group["organization_name"] = c.Organization, c.OrganizationName
		case "team":
			group["team"], group["team_name"] = c.Team, c.TeamName
		case "key":
			group["key"], group["key_name"] = c.Key, c.KeyName
		case "user":
			group["user"], group["user_name"] = c.User, c.UserName
		case "model":
			group["model"] = c.Model
		case "provider":
			group["provider"] = c.Provider
		case "day":
			group["day"] = c.Day
		case "hour":
			group["hour"] = c.Hour
		}
	}
	return governance.SpendSum{
		Group: group, Cost: money.Nano(c.Cost), Requests: c.Requests, InputTokens: c.InputTokens, OutputTokens: c.OutputTokens,
	}
}

package pgstore

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

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

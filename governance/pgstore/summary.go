package pgstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/money"
)

// groupsMax bounds a summary; what has more groups is no summary.
const groupsMax = 10_000

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
		n, err := narrow(ctx, tx, f)
		if err != nil {
			return err
		}
		a := n.args()
		a["by"], a["zone"], a["count"] = append([]string{}, groupBy...), zone, groupsMax+1
		a["tenants"] = f.Team == "" && f.Key == "" && f.User == "" && !slices.ContainsFunc(groupBy, func(member string) bool {
			return member == "team" || member == "key" || member == "user"
		})
		a["whole_days"] = !slices.Contains(groupBy, "hour") && (zone == "UTC" || !slices.Contains(groupBy, "day"))
		if _, err := exec(ctx, tx, "spend_plans", nil); err != nil {
			return err
		}
		sums, err = many[sumColumns](ctx, tx, n.summaryStatement(), a)
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
func (n *narrowing) summaryStatement() string {
	if n.Request != "" || n.ByEndUser {
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

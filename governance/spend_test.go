package governance_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
)

func TestSpendRowID_NamesOneRow(t *testing.T) {
	t.Parallel()
	attempt := ids.New(time.Now())
	for _, kind := range []governance.RowKind{
		governance.RowUsage, governance.RowExpiry, governance.RowLateAdjustment, governance.RowCorrection, governance.RowCredit,
	} {
		row := governance.SpendRow{AttemptID: attempt, Kind: kind}
		got, gotKind, err := governance.ParseSpendRowID(row.ID())
		require.NoError(t, err)
		require.Equal(t, attempt, got)
		require.Equal(t, kind, gotKind)
	}
	for _, s := range []string{"", ".", attempt.String(), attempt.String() + ".", attempt.String() + ".other", "x.usage", attempt.String() + ".usage.usage"} {
		_, _, err := governance.ParseSpendRowID(s)
		require.ErrorIs(t, err, ids.ErrMalformed, s)
	}
}

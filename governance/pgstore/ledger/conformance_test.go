package ledger_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/pgstore/ledger"
	"github.com/tollgate-gateway/tollgate/governance/storetest"
)

func TestLedger_Conforms(t *testing.T) {
	t.Parallel()
	storetest.TestLedger(t, func(tb testing.TB) storetest.Ledger {
		db := newDatabase(tb)
		l := start(tb, ledger.Options{Pool: db.Pool, Grace: time.Nanosecond, Observer: ledger.Observer{
			Mismatch: func() { tb.Error("governance/meter disagrees with the database") },
		}})
		_, err := l.Reserve(tb.Context(), request(l)) // the database's clock is known from here on
		require.NoError(tb, err)
		return storetest.Ledger{
			Ledger: l, Clock: l.Clock, Rounds: 200,
			Add:    db.limit,
			Change: db.change,
			Remove: func(tb testing.TB, l *governance.Limit) {
				db.exec(tb, "UPDATE tollgate.limits SET deleted_at = clock_timestamp() WHERE id = $1", l.Num)
			},
		}
	})
}

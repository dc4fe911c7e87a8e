package pgstore

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollgate-gateway/tollgate/internal/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every statement is understood by the server as it stands, on the migrated schema.
func TestStatementsArePrepared(t *testing.T) {
	t.Parallel()
	conn, err := pgtest.New(t).Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	for name, s := range statements {
		text, _, err := pgx.NamedArgs{}.RewriteQuery(t.Context(), nil, s.text, nil)
		require.NoError(t, err)
		_, err = conn.Conn().Prepare(t.Context(), name, text)
		require.NoError(t, err, name)
	}
}

func TestStatementsAreOneEach(t *testing.T) {
	t.Parallel()
	for name, s := range statements {
		require.NotContains(t, s.text, ";", "%s holds more than one statement", name)
		require.NotEmpty(t, strings.TrimSpace(s.text), name)
	}
}

// A part that is missing is no part that is left out.
func TestParts_AreInsertedForATable(t *testing.T) {
	t.Parallel()
	parts := map[string]string{"owned": "x.owner = @owner AND ax.b = x.b", "all": "true"}
	require.Equal(t, "SELECT WHERE r.owner = @owner AND ax.b = r.b AND true", mustInsert("SELECT WHERE {owned r} AND {all}", parts))
	require.Equal(t, "coalesce(tags, '{}')", mustInsert("coalesce(tags, '{}')", parts))
	require.PanicsWithValue(t, "no part owed", func() { mustInsert("SELECT WHERE {owed r}", parts) })
}

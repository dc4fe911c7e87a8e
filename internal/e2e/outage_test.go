package e2e

import (
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// closeDatabase takes the fleet's database away: connections end, and new ones are refused.
func (f *fleet) closeDatabase() {
	f.t.Helper()
	f.besides("ALTER DATABASE "+f.database()+" WITH ALLOW_CONNECTIONS false", `
		SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '`+f.database()+`'`)
}

// openDatabase gives it back.
func (f *fleet) openDatabase() {
	f.t.Helper()
	f.besides("ALTER DATABASE " + f.database() + " WITH ALLOW_CONNECTIONS true")
}

// database returns the name of the fleet's database, which is one of pgtest's: plain lower-case letters and digits.
func (f *fleet) database() string {
	u, err := url.Parse(f.dsn)
	require.NoError(f.t, err)
	return strings.TrimPrefix(u.Path, "/")
}

// besides runs statements in another database of the same server.
func (f *fleet) besides(statements ...string) {
	f.t.Helper()
	u, err := url.Parse(f.dsn)
	require.NoError(f.t, err)
	u.Path = "/postgres"
	conn, err := pgx.Connect(f.t.Context(), u.String())
	require.NoError(f.t, err)
	defer func() { _ = conn.Close(f.t.Context()) }()
	for _, s := range statements {
		_, err = conn.Exec(f.t.Context(), s)
		require.NoError(f.t, err)
	}
}

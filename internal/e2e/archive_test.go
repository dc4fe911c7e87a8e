package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/archive"
)

// archived is the report of `tollgate ledger archive`.
type archived struct {
	Before string `json:"before"`
	DryRun bool   `json:"dry_run"`
	Months []struct {
		Month     string       `json:"month"`
		Rows      int64        `json:"rows"`
		CostUSD   string       `json:"cost_usd"`
		Blocks    int64        `json:"blocks"`
		Block     int64        `json:"block"`
		BlockHash archive.Hash `json:"block_hash"`
		File      string       `json:"file"`
		SHA256    archive.Hash `json:"sha256"`
		Found     bool         `json:"found"`
		Freed     int64        `json:"freed_bytes"`
		Dropped   bool         `json:"dropped"`
	} `json:"months"`
}

// Closed months go to files that prove themselves, and nothing that is asked of the ledger changes. A run that is killed, while it
// writes or before it drops, is finished by the next one; what is open, young or not as it was sealed is refused.
func TestLedgerArchive(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{gateways: 1})
	quick := "GORACE=atexit_sleep_ms=0"
	admin := []string{"TOLLGATE_ADMIN_URL=" + f.control.admin, "TOLLGATE_ADMIN_TOKEN=" + adminToken, quick}
	owner := []string{"TOLLGATE_DATABASE_DIRECT_URL=" + f.dsn, quick}
	for range 2 {
		succeed(t, owner, "seed", "--rows", "1500", "--days", "300", "--development")
	}
	sums := func() string {
		return succeed(t, admin, "spend", "--since", "400d", "--group-by", "organization", "-o", "json")
	}
	sumsBefore := sums()
	conn, err := pgx.Connect(t.Context(), f.dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(t.Context()) }()

	f.eventually(2*time.Minute, "every row is sealed, however long other tests' transactions stay open", func() bool {
		_, err := conn.Exec(t.Context(), "SELECT ledger.seal(1000000)")
		require.NoError(t, err)
		var waits bool
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM ledger.rows AS r, ledger.seal_mark AS m "+
			"WHERE (r.epoch, r.xid) >= (m.epoch, m.until_xid))").Scan(&waits))
		return !waits
	})

	now := time.Now().UTC()
	month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	before, later := month.AddDate(0, -5, 0).Format("2006-01"), month.AddDate(0, -4, 0).Format(time.DateOnly)
	dir := filepath.Join(t.TempDir(), "made", "by", "it")
	args := func(before string, more ...string) []string {
		return append([]string{"ledger", "archive", "--before", before, "--dir", dir}, more...)
	}
	require.Contains(t, fail(t, 1, owner, args(now.AddDate(0, 0, 1).Format(time.DateOnly))...), "is still open; the latest is")
	require.Contains(t, fail(t, 1, owner, args(month.Format(time.DateOnly))...), "is not over for 92 days")
	says := fail(t, 1, []string{"DATABASE_URL=" + as(f.dsn, "tollgate_control"), quick}, args(before)...)
	require.Contains(t, says, `role "tollgate_control" does not own the schema`)
	require.Contains(t, says, "Hint: ")

	run := func(args ...string) (r archived) {
		out := succeed(t, owner, append(args, "--output", "json")...)
		require.NoError(t, json.Unmarshal([]byte(out), &r), out)
		for i := range r.Months {
			require.Positive(t, r.Months[i].Freed)
			r.Months[i].Freed = 0 // what a vacuum does meanwhile is no difference
		}
		return r
	}
	wanted := run(args(before, "--dry-run")...)
	require.True(t, wanted.DryRun)
	require.Greater(t, len(wanted.Months), 3)
	require.NoDirExists(t, dir)
	first := wanted.Months[0].File

	killWhen := func(hold, path string) {
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), hold)
		require.NoError(t, err)
		r := spawn(t, owner, args(before)...)
		require.Eventually(t, func() bool {
			select {
			case <-r.done: // it has waited long enough, which is as good
				return true
			default:
			}
			_, err := os.Stat(path)
			return err == nil
		}, 2*time.Minute, time.Millisecond, "%s: %s", path, r.out)
		r.kill()
		require.NoError(t, tx.Rollback(t.Context()))
	}
	// Its rows cannot be read further than to their attributions.
	killWhen("LOCK TABLE ledger.attribution IN ACCESS EXCLUSIVE MODE", filepath.Join(dir, "."+filepath.Base(first)+".partial"))
	require.NoFileExists(t, first)
	// A session that reads the ledger keeps the month from being dropped.
	killWhen("SELECT count(*) FROM ledger.rows", first)
	whole, err := os.ReadFile(first)
	require.NoError(t, err)
	wanted.Months[0].Found = true
	require.Equal(t, wanted.Months, run(args(before, "--dry-run")...).Months, "nothing is dropped yet")

	require.NoError(t, os.WriteFile(first, whole[:len(whole)/2], 0o600))
	require.Contains(t, fail(t, 1, owner, args(before)...), "this is no complete archive")
	require.NoError(t, os.WriteFile(first, forged(t, whole), 0o600))
	succeed(t, nil, "ledger", "verify", first) // no file shows by itself that a row is not the one that was sealed
	require.Contains(t, fail(t, 1, owner, args(before)...), "its rows are not those of the ledger")
	require.NoError(t, os.WriteFile(first, whole, 0o600))
	unlock, err := archive.Lock(dir)
	require.NoError(t, err)
	require.Contains(t, fail(t, 1, owner, args(before)...), archive.ErrBusy.Error())
	require.NoError(t, unlock())

	done := run(args(before)...)
	require.Len(t, done.Months, len(wanted.Months))
	for i, m := range done.Months {
		require.True(t, m.Dropped)
		require.Equal(t, i == 0, m.Found, "the file of the run that was killed is used")
		trailer, err := archive.CheckFile(m.File)
		require.NoError(t, err)
		require.Equal(t, archive.Trailer{
			Month: m.Month, Rows: m.Rows, Cost: trailer.Cost, Blocks: m.Blocks, Block: m.Block, BlockHash: m.BlockHash, SHA256: m.SHA256,
		}, trailer)
		w := wanted.Months[i]
		require.Equal(t, w.SHA256, m.SHA256, "what was read twice is the same, to the byte")
		require.Equal(t, w.CostUSD, m.CostUSD)
	}
	again, err := os.ReadFile(first)
	require.NoError(t, err)
	require.Equal(t, string(whole), string(again))
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	require.NoError(t, err)
	require.Empty(t, left)
	require.Contains(t, succeed(t, owner, args(before)...), "nothing to archive")
	require.Contains(t, succeed(t, []string{quick}, "ledger", "verify", first), done.Months[0].CostUSD)

	require.Contains(t, succeed(t, admin, "ledger", "check"), "clean")
	require.JSONEq(t, sumsBefore, sums())
	key, _ := f.issue(forever("cost", "1"))
	require.Equal(t, http.StatusOK, must(t)(f.gateways[0].call(t.Context(), key, "/v1/chat/completions", helloChat)).status)

	// A forger with the database's superuser, who switches the triggers off.
	_, err = conn.Exec(t.Context(), "SET session_replication_role = replica; UPDATE ledger.rows SET key_name = 'forged' WHERE attempt_id = "+
		"(SELECT attempt_id FROM ledger.rows ORDER BY attempt_id LIMIT 1)", pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	says = fail(t, 1, owner, args(later)...)
	require.Contains(t, says, archive.ErrSeal.Error())
	require.Contains(t, says, "Hint: ")
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, len(done.Months), "nothing is written of it")
	require.Contains(t, fail(t, 1, admin, "ledger", "check"), "does not agree")
}

// forged is an archive in which a row says something else, and the checksum is that of the file.
func forged(t *testing.T, whole []byte) []byte {
	t.Helper()
	at := bytes.LastIndex(whole, []byte(`{"trailer"`))
	body := bytes.Replace(whole[:at], []byte(`"model":"`), []byte(`"model":"x`), 1)
	require.NotEqual(t, whole[:at], body)
	was, is := sha256.Sum256(whole[:at]), sha256.Sum256(body)
	trailer := bytes.Replace(whole[at:], hex.AppendEncode(nil, was[:]), hex.AppendEncode(nil, is[:]), 1)
	return append(body, trailer...)
}

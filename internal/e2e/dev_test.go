package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// announcement is the line that `tollgate dev` prints for scripts (contract, section 2).
type announcement struct {
	BaseURL     string `json:"base_url"`
	AdminURL    string `json:"admin_url"`
	OpsURL      string `json:"ops_url"`
	ConsoleURL  string `json:"console_url"`
	AdminToken  string `json:"admin_token"`
	VirtualKey  string `json:"virtual_key"`
	Model       string `json:"model"`
	DatabaseURL string `json:"database_url"`
}

// `tollgate dev` from its first start to its last: what it prints works, a crash leaves nothing behind that the next start
// cannot take over, and its end is the end of its database.
func TestDev(t *testing.T) {
	t.Parallel()
	dir := devDirectory(t)

	first := spawnDev(t, dir, "json")
	a := first.announced(t)
	requireRoots(t, a)
	postmaster := requirePrivateDatabase(t, dir, a)
	requireOneRow(t, a)
	secrets := secretsFile(t, dir)
	requireFurtherGateway(t, a, secrets)
	requireSeed(t, dir)

	second := spawn(t, nil, devArguments(dir, "json")...)
	require.Equal(t, 1, second.exitCode(t, 30*time.Second), "two processes must not share a data directory")
	require.Contains(t, second.out.String(), "in use")

	first.kill()
	require.True(t, alive(postmaster), "the kill of its parent must not be what ends the database")
	next := spawn(t, []string{"GOOGLE_API_KEY=key-of-gemini", "MISTRAL_API_KEY=key-of-mistral"}, devArguments(dir, "json")...)
	b := next.announced(t)
	models := must(t)((&process{baseURL: b.BaseURL}).get(t.Context(), b.VirtualKey, "/v1/models"))
	for _, offered := range []string{`"gemini-2.5-pro"`, `"mistral-large-latest"`} {
		require.Contains(t, string(models.body), offered)
	}
	require.Equal(t, a.VirtualKey, b.VirtualKey)
	require.Equal(t, a.AdminToken, b.AdminToken)
	require.Equal(t, a.DatabaseURL, b.DatabaseURL, "a DSN stays valid from start to start")
	require.False(t, alive(postmaster), "the database that was left behind is stopped")
	require.Len(t, spendOf(t, b), 2, "the data are the same")
	require.Equal(t, http.StatusOK, demoChat(t, b).status)
	require.Len(t, spendOf(t, b), 3)
	requireGone(t, dir, next)

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	failed := spawn(t, nil, "dev", "--data-dir", dir, "--listen", taken.Addr().String(), "--control-listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0")
	require.Equal(t, 1, failed.exitCode(t, 30*time.Second))
	require.Contains(t, failed.out.String(), "address already in use")
	_, left := postmasterOf(dir)
	require.False(t, left, "a start that fails leaves no database behind")

	began := time.Now()
	last := spawnDev(t, dir, "text")
	last.waitFor(t, "Ctrl-C stops everything")
	took := time.Since(began)
	t.Logf("the start on existing data took %s", took.Round(time.Millisecond))
	runPasted(t, last.stdout.String())
	requireGone(t, dir, last)
}

// A process that is killed while it makes its database leaves nothing that keeps the next one from doing it.
func TestDev_KilledAtItsFirstStart(t *testing.T) {
	t.Parallel()
	for _, sign := range []string{"postgres.new*/base", "postgres/postmaster.pid", "secrets.env"} {
		t.Run(strings.ReplaceAll(sign, "/", " "), func(t *testing.T) {
			dir := devDirectory(t)
			first := spawnDev(t, dir, "json")
			require.Eventually(t, func() bool {
				found, err := filepath.Glob(filepath.Join(dir, sign))
				return err == nil && len(found) > 0
			}, 60*time.Second, time.Millisecond, sign)
			first.kill()
			next := spawnDev(t, dir, "json")
			a := next.announced(t)
			got := demoChat(t, a)
			require.Equal(t, http.StatusOK, got.status, "%s", got.body)
			// On a busy machine the answer may be there before its settlement (ruling 31).
			require.Eventually(t, func() bool { return len(spendOf(t, a)) == 1 }, 20*time.Second, 20*time.Millisecond)
			requireGone(t, dir, next)
		})
	}
}

// devDirectory is a data directory that the database's unprivileged user can reach, which t.TempDir is not.
func devDirectory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tollgate-dev") //nolint:usetesting // see above
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o711))
	t.Cleanup(func() {
		if pid, ok := postmasterOf(dir); ok && alive(pid) { // a failed test has left it
			_ = syscall.Kill(pid, syscall.SIGQUIT)
		}
		_ = os.RemoveAll(dir)
	})
	return dir
}

func devArguments(dir, output string) []string {
	return []string{
		"dev", "--data-dir", dir, "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0",
		"--output", output,
	}
}

func spawnDev(t *testing.T, dir, output string) *running {
	t.Helper()
	return spawn(t, nil, devArguments(dir, output)...)
}

// announced waits for the line of JSON and reads it strictly.
func (r *running) announced(t *testing.T) announcement {
	t.Helper()
	r.waitFor(t, "\n")
	dec := json.NewDecoder(strings.NewReader(r.stdout.String()))
	dec.DisallowUnknownFields()
	var a announcement
	require.NoError(t, dec.Decode(&a), r.stdout.String())
	require.Equal(t, 1, strings.Count(r.stdout.String(), "\n"), "one line, and nothing else")
	return a
}

func requireRoots(t *testing.T, a announcement) {
	t.Helper()
	for _, text := range []string{a.BaseURL, a.AdminURL, a.OpsURL} {
		u, err := url.Parse(text)
		require.NoError(t, err)
		require.Equal(t, "http", u.Scheme, text)
		require.NotEqual(t, "0", u.Port(), text)
		require.Empty(t, u.Path, "printed addresses are roots")
	}
	require.True(t, strings.HasPrefix(a.ConsoleURL, a.AdminURL+"/"), a.ConsoleURL)
	require.NotEmpty(t, a.Model)
	for _, url := range []string{a.OpsURL + "/readyz", a.OpsURL + "/metrics", a.BaseURL + "/", a.ConsoleURL} {
		r, err := http.Get(url)
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		require.Equal(t, http.StatusOK, r.StatusCode, url)
	}
}

func demoChat(t *testing.T, a announcement) answer {
	t.Helper()
	p := &process{baseURL: a.BaseURL}
	return must(t)(p.call(t.Context(), a.VirtualKey, "/v1/chat/completions", strings.Replace(helloChat, `"plain"`, `"`+a.Model+`"`, 1)))
}

func spendOf(t *testing.T, a announcement) []any {
	t.Helper()
	p := &process{baseURL: a.AdminURL}
	page := must(t)(p.get(t.Context(), a.AdminToken, "/admin/v1/spend"))
	require.Equal(t, http.StatusOK, page.status, "%s", page.body)
	items, _ := page.json(t)["items"].([]any)
	return items
}

func requireOneRow(t *testing.T, a announcement) {
	t.Helper()
	got := demoChat(t, a)
	require.Equal(t, http.StatusOK, got.status, "%s", got.body)
	rows := spendOf(t, a)
	require.Len(t, rows, 1)
	row, _ := rows[0].(object)
	require.Equal(t, "0.000094", row["cost_usd"])
	require.Equal(t, got.header.Get("x-request-id"), row["request_id"])
}

// secretsFile returns the settings that dev keeps for further processes.
func secretsFile(t *testing.T, dir string) []string {
	t.Helper()
	name := filepath.Join(dir, "secrets.env")
	info, err := os.Stat(name)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
	body, err := os.ReadFile(name)
	require.NoError(t, err)
	return slices.DeleteFunc(strings.Split(string(body), "\n"), func(l string) bool { return !strings.HasPrefix(l, "TOLLGATE_") })
}

// requireFurtherGateway starts another process against the printed database and the kept secrets, one chat through it.
func requireFurtherGateway(t *testing.T, a announcement, secrets []string) {
	t.Helper()
	further := spawn(t, append(secrets, "DATABASE_URL="+a.DatabaseURL, "TOLLGATE_LOG_LEVEL=warn"),
		"serve", "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--output", "json")
	further.waitFor(t, "\n")
	var at announcement
	require.NoError(t, json.Unmarshal([]byte(further.stdout.String()), &at))
	at.VirtualKey, at.Model = a.VirtualKey, a.Model
	got := demoChat(t, at)
	require.Equal(t, http.StatusOK, got.status, "%s", got.body)
	require.Len(t, spendOf(t, a), 2, "both processes write one ledger")
	require.Equal(t, 0, further.terminate(t, 20*time.Second))
}

// requireSeed sources the kept file as a newcomer does: seed then has the owner's rights, and finds that there is a call of
// the demo key already. Without the file, or with the role that dev prints, it says where to look.
func requireSeed(t *testing.T, dir string) {
	t.Helper()
	after := func(script string) (string, error) {
		shell := exec.CommandContext(t.Context(), "sh", "-ec", `set -a; . "$0"; `+script, filepath.Join(dir, "secrets.env"), binary)
		out, err := shell.CombinedOutput()
		return string(out), err
	}
	said, err := after(`"$1" doctor`)
	require.NoError(t, err, said)
	for _, c := range []struct{ unset, want string }{
		{"", "not seeded ones"},
		{"unset TOLLGATE_DATABASE_DIRECT_URL;", `role "tollgate_control" does not own the schema`},
		{"unset TOLLGATE_DATABASE_DIRECT_URL DATABASE_URL;", "set TOLLGATE_DATABASE_DIRECT_URL"},
	} {
		said, err := after(c.unset + `"$1" seed --rows 10 --development`)
		require.Error(t, err)
		require.Contains(t, said, c.want)
		require.Contains(t, said, "Hint: ")
	}
}

// requirePrivateDatabase checks who can reach the database, and returns the pid of its server.
func requirePrivateDatabase(t *testing.T, dir string, a announcement) int {
	t.Helper()
	pid, ok := postmasterOf(dir)
	require.True(t, ok)
	require.True(t, alive(pid))
	status, err := os.Stat("/proc/" + strconv.Itoa(pid))
	require.NoError(t, err)
	owner := status.Sys().(*syscall.Stat_t).Uid
	require.NotZero(t, owner, "PostgreSQL runs as an unprivileged user")
	u, err := url.Parse(a.DatabaseURL)
	require.NoError(t, err)
	socketDir := u.Query().Get("host")
	info, err := os.Stat(socketDir)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o700), info.Mode().Perm(), "only its owner gets to the socket")
	require.Equal(t, owner, info.Sys().(*syscall.Stat_t).Uid)
	require.Empty(t, tcpListeners(t, pid), "no TCP")

	conn, err := pgx.Connect(t.Context(), a.DatabaseURL)
	require.NoError(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	var addresses, super string
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT current_setting('listen_addresses'), current_setting('is_superuser')").Scan(&addresses, &super))
	require.Empty(t, addresses)
	require.Equal(t, "off", super, "the product does not run as the database's superuser")
	return pid
}

// tcpListeners lists the addresses, in the kernel's form, on which a process listens.
func tcpListeners(t *testing.T, pid int) []string {
	t.Helper()
	own := map[string]bool{}
	descriptors, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	require.NoError(t, err)
	for _, d := range descriptors {
		if target, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, d.Name())); err == nil {
			own[strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")] = true
		}
	}
	var found []string
	for _, table := range []string{"tcp", "tcp6"} {
		body, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		require.NoError(t, err)
		for line := range strings.Lines(string(body)) {
			const local, state, inode, listens = 1, 3, 9, "0A"
			if f := strings.Fields(line); len(f) > inode && f[state] == listens && own[f[inode]] {
				found = append(found, f[local])
			}
		}
	}
	return found
}

func postmasterOf(dir string) (int, bool) {
	body, err := os.ReadFile(filepath.Join(dir, "postgres", "postmaster.pid"))
	if err != nil {
		return 0, false
	}
	line, _, _ := strings.Cut(string(body), "\n")
	pid, err := strconv.Atoi(line)
	return pid, err == nil
}

// alive reports whether a process runs; one that nobody has buried yet does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// requireGone interrupts dev and finds nothing left of its database.
func requireGone(t *testing.T, dir string, dev *running) {
	t.Helper()
	pid, ok := postmasterOf(dir)
	require.True(t, ok)
	require.NoError(t, dev.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, 0, dev.exitCode(t, 30*time.Second), dev.out.String())
	require.False(t, alive(pid), "the database ends with dev")
	require.NoFileExists(t, filepath.Join(dir, "postgres", "postmaster.pid"))
}

// standIn is what the printed Python command imports where the real package is not installed: it makes the call that the
// package would make, with nothing but the standard library.
const standIn = `
import json, types, urllib.request

def tree(v):
    if isinstance(v, dict): return types.SimpleNamespace(**{k: tree(x) for k, x in v.items()})
    return [tree(x) for x in v] if isinstance(v, list) else v

class OpenAI:
    def __init__(self, *, base_url, api_key):
        def create(**body):
            request = urllib.request.Request(base_url + "/chat/completions", json.dumps(body).encode(),
                {"Authorization": "Bearer " + api_key, "Content-Type": "application/json"})
            return tree(json.load(urllib.request.urlopen(request)))
        self.chat = types.SimpleNamespace(completions=types.SimpleNamespace(create=create))
`

// runPasted runs the three commands that the text form prints, exactly as printed.
func runPasted(t *testing.T, said string) {
	t.Helper()
	commands := map[string]string{}
	for line := range strings.Lines(said) {
		line = strings.TrimSpace(line)
		for _, tool := range []string{"curl", "node", "python3"} {
			if strings.HasPrefix(line, tool+" ") && commands[tool] == "" {
				commands[tool] = line
			}
		}
	}
	require.Len(t, commands, 3, said)
	packages := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(packages, "openai.py"), []byte(standIn), 0o600))
	environment := os.Environ()
	if err := exec.Command("python3", "-c", "import openai").Run(); err != nil {
		t.Log("the Python package openai is not installed: a stand-in makes its call")
		environment = append(environment, "PYTHONPATH="+packages)
	}
	for tool, command := range commands {
		shell := exec.CommandContext(t.Context(), "bash", "-c", command)
		shell.Dir, shell.Env = "sdk", environment // where the npm package is
		var complaints bytes.Buffer
		shell.Stderr = &complaints
		out, err := shell.Output()
		require.NoError(t, err, "%s: %s", command, &complaints)
		text := string(out)
		if tool == "curl" {
			require.Contains(t, text, `"object":"chat.completion"`, command)
			continue
		}
		require.Len(t, strings.Fields(text), 9, "%s said %q, and the mock's text has nine words", tool, text)
	}
}

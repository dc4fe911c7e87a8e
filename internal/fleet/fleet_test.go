package fleet

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollgate-gateway/tollgate/internal/devdb"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A fleet starts, governs a call, and leaves neither a process nor a folder behind.
func TestFleet_StartsGovernsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "tollgate")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "github.com/tollgate-gateway/tollgate/cmd/tollgate").CombinedOutput()
	require.NoError(t, err, "%s", out)

	f, err := Start(t.Context(), Options{Binary: binary, Database: devdb.Options{Fast: true}})
	require.NoError(t, err)
	closed := false
	t.Cleanup(func() {
		if !closed {
			require.NoError(t, f.Close())
		}
	})
	tenant, err := f.SetUp(t.Context(), "plain")
	require.NoError(t, err)
	key, id, err := f.Issue(t.Context(), tenant.Organization, "caller", Object{
		"kind": "rate", "metric": "requests", "amount": "1", "per": "24h", "burst": "1",
	})
	require.NoError(t, err)
	require.NotEmpty(t, id)
	gateway, err := f.Start(t.Context(), Spec{Host: "127.0.0.2"})
	require.NoError(t, err)
	require.Contains(t, gateway.BaseURL, "//127.0.0.2:")

	header := map[string][]string{"Authorization": {"Bearer " + key.Reveal()}}
	body := []byte(`{"model":"plain","messages":[{"role":"user","content":"hello"}]}`)
	for _, expected := range []int{200, 429} {
		status, text, err := exchange(t.Context(), f.client, "POST", gateway.BaseURL+"/v1/chat/completions", header, body)
		require.NoError(t, err)
		require.Equal(t, expected, status, "%s", text)
	}
	count, err := f.Mock.Count(t.Context(), url.Values{"ended": {"1"}})
	require.NoError(t, err)
	require.EqualValues(t, 1, count.Requests)

	require.NoError(t, f.Admin.AwaitClosed(t.Context()))
	require.NoError(t, f.Admin.CheckLedger(t.Context()))
	rows, err := f.Admin.List(t.Context(), "spend", nil)
	require.NoError(t, err)
	require.Len(t, rows, 1)
	_, err = f.Admin.Get(t.Context(), "keys/key_unknown")
	var refused *StatusError
	require.ErrorAs(t, err, &refused)

	require.Len(t, f.Processes(), 3)
	require.NoError(t, gateway.Terminate())
	<-gateway.Done()
	require.Zero(t, gateway.ExitCode(), gateway.Log())
	require.Len(t, f.Processes(), 2)

	closed = true
	require.NoError(t, f.Close())
	_, err = os.Stat(f.Database.LogFile())
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = os.Stat(filepath.Dir(f.Database.LogFile()))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// What does not start says why, in its own words.
func TestServe_SaysWhyNot(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\necho no room >&2\n"), 0o700))
	log := filepath.Join(t.TempDir(), "log")
	for range 2 {
		_, err := Serve(t.Context(), http.DefaultClient, Spec{Binary: program, LogFile: log})
		require.ErrorContains(t, err, "it does not say where it listens")
		require.ErrorContains(t, err, "no room")
	}
	all, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Equal(t, "no room\nno room\n", string(all))
	_, err = Serve(t.Context(), http.DefaultClient, Spec{Binary: "/nowhere/tollgate"})
	require.ErrorIs(t, err, os.ErrNotExist)
}

// A call is repeated while the database is away and patience lasts.
func TestAdmin_IsPatient(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte(`{"id":"org_1"}`))
	}))
	defer server.Close()
	a := NewAdmin(server.Client(), server.URL, secret.New("token"))
	_, err := a.Create(t.Context(), "organizations", Object{"name": "Acme"})
	var refused *StatusError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, http.StatusServiceUnavailable, refused.Status)
	require.EqualValues(t, 1, calls.Load())
	a.Patience = time.Minute
	made, err := a.Create(t.Context(), "organizations", Object{"name": "Acme"})
	require.NoError(t, err)
	require.Equal(t, "org_1", Text(made, "id"))
	require.EqualValues(t, 3, calls.Load())
}

func TestTail_KeepsTheEnd(t *testing.T) {
	t.Parallel()
	var l tail
	for range 10 {
		_, _ = l.Write(make([]byte, logKept))
	}
	_, _ = l.Write([]byte("the end"))
	require.LessOrEqual(t, len(l.String()), 2*logKept)
	require.Contains(t, l.String(), "the end")
}

func TestItems_OfAnythingElseAreNone(t *testing.T) {
	t.Parallel()
	var o Object
	require.NoError(t, json.Unmarshal([]byte(`{"items":[{"id":"a"},3],"id":"x"}`), &o))
	require.Len(t, Items(o, "items"), 1)
	require.Empty(t, Items(o, "id"))
	require.Empty(t, Text(o, "items"))
}

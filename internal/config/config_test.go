package config

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/secret"
)

func valid() Config {
	c := Default()
	c.DatabaseURL = secret.New("postgres://localhost/x")
	c.KeyPeppers, c.EncryptionKeys = secret.New("p1:x"), secret.New("k1:x")
	c.AdminToken = secret.New(strings.Repeat("a", MinSecretBytes))
	return c
}

func TestDefault_IsTheContracts(t *testing.T) {
	t.Parallel()
	c := valid()
	require.NoError(t, c.Validate())
	require.Equal(t, ":8080", c.Listen)
	require.Equal(t, []string{PlaneGateway, PlaneControl}, c.Planes)
	require.Equal(t, int64(34<<20), c.MaxBodyBytes)
	require.Equal(t, 600*time.Second, c.DrainTimeout)
	require.Equal(t, 45*time.Second, c.ProcessLease)
}

func TestValidate_NamesEveryFaultAndNoSecret(t *testing.T) {
	t.Parallel()
	c := valid()
	c.AdminToken = secret.New("short-marker")
	c.DatabaseURL = secret.New("postgres://u:pass-marker@h:port/x")
	c.LimitStore, c.Planes = "redis", []string{"data"}
	c.ProcessLease, c.MaxAttempts = time.Second, 0
	c.ConnectTimeout = time.Hour
	c.Planes = append(c.Planes, PlaneControl)
	err := c.Validate()
	require.Error(t, err)
	for _, name := range []string{"planes", "LIMIT_STORE", "PROCESS_LEASE", "MAX_ATTEMPTS", "CONNECT_TIMEOUT", "ADMIN_TOKEN", "DATABASE_URL"} {
		require.ErrorContains(t, err, name)
	}
	require.NotContains(t, err.Error(), "marker")
}

// What is out of its range is told with the value that it has, and a secret with its length.
func TestValidate_TellsTheValue(t *testing.T) {
	t.Parallel()
	for want, spoil := range map[string]func(*Config){
		"TOLLGATE_PROCESS_LEASE: at least 2s, not 1s":                          func(c *Config) { c.ProcessLease = time.Second },
		"TOLLGATE_DATABASE_CONNS: at least 2, not -3":                          func(c *Config) { c.DatabaseConns = -3 },
		"TOLLGATE_DATABASE_CONN_LIFE: at least 1s, not 1ms":                    func(c *Config) { c.DatabaseConnLife = time.Millisecond },
		"TOLLGATE_DRAIN_TIMEOUT: more than 0 and at most 24h, not 25h0m0s":     func(c *Config) { c.DrainTimeout = 25 * time.Hour },
		"TOLLGATE_DRAIN_DELAY: -1s is negative":                                func(c *Config) { c.DrainDelay = -time.Second },
		"TOLLGATE_STREAM_KEEPALIVE: -1s is negative":                           func(c *Config) { c.StreamKeepalive = -time.Second },
		"TOLLGATE_CONNECT_TIMEOUT: 1h0m0s is not shorter than TOLLGATE_UNARY_": func(c *Config) { c.ConnectTimeout = time.Hour },
		"at most TOLLGATE_MAX_BODIES_IN_FLIGHT, 536870912, not -1":             func(c *Config) { c.MaxBodyBytes = -1 },
		"TOLLGATE_LEDGER_RETENTION: 0, or at least 92d, not 24h0m0s":           func(c *Config) { c.LedgerRetention = 24 * time.Hour },
		"TOLLGATE_MAX_ATTEMPTS: 1 to 10, not 11":                               func(c *Config) { c.MaxAttempts = 11 },
		"TOLLGATE_ADMIN_TOKEN: at least 32 bytes, not 5":                       func(c *Config) { c.AdminToken = secret.New("short") },
	} {
		c := valid()
		spoil(&c)
		require.ErrorContains(t, c.Validate(), want)
	}
}

func TestParseDuration_KnowsDays(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"92d": MinRetention, "0d": 0, "1d12h": 36 * time.Hour, "1d0.5s": 24*time.Hour + 500*time.Millisecond,
		"0": 0, "0s": 0, "2208h": MinRetention, "1h30m": 90 * time.Minute, "-1s": -time.Second,
	} {
		got, err := ParseDuration(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "d", "92", "d1h", "-1d", "1.5d", "1d-1h", "1dd", "1h1d", "1d ", "92D", "4w", "36501d", "1d2000000h", "99999999999999999999d"} {
		_, err := ParseDuration(text)
		require.ErrorContains(t, err, "is no span of time such as", text)
	}
}

// Whatever is read is what Go reads, where there are no days, and not negative where there are.
func FuzzParseDuration(f *testing.F) {
	f.Add("92d")
	f.Add("1d12h")
	f.Add("-1h2m3.4s")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseDuration(text)
		if strings.Contains(text, "d") {
			require.True(t, err != nil || got >= 0, text)
			return
		}
		want, fault := time.ParseDuration(text)
		require.Equal(t, fault == nil, err == nil, text)
		require.Equal(t, want, got, text)
	})
}

func TestParse_FlattensAndKeepsLines(t *testing.T) {
	t.Parallel()
	f, err := parse([]byte("listen: :1\ndatabase:\n  url: x\n  conns: 3\nplanes: [gateway]\nplugins:\n  - id: budget\n    on_error: deny\n"))
	require.NoError(t, err)
	for flag, want := range map[string]string{"listen": ":1", "database-url": "x", "database-conns": "3", "planes": "gateway"} {
		got, ok := f.Value(flag)
		require.True(t, ok, flag)
		require.Equal(t, want, got)
	}
	require.Len(t, f.Plugins, 1)
	err = f.Unknown(func(flag string) bool { return flag != "database-conns" })
	require.EqualError(t, err, "line 4: unknown setting database-conns")
}

func TestParse_Refuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"- a":                            "line 1",
		"listen: a\nlisten: b":           "twice",
		"a: [{b: c}]":                    "line 1",
		"plugins:\n  - id: x\n    od: 1": "not found",
		"a: b: c":                        "mapping",
	} {
		_, err := parse([]byte(text))
		require.ErrorContains(t, err, want, text)
	}
	_, err := parse(nil)
	require.NoError(t, err)
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("listen: :1\ndatabase: {url: x}\nplugins: [{id: a}]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := parse(text)
		if err == nil {
			_ = file.Unknown(func(string) bool { return false })
		}
	})
}

// Package config holds the static settings of a Tollgate process: what is known before it has seen its database.
//
// A setting comes from the flag, else the environment, else the YAML file, else its default. The struct tags are the only
// list: flags, help, environment and the reference in the documentation are made from them.
package config

import (
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// Planes of a process.
const (
	PlaneGateway = "gateway"
	PlaneControl = "control"
)

// Limit stores.
const (
	StorePostgres = "postgres"
	StoreMemory   = "memory"
)

// Who shares answers of the response cache.
const (
	CacheOff          = "off"
	CacheKey          = "key"
	CacheTeam         = "team"
	CacheOrganization = "organization"
)

// MinResponseCache is the least memory of a response cache, in bytes.
const MinResponseCache = 1 << 20

// MinSecretBytes is the least length of the admin token.
const MinSecretBytes = 32

const day = 24 * time.Hour

// MinRetention is the least time for which the ledger keeps its rows.
const MinRetention = 92 * day

// Config is everything static.
type Config struct {
	Listen        string   `default:":8080" env:"TOLLGATE_LISTEN" help:"Address of the traffic listener." group:"Listeners"`
	ControlListen string   `default:":8081" env:"TOLLGATE_CONTROL_LISTEN" help:"Address of the control listener (admin API)." group:"Listeners"`
	OpsListen     string   `default:":9090" env:"TOLLGATE_OPS_LISTEN" help:"Address of the operations listener: /livez, /readyz, /metrics, /debug/pprof." group:"Listeners"`
	Planes        []string `default:"gateway,control" env:"TOLLGATE_PLANES" help:"Which planes this process serves: gateway, control, or both." group:"Listeners"`

	DatabaseURL          secret.String `env:"DATABASE_URL" help:"PostgreSQL DSN; a transaction pooler is fine." group:"Database"`
	DatabaseControlURL   secret.String `env:"TOLLGATE_DATABASE_CONTROL_URL" help:"DSN of the control plane's own role; default: the database URL." group:"Database"`
	DatabaseDirectURL    secret.String `env:"TOLLGATE_DATABASE_DIRECT_URL" help:"DSN that goes round any pooler, for migrations and LISTEN; default: the database URL." group:"Database"`
	DatabasePasswordFile string        `env:"TOLLGATE_DATABASE_PASSWORD_FILE" help:"File with the database password, read anew for each connection." group:"Database" placeholder:"FILE"`
	DatabaseConns        int32         `default:"8" env:"TOLLGATE_DATABASE_CONNS" help:"Most connections of the data plane; the control plane has 4 of its own." group:"Database"`
	DatabaseConnLife     time.Duration `default:"15m" env:"TOLLGATE_DATABASE_CONN_LIFE" help:"Age at which a connection is replaced; a rotated password is in use by then." group:"Database"`
	LimitStore           string        `default:"postgres" env:"TOLLGATE_LIMIT_STORE,CP_GATEWAY_LIMIT_STORE" help:"Where limits are counted: postgres, or memory (demo: N processes grant N times the limits)." group:"Database"`
	ProcessLease         time.Duration `default:"45s" env:"TOLLGATE_PROCESS_LEASE" help:"Silence after which this process counts as dead and its reservations expire." group:"Database"`
	LedgerRetention      time.Duration `default:"0s" env:"TOLLGATE_LEDGER_RETENTION" help:"Age at which whole months of the ledger are dropped, behind openings; at least 92d. 0: all are kept." group:"Database"`

	AdminToken     secret.String `env:"TOLLGATE_ADMIN_TOKEN" help:"Bootstrap credential of the admin API, at least 32 bytes." group:"Secrets"`
	EncryptionKeys secret.String `env:"TOLLGATE_ENCRYPTION_KEYS" help:"Key ring id:base64,… that seals provider credentials; the first seals, all open." group:"Secrets"`
	KeyPeppers     secret.String `env:"TOLLGATE_KEY_PEPPERS" help:"Ring id:base64,… of the virtual keys' HMAC; the first is for new keys, all verify." group:"Secrets"`

	ReadinessRequireDatabase bool   `env:"TOLLGATE_READINESS_REQUIRE_DATABASE" help:"Be unready while the database is away, instead of answering the typed 503." group:"Operations"`
	AllowPrivilegedRole      bool   `env:"TOLLGATE_ALLOW_PRIVILEGED_ROLE" help:"Let a pure data plane run with a database role that could change keys, limits or prices." group:"Operations"`
	ProviderCatalog          string `env:"TOLLGATE_PROVIDER_CATALOG" help:"YAML file with kinds of provider of your own, in the form of the built-in catalog." group:"Operations" placeholder:"FILE"`
	AllowPrivateProviders    bool   `env:"TOLLGATE_ALLOW_PRIVATE_PROVIDERS" help:"Let providers be on loopback or private addresses, and be reached there by plain http." group:"Operations"`

	DrainTimeout      time.Duration `default:"600s" env:"TOLLGATE_DRAIN_TIMEOUT" help:"How long streams may go on after SIGTERM." group:"Time-outs"`
	DrainDelay        time.Duration `default:"0s" env:"TOLLGATE_DRAIN_DELAY" help:"How long to keep accepting after SIGTERM, while the balancer takes notice." group:"Time-outs"`
	ConnectTimeout    time.Duration `default:"5s" env:"TOLLGATE_CONNECT_TIMEOUT" help:"Longest connect to a provider." group:"Time-outs"`
	FirstByteTimeout  time.Duration `default:"120s" env:"TOLLGATE_FIRST_BYTE_TIMEOUT" help:"Longest wait for the first event of a stream." group:"Time-outs"`
	IdleStreamTimeout time.Duration `default:"300s" env:"TOLLGATE_IDLE_STREAM_TIMEOUT" help:"Longest gap between two events of a stream." group:"Time-outs"`
	StreamKeepalive   time.Duration `default:"0s" env:"TOLLGATE_STREAM_KEEPALIVE" help:"Silence of a chat stream after which clients get a frame with an empty delta; the first one commits to status 200. 0s: never." group:"Time-outs"`
	UnaryTimeout      time.Duration `default:"600s" env:"TOLLGATE_UNARY_TIMEOUT" help:"Longest unary request, all attempts together." group:"Time-outs"`
	CacheMaxAge       time.Duration `default:"5s" env:"TOLLGATE_CACHE_MAX_AGE" help:"Hard age of cached configuration, and of cached keys, which are never older than 5s." group:"Time-outs"`
	MaxBodyBytes      int64         `default:"35651584" env:"TOLLGATE_MAX_BODY_BYTES" help:"Largest request body (default 34 MiB)." group:"Bounds"`
	MaxBodiesInFlight int64         `default:"536870912" env:"TOLLGATE_MAX_BODIES_IN_FLIGHT" help:"Bytes of request bodies held at once; beyond: 503 gateway_overloaded." group:"Bounds"`
	BreakerFailures   int           `default:"5" env:"TOLLGATE_BREAKER_FAILURES" help:"Failures of a target in a row after which it is tried last; 0: never." group:"Bounds"`
	BreakerCooldown   time.Duration `default:"10s" env:"TOLLGATE_BREAKER_COOLDOWN" help:"How long a target that failed is tried last, before one call may probe it; doubles up to 2m." group:"Bounds"`
	MaxAttempts       int           `default:"3" env:"TOLLGATE_MAX_ATTEMPTS" help:"Most targets tried for one request." group:"Bounds"`

	ResponseCache      string        `default:"off" enum:"off,key,team,organization" env:"TOLLGATE_RESPONSE_CACHE" help:"Answer equal calls from this process's memory: off, or who shares answers: the calls of one key, team or organization." group:"Response cache"`
	ResponseCacheTTL   time.Duration `default:"5m" env:"TOLLGATE_RESPONSE_CACHE_TTL" help:"Age up to which an answer is given again." group:"Response cache"`
	ResponseCacheBytes int64         `default:"67108864" env:"TOLLGATE_RESPONSE_CACHE_BYTES" help:"Memory for answers; the longest one that is kept has 1 MiB." group:"Response cache"`

	LogLevel string `default:"info" enum:"debug,info,warn,error" env:"TOLLGATE_LOG_LEVEL" help:"Least level that is logged: ${enum}." group:"Logging"`

	// Plugins is the chain's configuration, from the file only: an empty list means the built-in chain.
	Plugins []Plugin `kong:"-"`
}

// Plugin configures one link of the chain.
type Plugin struct {
	ID      string         `yaml:"id"`
	OnError string         `yaml:"on_error"` // deny (default) or allow
	Mode    string         `yaml:"mode"`     // enforce (default) or log
	Timeout time.Duration  `yaml:"timeout"`
	Config  map[string]any `yaml:"config"`
}

// Serves reports whether the process has a plane.
func (c *Config) Serves(plane string) bool { return slices.Contains(c.Planes, plane) }

// Direct returns the DSN for migrations and LISTEN.
func (c *Config) Direct() secret.String { return orElse(c.DatabaseDirectURL, c.DatabaseURL) }

// Control returns the control plane's DSN.
func (c *Config) Control() secret.String { return orElse(c.DatabaseControlURL, c.DatabaseURL) }

func orElse(a, b secret.String) secret.String {
	if a.IsZero() {
		return b
	}
	return a
}

// Validate returns all faults in one error. It never shows a value of a secret.
func (c *Config) Validate() error {
	var faults []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	need(len(c.Planes) > 0, "planes: name gateway, control or both")
	for _, p := range c.Planes {
		need(p == PlaneGateway || p == PlaneControl, "planes: %q is neither gateway nor control", p)
	}
	need(!c.DatabaseURL.IsZero(), "DATABASE_URL is not set; `tollgate dev` brings its own database")
	for name, u := range map[string]secret.String{
		"DATABASE_URL": c.DatabaseURL, "TOLLGATE_DATABASE_CONTROL_URL": c.DatabaseControlURL, "TOLLGATE_DATABASE_DIRECT_URL": c.DatabaseDirectURL,
	} {
		if strings.Contains(u.Reveal(), "://") {
			_, err := url.Parse(u.Reveal())
			need(err == nil, "%s is not a URL", name)
		}
	}
	need(c.LimitStore == StorePostgres || c.LimitStore == StoreMemory, "TOLLGATE_LIMIT_STORE: %q is neither postgres nor memory", c.LimitStore)
	need(c.ProcessLease >= 2*time.Second, "TOLLGATE_PROCESS_LEASE: at least 2s, not %s", c.ProcessLease)
	need(c.LedgerRetention == 0 || c.LedgerRetention >= MinRetention, "TOLLGATE_LEDGER_RETENTION: 0, or at least %dd, not %s", MinRetention/day, c.LedgerRetention)
	need(c.DatabaseConns >= 2, "TOLLGATE_DATABASE_CONNS: at least 2, not %d", c.DatabaseConns)
	need(c.DatabaseConnLife >= time.Second, "TOLLGATE_DATABASE_CONN_LIFE: at least 1s, not %s", c.DatabaseConnLife)
	need(!c.KeyPeppers.IsZero(), "TOLLGATE_KEY_PEPPERS is not set")
	need(!c.EncryptionKeys.IsZero(), "TOLLGATE_ENCRYPTION_KEYS is not set")
	if c.Serves(PlaneControl) {
		need(len(c.AdminToken.Reveal()) >= MinSecretBytes, "TOLLGATE_ADMIN_TOKEN: at least %d bytes, not %d", MinSecretBytes, len(c.AdminToken.Reveal()))
	}
	for _, t := range []struct {
		name string
		d    time.Duration
	}{
		{"TOLLGATE_CONNECT_TIMEOUT", c.ConnectTimeout},
		{"TOLLGATE_FIRST_BYTE_TIMEOUT", c.FirstByteTimeout},
		{"TOLLGATE_IDLE_STREAM_TIMEOUT", c.IdleStreamTimeout},
		{"TOLLGATE_UNARY_TIMEOUT", c.UnaryTimeout},
		{"TOLLGATE_DRAIN_TIMEOUT", c.DrainTimeout},
		{"TOLLGATE_CACHE_MAX_AGE", c.CacheMaxAge},
		{"TOLLGATE_BREAKER_COOLDOWN", c.BreakerCooldown},
		{"TOLLGATE_RESPONSE_CACHE_TTL", c.ResponseCacheTTL},
	} {
		need(t.d > 0 && t.d <= 24*time.Hour, "%s: more than 0 and at most 24h, not %s", t.name, t.d)
	}
	need(c.DrainDelay >= 0, "TOLLGATE_DRAIN_DELAY: %s is negative", c.DrainDelay)
	need(c.StreamKeepalive >= 0, "TOLLGATE_STREAM_KEEPALIVE: %s is negative", c.StreamKeepalive)
	need(c.ConnectTimeout < c.UnaryTimeout, "TOLLGATE_CONNECT_TIMEOUT: %s is not shorter than TOLLGATE_UNARY_TIMEOUT, %s", c.ConnectTimeout, c.UnaryTimeout)
	need(c.MaxBodyBytes > 0 && c.MaxBodyBytes <= c.MaxBodiesInFlight, "TOLLGATE_MAX_BODY_BYTES: more than 0 and at most TOLLGATE_MAX_BODIES_IN_FLIGHT, %d, not %d", c.MaxBodiesInFlight, c.MaxBodyBytes)
	need(slices.Contains([]string{CacheOff, CacheKey, CacheTeam, CacheOrganization}, c.ResponseCache),
		"TOLLGATE_RESPONSE_CACHE: %q is not off, key, team or organization", c.ResponseCache)
	need(c.ResponseCacheBytes >= MinResponseCache, "TOLLGATE_RESPONSE_CACHE_BYTES: at least %d, not %d", MinResponseCache, c.ResponseCacheBytes)
	need(c.BreakerFailures >= 0, "TOLLGATE_BREAKER_FAILURES: %d is negative", c.BreakerFailures)
	need(c.MaxAttempts >= 1 && c.MaxAttempts <= 10, "TOLLGATE_MAX_ATTEMPTS: 1 to 10, not %d", c.MaxAttempts)
	return errors.Join(faults...)
}

// Default returns the settings of a process that nobody has told anything.
func Default() Config {
	var c Config
	v := reflect.ValueOf(&c).Elem()
	for i := range v.NumField() {
		text, ok := v.Type().Field(i).Tag.Lookup("default")
		if !ok {
			continue
		}
		if err := set(v.Field(i), text); err != nil {
			panic(fmt.Sprintf("default of %s: %v", v.Type().Field(i).Name, err)) // a test reads them all
		}
	}
	return c
}

func set(v reflect.Value, text string) error {
	switch into := v.Addr().Interface().(type) {
	case *string:
		*into = text
	case *[]string:
		*into = strings.Split(text, ",")
	case *time.Duration:
		d, err := ParseDuration(text)
		*into = d
		return err
	default:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return err
		}
		v.SetInt(n)
	}
	return nil
}

// ParseDuration reads a span of time: as Go writes them, such as 90s or 1h30m, with days of 24 hours before, such as 92d or 1d12h.
func ParseDuration(text string) (time.Duration, error) {
	const mostDays = 36_500
	days, rest, ok := strings.Cut(text, "d")
	if !ok {
		days, rest = "0", text
	}
	n, err := strconv.ParseUint(days, 10, 64)
	var more time.Duration
	if err == nil && (rest != "" || !ok) {
		more, err = time.ParseDuration(rest)
	}
	if err != nil || ok && (n > mostDays || more < 0 || more >= mostDays*day) {
		return 0, fmt.Errorf("%q is no span of time such as 90s, 1h30m or 92d", text)
	}
	return time.Duration(n)*day + more, nil
}

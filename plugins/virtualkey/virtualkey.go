// Package virtualkey authenticates callers by the keys that Tollgate issued.
//
// A key that fails its checksum costs nothing. What the store says of a key is believed for at most MaxAge, counted from
// before the look-up, and is forgotten at once when the store's changes name the key. Look-ups of unknown keys are bounded
// for each source, so that inventing keys neither loads the store nor locks anybody's key.
package virtualkey

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/apikey"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/plugins"
)

// ID is the plugin's name in configuration, logs and metrics.
const ID = "virtualkey"

const (
	maxMaxAge      = 5 * time.Second
	lookupTimeout  = 6 * time.Second // above the store's own bounds, and on no request's context
	touchInterval  = time.Minute
	touchTimeout   = 5 * time.Second
	unavailableFor = 2 * time.Second // Retry-After while keys cannot be read
)

// Settings is the plugin's section of the configuration.
type Settings struct {
	MaxAge  time.Duration `yaml:"max_age"`     // hard age of a cached key: above 0, at most 5 s; default: the operator's for all that is cached, at most 5 s
	Entries int           `yaml:"max_entries"` // keys that are kept, default 16,384; unknown ones have a bound of their own
}

func (s *Settings) validate() error {
	var faults []error
	if s.MaxAge <= 0 || s.MaxAge > maxMaxAge {
		faults = append(faults, errors.New("max_age must be above 0 and at most 5s"))
	}
	if s.Entries < 1 || s.Entries > 1<<20 {
		faults = append(faults, errors.New("max_entries must be between 1 and 1,048,576"))
	}
	return errors.Join(faults...)
}

// Module is what the application's list of plugins names.
func Module() plugins.Module {
	return plugins.Module{ID: ID, New: func(env plugins.Env, cfg plugins.Config) (plugins.Plugin, error) {
		s := Settings{MaxAge: maxMaxAge, Entries: 16 << 10}
		if env.MaxAge > 0 {
			s.MaxAge = min(s.MaxAge, env.MaxAge)
		}
		if err := cfg.Decode(&s); err != nil {
			return nil, fmt.Errorf("decode settings of virtualkey: %w", err)
		}
		if err := s.validate(); err != nil {
			return nil, fmt.Errorf("check settings of virtualkey: %w", err)
		}
		return newPlugin(env, s)
	}}
}

type plugin struct {
	env     plugins.Env
	cache   *cache
	touched *touched
	aging   *aging
	refused func(values ...string)
}

var (
	_ plugins.Authenticator = (*plugin)(nil)
	_ plugins.Runner        = (*plugin)(nil)
)

func newPlugin(env plugins.Env, s Settings) (*plugin, error) {
	c, err := newCache(env.Keys, s.Entries, s.MaxAge)
	if err != nil {
		return nil, fmt.Errorf("make key cache: %w", err)
	}
	if env.Changed != nil {
		env.Changed(c.changed)
	}
	return &plugin{
		env: env, cache: c, touched: &touched{}, aging: &aging{},
		refused: env.Metrics.Counter("tollgate_authentication_refusals_total", "Refused credentials, by code.", "code"),
	}, nil
}

// ID implements plugins.Plugin.
func (*plugin) ID() string { return ID }

// Authenticate implements plugins.Authenticator.
func (p *plugin) Authenticate(ctx context.Context, c *plugins.Call) (governance.Principal, error) {
	e, err := p.authenticate(ctx, c)
	if err != nil {
		if refusal, ok := errors.AsType[*governance.Error](err); ok {
			p.refused(string(refusal.Code))
		}
		return governance.Principal{}, err
	}
	if !e.used.Swap(true) {
		p.touched.add(e.record.Key.Num)
		p.renew(&e.record.Secret, c.Credential)
	}
	return e.record.Principal, nil
}

func (p *plugin) authenticate(ctx context.Context, c *plugins.Call) (*entry, error) {
	publicID, err := apikey.Parse(c.Credential)
	switch {
	case errors.Is(err, apikey.ErrForeign):
		return nil, plugins.ErrNotMine
	case err != nil:
		return nil, unknownKey()
	}
	e, err := p.cache.find(ctx, publicID, c.RemoteIP)
	switch {
	case errors.Is(err, governance.ErrNotFound):
		return nil, unknownKey()
	case errors.Is(err, errTooManyFailures):
		return nil, &governance.Error{
			Code: governance.CodeRateLimitExceeded, RetryAfter: time.Second,
			Public: "Too many unknown API keys came from this address. Try again shortly.",
		}
	case err != nil:
		return nil, unreadable(err)
	}
	same, err := p.matches(&e.record.Secret, c.Credential)
	switch {
	case err != nil:
		return nil, unreadable(err)
	case !same:
		return nil, unknownKey()
	}
	if err := usable(&e.record, time.Now()); err != nil {
		return nil, err
	}
	return e, nil
}

// renew has a secret that is stored under an old pepper stored under the current one, so that the old one can be retired.
func (p *plugin) renew(stored *governance.KeySecret, key secret.String) {
	current := p.env.Peppers.Current()
	if stored.PepperID == current {
		return
	}
	if sum, ok := p.env.Peppers.Sum(current, key); ok {
		p.aging.add(governance.Rehash{Was: *stored, Hash: sum, PepperID: current})
	}
}

// matches compares a key with its stored form, in a time that does not depend on where they differ.
func (p *plugin) matches(stored *governance.KeySecret, key secret.String) (bool, error) {
	sum, ok := p.env.Peppers.Sum(stored.PepperID, key)
	if !ok {
		return false, fmt.Errorf("compare key: no pepper has the id %q", stored.PepperID)
	}
	return apikey.Equal(sum, stored.Hash), nil
}

// usable says why a key that is genuine may not be used, if so. Only its holder learns that.
func usable(r *governance.KeyRecord, now time.Time) error {
	refuse := func(code governance.Code, public string) error { return &governance.Error{Code: code, Public: public} }
	past := func(t time.Time) bool { return !t.IsZero() && !now.Before(t) }
	switch {
	case !r.Key.RevokedAt.IsZero() || !r.Key.DeletedAt.IsZero():
		return refuse(governance.CodeKeyRevoked, "The API key was revoked.")
	case past(r.Secret.ExpiresAt):
		return refuse(governance.CodeKeyExpired, "The API key was replaced by a new one.")
	case past(r.Key.ExpiresAt):
		return refuse(governance.CodeKeyExpired, "The API key has expired.")
	case r.Key.Blocked:
		return refuse(governance.CodeKeyBlocked, "The API key is blocked.")
	}
	switch r.BlockedBy {
	case "":
		return nil
	case "team":
		return refuse(governance.CodeTeamBlocked, "The team of the API key is blocked.")
	case "user":
		return refuse(governance.CodeUserBlocked, "The user of the API key is blocked.")
	default:
		return refuse(governance.CodeOrganizationBlocked, "The organization of the API key is blocked.")
	}
}

func unknownKey() error {
	return &governance.Error{Code: governance.CodeInvalidAPIKey, Public: "The API key is not valid."}
}

func unreadable(err error) error {
	return &governance.Error{
		Code: governance.CodeDataStoreUnavailable, Public: "API keys cannot be checked at the moment.",
		RetryAfter: unavailableFor, Err: err,
	}
}

// Run implements plugins.Runner: it notes in the store, at most once a minute, which keys were used, and renews their peppers.
func (p *plugin) Run(ctx context.Context) error {
	tick := time.NewTicker(touchInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			p.touch(context.WithoutCancel(ctx))
			return nil
		case <-tick.C:
			p.touch(ctx)
		}
	}
}

func (p *plugin) touch(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, touchTimeout)
	defer cancel()
	if keys := p.touched.take(); len(keys) > 0 {
		if err := p.env.Keys.Touch(ctx, keys); err != nil {
			p.env.Log.Warn().Err(err).Msg("use of keys could not be noted")
		}
	}
	if old := p.aging.take(); len(old) > 0 {
		if err := p.env.Keys.Rehash(ctx, old); err != nil {
			p.env.Log.Warn().Err(err).Msg("keys could not be stored under the current pepper")
		}
	}
}

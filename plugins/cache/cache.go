// Package cache answers a call from what an equal one was told a short time ago. It is off unless the operator switches it
// on, and it keeps its answers in the memory of its process alone: what people ask and are told is written nowhere.
package cache

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/plugins"
)

// ID is the plugin's name in configuration, logs and metrics.
const ID = "cache"

// Who may be given an answer that was made for another.
const (
	ShareKey          = "key"          // nobody: each key has answers of its own
	ShareTeam         = "team"         // keys of the same team; keys without one keep theirs to themselves
	ShareOrganization = "organization" // keys of the same organization
)

// Settings are the plugin's section of the configuration.
type Settings struct {
	Share     string        `yaml:"share"`      // ShareKey, which is the default, ShareTeam or ShareOrganization
	TTL       time.Duration `yaml:"ttl"`        // age up to which an answer is given; 1 s to 24 h, 5 min by default
	MaxBytes  int           `yaml:"max_bytes"`  // of all answers together; 64 MiB by default
	MaxAnswer int           `yaml:"max_answer"` // bytes of one answer; 1 MiB by default
}

// Module is what the application's list of plugins names.
func Module() plugins.Module {
	return plugins.Module{ID: ID, New: func(env plugins.Env, cfg plugins.Config) (plugins.Plugin, error) {
		s := Settings{Share: ShareKey, TTL: 5 * time.Minute, MaxBytes: 64 << 20, MaxAnswer: 1 << 20}
		if err := cfg.Decode(&s); err != nil {
			return nil, fmt.Errorf("decode settings of cache: %w", err)
		}
		switch {
		case !slices.Contains([]string{ShareKey, ShareTeam, ShareOrganization}, s.Share):
			return nil, fmt.Errorf("cache: share is %q, not key, team or organization", s.Share)
		case s.TTL < time.Second || s.TTL > 24*time.Hour:
			return nil, fmt.Errorf("cache: ttl is 1s to 24h, not %s", s.TTL)
		case s.MaxAnswer < 1 || s.MaxAnswer > s.MaxBytes:
			return nil, fmt.Errorf("cache: max_answer is 1 to max_bytes, %d, not %d", s.MaxBytes, s.MaxAnswer)
		}
		return newCache(env.Metrics, s, time.Now), nil
	}}
}

// cache is an AnswerCache in memory.
type cache struct {
	settings Settings
	answers  *answers
	now      func() time.Time
	lookups  func(values ...string)
	savings  func(value float64, values ...string)
}

var _ plugins.AnswerCache = (*cache)(nil)

func newCache(r plugins.Registry, s Settings, now func() time.Time) *cache {
	return &cache{
		settings: s, answers: newAnswers(s.MaxBytes), now: now,
		lookups: r.Counter("tollgate_cache_lookups_total", "Calls that the answer cache was asked for, by result.", "result"),
		savings: r.Histogram("tollgate_cache_saved_usd", "Cost in US dollars of the answers that were given again.",
			[]float64{0.00001, 0.0001, 0.001, 0.01, 0.1, 1, 10}),
	}
}

// ID implements plugins.Plugin.
func (*cache) ID() string { return ID }

// Lookup implements plugins.AnswerCache.
func (k *cache) Lookup(_ context.Context, c *plugins.Call) (*plugins.Answer, plugins.Slot, error) {
	if !cacheable(c) {
		k.lookups("bypass")
		return nil, plugins.Slot{}, nil
	}
	key := k.key(c)
	slot := plugins.Slot{Room: k.settings.MaxAnswer, Keep: func(a plugins.Answer) { k.answers.put(key, &a) }}
	if says(c.Header, "no-cache") || says(c.Header, "max-age=0") {
		k.lookups("bypass")
		return nil, slot, nil
	}
	a := k.answers.get(key)
	if a == nil || k.now().Sub(a.At) > k.settings.TTL {
		k.lookups("miss")
		return nil, slot, nil
	}
	k.lookups("hit")
	k.savings(float64(a.Cost) / 1e9) // for dashboards: the row's tag is exact
	return a, slot, nil
}

// cacheable reports whether an equal call may be given the same answer. One that leaves something behind at the provider,
// or refers to what is there, may not.
func cacheable(c *plugins.Call) bool {
	if c.Body == nil || says(c.Header, "no-store") {
		return false
	}
	switch c.Route {
	case governance.RouteCompletions, governance.RouteEmbeddings, governance.RouteModerations:
		return true
	case governance.RouteMessages:
		return !has(c, "container") && !has(c, "mcp_servers")
	case governance.RouteChat:
		return !isTrue(c, "store")
	case governance.RouteResponses:
		return has(c, "store") && !isTrue(c, "store") && !isTrue(c, "background") &&
			!has(c, "previous_response_id") && !has(c, "conversation")
	default:
		return false
	}
}

func has(c *plugins.Call, member string) bool {
	_, there := c.Body.Get(member)
	return there
}

func isTrue(c *plugins.Call, member string) bool {
	is, _, err := c.Body.Bool(member)
	return is || err != nil
}

// says reports whether a request's Cache-Control holds a directive (RFC 9111, section 5.2.1).
func says(h http.Header, directive string) bool {
	for _, line := range h.Values("Cache-Control") {
		for part := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(part), directive) {
				return true
			}
		}
	}
	return false
}

// key is what two calls must have in common to be given the same answer (T19): who may share, the configuration under
// which it was made, what their guards hold them to, and every byte of what goes upstream. A change of the configuration,
// whatever it is, thus ends all answers.
func (k *cache) key(c *plugins.Call) [sha256.Size]byte {
	h := sha256.New()
	part := func(s string) { writePart(h, s) }
	number := func(n int64) { _ = binary.Write(h, binary.BigEndian, n) } // a hash takes everything
	number(c.Principal.Organization.Num)
	switch {
	case k.settings.Share == ShareOrganization:
		part(ShareOrganization)
	case k.settings.Share == ShareTeam && c.Principal.Team.Num != 0:
		part(ShareTeam)
		number(c.Principal.Team.Num)
	default:
		part(ShareKey)
		number(c.Principal.Key.Num)
	}
	number(c.Catalog.Version)
	part(c.Policy)
	part(c.Route)
	part(c.Model)
	part(c.Query)
	for _, name := range []string{"Accept", "Anthropic-Version", "Anthropic-Beta", "Openai-Beta"} {
		part(strings.Join(c.Header.Values(name), "\n"))
	}
	part(string(c.Body.Bytes()))
	return [sha256.Size]byte(h.Sum(nil))
}

// writePart writes a string and, before it, its length: no two lists of strings look the same.
func writePart(h hash.Hash, s string) {
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(len(s)))
	_, _ = h.Write(length[:]) // a hash takes everything
	_, _ = h.Write([]byte(s))
}

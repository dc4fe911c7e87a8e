package cache

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/plugins"
	"github.com/tollgate-gateway/tollgate/plugins/plugintest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContract(t *testing.T) {
	t.Parallel()
	plugintest.Run(t, Module(), "share: team\nttl: 1m\nmax_bytes: 1000000\nmax_answer: 1000\n")
}

func TestSettings(t *testing.T) {
	t.Parallel()
	for _, section := range []plugintest.Config{"share: all", "ttl: 0s", "ttl: 25h", "max_answer: 0", "max_bytes: 10", "max_answer: 100\nmax_bytes: 99"} {
		_, err := Module().New(plugintest.NewEnv().Plugins(t), section)
		require.Error(t, err, section)
	}
	_, err := Module().New(plugintest.NewEnv().Plugins(t), plugintest.Config(""))
	require.NoError(t, err)
}

const hello = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`

func asked(tb require.TestingT, route, body string) *plugins.Call {
	doc, err := jsonedit.Parse([]byte(body))
	require.NoError(tb, err)
	return &plugins.Call{
		Route: route, Body: doc, Model: "m", Header: http.Header{},
		Catalog: governance.NewCatalog(1, time.Time{}, nil, nil, nil),
		Principal: governance.Principal{
			Organization: governance.Ref{Num: 1}, Team: governance.Ref{Num: 2}, Key: governance.Ref{Num: 3},
		},
	}
}

// shelf is a cache whose clock a test turns.
type shelf struct {
	*cache
	at time.Time
}

func newShelf(share string) *shelf {
	s := &shelf{at: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)}
	s.cache = newCache(new(plugintest.Metrics), Settings{share, time.Minute, 1 << 20, 1 << 10}, func() time.Time { return s.at })
	return s
}

func (s *shelf) keep(c *plugins.Call, body string) {
	if _, slot, _ := s.Lookup(context.Background(), c); len(body) <= slot.Room {
		slot.Keep(plugins.Answer{TargetNum: 1, Body: []byte(body), At: s.at})
	}
}

// found returns the answer that a call is given; "": none.
func (s *shelf) found(tb require.TestingT, c *plugins.Call) string {
	a, _, err := s.Lookup(context.Background(), c)
	require.NoError(tb, err)
	if a == nil {
		return ""
	}
	return string(a.Body)
}

func TestAnswersGrowOld(t *testing.T) {
	t.Parallel()
	s := newShelf(ShareKey)
	s.keep(asked(t, governance.RouteChat, hello), "hi")
	s.at = s.at.Add(time.Minute)
	require.Equal(t, "hi", s.found(t, asked(t, governance.RouteChat, hello)))
	s.at = s.at.Add(time.Nanosecond)
	require.Empty(t, s.found(t, asked(t, governance.RouteChat, hello)))
	s.keep(asked(t, governance.RouteChat, hello), "hi again")
	require.Equal(t, "hi again", s.found(t, asked(t, governance.RouteChat, hello)))
}

// TestWhatIsNoEqualCall changes one thing at a time: each of them makes it another call.
func TestWhatIsNoEqualCall(t *testing.T) {
	t.Parallel()
	s := newShelf(ShareOrganization)
	s.keep(asked(t, governance.RouteChat, hello), "hi")
	for name, change := range map[string]func(*plugins.Call){
		"organization":  func(c *plugins.Call) { c.Principal.Organization.Num = 9 },
		"configuration": func(c *plugins.Call) { c.Catalog = governance.NewCatalog(2, time.Time{}, nil, nil, nil) },
		"policy":        func(c *plugins.Call) { c.Policy = "no names" },
		"route":         func(c *plugins.Call) { c.Route = governance.RouteCompletions },
		"model":         func(c *plugins.Call) { c.Model = "n" },
		"query":         func(c *plugins.Call) { c.Query = "beta=true" },
		"beta":          func(c *plugins.Call) { c.Header.Set("Anthropic-Beta", "x") },
		"version":       func(c *plugins.Call) { c.Header.Set("Anthropic-Version", "2023-06-01") },
		"a blank more":  func(c *plugins.Call) { c.Body, _ = jsonedit.Parse([]byte(hello + " ")) },
	} {
		c := asked(t, governance.RouteChat, hello)
		change(c)
		require.Empty(t, s.found(t, c), name)
	}
	other := asked(t, governance.RouteChat, hello)
	other.Principal.Key.Num, other.Principal.Team.Num = 77, 78
	require.Equal(t, "hi", s.found(t, other), "an organization that shares")
}

// TestT19_PrincipalsThatDoNotShareNeverMeet draws callers and bodies: whoever finds an answer may share it with the one who
// left it, and has asked the same.
func TestT19_PrincipalsThatDoNotShareNeverMeet(t *testing.T) {
	t.Parallel()
	for _, share := range []string{ShareKey, ShareTeam, ShareOrganization} {
		t.Run(share, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				s := newShelf(share)
				type caller struct{ org, team, key int64 }
				draw := func() (caller, string) {
					key := rapid.Int64Range(1, 12).Draw(t, "key")
					// A key has one team, or none, and a team one organization.
					return caller{1 + key%2, key % 4, key}, fmt.Sprintf(`{"model":"m","n":%d}`, rapid.IntRange(1, 2).Draw(t, "n"))
				}
				call := func(who caller, body string) *plugins.Call {
					c := asked(t, governance.RouteChat, body)
					c.Principal.Organization.Num, c.Principal.Team.Num, c.Principal.Key.Num = who.org, who.team, who.key
					return c
				}
				left := make(map[string]caller)
				for i := range 100 {
					who, body := draw()
					if got := s.found(t, call(who, body)); got != "" {
						from := left[got]
						require.Contains(t, got, body)
						require.Equal(t, from.org, who.org)
						if share == ShareKey || who.team == 0 && share == ShareTeam {
							require.Equal(t, from.key, who.key)
						}
						if share == ShareTeam {
							require.Equal(t, from.team, who.team)
						}
						continue
					}
					name := fmt.Sprint(body, " by ", i)
					left[name] = who
					s.keep(call(who, body), name)
				}
			})
		})
	}
}

func TestWhatIsNotCached(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		route, body string
		want        bool
	}{
		{governance.RouteChat, hello, true},
		{governance.RouteChat, `{"store":false}`, true},
		{governance.RouteChat, `{"store":true}`, false},
		{governance.RouteChat, `{"store":"yes"}`, false},
		{governance.RouteCompletions, `{}`, true},
		{governance.RouteEmbeddings, `{}`, true},
		{governance.RouteModerations, `{}`, true},
		{governance.RouteMessages, `{}`, true},
		{governance.RouteMessages, `{"container":"c"}`, false},
		{governance.RouteMessages, `{"mcp_servers":[]}`, false},
		{governance.RouteResponses, `{}`, false}, // is stored by the provider
		{governance.RouteResponses, `{"store":false}`, true},
		{governance.RouteResponses, `{"store":true}`, false},
		{governance.RouteResponses, `{"store":false,"background":true}`, false},
		{governance.RouteResponses, `{"store":false,"previous_response_id":"r"}`, false},
		{governance.RouteResponses, `{"store":false,"conversation":"c"}`, false},
		{governance.RouteCountTokens, `{}`, false},
		{"something.new", `{}`, false},
	} {
		s := newShelf(ShareKey)
		s.keep(asked(t, c.route, c.body), "x")
		require.Equal(t, c.want, s.found(t, asked(t, c.route, c.body)) != "", "%s %s", c.route, c.body)
	}
}

// TestClientsDirectives follows RFC 9111: no-cache wants a fresh answer, and no-store that nothing of it is kept.
func TestClientsDirectives(t *testing.T) {
	t.Parallel()
	s := newShelf(ShareKey)
	fresh := asked(t, governance.RouteChat, hello)
	fresh.Header.Set("Cache-Control", "max-age=0, No-Cache")
	s.keep(fresh, "fresh")
	require.Empty(t, s.found(t, fresh))
	require.Equal(t, "fresh", s.found(t, asked(t, governance.RouteChat, hello)))
	old := asked(t, governance.RouteChat, hello)
	old.Header.Set("Cache-Control", "max-age=0")
	require.Empty(t, s.found(t, old), "nothing that is kept is as young")
	private := asked(t, governance.RouteChat, `{"model":"m"}`)
	private.Header.Set("Cache-Control", "no-store")
	s.keep(private, "secret")
	require.Empty(t, s.found(t, private))
	require.Empty(t, s.found(t, asked(t, governance.RouteChat, `{"model":"m"}`)))
}

func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	s := newShelf(ShareKey)
	s.keep(asked(t, governance.RouteChat, hello), string(make([]byte, 1<<10+1)))
	require.Empty(t, s.found(t, asked(t, governance.RouteChat, hello)), "longer than the longest")
	for i := range 3000 {
		s.keep(asked(t, governance.RouteChat, fmt.Sprintf(`{"n":%d}`, i)), string(make([]byte, 1<<10)))
		require.NotEmpty(t, s.found(t, asked(t, governance.RouteChat, `{"n":0}`)), "used each time")
	}
	require.GreaterOrEqual(t, s.answers.room, 0)
	require.Equal(t, s.answers.order.Len(), len(s.answers.byKey))
	require.Equal(t, (1<<20)/(1<<10+overhead), s.answers.order.Len())
	require.Empty(t, s.found(t, asked(t, governance.RouteChat, `{"n":1}`)), "used long ago")
	require.NotEmpty(t, s.found(t, asked(t, governance.RouteChat, `{"n":2999}`)))
}

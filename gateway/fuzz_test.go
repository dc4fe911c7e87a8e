package gateway

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/apikey"
)

func FuzzCredential(f *testing.F) {
	key := apikey.Prefix + strings.Repeat("a", 61)
	for _, seed := range [][3]string{
		{"Bearer " + key, "", ""},
		{"Basic " + base64.StdEncoding.EncodeToString([]byte("u:"+key)), "x", ""},
		{"", key, key + "b"},
		{"bearer", " ", "\x00"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, authorization, xAPIKey, apiKey string) {
		h := http.Header{"Authorization": {authorization}, "X-Api-Key": {xAPIKey}, "Api-Key": {apiKey}}
		found, from, err := credential(h)
		if err != nil {
			for _, value := range []string{xAPIKey, apiKey} {
				if strings.HasPrefix(value, apikey.Prefix) && len(value) > len(apikey.Prefix)+8 {
					require.NotContains(t, err.Error(), value, "no text repeats a key")
				}
			}
			return
		}
		if found.IsZero() {
			require.Empty(t, from)
			return
		}
		require.Contains(t, []string{"Authorization", "X-Api-Key", "Api-Key"}, from)
		require.Equal(t, strings.TrimSpace(found.Reveal()), found.Reveal())
		for _, value := range []string{xAPIKey, apiKey} {
			if strings.HasPrefix(strings.TrimSpace(value), apikey.Prefix) {
				require.True(t, strings.HasPrefix(found.Reveal(), apikey.Prefix), "the key in Tollgate's form counts")
			}
		}
	})
}

func FuzzWishes(f *testing.F) {
	f.Add("Tags", "a=b, c=d")
	f.Add("Metadata", `{"a":"\u0000"}`)
	f.Add("Max-Cost", "0.5")
	f.Add("Dry-Run", "true")
	f.Add("End-User", "ü")
	f.Fuzz(func(t *testing.T, name, value string) {
		w, err := readWishes(http.Header{headerPrefix + name: {value}})
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(w.endUser), maxEndUser)
		require.LessOrEqual(t, len(w.tags), maxTags)
		require.LessOrEqual(t, len(w.metadata), maxMetadata)
		require.False(t, hasNUL(w.metadata))
		for tag, text := range w.tags {
			require.NotEmpty(t, tag)
			require.LessOrEqual(t, len(tag), maxTag)
			require.LessOrEqual(t, len(text), maxTag)
			require.NoError(t, clean(tag+text))
		}
		if w.maxCost != nil {
			require.GreaterOrEqual(t, int64(*w.maxCost), int64(0))
		}
	})
}

func FuzzAdmissible(f *testing.F) {
	for _, seed := range []string{"/v1/models", "/v1/models/a%2Fb", "//v1", "/v1/../x", "/v1/models/..%2fkey", "*", "http://x/"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, target string) {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			return
		}
		r := &http.Request{Method: http.MethodGet, RequestURI: target, URL: u, Header: http.Header{}}
		if admissible(r) != nil {
			return
		}
		for segment := range strings.SplitSeq(u.Path, "/") {
			require.NotEqual(t, "..", segment)
			if _, ok := modelName(u.EscapedPath()); !ok {
				require.NotEqual(t, ".", segment)
			}
		}
		require.NotContains(t, u.Path, "\\")
		require.NotContains(t, u.Path, "\x00")
	})
}

func TestResetText(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", time.Microsecond: "1ms", 12 * time.Millisecond: "12ms", 999500 * time.Microsecond: "1s",
		time.Second: "1s", 1200 * time.Millisecond: "2s", 6 * time.Minute: "6m0s",
	} {
		require.Equal(t, want, resetText(d))
	}
}

func TestF053_WaitsAreRoundedUp(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{time.Nanosecond: "1", time.Millisecond: "1", 999_001 * time.Microsecond: "1000", 7 * time.Second: "7000"} {
		require.Equal(t, want, roundedUp(d, time.Millisecond))
	}
}

func TestEvent(t *testing.T) {
	t.Parallel()
	require.Equal(t, "data: {}\n\n", string(event(nil, []byte("{}"))))
	require.Equal(t, "event: error\ndata: a\ndata: b\n\n", string(event([]byte("error"), []byte("a\nb"))))
}

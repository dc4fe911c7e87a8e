package providers_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/providers"
)

func TestCatalog_IsValidAndInOrder(t *testing.T) {
	t.Parallel()
	entries, err := providers.Catalog()
	require.NoError(t, err)
	for i, e := range entries {
		require.NotEmpty(t, e.Docs, e.Kind)
		if i > 0 {
			require.Less(t, entries[i-1].Kind, e.Kind)
		}
	}
}

func TestReadCatalog_NamesTheEntryAtFault(t *testing.T) {
	t.Parallel()
	const good = "{kind: good, title: Good, base_url: 'https://h/v1', speaks: [chat]}"
	entries, err := providers.ReadCatalog([]byte("- " + good))
	require.NoError(t, err)
	require.Equal(t, []providers.Entry{{Kind: "good", Title: "Good", BaseURL: "https://h/v1", Speaks: []string{"chat"}}}, entries)
	require.Equal(t, []providers.Dialect{providers.OpenAIChat}, entries[0].Dialects())
	for text, want := range map[string]string{
		"{kind: e, title: E, base_url: 'https://h', speaks: [chat], colour: red}":                  "colour",
		"{kind: e, title: E, base_url: 'https://h', speaks: [chat], quirks: {odd: true}}":          "odd",
		"{kind: E, title: E, base_url: 'https://h', speaks: [chat]}":                               "kind:",
		"{kind: e e, title: E, base_url: 'https://h', speaks: [chat]}":                             "kind:",
		"{kind: e, base_url: 'https://h', speaks: [chat]}":                                         "title:",
		"{kind: e, title: E, speaks: [chat]}":                                                      "base_url: is missing",
		"{kind: e, title: E, base_url: 'http://h', speaks: [chat]}":                                "base_url:",
		"{kind: e, title: E, base_url: 'https://u:p@h', speaks: [chat]}":                           "base_url:",
		"{kind: e, title: E, base_url: 'https://h?key=1', speaks: [chat]}":                         "base_url:",
		"{kind: e, title: E, base_url: 'https://h#f', speaks: [chat]}":                             "base_url:",
		"{kind: e, title: E, base_url: 'https://h', example_url: x, speaks: [chat]}":               "example_url:",
		"{kind: e, title: E, base_url: 'https://h'}":                                               "speaks: names no dialect",
		"{kind: e, title: E, base_url: 'https://h', speaks: [sing]}":                               `"sing" is none of chat`,
		"{kind: e, title: E, base_url: 'https://h', speaks: [chat, chat]}":                         "stands twice",
		"{kind: e, title: E, base_url: 'https://h', speaks: [chat], auth: 'a b'}":                  "auth:",
		"{kind: e, title: E, base_url: 'https://h', speaks: [chat], docs: 'ftp://h'}":              "docs:",
		"{kind: e, title: E, base_url: 'https://h', speaks: [chat], quirks: {output_limit: many}}": "output_limit",
		"{kind: good, title: Again, base_url: 'https://h', speaks: [chat]}":                        "stands twice",
	} {
		_, err := providers.ReadCatalog([]byte("- " + good + "\n- " + text + "\n"))
		require.ErrorContains(t, err, want, text)
		require.ErrorContains(t, err, "line 2", text)
		require.NotContains(t, err.Error(), "line 1:", text)
	}
	_, err = providers.ReadCatalog([]byte("kind: e"))
	require.Error(t, err)
	entries, err = providers.ReadCatalog(nil)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestAuth_Header(t *testing.T) {
	t.Parallel()
	for auth, want := range map[providers.Auth]string{
		"": "Authorization: Bearer ", providers.AuthBearer: "Authorization: Bearer ", providers.AuthNone: "Authorization: Bearer ",
		"X-Api-Key": "X-Api-Key: ",
	} {
		name, scheme := auth.Header()
		require.Equal(t, want, name+": "+scheme)
	}
}

func FuzzReadCatalog(f *testing.F) {
	f.Add("- {kind: e, title: E, base_url: 'https://h', speaks: [chat]}")
	f.Add("- kind: e\n  quirks: {output_limit: max_tokens}\n- *a")
	f.Fuzz(func(t *testing.T, text string) {
		entries, err := providers.ReadCatalog([]byte(text))
		if err != nil {
			require.Nil(t, entries)
			return
		}
		for _, e := range entries {
			require.NotEmpty(t, e.Dialects())
			require.Equal(t, strings.ToLower(e.Kind), e.Kind)
		}
	})
}

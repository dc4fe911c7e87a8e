package app

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/pricebook"
	"github.com/tollgate-gateway/tollgate/providers"
)

// Every kind has a name of its own, the built-in ones of code are described, and the price book knows what entries call it.
func TestKinds_AreWhole(t *testing.T) {
	t.Parallel()
	k, err := openKinds("")
	require.NoError(t, err)
	catalog, err := providers.Catalog()
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(catalog), 100)
	require.Len(t, k.providers, len(builtinProviders())+len(catalog))
	book, err := pricebook.Load(time.Now())
	require.NoError(t, err)
	priced := make(map[string]bool)
	for i := range book {
		priced[book[i].Provider] = true
	}
	for i, d := range k.described {
		require.Equal(t, k.providers[i].Kind(), d.Kind)
		require.NotEmpty(t, d.Title, d.Kind)
		require.NotEmpty(t, d.Docs, d.Kind)
		require.NotEmpty(t, d.Dialects, d.Kind)
		require.NotEmpty(t, d.BaseURL+d.ExampleURL, d.Kind)
		if d.PriceProvider != "" {
			require.True(t, priced[d.PriceProvider], "%s: the price book has no %s", d.Kind, d.PriceProvider)
		}
	}
	require.True(t, k.noStreamOptions("mistral"))
	require.False(t, k.noStreamOptions("groq"))
	for _, known := range knownProviders() {
		d, err := k.entry(known.kind)
		require.NoError(t, err)
		require.NotEmpty(t, d.BaseURL)
		require.True(t, priced[known.prices], known.prices)
	}
}

func TestKnown_KeysOfTheEnvironment(t *testing.T) {
	gemini := known{kind: "gemini", variables: []string{"GEMINI_API_KEY", "GOOGLE_API_KEY"}}
	t.Setenv("GEMINI_API_KEY", "")
	t.Setenv("GOOGLE_API_KEY", "")
	require.True(t, gemini.key().IsZero())
	t.Setenv("GOOGLE_API_KEY", "one")
	require.Equal(t, "one", gemini.key().Reveal())
	t.Setenv("GEMINI_API_KEY", "two")
	require.Equal(t, "two", gemini.key().Reveal())
}

func TestKinds_OfAnOperatorsOwn(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "kinds.yaml")
	write := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	write("- {kind: inhouse, title: Ours, base_url: 'https://llm.example.com/v1', speaks: [chat], auth: X-Team-Key}")
	k, err := openKinds(path)
	require.NoError(t, err)
	d, err := k.entry("inhouse")
	require.NoError(t, err)
	require.Equal(t, []string{"openai/chat"}, d.Dialects)
	for text, want := range map[string]string{
		"- {kind: openai, title: O, base_url: 'https://h/v1', speaks: [chat]}":        `"openai" has the name of a kind that is built in`,
		"- {kind: groq, title: G, base_url: 'https://h/v1', speaks: [chat]}":          `"groq" has the name of a kind that is built in`,
		"- {kind: inhouse, title: O, base_url: 'https://h/v1', speaks: [chat], a: 1}": `"inhouse"`,
	} {
		write(text)
		_, err := openKinds(path)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, path)
	}
	_, err = openKinds(filepath.Join(t.TempDir(), "nothing"))
	require.ErrorContains(t, err, "TOLLGATE_PROVIDER_CATALOG")
}

package console

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/secret"
)

// ProviderKind is a kind of upstream that providers can have.
type ProviderKind struct {
	Kind  string // the name that providers carry
	Title string
	// BaseURL is where everybody reaches it; empty: each provider says it, in the form of ExampleURL.
	BaseURL    string
	ExampleURL string
	Dialects   []string
	// PriceProvider is its name in the price book; empty: each provider is looked up by its own name.
	PriceProvider string
	Docs          string // URL
	// CheckCredential says what is wrong with a credential, without showing any of it. Nil: it is a word in a header.
	CheckCredential func(secret.String) error
}

// howToList tells of the list of kinds.
const howToList = "`tollgate providers kinds` and GET " + prefix + "/provider-kinds list them"

// complete gives a new provider what its kind knows where its maker says nothing.
func (u upstreams) complete(p *governance.Provider) error {
	kind, ok := u.kind(p.Kind)
	if !ok {
		return invalidField("kind", "is not known; "+howToList)
	}
	if p.BaseURL == "" {
		p.BaseURL = kind.BaseURL
	}
	if p.BaseURL == "" {
		return invalidField("base_url", strings.TrimSpace("is missing, and each "+kind.Title+" has its own: "+kind.ExampleURL))
	}
	if p.PriceProvider == "" {
		p.PriceProvider = kind.PriceProvider
	}
	return nil
}

func (u upstreams) kind(name string) (ProviderKind, bool) {
	i := slices.IndexFunc(u.kinds, func(k ProviderKind) bool { return k.Kind == name })
	if i < 0 {
		return ProviderKind{}, false
	}
	return u.kinds[i], true
}

// checkCredential refuses what the code of a kind could not use.
func (u upstreams) checkCredential(kind string, credential secret.String) error {
	if credential.IsZero() {
		return nil
	}
	if k, ok := u.kind(kind); ok && k.CheckCredential != nil {
		if err := k.CheckCredential(credential); err != nil {
			return invalidField("credential", err.Error())
		}
		return nil
	}
	if strings.ContainsFunc(credential.Reveal(), func(r rune) bool { return r <= ' ' || r > '~' }) {
		return invalidField("credential", "must be printable ASCII without spaces, since it travels in a header")
	}
	return nil
}

type providerKind struct {
	Kind          string   `json:"kind"`
	Title         string   `json:"title"`
	BaseURL       string   `json:"base_url" doc:"Where providers of it are that name no address; empty: each has to"`
	ExampleURL    string   `json:"example_url" doc:"The form of an address where base_url is empty"`
	Dialects      []string `json:"dialects" nullable:"false" doc:"What it answers as it is; calls in others are translated where that is possible"`
	PriceProvider string   `json:"price_provider" doc:"Its name in the price book; empty: each provider's own name"`
	Docs          string   `json:"docs" doc:"URL of its makers' documentation"`
}

func (s *server) registerProviderKinds(api huma.API) {
	op := operation(http.MethodGet, "/provider-kinds", "list-provider-kinds", "providers", "List the kinds of provider")
	handle(api, op, "kind of provider", func(context.Context, *struct{}) (*pageOutput[providerKind], error) {
		return pageOf(s.ProviderKinds, "", func(k ProviderKind) providerKind {
			return providerKind{
				Kind: k.Kind, Title: k.Title, BaseURL: k.BaseURL, ExampleURL: k.ExampleURL,
				Dialects: append([]string{}, k.Dialects...), PriceProvider: k.PriceProvider, Docs: k.Docs,
			}
		}), nil
	})
}

package console

import (
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/rs/zerolog"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/secret"
	"github.com/tollgate-gateway/tollgate/internal/version"
)

// prefix is where the admin API lives.
const prefix = "/admin/v1"

const (
	// minToken is the length in bytes below which an admin token could be guessed.
	minToken = 32
	// requestTimeout bounds an operation; checkTimeout bounds those that read the whole ledger.
	requestTimeout = 20 * time.Second
	checkTimeout   = 10 * time.Minute
)

// Options is all that the control plane needs. Everything is required unless it says otherwise.
type Options struct {
	Organizations governance.Store[governance.Organization]
	Teams         governance.TeamStore
	Users         governance.Store[governance.User]
	Memberships   governance.Store[governance.Membership]
	Keys          governance.KeyStore
	Providers     governance.Store[governance.Provider]
	Models        governance.Store[governance.Model]
	Targets       governance.TargetStore
	Limits        governance.Store[governance.Limit]
	Guardrails    governance.Store[governance.Guardrail]
	Prices        governance.PriceStore
	Spend         governance.SpendStore
	Audit         governance.AuditStore
	// Decisions adds to the ledger what people decide. Nil: they cannot.
	Decisions governance.SpendDecisions
	// Exports streams whole periods of the ledger. Nil: there is no export.
	Exports governance.SpendExporter
	// Processes lists the processes of the fleet. Nil: there is no resource "nodes".
	Processes governance.ProcessStore

	// AdminToken is the platform owner's credential, at least 32 bytes.
	AdminToken secret.String
	// PrivateUpstreams allows providers on loopback and private addresses, and plain HTTP to them.
	PrivateUpstreams bool
	// ProviderKinds are the kinds of provider that the gateway can reach.
	ProviderKinds []ProviderKind
	// Now is the clock by which states are dated and new prices begin. Nil: time.Now. Decisions use the database's.
	Now func() time.Time
	Log zerolog.Logger
}

// server carries what operations use.
type server struct {
	Options
}

// New returns the handler of the control listener. It refuses a token that could be guessed.
func New(o Options) (http.Handler, error) {
	if n := len(o.AdminToken.Reveal()); n < minToken {
		return nil, fmt.Errorf("admin token has %d characters, need at least %d: make one with `openssl rand -hex 32`", n, minToken)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	auth := newAuthenticator(o.AdminToken)
	api, mux := newAPI()
	(&server{Options: o}).register(api)
	document, err := api.OpenAPI().MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("write OpenAPI: %w", err)
	}

	outer := http.NewServeMux()
	outer.HandleFunc("GET /{$}", welcome)
	outer.HandleFunc("GET "+prefix+"/{$}", welcome)
	outer.HandleFunc("GET "+prefix+"/openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(document) // a client that is gone cannot be told
	})
	outer.Handle(prefix+"/", auth.require(strictQuery(strictBody(routed(mux)))))
	return observe(o.Log, guardBrowsers(routed(outer))), nil
}

// newAPI makes an API without operations and the mux that serves it.
func newAPI() (huma.API, *http.ServeMux) {
	mux := http.NewServeMux()
	config := huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title:   "Tollgate admin API",
				Version: version.Version,
				Description: "Manages what the gateway enforces. Amounts are decimal strings, ids are public ids, times are RFC 3339. " +
					"PATCH: absent is unchanged, null is unlimited or none. Every resource has an ETag; If-Match refuses stale writes.",
			},
			Servers:  []*huma.Server{{URL: prefix}},
			Security: []map[string][]string{{"adminToken": {}}},
			Components: &huma.Components{
				Schemas: huma.NewMapRegistry("#/components/schemas/", schemaName),
				SecuritySchemes: map[string]*huma.SecurityScheme{
					"adminToken": {Type: "http", Scheme: "bearer", Description: "The server's TOLLGATE_ADMIN_TOKEN"},
				},
			},
		},
		Formats:                      map[string]huma.Format{"application/json": jsonFormat(), "json": jsonFormat()},
		DefaultFormat:                "application/json",
		RejectUnknownQueryParameters: true,
		Transformers:                 []huma.Transformer{asProblem},
	}
	api := huma.NewAPI(config, humago.NewAdapter(mux, prefix))
	components := config.Components
	components.Responses = map[string]*huma.Response{"problem": {
		Description: "What went wrong, by RFC 9457",
		Content: map[string]*huma.MediaType{
			problemType: {Schema: components.Schemas.Schema(reflect.TypeFor[problem](), true, "")},
		},
	}}
	api.UseMiddleware(func(ctx huma.Context, next func(huma.Context)) { next(plainStatus{ctx}) })
	return api, mux
}

// plainStatus answers 400 where the framework says 422: a request that does not fit is a bad request here.
type plainStatus struct{ framework }

// framework is huma.Context under a name that does not hide its method Context.
type framework huma.Context

func (c plainStatus) SetStatus(status int) {
	if status == http.StatusUnprocessableEntity {
		status = http.StatusBadRequest
	}
	c.framework.SetStatus(status)
}

// Unwrap gives the adapter its own context back.
func (c plainStatus) Unwrap() huma.Context { return c.framework }

// asProblem is where every error leaves the framework.
func asProblem(ctx huma.Context, _ string, v any) (any, error) {
	switch e := v.(type) {
	case *huma.ErrorModel:
		p := fromFramework(ctx.Operation(), e)
		p.RequestID = requestID(ctx.Context())
		return p, nil
	case *problem:
		p := *e
		p.RequestID = requestID(ctx.Context())
		return &p, nil
	}
	return v, nil
}

// register adds every operation.
func (s *server) register(api huma.API) {
	s.registerTenancy(api)
	s.registerKeys(api)
	s.registerProviders(api)
	s.registerProviderKinds(api)
	s.registerModels(api)
	s.registerTargets(api)
	s.registerLimits(api)
	s.registerGuardrails(api)
	s.registerPrices(api)
	s.registerSpend(api)
	s.registerExport(api)
	s.registerReservations(api)
	s.registerDecisions(api)
	s.registerAudit(api)
	s.registerNodes(api)
}

// schemaName names a type in the OpenAPI document.
func schemaName(t reflect.Type, hint string) string { return huma.DefaultSchemaNamer(t, hint) }

package app

import (
	"fmt"
	"net/http"

	"github.com/tollgate-gateway/tollgate/console"
	"github.com/tollgate-gateway/tollgate/gateway"
	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/governance/pgstore"
	"github.com/tollgate-gateway/tollgate/internal/config"
	"github.com/tollgate-gateway/tollgate/plugins"
)

// openGateway builds the chain and the data plane around it.
func (a *App) openGateway() error {
	dial := gateway.PublicOnly
	if a.cfg.AllowPrivateProviders {
		dial = nil
	}
	chain, err := buildChain(a.cfg, plugins.Env{
		Log: a.log, Keys: pgstore.NewKeyFinder(a.data), Catalogs: a.catalogs, Peppers: a.peppers,
		Changed: a.catalogs.Changed, Metrics: a.metrics, Spend: pgstore.NewSpend(a.data), MaxAge: a.cfg.CacheMaxAge, DialControl: dial,
	})
	if err != nil {
		return err
	}
	g := gateway.DefaultConfig()
	g.MaxBody, g.MaxBodiesInFlight, g.Attempts = a.cfg.MaxBodyBytes, a.cfg.MaxBodiesInFlight, a.cfg.MaxAttempts
	g.Connect, g.FirstByte, g.Idle, g.Unary = a.cfg.ConnectTimeout, a.cfg.FirstByteTimeout, a.cfg.IdleStreamTimeout, a.cfg.UnaryTimeout
	g.KeepAlive = a.cfg.StreamKeepalive
	g.BreakerFailures, g.BreakerCooldown = a.cfg.BreakerFailures, a.cfg.BreakerCooldown
	var batches governance.BatchStore // reservations in memory would not outlive their process
	if a.cfg.LimitStore != config.StoreMemory {
		batches = pgstore.NewBatches(a.data, a.keys)
	}
	a.gateway, err = gateway.New(gateway.Options{
		Config: g, Chain: chain, Providers: a.kinds.providers, Translators: builtinTranslators(), Ledger: a.limits, Catalogs: a.catalogs,
		EndUsers: pgstore.NewEndUsers(a.data), Spend: pgstore.NewSpend(a.data), Idempotency: pgstore.NewIdempotency(a.data), Responses: pgstore.NewStoredResponses(a.data), Batches: batches,
		Now: a.ledger.Clock, Log: a.log, Metrics: a.metrics, DialControl: dial,
	})
	if err != nil {
		return err
	}
	for _, link := range chain {
		if r, ok := link.Plugin.(plugins.Runner); ok {
			a.runners = append(a.runners, runner{"plugin " + link.Plugin.ID(), r.Run})
		}
	}
	a.runners = append(a.runners, runner{"recorders", a.gateway.Run})
	return nil
}

// openConsole builds the control plane's handler.
func (a *App) openConsole() (http.Handler, error) {
	h, err := console.New(console.Options{
		Organizations: a.stores.organizations, Teams: a.stores.teams, Users: a.stores.users, Memberships: a.stores.memberships,
		Keys: a.stores.keys, Providers: a.stores.providers, Models: a.stores.models, Targets: a.stores.targets,
		Limits: a.stores.limits, Guardrails: a.stores.guardrails, Prices: a.stores.prices, Spend: a.stores.spend, Audit: a.stores.audit,
		Decisions: a.stores.spend, Exports: pgstore.NewExports(a.exports), Processes: pgstore.NewProcesses(a.control), AdminToken: a.cfg.AdminToken, PrivateUpstreams: a.cfg.AllowPrivateProviders,
		ProviderKinds: a.kinds.described, Log: a.log,
	})
	if err != nil {
		return nil, fmt.Errorf("build the admin API: %w", err)
	}
	return h, nil
}

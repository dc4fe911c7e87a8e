package app

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tollgate-gateway/tollgate/gateway"
	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/config"
	"github.com/tollgate-gateway/tollgate/plugins"
	"github.com/tollgate-gateway/tollgate/plugins/audit"
	"github.com/tollgate-gateway/tollgate/plugins/budget"
	"github.com/tollgate-gateway/tollgate/plugins/cache"
	"github.com/tollgate-gateway/tollgate/plugins/concurrency"
	"github.com/tollgate-gateway/tollgate/plugins/guardrail"
	"github.com/tollgate-gateway/tollgate/plugins/modelroute"
	"github.com/tollgate-gateway/tollgate/plugins/ratelimit"
	"github.com/tollgate-gateway/tollgate/plugins/telemetry"
	"github.com/tollgate-gateway/tollgate/plugins/virtualkey"
	"github.com/tollgate-gateway/tollgate/providers"
	"github.com/tollgate-gateway/tollgate/providers/anthropic"
	"github.com/tollgate-gateway/tollgate/providers/azure"
	"github.com/tollgate-gateway/tollgate/providers/bedrock"
	"github.com/tollgate-gateway/tollgate/providers/cohere"
	"github.com/tollgate-gateway/tollgate/providers/gemini"
	"github.com/tollgate-gateway/tollgate/providers/openai"
	"github.com/tollgate-gateway/tollgate/providers/translate"
	"github.com/tollgate-gateway/tollgate/providers/vertex"
)

// builtinPlugins are the modules that a chain can name, in the order of the default chain.
func builtinPlugins() []plugins.Module {
	return []plugins.Module{
		virtualkey.Module(),
		modelroute.Module(),
		guardrail.Module(),
		ratelimit.Module(),
		budget.Module(),
		concurrency.Module(),
		audit.Module(),
		telemetry.Module(),
	}
}

// builtinProviders are the kinds of upstream that have code of their own.
func builtinProviders() []providers.Provider {
	return []providers.Provider{
		openai.New(), anthropic.New(), gemini.New(), azure.New(openai.Of(azure.Entry())), bedrock.New(), cohere.New(openai.New()),
		vertex.New(gemini.New()), vertex.NewClaude(anthropic.New()),
	}
}

// builtinTranslators carry calls between dialects where a target does not speak the route's.
func builtinTranslators() []providers.Translator { return translate.All(time.Now) }

// required are the plugins without which a chain would let calls through ungoverned.
func required() []string {
	return []string{virtualkey.ID, modelroute.ID, guardrail.ID, ratelimit.ID, budget.ID, concurrency.ID}
}

// section is a plugin's part of the settings file.
type section map[string]any

// Decode implements plugins.Config. Unknown members are refused.
func (s section) Decode(into any) error {
	if len(s) == 0 {
		return nil
	}
	text, err := yaml.Marshal(map[string]any(s))
	if err != nil {
		return fmt.Errorf("read section: %w", err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	return dec.Decode(into)
}

// buildChain makes the plugins of the settings, or the default chain where they name none.
func buildChain(cfg *config.Config, env plugins.Env) ([]gateway.Link, error) {
	modules := builtinPlugins()
	wanted := cfg.Plugins
	if len(wanted) == 0 {
		for _, m := range modules {
			wanted = append(wanted, config.Plugin{ID: m.ID})
		}
	}
	if cfg.ResponseCache != config.CacheOff {
		modules = append(modules, cache.Module())
		wanted = append(slices.Clone(wanted), config.Plugin{ID: cache.ID, Config: map[string]any{
			"share": cfg.ResponseCache, "ttl": cfg.ResponseCacheTTL.String(), "max_bytes": cfg.ResponseCacheBytes,
		}})
	}
	byID := make(map[string]plugins.Module, len(modules))
	for _, m := range modules {
		byID[m.ID] = m
	}
	seen := make(map[string]bool)
	links := make([]gateway.Link, 0, len(wanted))
	for _, w := range wanted {
		m, ok := byID[w.ID]
		if !ok {
			return nil, fmt.Errorf("plugins: %q is not built in", w.ID)
		}
		if seen[w.ID] {
			return nil, fmt.Errorf("plugins: %q is named twice", w.ID)
		}
		seen[w.ID] = true
		p, err := m.New(env, section(w.Config))
		if err != nil {
			return nil, fmt.Errorf("plugins: %w", err)
		}
		links = append(links, gateway.Link{
			Plugin: p, OnError: gateway.OnError(w.OnError), Mode: governance.Mode(w.Mode), Timeout: w.Timeout,
		})
	}
	for _, id := range required() {
		if !seen[id] {
			return nil, fmt.Errorf("plugins: the chain lacks %q, without which calls would go ungoverned", id)
		}
	}
	return links, nil
}

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/config"
)

// What serve takes from the environment dev takes too, and says as early what is wrong with it.
func TestDev_TakesSettingsFromTheEnvironment(t *testing.T) {
	t.Setenv("TOLLGATE_RESPONSE_CACHE", "key")
	t.Setenv("TOLLGATE_UNARY_TIMEOUT", "7m")
	t.Setenv("TOLLGATE_PLANES", "gateway")
	t.Setenv("DATABASE_URL", "postgres://elsewhere/")
	cfg, err := environment(t.Context())
	require.NoError(t, err)
	require.Equal(t, config.CacheKey, cfg.ResponseCache)
	require.Equal(t, 7*time.Minute, cfg.UnaryTimeout)
	require.Equal(t, config.Default().IdleStreamTimeout, cfg.IdleStreamTimeout)
	require.Equal(t, config.Default().Planes, cfg.Planes)
	t.Setenv("TOLLGATE_MAX_ATTEMPTS", "99")
	_, err = environment(t.Context())
	require.ErrorContains(t, err, "TOLLGATE_MAX_ATTEMPTS")
}

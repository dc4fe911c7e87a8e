package gateway_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
)

// TestF218_ABrokenTargetIsNotTriedByEachCall: of the calls after the first ones none waits for it, and when there is nothing
// else each goes to it.
func TestF218_ABrokenTargetIsNotTriedByEachCall(t *testing.T) {
	t.Parallel()
	for script, tried := range map[string]int{
		"status(500)": 3, "reset_before_bytes": 3, "status(503),retry_after(1)": 3, // ill
		"status(429),retry_after(60)": 1,  // busy
		"status(429)":                 10, // busy, and does not say for how long
		"status(401)":                 10, // our account: an operator has to see to it
	} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			b := start(t, func(s *setup) {
				s.config.BreakerFailures, s.config.BreakerCooldown = 3, time.Hour
				s.model("m", script, "small")
			})
			for range 10 {
				require.Equal(t, http.StatusOK, b.chat().StatusCode)
			}
			require.Equal(t, int64(10+tried), b.mock.Counts().Count)
			require.Zero(t, b.ledger.held())
		})
	}
	t.Run("alone", func(t *testing.T) {
		t.Parallel()
		b := start(t, func(s *setup) {
			s.config.BreakerFailures, s.config.BreakerCooldown = 3, time.Hour
			s.model("m", "status(500)")
		})
		for range 10 {
			require.Equal(t, http.StatusInternalServerError, b.chat().StatusCode)
		}
		require.Equal(t, int64(10), b.mock.Counts().Count)
	})
}

// TestF218_WhatIsNotTheTargetsFaultSaysNothingOfIt: refused requests, clients that leave, and guards.
func TestF218_WhatIsNotTheTargetsFaultSaysNothingOfIt(t *testing.T) {
	t.Parallel()
	broken := func(s *setup) { s.config.BreakerFailures, s.config.BreakerCooldown = 2, time.Hour }
	t.Run("requests", func(t *testing.T) {
		t.Parallel()
		b := start(t, broken, func(s *setup) { s.model("m", "status(400)", "small") })
		for range 5 {
			require.Equal(t, http.StatusBadRequest, b.chat().StatusCode)
		}
	})
	t.Run("limits", func(t *testing.T) {
		t.Parallel()
		b := start(t, broken, func(s *setup) {
			s.model("m", "small", "small")
			s.limit(governance.KindRate, governance.MetricRequests, 1)
		})
		require.Equal(t, http.StatusOK, b.chat().StatusCode)
		for range 5 {
			require.Equal(t, http.StatusTooManyRequests, b.chat().StatusCode)
		}
		require.Zero(t, b.metrics.all()["tollgate_gateway_breaker_changes_total{"+b.catalogs.current.Target(1).ID+",open}"])
	})
}

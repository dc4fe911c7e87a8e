package ratelimit_test

import (
	"testing"

	"github.com/tollgate-gateway/tollgate/plugins/plugintest"
	"github.com/tollgate-gateway/tollgate/plugins/ratelimit"
)

func TestContract(t *testing.T) {
	t.Parallel()
	plugintest.Run(t, ratelimit.Module(), "")
}

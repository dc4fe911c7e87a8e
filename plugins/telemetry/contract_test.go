package telemetry_test

import (
	"testing"

	"github.com/tollgate-gateway/tollgate/plugins/plugintest"
	"github.com/tollgate-gateway/tollgate/plugins/telemetry"
)

func TestContract(t *testing.T) {
	t.Parallel()
	plugintest.Run(t, telemetry.Module(), "")
}

package audit_test

import (
	"testing"

	"github.com/tollgate-gateway/tollgate/plugins/audit"
	"github.com/tollgate-gateway/tollgate/plugins/plugintest"
)

func TestContract(t *testing.T) {
	t.Parallel()
	plugintest.Run(t, audit.Module(), "queue: 16")
}

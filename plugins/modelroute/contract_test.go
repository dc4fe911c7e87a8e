package modelroute_test

import (
	"testing"

	"github.com/tollgate-gateway/tollgate/plugins/modelroute"
	"github.com/tollgate-gateway/tollgate/plugins/plugintest"
)

func TestContract(t *testing.T) {
	t.Parallel()
	plugintest.Run(t, modelroute.Module(), "")
}
